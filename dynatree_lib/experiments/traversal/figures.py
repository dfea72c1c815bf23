"""Figures of gains of one rule over another: dots with intervals beside published ones, and gain against acceptance.

As in `charts`, every function takes rows and names of columns, and published values are drawn hollow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ...plots import theme
from ...plots.iterations import error_bars
from ...plots.rows import Row, span

LINE_HEIGHT = 46  # px for one label
MEASURED = ("circle", "diamond")
PUBLISHED = ("square-open", "triangle-up-open")


def gain_panels(
    rows: Sequence[Row],
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
    """One panel per value of `panel`, one line per `label`, and on it a mark with its interval for each kind of gain.

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
    panels, labels = span(rows, panel), span(rows, label)
    names = [theme.escaped(str(name)) for name in panels]
    drawn = make_subplots(cols=len(panels), shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=names)
    kinds = [*zip(measured.items(), MEASURED, strict=False), *zip(published.items(), PUBLISHED, strict=False)]
    step = 0.8 / len(kinds)
    for column, name in enumerate(panels, start=1):
        for number, (((kind, key), symbol), color) in enumerate(zip(kinds, theme.SERIES_COLORS, strict=False)):
            mine = [row for row in rows if row[panel] == name and row.get(key) is not None]
            offset = (number - (len(kinds) - 1) / 2) * step
            mark = _marks(mine, key, [labels.index(row[label]) + offset for row in mine], symbol, color)
            mark.update(name=kind, legendgroup=kind, showlegend=column == 1, text=[str(row[label]) for row in mine])
            drawn.add_trace(mark, row=1, col=column)
        if band is not None:  # after the marks: plotly leaves shapes out of a panel that is still empty
            drawn.add_vrect(*band, fillcolor=theme.GRID, opacity=0.7, line_width=0, layer="below", row=1, col=column)
        drawn.add_vline(0, line={"color": theme.INK, "width": 1}, row=1, col=column)
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), margin_t=120, legend_y=1.06)
    drawn.update_layout(height=190 + LINE_HEIGHT * len(labels))
    drawn.update_xaxes(title_text=theme.escaped(unit), range=limits, dtick=10)
    texts = [theme.escaped(str(name)) for name in labels]
    drawn.update_yaxes(tickvals=list(range(len(labels))), ticktext=texts, range=[len(labels) - 0.4, -0.6])
    return drawn.update_yaxes(showgrid=False, ticksuffix="  ")


def _marks(rows: Sequence[Row], key: str, places: Sequence[float], symbol: str, color: str) -> go.Scatter:
    bars = error_bars([row[key] for row in rows], [row.get(f"{key}_interval") for row in rows])
    return go.Scatter(
        x=[row[key] for row in rows],
        y=places,
        error_x=None if bars is None else {**bars, "color": color, "width": 3, "thickness": 1.5},
        mode="markers",
        marker={"size": 9, "color": color, "symbol": symbol, "line": {"width": 2, "color": color}},
        hovertemplate="%{text}: %{x:.1f} %<extra>%{fullData.name}</extra>",
    )


def gain_plane(
    rows: Sequence[Row],
    published: Sequence[Row] = (),
    *,
    x: str = "token_level",
    series: str = "series",
    own: str = "own",
    title: str = "",
    x_title: str = "tokens per iteration of token-level verification",
) -> go.Figure:
    """Gain over acceptance: a line for each series of measured rows, published cells as hollow marks.

    Args:
        rows: with `gain`, `gain_interval`, the columns `x`, `series`, and `own`, true for rows to ring.
        published: with `gain`, `x`, `series` and `text`.
        x: column of the horizontal axis.
        series: column that tells lines, or kinds of marks, apart.
        own: column that says which rows to ring.
        title: above the figure.
        x_title: of the horizontal axis.
    """
    drawn = theme.figure(title, x=x_title, y="gain of traversal, %", height=470)
    names: list[Any] = [*span(rows, series), *span(published, series)]
    colors = theme.series_colors(names)
    for name in span(rows, series):
        mine = sorted((row for row in rows if row[series] == name), key=lambda row: row[x])
        bars = error_bars([row["gain"] for row in mine], [row["gain_interval"] for row in mine])
        drawn.add_scatter(
            x=[row[x] for row in mine],
            y=[row["gain"] for row in mine],
            error_y=None if bars is None else {**bars, "color": colors[name], "thickness": 1.2},
            mode="lines+markers",
            name=theme.escaped(str(name)),
            line={"color": colors[name]},
            marker={"size": 8},
        )
    ringed = [row for row in rows if row.get(own)]
    if ringed:
        ring = {"size": 17, "symbol": "circle-open", "color": theme.INK, "line": {"width": 1.6}}
        places = {"x": [row[x] for row in ringed], "y": [row["gain"] for row in ringed]}
        drawn.add_scatter(**places, mode="markers", marker=ring, name="the pair's own draft", hoverinfo="skip")
    for name, symbol in zip(span(published, series), PUBLISHED, strict=False):
        mine = [row for row in published if row[series] == name]
        drawn.add_scatter(
            x=[row[x] for row in mine],
            y=[row["gain"] for row in mine],
            text=[row["text"] for row in mine],
            mode="markers",
            name=theme.escaped(str(name)),
            marker={"size": 9, "symbol": symbol, "color": colors[name], "line": {"width": 2}},
            hovertemplate="%{text}: %{x:.2f}, %{y:.1f} %<extra>%{fullData.name}</extra>",
        )
    drawn.add_hline(y=0, line={"color": theme.INK, "width": 1})
    return drawn
