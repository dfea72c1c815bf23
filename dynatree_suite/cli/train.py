"""`dynatree train`: train a draft for a model that exists, from a recipe and local data sets, on a CPU.

It needs torch, transformers, safetensors, numpy and tokenizers alone, because it runs on bare machines.
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
    from ..training.optimize import Log, Runtime


def main(args: argparse.Namespace) -> int:
    """Train the draft; progress goes to standard error.

    Raises:
        ValueError, FileNotFoundError, FileExistsError: before any work, where the recipe, the texts, the options or the
            folders do not fit.
        RuntimeError: where another training works in the same folder.
    """
    import transformers

    from ..training.draft import open_draft_training, train_draft
    from ..training.recipe import load_recipe

    transformers.utils.logging.disable_progress_bar()
    recipe, log = load_recipe(args.recipe), told()
    check_shortened(args)
    if args.steps is not None:
        recipe = recipe.of_steps(args.steps)
    out, work = args.out or Path("data") / recipe.target, args.work or cache_folder() / "training" / recipe.target
    training = open_draft_training(recipe, args.data, work, out, runtime(args), log, args.force)
    with sole_run(work):
        train_draft(training, args.max_minutes)
    log(f"the draft is in {training.out}")
    return 0


def check_shortened(args: argparse.Namespace) -> None:
    """Raise ValueError for --steps or --max-minutes that are not above 0."""
    for name, value in (("--steps", args.steps), ("--max-minutes", args.max_minutes)):
        if value is not None and value <= 0:
            raise ValueError(f"{name} is {value}; give a number above 0, or leave it out for the recipe's own steps.")


def told() -> Log:
    """Return what writes a line of progress to standard error, after the minutes since this call."""
    begun = time.monotonic()

    def log(line: str) -> None:
        sys.stderr.write(f"[{(time.monotonic() - begun) / 60:6.1f} min] {line}\n")
        sys.stderr.flush()

    return log


def runtime(args: argparse.Namespace, device: str = "cpu") -> Runtime:
    """How to train on a device."""
    import torch

    from ..training.optimize import Runtime, compiler_found

    if not hasattr(torch.optim, "Muon"):
        raise ImportError(
            f"Training uses torch.optim.Muon, which torch {torch.__version__} lacks; install torch 2.9 or newer."
        )
    compiling = compiler_found(device) if args.compile is None else args.compile
    return Runtime(device=device, autocast=args.autocast, compile=compiling)
