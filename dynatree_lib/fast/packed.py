"""The lean forward with joined matrices in oneDNN's layout: a third of the time for one token on a CPU, half for many.

Apart from reading the weights once, two things cost time on a CPU: calls, and torch's matrix product for few tokens,
which leaves half of the bandwidth unused. oneDNN's product over weights packed beforehand takes a half to a third of
that time.
Parallel residuals let a layer's four matrices be joined into two: queries, keys and values with the MLP's first, the
attention's output with the MLP's second.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple, Self

import torch
from transformers import GPTNeoXForCausalLM, PreTrainedModel

from .lean import Layer, LeanGPTNeoX, Norm, Turn

TOKENS_HINT = 16
"""Number of tokens that oneDNN lays the weights out for; it serves any number."""
Product = Callable[[torch.Tensor], torch.Tensor]


class _Joined(NamedTuple):
    norm_in: Norm
    norm_mlp: Norm
    into: tuple[Product, ...]
    out: Product


class PackedGPTNeoX(LeanGPTNeoX):
    """The forward of a GPT-NeoX model with parallel residuals on a CPU: an `Engine` with a copy of the weights.

    In float32 the scales and shifts of the norms are multiplied into the matrices after them, which moves logits by
    rounding only (1e-5 on the bundled pair); in bfloat16, where it would change weights, norms and the matrices after
    them stay apart. The copy does not follow later changes of the model's weights.

    Args:
        model: in eval mode, on the CPU, in float32 or bfloat16.
    """

    name = "packed"
    copies_weights = True
    serves = (
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
        lean = LeanGPTNeoX.of(model)
        packs = {torch.float32: torch.backends.mkldnn.is_available, torch.bfloat16: _packs_bfloat16}.get(model.dtype)
        if lean is None or not lean.parallel or model.device.type != "cpu" or packs is None or not packs():
            return None
        assert isinstance(model, GPTNeoXForCausalLM)
        return cls(model)

    def _fold(self, norm: Any, linear: Any) -> tuple[Any, Any]:
        """Norm and matrix (weight, bias) after it, the norm's scale and shift multiplied into the matrix in float32."""
        if not self.folded:
            return norm, linear
        (scale, shift), (weight, bias) = norm, linear
        moved = weight @ shift if shift is not None else weight.new_zeros(len(weight))
        return (None, None), (weight * scale, moved if bias is None else bias + moved)

    def _joined(self, layer: Layer) -> _Joined:
        by_kind = (  # rows of the fused matrix come head by head; here queries, keys, values
            None if part is None else part.unflatten(0, (self.heads, 3, -1)).transpose(0, 1).flatten(0, 2)
            for part in layer.qkv
        )
        norm_in, qkv = self._fold(layer.norm_in, tuple(by_kind))
        norm_mlp, up = self._fold(layer.norm_mlp, layer.up)
        pairs = [tuple(torch.cat(parts) for parts in zip(qkv, up, strict=True))] if self.folded else [qkv, up]
        biases = [part[1] for part in (layer.dense, layer.down) if part[1] is not None]
        out = torch.cat([layer.dense[0], layer.down[0]], 1), torch.stack(biases).sum(0) if biases else None
        return _Joined(norm_in, norm_mlp, tuple(packed(*pair) for pair in pairs), packed(*out))

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


def packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """Return `functional.linear` with this (out, in) weight and (out,) bias, from a copy in oneDNN's layout.

    The operators are those that torch.compile emits; they have no public name.
    """
    copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), TOKENS_HINT)
    product = torch.ops.mkldnn._linear_pointwise.default
    return lambda inputs: product(inputs, copy, bias, "none", [], "")


def _packs_bfloat16() -> bool:
    return torch.backends.mkldnn.is_available() and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
