"""Limits of a sweep: settings of equal work, the neighbours and the luck of the best entry, choice by prediction.

Functions take a data frame or rows; nothing is measured or decoded here. Ratios with intervals belong to `statistics`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from ...measure.statistics import Table

Row = dict[str, Any]

_OPTIONS = {
    "tau_h": "tau_high",
    "tau_l": "tau_low",
    "B_min": "min_branching",
    "B_max": "max_branching",
    "D0": "base_depth",
    "D_max": "max_depth",
}
_LABELS = {
    "threshold": "tau_h {tau_h}, tau_l {tau_l}",
    "branch": "B {B_min} to {B_max}",
    "depth": "D {D0} to {D_max}",
    "cross": "{name}",
}


def authors_settings(rows: Iterable[Row]) -> dict[str, Row]:
    """Return the settings of DynaTree adaptive's Figure 8, from the rows of its authors' log, by readable labels.

    Each row gets `setting`, its label; `options` of `adaptive-tree`; `spread`, its speed-up minus and plus a standard
    deviation. B_mid is in no log: 2 as in the authors' code, or B_min where that is larger, because B_min <= B_mid.
    """
    settings = {}
    for row in rows:
        if row["group"] in _LABELS:
            label = _LABELS[row["group"]].format(**row)
            options = {ours: row[theirs] for theirs, ours in _OPTIONS.items()}
            options["mid_branching"] = max(2, row["B_min"])
            deviation = row["speedup"] * row["tokens_per_second_std"] / row["tokens_per_second"]
            spread = [row["speedup"] - deviation, row["speedup"] + deviation]
            settings[label] = {**row, "setting": label, "options": options, "spread": spread}
    return settings


def same_counts(table: Table, counts: Sequence[str], speed: str, label: str = "method") -> list[Row]:
    """Group settings that did the same work, by all `counts` columns, and return how their speeds spread.

    A group has `labels`, their names joined as `settings`, the counts, and `slowest`, `fastest` and their `ratio`. Rows
    that lack a count are left out, and so are settings that share their work with no other.
    """
    groups = pd.DataFrame(table).dropna(subset=list(counts)).groupby(list(counts), sort=False)
    spread = groups.agg(labels=(label, list), slowest=(speed, "min"), fastest=(speed, "max")).reset_index()
    spread = spread.assign(settings=spread["labels"].str.join("; "), ratio=spread["fastest"] / spread["slowest"])
    return spread[spread["labels"].str.len() > 1].to_dict("records")


def neighbours(rows: Sequence[Row], best: Mapping[str, Any], axes: Sequence[str]) -> list[Row]:
    """Return `best` and the rows one step away from it along one axis, with a column `step`: a plateau or a spike?"""
    places = {axis: sorted({row[axis] for row in rows}) for axis in axes}
    near = [{**best, "step": "the best"}]
    for row in rows:
        moved = {axis: abs(values.index(row[axis]) - values.index(best[axis])) for axis, values in places.items()}
        if sum(moved.values()) == 1:
            axis = max(moved, key=moved.__getitem__)
            near.append({**row, "step": f"{axis} {best[axis]} → {row[axis]}"})
    return near


def luck(table: Table, labels: Sequence[str], reference: str, size: int) -> list[Row]:
    """Choose the fastest label on every subset of `size` prompts, and return how fast it is on the other prompts.

    Rows have `prompts`, `chosen`, and speeds over the reference's: `there`, of the chosen label on the subset that
    chose it, `elsewhere`, of the chosen label on the rest, and `possible`, of the label that is fastest on the rest.

    Args:
        table: one row per run, as `Records.frame()` returns them.
        labels: methods to choose from.
        reference: label of the baseline.
        size: prompts of a subset.

    Raises:
        ValueError: unless 1 <= size < number of prompts.
    """
    frame, labels = pd.DataFrame(table), list(labels)
    frame = frame[frame["method"].isin([reference, *labels])]
    sums = frame.pivot_table(["tokens", "seconds"], "conversation", "method", "sum", sort=False).dropna()
    prompts = list(sums.index)
    if not 1 <= size < len(prompts):
        raise ValueError(f"size is {size}; with {len(prompts)} prompts it must leave some out, and take at least 1.")

    def speeds(chosen: Sequence[str]) -> pd.Series:
        total = sums.loc[list(chosen)].sum()
        rate = total["tokens"] / total["seconds"]
        return rate[labels] / rate[reference]

    rows = []
    for subset in combinations(prompts, size):
        there, elsewhere = speeds(subset), speeds([prompt for prompt in prompts if prompt not in subset])
        best = there.idxmax()
        row = {"there": float(there[best]), "elsewhere": float(elsewhere[best]), "possible": float(elsewhere.max())}
        rows.append({"prompts": ", ".join(subset), "chosen": best, **row})
    return rows


def choice(table: Table, predicted: str = "predicted", measured: str = "measured") -> Row:
    """Return what choosing by prediction costs, and the rank correlation (Spearman's; NaN where a side is constant).

    `speed kept` is the measured speed of the row predicted best over that of the row measured best.

    Raises:
        ValueError: for no rows.
    """
    frame = pd.DataFrame(table).reset_index(drop=True)
    if frame.empty:
        raise ValueError("There is no row to choose from; give at least one.")
    chosen, best = (frame.loc[frame[column].idxmax()] for column in (predicted, measured))
    return {
        "configurations": len(frame),
        "rank correlation": float(frame[[predicted, measured]].corr("spearman").iloc[0, 1]),
        "predicted best": chosen["method"],
        "speed of predicted best": float(chosen[measured]),
        "measured best": best["method"],
        "speed of measured best": float(best[measured]),
        "speed kept": float(chosen[measured] / best[measured]),
    }
