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
    """Cost of a forward of 1, 2, 4, 8, ... rows, read as a piecewise linear function between them.

    The points are replaced by their lower convex hull. Measured costs have steps, where a kernel changes; going to a
    step's end is then as cheap per row as the curve says, and a row's price never falls as rows are added, so that
    the best number of rows is where the price meets the gain.

    Args:
        points: cost at 1, 2, 4, 8, ... rows, in greedy steps of the target; beyond the last the last slope holds.

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
    def _hull(self) -> tuple[np.ndarray, np.ndarray]:
        return lower_hull(2.0 ** np.arange(len(self.points)), np.minimum.accumulate(self.points[::-1])[::-1])

    @cached_property
    def _slopes(self) -> np.ndarray:
        rows, costs = self._hull
        return np.diff(costs) / np.diff(rows)

    def at(self, rows: float | np.ndarray) -> np.ndarray:
        """Cost of a forward of so many rows (at least 1); float64, the shape of `rows`."""
        knots, costs = self._hull
        count = np.asarray(rows, float)
        return np.asarray(np.interp(count, knots, costs) + np.maximum(count - knots[-1], 0) * self._slopes[-1])

    def price(self, rows: int) -> float:
        """Cost of one row more."""
        knots, _ = self._hull
        piece = int(np.searchsorted(knots, rows, "right")) - 1
        return float(self._slopes[min(piece, len(self._slopes) - 1)])


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
