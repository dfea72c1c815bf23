"""A lean forward for GPT-NeoX: transformers' arithmetic on the model's own weights, in a third of the calls.

On a small model most of a forward is Python between kernels. The model object is not touched, and the load-time check
compares this path with the model's own forward. Other architectures run transformers' forward.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from torch.nn import functional
from transformers import GPTNeoXForCausalLM, PreTrainedModel

Norm = tuple[torch.Tensor | None, torch.Tensor | None]
"""(h,) scale and shift of a layer norm."""
Turn = tuple[torch.Tensor, torch.Tensor]
"""(B, n, 1, 1, R) cosines and signed sines of the tokens' positions."""


class Layer(NamedTuple):
    """Weight and bias of a layer's norms and matrices; a bias may be None."""

    norm_in: tuple[torch.Tensor, torch.Tensor]
    qkv: tuple[torch.Tensor, torch.Tensor]
    dense: tuple[torch.Tensor, torch.Tensor]
    norm_mlp: tuple[torch.Tensor, torch.Tensor]
    up: tuple[torch.Tensor, torch.Tensor]
    down: tuple[torch.Tensor, torch.Tensor]


class LeanGPTNeoX:
    """The forward of one GPT-NeoX model: an `Engine`.

    Args:
        model: in eval mode, all weights on one device; its weights are referred to, not copied.
    """

    name = "lean"
    copies_weights = False
    serves = "GPT-NeoX models with sdpa attention on one device"

    def __init__(self, model: GPTNeoXForCausalLM) -> None:
        core, config = model.gpt_neox, model.config
        self.width, self.eps = (config.hidden_size,), config.layer_norm_eps
        self.heads, self.head_size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self.parallel = config.use_parallel_residual
        self.embedding, self.head = core.embed_in.weight, model.get_output_embeddings().weight
        self.final_norm = _pair(core.final_layer_norm)
        exact = config.hidden_act == "gelu"
        self.activation: Callable[[torch.Tensor], torch.Tensor] = functional.gelu if exact else core.layers[0].mlp.act
        self.layers: list[Any] = [
            Layer(
                _pair(layer.input_layernorm),
                _pair(layer.attention.query_key_value),
                _pair(layer.attention.dense),
                _pair(layer.post_attention_layernorm),
                _pair(layer.mlp.dense_h_to_4h),
                _pair(layer.mlp.dense_4h_to_h),
            )
            for layer in core.layers
        ]
        everywhere = torch.arange(config.max_position_embeddings, device=self.embedding.device)[None]
        cos, sin = core.rotary_emb(self.embedding, everywhere)
        half = sin.shape[-1] // 2
        self.cos = cos[0, :, None, None]
        # rotate_half(x) * sin = [x2, x1] * [-sin, sin]
        self.sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)[:, None, None]
        self.rotated, self.half = 2 * half, half

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:
        """Make the lean forward of a model, or None where the model has none."""
        fits = isinstance(model, GPTNeoXForCausalLM) and model.config._attn_implementation == "sdpa"
        one_device = len({weight.device for weight in model.parameters()}) == 1
        return cls(model) if fits and one_device else None

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: Any, keep: int
    ) -> torch.Tensor:
        """Compute (B, keep, V) logits, as `Engine` says."""
        hidden = torch.embedding(self.embedding, ids)
        turn = self.cos[positions], self.sin[positions]
        for index, layer in enumerate(self.layers):
            hidden = self._layer(layer, index, hidden, turn, mask, cache)
        return self._logits(hidden[:, -keep:])

    def _layer(
        self, layer: Any, index: int, hidden: torch.Tensor, turn: Turn, mask: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        normed = self._norm(hidden, layer.norm_in)
        qkv = (
            functional.linear(normed, *layer.qkv).view(*hidden.shape[:2], self.heads, 3, self.head_size).transpose(2, 3)
        )
        attended = functional.linear(self._attend(qkv, index, turn, mask, cache), *layer.dense)
        if not self.parallel:
            hidden = hidden + attended
        normed = self._norm(hidden, layer.norm_mlp)
        grown = functional.linear(self.activation(functional.linear(normed, *layer.up)), *layer.down)
        return grown + attended + hidden if self.parallel else grown + hidden

    def _norm(self, hidden: torch.Tensor, norm: Norm) -> torch.Tensor:
        return torch.layer_norm(hidden, self.width, norm[0], norm[1], self.eps)

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return functional.linear(self._norm(hidden, self.final_norm), self.head)

    def _attend(self, qkv: torch.Tensor, index: int, turn: Turn, mask: torch.Tensor | None, cache: Any) -> torch.Tensor:
        """Rotate queries and keys of (B, n, 3, H, D) in place, store keys and values, attend; (B, n, H * D)."""
        turning = qkv[:, :, :2, :, : self.rotated]  # queries and keys together
        swapped = torch.cat([turning[..., self.half :], turning[..., : self.half]], -1)
        turning.mul_(turn[0]).addcmul_(swapped, turn[1])
        query, key, value = qkv.permute(2, 0, 3, 1, 4).unbind(0)  # (B, H, n, D) each
        keys, values = cache.update(key, value, index)
        causal = mask is None and query.shape[2] > 1
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask, is_causal=causal)
        return mixed.transpose(1, 2).flatten(2)


def _pair(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return module.weight, module.bias  # the bias may be None, which the functional forms take as well
