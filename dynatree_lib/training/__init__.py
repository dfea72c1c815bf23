"""`dynatree train`: train a target and distil a draft for it, from a recipe and named texts.

This is how the pair `tiny` was made, and how a user makes a pair of another shape: the same command on a CPU and on a
GPU. `recipe.py` says what decides the weights, `corpus.py` and `tokens.py` turn texts into windows, `optimize.py` is
gradient descent with checkpoints, `distil.py` has the losses and the target's own text, `pipeline.py` the order of it
all, `card.py` the finished pair on disk. Measuring acceptance is left to the benchmark.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .optimize import Runtime


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dynatree train` to a parser."""
    parser.add_argument(
        "--recipe", default="tiny", help="name of a recipe in data/recipes, or a .json file (default: tiny)"
    )
    parser.add_argument(
        "--data",
        type=Path,
        metavar="DIR",
        help="folder with wikitext-2-raw/, pg19/, gsm8k/, mbpp/; without it they come from the hub",
    )
    parser.add_argument("--out", type=Path, metavar="DIR", help="where the pair goes (default: data/RECIPE)")
    parser.add_argument(
        "--work", type=Path, metavar="DIR", help="checkpoints and caches (default: outputs/train/RECIPE)"
    )
    parser.add_argument("--resume", action="store_true", help="go on with an interrupted run")
    parser.add_argument("--force", action="store_true", help="replace a finished pair and forget an unfinished run")
    parser.add_argument(
        "--steps", type=int, metavar="N", help="steps of the target instead of the recipe's; the draft's in proportion"
    )
    parser.add_argument(
        "--max-minutes",
        type=float,
        metavar="M",
        help="take fewer steps than the recipe, as many as fit at the speed measured",
    )
    parser.add_argument("--device", help="cpu or cuda (default: cuda where there is one)")
    parser.add_argument(
        "--compile",
        action=argparse.BooleanOptionalAction,
        default=None,
        help="use torch.compile (default: where a compiler for the device is found)",
    )
    parser.add_argument(
        "--autocast", action=argparse.BooleanOptionalAction, default=True, help="bfloat16 forwards (default: yes)"
    )


def main(args: argparse.Namespace) -> int:
    """Train the pair that `args` asks for; progress goes to standard error.

    Raises ValueError, FileNotFoundError or FileExistsError with one sentence before any work when the recipe, the
    texts, the options or the folders do not fit.
    """
    import transformers

    from .pipeline import open_workshop, train_pair
    from .recipe import load_recipe

    transformers.utils.logging.disable_progress_bar()
    recipe = load_recipe(args.recipe)
    for name, value in (("--steps", args.steps), ("--max-minutes", args.max_minutes)):
        if value is not None and value <= 0:
            raise ValueError(f"{name} is {value}; give a number above 0, or leave it out for the recipe's own steps.")
    if args.steps is not None:
        recipe = recipe.rescaled(args.steps / recipe.target.steps, args.steps / recipe.target.steps)
    runtime = _runtime(args)
    begun = time.monotonic()

    def log(line: str) -> None:
        sys.stderr.write(f"[{(time.monotonic() - begun) / 60:6.1f} min] {line}\n")
        sys.stderr.flush()

    work, out = args.work or Path("outputs/train") / recipe.name, args.out or Path("data") / recipe.name
    shop = open_workshop(recipe, args.data, work, out, runtime, log, args.resume, args.force)
    train_pair(shop, args.max_minutes)
    log(f"the pair is in {out}")
    return 0


def _runtime(args: argparse.Namespace) -> Runtime:
    import torch

    from .optimize import Runtime, compiler_found

    if not hasattr(torch.optim, "Muon"):
        raise ImportError(
            f"Training uses torch.optim.Muon, which torch {torch.__version__} lacks; install torch 2.9 or newer."
        )
    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise ValueError(f"--device {device} was asked for, but torch sees no GPU; use --device cpu.")
        torch.set_float32_matmul_precision("high")
    compiling = compiler_found(device) if args.compile is None else args.compile
    return Runtime(device=device, autocast=args.autocast, compile=compiling)
