"""Write the record of how long the smoke suite takes with one Dask worker and with two; an hour on two cores.

Runs with one and two workers take turns, and the first of a turn alternates. Nothing else should run: the load before
and after each run goes into the record. A run counts from the command to its end, the start of its workers included.

python3 -m tools.workers_reference [OUT] [--turns N] [--notebooks DIR] [--only GLOB]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from dynatree_suite.bench.clock import rotated
from dynatree_suite.bench.environment import describe_environment
from dynatree_suite.bench.statistics import Estimate, ratio
from dynatree_suite.files import write_atomically
from dynatree_suite.runs.receipts import read_json

OUT = Path("outputs/reference/workers.json")
WORKERS = (1, 2)
Suite = Callable[[int], dict[str, float]]


def main(argv: Sequence[str] | None = None) -> None:
    """Measure, write the record after each run, and print the ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=OUT, help="JSON file to write (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=3, help="runs with each number of workers (default: %(default)s)")
    parser.add_argument("--notebooks", type=Path, help="folder of the notebooks (default: notebooks/ of the checkout)")
    parser.add_argument("--only", action="append", default=[], metavar="GLOB", help="only these notebooks; repeatable")
    args = parser.parse_args(argv)
    options = [f"--only={glob}" for glob in args.only]
    options += [f"--notebooks={args.notebooks}"] if args.notebooks else []
    runs = measured(partial(run_suite, options=options), args.turns, args.out)
    sys.stdout.write(f"Two workers are {speedup(runs)} times as fast as one ({args.turns} turns).\n")


def measured(suite: Suite, turns: int, out: Path) -> list[dict[str, Any]]:
    """Run the suite with one and with two workers in turn, and write each run into `out` as it ends.

    Args:
        suite: runs all notebooks with so many workers and returns the seconds of each.
        turns: runs with each number of workers.
        out: JSON file.
    """
    runs: list[dict[str, Any]] = []
    head = {"environment": describe_environment(), "profile": "smoke"}
    for turn in range(turns):
        for workers in rotated(WORKERS, turn):
            before, began = os.getloadavg()[0], time.perf_counter()
            notebooks = suite(workers)
            seconds = round(time.perf_counter() - began, 2)
            load = [before, os.getloadavg()[0]]
            runs.append({"workers": workers, "turn": turn, "seconds": seconds, "load": load, "notebooks": notebooks})
            write_atomically(out, json.dumps({**head, "runs": runs}, indent=1) + "\n")
            sys.stderr.write(f"turn {turn + 1} of {turns}: {workers} at a time, {seconds:.0f} s\n")
    return runs


def run_suite(workers: int, options: Sequence[str]) -> dict[str, float]:
    """Run the smoke suite into a folder of its own; return the seconds of each notebook, by its receipt."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "dynatree_suite", "run", "--profile=smoke", f"--workers={workers}", *options]
        subprocess.run([*command, f"--out={folder}/out"], check=True, stdout=subprocess.DEVNULL)
        receipts = sorted(Path(folder, "out").glob("*.receipt.json"))
        return {path.name.removesuffix(".receipt.json"): read_json(path)["seconds"] for path in receipts}


def speedup(runs: Sequence[dict[str, Any]]) -> Estimate:
    """Return how many times as fast two workers are as one, with an interval over the turns."""
    rows = [{**run, "workers": str(run["workers"]), "suites": 1, "prompt": run["turn"]} for run in runs]
    return ratio(rows, "2", over="1", of="suites", per="seconds", by="turn", column="workers")


if __name__ == "__main__":
    main()
