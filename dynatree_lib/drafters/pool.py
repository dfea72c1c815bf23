"""The pool of Progressive Tree Drafting: drafted continuations as merged trees, keyed by the token they follow."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
import torch

from ..sampling import RandomSource
from .rates import SuccessRates
from .search import Guess


def random_tokens(text: Sequence[int], number: int, random: RandomSource) -> list[int]:
    """Draw tokens of a text, each as probable as it is frequent there; they may be equal."""
    weights = torch.ones(len(text))
    return [int(text[random.draw(weights)]) for _ in range(number)]


class TokenNode:
    """A node of a draft tree, or of a pooled candidate tree.

    Attributes:
        token: its token.
        children: token -> node, in the order they were added.
        stamp: number of the iteration in which it was last merged into the pool.
        count: number of times it was merged.
    """

    __slots__ = ("children", "count", "stamp", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.children: dict[int, TokenNode] = {}
        self.stamp = 0
        self.count = 0

    @property
    def height(self) -> int:
        """Levels below it."""
        levels, below = 0, [*self.children.values()]
        while below:
            levels, below = levels + 1, [child for node in below for child in node.children.values()]
        return levels


class CandidatePool:
    """Candidate trees by the token at their root, merged by M (Progressive Tree Drafting, section 3.2).

    When a `settle` finds more than `size` nodes, the least recently merged go until three quarters of `size` are left,
    or fewer, because nodes merged at the same time go together. The nodes merged at one time must not exceed three
    quarters of `size`. A path is merged from its root, so a parent is no older than its child and whole trees stay.

    Args:
        size: most nodes between two settlements, roots included.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self.roots: dict[int, TokenNode] = {}
        self.nodes = 0
        self.now = 0

    def merged(self, siblings: dict[int, TokenNode], token: int) -> TokenNode:
        """Merge a token among siblings or the roots by M: make the node or count it again, stamp it, and return it."""
        node = self._made(siblings, token)
        node.stamp = self.now
        node.count += 1
        return node

    def _made(self, siblings: dict[int, TokenNode], token: int) -> TokenNode:
        node = siblings.get(token)
        if node is None:
            node = siblings[token] = TokenNode(token)
            self.nodes += 1
        return node

    def settle(self) -> None:
        """End an iteration's merging: forget the nodes beyond `size`, and go on to the next time."""
        if self.nodes > self.size:
            stamps = np.sort([node.stamp for node in self])[::-1]
            self._forget(int(stamps[3 * self.size // 4]))
        self.now += 1

    def merge(self, path: Sequence[int]) -> None:
        """Merge a path into the tree of its first token by M."""
        siblings = self.roots
        for token in path:
            siblings = self.merged(siblings, token).children

    def joined(self, other: CandidatePool) -> CandidatePool:
        """Return a new pool of both pools' trees, merged by M; the other's count as merged after all of this pool."""
        both = CandidatePool(self.size)
        for pool in (self, other):
            todo = [(pool.roots, both.roots)]
            for source, kept in todo:  # grows while it is read
                for token, node in source.items():
                    same = both._made(kept, token)
                    same.stamp = both.now + node.stamp
                    same.count += node.count
                    todo.append((node.children, same.children))
            both.now += pool.now
        both.settle()
        return both

    def __iter__(self) -> Iterator[TokenNode]:
        nodes = [*self.roots.values()]
        for node in nodes:  # grows while it is read
            nodes += node.children.values()
            yield node

    def _forget(self, stamp: int) -> None:
        """Drop nodes merged at `stamp` or earlier."""
        todo = [self.roots]
        for siblings in todo:  # grows while it is read
            for token in [token for token, node in siblings.items() if node.stamp <= stamp]:
                del siblings[token]
            todo += [node.children for node in siblings.values()]
        self.nodes = sum(1 for _ in self)


def ranked(node: TokenNode) -> list[TokenNode]:
    """Return the children of a pooled node: those merged last first, then those merged most often, then the oldest."""
    return sorted(node.children.values(), key=lambda child: (-child.stamp, -child.count))


def candidates(node: TokenNode, rates: SuccessRates, most: int) -> list[Guess]:
    """Return the children of a pooled node, each with the success rate of its rank (`ranked`).

    Ranks beyond the last rate share that, so of `most` nodes none can be a child of a later rank than these.
    """
    return [(child.token, rates[rank], child) for rank, child in enumerate(ranked(node)[: most + len(rates)])]
