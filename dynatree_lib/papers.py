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
from types import MappingProxyType
from typing import Any

from .paths import data_path

Row = dict[str, Any]
PAPERS = ("dynatree-fixed", "dynatree-adaptive", "dynatree-adaptive-earlier", "ptd", "traversal")


class PaperError(KeyError):
    """A paper, table, figure or log that is not stored."""

    def __str__(self) -> str:  # KeyError would show the sentence in quotes
        return str(self.args[0])


@dataclass(frozen=True)
class PublishedTable:
    """A table, figure or log of a paper. `units` maps a column to its unit; a diagram has no rows."""

    name: str  # "Table 1", "Figure 3", "log sweep"
    caption: str
    source: str  # printed, the authors' log it comes from, or why there is no data
    columns: tuple[str, ...]
    units: Mapping[str, str]
    cells: tuple[tuple[Any, ...], ...] = field(repr=False)
    note: str = ""

    @property
    def rows(self) -> list[Row]:
        """A fresh dictionary per row; None where the paper prints nothing."""
        return [dict(zip(self.columns, row, strict=True)) for row in self.cells]

    def where(self, **values: Any) -> list[Row]:
        """Select the rows whose columns equal the given values, e.g. `where(dataset="pg-19")`."""
        unknown = set(values) - set(self.columns)
        if unknown:
            raise PaperError(f"{self.name} has no column {sorted(unknown)}; its columns are {', '.join(self.columns)}.")
        return [row for row in self.rows if all(row[key] == value for key, value in values.items())]


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
    short_title: str
    setup: Mapping[str, Row]
    method_names: Mapping[str, str]  # this library's method name -> the paper's
    symbols: Mapping[str, str]
    authors_code: Mapping[str, str] | None
    tables: Mapping[str, PublishedTable]
    figures: Mapping[str, PublishedTable]
    logs: Mapping[str, PublishedTable]
    differences: tuple[Difference, ...]

    def table(self, number: int) -> PublishedTable:
        """Return table `number` as printed; PaperError if it is not stored."""
        return self._find(self.tables, str(number), "table")

    def figure(self, number: int) -> PublishedTable:
        """Return the series of figure `number`, without rows where `source` says there are none. Raises PaperError."""
        return self._find(self.figures, str(number), "figure")

    def log(self, name: str) -> PublishedTable:
        """Return a run from the authors' logs that no table prints, e.g. "sweep". Raises PaperError."""
        return self._find(self.logs, name, "log")

    def _find(self, tables: Mapping[str, PublishedTable], name: str, kind: str) -> PublishedTable:
        if name not in tables:
            stored = ", ".join(tables) or "none"
            raise PaperError(f"{self.short_title} ({self.key}) has no {kind} {name!r} here; stored: {stored}.")
        return tables[name]


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
    cells = tuple(tuple(row) for row in data["rows"])
    units = MappingProxyType(data.get("units", {}))
    columns, note = tuple(data["columns"]), data.get("note", "")
    return PublishedTable(name, stored["caption"], stored["source"], columns, units, cells, note)


def _tables(stored: Row, prefix: str) -> Mapping[str, PublishedTable]:
    return MappingProxyType({number: _table(f"{prefix} {number}", entry) for number, entry in stored.items()})


def _difference(stored: Row) -> Difference:
    entry = stored
    if "same_as" in stored:  # both drafts of one paper; the numbers of sections and figures differ
        paper = stored["same_as"].rpartition("-")[0]
        entry = next(other for other in _load(paper)["differences"] if other["id"] == stored["same_as"])
    concerns, evidence = tuple(stored["concerns"]), tuple(entry["evidence"])
    return Difference(entry["id"], concerns, entry["where"], entry["what"], evidence, entry["kind"], entry["weight"])


@functools.cache
def published(paper: str) -> Paper:
    """Return the published facts of one of `PAPERS`; PaperError for another name."""
    data = _load(paper)
    return Paper(
        key=data["key"],
        title=data["title"],
        short_title=data["short_title"],
        setup=MappingProxyType(data["setup"]),
        method_names=MappingProxyType(data["method_names"]),
        symbols=MappingProxyType(data["symbols"]),
        authors_code=data["authors_code"],
        tables=_tables(data["tables"], "Table"),
        figures=_tables(data["figures"], "Figure"),
        logs=_tables(data["logs"], "log"),
        differences=tuple(_difference(entry) for entry in data["differences"]),
    )


def known_differences(paper: str, where: str | None = None) -> list[Difference]:
    """List known disagreements within a paper, all of them or those that concern e.g. "Table 3" or "Section 3.3"."""
    return [entry for entry in published(paper).differences if where is None or where in entry.concerns]


def published_and_measured(
    published_rows: Iterable[Mapping[str, Any]],
    measured_rows: Iterable[Mapping[str, Any]],
    on: str | Sequence[str] = "method",
    *,
    columns: Sequence[str] | None = None,
    published_setup: str = "",
    measured_setup: str = "",
) -> list[Row]:
    """Line up published and measured rows whose `on` columns agree.

    Args:
        published_rows: from `PublishedTable.rows` or `where`.
        measured_rows: the suite's own.
        on: columns that tell the rows of a side apart.
        columns: to compare; by default those that both sides share.
        published_setup: written into a column of its own, where given.
        measured_setup: the same.

    Returns:
        rows with the `on` columns, then `<column> (paper)` and `<column> (measured)` for each of `columns`, then the
        setups; None where a side has no number. Published order first, then rows that were only measured.

    Raises:
        ValueError: where `on` does not tell a side's rows apart.
    """
    keys = [on] if isinstance(on, str) else list(on)
    left, right = _by_key(published_rows, keys, "published"), _by_key(measured_rows, keys, "measured")
    if columns is None:
        shared = {column for row in right.values() for column in row} - set(keys)
        columns = list(dict.fromkeys(column for row in left.values() for column in row if column in shared))
    setups = {"setup (paper)": published_setup, "setup (measured)": measured_setup}
    result = []
    for key in {**left, **right}:
        paper, measured = left.get(key, {}), right.get(key, {})
        joined = {name: (paper or measured)[name] for name in keys}
        for column in columns:
            joined |= {f"{column} (paper)": paper.get(column), f"{column} (measured)": measured.get(column)}
        result.append(joined | {name: text for name, text in setups.items() if text})
    return result


def _by_key(rows: Iterable[Mapping[str, Any]], keys: list[str], side: str) -> dict[str, Mapping[str, Any]]:
    result: dict[str, Mapping[str, Any]] = {}
    for row in rows:
        missing = [key for key in keys if key not in row]
        if missing:
            raise ValueError(f"A {side} row has no column {missing[0]!r} to join on; it has {', '.join(row)}.")
        key = json.dumps([row[name] for name in keys], sort_keys=True, default=str)  # a config is a dict: not hashable
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
