"""The cost of forwards by the number of tokens that they read, for cost-aware drafters and for the cost model.

The unit is one greedy step of the target, so that costs carry over between texts. `measuring` measures them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

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
    """What the parts of an iteration cost for a model on a machine, which a drafter weighs against tokens.

    The unit is a greedy step of the target, an iteration that scores one token. `measuring.costs_of` measures them.
    `str` writes them as `Costs.read` reads them: `1.0/1.05/1.1+0.2/0.21+0.15+0.01+0.02`.

    Args:
        verify: of an iteration that scores 1, 2, 4, ... tokens, the host's share included; () makes every node free.
        draft: of drafting one level by reading 1, 2, 4, ... nodes; () where there is no draft.
        overhead: what drafting by a model adds to an iteration, however many levels are drafted.
        prompt: of the draft's reading of one token of a prompt.
        guesses: of an iteration's guesses by `Auto`, for which no model is run.

    Raises:
        ValueError: for points that are no curve, or another number that is negative or not finite.
    """

    verify: tuple[float, ...] = ()
    draft: tuple[float, ...] = ()
    overhead: float = 0.0
    prompt: float = 0.0
    guesses: float = 0.0

    def __post_init__(self) -> None:
        for name in ("verify", "draft"):  # lists become tuples, so that costs can be hashed and compared
            points = getattr(self, name)
            points = points.tolist() if isinstance(points, np.ndarray) else points
            if not isinstance(points, Sequence):
                raise ValueError(f"{name} is {points!r}; give the costs of 1, 2, 4, ... tokens, or () for none.")
            object.__setattr__(self, name, tuple(points))
        _ = self._verify, self._draft
        if (self.verify and min(self.verify) != self.verify[0]) or self.verify[:1] not in ((), (1,)):
            raise ValueError(
                f"verify is {self.verify!r}; the unit is an iteration that scores one token, so give 1.0 first, and no "
                "less for more tokens."
            )
        for name in ("overhead", "prompt", "guesses"):
            if not (is_number(getattr(self, name)) and 0 <= getattr(self, name) < float("inf")):
                raise ValueError(f"{name} is {getattr(self, name)!r}; give a number of greedy steps, 0 or more.")

    @classmethod
    def read(cls, text: str) -> Costs:
        """Return the costs of a text: up to five parts with a plus between them, the points of a part with slashes.

        Raises:
            ValueError: for any other text.
        """
        try:
            verify, draft, overhead, prompt, guesses, *rest = *text.split("+"), *("",) * 4
            if any(rest):
                raise ValueError
            curve, levels = (tuple(map(float, filter(None, part.split("/")))) for part in (verify, draft))
            return cls(curve, levels, *(float(part or 0) for part in (overhead, prompt, guesses)))
        except ValueError as error:
            raise ValueError(
                f"Costs {text!r} cannot be read; write them as 1.0/1.05/1.1+0.2/0.21+0.15+0.01+0.02: an iteration that "
                "scores 1, 2, 4, ... tokens, a drafted level that reads 1, 2, 4, ... nodes, what drafting adds to an "
                "iteration, the draft's reading of a token of a prompt, and guesses, in greedy steps."
            ) from error

    def __str__(self) -> str:
        curves = "+".join("/".join(map(str, points)) for points in (self.verify, self.draft))
        return f"{curves}+{self.overhead}+{self.prompt}+{self.guesses}"

    @cached_property
    def _verify(self) -> CostCurve | None:
        return CostCurve(self.verify) if self.verify else None

    @cached_property
    def _draft(self) -> CostCurve | None:
        return CostCurve(self.draft) if self.draft else None

    @property
    def free(self) -> bool:
        """Whether nodes cost nothing."""
        return not self.verify

    def scoring(self, nodes: int | np.ndarray) -> Any:
        """Return the cost of an iteration that scores trees of so many nodes: a float, or float64 as `nodes`."""
        cost = np.zeros(np.shape(nodes)) if self._verify is None else self._verify.at(nodes)
        return cost if np.ndim(nodes) else float(cost)

    def another(self, nodes: int) -> float:
        """Return the cost that one node more adds to a tree of so many nodes (`CostCurve.marginal_cost`)."""
        return 0.0 if self._verify is None else self._verify.marginal_cost(nodes)

    def shared(self, texts: int) -> Costs:
        """Return the costs of one of several texts whose trees are scored and drafted in the same forwards.

        The unit is then a greedy step of them all.
        """
        if texts == 1 or self.free:
            return self
        step = self.scoring(texts)
        verify = tuple(self.scoring(texts * 2**power) / step for power in range(len(self.verify)))
        draft = tuple(self.reading(texts * 2**power) / step for power in range(len(self.draft)))
        alone = (texts * each / step for each in (self.overhead, self.prompt, self.guesses))  # one after another
        return Costs(verify, draft, *alone)

    @property
    def step(self) -> float:
        """The cost of verifying a tree at all (`CostCurve.step`)."""
        return 0.0 if self._verify is None else self._verify.step

    def reading(self, nodes: float) -> float:
        """Return the cost of one forward of the draft over so many nodes."""
        return 0.0 if self._draft is None else float(self._draft.at(nodes))


FREE = Costs()
"""Every node is free."""
ASSUMED = Costs((1.0, 1.05, 1.1, 1.3, 1.5, 2.1, 3.3), (0.2, 0.21, 0.23, 0.26, 0.32), 0.15, 0.01, 0.02)
"""Of a model whose costs cannot be measured, such as a `ToyModel`: those of the bundled pair on two cores, rounded."""


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
