"""Pools of drafted continuations, keyed by the token they follow: as merged tries, and as n-grams."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterator, Sequence

import numpy as np

FORGETTING = 0.98
"""Weight of the earlier outcomes at each new one, where the share of right candidates is counted."""


class Candidate:
    """A node of a cached candidate tree.

    Attributes:
        token: its token.
        children: token -> node.
        stamp: when it was merged last.
        count: how often it was merged.
    """

    __slots__ = ("children", "count", "stamp", "token")

    def __init__(self, token: int, stamp: int = 0, count: int = 0) -> None:
        self.token = token
        self.children: dict[int, Candidate] = {}
        self.stamp = stamp
        self.count = count


class CandidatePool:
    """Candidate trees by the token at their root, merged by M (Progressive Tree Drafting, section 3.2).

    When a `settle` finds more than `size` nodes, the least recently merged ones go until three quarters of `size` are
    left, or fewer, because nodes merged at the same time go together. What is merged at one time must not exceed
    three quarters of `size`. A path is merged from its root, so a parent is no older than its child and what stays is
    whole.

    Args:
        size: most nodes between two settlements, roots included.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.roots: dict[int, Candidate] = {}
        self.nodes = 0
        self.now = 0

    def root(self, token: int) -> Candidate:
        """The tree kept for `token`, made where there is none, as merged now."""
        return self._touched(self.roots, token)

    def child(self, node: Candidate, token: int) -> Candidate:
        """The child of a node, made where there is none, as merged now: one edge of M."""
        return self._touched(node.children, token)

    def _touched(self, among: dict[int, Candidate], token: int) -> Candidate:
        found = self._made(among, token)
        found.stamp = self.now
        found.count += 1
        return found

    def _made(self, among: dict[int, Candidate], token: int) -> Candidate:
        found = among.get(token)
        if found is None:
            found = among[token] = Candidate(token)
            self.nodes += 1
        return found

    def settle(self) -> None:
        """End of an iteration's merging: forget what is too much, and go on to the next time."""
        if self.nodes > self.size:
            stamps = np.sort([node.stamp for node in self])[::-1]
            self._forget(int(stamps[3 * self.size // 4]))
        self.now += 1

    def merge(self, path: Sequence[int]) -> None:
        """M of a path with the tree of its first token."""
        node = self.root(path[0])
        for token in path[1:]:
            node = self.child(node, token)

    def absorb(self, other: CandidatePool) -> None:
        """M of another pool's trees, as merged after everything in this one."""
        todo = [(other.roots, self.roots)]
        for its, mine in todo:  # grows while it is read
            for token, node in its.items():
                found = self._made(mine, token)
                found.stamp = self.now + node.stamp
                found.count += node.count
                todo.append((node.children, found.children))
        self.now += other.now
        self.settle()

    def __iter__(self) -> Iterator[Candidate]:
        nodes = [*self.roots.values()]
        for node in nodes:  # grows while it is read
            nodes += node.children.values()
            yield node

    def _forget(self, stamp: int) -> None:
        """Drop nodes merged at `stamp` or earlier."""
        left = [self.roots]
        for among in left:  # grows while it is read
            for token in [token for token, node in among.items() if node.stamp <= stamp]:
                del among[token]
            left += [node.children for node in among.values()]
        self.nodes = sum(1 for _ in self)

    def copy(self) -> CandidatePool:
        """A pool of its own with the same content."""
        other = CandidatePool(self.size)
        other.nodes, other.now = self.nodes, self.now
        todo = [(self.roots, other.roots)]
        for mine, its in todo:  # grows while it is read
            for token, node in mine.items():
                its[token] = Candidate(token, node.stamp, node.count)
                todo.append((node.children, its[token].children))
        return other


class RankChances:
    """How often the candidate of each rank among its siblings was right, learnt from the text with forgetting.

    Args:
        prior: probability assumed of each rank to begin with; ranks beyond share the last.
        weight: outcomes that the prior is worth.
    """

    def __init__(self, prior: Sequence[float], weight: float = 5.0) -> None:
        self.right = [weight * share for share in prior]
        self.tried = [weight] * len(prior)

    def __getitem__(self, rank: int) -> float:
        rank = min(rank, len(self.right) - 1)
        return self.right[rank] / self.tried[rank]

    def learn(self, count: int, right: int | None) -> None:
        """Of `count` siblings, `right` is the rank of the one that was right, if it was there."""
        for rank in range(count):
            place = min(rank, len(self.right) - 1)
            self.tried[place] = FORGETTING * self.tried[place] + 1
            self.right[place] = FORGETTING * self.right[place] + (rank == right)

    def copy(self) -> RankChances:
        """The same, to be changed apart."""
        other = RankChances(())
        other.right, other.tried = [*self.right], [*self.tried]
        return other


class NgramPool:
    """For each token the n-grams that were seen after it, the latest `size` of them.

    Args:
        size: most n-grams per token; the least recently added goes first.
        tokens: most tokens; the least recently added to goes first.
    """

    def __init__(self, size: int, tokens: int = 10_000) -> None:
        self.size = size
        self.tokens = tokens
        self._after: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()
        self._count = 0

    def add(self, token: int, ngram: tuple[int, ...]) -> None:
        """`ngram` was seen after `token`."""
        known = self._after.setdefault(token, OrderedDict())
        self._after.move_to_end(token)
        self._count += ngram not in known
        known[ngram] = None
        known.move_to_end(ngram)
        if len(known) > self.size:
            known.popitem(last=False)
            self._count -= 1
        if len(self._after) > self.tokens:
            self._count -= len(self._after.popitem(last=False)[1])

    def after(self, token: int) -> list[tuple[int, ...]]:
        """What was seen after a token, the latest first."""
        return [*reversed(self._after.get(token, ()))]

    def absorb(self, other: NgramPool) -> None:
        """Add another pool's n-grams, as seen after everything in this one."""
        for token, known in other._after.items():
            for ngram in known:
                self.add(token, ngram)

    def __len__(self) -> int:
        return self._count

    def copy(self) -> NgramPool:
        """A pool of its own with the same content."""
        other = NgramPool(self.size, self.tokens)
        other._after = OrderedDict((token, known.copy()) for token, known in self._after.items())
        other._count = self._count
        return other


def ranked(node: Candidate) -> list[Candidate]:
    """The children of a cached node: those merged last first, then those merged most often, then the oldest."""
    return sorted(node.children.values(), key=lambda one: (-one.stamp, -one.count))


def best_first(
    root: Candidate | None, probabilities: RankChances, depth: int, worth: Sequence[float]
) -> tuple[list[int], list[int], list[int]]:
    """The candidates below a cached tree's root that are most likely right, the likeliest first.

    A node's chance is the product along its path of the chance of its rank (`ranked`).

    Args:
        root: of the cached tree, or None for nothing.
        chances: by rank.
        depth: most levels.
        worth: chance that candidate number 1, 2, ... must exceed to be taken; its length is the most that are.

    Returns:
        token, parent (0 is the root, then in the order returned) and rank of each.
    """
    tokens: list[int] = []
    parents: list[int] = []
    ranks: list[int] = []
    open_: list[tuple[float, int, int, int, int, Candidate]] = []
    number = 0

    def push(node: Candidate, index: int, probability: float, level: int) -> None:
        nonlocal number
        for rank, child in enumerate(
            ranked(node)[: len(worth) + len(probabilities.right)]
        ):  # later ranks are no likelier
            number += 1
            heapq.heappush(open_, (-probability * probabilities[rank], number, index, rank, level + 1, child))

    if root is not None and depth > 0:
        push(root, 0, 1.0, 0)
    while open_ and len(tokens) < len(worth):
        minus, _, parent, rank, level, node = heapq.heappop(open_)
        if -minus <= worth[len(tokens)]:
            break
        tokens.append(node.token)
        parents.append(parent)
        ranks.append(rank)
        if level < depth and node.children:
            push(node, len(tokens), -minus, level)
    return tokens, parents, ranks
