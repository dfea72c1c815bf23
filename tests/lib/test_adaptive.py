"""AdaptiveTree against the paper's Algorithm 1, its history against numbers, BestFirstTree against the complete tree.

Probabilities that meet a threshold exactly are powers of two: their logarithms, and sums of two of these, are exact.
"""

from __future__ import annotations

import math
import re
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import reference

from dynatree_lib import (
    AdaptiveTree,
    BestFirstTree,
    Chain,
    FixedTree,
    RandomSource,
    Sampling,
    ToyModel,
    generate,
    load_pair,
)
from dynatree_lib.drafters.adaptive_tree import History
from dynatree_lib.models.pairs import Pair
from dynatree_lib.models.toy import ToySession
from dynatree_suite.bench.methods import variant
from dynatree_suite.bench.runner import DrafterRunner
from dynatree_suite.papers.workloads import load_workload

TEXT = [1, 3, 2]
SEEDS = range(200)
SWITCHES = [
    {},
    {"breadth": None},
    {"depth": None},
    {"deep": ">="},
    {"prune": "remove"},
    {"root": "draft"},
    {"root": "draft", "prune": "remove"},
    {"breadth": None, "depth": None, "root": "draft"},
    {"depth": None, "prune": "remove"},
    {"breadth": None, "deep": ">="},
]


def proposed(drafter, text=TEXT, max_depth=99):
    return drafter.propose(drafter.start(text, RandomSource()), max_depth).tree


def transcribed(drafter, text=TEXT, max_depth=99, **changes):
    """What Algorithm 1 makes of an AdaptiveTree's options; `changes` are arguments of the transcription."""
    given = {
        "b_min": drafter.min_branching, "b_mid": drafter.mid_branching, "b_max": drafter.max_branching,
        "tau_l": drafter.tau_low, "tau_h": drafter.tau_high, "d_0": drafter.base_depth,
        "d_max": min(drafter.max_depth, max_depth), "rho_stop": drafter.rho_stop, "rho_deep": drafter.rho_deep,
        "tau": drafter.tau, "n_max": drafter.max_nodes - (drafter.root == "draft"),
        "breadth": drafter.breadth is not None, "gate": drafter.depth is not None, "deep": drafter.deep,
        "remove": drafter.prune == "remove", "root": drafter.root,
    }  # fmt: skip
    return reference.adaptive_tree(drafter.draft.distribution, text, **{**given, **changes})


def assert_same(tree, nodes, root="target"):
    """The library's tree has these (token, parent, path log-probability); a draft's root hangs below node 0."""
    below = root == "draft"
    assert tree.tokens[below:].tolist() == [token for token, _, _ in nodes]
    assert tree.parents[below:].tolist() == [parent + below for _, parent, _ in nodes]
    assert np.allclose(tree.cumulative[below:], [logprob for _, _, logprob in nodes], rtol=1e-12, atol=1e-12)


def table(rest, rows=()):
    """A model whose law is looked up by the tokens after the first; `rest` where the table says nothing."""
    rows = dict(rows)
    return ToyModel(lambda context: rows.get(tuple(context[1:]), rest), len(rest))


@cache
def drawn(seed):
    """An AdaptiveTree of random hyper-parameters on a random law; the switches take turns."""
    rng = np.random.default_rng(seed)
    draft = ToyModel.random(int(rng.integers(4, 9)), seed, sharpness=float(rng.uniform(0.5, 3)))
    b_min, b_mid, b_max = sorted(int(b) for b in rng.integers(1, 5, 3))
    tau_low, tau_high = sorted(rng.uniform(0.15, 0.95, 2).tolist())
    rho_stop, rho_deep = sorted(np.exp(rng.uniform(np.log(0.002), np.log(0.4), 2)).tolist())
    max_depth = int(rng.integers(3, 9))
    return AdaptiveTree(
        draft,
        b_min, b_mid, b_max, tau_high, tau_low,
        int(rng.integers(1, max_depth, 2).max()), max_depth, rho_stop, rho_deep,
        tau=float(np.exp(rng.uniform(np.log(0.002), np.log(0.3)))) if rng.random() < 0.5 else None,
        max_nodes=int(rng.integers(2, 20) if rng.random() < 0.5 else rng.integers(20, 150)),
        **SWITCHES[seed % len(SWITCHES)],
    )  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- Algorithm 1
@pytest.mark.parametrize("seed", SEEDS)
def test_adaptive_tree_is_algorithm_1(seed):
    """Node by node against the literal transcription, with all the room there is and with little."""
    drafter = drawn(seed)
    assert_same(proposed(drafter), transcribed(drafter), drafter.root)
    max_depth = 1 + seed % 4
    assert_same(proposed(drafter, max_depth=max_depth), transcribed(drafter, max_depth=max_depth), drafter.root)


@pytest.mark.parametrize(
    ("without", "least"),
    [
        ({"n_max": 500}, 60),  # the budget binds
        ({"breadth": False}, 60),
        ({"tau_h": 1.1}, 30),  # no node is confident
        ({"tau_l": 0.0}, 30),  # no node is flat
        ({"gate": False}, 50),
        ({"rho_stop": 0.0}, 15),
        ({"rho_deep": 0.0}, 25),
        ({"rho_deep": 1.0}, 35),  # expansion beyond D_0
        ({"tau": None}, 25),
        ({"remove": True}, 25),
    ],
    ids=str,
)
def test_each_rule_acts_in_many_of_these_draws(without, least):
    """Otherwise equality with the transcription would say little: without the rule these trees are others."""
    assert sum(transcribed(drawn(seed), **without) != transcribed(drawn(seed)) for seed in SEEDS) >= least


def test_the_drawn_trees_are_of_many_sizes_and_breadths():
    trees = [proposed(drawn(seed)) for seed in SEEDS]
    assert len({len(tree) for tree in trees}) >= 30
    assert {tree.depth for tree in trees} >= set(range(1, 8))
    mixed = [len(set(np.bincount(tree.parents[1:]).tolist()) - {0}) for tree in trees]
    assert sum(count >= 3 for count in mixed) >= 20


@pytest.mark.parametrize("seed", range(40))
def test_without_breadth_depth_and_history_it_is_a_fixed_tree(seed):
    one = replace(drawn(seed), breadth=None, depth=None, history=None)
    same = FixedTree(one.draft, one.base_depth, one.mid_branching, one.tau, one.max_nodes, one.root, one.prune)
    left, right = proposed(one), proposed(same)
    for name in ("tokens", "parents", "logprobs"):
        assert getattr(left, name).tolist() == getattr(right, name).tolist()


def test_a_fixed_tree_expands_a_node_of_exactly_tau():
    assert proposed(FixedTree(table(HALVES), 2, 2, tau=0.25), [3]).parents.tolist() == [-1, 0, 0, 1, 1, 2, 2]


@pytest.mark.parametrize(("budget", "flat"), [(256, False), (256, True), (12, True), (1, False)])
@pytest.mark.parametrize("seed", range(4))
def test_the_published_configuration_is_algorithm_1_with_the_drafts_root(budget, flat, seed):
    draft = ToyModel.random(8, seed, sharpness=1 if flat else 5)
    drafter = AdaptiveTree.published(draft, budget, **({"rho_stop": 0.002, "rho_deep": 0.02} if flat else {}))
    nodes = transcribed(drafter, n_max=budget)
    assert_same(proposed(drafter), nodes, "draft")
    assert len(nodes) <= budget


def test_the_published_configuration_translates_the_papers_counts():
    drafter = AdaptiveTree.published(ToyModel.random())
    assert (drafter.max_nodes, drafter.root, drafter.history) == (257, "draft", "text")
    assert (drafter.target_acceptance, drafter.window) == (0.7, 10)
    assert (drafter.min_branching, drafter.mid_branching, drafter.max_branching) == (1, 2, 3)
    assert (drafter.tau_high, drafter.tau_low, drafter.base_depth, drafter.max_depth) == (0.9, 0.4, 5, 8)
    assert AdaptiveTree.published(ToyModel.random(), max_depth=9, root="target").max_depth == 9


def test_d_max_8_allows_8_drafted_tokens_from_either_root():
    sure = table([0.97, 0.01, 0.01, 0.01])
    for root in ("draft", "target"):
        tree = proposed(AdaptiveTree(sure, root=root), [1])
        assert tree.parents.tolist() == [-1, *range(8)]


# -------------------------------------------------------------------------------------------------------- trees by hand
SURE, MID, FLAT = [0.95, 0.03, 0.01, 0.01], [0.6, 0.3, 0.06, 0.04], [0.3, 0.27, 0.23, 0.2]
HALVES = [0.5, 0.25, 0.25, 0.0]
QUARTERS = [0.25, 0.25, 0.25, 0.25]
SHALLOW = {"base_depth": 1, "max_depth": 2, "rho_deep": 0.99}  # two levels at most, the second where p > 0.99
BY_HAND = {
    # A mid node has 2 children, a confident one 1, a flat one 3.
    "breadth": ((SURE, {(): MID, (0,): SURE, (1,): FLAT}), {"base_depth": 2, "max_depth": 3, "rho_deep": 0.99},
                [0, 1, 0, 0, 1, 2], [0, 0, 1, 2, 2, 2]),
    # The flat node's children have p = 0.09, 0.081, 0.069; below rho_stop = 0.1 they are not expanded, 0.57 is.
    "early-stop": ((SURE, {(): MID, (1,): FLAT}), {"base_depth": 3, "max_depth": 4, "rho_deep": 0.99},
                   [0, 1, 0, 0, 1, 2, 0], [0, 0, 1, 2, 2, 2, 3]),
    # Beyond D_0 = 1 only the path of 0.6, 0.57, 0.5415 goes on, to level D_max = 4 and its 0.514.
    "deep": ((SURE, {(): MID}), {"base_depth": 1, "max_depth": 4}, [0, 1, 0, 0, 0], [0, 0, 1, 3, 4]),
    # With more levels it stops by itself where p falls to 0.4887, at level 5.
    "deep-ends": ((SURE, {(): MID}), {"base_depth": 1, "max_depth": 9}, [0, 1, 0, 0, 0, 0], [0, 0, 1, 3, 4, 5]),
    # The budget of 5 nodes cuts the flat node's children after the first.
    "budget": ((SURE, {(): MID, (1,): FLAT}), {"base_depth": 3, "max_depth": 4, "max_nodes": 5},
               [0, 1, 0, 0], [0, 0, 1, 2]),
    # p(u) = 1/2 = rho_deep at D_0: not expanded by the later draft, expanded by the earlier one.
    "deep-exactly": ((HALVES, {}), {"base_depth": 1, "max_depth": 2}, [0, 1], [0, 0]),
    "deep-exactly-earlier": ((HALVES, {}), {"base_depth": 1, "max_depth": 2, "deep": ">="}, [0, 1, 0, 1], [0, 0, 1, 1]),
    # p(u) = 1/4 meets rho_stop and tau exactly: expanded, as only p < rho_stop or tau is not.
    "stop-exactly": ((HALVES, {}), {"base_depth": 2, "max_depth": 3, "rho_stop": 0.25},
                     [0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 2, 2]),
    "tau-exactly": ((HALVES, {}), {"base_depth": 2, "max_depth": 3, "tau": 0.25},
                    [0, 1, 0, 1, 0, 1], [0, 0, 1, 1, 2, 2]),
    # Children of p = 1/8 are below tau = 1/4: leaves, or not there at all. Those of exactly 1/4 stay.
    "remove": ((HALVES, {}), {"base_depth": 2, "max_depth": 3, "tau": 0.25, "prune": "remove"},
               [0, 1, 0], [0, 0, 1]),
    # c(u) = 1/2 = tau_h is confident, c(u) = 1/4 = tau_l is mid.
    "confident-exactly": ((HALVES, {}), {**SHALLOW, "tau_high": 0.5}, [0], [0]),
    "mid-exactly": ((QUARTERS, {}), {**SHALLOW, "tau_low": 0.25}, [0, 1], [0, 0]),
    # The draft's root has one child of p = 0.3, whatever its confidence; that is level 1, expanded into three.
    "root-draft": ((FLAT, {}), {**SHALLOW, "base_depth": 1, "rho_deep": 0.2, "root": "draft"},
                   [0, 0, 1, 2], [0, 1, 1, 1]),
}  # fmt: skip


@pytest.mark.parametrize("case", BY_HAND)
def test_trees_worked_out_by_hand(case):
    distribution, options, tokens, parents = BY_HAND[case]
    drafter = AdaptiveTree(table(*distribution), **options)
    tree = proposed(drafter, [3])
    assert tree.tokens.tolist() == [3, *tokens]
    assert tree.parents.tolist() == [-1, *parents]
    assert_same(tree, transcribed(drafter, [3]), drafter.root)


TIED = [0.0625, 0.125, 0.25, 0.0625, 0.125, 0.125, 0.125, 0.125]  # best: 2, then 1, 4, 5, 6, 7 alike, then 0, 3


@pytest.mark.parametrize("branching", [1, 2, 3, 6, 7])
@pytest.mark.parametrize("kind", ["adaptive", "fixed", "best-first", "chain"])
def test_equally_probable_tokens_go_by_their_id(kind, branching):
    """Also where the last of them is not taken, and in a vocabulary where topk gives another order."""
    for distribution, order in ((TIED, [2, 1, 4, 5, 6, 7, 0, 3]), ([1 / 64] * 64, list(range(64)))):
        draft = table(distribution)
        drafter = {
            "adaptive": AdaptiveTree(draft, mid_branching=branching, max_branching=branching, **SHALLOW),
            "fixed": FixedTree(draft, 1, branching),
            "best-first": BestFirstTree(draft, 1 + branching, depth=2, branching=len(distribution)),
            "chain": Chain(draft, 1),
        }[kind]
        assert proposed(drafter, [3]).tokens[1:].tolist() == order[: 1 if kind == "chain" else branching]


@pytest.mark.parametrize(
    ("budget", "tokens", "parents"),
    [
        (3, [0, 1], [0, 0]),  # of 1, 2 and 00, which are all 1/4, the first
        (4, [0, 1, 2], [0, 0, 0]),
        (5, [0, 1, 2, 0], [0, 0, 0, 1]),
        (6, [0, 1, 2, 0, 1], [0, 0, 0, 1, 1]),  # of 01, 02, 10, 20, 000, all 1/8
        (9, [0, 1, 2, 0, 1, 2, 0, 0], [0, 0, 0, 1, 1, 1, 2, 3]),
        (10, [0, 1, 2, 0, 1, 2, 0, 0, 0], [0, 0, 0, 1, 1, 1, 2, 3, 4]),
    ],
)
def test_best_first_takes_equal_paths_breadth_first(budget, tokens, parents):
    draft = table(HALVES)
    tree = proposed(BestFirstTree(draft, budget, depth=3, branching=3), [3])
    assert tree.tokens.tolist() == [3, *tokens]
    assert tree.parents.tolist() == [-1, *parents]
    assert_same(tree, reference.best_first_tree(draft.distribution, [3], budget, 3, 3))


@pytest.mark.parametrize("budget", [20, 30, 45, 60])
def test_best_first_cuts_a_long_list_of_equal_paths_breadth_first(budget):
    """64 paths of two tokens have 5 probabilities, mixed; long enough that an unstable sort would show."""
    draft = table(TIED)
    tree = proposed(BestFirstTree(draft, budget, depth=2, branching=8), [3])
    assert_same(tree, reference.best_first_tree(draft.distribution, [3], budget, 2, 8))


def test_impossible_tokens_and_small_vocabularies_are_drafted_as_in_the_references():
    """A one-hot law has children of probability 0; a vocabulary of 2 has no third child."""
    for distribution in ([1.0, 0.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0], [0.7, 0.3]):
        draft = table(distribution)
        for options in ({}, {"breadth": None}, {"breadth": None, "depth": None, "tau": None, "base_depth": 3}):
            drafter = AdaptiveTree(draft, mid_branching=3, **options)
            assert_same(proposed(drafter, [1]), transcribed(drafter, [1]))
        found = proposed(BestFirstTree(draft, 12, depth=3, branching=3), [1])
        assert_same(found, reference.best_first_tree(draft.distribution, [1], 12, 3, 3))


# ----------------------------------------------------------------------------------------------------------- best first
@cache
def best_first(seed):
    """A BestFirstTree on a random law of the whole context (a Markov law would repeat path probabilities)."""
    rng = np.random.default_rng(seed)
    draft = ToyModel.random(int(rng.integers(4, 9)), seed, order=99, sharpness=float(rng.uniform(0.3, 4)))
    depth, branching = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    return BestFirstTree(draft, int(rng.integers(2, 10) if seed % 2 else rng.integers(10, 90)), depth, branching)


@pytest.mark.parametrize("seed", range(60))
def test_best_first_tree_is_the_best_of_the_complete_tree(seed):
    one = best_first(seed)
    assert_same(
        proposed(one), reference.best_first_tree(one.draft.distribution, TEXT, one.max_nodes, one.depth, one.branching)
    )


def test_the_best_first_budgets_bind_often_and_not_always():
    full = [len(proposed(best_first(seed))) == best_first(seed).max_nodes for seed in range(60)]
    assert 20 <= sum(full) <= 58


@pytest.mark.parametrize("seed", range(20))
def test_no_other_tree_of_this_size_has_a_larger_sum_of_path_probabilities(seed):
    """Random subtrees closed under parents, grown blindly and grown with an eye for probable nodes."""
    rng = np.random.default_rng(seed)
    one = replace(best_first(seed), max_nodes=int(rng.integers(3, 14)), depth=4, branching=3)
    nodes = reference.best_first_tree(one.draft.distribution, TEXT, 10**6, one.depth, one.branching)
    weights = np.exp([logprob for _, _, logprob in nodes])
    best = np.exp(proposed(one).cumulative)
    sums = []
    for sample in range(60):
        chosen, frontier = {0}, {node for node in range(1, len(nodes)) if nodes[node][1] == 0}
        while len(chosen) < len(best):
            open_ones = sorted(frontier)
            bias = weights[open_ones] ** (sample % 4)
            node = int(rng.choice(open_ones, p=bias / bias.sum()))
            chosen.add(node)
            frontier = frontier - {node} | {child for child in range(node, len(nodes)) if nodes[child][1] == node}
        sums.append(weights[sorted(chosen)].sum())
    assert max(sums) <= best.sum() + 1e-12
    assert min(sums) < best.sum() - 1e-6


@pytest.mark.parametrize(
    ("options", "sentence"),
    [({"max_nodes": 1}, "max_nodes is 1; the budget counts node 0"),
     ({"depth": 0}, "depth is 0; give a whole number of at least 1"),
     ({"branching": 0}, "branching is 0; give a whole number of at least 1")],
)  # fmt: skip
def test_bad_best_first_trees_are_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        BestFirstTree(ToyModel.random(), **options)


# ------------------------------------------------------------------------------------------------------- draft forwards
def forwards(drafter):
    """The tree, and the number of nodes in each forward of the draft that made it."""
    sizes = []

    class Counted(ToySession):
        def score(self, tokens, parents, sampling):
            sizes.append(len(tokens))
            return super().score(tokens, parents, sampling)

    draft = ToyModel(drafter.draft.distribution, drafter.draft.vocab_size)
    draft.session = lambda: Counted(draft)
    return proposed(replace(drafter, draft=draft)), sizes


@pytest.mark.parametrize("seed", SEEDS)
def test_an_adaptive_tree_costs_one_draft_forward_per_level(seed):
    """One more only where all children of the last forward were removed: only reading them can tell."""
    drafter = drawn(seed)
    tree, sizes = forwards(drafter)
    assert tree.depth <= len(sizes) <= tree.depth + (drafter.prune == "remove")
    assert (np.array(sizes[: tree.depth]) <= np.bincount(tree.depths)[: tree.depth]).all()


def test_only_nodes_that_are_expanded_are_read():
    """With one breadth for all, none past the budget either; else a bound on them is known and not their number."""
    for seed in SEEDS:
        if drawn(seed).prune == "stop":
            budget = 10_000 if drawn(seed).breadth else drawn(seed).max_nodes
            tree, sizes = forwards(replace(drawn(seed), max_nodes=budget))
            expanded = np.unique(tree.parents[1:])
            assert sizes == np.bincount(tree.depths[expanded]).tolist()


@pytest.mark.parametrize("seed", range(60))
def test_a_best_first_tree_costs_one_draft_forward_per_level(seed):
    """One more only where no child of the last level was good enough: only reading them can tell."""
    tree, sizes = forwards(best_first(seed))
    assert len(sizes) <= min(tree.depth + 1, best_first(seed).depth)
    assert all(size < best_first(seed).max_nodes for size in sizes[1:])


# ---------------------------------------------------------------------------------------------- history: the controller
def rules(mode="iteration", **changes):
    given = {
        "window": 3, "target_acceptance": 0.7, "depth_gain": 0.5, "confidence_gain": 0.1, "base_depth": 2,
        "max_depth": 4, "tau_low": 0.4, "rho_stop": 0.1,
    }  # fmt: skip
    return AdaptiveTree(DRAFT, history=mode, **{**given, **changes})


def test_each_iteration_moves_both_parameters_in_proportion_to_the_windows_error():
    """The paper's update with W = 3, a* = 0.7, eta_D = 0.5, eta_h = 0.1, on committed / (D_0 + 2), by hand."""
    rule, history = rules(), History(2, 0.9, 0.5)
    for committed, mean, base_depth, tau_high in [
        (4, 1.0, 2.15, 0.87),
        (4, 1.0, 2.3, 0.84),
        (1, 0.75, 2.325, 0.835),  # (1 + 1 + 1/4) / 3
        (2, 1.75 / 3, 2.325 - 0.35 / 6, 0.835 + 0.035 / 3),  # the first has left the window: (1 + 1/4 + 1/2) / 3
        (1, 1 / 3, 2.25 + 0.1 / 6 - 1.1 / 6, 0.835 + 0.145 / 3),
        (1, 1 / 3, 2.25 - 1.0 / 6 - 1.1 / 6, 0.92),
        (3, 0.5, 1.8, 0.94),  # D_0 = 1.9 is used as 1, so the statistic is 3/3
        (3, 2.25 / 3, 1.825, 0.935),
    ]:
        history = history.after_iteration(rule, committed, 99)
        assert history.acceptance == pytest.approx(mean)
        assert (history.base_depth, history.tau_high) == pytest.approx((base_depth, tau_high))
    assert history.rho_deep == 0.5


def test_the_papers_statistic_is_the_fraction_of_drafted_tokens_committed():
    """The bonus token was not drafted."""
    rule, history = rules("drafted"), History(2, 0.9, 0.5)
    for committed, drafted, mean, base_depth, tau_high in [
        (3, 8, 0.25, 1.775, 0.945),
        (4, 4, 0.5, 1.675, 0.965),  # (1/4 + 3/4) / 2
        (5, 5, 0.6, 1.625, 0.975),  # (1/4 + 3/4 + 4/5) / 3
        (1, 9, 1.55 / 3, 1.625 - 0.275 / 3, 0.975 + 0.055 / 3),
    ]:
        history = history.after_iteration(rule, committed, drafted)
        assert history.acceptance == pytest.approx(mean)
        assert (history.base_depth, history.tau_high) == pytest.approx((base_depth, tau_high))


@pytest.mark.parametrize("mode", ["iteration", "drafted"])
@pytest.mark.parametrize(("committed", "base_depth", "tau_high"), [(5, 3, 0.406), (1, 1, 0.994)])
def test_the_parameters_stay_within_their_bounds(mode, committed, base_depth, tau_high):
    """D_0 in [1, D_max - 1], and tau_h inside (tau_l, 1), a hundredth of that from its ends."""
    rule, history = rules(mode, depth_gain=40, confidence_gain=40), History(2, 0.9, 0.5)
    for _ in range(5):
        history = history.after_iteration(rule, committed, 4)
        assert 0.4 < history.tau_high < 1
        assert (history.base_depth, history.tau_high) == pytest.approx((base_depth, tau_high))


def after_texts(rule, history, rates):
    """(D_0, tau_h, rho_deep) after each text of so many tokens per iteration."""
    seen = []
    for rate in rates:
        for committed in (rate - 1, rate + 1):
            before = history
            history = history.after_iteration(rule, committed, 20)
            assert replace(history, committed=0, iterations=0) == replace(before, committed=0, iterations=0)
        history = history.after_text(rule)
        seen.append((history.base_depth, round(history.tau_high, 9), round(history.rho_deep, 9)))
    return seen


TEXTS = {"base_depth": 5, "max_depth": 8, "window": 10}


@pytest.mark.parametrize(
    ("rate", "changed"),
    [
        (7, [(6, 0.85, 0.45), (7, 0.8, 0.4), (7, 0.75, 0.35), (7, 0.7, 0.3), (7, 0.65, 0.3), (7, 0.6, 0.3),
             (7, 0.55, 0.3), (7, 0.5, 0.3), (7, 0.5, 0.3)]),
        (2, [(4, 0.95, 0.55), (3, 0.95, 0.6), (2, 0.95, 0.65), (2, 0.95, 0.7), (2, 0.95, 0.75), (2, 0.95, 0.8),
             (2, 0.95, 0.8)]),
        (4.3, [(5, 0.9, 0.5)] * 3),  # 4.3 / 7 = 0.614 and
        (5.5, [(5, 0.9, 0.5)] * 3),  # 5.5 / 7 = 0.786 are within 0.1 of a*
        (5.7, [(6, 0.85, 0.45)]),  # 0.814
        (4.1, [(4, 0.95, 0.55)]),  # 0.586
    ],
)  # fmt: skip
def test_the_authors_code_takes_one_step_per_text_from_the_fifth_on(rate, changed):
    """+-1 level and -+0.05, each within its clips; the statistic is always over the first D_0 + 2 = 7."""
    seen = after_texts(rules("text", **TEXTS), History(5, 0.9, 0.5), [rate] * (4 + len(changed)))
    assert seen == [(5, 0.9, 0.5)] * 4 + changed


def test_the_window_of_texts_forgets():
    """With W = 5: five texts at 1.0, then of 2/7: means 0.857, 0.714 (within the band), 0.571."""
    seen = after_texts(rules("text", **{**TEXTS, "window": 5}), History(5, 0.9, 0.5), [7] * 5 + [2] * 3)
    assert [base_depth for base_depth, _, _ in seen] == [5, 5, 5, 5, 6, 7, 7, 6]


def test_the_statistic_of_a_text_is_over_the_first_depth_whatever_the_depth_is_now():
    history = History(7, 0.8, 0.4, committed=40, iterations=8).after_text(rules("text", **TEXTS))
    assert history == History(7, 0.8, 0.4, (5 / 7,))


def test_the_end_of_a_text_without_an_iteration_or_in_another_mode_changes_nothing():
    history = History(5, 0.9, 0.5, (1.0,) * 9)
    assert history.after_text(rules("text", **TEXTS)) == history
    history = replace(history, committed=70, iterations=10)
    assert history.after_text(rules("iteration", **TEXTS)) == history
    assert history.after_text(rules("text", **TEXTS)) != history


# ---------------------------------------------------------------------------------------------- history: while decoding
TARGET = ToyModel.random(6, seed=1, order=5, sharpness=3)
DRAFT = TARGET.mixed(ToyModel.random(6, seed=2), 0.3)
EAGER = {"rho_stop": 0.003, "rho_deep": 0.03, "tau": None, "tau_high": 0.6, "tau_low": 0.4, "max_nodes": 40}
EAGER |= {"depth_gain": 2.0, "confidence_gain": 0.05, "window": 7, "target_acceptance": 0.7}


def decoded(drafter, prompt=(1, 2), budget=150, target=TARGET, **options):
    return generate(target, list(prompt), drafter, max_new_tokens=budget, **options)


def values(one):
    """(D_0, tau_h, rho_deep) in use in a round."""
    return tuple(one.report[name] for name in ("base_depth", "tau_high", "rho_deep"))


@pytest.mark.parametrize("mode", ["iteration", "drafted"])
def test_a_round_shows_the_values_its_tree_was_drafted_with(mode):
    """Each tree is Algorithm 1's on the text so far with those values, D_0 rounded down; they change on the way."""
    drafter = AdaptiveTree(DRAFT, **EAGER, history=mode)
    out = decoded(drafter)
    text = [1, 2]
    for one in out.iterations:
        base_depth, tau_high, rho_deep = values(one)
        if 150 - (len(text) - 2) > drafter.max_depth:  # with less, a tree ends where the text does
            changes = {"d_0": int(base_depth), "tau_h": tau_high, "rho_deep": rho_deep}
            assert_same(one.tree, transcribed(drafter, text, **changes))
        text += [*one.tree.tokens[list(one.verdict.path)], one.verdict.next_token]
    assert len({int(one.report["base_depth"]) for one in out.iterations}) >= 3
    assert len({one.report["tau_high"] for one in out.iterations}) >= 10


@pytest.mark.parametrize("seed", SEEDS[:60])
def test_a_tree_takes_all_three_values_from_the_state(seed):
    """Also rho_deep, which only texts change; D_0 = 2.9 is used as 2."""
    drafter = drawn(seed)
    state = drafter.start(TEXT, RandomSource())
    tau_high, rho_deep = (drafter.tau_low + 1) / 2, (drafter.rho_stop + 0.1) / 2
    state.learnt = History(2.9, tau_high, rho_deep)
    nodes = transcribed(drafter, d_0=2, tau_h=tau_high, rho_deep=rho_deep)
    assert_same(drafter.propose(state, 99).tree, nodes, drafter.root)


@pytest.mark.parametrize("mode", ["iteration", "drafted"])
def test_the_series_of_a_text_follows_its_own_rounds(mode):
    """a_r, its mean over the last W and both updates, recomputed from what each round drafted and committed."""
    out = decoded(AdaptiveTree(DRAFT, **EAGER, history=mode))
    base_depth, tau_high, statistics = 5, 0.6, []
    for one in out.iterations:
        mean = np.mean(statistics[-7:]) if statistics else math.nan
        expected = (base_depth, tau_high, 0.03, mean)
        assert (*values(one), one.report["acceptance"]) == pytest.approx(expected, nan_ok=True)
        drafted = len(one.tree) - 1
        fraction = (one.committed - 1) / drafted if drafted else 1.0
        statistics.append(one.committed / (int(base_depth) + 2) if mode == "iteration" else fraction)
        error = np.mean(statistics[-7:]) - 0.7
        base_depth = min(max(base_depth + 2 * error, 1), 7)
        tau_high = min(max(tau_high - 0.05 * error, 0.406), 0.994)


def test_without_history_nothing_changes():
    drafter = AdaptiveTree(DRAFT, **EAGER, history=None)
    first = decoded(drafter)
    later = decoded(drafter, (3,), warm=first.state)
    more = decoded(drafter, (4, 5), state=later.state)
    iterations = [*first.iterations, *later.iterations, *more.iterations]
    assert {values(one) for one in iterations} == {(5, 0.6, 0.03)}
    assert all(math.isnan(one.report["acceptance"]) for one in iterations)


@pytest.mark.parametrize("mode", ["iteration", "drafted"])
def test_a_warm_text_begins_with_what_was_learnt_and_leaves_that_as_it_is(mode):
    drafter = AdaptiveTree(DRAFT, **EAGER, history=mode)
    first = decoded(drafter)
    learnt = drafter.report(first.state.drafter_state)
    assert learnt != first.iterations[0].report
    second = decoded(drafter, (3,), warm=first.state)
    assert second.iterations[0].report == learnt
    assert drafter.report(first.state.drafter_state) == learnt
    assert decoded(drafter, (3,), warm=first.state).iterations[-1].report == second.iterations[-1].report
    assert second.tokens == decoded(Chain(DRAFT, 2), (3,)).tokens
    assert decoded(drafter, (3,)).iterations[0].report["base_depth"] == 5
    assert decoded(drafter, (), 20, state=first.state).iterations[0].report == learnt  # that text can still go on


SHARP = ToyModel.random(6, seed=2, order=5, sharpness=6)
FAITHFUL = AdaptiveTree(SHARP, 1, 2, 3, 0.9, 0.4, 2, 6, 0.01, 0.5, None, history="text", target_acceptance=0.7)
STEPS = [(2, 0.9, 0.5)] * 5 + [(3, 0.85, 0.45), (4, 0.8, 0.4), (5, 0.75, 0.35), (5, 0.7, 0.3)]


@pytest.mark.parametrize("link", ["warm", "state"])
def test_text_mode_steps_once_per_text_or_chat_turn(link):
    """A draft that is the target commits over 0.8 (D_0 + 2) tokens; nothing changes inside a text or before five."""
    earlier = None
    for number, expected in enumerate(STEPS):
        out = decoded(FAITHFUL, (number % 6, 2), 40, SHARP, **({link: earlier} if earlier else {}))
        assert len(out.iterations) >= 5
        assert 40 / len(out.iterations) / 4 > 0.8
        for one in out.iterations:
            assert values(one) == pytest.approx(expected)
        earlier = out.state


def test_going_on_with_the_same_text_is_no_new_text():
    out = decoded(FAITHFUL, (0, 2), 12, SHARP)
    for _ in range(9):
        out = decoded(FAITHFUL, (), 12, SHARP, state=out.state)
        assert {values(one) for one in out.iterations} == {(2, 0.9, 0.5)}


def test_warm_beside_state_or_from_another_drafter_is_refused():
    drafter = AdaptiveTree(DRAFT, **EAGER)
    state = decoded(drafter, budget=5).state
    with pytest.raises(ValueError, match="Both state and warm were given"):
        decoded(drafter, state=state, warm=state)
    for other in (replace(drafter, window=5), replace(drafter, draft=TARGET), Chain(DRAFT, 2)):
        with pytest.raises(ValueError, match="The warm state belongs to another drafter"):
            decoded(other, warm=state)
    assert decoded(drafter, warm=state).tokens == decoded(drafter).tokens  # no refusal spent it


def test_a_drafter_that_learns_nothing_begins_a_warm_text_as_any_other():
    for drafter in (Chain(DRAFT, 3), BestFirstTree(DRAFT)):
        warm = decoded(drafter, (3,), warm=decoded(drafter).state)
        assert [len(one.tree) for one in warm.iterations] == [
            len(one.tree) for one in decoded(drafter, (3,)).iterations
        ]


@pytest.mark.parametrize("drafter", [BestFirstTree(DRAFT, 12, depth=5, branching=3), AdaptiveTree(DRAFT, history=None)])
def test_trees_of_a_text_are_those_of_its_tokens_alone(drafter):
    """What the draft's cache keeps between iterations, of trees whose nodes were dropped too, changes nothing."""
    text = [1, 2]
    for one in decoded(drafter).iterations[:-8]:
        assert one.tree.tokens.tolist() == proposed(drafter, text).tokens.tolist()
        assert np.allclose(one.tree.logprobs, proposed(drafter, text).logprobs)
        text += [*one.tree.tokens[list(one.verdict.path)], one.verdict.next_token]
    assert len(text) > 60


# ----------------------------------------------------------------------------------------------- history: the benchmark
def run_twice(runner):
    options = {"max_new_tokens": 60, "eos_token_ids": (), "sampling": Sampling(), "seed": 0}
    return [runner(ids, on_tokens=lambda tokens: None, **options).iterations for ids in ([1, 2], [3])]


@pytest.mark.parametrize("carry", [True, False])
def test_a_benchmark_row_carries_what_was_learnt_only_if_told_to(carry):
    pair = Pair("toy", TARGET, DRAFT, None)
    spec = f"adaptive-tree:rho_stop=0.003,rho_deep=0.03,tau=none,depth_gain=3,carry={carry}"
    first, second = run_twice(variant(spec).runner(pair))
    drafter = AdaptiveTree(DRAFT, rho_stop=0.003, rho_deep=0.03, tau=None, depth_gain=3)
    learnt = drafter.report(decoded(drafter, (1, 2), 60).state.drafter_state)
    assert first[0].report["base_depth"] == 5
    assert (second[0].report == learnt) == carry
    assert (second[0].report["base_depth"] == 5) != carry


def test_a_runner_carries_nothing_unless_asked():
    runs = run_twice(DrafterRunner(TARGET, AdaptiveTree(DRAFT, **EAGER)))
    assert [iterations[0].report["base_depth"] for iterations in runs] == [5, 5]


def test_carry_is_offered_only_for_drafters_that_learn():
    assert variant("adaptive-tree").options["carry"] is False
    for name in ("ar", "chain", "fixed-tree", "best-first-tree"):
        with pytest.raises(ValueError, match="has no option 'carry'"):
            variant(f"{name}:carry=true")


def test_every_switch_can_be_written_in_a_benchmark_spec():
    spec = "adaptive-tree:breadth=none,depth=none,history=drafted,deep=>=,root=draft,prune=remove,tau=none"
    found = variant(spec).options
    assert {name: found[name] for name in ("breadth", "depth", "history", "deep", "root", "prune", "tau")} == {
        "breadth": None, "depth": None, "history": "drafted", "deep": ">=", "root": "draft", "prune": "remove",
        "tau": None,
    }  # fmt: skip


# -------------------------------------------------------------------------------------------- history: the bundled pair
PAPER = {"history": "drafted", "target_acceptance": 0.7, "depth_gain": 0.5}


@pytest.fixture(scope="module")
def texts():
    """The bundled pair and three bundled prompts."""
    pair = load_pair("tiny")
    prompts = {prompt.id: prompt.text for prompt in load_workload("bundled", source="bundled").prompts}
    return pair, [pair.tokenizer(prompts[name]).input_ids for name in ("code-01", "novel-01", "math-01")]


def depths_in_use(texts, **options):
    """D_0, rounded down, in each iteration after the 20th of 200 tokens; one array per prompt."""
    pair, prompts = texts
    found = []
    for ids in prompts:
        out = generate(pair.target, ids, AdaptiveTree(pair.draft, **options), max_new_tokens=200, eos_token_ids=())
        found.append(np.array([int(one.report["base_depth"]) for one in out.iterations[20:]]))
        assert len(found[-1]) >= 20
    return found


def test_by_default_the_depth_settles_between_its_bounds(texts):
    found = depths_in_use(texts)
    assert all(np.isin(depths, (1, 7)).mean() < 0.5 for depths in found)
    assert len(set(np.concatenate(found).tolist())) >= 2


def test_the_papers_statistic_pins_the_depth_at_1(texts):
    """With the a* = 0.7 of the authors' code: about a third of a tree's nodes is accepted."""
    assert all((depths == 1).mean() > 0.9 for depths in depths_in_use(texts, **PAPER))


# ------------------------------------------------------------------------------------------------------------- refusals
BRANCHING, CONFIDENCE = "1 <= min_branching <= mid_branching <= max_branching", "0 < tau_low < tau_high < 1"
DEPTHS, GATES = "1 <= base_depth < max_depth", "0 < rho_stop < rho_deep < 1"
REFUSED = [
    ({"min_branching": 3}, f"min_branching is 3, mid_branching is 2, max_branching is 3; the rule is {BRANCHING}"),
    ({"mid_branching": 4}, f"min_branching is 1, mid_branching is 4, max_branching is 3; the rule is {BRANCHING}"),
    ({"min_branching": 0}, "min_branching is 0; give a whole number of at least 1."),
    ({"tau_low": 0.95}, f"tau_low is 0.95, tau_high is 0.9; the rule is {CONFIDENCE}"),
    ({"tau_low": 0.9}, CONFIDENCE),
    ({"tau_low": 0.0}, CONFIDENCE),
    ({"tau_high": 1.0}, CONFIDENCE),
    ({"rho_stop": 0.5}, f"rho_stop is 0.5, rho_deep is 0.5; the rule is {GATES}"),
    ({"rho_stop": 0.0}, GATES),
    ({"rho_deep": 1.0}, GATES),
    ({"base_depth": 8}, f"base_depth is 8, max_depth is 8; the rule is {DEPTHS}"),
    ({"base_depth": 0}, "base_depth is 0; give a whole number of at least 1."),
    ({"max_depth": 5}, DEPTHS),
    ({"tau": 0.0}, "tau is 0.0; the rule is 0 < tau < 1, or None to prune nothing."),
    ({"tau": 1.0}, "tau is 1.0; the rule is 0 < tau < 1, or None to prune nothing."),
    ({"max_nodes": 1}, "max_nodes is 1; the budget counts node 0, so give a whole number of at least 2."),
    ({"window": 0}, "window is 0; give a whole number of at least 1."),
    ({"target_acceptance": 0.0}, "target_acceptance is 0.0; the rule is 0 < target_acceptance < 1."),
    ({"target_acceptance": 1.0}, "target_acceptance is 1.0; the rule is 0 < target_acceptance < 1."),
    ({"depth_gain": -0.1}, "depth_gain is -0.1; the rule is 0 <= depth_gain < inf."),
    ({"confidence_gain": -0.1}, "confidence_gain is -0.1; the rule is 0 <= confidence_gain < inf."),
]


@pytest.mark.parametrize(("options", "rule"), REFUSED, ids=str)
def test_bad_hyper_parameters_are_refused_with_the_rule(options, rule):
    """By the class, and before any model is loaded by a benchmark."""
    with pytest.raises(ValueError, match=re.escape(rule)):
        AdaptiveTree(DRAFT, **options)
    ((name, value),) = options.items()
    with pytest.raises(ValueError, match=re.escape(rule)):
        variant(f"adaptive-tree:{name}={value}")


@pytest.mark.parametrize(
    ("switch", "choices"),
    [("breadth", "'confidence', None"), ("depth", "'confidence', None"), ("deep", "'>', '>='"),
     ("history", "'iteration', 'drafted', 'text', None"), ("root", "'target', 'draft'"), ("prune", "'stop', 'remove'")],
)  # fmt: skip
def test_unknown_switch_words_are_refused_with_the_choices(switch, choices):
    with pytest.raises(ValueError, match=f"{switch} is 'x'; choose from {choices}."):
        AdaptiveTree(DRAFT, **{switch: "x"})
    with pytest.raises(ValueError, match=f"Option {switch} is 'x'; give one of "):
        variant(f"adaptive-tree:{switch}=x")


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"base_depth": 2.5}, "base_depth is 2.5; give a whole number"),
        ({"window": 2.5}, "window is 2.5; give a whole number"),
        ({"max_nodes": 10.5}, "max_nodes is 10.5; the budget counts node 0, so give a whole number"),
        ({"depth_gain": math.nan}, "depth_gain is nan; the rule is 0 <= depth_gain < inf."),
        ({"confidence_gain": math.inf}, "confidence_gain is inf; the rule is 0 <= confidence_gain < inf."),
    ],
    ids=str,
)
def test_numbers_of_the_wrong_kind_are_refused(options, words):
    with pytest.raises(ValueError, match=words):
        AdaptiveTree(DRAFT, **options)


def test_a_value_that_begins_beyond_a_bound_is_not_moved_the_wrong_way():
    """Clips: D_0 in [2, D_max - 1], tau_h in [0.5, 0.95], rho_deep in [0.3, 0.8]; others may begin so."""
    good, bad = (rules("text", window=1, target_acceptance=0.5, base_depth=depth) for depth in (2, 1))
    low = History(base_depth=1, tau_high=0.45, rho_deep=0.25, committed=70, iterations=10)
    after = low.after_text(good)
    assert (after.base_depth, after.tau_high, after.rho_deep) == (2, 0.45, 0.25)
    after = History(base_depth=1, tau_high=0.97, rho_deep=0.9, committed=10, iterations=100).after_text(bad)
    assert (after.base_depth, after.tau_high, after.rho_deep) == (1, 0.97, 0.9)
    still = rules(depth_gain=0.0, confidence_gain=0.0)
    edge = History(base_depth=5, tau_high=0.9999, rho_deep=0.5).after_iteration(still, 3, 9)
    assert (edge.base_depth, edge.tau_high) == (5, 0.9999)


@pytest.mark.parametrize("kind", ["adaptive", "fixed"])
def test_a_vocabulary_smaller_than_the_branching_still_fills_the_budget(kind):
    """Each node then has fewer children than asked for, so more nodes have to be read."""
    draft = ToyModel.random(2, 0, sharpness=0.01)
    if kind == "fixed":
        drafter = FixedTree(draft, depth=6, branching=3, tau=None, max_nodes=10)
    else:
        given = {"tau_high": 0.99, "tau_low": 0.01, "rho_stop": 1e-6, "tau": None, "history": None}
        drafter = AdaptiveTree(draft, 3, 3, 3, base_depth=6, max_depth=8, max_nodes=10, **given)
    assert proposed(drafter, text=[1, 0]).parents.tolist() == [-1, 0, 0, 1, 1, 2, 2, 3, 3, 4]
