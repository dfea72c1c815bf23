"""Figures of rules and drafters compared: gains beside published gains, gain over acceptance, and the best by cell.

As in `charts`, every function takes a table and names of columns, and published values are drawn hollow.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import pandas as pd
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ...measure.statistics import Table
from ...plots import theme
from ...plots.charts import as_rows, error_bars, span, sweep_lines

MEASURED = ("circle", "diamond")
PUBLISHED = ("square-open", "triangle-up-open")


def gain_panels(
    rows: Table,
    measured: Mapping[str, str],
    published: Mapping[str, str],
    *,
    band: tuple[float, float] | None = None,
    title: str = "",
    limits: tuple[float, float] | None = None,
) -> go.Figure:
    """Draw a panel per `tree`, a line per `task`, and on it a mark with its interval for each kind of gain, in %.

    Args:
        rows: one per tree and task. A kind's interval stands in the column `<column>_interval`; a kind without a value
            in a row has no mark there.
        measured: name of a kind -> its column.
        published: the same, drawn hollow.
        band: a range to shade in every panel.
        title: above the figure.
        limits: of the value axes; an interval may reach beyond.
    """
    rows = as_rows(rows)
    trees, tasks = span(rows, "tree"), span(rows, "task")
    titles = [theme.escaped(name) for name in trees]
    drawn = make_subplots(cols=len(trees), shared_yaxes=True, horizontal_spacing=0.04, subplot_titles=titles)
    kinds = [*zip(measured.items(), MEASURED, strict=False), *zip(published.items(), PUBLISHED, strict=False)]
    for column, tree in enumerate(trees, start=1):
        for number, (((kind, key), symbol), color) in enumerate(zip(kinds, theme.SERIES_COLORS, strict=False)):
            marked = [row for row in rows if row["tree"] == tree and row.get(key) is not None]
            values, offset = [row[key] for row in marked], (number - (len(kinds) - 1) / 2) * 0.8 / len(kinds)
            bars = error_bars(values, [row.get(f"{key}_interval") for row in marked])
            drawn.add_scatter(
                x=values,
                y=[tasks.index(row["task"]) + offset for row in marked],
                error_x=None if bars is None else {**bars, "color": color, "width": 3},
                mode="markers",
                marker={"size": 9, "color": color, "symbol": symbol, "line": {"width": 2, "color": color}},
                name=kind,
                text=[row["task"] for row in marked],
                hovertemplate="%{text}: %{x:.1f} %<extra>%{fullData.name}</extra>",
                row=1,
                col=column,
            )
        if band is not None:  # after the marks: plotly leaves shapes out of a panel that is still empty
            drawn.add_vrect(*band, fillcolor=theme.GRID, opacity=0.7, line_width=0, layer="below", row=1, col=column)
        drawn.add_vline(0, line={"color": theme.INK, "width": 1}, row=1, col=column)
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), margin_t=120, legend_y=1.06)
    drawn.update_layout(height=190 + 46 * len(tasks)).update_xaxes(title_text="gain, %", range=limits, dtick=10)
    texts = [theme.escaped(name) for name in tasks]
    drawn.update_yaxes(tickvals=list(range(len(tasks))), ticktext=texts, range=[len(tasks) - 0.4, -0.6])
    return theme.share_legend(drawn).update_yaxes(showgrid=False, ticksuffix="  ")


def gain_plane(rows: Table, published: Table = (), *, title: str = "") -> go.Figure:
    """Draw gain over acceptance: a line for each `series` of measured rows, published cells as hollow marks.

    Args:
        rows: with `gain`, `gain_interval`, `token_level` (tokens per iteration), `series`, and `own`, true for rows to
            ring.
        published: with `gain`, `token_level`, `series` and `text`.
        title: above the figure.
    """
    measured, cells = pd.DataFrame(rows), pd.DataFrame(published, columns=["token_level", "gain", "text", "series"])
    drawn = sweep_lines(
        rows, "token_level", "gain", "series", interval="gain_interval", title=title,
        x_title="tokens per iteration of token-level verification", y_title="gain of traversal, %",
    )  # fmt: skip
    drawn.for_each_trace(lambda trace: trace.error_y.update(color=trace.line.color))
    ringed = measured[measured["own"].astype(bool)]
    if len(ringed):
        ring = {"size": 17, "symbol": "circle-open", "color": theme.INK, "line": {"width": 1.6}}
        look = {"mode": "markers", "marker": ring, "name": "the pair's own draft", "hoverinfo": "skip"}
        drawn.add_scatter(x=ringed["token_level"], y=ringed["gain"], **look)
    colors = theme.series_colors([*measured["series"], *cells["series"]])
    for (name, marked), symbol in zip(cells.groupby("series", sort=False), PUBLISHED, strict=False):
        marker = {"size": 9, "symbol": symbol, "color": colors[name], "line": {"width": 2}}
        hover = "%{text}: %{x:.2f}, %{y:.1f} %<extra>%{fullData.name}</extra>"
        look = {"mode": "markers", "marker": marker, "name": theme.escaped(name), "hovertemplate": hover}
        drawn.add_scatter(x=marked["token_level"], y=marked["gain"], text=marked["text"], **look)
    return drawn.add_hline(y=0, line={"color": theme.INK, "width": 1}).update_layout(height=470)


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
    cells = pd.DataFrame(rows)
    logs = np.log(cells["ratio"])
    top = logs.abs().max() or 1.0
    wide, narrow = [0.25, 0.5, 0.7, 1, 1.4, 2, 3, 4], [0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6]
    marks = [mark for mark in (wide if top > 0.5 else narrow) if abs(math.log(mark)) <= top]
    ticks = {"tickvals": [math.log(mark) for mark in marks], "ticktext": [f"{mark:g}" for mark in marks]}
    names = cells["best"].map(theme.escaped).str.partition(" + ")
    rules = ("<br>+ " + names[2]).where(names[1] != "", "")
    cells["words"] = "<b>" + names[0] + "</b>" + rules + "<br>" + cells["text"]
    cells["color"] = logs.where(cells["holds"].notna(), 0.0)
    grid = cells.pivot(index=y, columns=x)
    drawn = theme.figure(title, x=x, y=y_title or y, height=170 + 74 * len(grid), margin={"t": 60, "b": 60})
    drawn.add_heatmap(
        z=grid["color"],
        text=grid["words"].fillna(""),
        x=[f"{column:g}" for column in grid["color"].columns],
        y=[f"{line:g}" for line in grid.index],
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
    drawn.update_yaxes(ticks="", ticksuffix=" ").update_xaxes(showgrid=False, type="category")
    return drawn.update_yaxes(showgrid=False, type="category")
