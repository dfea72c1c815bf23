"""How much a sweep can tell: the resolution of its clock, the luck of its best entry, what a prediction chooses.

Pure functions of records and rows; nothing is measured or decoded here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import combinations
from typing import Any

import numpy as np

from ...measure.metrics import by_prompt, speedup
from ...measure.protocol import Results
from ...measure.records import Run

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
    """The settings of DynaTree adaptive's Figure 8, from the rows of its authors' log, under readable labels.

    Each row gets `setting`, its label; `options` of `adaptive-tree`; `spread`, its speed-up minus and plus a standard
    deviation. B_mid is in no log: 2 as in the authors' code, or B_min where that is larger, as the rule asks.
    """
    out = {}
    for row in rows:
        if row["group"] in _LABELS:
            label = _LABELS[row["group"]].format(**row)
            options = {ours: row[theirs] for theirs, ours in _OPTIONS.items()}
            options["mid_branching"] = max(2, row["B_min"])
            deviation = row["speedup"] * row["tokens_per_second_std"] / row["tokens_per_second"]
            spread = [row["speedup"] - deviation, row["speedup"] + deviation]
            out[label] = {**row, "setting": label, "options": options, "spread": spread}
    return out


# --------------------------------------------------------------------------------------------------------- the clock
def ratios(results: Results, labels: Iterable[str], reference: Sequence[str]) -> list[Row]:
    """Speed of each label over that of the reference labels taken together, on the same prompts.

    Rows have `method`, `ratio` and `interval`, the paired 95 % bootstrap interval over prompts.

    Raises:
        ValueError: for a label without a run.
    """
    base = [run for label in reference for run in _runs(results, label)]
    return [_ratio(label, _runs(results, label), base) for label in labels]


def repeats(results: Results, labels: Sequence[str]) -> list[Row]:
    """An A/A test: the same configuration under several labels, each pair of them compared as if they differed."""
    pairs = combinations(labels, 2)
    return [_ratio(f"{one} / {other}", _runs(results, one), _runs(results, other)) for one, other in pairs]


def resolution(rows: Sequence[Mapping[str, Any]]) -> float:
    """The largest ratio, read upwards, among comparisons of a configuration with itself; 1.03 stands for 3 %."""
    return max((math.exp(abs(math.log(row["ratio"]))) for row in rows), default=1.0)


def beyond(row: Mapping[str, Any], limit: float) -> bool:
    """Whether a ratio differs from 1 by more than the resolution, with an interval that leaves 1 out."""
    low, high = row["interval"]
    return not low <= 1 <= high and not 1 / limit <= row["ratio"] <= limit


def _runs(results: Results, label: str) -> list[Run]:
    found = [run for run in results.records.runs.values() if run.method == label]
    if not found:
        raise ValueError(f"There is no run of '{label}' in these records; take a label of the run.")
    return found


def _ratio(label: str, runs: Sequence[Run], base: Sequence[Run]) -> Row:
    found = speedup(runs, base)
    if found is None:
        raise ValueError(f"'{label}' shares no prompt with what it is compared with; measure both in one run.")
    return {"method": label, "ratio": found[0], "interval": found[1]}


def same_counts(rows: Iterable[Row], counts: Sequence[str], speed: str, label: str = "method") -> list[Row]:
    """Rows that agree in all `counts` columns, grouped: settings that did the same work, and how their speeds spread.

    A group has `labels`, their names joined as `settings`, the counts, and `slowest`, `fastest` and their `ratio`. Rows
    that lack a count are left out, and so are settings alone in their work.
    """
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if all(row.get(name) is not None for name in counts):
            groups.setdefault(tuple(row[name] for name in counts), []).append(row)
    return [
        {"labels": (labels := [row[label] for row in group]), "settings": "; ".join(labels)}
        | dict(zip(counts, key, strict=True))
        | _ends([row[speed] for row in group])
        for key, group in groups.items()
        if len(group) > 1
    ]


def _ends(speeds: Sequence[float]) -> Row:
    return {"slowest": min(speeds), "fastest": max(speeds), "ratio": max(speeds) / min(speeds)}


# ------------------------------------------------------------------------------------------------------ the best entry
def neighbours(rows: Sequence[Row], best: Mapping[str, Any], axes: Sequence[str]) -> list[Row]:
    """`best` and the rows one step away from it along one axis, with a column `step`: is it a plateau or a spike?"""
    places = {axis: sorted({row[axis] for row in rows}) for axis in axes}
    out = [{**best, "step": "the best"}]
    for row in rows:
        moved = [axis for axis in axes if row[axis] != best[axis]]
        if len(moved) == 1:
            axis = moved[0]
            if abs(places[axis].index(row[axis]) - places[axis].index(best[axis])) == 1:
                out.append({**row, "step": f"{axis} {best[axis]} → {row[axis]}"})
    return out


def luck(results: Results, labels: Sequence[str], reference: str, size: int) -> list[Row]:
    """Choose the fastest label on every subset of `size` prompts, and see how fast it is on the others.

    Rows have `prompts`, `chosen`, and speeds over the reference's: `there`, its own on the subset that chose it,
    `elsewhere`, its own on the rest, and `possible`, that of the fastest label on the rest.

    Raises:
        ValueError: unless 1 <= size < number of prompts.
    """
    times = {label: by_prompt(_runs(results, label)) for label in (reference, *labels)}
    prompts = [prompt for prompt in times[reference] if all(prompt in mine for mine in times.values())]
    if not 1 <= size < len(prompts):
        raise ValueError(f"size is {size}; with {len(prompts)} prompts it must leave some out, and take at least 1.")

    def speed(label: str, chosen: Sequence[str]) -> float:
        mine, its = (np.sum([times[name][prompt] for prompt in chosen], axis=0) for name in (label, reference))
        return float((mine[0] / mine[1]) / (its[0] / its[1]))

    out = []
    for some in combinations(prompts, size):
        rest = [prompt for prompt in prompts if prompt not in some]
        best = max(labels, key=lambda label: speed(label, some))
        there, elsewhere, possible = speed(best, some), speed(best, rest), max(speed(label, rest) for label in labels)
        row = {"there": there, "elsewhere": elsewhere, "possible": possible}
        out.append({"prompts": ", ".join(some), "chosen": best, **row})
    return out


# ------------------------------------------------------------------------------------------------------ the prediction
def rank_correlation(one: Sequence[float], other: Sequence[float]) -> float:
    """Spearman's rank correlation, ties with their mean rank; NaN where a side does not vary."""
    first, second = _ranks(one), _ranks(other)
    if not (np.ptp(first) and np.ptp(second)):
        return float("nan")
    return float(np.corrcoef(first, second)[0, 1])


def _ranks(values: Sequence[float]) -> np.ndarray:
    _, place, count = np.unique(np.asarray(values, float), return_inverse=True, return_counts=True)
    return np.asarray((np.cumsum(count) - (count - 1) / 2)[place])


def choice(rows: Sequence[Row], predicted: str = "predicted", measured: str = "measured") -> Row:
    """What choosing by prediction costs: measured speed of the row predicted best over the best measured one.

    Raises:
        ValueError: for no rows.
    """
    if not rows:
        raise ValueError("There is no row to choose from; give at least one.")
    chosen, best = (max(rows, key=lambda row: row[column]) for column in (predicted, measured))
    return {
        "configurations": len(rows),
        "rank correlation": rank_correlation([row[predicted] for row in rows], [row[measured] for row in rows]),
        "predicted best": chosen["method"],
        "its measured speed": chosen[measured],
        "measured best": best["method"],
        "best measured speed": best[measured],
        "regret": chosen[measured] / best[measured],
    }
