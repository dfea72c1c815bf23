"""Text parts of the training mixture: where each comes from, what is trained on, what is held out.

A part is a list of training documents and a list of held-out documents. Parts come from a local folder with the layout
`wikitext-2-raw/ pg19/ gsm8k/ mbpp/`, or by hub name through `datasets`; the two code parts are the standard library of
the running interpreter. HumanEval, Spec-Bench and the test split of MBPP are never read here.
"""

from __future__ import annotations

import hashlib
import json
import re
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

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
LARGEST_FILE = 260_000  # bytes; longer ones are generated tables
HUB = {
    "wikitext-2": ("wikitext-2-raw", "Salesforce/wikitext (wikitext-2-raw-v1)"),
    "pg19": ("pg19", "emozilla/pg19"),
    "gsm8k": ("gsm8k", "openai/gsm8k (main)"),
    "mbpp": ("mbpp", "google-research-datasets/mbpp"),
}
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
    """One named part of the mixture. `source` says where it came from without naming a folder of this machine."""

    name: str
    source: str
    train: tuple[str, ...]
    held_out: tuple[str, ...]

    def record(self) -> dict[str, Any]:
        """Sizes and sha256 of exactly the text used (documents joined by the end-of-text mark)."""
        out: dict[str, Any] = {"source": self.source, "licence": LICENCES.get(self.name, "unknown")}
        for split, texts in (("train", self.train), ("held_out", self.held_out)):
            joined = END.join(texts).encode("utf-8")
            out[split] = {"documents": len(texts), "bytes": len(joined), "sha256": hashlib.sha256(joined).hexdigest()}
        return out


def held_out_path(relative: str) -> bool:
    """Whether a standard-library file (posix path below the library's root) belongs to the held-out split."""
    return int(hashlib.sha256(relative.encode()).hexdigest(), 16) % 100 < HELD_OUT_PERCENT


def is_test_path(relative: str) -> bool:
    """Whether a standard-library file is test code, which is a part of its own because there is more of it."""
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
        (path, text) for path, text in _source_files(root) if is_test_path(path) == (name == "code-tests") and text
    ]
    train = tuple(text for path, text in wanted if not held_out_path(path))
    held_out = tuple(text for path, text in wanted if held_out_path(path))
    return Part(name, f"standard library of Python {sysconfig.get_python_version()}", train, held_out)


def _articles(text: str) -> list[str]:
    """WikiText cut before every first-level heading (` = Title = `)."""
    pieces = re.split(r"(?m)^(?= = [^=].*[^=] = $)", text)
    return [piece for piece in pieces if piece.strip()]


def strip_gutenberg(text: str) -> str:
    """A book without Project Gutenberg's header and licence."""
    start = re.search(r"\*\*\* ?START OF TH(?:IS|E) PROJECT GUTENBERG[^\n]*\n", text)
    end = re.search(r"\n[^\n]*(?:\*\*\* ?END OF TH(?:IS|E) PROJECT GUTENBERG|End of (?:the )?Project Gutenberg)", text)
    return text[start.end() if start else 0 : end.start() if end else len(text)].strip() + "\n"


def gsm8k_text(record: dict[str, Any]) -> str:
    """`Question: ...\\nAnswer: ...` of one record, without the calculator marks."""
    return f"Question: {record['question']}\nAnswer: {re.sub(r'<<.*?>>', '', record['answer'])}\n"


def mbpp_text(record: dict[str, Any]) -> str:
    """The task as a comment above its program, which is how the code prompts of this project look."""
    code = record["code"].replace("\r\n", "\n").replace("\t", "    ")
    return f"# {record['text'].strip()}\n{code.rstrip()}\n"


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines() if line.strip()]


def _mbpp(records: list[dict[str, Any]], source: str) -> Part:
    train = tuple(mbpp_text(r) for r in records if 601 <= r["task_id"] <= 974)
    held_out = tuple(mbpp_text(r) for r in records if 511 <= r["task_id"] <= 600)
    return Part("mbpp", f"{source}; task_id 601-974, held out 511-600", train, held_out)


def _local(name: str, folder: Path) -> Part:
    source = f"local copy of {HUB[name][1]}"
    if name == "gsm8k":
        splits = [tuple(gsm8k_text(r) for r in _lines(folder / f"{split}.jsonl")) for split in ("train", "test")]
        return Part(name, f"{source}; train, held out test", *splits)
    if name == "mbpp":
        return _mbpp(_lines(folder / "mbpp.jsonl"), source)
    if name == "wikitext-2":
        files = [folder / f"wiki.{split}.raw" for split in ("train", "valid")]
        train = [article for file in files if file.is_file() for article in _articles(file.read_text(encoding="utf-8"))]
        used = " and ".join(file.name for file in files if file.is_file())
        held_out = _articles((folder / "wiki.test.raw").read_text(encoding="utf-8"))
        return Part(name, f"{source}; {used}, held out wiki.test.raw", tuple(train), tuple(held_out))
    books = {path.stem: strip_gutenberg(path.read_text(encoding="utf-8")) for path in sorted(folder.glob("*.txt"))}
    last = HELD_OUT_BOOK if HELD_OUT_BOOK in books else sorted(books)[-1]
    train = [text for stem, text in books.items() if stem != last]
    return Part(name, f"{source}; books {sorted(set(books) - {last})}, held out {last}", tuple(train), (books[last],))


def _hub(name: str) -> Part:
    from datasets import load_dataset

    source = HUB[name][1]
    if name == "gsm8k":
        data = load_dataset("openai/gsm8k", "main")
        return Part(name, source, *(tuple(gsm8k_text(r) for r in data[split]) for split in ("train", "test")))
    if name == "mbpp":
        data = load_dataset("google-research-datasets/mbpp")
        return _mbpp([record for split in data.values() for record in split], source)
    if name == "wikitext-2":
        data = load_dataset("Salesforce/wikitext", "wikitext-2-raw-v1")
        texts = {split: tuple(_articles("".join(data[split]["text"]))) for split in ("train", "validation", "test")}
        return Part(
            name, f"{source}; train and validation, held out test", texts["train"] + texts["validation"], texts["test"]
        )
    books = {
        split: tuple(
            strip_gutenberg(record["text"])
            for record in load_dataset("emozilla/pg19", split=split, streaming=True).take(count)
        )
        for split, count in (("train", HUB_BOOKS), ("test", 1))
    }
    return Part(name, f"{source}; first {HUB_BOOKS} books, held out first of test", books["train"], books["test"])


def load_part(name: str, data: Path | None, library: Path | None = None) -> Part:
    """Load one part from the folder `data`, or by hub name when `data` is None.

    Raises ValueError for an unknown name and FileNotFoundError, naming folder and hub name, for a part that is missing.
    """
    if name in ("code", "code-tests"):
        part = _code(name, library or Path(sysconfig.get_paths()["stdlib"]))
    elif name not in HUB:
        raise ValueError(f"There is no text part '{name}'; known parts are code, code-tests, {', '.join(HUB)}.")
    else:
        folder, hub = HUB[name]
        way_out = f"Give --data DIR with a folder '{folder}/' in it, or run where the hub serves {hub}."
        load: Callable[[], Part] = (lambda: _hub(name)) if data is None else (lambda: _local(name, data / folder))
        try:
            part = load()
        except (OSError, IndexError, ImportError) as error:
            raise FileNotFoundError(f"The text part '{name}' was not found. {way_out}") from error
    if not part.train or not part.held_out:
        raise FileNotFoundError(f"The text part '{name}' ({part.source}) lacks training or held-out documents.")
    return part


def load_corpus(names: Iterable[str], data: Path | None, library: Path | None = None) -> dict[str, Part]:
    """All parts of a recipe, in its order; errors as `load_part`, before anything is trained."""
    return {name: load_part(name, data, library) for name in names}
