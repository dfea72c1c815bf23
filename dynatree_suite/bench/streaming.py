"""`StreamingModel`: a rotary model whose cache keeps attention sinks and a recent window (StreamingLLM).

When a commit leaves more KV entries than the cache may hold, entries between the sinks and the window are dropped. The
other keys are rotated to their new places, because StreamingLLM (arXiv 2309.17453) counts positions in the cache and
not in the text. Until the first eviction the text is the model's own; after it the text is another, so every record
says "lossy". `HFSession` appends entries and masks trees.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from dynatree_lib.models.architecture import STEADY_FREQUENCIES
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.models.huggingface import HFModel, HFSession
from dynatree_lib.models.proof import TOLERANCE


class StreamingModel(LanguageModel):
    """A rotary transformers model read through a cache of bounded size.

    Args:
        base: the model; it is not changed.
        cache: most committed KV entries between iterations.
        sinks: first entries of the text, never evicted.
        block: an eviction frees at least this many entries, so that a key is rotated at most `cache / block` times
            (each rotation rounds in the cache's dtype); by default a sixteenth of the cache.

    Raises:
        ValueError: for a model without rotary positions, with positions that depend on the text's length, with
            sliding-window layers, or whose keys are rotated in another way than `rotate` does, and for sizes that leave
            no window.
    """

    def __init__(self, base: HFModel, cache: int = 1024, sinks: int = 4, block: int | None = None) -> None:
        block = max(1, cache // 16) if block is None else block
        if sinks < 0 or block < 1 or cache - block <= sinks:
            raise ValueError(
                f"A streaming cache of {cache} entries, {sinks} of them sinks, in blocks of {block} leaves no recent "
                "window; give cache > sinks + block, sinks >= 0 and block >= 1."
            )
        if cache >= base.context:
            raise ValueError(
                f"The streaming cache has {cache} entries and '{base.name}' reads {base.context}; give a smaller one."
            )
        self.rotary = rotary_embedding(base)
        _check_rotation(base, self.rotary)
        self.base, self.cache, self.sinks, self.block = base, cache, sinks, block
        self.name, self.vocab_size, self.context = base.name, base.vocab_size, base.context
        self.eos_token_ids, self.vocabulary, self.tokenizer = base.eos_token_ids, base.vocabulary, base.tokenizer

    @override
    def session(self) -> StreamingSession:
        return StreamingSession(self)

    def observed(self, around: Callable[..., Any]) -> StreamingModel:
        """Return the same model whose forwards are observed, as by `HFModel.observed`."""
        other = copy.copy(self)
        other.base = self.base.observed(around)
        return other


class StreamingSession(HFSession):
    """A session that evicts after a commit.

    Attributes:
        evictions: number of evictions since `start`.
        evicted: KV entries evicted in all. The text read so far has `position + evicted` tokens.
    """

    def __init__(self, model: StreamingModel) -> None:
        self.streaming = model
        super().__init__(model.base)

    def _reset(self) -> None:
        super()._reset()
        self.evictions, self.evicted = 0, 0

    @override
    def commit(self, path: Sequence[int]) -> None:
        super().commit(path)
        self._evict()

    @override
    def flush(self) -> None:
        super().flush()
        self._evict()

    @torch.inference_mode()
    def _evict(self) -> None:
        """Drop entries between sinks and window if the cache holds too many, and move the others together."""
        model, entries = self.streaming, self.length
        if entries <= model.cache:
            return
        left = model.cache - model.block
        recent = torch.arange(entries - (left - model.sinks), entries)
        old = torch.cat([torch.arange(model.sinks), recent]).to(model.base.device)
        new = torch.arange(left, device=old.device)
        states = self._cache.states
        dtype = torch.promote_types(states.dtype, torch.float32)
        angles = [_cos_sin(model.rotary, positions, dtype) for positions in (old, new)]
        remaining = states.index_select(4, old)
        states[:, 0, ..., :left, :] = rotate(remaining[:, 0], *angles)
        states[:, 1, ..., :left, :] = remaining[:, 1]
        self._cache.keep(0, np.arange(left))
        self.length, self.position = left, left + len(self._queue)
        self.evictions += 1
        self.evicted += entries - left


def rotary_embedding(model: HFModel) -> torch.nn.Module:
    """Return the module that gives a model its rotary cosines and sines.

    Raises:
        ValueError: if the model's positions are not rotary, or keys cannot be moved by a rotation alone.
    """
    modules = [module for name, module in model.model.named_modules() if name.split(".")[-1] == "rotary_emb"]
    if len(modules) != 1:
        raise ValueError(
            f"StreamingLLM moves keys by rotating them and '{model.name}' ({model.model.config.model_type}) has no "
            "rotary positions; use a GPT-NeoX, Llama, Qwen2 or Qwen3 model."
        )
    kind = getattr(modules[0], "rope_type", "default")
    if kind not in STEADY_FREQUENCIES:
        raise ValueError(
            f"The rotary positions of '{model.name}' are of kind '{kind}', whose angles may change with the text's "
            f"length, so that a cached key cannot be moved; supported kinds: {', '.join(STEADY_FREQUENCIES)}."
        )
    if model.window is not None:
        raise ValueError(f"'{model.name}' has sliding-window layers of its own; StreamingLLM needs full attention.")
    return modules[0]


@torch.inference_mode()
def _check_rotation(model: HFModel, rotary: torch.nn.Module) -> None:
    """Read a few tokens at two places; the keys of every layer have to be `rotate`d into each other.

    They are not where only some layers have rotary positions, where pairs of neighbours turn instead of halves, or
    where the components that turn are not the first.
    """
    ids = np.arange(1, 5) % model.vocab_size
    places = [np.arange(first, first + len(ids)) for first in (0, 5)]
    keys = []
    for positions in places:
        cache = model.new_cache(0)
        model.run_forward(ids, positions, None, cache, 1)
        keys.append(cache.states[:, 0, ..., : cache.size, : cache.widths[0]])
    angles = [_cos_sin(rotary, torch.from_numpy(positions).to(keys[0].device), keys[0].dtype) for positions in places]
    off = (rotate(keys[0], *angles) - keys[1]).abs().max() / keys[1].abs().max()
    if not float(off) <= max(1e-4, TOLERANCE.get(model.dtype, 0.0)):
        raise ValueError(
            f"StreamingLLM moves keys by rotating them in halves, and those of '{model.name}' "
            f"({model.model.config.model_type}) turn in another way (off by {float(off):.2g} of the largest); use a "
            "GPT-NeoX, Llama, Qwen2 or Qwen3 model."
        )


def _cos_sin(rotary: torch.nn.Module, positions: torch.Tensor, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    like = torch.empty(0, dtype=dtype, device=positions.device)  # tells the module dtype and device, nothing else
    cos, sin = rotary(like, position_ids=positions[None])
    return cos[:, None], sin[:, None]


def rotate(
    keys: torch.Tensor, old: tuple[torch.Tensor, torch.Tensor], new: tuple[torch.Tensor, torch.Tensor]
) -> torch.Tensor:
    """Return keys as they would be had they been rotated to `new` instead of `old`.

    The old rotation is undone with the model's own cosines and sines rather than composed with the difference of
    angles: dividing by cos² + sin² undoes their rounding and any attention scaling exactly.

    Args:
        keys: (..., H, n, D); only the first R components are rotary (GPT-NeoX's `rotary_pct`).
        old: cosines and sines, (1, 1, n, R) each, halves repeated.
        new: the same for the new positions.
    """
    (old_cos, old_sin), (new_cos, new_sin) = old, new
    width = old_cos.shape[-1]
    turned, rest = keys[..., :width].to(old_cos.dtype), keys[..., width:]
    plain = (turned * old_cos - _half_turn(turned) * old_sin) / (old_cos**2 + old_sin**2)
    moved = plain * new_cos + _half_turn(plain) * new_sin
    return torch.cat([moved.to(keys.dtype), rest], -1)


def _half_turn(states: torch.Tensor) -> torch.Tensor:
    first, second = states.chunk(2, -1)
    return torch.cat([-second, first], -1)
