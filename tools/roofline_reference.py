"""Write the record of forwards that notebook 51 judges its roofline by; about six minutes on two cores.

Both pairs, float32 and bfloat16, 1 to 64 tokens of 1 to 16 texts. Nothing else should run; the load before and after
each part goes into the record. Where other work cannot be kept away, --busy counts the processor's seconds of one
thread instead of the clock's, which leaves out the time that others had; the record says so. A stopped run goes on.

python3 -m tools.roofline_reference [OUT] [--turns N] [--busy] [--again]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from itertools import product
from pathlib import Path

import torch

from dynatree_suite.bench.environment import describe_environment
from dynatree_suite.costs.forward_grid import TURNS, grid_record
from dynatree_suite.files import write_atomically

OUT = Path("outputs/reference/roofline.json")


def main() -> None:
    """Measure what OUT lacks, and write it after each pair and dtype."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=OUT, help="JSON file to write (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=TURNS, help="of all sizes (default: %(default)s)")
    parser.add_argument("--busy", action="store_true", help="one thread, and its own seconds")
    parser.add_argument("--again", action="store_true", help="measure anew what OUT has")
    args = parser.parse_args()
    clock = time.process_time if args.busy else time.perf_counter
    if args.busy:
        torch.set_num_threads(1)
    known = json.loads(args.out.read_text(encoding="utf-8")) if args.out.exists() and not args.again else {}
    if known and known["environment"] != describe_environment():
        raise SystemExit(f"{args.out} was measured on another machine or at another commit; give --again.")
    for pair, dtype in product(("tiny", "smollm2"), ("float32", "bfloat16")):
        if any((part["pair"], part["dtype"]) == (pair, dtype) for part in known.get("parts", ())):
            continue
        before = os.getloadavg()[0]
        found = grid_record((pair,), (dtype,), turns=args.turns, progress=report, clock=clock)
        found["parts"][0] |= {
            "load": [before, os.getloadavg()[0]], "clock": "seconds of one thread" if args.busy else "seconds",
        }  # fmt: skip
        if known:
            found["parts"] = known["parts"] + found["parts"]
            found["shapes"] = known["shapes"] | found["shapes"]
        known = found
        write_atomically(args.out, json.dumps(known, indent=1) + "\n")


def report(line: str) -> None:
    """Write a line to standard error."""
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    main()
