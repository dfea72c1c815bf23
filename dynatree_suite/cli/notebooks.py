"""`dynatree notebooks`: a folder with the notebooks, for those without a checkout."""

from __future__ import annotations

import argparse
from importlib.util import find_spec

from ..runs.shipped import copy_notebooks


def main(args: argparse.Namespace) -> int:
    """Copy them, and say what to do next."""
    new = copy_notebooks(args.folder)
    notebooks = sum(path.suffix == ".ipynb" for path in new)
    print(f"{notebooks} notebooks and {len(new) - notebooks} records are new in {args.folder}.")
    first = "" if find_spec("jupyterlab") else "pip install jupyterlab, then "
    print(f"Open them: {first}jupyter lab {args.folder}/notebooks/00_start_here.ipynb")
    return 0
