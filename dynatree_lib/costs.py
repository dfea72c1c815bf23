"""The cost of forwards by the number of tokens that they read, for cost-aware drafters and for the cost model.

The unit is one greedy step of the target, so that costs carry over between texts. `dynatree tune` measures them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from .checks import is_number

INITIAL_STEPS = 50.0
"""Weight of a given rate beside the rate of the text itself, in greedy steps."""


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
        """Return the pace of a new text, as if `INITIAL_STEPS` had run at this rate (tokens per greedy step)."""
        return cls(INITIAL_STEPS * rate, INITIAL_STEPS)

    @property
    def rate(self) -> float:
        """Tokens per greedy step."""
        return self.committed / self.spent

    def add(self, tokens: int, cost: float) -> None:
        """Add the tokens and the cost of an iteration."""
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


@dataclass(frozen=True)
class Costs:
    """The predicted costs of an iteration, which a drafter weighs against the tokens that it may gain.

    Attributes:
        verify: cost of the target's forward by nodes; None makes every node free.
        draft: cost of one forward of the draft by nodes.
    """

    verify: CostCurve | None
    draft: CostCurve | None = None

    def scoring(self, nodes: int) -> float:
        """Return the cost of scoring a tree of so many nodes."""
        return 0.0 if self.verify is None else float(self.verify.at(nodes))

    def another(self, nodes: int) -> float:
        """Return the cost that one node more adds to a tree of so many nodes."""
        return 0.0 if self.verify is None else self.verify.marginal_cost(nodes)

    @property
    def step(self) -> float:
        """The cost of verifying a tree at all (`CostCurve.step`)."""
        return 0.0 if self.verify is None else self.verify.step

    def reading(self, nodes: float) -> float:
        """Return the cost of one forward of the draft over so many nodes."""
        return 0.0 if self.draft is None else float(self.draft.at(nodes))


def lower_hull(x: Sequence[float] | np.ndarray, y: Sequence[float] | np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the corners of the lower convex hull of points with ascending x, first and last point included."""
    x, y = np.asarray(x, float), np.asarray(y, float)
    hull: list[int] = []
    for c in range(len(x)):
        # the slope from a to b is no less than from b to c, so b is no corner
        while len(hull) > 1 and (y[b := hull[-1]] - y[a := hull[-2]]) * (x[c] - x[b]) >= (y[c] - y[b]) * (x[b] - x[a]):
            hull.pop()
        hull.append(c)
    return x[hull], y[hull]
