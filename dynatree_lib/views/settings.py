"""Figures of sensitivity: settings of two parameters coloured by speed, and dots with intervals beside other values.

As in `charts`, every function takes rows and names of columns, and published values are drawn hollow.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from . import theme
from .rounds import error_bars
from .rows import Row


def setting_scatter(
    rows: Sequence[Row],
    x: str,
    y: str,
    value: str,
    published: Sequence[Row] | None = None,
    *,
    mark: tuple[float, float] | None = None,
    title: str = "",
    unit: str = "",
) -> go.Figure:
    """A sparse grid of settings, one large dot each, coloured by `value` with the number inside; published beside.

    Args:
        rows: one per dot.
        x: column of the horizontal axis.
        y: column of the vertical axis.
        value: column that gives colour and number; both panels share the scale.
        published: rows with the same columns.
        mark: (x, y) of a setting to ring, such as the default.
        title: above the figure.
        unit: title of the colour bar.
    """
    panels = [("measured", list(rows))] + ([] if published is None else [("published", list(published))])
    names = [name for name, _ in panels] if len(panels) > 1 else None
    drawn = make_subplots(cols=len(panels), shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=names)
    for column, (name, side) in enumerate(panels, start=1):
        drawn.add_scatter(
            x=[row[x] for row in side],
            y=[row[y] for row in side],
            text=[f"{row[value]:.2f}" for row in side],
            mode="markers+text",
            textfont={"size": 12, "color": [_readable(row[value], panels, value) for row in side]},
            marker={"size": 40, "color": [row[value] for row in side], "coloraxis": "coloraxis"},
            name=name,
            hovertemplate=f"{x} %{{x}}, {y} %{{y}}: %{{text}}<extra>{name}</extra>",
            row=1,
            col=column,
        )
        if mark is not None:
            ring = {"size": 48, "symbol": "circle-open", "color": theme.INK, "line": {"width": 2}}
            drawn.add_scatter(x=mark[:1], y=mark[1:], mode="markers", marker=ring, hoverinfo="skip", row=1, col=column)
    bar = {"title": {"text": unit or value}}
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=440, showlegend=False)
    drawn.update_layout(coloraxis={"colorscale": "Cividis", "colorbar": bar})
    drawn.update_xaxes(title_text=theme.escaped(x)).update_yaxes(title_text=theme.escaped(y), col=1)
    return drawn


def _readable(number: float, panels: Sequence[tuple[str, Sequence[Row]]], value: str) -> str:
    """White on the dark half of the scale, dark on the light one."""
    drawn = [row[value] for _, side in panels for row in side]
    return "#ffffff" if number < (min(drawn) + max(drawn)) / 2 else theme.INK


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
