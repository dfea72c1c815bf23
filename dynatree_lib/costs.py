"""What a forward costs by the number of tokens it scores, for cost-aware drafting and for the cost model.

Costs are in units of one greedy step of the target, so that they carry over between texts. How they are measured
belongs to `costs.cost_model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .checks import is_number

INITIAL_STEPS = 50.0
"""Greedy steps for which a given rate counts against the rate of the text itself."""


@dataclass
class Pace:
    """Tokens that a text has gained, and their predicted cost in greedy steps.

    Attributes:
        committed: tokens.
        spent: greedy steps.
    """

    committed: float
    spent: float

    @classmethod
    def begun(cls, rate: float) -> Pace:
        """Return the pace of a new text, which a given rate (tokens per greedy step) leads for `INITIAL_STEPS`."""
        return cls(INITIAL_STEPS * rate, INITIAL_STEPS)

    @property
    def rate(self) -> float:
        """Tokens per greedy step."""
        return self.committed / self.spent

    def add(self, tokens: int, cost: float) -> None:
        """Take in an iteration."""
        self.committed += tokens
        self.spent += cost


@dataclass(frozen=True)
class CostCurve:
    """The cost of a forward over 1, 2, 4, 8, ... tokens, read as a piecewise linear function that never falls.

    `marginal_cost` looks through the steps where a kernel changes: it is the slope of the lower convex hull, so it
    never falls as tokens are added. The step from one token to two is not part of it, because two tokens need a tree
    mask: that step is the cost of verifying a tree at all.

    Args:
        points: cost of 1, 2, 4, 8, ... tokens in greedy steps of the target; the last slope holds beyond the last.

    Raises:
        ValueError: for fewer than two points, or one that is not positive and finite.
    """

    points: tuple[float, ...]

    def __post_init__(self) -> None:
        several = isinstance(self.points, Sequence) and len(self.points) >= 2
        if not several or not all(is_number(point) and 0 < point < float("inf") for point in self.points):
            raise ValueError(
                f"A cost curve has the points {self.points!r}; give at least two positive numbers, the cost at 1, 2, "
                "4, ... tokens in greedy steps of the target."
            )

    @cached_property
    def _knots(self) -> tuple[np.ndarray, np.ndarray]:
        return 2.0 ** np.arange(len(self.points)), np.minimum.accumulate(self.points[::-1])[::-1]

    @cached_property
    def _slopes(self) -> tuple[np.ndarray, np.ndarray]:
        """The token counts from which each marginal cost holds, and the marginal costs."""
        first = 1 if len(self.points) > 2 else 0
        tokens, costs = lower_hull(*(knots[first:] for knots in self._knots))
        return tokens[:-1], np.diff(costs) / np.diff(tokens)

    @cached_property
    def step(self) -> float:
        """The cost of two tokens above that of one and above the marginal cost; not below 0."""
        return max(float(self.at(2) - self.at(1)) - self.marginal_cost(2), 0.0)

    def at(self, tokens: float | np.ndarray) -> np.ndarray:
        """Return the cost of a forward over so many tokens (at least 1); float64, the shape of `tokens`."""
        knots, costs = self._knots
        count = np.asarray(tokens, float)
        return np.asarray(np.interp(count, knots, costs) + np.maximum(count - knots[-1], 0) * self._slopes[1][-1])

    def marginal_cost(self, nodes: int) -> float:
        """Return the cost that one node more adds to a tree of so many nodes."""
        starts, slopes = self._slopes
        return float(slopes[max(int(np.searchsorted(starts, nodes, "right")) - 1, 0)])


def lower_hull(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of the lower convex hull of points with ascending x, first and last point included."""
    hull: list[tuple[float, float]] = []
    for point in zip(np.asarray(x, float), np.asarray(y, float), strict=True):
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    corners = np.array(hull)
    return corners[:, 0], corners[:, 1]


def _turns_down(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[1] - a[1]) * (c[0] - b[0]) >= (c[1] - b[1]) * (b[0] - a[0])
