"""`SampledTree`, and the sampled form of `AdaptiveTree`: shapes, laws that are recorded, the limit of temperature 0."""

from itertools import pairwise

import numpy as np
import pytest
import reference
import torch

from dynatree_lib import AdaptiveTree, RandomSource, SampledTree, Sampling, ToyModel, Traversal, generate
from dynatree_lib.drafters.builder import TreeBuilder
from dynatree_lib.drafters.sampled_tree import EAGLE_PATHS, slots_of_paths
from dynatree_lib.tree import DISTINCT, IID, POINT
from dynatree_lib.verifiers import Drawing, TargetWalk, TokenLevel, default_verifier
from dynatree_suite.proofs.exact import proposals

TOY = ToyModel.random(4, seed=5)
WARM = Sampling(1.0)


def propose(drafter, sampling=WARM, max_depth=99, seed=0):
    return drafter.propose(drafter.start([0, 1], RandomSource(seed, "draft")), max_depth, sampling)


def shape_of(tree):
    return tree.parents[1:].tolist()


def test_shapes_by_hand():
    assert shape_of(propose(SampledTree(TOY, depth=2, branching=(3, 2))).tree) == [0, 0, 0, 1, 1, 2, 2, 3, 3]
    assert shape_of(propose(SampledTree(TOY, depth=4, branching=1)).tree) == [0, 1, 2, 3]
    assert shape_of(propose(SampledTree(TOY, shape=(0, 0, 1, 1, 3))).tree) == [0, 0, 1, 1, 3]
    assert len(propose(SampledTree(TOY)).tree) == 63


def test_eagles_tree_has_its_25_nodes():
    tree = propose(SampledTree(TOY, shape="eagle")).tree
    paths = {""}
    for node in range(1, len(tree)):
        walk = [0, *tree.path(node)]
        paths.add("".join(str(tree.children(a).tolist().index(b)) for a, b in pairwise(walk)))
    assert paths == {"", *EAGLE_PATHS}
    assert (len(tree), tree.depth) == (26, 5)


@pytest.mark.parametrize("max_depth", range(4))
def test_no_level_beyond_the_room(max_depth):
    assert propose(SampledTree(TOY, depth=3), max_depth=max_depth).tree.depth == max_depth


def test_one_forward_of_the_draft_per_level():
    drafter = SampledTree(TOY, depth=3)
    state = drafter.start([0, 1], RandomSource())
    drafter.propose(state, 99, WARM)
    assert (state.session.forwards, state.session.scored) == (3, 1 + 2 + 4)


@pytest.mark.parametrize(
    ("draw", "codes"), [("distinct", {DISTINCT}), ("iid", {IID}), ("hybrid", {POINT, DISTINCT}), ("top", {POINT})]
)
def test_law_codes(draw, codes):
    proposal = propose(SampledTree(TOY, depth=2, branching=3, draw=draw))
    assert set(proposal.tree.draws[1:].tolist()) == codes
    assert proposal.tree.draws[0] == POINT


@pytest.mark.parametrize("draw", ["distinct", "iid", "hybrid", "top"])
@pytest.mark.parametrize("sampling", [WARM, Sampling(0.5), Sampling(1.0, top_k=2), Sampling(0.8, top_p=0.7)], ids=str)
def test_every_tree_has_the_probability_its_recorded_laws_say(draw, sampling):
    """The slow twin multiplies q_c over the nodes, straight from the draft's table."""
    drafter = SampledTree(TOY, shape=(0, 0, 1, 2), draw=draw)
    total = 0.0
    for proposal, probability in proposals(drafter, [0, 1], sampling):
        expected = reference.probability_of_tree(proposal.tree, [0, 1], TOY.distribution, sampling)
        assert probability == pytest.approx(expected, rel=1e-9)
        total += probability
    assert total == pytest.approx(1, abs=1e-12)


def test_a_draft_temperature_of_its_own():
    proposal = propose(SampledTree(TOY, depth=1, temperature=0.5), Sampling(1.3, top_k=1))
    table = torch.tensor(TOY.distribution((0, 1)), dtype=torch.float64)
    assert torch.allclose(proposal.distributions.distribution(0), (table**2 / (table**2).sum()))


def test_log_probabilities_are_those_at_temperature_1():
    tree = propose(SampledTree(TOY, depth=1), Sampling(0.4)).tree
    table = TOY.distribution((0, 1))
    assert np.allclose(tree.logprobs[1:], [np.log(table[token]) for token in tree.tokens[1:]])


def test_where_fewer_tokens_are_possible_slots_stay_empty():
    tree = propose(SampledTree(TOY, depth=2, branching=3), Sampling(1.0, top_k=2)).tree
    assert shape_of(tree) == [0, 0, 1, 1, 2, 2]
    sharp = ToyModel(lambda context: (0, 1.0, 0, 0), 4)
    assert shape_of(propose(SampledTree(sharp, depth=3, branching=2)).tree) == [0, 1, 2]
    assert shape_of(propose(SampledTree(sharp, depth=2, branching=3, draw="hybrid")).tree) == [0, 1]
    assert shape_of(propose(SampledTree(sharp, depth=1, branching=3, draw="iid")).tree) == [0, 0, 0]


def test_temperature_0_is_the_limit_of_low_temperatures():
    for draw in ("distinct", "hybrid"):
        drafter = SampledTree(TOY, depth=2, branching=2, draw=draw)
        cold, limit = propose(drafter, Sampling(0.02)).tree, propose(drafter, Sampling()).tree
        assert cold.tokens.tolist() == limit.tokens.tolist()
        assert set(limit.draws.tolist()) == {POINT}


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"depth": 0}, "depth is 0"),
        ({"depth": 2.5}, "depth is 2.5"),
        ({"depth": 30}, "make 2,147,483,646 nodes"),
        ({"branching": (2, 1.5)}, "branching is (2, 1.5)"),
        ({"shape": (0, 0.6)}, "parent slot"),
        ({"shape": "eagle", "depth": 3}, "leave these two out"),
        ({"branching": 0}, "branching is 0"),
        ({"branching": ()}, "branching is ()"),
        ({"draw": "best"}, "draw is 'best'"),
        ({"shape": "sparse"}, "shape is 'sparse'"),
        ({"shape": ()}, "parent slot"),
        ({"shape": (0, 1, 0)}, "parent slot"),
        ({"shape": (0, 2)}, "parent slot"),
        ({"shape": (1,)}, "parent slot"),
        ({"temperature": 0.0}, "temperature is 0.0"),
    ],
)
def test_bad_shapes_are_named(options, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence is compared below
        SampledTree(TOY, **options)
    assert sentence in str(caught.value)


def test_paths_need_their_parents_and_earlier_siblings():
    assert slots_of_paths(["0", "1", "00", "01", "10"]) == (0, 0, 1, 1, 2)
    with pytest.raises(ValueError, match="Path 10 needs path 1"):
        slots_of_paths(["0", "10"])
    with pytest.raises(ValueError, match="Path 1 needs path 0"):
        slots_of_paths(["1"])


def test_chains_and_drawings_are_declared():
    assert SampledTree(TOY, branching=1).chain
    assert not SampledTree(TOY).chain
    assert SampledTree(TOY, draw="top").drawing is Drawing.FIXED
    assert AdaptiveTree(TOY).drawing is Drawing.FIXED
    assert AdaptiveTree(TOY, draw="distinct").drawing is Drawing.RECORDED
    assert AdaptiveTree(TOY, draw="distinct", prune="remove").drawing is Drawing.SELECTED
    assert AdaptiveTree(TOY, draw="distinct", prune="remove", tau=None).drawing is Drawing.RECORDED


def test_the_default_rule_fits_the_drafter():
    chosen = {drawing: type(default_verifier(False, drawing)) for drawing in Drawing}
    assert chosen[Drawing.RECORDED] is chosen[Drawing.GROWN] is Traversal
    assert chosen[Drawing.BY_PATH] is TokenLevel
    assert chosen[Drawing.FIXED] is chosen[Drawing.SELECTED] is TargetWalk


def test_a_seed_gives_one_text():
    texts = [generate(TOY, [0], SampledTree(TOY), sampling=WARM, seed=seed).tokens for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_gates_of_the_adaptive_tree_act_on_sampled_children():
    """Breadth by the confidence of each node, no expansion below rho_stop, the budget in breadth-first order."""
    drafter = AdaptiveTree(
        TOY, draw="distinct", tau_high=0.6, tau_low=0.35, rho_stop=0.15, rho_deep=0.3, tau=None, max_nodes=9,
        history=None, base_depth=2, max_depth=4,
    )  # fmt: skip
    for seed in range(20):
        tree = propose(drafter, seed=seed).tree
        assert len(tree) <= 9
        for node in range(len(tree)):
            children = tree.children(node)
            confidence = max(TOY.distribution((0, *tree.tokens[[0, *tree.path(node)]].tolist())))
            if len(children) and children[-1] < 8:
                assert len(children) == (1 if confidence >= 0.6 else 3 if confidence < 0.35 else 2)
            if len(children):
                assert np.exp(tree.cumulative[node]) >= (0.15 if tree.depths[node] < 2 else 0.3)


def test_nodes_of_a_sampled_tree_are_not_selected_afterwards():
    drafter = SampledTree(TOY, depth=1)
    builder = TreeBuilder(drafter.start([0, 1], RandomSource()), 3, WARM)
    drafter.grow(builder, 1)
    with pytest.raises(RuntimeError, match="after they were drawn"):
        builder.keep(np.array([0, 1]))


def test_nothing_is_drawn_where_the_target_is_greedy():
    drafter = SampledTree(TOY, depth=2, temperature=1.0)
    trees = {tuple(propose(drafter, Sampling(), seed=seed).tree.tokens) for seed in range(8)}
    assert len(trees) == 1


def test_sampled_tokens_must_be_declared():
    class Undeclared(SampledTree):
        drawing = Drawing.FIXED

    with pytest.raises(ValueError, match="declares deterministic ones"):
        generate(TOY, [0], Undeclared(TOY), sampling=WARM)
