"""The papers' prompts: downloaded by the names of data sets, from a local folder, or written for this project.

`load_workload` never replaces a source by another: where the source is missing it raises `WorkloadError`, which names
the folder layout that would serve and the bundled prompts that need neither network nor files. `read_rows` is the one
reader of data sets, for `training` as well. What is measured on the prompts belongs to `measure`.
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
from http.client import HTTPException
from itertools import compress, groupby, islice, zip_longest
from pathlib import Path
from typing import Any
from urllib.request import urlopen

from dynatree_lib.paths import cache_folder, data_path

from ..files import whole_file

FOLDER_VARIABLE = "DYNATREE_DATA"
BUNDLED_TASKS = ("code", "encyclopedia", "novel", "math", "chat", "translation", "summarization", "qa", "rag")
SPEC_BENCH_TASKS = ("multi_turn", "translation", "summarization", "qa", "math_reasoning", "rag")
TINY_PAIR_TRAINING_BOOKS = ("16215",)  # the PG-19 book the tiny pair was trained on; 14263 is held out
PASSAGES_PER_BOOK = 20
PATIENCE = 20.0
"""Seconds to wait for an answer of an address."""

Row = dict[str, Any]


class WorkloadError(RuntimeError):
    """A workload that cannot be loaded from its source."""


@dataclass(frozen=True)
class WorkloadPrompt:
    """A prompt: `turns` are the user's messages in order; most workloads have one turn."""

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
        """Hash of all turns, separated by NUL; hexadecimal."""
        return hashlib.sha256("\0".join(self.turns).encode()).hexdigest()


@dataclass(frozen=True)
class Workload:
    """Prompts, and a sentence on where they come from for a figure's caption."""

    name: str
    source: str
    prompts: tuple[WorkloadPrompt, ...]
    bundled: bool = False  # written for this project: never trained on, and not the papers' data

    @property
    def ids(self) -> tuple[str, ...]:
        """Prompt ids in order; they record which prompts a random subset holds."""
        return tuple(prompt.id for prompt in self.prompts)

    def __len__(self) -> int:
        return len(self.prompts)

    def __iter__(self) -> Iterator[WorkloadPrompt]:
        return iter(self.prompts)


# ---------------------------------------------------------------------------------------------- rows to prompts
@dataclass(frozen=True)
class _Options:
    split: str
    max_characters: int


def _wikitext(rows: Iterator[Row], options: _Options) -> Iterator[WorkloadPrompt]:
    """Sections of at least 200 characters, headings left out, cut at max_characters (DynaTree, 4.1 and its code)."""

    def in_section(line: str) -> bool:
        text = line.strip()
        return text != "" and not (text.startswith("=") and text.endswith("="))

    lines = (line for row in rows for line in row["text"].splitlines() or [""])
    sections = ("\n".join(group).strip() for inside, group in groupby(lines, in_section) if inside)
    for count, section in enumerate(section for section in sections if len(section) >= 200):
        yield WorkloadPrompt(f"{options.split}-{count}", "encyclopedia", (section[: options.max_characters].rstrip(),))


def _pg19(rows: Iterator[Row], options: _Options) -> Iterator[WorkloadPrompt]:
    """Passages spread over each book but the training book, the first of every book before the second of any."""
    by_book = {
        book: _passages(row["text"], options)
        for row in rows
        if (book := book_number(row)) not in TINY_PAIR_TRAINING_BOOKS
    }
    for number in range(PASSAGES_PER_BOOK):
        for book, passages in by_book.items():
            for start, text in passages[number : number + 1]:
                yield WorkloadPrompt(f"{book}@{start}", "novel", (text,))


def book_number(row: Row) -> str:
    """Return the Gutenberg number of a row of PG-19: a text file's stem, or the end of the hub's column `url`."""
    return str(row.get("id") or row["url"].rstrip("/").rpartition("/")[2])


def _passages(book: str, options: _Options) -> list[tuple[int, str]]:
    """(offset, text) of up to PASSAGES_PER_BOOK passages that begin at a paragraph of 200 characters or more."""
    book = book.replace("\r\n", "\n")
    begin = re.search(r"\*\*\* ?START OF.*\n", book)
    end = re.search(r"\*\*\* ?END OF", book)
    body = book[begin.end() if begin else 0 : end.start() if end else len(book)]
    paragraphs = re.finditer(r"(?<=\n\n)(?=[^\s\[*])(?:(?!\n\n).){200}", body, re.DOTALL)
    starts = [match.start() for match in paragraphs if "   " not in match.group()]  # columns are a table of contents
    starts = [start for start in starts if start + options.max_characters <= len(body)]
    count = min(PASSAGES_PER_BOOK, len(starts))
    chosen = [starts[position * len(starts) // count] for position in range(count)]
    return [(start, body[start : start + options.max_characters].rstrip()) for start in chosen]


def _gsm8k(rows: Iterator[Row], options: _Options) -> Iterator[WorkloadPrompt]:
    for number, row in enumerate(rows):
        yield WorkloadPrompt(
            f"{options.split}-{number}", "math", (f"Question: {row['question']}\nAnswer:",), row["answer"]
        )


def _humaneval(rows: Iterator[Row], options: _Options) -> Iterator[WorkloadPrompt]:
    for row in rows:
        yield WorkloadPrompt(row["task_id"], "code", (row["prompt"],), row["canonical_solution"])


def _mbpp(rows: Iterator[Row], options: _Options) -> Iterator[WorkloadPrompt]:
    """The task and its tests as a docstring: base and instruction models both continue it with code."""
    for row in rows:
        if 11 <= row["task_id"] <= 510:  # the test split, by the data set's card
            text = "\n".join(['"""', row["text"], *row["test_list"], '"""', ""])
            yield WorkloadPrompt(f"mbpp/{row['task_id']}", "code", (text,), row["code"].replace("\r\n", "\n"))


def _spec_bench(
    rows: Iterator[Row], options: _Options, only: tuple[str, ...] = SPEC_BENCH_TASKS, categories: bool = False
) -> Iterator[WorkloadPrompt]:
    """Spec-Bench question.jsonl; MT-Bench's eight categories are its task multi_turn, or a task each."""
    for row in rows:
        category = row["category"]
        task = category if categories or category in SPEC_BENCH_TASKS else "multi_turn"
        if categories or task in only:
            reference = row.get("reference") or ""  # a string, or lists of strings with one entry per turn or model
            text = reference if isinstance(reference, str) else json.dumps(reference, ensure_ascii=False)
            yield WorkloadPrompt(str(row["question_id"]), task, tuple(row["turns"]), text)


def _mt_bench(rows: Iterator[Row], options: _Options) -> Iterator[WorkloadPrompt]:
    """MT-Bench with both turns, task = category, from Spec-Bench's file or from the hub's columns."""
    for row in rows:
        if row["category"] not in SPEC_BENCH_TASKS:
            turns = row.get("turns") or row["prompt"]
            yield WorkloadPrompt(str(row.get("question_id") or row["prompt_id"]), row["category"], tuple(turns))


# ---------------------------------------------------------------------------------------------- where data sets lie
@dataclass(frozen=True)
class DataSet:
    """Where one data set lies and how its rows become prompts. File patterns may use {split}."""

    folder: str  # below the parent folder
    files: tuple[str, ...]  # accepted in the folder, the first that exists is read
    hub: str  # name on the hub; empty where the hub has no plain data set
    prompts: Callable[[Iterator[Row], _Options], Iterator[WorkloadPrompt]]
    config: str | None = None
    hub_split: str = "{split}"
    hub_files: str | None = None  # keeps the hub from fetching every split of a large data set
    bundled_task: str = ""  # the bundled prompts of the same kind
    max_characters: int = 0  # passages are cut here (DynaTree's L_max counts characters); 0: prompts are whole
    splits: tuple[str, ...] = ("test",)
    address: str = ""  # of a JSONL file, for a data set that is not on the hub


_PARQUET = ("{split}.jsonl", "{split}.parquet", "{split}-*.parquet", "*/{split}-*.parquet")
_SPLITS = ("test", "validation", "train")
_SPEC_BENCH = DataSet(
    "spec_bench", ("question.jsonl",), "", _spec_bench, bundled_task="chat",
    address="https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl",
)  # fmt: skip
_SPEC_BENCH_BUNDLED = ("chat", "translation", "summarization", "qa", "math", "rag")
DATA_SETS: dict[str, DataSet] = {
    "wikitext-2": DataSet(
        "wikitext-2-raw", ("wiki.{split}.raw", *_PARQUET), "Salesforce/wikitext", _wikitext, "wikitext-2-raw-v1",
        bundled_task="encyclopedia", max_characters=800, splits=_SPLITS,
    ),
    "pg-19": DataSet(
        "pg19", ("*.txt", *_PARQUET), "emozilla/pg19", _pg19, hub_files="data/{split}-*",
        bundled_task="novel", max_characters=1000, splits=_SPLITS,
    ),
    "gsm8k": DataSet("gsm8k", _PARQUET, "openai/gsm8k", _gsm8k, "main", bundled_task="math", splits=("test", "train")),
    "humaneval": DataSet(
        "human_eval", ("HumanEval.jsonl", *_PARQUET), "openai/openai_humaneval", _humaneval, bundled_task="code"
    ),
    "mbpp": DataSet(
        "mbpp", ("mbpp.jsonl", *_PARQUET), "google-research-datasets/mbpp", _mbpp, "full", bundled_task="code"
    ),
    "mt-bench": DataSet(
        "spec_bench", ("question.jsonl", "train-*.parquet", "*/train-*.parquet"), "HuggingFaceH4/mt_bench_prompts",
        _mt_bench, hub_split="train", bundled_task="chat",
    ),
    "spec-bench": _SPEC_BENCH,
    "spec-bench/categories": replace(_SPEC_BENCH, prompts=partial(_spec_bench, categories=True)),
    **{
        f"spec-bench/{task}": replace(_SPEC_BENCH, prompts=partial(_spec_bench, only=(task,)), bundled_task=bundled)
        for task, bundled in zip(SPEC_BENCH_TASKS, _SPEC_BENCH_BUNDLED, strict=True)
    },
}  # fmt: skip
SUBSETS = {"gsm-100": ("gsm8k", 100), "mbpp-100": ("mbpp", 100)}  # seeded random subsets (PTD, Section 4.1)
WORKLOADS = (*DATA_SETS, *SUBSETS, "bundled", *(f"bundled/{task}" for task in BUNDLED_TASKS))


def load_workload(
    name: str,
    *,
    limit: int | None = None,
    seed: int = 0,
    source: str | os.PathLike[str] = "auto",
    split: str = "test",
    max_characters: int | None = None,
    max_tokens: int | None = None,
    tokenizer: Any = None,
) -> Workload:
    """Load one of `WORKLOADS`.

    Args:
        name: of the workload.
        limit: at most this many prompts, the first of each task in turn.
        seed: of the random subsets.
        source: "bundled" (this project's prompts of the same kind), or as for `read_rows`.
        split: of the data set.
        max_characters: where WikiText-2 and PG-19 passages are cut (default 800 and 1,000); elsewhere longer prompts
            are left out.
        max_tokens: prompts with a turn of more tokens under `tokenizer` are left out.
        tokenizer: needed for max_tokens.

    Raises:
        WorkloadError: where the source is missing or leaves no prompt.
        ValueError: for a bad argument.
    """
    if name not in WORKLOADS:
        raise ValueError(f"There is no workload {name!r}; choose from {', '.join(WORKLOADS)}.")
    counts = {"limit": limit, "max_characters": max_characters, "max_tokens": max_tokens}
    for argument, value in counts.items():
        if value is not None and value < 1:
            raise ValueError(f"{argument} is {value}; give at least 1, or None for no restriction.")
    if max_tokens is not None and tokenizer is None:
        raise ValueError(f"max_tokens={max_tokens} needs tokenizer=: a prompt has tokens only under a tokenizer.")
    base, size = SUBSETS.get(name, (name, None))
    if name.startswith("bundled") or source == "bundled":
        label, origin, prompts = _bundled(base)
    else:
        data_set, label = DATA_SETS[base], name
        if split not in data_set.splits:
            raise ValueError(f"The workload {name!r} has no split {split!r}; it has {', '.join(data_set.splits)}.")
        rows, origin = read_rows(base, split, source)
        cut = max_characters or data_set.max_characters
        try:
            prompts = list(data_set.prompts(rows, _Options(split, cut)))
        except (KeyError, TypeError, AttributeError) as error:
            lacks = f"has no {error}" if isinstance(error, KeyError) else "is of another kind"
            raise WorkloadError(
                f"A row of {name!r} {lacks} ({origin}); give the files of that data set, whose rows have it."
            ) from error
        if data_set.max_characters:
            origin += f", passages cut at {cut} characters"
            max_characters = None  # the passages are cut already
        if base == "pg-19":
            origin += f", books {', '.join(dict.fromkeys(prompt.id.partition('@')[0] for prompt in prompts))}"
    notes, total = [origin], len(prompts)
    if max_characters is not None:
        prompts = [prompt for prompt in prompts if max(map(len, prompt.turns)) <= max_characters]
    if max_tokens is not None:
        fits = [all(len(tokenizer(turn)["input_ids"]) <= max_tokens for turn in prompt.turns) for prompt in prompts]
        prompts = list(compress(prompts, fits))
    if len(prompts) < total:
        notes.append(f"{total - len(prompts)} longer prompts left out")
    if size is not None:
        if size > len(prompts):
            raise WorkloadError(f"A random subset of {size} was asked for, but only {len(prompts)} prompts are there.")
        prompts = [prompts[index] for index in sorted(random.Random(seed).sample(range(len(prompts)), size))]
        notes.append(f"a random subset of {size} with seed {seed}")
    if limit is not None and limit < len(prompts):  # taken from each task in turn, so that a short run sees every task
        tasks = dict.fromkeys(prompt.task for prompt in prompts)
        turns = zip_longest(*([prompt for prompt in prompts if prompt.task == task] for task in tasks))
        prompts = [prompt for turn in turns for prompt in turn if prompt is not None][:limit]
    if not prompts:
        raise WorkloadError(
            f"The workload {name!r} has no prompt left ({'; '.join(notes)}); loosen split, max_characters or "
            "max_tokens."
        )
    sentence = f"{len(prompts)} prompts of {label}: {'; '.join(notes)}."
    return Workload(label, sentence, tuple(prompts), bundled=label.startswith("bundled"))


def join_workloads(workloads: Sequence[Workload]) -> Workload:
    """Join workloads in order; each source keeps its sentence.

    Where two have a prompt of the same id, ids get their workload's name in front.
    """
    pairs = [(workload.name, prompt) for workload in workloads for prompt in workload.prompts]
    if len({prompt.id for _, prompt in pairs}) < len(pairs):
        pairs = [(name, replace(prompt, id=f"{name}:{prompt.id}")) for name, prompt in pairs]
    return Workload(
        " + ".join(workload.name for workload in workloads),
        " ".join(workload.source for workload in workloads),
        tuple(prompt for _, prompt in pairs),
        bundled=all(workload.bundled for workload in workloads),
    )


# ---------------------------------------------------------------------------------------------- the sources
def _bundled(name: str) -> tuple[str, str, list[WorkloadPrompt]]:
    """The project's prompts under that name, or of the kind that stands in for that data set."""
    if not name.startswith("bundled"):
        name = "bundled" if name == "spec-bench" else f"bundled/{DATA_SETS[name].bundled_task}"
    tasks = BUNDLED_TASKS if name == "bundled" else (name.partition("/")[2],)
    prompts = [
        WorkloadPrompt(row["id"], row["task"], tuple(row.get("turns") or (row["text"],)))
        for task in tasks
        for row in _read(data_path("prompts", f"{task}.jsonl"))
    ]
    return name, "written for this project, held out from training", prompts


def read_rows(
    name: str, split: str = "test", source: str | os.PathLike[str] = "auto", first: int | None = None
) -> tuple[Iterator[Row], str]:
    """Return the rows of a data set, and a phrase on where they come from.

    Args:
        name: one of `DATA_SETS`.
        split: of the data set, by its name on the hub.
        source: "auto" (the parent folder named by the environment variable DYNATREE_DATA if it is set, else the hub),
            "hub" (for Spec-Bench its own repository), or a folder: the data set's own or the parent of several.
        first: read only this many rows; from the hub without fetching the others.

    Raises:
        WorkloadError: where the source does not have the data set; and by the iterator, for a broken line of a file.
    """
    data_set = DATA_SETS[name]
    if source == "auto":
        source = os.environ.get(FOLDER_VARIABLE) or "hub"
    try:
        if source == "hub" and data_set.address:
            return islice(_read(_downloaded(data_set)), first), f"from {data_set.address}"
        if source == "hub":
            return _hub_rows(data_set, split, first), f"{data_set.hub} from the Hugging Face hub, split {split}"
        files = _local_files(data_set, split, Path(source))
    except _Missing as missing:
        layout = " or ".join(f"{data_set.folder}/{pattern.format(split=split)}" for pattern in data_set.files)
        raise WorkloadError(
            f"The workload {name!r} {missing} A local folder that holds {layout} would serve: pass it as source=, or "
            f"name it in the environment variable {FOLDER_VARIABLE}. Without any of it, "
            f"'bundled/{data_set.bundled_task}' has prompts of the same kind that were written for this project (not "
            "the paper's data)."
        ) from missing.__cause__
    of_a_split = len(data_set.splits) > 1 and all(file.suffix != ".txt" for file in files)  # a book is of none
    named = f"split {split}, " * of_a_split
    origin = f"local folder {data_set.folder}, {named}{', '.join(file.name for file in files)}"
    return islice((row for file in files for row in _read(file)), first), origin


class _Missing(Exception):
    """Why a source does not have a data set, as the rest of a sentence."""


def _local_files(data_set: DataSet, split: str, folder: Path) -> list[Path]:
    """Files of the first accepted pattern, in `folder/<data set>` or in `folder` itself."""
    if folder.is_file():
        return [folder]
    for pattern in data_set.files:
        name = pattern.replace("wiki.{split}", "wiki.valid") if split == "validation" else pattern
        for place in (folder / data_set.folder, folder):
            files = sorted(file for file in place.glob(name.format(split=split)) if file.is_file())
            if files:
                return files
    raise _Missing(f"was looked for in {folder}, which has none of its files.")


def _read(file: Path) -> Iterator[Row]:
    if file.suffix == ".parquet":
        from pyarrow import parquet  # type: ignore[import-untyped]  # comes with datasets; the core does without

        yield from parquet.read_table(file).to_pylist()
        return
    text = file.read_text(encoding="utf-8")
    if file.suffix != ".jsonl":
        yield {"id": file.stem, "text": text}
        return
    for number, line in enumerate(text.split("\n"), 1):
        if line.strip():
            try:
                yield json.loads(line)
            except json.JSONDecodeError as error:
                raise WorkloadError(f"Line {number} of {file} is not JSON ({error}); fetch the file again.") from error


def _downloaded(data_set: DataSet) -> Path:
    """The file at a data set's address, which is downloaded once into the cache folder.

    `datasets` could read the address too, but only with further packages, and it makes numbers of some texts of
    Spec-Bench's references.
    """
    file = cache_folder() / "data" / data_set.folder / data_set.address.rpartition("/")[2]
    if not file.is_file():
        try:
            with urlopen(data_set.address, timeout=PATIENCE) as answer:
                content = answer.read()
            file.parent.mkdir(parents=True, exist_ok=True)
            own = file.with_name(f"{os.getpid()}-{file.name}")  # another process may download it too
            with whole_file(own) as out:
                out.write(content)
            own.replace(file)
        except (OSError, HTTPException) as error:
            raise _Missing(
                f"was asked for at {data_set.address}, which failed: {type(error).__name__}: {error}."
            ) from error
    return file


def _hub_rows(data_set: DataSet, split: str, first: int | None) -> Iterator[Row]:
    hub_split = data_set.hub_split.format(split=split)
    options: dict[str, Any] = {} if first is None else {"streaming": True}
    if data_set.hub_files:
        # without "no_checks" datasets misses the splits whose files were left out (huggingface/datasets#7282)
        options |= {"data_files": {hub_split: data_set.hub_files.format(split=hub_split)}}
        options |= {"verification_mode": "no_checks"}
    try:
        import datasets

        from .. import hub

        with hub.asked_if_reachable():
            rows = datasets.load_dataset(data_set.hub, data_set.config, split=hub_split, **options)
    except Exception as error:  # datasets, its file systems and HTTP clients share no base class for 'not reachable'
        raise _Missing(
            f"was asked for as {data_set.hub} (split {hub_split}) on the Hugging Face hub through the package "
            f"datasets, which failed: {type(error).__name__}: {error}."
        ) from error
    return islice(rows, first)


# ---------------------------------------------------------------------------------------------- chat templates
def render(turns: str | Sequence[str], tokenizer: Any, replies: Sequence[str] = ()) -> str:
    """Write the prompt up to the reply to turn `len(replies)`, under the tokenizer's chat template if it has one.

    Without a template, turns and replies are joined by blank lines; a single turn is returned as it is. A template
    writes its own special tokens, so tokenize its result with add_special_tokens=False.

    Raises:
        ValueError: if there is no turn left to reply to.
    """
    turns = [turns] if isinstance(turns, str) else list(turns)
    if len(replies) >= len(turns):
        raise ValueError(
            f"There are {len(replies)} replies for {len(turns)} turns; pass at most {len(turns) - 1}, so that a turn "
            f"is still to be answered."
        )
    messages: list[dict[str, Any]] = []
    for turn, reply in zip(turns, [*replies, None], strict=False):
        messages += [{"role": "user", "content": turn}, {"role": "assistant", "content": reply}]
    messages.pop()  # the reply that is asked for
    if not getattr(tokenizer, "chat_template", None):
        return "\n\n".join(message["content"] for message in messages)
    text: str = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    return text
