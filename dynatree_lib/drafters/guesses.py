"""`Guesses`: what may come next by copying from the text and by recycled predictions, and how often that was right."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache

from ..sampling import RandomSource, Scores
from ..verifiers.base import Verdict
from .base import Proposal
from .rates import SuccessRates
from .search import Guess
from .token_recycling import FROM_TEXT, PRIOR, Key, RecyclingState, TokenRecycling

SIZES = (4, 3, 2)
"""Tokens of a match that are looked for, the longest first."""
LENGTHS = (3, 4, 6, 10)
"""Lengths of a match that separate its classes."""
COPIED = (0.25, 0.4, 0.5, 0.65, 0.8)
"""Probability by class that the token after a match is right, before the text has shown any."""
MEMORY = 0.995
"""Weight of the earlier outcomes at each new outcome of a class."""
TRUST, LEAST = 0.75, 0.01
"""Part of the better source's probability that a token has at first, and the least. As if the sources were independent,
trees had a third more nodes and were slower (counted on 13 prompts of Spec-Bench, SmolLM2)."""
COUNTED = 256
"""Tokens of a prompt, the last ones, in which guesses are counted: the rest of a long one would take time."""
RECYCLED = 1 + len(PRIOR) + len(FROM_TEXT)
"""Classes of a token by recycled predictions: 0 where they do not have it."""
Place = tuple[int, int, Key]
"""A place in or below the text: where the text went on after the longest match, the match's length, the last tokens."""
NOWHERE = -1


@cache
def _prior(context: int) -> list[float]:
    copied, recycled = (0.0, *COPIED), (0.0, *PRIOR, *FROM_TEXT)
    return [max(TRUST * max(one, other), LEAST) for one in copied for _ in range(context) for other in recycled]


@dataclass
class GuessesState:
    """A text, the places of its n-grams, recycled predictions, and how often tokens of each class were right.

    Attributes:
        here: the place after the text, and the classes of what is guessed there; None until they are asked for.
    """

    recycled: RecyclingState
    rates: SuccessRates
    text: list[int] = field(default_factory=list)
    after: list[dict[Key, int]] = field(default_factory=lambda: [{} for _ in SIZES])
    here: tuple[Place, dict[int, int]] | None = None


@dataclass(frozen=True)
class Guesses:
    """Guesses of the next token by two sources together, which know the text and what the target has scored in it.

    One copies: the token that followed the longest match of the last tokens at its latest place. The other recycles
    what the target predicted after the last tokens. How often a token is right is counted in the text, by both sources'
    word together: one that both guess is right more often.

    Args:
        recycled: what the target predicted after the last tokens (`TokenRecycling`).
        pool: most tokens of this and earlier texts to copy from.
    """

    recycled: TokenRecycling
    pool: int

    def start(self, prompt: Sequence[int], random: RandomSource) -> GuessesState:
        """Return the state for a new text; how often guesses are right is counted in the end of its prompt alone."""
        rates = SuccessRates(_prior(self.recycled.context), MEMORY)
        state = GuessesState(self.recycled.begun(int(prompt[-1])), rates)
        return self.extend(self.appended(state, prompt[:-COUNTED]), prompt[-COUNTED:])

    def inherit(self, state: GuessesState, earlier: GuessesState, missed: Sequence[int] = ()) -> GuessesState:
        """Return a new text's state with everything learnt in an earlier text, which went on with `missed` tokens.

        Where both are more than `pool` tokens, the latest half of that stays, so that not every text is read anew.
        """
        state.recycled = self.recycled.inherit(state.recycled, earlier.recycled)
        state.rates = deepcopy(earlier.rates)
        text, state.text = state.text, earlier.text[:]
        if len(earlier.text) + len(missed) + len(text) > self.pool:
            kept = max(0, self.pool // 2 - len(missed) - len(text))
            state.text, state.after = [], [{} for _ in SIZES]
            self._append(state, earlier.text[len(earlier.text) - min(kept, len(earlier.text)) :])
        else:
            state.after = [dict(places) for places in earlier.after]
        self._append(state, [*missed, NOWHERE, *text])
        return state

    def extend(self, state: GuessesState, tokens: Sequence[int]) -> GuessesState:
        """Return the state after more tokens that nobody guessed, such as a chat turn."""
        for token in map(int, tokens):
            self._take(state, token)
        return state

    def observe(self, state: GuessesState, proposal: Proposal, scores: Scores, verdict: Verdict) -> GuessesState:
        """Return the state after the verdict on a proposal: which guesses were right, and what the target predicts."""
        tail = state.recycled.tail
        for token in verdict.tokens(proposal.tree):
            self._take(state, token)
        self.recycled.remember(state.recycled, tail, proposal.tree, scores, verdict)
        state.here = None
        return state

    def appended(self, state: GuessesState, tokens: Sequence[int]) -> GuessesState:
        """Return the state after more tokens from which nothing but the text is learnt, which is quicker."""
        for token in map(int, tokens):
            self.recycled.append(state.recycled, token)
        self._append(state, [*map(int, tokens)])
        return state

    def _take(self, state: GuessesState, token: int) -> None:
        """Take a token of the text: learn which guesses were right, and append it."""
        for guess, kind in self._here(state)[1].items():
            state.rates.learn(kind, guess == token)
        self.recycled.append(state.recycled, token)
        self._append(state, [token])

    @staticmethod
    def _append(state: GuessesState, tokens: Sequence[int]) -> None:
        text, state.here = state.text, None
        for token in tokens:
            for size, after in zip(SIZES, state.after, strict=True):
                if len(text) >= size:
                    after[tuple(text[-size:])] = len(text)
            text.append(token)

    # ------------------------------------------------------------------------------------------------------ the guesses
    def first(self, state: GuessesState) -> Place:
        """Return the place after the text."""
        return self._here(state)[0]

    def _here(self, state: GuessesState) -> tuple[Place, dict[int, int]]:
        if state.here is None:
            place = self._found(state)
            state.here = place, self._classes(state, place)
        return state.here

    @staticmethod
    def _found(state: GuessesState) -> Place:
        text = state.text
        for size, after in zip(SIZES, state.after, strict=True):
            place = after.get(tuple(text[-size:]))
            if place is not None:
                while size < LENGTHS[-1] and size < place and text[place - 1 - size] == text[-1 - size]:
                    size += 1
                return place, size, state.recycled.tail
        return NOWHERE, 0, state.recycled.tail

    def after(self, state: GuessesState, place: Place) -> list[Guess]:
        """Return the guesses of the next token after a place; of equally probable ones the copied one comes first."""
        match, length, key = place
        text, tail, rates = state.text, key[1:] if len(key) == self.recycled.context else key, state.rates
        copied = text[match] if 0 <= match < len(text) else NOWHERE
        out: list[Guess] = []
        here = state.here
        classes = here[1] if here is not None and place is here[0] else self._classes(state, place)
        for token, kind in classes.items():
            below = (*tail, token)
            if token == copied:  # a copy of the end repeats
                further = match + 1 if match + 1 < len(text) else self._here(state)[0][0]
                out.append((token, rates[kind], (further, length + 1, below)))
            else:
                again = state.after[-1].get(below[-SIZES[-1] :], NOWHERE)
                out.append((token, rates[kind], (again, SIZES[-1] if again >= 0 else 0, below)))
        return out

    def _classes(self, state: GuessesState, place: Place) -> dict[int, int]:
        """Return the tokens that a source guesses, each with its class by both."""
        match, length, key = place
        size, (tokens, kinds) = self.recycled.entry(state.recycled, key)
        base = size * RECYCLED
        found = {token: base + 1 + kind for token, kind in zip(tokens, kinds, strict=True)}
        if 0 <= match < len(state.text):
            copied = state.text[match]
            if copied >= 0:
                copies = (1 + bisect_right(LENGTHS, length)) * self.recycled.context * RECYCLED
                found = {copied: copies + found.get(copied, base), **{t: k for t, k in found.items() if t != copied}}
        return found
