"""`dynatree growth`: how an iteration's cost grows with the text and the tree, beside the model's own forward."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .arguments import add_machine, add_pair, pair_of, progress, text_lines


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dynatree growth`."""
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument("--turns", type=int, default=8, help="blocks of each shape (default: %(default)s)")
    add_pair(parser)
    add_machine(parser)


def main(args: argparse.Namespace) -> int:
    """Measure a pair, write its record and print a table."""
    import pandas as pd

    from ..experiments.speed.cost_growth import growth_record
    from ..measure.records import check_writable, write_atomically
    from ..measure.statistics import Estimate

    check_writable(args.file)
    record = growth_record(pair_of(args), args.turns, progress)
    write_atomically(args.file, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    lines = [
        {"over": name, "range": f"{flat['first']:g} to {flat['last']:g}", "overhead ms": f"{flat['overhead']:.3f}",
         "rise ms [95 %]": f"{Estimate(flat['rise'], *flat['rise_interval']):.3f}",
         "rise of the forward ms": f"{flat['forward_rise']:.3f}"}
        for name, flat in record["flatness"].items()
    ]  # fmt: skip
    sys.stdout.write("\n".join(text_lines(pd.DataFrame(lines))) + "\n")
    return 0
