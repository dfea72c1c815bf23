"""The engines `compiled`, `quantised` and `rounded`: machine code for forwards of few tokens on a CPU, by numba."""

from __future__ import annotations

import sys
from importlib import import_module
from importlib.util import find_spec
from typing import ClassVar

from transformers import PreTrainedModel

from dynatree_lib.models.engine import Engine

from .llama import serves_family


class Compiled:
    """Makes a `native.CompiledLlama`; numba is imported for a model that it may serve, and for no other."""

    name = "compiled"
    copies_weights: ClassVar[bool] = True
    serves: ClassVar[str] = (
        "Llama, Qwen2, Qwen3 and Mistral models on a CPU under Linux, in float32 (in bfloat16 where the processor has "
        "avx512_bf16), where numba is installed (pip install 'dynatree-lib[fast]')"
    )
    forward: ClassVar[tuple[str, str]] = ".native", "CompiledLlama"

    @classmethod
    def of(cls, model: PreTrainedModel) -> Engine | None:
        """Make the compiled forward of a model, or None where it has none."""
        here = sys.platform == "linux" and model.device.type == "cpu" and find_spec("numba") is not None
        if not here or not serves_family(model):
            return None
        module, name = cls.forward
        engine: Engine | None = getattr(import_module(module, __package__), name).of(model)
        return engine


class Quantised(Compiled):
    """Makes a `quantised.QuantisedLlama`, in the same way."""

    name = "quantised"
    serves: ClassVar[str] = (
        "what 'compiled' serves, in float32, where every weight of the layers comes from 4 or 8 bits (a GGUF file of "
        "Q4_0, Q4_1 or Q8_0)"
    )
    forward: ClassVar[tuple[str, str]] = ".quantised", "QuantisedLlama"


class Rounded(Quantised):
    """Makes a `quantised.RoundedLlama`, in the same way."""

    name = "rounded"
    serves: ClassVar[str] = "what 'quantised' serves, where the processor has avx512_vnni and no AMX"
    forward: ClassVar[tuple[str, str]] = ".quantised", "RoundedLlama"


class Bytes(Rounded):
    """Makes a `quantised.BytesLlama`, in the same way; for those who ask for it by name."""

    name = "bytes"
    by_name: ClassVar[bool] = True
    forward: ClassVar[tuple[str, str]] = ".quantised", "BytesLlama"
