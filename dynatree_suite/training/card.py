"""A finished training on disk: weights in 16 bit, a machine-readable card and the model card drawn from it."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import jinja2
import numpy as np
import torch
from safetensors.torch import save

from dynatree_lib.models.pruned import LAYERS, TOKENS, WEIGHTS, own_weights

from .recipe import read_object

CARD = "card.json"
BEGUN = "begun.json"
"""File of a working folder: what is trained there."""
TEMPLATE = Path(__file__).with_name("draft_card.md.jinja")
"""The model card of a draft."""


def check_folders(work: Path, out: Path, force: bool) -> dict[str, Any] | None:
    """Check that a training may work in one folder and replace another; return what `work` says is trained there.

    Raises:
        FileExistsError: for a file or what would lie below one, for a folder that holds other things than a training
            writes, and, unless `force` is given, for a finished pair or draft in `out`.
        ValueError: when one folder lies in the other.
    """
    if work.is_relative_to(out) or out.is_relative_to(work):
        raise ValueError(
            f"--work {work} and --out {out} lie in each other, and one would be lost with the other; give two apart."
        )
    for folder, option, marker in ((out, "--out", CARD), (work, "--work", BEGUN)):
        there = next(one for one in (folder, *folder.parents) if one.exists())
        if not there.is_dir():
            raise FileExistsError(f"{there} is a file; give a folder ({option}).")
        if folder.is_dir() and any(folder.iterdir()) and not (folder / marker).is_file():
            raise FileExistsError(
                f"{folder} holds other things than a training writes ({marker} is missing) and would be replaced; give "
                f"another {option}, or a new folder inside it."
            )
    if (out / CARD).is_file() and not force:
        raise FileExistsError(f"{out} already holds a finished training; pass --force to replace it, or another --out.")
    return read_object(work / BEGUN) if (work / BEGUN).is_file() else None


def hardware() -> str:
    """Describe the kind of processor, as far as it matters for speed; the machine is not named."""
    capability = torch.backends.cpu.get_cpu_capability()
    bf16 = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)()
    return f"CPU, {torch.get_num_threads()} cores, {capability}{'-bf16' if bf16 else ''}"


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that training uses."""
    packages = ("torch", "transformers", "tokenizers", "numpy")
    return {"python": platform.python_version(), **{name: version(name) for name in packages}}


def store_pruned(draft: Any, layers: Sequence[int], tokens: np.ndarray, folder: Path) -> None:
    """Write a draft's own weights in float16, the layers it was made from, and the (K,) ids of the tokens it drafts."""
    folder.mkdir(parents=True, exist_ok=True)
    halves = {name: weight.detach().half().contiguous() for name, weight in own_weights(draft).items()}
    (folder / WEIGHTS).write_bytes(save(halves))
    np.save(folder / TOKENS, tokens.astype(np.uint16 if tokens.max() < 2**16 else np.int64))
    made_of = {"layers": list(layers), "feature_layers": getattr(draft, "feature_layers", None)}
    (folder / LAYERS).write_text(json.dumps(made_of) + "\n", encoding="utf-8")


def write_card(folder: Path, card: Mapping[str, Any], page: str) -> None:
    """Write card.json, and the README.md that was drawn from it."""
    (folder / CARD).write_text(json.dumps(card, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "README.md").write_text(page, encoding="utf-8")


def readme(card: Mapping[str, Any], template: Path = TEMPLATE) -> str:
    """Return the model card in Markdown; every number is the card's."""
    text = template.read_text(encoding="utf-8")
    options: dict[str, Any] = {"trim_blocks": True, "lstrip_blocks": True, "keep_trailing_newline": True}
    page: str = jinja2.Template(text, undefined=jinja2.StrictUndefined, **options).render(card)
    return page
