"""`SuffixTree`: a tree of the tokens that followed the longest suffixes of the text before, by counts."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from heapq import nlargest
from operator import itemgetter
from typing import Any

from typing_extensions import override

from ..costs import Pace
from ..sampling import RandomSource
from .checks import check_counts
from .guessing import GuessingDrafter, GuessState
from .rates import SuccessRates
from .search import Guess
from .suffixes import START, SuffixAutomaton

LENGTHS = (1, 2, 3, 4, 6, 9, 16)
"""Lengths at which the next class of matches begins."""
PRIOR = (0.5, 0.3, 0.45, 0.55, 0.65, 0.75, 0.8, 0.85)
"""Probability, by class of length, that the next token is one that followed before, before the text has shown any."""
MEMORY = 0.98
"""Weight of the earlier outcomes at each new outcome of a class."""
NEGLIGIBLE = 1e-6
"""Shorter matches are not looked at once less probability than this is left for them."""
FREQUENT = 32
"""Most tokens that are guessed where nothing matches: the most frequent tokens of the text."""


def _rates() -> tuple[SuccessRates, SuccessRates]:
    return SuccessRates(PRIOR, MEMORY), SuccessRates(PRIOR, MEMORY)


@dataclass
class SuffixState(GuessState):
    """The automaton of the text, of earlier texts before it, and how often matches were right.

    Attributes:
        suffixes: the automaton.
        known: by class of length, how often the next token was one that had followed the match: of the longest match,
            and of a shorter match where no longer match knew the token.
        frequent: length of the text when frequent tokens were counted last; those tokens with counts; the sum of all
            counts.
    """

    suffixes: SuffixAutomaton = field(default_factory=SuffixAutomaton)
    known: tuple[SuccessRates, SuccessRates] = field(default_factory=_rates)
    frequent: tuple[int, list[tuple[int, int]], int] = field(default=(0, [], 0))


@dataclass(frozen=True)
class SuffixTree(GuessingDrafter):
    """The tokens that followed the text's longest suffix before, and its next shorter ones, most probable first.

    SAM decoding finds the longest match by a suffix automaton; SuffixDecoding drafts a tree by counts. Here a match
    shares its probability among the tokens that followed it, by their counts. The rest goes to the next shorter match,
    and so on. How much a match of its length deserves is counted in the text itself, prompt included.

    Args:
        shortest: fewest tokens that must have occurred before; at 0 the most frequent tokens are the last resort.
        pool: with `generate(..., warm=)`, most tokens of this and earlier texts that matches are looked for in; where
            there are more, the latest half stays. 0 looks in the text itself.

    Raises:
        ValueError: for shortest or pool < 0, and as for `GuessingDrafter`, which has the other options.
    """

    shortest: int = 0
    pool: int = 50_000
    name = "suffix-tree"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "shortest", "pool", least=0)

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> SuffixState:
        return self.extend(SuffixState(int(prompt[-1]), Pace.begun(self.rate)), prompt)

    @override
    def extend(self, state: SuffixState, tokens: Sequence[int]) -> SuffixState:
        for token in map(int, tokens):
            self._learn(state, token)
            state.suffixes.append([token])
            state.root = token
        return state

    @override
    def inherit(self, state: SuffixState, earlier: SuffixState) -> SuffixState:
        super().inherit(state, earlier)
        state.known = deepcopy(earlier.known)
        state.suffixes, state.frequent = earlier.suffixes.continued(state.suffixes.text, self.pool), (0, [], 0)
        return state

    def report(self, state: SuffixState) -> dict[str, float]:
        """Return the tokens of the longest match, and the states of the automaton."""
        automaton = state.suffixes
        return {"match": float(automaton.length[automaton.match]), "states": float(len(automaton))}

    # ------------------------------------------------------------------------------------------------------- the tree
    @override
    def first(self, state: SuffixState) -> Any:
        automaton = state.suffixes
        return automaton.match, automaton.length[automaton.match]

    @override
    def guesses(self, state: SuffixState, place: tuple[int, int]) -> list[Guess]:
        automaton, left, shorter = state.suffixes, 1.0, 0
        found: dict[int, float] = {}
        places: dict[int, tuple[int, int]] = {}
        for match, length in self._matches(automaton, *place):
            states, (counts, total) = automaton.following[match], self._counts(state, match)
            if not total:
                continue
            share = left * state.known[shorter][bisect_right(LENGTHS, length)]
            for token, count in counts:
                found[token] = found.get(token, 0.0) + share * count / total
                places.setdefault(token, (states[token], length + 1))
            left, shorter = left - share, 1
            if left < NEGLIGIBLE:  # a text that repeats itself has a match for each period
                break
        return [(token, probability, places[token]) for token, probability in found.items()]

    def _counts(self, state: SuffixState, match: int) -> tuple[list[tuple[int, int]], int]:
        """Return the tokens that followed a match with their counts, and the sum of all counts."""
        automaton = state.suffixes
        if match == START and state.frequent[0] == len(automaton.text):
            return state.frequent[1:]
        counts = [(token, automaton.count[after]) for token, after in automaton.following[match].items() if token >= 0]
        total = sum(count for _, count in counts)
        if match == START:
            counts = nlargest(FREQUENT, counts, key=itemgetter(1))
            state.frequent = len(automaton.text), counts, total
        return counts, total

    def _matches(self, automaton: SuffixAutomaton, match: int, length: int) -> Iterable[tuple[int, int]]:
        """Yield a match and its next shorter ones, with their lengths."""
        while match > START and length >= self.shortest:
            yield match, length
            match = automaton.shorter[match]
            length = automaton.length[match]
        if not self.shortest:
            yield START, 0

    def _learn(self, state: SuffixState, token: int) -> None:
        """Learn which matches knew the token that comes next."""
        automaton, shorter = state.suffixes, 0
        for match, length in self._matches(automaton, automaton.match, automaton.length[automaton.match]):
            knows = token in automaton.following[match]
            state.known[shorter].learn(bisect_right(LENGTHS, length), knows)
            if knows:
                return
            shorter = 1
