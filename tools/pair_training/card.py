"""A finished pair on disk: float16 weights, a machine-readable card and the model card drawn from it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynatree_lib.paths import sha256_of
from dynatree_suite.files import whole_folder
from dynatree_suite.training.card import hardware, readme, versions, write_card
from dynatree_suite.training.optimize import Run

from .corpus import HELD_OUT_PERCENT
from .recipe import Recipe

TEMPLATE = Path(__file__).with_name("card.md.jinja")


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
    device = runtime.device
    return {
        "recipe": recipe.as_json(),
        "models": made,
        "corpus": dict(corpus),
        **figures,
        "hardware": f"GPU, {torch.cuda.get_device_name(device)}" if device.startswith("cuda") else hardware(),
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
        write_card(folder, card, page(card))
    return card


def page(card: Mapping[str, Any]) -> str:
    """Return the model card in Markdown; every number is the card's."""
    return readme({**card, "held_out_percent": HELD_OUT_PERCENT}, TEMPLATE)
