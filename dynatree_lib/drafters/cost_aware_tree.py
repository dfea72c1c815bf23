"""`CostAwareTree`: nodes and levels of each iteration chosen by what they gain and what they cost."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from .best_first_tree import highest
from .builder import TreeBuilder
from .cost_aware import CostAwareDrafter, CostAwareState


@dataclass(frozen=True)
class CostAwareTree(CostAwareDrafter[CostAwareState]):
    """The nodes and levels that pay for themselves; `CostAwareDrafter` has the rule, the options and the errors."""

    name = "cost-aware-tree"

    @override
    def grow(self, builder: TreeBuilder[CostAwareState], max_depth: int) -> None:
        state, rate = builder.state, builder.state.rate
        estimate = np.ones(1)  # a(u)
        frontier = np.array([0])
        for level in range(min(self.depth, max_depth)):
            frontier = self.paying(frontier, estimate, rate, len(builder))
            if not len(frontier):
                break
            tokens, logprobs, sharp = builder.most_probable(frontier, self.branching, state.sharpness)
            state.drafting += float(self.level_costs[len(frontier)]) + (0.0 if level else self.overhead)
            probabilities = estimate[frontier][:, None] * np.exp(sharp)
            parents, ranks = np.nonzero(probabilities > rate * self.marginal_costs[len(builder)])
            before = len(builder)
            frontier = builder.add(frontier[parents], tokens[parents, ranks], logprobs[parents, ranks])
            estimate = np.concatenate([estimate, probabilities[parents, ranks]])
            if len(builder) > self.max_nodes:
                best = highest(estimate, self.max_nodes)
                builder.keep(best)
                estimate, frontier = estimate[best], np.flatnonzero(best >= before)
        state.expected = self.cut(builder, estimate, rate)
