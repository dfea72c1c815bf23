"""Numbers with intervals from data frames: quotients of sums, ratios paired by prompt, shares; and disturbed runs.

Every function takes a frame with one row per observation (a run, a tree) and names of columns. Intervals are 95 %
percentile bootstrap intervals over groups of rows, by default over conversations, because prompts are what another
benchmark would draw anew, and the turns of one conversation belong together. Shares have exact binomial intervals.

All are of plain sums. The machines of most readers are busy, so a ratio of times leaves out pairs with a disturbed run.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd

RESAMPLES = 2000
TIMES = ("seconds", "span")
"""Columns of times, whose ratios leave disturbed runs out."""
DISTURBED = 1.75
"""A run that took so many times its usual seconds is disturbed."""
Interval = tuple[float, float]
Statistic = Callable[[np.ndarray], np.ndarray]
Table = Any
"""A data frame, or rows as dictionaries."""


@dataclass(frozen=True)
class Estimate:
    """A number with its 95 % interval; prints as "1.82 [1.59, 2.11]", and as "no estimate" where there is none.

    Attributes:
        value: the estimate; NaN where its divisor is 0.
        low: lower end of the interval.
        high: upper end.
        disturbed: groups that have a disturbed run (function `disturbed`), of `groups`. A ratio of times leaves them
            out if at least half of the groups remain.
        groups: groups that were compared.
    """

    value: float
    low: float
    high: float
    disturbed: int = 0
    groups: int = 0

    def __str__(self) -> str:
        return format(self, "")

    def __format__(self, spec: str) -> str:
        """Each of the three numbers under `spec`, ".2f" by default."""
        if math.isnan(self.value):
            return "no estimate"
        value, low, high = (format(number, spec or ".2f") for number in (self.value, self.low, self.high))
        return f"{value} [{low}, {high}]"

    @property
    def interval(self) -> Interval:
        """(low, high)."""
        return self.low, self.high

    @property
    def rests_on_disturbed(self) -> bool:
        """Whether more than a quarter of the groups have a disturbed run, so that a claim should stay open."""
        return 4 * self.disturbed > self.groups

    def compared(self, limit: float = 1.0) -> str:
        """Where the interval lies: "above" the limit, "below" it, "around" it, or resting on "disturbed" runs."""
        if self.rests_on_disturbed:
            return "disturbed"
        return "above" if self.low > limit else "below" if self.high < limit else "around"

    def above(self, limit: float = 1.0) -> bool | None:
        """Say whether the number is above a limit: None where the interval includes it or runs were disturbed."""
        return {"above": True, "below": False}.get(self.compared(limit))


# ---------------------------------------------------------------------------------------------------------- intervals
def bootstrap(table: np.ndarray, statistic: Statistic, seed: int = 0) -> Interval:
    """Return the 95 % percentile interval of a statistic when the rows are drawn anew with replacement.

    Args:
        table: (n, k), one row per group. A single row gives an interval of width zero.
        statistic: (m, n, k) resampled rows -> (m,) values.
        seed: same seed, same interval.
    """
    drawn = np.random.default_rng(seed).integers(0, len(table), (RESAMPLES, len(table)))
    low, high = np.quantile(statistic(table[drawn]), [0.025, 0.975])
    return float(low), float(high)


def estimate(table: np.ndarray, statistic: Statistic, seed: int = 0) -> Estimate:
    """Return a statistic of (n, k) rows with its bootstrap interval; `statistic` as for `bootstrap`.

    Raises:
        ValueError: for no rows.
    """
    if not len(table):
        raise ValueError("There is no group of rows to estimate from; give prompts, or another selection.")
    value = float(np.ravel(statistic(np.asarray(table, float)[None]))[0])
    return Estimate(value, *bootstrap(np.asarray(table, float), statistic, seed), groups=len(table))


def sum_quotient(drawn: np.ndarray) -> np.ndarray:
    """(..., n, 2) rows -> (...) sum of the first column over that of the second; NaN where that is 0."""
    first, second = np.moveaxis(drawn.sum(-2), -1, 0)
    return np.divide(first, second, out=np.full(np.shape(first), np.nan), where=second != 0)


def sum_ratio(drawn: np.ndarray) -> np.ndarray:
    """(..., n, 4) rows -> (...) `sum_quotient` of the first two columns over that of the last two."""
    return np.asarray(sum_quotient(drawn[..., :2]) / sum_quotient(drawn[..., 2:]))


def undisturbed_estimate(table: np.ndarray, disturbed: np.ndarray, statistic: Statistic, seed: int = 0) -> Estimate:
    """Return a statistic of times with its bootstrap interval, without the disturbed rows if half of all rows remain.

    Args:
        table: (n, k), one row per group.
        disturbed: (n,) bool.
        statistic: (m, n, k) resampled rows -> (m,) values.
        seed: of the bootstrap.

    Raises:
        ValueError: for no rows.
    """
    remaining = table[~disturbed] if 2 * disturbed.sum() <= len(table) else table
    return replace(estimate(remaining, statistic, seed), disturbed=int(disturbed.sum()), groups=len(table))


def share(hits: int, count: int, method: str = "exact") -> Estimate:
    """Return a share of `hits` in `count` trials with its binomial interval.

    Args:
        hits: 0 to count.
        count: at least 1.
        method: "exact" (Clopper-Pearson) or "wilson".

    Raises:
        ValueError: for no trial, or more hits than trials.
    """
    from scipy.stats import binomtest

    if not 0 <= hits <= count or count < 1:
        raise ValueError(f"{hits} hits in {count} trials are no share; give at least one trial, and no more hits.")
    interval = binomtest(hits, count).proportion_ci(0.95, method)
    return Estimate(hits / count, float(interval.low), float(interval.high), groups=count)


# ------------------------------------------------------------------------------------------------------------- frames
def sums(table: Table, columns: Sequence[str], by: str | Sequence[str] = "conversation") -> pd.DataFrame:
    """Return the sums of some columns over each group of rows, groups in order of appearance."""
    frame = pd.DataFrame(table)
    return frame.groupby(by, sort=False)[list(dict.fromkeys(columns))].sum()


def quotient(
    table: Table, of: str = "tokens", per: str = "seconds", by: str = "conversation", seed: int = 0
) -> Estimate:
    """Return the sum of one column over the sum of another, with its interval over groups.

    Args:
        table: the rows of one method.
        of: column above the line.
        per: column below it.
        by: column whose groups are drawn anew.
        seed: of the bootstrap.
    """
    return estimate(sums(table, (of, per), by)[[of, per]].to_numpy(float), sum_quotient, seed)


def ratio(
    table: Table,
    method: str | Sequence[str],
    over: str | Sequence[str],
    *,
    of: str = "tokens",
    per: str = "seconds",
    by: str = "conversation",
    column: str = "method",
    seed: int = 0,
) -> Estimate:
    """Return one method's quotient over another's, paired: `ratio(frame, "fixed-tree", over="ar")` is a speed-up.

    Only rows of prompts that both sides have are compared. Groups are drawn anew together for both sides.

    A ratio of `TIMES` is an `undisturbed_estimate`; runs are disturbed where the column `disturbed` says so.

    Args:
        table: rows of both methods, for example `Records.frame()`.
        method: label, or labels taken together.
        over: label of the baseline, or labels taken together.
        of: column above the line of each quotient.
        per: column below it.
        by: column whose groups are drawn anew.
        column: column that holds the labels.
        seed: of the bootstrap.

    Raises:
        ValueError: for a label without a row, or sides that share no prompt.
    """
    frame = pd.DataFrame(table)
    sides = []
    for labels in (method, over):
        wanted = [labels] if isinstance(labels, str) else list(labels)
        missing = [label for label in wanted if label not in set(frame[column])]
        if missing:
            raise ValueError(f"There is no run of '{missing[0]}' in these records; take a label of the run.")
        sides.append(frame[frame[column].isin(wanted)])
    shared = set(sides[0]["prompt"]) & set(sides[1]["prompt"])
    if not shared:
        raise ValueError(f"'{method}' and '{over}' share no prompt; measure both in one run.")
    first, second = (sums(side[side["prompt"].isin(shared)], (of, per), by)[[of, per]] for side in sides)
    paired = first.add_suffix(" 1").join(second.add_suffix(" 2"))
    if not {of, per} & set(TIMES):
        return estimate(paired.to_numpy(float), sum_ratio, seed)
    flags = [side.loc[side["disturbed"], by] for side in sides if "disturbed" in side]
    marked = paired.index.isin(pd.concat(flags)) if flags else np.zeros(len(paired), bool)
    return undisturbed_estimate(paired.to_numpy(float), marked, sum_ratio, seed)


def disturbed(table: Table, factor: float = DISTURBED) -> pd.Series:
    """Say of each run whether something else had the machine: (n,) bool, the index of the frame.

    A run is disturbed if it took more than `factor` times its usual seconds. These are what reading the prompt usually
    takes, and an iteration after the first times their number: what the method takes in the median, times what the
    prompt takes of all methods in the median. With two methods or fewer, prompts cannot be told from disturbances: then
    reading is not judged, and an iteration by the method's median alone.

    Args:
        table: with `method`, `prompt`, `seconds`, `iterations` and `span`, the seconds after the first emission.
        factor: above 1.
    """
    frame = pd.DataFrame(table)
    if frame.empty:
        return pd.Series([], dtype=bool)
    reading, further = frame["seconds"] - frame["span"], frame["iterations"] - 1
    several = frame["method"].nunique() > 2
    usual = further * _usual(frame["span"] / further.where(further > 0), frame, several)
    usual = usual.fillna(frame["span"]) + (_usual(reading, frame, several) if several else reading)
    return frame["seconds"] > factor * usual


def _usual(values: pd.Series, frame: pd.DataFrame, prompts: bool) -> pd.Series:
    """What a method takes in the median, times what a prompt takes of all methods in the median."""
    logs = np.log(values.where(values > 0))
    usual = logs.groupby(frame["method"]).transform("median")
    if prompts:
        usual += (logs - usual).groupby(frame["prompt"]).transform("median")
    return np.exp(usual).where(values > 0, values)
