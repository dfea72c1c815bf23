"""CostAwareSampledTree: exact by enumeration, its places against the slow twin, what it learns against numbers."""

from itertools import product

import numpy as np
import pytest
import reference
from test_cost_aware import priced

from dynatree_lib import CostAwareSampledTree, CostAwareTree, RandomSource, Sampling, ToyModel, generate
from dynatree_lib.costs import Costs
from dynatree_lib.drafters.cost_aware_sampled_tree import CHILD, EDGES, FIRST, LATER
from dynatree_lib.tree import DISTINCT, TokenTree
from dynatree_lib.verifiers import TargetWalk, TokenLevel, Traversal
from dynatree_suite.proofs import exact

ONE, TEXT = Sampling(1.0), [1, 4, 2]
CHEAP = {"costs": Costs((1.0, 1.05, 1.1), (0.02, 0.03))}


@pytest.mark.parametrize("rule", [TokenLevel, Traversal, TargetWalk])
@pytest.mark.parametrize(("rate", "nodes"), [(0.6, 5), (1.5, 6), (3.0, 6)])
def test_the_distribution_is_the_targets_though_the_shape_follows_what_was_drawn(rule, rate, nodes):
    shapes = set()
    for seed, (vocabulary, filters) in enumerate(product((2, 3, 4), ({}, {"top_k": 2}))):
        target, draft = (ToyModel.random(vocabulary, 10 * seed + k, sharpness=2.0) for k in (1, 2))
        drafter = CostAwareSampledTree(draft, **CHEAP, rate=rate, depth=2, branching=2, max_nodes=nodes)
        sampling = Sampling(1.0, **filters)
        bias, _ = exact.bias(target, drafter, rule(), [0], sampling)
        assert bias < 1e-12
        for proposal, _ in exact.proposals(drafter, [0], sampling):
            shapes.add((seed, tuple(proposal.tree.parents.tolist())))
    assert len(shapes) > 6  # else nothing followed the drawn tokens


def trial(seed):
    rng = np.random.default_rng(seed)
    toy = ToyModel.random(int(rng.integers(5, 30)), seed, sharpness=float(rng.uniform(1, 5)))
    return toy, {
        **priced(rng),
        "rate": float(rng.uniform(0.3, 2)),
        "branching": int(rng.integers(1, 5)),
        "depth": int(rng.integers(1, 6)),
        "max_nodes": int(rng.integers(2, 30)),
    }


def test_places_and_levels_are_the_slow_twins():
    sizes = []
    for seed in range(80):
        toy, options = trial(seed)
        drafter = CostAwareSampledTree(toy, **options)
        state = drafter.start(TEXT, RandomSource(seed))
        tree = drafter.propose(state, 99, ONE).tree
        paths = {tuple(tree.tokens[tree.path(node)].tolist()): node for node in range(len(tree))}

        def drawn(path, tree=tree, paths=paths):
            return tree.tokens[tree.children(paths[path])].tolist()

        def accepted(q, later):
            return (LATER if later else FIRST)[sum(q >= edge for edge in EDGES)]

        nodes = reference.cost_aware_sampled_tree(
            toy.distribution, TEXT, drawn, lambda n, d=drafter: d.costs.scoring(n),
            lambda n, d=drafter: d.costs.reading(n), accepted=accepted, child=CHILD, overhead=drafter.costs.overhead,
            **{name: options[name] for name in ("rate", "branching", "depth", "max_nodes")},
        )  # fmt: skip
        assert set(nodes) == set(paths)
        assert (tree.draws[1:] == DISTINCT).all()
        sizes.append(len(tree))
    assert min(sizes) == 1 < max(sizes)
    assert len(set(sizes)) > 8


def test_what_was_accepted_is_counted_by_class_and_place():
    drafter = CostAwareSampledTree(ToyModel.random(6, 3))
    state = drafter.start(TEXT, RandomSource())
    state.learnt.classes = np.array([0, 4, 1, 2, 3, 0])
    tree = TokenTree.build([2, 0, 1, 3, 4, 5], [-1, 0, 0, 0, 2, 2], draws=[0, *[DISTINCT] * 5])
    drafter.learn(state.learnt, tree, np.array([2]))
    first, later = state.learnt.accepted
    assert first[4] == pytest.approx(4.9 * FIRST[4] / 5.9)  # node 1 was tested and rejected; 4.9 = 5 * 0.98
    assert later[1] == pytest.approx((4.9 * LATER[1] + 1) / 5.9)
    assert later[2] == LATER[2]  # node 3 was not tested
    assert first[3] < FIRST[3]  # below node 2
    assert later[0] < LATER[0]
    assert state.learnt.child[0] == pytest.approx((4.9 * CHILD + 1) * 0.98 / (5.9 * 0.98 + 1))
    assert drafter.report(state)["child"] == state.learnt.child[0]
    new = drafter.inherit(drafter.start(TEXT, RandomSource()), state)
    assert new.learnt.accepted[0][4] == first[4]
    new.learnt.accepted[0].learn(4, True)
    assert new.learnt.accepted[0][4] != first[4]  # the earlier text's state is left as it is


def test_a_draft_that_is_the_target_teaches_it_that_all_is_accepted():
    toy = ToyModel.random(8, 5, sharpness=2.0)
    out = generate(toy, TEXT, CostAwareSampledTree(toy, **CHEAP), sampling=ONE, max_new_tokens=150)
    late = out.iterations[-1].report["child"]
    assert late > 0.9
    poor = generate(
        toy, TEXT, CostAwareSampledTree(ToyModel.random(8, 6, sharpness=4.0), **CHEAP), sampling=ONE, max_new_tokens=150
    )
    assert poor.iterations[-1].report["child"] < 0.7
    assert len(out.iterations) < len(poor.iterations)


def test_at_temperature_0_it_is_the_cost_aware_tree():
    toy = ToyModel.random(9, 2, sharpness=2.0)
    texts = [
        generate(toy, TEXT, kind(toy, **CHEAP), max_new_tokens=60) for kind in (CostAwareSampledTree, CostAwareTree)
    ]
    assert texts[0].tokens == texts[1].tokens
    nodes = [[len(iteration.tree) for iteration in text.iterations] for text in texts]
    assert nodes[0] == nodes[1]
