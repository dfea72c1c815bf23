"""Try weights that quantisation libraries keep in classes of their own: a small random Llama by each, on a CPU.

    python3 -m tools.try_quantised [--record FILE]

Needs the packages torchao and bitsandbytes, which the library itself does not; a way whose package is missing or
refuses to quantise is "not made". Texts by several drafters are compared with those of transformers' `generate` on the
same quantised model, as in tools/try_architectures.py, whose record's form FILE gets.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM
from transformers.utils import logging

import dynatree_lib as dt

from .try_architectures import _told, compared, greedy, noisy, prompts, random_model, write

FILE = Path(__file__).resolve().parents[1] / "outputs" / "reference" / "quantised.json"
SIZES = {"hidden_size": 128, "intermediate_size": 256, "head_dim": 32, "num_key_value_heads": 4, "vocab_size": 128}
"""Sizes that blocks of 64 and 128 weights divide."""


def _torchao(name: str, **options: Any) -> Callable[[], Any]:
    def config() -> Any:
        from torchao import quantization
        from transformers import TorchAoConfig

        return TorchAoConfig(quant_type=getattr(quantization, name)(**options))

    return config


def _bitsandbytes(**options: Any) -> Callable[[], Any]:
    def config() -> Any:
        from transformers import BitsAndBytesConfig

        return BitsAndBytesConfig(**options)

    return config


WAYS: Mapping[str, tuple[torch.dtype, Callable[[], Any]]] = {
    "torchao, int8 weights": (torch.float32, _torchao("Int8WeightOnlyConfig")),
    "torchao, int8 weights, bfloat16": (torch.bfloat16, _torchao("Int8WeightOnlyConfig")),
    "torchao, int8 weights and activations": (torch.float32, _torchao("Int8DynamicActivationInt8WeightConfig")),
    "torchao, float8 weights": (torch.bfloat16, _torchao("Float8WeightOnlyConfig")),
    "torchao, int4 weights in groups of 32": (torch.bfloat16, _torchao("Int4WeightOnlyConfig", group_size=32)),
    "bitsandbytes, 8 bits": (torch.float32, _bitsandbytes(load_in_8bit=True)),
    "bitsandbytes, 4 bits (nf4)": (torch.float32, _bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="nf4")),
    "bitsandbytes, 4 bits (fp4), bfloat16": (
        torch.bfloat16,
        _bitsandbytes(load_in_4bit=True, bnb_4bit_quant_type="fp4", bnb_4bit_compute_dtype=torch.bfloat16),
    ),
}
"""Name -> dtype of what is not quantised, and what makes the configuration for transformers."""


def tried(name: str, folder: Path) -> dict[str, Any]:
    """Quantise, load and decode by one way; the row of the record."""
    dtype, config = WAYS[name]
    row: dict[str, Any] = {"architecture": name, "type": "llama", "dtype": str(dtype).removeprefix("torch.")}
    try:
        model = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config(), dtype=dtype).eval()
        expected = [greedy(model, ids) for ids in prompts(SIZES["vocab_size"])]
    except Exception as error:
        return {**row, "result": "not made", "reason": _told(error)}
    row["attention"] = model.config._attn_implementation
    try:
        target = dt.HFModel(model)
    except (TypeError, ValueError) as error:
        return {**row, "result": "refused", "reason": str(error).replace(str(folder), "llama")}
    draft = noisy(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype).eval())
    return {**row, **compared(target, draft, expected), "engine": target.engine.name}


def main() -> int:
    """Try each way, print a line for each, write the record."""
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    options.add_argument("--record", type=Path, help=f"file to write ({FILE.name})")
    record = options.parse_args().record
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    wrong = 0
    with tempfile.TemporaryDirectory() as folder:
        random_model("llama", SIZES, torch.float32).save_pretrained(folder)
        for name in WAYS:
            row = tried(name, Path(folder))
            wrong += row["result"] == "wrong"
            sys.stdout.write(f"{row['result']:9} {name:40} {row.get('engine', '')} {row.get('reason', '')[:150]}\n")
            sys.stdout.flush()
            if record:
                write(record, row)
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
