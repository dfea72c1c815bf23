"""Train a target and distil a draft for it, from a recipe and named texts, on a CPU or on a GPU.

python3 -m tools.pair_training --recipe tiny --data DIR [--resume] [--max-minutes M] [--device cuda] ...

`--steps` counts the target's; the draft's follow in proportion. It needs torch, transformers, safetensors, numpy and
tokenizers alone, because it runs on bare machines.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

import torch
import transformers

from dynatree_suite.cli import options, train
from dynatree_suite.files import sole_run

from .pipeline import open_training, train_pair
from .recipe import load_recipe


def main(argv: Sequence[str] | None = None) -> int:
    """Train the pair; progress goes to standard error.

    Raises:
        ValueError, FileNotFoundError, FileExistsError: before any work, where the recipe, the texts, the options or the
            folders do not fit.
        RuntimeError: where another training works in the same folder.
    """
    parser = argparse.ArgumentParser(prog="python3 -m tools.pair_training", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("--recipe", default="tiny", help="name of a recipe in recipes/, or a .json file (default: %(default)s)")
    texts = "folder with wikitext-2-raw/, pg19/, gsm8k/, mbpp/; without it they come from the hub"
    add("--data", type=Path, metavar="DIR", help=texts)
    add("--out", type=Path, metavar="DIR", help="where the pair goes (default: data/RECIPE)")
    add("--work", type=Path, metavar="DIR", help="checkpoints and caches (default: outputs/train/RECIPE)")
    add("--resume", action="store_true", help="go on with an interrupted run")
    add("--device", help="cpu or cuda (default: cuda where there is one)")
    options.add_training(parser)
    args = parser.parse_args(argv)
    transformers.utils.logging.disable_progress_bar()
    recipe, log = load_recipe(args.recipe), train.told()
    train.check_shortened(args)
    if args.steps is not None:
        recipe = recipe.of_steps(args.steps)
    out, work = args.out or Path("data") / recipe.name, args.work or Path("outputs/train") / recipe.name
    runtime = train.runtime(args, device_of(args.device))
    training = open_training(recipe, args.data, work, out, runtime, log, args.resume, args.force)
    with sole_run(work):
        train_pair(training, args.max_minutes)
    log(f"the pair is in {out}")
    return 0


def device_of(name: str | None) -> str:
    """Return the device that was asked for, without one a GPU where there is one; set it up for training."""
    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    if device.split(":")[0] not in ("cpu", "cuda"):
        raise ValueError(f"--device is {device}; give cpu or cuda.")
    if device.startswith("cuda"):
        if not torch.cuda.is_available():
            raise ValueError(f"--device {device} was asked for, but torch sees no GPU; use --device cpu.")
        torch.set_float32_matmul_precision("high")
    return device


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, RuntimeError, OSError, ImportError) as error:
        sys.exit(f"pair_training: {error}")
