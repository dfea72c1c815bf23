"""Benchmark results as a Markdown table for a README: `python -m dynatree_lib.bench.quote README.md` fills it in.

The table stands between `<!-- table: FILE -->` and `<!-- end of table -->`, FILE being the JSON of `dynatree bench`; a
test compares the two, so that the text cannot drift from the record.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .grids import text
from .methods import METHODS

COLUMNS = (
    "method",
    "tokens/s",
    "x `hf-generate`",
    "x `ar`",
    "tokens per iteration",
    "iteration cost",
    "identical texts",
)
DRAFTING = ("hit rate", "accept length", "Dft/Ver")


def quote(results: Mapping[str, Any], name: str) -> str:
    """Markdown for the JSON object of `dynatree bench`; `name` is the file it came from."""
    setup, environment = results["setup"], results["environment"]
    beside = any(one.get("draft_rows") for one in results["methods"])  # the terms of Progressive Tree Drafting
    columns = [*COLUMNS, *DRAFTING] if beside else COLUMNS
    lines = ["", "| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    rows = [[*_cells(one), *(_drafting(one) if beside else ())] for one in results["methods"]]
    lines += ["| " + " | ".join(row) + " |" for row in rows]
    tokens = setup["max_new_tokens"]
    return "\n".join(
        [
            *lines,
            "",
            f"One interleaved run, {_sampled(setup['sampling'])}, {len(setup['prompts'])} prompts x {tokens} tokens, "
            f"{setup['dtype']}, {environment['cpu']}, {environment['threads']} threads. {setup['workload']}",
            "Iteration cost: time of an iteration in greedy steps of `hf-generate`. Brackets: 95 % bootstrap",
            f"interval over prompts. Record: [{name}]({name}).",
            *_tuned(results["methods"]),
            "",
            "",
        ]
    )


def _cells(one: Mapping[str, Any]) -> list[str]:
    cost = one["iteration_cost"]
    return [
        f"`{_label(one['label'])}`",
        f"{one['tokens_per_second']:.0f}",
        _ratio(one["speedup_hf_generate"], one["speedup_hf_generate_interval"]),
        _ratio(one["speedup_ar"], one["speedup_ar_interval"]),
        f"{one['tokens_per_iteration']:.2f}",
        "" if cost is None else f"{cost:.2f}",
        one["identical"] or "",
    ]


def _label(label: str) -> str:
    """A spec without its cost curve, which is the record's to hold."""
    return re.sub(r"verify_cost=[^,]*", "measured costs", label)


def _drafting(one: Mapping[str, Any]) -> list[str]:
    if not one["nodes_per_iteration"]:
        return [""] * len(DRAFTING)
    length = "" if one["accept_length"] is None else f"{one['accept_length']:.2f}"
    return [f"{one['hit_rate']:.2f}", length, f"{one['draft_rows']:.0f}/{one['verify_rows']:.0f}"]


def _sampled(sampling: Mapping[str, Any]) -> str:
    if not sampling["temperature"]:
        return "greedy"
    filters = [
        f"{name.replace('_', '-')} {value}" for name, value in sampling.items() if value and name != "temperature"
    ]
    return ", ".join([f"temperature {sampling['temperature']:g}", *filters])


def _tuned(methods: Sequence[Mapping[str, Any]]) -> list[str]:
    """A sentence on what `--tuned` rows stand for; measured cost curves are left to the record."""
    told = []
    for one in (one for one in methods if one["label"] == f"{one['method']} (tuned)"):
        defaults, options = METHODS[one["method"]].defaults, one["options"]
        changed = [f"{key}={text(value)}" for key, value in options.items() if text(value) != text(defaults[key])]
        shown = [each for each in changed if "_cost=" not in each]
        told.append(f"`{one['method']}` {', '.join(shown) or 'its defaults'}" + ", measured costs" * (shown != changed))
    return [f"Tuned on other prompts (`dynatree tune`): {'; '.join(told)}."] if told else []


def _ratio(value: float | None, interval: tuple[float, float] | None) -> str:
    if value is None or interval is None:
        return ""
    return f"{value:.2f} [{interval[0]:.2f}, {interval[1]:.2f}]"


def fill(readme: Path) -> None:
    """Rewrite every quoted table of a Markdown file from its record; record paths are relative to that file."""
    page = readme.read_text(encoding="utf-8")

    def replaced(match: re.Match[str]) -> str:
        name = match.group(1)
        results = json.loads((readme.parent / name).read_text(encoding="utf-8"))
        return f"<!-- table: {name} -->\n{quote(results, name)}<!-- end of table -->"

    pattern = r"<!-- table: (\S+) -->\n.*?<!-- end of table -->"
    readme.write_text(re.sub(pattern, replaced, page, flags=re.S), encoding="utf-8")


if __name__ == "__main__":
    fill(Path(sys.argv[1]))
