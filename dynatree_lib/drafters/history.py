"""History adaptation of `AdaptiveTree` (DynaTree adaptive, section 3.3): numbers in, numbers out, no model.

The paper and its authors' code differ in the measured statistic, in how often it is measured, and in the rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

Mode = Literal["iteration", "drafted", "text"]

AT_LEAST = 5
"""Texts before the authors' code adapts anything."""
DEAD_BAND = 0.1
"""Distance from the target acceptance within which the authors' code leaves everything as it is."""
STEP = 0.05
"""Step of both thresholds in the authors' code; the depth's is one level."""


@dataclass(frozen=True)
class History:
    """The values that adaptation changes, and the past it follows.

    Attributes:
        base_depth: D_0, fractional; a tree uses its floor.
        tau_high: tau_h.
        rho_deep: changed by the authors' code only.
        recent: the last W acceptance statistics, oldest first.
        committed: tokens committed in this text (for "text").
        iterations: iterations of this text (for "text").
    """

    base_depth: float
    tau_high: float
    rho_deep: float
    recent: tuple[float, ...] = ()
    committed: int = 0
    iterations: int = 0

    @property
    def acceptance(self) -> float:
        """Mean of the recent statistics, NaN before the first."""
        return sum(self.recent) / len(self.recent) if self.recent else float("nan")


@dataclass(frozen=True)
class Controller:
    """A rule that moves D_0 and tau_h so that an acceptance statistic comes to a*.

    Attributes:
        mode: "iteration": after every iteration, proportionally, on committed tokens / (D_0 + 2) with that iteration's
            D_0; "drafted": the same on the paper's statistic, the fraction of drafted tokens committed; "text": the
            authors' code, fixed steps once per text, on its tokens per iteration / (D_0 + 2) with the first D_0.
        window: W, iterations (or texts) in the mean.
        target: a*.
        depth_gain: eta_D, levels per unit of acceptance.
        confidence_gain: eta_h, change of tau_h per unit of acceptance.
        base_depth: the first D_0.
        max_depth: D_max; D_0 stays within [1, D_max - 1].
        tau_low: tau_l; tau_h stays inside (tau_l, 1), and within [0.5, 0.95] in mode "text".
        rho_stop: rho_deep stays above it, and within [0.3, 0.8].
    """

    mode: Mode
    window: int
    target: float
    depth_gain: float
    confidence_gain: float
    base_depth: int
    max_depth: int
    tau_low: float
    rho_stop: float

    def after_iteration(self, history: History, committed: int, drafted: int) -> History:
        """Return the history after an iteration: tokens committed, bonus included, and drafted, without node 0."""
        if self.mode == "text":
            return replace(history, committed=history.committed + committed, iterations=history.iterations + 1)
        if not drafted:  # an iteration without a tree says nothing about the draft
            return history
        share, ratio = (committed - 1) / drafted, committed / (int(history.base_depth) + 2)
        statistic = share if self.mode == "drafted" else ratio
        recent = (*history.recent, statistic)[-self.window :]
        error = sum(recent) / len(recent) - self.target
        return replace(
            history,
            recent=recent,
            base_depth=_moved(history.base_depth, self.depth_gain * error, 1, self.max_depth - 1),
            tau_high=_moved(history.tau_high, -self.confidence_gain * error, *_just_inside(self.tau_low, 1.0)),
        )

    def after_text(self, history: History) -> History:
        """Return the history after a whole text; only mode "text" changes anything."""
        if self.mode != "text" or not history.iterations:
            return history
        statistic = history.committed / history.iterations / (self.base_depth + 2)
        recent = (*history.recent, statistic)[-self.window :]
        history = replace(history, recent=recent, committed=0, iterations=0)
        error = history.acceptance - self.target
        if len(recent) < min(AT_LEAST, self.window) or abs(error) <= DEAD_BAND:
            return history
        sign = 1 if error > 0 else -1
        floor, ceiling = _just_inside(self.tau_low, 1.0)
        return replace(
            history,
            base_depth=_moved(history.base_depth, sign, 2, self.max_depth - 1),
            tau_high=_moved(history.tau_high, -sign * STEP, max(0.5, floor), min(0.95, ceiling)),
            rho_deep=_moved(history.rho_deep, -sign * STEP, max(0.3, _just_inside(self.rho_stop, 1.0)[0]), 0.8),
        )


def _moved(value: float, by: float, low: float, high: float) -> float:
    """Return `value + by`, stopped at the bounds; a value that began beyond a bound is not moved back to it."""
    return max(value, min(value + by, high)) if by >= 0 else min(value, max(value + by, low))


def _just_inside(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an open interval, moved inside by a hundredth of its length."""
    margin = (high - low) / 100
    return low + margin, high - margin
