"""What a forward costs by its number of rows: the curve that cost-aware drafting and the cost model share.

Costs are in units of one greedy step of the target, so that they carry over between texts; how they are measured
belongs to `bench.cost_model`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np


@dataclass(frozen=True)
class CostCurve:
    """Cost of a forward of 1, 2, 4, 8, ... rows, read as a piecewise linear function that never falls.

    `price` looks through the steps where a kernel changes: it is the slope of the lower convex hull, so that a row's
    price never falls as rows are added. The step from one row to two, which has a tree mask, is no row's price; it is
    the cost of verifying a tree at all.

    Args:
        points: cost at 1, 2, 4, 8, ... rows, in greedy steps of the target; beyond the last the price there holds.

    Raises:
        ValueError: for fewer than two points, or one that is not positive and finite.
    """

    points: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.points) < 2 or not all(0 < point < float("inf") for point in self.points):
            raise ValueError(
                f"A cost curve has the points {self.points}; give at least two positive numbers, the cost at 1, 2, 4, "
                "... rows in greedy steps of the target."
            )

    @cached_property
    def _knots(self) -> tuple[np.ndarray, np.ndarray]:
        return 2.0 ** np.arange(len(self.points)), np.minimum.accumulate(self.points[::-1])[::-1]

    @cached_property
    def _slopes(self) -> tuple[np.ndarray, np.ndarray]:
        """Rows from which each price holds, and the prices."""
        rows, costs = self._knots
        first = 1 if len(rows) > 2 else 0
        rows, costs = lower_hull(rows[first:], costs[first:])
        return rows[:-1], np.diff(costs) / np.diff(rows)

    @cached_property
    def step(self) -> float:
        """What two rows cost more than one, beyond the price of a row; not below 0."""
        return max(float(self.at(2) - self.at(1)) - self.marginal_cost(2), 0.0)

    def at(self, rows: float | np.ndarray) -> np.ndarray:
        """Cost of a forward of so many rows (at least 1); float64, the shape of `rows`."""
        knots, costs = self._knots
        count = np.asarray(rows, float)
        return np.asarray(np.interp(count, knots, costs) + np.maximum(count - knots[-1], 0) * self._slopes[1][-1])

    def marginal_cost(self, rows: int) -> float:
        """Cost of one row more in a tree of so many."""
        starts, slopes = self._slopes
        return float(slopes[max(int(np.searchsorted(starts, rows, "right")) - 1, 0)])


def lower_hull(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Corners of the lower convex hull of points with ascending x, first and last point included."""
    hull: list[tuple[float, float]] = []
    for point in zip(np.asarray(x, float), np.asarray(y, float), strict=True):
        while len(hull) > 1 and _turns_down(hull[-2], hull[-1], point):
            hull.pop()
        hull.append(point)
    corners = np.array(hull)
    return corners[:, 0], corners[:, 1]


def _turns_down(a: tuple[float, float], b: tuple[float, float], c: tuple[float, float]) -> bool:
    return (b[1] - a[1]) * (c[0] - b[0]) >= (c[1] - b[1]) * (b[0] - a[0])
