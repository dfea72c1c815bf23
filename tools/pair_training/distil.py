"""The two losses: next-token cross-entropy for the target, KL(target || draft) for the draft; and text on policy.

The draft learns from the target's whole next-token distribution at every position, on corpus text and on text that the
target wrote, because a drafter in use meets the target's own text, loops and errors included.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

from dynatree_lib.models.engine import cache_name
from dynatree_lib.models.huggingface import in_dtype
from dynatree_suite.training.optimize import Batches, Log, Loss, Runtime

from .corpus import windows
from .recipe import FreshModel, Recipe

ON_POLICY = "on-policy"


def build_model(recipe: FreshModel, vocab_size: int, seed: int, end: int = 0) -> Any:
    """Initialise a GPTNeoXForCausalLM in float32; `end` is the id of bos, eos and pad.

    Output projections start at zero, so that every layer starts as the identity.
    """
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    shape = dict(recipe.shape)
    rotary = {"rope_type": "default", "rope_theta": 10000.0, "partial_rotary_factor": shape.pop("rotary_pct")}
    special = dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), end)
    config = GPTNeoXConfig(
        vocab_size=vocab_size, rope_parameters=rotary, use_parallel_residual=True, **special, **shape
    )
    torch.manual_seed(seed)
    model = GPTNeoXForCausalLM(config).float()
    for layer in model.gpt_neox.layers:
        nn.init.zeros_(layer.attention.dense.weight)
        nn.init.zeros_(layer.mlp.dense_4h_to_h.weight)
    return model


def inherit_embeddings(draft: Any, target: Any) -> None:
    """Start a narrower draft's token table at the target's principal components, at the draft's own scale.

    Half of a small draft's weights are its token table; this hands over the target's knowledge of the tokens.
    """
    table = target.get_input_embeddings().weight.detach().float()
    own = draft.get_input_embeddings().weight
    width = min(own.shape[1], table.shape[1])
    directions = torch.linalg.svd(table - table.mean(0), full_matrices=False)[2][:width]
    projected = table @ directions.T
    with torch.no_grad():
        own[:, :width].copy_(projected * (own.std() / projected.std()))


def _logits(model: Any, ids: Tensor) -> Tensor:
    logits: Tensor = model.lm_head(model.gpt_neox(input_ids=ids, use_cache=False).last_hidden_state)
    return logits


def target_loss(model: Any, runtime: Runtime) -> Loss:
    """Return the mean cross-entropy in nats of ids[:, 1:] given the tokens before; ids int64 (batch, length + 1)."""

    def loss(ids: Tensor) -> Tensor:
        with runtime.precision():
            logits = _logits(model, ids[:, :-1])
        return functional.cross_entropy(logits.float().flatten(0, 1), ids[:, 1:].flatten())

    return loss


def draft_loss(draft: Any, target: Any, runtime: Runtime) -> Loss:
    """Return the mean KL(target || draft) in nats over all positions of ids, int64 (n, length), at temperature 1."""

    def loss(ids: Tensor) -> Tensor:
        with runtime.precision():
            with torch.no_grad():
                wanted = _logits(target, ids)
            given = _logits(draft, ids)
        wanted, given = wanted.float().log_softmax(-1), given.float().log_softmax(-1)
        return (wanted.exp() * (wanted - given)).sum(-1).mean()

    return loss


def target_batches(tokens: Mapping[str, np.ndarray], recipe: Recipe) -> Batches:
    """Return the target's text by phase; a window has one token more than the phase's length, the last label."""
    return lambda index, phase: windows(tokens, recipe.parts, phase.length + 1, phase.batch, (recipe.seed, 0, index))


def draft_batches(tokens: Mapping[str, np.ndarray], own: np.ndarray, recipe: Recipe) -> Batches:
    """Return the draft's text by phase: the mixture, and the recipe's share of the target's own text (rows, width)."""
    share, parts, weights = recipe.on_policy.share, dict(tokens), dict(recipe.parts)
    if share > 0:
        weights[ON_POLICY] = share / (1 - share) * sum(weights.values())
        parts[ON_POLICY] = own.reshape(-1)
    return lambda index, phase: windows(
        parts, weights, phase.length, phase.batch, (recipe.seed, 1, index), aligned=(ON_POLICY,)
    )


def continue_text(model: Any, prefixes: Tensor, temperatures: Tensor, width: int, random: torch.Generator) -> Tensor:
    """Continue prefixes (n, p) to (n, width) with a KV cache; temperatures (n,), 0 for greedy."""
    from transformers import DynamicCache

    text, cache, fresh = prefixes, DynamicCache(), prefixes
    cold, heat = temperatures <= 0, temperatures.clamp_min(1e-6)[:, None]
    while text.shape[1] < width:
        out = model(input_ids=fresh, use_cache=True, logits_to_keep=1, **{cache_name(model): cache})
        logits = out.logits[:, -1].float()
        sampled = torch.multinomial((logits / heat).softmax(-1), 1, generator=random)[:, 0]
        fresh = torch.where(cold, logits.argmax(-1), sampled)[:, None]
        text = torch.cat([text, fresh], dim=1)
    return text


@torch.no_grad()
def write_on_policy(
    target: Any, tokens: Mapping[str, np.ndarray], recipe: Recipe, runtime: Runtime, log: Log
) -> np.ndarray:
    """Write about `on_policy.tokens` tokens of the target's own text, int32 (n, longest prefix + continuation).

    A copy of the target in bfloat16 writes it when the run uses autocast: the text only has to be typical of it.
    """
    plan = recipe.on_policy
    shortest, longest = plan.prefix
    source = windows(tokens, recipe.parts, longest, plan.batch, (recipe.seed, 2))
    random = torch.Generator(runtime.device).manual_seed(recipe.seed)
    lengths = np.random.default_rng([recipe.seed, 3])
    dealt = [plan.temperatures[number % len(plan.temperatures)] for number in range(plan.batch)]
    temperatures = torch.tensor(dealt, device=runtime.device)
    target.eval().set_attn_implementation("sdpa")
    writer = in_dtype(target, torch.bfloat16) if runtime.autocast else target
    texts: list[np.ndarray] = []
    while len(texts) * plan.batch * plan.continuation < plan.tokens:
        prefixes = runtime.place(next(source))[:, : int(lengths.integers(shortest, longest + 1))]
        text = continue_text(writer, prefixes, temperatures, longest + plan.continuation, random)
        texts.append(text.cpu().numpy().astype(np.int32))
        log(f"on-policy text: {len(texts) * plan.batch * plan.continuation:,} of {plan.tokens:,} tokens")
    return np.concatenate(texts)
