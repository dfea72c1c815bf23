"""The pools of the drafters without a model: M, eviction, retrieval and n-grams against slow literal versions."""

import sys
import types

import numpy as np
import pytest
import reference
import torch

from dynatree_lib import ProgressiveTree, RandomSource
from dynatree_lib.drafters.pool import CandidatePool, TokenNode, candidates
from dynatree_lib.drafters.rates import SuccessRates
from dynatree_lib.drafters.search import best_first
from dynatree_lib.verifiers.base import Verdict
from dynatree_suite.drafters import Lookahead, SelfDraft
from dynatree_suite.drafters.ngrams import NgramPool

PRIOR = (0.5, 0.25, 0.12)


def random_branches(rng, count, depth, breadth, tokens):
    """Subtrees as [token, branches]; siblings below a node differ, as in a draft tree."""
    out = []
    for token in rng.integers(0, tokens, count).tolist():
        below = (
            [] if depth == 0 else random_branches(rng, int(rng.integers(0, breadth + 1)), depth - 1, breadth, tokens)
        )
        out.append([token, list({child[0]: child for child in below}.values())])
    return out


def as_node(branch):
    node = TokenNode(branch[0])
    node.children = {child[0]: as_node(child) for child in branch[1]}
    return node


def as_branch(node):
    return [node.token, [as_branch(child) for child in node.children.values()]]


def as_dict(branch):
    return {child[0]: as_dict(child) for child in branch[1]}


def drafting(pool, branches):
    """A state with this draft tree, listed."""
    state = types.SimpleNamespace(subtrees=[as_node(branch) for branch in branches], pool=pool, order=[], parents=[])
    ProgressiveTree().list_nodes(state)
    return state


def flat(pool):
    """[time, count] of every node by its path."""
    out = {}

    def visit(node, above):
        path = (*above, node.token)
        out[path] = [node.stamp, node.count]
        for child in node.children.values():
            visit(child, path)

    for node in pool.roots.values():
        visit(node, ())
    return out


def nested(nodes):
    return {node.token: nested(node.children.values()) for node in nodes}


def learn_siblings(rates, count, right):
    for rank in range(count):
        rates.learn(rank, rank == right)


def every_subtree(branches):
    for branch in branches:
        yield branch
        yield from every_subtree(branch[1])


@pytest.mark.parametrize("seed", range(30))
def test_merging_is_m_of_every_subtree(seed):
    """Section 3.2: any subtree T' of T is merged with the cached tree of the same root; content, times and counts."""
    rng = np.random.default_rng(seed)
    pool, slow, cached = CandidatePool(10**6), reference.PathPool(10**6), {}
    for _ in range(4):
        branches = random_branches(rng, int(rng.integers(1, 4)), int(rng.integers(0, 5)), 3, int(rng.integers(2, 7)))
        ProgressiveTree().merge_draft(drafting(pool, branches))
        slow.merge(branches)
        for subtree in every_subtree(branches):
            if subtree[1]:
                cached = reference.merged(cached, {subtree[0]: as_dict(subtree)})
        assert nested(pool.roots.values()) == cached == slow.trees()
        assert flat(pool) == slow.paths
        assert pool.nodes == len(slow.paths)
        pool.settle()
        slow.settle()


@pytest.mark.parametrize("seed", range(20))
def test_the_least_recently_merged_go(seed):
    rng = np.random.default_rng(seed)
    size = int(rng.integers(60, 150))
    pool, slow, evictions = CandidatePool(size), reference.PathPool(size), 0
    for _ in range(40):
        branches = random_branches(rng, 2, 3, 2, 9)
        ProgressiveTree().merge_draft(drafting(pool, branches))
        slow.merge(branches)
        before = len(slow.paths)
        pool.settle()
        slow.settle()
        evictions += len(slow.paths) < before
        assert flat(pool) == slow.paths
        assert pool.nodes == len(slow.paths) <= size
        if len(slow.paths) < before:
            assert len(slow.paths) <= 3 * size // 4
    assert evictions >= 2


def retrieved(root, rates, depth, worth):
    """Token, parent and share of the chosen candidates."""
    chosen = best_first(
        root, lambda node: candidates(node, rates, len(worth)), depth if root else 0, len(worth), worth.__getitem__
    )
    return [(node.token, node.parent, node.share) for node in chosen]


@pytest.mark.parametrize("seed", range(30))
def test_retrieval_takes_the_likeliest_one_at_a_time(seed):
    rng = np.random.default_rng(seed)
    pool, slow, rates = CandidatePool(10**6), reference.PathPool(10**6), SuccessRates(PRIOR, 0.98)
    for _ in range(5):
        branches = random_branches(rng, 2, 4, 3, 5)
        ProgressiveTree().merge_draft(drafting(pool, branches))
        slow.merge(branches)
        pool.settle()
        slow.settle()
        learn_siblings(rates, 5, int(rng.integers(0, 5)))
        worth = rng.uniform(0, 0.05, int(rng.integers(5, 15))).tolist() if seed % 2 else [0.0] * 9
        for token in range(5):
            max_depth = int(rng.integers(0, 6))
            found = retrieved(pool.roots.get(token), rates, max_depth, worth)
            slowly = slow.candidates(token, rates.__getitem__, max_depth, worth)
            assert found == [(token, parent, rates[rank]) for token, parent, rank in slowly]


def test_a_short_cap_takes_the_likeliest_too():
    # Chances need not fall with rank, so siblings beyond the cap must be weighed too.
    pool, rates = CandidatePool(99), SuccessRates(PRIOR, 0.98)
    for token in (5, 6):
        pool.merge([1, token])
        pool.settle()
    for _ in range(20):
        learn_siblings(rates, 2, 1)
    assert rates[1] > 0.8 > 0.2 > rates[0]
    assert retrieved(pool.roots[1], rates, 9, [0.0]) == [(5, 0, rates[1])]


@pytest.mark.parametrize("seed", range(40))
def test_stepwise_pruning_and_the_cap(seed):
    rng = np.random.default_rng(seed)
    drafter = ProgressiveTree(depth=int(rng.integers(1, 5)), max_draft=int(rng.integers(5, 25)), start_tree=(1,))
    branches = random_branches(rng, int(rng.integers(1, 5)), int(rng.integers(0, 6)), 3, 9)
    found = [as_branch(drafter.stepped(as_node(branch))) for branch in branches]
    assert found == [reference.stepped(branch, drafter.depth) for branch in branches]
    state = drafting(CandidatePool(9), branches)
    drafter.limit(state)
    assert [as_branch(node) for node in state.subtrees] == reference.capped(branches, drafter.max_draft)
    assert sum(1 for _ in every_subtree(reference.capped(branches, drafter.max_draft))) <= drafter.max_draft


@pytest.mark.parametrize("seed", range(20))
def test_growing_adds_each_prediction_once_and_keeps_the_width(seed):
    rng = np.random.default_rng(seed)
    branches = random_branches(rng, 3, 3, 2, 6)
    drafter = ProgressiveTree(children=int(rng.integers(1, 4)), start_tree=(1,))
    state = drafting(CandidatePool(9), branches)
    predicted = rng.integers(0, 6, len(state.order)).tolist()
    drafter.expand(state, predicted)
    calls = iter(predicted)  # depth first, as the rows are
    expected = [reference.expanded(one, (), lambda _: next(calls), drafter.children) for one in branches]
    assert [as_branch(node) for node in state.subtrees] == expected


def test_ngrams_are_kept_by_the_token_before_them_latest_first():
    rng = np.random.default_rng(0)
    for size, tokens in ((1, 5), (3, 5), (4, 3)):
        pool, known = NgramPool(size, tokens), {}
        for _ in range(300):
            token, ngram = int(rng.integers(0, 5)), tuple(rng.integers(0, 3, 2).tolist())
            pool.add(token, ngram)
            kept = [one for one in known.pop(token, []) if one != ngram]
            known[token] = [*kept, ngram][-size:]
            known = dict(list(known.items())[-tokens:])
            for key in range(5):
                assert pool.after(key) == known.get(key, [])[::-1]
            assert len(pool) == sum(map(len, known.values()))


def test_joined_pools_are_apart():
    trees, ngrams = CandidatePool(100), NgramPool(3)
    trees.merge([1, 2])
    ngrams.add(1, (2, 3))
    others = trees.joined(CandidatePool(100)), ngrams.joined(NgramPool(3))
    assert flat(others[0]) == flat(trees)
    assert (others[0].nodes, others[0].now, others[0].size) == (trees.nodes, trees.now + 1, trees.size)
    others[0].merge([1, 3])
    others[0].settle()
    others[1].add(1, (5, 5))
    assert flat(trees) == {(1,): [0, 1], (1, 2): [0, 1]}
    assert (trees.nodes, trees.now) == (2, 0)
    assert ngrams.after(1) == [(2, 3)]


# ------------------------------------------------------------------------------------------------------------- memory
def size_of(thing, seen):
    """Bytes of an object and of all it holds, each object once."""
    if id(thing) in seen or isinstance(thing, type):
        return 0
    seen.add(id(thing))
    total = sys.getsizeof(thing)
    held = []
    if isinstance(thing, dict):
        held += [*thing.keys(), *thing.values()]
    elif isinstance(thing, list | tuple | set):
        held += thing
    held += [getattr(thing, name) for name in getattr(type(thing), "__slots__", ()) if hasattr(thing, name)]
    held += vars(thing).values() if hasattr(thing, "__dict__") else []
    todo = 0
    for one in held:
        todo += size_of(one, seen)
    return total + todo


class Noise:
    """Rows whose predictions are random: nothing repeats, so nothing is shared."""

    def __init__(self, count, rng):
        self.argmax = rng.integers(0, 50_000, count)

    def __len__(self):
        return len(self.argmax)


@pytest.mark.parametrize(
    "drafter", [ProgressiveTree(), ProgressiveTree(text_depth=6), Lookahead(text=True), SelfDraft()], ids=str
)
def test_a_pool_takes_under_50_mb(drafter):
    """800 tokens of the worst text: every prediction a random one of 50,000, one token per iteration."""
    rng = np.random.default_rng(0)
    state = drafter.start(rng.integers(0, 50_000, 50).tolist(), RandomSource())
    for _ in range(800):
        proposal = drafter.propose(state, 99)
        rows = Noise(len(proposal.nodes[0]), rng)
        state = drafter.observe(state, proposal, rows, Verdict((), int(rng.integers(0, 50_000))))
    assert size_of(state.pool, set()) < 50e6
    if isinstance(drafter, ProgressiveTree):
        assert state.pool.nodes == len(flat(state.pool)) <= drafter.max_pool


@pytest.mark.parametrize("seed", range(10))
def test_an_absorbed_pool_comes_after_its_own(seed):
    """M of both, one after the other, as if the second had been merged later."""
    rng = np.random.default_rng(seed)
    first, second, slow = CandidatePool(10**6), CandidatePool(10**6), reference.PathPool(10**6)
    for pool in (first, second):
        for _ in range(4):
            branches = random_branches(rng, 2, 3, 3, 5)
            ProgressiveTree().merge_draft(drafting(pool, branches))
            slow.merge(branches)
            pool.settle()
            slow.settle()
    untouched = flat(first), flat(second)
    both = first.joined(second)
    assert flat(both) == slow.paths
    assert (both.nodes, both.now) == (len(slow.paths), slow.now + 1)
    assert (flat(first), flat(second)) == untouched


def test_each_row_is_drawn_as_a_single_one_would_be():
    weights = torch.tensor(np.random.default_rng(0).random((50, 7)) * (np.random.default_rng(1).random((50, 7)) < 0.6))
    weights[:, 3] += 0.1
    together, alone = RandomSource(5), RandomSource(5)
    assert together.draw_each(weights) == [alone.draw(row) for row in weights]
