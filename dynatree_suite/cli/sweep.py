"""`dynatree sweep`: measure every configuration of a grid, one file for each, and one table of all."""

from __future__ import annotations

import argparse
from pathlib import Path

from ..runs.sweep import Sweep, read_grid, run_sweep
from . import arguments
from .run import say


def main(args: argparse.Namespace) -> int:
    """Measure a grid; 0 when every configuration has a row, 1 when one failed, 130 after Ctrl-C."""
    several = arguments.on_workers(args)
    points = read_grid(args.grid)
    sweep = Sweep((args.out or Path("outputs") / "sweeps" / Path(args.grid).stem).resolve(), points)
    if args.dry_run:
        say(f"Would measure {len(sweep.missing() if args.resume else points)} configurations into {sweep.out}.")
        for point in points:
            say(f"  {point}{'  (has a row)' if sweep.rows.row(point) else ''}")
        return 0
    if not several:
        return run_sweep(sweep, resume=args.resume, say=say)
    from ..runs import cluster  # here, because it needs Dask

    gpu = any(point.setting.device.startswith("cuda") for point in points)
    with cluster.workers_for(args.workers, args.scheduler, gpu) as client:
        sweep.out.mkdir(parents=True, exist_ok=True)
        cluster.check_workers(client, (sweep.out,), gpu)
        return run_sweep(sweep, resume=args.resume, say=say, client=client)
