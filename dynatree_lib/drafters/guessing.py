"""The base of drafters that grow a tree from counts of their own, best guess first, as far as nodes pay.

A subclass says what may follow a place in the text (by a suffix automaton, or by recycled predictions).
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from ..costs import Pace
from ..sampling import GREEDY, Sampling, Scores
from ..verifiers.base import Verdict
from .base import Drafter, Proposal
from .checks import Priced, check_counts
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
class GuessingDrafter(Drafter, Priced):
    """A drafter whose tree holds the most probable paths of `guesses`.

    Without `verify_cost` the tree has `max_nodes` nodes, or as many as there are guesses. With it the tree has as many
    nodes as pay: their probabilities exceed by most the tokens that their time would have brought anyway (see
    `CostAwareTree`).

    Args:
        max_nodes: most nodes, node 0 included.
        depth: most levels below node 0.
        branching: most children of a node.
        verify_cost: cost of the target's forward over 1, 2, 4, ... nodes in greedy steps; None makes nodes free.
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
        self.check_costs()
        check_counts(self, "depth", "branching", "max_nodes")

    @abstractmethod
    def first(self, state: Any) -> Any:
        """Return the place after the text, which its guesses are looked up by."""

    @abstractmethod
    def guesses(self, state: Any, place: Any) -> Iterable[Guess]:
        """Return the guesses of the next token after a place."""

    @override
    def propose(self, state: Any, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        rate, costs, depth = state.pace.rate, self.costs, min(self.depth, max_depth)

        def likeliest(place: Any) -> list[Guess]:
            return sorted(self.guesses(state, place), key=lambda guess: -guess[1])[: self.branching]

        chosen = best_first(
            self.first(state), likeliest, depth, self.max_nodes - 1, lambda nodes: rate * costs.another(nodes + 1)
        )
        gains = np.array([1.0, *(node.probability for node in chosen)])
        size = most_paying(gains, rate, costs)  # the step from one node to more is no marginal cost
        return Proposal(tree_of(state.root, chosen[: size - 1]))

    @override
    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        state.pace.add(len(verdict.path) + 1, self.costs.scoring(len(scores)))
        return super().observe(state, proposal, scores, verdict)

    @override
    def inherit(self, state: Any, earlier: Any) -> Any:
        state.pace = Pace.begun(earlier.pace.rate)
        return state
