"""`BestFirstTree`: a node budget filled in order of draft path probability (OPT-Tree, EAGLE-2, DySpec)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..models.base import LanguageModel
from .base import Drafter, ModelDrafter, TreeBuilder, check_whole


@dataclass(frozen=True)
class BestFirstTree(ModelDrafter):
    """The `max_nodes` most probable nodes, by the draft's probability of their whole path.

    Of all trees of this size (and depth, and number of children looked at) this one has the largest expected number
    of accepted tokens if the draft's probabilities are taken at their word (OPT-Tree, section 3). One draft forward
    per level: a level's nodes are read only if they are among the most probable so far, which loses nothing, because
    no node is more probable than its parent. Equal probabilities are taken in breadth-first order.

    Args:
        draft: the draft model.
        max_nodes: nodes of the tree, node 0 included.
        depth: levels below node 0.
        branching: most children of a node.

    Raises:
        ValueError: for max_nodes < 2, depth or branching < 1.
    """

    draft: LanguageModel
    max_nodes: int = 16
    depth: int = 8
    branching: int = 4
    name = "best-first-tree"

    def __post_init__(self) -> None:
        check_whole(self, "max_nodes", "depth", "branching")
        if self.max_nodes < 2:
            raise ValueError(f"max_nodes is {self.max_nodes}; the budget counts node 0, so give at least 2.")
        if self.depth < 1:
            raise ValueError(f"depth is {self.depth}; a tree needs at least 1 level below node 0.")
        if self.branching < 1:
            raise ValueError(f"branching is {self.branching}; a node needs at least 1 child.")

    @classmethod
    def examples(cls, draft: LanguageModel) -> Iterator[Drafter]:
        """A budget that binds early, one that never does, a chain."""
        yield cls(draft)
        yield cls(draft, max_nodes=40, depth=3, branching=3)
        yield cls(draft, max_nodes=5, depth=6, branching=1)

    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        """See `ModelDrafter.grow`."""
        frontier = np.array([0])
        for _ in range(min(self.depth, max_depth)):
            tokens, logprobs = builder.best(frontier, self.branching)
            before = len(builder)
            builder.add(np.repeat(frontier, tokens.shape[1]), tokens.ravel(), logprobs.ravel())
            kept = highest(builder.cumulative, self.max_nodes)
            builder.keep(kept)
            frontier = np.flatnonzero(kept >= before)
            if not len(frontier):
                return


def highest(values: np.ndarray, count: int) -> np.ndarray:
    """Ascending indices of the `count` highest values; of equal ones the first."""
    return np.sort(np.argsort(-values, kind="stable")[:count])
