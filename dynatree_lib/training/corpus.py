"""Text parts of the training mixture: where each comes from, what is trained on, what is held out.

A part is a list of training documents and a list of held-out documents. Parts are read by `workloads.read_rows`, from a
local folder with the layout `wikitext-2-raw/ pg19/ gsm8k/ mbpp/` or from the hub; the two code parts are the standard
library of the running interpreter. HumanEval, Spec-Bench and the test split of MBPP are never read here.
"""

from __future__ import annotations

import hashlib
import re
import sysconfig
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..workloads import DATA_SETS, Row, WorkloadError, book_number, read_rows

END = "<|endoftext|>"
HELD_OUT_PERCENT = 3  # of the standard library's files, by hash of the relative path
HELD_OUT_BOOK = "14263"
HUB_BOOKS = 40  # novels taken from the hub's training split, in its order
# Tables rather than programs, data that is broken on purpose, or somebody else's code.
SKIPPED_FOLDERS = (
    "site-packages",
    "__pycache__",
    "encodings",
    "pydoc_data",
    "config-",
    "lib2to3/tests/data",
    "test/cjkencodings",
    "test/encoded_modules",
    "test/tokenizedata",
)
LARGEST_FILE = 260_000  # bytes; longer files are generated tables
READ_AS = {"wikitext-2": "wikitext-2", "pg19": "pg-19", "gsm8k": "gsm8k", "mbpp": "mbpp"}
"""Part of the mixture -> its data set in `workloads.DATA_SETS`."""
LICENCES = {
    "code": "Python Software Foundation License",
    "code-tests": "Python Software Foundation License",
    "wikitext-2": "CC BY-SA",
    "pg19": "public domain (Project Gutenberg)",
    "gsm8k": "MIT",
    "mbpp": "CC BY 4.0",
}


@dataclass(frozen=True)
class Part:
    """A named part of the mixture. `source` says where it came from without naming a folder of this machine."""

    name: str
    source: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Return sizes and sha256 of exactly the text used (documents joined by the end-of-text mark)."""
        out: dict[str, Any] = {"source": self.source, "licence": LICENCES.get(self.name, "unknown")}
        for split, texts in (("train", self.train), ("held_out", self.held_out)):
            joined = END.join(texts).encode("utf-8")
            out[split] = {"documents": len(texts), "bytes": len(joined), "sha256": hashlib.sha256(joined).hexdigest()}
        return out


def held_out_path(relative: str) -> bool:
    """Return whether a standard-library file (posix path below the library's root) is held out."""
    return int(hashlib.sha256(relative.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT


def is_test_path(relative: str) -> bool:
    """Return whether a standard-library file is test code, which is a separate part because there is more of it."""
    return any(piece in ("test", "tests", "idle_test") for piece in Path(relative).parts)


def _source_files(root: Path) -> Iterable[tuple[str, str]]:
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        if any(f"/{skip}" in f"/{relative}" for skip in SKIPPED_FOLDERS) or path.stat().st_size > LARGEST_FILE:
            continue
        try:
            yield relative, path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue


def _code(name: str, root: Path) -> Part:
    wanted = [
        (held_out_path(path), text)
        for path, text in _source_files(root)
        if is_test_path(path) == (name == "code-tests") and text
    ]
    train, held_out = (tuple(text for held, text in wanted if held == wish) for wish in (False, True))
    return Part(name, f"standard library of Python {sysconfig.get_python_version()}", train, held_out)


def strip_gutenberg(text: str) -> str:
    """Cut Project Gutenberg's header and licence off a book."""
    start = re.search(r"\*\*\* ?START OF TH(?:IS|E) PROJECT GUTENBERG[^\n]*\n", text)
    end = re.search(r"\n[^\n]*(?:\*\*\* ?END OF TH(?:IS|E) PROJECT GUTENBERG|End of (?:the )?Project Gutenberg)", text)
    return text[start.end() if start else 0 : end.start() if end else len(text)].strip() + "\n"


def gsm8k_text(row: Row) -> str:
    """Write a row as `Question: ...\\nAnswer: ...`, without the calculator marks."""
    return f"Question: {row['question']}\nAnswer: {re.sub(r'<<.*?>>', '', row['answer'])}\n"


def mbpp_text(row: Row) -> str:
    """Write the task as a comment above its program, as the code prompts of this project do."""
    code = row["code"].replace("\r\n", "\n").replace("\t", "    ")
    return f"# {row['text'].strip()}\n{code.rstrip()}\n"


def _read(name: str, data: Path | None) -> Part:
    """Read a part's texts from the folder `data`, or from the hub where it is None."""
    data_set = DATA_SETS[READ_AS[name]]
    hub = data_set.hub + (f" ({data_set.config})" if data_set.config else "")
    source = hub if data is None else f"local copy of {hub}"

    def rows(split: str, first: int | None = None) -> Iterator[Row]:
        try:
            return read_rows(READ_AS[name], split, "hub" if data is None else data / data_set.folder, first)[0]
        except WorkloadError as error:
            raise FileNotFoundError(
                f"The text part '{name}' was not found. Give --data DIR with a folder '{data_set.folder}/' in it, or "
                f"run where the hub serves {hub}."
            ) from error

    if name == "gsm8k":
        train, held_out = (tuple(map(gsm8k_text, rows(split))) for split in ("train", "test"))
        return Part(name, f"{source}; train, held out test", train, held_out)
    if name == "mbpp":
        train = tuple(mbpp_text(row) for row in rows("train") if 601 <= row["task_id"] <= 974)
        held_out = tuple(mbpp_text(row) for row in rows("validation") if 511 <= row["task_id"] <= 600)
        return Part(name, f"{source}; task_id 601-974, held out 511-600", train, held_out)
    if name == "wikitext-2":
        articles: dict[str, tuple[str, ...]] = {}
        for split in ("train", "validation", "test"):
            try:
                text = "".join(row["text"] for row in rows(split))
            except FileNotFoundError:
                if data is None or split == "test":  # a local copy may do with one of the other two
                    raise
                continue
            pieces = re.split(r"(?m)^(?= = [^=].*[^=] = $)", text)  # before every first-level heading, " = Title = "
            articles[split] = tuple(piece for piece in pieces if piece.strip())
        held_out = articles.pop("test")
        used = f"{source}; {' and '.join(articles)}, held out test"
        return Part(name, used, sum(articles.values(), ()), held_out)
    if data is None:
        train, held_out = (
            tuple(strip_gutenberg(row["text"]) for row in rows(split, first))
            for split, first in (("train", HUB_BOOKS), ("test", 1))
        )
        return Part(name, f"{source}; first {HUB_BOOKS} books, held out first of test", train, held_out)
    books = {book_number(row): strip_gutenberg(row["text"]) for row in rows("train")}
    last = HELD_OUT_BOOK if HELD_OUT_BOOK in books else max(books)
    held_out = (books.pop(last),)
    return Part(name, f"{source}; books {sorted(books)}, held out {last}", tuple(books.values()), held_out)


def load_part(name: str, data: Path | None, library: Path | None = None) -> Part:
    """Load a part from the folder `data`, or from the hub when `data` is None.

    Raises:
        ValueError: for an unknown name.
        FileNotFoundError: for a part that is missing; the sentence names folder and hub name.
    """
    if name in ("code", "code-tests"):
        part = _code(name, library or Path(sysconfig.get_paths()["stdlib"]))
    elif name in READ_AS:
        part = _read(name, data)
    else:
        raise ValueError(f"There is no text part '{name}'; known parts are code, code-tests, {', '.join(READ_AS)}.")
    if not part.train or not part.held_out:
        raise FileNotFoundError(f"The text part '{name}' ({part.source}) lacks training or held-out documents.")
    return part


def load_corpus(names: Iterable[str], data: Path | None, library: Path | None = None) -> dict[str, Part]:
    """Load all parts of a recipe, in its order; errors as `load_part`, before anything is trained."""
    return {name: load_part(name, data, library) for name in names}
