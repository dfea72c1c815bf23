"""Benchmark results as a Markdown table for a README: `python -m dynatree_lib.measure.quote README.md` fills it in.

The table stands between `<!-- table: FILE -->` and `<!-- end of table -->`, FILE being the JSON of `dynatree bench`; a
test compares the two, so that the text cannot drift from the record.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from .grids import text
from .methods import METHODS

DRAFTING = ("hit rate", "accept length", "Dft/Ver")
Cell = Callable[[Mapping[str, Any]], str]


def quote(results: Mapping[str, Any], name: str) -> str:
    """Markdown for the JSON object of `dynatree bench`; `name` is the file it came from."""
    setup, environment = results["setup"], results["environment"]
    columns = _columns(results)
    lines = ["", "| " + " | ".join(columns) + " |", "|---" + "|---:" * (len(columns) - 1) + "|"]
    lines += ["| " + " | ".join(cell(one) for cell in columns.values()) + " |" for one in results["methods"]]
    tokens = setup["max_new_tokens"]
    return "\n".join(
        [
            *lines,
            "",
            f"One interleaved run, {_sampled(setup['sampling'])}, {len(setup['prompts'])} prompts x {tokens} tokens, "
            f"{setup['dtype']}, {environment['cpu']}, {environment['threads']} threads. {setup['workload']}",
            "Iteration cost: time of an iteration in greedy steps of `hf-generate`. Brackets: 95 % bootstrap",
            f"interval over prompts. Record: [{name}]({name}).",
            *_told(results),
            *_tuned(results["methods"]),
            "",
            "",
        ]
    )


def _columns(results: Mapping[str, Any]) -> dict[str, Cell]:
    """Heading -> cell of a method; those that this record has no number for, older ones above all, are left out."""
    methods = results["methods"]
    ratio: Callable[[str], Cell] = lambda key: lambda one: _ratio(one[key], one[f"{key}_interval"])  # noqa: E731
    number: Callable[[str], Cell] = lambda key: lambda one: "" if one[key] is None else f"{one[key]:.2f}"  # noqa: E731
    columns: dict[str, Cell] = {
        "method": lambda one: f"`{_label(one['label'])}`",
        "tokens/s": lambda one: f"{one['tokens_per_second']:.0f}",
        "x `hf-generate`": ratio("speedup_hf_generate"),
        "x `ar`": ratio("speedup_ar"),
    }
    if any(one.get("speedup_ar_fast") for one in methods):
        columns["x `ar-fast`"] = ratio("speedup_ar_fast")
    if results.get("bandwidth"):
        columns["x bound"] = number("bound_ratio")
    columns |= {"tokens per iteration": number("tokens_per_iteration"), "iteration cost": number("iteration_cost")}
    if _traced(results):
        columns["draft/verify/host %"] = _shares
    columns["identical texts"] = lambda one: one["identical"] or ""
    if any(one.get("draft_rows") for one in methods):  # the terms of Progressive Tree Drafting
        term: Callable[[int], Cell] = lambda place: lambda one: _drafting(one)[place]  # noqa: E731
        columns |= {name: term(place) for place, name in enumerate(DRAFTING)}
    return columns


def _traced(results: Mapping[str, Any]) -> bool:
    """Whether there are shares in which host is all but the forwards (`records.Split`)."""
    return "trace" in results["setup"] and any(one["split"] for one in results["methods"])


def _shares(one: Mapping[str, Any]) -> str:
    return "/".join(f"{100 * one['split'][part]:.0f}" for part in ("draft", "verify", "host")) if one["split"] else ""


def _told(results: Mapping[str, Any]) -> list[str]:
    """What the columns that not every record has stand for."""
    bound, lines = results.get("bandwidth"), []
    if bound:
        lines.append(
            f"Bound: plain decoding that reads {bound['weight_bytes'] / 1e6:.1f} MB of weights and its cache for each "
            f"token at {bound['bytes_per_second'] / 1e9:.1f} GB/s, measured in the same run: "
            f"{bound['tokens_per_second']:.0f} tokens/s."
        )
    if _traced(results):
        lines.append("Draft and verify: time in the models' forwards; host: all the rest (traced runs).")
    return lines


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
