"""Write the record of forwards that notebook 51 judges its roofline by; about six minutes on two cores.

Both pairs, float32 and bfloat16, 1 to 64 tokens of 1 to 16 texts. Nothing else should run; the load before and after
goes into the record.

python3 tools/roofline_reference.py [OUT] [--turns N]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from pathlib import Path

from dynatree_lib.experiments.speed.forward_grid import TURNS, grid_record
from dynatree_lib.paths import write_atomically

OUT = Path("outputs/reference/roofline.json")


def main() -> None:
    """Measure and write."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=OUT, help="JSON file to write (default: %(default)s)")
    parser.add_argument("--turns", type=int, default=TURNS, help="of all sizes (default: %(default)s)")
    args = parser.parse_args()
    before = os.getloadavg()[0]
    record = grid_record(turns=args.turns, progress=lambda line: sys.stderr.write(line + "\n"))
    record["load"] = {"before": before, "after": os.getloadavg()[0]}
    write_atomically(args.out, json.dumps(record, indent=1) + "\n")


if __name__ == "__main__":
    main()
