"""The base of drafters that grow a tree from counts of their own, best guess first, as far as nodes pay.

A subclass says what may follow a place in the text (by a suffix automaton, or by recycled predictions).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from ..costs import Pace
from ..sampling import GREEDY, Sampling, Scores
from ..verifiers.base import Verdict
from .base import Drafter, Proposal
from .checks import MEASURED, Priced, Pricing, check_counts
from .search import Guess, best_first, most_paying, tree_of


@dataclass
class GuessState:
    """The part that the states of all guessing drafters share.

    Attributes:
        root: the last committed token.
        pace: of the text.
    """

    root: int
    pace: Pace


@dataclass(frozen=True)
class GuessingDrafter(Priced, Drafter):
    """A drafter whose tree holds the most probable paths of `guesses`.

    The tree has as many nodes as pay: their probabilities exceed by most the tokens that their time would have brought
    anyway (see `CostAwareTree`). Without costs it has `max_nodes` nodes, or as many as there are guesses.

    Args:
        max_nodes: most nodes, node 0 included.
        depth: most levels below node 0.
        branching: most children of a node.
        costs: of verifying; measured on this machine by default, None makes nodes free.
        rate: tokens per greedy step to begin with, where nodes cost anything; the text's own takes over.

    Raises:
        ValueError: for max_nodes < 2, depth or branching < 1, costs that are none, or a rate that is not positive.
    """

    max_nodes: int = 32
    depth: int = 16
    branching: int = 8
    costs: Pricing = MEASURED
    rate: float = 1.2

    @property
    def ranked(self) -> int:
        """Predictions of each node that `observe` asks for (`Proposal.ranked`)."""
        return 0

    def __post_init__(self) -> None:
        self.check_costs()
        check_counts(self, "depth", "branching", "max_nodes")

    @abstractmethod
    def first(self, state: Any) -> Any:
        """Return the place after the text, which its guesses are looked up by."""

    @abstractmethod
    def guesses(self, state: Any, place: Any) -> list[Guess]:
        """Return the guesses of the next token after a place."""

    @override
    def propose(self, state: Any, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        rate, costs, depth = state.pace.rate, self.prices, min(self.depth, max_depth)

        def likeliest(place: Any) -> list[Guess]:
            return sorted(self.guesses(state, place), key=lambda guess: -guess[1])[: self.branching]

        chosen = best_first(
            self.first(state), likeliest, depth, self.max_nodes - 1, lambda nodes: rate * costs.another(nodes + 1)
        )
        gains = np.array([1.0, *(node.probability for node in chosen)])
        size = most_paying(gains, rate, costs)  # the step from one node to more is no marginal cost
        return Proposal(tree_of(state.root, chosen[: size - 1]), ranked=self.ranked)

    @override
    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        state.pace.add(len(verdict.path) + 1, self.prices.scoring(len(scores)))
        return super().observe(state, proposal, scores, verdict)

    @override
    def inherit(self, state: Any, earlier: Any) -> Any:
        state.pace = Pace.begun(earlier.pace.rate)
        return state
