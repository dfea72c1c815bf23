"""`dynatree report DIR`: one page that shows the results of a run, opening without a network."""

from __future__ import annotations

import argparse


def main(args: argparse.Namespace) -> int:
    """Build the report and print where it is."""
    from ..suite.report import build_report

    print(f"Report: {build_report(args.folder)}")
    return 0
