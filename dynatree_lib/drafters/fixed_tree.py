"""`FixedTree`: the tree of the first DynaTree paper, top-B expansion with threshold pruning and a node budget."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from typing_extensions import override

from ..models.base import LanguageModel
from .base import ModelDrafter
from .builder import TreeBuilder
from .checks import check_choices, check_counts, check_rules, make_tuples


@dataclass(frozen=True)
class FixedTree(ModelDrafter):
    """Expand every active leaf into the draft's `branching` most probable tokens (DynaTree, Algorithm 1, DRAFTTREE).

    One draft forward per level. The budget is filled in breadth-first order, as in the paper.

    The defaults suit a machine where a node is not free, such as a CPU: one second choice at the first level, long
    chains below it, stopped where they become improbable (chosen on the bundled pair, notebook 10).

    Args:
        draft: the draft model.
        depth: D, levels below node 0. (The paper counts its own root as level 0, so its D allows D + 1 drafted tokens
            on a path; `published` translates.)
        branching: B, children per node; a tuple gives one value per level, the last repeated.
        tau: a node whose path has a draft probability below tau is not expanded; None switches pruning off.
        max_nodes: N_max, nodes of the tree, node 0 included.
        root: "target": node 0 is the token the target has chosen, so level 1 branches; "draft": level 1 holds only the
            draft's top-1 token, which the target may reject, as in the paper.
        prune: "stop": a node below tau stays in the tree as a leaf (Algorithm 1); "remove": it is not added at all
            (the paper's text).

    Raises:
        ValueError: for depth, branching < 1, max_nodes < 2, tau outside (0, 1), or an unknown switch.
    """

    draft: LanguageModel
    depth: int = 9
    branching: int | tuple[int, ...] = (2, 1)
    tau: float | None = 0.03
    max_nodes: int = 16
    root: Literal["target", "draft"] = "target"
    prune: Literal["stop", "remove"] = "stop"
    name = "fixed-tree"

    def __post_init__(self) -> None:
        super().__post_init__()
        make_tuples(self, "branching")
        check_counts(self, "depth", "branching", "max_nodes")
        check_choices(self, root=("target", "draft"), prune=("stop", "remove"))
        check_rules(self, "0 < tau < 1, or None to prune nothing")

    @classmethod
    def published(cls, draft: LanguageModel, depth: int, branching: int, tau: float, max_nodes: int) -> FixedTree:
        """Return the paper's configuration: its D, B, tau and N_max, with the draft's top-1 token as the paper's root.

        The paper's root is our level 1, and its budget does not count our node 0.
        """
        return cls(draft, depth + 1, branching, tau, max_nodes + 1, root="draft")

    def breadth(self, level: int) -> int:
        """Return the children per node at `level` (1 is just below node 0)."""
        if self.root == "draft":
            return 1 if level == 1 else at_level(self.branching, level - 2)
        return at_level(self.branching, level - 1)

    @override
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        floor = -math.inf if self.tau is None else math.log(self.tau)
        active = np.array([0])
        for level in range(1, min(self.depth, max_depth) + 1):
            active = active[builder.cumulative[active] >= floor]
            space = self.max_nodes - len(builder)
            if not len(active) or space <= 0:
                return
            breadth = self.breadth(level)
            if self.prune == "stop":  # then all children are added, and nodes past the budget need no forward
                active = active[: -(-space // min(breadth, builder.highest + 1))]
            tokens, logprobs = (column.ravel() for column in builder.best(active, breadth))
            parents = np.repeat(active, len(tokens) // len(active))
            if self.prune == "remove":
                likely = builder.cumulative[parents] + logprobs >= floor
                parents, tokens, logprobs = parents[likely], tokens[likely], logprobs[likely]
            active = builder.add(parents[:space], tokens[:space], logprobs[:space])


def at_level(branching: int | tuple[int, ...], level: int) -> int:
    """Return the children per node at a level, counted from 0: the last value of a tuple is repeated."""
    return branching[min(level, len(branching) - 1)] if isinstance(branching, tuple) else branching
