"""Finished pairs and drafts on disk: weights in 16 bit, a machine-readable card and the model card drawn from it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from safetensors.torch import save

from dynatree_lib.models.pruned import LAYERS, TOKENS, WEIGHTS, own_weights
from dynatree_lib.paths import sha256_of

from ..files import whole_folder
from .corpus import HELD_OUT_PERCENT
from .optimize import Run
from .recipe import Recipe, read_object

CARD = "card.json"
BEGUN = "begun.json"
"""File of a working folder: what is trained there."""


def check_folders(work: Path, out: Path, force: bool) -> dict[str, Any] | None:
    """Check that a training may work in one folder and replace another; return what `work` says is trained there.

    Raises:
        FileExistsError: for a file, for a folder that holds other things than a training writes, and, unless `force`
            is given, for a finished pair or draft in `out`.
        ValueError: when one folder lies in the other.
    """
    if work.is_relative_to(out) or out.is_relative_to(work):
        raise ValueError(
            f"--work {work} and --out {out} lie in each other, and one would be lost with the other; give two apart."
        )
    for folder, option, marker in ((out, "--out", CARD), (work, "--work", BEGUN)):
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(f"{folder} is a file; give a folder ({option}).")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / marker).is_file():
            raise FileExistsError(
                f"{folder} holds other things than a training writes ({marker} is missing) and would be replaced; give "
                f"another {option}, or a new folder inside it."
            )
    if (out / CARD).is_file() and not force:
        raise FileExistsError(f"{out} already holds a finished training; pass --force to replace it, or another --out.")
    return read_object(work / BEGUN) if (work / BEGUN).is_file() else None


def round_weights(model: Any) -> None:
    """Round a model's weights to float16, as they will be stored; it stays in float32, in eval mode, without grad."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())
    model.eval().requires_grad_(False)


def byte_lengths(tokenizer: Any, vocab_size: int) -> np.ndarray:
    """Return (vocab_size,) how many bytes each token stands for; special tokens and unused entries stand for none."""
    lengths = np.zeros(vocab_size, np.int64)
    special = set(tokenizer.all_special_ids)
    for token, index in tokenizer.get_vocab().items():
        lengths[index] = 0 if index in special else len(token)  # a byte-level token has one character per byte
    return lengths


def hardware(device: str) -> str:
    """Describe the kind of processor, as far as it matters for speed; the machine is not named."""
    if device.startswith("cuda"):
        return f"GPU, {torch.cuda.get_device_name(device)}"
    capability = torch.backends.cpu.get_cpu_capability()
    bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return f"CPU, {torch.get_num_threads()} cores, {capability}{'-bf16' if bf16 else ''}"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that training uses."""
    packages = ("torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def make_card(
    recipe: Recipe,
    corpus: Mapping[str, Any],
    tokens: Mapping[str, np.ndarray],
    figures: Mapping[str, Any],
    runs: Mapping[str, Run],
) -> dict[str, Any]:
    """Gather everything known of the pair in plain JSON values.

    Args:
        recipe: what was trained.
        corpus: weight, sizes and hashes of each part; sizes in tokens and epochs are added.
        tokens: training tokens of each part.
        figures: held-out losses and whatever else was measured; they go in as they are.
        runs: the optimization of "target" and "draft".
    """
    made = {
        name: {
            "parameters": sum(weight.numel() for weight in run.model.parameters()),
            "steps": run.recipe.steps,
            "tokens_seen": run.recipe.tokens,
            "minutes": round(run.seconds / 60, 1),  # checkpoints left out
        }
        for name, run in runs.items()
    }
    total = sum(recipe.parts.values())
    for name, text in tokens.items():
        corpus[name]["train"]["tokens"] = len(text)
        corpus[name]["epochs_target"] = round(recipe.target.tokens * recipe.parts[name] / total / len(text), 2)
    runtime = runs["target"].runtime
    return {
        "recipe": recipe.as_json(),
        "models": made,
        "corpus": dict(corpus),
        **figures,
        "hardware": hardware(runtime.device),
        "autocast": "bfloat16" if runtime.autocast else "none",
        "compiled": runtime.compile,
        "versions": versions(),
    }


def store_model(model: Any, folder: Path) -> None:
    """Write a finished model as float16 safetensors whose config asks for float32: 16 bit on disk, 32 in use."""
    half = model.half()
    half.config.use_cache = True
    half.save_pretrained(folder)
    half.config.dtype = torch.float32
    half.config.save_pretrained(folder)


def write_pair(out: Path, models: Mapping[str, Any], tokenizer: Any, card: dict[str, Any]) -> dict[str, Any]:
    """Write target/ (with the tokenizer), draft/, card.json and README.md to `out`, whole or not at all.

    Returns:
        the card, with the sha256 of every weight and tokenizer file added.
    """
    with whole_folder(out) as folder:
        for name, model in models.items():
            store_model(model, folder / name)
        tokenizer.save_pretrained(folder / "target")
        for path in folder.rglob("*.safetensors"):
            path.chmod(0o644)  # safetensors writes for the owner alone
        listed = sorted([*folder.rglob("*.safetensors"), *folder.rglob("tokenizer.json")])
        card = {**card, "files": {path.relative_to(folder).as_posix(): sha256_of(path) for path in listed}}
        write_card(folder, card)
    return card


def store_pruned(draft: Any, layers: Sequence[int], tokens: np.ndarray, folder: Path) -> None:
    """Write a draft's own weights in float16, the layers it was made from, and the (K,) ids of the tokens it drafts."""
    folder.mkdir(parents=True, exist_ok=True)
    halves = {name: weight.detach().half().contiguous() for name, weight in own_weights(draft).items()}
    (folder / WEIGHTS).write_bytes(save(halves))
    np.save(folder / TOKENS, tokens.astype(np.uint16 if tokens.max() < 2**16 else np.int64))
    made_of = {"layers": list(layers), "feature_layers": getattr(draft, "feature_layers", None)}
    (folder / LAYERS).write_text(json.dumps(made_of) + "\n", encoding="utf-8")


def write_card(folder: Path, card: Mapping[str, Any], template: str = "card") -> None:
    """Write card.json of a pair or of a draft (`template` "draft_card"), and the README.md drawn from it."""
    (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(readme(card, template), encoding="utf-8")


def readme(card: Mapping[str, Any], template: str = "card") -> str:
    """Return the model card in Markdown; every number is the card's."""
    text = files(__package__).joinpath(f"{template}.md.jinja").read_text(encoding="utf-8")
    options: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    page = jinja2.Template(text, undefined=jinja2.StrictUndefined, **options)
    return page.render(card, held_out_percent=HELD_OUT_PERCENT)
