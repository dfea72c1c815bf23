"""The engine `compiled`: machine code for forwards of few tokens on a CPU, where numba is installed."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from typing import ClassVar

from transformers import PreTrainedModel

from ..models.engines import Engine
from .llama import serves_family


class Compiled:
    """Makes a `native.CompiledLlama`; numba is imported for a model that it may serve, and for no other."""

    name = "compiled"
    copies_weights: ClassVar[bool] = True
    serves: ClassVar[str] = (
        "Llama, Qwen2, Qwen3 and Mistral models on a CPU under Linux, in float32 (in bfloat16 where the processor has "
        "avx512_bf16), where numba is installed (pip install 'dynatree-lib[fast]')"
    )

    @classmethod
    def of(cls, model: PreTrainedModel) -> Engine | None:
        """Make the compiled forward of a model, or None where it has none."""
        here = sys.platform == "linux" and model.device.type == "cpu" and find_spec("numba") is not None
        if not here or not serves_family(model):
            return None
        from .native import CompiledLlama

        return CompiledLlama.of(model)
