"""Which method to take: the reader says what there is, and the map answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import ipywidgets as widgets

from dynatree_lib.checks import of_kind

from .. import charts
from ..bench.chooser import Row, advice, choose, speed_of
from ..papers.published import html_table
from .walk import Explorer, line, put, watch


class Choice(Explorer):
    """Three questions, and the methods that come into question.

    Args:
        rows: of `bench.chooser.map_rows`.

    Attributes:
        run, kind, draft: the questions; setting `kind.value` answers anew.
        answer: the sentence.

    Raises:
        TypeError: for rows that are none.
        ValueError: without a row.
    """

    def __init__(self, rows: Sequence[Row]) -> None:
        if not rows:
            raise ValueError("There is no row to choose from; give those of bench.chooser.map_rows.")
        for row in rows:
            of_kind("A row", row, Mapping, "give rows of bench.chooser.map_rows")
        self.rows = list(rows)
        runs, kinds = (tuple(dict.fromkeys(row[name] for row in rows)) for name in ("run", "kind"))
        wide = {"style": {"description_width": "initial"}}
        self.run = widgets.Dropdown(options=runs, description="engine and temperature", **wide)
        self.kind = widgets.Dropdown(options=kinds, description="kind of task", **wide)
        self.draft = widgets.Checkbox(value=True, description="there is a draft model", **wide)
        self.answer, self.table, self.figure = widgets.HTML(), widgets.HTML(), widgets.Output()
        super().__init__([line(self.run, self.kind, self.draft), self.answer, self.table, self.figure])
        watch(self.answered, self.run, self.kind, self.draft)

    def answered(self) -> None:
        """Answer as the questions stand."""
        chosen = choose(self.rows, run=self.run.value, kind=self.kind.value, draft=self.draft.value)
        self.answer.value = f"<b>{advice(chosen).replace('`', '')}</b>"
        lines = [
            {"method": row["method"], "x plain": speed_of(row),
             "tokens per iteration": row["tokens"], "cost of an iteration": row["cost"]}
            for row in chosen
        ]  # fmt: skip
        self.table.value = html_table(lines)
        put(self.figure, charts.method_plane(chosen, title=f"{self.run.value}: {self.kind.value}"))
