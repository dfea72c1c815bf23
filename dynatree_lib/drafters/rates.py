"""Rates of success by rank, learnt from the text: how often copies and pooled candidates were right."""

from __future__ import annotations

from collections.abc import Sequence


class SuccessRates:
    """How often the guess of each rank was right, learnt with forgetting.

    Args:
        prior: probability assumed of each rank to begin with; ranks beyond share the last.
        memory: weight of the earlier outcomes at each new outcome.
        weight: outcomes that the prior is worth.
    """

    def __init__(self, prior: Sequence[float], memory: float, weight: float = 5.0) -> None:
        self.memory = memory
        self.right = [weight * probability for probability in prior]
        self.tried = [weight] * len(prior)

    def __len__(self) -> int:
        return len(self.right)

    def __getitem__(self, rank: int) -> float:
        rank = min(rank, len(self.right) - 1)
        return self.right[rank] / self.tried[rank]

    def forget(self, rank: int, prior: float, part: float = 1.0) -> None:
        """Let the rate of a rank go towards a prior, where nothing was tried, by a part of what one outcome forgets."""
        self.right[rank] += part * (1 - self.memory) * (self.tried[rank] * prior - self.right[rank])

    def learn(self, rank: int, right: bool, weight: float = 1.0) -> None:
        """Count whether the guess of this rank was right, as so many tries."""
        rank = min(rank, len(self.right) - 1)
        self.tried[rank] = self.memory * self.tried[rank] + weight
        self.right[rank] = self.memory * self.right[rank] + right
