"""Charts of records: bars with intervals, sweeps, heat maps, spreads, cost curves; measured and published values.

Every function takes a table (a data frame, or the rows of a record) and the names of the columns to draw. A row without
a value in a drawn column is left out. Published values are always drawn hollow or dashed, in the colour of the measured
ones.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pandas as pd
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ..measure.statistics import Table
from . import theme

Row = dict[str, Any]
Published = str | Mapping[Any, float] | None
MEASURED_AND_PUBLISHED = ("measured", "published")

MOST_TICKS = 6
"""Values that a logarithmic axis of one panel can name without crowding."""

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


def _lines_of(rows: Sequence[Row], x: str, y: str, series: str | None) -> dict[Any, list[Row]]:
    """Return the complete rows of each line, by the value of `series`; without `series` one line named ""."""
    lines: dict[Any, list[Row]] = {name: [] for name in (span(rows, series) if series else [""])}
    for row in rows:
        if row.get(x) is not None and row.get(y) is not None:
            lines[row[series] if series else ""].append(row)
    return lines


def _line_name(series: str | None, name: Any) -> str:
    return theme.escaped(name if isinstance(name, str) else f"{series} = {name:g}")


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
    labels, measured = [str(row[label]) for row in rows], [row.get(value) for row in rows]
    paper: list[float | None] = [None] * len(rows)
    if published is not None:
        paper = [row.get(published) if isinstance(published, str) else published.get(row[label]) for row in rows]
    both = any(number is not None for number in paper)
    drawn = theme.figure(title, x=unit or value, height=150 + (54 if both else 38) * len(rows), barmode="group")
    colors = [theme.bar_color(name) for name in labels]
    bars = {"y": labels, "orientation": "h"}
    drawn.add_bar(x=measured, **bars, name=names[0], marker_color=colors, error_x=_bars_of(rows, value, interval))
    ends = [row[interval][1] if interval and row.get(interval) else row.get(value) for row in rows]
    _write_numbers(drawn, labels, measured, ends, 10 if both else 0)
    if both:
        style = {"color": "#ffffff", "line": {"color": colors, "width": 2}}
        drawn.add_bar(x=paper, **bars, name=names[1], marker=style)
        _write_numbers(drawn, labels, paper, paper, -10)
    if reference is not None:
        drawn.add_vline(x=reference, line=theme.REFERENCE)
    drawn.update_yaxes(autorange="reversed", showgrid=False, ticksuffix="  ", type="category")
    return theme.finish(drawn, both).update_layout(margin_r=70)


def _write_numbers(
    drawn: go.Figure, labels: Sequence[str], values: Sequence[float | None], ends: Sequence[float | None], shift: int
) -> None:
    """Write numbers to the right of the bars and their intervals, `shift` px above the middle of the row."""
    for label, text, end in zip(labels, _numbers(values), ends, strict=True):
        if end is not None:
            drawn.add_annotation(x=end, y=label, text=text, showarrow=False, xanchor="left", xshift=5, yshift=shift)


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
    drawn = make_subplots(
        cols=len(names), shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=[str(name) for name in names]
    )
    for column, name in enumerate(names, start=1):
        part_rows, paper = [row for row in rows if row[panel] == name], (published or {}).get(name)
        part = bars_with_intervals(part_rows, value, interval, published=paper, reference=reference)
        axis = "" if column == 1 else str(column)
        for trace in part.data:
            drawn.add_trace(trace.update(xaxis=f"x{axis}", yaxis=f"y{axis}"))
        for note in part.layout.annotations:
            drawn.add_annotation(note.update(xref=f"x{axis}", yref=f"y{axis}"))
        for shape in part.layout.shapes:
            drawn.add_shape(shape.update(xref=f"x{axis}", yref=f"y{axis} domain"))
        widest = 1.22 * max((note.x for note in part.layout.annotations), default=1.0)  # the numbers stand behind bars
        drawn.update_xaxes(title_text=theme.escaped(unit or value), range=[0, widest], col=column)
        drawn.update_layout(height=part.layout.height + 30)
    drawn.update_yaxes(autorange="reversed", showgrid=False, type="category").update_yaxes(ticksuffix="  ", col=1)
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), barmode="group")
    return theme.share_legend(drawn).update_layout(margin_t=120, legend_y=1.06)


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
        title: above the figure.
        x_title: of the horizontal axis; by default the column's name.
        y_title: of the vertical axis; by default the column's name.
        log_x: logarithmic horizontal axis.
        reference: a value of `y` to mark with a horizontal line.
        names: names of the solid and the dashed lines.
    """
    drawn = theme.figure(title, x=x_title or x, y=y_title or y)
    measured, paper = _lines_of(as_rows(rows), x, y, series), _lines_of(as_rows(published), x, y, series)
    colors, symbols = theme.series_colors([*measured, *paper]), theme.series_symbols([*measured, *paper])
    sides = [(measured, names[0], "solid", "")]
    if published is not None:
        sides.append((paper, names[1], "dash", "-open"))
    for lines, kind, dash, hollow in sides:
        for name, line in lines.items():
            line.sort(key=lambda row: row[x])
            drawn.add_scatter(
                x=[row[x] for row in line],
                y=[row[y] for row in line],
                error_y=_bars_of(line, y, interval),
                mode="lines+markers",
                name=kind if series is None else _line_name(series, name) + (f" ({kind})" if hollow else ""),
                line={"color": colors[name], "dash": dash},
                marker={"size": 9, "symbol": symbols[name] + hollow},
            )
    if reference is not None:
        drawn.add_hline(y=reference, line=theme.REFERENCE)
    places = sorted({row[x] for row in [*as_rows(rows), *as_rows(published)] if row.get(x) is not None})
    if len(places) <= 12 and (log_x or all(isinstance(place, int) for place in places)):
        drawn.update_xaxes(tickvals=places, ticktext=[f"{place:g}" for place in places])
    drawn.update_xaxes(type="log" if log_x else None)
    return theme.finish(drawn, series is not None or published is not None)


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
    lines = math.ceil(len(panels) / columns)
    titles = [theme.escaped(name) for name in panels.values()]
    spacing = {"vertical_spacing": 0.34 / (lines + 1), "horizontal_spacing": 0.09}
    drawn = make_subplots(rows=lines, cols=columns, subplot_titles=titles, **spacing)
    for number, column in enumerate(panels):
        interval, reference = f"{column}_interval", (references or {}).get(column)
        part = sweep_lines(rows, x, column, series, published, interval=interval, log_x=log_x, reference=reference)
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for trace in part.data:
            if trace.x:
                if trace.error_y.array:
                    trace.error_y.update(color=trace.line.color, thickness=1.2)
                drawn.add_trace(trace, **place)
        for shape in part.layout.shapes:
            drawn.add_hline(y=shape.y0, line=shape.line, **place)
        axis = part.layout.xaxis.update(title_text=None, anchor=None, domain=None)
        if log_x:
            axis.update(_log_ticks(sorted({value for trace in part.data for value in trace.x or ()})))
        drawn.update_xaxes(axis, **place)
    drawn.update_xaxes(title_text=theme.escaped(x_title or x), row=lines).update_annotations(font_size=14)
    entries = sum(trace.showlegend is True for trace in theme.share_legend(drawn).data)
    layout = {"template": theme.TEMPLATE, "title_text": theme.escaped(title), "height": 150 + 290 * lines}
    margin = 105 + 22 * (math.ceil(entries / 6) - 1)
    return drawn.update_layout(**layout, margin_t=margin, legend_y=1 + 24 / (290 * lines))


def _log_ticks(values: Sequence[float]) -> Row:
    """Return ticks of a panel's logarithmic axis: the values themselves, or round numbers where they would crowd."""
    if len(values) < 2:
        return {}
    if len(values) > MOST_TICKS:
        even = [factor * 10**power for power in range(-3, 7) for factor in (1, 2, 5)]
        values = [number for number in even if values[0] <= number <= values[-1]]
    return {"tickvals": values, "ticktext": [f"{number:g}" for number in values]}


def cost_curve(
    rows: Table,
    x: str = "nodes",
    y: str = "milliseconds",
    series: str = "model",
    interval: str | None = None,
    *,
    title: str = "Cost of a scored node",
    x_title: str = "nodes scored in one forward",
) -> go.Figure:
    """Draw the time of one forward over the nodes it scores, and the time of a forward for each node (dotted).

    Args:
        rows: measured, with the columns `x`, `y`, `series` and, where known, `interval` ([low, high] of `y`).
        x: column with the number of nodes.
        y: column with the time; the axis carries its name.
        series: column that tells the curves apart.
        interval: column with [low, high], or None.
        title: above the figure.
        x_title: of the horizontal axis.
    """
    drawn = sweep_lines(rows, x, y, series, interval=interval, title=title, x_title=x_title, y_title=y)
    top = max((time for curve in drawn.data for time in curve.y), default=1.0)
    for curve in drawn.data:
        alone = [curve.y[0] / curve.x[0] * size for size in curve.x]
        style = {"line": {"color": curve.line.color, "dash": "dot", "width": 1.5}, "hoverinfo": "skip"}
        drawn.add_scatter(x=curve.x, y=alone, mode="lines", name=f"{curve.name}, one forward per node", **style)
    return drawn.update_yaxes(range=[0, 1.6 * top])


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
    rows = as_rows(rows)
    drawn = theme.figure(title, x=x_title or x, y=y_title or y, height=430)
    lines = _lines_of(rows, x, y, series)
    colors, symbols = theme.series_colors(lines), theme.series_symbols(lines)
    for name, line in lines.items():
        drawn.add_scatter(
            x=[row[x] for row in line],
            y=[row[y] for row in line],
            text=[str(row[text]) if text else "" for row in line],
            mode="markers",
            name=_line_name(series, name),
            marker={"size": 9, "opacity": 0.8, "color": colors[name], "symbol": symbols[name]},
        )
    if diagonal:
        ends = [0, max((row[x] for row in rows), default=1)]
        drawn.add_scatter(x=ends, y=ends, mode="lines", line=theme.IDEAL, name="equal", hoverinfo="skip")
    if reference is not None:
        drawn.add_hline(y=reference, line=theme.REFERENCE)
    return theme.finish(drawn, series is not None)


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
    name: str = "measured",
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
        name: name of the dots.
    """
    rows = as_rows(rows)
    drawn = theme.figure(title, x=unit or value, height=170 + 26 * len(rows))
    kinds = {name: (value, interval), **(also or {})}
    if band is not None:
        drawn.add_vrect(x0=band[0], x1=band[1], fillcolor=theme.GRID, opacity=0.7, line_width=0, layer="below")
    styles = zip(kinds.items(), theme.SERIES_COLORS, ("circle", "diamond-open", "square-open"), strict=False)
    for (kind, (column, ends)), color, symbol in styles:
        known = [row for row in rows if row.get(column) is not None]
        bars = _bars_of(known, column, ends)
        drawn.add_scatter(
            x=[row[column] for row in known],
            y=[str(row[label]) for row in known],
            error_x=None if bars is None else {**bars, "color": color, "width": 3},
            mode="markers",
            name=kind,
            marker={"size": 9, "color": color, "symbol": symbol, "line": {"width": 2, "color": color}},
        )
    for (kind, at), dash in zip((references or {}).items(), ("dash", "dot", "dashdot", "longdash"), strict=False):
        drawn.add_vline(x=at, line={**theme.REFERENCE, "dash": dash}, name=kind, showlegend=True)
    labels = [str(row[label]) for row in rows]
    drawn.update_yaxes(type="category", categoryorder="array", categoryarray=labels[::-1], ticksuffix="  ")
    return theme.finish(drawn.update_yaxes(range=[-0.7, len(rows) - 0.3]), len(kinds) > 1)


# ---------------------------------------------------------------------------------------------------- tables, spreads
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
    panels = {"measured": as_rows(rows)} | ({} if published is None else {"published": as_rows(published)})
    titles = list(panels) if len(panels) > 1 else None
    drawn = make_subplots(cols=len(panels), shared_yaxes=True, horizontal_spacing=0.06, subplot_titles=titles)
    across, down = (_ordered(span([row for side in panels.values() for row in side], key)) for key in (x, y))
    look = {"coloraxis": "coloraxis", "xgap": 2, "ygap": 2, "texttemplate": "%{text}", "textfont": {"size": 14}}
    look |= {"x": [str(place) for place in across], "y": [str(place) for place in down]}
    for column, (name, side) in enumerate(panels.items(), start=1):
        cells = {(row[x], row[y]): row.get(value) for row in side}
        z = [[cells.get((a, b)) for a in across] for b in down]
        hover = f"{x} %{{x}}, {y} %{{y}}: %{{z:.3g}}<extra>{name}</extra>"
        text = [_numbers(line) for line in z]
        drawn.add_heatmap(z=z, **look, name=name, text=text, hovertemplate=hover, row=1, col=column)
    colors = {"colorscale": "Cividis", "colorbar": {"title": {"text": unit or value}}}
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=190 + 46 * len(down))
    drawn.update_layout(coloraxis=colors)
    drawn.update_xaxes(title_text=theme.escaped(x), type="category", showgrid=False)
    drawn.update_yaxes(type="category", showgrid=False, ticks="", ticksuffix=" ")
    if isinstance(down[0], str):  # names read from the top, numbers grow upwards
        drawn.update_yaxes(autorange="reversed")
    return drawn.update_yaxes(title_text=theme.escaped(y), col=1)


def _ordered(values: list[Any]) -> list[Any]:
    """Return numbers in ascending order, names as they came."""
    return values if any(isinstance(value, str) for value in values) else sorted(values)


def distribution(
    rows: Table,
    x: str,
    y: str,
    published: Table | None = None,
    *,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
) -> go.Figure:
    """Draw the spread of `y` for each value of `x`: a box with every row as a dot; published rows as hollow boxes."""
    drawn = theme.figure(title, x=x_title or x, y=y_title or y, boxmode="group")
    sides = zip(MEASURED_AND_PUBLISHED, (rows, published), theme.SERIES_COLORS, ("#dcebf8", "#ffffff"), strict=False)
    for name, side, color, fill in sides:
        if side is not None:
            (line,) = _lines_of(as_rows(side), x, y, None).values()
            line.sort(key=lambda row: row[x])
            style = {"fillcolor": fill, "line_color": color, "marker": {"size": 5, "opacity": 0.6}}
            places, values = [str(row[x]) for row in line], [row[y] for row in line]
            drawn.add_box(x=places, y=values, name=name, boxpoints="all", jitter=0.35, pointpos=0, **style)
    return theme.finish(drawn.update_xaxes(type="category"), published is not None)
