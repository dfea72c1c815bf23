"""CostAwareTree against its slow twin, its cost curve and what it learns against numbers."""

import math
from dataclasses import replace

import numpy as np
import pytest
import reference

from dynatree_lib import CostAwareTree, RandomSource, ToyModel, generate
from dynatree_lib.costs import ASSUMED, CostCurve, Costs, lower_hull
from dynatree_lib.verifiers.base import Verdict

TEXT = [1, 4, 2]


def proposed(drafter, max_depth=99, **learnt):
    state = drafter.start(TEXT, RandomSource())
    for name, value in learnt.items():
        setattr(state, name, value)
    return drafter.propose(state, max_depth).tree, state


def convex(rng, first, count):
    """Costs at 1, 2, 4, ... rows whose slope never falls."""
    slopes = np.sort(rng.uniform(0, 0.15, count - 1))
    return tuple(first + np.concatenate([[0.0], np.cumsum(slopes * 2.0 ** np.arange(count - 1))]))


def priced(rng):
    verify = (1.0, *(float(rng.choice([0.0, 0.3])) + np.array(convex(rng, 1.0, 4)[1:])))
    draft = convex(rng, float(rng.uniform(0.01, 0.3)), 3)
    return {"costs": Costs(verify, draft, float(rng.choice([0.0, 0.2])))}


@pytest.fixture(scope="module")
def trials():
    out = []
    for seed in range(120):
        rng = np.random.default_rng(seed)
        toy = ToyModel.random(int(rng.integers(5, 9)), seed, sharpness=float(rng.uniform(1, 5)))
        options = {
            **priced(rng),
            "rate": float(rng.uniform(0.3, 3)),
            "sharpness": float(rng.uniform(0.5, 3)),
            "child": float(rng.uniform(0.5, 1)),
            "branching": int(rng.integers(1, 5)),
            "depth": int(rng.integers(1, 6)),
            "max_nodes": int(rng.integers(2, 30)),
        }
        out.append((toy, options))
    return out


def test_the_tree_is_the_slow_twins(trials):
    """Node by node over random laws, curves and hyper-parameters; the sample meets every way to end."""
    sizes, short, full = [], 0, 0
    for toy, options in trials:
        drafter = CostAwareTree(toy, **options)
        tree, state = proposed(drafter)
        curves = {"verify": lambda n, d=drafter: d.costs.scoring(n), "draft": lambda n, d=drafter: d.costs.reading(n)}
        names = ("rate", "sharpness", "child", "branching", "depth", "max_nodes")
        rest = {name: options[name] for name in names} | {"overhead": drafter.costs.overhead}
        nodes = reference.cost_aware_tree(toy.distribution, TEXT, **curves, **rest)
        assert tree.tokens.tolist() == [token for token, _, _ in nodes]
        assert tree.parents.tolist() == [parent for _, parent, _ in nodes]
        assert state.learnt.expected == pytest.approx(sum(random for _, _, random in nodes) - 1)
        sizes.append(len(tree))
        short += tree.depth < options["depth"]
        full += len(tree) == options["max_nodes"]
    assert min(sizes) == 1 < max(sizes)
    assert short > 10
    assert full > 5
    assert len(set(sizes)) > 8


def test_its_tree_pays_best_of_all_its_subtrees(trials):
    """No smaller tree of the same nodes has a larger gain less cost: leaving out any leaf does not help."""
    for toy, options in trials[:40]:
        drafter = CostAwareTree(toy, **options)
        tree, state = proposed(drafter)
        distribution = [1.0]
        for node in range(1, len(tree)):
            path = tuple(tree.tokens[tree.path(int(tree.parents[node]))].tolist()) if tree.parents[node] else ()
            p = np.array(toy.distribution((*TEXT, *path))) ** options["sharpness"]
            distribution.append(distribution[tree.parents[node]] * p[tree.tokens[node]] / p.sum())
        assert sum(distribution) - 1 == pytest.approx(state.learnt.expected)
        net = sum(distribution) - options["rate"] * drafter.costs.scoring(len(tree))
        for leaf in set(range(1, len(tree))) - set(tree.parents.tolist()):
            assert (
                sum(distribution) - distribution[leaf] - options["rate"] * drafter.costs.scoring(len(tree) - 1)
                <= net + 1e-12
            )


def test_what_is_dear_is_not_drafted():
    toy = ToyModel.random(6, 3, sharpness=2.0)
    assert len(proposed(CostAwareTree(toy, costs=replace(ASSUMED, draft=(9.0, 9.0))))[0]) == 1
    assert len(proposed(CostAwareTree(toy, costs=replace(ASSUMED, verify=(1.0, 9.0))))[0]) == 1
    free = {"costs": Costs((1.0, 1.0), (1e-9, 1e-9), 0.15)}
    assert len(proposed(CostAwareTree(toy, **free, depth=2, branching=6, max_nodes=43))[0]) == 43  # 1 + 6 + 36


def test_room_limits_the_levels():
    toy = ToyModel.random(6, 3, sharpness=4.0)
    free = {"costs": Costs((1.0, 1.0), (1e-9, 1e-9), 0.15)}
    assert proposed(CostAwareTree(toy, **free), max_depth=2)[0].depth == 2
    tree, state = proposed(CostAwareTree(toy, **free), max_depth=0)
    assert (len(tree), state.learnt.expected, state.learnt.cost) == (1, 0.0, 0.0)


def test_sharpness_and_rate_follow_the_text_by_hand():
    drafter = CostAwareTree(ToyModel.random(6, 3), costs=Costs((1.0, 1.5), (0.2, 0.3), 0.15), learning=0.1)
    state = drafter.start(TEXT, RandomSource())
    assert drafter.report(state) == {"sharpness": 2.0, "rate": 2.0}
    proposal = drafter.propose(state, 0)  # node 0 alone: costs 1
    state.learnt.estimate, state.learnt.cost = np.array([1.0, 0.9, 0.6]), 0.4
    drafter.observe(state, proposal, None, Verdict((), 3))
    assert state.learnt.sharpness == pytest.approx(2 * math.exp(0.1 * (0 - 1.5)))
    assert state.learnt.pace.rate == pytest.approx((100 + 1) / (50 + 0.4 + 1.0))
    assert (state.learnt.expected, state.learnt.cost) == (0.0, 0.0)


def test_in_a_larger_tree_only_its_own_nodes_teach_the_sharpness():
    drafter = CostAwareTree(ToyModel.random(6, 3), learning=0.1)
    state = drafter.start(TEXT, RandomSource())
    state.learnt.estimate, state.pending = np.array([1.0, 0.9, 0.6]), np.full(3, -1)
    drafter.renumber(state, np.array([0, 2, -1]), 5)  # node 1 became node 2, node 2 was left out
    assert state.learnt.estimate.tolist() == [1.0, 0.0, 0.9, 0.0, 0.0]
    drafter.learn(state.learnt, None, (2, 3))  # node 3 is another drafter's
    assert state.learnt.sharpness == pytest.approx(2 * math.exp(0.1 * (1 - 0.9)))


def test_sharpness_finds_a_target_sharper_than_the_draft():
    """The target greedily takes what a flat draft likes best: the sharpness must rise, inside its limits."""
    toy = ToyModel.random(6, 1, sharpness=1.0)
    out = generate(toy, TEXT, CostAwareTree(toy, learning=0.1, sharpness=1.0), max_new_tokens=120)
    series = [one.report["sharpness"] for one in out.iterations]
    assert series[-1] > 1.5 * series[0]
    assert max(series) <= 8.0
    assert {one.report["sharpness"] for one in generate(toy, TEXT, CostAwareTree(toy, learning=0.0)).iterations} == {
        2.0
    }


def test_a_new_text_begins_with_the_rate_that_was_learnt_and_its_own_sharpness():
    toy = ToyModel.random(6, 1)
    drafter = CostAwareTree(toy, learning=0.1)
    first = generate(toy, TEXT, drafter, max_new_tokens=60)
    second = generate(toy, TEXT, drafter, max_new_tokens=5, warm=first.state)
    cold = generate(toy, TEXT, drafter, max_new_tokens=5)
    assert cold.iterations[0].report == {"sharpness": 2.0, "rate": 2.0}
    learnt = drafter.report(first.state.drafter_state)
    assert learnt["sharpness"] != pytest.approx(2.0)
    assert learnt["rate"] != pytest.approx(2.0)
    assert second.iterations[0].report == pytest.approx({"sharpness": 2.0, "rate": learnt["rate"]})


def test_the_same_text_gives_the_same_trees():
    toy = ToyModel.random(7, 5)
    runs = [generate(toy, TEXT, CostAwareTree(toy), max_new_tokens=40).iterations for _ in range(2)]
    for one, other in zip(*runs, strict=True):
        assert one.tree.tokens.tolist() == other.tree.tokens.tolist()
        assert one.report == other.report


# -------------------------------------------------------------------------------------------------------- the curve
def test_a_curve_is_read_between_and_beyond_its_points():
    curve = CostCurve((1.0, 1.1, 1.3, 1.9))  # rows 1, 2, 4, 8; slopes 0.1, 0.1, 0.15
    assert curve.at(np.array([1, 2, 3, 4, 6, 8, 10])) == pytest.approx([1, 1.1, 1.2, 1.3, 1.6, 1.9, 2.2])
    assert [curve.marginal_cost(rows) for rows in (1, 3, 4, 7, 8, 100)] == pytest.approx(
        [0.1, 0.1, 0.15, 0.15, 0.15, 0.15]
    )
    assert curve.step == pytest.approx(0)


def test_the_step_to_a_tree_is_no_rows_price():
    curve = CostCurve((1.0, 1.3, 1.34, 1.42))  # the mask costs 0.28, a row 0.02
    assert [curve.marginal_cost(rows) for rows in (1, 2, 5, 20)] == pytest.approx([0.02] * 4)
    assert curve.step == pytest.approx(0.28)


def test_prices_look_through_a_kernels_step():
    curve = CostCurve((1.0, 1.0, 1.4, 1.4, 1.4))  # the kernel changes at 4 rows, and 16 cost no more
    assert curve.marginal_cost(2) == pytest.approx(0.4 / 14)
    assert curve.at(np.array([4, 16])) == pytest.approx([1.4, 1.4])
    dip = CostCurve((1.0, 1.2, 1.1, 1.5))  # 2 rows cannot cost more than 4
    assert np.diff(dip.at(np.arange(1, 9))).min() >= 0


def test_prices_never_fall_and_a_convex_curve_is_its_own_hull():
    rng = np.random.default_rng(0)
    for _ in range(50):
        curve = CostCurve(tuple(np.cumsum(rng.uniform(0.01, 1, 6))))
        assert np.diff([curve.marginal_cost(rows) for rows in range(1, 70)]).min() >= -1e-12
        smooth = CostCurve(convex(rng, 1.0, 6))
        marginal_costs = [smooth.marginal_cost(rows) for rows in range(2, 70)]
        assert np.diff(smooth.at(np.arange(2, 71))) == pytest.approx(marginal_costs)


def test_lower_hull_by_hand():
    x, y = lower_hull([1, 2, 3, 4], [1.0, 3.0, 2.0, 4.0])
    assert (x.tolist(), y.tolist()) == ([1, 3, 4], [1, 2, 4])


@pytest.mark.parametrize("points", [(), (1.0,), (1.0, 0.0), (1.0, -1.0), (1.0, float("nan")), (1.0, float("inf"))])
def test_points_that_are_no_curve_are_refused(points):
    with pytest.raises(ValueError, match="cost curve"):
        CostCurve(points)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"costs": (1.0, 1.1)}, "give Costs"),
        ({"costs": "free"}, "costs is 'free'"),
        ({"rate": 0.0}, "rate is 0.0; the rule is 0 < rate < inf"),
        ({"sharpness": float("inf")}, "sharpness is inf"),
        ({"learning": -0.1}, "learning is -0.1"),
        ({"child": 1.5}, "child is 1.5"),
        ({"branching": 0}, "branching is 0"),
        ({"depth": 0}, "depth is 0"),
        ({"max_nodes": 1}, "counts node 0"),
        ({"max_nodes": 10.5}, "max_nodes is 10.5; the budget counts node 0, so give a whole number of at least 2"),
        ({"learning": float("nan")}, "learning is nan"),
    ],
)
def test_bad_options_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        CostAwareTree(ToyModel.random(4, 0), **options)
