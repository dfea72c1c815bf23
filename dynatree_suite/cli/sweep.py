"""`dynatree sweep`: measure every configuration of a grid, one file for each, and one table of all."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..runs.cluster import workers_for
from ..runs.sweep import Sweep, read_grid, run_sweep
from . import arguments
from .run import say


def main(args: argparse.Namespace) -> int:
    """Measure a grid; 0 when every configuration has a row, 1 when one failed, 130 after Ctrl-C."""
    arguments.on_workers(args)  # before any work
    points = read_grid(args.grid)
    sweep = Sweep((args.out or Path("outputs") / "sweeps" / Path(args.grid).stem).resolve(), points)
    if args.dry_run:
        say(f"Would measure {len(sweep.missing() if args.resume else points)} configurations into {sweep.out}.")
        for point in points:
            say(f"  {point}{'  (has a row)' if sweep.row(point) else ''}")
        return 0
    gpu = any(point.on_gpu for point in points)
    with workers_for(args.workers, args.scheduler, (sweep.out,), gpu) as client:
        return run_sweep(sweep, resume=args.resume, say=say, client=client)
