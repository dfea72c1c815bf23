"""A forward for the Llama family (Llama, Qwen2, Qwen3, Mistral) over packed weights, in a fifth of the calls.

One token of a small model is bound by reading the weights, if nothing stands between the reads. So a layer has four
matrix products over weights in oneDNN's layout (queries, keys and values joined; gate and up joined), and torch's fused
attention reads the KV cache in place. In float32 the norms' scales are multiplied into the matrices after them.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar, Self

import torch
from torch.nn import functional
from transformers import PreTrainedModel

from dynatree_lib.models.architecture import reach

from .products import packed, packs

FAMILY = ("llama", "qwen2", "qwen3", "mistral")


def serves_family(model: PreTrainedModel) -> bool:
    """Return whether a model is of the Llama family as transformers has it, with sdpa attention and no windows.

    Its layers must not differ in their configurations either.
    """
    config = model.config
    kind = config.model_type
    stock = kind in FAMILY and type(model).__module__ == f"transformers.models.{kind}.modeling_{kind}"
    windows = "sliding_attention" in (getattr(config, "layer_types", None) or ())
    windows = windows or (kind == "mistral" and config.sliding_window is not None)
    alike = not getattr(config, "per_layer_attributes", None)
    return stock and alike and config._attn_implementation == "sdpa" and not windows


class PackedLlama:
    """The forward of one model of the Llama family on a CPU: an `Engine` with a copy of the weights.

    Folding the norms' scales moves logits by rounding only; in bfloat16, where it would change weights, norms keep
    their scales. The copy does not follow later changes of the model's weights.

    Args:
        model: in eval mode, on the CPU, in float32 or bfloat16.
    """

    name = "packed"
    copies_weights: ClassVar[bool] = True
    serves: ClassVar[str] = (
        "Llama, Qwen2, Qwen3 and Mistral models in float32 or bfloat16 on a CPU whose torch has oneDNN"
    )

    @torch.no_grad()
    def __init__(self, model: Any) -> None:
        core, config = model.model, model.config
        self.heads, self.groups = config.num_attention_heads, config.num_key_value_heads
        self.share = self.heads // self.groups  # query heads of a key head
        self.size = getattr(config, "head_dim", None) or config.hidden_size // self.heads
        self.width, self.eps = (config.hidden_size,), config.rms_norm_eps
        self.embedding = core.embed_tokens.weight
        self.folded = self.embedding.dtype == torch.float32
        self.activation = core.layers[0].mlp.act_fn
        self.layers = [self._joined(layer) for layer in core.layers]
        self.norm, head = self._fold(core.norm, model.lm_head.weight)
        self.head = packed(head, None)
        everywhere = torch.arange(reach(config))[None]
        cos, sin = core.rotary_emb(self.embedding, everywhere)
        self.half = self.size // 2
        self.cos = cos[0, :, None]
        self.sin = torch.cat([-sin[0, :, : self.half], sin[0, :, self.half :]], -1)[:, None]

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:
        """Make the packed forward of a model, or None where the model has none."""
        return cls(model) if serves_family(model) and packs(model) else None

    def _fold(self, norm: Any, *weights: torch.Tensor) -> tuple[torch.Tensor | None, torch.Tensor]:
        """Return a norm's scale and the matrices after it, joined; None for the scale where the matrices take it."""
        joined = torch.cat(weights) if len(weights) > 1 else weights[0]
        return (None, joined * norm.weight) if self.folded else (norm.weight, joined)

    def _joined(self, layer: Any) -> SimpleNamespace:
        attention, mlp = layer.self_attn, layer.mlp
        parts = attention.q_proj, attention.k_proj, attention.v_proj
        biases = [part.bias for part in parts if part.bias is not None]
        norm_in, qkv = self._fold(layer.input_layernorm, *(part.weight for part in parts))
        norm_mlp, grown = self._fold(layer.post_attention_layernorm, mlp.gate_proj.weight, mlp.up_proj.weight)
        return SimpleNamespace(
            norm_in=norm_in,
            qkv=packed(qkv, torch.cat(biases) if biases else None),
            head_norms=[getattr(attention, name).weight for name in ("q_norm", "k_norm") if hasattr(attention, name)],
            out=packed(attention.o_proj.weight, attention.o_proj.bias),
            norm_mlp=norm_mlp,
            grown=packed(grown, None),
            down=packed(mlp.down_proj.weight, None),
        )

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: Any, keep: int
    ) -> torch.Tensor:
        """Compute (B, keep, V) logits, as `Engine` says."""
        hidden = torch.embedding(self.embedding, ids)
        turn = self.cos[positions], self.sin[positions]
        for index, layer in enumerate(self.layers):
            qkv = layer.qkv(torch.rms_norm(hidden, self.width, layer.norm_in, self.eps))
            hidden = hidden + layer.out(self._attend(layer, qkv, index, turn, mask, cache))
            grown = layer.grown(torch.rms_norm(hidden, self.width, layer.norm_mlp, self.eps))
            gate, up = grown.chunk(2, -1)
            hidden = hidden + layer.down(self.activation(gate) * up)
        return self.head(torch.rms_norm(hidden[:, -keep:], self.width, self.norm, self.eps))

    def _attend(self, layer: Any, qkv: torch.Tensor, index: int, turn: Any, mask: Any, cache: Any) -> torch.Tensor:
        batch, count, _ = qkv.shape
        every = qkv.view(batch, count, self.heads + 2 * self.groups, self.size)
        turning = every[:, :, : self.heads + self.groups]
        if layer.head_norms:
            query, key = turning.split((self.heads, self.groups), 2)
            query.copy_(torch.rms_norm(query, (self.size,), layer.head_norms[0], self.eps))
            key.copy_(torch.rms_norm(key, (self.size,), layer.head_norms[1], self.eps))
        swapped = torch.cat([turning[..., self.half :], turning[..., : self.half]], -1)
        turning.mul_(turn[0]).addcmul_(swapped, turn[1])
        query, key, value = every.transpose(1, 2).split((self.heads, self.groups, self.groups), 1)
        keys, values = cache.update(key, value, index)
        if count > 1:
            mixed = functional.scaled_dot_product_attention(
                query, keys, values, attn_mask=mask, is_causal=mask is None, enable_gqa=True
            )
            return mixed.transpose(1, 2).flatten(2)
        rows = query.reshape(batch, self.groups, self.share, self.size)  # of a key head, so that keys are read once
        return functional.scaled_dot_product_attention(rows, keys, values, attn_mask=mask).reshape(batch, 1, -1)
