"""Texts that a draft learns from: a target's answers on disk, its features at every place of them, windows of both."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..files import whole_file
from .optimize import Log

TOGETHER = 16
"""Texts that the target reads at a time for their features."""


@dataclass(frozen=True)
class Asked:
    """One prompt: its kind of task, its token ids with the chat template, and its text without."""

    kind: str
    ids: tuple[int, ...]
    text: str = ""


@dataclass(frozen=True)
class Texts:
    """Prompts with a target's answers.

    Attributes:
        tokens: ids of all texts, one text after another, each its prompt and then the answer.
        lengths: (t,) tokens of each text.
        prompt_lengths: (t,) tokens of each prompt.
        kinds: (t,) name of each text's kind of task.
        temperatures: (t,) of each answer.
    """

    tokens: np.ndarray
    lengths: np.ndarray
    prompt_lengths: np.ndarray
    kinds: np.ndarray
    temperatures: np.ndarray

    def __len__(self) -> int:
        return len(self.kinds)

    @cached_property
    def offsets(self) -> np.ndarray:
        """(t + 1,) where each text begins, and where the last one ends."""
        return np.concatenate([[0], np.cumsum(self.lengths)])

    @property
    def answers(self) -> np.ndarray:
        """Token ids of all answers, one after another."""
        return np.concatenate([self.text(number)[start:] for number, start in enumerate(self.prompt_lengths)])

    def text(self, number: int) -> np.ndarray:
        """Token ids of a text."""
        return self.tokens[self.offsets[number] : self.offsets[number + 1]]

    def figures(self) -> dict[str, Any]:
        """Numbers of texts, of tokens, of the answers' tokens, and of the texts of each kind of task."""
        by_kind = {
            str(kind): int(count) for kind, count in zip(*np.unique(self.kinds, return_counts=True), strict=True)
        }
        figures = {"texts": len(self), "tokens": len(self.tokens), "answer_tokens": len(self.answers)}
        return {**figures, "by_kind": by_kind}

    def chosen(self, numbers: np.ndarray) -> Texts:
        """Return the given texts alone."""
        columns = (column[numbers] for column in (self.lengths, self.prompt_lengths, self.kinds, self.temperatures))
        return Texts(np.concatenate([self.text(number) for number in numbers]), *columns)


def store_texts(
    path: Path, asked: Sequence[Asked], answers: Sequence[Sequence[int]], temperatures: Sequence[float]
) -> None:
    """Write prompts with an answer to each, and the temperatures of the answers."""
    columns = {
        "tokens": np.concatenate([[*one.ids, *answer] for one, answer in zip(asked, answers, strict=True)]),
        "lengths": np.array([len(one.ids) + len(answer) for one, answer in zip(asked, answers, strict=True)]),
        "prompt_lengths": np.array([len(one.ids) for one in asked]),
        "kinds": np.array([one.kind for one in asked]),
        "temperatures": np.array(temperatures),
    }
    with whole_file(path) as file:
        np.savez_compressed(file, **columns)  # type: ignore[arg-type]


def read_texts(files: Sequence[Path]) -> Texts:
    """Read files that `store_texts` wrote."""
    stored = []
    for file in files:
        with np.load(file) as columns:
            stored.append(dict(columns))
    return Texts(**{name: np.concatenate([columns[name] for columns in stored]) for name in stored[0]})


def frequent(texts: Texts, count: int, always: Sequence[int] = ()) -> np.ndarray:
    """Return the `count` most frequent tokens of answers, ascending.

    Args:
        always: tokens that are among them in any case.
    """
    counts = np.bincount(texts.answers, minlength=2**16)
    counts[list(always)] = counts.max() + 1
    return np.sort(np.argsort(-counts, kind="stable")[:count])


def kept(path: Path, make: Callable[[], np.ndarray]) -> np.ndarray:
    """Return the array in a .npy file, read when it is needed; it is made first where there is no such file."""
    if not path.is_file():
        array = make()
        with whole_file(path) as file:
            np.save(file, array)
    array = np.load(path, mmap_mode="r")
    return array


def write_features(
    model: Any, files: Sequence[Path], folder: Path, log: Log, layers: Sequence[int] = (-1,)
) -> list[np.ndarray]:
    """Let the target read all texts and store its hidden states, one file for each file of answers.

    Args:
        model: the target, a transformers model.
        files: of answers.
        folder: of the features; files that are there are not written again.
        log: takes a line of progress.
        layers: k layers whose states are stored side by side, as `pruned.on_features` counts them.

    Returns:
        (tokens, k h) uint16 of each text, the bits of bfloat16, read from the disk when needed.

    Raises:
        ValueError: where a file holds the features of other texts.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def states(file: Path) -> np.ndarray:
        begun, texts = time.monotonic(), read_texts([file])
        out = np.empty((len(texts.tokens), len(layers) * model.config.hidden_size), np.uint16)
        order = np.argsort(texts.lengths, kind="stable")
        for numbers in np.split(order, range(TOGETHER, len(order), TOGETHER)):
            rows = [torch.from_numpy(texts.text(number).astype(np.int64)) for number in numbers]
            with torch.inference_mode():
                ids = pad_sequence(rows, batch_first=True).to(model.device)
                found = model.model(input_ids=ids, use_cache=False, output_hidden_states=True).hidden_states
            joined = torch.cat([found[layer] for layer in layers], -1)
            bits = joined.bfloat16().cpu().view(torch.uint16).numpy()
            for row, number in enumerate(numbers):
                out[texts.offsets[number] : texts.offsets[number + 1]] = bits[row, : texts.lengths[number]]
        log(f"{file.stem}: features of {len(out):,} tokens, {len(out) / (time.monotonic() - begun):.0f} tokens/s")
        return out

    out = list[np.ndarray]()
    for file in files:
        path, texts = folder / file.with_suffix(".npy").name, read_texts([file])
        array = kept(path, partial(states, file))
        if len(array) != len(texts.tokens):
            raise ValueError(
                f"{path} has features of {len(array)} tokens and {file.name} has {len(texts.tokens)}; remove the first."
            )
        out += np.split(array, texts.offsets[1:-1])
    return out


@dataclass(frozen=True)
class Window:
    """A batch of windows.

    Attributes:
        ids: (B, n) tokens, without the first of each window.
        states: (B, n + 1, k h) bfloat16 hidden states of the target, those of the first token included.
        positions: (B, n) of the tokens.
        seen: (B, n) bool, where there is a token.
        answer: (B, n) bool, where what follows is of the answer.
    """

    ids: Tensor
    states: Tensor
    positions: Tensor
    seen: Tensor
    answer: Tensor


@dataclass(frozen=True)
class Windows:
    """Windows of texts with their features: `length` tokens each, or what the text has.

    Attributes:
        texts: the texts.
        states: (tokens, k h) bits of bfloat16 for each text.
        length: of a window.
    """

    texts: Texts
    states: Sequence[np.ndarray]
    length: int

    def batches(self, count: int, seed: Sequence[int]) -> Iterator[np.ndarray]:
        """Yield endless (count, 2) texts and first places, every place of every text as likely as any other."""
        lengths, random = self.texts.lengths, np.random.default_rng(list(seed))
        while True:
            numbers = random.choice(len(lengths), count, p=lengths / lengths.sum())
            free = np.maximum(lengths[numbers] - self.length, 1)
            yield np.stack([numbers, random.integers(0, free)], 1)

    def spread(self, count: int) -> Windows:
        """Return windows of `count` texts from all over these, or of all."""
        numbers = np.unique(np.linspace(0, len(self.texts) - 1, count).round().astype(int))
        return Windows(self.texts.chosen(numbers), [self.states[number] for number in numbers], self.length)

    def placed(self, picks: np.ndarray) -> Window:
        """Lay out (B, 2) windows, given by text and first place."""
        ids = np.zeros((len(picks), self.length), np.int64)
        states = np.zeros((len(picks), self.length + 1, self.states[0].shape[1]), np.uint16)
        seen, answer = np.zeros((2, len(picks), self.length), bool)
        for row, (number, begin) in enumerate(picks.tolist()):
            text = self.texts.text(number)[begin : begin + self.length + 1]
            count = len(text) - 1
            ids[row, :count], seen[row, :count] = text[1:], True
            states[row, : count + 1] = self.states[number][begin : begin + count + 1]
            answer[row, max(0, self.texts.prompt_lengths[number] - 2 - begin) : count] = True
        return Window(
            torch.from_numpy(ids),
            torch.from_numpy(states).view(torch.bfloat16),
            torch.from_numpy(picks[:, 1:] + 1 + np.arange(self.length)),
            torch.from_numpy(seen),
            torch.from_numpy(answer),
        )
