"""`CostAwareSampledTree`: a drawn tree whose places and levels are chosen by what they gain and what they cost."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from ..sampling import one_thread
from ..tree import TokenTree
from ..verifiers.base import Drawing
from .builder import TreeBuilder
from .cost_aware_tree import CostAwareTree, Economy
from .rates import SuccessRates

EDGES = (0.05, 0.2, 0.5, 0.8)
"""Draft probabilities that separate the classes in which acceptances are counted."""
FIRST, LATER = (0.15, 0.3, 0.5, 0.7, 0.9), (0.1, 0.2, 0.35, 0.5, 0.6)
"""Probability of acceptance by class before the text has shown any: of a first sibling, of later ones."""
CHILD = 0.6
"""Probability that an accepted node with children has an accepted child, before the text has shown any."""
MEMORY = 0.98
"""Weight of the earlier outcomes at each new outcome of a class."""
LIKELY = round(1 / EDGES[0])
"""Tokens of a distribution that may lie above the lowest class."""


def _rates() -> tuple[SuccessRates, SuccessRates]:
    return SuccessRates(FIRST, MEMORY), SuccessRates(LATER, MEMORY)


@dataclass
class SampledEconomy(Economy):
    """An `Economy` that also counts how often drawn tokens were accepted.

    Attributes:
        accepted: by class of their draft probability, of first siblings and of later ones.
        child: how often an accepted node with children had an accepted child.
        classes: (n,) classes of the current tree's nodes; the class of node 0 is not used.
    """

    accepted: tuple[SuccessRates, SuccessRates] = field(default_factory=_rates)
    child: SuccessRates = field(default_factory=lambda: SuccessRates((CHILD,), MEMORY))
    classes: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


@dataclass(frozen=True)
class CostAwareSampledTree(CostAwareTree):
    """A `CostAwareTree` for temperatures above 0, whose tokens are drawn without replacement.

    Selecting drawn nodes by their tokens would bias traversal and token-level verification. So every decision is taken
    before the draw: how many children a node gets, by the draft's distribution there, and which nodes are read next, by
    all that was drawn before. Nothing is cut afterwards.

    A drawn token with draft probability q is accepted if it is tested about as often as tokens of its class of q were
    accepted in this text so far, first siblings and later ones counted apart. A further child is drawn if it can be
    expected to be accepted more often than r * its marginal cost; levels are drafted as in a `CostAwareTree`, with the
    counted probability that an accepted node has an accepted child in place of `child`.

    Where the target's temperature is 0, nothing is drawn, and this is a `CostAwareTree`.

    Args and errors are those of `CostAwareTree`.
    """

    name = "cost-aware-sampled-tree"
    drawing = Drawing.RECORDED
    learns = SampledEconomy

    @override
    def inherit(self, state: Any, earlier: Any) -> Any:
        state.learnt.accepted, state.learnt.child = deepcopy((earlier.learnt.accepted, earlier.learnt.child))
        return super().inherit(state, earlier)

    def report(self, state: Any) -> dict[str, float]:
        """Return the rate in use, and the probability that an accepted node has an accepted child."""
        return {"rate": state.learnt.pace.rate, "child": state.learnt.child[0]}

    @override
    def learn(self, learnt: Any, tree: TokenTree, path: Sequence[int]) -> None:
        if not tree.draws.any():
            return super().learn(learnt, tree, path)
        for node, kept in zip([0, *path], [*path, -1], strict=True):
            children = tree.children(node).tolist()
            for place, child in enumerate(children):
                learnt.accepted[place > 0].learn(int(learnt.classes[child]), child == kept)
                if child == kept:
                    break
            if children:
                learnt.child.learn(0, kept >= 0)
        return None

    @override
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        if builder.sampling.greedy:
            return super().grow(builder, max_depth)
        learnt = builder.state.learnt
        rate = learnt.pace.rate
        chances = np.array([[rates[kind] for kind in range(len(FIRST))] for rates in learnt.accepted])  # (2, classes)
        estimate, classes, frontier = np.ones(1), np.zeros(1, np.int64), np.array([0])
        for level in range(min(self.depth, max_depth)):
            frontier = frontier[self.paying(estimate[frontier].tolist(), rate, len(builder), learnt.child[0])]
            if not len(frontier) or len(builder) >= self.max_nodes:
                break
            learnt.cost += self.level_costs[len(frontier)] + (0.0 if level else self.prices.overhead)
            given = builder.distributions_of(frontier)
            least = rate * self.marginal_costs[len(builder)]
            counts = self.children(given.sampled, estimate[frontier], chances, least, self.max_nodes - len(builder))
            indices, tokens, logprobs, draws = builder.draw(frontier, given, counts, "distinct")
            kinds = np.searchsorted(EDGES, builder.shares(given, indices, tokens), side="right")
            estimate = np.append(estimate, estimated(indices, kinds, estimate[frontier], chances))
            classes = np.append(classes, kinds)
            frontier = builder.add(frontier[indices], tokens, logprobs, draws)
        learnt.classes = classes
        return None

    @one_thread()
    def children(
        self, distributions: torch.Tensor, estimate: np.ndarray, chances: np.ndarray, least: float, space: int
    ) -> np.ndarray:
        """Return how many children each node is to get.

        Args:
            distributions: (f, V) of the draft.
            estimate: (f,) a(u).
            chances: (2, classes) probability that a tested token of a class is accepted, first and later siblings.
            least: probability of acceptance that pays for a node.
            space: nodes that may still be added; the first nodes of the frontier take them.
        """
        shares = distributions.topk(min(LIKELY, distributions.shape[1])).values.double().numpy()
        kinds = np.searchsorted(EDGES, shares, side="right")
        masses = np.stack([np.where(kinds == kind, shares, 0).sum(1) for kind in range(len(FIRST))], 1)
        masses[:, 0] += np.maximum(1 - shares.sum(1), 0)
        first, later = masses @ chances.T[:, 0], masses @ chances.T[:, 1]
        places = np.arange(self.branching - 1)
        further = ((1 - first) * later)[:, None] * (1 - later)[:, None] ** places
        pays = estimate[:, None] * np.concatenate([first[:, None], further], 1) > least
        counts = np.logical_and.accumulate(pays, 1).sum(1)
        return np.diff(np.minimum(np.cumsum(counts), space), prepend=0)


def estimated(parents: np.ndarray, kinds: np.ndarray, above: np.ndarray, chances: np.ndarray) -> np.ndarray:
    """Return the (k,) probability that drawn children are accepted, siblings in draw order.

    Args:
        parents: (k,) index of each child's parent in `above`, ascending.
        kinds: (k,) class of each child.
        above: (f,) a(u) of the parents.
        chances: (2, classes), as for `CostAwareSampledTree.children`.
    """
    out, left = np.empty(len(parents)), above.copy()  # left: that the parent is accepted and no sibling so far
    before = -1
    for number, (parent, kind) in enumerate(zip(parents.tolist(), kinds.tolist(), strict=True)):
        chance = chances[int(parent == before), kind]
        out[number], left[parent], before = left[parent] * chance, left[parent] * (1 - chance), parent
    return out
