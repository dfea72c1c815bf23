"""The table of a benchmark: one row per method, cells as text."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import pandas as pd

Method = Mapping[str, Any]
"""An element of `metrics.summarize_records`."""
PARTS = ("draft", "verify", "host")


def number(value: float | None, digits: int) -> str:
    """Return a number with so many digits; nothing for None."""
    return "" if value is None else f"{value:.{digits}f}"


def with_interval(value: float | None, interval: Sequence[float] | None, digits: int = 2) -> str:
    """Return "1.05 [1.01, 1.09]"; nothing where the number is not known."""
    if value is None or interval is None:
        return ""
    return f"{value:.{digits}f} [{interval[0]:.{digits}f}, {interval[1]:.{digits}f}]"


def columns(intervals: bool = True) -> dict[str, Callable[[Method], str]]:
    """Return heading -> cell of a method; `intervals` says whether tokens/s has its interval."""

    def estimate(key: str, digits: int = 2) -> Callable[[Method], str]:
        return lambda method: with_interval(method[key], method[f"{key}_interval"], digits)

    def plain(key: str, digits: int = 2, factor: float = 1) -> Callable[[Method], str]:
        return lambda method: number(None if method[key] is None else factor * method[key], digits)

    def drafting(key: str) -> Callable[[Method], str]:
        return lambda method: number(method[key], 2) if method["nodes_per_iteration"] else ""

    return {
        "tokens/s": estimate("tokens_per_second", 1) if intervals else plain("tokens_per_second", 0),
        "x hf-generate": estimate("speedup_hf_generate"),
        "x ar": estimate("speedup_ar"),
        "x ar-fast": estimate("speedup_ar_fast"),
        "x bound": plain("bound_ratio"),
        "tokens/iteration": plain("tokens_per_iteration"),
        "nodes": plain("nodes_per_iteration", 1),
        "iteration cost": plain("iteration_cost"),
        "draft/verify/host %": lambda method: "/".join(f"{100 * method['split'][part]:.0f}" for part in PARTS)
        if method["split"] else "",
        "TTFT ms": plain("ttft", 1, 1000),
        "identical": lambda method: method["identical"] or "",
        "HR": drafting("hit_rate"),
        "AL": drafting("accept_length"),
        "Dft/Ver": lambda method: f"{method['side_nodes_per_iteration']:.0f}/{method['nodes_per_iteration']:.0f}"
        if method["nodes_per_iteration"] else "",
    }  # fmt: skip


def method_table(methods: Iterable[Method], intervals: bool = True, only: Sequence[str] | None = None) -> pd.DataFrame:
    """Return a frame of text, one row per method; columns for which no method has a number are left out.

    HR, AL and Dft/Ver, the terms of Progressive Tree Drafting, are shown where a method drafts in a side tree.
    """
    rows, cells = list(methods), columns(intervals)
    if not any(method["side_nodes_per_iteration"] for method in rows):
        cells = {name: cell for name, cell in cells.items() if name not in ("HR", "AL", "Dft/Ver")}
    names = [name for name in cells if only is None or name in only]
    labels = [brief(method["label"]) + ("" if method["lossless"] else " (lossy)") for method in rows]
    table = pd.DataFrame({"method": labels, **{name: [cells[name](method) for method in rows] for name in names}})
    return table.loc[:, (table != "").any()]


def brief(label: str) -> str:
    """Return a method's spec without its cost curve, which is the record's to hold."""
    return re.sub(r"((verify|draft)_cost=|costs=1)[^,]*", "measured costs", label)


def bound_sentence(bandwidth: Mapping[str, Any]) -> str:
    """Return a sentence on what plain decoding could reach at the bandwidth of the memory."""
    return (
        f"Bound: plain decoding that reads {bandwidth['weight_bytes'] / 1e6:.1f} MB of weights and its cache for each "
        f"token at {bandwidth['bytes_per_second'] / 1e9:.1f} GB/s, measured in the same run: "
        f"{bandwidth['tokens_per_second']:.0f} tokens/s."
    )


def disturbed_sentence(summaries: Iterable[Mapping[str, Any]]) -> str:
    """Return a sentence on the runs that something else on the machine disturbed."""
    told = ", ".join(f"{one['label']} {one['disturbed']}" for one in summaries if one["disturbed"])
    return f"Disturbed runs, whose prompts ratios of speeds leave out: {told}."


def sampling_text(sampling: Mapping[str, Any]) -> str:
    """Return "greedy", or "temperature 1, top-k 50"."""
    if not sampling["temperature"]:
        return "greedy"
    return ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in sampling.items() if value)
