"""Copies from a text: what followed its last tokens when they occurred before, and how often that was right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

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
    text: list[int]
    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    rates: SuccessRates = field(default_factory=lambda: SuccessRates(PRIOR, MEMORY))

    def append(self, tokens: Sequence[int]) -> None:
        """Append committed tokens."""
        for token in tokens:
            if len(self.text) >= self.n:
                self.after[tuple(self.text[-self.n :])] = len(self.text)
            self.text.append(int(token))

    def following(self, count: int) -> list[int]:
        """Return up to `count` tokens that followed the last n tokens when they occurred before; a period goes on."""
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
