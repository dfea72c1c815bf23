"""Forwards for GPT-NeoX: transformers' arithmetic in a third of the calls (`lean`), and over packed weights (`packed`).

On a small model most of a forward is Python between kernels. The model object is not touched, and the load-time check
compares these paths with the model's own forward. Other architectures run transformers' forward.

Apart from reading the weights once, two things cost time on a CPU: calls, and torch's matrix product for few tokens,
which leaves half of the bandwidth unused. oneDNN's product over weights packed beforehand takes a half to a third of
that time. So the packed forward takes a third of the time for one token on a CPU, half for many. Parallel residuals let
a layer's four matrices be joined into two: queries, keys and values with the MLP's first, the attention's output with
the MLP's second.
"""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, ClassVar, Self

import torch
from torch.nn import functional
from transformers import GPTNeoXForCausalLM, PreTrainedModel

from dynatree_lib.models.architecture import reach

from .products import packed, packs

Norm = tuple[torch.Tensor | None, torch.Tensor | None]
"""(h,) scale and shift of a layer norm."""
Turn = tuple[torch.Tensor, torch.Tensor]
"""(B, n, 1, 1, R) cosines and signed sines of the tokens' positions."""
LAYER = {
    "norm_in": "input_layernorm",
    "qkv": "attention.query_key_value",
    "dense": "attention.dense",
    "norm_mlp": "post_attention_layernorm",
    "up": "mlp.dense_h_to_4h",
    "down": "mlp.dense_4h_to_h",
}
"""Norms and matrices of a layer -> their place in the model. Weight and bias of each are kept; a bias may be None."""


class LeanGPTNeoX:
    """The forward of one GPT-NeoX model: an `Engine`.

    Args:
        model: in eval mode, all weights on one device; its weights are referred to, not copied.
    """

    name = "lean"
    copies_weights: ClassVar[bool] = False
    serves: ClassVar[str] = "GPT-NeoX models with sdpa attention on one device"

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
            SimpleNamespace(**{name: _pair(layer.get_submodule(place)) for name, place in LAYER.items()})
            for layer in core.layers
        ]
        everywhere = torch.arange(reach(config), device=self.embedding.device)[None]
        cos, sin = core.rotary_emb(self.embedding, everywhere)
        half = sin.shape[-1] // 2
        self.cos = cos[0, :, None, None]
        # rotate_half(x) * sin = [x2, x1] * [-sin, sin]
        self.sin = torch.cat([-sin[0, :, :half], sin[0, :, half:]], -1)[:, None, None]
        self.rotated, self.half = 2 * half, half

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:
        """Make the lean forward of a model, or None where the model has none."""
        fits = type(model) is GPTNeoXForCausalLM and model.config._attn_implementation == "sdpa"
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
        qkv = functional.linear(normed, *layer.qkv).view(*hidden.shape[:2], self.heads, 3, self.head_size)
        attended = functional.linear(self._attend(qkv.transpose(2, 3), index, turn, mask, cache), *layer.dense)
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


class PackedGPTNeoX(LeanGPTNeoX):
    """The forward of a GPT-NeoX model with parallel residuals on a CPU: an `Engine` with a copy of the weights.

    In float32 the scales and shifts of the norms are multiplied into the matrices after them, which moves logits by
    rounding only (1e-5 on the bundled pair); in bfloat16, where it would change weights, norms and the matrices after
    them stay apart. The copy does not follow later changes of the model's weights.

    Args:
        model: in eval mode, on the CPU, in float32 or bfloat16.
    """

    name = "packed"
    copies_weights: ClassVar[bool] = True
    serves: ClassVar[str] = (
        "GPT-NeoX models with sdpa attention and parallel residuals, in float32 or bfloat16 on a CPU whose torch has "
        "oneDNN"
    )

    @torch.no_grad()
    def __init__(self, model: GPTNeoXForCausalLM) -> None:
        super().__init__(model)
        self.folded = self.embedding.dtype == torch.float32
        self.inner = 3 * self.heads * self.head_size
        self.layers = [self._joined(layer) for layer in self.layers]
        norm, matrix = self._fold(self.final_norm, (self.head, None))
        self.final_norm, self.head_product = norm, packed(*matrix)

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:
        """Make the packed forward of a model, or None where the model has none."""
        lean = LeanGPTNeoX.of(model) if packs(model) else None
        return cls(model) if lean is not None and lean.parallel else None

    def _fold(self, norm: Any, linear: Any) -> tuple[Any, Any]:
        """Return a norm and the matrix after it; in float32 the matrix takes the norm's scale and shift."""
        if not self.folded:
            return norm, linear
        (scale, shift), (weight, bias) = norm, linear
        moved = weight @ shift if shift is not None else weight.new_zeros(len(weight))
        return (None, None), (weight * scale, moved if bias is None else bias + moved)

    def _joined(self, layer: Any) -> SimpleNamespace:
        by_kind = (  # rows of the fused matrix come head by head; here queries, keys, values
            None if part is None else part.unflatten(0, (self.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
            for part in layer.qkv
        )
        norm_in, qkv = self._fold(layer.norm_in, tuple(by_kind))
        norm_mlp, up = self._fold(layer.norm_mlp, layer.up)
        pairs = [tuple(torch.cat(parts) for parts in zip(qkv, up, strict=True))] if self.folded else [qkv, up]
        biases = [part[1] for part in (layer.dense, layer.down) if part[1] is not None]
        out = torch.cat([layer.dense[0], layer.down[0]], 1), torch.stack(biases).sum(0) if biases else None
        into = [packed(*pair) for pair in pairs]
        return SimpleNamespace(norm_in=norm_in, norm_mlp=norm_mlp, into=into, out=packed(*out))

    def _layer(
        self, layer: Any, index: int, hidden: torch.Tensor, turn: Turn, mask: torch.Tensor | None, cache: Any
    ) -> torch.Tensor:
        normed = self._norm(hidden, layer.norm_in)
        first = layer.into[0](normed)
        if self.folded:
            qkv, grown = first.tensor_split((self.inner,), -1)
        else:
            qkv, grown = first, layer.into[1](self._norm(hidden, layer.norm_mlp))
        qkv = qkv.view(*hidden.shape[:2], 3, self.heads, self.head_size)
        mixed = self._attend(qkv, index, turn, mask, cache)
        return hidden + layer.out(torch.cat([mixed, self.activation(grown)], -1))

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.head_product(self._norm(hidden, self.final_norm))
