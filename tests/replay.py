"""A `Chance` that replays every outcome of production code and weighs each with its exact probability."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

import torch

from dynatree_lib import Chance

Result = TypeVar("Result")


class Replay(Chance):
    """Takes scripted branches; records how many branches there were and the probability of those taken."""

    def __init__(self, script: list[int]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.open: list[list[int]] = []
        self.probability = 1.0

    def _choose(self, weights: list[float]) -> int:
        total = sum(weights)
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        step = len(self.taken)
        choice = self.script[step] if step < len(self.script) else possible[0]
        self.taken.append(choice)
        self.open.append(possible)
        self.probability *= weights[choice] / total
        return choice

    def accept(self, probability: float) -> bool:
        return self._choose([1 - probability, probability]) == 1

    def draw_distinct(self, weights: torch.Tensor, count: int) -> list[int]:
        left = weights.double().tolist()
        drawn = []
        while len(drawn) < count and sum(left) > 0:
            drawn.append(self._choose(left))
            left[drawn[-1]] = 0.0
        return drawn


def outcomes(run: Callable[[Chance], Result]) -> Iterator[tuple[Result, float]]:
    """Every result of `run` under every sequence of decisions, with its probability."""
    script: list[int] = []
    while True:
        chance = Replay(script)
        yield run(chance), chance.probability
        step = len(chance.taken) - 1
        while step >= 0 and chance.taken[step] == chance.open[step][-1]:
            step -= 1
        if step < 0:
            return
        following = chance.open[step][chance.open[step].index(chance.taken[step]) + 1]
        script = [*chance.taken[:step], following]
