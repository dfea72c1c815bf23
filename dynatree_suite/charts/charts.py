"""Charts of records: bars with intervals, sweeps, dots, heat maps; measured and published values.

Every function takes a table (a data frame, or the rows of a record) and the names of the columns to draw. A row without
a value in a drawn column is left out. Published values are always drawn hollow or dashed, in the colour of the measured
ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from typing import Any

import pandas as pd
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from dynatree_lib.plots import theme

from ..bench.statistics import Table
from . import look

Row = dict[str, Any]
Published = str | Mapping[Any, float] | None
MEASURED_AND_PUBLISHED = ("measured", "published")

MOST_TICKS = 6
"""Values that a logarithmic axis of one panel can name without crowding."""

MARKS = ("circle", "diamond-open", "square-open", "triangle-up-open")
# The number inside a horizontal bar, upright and in one size whatever the bar's height.
INSIDE = {"textposition": "inside", "insidetextanchor": "start", "textangle": 0, "constraintext": "none"}


# --------------------------------------------------------------------------------------------------------------- parts
def as_rows(table: Table | Iterable[Row] | None) -> list[Row]:
    """Return the rows of a data frame or a record, missing values as None; no rows for no table."""
    if isinstance(table, pd.DataFrame):
        return table.astype(object).where(table.notna(), None).to_dict("records")
    return list(table or ())


def span(rows: Iterable[Row], key: str) -> list[Any]:
    """Return the distinct values of a column, in order of appearance."""
    return list(dict.fromkeys(row[key] for row in rows))


def error_bars(values: Sequence[float | None], intervals: Sequence[Sequence[float] | None]) -> dict[str, Any] | None:
    """Return error bars from values and [low, high] intervals; None where no interval is known."""
    if not any(intervals):
        return None
    known = [(v, *i) if v is not None and i else (0.0, 0.0, 0.0) for v, i in zip(values, intervals, strict=True)]
    bars = {"type": "data", "symmetric": False, "thickness": 1.5, "width": 4, "color": "#444444"}
    high, low = [max(0.0, high - v) for v, _, high in known], [max(0.0, v - low) for v, low, _ in known]
    return {**bars, "array": high, "arrayminus": low}


def _bars_of(rows: Sequence[Row], value: str, interval: str | None) -> dict[str, Any] | None:
    return error_bars([row.get(value) for row in rows], [row.get(interval) if interval else None for row in rows])


def _numbers(values: Iterable[float | None]) -> list[str]:
    return ["" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}" for value in values]


# ---------------------------------------------------------------------------------------------------------------- bars
def bars_with_intervals(
    rows: Table,
    value: str,
    interval: str | None = None,
    label: str = "method",
    published: Published = None,
    *,
    title: str = "",
    unit: str = "",
    reference: float | None = None,
    names: tuple[str, str] = MEASURED_AND_PUBLISHED,
) -> go.Figure:
    """Draw a horizontal bar per row, with its interval, and the published value below it.

    Args:
        rows: one per bar; drawn from top to bottom.
        value: column with the measured number.
        interval: column with [low, high], or None.
        label: column that names the bar; a method name brings its colour.
        published: column with the published number, or a mapping from label to number.
        title: above the figure.
        unit: title of the value axis.
        reference: a value to mark with a vertical line (1 for a speedup).
        names: names of the two kinds of bars.
    """
    rows = as_rows(rows)
    labels = [str(row[label]) for row in rows]
    paper: list[float | None] = [None] * len(rows)
    if published is not None:
        paper = [row.get(published) if isinstance(published, str) else published.get(row[label]) for row in rows]
    both = any(number is not None for number in paper)
    drawn = theme.figure(title, x=unit or value, height=150 + (54 if both else 38) * len(rows), barmode="group")
    colors = [look.bar_color(name) for name in labels]
    ends = [row[interval][1] if interval and row.get(interval) else row.get(value) for row in rows]
    bars: list[tuple] = [
        (names[0], [row.get(value) for row in rows], ends, {"color": colors}, _bars_of(rows, value, interval))
    ]
    if both:
        bars.append((names[1], paper, paper, {"color": "#ffffff", "line": {"color": colors, "width": 2}}, None))
    for (name, values, ends, marker, error), shift in zip(bars, (10, -10) if both else (0,), strict=True):
        drawn.add_bar(x=values, y=labels, orientation="h", name=name, marker=marker, error_x=error)
        for place, text, end in zip(labels, _numbers(values), ends, strict=True):
            if end is not None:  # the number stands to the right of the bar and its interval
                drawn.add_annotation(x=end, y=place, text=text, showarrow=False, xanchor="left", xshift=5, yshift=shift)
    if reference is not None:
        drawn.add_vline(x=reference, line=look.REFERENCE)
    drawn.update_yaxes(autorange="reversed", showgrid=False, ticksuffix="  ", type="category")
    return look.finish(drawn, both).update_layout(margin_r=70)


def bars_by_panel(
    rows: Table,
    value: str,
    interval: str | None = None,
    panel: str = "dataset",
    published: Mapping[Any, Published] | None = None,
    *,
    title: str = "",
    unit: str = "",
    reference: float | None = None,
) -> go.Figure:
    """Draw `bars_with_intervals` side by side, one panel per value of the column `panel`, over the same methods.

    Args:
        rows: with the columns `method`, `panel`, `value` and, where given, `interval`; the same methods in each panel.
        value: column with the measured number.
        interval: column with [low, high], or None.
        panel: column that tells the panels apart.
        published: panel -> method -> published number.
        title: above the figure.
        unit: title of the value axes.
        reference: a value to mark with a vertical line.
    """
    rows = as_rows(rows)
    names = span(rows, panel)
    sides = [([row for row in rows if row[panel] == name], (published or {}).get(name)) for name in names]
    parts = [bars_with_intervals(side, value, interval, published=paper, reference=reference) for side, paper in sides]
    drawn = look.panels(names, parts, len(parts), title, shared_yaxes=True, horizontal_spacing=0.05)
    for column, part in enumerate(parts, start=1):
        widest = 1.22 * max((note.x for note in part.layout.annotations), default=1.0)  # the numbers stand behind bars
        drawn.update_xaxes(range=[0, widest], col=column).update_layout(height=part.layout.height + 30)
    drawn.update_xaxes(title_text=theme.escaped(unit or value))
    drawn.update_yaxes(autorange="reversed", showgrid=False, type="category").update_yaxes(ticksuffix="  ", col=1)
    return drawn.update_layout(barmode="group", margin_t=120, legend_y=1.06)


def stacked_bars(
    rows: Table, parts: Sequence[str], label: str = "method", *, title: str = "", unit: str = ""
) -> go.Figure:
    """Draw a horizontal bar per row made of the columns `parts`, for example where an iteration's time goes."""
    rows = as_rows(rows)
    drawn = theme.figure(title, x=unit, height=150 + 42 * len(rows), barmode="stack")
    bars = {"y": [str(row[label]) for row in rows], "orientation": "h", **INSIDE}
    for part, color in zip(parts, theme.SERIES_COLORS, strict=False):
        values = [row.get(part) or 0.0 for row in rows]
        drawn.add_bar(x=values, name=part, marker_color=color, text=_numbers(values), **bars)
    drawn.update_layout(legend_traceorder="normal")
    return drawn.update_yaxes(autorange="reversed", showgrid=False, ticksuffix="  ", type="category")


# --------------------------------------------------------------------------------------------------------------- lines
def sweep_lines(
    rows: Table,
    x: str,
    y: str,
    series: str | None = None,
    published: Table | None = None,
    *,
    interval: str | None = None,
    text: str | None = None,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
    log_x: bool = False,
    reference: float | None = None,
    names: tuple[str, str] = MEASURED_AND_PUBLISHED,
) -> go.Figure:
    """Draw lines of `y` over `x`, one per value of the column `series`; published rows dashed with hollow markers.

    Args:
        rows: measured; sorted by `x` here.
        x: column of the horizontal axis.
        y: column of the vertical axis.
        series: column that tells the lines apart; None for one line.
        published: rows with the same columns.
        interval: column with [low, high] of `y`, or None.
        text: column shown on hovering, or None.
        title: above the figure.
        x_title: of the horizontal axis; by default the column's name.
        y_title: of the vertical axis; by default the column's name.
        log_x: logarithmic horizontal axis.
        reference: a value of `y` to mark with a horizontal line.
        names: names of the solid and the dashed lines.
    """
    drawn = theme.figure(title, x=x_title or x, y=y_title or y)
    sides = [as_rows(side) for side in (rows, published) if side is not None]
    everything = [row for side in sides for row in side]
    lines = span(everything, series) if series else [""]
    colors, symbols = look.series_colors(lines), look.series_symbols(lines)
    looks = zip(sides, names, ("solid", "dash"), ("", "-open"), strict=False)
    for (side, kind, dash, hollow), one in product(looks, lines):
        line = [row for row in side if (not series or row[series] == one) and None not in (row.get(x), row.get(y))]
        line.sort(key=lambda row: row[x])
        if not line:
            continue
        name = theme.escaped(one if isinstance(one, str) else f"{series} = {one:g}") + (f" ({kind})" if hollow else "")
        drawn.add_scatter(
            x=[row[x] for row in line],
            y=[row[y] for row in line],
            text=[str(row[text]) for row in line] if text else None,
            error_y=_bars_of(line, y, interval),
            mode="lines+markers",
            name=name if series else kind,
            line={"color": colors[one], "dash": dash},
            marker={"size": 9, "color": colors[one], "symbol": symbols[one] + hollow},
        )
    if reference is not None:
        drawn.add_hline(y=reference, line=look.REFERENCE)
    places = sorted({row[x] for row in everything if row.get(x) is not None})
    if len(places) <= 12 and (log_x or all(isinstance(place, int) for place in places)):
        drawn.update_xaxes(tickvals=places, ticktext=[f"{place:g}" for place in places])
    drawn.update_xaxes(type="log" if log_x else None)
    return look.finish(drawn, series is not None or published is not None)


def line_panels(
    rows: Table,
    x: str,
    panels: Mapping[str, str],
    series: str = "method",
    published: Table | None = None,
    *,
    title: str = "",
    x_title: str = "",
    log_x: bool = False,
    references: Mapping[str, float] | None = None,
    columns: int = 2,
) -> go.Figure:
    """Draw `sweep_lines` of several columns over the same `x`, one panel each under one legend.

    Args:
        rows: measured. Where a row has the column `<column>_interval`, [low, high] is drawn.
        x: column of the horizontal axes.
        panels: column -> title of its panel.
        series: column that tells the lines apart; a line has the same colour in every panel.
        published: rows with the same columns; panels that they lack show measured lines alone.
        title: above the figure.
        x_title: of the lowest horizontal axes.
        log_x: logarithmic horizontal axes.
        references: column -> a value to mark with a horizontal line.
        columns: panels side by side.
    """
    parts = [
        sweep_lines(
            rows, x, column, series, published,
            interval=f"{column}_interval", log_x=log_x, reference=(references or {}).get(column),
        )
        for column in panels
    ]  # fmt: skip
    lines = math.ceil(len(panels) / columns)
    spacing = {"vertical_spacing": 0.34 / (lines + 1), "horizontal_spacing": 0.09}
    drawn = look.panels(panels.values(), parts, columns, title, **spacing)
    drawn.for_each_trace(lambda trace: trace.error_y.update(color=trace.line.color, thickness=1.2))
    for axis, part in zip(drawn.select_xaxes(), parts, strict=False):
        ticks = _log_ticks(sorted({value for trace in part.data for value in trace.x})) if log_x else {}
        axis.update({**part.layout.xaxis.to_plotly_json(), "title": None, **ticks})
    drawn.update_xaxes(title_text=theme.escaped(x_title or x), row=lines).update_annotations(font_size=14)
    entries = sum(trace.showlegend is True for trace in drawn.data)
    margin = 105 + 22 * (math.ceil(entries / 6) - 1)
    return drawn.update_layout(height=150 + 290 * lines, margin_t=margin, legend_y=1 + 24 / (290 * lines))


def _log_ticks(values: Sequence[float]) -> Row:
    """Return ticks of a panel's logarithmic axis: the values themselves, or round numbers where they would crowd."""
    if len(values) < 2:
        return {}
    if len(values) > MOST_TICKS:
        even = [factor * 10**power for power in range(-3, 7) for factor in (1, 2, 5)]
        values = [number for number in even if values[0] <= number <= values[-1]]
    return {"tickvals": values, "ticktext": [f"{number:g}" for number in values]}


# ---------------------------------------------------------------------------------------------------------------- dots
def scatter(
    rows: Table,
    x: str,
    y: str,
    series: str | None = None,
    *,
    text: str | None = None,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
    reference: float | None = None,
    diagonal: bool = False,
) -> go.Figure:
    """Draw a dot per row: `y` over `x`, coloured by the column `series`, the column `text` shown on hovering.

    `reference` marks a value of `y`; `diagonal` draws the line on which both columns are equal.
    """
    words: Row = {"title": title, "x_title": x_title, "y_title": y_title, "reference": reference}
    drawn = sweep_lines(rows, x, y, series, text=text, **words)
    drawn.update_traces(mode="markers", marker_opacity=0.8).update_layout(height=430)
    if diagonal:
        ends = [0, max((value for trace in drawn.data for value in trace.x), default=1)]
        drawn.add_scatter(x=ends, y=ends, mode="lines", line=look.IDEAL, name="equal", hoverinfo="skip")
    return drawn


def interval_dots(
    rows: Table,
    value: str,
    interval: str | None = None,
    label: str = "method",
    *,
    also: Mapping[str, tuple[str, str | None]] | None = None,
    references: Mapping[str, float] | None = None,
    band: tuple[float, float] | None = None,
    title: str = "",
    unit: str = "",
) -> go.Figure:
    """Draw a line per row: its value as a dot with its interval, other columns as hollow marks.

    Args:
        rows: drawn from top to bottom.
        value: column with the measured number.
        interval: column with [low, high], or None.
        label: column that names the row.
        also: name -> (column, column with its interval or None), drawn hollow.
        references: name -> value to mark with a vertical line.
        band: a range to shade, for example values that cannot be told from 1.
        title: above the figure.
        unit: title of the value axis.
    """
    rows = as_rows(rows)
    drawn = theme.figure(title, x=unit or value, height=170 + 26 * len(rows))
    kinds = {"measured": (value, interval), **(also or {})}
    if band is not None:
        drawn.add_vrect(x0=band[0], x1=band[1], fillcolor=theme.GRID, opacity=0.7, line_width=0, layer="below")
    styles = zip(kinds.items(), theme.SERIES_COLORS, MARKS, strict=False)
    for number, ((kind, (column, ends)), color, symbol) in enumerate(styles):
        known = [(place, row) for place, row in enumerate(rows) if row.get(column) is not None]
        bars = _bars_of([row for _, row in known], column, ends)
        shift = 0.7 * ((number + 0.5) / len(kinds) - 0.5)  # marks of one line do not lie on each other
        drawn.add_scatter(
            x=[row[column] for _, row in known],
            y=[place + shift for place, _ in known],
            text=[theme.escaped(str(row[label])) for _, row in known],
            error_x=None if bars is None else {**bars, "color": color, "width": 3},
            mode="markers",
            name=kind,
            hovertemplate="%{text}: %{x:.4g}<extra>%{fullData.name}</extra>",
            marker={"size": 9, "color": color, "symbol": symbol, "line": {"width": 2, "color": color}},
        )
    for (kind, at), dash in zip((references or {}).items(), ("dash", "dot", "dashdot", "longdash"), strict=False):
        drawn.add_vline(x=at, line={**look.REFERENCE, "dash": dash}, name=kind, showlegend=True)
    labels = [theme.escaped(str(row[label])) for row in rows]
    drawn.update_yaxes(tickvals=list(range(len(rows))), ticktext=labels, ticksuffix="  ")
    return look.finish(drawn.update_yaxes(range=[len(rows) - 0.3, -0.7]), len(kinds) > 1)


# ------------------------------------------------------------------------------------------------------------- tables
def heatmap(
    rows: Table, x: str, y: str, value: str, published: Table | None = None, *, title: str = "", unit: str = ""
) -> go.Figure:
    """Draw a table in colours: `value` over `x` and `y`, the number in each cell; published rows in a second panel.

    Args:
        rows: one per cell; missing cells stay white. Numbers are sorted along the axes, names keep their order.
        x: column of the horizontal axis.
        y: column of the vertical axis.
        value: column shown.
        published: rows with the same columns.
        title: above the figure.
        unit: title of the colour bar.
    """
    sides = {"measured": rows} | ({} if published is None else {"published": published})
    frames = {name: pd.DataFrame(side)[[x, y, value]] for name, side in sides.items()}
    everything = pd.concat(frames.values())
    across, down = (_ordered(list(everything[key].unique())) for key in (x, y))
    titles = list(frames) if len(frames) > 1 else None
    drawn = make_subplots(cols=len(frames), shared_yaxes=True, horizontal_spacing=0.06, subplot_titles=titles)
    look = {"coloraxis": "coloraxis", "xgap": 2, "ygap": 2, "texttemplate": "%{text}", "textfont": {"size": 14}}
    look |= {"x": [str(place) for place in across], "y": [str(place) for place in down]}
    for column, (name, frame) in enumerate(frames.items(), start=1):
        cells = frame.pivot(index=y, columns=x, values=value).reindex(index=down, columns=across).astype(object)
        z = cells.where(cells.notna(), None).values.tolist()
        hover = f"{x} %{{x}}, {y} %{{y}}: %{{z:.3g}}<extra>{name}</extra>"
        drawn.add_heatmap(z=z, **look, name=name, text=[*map(_numbers, z)], hovertemplate=hover, row=1, col=column)
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=190 + 46 * len(down))
    drawn.update_layout(coloraxis={"colorscale": "Cividis", "colorbar": {"title": {"text": unit or value}}})
    drawn.update_xaxes(title_text=theme.escaped(x), type="category", showgrid=False)
    drawn.update_yaxes(type="category", showgrid=False, ticks="", ticksuffix=" ")
    if isinstance(down[0], str):  # names read from the top, numbers grow upwards
        drawn.update_yaxes(autorange="reversed")
    return drawn.update_yaxes(title_text=theme.escaped(y), col=1)


def _ordered(values: list[Any]) -> list[Any]:
    """Return numbers in ascending order, names as they came."""
    return values if any(isinstance(value, str) for value in values) else sorted(values)
