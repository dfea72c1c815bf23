"""How good a pair is: how well it reads held-out text, and how often the draft is right on other prompts.

Losses, divergence, agreement and whether late positions are read as well are always computed in float32 and with the
weights as they are stored. Acceptance is tokens per iteration of a chain and a tree, greedy and sampled, by task, and
on the texts that repeat themselves least, because a target that loops is easy to draft for. There is no clock.

`python -m dynatree_lib.training.evaluate FOLDER` adds the acceptance to a finished pair's card.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn import functional

from ..decoding import Generation, generate
from ..drafters import Chain, FixedTree
from ..models.pairs import Pair, load_pair
from ..sampling import Sampling
from ..summary import repeated_ngrams, summarize
from ..workloads import Prompt, load_workload
from .card import CARD, write_card

LENGTH = 512  # predicted tokens of a window
WINDOWS = 64  # most windows of a text
POSITION_WINDOWS = 16
LONG_TEXT = "pg19"  # one document much longer than the context
NEW_TOKENS = 128  # of a text that measures acceptance


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


def measure_acceptance(pair: Pair, prompts: Sequence[Prompt], source: str) -> dict[str, Any]:
    """Measure tokens per iteration (bonus token included) and repeated 4-gram shares.

    Args:
        pair: target and draft.
        prompts: held out from their training.
        source: sentence on where the prompts come from.
    """
    drafters = {"chain of 4": Chain(pair.draft, 4), "tree of depth 8": FixedTree(pair.draft, depth=8)}
    ids = [pair.tokenizer(prompt.text).input_ids for prompt in prompts]
    out: dict[str, Any] = {"prompts": source, "new tokens each": NEW_TOKENS}
    for name, sampling in (("greedy", Sampling()), ("sampled, temperature 1", Sampling(1.0))):
        options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": NEW_TOKENS, "eos_token_ids": ()}
        texts = {
            kind: [generate(pair.target, text, drafter, seed=seed, **options) for seed, text in enumerate(ids)]
            for kind, drafter in drafters.items()
        }
        out[name] = {f"tokens per iteration, {kind}": _rate(runs) for kind, runs in texts.items()}
        chain = texts["chain of 4"]
        repeated = np.array([repeated_ngrams(generation.tokens) or 0.0 for generation in chain])
        out[name]["repeated 4-grams"] = float(repeated.mean())
        out[name]["chain of 4 by task"] = {
            task: _rate([generation for generation, prompt in zip(chain, prompts, strict=True) if prompt.task == task])
            for task in dict.fromkeys(prompt.task for prompt in prompts)
        }
        least = np.argsort(repeated, kind="stable")[: max(1, len(prompts) // 3)]
        out[name]["the third that repeats least"] = {
            "repeated 4-grams": float(repeated[least].mean()),
            **{f"tokens per iteration, {kind}": _rate([runs[i] for i in least]) for kind, runs in texts.items()},
        }
    return out


def _rate(runs: list[Generation]) -> float:
    return round(summarize(runs).tokens_per_iteration, 3)


def add_to_card(folder: Path) -> dict[str, Any]:
    """Measure the pair in `folder` on the bundled prompts and write the figures into its card and model card."""
    workload = load_workload("bundled", source="bundled")
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    card["acceptance"] = measure_acceptance(load_pair(str(folder)), workload.prompts, workload.source)
    write_card(folder, card)
    return card["acceptance"]


if __name__ == "__main__":
    json.dump(add_to_card(Path(sys.argv[1])), sys.stdout, indent=1)
