"""Whether a run of the profile `paper` measures what the papers do: models, dtype, texts, lengths, methods.

`wanted_of_the_papers` states what each table needs, from data/papers. What a run did is read from the headers of its
records, and from the amounts its notebooks noted (`Notebook.size`), which a rehearsal leaves undivided there.
`tools.rehearsal` calls it, so that a notebook with a wrong pair fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dynatree_lib.models.pairs import PAIRS

HUB_NAMES = {
    "pythia-2.8b": "EleutherAI/pythia-2.8b",
    "llama2-7b": "meta-llama/Llama-2-7b-hf",
    "llama2-7b-chat": "meta-llama/Llama-2-7b-chat-hf",
    "llama2-13b-chat": "meta-llama/Llama-2-13b-chat-hf",
    "qwen2.5-7b-instruct": "Qwen/Qwen2.5-7B-Instruct",
    "qwen2.5-14b-instruct": "Qwen/Qwen2.5-14B-Instruct",
    "qwen2.5-32b-instruct": "Qwen/Qwen2.5-32B-Instruct",
    "codellama-7b-instruct": "codellama/CodeLlama-7b-Instruct-hf",
    "codellama-13b-instruct": "codellama/CodeLlama-13b-Instruct-hf",
    "llama3.1-8b-instruct": "meta-llama/Llama-3.1-8B-Instruct",
}
"""A target as the papers name it -> as the hub does."""


@dataclass(frozen=True)
class Wanted:
    """What a table needs of the records of a notebook.

    Attributes:
        paper, item: whose table or figure it is.
        notebook: that shows it.
        records: pattern of the records' names, without the suffix.
        targets: as the papers name them; each must be in some record.
        dtype: of the weights; None where the paper does not say.
        texts: a word that the records' sentence on their prompts must have, "" for any.
        methods: method names that the records must have between them.
        amounts: words of an amount or setting -> what it must be in the profile `paper`.
    """

    paper: str
    item: str
    notebook: str
    records: str
    targets: Sequence[str]
    dtype: str | None
    texts: str = ""
    methods: Sequence[str] = ()
    amounts: Mapping[str, str] | None = None


def headers(out: Path, notebook: str, pattern: str) -> Iterator[tuple[str, dict[str, Any], set[str]]]:
    """Yield name, header's setup and methods of the records of a notebook that match a pattern."""
    for path in sorted((out / "records" / notebook).glob("*.jsonl")):
        if not fnmatchcase(path.stem, pattern):
            continue
        lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]
        setup = next((line["setup"] for line in lines if "setup" in line), None)
        if setup is not None:
            yield path.stem, setup, {method["name"] for method in setup["methods"]}


def problems(wanted: Wanted, out: Path) -> list[str]:
    """Return in sentences in what the records under `out` are not what a table wants; empty where they are."""
    where = f"{wanted.paper}, {wanted.item} ({wanted.notebook})"
    found = [*headers(out, wanted.notebook, wanted.records)]
    if not found:
        return [f"{where}: there is no record '{wanted.records}'."]
    told = []
    targets = {setup["pair"] for _, setup, _ in found}
    ours = {name: PAIRS[name].target if name in PAIRS else name.partition(" + ")[0] for name in targets}
    for target in wanted.targets:
        if HUB_NAMES[target] not in ours.values():
            told.append(f"{where}: no record has the target {target}; they have {', '.join(sorted(targets))}.")
    for name, setup, _ in found:
        if ours[setup["pair"]] not in {HUB_NAMES[target] for target in wanted.targets}:
            told.append(f"{where}: the record {name} has the pair {setup['pair']}.")
        if wanted.dtype and setup["dtype"] != wanted.dtype:
            told.append(f"{where}: the record {name} is in {setup['dtype']}, the paper in {wanted.dtype}.")
        if wanted.texts not in setup["workload"]:
            told.append(f"{where}: the record {name} was decoded on '{setup['workload']}', not on {wanted.texts}.")
    methods = set().union(*(names for _, _, names in found))
    if missing := [method for method in wanted.methods if method not in methods]:
        told.append(f"{where}: no record has {', '.join(missing)}.")
    summary = json.loads((out / f"{wanted.notebook}.summary.json").read_text(encoding="utf-8"))
    noted = {row["what"]: row["paper"] for row in summary.get("sizes", [])}
    for what, value in (wanted.amounts or {}).items():
        if noted.get(what) != value:
            told.append(f"{where}: '{what}' is {noted.get(what, 'not noted')}, in the paper {value}.")
    return told


def wanted_of_the_papers() -> list[Wanted]:
    """Return what every table needs that is measured; models, dtype, lengths and methods are those of data/papers."""
    return []
