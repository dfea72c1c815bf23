"""The finished pair on disk: weights in 16 bit, tokenizer, a machine-readable card and the model card drawn from it."""

from __future__ import annotations

import copy
import hashlib
import json
import platform
import shutil
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import numpy as np
import torch

from .corpus import HELD_OUT_PERCENT
from .optimize import Runtime
from .recipe import Recipe

CARD = "card.json"


def rounded(model: Any) -> Any:
    """The model with its weights rounded to float16 as they will be stored, in float32 again, ready to be read."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.half().float())
    return model.eval().requires_grad_(False)


def byte_lengths(tokenizer: Any, vocab_size: int) -> list[int]:
    """Bytes each token stands for; special tokens and unused entries stand for none."""
    lengths = [0] * vocab_size
    special = set(tokenizer.all_special_ids)
    for token, index in tokenizer.get_vocab().items():
        lengths[index] = 0 if index in special else len(token)  # a byte-level token has one character per byte
    return lengths


def hardware(device: str) -> str:
    """What the run was made on, as far as it matters for its speed: kind of processor, not the machine."""
    if device.startswith("cuda"):
        return f"GPU, {torch.cuda.get_device_name(device)}"
    capability = torch.backends.cpu.get_cpu_capability()
    bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return f"CPU, {torch.get_num_threads()} cores, {capability}{'-bf16' if bf16 else ''}"


def _versions() -> dict[str, str]:
    found = {"python": platform.python_version()}
    for package in ("torch", "transformers", "tokenizers", "numpy"):
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "unknown"
    return found


def make_card(
    recipe: Recipe,
    corpus: Mapping[str, Any],
    tokens: Mapping[str, np.ndarray],
    figures: Mapping[str, Any],
    minutes: Mapping[str, float],
    runtime: Runtime,
    models: Mapping[str, Any],
) -> dict[str, Any]:
    """Everything known of the pair, in plain JSON values. `minutes` is training time, checkpoints left out.

    `figures` (held-out losses and what else was measured) go in as they are, `models` has "target" and "draft".
    """
    made = {}
    for name, plan in (("target", recipe.target), ("draft", recipe.draft)):
        made[name] = {
            "parameters": sum(p.numel() for p in models[name].parameters()),
            "steps": plan.steps,
            "tokens_seen": plan.tokens,
            "minutes": minutes[name],
        }
    total = sum(recipe.parts.values())
    for name, text in tokens.items():
        corpus[name]["train"]["tokens"] = len(text)
        corpus[name]["epochs_target"] = round(recipe.target.tokens * recipe.parts[name] / total / len(text), 2)
    return {
        "recipe": recipe.as_json(),
        "models": made,
        "corpus": dict(corpus),
        **figures,
        "hardware": hardware(runtime.device),
        "autocast": "bfloat16" if runtime.autocast else "none",
        "compiled": runtime.compile,
        "versions": _versions(),
    }


def store_model(model: Any, folder: Path) -> None:
    """Write a model as float16 safetensors whose config asks for float32: 16 bit on disk, 32 in use."""
    half = copy.deepcopy(model).half()
    half.config.use_cache = True
    half.save_pretrained(folder)
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    config.pop("torch_dtype", None)
    config["dtype"] = "float32"
    path.write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")


def write_pair(out: Path, models: Mapping[str, Any], tokenizer: Any, card: dict[str, Any]) -> dict[str, Any]:
    """Write target/ (with the tokenizer), draft/, card.json and README.md to `out`, whole or not at all.

    Returns the card with the sha256 of every weight and tokenizer file added.
    """
    partial = out.with_name(out.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    for name, model in models.items():
        store_model(model, partial / name)
    tokenizer.save_pretrained(partial / "target")
    files = [
        path for path in sorted(partial.rglob("*")) if path.suffix == ".safetensors" or path.name == "tokenizer.json"
    ]
    digests = {path.relative_to(partial).as_posix(): hashlib.sha256(path.read_bytes()).hexdigest() for path in files}
    card = {**card, "files": digests}
    (partial / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    redraw(partial)
    shutil.rmtree(out, ignore_errors=True)
    for path in partial.rglob("*.safetensors"):
        path.chmod(0o644)  # safetensors writes for the owner alone
    partial.replace(out)
    return card


def redraw(folder: Path) -> None:
    """Draw README.md of a pair anew from its card.json, after figures such as "acceptance" were added to the card."""
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    (folder / "README.md").write_text(readme(card), encoding="utf-8")


def readme(card: Mapping[str, Any]) -> str:
    """The model card in Markdown; every number is the card's."""
    sections = [_heading(card), _losses(card), _acceptance(card), _texts(card), _making(card)]
    return "\n\n".join(section for section in sections if section) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _heading(card: Mapping[str, Any]) -> str:
    recipe = card["recipe"]
    rows = []
    for name, model in card["models"].items():
        shape = recipe[name]["shape"]
        rows.append(
            [
                f"`{name}/`",
                f"{model['parameters'] / 1e6:.2f} M",
                f"{shape['num_hidden_layers']} x {shape['hidden_size']}, {shape['num_attention_heads']} heads",
                f"{model['steps']:,}",
                f"{model['tokens_seen'] / 1e6:.1f} M",
                f"{model['minutes']:g}",
            ]
        )
    table = _table(["model", "parameters", "layers x width", "steps", "tokens seen", "minutes"], rows)
    positions = recipe["target"]["shape"]["max_position_embeddings"]
    trained = max(phase["length"] for phase in recipe["target"]["phases"])
    return (
        f"# The pair `{recipe['name']}`\n\n{recipe['about']}\n\n{table}\n\n"
        f"Both are GPT-NeoX models over one byte-level BPE of {recipe['vocab_size']:,} entries; the tokenizer lies in "
        f"`target/`. Weights are stored in float16 and the configurations ask for float32. Positions: {positions:,}, "
        f"trained up to {trained:,}. The pair exists to study decoding: it writes the form of its texts, not their "
        "sense, and no answer of it should be believed."
    )


def _losses(card: Mapping[str, Any]) -> str:
    keys = [
        "target_nats_per_token",
        "target_bits_per_byte",
        "draft_nats_per_token",
        "draft_bits_per_byte",
        "kl_nats_per_token",
        "top1_agreement",
    ]
    rows = [
        [name, f"{values['tokens']:,}", *(f"{values[key]:.3f}" for key in keys)]
        for name, values in card["held_out"].items()
    ]
    head = [
        "held-out text",
        "tokens",
        "target nats/token",
        "target bits/byte",
        "draft nats/token",
        "draft bits/byte",
        "KL(target, draft)",
        "same top-1",
    ]
    spans = card.get("nats_per_token_by_position", {})
    far = [
        [name, *(f"{value:.3f}" for value in spans[name].values())] for name in ("target", "draft") if spans.get(name)
    ]
    late = ""
    if far:
        late = f"\n\nNats per token by position in the context, on held-out {spans['text']}:\n\n"
        late += _table(["positions", *spans["target"]], far)
    return "## Held-out losses\n\n" + _table(head, rows) + late


def _acceptance(card: Mapping[str, Any]) -> str:
    if "acceptance" not in card:
        return ""

    def lines(value: Any, indent: int) -> list[str]:
        if not isinstance(value, Mapping):
            return []
        out: list[str] = []
        for key, item in value.items():
            shown = "" if isinstance(item, Mapping) else f" {item:.3f}" if isinstance(item, float) else f" {item}"
            out += ["  " * indent + f"- {key}:{shown}", *lines(item, indent + 1)]
        return out

    return "## Acceptance on held-out prompts\n\n" + "\n".join(lines(card["acceptance"], 0))


def _texts(card: Mapping[str, Any]) -> str:
    rows = [
        [
            name,
            f"{part['weight']:g}",
            f"{part['train']['bytes']:,}",
            f"{part['epochs_target']:g}",
            part["source"],
            part["licence"],
            f"`{part['train']['sha256'][:12]}`",
            f"`{part['held_out']['sha256'][:12]}`",
        ]
        for name, part in card["corpus"].items()
    ]
    head = ["part", "weight", "bytes", "epochs", "source", "licence", "sha256 train", "sha256 held out"]
    return (
        "## Texts\n\n" + _table(head, rows) + "\n\n"
        f"Held out: {HELD_OUT_PERCENT} % of the standard library's files, by the hash of their path; the test splits "
        "of WikiText-2 and GSM8K; a whole novel; tasks 511-600 of MBPP. Never read in training: HumanEval, Spec-Bench, "
        "the test split of MBPP. Skipped in the standard library: site-packages, encodings, pydoc_data, deliberately "
        "broken test files, files that are not UTF-8 or longer than 260,000 bytes."
    )


def _making(card: Mapping[str, Any]) -> str:
    name, policy = card["recipe"]["name"], card["recipe"]["on_policy"]
    heats = ", ".join(f"{heat:g}" for heat in policy["temperatures"])
    versions = ", ".join(f"{package} {number}" for package, number in card["versions"].items())
    return (
        "## How it was made\n\n"
        f"`dynatree train --recipe {name} --data DIR` on {card['hardware']} (autocast: {card['autocast']}; "
        f"{versions}). "
        "The target minimises next-token cross-entropy; the draft minimises KL(target || draft) alone, "
        f"{policy['share']:.0%} of its text being about {policy['tokens']:,} tokens that the target wrote itself "
        f"(temperatures {heats}). Muon for the hidden matrices, AdamW for the rest; warm-up, stable, linear decay. "
        "`card.json` has the whole recipe, the full hashes and the figures above."
        + "".join(f"\n\n{note}" for note in card.get("notes", ()))
    )
