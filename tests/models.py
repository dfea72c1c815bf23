"""Small models for tests: random ones of several architectures, noisy copies as drafts, and a tokenizer."""

from __future__ import annotations

import copy
from functools import cache

import torch
from transformers import AutoModelForCausalLM, PretrainedConfig
from transformers import models as families

from dynatree_lib.models.eagle import EagleModel
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pruned import on_features

VOCABULARY = 97
CONTEXT = 600

_WIDE = {"vocab_size": VOCABULARY, "num_hidden_layers": 3, "num_attention_heads": 4, "max_position_embeddings": CONTEXT}
_SMALL = {**_WIDE, "hidden_size": 32, "intermediate_size": 64}
_GROUPED = {**_SMALL, "num_key_value_heads": 2}
_WINDOW = {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1}

CONFIGS: dict[str, tuple[str, dict]] = {
    "gpt_neox": ("GPTNeoXConfig", _SMALL),
    "llama": ("LlamaConfig", _GROUPED),
    "qwen2": ("Qwen2Config", _GROUPED),
    "gpt2": ("GPT2Config", {"vocab_size": VOCABULARY, "n_layer": 3, "n_head": 4, "n_positions": CONTEXT, "n_embd": 32}),
    "gpt_neox-serial": (
        "GPTNeoXConfig",
        {**_SMALL, "use_parallel_residual": False, "attention_bias": False, "rotary_pct": 1.0, "hidden_act": "relu"},
    ),
    "qwen2-window": ("Qwen2Config", {**_GROUPED, **_WINDOW}),
    "mistral-window": ("MistralConfig", {**_GROUPED, "sliding_window": 8}),
    "qwen3": ("Qwen3Config", _GROUPED),
    "phi3": ("Phi3Config", {**_GROUPED, "pad_token_id": 0}),
    "olmo2": ("Olmo2Config", _GROUPED),
    "opt": ("OPTConfig", {**_WIDE, "hidden_size": 32, "ffn_dim": 64, "word_embed_proj_dim": 32}),
    "falcon": ("FalconConfig", {**_WIDE, "hidden_size": 32, "new_decoder_architecture": False}),
    "mpt": ("MptConfig", {"vocab_size": VOCABULARY, "d_model": 32, "n_heads": 4, "n_layers": 2}),
    "bloom": ("BloomConfig", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_head": 4, "n_layer": 2}),
}


def config(kind: str) -> PretrainedConfig:
    """The configuration of one of `CONFIGS`, without special tokens."""
    name, options = CONFIGS[kind]
    made = getattr(families, name)(**{"pad_token_id": None, **options, "bos_token_id": None, "eos_token_id": None})
    return made


@cache
def random_model(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, attention: str = "sdpa") -> HFModel:
    """A random model whose greedy text does not collapse to one token (weights are drawn wider than usual)."""
    return HFModel(raw_model(kind, seed, dtype, attention))


def raw_model(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, attention: str = "sdpa"):
    """The same as a transformers model, unchecked."""
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config(kind), attn_implementation=attention).to(dtype).eval()
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=0.3)
    return model


@cache
def noisy_copy(model: HFModel, scale: float = 0.02, seed: int = 1) -> HFModel:
    """A draft: the model with noise on its weights, so that it agrees often and not always."""
    torch.manual_seed(seed)
    other = copy.deepcopy(model.model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += torch.randn_like(weight) * scale
    return HFModel(other, model.tokenizer)


@cache
def feature_draft(target: HFModel, engine: str = "auto") -> EagleModel:
    """A draft on the features of a Llama target that agrees with it often and not always.

    It has all the target's layers, which see the tokens' embeddings as the target's do, and a little of the features,
    which are made of the states after the target's first and last layer.
    """
    torch.manual_seed(2)
    model = on_features(target.model, range(target.layers), (1, -1))
    size, joint = target.feature_size, model.joint
    with torch.no_grad():
        joint.token_norm.weight.fill_(float(model.get_input_embeddings().weight.square().mean().sqrt()))
        joint.map.weight.copy_(torch.cat([torch.eye(size), 0.003 * torch.randn(size, size)], 1))
        model.fusion.map.weight.normal_()
    return EagleModel(model, engine=engine)


def prompt(length: int, seed: int = 0) -> torch.Tensor:
    """(1, length) random token ids."""
    return torch.randint(0, VOCABULARY, (1, length), generator=torch.Generator().manual_seed(1000 * seed + length))


def hf_greedy(model: HFModel, ids: torch.Tensor, budget: int, eos: int | list[int] | None = None) -> list[int]:
    """What transformers' own greedy generate adds to the prompt.

    The attention mask is given: without it transformers takes prompt tokens equal to the padding id for padding.
    """
    out = model.model.generate(
        ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=budget,
        pad_token_id=0,
        eos_token_id=eos,
    )
    return out[0, ids.shape[1] :].tolist()
