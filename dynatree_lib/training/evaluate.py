"""How well a pair reads held-out text: losses, divergence, agreement, and whether late positions are read as well.

Always in float32 and with the weights as they are stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch


@torch.no_grad()
def held_out_losses(
    target: Any,
    draft: Any,
    tokens: Mapping[str, np.ndarray],
    byte_lengths: np.ndarray,
    length: int,
    limit: int,
    device: str,
) -> dict[str, dict[str, float]]:
    """Per part, in float32: nats per token and bits per byte of both models, their KL, and how often their top-1 agree.

    At most `limit` windows of `length` predicted tokens, evenly spread over the held-out text. `byte_lengths` (V,) is
    the number of bytes each token stands for.
    """
    target.eval().set_attn_implementation("sdpa")
    draft.eval().set_attn_implementation("sdpa")
    return {name: _losses(target, draft, text, byte_lengths, length, limit, device) for name, text in tokens.items()}


def _losses(
    target: Any, draft: Any, text: np.ndarray, byte_lengths: np.ndarray, length: int, limit: int, device: str
) -> dict[str, float]:
    length = min(length, len(text) - 1)
    starts = np.arange(0, len(text) - length, length)
    starts = starts[:: max(1, len(starts) // limit)][:limit]
    sums, count, size = torch.zeros(4, dtype=torch.float64), 0, 0
    for begin in range(0, len(starts), 8):
        ids = torch.from_numpy(
            np.stack([text[s : s + length + 1] for s in starts[begin : begin + 8]]).astype(np.int64)
        ).to(device)
        distributions = [
            model(input_ids=ids[:, :-1], use_cache=False).logits.float().log_softmax(-1) for model in (target, draft)
        ]
        labels = ids[:, 1:, None]
        sums += (
            torch.stack(
                [
                    -distributions[0].gather(2, labels).sum(),
                    -distributions[1].gather(2, labels).sum(),
                    (distributions[0].exp() * (distributions[0] - distributions[1])).sum(),
                    (distributions[0].argmax(-1) == distributions[1].argmax(-1)).sum(),
                ]
            )
            .double()
            .cpu()
        )
        count += labels.numel()
        size += int(byte_lengths[ids[:, 1:].cpu().numpy()].sum())
    target_nats, draft_nats, divergence, agreement = (sums / count).tolist()
    bits = count / size / float(np.log(2))
    return {
        "tokens": count,
        "target_nats_per_token": target_nats,
        "target_bits_per_byte": target_nats * bits,
        "draft_nats_per_token": draft_nats,
        "draft_bits_per_byte": draft_nats * bits,
        "kl_nats_per_token": divergence,
        "top1_agreement": agreement,
    }


@torch.no_grad()
def nats_by_position(model: Any, text: np.ndarray, length: int, windows: int, device: str) -> dict[str, float]:
    """Mean nats per token over `windows` windows of `length` tokens, per fifth of the positions ("0-511", ...).

    A model that cannot use the far end of its context shows it here: the late fifths rise. Empty for too short a text.
    """
    model.eval().set_attn_implementation("sdpa")
    count = windows if len(text) > length else 0
    starts = np.linspace(0, len(text) - length - 1, count).astype(int)
    rows = [torch.from_numpy(text[start : start + length + 1].astype(np.int64)).to(device)[None] for start in starts]
    losses = [
        torch.nn.functional.cross_entropy(
            model(input_ids=ids[:, :-1], use_cache=False).logits[0].float(), ids[0, 1:], reduction="none"
        )
        for ids in rows
    ]
    if not losses:
        return {}
    mean, edges = torch.stack(losses).mean(0), np.linspace(0, length, 6).astype(int)
    spans = zip(edges[:-1].tolist(), edges[1:].tolist(), strict=True)
    return {f"{low}-{high - 1}": mean[low:high].mean().item() for low, high in spans}
