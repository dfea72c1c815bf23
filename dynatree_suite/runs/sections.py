"""Executing a notebook section by section: an error ends its section, and the later sections still run.

A section begins at a heading of the second level ("## 3 · ..."). An error before the first one ends the notebook,
because all sections need what stands there. Names that the failed section would have made are removed, so that a later
one that needs them says so, and takes no other values that had these names before.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell
from papermill.clientwrap import PapermillNotebookClient
from papermill.engines import NBClientEngine, papermill_engines

from .plan import cell_source
from .words import shorten

ENGINE = "dynatree-sections"


@dataclass(frozen=True)
class Failure:
    """A cell that raised an error.

    Attributes:
        section: its heading, without number signs; empty before the first.
        cell: number and first line.
        error: kind and message.
        needs: heading of an earlier section that failed and would have made the name that is missing, or "".
    """

    section: str
    cell: str
    error: str
    needs: str = ""

    def __str__(self) -> str:
        place = f"section '{self.section}', " if self.section else ""
        return f"{place}{self.cell} raised {self.error}"


def heading(cell: Mapping[str, Any]) -> str | None:
    """Return the title of the section that a cell begins, or None."""
    found = re.search(r"^## +(.+)$", cell_source(cell), re.MULTILINE) if cell["cell_type"] == "markdown" else None
    return found[1].strip() if found else None


class SectionsClient(PapermillNotebookClient):
    """Executes the cells of a notebook; after an error it goes on with the next section."""

    def papermill_execute_cells(self) -> None:
        """Execute the cells in order; papermill calls it."""
        begun, left = False, False  # whether a section has begun, and whether the rest of this one is left out
        lost: set[str] = set()  # names that the rest of this section would have made
        for index, cell in enumerate(self.nb.cells):
            if heading(cell):
                self.forget(lost)
                begun, left, lost = True, False, set()
            if left and cell.cell_type == "code":
                lost.update(assigned(cell_source(cell), imports=False))
                continue
            try:
                self.nb_man.cell_start(cell, index)
                self.execute_cell(cell, index)
            except CellExecutionError as error:
                self.nb_man.cell_exception(cell, cell_index=index, exception=error)
                if not begun:
                    break
                left = True
                lost.update(assigned(cell_source(cell), imports=False))
            finally:
                self.nb_man.cell_complete(cell, cell_index=index)

    def forget(self, names: Iterable[str]) -> None:
        """Remove names from the kernel, where an earlier section may have made other things of these names."""
        if listed := sorted(names):
            source = f"[globals().pop(name, None) for name in {listed}];"  # nothing is shown of a line that ends so
            first = self.nb.cells[0]
            self.execute_cell(new_code_cell(source), 0, store_history=False)
            self.nb.cells[0] = first  # nbclient puts what it executes into the notebook


class SectionsEngine(NBClientEngine):
    """The engine of papermill that executes by `SectionsClient`."""

    @classmethod
    def execute_managed_notebook(cls, nb_man: Any, kernel_name: str, **options: Any) -> Any:
        """Execute a notebook; papermill calls it with options of its client, and some that no client takes."""
        known = SectionsClient.class_trait_names()
        given = {name: value for name, value in options.items() if name in known or name == "km"}
        timeouts = {"timeout": options.get("execution_timeout"), "startup_timeout": options.get("start_timeout", 60)}
        return SectionsClient(nb_man, **{**given, **timeouts, "kernel_name": kernel_name}).execute()


papermill_engines.register(ENGINE, SectionsEngine)


def failures(cells: Sequence[Mapping[str, Any]]) -> list[Failure]:
    """Return the cells of an executed notebook that raised an error, in order."""
    found: list[Failure] = []
    lost: dict[str, str] = {}  # name -> the section that would have made it
    section = ""
    after_error = False
    for cell in cells:
        if title := heading(cell):
            section, after_error = title, False
        if cell["cell_type"] != "code":
            continue
        error = next((one for one in cell.get("outputs", []) if one["output_type"] == "error"), None)
        after_error = after_error or error is not None
        if error is not None:
            name = re.match(r"name '(\w+)' is not defined", error["evalue"]) if error["ename"] == "NameError" else None
            text = f"{error['ename']}: {shorten(error['evalue'])}"
            line = failing_line(error["traceback"]) or cell_source(cell)
            described = describe_cell(cell.get("execution_count"), line)
            found.append(Failure(section, described, text, lost.get(name[1], "") if name else ""))
        if after_error:
            lost.update(dict.fromkeys(assigned(cell_source(cell)), section))
    return found


def assigned(source: str, imports: bool = True) -> Iterator[str]:
    """Yield the names that a cell makes in the notebook: assigned or defined, and imported where `imports` says so."""
    with suppress(SyntaxError, ValueError):
        waiting: list[ast.AST] = [ast.parse(source)]
        while waiting:
            node = waiting.pop()
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                yield node.name  # what it assigns inside is its own
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif isinstance(node, ast.alias) and imports:
                yield (node.asname or node.name).partition(".")[0]
            elif not isinstance(node, ast.Lambda | ast.comprehension):  # whose variables are their own
                waiting.extend(ast.iter_child_nodes(node))


def in_a_line(found: Sequence[Failure]) -> str:
    """Return every failure in one line: those that stand for themselves first, then the sections that needed them."""
    own = [str(failure) for failure in found if not failure.needs]
    waiting = [f"section '{failure.section}' needs '{failure.needs}'" for failure in found if failure.needs]
    return "; ".join([*own, *dict.fromkeys(waiting)])


def failing_line(traceback: Sequence[str]) -> str:
    """Return the cell's line that a kernel's coloured traceback points at, or an empty text."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(traceback))
    pointed = re.search(r"^-+> ?\d+ (.*)", plain, re.MULTILINE)
    return pointed[1].strip() if pointed else ""


def describe_cell(count: int | None, source: str) -> str:
    """Return a cell's number and first line."""
    lines = [line for line in source.splitlines() if line.strip()] or [""]
    return f"cell In [{count}] `{shorten(lines[0], 60)}`"
