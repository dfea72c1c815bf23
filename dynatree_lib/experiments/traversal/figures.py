"""Figures of rules and drafters compared: gains beside published gains, gain over acceptance, and the best by cell.

As in `charts`, every function takes a table and names of columns, and published values are drawn hollow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ...measure.statistics import Table
from ...plots import theme
from ...plots.charts import Row, as_rows, error_bars, span, sweep_lines

MEASURED = ("circle", "diamond")
PUBLISHED = ("square-open", "triangle-up-open")


def gain_panels(
    rows: Table,
    measured: Mapping[str, str],
    published: Mapping[str, str],
    *,
    panel: str = "tree",
    label: str = "task",
    band: tuple[float, float] | None = None,
    title: str = "",
    unit: str = "gain, %",
    limits: tuple[float, float] | None = None,
) -> go.Figure:
    """Draw a panel per value of `panel`, a line per `label`, and on it a mark with its interval for each kind of gain.

    Args:
        rows: one per panel and label. A kind's interval stands in the column `<column>_interval`; a kind without a
            value in a row has no mark there.
        measured: name of a kind -> its column.
        published: the same, drawn hollow.
        panel: column that tells panels apart.
        label: column that names lines, drawn from top to bottom.
        band: a range to shade in every panel.
        title: above the figure.
        unit: title of the value axes.
        limits: of the value axes; an interval may reach beyond.
    """
    rows = as_rows(rows)
    panels, labels = span(rows, panel), span(rows, label)
    names = [theme.escaped(str(name)) for name in panels]
    drawn = make_subplots(cols=len(panels), shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=names)
    kinds = [*zip(measured.items(), MEASURED, strict=False), *zip(published.items(), PUBLISHED, strict=False)]
    for column, name in enumerate(panels, start=1):
        for number, (((kind, key), symbol), color) in enumerate(zip(kinds, theme.SERIES_COLORS, strict=False)):
            marked = [row for row in rows if row[panel] == name and row.get(key) is not None]
            values, offset = [row[key] for row in marked], (number - (len(kinds) - 1) / 2) * 0.8 / len(kinds)
            bars = error_bars(values, [row.get(f"{key}_interval") for row in marked])
            drawn.add_scatter(
                x=values,
                y=[labels.index(row[label]) + offset for row in marked],
                error_x=None if bars is None else {**bars, "color": color, "width": 3},
                mode="markers",
                marker={"size": 9, "color": color, "symbol": symbol, "line": {"width": 2, "color": color}},
                name=kind,
                text=[str(row[label]) for row in marked],
                hovertemplate="%{text}: %{x:.1f} %<extra>%{fullData.name}</extra>",
                row=1,
                col=column,
            )
        if band is not None:  # after the marks: plotly leaves shapes out of a panel that is still empty
            drawn.add_vrect(*band, fillcolor=theme.GRID, opacity=0.7, line_width=0, layer="below", row=1, col=column)
        drawn.add_vline(0, line={"color": theme.INK, "width": 1}, row=1, col=column)
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), margin_t=120, legend_y=1.06)
    drawn.update_layout(height=190 + 46 * len(labels))
    drawn.update_xaxes(title_text=theme.escaped(unit), range=limits, dtick=10)
    texts = [theme.escaped(str(name)) for name in labels]
    drawn.update_yaxes(tickvals=list(range(len(labels))), ticktext=texts, range=[len(labels) - 0.4, -0.6])
    return theme.share_legend(drawn).update_yaxes(showgrid=False, ticksuffix="  ")


def gain_plane(
    rows: Table,
    published: Table = (),
    *,
    x: str = "token_level",
    series: str = "series",
    own: str = "own",
    title: str = "",
    x_title: str = "tokens per iteration of token-level verification",
) -> go.Figure:
    """Draw gain over acceptance: a line for each series of measured rows, published cells as hollow marks.

    Args:
        rows: with `gain`, `gain_interval`, the columns `x`, `series`, and `own`, true for rows to ring.
        published: with `gain`, `x`, `series` and `text`.
        x: column of the horizontal axis.
        series: column that tells lines, or kinds of marks, apart.
        own: column that says which rows to ring.
        title: above the figure.
        x_title: of the horizontal axis.
    """
    titles: Row = {"title": title, "x_title": x_title, "y_title": "gain of traversal, %"}
    drawn = sweep_lines(rows, x, "gain", series, interval="gain_interval", **titles).update_layout(height=470)
    drawn.for_each_trace(lambda trace: trace.error_y.update(color=trace.line.color))
    ringed = [row for row in as_rows(rows) if row.get(own)]
    if ringed:
        ring = {"size": 17, "symbol": "circle-open", "color": theme.INK, "line": {"width": 1.6}}
        places = {"x": [row[x] for row in ringed], "y": [row["gain"] for row in ringed]}
        drawn.add_scatter(**places, mode="markers", marker=ring, name="the pair's own draft", hoverinfo="skip")
    cells = as_rows(published)
    colors = theme.series_colors([*span(as_rows(rows), series), *span(cells, series)])
    for name, symbol in zip(span(cells, series), PUBLISHED, strict=False):
        marked = [row for row in cells if row[series] == name]
        drawn.add_scatter(
            x=[row[x] for row in marked],
            y=[row["gain"] for row in marked],
            text=[row["text"] for row in marked],
            mode="markers",
            name=theme.escaped(str(name)),
            marker={"size": 9, "symbol": symbol, "color": colors[name], "line": {"width": 2}},
            hovertemplate="%{text}: %{x:.2f}, %{y:.1f} %<extra>%{fullData.name}</extra>",
        )
    return drawn.add_hline(y=0, line={"color": theme.INK, "width": 1})


def best_map(rows: Table, x: str, y: str, *, title: str = "", unit: str = "", y_title: str = "") -> go.Figure:
    """Draw a cell per row with its best entry, and a ratio with its interval below.

    Args:
        rows: one per cell, with `best` (the name), `ratio`, which colours the cell on a logarithmic scale around 1,
            `text` (the ratio and its interval), and `holds`: None where the interval includes 1, and the cell stays
            white.
        x: column of the horizontal axis, ascending.
        y: column of the vertical axis, ascending upwards.
        title: above the figure.
        unit: title of the colour bar.
        y_title: of the vertical axis; by default the column's name.
    """
    cells = {(row[x], row[y]): row for row in as_rows(rows)}
    across, up = sorted({column for column, _ in cells}), sorted({line for _, line in cells})
    top = max((abs(math.log(row["ratio"])) for row in cells.values()), default=0.0) or 1.0
    wide, narrow = [0.25, 0.5, 0.7, 1, 1.4, 2, 3, 4], [0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6]
    marks = [mark for mark in (wide if top > 0.5 else narrow) if abs(math.log(mark)) <= top]
    ticks = {"tickvals": [math.log(mark) for mark in marks], "ticktext": [f"{mark:g}" for mark in marks]}

    def color(row: Row | None) -> float | None:
        return None if row is None else 0.0 if row["holds"] is None else math.log(row["ratio"])

    def words(row: Row | None) -> str:
        if row is None:
            return ""
        first, plus, second = theme.escaped(str(row["best"])).partition(" + ")
        return "<br>".join([f"<b>{first}</b>", *([f"+ {second}"] if plus else []), row["text"]])

    drawn = theme.figure(title, x=x, y=y_title or y, height=170 + 74 * len(up), margin={"t": 60, "b": 60})
    drawn.add_heatmap(
        z=[[color(cells.get((column, line))) for column in across] for line in up],
        text=[[words(cells.get((column, line))) for column in across] for line in up],
        x=[f"{column:g}" for column in across],
        y=[f"{line:g}" for line in up],
        texttemplate="%{text}",
        textfont={"size": 12, "color": theme.INK},
        hovertemplate=f"{x} %{{x}}, {y} %{{y}}: %{{text}}<extra></extra>",
        zmin=-top,
        zmax=top,
        colorscale=[(0, "#b35806"), (0.5, "#ffffff"), (1, "#1b7f79")],
        opacity=0.75,
        xgap=3,
        ygap=3,
        colorbar={"title": {"text": unit or "ratio"}, **ticks},
    )
    return drawn.update_xaxes(type="category", showgrid=False).update_yaxes(
        type="category", showgrid=False, ticks="", ticksuffix=" "
    )
