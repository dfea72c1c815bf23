"""A draft made of a few of its target's layers, distilled on the target's own answers.

The draft keeps the target's token table and head as they are, so that only its layers need shipping. It learns from the
target's probabilities, which were stored with the answers; the target does not run again. Only the most frequent tokens
take part in its softmax: they are what it drafts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .optimize import Loss, Runtime


@dataclass(frozen=True)
class Texts:
    """Answers of a target, as `answers.write_answers` stores them; text i lies between its offsets.

    Attributes:
        prompts, prompt_offsets: token ids of all prompts, and where each begins and ends.
        answers, answer_offsets: the same of the answers.
        top: (tokens, TOP) uint16 most probable ids at each place of an answer.
        shares: their probabilities, float16.
        kinds: name of each text's kind of task.
        temperatures: of each answer.
    """

    prompts: np.ndarray
    prompt_offsets: np.ndarray
    answers: np.ndarray
    answer_offsets: np.ndarray
    top: np.ndarray
    shares: np.ndarray
    kinds: np.ndarray
    temperatures: np.ndarray

    def __len__(self) -> int:
        return len(self.kinds)

    @property
    def lengths(self) -> np.ndarray:
        """Tokens of each text, its prompt included."""
        return np.diff(self.prompt_offsets) + np.diff(self.answer_offsets)

    def prompt_length(self, number: int) -> int:
        """Tokens of a text's prompt."""
        return int(self.prompt_offsets[number + 1] - self.prompt_offsets[number])

    def tokens(self, number: int) -> np.ndarray:
        """Token ids of a text, prompt and answer."""
        prompt, answer = (
            slice(*offsets[number : number + 2]) for offsets in (self.prompt_offsets, self.answer_offsets)
        )
        return np.concatenate([self.prompts[prompt], self.answers[answer]])

    def by_kind(self) -> dict[str, int]:
        """Number of texts of each kind of task."""
        return {str(kind): int(count) for kind, count in zip(*np.unique(self.kinds, return_counts=True), strict=True)}

    def spread_numbers(self, count: int) -> np.ndarray:
        """Return the numbers of the texts that `spread` takes, ascending."""
        return np.unique(np.linspace(0, len(self) - 1, count).round().astype(int))

    def spread(self, count: int) -> Texts:
        """Return `count` texts from all over these, or all of them."""
        numbers = self.spread_numbers(count)
        prompts, answers = (
            [np.arange(offsets[number], offsets[number + 1]) for number in numbers]
            for offsets in (self.prompt_offsets, self.answer_offsets)
        )
        offsets = [np.concatenate([[0], np.cumsum([len(span) for span in spans])]) for spans in (prompts, answers)]
        asked, answered = np.concatenate(prompts), np.concatenate(answers)
        return Texts(
            self.prompts[asked], offsets[0], self.answers[answered], offsets[1], self.top[answered],
            self.shares[answered], self.kinds[numbers], self.temperatures[numbers],
        )  # fmt: skip


def read_texts(files: Sequence[Path]) -> Texts:
    """Read files of answers."""
    parts: dict[str, list[np.ndarray]] = {}
    for file in files:
        with np.load(file) as stored:
            for name in ("prompts", "prompt_lengths", "answers", "answer_lengths", "top", "shares", "temperatures"):
                parts.setdefault(name, []).append(stored[name])
            parts.setdefault("kinds", []).append(stored["names"][stored["kinds"]])
    joined = {name: np.concatenate(arrays) for name, arrays in parts.items()}
    offsets = {
        f"{name}_offsets": np.concatenate([[0], np.cumsum(joined.pop(f"{name}_lengths").astype(np.int64))])
        for name in ("prompt", "answer")
    }
    return Texts(**joined, **offsets)


def frequent(texts: Texts, count: int, always: Sequence[int] = ()) -> np.ndarray:
    """Return the `count` tokens that are most often among a target's four most probable, ascending.

    Args:
        always: tokens that are among them in any case.
    """
    counts = np.bincount(texts.top[:, :4].ravel(), minlength=2**16)
    counts[list(always)] = counts.max() + 1
    return np.sort(np.argsort(-counts, kind="stable")[:count])


class Batches:
    """Endless batches of texts of similar length; the n-th depends on the seed and n alone."""

    def __init__(self, lengths: np.ndarray, seed: Sequence[int]) -> None:
        self.lengths, self.random = lengths, np.random.default_rng(list(seed))
        self.queue: list[np.ndarray] = []

    def batch(self, count: int) -> np.ndarray:
        """Return the numbers of the next `count` texts, int64."""
        if not self.queue:
            order = self.random.permutation(len(self.lengths))
            order = order[: max(count, len(order) // count * count)]
            nearby = 64 * count  # texts among which those of similar length are put together
            for begin in range(0, len(order), nearby):
                part = order[begin : begin + nearby]
                order[begin : begin + nearby] = part[np.argsort(self.lengths[part], kind="stable")]
            batches = np.array_split(order, max(1, len(order) // count))
            self.queue = [batches[index] for index in self.random.permutation(len(batches))]
        return self.queue.pop()

    def skip(self, batches: int, count: int) -> None:
        """Forget the next batches."""
        for _ in range(batches):
            self.batch(count)


@dataclass(frozen=True)
class Placed:
    """A batch for a loss: padded ids, the places that predict answers, and what the target says there.

    Attributes:
        ids: (B, n) int64.
        places: (p,) indices into the flattened (B * n) places.
        top: (p, TOP) int64, indices into the softmax's tokens; -1 for a token that is not among them.
        shares: (p, TOP) float32.
    """

    ids: Tensor
    places: Tensor
    top: Tensor
    shares: Tensor


def placed(texts: Texts, numbers: np.ndarray, index: np.ndarray) -> Placed:
    """Lay out texts `numbers`; `index` (2**16,) maps a token id to its place in the softmax, or -1."""
    rows = list[np.ndarray]()
    places, spans = list[np.ndarray](), list[np.ndarray]()
    longest = int(texts.lengths[numbers].max()) - 1
    for row, number in enumerate(numbers.tolist()):
        prompt = texts.prompts[texts.prompt_offsets[number] : texts.prompt_offsets[number + 1]]
        first, last = texts.answer_offsets[number : number + 2]
        ids = np.concatenate([prompt, texts.answers[first : last - 1]])
        rows.append(np.pad(ids.astype(np.int64), (0, longest - len(ids))))
        places.append(row * longest + np.arange(len(prompt) - 1, len(ids)))
        spans.append(np.arange(first, last))
    span = np.concatenate(spans)
    return Placed(
        torch.from_numpy(np.stack(rows)),
        torch.from_numpy(np.concatenate(places)),
        torch.from_numpy(index[texts.top[span]]),
        torch.from_numpy(texts.shares[span].astype(np.float32)),
    )


def scores(draft: Any, batch: Placed, head: Tensor, runtime: Runtime) -> Tensor:
    """Return (p, K) float32 log-probabilities of the draft over the softmax's K tokens, whose (K, h) head is given."""
    with runtime.precision():
        hidden = draft.model(input_ids=batch.ids, use_cache=False).last_hidden_state
        logits = hidden.flatten(0, 1)[batch.places] @ head.T
    return logits.float().log_softmax(-1)


def answers_loss(draft: Any, texts: Texts, tokens: np.ndarray, variation: float, runtime: Runtime) -> Loss:
    """Return the loss of a batch of texts, given by their numbers: cross-entropy against the target's probabilities.

    Args:
        draft: from `models.pruned.pruned`.
        texts: what the numbers number.
        tokens: (K,) ids of the softmax.
        variation: weight of the total variation distance, which is what sampled drafting pays for; the cross-entropy
            has the rest.
        runtime: how it runs.
    """
    index = np.full(2**16, -1, np.int64)
    index[tokens] = np.arange(len(tokens))
    head = draft.lm_head.weight[torch.from_numpy(tokens)].detach()

    def loss(numbers: Tensor) -> Tensor:
        batch = placed(texts, numbers.numpy(), index)
        found = scores(draft, batch, head, runtime)
        shares = torch.where(batch.top >= 0, batch.shares, 0.0)
        chosen = found.gather(1, batch.top.clamp_min(0))
        entropy = -(shares * chosen).sum(-1).mean()
        if not variation:
            return entropy
        distance = 1 - torch.minimum(shares, chosen.exp()).sum(-1).mean()
        return (1 - variation) * entropy + variation * distance

    return loss


@torch.no_grad()
def agreement(
    draft: Any, texts: Texts, tokens: np.ndarray | None, runtime: Runtime, batch: int = 32
) -> dict[str, dict[str, float]]:
    """Compare the draft with the target on texts, by kind of task and in all.

    Args:
        tokens: ids of the softmax; None is the whole vocabulary.

    Returns:
        kind -> number of tokens, `first` (how often their most probable tokens agree), `overlap` (sum over the target's
        `TOP` tokens of the smaller of both probabilities) and `loss` in nats.
    """
    tokens = np.arange(len(draft.lm_head.weight)) if tokens is None else tokens
    index = np.full(2**16, -1, np.int64)
    index[tokens] = np.arange(len(tokens))
    head = draft.lm_head.weight[torch.from_numpy(tokens)]
    sums: dict[str, np.ndarray] = {}
    draft.eval()
    for numbers in np.array_split(np.argsort(texts.lengths, kind="stable"), max(1, len(texts) // batch)):
        laid = placed(texts, numbers, index)
        found = scores(draft, laid, head, runtime)
        shares = torch.where(laid.top >= 0, laid.shares, 0.0)
        chosen = found.gather(1, laid.top.clamp_min(0))
        figures = torch.stack(
            [
                torch.ones(len(found)),
                (found.argmax(-1) == laid.top[:, 0]).float(),
                torch.minimum(shares, chosen.exp()).sum(-1),
                -(shares * chosen).sum(-1),
            ]
        ).numpy()
        lengths = np.diff(texts.answer_offsets)[numbers]
        for kind, part in zip(texts.kinds[numbers], np.split(figures, np.cumsum(lengths)[:-1], axis=1), strict=True):
            for name in (str(kind), "all"):
                sums[name] = sums.get(name, np.zeros(4)) + part.sum(1)
    draft.train()
    return {
        kind: {
            "tokens": int(total[0]),
            **dict(zip(("first", "overlap", "loss"), (total[1:] / total[0]).tolist(), strict=True)),
        }
        for kind, total in sorted(sums.items())
    }
