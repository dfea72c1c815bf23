"""`dynatree growth`: how an iteration's cost grows with the text and the tree, beside the model's own forward."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from .arguments import add_machine, add_pair, pair_of, progress, table


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dynatree growth`."""
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument("--turns", type=int, default=8, help="blocks of each shape (default: %(default)s)")
    add_pair(parser)
    add_machine(parser)


def main(args: argparse.Namespace) -> int:
    """Measure a pair, write its record and print a table."""
    from ..experiments.speed.growth import growth_record
    from ..measure.records import check_writable, write_atomically

    check_writable(args.file)
    found = growth_record(pair_of(args), args.turns, progress)
    write_atomically(args.file, json.dumps(found, indent=1, ensure_ascii=False) + "\n")
    lines = [("over", "range", "overhead ms", "rise ms [95 %]", "rise of the forward ms")]
    for name, one in found["flatness"].items():
        low, high = one["rise_interval"]
        ends, rise = f"{one['first']:g} to {one['last']:g}", f"{one['rise']:.3f} [{low:.3f}, {high:.3f}]"
        lines.append((name, ends, f"{one['overhead']:.3f}", rise, f"{one['forward_rise']:.3f}"))
    sys.stdout.write("\n".join(table(lines)) + "\n")
    return 0
