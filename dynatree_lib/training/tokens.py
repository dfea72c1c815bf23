"""The tokenizer of a pair, and text as token windows drawn by weight."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from ..paths import whole_file
from .corpus import END, Part


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


def encode_parts(
    tokenizer: Any, parts: Mapping[str, Part], cache: Path
) -> tuple[dict[str, np.ndarray], dict[str, np.ndarray]]:
    """Return training and held-out tokens of every part; `cache` is a .npz that the caller renews with the corpus."""
    if not cache.is_file():
        arrays = {
            f"{split}/{name}": encode(tokenizer, getattr(part, split))
            for name, part in parts.items()
            for split in ("train", "held_out")
        }
        with whole_file(cache) as file:
            np.savez(file, **arrays)  # type: ignore[arg-type]
    with np.load(cache) as stored:
        return ({name: stored[f"train/{name}"] for name in parts}, {name: stored[f"held_out/{name}"] for name in parts})


class Windows:
    """Endless windows of `length` tokens, parts drawn by weight, each part walked in shuffled order epoch by epoch.

    Every epoch cuts a part at a new random offset, except the `aligned` parts, whose texts stay whole. The n-th batch
    depends on the seed and n alone, so a resumed run calls `skip` and goes on exactly where it stopped.
    """

    def __init__(
        self,
        parts: Mapping[str, np.ndarray],
        weights: Mapping[str, float],
        length: int,
        seed: tuple[int, ...],
        aligned: frozenset[str] = frozenset(),
    ):
        # A part shorter than a window is repeated until it fills one.
        self.parts = [np.tile(tokens, -(-(length + 1) // len(tokens))) for tokens in parts.values()]
        self.aligned = [name in aligned for name in parts]
        shares = np.array([weights[name] for name in parts], dtype=np.float64)
        self.shares, self.length = shares / shares.sum(), length
        self.random = np.random.default_rng(list(seed))
        self.queues: list[list[int]] = [[] for _ in self.parts]

    def _next(self, part: int) -> int:
        if not self.queues[part]:
            spare = len(self.parts[part]) - self.length
            offset = 0 if self.aligned[part] else self.random.integers(0, min(self.length, spare))
            starts = np.arange(offset, spare + 1, self.length)
            self.queues[part] = self.random.permutation(starts).tolist()
        return self.queues[part].pop()

    def _draw(self, count: int) -> list[tuple[int, int]]:
        parts = self.random.choice(len(self.parts), size=count, p=self.shares).tolist()
        return [(part, self._next(part)) for part in parts]

    def skip(self, batches: int, count: int) -> None:
        """Forget the next `batches` batches of `count` windows."""
        for _ in range(batches):
            self._draw(count)

    def batch(self, count: int) -> np.ndarray:
        """Return the next `count` windows as int64 (count, length)."""
        windows = [self.parts[part][start : start + self.length] for part, start in self._draw(count)]
        return np.stack(windows).astype(np.int64)
