"""The losses of drafts made of their target's layers: what the target would say at every place of its texts.

The target's features are stored (`texts`), and its probabilities are its head's of them. A draft on features goes over
a window several times: first with the target's features, then with its own of the time before, as HASS and EAGLE-3
train theirs. So at step k it is where a drafter is at the k-th level of a chain: k - 1 features in a row are its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional
from transformers.models.llama.modeling_llama import apply_rotary_pos_emb

from .optimize import Loss, Runtime
from .texts import Window, Windows

Slope = Callable[[Tensor, Tensor, float], tuple[Tensor, Tensor]]
ROWS = 256
"""Places whose logits are in memory at a time, so that they stay in the processor's cache."""
LEVELS = 4
"""Steps at which a draft is compared with its target."""


def predicted(draft: Any, window: Window, steps: int) -> list[Tensor]:
    """Return the last hidden states (B, n, h) of a draft over a window, at its first to last step.

    A draft that reads tokens alone is at every step where it was at the first.
    """
    if hasattr(draft, "joint"):
        return unrolled(draft, window, steps)
    output = draft.model(input_ids=window.ids, position_ids=window.positions, use_cache=False)
    return [output.last_hidden_state] * steps


def unrolled(draft: Any, window: Window, steps: int) -> list[Tensor]:
    """Return the features (B, n, h) that a draft predicts at its first to last step over a window.

    At step k a token comes with the feature that step k - 1 predicted for the place before it. Like a node at level k
    of a chain, it sees the tokens up to k - 1 places back as step 1 read them, and those after as steps 2, ..., k did.
    """
    core = draft.model
    embedded, entering = core.embed_tokens(window.ids), window.states[:, :-1]
    if hasattr(draft, "fusion"):
        entering = draft.fusion(entering)
    turn = core.rotary_emb(embedded, window.positions)
    past: list[list[tuple[Tensor, Tensor]]] = [[] for _ in core.layers]
    out = list[Tensor]()
    for _ in range(steps):
        hidden = draft.joint(embedded, entering)
        for layer, read in zip(core.layers, past, strict=True):
            hidden = hidden + _attended(layer.self_attn, layer.input_layernorm(hidden), turn, read)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        out.append(core.norm(hidden))
        entering = torch.cat([entering[:, :1].to(out[-1]), out[-1][:, :-1]], 1)
    return out


def _attended(attention: Any, hidden: Tensor, turn: tuple[Tensor, Tensor], past: list[tuple[Tensor, Tensor]]) -> Tensor:
    """Attention of one step; its (B, G, n, D) keys and values are appended to those of the steps before."""
    batch, count, _ = hidden.shape
    size = attention.head_dim
    query, key, value = (
        part(hidden).view(batch, count, -1, size).transpose(1, 2)
        for part in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    query, key = apply_rotary_pos_emb(query, key, *turn)
    query, key = query.to(value.dtype), key.to(value.dtype)
    past.append((key, value))
    step = len(past)
    if step == 1:
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True, enable_gqa=True)
    else:
        rows = query.unflatten(1, (key.shape[1], -1))  # (B, G, heads of a group, n, D)
        first_keys, first_values = (part[:, :, None] for part in past[0])
        unseen = torch.ones(count, count, dtype=torch.bool).triu(2 - step).to(hidden.device)
        far = (rows @ first_keys.transpose(-1, -2)).masked_fill(unseen, -torch.inf)
        near = [
            (_later(keys, step - number), _later(values, step - number))
            for number, (keys, values) in enumerate(past[1:], 2)
        ]
        scores = torch.cat([far, *((rows * keys).sum(-1, keepdim=True) for keys, _ in near)], -1)
        shares = (scores.float() * attention.scaling).softmax(-1).to(value.dtype)
        mixed = shares[..., :count] @ first_values
        for number, (_, values) in enumerate(near, count):
            mixed = mixed + shares[..., number : number + 1] * values
        mixed = mixed.flatten(1, 2)
    return attention.o_proj(mixed.transpose(1, 2).flatten(2))


def _later(states: Tensor, places: int) -> Tensor:
    """(B, G, 1, n, D) states moved `places` along, zeros before them."""
    moved = functional.pad(states, (0, 0, places, 0))[:, :, : states.shape[2]]
    return moved[:, :, None]


def windows_loss(
    draft: Any, windows: Windows, tokens: np.ndarray, steps: int, fading: float, variation: float, runtime: Runtime
) -> Loss:
    """Return the loss of a batch of windows: cross-entropy against the target's probabilities, at every step.

    Args:
        draft: from `models.pruned`.
        windows: what the batches pick from.
        tokens: (K,) ids of the softmax, the target's as well as the draft's.
        steps: of a draft on features; 1 for one that reads tokens alone.
        fading: weight of a step relative to the step before.
        variation: weight of the total variation distance, which is what sampled drafting pays for; the cross-entropy
            has the rest.
        runtime: how it runs.
    """
    head = draft.lm_head.weight.detach()[torch.from_numpy(tokens)]
    slope = torch.compile(losses_of, dynamic=False) if runtime.compile else losses_of  # five times as fast

    def loss(picks: Tensor) -> Tensor:
        window = windows.placed(picks.numpy())
        with runtime.precision():
            found = predicted(draft, window, steps)
            used = window.seen.repeat(steps, 1, 1)
            for step in range(steps):
                used[step, :, :step] = False  # these places have no feature of the step before
            weights = used.float() * (fading ** torch.arange(steps))[:, None, None] / used.sum((1, 2), keepdim=True)
        dtype = torch.bfloat16 if runtime.autocast else head.dtype
        return _HeadLoss.apply(
            torch.stack(found).flatten(1, 2), _last(window, head).flatten(0, 1), weights.flatten(1), head.to(dtype),
            variation, slope,
        )  # fmt: skip

    return loss


def _last(window: Window, head: Tensor) -> Tensor:
    """(B, n, h) last hidden states of the target, those that its (V, h) head reads."""
    return window.states[:, 1:, -head.shape[1] :]


def losses_of(logits: Tensor, wanted: Tensor, variation: float) -> tuple[Tensor, Tensor]:
    """Return the (n,) losses of (n, K) logits against (n, K) probabilities, and their gradient for the logits."""
    given = logits.float().log_softmax(-1)
    own = given.exp()
    part, slope = -(wanted * given).sum(-1), own - wanted
    if variation:
        caught = torch.where(own < wanted, own, 0.0)
        distance = 1 - torch.minimum(own, wanted).sum(-1)
        slope = (1 - variation) * slope - variation * (caught - own * caught.sum(-1, keepdim=True))
        part = (1 - variation) * part + variation * distance
    return part, slope


class _HeadLoss(torch.autograd.Function):
    """The loss over a large softmax, a few rows at a time: its gradient is made with it, and no logits are kept."""

    @staticmethod
    def forward(
        context: Any, found: Tensor, states: Tensor, weights: Tensor, head: Tensor, variation: float, slope: Slope
    ) -> Tensor:
        """Sum the weighted losses of (steps, N, h) predicted features against (N, h) of the target."""
        gradients, total = torch.empty_like(found), 0.0
        states, across = states.to(head.dtype), head.T.contiguous()
        for first in range(0, len(states), ROWS):
            rows = slice(first, first + ROWS)
            wanted = (states[rows] @ across).float().softmax(-1)
            for step, weight in enumerate(weights[:, rows]):
                part, slopes = slope(found[step, rows].to(head.dtype) @ across, wanted, variation)
                total += float((weight * part).sum())
                gradients[step, rows] = ((weight[:, None] * slopes).to(head.dtype) @ head).to(gradients.dtype)
        context.save_for_backward(gradients)
        return found.new_tensor(total)

    @staticmethod
    def backward(context: Any, *outer: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradient for the predicted features."""
        (gradients,) = context.saved_tensors
        return gradients * outer[0], None, None, None, None, None


@torch.no_grad()
def chain_agreement(
    draft: Any, windows: Windows, tokens: np.ndarray, runtime: Runtime, batch: int = 16
) -> dict[str, dict[str, Any]]:
    """Compare the draft with the target on the ends of texts, by kind of task and in all.

    Returns:
        kind -> number of `tokens`; for each of `LEVELS` steps `first`, how often the most probable tokens agree, and
        `overlap`, the mass that both distributions share (tokens that are never drafted count on the target's side);
        `loss` of the first step in nats, over the drafted tokens alone; `greedy` and `sampled`, the
        tokens that an iteration with a chain of `LEVELS` would commit, the bonus token included, if iterations began
        at every place of greedy texts and of texts at temperature 1; None where there are none.
    """
    whole, texts, drafted = draft.lm_head.weight, windows.texts, torch.from_numpy(tokens)
    head = whole[drafted]
    rows: dict[str, list[np.ndarray]] = {}
    chains: dict[tuple[str, str], list[float]] = {}
    draft.eval()
    begins = np.maximum(texts.lengths - windows.length - 1, 0)
    for numbers in np.array_split(np.arange(len(texts)), max(1, len(texts) // batch)):
        window = windows.placed(np.stack([numbers, begins[numbers]], 1))
        with runtime.precision():
            every = (_last(window, whole).to(whole.dtype) @ whole.T).float().softmax(-1)
            states = predicted(draft, window, LEVELS)
            given = [(state @ head.T).float().log_softmax(-1) for state in states]
        best, wanted = every.argmax(-1), every[..., drafted]  # the best token may be one that is never drafted
        hits = torch.stack([(drafted[part.argmax(-1)] == best) for part in given]).numpy()  # (LEVELS, B, n)
        overlaps = torch.stack([torch.minimum(wanted, part.exp()).sum(-1) for part in given]).numpy()
        losses = -(wanted / wanted.sum(-1, keepdim=True) * given[0]).sum(-1).numpy()
        used = (window.seen & window.answer).numpy()
        for row, number in enumerate(numbers.tolist()):
            columns = np.flatnonzero(used[row])
            if not len(columns):
                continue
            figures = np.concatenate([hits[:, row, columns], overlaps[:, row, columns], losses[None, row, columns]])
            begin = columns[: max(0, len(columns) - LEVELS + 1)]
            along = begin + np.arange(LEVELS)[:, None]
            kind = str(texts.kinds[number])
            for name in (kind, "all"):
                rows.setdefault(name, []).append(figures)
                for heat, accepted, label in ((0, hits, "greedy"), (1, overlaps, "sampled")):
                    if texts.temperatures[number] == heat:
                        taken = accepted[np.arange(LEVELS)[:, None], row, along].astype(float)
                        chains.setdefault((name, label), []).extend(1 + np.cumprod(taken, 0).sum(0))
    draft.train()
    out: dict[str, dict[str, Any]] = {}
    for name, parts in sorted(rows.items()):
        figures = np.concatenate(parts, 1)
        mean = figures.mean(1).tolist()
        out[name] = {
            "tokens": figures.shape[1], "first": mean[:LEVELS], "overlap": mean[LEVELS:-1], "loss": mean[-1],
            **{
                label: float(np.mean(chains[name, label])) if chains.get((name, label)) else None
                for label in ("greedy", "sampled")
            },
        }  # fmt: skip
    return out
