"""The numbers that the five papers print, their authors' logs, and tables of published and measured numbers.

One JSON file per paper under data/papers holds tables, figure series, logs, setup and the points where a paper's
statements differ from its text, code or logs. Rows come back as plain dictionaries; drawing is left to `plots`.
"""

from __future__ import annotations

import functools
import html
import json
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dynatree_lib.paths import data_path

Row = dict[str, Any]
PAPERS = ("dynatree-fixed", "dynatree-adaptive", "dynatree-adaptive-earlier", "ptd", "traversal")


class PaperError(LookupError):
    """A paper, table, figure or log that is not stored."""


@dataclass(frozen=True)
class PublishedTable:
    """A table, figure or log of a paper. `units` maps a column to its unit; a diagram has no rows."""

    name: str  # "Table 1", "Figure 3", "log sweep"
    caption: str
    source: str  # printed, the authors' log it comes from, or why there is no data
    columns: list[str]
    cells: list[list[Any]] = field(repr=False)
    units: dict[str, str]

    @property
    def rows(self) -> list[Row]:
        """A fresh dictionary per row; None where the paper prints nothing."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.cells]

    def where(self, **values: Any) -> list[Row]:
        """Select the rows whose columns equal the given values, e.g. `where(dataset="pg-19")`."""
        unknown = set(values) - set(self.columns)
        if unknown:
            raise PaperError(f"{self.name} has no column {sorted(unknown)}; its columns are {', '.join(self.columns)}.")
        return [row for row in self.rows if values.items() <= row.items()]


@dataclass(frozen=True)
class Difference:
    """A point where a paper disagrees with itself, its code or its logs, or leaves a needed value out."""

    id: str
    concerns: tuple[str, ...]  # "Table 1", "Figure 6", "Section 3.3"
    where: str
    what: str
    evidence: tuple[str, ...]
    kind: str
    weight: str  # "major" or "minor"


@dataclass(frozen=True)
class Paper:
    """A paper's published facts. `setup[name]` has value, source and, where known, where and note."""

    key: str
    title: str
    setup: dict[str, Row]
    tables: dict[str, PublishedTable]  # by name, figures and logs too
    differences: list[Difference]

    def table(self, number: int) -> PublishedTable:
        """Return table `number` as printed; PaperError if it is not stored."""
        return self._find(f"Table {number}")

    def figure(self, number: int) -> PublishedTable:
        """Return the series of figure `number`, without rows where `source` says there are none. Raises PaperError."""
        return self._find(f"Figure {number}")

    def log(self, name: str) -> PublishedTable:
        """Return a run from the authors' logs that no table prints, e.g. "sweep". Raises PaperError."""
        return self._find(f"log {name}")

    def _find(self, name: str) -> PublishedTable:
        if name not in self.tables:
            raise PaperError(f"{self.title} ({self.key}) has no {name!r} here; stored: {', '.join(self.tables)}.")
        return self.tables[name]


@functools.cache
def _load(key: str) -> Row:
    if key not in PAPERS:
        raise PaperError(f"There is no paper {key!r}; the papers are {', '.join(PAPERS)}.")
    loaded: Row = json.loads(data_path("papers", f"{key}.json").read_text(encoding="utf-8"))
    return loaded


def _table(name: str, stored: Row) -> PublishedTable:
    data = stored
    while "rows_from" in data:  # the same data under another number, e.g. a bar chart of a table
        paper, kind, number = data["rows_from"].split("/")
        data = _load(paper)[kind][number]
    caption, source, units = stored["caption"], stored["source"], data.get("units", {})
    return PublishedTable(name, caption, source, data["columns"], data["rows"], units)


def _difference(stored: Row) -> Difference:
    entry = stored
    if "same_as" in stored:  # both drafts of one paper; the numbers of sections and figures differ
        paper = stored["same_as"].rpartition("-")[0]
        entry = next(other for other in _load(paper)["differences"] if other["id"] == stored["same_as"])
    lists = {"concerns": tuple(stored["concerns"]), "evidence": tuple(entry["evidence"])}
    return Difference(**{**entry, **lists})


@functools.cache
def published(paper: str) -> Paper:
    """Return the published facts of one of `PAPERS`; PaperError for another name."""
    data, kinds = _load(paper), {"tables": "Table", "figures": "Figure", "logs": "log"}
    names = {f"{kind} {number}": entry for place, kind in kinds.items() for number, entry in data[place].items()}
    tables = {name: _table(name, entry) for name, entry in names.items()}
    differences = [_difference(entry) for entry in data["differences"]]
    return Paper(paper, data["title"], data["setup"], tables, differences)


def known_differences(paper: str, where: str | None = None) -> list[Difference]:
    """List known disagreements within a paper, all of them or those that concern e.g. "Table 3" or "Section 3.3"."""
    return [entry for entry in published(paper).differences if where is None or where in entry.concerns]


def shown_where() -> list[Row]:
    """List where the suite shows each table and figure of the papers.

    Columns: `paper` (its short title), `item` ("Table 1"), `caption`, `notebook`, `section` (its heading), and `how`:
    "measured" anew, "drawn" from real iterations, or "exact", computed without sampling.
    """
    rows = []
    for paper in PAPERS:
        data = _load(paper)
        for kind, word in (("tables", "Table"), ("figures", "Figure")):
            for number, entry in data[kind].items():
                row = {"paper": data["short_title"], "item": f"{word} {number}", "caption": entry["caption"]}
                rows.append(row | dict(zip(("notebook", "section", "how"), entry["shown"], strict=True)))
    return rows


def published_and_measured(
    published_rows: Iterable[Mapping[str, Any]],
    measured_rows: Iterable[Mapping[str, Any]],
    on: str | Sequence[str] = "method",
    *,
    columns: Sequence[str],
) -> list[Row]:
    """Line up published and measured rows whose `on` columns agree.

    Args:
        published_rows: from `PublishedTable.rows` or `where`.
        measured_rows: the suite's own.
        on: columns that tell the rows of a side apart.
        columns: to compare.

    Returns:
        rows with the `on` columns, then `<column> (paper)` and `<column> (measured)` for each of `columns`; None where
        a side has no number. Published order first, then rows that were only measured.

    Raises:
        ValueError: where `on` does not tell a side's rows apart.
    """
    keys = [on] if isinstance(on, str) else list(on)
    sides = {"paper": _by_key(published_rows, keys, "published"), "measured": _by_key(measured_rows, keys, "measured")}
    return [
        dict(zip(keys, key, strict=True))
        | {f"{column} ({side})": rows.get(key, {}).get(column) for column in columns for side, rows in sides.items()}
        for key in sides["paper"] | sides["measured"]
    ]


def _by_key(rows: Iterable[Mapping[str, Any]], keys: list[str], side: str) -> dict[tuple[Any, ...], Mapping[str, Any]]:
    result: dict[tuple[Any, ...], Mapping[str, Any]] = {}
    for row in rows:
        missing = [key for key in keys if key not in row]
        if missing:
            raise ValueError(f"A {side} row has no column {missing[0]!r} to join on; it has {', '.join(row)}.")
        key = tuple(row[name] for name in keys)
        if key in result:
            raise ValueError(f"Two {side} rows share {', '.join(keys)} = {key}; select rows or add columns to `on`.")
        result[key] = row
    return result


def html_table(rows: Any, columns: Sequence[str] | None = None, caption: str | None = None) -> str:
    """Write rows, or a data frame, as an HTML table; text is escaped.

    Floats have the decimals that four significant digits of some number in their column need, at most four. Missing
    values and NaN are dashes.
    """
    import pandas as pd

    frame = pd.DataFrame(rows, columns=columns, dtype=object)  # objects: a missing value turns no integer into a float
    texts = pd.DataFrame({name: _texts(frame[name]) for name in frame})
    with pd.option_context("display.max_colwidth", None):
        table: str = texts.to_html(index=False, border=0)
    return table.replace(">", f">\n  <caption>{html.escape(caption)}</caption>", 1) if caption else table


def _texts(column: Iterable[Any]) -> list[str]:
    numbers = [value for value in column if isinstance(value, float) and math.isfinite(value)]
    digits = [f"{float(f'{number:.4g}'):.4f}".rstrip("0").partition(".")[2] for number in numbers]
    return [_text(value, max(map(len, digits), default=0)) for value in column]


def _text(value: Any, decimals: int | None = None) -> str:
    if value is None or (isinstance(value, float) and math.isnan(value)):
        return "–"
    if isinstance(value, Mapping):  # a configuration
        return ", ".join(f"{key}={_text(item)}" for key, item in value.items())
    if isinstance(value, bool):
        return "yes" if value else "no"
    if decimals is None or not isinstance(value, int | float):
        return str(value)
    return f"{value:,}" if isinstance(value, int) else f"{value:,.{decimals}f}"
