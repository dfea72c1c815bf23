"""`PromptLookup`: the tokens that followed the last tokens when they occurred before, without a model (Saxena 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from ..sampling import GREEDY, RandomSource, Sampling
from ..tree import ROOT, TokenTree
from .base import Drafter, Proposal
from .checks import check_counts, check_rules
from .rates import SuccessRates

PRIOR = (0.6, 0.8)
"""Probability of the first copied token and of later ones before the text has shown any."""
MEMORY = 0.97
"""Weight of the earlier copies at each new copy."""


@dataclass
class Copies:
    """A text, the places of its n-grams, and how often copying the tokens after them was right.

    Attributes:
        n: length of the n-grams.
        text: all committed tokens.
        after: n-gram -> place after its latest occurrence that something follows.
        rates: of copied tokens, rank 0 the first after a match, rank 1 later ones.
    """

    n: int
    text: list[int] = field(default_factory=list)
    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    rates: SuccessRates = field(default_factory=lambda: SuccessRates(PRIOR, MEMORY))

    def append(self, tokens: Sequence[int]) -> None:
        """Append committed tokens."""
        for token in tokens:
            if len(self.text) >= self.n:
                self.after[tuple(self.text[-self.n :])] = len(self.text)
            self.text.append(int(token))

    def following(self, count: int) -> list[int]:
        """Return up to `count` tokens that followed the last n tokens before; a copy of the end repeats."""
        place = self.after.get(tuple(self.text[-self.n :]))
        if place is None:
            return []
        out: list[int] = []
        for index in range(place, place + count):
            out.append(self.text[index] if index < len(self.text) else out[index - len(self.text)])
        return out

    def learn(self, copied: Sequence[int], tokens: Sequence[int]) -> None:
        """Compare a copy with the tokens that came, up to the first wrong token."""
        for place, (guess, token) in enumerate(zip(copied, tokens, strict=False)):
            self.rates.learn(place, guess == token)
            if guess != token:
                break

    def probabilities(self, count: int) -> np.ndarray:
        """Return the (count,) probability that each copied token is right if those before it are."""
        return np.array([self.rates[0], *[self.rates[1]] * (count - 1)][:count])


@dataclass(frozen=True)
class PromptLookup(Drafter):
    """Copy up to `length` tokens from the latest place where the last `ngram` tokens, or fewer, occurred before.

    The state is an index for each length looked for, the longest first.

    Args:
        ngram: number of last tokens to look for first; where they did not occur, one fewer, down to `shortest`.
        length: most tokens copied.
        shortest: fewest tokens that must have occurred.

    Raises:
        ValueError: for length or shortest < 1, or ngram < shortest.
    """

    ngram: int = 3
    length: int = 10
    shortest: int = 1
    name = "prompt-lookup"
    chain = True

    def __post_init__(self) -> None:
        check_counts(self, "ngram", "length", "shortest")
        check_rules(self, "shortest <= ngram, because the longest is looked for first")

    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> list[Copies]:
        return self.extend([Copies(size) for size in range(self.ngram, self.shortest - 1, -1)], prompt)

    @override
    def extend(self, state: list[Copies], tokens: Sequence[int]) -> list[Copies]:
        for copies in state:
            copies.append(tokens)
        return state

    @override
    def propose(self, state: list[Copies], max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        count = min(self.length, max_depth)
        copied = next(filter(None, (copies.following(count) for copies in state)), [])
        return Proposal(TokenTree.build([state[0].text[-1], *copied], range(ROOT, len(copied))))
