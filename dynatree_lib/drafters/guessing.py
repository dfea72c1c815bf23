"""The base of drafters that grow a tree from counts of their own, best guess first, under a priced budget.

What a subclass knows (a suffix automaton, recycled predictions) stays in its file; here are the budget, its price, and
the search for the most probable nodes.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from heapq import heappop, heappush
from typing import Any

import numpy as np
from typing_extensions import override

from ..costs import CostCurve, Pace
from ..sampling import GREEDY, Sampling, Scores
from ..tree import ROOT, TokenTree
from ..verifiers.base import Verdict
from .base import Drafter, Proposal
from .best_first_tree import most_paying
from .checks import check_counts, check_max_nodes, check_rules, make_tuples

Guess = tuple[int, float, Any]
"""A token, the probability that it follows, and what its own guesses are looked up by."""


@dataclass
class GuessState:
    """What every guessing drafter's state holds.

    Attributes:
        root: the last committed token.
        pace: of the text.
    """

    root: int
    pace: Pace


@dataclass(frozen=True)
class GuessingDrafter(Drafter):
    """A drafter whose tree holds the most probable paths of `guesses`, most probable first.

    The probability of a node is the product of its path's. Without `verify_cost` the tree has `max_nodes` nodes, as far
    as there are guesses. With it as many nodes are taken as pay: their probabilities exceed by most the tokens that
    their time would have brought anyway (see `CostAwareTree`).

    Args:
        max_nodes: most nodes, node 0 included.
        depth: most levels below node 0.
        branching: most children of a node.
        verify_cost: cost of the target's forward over 1, 2, 4, ... nodes in greedy steps; None prices nothing.
        rate: tokens per greedy step to begin with, for `verify_cost`; the text's own takes over.

    Raises:
        ValueError: for max_nodes < 2, depth or branching < 1, costs that are no curve, or a rate that is not positive.
    """

    max_nodes: int = 32
    depth: int = 16
    branching: int = 8
    verify_cost: tuple[float, ...] | None = None
    rate: float = 1.2

    def __post_init__(self) -> None:
        make_tuples(self, "verify_cost")
        check_counts(self, "depth", "branching")
        check_max_nodes(self)
        check_rules(self, "0 < rate < inf")
        if self.verify_cost is not None:
            CostCurve(self.verify_cost)  # raises ValueError where it is no curve

    @cached_property
    def _curve(self) -> CostCurve | None:
        return None if self.verify_cost is None else CostCurve(self.verify_cost)

    @abstractmethod
    def first(self, state: Any) -> Any:
        """Return what the guesses after the text are looked up by."""

    @abstractmethod
    def guesses(self, state: Any, handle: Any) -> Iterable[Guess]:
        """Return the guesses of the next token after the place that `handle` stands for."""

    @override
    def propose(self, state: Any, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        rate, depth = state.pace.rate, min(self.depth, max_depth)
        tokens, parents, logprobs, chances = [state.root], [ROOT], [0.0], [1.0]
        waiting: list[tuple[float, int, int, int, float, int, Any]] = []
        number = 0  # of equally probable guesses the first goes first

        def push(parent: int, level: int, probability: float, handle: Any) -> None:
            nonlocal number
            best = sorted(self.guesses(state, handle), key=lambda guess: -guess[1])
            for token, share, further in best[: self.branching]:
                heappush(waiting, (-probability * share, number, parent, level + 1, share, token, further))
                number += 1

        if depth > 0:
            push(0, 0, 1.0, self.first(state))
        while waiting and len(tokens) < self.max_nodes:
            minus, _, parent, level, share, token, handle = heappop(waiting)
            if -minus <= (0.0 if self._curve is None else rate * self._curve.marginal_cost(len(tokens))):
                break
            tokens.append(token)
            parents.append(parent)
            logprobs.append(math.log(share))
            chances.append(-minus)
            if level < depth:
                push(len(tokens) - 1, level, -minus, handle)
        size = len(tokens)
        if self._curve is not None:  # the step from one node to more is no marginal cost
            size = most_paying(np.array(chances), rate, self._curve.at(np.arange(1, size + 1)))
        return Proposal(TokenTree.build(tokens[:size], parents[:size], logprobs[:size]))

    @override
    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        cost = 0.0 if self._curve is None else float(self._curve.at(len(scores)))
        state.pace.add(len(verdict.path) + 1, cost)
        return self.extend(state, verdict.tokens(proposal.tree))

    @override
    def inherit(self, state: Any, earlier: Any) -> Any:
        state.pace = Pace.begun(earlier.pace.rate)
        return state
