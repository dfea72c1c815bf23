"""The losses of drafts made of their target's layers: what the target would say at every place of its texts.

The target's features are stored (`texts`), and its probabilities are its head's of them. A draft on features goes over
a window several times: first with the target's features, then with its own of the time before, as HASS and EAGLE-3
train theirs. So at step k it is where a drafter is at the k-th level of a chain: k - 1 features in a row are its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
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
    places = torch.arange(window.ids.shape[1], device=embedded.device)
    back = places[:, None] - places
    past: list[list[tuple[Tensor, Tensor]]] = [[] for _ in core.layers]
    out = list[Tensor]()
    for step in range(steps):
        seen = torch.cat([back >= step, *(back == step - other for other in range(1, step + 1))], 1)
        hidden = draft.joint(embedded, entering)
        for layer, read in zip(core.layers, past, strict=True):
            hidden = hidden + _attended(layer.self_attn, layer.input_layernorm(hidden), turn, read, seen)
            hidden = hidden + layer.mlp(layer.post_attention_layernorm(hidden))
        out.append(core.norm(hidden))
        entering = torch.cat([entering[:, :1].to(out[-1]), out[-1][:, :-1]], 1)
    return out


def _attended(
    attention: Any, hidden: Tensor, turn: tuple[Tensor, Tensor], past: list[tuple[Tensor, Tensor]], seen: Tensor
) -> Tensor:
    """Attention of one step; its (B, G, n, D) keys and values are appended to those of the steps before."""
    query, key, value = (
        part(hidden).unflatten(-1, (-1, attention.head_dim)).transpose(1, 2)
        for part in (attention.q_proj, attention.k_proj, attention.v_proj)
    )
    query, key = apply_rotary_pos_emb(query, key, *turn)
    past.append((key.to(value.dtype), value))
    keys, values = (torch.cat(states, 2) for states in zip(*past, strict=True))
    mixed = functional.scaled_dot_product_attention(query.to(value.dtype), keys, values, seen, enable_gqa=True)
    return attention.o_proj(mixed.transpose(1, 2).flatten(2))


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
        return _head_loss(
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


def _head_loss(found: Tensor, states: Tensor, weights: Tensor, head: Tensor, variation: float, slope: Slope) -> Tensor:
    """Sum the weighted losses of (steps, N, h) predicted features against (N, h) of the target.

    The softmax is large. So a few rows are computed at a time, the gradient with the loss, and no logits are kept.
    """
    gradients, total = torch.empty_like(found), 0.0
    states, across = states.to(head.dtype), head.T.contiguous()
    with torch.no_grad():
        for first in range(0, len(states), ROWS):
            rows = slice(first, first + ROWS)
            wanted = (states[rows] @ across).float().softmax(-1)
            for step, weight in enumerate(weights[:, rows]):
                part, slopes = slope(found[step, rows].to(head.dtype) @ across, wanted, variation)
                total += float((weight * part).sum())
                gradients[step, rows] = ((weight[:, None] * slopes).to(head.dtype) @ head).to(gradients.dtype)
    known = (found * gradients).sum()
    return total + (known - known.detach())  # the value of the loss, with its gradient


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
    head, found = whole[drafted], list[tuple[str, float, np.ndarray]]()  # kind, temperature, figures by place
    draft.eval()
    begins = np.maximum(texts.lengths - windows.length - 1, 0)
    for numbers in np.array_split(np.arange(len(texts)), max(1, len(texts) // batch)):
        window = windows.placed(np.stack([numbers, begins[numbers]], 1))
        with runtime.precision():
            every = (_last(window, whole).to(whole.dtype) @ whole.T).float().softmax(-1)
            states = predicted(draft, window, LEVELS)
            given = [(state @ head.T).float().log_softmax(-1) for state in states]
        best, wanted = every.argmax(-1), every[..., drafted]  # the best token may be one that is never drafted
        hits = [(drafted[part.argmax(-1)] == best).float() for part in given]
        overlaps = [torch.minimum(wanted, part.exp()).sum(-1) for part in given]
        loss = -(wanted / wanted.sum(-1, keepdim=True) * given[0]).sum(-1)
        figures = torch.stack([*hits, *overlaps, loss]).numpy()  # (2 LEVELS + 1, B, n)
        for number, of_text, used in zip(numbers, figures.swapaxes(0, 1), window.seen & window.answer, strict=True):
            if used.any():
                found.append((str(texts.kinds[number]), float(texts.temperatures[number]), of_text[:, used]))
    draft.train()
    out: dict[str, dict[str, Any]] = {}
    for name in ("all", *sorted({kind for kind, *_ in found})):
        mine = [(heat, figures) for kind, heat, figures in found if name in ("all", kind)]
        joined = np.concatenate([figures for _, figures in mine], 1)
        mean = joined.mean(1).tolist()
        greedy, sampled = (
            _chain(figures[part] for heat, figures in mine if heat == wanted_heat)
            for wanted_heat, part in ((0, slice(LEVELS)), (1, slice(LEVELS, -1)))
        )
        out[name] = {
            "tokens": joined.shape[1], "first": mean[:LEVELS], "overlap": mean[LEVELS:-1], "loss": mean[-1],
            "greedy": greedy, "sampled": sampled,
        }  # fmt: skip
    return out


def _chain(accepted: Iterable[np.ndarray]) -> float | None:
    """Mean tokens of an iteration with a chain, of how probably (LEVELS, places) tokens are accepted at each level."""
    tokens = list[float]()
    for levels in accepted:
        count = max(0, levels.shape[1] - LEVELS + 1)
        along = np.stack([level[place : place + count] for place, level in enumerate(levels)])
        tokens += (1 + np.cumprod(along, 0).sum(0)).tolist()
    return float(np.mean(tokens)) if tokens else None
