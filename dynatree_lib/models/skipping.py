"""A target without some of its layers as its own draft (SWIFT, Xia et al. 2024; CLaSp, Chen et al. 2025).

Nothing is trained and no weight is copied: the draft is made of shallow copies of the target's modules. Which layers to
leave out is left to `tools/search_layers.py`. An engine that packs weights packs those of the remaining layers.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from transformers import PretrainedConfig

from ..checks import is_whole, of_kind
from .huggingface import HFModel, decoder_of


def skipping(target: HFModel, layers: Sequence[int], *, engine: str = "auto") -> HFModel:
    """Return the target without some layers, which shares its weights and its vocabulary.

    Args:
        target: a transformers model of any supported architecture.
        layers: numbers of the layers to leave out, counted from 0.
        engine: what runs the forwards, as for `HFModel`.

    Raises:
        TypeError: for a target that is no `HFModel`.
        ValueError: for layers that the target does not have, for none or all of them, for a model that is spread over
            several devices, and for one whose modules are not one list of numbered layers.
    """
    of_kind("The target", target, HFModel, "wrap a transformers model as HFModel(model, tokenizer)")
    model = without_layers(target.model, layers)
    name = f"{target.name} without layers {', '.join(map(str, sorted(layers)))}"
    model.config.name_or_path = name
    draft = HFModel(model, target.tokenizer, engine=engine)
    return draft.altered(vocab_size=target.vocab_size, vocabulary=target.vocabulary)


def without_layers(model: Any, layers: Sequence[int]) -> Any:
    """Return a transformers model without some layers, made of shallow copies of its modules; errors as `skipping`."""
    text = model.config.get_text_config(decoder=True)
    count = int(text.num_hidden_layers)
    left_out = set(layers)
    if not all(is_whole(layer, 0) and layer < count for layer in layers) or len(left_out) < len(layers):
        raise ValueError(f"layers is {list(layers)}; the target has layers 0 to {count - 1}, name each once.")
    if not 0 < len(left_out) < count:
        raise ValueError(
            f"layers is {list(layers)}, which leaves {count - len(left_out)} of {count} layers; leave out at least one "
            "and keep at least one."
        )
    if any(hasattr(module, "_hf_hook") for module in model.modules()):  # its forward is bound to the module itself
        raise ValueError(
            f"'{model.config.name_or_path}' was spread over devices by accelerate, whose hooks belong to its own "
            "modules; load it on one device to draft without some of its layers."
        )
    kept = [layer for layer in range(count) if layer not in left_out]
    other = _shared(model, {})
    holder, name = _stack(other, count)
    stack = [holder._modules[name][layer] for layer in kept]
    for place, layer in enumerate(stack):
        for part in layer.modules():
            if hasattr(part, "layer_idx"):
                part.layer_idx = place
    holder._modules[name] = torch.nn.ModuleList(stack)
    configs = [other.config.get_text_config(decoder=True), *(getattr(part, "config", None) for part in other.modules())]
    for config in configs:
        if type(config) is type(text) and config.num_hidden_layers == count:
            _cut(config, kept)
    return other


def _stack(model: Any, count: int) -> tuple[Any, str]:
    """Return the module that holds the list of a model's layers, and the name of the list; ValueError without one."""
    for part in decoder_of(model).modules():
        for name, value in part._modules.items():
            if isinstance(value, torch.nn.ModuleList) and len(value) == count:
                numbers = [{getattr(each, "layer_idx", None) for each in layer.modules()} - {None} for layer in value]
                if any(numbers) and all(found <= {place} for place, found in enumerate(numbers)):
                    return part, name
    raise ValueError(
        f"'{model.config.name_or_path or model.config.model_type}' keeps keys and values of {count} layers, and its "
        "modules are no list of so many numbered layers, so none can be left out; draft with another model."
    )


def _cut(config: Any, kept: Sequence[int]) -> None:
    """Leave in a configuration what it says of these layers alone."""
    count = config.num_hidden_layers
    config.num_hidden_layers = len(kept)
    for name, value in vars(config).items():
        if isinstance(value, list | tuple) and len(value) == count and not name.endswith("token_id"):
            setattr(config, name, [value[layer] for layer in kept])


def _shared(module: Any, copied: dict[int, Any]) -> Any:
    """Return a copy of a module with all its parts, which share their weights, and with configurations of their own.

    `copied` holds what was copied already, as for `copy.deepcopy`, so that parts go on to share configurations.
    """
    other = copy.copy(module)
    other._modules = {name: None if part is None else _shared(part, copied) for name, part in module._modules.items()}
    if isinstance(getattr(module, "config", None), PretrainedConfig):
        other.config = copy.deepcopy(module.config, copied)
    return other
