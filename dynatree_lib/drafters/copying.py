"""Copies from a text: what followed its last tokens when they occurred before, and how often that was right."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

FORGETTING = 0.97
"""Weight of the earlier copies at each new one, where the share of right ones is counted."""


@dataclass
class Copies:
    """A text, where its n-grams occurred last, and how often copying what followed them was right.

    Attributes:
        n: length of the n-grams.
        text: all committed tokens.
        after: n-gram -> place after its latest occurrence that something follows.
        right, tried: copied tokens, [0] the first after a match, [1] later ones; the start is a guess worth five.
    """

    n: int
    text: list[int]
    after: dict[tuple[int, ...], int] = field(default_factory=dict)
    right: list[float] = field(default_factory=lambda: [3.0, 4.0])
    tried: list[float] = field(default_factory=lambda: [5.0, 5.0])

    def append(self, tokens: Sequence[int]) -> None:
        """More committed tokens."""
        for token in tokens:
            if len(self.text) >= self.n:
                self.after[tuple(self.text[-self.n :])] = len(self.text)
            self.text.append(int(token))

    def following(self, count: int) -> list[int]:
        """What followed the last n tokens when they occurred before, up to `count` tokens; a period goes on."""
        place = self.after.get(tuple(self.text[-self.n :]))
        if place is None:
            return []
        out: list[int] = []
        for index in range(place, place + count):
            out.append(self.text[index] if index < len(self.text) else out[index - len(self.text)])
        return out

    def learn(self, copied: Sequence[int], tokens: Sequence[int]) -> None:
        """Compare a copy with the tokens that came; what follows a wrong one says nothing."""
        for place, (guess, token) in enumerate(zip(copied, tokens, strict=False)):
            kind = min(place, 1)
            self.tried[kind] = FORGETTING * self.tried[kind] + 1
            self.right[kind] = FORGETTING * self.right[kind] + (guess == token)
            if guess != token:
                break

    def probabilities(self, count: int) -> np.ndarray:
        """(count,) probability that each copied token is right if those before it are."""
        first, later = (right / tried for right, tried in zip(self.right, self.tried, strict=True))
        return np.array([first, *[later] * (count - 1)][:count])
