"""`CostAwareTree`: nodes and levels of each iteration chosen by what they gain and what they cost."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from ..models.base import LanguageModel
from .base import Drafter
from .best_first_tree import highest
from .builder import TreeBuilder
from .cost_aware import CostAwareDrafter, CostAwareState


@dataclass(frozen=True)
class CostAwareTree(CostAwareDrafter[CostAwareState]):
    """The nodes and levels that pay for themselves; `CostAwareDrafter` has the rule, the options and the errors."""

    name = "cost-aware-tree"

    @classmethod
    def examples(cls, draft: LanguageModel) -> Iterator[Drafter]:
        """Yield the default, nodes that cost nothing, nodes and levels that cost much without learning."""
        yield cls(draft)
        yield cls(draft, verify_cost=(1.0, 1.0, 1.0), draft_cost=(0.001, 0.001), depth=4, max_nodes=40)
        yield cls(draft, verify_cost=(1.0, 1.4, 2.2), draft_cost=(0.2, 0.3), learning=0.0)

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
