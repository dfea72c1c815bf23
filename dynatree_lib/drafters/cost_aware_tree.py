"""`CostAwareTree`: nodes and levels of each iteration chosen by what they gain and what they cost."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from typing import Any, ClassVar

import numpy as np
from typing_extensions import override

from ..costs import Pace
from ..models.base import LanguageModel
from ..sampling import Scores
from ..tree import TokenTree
from ..verifiers.base import Verdict
from .base import ModelDrafter, Proposal, renumbered
from .builder import TreeBuilder
from .checks import MEASURED, Priced, Pricing, check_counts, check_rules
from .search import highest, most_paying

SHARPNESS = (0.5, 8.0)
"""Limits of the learnt sharpness."""


@dataclass
class Economy:
    """The things that a cost-aware drafter learns about a text, and its estimates for the current tree.

    Attributes:
        sharpness: exponent on the draft's probabilities; it follows the text.
        pace: tokens and cost of the text.
        estimate: (n,) a(u) of the nodes of the current tree; 0 for nodes that another drafter added.
        cost: predicted cost of drafting the current tree, in greedy steps.
    """

    sharpness: float
    pace: Pace
    estimate: np.ndarray = field(default_factory=lambda: np.ones(1))
    cost: float = 0.0

    @property
    def expected(self) -> float:
        """Accepted tokens that the current tree is expected to have."""
        return float(self.estimate.sum()) - 1


@dataclass(frozen=True)
class CostAwareTree(Priced, ModelDrafter):
    """A tree of the nodes and levels that gain more tokens than their time would bring anyway, by measured costs.

    Let a(u) be the estimated probability that node u is accepted, and r the tokens committed per unit of cost so far.
    A node pays if a(u) > r * (marginal cost of the node). A further level is drafted if its nodes are expected to gain
    more than r * (cost of the forward + marginal costs of the nodes). This looks one level ahead; the first level is
    drafted if any number of levels pays. With the right r this aims at the largest long-run rate (renewal reward).
    A best-first tree of a fixed size maximises the tokens of an iteration whatever the iteration costs.

    a(u) is the product along the path of the draft's probabilities raised to `sharpness` and normalised, because a
    greedy target takes the draft's first choice more often than the draft's probability says. The sharpness follows the
    text: it grows when more tokens are accepted than expected, and falls when fewer are. No clock is read, so the same
    text and costs give the same trees.

    Sharpness, learning and child were chosen on bundled prompts outside the first 20.

    Args:
        draft: the draft model.
        costs: of verifying and drafting; measured on this machine by default.
        rate: tokens per greedy step to begin with; the text's own takes over.
        sharpness: exponent to begin with.
        learning: how fast the sharpness follows the text; 0 keeps it.
        child: probability that a node has an accepted child if it is accepted itself, assumed before it is read.
        branching: most children of a node.
        depth: most levels below node 0.
        max_nodes: most nodes, node 0 included.

    Raises:
        ValueError: for costs that are none, a rate, sharpness <= 0, learning < 0, child outside (0, 1],
            branching or depth < 1, max_nodes < 2.
    """

    draft: LanguageModel
    costs: Pricing = MEASURED
    rate: float = 2.0
    sharpness: float = 2.0
    learning: float = 0.03
    child: float = 0.85
    branching: int = 4
    depth: int = 16
    max_nodes: int = 64
    name = "cost-aware-tree"
    learns: ClassVar[type[Economy]] = Economy

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check_costs()
        check_counts(self, "depth", "branching", "max_nodes")
        check_rules(self, "0 < sharpness < inf", "0 <= learning < inf", "0 < child <= 1")

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def begun(self, prompt: Sequence[int]) -> Any:
        return self.learns(self.sharpness, Pace.begun(self.rate))

    @override
    def inherit(self, state: Any, earlier: Any) -> Any:
        state.learnt.pace = Pace.begun(earlier.learnt.pace.rate)
        return state  # the sharpness is the text's own: inheriting it costs tokens (docs/beyond.md)

    @override
    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        learnt = state.learnt
        learnt.pace.add(len(verdict.path) + 1, learnt.cost + self.prices.scoring(len(proposal.tree)))
        self.learn(learnt, proposal.tree, verdict.path)
        learnt.estimate, learnt.cost = np.ones(1), 0.0  # if the next iteration drafts nothing, nothing is expected
        return super().observe(state, proposal, scores, verdict)

    def learn(self, learnt: Any, tree: TokenTree, path: Sequence[int]) -> None:
        """Compare the expected tokens with the accepted path. Only nodes that this drafter proposed count."""
        surprise = np.count_nonzero(learnt.estimate[list(path)]) - learnt.expected
        low, high = SHARPNESS
        learnt.sharpness = max(low, min(high, learnt.sharpness * math.exp(self.learning * surprise)))

    @override
    def renumber(self, state: Any, nodes: np.ndarray, size: int) -> None:
        super().renumber(state, nodes, size)
        state.learnt.estimate = renumbered(state.learnt.estimate, nodes, size, 0.0)

    @override
    def drafting_cost(self, state: Any) -> float:
        return float(state.learnt.cost)

    def report(self, state: Any) -> dict[str, float]:
        """Return sharpness and rate in use."""
        return {"sharpness": state.learnt.sharpness, "rate": state.learnt.pace.rate}

    # ------------------------------------------------------------------------------------------ the curves, as tables
    @cached_property
    def marginal_costs(self) -> np.ndarray:
        """[n] the cost of one node more in a tree of n nodes."""
        return np.array(self._table(self.prices.another))

    @cached_property
    def level_costs(self) -> list[float]:
        """[n] the cost of a level that reads n nodes."""
        return self._table(self.prices.reading)

    def _table(self, cost: Callable[[int], float]) -> list[float]:
        return [0.0, *(float(cost(nodes)) for nodes in range(1, self.max_nodes + 1))]

    # ------------------------------------------------------------------------------------------------------- the tree
    @override
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        learnt = builder.state.learnt
        rate = learnt.pace.rate
        estimate = np.ones(1)  # a(u)
        frontier = np.array([0])
        for level in range(min(self.depth, max_depth)):
            frontier = frontier[self.paying(estimate[frontier].tolist(), rate, len(builder))]
            if not len(frontier):
                break
            tokens, logprobs, sharp = builder.most_probable(frontier, self.branching, learnt.sharpness)
            learnt.cost += self.level_costs[len(frontier)] + (0.0 if level else self.prices.overhead)
            probabilities = estimate[frontier][:, None] * np.exp(sharp)
            parents, ranks = np.nonzero(probabilities > rate * self.marginal_costs[len(builder)])
            before = len(builder)
            frontier = builder.add(frontier[parents], tokens[parents, ranks], logprobs[parents, ranks])
            estimate = np.concatenate([estimate, probabilities[parents, ranks]])
            if len(builder) > self.max_nodes:
                best = highest(estimate, self.max_nodes)
                builder.keep(best)
                estimate, frontier = estimate[best], np.flatnonzero(best >= before)
        learnt.estimate = self.cut(builder, estimate, rate)

    def levels_pay(self, rate: float, share: float, once: float, child: float) -> bool:
        """Return whether some number of levels pays for itself and a cost `once`, if they gain `share` of their tokens.

        Each level reads and adds a node, which has an accepted child with probability `child`.
        """
        level = float(self.marginal_costs[1] + self.level_costs[1])
        return share > 0 and share * _path_rate(level, once, child, self.depth) > rate

    def paying(self, gains: Sequence[float], rate: float, nodes: int, child: float | None = None) -> list[int]:
        """Return which nodes of the frontier the next level reads, as ascending indices; none where no level pays.

        Args:
            gains: (f,) most tokens that a child of each node may gain, a(u).
            rate: tokens per greedy step.
            nodes: of the tree.
            child: probability that takes the place of the hyper-parameter.
        """
        child = self.child if child is None else child
        if nodes == 1:
            once = self.prices.overhead + self.prices.step
            return [*range(len(gains))] if self.levels_pay(rate, 1.0, once, child) else []
        order = sorted(range(len(gains)), key=lambda index: -gains[index])
        marginal, total, most, count = float(self.marginal_costs[nodes]), 0.0, 0.0, 0
        for number, index in enumerate(order, 1):
            total += gains[index]
            net = total * child - rate * (marginal * number + self.level_costs[number])
            if net > most:
                most, count = net, number
        return sorted(order[:count])

    def cut(self, builder: TreeBuilder, estimate: np.ndarray, rate: float) -> np.ndarray:
        """Keep the most probable nodes, as many as pay; return their estimates.

        A parent is no less probable than a child, so the kept nodes form a tree.
        """
        size = most_paying(-np.sort(-estimate), rate, self.prices)
        if size == len(estimate):
            return estimate
        best = highest(estimate, size)
        builder.keep(best)
        return estimate[best]


@lru_cache(maxsize=1024)  # the child assumed is met again and again, a learnt child seldom
def _path_rate(level: float, once: float, child: float, depth: int) -> float:
    """Return the most tokens per cost that a path of 1 to `depth` levels gains.

    Args:
        level: cost of a level.
        once: cost of the path besides.
        child: probability that the next token is accepted if those before it are.
        depth: most levels.
    """
    if not level + once:
        return math.inf
    levels = np.arange(1, depth + 1)
    return float((np.cumsum(child**levels) / (levels * level + once)).max())
