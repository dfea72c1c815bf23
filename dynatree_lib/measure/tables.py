"""The table of a benchmark: one row per method, cells as text, for the console and, in Markdown, for the docs.

`fill` rewrites the tables of a Markdown file from their records. A table stands between `<!-- table: FILE -->` and
`<!-- end of table -->`, FILE being the JSON of `dynatree bench`; `<!-- table: FILE | METHOD; METHOD -->` shows some
methods only. A test compares table and record, so that the text cannot drift from the record.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from .grids import text
from .methods import METHODS

Method = Mapping[str, Any]
"""An element of `metrics.summarize_records`."""
PARTS = ("draft", "verify", "host")
DOCS = (
    "tokens/s", "x hf-generate", "x ar", "x ar-fast", "x bound", "tokens/iteration", "iteration cost",
    "draft/verify/host %", "identical", "HR", "AL", "Dft/Ver",
)  # fmt: skip
"""Columns of a table in the docs; the console has all of `columns`."""


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
    return re.sub(r"(verify|draft)_cost=[^,]*", "measured costs", label)


def bound_sentence(bandwidth: Mapping[str, Any]) -> str:
    """Return a sentence on what plain decoding could reach at the bandwidth of the memory."""
    return (
        f"Bound: plain decoding that reads {bandwidth['weight_bytes'] / 1e6:.1f} MB of weights and its cache for each "
        f"token at {bandwidth['bytes_per_second'] / 1e9:.1f} GB/s, measured in the same run: "
        f"{bandwidth['tokens_per_second']:.0f} tokens/s."
    )


# -------------------------------------------------------------------------------------------------------------- docs
def quote(results: Mapping[str, Any], name: str, only: Sequence[str] = ()) -> str:
    """Return Markdown for the JSON object of `dynatree bench`.

    Args:
        results: the object.
        name: the file it came from, relative to the Markdown file.
        only: labels of the methods to show; all by default.
    """
    setup, environment = results["setup"], results["environment"]
    methods = [method for method in results["methods"] if not only or method["label"] in only]
    table = method_table(methods, intervals=False, only=DOCS)
    table["method"] = [f"`{label}`" for label in table["method"]]
    align = ["left", *["right"] * (table.shape[1] - 1)]
    lines = [
        "",
        table.to_markdown(index=False, colalign=align, disable_numparse=True),
        "",
        f"One interleaved run, {sampling_text(setup['sampling'])}, {len(setup['prompts'])} prompts x "
        f"{setup['max_new_tokens']} tokens, {setup['dtype']}, {environment['cpu']}, {environment['threads']} threads.",
        setup["workload"],
        "Iteration cost: time of an iteration in greedy steps of `hf-generate`. Brackets: 95 % bootstrap interval over",
        f"prompts. Record: [{Path(name).name}]({name}).",
    ]
    if results["bandwidth"]:
        lines.append(bound_sentence(results["bandwidth"]))
    if any(method["split"] for method in methods):
        lines.append("Draft and verify: time in the models' forwards; host: all the rest (traced runs).")
    return "\n".join([*lines, *_tuned(methods), "", ""])


def sampling_text(sampling: Mapping[str, Any]) -> str:
    """Return "greedy", or "temperature 1, top-k 50"."""
    if not sampling["temperature"]:
        return "greedy"
    return ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in sampling.items() if value)


def _tuned(methods: Sequence[Method]) -> list[str]:
    """Return a sentence on what `--tuned` methods stand for; measured cost curves are left to the record."""
    parts = []
    for method in (method for method in methods if method["label"] == f"{method['method']} (tuned)"):
        defaults = METHODS[method["method"]].defaults
        changed = [f"{key}={text(v)}" for key, v in method["options"].items() if text(v) != text(defaults[key])]
        shown = [option for option in changed if "_cost=" not in option]
        measured = ", measured costs" if shown != changed else ""
        parts.append(f"`{method['method']}` {', '.join(shown) or 'its defaults'}{measured}")
    return [f"Tuned on other prompts (`dynatree tune`): {'; '.join(parts)}."] if parts else []


PATTERN = re.compile(r"<!-- table: (\S+)(?: \| (.*?))? -->\n.*?<!-- end of table -->", re.S)


def filled(page: str, folder: Path) -> str:
    """Return a Markdown page with every table rewritten from its record; record paths are relative to `folder`."""

    def rewritten(match: re.Match[str]) -> str:
        name, some = match.group(1), match.group(2)
        results = json.loads((folder / name).read_text(encoding="utf-8"))
        only = [label.strip() for label in some.split(";")] if some else []
        head = f"<!-- table: {name}{f' | {some}' if some else ''} -->"
        return f"{head}\n{quote(results, name, only)}<!-- end of table -->"

    return PATTERN.sub(rewritten, page)


if __name__ == "__main__":
    for place in map(Path, sys.argv[1:]):
        place.write_text(filled(place.read_text(encoding="utf-8"), place.parent), encoding="utf-8")
