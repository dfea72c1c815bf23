"""`dynatree gpu`: speed on a large GPU, with the shapes of Pythia-2.8B/70M and a trained pair, into one folder."""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

from ..experiments.gpu import FULL, TINY, measure_all


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dynatree gpu`."""
    add = parser.add_argument
    add("out", type=Path, help="folder for the records; what an earlier run there measured is kept")
    add("--parts", default="shapes,pair,joined", help="default: %(default)s")
    add("--pair", default="tiny", help="folder of a trained pair, or a named one (default: %(default)s)")
    add("--device", default="cuda")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    add("--again", action="store_true", help="measure anew what an earlier run in that folder has")
    add("--tiny", action="store_true", help="small shapes and few turns: does it run?")


def main(args: argparse.Namespace) -> int:
    """Run the parts asked for; 1 if a measurement failed."""
    plan, dtype = TINY if args.tiny else FULL, getattr(torch, args.dtype)
    parts = args.parts.split(",")
    return measure_all(args.out, parts, args.pair, torch.device(args.device), dtype, plan, args.again)
