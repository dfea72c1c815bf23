"""`BestFirstTree`: a node budget filled in order of draft path probability (OPT-Tree, EAGLE-2, DySpec)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from ..models.base import LanguageModel
from .base import ModelDrafter
from .builder import TreeBuilder
from .checks import check_counts
from .search import highest


@dataclass(frozen=True)
class BestFirstTree(ModelDrafter):
    """The `max_nodes` most probable nodes, by the draft's probability of their whole path.

    Of all trees of this size, depth and number of children looked at, this tree has the largest expected number of
    accepted tokens if the draft's probabilities are right (OPT-Tree, section 3). It takes one draft forward per level:
    a node is read only if it is among the most probable so far. That loses nothing, because no node
    is more probable than its parent. Equal probabilities are taken in breadth-first order.

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
        super().__post_init__()
        check_counts(self, "depth", "branching", "max_nodes")

    @override
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        frontier = np.array([0])
        for _ in range(min(self.depth, max_depth)):
            tokens, logprobs = builder.best(frontier, self.branching)
            before = len(builder)
            builder.add(np.repeat(frontier, tokens.shape[1]), tokens.ravel(), logprobs.ravel())
            best = highest(builder.cumulative, self.max_nodes)
            builder.keep(best)
            frontier = np.flatnonzero(best >= before)
            if not len(frontier):
                return
