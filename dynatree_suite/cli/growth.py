"""`dynatree growth`: how an iteration's cost grows with the text and the tree, beside the model's own forward."""

from __future__ import annotations

import argparse

import pandas as pd

from ..bench.records import check_writable
from ..bench.statistics import Estimate
from ..costs.cost_growth import growth_record
from . import arguments


def main(args: argparse.Namespace) -> int:
    """Measure a pair, print a table and write its record."""
    check_writable(args.file)
    record = growth_record(arguments.pair_of(args), args.turns, arguments.progress)
    with arguments.saving(args.file, lambda: record):
        lines = [
            {"over": name, "range": f"{flat['first']:g} to {flat['last']:g}", "overhead ms": f"{flat['overhead']:.3f}",
             "rise ms [95 %]": f"{Estimate(flat['rise'], *flat['rise_interval']):.3f}",
             "rise of the forward ms": f"{flat['forward_rise']:.3f}"}
            for name, flat in record["flatness"].items()
        ]  # fmt: skip
        print("\n".join(arguments.text_lines(pd.DataFrame(lines))))
    return 0
