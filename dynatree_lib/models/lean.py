"""A lean forward for GPT-NeoX: transformers' arithmetic on the model's own weights, in a third of the calls.

On a small model most of a forward is Python between kernels. The model object is not touched; the load-time check
compares this path with the model's own forward, and any other architecture simply does without it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.nn import functional
from transformers import GPTNeoXForCausalLM, PreTrainedModel
from transformers.cache_utils import Cache


class _Layer(NamedTuple):
    norm_in: tuple[torch.Tensor, torch.Tensor]
    qkv: tuple[torch.Tensor, torch.Tensor]
    dense: tuple[torch.Tensor, torch.Tensor]
    norm_mlp: tuple[torch.Tensor, torch.Tensor]
    up: tuple[torch.Tensor, torch.Tensor]
    down: tuple[torch.Tensor, torch.Tensor]


class LeanGPTNeoX:
    """The forward of one GPT-NeoX model, one sequence at a time.

    Args:
        model: in eval mode, all weights on one device; its weights are referred to, not copied.
    """

    def __init__(self, model: GPTNeoXForCausalLM) -> None:
        core, config = model.gpt_neox, model.config
        self.width, self.eps = (config.hidden_size,), config.layer_norm_eps
        self.heads, self.head_size = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        self.parallel = config.use_parallel_residual
        self.embedding, self.head = core.embed_in.weight, model.get_output_embeddings().weight
        self.final_norm = _pair(core.final_layer_norm)
        self.activation = core.layers[0].mlp.act
        self.layers = [
            _Layer(
                _pair(one.input_layernorm), _pair(one.attention.query_key_value), _pair(one.attention.dense),
                _pair(one.post_attention_layernorm), _pair(one.mlp.dense_h_to_4h), _pair(one.mlp.dense_4h_to_h),
            )
            for one in core.layers
        ]  # fmt: skip
        everywhere = torch.arange(config.max_position_embeddings, device=self.embedding.device)[None]
        cos, sin = core.rotary_emb(self.embedding, everywhere)
        half = sin.shape[-1] // 2
        self.cos = cos[0, :, None, None]
        # rotate_half(x) * sin = [x2, x1] * [-sin, sin]
        self.sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)[:, None, None]
        self.rotated, self.half = 2 * half, half

    @classmethod
    def of(cls, model: PreTrainedModel) -> LeanGPTNeoX | None:
        """The lean forward of this model, or None where it has none."""
        fits = isinstance(model, GPTNeoXForCausalLM) and model.config._attn_implementation == "sdpa"
        one_device = len({weight.device for weight in model.parameters()}) == 1
        return cls(model) if fits and one_device else None

    def __call__(
        self, tokens: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: Cache, keep: int
    ) -> torch.Tensor:
        """(keep, V) logits of the last `keep` of n rows.

        Args:
            tokens: (n,) ids.
            positions: (n,) positions.
            mask: (1, 1, n, m) additive mask over all m cache columns, or None when every row sees all of them.
            cache: takes the rows' keys and values.
        """
        hidden = functional.embedding(tokens, self.embedding)
        cos, sin = self.cos[positions], self.sin[positions]
        for index, layer in enumerate(self.layers):
            attended = self._attention(layer, index, hidden, cos, sin, mask, cache)
            if not self.parallel:
                hidden = hidden + attended
            normed = functional.layer_norm(hidden, self.width, *layer.norm_mlp, self.eps)
            grown = functional.linear(self.activation(functional.linear(normed, *layer.up)), *layer.down)
            hidden = grown + attended + hidden if self.parallel else grown + hidden
        return functional.linear(
            functional.layer_norm(hidden[-keep:], self.width, *self.final_norm, self.eps), self.head
        )

    def _attention(
        self,
        layer: _Layer,
        index: int,
        hidden: torch.Tensor,
        cos: torch.Tensor,
        sin: torch.Tensor,
        mask: torch.Tensor | None,
        cache: Cache,
    ) -> torch.Tensor:
        normed = functional.layer_norm(hidden, self.width, *layer.norm_in, self.eps)
        qkv = functional.linear(normed, *layer.qkv).view(len(hidden), self.heads, 3, self.head_size)
        turning = qkv[:, :, :2, : self.rotated]  # queries and keys together
        swapped = torch.cat([turning[..., self.half :], turning[..., : self.half]], -1)
        turning.copy_(turning * cos + swapped * sin)
        query, key, value = qkv.permute(2, 1, 0, 3)[:, None].unbind(0)  # (1, H, n, D) each
        keys, values = cache.update(key, value, index)
        mixed = functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
        return functional.linear(mixed.transpose(1, 2).reshape(len(hidden), -1), *layer.dense)


def _pair(module: Any) -> tuple[torch.Tensor, torch.Tensor]:
    return module.weight, module.bias  # the bias may be None, which the functional forms take as well
