"""The engine `packed`: a model's forward over weights in oneDNN's layout, where its architecture has one."""

from __future__ import annotations

from typing import ClassVar

from transformers import PreTrainedModel

from dynatree_lib.models.engine import Engine

from .gpt_neox import PackedGPTNeoX
from .llama import PackedLlama

KINDS = (PackedGPTNeoX, PackedLlama)


class Packed:
    """Chooses among the packed forwards; see them for what each does."""

    name = "packed"
    copies_weights: ClassVar[bool] = True
    serves: ClassVar[str] = "; ".join(kind.serves for kind in KINDS)

    @classmethod
    def of(cls, model: PreTrainedModel) -> Engine | None:
        """Make the packed forward of a model, or None where its architecture, dtype or device has none."""
        made = (kind.of(model) for kind in KINDS)
        return next((engine for engine in made if engine is not None), None)
