"""Refuses models whose configuration says that token trees would be scored wrongly, if only in a long text.

No list says which architectures are served: `proof` tries each model. Only what no text of a proof's length can show is
read from the configuration. Windows are shortened for the proof, texts end where a scale or an angle would change
(`reach`), and everything else that acts in longer texts is refused.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import torch
from transformers import PretrainedConfig

from ..checks import described

STEADY_FREQUENCIES = ("default", "linear", "proportional", "llama3", "yarn", "dynamic", "longrope")
"""Rotary variants whose angles depend on the position alone in texts up to `reach`. In longer ones `dynamic` and
`longrope` change all angles with the longest position in a forward, so drafted nodes would change the logits of the
text before them."""
RUNNING = "it keeps a running state of the text instead of keys and values, which holds one branch and no tree"
REFUSED = {
    "mpt": "its ALiBi attention derives positions from the order of the tokens, so siblings would differ in position",
    "bloom": "its ALiBi attention derives positions from the order of the tokens and does not take a 4-D mask",
    "gpt_neo": "its local attention counts places in memory, not positions, so a tree would shorten its window",
    "rwkv": RUNNING,
    "xlstm": RUNNING,
}
"""Families that are known to go wrong, some of them in long texts alone -> why."""
WINDOWED = {"sliding_attention": "sliding_window", "chunked_attention": "attention_chunk_size"}
"""Type of layers that see a part of the text -> where the configuration says how much."""
PLAIN_LAYERS = {"full_attention", "attention", "moe", "mlp", "dense", "sparse", *WINDOWED}
"""Types of layers that keep keys and values, or nothing."""
STATES = {
    "linear_attention": "linear attention or a state-space model",
    "mamba": "a state-space model",
    "recurrent": "a recurrence",
    "conv": "a convolution",
    "hybrid": "a state-space model beside attention",
    "hybrid_sliding": "a state-space model beside attention",
    "indexed_attention": "an indexer that picks the keys to see",
}
"""Types of layers that keep something else -> of what."""
LENGTHS = re.compile(
    r"window|chunk|local_att|block_size|topk_block|index_topk|compress|bucket|span|n_floor|logn|_ntk|look_?back|dilat|"
    r"stride|mem_len|alibi"
)
"""Names of settings that may act in longer texts only."""
HARMLESS = {
    *WINDOWED.values(), "use_sliding_window", "max_window_layers", "sliding_window_pattern", "local_attention",
    "prefix_dense_sliding_window_pattern", "chunk_size_feed_forward", "mamba_chunk_size",
}  # fmt: skip
"""Names of this kind that the library serves, or that do not touch attention."""
SHAPES = {"head_dim", "num_key_value_heads", "v_head_dim", *WINDOWED.values()}
"""Settings in which the layers of a model must not differ one by one."""
LARGEST_TREE = 1024
"""Nodes by which entries may be ahead of positions; see `reach`."""


def check_loaded(model: Any, tokenizer: Any = None) -> None:
    """Check that this is a transformers model with a head for tokens and with weights, and what encodes for it.

    Raises:
        TypeError: for anything else, such as the name of a model.
        ValueError: for a model on the meta device, or whose configuration says that it cannot score trees.
    """
    if not isinstance(model, torch.nn.Module) or not hasattr(getattr(model, "config", None), "model_type"):
        name = repr(model) if isinstance(model, str) else "name"
        raise TypeError(
            f"The model is {described(model)}; give a loaded transformers model, such as "
            f"AutoModelForCausalLM.from_pretrained({name}), or load a pair by names: load_pair(target=..., draft=...)."
        )
    check_tokenizer(tokenizer)
    loaded: Any = model
    check_architecture(loaded.config)
    if loaded.get_output_embeddings() is None or not hasattr(loaded, "generation_config"):
        raise TypeError(
            f"The model is {described(model)}, which has no head that scores tokens; load it with AutoModelForCausalLM."
        )
    if any(weight.is_meta for weight in model.parameters()):
        raise ValueError(
            f"Weights of the {loaded.config.model_type} model are on the meta device, which holds no numbers; load "
            "them with from_pretrained onto a device that holds all of them (device_map='auto' leaves out what is too "
            "large)."
        )


def check_tokenizer(tokenizer: Any) -> None:
    """Raise TypeError for what is neither a loaded tokenizer nor None, such as its class or its name."""
    if tokenizer is not None and (not hasattr(tokenizer, "get_vocab") or isinstance(tokenizer, type)):
        raise TypeError(
            f"The tokenizer is {described(tokenizer)}; give a loaded one, such as AutoTokenizer.from_pretrained(name)."
        )


def check_architecture(config: PretrainedConfig) -> None:
    """Raise ValueError where the configuration tells that trees would be scored wrongly, if only in a long text."""
    kind = config.model_type
    reason = why_not(config)
    if reason:
        raise ValueError(f"A model of type '{kind}' cannot score token trees: {reason}.")
    attention = getattr(config, "_attn_implementation", None) or "sdpa"
    if attention not in ("sdpa", "eager"):
        raise ValueError(
            f"Attention implementation '{attention}' takes no tree mask; load with attn_implementation='sdpa', or "
            "'eager' where the architecture has no sdpa."
        )


def why_not(config: Any) -> str | None:
    """Say why a configuration alone rules token trees out; None where it does not."""
    if config.is_encoder_decoder:
        return "its decoder reads what an encoder has made of another text; use a decoder-only model"
    kind, config = config.model_type, config.get_text_config(decoder=True)
    for family in (kind, config.model_type):
        if family in REFUSED:
            return REFUSED[family]
    if getattr(config, "alibi", False):
        return f"this {kind} model uses ALiBi, which derives positions from the mask; use a rotary one"
    names = ("layer_types", "layers_block_type", "block_types")
    types = {str(one) for name in names for one in getattr(config, name, None) or ()}
    for one in sorted(types - PLAIN_LAYERS):
        of = f", of {STATES[one]}" if one in STATES else ""
        return f"its layers of type '{one}' keep a state{of}, and a token tree needs layers that keep keys and values"
    for part in rotary_parts(config):
        scaling = part.get("rope_type", "default")
        if scaling not in STEADY_FREQUENCIES:
            return (
                f"its rotary scaling '{scaling}' is unknown here and may depend on the longest position in a forward, "
                f"so that drafted nodes would change the text's own logits; known: {', '.join(STEADY_FREQUENCIES)}"
            )
    differing = SHAPES & {*(getattr(config, "per_layer_attributes", None) or ())}
    if differing:
        named = ", ".join(sorted(differing))
        return f"its layers differ one by one in {named}, and the library's cache has one shape for all"
    for name in sorted(_settings(type(config))):
        for place, value in (each for one in _said(config, name) for each in _numbers(name, one)):
            if (value is True or value > 1) and LENGTHS.search(place) and place.rpartition(".")[2] not in HARMLESS:
                return (
                    f"its setting {place} = {value} may act in texts that are longer than those it can be tested with"
                )
    if not isinstance(getattr(config, "max_position_embeddings", None), int):
        return "its configuration does not say how long a text may be (max_position_embeddings)"
    return None


def rotary_parts(config: Any) -> list[dict[str, Any]]:
    """Return what a configuration says of rotary positions: one part, or one for each type of layers."""
    rope = getattr(config, "rope_parameters", None)
    if not isinstance(rope, dict):
        return []
    return [part for part in rope.values() if isinstance(part, dict)] or [rope]


def reach(config: Any) -> int:
    """Longest text in tokens that is scored as in plain forwards, at most the configuration's own.

    A forward with a later position than `original_max_position_embeddings` has other factors of `longrope`. Llama 4's
    temperature grows in steps with the number of cache entries, which a tree's nodes add to; before the first step it
    does not matter.
    """
    limits = [int(config.max_position_embeddings)]
    for part in rotary_parts(config):
        if part.get("rope_type") == "longrope":
            limits.append(int(part.get("original_max_position_embeddings") or limits[0]))
    if getattr(config, "attn_temperature_tuning", False):
        limits.append(max(1, int(config.floor_scale) - LARGEST_TREE))
    return min(limits)


def mixes_experts(config: Any) -> bool:
    """Return whether the configuration of a text model, or one in it (DBRX), is of a mixture of experts."""
    settings = vars(config).items()
    several = any("expert" in name and isinstance(value, int) and value > 1 for name, value in settings)
    return several or any(mixes_experts(value) for _, value in settings if isinstance(value, PretrainedConfig))


def _said(config: Any, name: str) -> list[Any]:
    """Return the values of a setting: one, or each layer's where layers differ.

    A configuration whose layers differ raises an error where it is asked for the one value.
    """
    differing = getattr(config, "per_layer_attributes", None) or ()
    alone = config.attribute_map.get(name, name) in differing
    return [getattr(one, name, None) for one in (config.per_layer_config if alone else [config])]


def _numbers(name: str, value: Any) -> Iterator[tuple[str, int]]:
    """Yield the whole numbers and switches of a setting, those in lists and in groups of attention settings too."""
    grouped = vars(value) if isinstance(value, PretrainedConfig) else value
    if isinstance(grouped, dict):
        for key, part in grouped.items() if "att" in name else ():
            yield from _numbers(f"{name}.{key}", part)
    elif isinstance(value, list | tuple):
        yield from ((name, part) for part in value if isinstance(part, int))
    elif isinstance(value, int):
        yield name, value


def _settings(kind: type) -> set[str]:
    """Names that a class of configurations declares; a file may hold others, which nothing reads."""
    declared = [vars(base).get("__annotations__", {}) for base in kind.__mro__]
    return set().union(inspect.signature(kind).parameters, *declared)
