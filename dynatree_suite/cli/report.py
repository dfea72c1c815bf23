"""`dynatree report DIR [DIR2]`: one page that shows the results of a run, or compares two; no network is needed."""

from __future__ import annotations

import argparse


def main(args: argparse.Namespace) -> int:
    """Build the page and print where it is."""
    if args.other is not None:
        from ..runs.comparison import compare_runs

        print(f"Comparison: {compare_runs(args.folder, args.other)}")
        return 0
    from ..runs.report import build_report

    print(f"Report: {build_report(args.folder)}")
    return 0
