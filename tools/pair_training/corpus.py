"""Texts of the training mixture: where each part comes from, what is held out, and its tokens in windows.

A part is a list of training documents and a list of held-out documents. Parts are read by `workloads.read_rows`, from a
local folder with the layout `wikitext-2-raw/ pg19/ gsm8k/ mbpp/` or from the hub; the two code parts are the standard
library of the running interpreter. HumanEval, Spec-Bench and the test split of MBPP are never read here.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
import sysconfig
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from dynatree_suite.papers.workloads import DATA_SETS, Row, WorkloadError, book_number, read_rows
from dynatree_suite.training.texts import kept

END = "<|endoftext|>"
HELD_OUT_PERCENT = 3  # of the standard library's files, by hash of the relative path
HELD_OUT_BOOK = "14263"
HUB_BOOKS = 40  # novels taken from the hub's training split, in its order
# Tables rather than programs, data that is broken on purpose, or somebody else's code.
SKIPPED = re.compile(
    "/(site-packages|__pycache__|encodings|pydoc_data|config-|lib2to3/tests/data"
    "|test/cjkencodings|test/encoded_modules|test/tokenizedata)"
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


def _code(name: str, root: Path) -> Part:
    """The standard library's programs, or its tests, which are a part of their own because there are more of them."""
    texts: dict[bool, list[str]] = {False: [], True: []}
    for path in sorted(root.rglob("*.py")):
        relative = path.relative_to(root).as_posix()
        is_test = not {"test", "tests", "idle_test"}.isdisjoint(relative.split("/"))
        wanted = is_test == (name == "code-tests") and not SKIPPED.search(f"/{relative}")
        if wanted and path.stat().st_size <= LARGEST_FILE:
            with contextlib.suppress(UnicodeDecodeError):
                texts[held_out_path(relative)].append(path.read_text(encoding="utf-8"))
    train, held_out = (tuple(filter(None, texts[held])) for held in (False, True))
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


def load_corpus(names: Iterable[str], data: Path | None, library: Path | None = None) -> dict[str, Part]:
    """Load parts in order from the folder `data`, or from the hub when `data` is None, before anything is trained.

    Raises:
        ValueError: for an unknown name.
        FileNotFoundError: for a part that is missing; the sentence names folder and hub name.
    """
    if data is not None and not data.is_dir():
        raise FileNotFoundError(f"There is no folder {data} with texts; give a folder with {', '.join(READ_AS)} in it.")
    parts = {}
    for name in names:
        if name in ("code", "code-tests"):
            part = _code(name, library or Path(sysconfig.get_paths()["stdlib"]))
        elif name in READ_AS:
            part = _read(name, data)
        else:
            raise ValueError(f"There is no text part '{name}'; known parts are code, code-tests, {', '.join(READ_AS)}.")
        if not part.train or not part.held_out:
            raise FileNotFoundError(f"The text part '{name}' ({part.source}) lacks training or held-out documents.")
        parts[name] = part
    return parts


# ------------------------------------------------------------------------------------------------------------- tokens
def train_tokenizer(parts: Mapping[str, Part], weights: Mapping[str, float], vocab_size: int, sample_bytes: int) -> Any:
    """Train a byte-level BPE of at most `vocab_size` entries on about `sample_bytes` of the mixture's training text.

    Returns:
        a PreTrainedTokenizerFast whose only special token, `<|endoftext|>`, is bos, eos and pad. Decoding gives back
        the encoded text exactly. Digits are single tokens, so that arithmetic is not a matter of spelling.
    """
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    from transformers import PreTrainedTokenizerFast

    total = sum(weights.values())
    sample: list[str] = []
    for name, part in parts.items():
        wanted = int(sample_bytes * weights[name] / total)
        stride = max(1, sum(map(len, part.train)) // max(1, wanted))
        sample += part.train[::stride] if len(part.train) > stride else part.train
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END],
        show_progress=False,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
    )
    core.train_from_iterator(sample, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=core, bos_token=END, eos_token=END, pad_token=END, clean_up_tokenization_spaces=False
    )


def encode(tokenizer: Any, texts: tuple[str, ...]) -> np.ndarray:
    """Encode every document, followed by the end-of-text token, in one int32 array (n,)."""
    tokens: list[int] = []
    for start in range(0, len(texts), 256):
        for ids in tokenizer(list(texts[start : start + 256]), add_special_tokens=False, verbose=False)["input_ids"]:
            tokens += [*ids, tokenizer.eos_token_id]
    return np.asarray(tokens, dtype=np.int32)


def encode_parts(tokenizer: Any, parts: Mapping[str, Part], folder: Path, split: str) -> dict[str, np.ndarray]:
    """Return the "train" or "held_out" tokens of every part; the caller renews the folder that keeps them."""
    return {
        name: kept(folder / f"{split}-{name}.npy", partial(encode, tokenizer, getattr(part, split)))
        for name, part in parts.items()
    }


def windows(
    parts: Mapping[str, np.ndarray],
    weights: Mapping[str, float],
    length: int,
    count: int,
    seed: Sequence[int],
    aligned: Collection[str] = (),
) -> Iterator[np.ndarray]:
    """Yield endless (count, length) int64 windows of tokens, parts drawn by weight; the same ones for a seed.

    Each part is walked in shuffled order epoch by epoch. Every epoch cuts it at a new random offset, except the
    `aligned` parts, whose texts stay whole. A part that is shorter than a window is repeated until it fills one.
    """
    texts = {name: np.tile(tokens, -(-(length + 1) // len(tokens))) for name, tokens in parts.items()}
    shares, random = np.array([weights[name] for name in parts], dtype=np.float64), np.random.default_rng(list(seed))
    epochs: dict[str, list[int]] = {name: [] for name in parts}

    def window(name: str) -> np.ndarray:
        if not epochs[name]:
            spare = len(texts[name]) - length
            offset = 0 if name in aligned else random.integers(0, min(length, spare))
            epochs[name] = random.permutation(np.arange(offset, spare + 1, length)).tolist()
        start = epochs[name].pop()
        return texts[name][start : start + length]

    while True:
        drawn = random.choice(len(parts), size=count, p=shares / shares.sum()).tolist()
        yield np.stack([window(list(parts)[part]) for part in drawn]).astype(np.int64)
