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

from .corpus import kept


@dataclass(frozen=True)
class Texts:
    """Prompts with a target's answers, as `answers.write_answers` stores them.

    Attributes:
        tokens: ids of all texts, one text after another, each its prompt and then the answer.
        offsets: (t + 1,) where each text begins, and where the last one ends.
        prompt_lengths: (t,) tokens of each prompt.
        kinds: (t,) name of each text's kind of task.
        temperatures: (t,) of each answer.
    """

    tokens: np.ndarray
    offsets: np.ndarray
    prompt_lengths: np.ndarray
    kinds: np.ndarray
    temperatures: np.ndarray

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def lengths(self) -> np.ndarray:
        """(t,) tokens of each text, its prompt included."""
        return np.diff(self.offsets)

    @property
    def answers(self) -> np.ndarray:
        """Token ids of all answers, one after another."""
        return np.concatenate([self.text(number)[start:] for number, start in enumerate(self.prompt_lengths)])

    def text(self, number: int) -> np.ndarray:
        """Token ids of a text."""
        return self.tokens[self.offsets[number] : self.offsets[number + 1]]

    def by_kind(self) -> dict[str, int]:
        """Number of texts of each kind of task."""
        return {str(kind): int(count) for kind, count in zip(*np.unique(self.kinds, return_counts=True), strict=True)}

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Indices into `tokens` of the given texts, one text after another."""
        return np.concatenate([np.arange(self.offsets[number], self.offsets[number + 1]) for number in numbers])

    def chosen(self, numbers: np.ndarray) -> Texts:
        """Return the given texts alone."""
        offsets = np.concatenate([[0], np.cumsum(self.lengths[numbers])])
        others = (column[numbers] for column in (self.prompt_lengths, self.kinds, self.temperatures))
        return Texts(self.tokens[self.places(numbers)], offsets, *others)


def read_texts(files: Sequence[Path]) -> Texts:
    """Read files of answers."""
    columns: dict[str, list[np.ndarray]] = {name: [] for name in ("tokens", "lengths", "prompt", "kinds", "heats")}
    for file in files:
        with np.load(file) as stored:
            prompts, answers = (
                np.split(stored[f"{name}s"], np.cumsum(stored[f"{name}_lengths"].astype(np.int64))[:-1])
                for name in ("prompt", "answer")
            )
            columns["tokens"] += [part for pair in zip(prompts, answers, strict=True) for part in pair]
            columns["lengths"].append(np.array([len(p) + len(a) for p, a in zip(prompts, answers, strict=True)]))
            columns["prompt"].append(stored["prompt_lengths"].astype(np.int64))
            columns["kinds"].append(stored["names"][stored["kinds"]])
            columns["heats"].append(stored["temperatures"])
    joined = {name: np.concatenate(parts) for name, parts in columns.items()}
    offsets = np.concatenate([[0], np.cumsum(joined["lengths"])])
    return Texts(joined["tokens"], offsets, joined["prompt"], joined["kinds"], joined["heats"])


def frequent(texts: Texts, count: int, always: Sequence[int] = ()) -> np.ndarray:
    """Return the `count` most frequent tokens of answers, ascending.

    Args:
        always: tokens that are among them in any case.
    """
    counts = np.bincount(texts.answers, minlength=2**16)
    counts[list(always)] = counts.max() + 1
    return np.sort(np.argsort(-counts, kind="stable")[:count])


def write_features(
    model: Any,
    files: Sequence[Path],
    folder: Path,
    batch: int,
    log: Callable[[str], None],
    layers: Sequence[int] = (-1,),
) -> list[np.ndarray]:
    """Let the target read all texts and store its hidden states, one file for each file of answers.

    Args:
        model: the target, a transformers model.
        files: of answers.
        folder: of the features; files that are there are not written again.
        batch: texts at a time.
        log: takes a line of progress.
        layers: k layers whose states are stored side by side, as `pruned.on_features` counts them.

    Returns:
        (tokens, k h) uint16 of each file, the bits of bfloat16, read from the disk when needed.
    """
    folder.mkdir(parents=True, exist_ok=True)

    def states(file: Path) -> np.ndarray:
        begun, texts = time.monotonic(), read_texts([file])
        out = np.empty((len(texts.tokens), len(layers) * model.config.hidden_size), np.uint16)
        order = np.argsort(texts.lengths, kind="stable")
        for numbers in np.split(order, range(batch, len(order), batch)):
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

    return [kept(folder / file.with_suffix(".npy").name, partial(states, file)) for file in files]


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
        states: (tokens of the file, k h) bits of bfloat16 for each file of texts, in order.
        length: of a window.

    Raises:
        ValueError: where the features are of other texts.
    """

    texts: Texts
    states: tuple[np.ndarray, ...]
    length: int

    def __post_init__(self) -> None:
        counted, needed = sum(map(len, self.states)), len(self.texts.tokens)
        if counted != needed:
            raise ValueError(f"The texts have {needed} tokens and the stored features are of {counted}.")

    @cached_property
    def starts(self) -> np.ndarray:
        """First token of each file."""
        return np.cumsum([0, *map(len, self.states)])

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
        parts = [self.features(*self.texts.offsets[number : number + 2]) for number in numbers]
        return Windows(self.texts.chosen(numbers), (np.concatenate(parts),), self.length)

    def features(self, first: int, last: int) -> np.ndarray:
        """Return the features of some tokens of one text."""
        file = int(np.searchsorted(self.starts, first, side="right")) - 1
        return self.states[file][first - self.starts[file] : last - self.starts[file]]

    def placed(self, picks: np.ndarray) -> Window:
        """Lay out (B, 2) windows, given by text and first place."""
        ids = np.zeros((len(picks), self.length), np.int64)
        states = np.zeros((len(picks), self.length + 1, self.states[0].shape[1]), np.uint16)
        seen, answer = np.zeros((2, len(picks), self.length), bool)
        for row, (number, begin) in enumerate(picks.tolist()):
            text = self.texts.text(number)[begin : begin + self.length + 1]
            first, count = int(self.texts.offsets[number]) + begin, len(text) - 1
            ids[row, :count], seen[row, :count] = text[1:], True
            states[row, : count + 1] = self.features(first, first + count + 1)
            answer[row, max(0, self.texts.prompt_lengths[number] - 2 - begin) : count] = True
        return Window(
            torch.from_numpy(ids),
            torch.from_numpy(states).view(torch.bfloat16),
            torch.from_numpy(picks[:, 1:] + 1 + np.arange(self.length)),
            torch.from_numpy(seen),
            torch.from_numpy(answer),
        )
