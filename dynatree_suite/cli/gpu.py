"""`dynatree gpu`: speed on a large GPU, with the shapes of Pythia-2.8B/70M and a trained pair, into one folder."""

from __future__ import annotations

import argparse
from dataclasses import replace

import torch

from ..costs.gpu import FULL, TINY, measure_all


def main(args: argparse.Namespace) -> int:
    """Run the parts asked for; 1 if a measurement failed."""
    plan, dtype = TINY if args.tiny else FULL, getattr(torch, args.dtype)
    sizes = {"prompts": args.prompts, "tokens": args.tokens}
    plan = replace(plan, **{name: size for name, size in sizes.items() if size is not None})
    parts = args.parts.split(",")
    try:
        device = torch.device(args.device)
    except RuntimeError:
        raise ValueError(f"--device is {args.device}; give cuda, cuda:1 or cpu.") from None
    return measure_all(args.out, parts, args.pair, device, dtype, plan, args.again)
