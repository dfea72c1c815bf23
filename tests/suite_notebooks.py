"""Tiny notebooks for the suite's own tests, and a wait for what their runs do."""

import json
import time
from pathlib import Path

PARAMETERS = 'import os\n\nprofile = os.environ.get("DYNATREE_PROFILE", "laptop")\nseed = 0\nsizes = {\n    "a": 1,\n}'
RECORDS = [
    "import os\nfrom pathlib import Path\n\nfolder = Path(os.environ['DYNATREE_OUT']) / 'records' / name",
    "folder.mkdir(parents=True, exist_ok=True)\n(folder / 'speed.jsonl').write_text('{\"x\": 1}\\n' * (seed + 1))",
]


def write_notebook(folder, name, *cells, parameters=PARAMETERS, about=None, markdown="A text."):
    """Write a notebook with a markdown cell, a parameters cell and the given code cells; returns its path."""
    code = [parameters, *cells]
    content = {
        "cells": [{"cell_type": "markdown", "id": "text", "metadata": {}, "source": markdown}]
        + [code_cell(number, source, number == 0) for number, source in enumerate(code)],
        "metadata": {"dynatree": about or {}, "language_info": {"name": "python"}, "kernelspec": KERNEL},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    path = Path(folder) / f"{name}.ipynb"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(content, indent=1))
    return path


def records_notebook(folder, name, **options):
    """A notebook that writes one record file, without loading the library."""
    return write_notebook(folder, name, f"name = {name!r}", *RECORDS, **options)


def cells_here(job, target, root, progress):
    """Run a notebook's cells in this process: in place of `run.run_papermill` where a test is not about kernels."""
    notebook, names = json.loads(job.source.path.read_text()), {}
    target.write_text(json.dumps(notebook))
    for cell in notebook["cells"][1:]:
        exec("".join(cell["source"]), names)
        if cell["metadata"].get("tags"):
            names.update(job.parameters)


def wait_for(condition, seconds=60):
    """Return once the condition holds; fail where it does not within so many seconds."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"waited {seconds} s"
        time.sleep(0.05)


KERNEL = {"name": "python3", "display_name": "Python 3", "language": "python"}


def code_cell(number, source, is_parameters):
    return {
        "cell_type": "code",
        "id": f"cell-{number}",
        "metadata": {"tags": ["parameters"]} if is_parameters else {},
        "source": source.splitlines(keepends=True),
        "outputs": [],
        "execution_count": None,
    }
