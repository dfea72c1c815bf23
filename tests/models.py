"""Small models for tests: random ones of several architectures, noisy copies as drafts, and a tokenizer."""

from __future__ import annotations

import copy
from functools import cache

import torch
from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModelForCausalLM, PretrainedConfig
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

_MIXED = {"layer_types": ["sliding_attention", "full_attention", "sliding_attention"], "sliding_window": 8}
_EXPERTS = {"num_experts_per_tok": 2, "num_local_experts": 4, "num_experts": 4}
_LATENT = {
    "q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8, "qk_nope_head_dim": 8, "v_head_dim": 6,
    "moe_intermediate_size": 32, "n_routed_experts": 4, "n_group": 1, "topk_group": 1, "num_experts_per_tok": 2,
    "first_k_dense_replace": 1, "num_key_value_heads": 4,
}  # fmt: skip

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
    "gemma3-window": ("Gemma3TextConfig", {**_GROUPED, **_MIXED, "head_dim": 8}),
    "cohere2-window": ("Cohere2Config", {**_GROUPED, **_MIXED}),
    "llama4-window": (
        "Llama4TextConfig",
        {
            **_GROUPED, "layer_types": ["chunked_attention", "full_attention", "chunked_attention"],
            "attention_chunk_size": 8, "head_dim": 8, "num_local_experts": 4, "intermediate_size_mlp": 64,
            "no_rope_layers": [1, 0, 1],
        },
    ),
    "gpt_oss-window": ("GptOssConfig", {**_GROUPED, **_MIXED, **_EXPERTS, "head_dim": 8}),
    "mixtral": ("MixtralConfig", {**_GROUPED, **_EXPERTS}),
    "qwen3_moe": ("Qwen3MoeConfig", {**_GROUPED, **_EXPERTS, "moe_intermediate_size": 32, "head_dim": 8}),
    "olmoe": ("OlmoeConfig", {**_GROUPED, **_EXPERTS}),
    "deepseek_v3": ("DeepseekV3Config", {**_SMALL, **_LATENT}),
}  # fmt: skip
"""Architectures that are served."""
REFUSED: dict[str, tuple[str, dict]] = {
    "mpt": ("MptConfig", {"vocab_size": VOCABULARY, "d_model": 32, "n_heads": 4, "n_layers": 2}),
    "bloom": ("BloomConfig", {"vocab_size": VOCABULARY, "hidden_size": 32, "n_head": 4, "n_layer": 2}),
    "falcon-alibi": (
        "FalconConfig", {**_WIDE, "hidden_size": 32, "new_decoder_architecture": False, "alibi": True}
    ),
    "gpt_neo": (
        "GPTNeoConfig",
        {
            "vocab_size": VOCABULARY, "hidden_size": 32, "num_layers": 2, "num_heads": 4, "window_size": 8,
            "attention_types": [[["global", "local"], 1]], "max_position_embeddings": CONTEXT,
        },
    ),
    "lfm2": ("Lfm2Config", {**_GROUPED, "layer_types": ["conv", "full_attention", "conv"]}),
    "mamba": ("MambaConfig", {"vocab_size": VOCABULARY, "hidden_size": 32, "num_hidden_layers": 2, "state_size": 4}),
    "qwen3_next": (
        "Qwen3NextConfig",
        {
            **_GROUPED, "layer_types": ["linear_attention", "full_attention", "linear_attention"], "head_dim": 8,
            "linear_key_head_dim": 8, "linear_value_head_dim": 8, "linear_num_key_heads": 2,
            "linear_num_value_heads": 2, "num_experts": 0,
        },
    ),
    "recurrent_gemma": (
        "RecurrentGemmaConfig",
        {**_WIDE, "hidden_size": 32, "intermediate_size": 64, "lru_width": 32, "head_dim": 8},
    ),
}  # fmt: skip
"""Architectures that are known to go wrong."""


def config(kind: str) -> PretrainedConfig:
    """The configuration of one of `CONFIGS` or of `REFUSED`, without special tokens."""
    name, options = (CONFIGS | REFUSED)[kind]
    made = getattr(families, name)(**{"pad_token_id": None, **options, "bos_token_id": None, "eos_token_id": None})
    return made


def sdpa(kind: str) -> bool:
    """Whether an architecture has sdpa attention."""
    return MODEL_FOR_CAUSAL_LM_MAPPING[type(config(kind))]._supports_sdpa


@cache
def random_model(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, attention: str = "sdpa") -> HFModel:
    """A random model whose greedy text does not collapse to one token (weights are drawn wider than usual)."""
    return HFModel(raw_model(kind, seed, dtype, attention))


def raw_model(kind: str, seed: int = 0, dtype: torch.dtype = torch.float64, attention: str = "sdpa"):
    """The same as a transformers model, unchecked; eager where the architecture has no sdpa."""
    torch.manual_seed(seed)
    attention = attention if sdpa(kind) else "eager"
    experts = {"experts_implementation": "eager"} if dtype == torch.float64 else {}  # others have no float64
    model = AutoModelForCausalLM.from_config(config(kind), attn_implementation=attention, **experts).to(dtype).eval()
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
