"""Measure how long a newcomer waits for the first picture, once the packages are installed and SmolLM2 is fetched.

    python3 -m tools.first_picture FILE

In an empty folder, `dynatree notebooks` and then 00_start_here in a kernel of its own, with nothing compiled before.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

from dynatree_lib.plots.theme import FIGURE_TYPE
from dynatree_suite.bench.environment import describe_environment

NAME = "00_start_here"


def main(arguments: list[str]) -> int:
    """Write the seconds of each step, and the load of the last five minutes, which slows them."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python3 -m tools.first_picture FILE\n")
        return 2
    out = Path(arguments[0])
    with tempfile.TemporaryDirectory() as folder:
        seconds = waits(Path(folder))
    body = {"environment": describe_environment(), "load": os.getloadavg()[1], "seconds": seconds}
    out.write_text(json.dumps(body, indent=1) + "\n", encoding="utf-8")
    sys.stdout.write(f"{body['seconds']}\n")
    return 0


def waits(folder: Path) -> dict[str, float]:
    """Return the seconds after the start at which the notebooks are there, a picture is, and all cells have run."""
    started, seen = time.perf_counter(), dict[str, float]()

    def note(step: str) -> None:
        seen.setdefault(step, round(time.perf_counter() - started, 1))

    def executed(cell: Any, **_: Any) -> None:
        if any(FIGURE_TYPE in output.get("data", {}) for output in cell.get("outputs", [])):
            note("first picture")

    copy = [sys.executable, "-m", "dynatree_suite", "notebooks", str(folder / "work")]
    subprocess.run(copy, check=True, stdout=subprocess.DEVNULL)
    note("notebooks copied")
    os.environ |= {"NUMBA_CACHE_DIR": str(folder / "compiled"), "DYNATREE_OUT": str(folder / "out")}
    place = folder / "work" / "notebooks"
    book = nbformat.read(place / f"{NAME}.ipynb", as_version=4)
    kernel = {"metadata": {"path": str(place)}}
    NotebookClient(book, kernel_name="python3", timeout=600, resources=kernel, on_cell_executed=executed).execute()
    note("all cells")
    return seen


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
