"""Keep the executed notebooks of finished runs in outputs/reference/notebooks, with pictures that a code host shows.

    python3 -m tools.keep_notebooks RUN [RUN ...]
    python3 -m tools.keep_notebooks

A RUN is a folder of `dynatree run`, of a commit without further changes. Each of its notebooks is kept: figures as PNG
(which needs the packages kaleido and pillow, and Chrome or Chromium), widgets as a note. The first cell says when,
where and with which commit it ran, and whether library or notebook have changed since. Without a RUN, that is said
anew, and kept notebooks whose code is unchanged take over the present texts.
"""

from __future__ import annotations

import base64
import io
import subprocess
import sys
from pathlib import Path
from typing import Any

import nbformat

from dynatree_lib.plots.theme import FIGURE_TYPE
from dynatree_suite import PACKAGES
from dynatree_suite.runs.pages import WIDGET_NOTE, WIDGET_TYPE
from dynatree_suite.runs.plan import read_source
from dynatree_suite.runs.receipts import RUN_FILE, Files, damage, read_json

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOKS, KEPT = ROOT / "notebooks", ROOT / "outputs" / "reference" / "notebooks"
WIDTH = 820
"""Pixels of a picture, about the width of a notebook's page."""
OLDER = " The notebook has changed since; this is what ran."
COLOURS = 64
"""Colours of a picture: figures have few, and a picture takes a third of the bytes."""


def main(folders: list[str]) -> None:
    """Keep every notebook of these runs; nothing is written where one of them cannot be kept."""
    if not folders:
        refresh()
        return
    pages = {}
    for folder in map(Path, folders):
        run = read_json(folder / RUN_FILE)
        for name in run["notebooks"]:
            pages[name] = kept(Files(folder, name))
    KEPT.mkdir(parents=True, exist_ok=True)
    for name, page in pages.items():
        nbformat.write(page, KEPT / f"{name}.ipynb")


def kept(files: Files) -> Any:
    """Return an executed notebook as it is kept; errors as for `worth_keeping`."""
    receipt, machine = worth_keeping(files)
    commit = receipt["commit"]
    notebook = nbformat.read(files.executed, as_version=4)
    for cell in notebook.cells:
        for name in ("papermill", "execution"):
            cell.metadata.pop(name, None)
        for output in cell.get("outputs", []):
            if "data" in output:
                output["data"] = still(output["data"])
    notebook.metadata = {
        "kernelspec": notebook.metadata["kernelspec"],
        "language_info": {"name": "python"},
        "dynatree": {name: receipt[name] for name in ("source_sha256", "commit", "profile")},
    }
    words = f"*Executed on {receipt['finished'][:10]} with commit {commit[:12]} in the profile `{receipt['profile']}`, "
    words += f"on {machine['cpu']}, {machine['threads']} threads.{changed_since(commit)}*"
    notebook.cells.insert(0, nbformat.v4.new_markdown_cell(words, id="executed"))
    return notebook


def worth_keeping(files: Files) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return a finished notebook's receipt, and the machine that it ran on.

    Raises:
        SystemExit: where it has not finished, is not what its receipt says, has other code than the notebook now, names
            no commit that others can check out, or took divided amounts or those of tests.
    """
    if not files.receipt.is_file():
        raise SystemExit(f"{files.name} of {files.out} cannot be kept: it has not finished.")
    receipt = read_json(files.receipt)
    machine = receipt.get("environment") or read_json(files.out / RUN_FILE)["environment"]
    commit, harm = str(receipt["commit"]), damage(files, receipt)
    if harm is None and code_of(files.executed) != code_of(NOTEBOOKS / f"{files.name}.ipynb"):
        harm = "the notebook's code has changed since it ran"
    if len(commit) != 40:
        harm = f"its commit is '{commit}', and should be one that others can check out"
    if receipt["profile"] == "smoke" or receipt.get("divide"):
        harm = "it took the amounts of a test"
    if receipt.get("folders"):
        harm = f"its models or data came from {', '.join(receipt['folders'].values())}, and may be stand-ins"
    if harm:
        raise SystemExit(f"{files.name} of {files.out} cannot be kept: {harm}.")
    return receipt, machine


def code_of(path: Path) -> dict[str, str]:
    """Return the code cells of a notebook by their ids, without the parameters that papermill puts in."""
    cells = nbformat.read(path, as_version=4).cells
    own = (cell for cell in cells if "injected-parameters" not in cell.metadata.get("tags", []))
    return {cell.id: cell.source for cell in own if cell.cell_type == "code"}


def changed_since(commit: str, folder: Path = ROOT) -> str:
    """Return a sentence on the library's latest change after this commit; nothing where it is as it was."""
    command = ["git", "log", "-1", "--format=%H", f"{commit}..HEAD", "--", *PACKAGES]
    latest = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.strip()
    told = f" The library has changed since, last with commit {latest[:12]}, and may print other numbers."
    return told if latest else ""


def still(data: dict[str, Any]) -> dict[str, Any]:
    """Return an output's data without what needs a kernel or a script to be seen."""
    if WIDGET_TYPE in data:
        return {"text/html": WIDGET_NOTE}
    figure = data.get(FIGURE_TYPE)
    return data if figure is None else {"image/png": base64.b64encode(picture(figure)).decode()}


def picture(figure: dict[str, Any]) -> bytes:
    """Draw a figure as PNG."""
    import plotly.graph_objects as go
    from PIL import Image

    height = figure.get("layout", {}).get("height") or 450
    drawn = Image.open(io.BytesIO(go.Figure(figure).to_image(format="png", width=WIDTH, height=height)))
    out = io.BytesIO()
    drawn.convert("RGB").quantize(COLOURS).save(out, format="png", optimize=True)
    return out.getvalue()


def refresh() -> None:
    """Give kept notebooks the present texts, where code is unchanged, and say whether the library is as it was."""
    for path in sorted(KEPT.glob("*.ipynb")):
        page, now = (nbformat.read(place, as_version=4) for place in (path, NOTEBOOKS / path.name))
        told = page.cells[0].source.partition(" threads.")[0]
        page.cells[0].source = f"{told} threads.{changed_since(page.metadata['dynatree']['commit'])}*"
        nbformat.write(page, path)
        executed = {cell.id: cell for cell in page.cells if cell.cell_type == "code"}
        added = [cell for cell in executed.values() if "injected-parameters" in cell.metadata.get("tags", [])]
        if code_of(path) != code_of(NOTEBOOKS / path.name):
            page.cells[0].source = f"{page.cells[0].source.removesuffix('*')}{OLDER}*"
            nbformat.write(page, path)
            continue
        cells = [page.cells[0]]
        for cell in now.cells:
            cells.append(executed.get(cell.id, cell))
            if "parameters" in cell.metadata.get("tags", []):
                cells += added
        page.cells, page.metadata["dynatree"]["source_sha256"] = cells, read_source(NOTEBOOKS / path.name).sha256
        nbformat.write(page, path)


if __name__ == "__main__":
    main(sys.argv[1:])
