"""Engines: what runs one forward of a model. All give the same logits up to rounding, and a load-time check says so.

A decoder asks for a few rows at a time, so most of a small model's forward is calls and the reading of weights; how
few calls, and how the weights lie in memory, is what engines differ in.
"""

from __future__ import annotations

from typing import Any, Literal, Protocol, get_args

import torch
from transformers import PreTrainedModel

from .lean import LeanGPTNeoX
from .packed import PackedGPTNeoX

EngineName = Literal["auto", "eager", "lean", "packed"]
"""`eager` is transformers' own forward; `lean` its arithmetic on the same weights in a third of the calls (GPT-NeoX);
`packed` the same again with matrices joined and copied into oneDNN's layout (CPU, float32 and bfloat16); `auto` the
last of these that serves the model, where the copies take at most `LARGEST_COPY`."""
LARGEST_COPY = 2**30
"""Bytes of weights up to which `auto` packs, because packed weights are a second copy."""


class Engine(Protocol):
    """Runs forwards of one model."""

    name: str

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: Any, keep: int
    ) -> torch.Tensor:
        """(B, keep, V) logits of the last `keep` of n rows of B sequences.

        Args:
            ids: (B, n) int64 token ids.
            positions: (B, n) int64 positions.
            mask: (B, 1, n, m) additive mask over all m cache columns, these rows' own included; None where each row
                sees the cache and the rows before it, for an empty cache or a single row.
            cache: `update(key, value, layer)` takes (B, H, n, D) states and returns (B, H, m, D) of all columns.
            keep: rows to compute logits of.
        """
        ...


class Eager:
    """transformers' own forward."""

    name = "eager"

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model

    def __call__(self, ids: torch.Tensor, positions: torch.Tensor, mask: Any, cache: Any, keep: int) -> torch.Tensor:
        """See `Engine`; a model with several types of layers takes a mask for each, in a dict."""
        output = self.model(
            input_ids=ids,
            position_ids=positions,
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        logits: torch.Tensor = output.logits
        return logits


def check_engine(choice: str) -> None:
    """Raise ValueError for a name that is no engine's."""
    if choice not in get_args(EngineName):
        raise ValueError(f"engine is {choice!r}; choose from {', '.join(get_args(EngineName))}.")


def engine_of(model: PreTrainedModel, choice: EngineName = "auto") -> Engine:
    """The engine of this name for a model.

    Raises:
        ValueError: for an unknown name, or one that cannot serve this model; the sentence says what can.
    """
    check_engine(choice)
    if choice in ("packed", "auto"):
        small = sum(weight.nbytes for weight in model.parameters()) <= LARGEST_COPY
        packed = PackedGPTNeoX.of(model) if choice == "packed" or small else None
        if packed is not None:
            return packed
    lean = LeanGPTNeoX.of(model) if choice in ("lean", "auto") else None
    if lean is None and choice in ("lean", "packed"):
        raise ValueError(
            f"Engine '{choice}' cannot run this {model.config.model_type} model in {model.dtype} on {model.device}: "
            "'lean' serves GPT-NeoX models with sdpa attention on one device, 'packed' those with parallel residuals "
            "in float32 or bfloat16 on a CPU whose torch has oneDNN; use engine='auto'."
        )
    return lean or Eager(model)
