"""Fill the tables of a Markdown file from the records of `dynatree bench`.

    python3 -m tools.fill_tables docs/results.md

A table stands between `<!-- table: FILE -->` and `<!-- end of table -->`, FILE being the JSON of `dynatree bench`;
`<!-- table: FILE | METHOD; METHOD -->` shows some methods only. A test compares table and record, so that the text
cannot drift from the record.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from dynatree_lib.measure.grids import text
from dynatree_lib.measure.methods import METHODS
from dynatree_lib.measure.tables import Method, bound_sentence, method_table, sampling_text

DOCS = (
    "tokens/s", "x hf-generate", "x ar", "x ar-fast", "x bound", "tokens/iteration", "iteration cost",
    "draft/verify/host %", "identical", "HR", "AL", "Dft/Ver",
)  # fmt: skip
"""Columns of a table in the docs; the console has all of `tables.columns`."""


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
