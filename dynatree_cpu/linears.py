"""transformers' own forward with every matrix product over packed weights, for architectures without a forward here.

Half of a small model's forward of few tokens on a CPU is torch's matrix product, which reads weights at half of the
memory's speed (`products`). Here the modules between are transformers' own, so that any architecture is served.
"""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Self

import torch
from torch import nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from dynatree_lib.models.engine import Eager

from .products import packed, packs


class PackedLinears(Eager):
    """The forward of a model on a CPU whose linear layers have a packed copy of their weights.

    The model is not touched: its modules are copied without their weights, and the copies' linear layers replaced.
    """

    name = "linears"
    copies_weights: ClassVar[bool] = True
    serves: ClassVar[str] = "models in float32 or bfloat16 on a CPU whose torch has oneDNN"

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:  # type: ignore[override]
        """Make the forward of a model, or None on another device or in another dtype."""
        placed = any(hasattr(module, "_hf_hook") for module in model.modules())  # by accelerate, on several devices
        return cls(_replaced(model)) if packs(model) and not placed else None


class _Packed(nn.Module):
    """A linear layer over packed weights."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None) -> None:
        super().__init__()
        self.weight, self.product = weight, packed(weight, bias)  # some models read the weight's dtype

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.product(inputs)


def _replaced(module: Any) -> Any:
    """A copy of a module that shares all weights, its linear layers replaced."""
    if type(module) is nn.Linear:
        return _Packed(module.weight.detach(), None if module.bias is None else module.bias.detach())
    if type(module) is Conv1D:  # GPT-2's linear layer, its weight transposed
        return _Packed(module.weight.detach().T, module.bias.detach())
    other = copy.copy(module)
    other._modules = {name: None if part is None else _replaced(part) for name, part in module._modules.items()}
    return other
