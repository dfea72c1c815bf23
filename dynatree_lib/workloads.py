"""The papers' prompts: from the Hugging Face hub, from a local folder, or the prompts written for this project.

`load_workload` never replaces one source by another: where the asked one is missing it raises `WorkloadError`, which
names the folder layout that would serve and the bundled prompts that need neither network nor files. What is measured
on the prompts belongs to `bench`; how the tiny pair's training text is read belongs to `training`.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from .paths import data_path

FOLDER_VARIABLE = "DYNATREE_DATA"
BUNDLED_TASKS = ("code", "encyclopedia", "novel", "math", "chat", "translation", "summarization", "qa", "rag")
SPEC_BENCH_TASKS = ("multi_turn", "translation", "summarization", "qa", "math_reasoning", "rag")
TINY_PAIR_TRAINING_BOOKS = ("16215",)  # the PG-19 book the tiny pair was trained on; 14263 is held out

Row = dict[str, Any]


class WorkloadError(RuntimeError):
    """A workload that cannot be loaded from the place that was asked for."""


@dataclass(frozen=True)
class Prompt:
    """One prompt: `turns` are what the user says, in order; most workloads have one turn."""

    id: str
    task: str
    turns: tuple[str, ...]
    reference: str = ""  # reference output where the data set has one

    @property
    def text(self) -> str:
        """The first turn."""
        return self.turns[0]

    @property
    def sha256(self) -> str:
        """Of all turns, separated by NUL; hexadecimal."""
        return hashlib.sha256("\0".join(self.turns).encode()).hexdigest()


@dataclass(frozen=True)
class Workload:
    """Prompts and one sentence on where they come from, for a figure's caption."""

    name: str
    source: str
    prompts: tuple[Prompt, ...]
    bundled: bool = False  # written for this project: never trained on, and not the papers' data

    @property
    def ids(self) -> tuple[str, ...]:
        """Prompt ids in order: with a random subset, the record of what was drawn."""
        return tuple(prompt.id for prompt in self.prompts)

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[Prompt]:
        return iter(self.prompts)


# ---------------------------------------------------------------------------------------------- rows to prompts
@dataclass(frozen=True)
class _Options:
    split: str
    max_characters: int
    books: tuple[str, ...] | None
    passages_per_book: int


def _wikitext(rows: Iterator[Row], options: _Options) -> Iterator[Prompt]:
    """Sections of at least 200 characters, headings left out, cut at max_characters (DynaTree, 4.1 and its code)."""
    lines = (line for row in rows for line in row["text"].splitlines() or [""])
    section: list[str] = []
    count = 0
    for line in [*lines, ""]:
        heading = line.strip().startswith("=") and line.strip().endswith("=")
        if line.strip() and not heading:
            section.append(line)
            continue
        text = "\n".join(section).strip()
        section = []
        if len(text) >= 200:
            yield Prompt(f"{options.split}-{count}", "encyclopedia", (text[: options.max_characters].rstrip(),))
            count += 1


def _pg19(rows: Iterator[Row], options: _Options) -> Iterator[Prompt]:
    """Passages spread over each book, the first of every book before the second of any."""
    wanted = options.books
    by_book = []
    for row in rows:
        book = str(row.get("id") or row["url"].rstrip("/").rpartition("/")[2])
        if book in wanted if wanted is not None else book not in TINY_PAIR_TRAINING_BOOKS:
            passages = _passages(row["text"], options)
            by_book.append([Prompt(f"{book}@{start}", "novel", (text,)) for start, text in passages])
    for number in range(max(map(len, by_book), default=0)):
        yield from (passages[number] for passages in by_book if number < len(passages))


def _passages(book: str, options: _Options) -> list[tuple[int, str]]:
    """(offset, text) of up to passages_per_book passages that begin at a paragraph of 200 characters or more."""
    book = book.replace("\r\n", "\n")
    begin = re.search(r"\*\*\* ?START OF.*\n", book)
    end = re.search(r"\*\*\* ?END OF", book)
    body = book[begin.end() if begin else 0 : end.start() if end else len(book)]
    paragraphs = re.finditer(r"(?<=\n\n)(?=[^\s\[*])(?:(?!\n\n).){200}", body, re.DOTALL)
    starts = [match.start() for match in paragraphs if "   " not in match.group()]  # columns are a table of contents
    starts = [start for start in starts if start + options.max_characters <= len(body)]
    count = min(options.passages_per_book, len(starts))
    chosen = [starts[position * len(starts) // count] for position in range(count)]
    return [(start, body[start : start + options.max_characters].rstrip()) for start in chosen]


def _gsm8k(rows: Iterator[Row], options: _Options) -> Iterator[Prompt]:
    for number, row in enumerate(rows):
        yield Prompt(f"{options.split}-{number}", "math", (f"Question: {row['question']}\nAnswer:",), row["answer"])


def _humaneval(rows: Iterator[Row], options: _Options) -> Iterator[Prompt]:
    for row in rows:
        yield Prompt(row["task_id"], "code", (row["prompt"],), row["canonical_solution"])


def _mbpp(rows: Iterator[Row], options: _Options) -> Iterator[Prompt]:
    """The task and its tests as a docstring: base and instruction models both continue it with code."""
    for row in rows:
        if 11 <= row["task_id"] <= 510:  # the test split, by the data set's card
            text = "\n".join(['"""', row["text"], *row["test_list"], '"""', ""])
            yield Prompt(f"mbpp/{row['task_id']}", "code", (text,), row["code"].replace("\r\n", "\n"))


def _spec_bench(rows: Iterator[Row], options: _Options, only: tuple[str, ...] = SPEC_BENCH_TASKS) -> Iterator[Prompt]:
    """Spec-Bench question.jsonl; MT-Bench's eight categories are its task multi_turn."""
    for row in rows:
        task = row["category"] if row["category"] in SPEC_BENCH_TASKS else "multi_turn"
        if task in only:
            reference = row.get("reference") or ""  # a string, or lists of strings with one entry per turn or model
            text = reference if isinstance(reference, str) else json.dumps(reference, ensure_ascii=False)
            yield Prompt(str(row["question_id"]), task, tuple(row["turns"]), text)


def _mt_bench(rows: Iterator[Row], options: _Options) -> Iterator[Prompt]:
    """MT-Bench with both turns, task = category, from Spec-Bench's file or from the hub's columns."""
    for row in rows:
        if row["category"] not in SPEC_BENCH_TASKS:
            turns = row.get("turns") or row["prompt"]
            yield Prompt(str(row.get("question_id") or row["prompt_id"]), row["category"], tuple(turns))


# ---------------------------------------------------------------------------------------------- where data sets lie
@dataclass(frozen=True)
class DataSet:
    """Where one data set lies and how its rows become prompts. File patterns may use {split}."""

    folder: str  # below the parent folder
    files: tuple[str, ...]  # accepted in the folder, the first that exists is read
    hub: str  # empty: no plain hub data set
    prompts: Callable[[Iterator[Row], _Options], Iterator[Prompt]]
    config: str | None = None
    hub_split: str = "{split}"
    hub_files: str | None = None  # keeps the hub from fetching every split of a large data set
    bundled_task: str = ""  # the bundled prompts of the same kind
    max_characters: int = 0  # passages are cut here (DynaTree's L_max counts characters); 0: prompts are whole
    splits: tuple[str, ...] = ("test",)


_PARQUET = ("{split}.jsonl", "{split}.parquet", "{split}-*.parquet", "*/{split}-*.parquet")
_SPLITS = ("test", "validation", "train")
_SPEC_BENCH = DataSet("spec_bench", ("question.jsonl",), "", _spec_bench, bundled_task="chat")
_SPEC_BENCH_BUNDLED = ("chat", "translation", "summarization", "qa", "math", "rag")
DATA_SETS: dict[str, DataSet] = {
    "wikitext-2": DataSet(
        "wikitext-2-raw",
        ("wiki.{split}.raw", *_PARQUET),
        "Salesforce/wikitext",
        _wikitext,
        "wikitext-2-raw-v1",
        bundled_task="encyclopedia",
        max_characters=800,
        splits=_SPLITS,
    ),
    "pg-19": DataSet(
        "pg19",
        ("*.txt", *_PARQUET),
        "emozilla/pg19",
        _pg19,
        hub_files="data/{split}-*",
        bundled_task="novel",
        max_characters=1000,
        splits=_SPLITS,
    ),
    "gsm8k": DataSet("gsm8k", _PARQUET, "openai/gsm8k", _gsm8k, "main", bundled_task="math", splits=("test", "train")),
    "humaneval": DataSet(
        "human_eval", ("HumanEval.jsonl", *_PARQUET), "openai/openai_humaneval", _humaneval, bundled_task="code"
    ),
    "mbpp": DataSet(
        "mbpp", ("mbpp.jsonl", *_PARQUET), "google-research-datasets/mbpp", _mbpp, "full", bundled_task="code"
    ),
    "mt-bench": DataSet(
        "spec_bench",
        ("question.jsonl", "train-*.parquet", "*/train-*.parquet"),
        "HuggingFaceH4/mt_bench_prompts",
        _mt_bench,
        hub_split="train",
        bundled_task="chat",
    ),
    "spec-bench": _SPEC_BENCH,
    **{
        f"spec-bench/{task}": replace(_SPEC_BENCH, prompts=partial(_spec_bench, only=(task,)), bundled_task=bundled)
        for task, bundled in zip(SPEC_BENCH_TASKS, _SPEC_BENCH_BUNDLED, strict=True)
    },
}
SUBSETS = {"gsm-100": ("gsm8k", 100), "mbpp-100": ("mbpp", 100)}  # seeded random subsets (PTD, Section 4.1)
WORKLOADS = (*DATA_SETS, *SUBSETS, "bundled", *(f"bundled/{task}" for task in BUNDLED_TASKS))


def load_workload(
    name: str,
    *,
    limit: int | None = None,
    sample: int | None = None,
    seed: int = 0,
    source: str | os.PathLike[str] = "auto",
    split: str = "test",
    max_characters: int | None = None,
    max_tokens: int | None = None,
    tokenizer: Any = None,
    books: Sequence[str | int] | None = None,
    passages_per_book: int = 20,
) -> Workload:
    """Load one of `WORKLOADS`.

    source: "auto" (the parent folder named by the environment variable DYNATREE_DATA if it is set, else the hub),
        "hub", "bundled" (this project's prompts of the same kind), or a folder: the data set's own or the parent of
        several.
    limit: at most this many prompts, the first of each task in turn. sample: a seeded random subset of this size.
    max_characters: where WikiText-2 and PG-19 passages are cut (default 800 and 1,000); elsewhere longer prompts are
        left out. max_tokens: leave out prompts with a turn of more tokens under `tokenizer`.
    books: Gutenberg numbers for PG-19; by default all but the one the tiny pair was trained on.

    Raises WorkloadError where the source is missing or leaves no prompt, ValueError for a bad argument.
    """
    if name not in WORKLOADS:
        raise ValueError(f"There is no workload {name!r}; the workloads are {', '.join(WORKLOADS)}.")
    _check_counts(
        limit=limit,
        sample=sample,
        max_characters=max_characters,
        max_tokens=max_tokens,
        passages_per_book=passages_per_book,
    )
    if max_tokens is not None and tokenizer is None:
        raise ValueError(f"max_tokens={max_tokens} needs tokenizer=: a prompt has tokens only under a tokenizer.")
    base, subset = SUBSETS.get(name, (name, None))
    if name.startswith("bundled") or source == "bundled":
        label, origin, prompts = _bundled(base)
    else:
        data_set, label = DATA_SETS[base], name
        if split not in data_set.splits:
            raise ValueError(f"The workload {name!r} has no split {split!r}; it has {', '.join(data_set.splits)}.")
        chosen_books = None if books is None else tuple(map(str, books))
        options = _Options(split, max_characters or data_set.max_characters, chosen_books, passages_per_book)
        rows, origin = _rows(base, data_set, split, source)
        prompts = list(data_set.prompts(rows, options))
        if data_set.max_characters:
            origin += f", passages cut at {options.max_characters} characters"
            max_characters = None  # the passages are cut already
        if base == "pg-19":
            origin += f", books {', '.join(dict.fromkeys(prompt.id.partition('@')[0] for prompt in prompts))}"
    prompts, notes = _select(prompts, sample or subset, seed, max_characters, max_tokens, tokenizer)
    prompts = _spread(prompts, limit)
    if not prompts:
        raise WorkloadError(
            f"The workload {name!r} ({origin}) has no prompt left ({', '.join(notes) or 'no record matched'}); "
            f"loosen split, books, max_characters or max_tokens."
        )
    sentence = f"{len(prompts)} prompts of {label}: {'; '.join([origin, *notes])}."
    return Workload(label, sentence, tuple(prompts), bundled=label.startswith("bundled"))


def join_workloads(workloads: Sequence[Workload]) -> Workload:
    """Several workloads as one, one after another; their sources in one sentence each.

    Where two have a prompt of the same id, ids get their workload's name in front.
    """
    prompts = tuple(prompt for one in workloads for prompt in one.prompts)
    if len({prompt.id for prompt in prompts}) < len(prompts):
        prompts = tuple(replace(prompt, id=f"{one.name}:{prompt.id}") for one in workloads for prompt in one.prompts)
    sources = " ".join(one.source for one in workloads)
    return Workload(" + ".join(one.name for one in workloads), sources, prompts, all(one.bundled for one in workloads))


def _check_counts(**counts: int | None) -> None:
    for argument, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"{argument} is {value}; it must be at least 1, or None for no restriction.")


def _select(
    prompts: list[Prompt],
    sample: int | None,
    seed: int,
    max_characters: int | None,
    max_tokens: int | None,
    tokenizer: Any,
) -> tuple[list[Prompt], list[str]]:
    """Leave out what is too long, then draw the random subset; the notes say both."""
    notes = []
    kept = [p for p in prompts if max_characters is None or max(map(len, p.turns)) <= max_characters]
    if max_tokens is not None:
        kept = [p for p in kept if max(len(tokenizer(turn)["input_ids"]) for turn in p.turns) <= max_tokens]
    if len(kept) < len(prompts):
        notes.append(f"{len(prompts) - len(kept)} longer prompts left out")
    if sample is not None:
        if sample > len(kept):
            raise WorkloadError(f"A random subset of {sample} was asked for, but only {len(kept)} prompts are there.")
        chosen = sorted(random.Random(seed).sample(range(len(kept)), sample))
        kept = [kept[index] for index in chosen]
        notes.append(f"a random subset of {sample} with seed {seed}")
    return kept, notes


def _spread(prompts: list[Prompt], limit: int | None) -> list[Prompt]:
    """The first `limit` prompts taken from each task in turn, so that a short run sees every task."""
    if limit is None or limit >= len(prompts):
        return prompts
    tasks: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        tasks.setdefault(prompt.task, []).append(prompt)
    longest = max(map(len, tasks.values()))
    turns = [queue[number] for number in range(longest) for queue in tasks.values() if number < len(queue)]
    return turns[:limit]


# ---------------------------------------------------------------------------------------------- the three sources
def _bundled(name: str) -> tuple[str, str, list[Prompt]]:
    """The project's prompts under that name, or of the kind that stands in for that data set."""
    if not name.startswith("bundled"):
        name = "bundled" if name == "spec-bench" else f"bundled/{DATA_SETS[name].bundled_task}"
    tasks = BUNDLED_TASKS if name == "bundled" else (name.partition("/")[2],)
    prompts = [
        Prompt(row["id"], row["task"], tuple(row.get("turns") or (row["text"],)))
        for task in tasks
        for row in _read_jsonl(data_path("prompts", f"{task}.jsonl"))
    ]
    return name, "written for this project, held out from training", prompts


def _rows(name: str, data_set: DataSet, split: str, source: str | os.PathLike[str]) -> tuple[Iterator[Row], str]:
    """The data set's rows, and where they came from."""
    if source == "auto":
        source = os.environ.get(FOLDER_VARIABLE) or "hub"
    if source == "hub":
        return _hub_rows(name, data_set, split), f"{data_set.hub} from the Hugging Face hub, split {split}"
    files = _local_files(name, data_set, split, Path(source))
    rows = (row for file in files for row in _read(file))
    return rows, f"local folder {data_set.folder}, {', '.join(file.name for file in files)}"


def _way_out(data_set: DataSet, split: str) -> str:
    layout = " or ".join(f"{data_set.folder}/{pattern.format(split=split)}" for pattern in data_set.files)
    return (
        f"A local folder that holds {layout} would serve: pass it as source=, or name it in the environment variable "
        f"{FOLDER_VARIABLE}. Without any of it, 'bundled/{data_set.bundled_task}' has prompts of the same kind that "
        f"were written for this project (not the paper's data)."
    )


def _local_files(name: str, data_set: DataSet, split: str, folder: Path) -> list[Path]:
    """Files of the first accepted pattern, in `folder/<data set>` or in `folder` itself."""
    if folder.is_file():
        return [folder]
    raw_split = {"validation": "valid"}.get(split, split)  # wiki.valid.raw
    for pattern in data_set.files:
        for place in (folder / data_set.folder, folder):
            split_name = raw_split if pattern.endswith(".raw") else split
            found = sorted(file for file in place.glob(pattern.format(split=split_name)) if file.is_file())
            if found:
                return found
    raise WorkloadError(
        f"The workload {name!r} was looked for in {folder}, which has none of its files. {_way_out(data_set, split)}"
    )


def _read(file: Path) -> Iterator[Row]:
    if file.suffix == ".jsonl":
        return _read_jsonl(file)
    if file.suffix == ".parquet":
        from pyarrow import parquet  # type: ignore[import-untyped]  # comes with datasets; the core does without

        return iter(parquet.read_table(file).to_pylist())
    return iter([{"id": file.stem, "text": file.read_text(encoding="utf-8")}])


def _read_jsonl(file: Path) -> Iterator[Row]:
    for number, line in enumerate(file.read_text(encoding="utf-8").split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise WorkloadError(f"Line {number} of {file} is not JSON ({error}); fetch the file again.") from error


def _hub_rows(name: str, data_set: DataSet, split: str) -> Iterator[Row]:
    if not data_set.hub:
        raise WorkloadError(
            f"The workload {name!r} has no plain data set on the hub: its question.jsonl is in the Spec-Bench "
            f"repository (data/spec_bench). {_way_out(data_set, split)}"
        )
    hub_split = data_set.hub_split.format(split=split)
    files = {hub_split: data_set.hub_files.format(split=hub_split)} if data_set.hub_files else None
    try:
        import datasets

        rows = datasets.load_dataset(data_set.hub, data_set.config, split=hub_split, data_files=files)
    except Exception as error:  # datasets, its file systems and HTTP clients share no base class for 'not reachable'
        raise WorkloadError(
            f"The workload {name!r} was asked for as {data_set.hub} (split {hub_split}) on the Hugging Face hub "
            f"through the package datasets, which failed: {type(error).__name__}: {error}. {_way_out(data_set, split)}"
        ) from error
    return iter(rows)


# ---------------------------------------------------------------------------------------------- chat templates
def render(turns: str | Sequence[str], tokenizer: Any, replies: Sequence[str] = ()) -> str:
    """Prompt text up to the reply to turn `len(replies)`, under the tokenizer's chat template if it has one.

    Without a template, turns and replies are joined by blank lines; a single turn is returned as it is. A template
    writes its own special tokens, so tokenize its result with add_special_tokens=False.
    Raises ValueError if there is no turn left to reply to.
    """
    turns = [turns] if isinstance(turns, str) else list(turns)
    if len(replies) >= len(turns):
        raise ValueError(
            f"There are {len(replies)} replies for {len(turns)} turns; pass at most {len(turns) - 1}, so that a turn "
            f"is still to be answered."
        )
    if not getattr(tokenizer, "chat_template", None):
        pairs = [part for pair in zip(turns, replies, strict=False) for part in pair]
        return "\n\n".join([*pairs, turns[len(replies)]])
    messages = []
    for turn, reply in zip(turns, replies, strict=False):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": reply}]
    messages.append({"role": "user", "content": turns[len(replies)]})
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text
