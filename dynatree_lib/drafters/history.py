"""History adaptation of `AdaptiveTree` (DynaTree adaptive, section 3.3): numbers in, numbers out, no model.

The paper and its authors' code differ in the measured statistic, in how often it is measured, and in the rule.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from .adaptive_tree import AdaptiveTree

Mode = Literal["iteration", "drafted", "text"]
"""What is measured, and when. "iteration": after every iteration, committed tokens / (D_0 + 2) with its own D_0;
"drafted": the same with the paper's statistic, the fraction of drafted tokens committed; "text": the authors' code,
fixed steps once per text, on its tokens per iteration / (D_0 + 2) with the first D_0."""

AT_LEAST = 5
"""Texts before the authors' code adapts anything."""
DEAD_BAND = 0.1
"""Distance from the target acceptance within which the authors' code leaves everything as it is."""
STEP = 0.05
"""Step of both thresholds in the authors' code; the depth's is one level."""


@dataclass(frozen=True)
class History:
    """The values that adaptation changes, and the past it follows.

    They move so that the acceptance statistic comes to a*, in proportion to its distance (in mode "text" by fixed
    steps). D_0 stays within [1, D_max - 1]; tau_h inside (tau_l, 1), and within [0.5, 0.95] in mode "text"; rho_deep
    above rho_stop, and within [0.3, 0.8]. `rules` is the tree whose options say how.

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

    def after_iteration(self, rules: AdaptiveTree, committed: int, drafted: int) -> History:
        """Return the history after an iteration: tokens committed, bonus included, and drafted, without node 0."""
        if rules.history == "text":
            return replace(self, committed=self.committed + committed, iterations=self.iterations + 1)
        if not drafted:  # an iteration without a tree says nothing about the draft
            return self
        share, ratio = (committed - 1) / drafted, committed / (int(self.base_depth) + 2)
        statistic = share if rules.history == "drafted" else ratio
        recent = (*self.recent, statistic)[-rules.window :]
        error = sum(recent) / len(recent) - rules.target_acceptance
        return replace(
            self,
            recent=recent,
            base_depth=_moved(self.base_depth, rules.depth_gain * error, 1, rules.max_depth - 1),
            tau_high=_moved(self.tau_high, -rules.confidence_gain * error, *_just_inside(rules.tau_low, 1.0)),
        )

    def after_text(self, rules: AdaptiveTree) -> History:
        """Return the history after a whole text; only mode "text" changes anything."""
        if rules.history != "text" or not self.iterations:
            return self
        statistic = self.committed / self.iterations / (rules.base_depth + 2)
        now = replace(self, recent=(*self.recent, statistic)[-rules.window :], committed=0, iterations=0)
        error = now.acceptance - rules.target_acceptance
        if len(now.recent) < min(AT_LEAST, rules.window) or abs(error) <= DEAD_BAND:
            return now
        sign = 1 if error > 0 else -1
        floor, ceiling = _just_inside(rules.tau_low, 1.0)
        return replace(
            now,
            base_depth=_moved(now.base_depth, sign, 2, rules.max_depth - 1),
            tau_high=_moved(now.tau_high, -sign * STEP, max(0.5, floor), min(0.95, ceiling)),
            rho_deep=_moved(now.rho_deep, -sign * STEP, max(0.3, _just_inside(rules.rho_stop, 1.0)[0]), 0.8),
        )


def _moved(value: float, by: float, low: float, high: float) -> float:
    """Return `value + by`, stopped at the bounds; a value that began beyond a bound is not moved back to it."""
    return max(value, min(value + by, high)) if by >= 0 else min(value, max(value + by, low))


def _just_inside(low: float, high: float) -> tuple[float, float]:
    """Return the ends of an open interval, moved inside by a hundredth of its length."""
    margin = (high - low) / 100
    return low + margin, high - margin
