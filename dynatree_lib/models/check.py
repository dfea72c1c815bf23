"""Whether a model can score a token tree: an allow-list of architectures, and a test on the model itself.

Some architectures ignore or misread a 4-D mask without an error, because ALiBi models derive positions from the width
of the mask. So a small tree is scored in one forward and compared with plain forwards over each of its paths.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from transformers import PretrainedConfig

from ..checks import described
from ..sampling import Sampling
from ..tree import TokenTree

if TYPE_CHECKING:
    from .huggingface import HFModel

SUPPORTED = ("gpt_neox", "llama", "qwen2", "qwen3", "gpt2", "opt", "mistral", "phi3", "olmo2", "falcon")
STEADY_FREQUENCIES = ("default", "linear", "proportional", "llama3", "yarn")
"""Rotary variants whose angles depend on the position alone. The others (dynamic, longrope) change all angles with
the longest position in a forward, so drafted nodes would change the logits of the text before them."""
REFUSED = {
    "mpt": "its ALiBi attention derives positions from the order of the tokens, so siblings would differ in position",
    "bloom": "its ALiBi attention derives positions from the order of the tokens and does not take a 4-D mask",
}
TOLERANCE = {torch.float64: 1e-8, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.15}
"""Largest difference allowed, as a share of the largest absolute logit."""


def check_loaded(model: Any, tokenizer: Any = None) -> None:
    """Check that this is a transformers model with a head for tokens and with weights, and what encodes for it.

    Raises:
        TypeError: for anything else, such as the name of a model.
        ValueError: for a model on the meta device.
    """
    if not isinstance(model, torch.nn.Module) or not hasattr(getattr(model, "config", None), "model_type"):
        name = repr(model) if isinstance(model, str) else "name"
        raise TypeError(
            f"The model is {described(model)}; give a loaded transformers model, such as "
            f"AutoModelForCausalLM.from_pretrained({name}), or load a pair by names: load_pair(target=..., draft=...)."
        )
    if tokenizer is not None and not hasattr(tokenizer, "get_vocab"):
        raise TypeError(
            f"The tokenizer is {described(tokenizer)}; give a loaded one, such as AutoTokenizer.from_pretrained(name), "
            "or None."
        )
    loaded: Any = model
    check_architecture(loaded.config)
    if loaded.get_output_embeddings() is None:
        raise TypeError(
            f"The model is {described(model)}, which has no head that scores tokens; load it with AutoModelForCausalLM."
        )
    if any(weight.is_meta for weight in model.parameters()):
        raise ValueError(
            f"Weights of the {loaded.config.model_type} model are on the meta device, which holds no numbers; load "
            "them with from_pretrained onto a device that holds all of them (device_map='auto' leaves out what is too "
            "large)."
        )


def check_architecture(config: PretrainedConfig) -> None:
    """Raise ValueError unless this architecture and attention kernel can score trees by mask and positions."""
    kind = config.model_type
    if kind == "falcon" and getattr(config, "alibi", False):
        raise ValueError("This Falcon model uses ALiBi and cannot score token trees; use a rotary Falcon model.")
    if kind in REFUSED or kind not in SUPPORTED:
        reason = REFUSED.get(kind, "tree attention has not been verified for it")
        raise ValueError(
            f"A model of type '{kind}' cannot score token trees: {reason}. Supported types: {', '.join(SUPPORTED)}."
        )
    rope = getattr(config, "rope_parameters", None) or {}
    scaling = rope.get("rope_type", "default") if isinstance(rope, dict) else "default"
    if scaling not in STEADY_FREQUENCIES:
        raise ValueError(
            f"The rotary scaling '{scaling}' of this {kind} model depends on the longest position in a forward, so "
            f"drafted nodes would change the text's own logits; supported: {', '.join(STEADY_FREQUENCIES)}."
        )
    attention = getattr(config, "_attn_implementation", None) or "sdpa"
    if attention not in ("sdpa", "eager"):
        raise ValueError(
            f"Attention implementation '{attention}' takes no tree mask; load with attn_implementation='sdpa'."
        )


@torch.inference_mode()
def check_tree_attention(model: HFModel) -> None:
    """Score a tree of seven nodes after a short prefix in two levels and compare with plain forwards over its paths.

    Raises:
        ValueError: if any logit differs by more than `TOLERANCE` allows for the model's dtype.
    """
    ids = [1 + (7 * i) % (model.vocab_size - 1) for i in range(12)]
    prefix, tokens = ids[:5], ids[5:]
    tree = TokenTree.build(tokens, [-1, 0, 0, 1, 1, 2, 3])
    session = model.session()
    session.start(prefix)
    scored = [session.score(tree.tokens[s], tree.parents[s], Sampling()).logits for s in (slice(0, 3), slice(3, 7))]

    def plain(path: list[int]) -> torch.Tensor:
        ids = torch.tensor([prefix + path], device=model.device)
        return model.model(ids, use_cache=False).logits[0, -1]

    off = difference_from_paths(torch.cat(scored), tree, plain, model.dtype)
    if off:
        raise ValueError(
            f"Model '{model.name}' does not score a token tree as it scores its paths ({off}), so its output would be "
            "wrong; use float32."
        )


def difference_from_paths(
    logits: torch.Tensor, tree: TokenTree, plain: Callable[[list[int]], torch.Tensor], dtype: torch.dtype
) -> str | None:
    """Say how far a tree's (n, V) logits are off, where that is more than `TOLERANCE` allows; None where it is not.

    `plain` returns the (V,) logits after a path, given by its tokens from node 0 down.
    """
    worst = 0.0
    for node in range(len(tree)):
        expected = plain(tree.tokens[[0, *tree.path(node)]].tolist())
        worst = max(worst, float((logits[node] - expected).abs().max() / expected.abs().max().clamp_min(1e-6)))
    allowed = TOLERANCE.get(dtype, 0.0)
    fits = np.isfinite(worst) and worst <= allowed
    return None if fits else f"off by {worst:.2g} of the largest, allowed {allowed:.2g}, {dtype}"
