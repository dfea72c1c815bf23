"""Charts of records: bars with intervals, sweeps, heat maps, distributions, cost curves; measured beside published.

Every function takes rows, a list of dictionaries as they stand in a record, and the names of the columns to draw. A
row without a value in a drawn column is left out. Published values are always drawn hollow or dashed, in the colour of
the measured ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from . import theme
from .iterations import error_bars
from .rows import Row, span

# The number inside a horizontal bar, upright and in one size whatever the bar's height.
INSIDE = {
    "orientation": "h",
    "textposition": "inside",
    "insidetextanchor": "start",
    "textangle": 0,
    "constraintext": "none",
}

MEASURED_AND_PUBLISHED = ("measured", "published")
Published = str | Mapping[Any, float] | None


def bars_with_intervals(
    rows: Sequence[Row],
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
    """One horizontal bar per row, with its interval, and the published value below it.

    Args:
        rows: one per bar; drawn from top to bottom.
        value: column with the measured number.
        interval: column with [low, high], or None.
        label: column that names the bar; a method name brings its colour.
        published: column with the published number, or a mapping from label to number.
        title: above the figure.
        unit: title of the value axis.
        reference: a value to mark with a vertical line (1 for a speedup).
        names: what the two kinds of bars are called.
    """
    labels = [str(row[label]) for row in rows]
    theirs = [_published(row, label, published) for row in rows]
    both = any(number is not None for number in theirs)
    drawn = theme.figure(title, x=unit or value, height=150 + (54 if both else 38) * len(rows), barmode="group")
    colors = [theme.bar_color(name) for name in labels]
    ours = [row.get(value) for row in rows]
    bars = error_bars(ours, [row.get(interval) if interval else None for row in rows])
    drawn.add_bar(y=labels, x=ours, orientation="h", name=names[0], marker_color=colors, error_x=bars)
    ends = [
        value if not interval or not row.get(interval) else row[interval][1]
        for value, row in zip(ours, rows, strict=True)
    ]
    _write_numbers(drawn, labels, ours, ends, 10 if both else 0)
    if both:
        style = {"color": "#ffffff", "line": {"color": colors, "width": 2}}
        drawn.add_bar(y=labels, x=theirs, orientation="h", name=names[1], marker=style)
        _write_numbers(drawn, labels, theirs, theirs, -10)
    if reference is not None:
        drawn.add_vline(x=reference, line={"color": theme.INK, "dash": "dash", "width": 1.3})
    theme.finish(drawn, both).update_layout(margin_r=70)
    drawn.update_yaxes(autorange="reversed", showgrid=False, ticksuffix="  ", type="category")
    return drawn


def _write_numbers(
    drawn: go.Figure, labels: Sequence[str], values: Sequence[float | None], ends: Sequence[float | None], shift: int
) -> None:
    """Numbers to the right of the bars and their intervals, `shift` px above the middle of the row."""
    for label, text, end in zip(labels, _numbers(values), ends, strict=True):
        if end is not None:
            drawn.add_annotation(x=end, y=label, text=text, showarrow=False, xanchor="left", xshift=5, yshift=shift)


def _published(row: Row, label: str, published: Published) -> float | None:
    if published is None:
        return None
    return row.get(published) if isinstance(published, str) else published.get(row[label])


def _numbers(values: Iterable[float | None]) -> list[str]:
    return ["" if value is None else f"{value:.3g}" if abs(value) < 100 else f"{value:.0f}" for value in values]


def sweep_lines(
    rows: Sequence[Row],
    x: str,
    y: str,
    series: str | None = None,
    published: Sequence[Row] | None = None,
    *,
    interval: str | None = None,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
    log_x: bool = False,
    reference: float | None = None,
    names: tuple[str, str] = MEASURED_AND_PUBLISHED,
) -> go.Figure:
    """Lines of `y` over `x`, one per value of the column `series`; published rows dashed with hollow markers.

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
        names: what the solid and the dashed lines are called.
    """
    drawn = theme.figure(title, x=x_title or x, y=y_title or y, height=420)
    sides = [(names[0], list(rows), "solid", "")]
    if published is not None:
        sides.append((names[1], list(published), "dash", "-open"))
    lines = [name for _, side, _, _ in sides for name in _names(side, series)]
    colors, symbols = theme.series_colors(lines), theme.series_symbols(lines)
    for kind, side, dash, hollow in sides:
        for name in _names(side, series):
            mine = sorted(_complete(side, x, y, series, name), key=lambda row: row[x])
            drawn.add_scatter(
                x=[row[x] for row in mine],
                y=[row[y] for row in mine],
                error_y=error_bars([row[y] for row in mine], [row.get(interval) if interval else None for row in mine]),
                mode="lines+markers",
                name=kind if series is None else _series_name(series, name) + (f" ({kind})" if hollow else ""),
                line={"color": colors[name], "dash": dash},
                marker={"size": 9, "symbol": symbols[name] + hollow},
            )
    if reference is not None:
        drawn.add_hline(y=reference, line={"color": theme.INK, "dash": "dot", "width": 1.3})
    theme.finish(drawn, series is not None or published is not None)
    places = sorted({row[x] for _, side, _, _ in sides for row in side if row.get(x) is not None})
    if len(places) <= 12 and (log_x or all(isinstance(place, int) for place in places)):
        drawn.update_xaxes(tickvals=places, ticktext=[f"{place:g}" for place in places])
    drawn.update_xaxes(type="log" if log_x else None)
    return drawn


def _names(rows: Sequence[Row], series: str | None) -> list[Any]:
    return span(rows, series) if series else [""]


def _series_name(series: str | None, name: Any) -> str:
    return theme.escaped(name if isinstance(name, str) else f"{series} = {name:g}")


def _complete(rows: Sequence[Row], x: str, y: str, series: str | None, name: Any) -> list[Row]:
    return [
        row
        for row in rows
        if (series is None or row[series] == name) and row.get(x) is not None and row.get(y) is not None
    ]


def heatmap(
    rows: Sequence[Row],
    x: str,
    y: str,
    value: str,
    published: Sequence[Row] | None = None,
    *,
    title: str = "",
    unit: str = "",
) -> go.Figure:
    """A table in colours: `value` over `x` and `y`, the number in each cell; published rows in a second panel.

    Args:
        rows: one per cell; missing cells stay white. Numbers are sorted along the axes, names keep their order.
        x: column of the horizontal axis.
        y: column of the vertical axis.
        value: column shown.
        published: rows with the same columns.
        title: above the figure.
        unit: title of the colour bar.
    """
    panels = [("measured", list(rows))] + ([] if published is None else [("published", list(published))])
    drawn = make_subplots(
        cols=len(panels),
        shared_yaxes=True,
        horizontal_spacing=0.06,
        subplot_titles=[name for name, _ in panels] if len(panels) > 1 else None,
    )
    across, down = _ordered(span([*rows, *(published or ())], x)), _ordered(span([*rows, *(published or ())], y))
    for column, (name, side) in enumerate(panels, start=1):
        cells = {(row[x], row[y]): row.get(value) for row in side}
        z = [[cells.get((a, b)) for a in across] for b in down]
        drawn.add_heatmap(
            z=z,
            x=[str(a) for a in across],
            y=[str(b) for b in down],
            coloraxis="coloraxis",
            xgap=2,
            ygap=2,
            name=name,
            text=[_numbers(line) for line in z],
            texttemplate="%{text}",
            textfont={"size": 14},
            row=1,
            col=column,
            hovertemplate=f"{x} %{{x}}, {y} %{{y}}: %{{z:.3g}}<extra>{name}</extra>",
        )
    drawn.update_layout(
        template=theme.TEMPLATE,
        title_text=theme.escaped(title),
        height=190 + 46 * len(down),
        coloraxis={"colorscale": "Cividis", "colorbar": {"title": {"text": unit or value}}},
    )
    drawn.update_xaxes(title_text=theme.escaped(x), type="category", showgrid=False)
    drawn.update_yaxes(type="category", showgrid=False, ticks="", ticksuffix=" ")
    drawn.update_yaxes(title_text=theme.escaped(y), col=1)
    if isinstance(down[0], str):  # names read from the top, numbers grow upwards
        drawn.update_yaxes(autorange="reversed")
    return drawn


def _ordered(values: list[Any]) -> list[Any]:
    """Numbers ascending, names as they came."""
    return values if any(isinstance(value, str) for value in values) else sorted(values)


def scatter(
    rows: Sequence[Row],
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
    """One dot per row: `y` over `x`, coloured by the column `series`, the column `text` shown on hovering.

    `reference` marks a value of `y`; `diagonal` draws the line on which both columns are equal.
    """
    drawn = theme.figure(title, x=x_title or x, y=y_title or y, height=430)
    colors, symbols = theme.series_colors(_names(rows, series)), theme.series_symbols(_names(rows, series))
    for name in _names(rows, series):
        mine = _complete(rows, x, y, series, name)
        drawn.add_scatter(
            x=[row[x] for row in mine],
            y=[row[y] for row in mine],
            text=[str(row[text]) if text else "" for row in mine],
            mode="markers",
            name=_series_name(series, name),
            marker={"size": 9, "opacity": 0.8, "color": colors[name], "symbol": symbols[name]},
        )
    if diagonal:
        ends = [0, max((row[x] for row in rows), default=1)]
        line = {"color": theme.MUTED, "dash": "dash", "width": 1.5}
        drawn.add_scatter(x=ends, y=ends, mode="lines", line=line, name="equal", hoverinfo="skip")
    if reference is not None:
        drawn.add_hline(y=reference, line={"color": theme.INK, "dash": "dot", "width": 1.3})
    theme.finish(drawn, series is not None)
    return drawn


def distribution(
    rows: Sequence[Row],
    x: str,
    y: str,
    published: Sequence[Row] | None = None,
    *,
    title: str = "",
    x_title: str = "",
    y_title: str = "",
) -> go.Figure:
    """The spread of `y` for each value of `x`: a box with every row as a dot; published rows as hollow boxes."""
    drawn = theme.figure(title, x=x_title or x, y=y_title or y, height=420, boxmode="group")
    sides = [("measured", list(rows), theme.SERIES_COLORS[0], "#dcebf8")]
    if published is not None:
        sides.append(("published", list(published), theme.SERIES_COLORS[1], "#ffffff"))
    for name, side, color, fill in sides:
        mine = sorted(_complete(side, x, y, None, None), key=lambda row: row[x])
        drawn.add_box(
            x=[str(row[x]) for row in mine],
            y=[row[y] for row in mine],
            name=name,
            boxpoints="all",
            jitter=0.35,
            pointpos=0,
            fillcolor=fill,
            line_color=color,
            marker={"size": 5, "opacity": 0.6},
        )
    theme.finish(drawn, published is not None)
    drawn.update_xaxes(type="category")
    return drawn


def stacked_bars(
    rows: Sequence[Row], parts: Sequence[str], label: str = "method", *, title: str = "", unit: str = ""
) -> go.Figure:
    """One horizontal bar per row made of the columns `parts`, for example where an iteration's time goes."""
    drawn = theme.figure(title, x=unit, height=150 + 42 * len(rows), barmode="stack")
    names = [str(row[label]) for row in rows]
    for part, color in zip(parts, theme.SERIES_COLORS, strict=False):
        values = [row.get(part) or 0.0 for row in rows]
        drawn.add_bar(y=names, x=values, name=part, marker_color=color, text=_numbers(values), **INSIDE)
    drawn.update_layout(legend_traceorder="normal")
    drawn.update_yaxes(autorange="reversed", showgrid=False, ticksuffix="  ", type="category")
    return drawn


def cost_curve(
    rows: Sequence[Row],
    x: str = "rows",
    y: str = "milliseconds",
    series: str = "model",
    interval: str | None = None,
    *,
    title: str = "",
    x_title: str = "rows scored in one forward",
) -> go.Figure:
    """Time of one forward over the number of rows it scores, and what the same rows would cost one by one (dotted).

    Args:
        rows: measured, with the columns `x`, `y`, `series` and, where known, `interval` ([low, high] of `y`).
        x: column with the number of rows.
        y: column with the time; the axis carries its name.
        series: column that tells the curves apart.
        interval: column with [low, high], or None.
        title: above the figure.
        x_title: of the horizontal axis.
    """
    title = title or "What a row costs"
    drawn = sweep_lines(rows, x, y, series, interval=interval, title=title, x_title=x_title, y_title=y)
    colors = theme.series_colors(_names(rows, series))
    top = max((row[y] for row in rows), default=1.0)
    for name in _names(rows, series):
        mine = sorted(_complete(rows, x, y, series, name), key=lambda row: row[x])
        per_row = mine[0][y] / mine[0][x]
        line = {"color": colors[name], "dash": "dot", "width": 1.5}
        drawn.add_scatter(
            x=[row[x] for row in mine],
            y=[per_row * row[x] for row in mine],
            mode="lines",
            line=line,
            name=f"{name}, one forward per row",
            hoverinfo="skip",
        )
    drawn.update_yaxes(range=[0, 1.6 * top])
    return drawn


def interval_dots(
    rows: Sequence[Row],
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
    """One line per row: its value as a dot with its interval, other columns as hollow marks beside it.

    Args:
        rows: drawn from top to bottom.
        value: column with the measured number.
        interval: column with [low, high], or None.
        label: column that names the row.
        also: name -> (column, column with its interval or None), drawn hollow.
        references: name -> value to mark with a vertical line.
        band: a range to shade, such as what cannot be told from 1.
        title: above the figure.
        unit: title of the value axis.
        name: what the dots are called.
    """
    drawn = theme.figure(title, x=unit or value, height=170 + 26 * len(rows))
    kinds = {name: (value, interval), **(also or {})}
    if band is not None:
        drawn.add_vrect(x0=band[0], x1=band[1], fillcolor=theme.GRID, opacity=0.7, line_width=0, layer="below")
    styles = zip(kinds.items(), theme.SERIES_COLORS, ("circle", "diamond-open", "square-open"), strict=False)
    for (kind, (column, ends)), color, symbol in styles:
        mine = [row for row in rows if row.get(column) is not None]
        bars = error_bars([row[column] for row in mine], [row.get(ends) if ends else None for row in mine])
        drawn.add_scatter(
            x=[row[column] for row in mine],
            y=[str(row[label]) for row in mine],
            error_x=None if bars is None else {**bars, "color": color, "width": 3},
            mode="markers",
            name=kind,
            marker={"size": 9, "color": color, "symbol": symbol, "line": {"width": 2, "color": color}},
        )
    _add_references(drawn, references or {})
    names: list[Any] = [str(row[label]) for row in rows]
    drawn.update_yaxes(type="category", categoryorder="array", categoryarray=names[::-1], ticksuffix="  ")
    drawn.update_yaxes(range=[-0.7, len(rows) - 0.3])
    return theme.finish(drawn, len(kinds) > 1)


def _add_references(drawn: go.Figure, references: Mapping[str, float]) -> None:
    """Vertical lines whose names stand in the legend."""
    dashes = zip(references.items(), ("dash", "dot", "dashdot", "longdash"), strict=False)
    for (name, at), dash in dashes:
        line = {"color": theme.INK, "dash": dash, "width": 1.5}
        drawn.add_vline(x=at, line=line, name=name, showlegend=True)
