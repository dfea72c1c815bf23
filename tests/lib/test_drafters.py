import math

import numpy as np
import pytest
import reference
from examples import EVERY, examples

from dynatree_lib import Chain, FixedTree, NoDraft, ProgressiveTree, RandomSource, ToyModel, generate
from dynatree_lib.sampling import GREEDY
from dynatree_suite.drafters import Lookahead

TEXT = [1, 4, 2]


def proposed(drafter, max_depth=99, text=TEXT):
    return drafter.propose(drafter.start(text, RandomSource()), max_depth).tree


@pytest.mark.parametrize("seed", range(60))
def test_fixed_tree_is_algorithm_1(seed):
    """Node by node against the literal transcription, over random hyper-parameters and both readings of pruning."""
    rng = np.random.default_rng(seed)
    draft = ToyModel.random(int(rng.integers(5, 10)), seed, sharpness=float(rng.uniform(0.5, 4)))
    depth, branching = int(rng.integers(1, 6)), int(rng.integers(1, 4))
    tau, max_nodes = float(rng.uniform(0.005, 0.6)), int(rng.integers(1, 40))
    remove = bool(seed % 2)
    nodes = reference.draft_tree(draft.distribution, TEXT, depth, branching, tau, max_nodes, remove)
    drafter = FixedTree.published(draft, depth, branching, tau, max_nodes)
    if remove:
        from dataclasses import replace

        drafter = replace(drafter, prune="remove")
        if nodes[0][2] < math.log(tau):  # the text's rule would remove the paper's root itself; Algorithm 1 keeps it
            nodes = []
    tree = proposed(drafter)
    assert tree.tokens[1:].tolist() == [token for token, _, _ in nodes]
    assert tree.parents[1:].tolist() == [parent + 1 for _, parent, _ in nodes]
    assert np.allclose(tree.cumulative[1:], [cumulative for _, _, cumulative in nodes])


def test_target_root_branches_at_level_one():
    draft = ToyModel.random(6, 3)
    tree = proposed(FixedTree(draft, depth=1, branching=3, tau=None))
    best = sorted(range(6), key=lambda t: -draft.distribution(tuple(TEXT))[t])[:3]
    assert tree.tokens.tolist() == [TEXT[-1], *best]


def test_branching_per_level_and_budget():
    draft = ToyModel.random(6, 3)
    tree = proposed(FixedTree(draft, depth=3, branching=(3, 2, 1), tau=None, max_nodes=99))
    assert np.bincount(tree.depths).tolist() == [1, 3, 6, 6]
    assert len(proposed(FixedTree(draft, depth=3, branching=(3, 2, 1), tau=None, max_nodes=8))) == 8


def test_chain_is_the_drafts_greedy_text():
    from dynatree_lib import autoregressive

    draft = ToyModel.random(6, 3)
    tree = proposed(Chain(draft, 5))
    assert tree.tokens[1:].tolist() == autoregressive(draft, TEXT, max_new_tokens=5).tokens
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3, 4]


REPEATING = [1, 4, 2, 3, 1, 4, 2, 0, 1, 4, 2, 3, 1, 4]  # drafters that copy have something to copy


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_trees_respect_the_maximum_depth(kind):
    deepest = 0
    for drafter in examples(kind, ToyModel.random(5, 1)):
        for text in (TEXT, REPEATING):
            for max_depth in (0, 1, 2, 4):
                tree = proposed(drafter, max_depth, text)
                assert tree.depth <= max_depth
                assert tree.tokens[0] == text[-1]
                assert proposed(drafter, max_depth, text).tokens.tolist() == tree.tokens.tolist()
                deepest = max(deepest, tree.depth)
    assert deepest >= 2 or kind in (NoDraft, ProgressiveTree, Lookahead)  # these have nothing before an iteration


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_a_text_that_comes_in_parts_is_drafted_for_like_a_whole_one(kind):
    for drafter in examples(kind, ToyModel.random(5, 1)):
        for cut in (1, 5, 9, 13):  # what is copied, or counted, lies in one part, in the other, or across both
            whole = drafter.start(REPEATING, RandomSource())
            parts = drafter.extend(drafter.start(REPEATING[:cut], RandomSource()), REPEATING[cut:])
            first, second = (drafter.propose(state, 4).tree for state in (whole, parts))
            assert (first.tokens.tolist(), first.parents.tolist()) == (second.tokens.tolist(), second.parents.tolist())


class Forgetful(NoDraft):
    """Takes no notice of what was emitted: its next tree begins below an older token."""

    name = "forgetful"

    def observe(self, state, proposal, scores, verdict):
        return state


class Bare(NoDraft):
    """Returns the tree alone."""

    name = "bare"

    def propose(self, state, max_depth, sampling=GREEDY):
        return super().propose(state, max_depth, sampling).tree


def test_a_tree_that_does_not_begin_at_the_texts_end_is_refused():
    """It would be scored and verified as if it did, and the text would not be the target's."""
    target = ToyModel.random(6, 3, sharpness=3.0)
    with pytest.raises(ValueError, match=r"'forgetful' proposed a tree below token 2, and the text ends with \d\."):
        generate(target, TEXT, Forgetful(), max_new_tokens=8)
    with pytest.raises(TypeError, match="What 'bare' proposes"):
        generate(target, TEXT, Bare(), max_new_tokens=8)


def test_draft_context_limits_the_tree():
    draft = ToyModel.random(5, 1, context=5)
    assert proposed(FixedTree(draft, depth=4, tau=None)).depth == 2
    full = ToyModel.random(5, 1, context=3)
    assert len(proposed(Chain(full, 4))) == 1


@pytest.mark.parametrize(
    ("options", "word"),
    [({"depth": 0}, "depth"), ({"branching": 0}, "branching"), ({"branching": ()}, "branching"), ({"tau": 0.0}, "tau"),
     ({"tau": 1.0}, "tau"), ({"tau": -0.1}, "tau"), ({"max_nodes": 1}, "max_nodes"), ({"root": "x"}, "root"),
     ({"prune": "x"}, "prune")],
)  # fmt: skip
def test_bad_fixed_trees_are_refused(options, word):
    with pytest.raises(ValueError, match=word):
        FixedTree(ToyModel.random(), **options)


def test_bad_chain_is_refused():
    with pytest.raises(ValueError, match="length is 0"):
        Chain(ToyModel.random(), 0)
