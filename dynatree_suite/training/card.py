"""The finished pair on disk: weights in 16 bit, tokenizer, a machine-readable card and the model card drawn from it."""

from __future__ import annotations

import copy
import json
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch

from dynatree_lib.paths import sha256_of

from .corpus import HELD_OUT_PERCENT
from .optimize import Run
from .recipe import Recipe

CARD = "card.json"


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
    """Write a model as float16 safetensors whose config asks for float32: 16 bit on disk, 32 in use."""
    half = copy.deepcopy(model).half()
    half.config.use_cache = True
    half.save_pretrained(folder)
    half.config.dtype = torch.float32
    half.config.save_pretrained(folder)


def write_pair(out: Path, models: Mapping[str, Any], tokenizer: Any, card: dict[str, Any]) -> dict[str, Any]:
    """Write target/ (with the tokenizer), draft/, card.json and README.md to `out`, whole or not at all.

    Returns:
        the card, with the sha256 of every weight and tokenizer file added.
    """
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, model in models.items():
        store_model(model, partial / name)
    tokenizer.save_pretrained(partial / "target")
    for path in partial.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes for the owner alone
    listed = [*partial.rglob("*.safetensors"), *partial.rglob("tokenizer.json")]
    digests = {path.relative_to(partial).as_posix(): sha256_of(path) for path in sorted(listed)}
    card = {**card, "files": digests}
    write_card(partial, card)
    shutil.rmtree(out, ignore_errors=True)
    partial.replace(out)
    return card


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
