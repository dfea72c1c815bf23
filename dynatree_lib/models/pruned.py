"""Drafts made of a few of their target's layers: made from a target, and loaded with the weights that they learnt.

They read tokens alone (`pruned`), or tokens with their target's features (`on_features`).

Such a draft shares the target's token table and head. So its folder holds a few megabytes of layers, and in memory the
tables exist once. Loaded, it is an ordinary model of the target's class, which any library can use as a draft.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

LAYERS, WEIGHTS, TOKENS = "layers.json", "layers.safetensors", "tokens.npy"
"""Files of such a folder: what the draft was made from, its weights, and the tokens that it drafts."""


def pruned(target: Any, layers: Sequence[int]) -> Any:
    """Return a model of some of the target's layers (copied), with its token table and head (shared).

    Args:
        target: a transformers model whose decoder is `model` with `embed_tokens`, `layers`, `norm` and `rotary_emb`,
            as in the Llama family.
        layers: numbers of the target's layers, in the draft's order.

    Raises:
        ValueError: for a number that the target has no layer of.
    """
    outside = [layer for layer in layers if not 0 <= layer < len(target.model.layers)]
    if outside or not layers:
        raise ValueError(f"layers is {list(layers)}; the target has layers 0 to {len(target.model.layers) - 1}.")
    config = copy.deepcopy(target.config)
    config.num_hidden_layers = len(layers)
    if getattr(config, "layer_types", None):
        config.layer_types = [config.layer_types[layer] for layer in layers]
    with torch.device("meta"):
        draft = type(target)(config)
    draft.model.embed_tokens, draft.lm_head = target.model.embed_tokens, target.lm_head
    for name in ("rotary_emb", "norm"):
        setattr(draft.model, name, copy.deepcopy(getattr(target.model, name)))
    for place, layer in enumerate(layers):
        draft.model.layers[place] = copy.deepcopy(target.model.layers[layer])
        draft.model.layers[place].self_attn.layer_idx = place
    draft.generation_config = copy.deepcopy(target.generation_config)
    return draft.eval()


class Joint(torch.nn.Module):
    """The input of a draft on features: a linear map of the norms of a token's embedding and of a feature.

    Args:
        size: h, width of both.
        eps: of the norms.
    """

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.token_norm, self.feature_norm = torch.nn.RMSNorm(size, eps), torch.nn.RMSNorm(size, eps)
        self.map = torch.nn.Linear(2 * size, size, bias=False)

    def forward(self, embedded: torch.Tensor, features: torch.Tensor) -> torch.Tensor:
        """Return (..., h) inputs for (..., h) embeddings of tokens and features of the places before them."""
        features = features.to(embedded.dtype)
        joined: torch.Tensor = self.map(torch.cat([self.token_norm(embedded), self.feature_norm(features)], -1))
        return joined


class Fusion(torch.nn.Module):
    """One feature of several hidden states of a target: the last, and a linear map of the norms of the others added.

    Args:
        size: h, width of a state.
        eps: of the norms.
        others: number of states without the last.
    """

    def __init__(self, size: int, eps: float, others: int) -> None:
        super().__init__()
        self.norms = torch.nn.ModuleList(torch.nn.RMSNorm(size, eps) for _ in range(others))
        self.map = torch.nn.Linear(others * size, size, bias=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return (..., h) features of (..., k h) states side by side, the last one of them last."""
        *others, last = states.to(self.map.weight.dtype).chunk(len(self.norms) + 1, -1)
        added: torch.Tensor = self.map(
            torch.cat([norm(state) for norm, state in zip(self.norms, others, strict=True)], -1)
        )
        return last + added


UNSURE = 0.3
"""Factor of the last norm of an untrained draft on features: without it, random logits are large."""


def on_features(target: Any, layers: Sequence[int], feature_layers: Sequence[int] = (-1,)) -> Any:
    """Return an untrained draft on its target's features (`eagle`), whose layers begin as copies of the target's.

    Args:
        target: a transformers model, as for `pruned`.
        layers: numbers of the target's layers.
        feature_layers: layers whose hidden states make a feature, counted from 1; the last, -1, comes last.

    Raises:
        ValueError: as `pruned`, and for other `feature_layers`.
    """
    others, last = feature_layers[:-1], tuple(feature_layers[-1:])
    if last != (-1,) or not all(1 <= layer < len(target.model.layers) for layer in others):
        raise ValueError(
            f"feature_layers is {list(feature_layers)}; give layers from 1 to {len(target.model.layers) - 1}, then -1."
        )
    draft = pruned(target, layers)
    draft.feature_layers = tuple(feature_layers)
    size, eps, like = target.config.hidden_size, target.config.rms_norm_eps, (target.device, target.dtype)
    draft.joint = Joint(size, eps).to(*like)
    torch.nn.init.normal_(draft.joint.map.weight, std=(2 * size) ** -0.5)
    with torch.no_grad():
        draft.model.norm.weight.mul_(UNSURE)
    if others:
        draft.fusion = Fusion(size, eps, len(others)).to(*like)
        torch.nn.init.zeros_(draft.fusion.map.weight)
    return draft.eval()


def untrained(target: Any, layers: Sequence[int], feature_layers: Sequence[int] | None) -> Any:
    """Return `on_features` of these layers, or `pruned` where a draft reads no features."""
    return on_features(target, layers, feature_layers) if feature_layers else pruned(target, layers)


def short_head(model: Any, tokens: np.ndarray) -> Any:
    """Return the same model (weights shared) whose (K,) logits are those of the given tokens alone."""
    other = copy.copy(model)
    other._modules = dict(model._modules)
    rows = model.lm_head.weight.detach()[torch.from_numpy(tokens)]
    other.lm_head = torch.nn.Linear(rows.shape[1], len(rows), bias=False, device="meta")
    other.lm_head.weight = torch.nn.Parameter(rows, requires_grad=False)
    return other


def own_weights(draft: Any) -> dict[str, torch.Tensor]:
    """Return the weights that a pruned draft does not share with its target."""
    shared = {draft.model.embed_tokens.weight.data_ptr(), draft.lm_head.weight.data_ptr()}
    return {name: weight for name, weight in draft.state_dict().items() if weight.data_ptr() not in shared}


def load_pruned(folder: Path, target: Any) -> tuple[Any, np.ndarray]:
    """Load a draft that `dynatree train` wrote, in the target's dtype and on its device.

    Returns:
        the draft, and (K,) int64 ids of the tokens it drafts, ascending.

    Raises:
        ValueError: where a file is missing or damaged, or the weights do not fit this target.
    """
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    try:
        made_of = json.loads((folder / LAYERS).read_text(encoding="utf-8"))
        stored, tokens = load_file(folder / WEIGHTS), np.load(folder / TOKENS).astype(np.int64)
    except (OSError, ValueError, EOFError, SafetensorError) as error:
        raise ValueError(
            f"The draft in {folder} cannot be read ({error}); it has {LAYERS}, {WEIGHTS} and {TOKENS}. Take it "
            "from the repository again."
        ) from error
    draft = untrained(target, **made_of)
    own = own_weights(draft)
    if {name: weight.shape for name, weight in stored.items()} != {name: weight.shape for name, weight in own.items()}:
        raise ValueError(f"The draft in {folder.name} was made for another target than '{target.config.name_or_path}'.")
    with torch.no_grad():
        for name, weight in own.items():
            weight.copy_(stored[name])
    draft.config.name_or_path = folder.name
    return draft, tokens
