"""Limits of a sweep: the luck of the best entry, and choice by prediction.

Functions take a data frame or rows; nothing is measured or decoded here. Ratios with intervals belong to `statistics`.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Any

import pandas as pd

from ...bench.statistics import Table

Row = dict[str, Any]


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


def choice(table: Table, predicted: str = "predicted") -> Row:
    """Return what choosing by prediction costs, and the rank correlation (Spearman's; NaN where a side is constant).

    `speed kept` is the measured speed of the row predicted best over that of the row measured best.

    Raises:
        ValueError: for no rows.
    """
    frame = pd.DataFrame(table).reset_index(drop=True)
    if frame.empty:
        raise ValueError("There is no row to choose from; give at least one.")
    chosen, best = (frame.loc[frame[column].idxmax()] for column in (predicted, "measured"))
    return {
        "configurations": len(frame),
        "rank correlation": float(frame[[predicted, "measured"]].corr("spearman").iloc[0, 1]),
        "predicted best": chosen["method"],
        "speed of predicted best": float(chosen["measured"]),
        "measured best": best["method"],
        "speed of measured best": float(best["measured"]),
        "speed kept": float(chosen["measured"] / best["measured"]),
    }
