"""`dynatree train`: train a target and distil a draft for it, from a recipe and named texts.

This is how the pair `tiny` was made, and how a user makes a pair of another shape. The command is the same on a CPU
and on a GPU; a draft for a model that exists is trained on a CPU alone. It needs torch, transformers, safetensors,
numpy and tokenizers alone, because it runs on bare machines.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dynatree_lib.paths import cache_folder

from ..files import sole_run

if TYPE_CHECKING:
    from ..training.optimize import Runtime


def main(args: argparse.Namespace) -> int:
    """Train the pair; progress goes to standard error.

    Raises:
        ValueError, FileNotFoundError, FileExistsError: before any work, where the recipe, the texts, the options or the
            folders do not fit.
        RuntimeError: where another training works in the same folder.
    """
    import transformers

    from ..training.draft import open_draft_training, train_draft
    from ..training.pipeline import open_training, train_pair
    from ..training.recipe import DraftRecipe, load_recipe

    transformers.utils.logging.disable_progress_bar()
    recipe = load_recipe(args.recipe)
    for name, value in (("--steps", args.steps), ("--max-minutes", args.max_minutes)):
        if value is not None and value <= 0:
            raise ValueError(f"{name} is {value}; give a number above 0, or leave it out for the recipe's own steps.")
    if args.steps is not None:
        recipe = recipe.of_steps(args.steps)
    begun = time.monotonic()

    def log(line: str) -> None:
        sys.stderr.write(f"[{(time.monotonic() - begun) / 60:6.1f} min] {line}\n")
        sys.stderr.flush()

    if isinstance(recipe, DraftRecipe):
        out, work = args.out or Path("data") / recipe.target, args.work or cache_folder() / "training" / recipe.target
        drafting = open_draft_training(recipe, args.data, work, out, _runtime(args, "cpu"), log, args.force)
        with sole_run(work):
            train_draft(drafting, args.max_minutes)
        log(f"the draft is in {drafting.out}")
        return 0
    out, work = args.out or Path("data") / recipe.name, args.work or Path("outputs/train") / recipe.name
    training = open_training(recipe, args.data, work, out, _runtime(args), log, args.resume, args.force)
    with sole_run(work):
        train_pair(training, args.max_minutes)
    log(f"the pair is in {out}")
    return 0


def _runtime(args: argparse.Namespace, default: str | None = None) -> Runtime:
    """How to train on the device that was asked for; without one on `default`, or on a GPU where there is one."""
    import torch

    from ..training.optimize import Runtime, compiler_found

    if not hasattr(torch.optim, "Muon"):
        raise ImportError(
            f"Training uses torch.optim.Muon, which torch {torch.__version__} lacks; install torch 2.9 or newer."
        )
    device = args.device or default or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.split(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device is {device}; give cpu or cuda.")
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise ValueError(f"--device {device} was asked for, but torch sees no GPU; use --device cpu.")
        torch.set_float32_matmul_precision("high")
    compiling = compiler_found(device) if args.compile is None else args.compile
    return Runtime(device=device, autocast=args.autocast, compile=compiling)
