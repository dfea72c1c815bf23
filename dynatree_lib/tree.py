"""`TokenTree`: a drafted token tree as a frozen struct of arrays.

Depths and paths are derived here and cached; `masks` has the ancestors. Nothing here knows a model.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

ROOT = -1
"""Parent index of node 0."""

POINT, IID, DISTINCT = 0, 1, 2
"""How a node's token was drawn (`TokenTree.draws`); rules for sampled trees need it to stay lossless."""


@dataclass(frozen=True, eq=False)
class TokenTree:
    """A token tree. Node 0 is the last committed token; node i > 0 is a drafted token.

    Attributes:
        tokens: (n,) int64, token id of each node.
        parents: (n,) int64, `parents[0] == -1` and `0 <= parents[i] < i`. Siblings stand in draw order.
        logprobs: (n,) float64, draft log-probability of each token after its path, in nats; 0 at node 0.
        draws: (n,) uint8, how each token was drawn: `POINT` (deterministic), `IID`, or `DISTINCT` (after its earlier
            siblings, without replacement).

    Raises:
        ValueError: if the arrays do not describe such a tree.
    """

    tokens: np.ndarray
    parents: np.ndarray
    logprobs: np.ndarray
    draws: np.ndarray

    def __post_init__(self) -> None:
        n = len(self.tokens)
        if n == 0 or self.parents[0] != ROOT:
            raise ValueError("A token tree starts with node 0, the last committed token, whose parent is -1.")
        if not len(self.parents) == len(self.logprobs) == len(self.draws) == n:
            raise ValueError("tokens, parents, logprobs and draws of a token tree must have one entry per node.")
        if not all(0 <= parent < node for node, parent in enumerate(self.parents.tolist()[1:], 1)):
            raise ValueError("Every node of a token tree after node 0 needs a parent with a smaller index.")

    def __len__(self) -> int:
        return len(self.tokens)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, TokenTree):
            return NotImplemented
        ours, theirs = ((tree.tokens, tree.parents, tree.draws, tree.logprobs) for tree in (self, other))
        return all(map(np.array_equal, ours, theirs))

    def __hash__(self) -> int:
        return hash((self.tokens.tobytes(), self.parents.tobytes()))

    def __repr__(self) -> str:
        return f"TokenTree({len(self) - 1} nodes below node 0, {self.depth} levels)"

    @classmethod
    def alone(cls, root: int) -> TokenTree:
        """Return the tree of node 0 alone, which plain decoding has at every token."""
        return cls(np.array([root]), *_ALONE)

    @classmethod
    def build(
        cls,
        tokens: Sequence[int],
        parents: Sequence[int],
        logprobs: Sequence[float] | None = None,
        draws: Sequence[int] | None = None,
    ) -> TokenTree:
        """Build a tree from plain sequences; log-probabilities default to 0 and draws to `POINT`.

        Raises:
            ValueError: for tokens or parents that are no whole numbers, other draws, and as for the class.
        """
        n = len(tokens)
        drawn = np.zeros(n, np.uint8) if draws is None else _whole("draws", draws)
        if draws is not None and n and not POINT <= drawn.min() <= drawn.max() <= DISTINCT:
            raise ValueError(
                f"draws of a token tree are {drawn.tolist()}; give POINT (0), IID (1) or DISTINCT (2) each."
            )
        return cls(
            _whole("tokens", tokens),
            _whole("parents", parents),
            np.zeros(n) if logprobs is None else np.asarray(logprobs, np.float64),
            drawn.astype(np.uint8, copy=False),
        )

    @classmethod
    def from_paths(cls, token: int, paths: Iterable[Sequence[int]]) -> TokenTree:
        """Merge token paths below node 0 = `token` into a tree: common prefixes share nodes."""
        tokens, parents, known = [token], [ROOT], {}
        for path in paths:
            node = 0
            for tok in path:
                if (node, tok) not in known:
                    known[node, tok] = len(tokens)
                    tokens.append(tok)
                    parents.append(node)
                node = known[node, tok]
        return cls.build(tokens, parents)

    @cached_property
    def depths(self) -> np.ndarray:
        """(n,) int64, levels below node 0."""
        return depths_of(self.parents)

    @cached_property
    def cumulative(self) -> np.ndarray:
        """(n,) float64, draft log-probability of the whole path to each node, in nats."""
        out = np.zeros(len(self))
        for i in range(1, len(self)):
            out[i] = out[self.parents[i]] + self.logprobs[i]
        return out

    @property
    def depth(self) -> int:
        """Number of levels below node 0."""
        return int(self.depths.max())

    def children(self, node: int) -> np.ndarray:
        """Return the indices of the children of `node`, in draw order."""
        return np.flatnonzero(self.parents == node)

    def path(self, node: int) -> list[int]:
        """Return the nodes from below node 0 down to `node`; empty for node 0."""
        out: list[int] = []
        while node > 0:
            out.append(node)
            node = int(self.parents[node])
        return out[::-1]


_ALONE = np.array([ROOT]), np.zeros(1), np.zeros(1, np.uint8)
"""Parents, log-probabilities and draws of a tree of node 0 alone."""
for _each in _ALONE:
    _each.setflags(write=False)


def _whole(name: str, values: Sequence[int]) -> np.ndarray:
    """Return whole numbers as int64; ValueError for other numbers, which numpy would round down."""
    found = np.asarray(values)
    if found.dtype.kind not in "iu" and len(found):
        raise ValueError(f"{name} of a token tree are {found.tolist()}; give whole numbers.")
    return found.astype(np.int64, copy=False)


def renumbering(count: int, keep: np.ndarray) -> np.ndarray:
    """Return the (count + 1,) new index of each node if only the nodes `keep` stay; dropped nodes get `ROOT`.

    The last entry is for the parent of node 0: index -1 reads it, and it stays `ROOT`.
    """
    out = np.full(count + 1, ROOT)
    out[keep] = np.arange(len(keep))
    return out


def depths_of(parents: np.ndarray) -> np.ndarray:
    """Return the (n,) int64 depth of each node of a forest; roots have parent -1, parents come before children."""
    out = (parents >= 0).astype(np.int64)  # levels from each node up to `node`; every pass doubles them
    node = parents
    while (node >= 0).any():
        out = out + np.where(node >= 0, out[node], 0)
        node = np.where(node >= 0, node[node], ROOT)
    return out
