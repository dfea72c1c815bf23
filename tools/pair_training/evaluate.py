"""How well a pair reads held-out text: losses, divergence, agreement, and whether late positions are read as well.

They are computed in float32 and with the weights as they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch.nn import functional

LENGTH = 512  # predicted tokens of a window
WINDOWS = 64  # most windows of a text
POSITION_WINDOWS = 16
LONG_TEXT = "pg19"  # one document much longer than the context


@torch.no_grad()
def held_out_losses(target: Any, draft: Any, text: np.ndarray, byte_lengths: np.ndarray) -> dict[str, float]:
    """Compute nats per token and bits per byte of both models, their KL, and how often their top-1 agree.

    Args:
        target, draft: the models.
        text: (n,) held-out tokens; at most `WINDOWS` windows, evenly spread over it, are read.
        byte_lengths: (V,) number of bytes that each token stands for.
    """
    length = min(LENGTH, len(text) - 1)
    starts = np.arange(0, len(text) - length, length)
    starts = starts[:: max(1, len(starts) // WINDOWS)][:WINDOWS]
    sums, count, size = torch.zeros(4, dtype=torch.float64), 0, 0
    for begin in range(0, len(starts), 8):
        windows = text[starts[begin : begin + 8, None] + np.arange(length + 1)].astype(np.int64)
        ids = torch.from_numpy(windows).to(target.device)
        p, q = (
            model(input_ids=ids[:, :-1], use_cache=False).logits.float().log_softmax(-1) for model in (target, draft)
        )
        labels = ids[:, 1:, None]
        nats = -p.gather(2, labels).sum(), -q.gather(2, labels).sum()
        divergence, agreement = (p.exp() * (p - q)).sum(), (p.argmax(-1) == q.argmax(-1)).sum()
        sums += torch.stack([*nats, divergence, agreement]).double().cpu()
        count += labels.numel()
        size += int(byte_lengths[windows[:, 1:]].sum())
    target_nats, draft_nats, kl, same = (sums / count).tolist()
    bits = count / size / float(np.log(2))
    return {
        "tokens": count,
        "target_nats_per_token": target_nats,
        "target_bits_per_byte": target_nats * bits,
        "draft_nats_per_token": draft_nats,
        "draft_bits_per_byte": draft_nats * bits,
        "kl_nats_per_token": kl,
        "top1_agreement": same,
    }


@torch.no_grad()
def nats_by_position(model: Any, text: np.ndarray, length: int) -> dict[str, float]:
    """Compute mean nats per token over windows of `length` tokens, per fifth of the positions ("0-511", ...).

    A model that cannot use the far end of its context shows it here: the late fifths rise. Empty for too short a text.
    """
    if len(text) <= length:
        return {}
    total = torch.zeros(length, device=model.device)
    for start in np.linspace(0, len(text) - length - 1, POSITION_WINDOWS).astype(int):
        ids = torch.from_numpy(text[start : start + length + 1].astype(np.int64)).to(model.device)
        logits = model(input_ids=ids[None, :-1], use_cache=False).logits[0].float()
        total += functional.cross_entropy(logits, ids[1:], reduction="none")
    edges = np.linspace(0, length, 6).astype(int).tolist()
    return {f"{low}-{high - 1}": total[low:high].mean().item() / POSITION_WINDOWS for low, high in pairwise(edges)}


def held_out_figures(
    models: Mapping[str, Any], held_out: Mapping[str, np.ndarray], byte_lengths: np.ndarray, length: int
) -> dict[str, Any]:
    """Return losses per part, and per position in windows of `length` tokens of the longest held-out text."""
    for model in models.values():
        model.eval().set_attn_implementation("sdpa")
    losses = {name: held_out_losses(**models, text=text, byte_lengths=byte_lengths) for name, text in held_out.items()}
    longest = LONG_TEXT if LONG_TEXT in held_out else max(held_out, key=lambda part: len(held_out[part]))
    spans = {name: nats_by_position(model, held_out[longest], length) for name, model in models.items()}
    return {"held_out": losses, "nats_per_token_by_position": {"text": longest, **spans}}
