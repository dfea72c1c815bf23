"""Whether a run of the profile `paper` measures what the papers do: models, dtype, texts, sampling, lengths, methods.

`wanted_of_the_papers` states what each table needs, from data/papers. What a run did is read from the headers of its
records, and from the amounts its notebooks noted (`Notebook.size`), which a rehearsal leaves undivided there.
`tools.rehearsal` calls it, so that a notebook with a wrong pair fails.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from dynatree_lib.models.pairs import PAIRS
from dynatree_suite.papers.published import Paper, published

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
    "pythia-70m": "EleutherAI/pythia-70m",
    "llama-68m": "JackFram/llama-68m",
    "llama3.2-1b-instruct": "meta-llama/Llama-3.2-1B-Instruct",
}
"""A model as the papers name it -> as the hub does."""


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
        methods: names or labels of methods that the records must have between them.
        amounts: words of an amount or setting -> what it must be in the profile `paper`.
        draft: as the papers name it; None where it is free.
        temperature, repeats: of every record.
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
    draft: str | None = None
    temperature: float = 0.0
    repeats: int = 1


def headers(out: Path, notebook: str, pattern: str) -> Iterator[tuple[str, dict[str, Any], set[str]]]:
    """Yield name, header's setup, and names and labels of the methods that ran, of records that match a pattern."""
    for path in sorted((out / "records" / notebook).glob("*.jsonl")):
        if not fnmatchcase(path.stem, pattern):
            continue
        lines = lines_of(path)
        setup = next((line["setup"] for line in lines if "setup" in line), None)
        if setup is not None:
            ran = {line.get("method") for line in lines if line.get("kind") == "run"}
            methods = (one for one in setup["methods"] if one.get("label", one["name"]) in ran)
            yield path.stem, setup, {one[key] for one in methods for key in ("name", "label") if key in one}


def lines_of(path: Path) -> list[dict[str, Any]]:
    """Return the objects of a JSONL file."""
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def unsound(out: Path, notebook: str) -> list[str]:
    """Return in sentences which runs of a notebook's records failed, and which of its checks."""
    told = []
    for path in sorted((out / "records" / notebook).glob("*.jsonl")):
        failed = [line for line in lines_of(path) if line.get("kind") == "failure"]
        told += [f"the record {path.stem}: {line.get('method')} failed: {line.get('error')}" for line in failed[:1]]
    summary = out / f"{notebook}.summary.json"
    claims = json.loads(summary.read_text(encoding="utf-8"))["claims"] if summary.is_file() else []
    checks = [claim for claim in claims if claim.get("must") and claim["holds"] is False]
    return [*told, *(f"the check '{claim['claim']}' fails: {claim['value']}" for claim in checks)]


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
        draft = (setup.get("draft") or {}).get("name")
        if wanted.draft and draft != HUB_NAMES[wanted.draft]:
            told.append(f"{where}: the record {name} has the draft {draft}, in the paper {wanted.draft}.")
        for key, here, value in (
            ("temperature", setup["sampling"]["temperature"], wanted.temperature),
            ("repeats", setup["repeats"], wanted.repeats),
        ):
            if here != value:
                told.append(f"{where}: the record {name} has {key} {here}, in the paper {value}.")
    methods = set().union(*(names for _, _, names in found))
    if missing := [method for method in wanted.methods if method not in methods]:
        told.append(f"{where}: no record has {', '.join(missing)}.")
    summary = json.loads((out / f"{wanted.notebook}.summary.json").read_text(encoding="utf-8"))
    noted = {row["what"]: row["paper"] for row in summary.get("sizes", [])}
    for what, value in (wanted.amounts or {}).items():
        if noted.get(what) != value:
            told.append(f"{where}: '{what}' is {noted.get(what, 'not noted')}, in the paper {value}.")
    return told


def values(rows: Sequence[Mapping[str, Any]], name: str, more: int = 0) -> str:
    """Return the values of a column as a notebook's amount has them: "4, 5, 6"."""
    return ", ".join(str(value + more) for value in sorted({row[name] for row in rows}))


def of(paper: Paper, name: str) -> Any:
    """Return what a paper's setup says."""
    return paper.setup[name]["value"]


def wanted_of_the_papers() -> list[Wanted]:
    """Return what the tables need that benchmarks measure; models, dtypes, lengths, methods are those of data/papers.

    Tables and figures from the same records as another one are left to that.
    """
    fixed, adaptive, ptd, traversal = map(published, ("dynatree-fixed", "dynatree-adaptive", "ptd", "traversal"))
    notebook = "10_dynatree_fixed"
    setup, draft = ((of(fixed, "target_model"),), of(fixed, "dtype")), {"draft": of(fixed, "draft_model")}
    names = {row["method"] for row in fixed.table(1).rows} - {"ar"} | {"hf-generate"}  # the paper's AR is generate
    length: Any = {"new tokens": str(of(fixed, "T"))}
    wanted = [
        Wanted(fixed.key, "Table 1", notebook, "main", *setup, "wikitext-2", sorted(names), length, **draft),
        Wanted(fixed.key, "Figure 3", notebook, "sweep", *setup, "wikitext-2", ["hf-generate", "fixed-tree"], **draft),
    ]
    setup, words = ((of(adaptive, "target_model"),), of(adaptive, "dtype")), "split validation"
    length, prompts = str(of(adaptive, "T")), str(of(adaptive, "prompts"))
    usual, warm = {"new tokens": length}, {"warm-up calls": str(of(adaptive, "warmup"))}
    names = sorted({row["method"] for row in adaptive.table(1).rows})
    main = usual | {"prompts of each data set": prompts, "untimed runs of each method": warm["warm-up calls"]}
    ablation = warm | {"new tokens to judge on": length, "prompts to judge on": prompts}
    lengths = warm | {"prompts to judge on": prompts}
    lengths["generation lengths"] = values(adaptive.figure(6).rows, "new_tokens")
    cut = {"new tokens behind cut prompts": length, "prompts to cut": prompts}
    cut["characters of a prompt"] = values(adaptive.figure(9).rows, "prompt_characters")
    memory = {"texts of Table 5": prompts, "new tokens of Table 5": length}
    timed = usual | warm | {"prompts to time the sweeps on": prompts}
    sweep = timed | {"depths of fixed trees": values(adaptive.figure(7).rows, "D", more=1)}
    sweep["children of fixed trees"] = values(adaptive.figure(7).rows, "B")
    for item, notebook, record, texts, methods, amounts in (
        ("Table 1", "11_dynatree_adaptive", "main-wikitext-2", words, names, main),
        ("Table 1", "11_dynatree_adaptive", "main-pg-19", "pg19", names, main),
        ("Table 4", "12_dynatree_ablation", "main", words, names, ablation),
        ("Table 5", "13_dynatree_scaling", "memory-wikitext-2", words, ["adaptive-tree"], memory),
        ("Table 5", "13_dynatree_scaling", "memory-pg-19", "pg19", ["adaptive-tree"], memory),
        ("Figure 6", "13_dynatree_scaling", "lengths", words, names, lengths),
        ("Figure 9", "13_dynatree_scaling", "prompts-*", words, names, cut),
        ("Figure 7", "14_dynatree_sensitivity", "fixed", words, ["fixed-tree"], sweep),
        ("Figure 8", "14_dynatree_sensitivity", "adaptive", words, ["adaptive-tree"], timed),
    ):
        wanted.append(Wanted(adaptive.key, item, notebook, record, *setup, texts, methods, amounts, **draft))
    names = sorted({row["method"] for number in (1, 3) for row in ptd.table(number).rows})
    for data, models in of(ptd, "models_per_benchmark").items():
        for item, kind, warmth in (("Table 1", "sampled", of(ptd, "sampling_temperature")), ("Table 3", "greedy", 0.0)):
            record = f"{kind}-{data}-*"
            wanted.append(
                Wanted(ptd.key, item, "20_ptd", record, models, of(ptd, "dtype"), data, names, temperature=warmth)
            )
            llamas = [model for model in models if "llama" in model]  # the paper's draft has their tokenizer
            one = replace(wanted[-1], records=f"{record}llama*", targets=llamas, draft=of(ptd, "spede_draft_model"))
            wanted.append(one)
    each = {"prompts of each task": str(of(traversal, "dataset")["instances_per_task"])}
    sampled = {"temperature": of(traversal, "temperature"), "repeats": of(traversal, "repeats")}
    for number, pair in zip((2, 3), of(traversal, "model_pairs"), strict=True):
        about = f"Table {number}", "30_traversal", f"seeds-{number - 1}", (pair["target"],), None, "spec-bench"
        wanted.append(Wanted(traversal.key, *about, ["sampled-tree"], each, draft=pair["draft"], **sampled))
    return wanted


def targets_loaded() -> dict[str, tuple[str, ...]]:
    """Return the targets that notebooks have to load whose tables come from no benchmark, as the papers name them."""
    ptd, traversal = published("ptd"), published("traversal")
    return {
        "21_ptd_analysis": ("llama2-7b-chat",),
        "22_ptd_quality": tuple(of(ptd, "target_models")),
        "31_traversal_depth_and_temperature": (of(traversal, "model_pairs")[0]["target"],),
    }


def not_loaded(notebook: str, sources: Iterable[str]) -> list[str]:
    """Return in sentences which of its paper's targets a notebook did not load from these sources."""
    given = [*sources]
    wanted = targets_loaded().get(notebook, ())
    return [
        f"{notebook}: {target} was not loaded."
        for target in wanted
        if not any(source.endswith(HUB_NAMES[target]) for source in given)
    ]
