"""A map of what is best where: over two quantities, the name of the best in each cell, coloured by a ratio."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from plotly import graph_objects as go

from ...plots import theme
from ...plots.rows import Row

BETTER = "#1b7f79"
WORSE = "#b35806"
"""Ends of the scale: ratios above and below 1."""


def best_map(
    rows: Sequence[Row],
    x: str,
    y: str,
    name: str = "best",
    value: str = "ratio",
    text: str = "text",
    holds: str = "holds",
    *,
    title: str = "",
    unit: str = "",
    labels: Mapping[str, str] | None = None,
) -> go.Figure:
    """Each cell names its best entry, with a ratio and its interval below; pale where the interval includes 1.

    Args:
        rows: one per cell.
        x: column of the horizontal axis, ascending.
        y: column of the vertical axis, ascending upwards.
        name: column with the name of the best.
        value: column with a ratio; it colours the cell on a logarithmic scale around 1.
        text: column with the ratio and its interval as text.
        holds: column that is None where the interval includes 1: the cell stays white.
        title: above the figure.
        unit: title of the colour bar.
        labels: longer titles of the axes, by column.
    """
    across, up = sorted({row[x] for row in rows}), sorted({row[y] for row in rows})
    found = {(row[x], row[y]): row for row in rows}
    shown = [[found.get((a, b)) for a in across] for b in up]
    top = max((abs(math.log(row[value])) for row in rows), default=0.0) or 1.0
    drawn = theme.figure(title, height=170 + 74 * len(up), margin={"t": 60, "b": 60})
    drawn.add_heatmap(
        z=[
            [None if row is None else math.log(row[value]) if row[holds] is not None else 0.0 for row in line]
            for line in shown
        ],
        x=[f"{a:g}" for a in across],
        y=[f"{b:g}" for b in up],
        text=[["" if row is None else _words(row, name, text) for row in line] for line in shown],
        texttemplate="%{text}",
        textfont={"size": 12, "color": theme.INK},
        hovertemplate=f"{x} %{{x}}, {y} %{{y}}: %{{text}}<extra></extra>",
        zmin=-top,
        zmax=top,
        colorscale=[(0, WORSE), (0.5, "#ffffff"), (1, BETTER)],
        opacity=0.75,
        xgap=3,
        ygap=3,
        colorbar=_bar(unit or value, top),
    )
    drawn.update_xaxes(title_text=theme.escaped((labels or {}).get(x, x)), type="category", showgrid=False)
    drawn.update_yaxes(title_text=theme.escaped((labels or {}).get(y, y)), type="category", showgrid=False)
    return drawn.update_yaxes(ticks="", ticksuffix=" ")


def _words(row: Row, name: str, text: str) -> str:
    first, _, second = str(row[name]).partition(" + ")
    return "<br>".join(
        [f"<b>{theme.escaped(first)}</b>", *([f"+ {theme.escaped(second)}"] if second else []), row[text]]
    )


def _bar(unit: str, top: float) -> dict[str, object]:
    many = (0.25, 0.5, 0.7, 1, 1.4, 2, 3, 4) if top > 0.5 else (0.6, 0.7, 0.8, 0.9, 1, 1.1, 1.2, 1.4, 1.6)
    marks = [mark for mark in many if abs(math.log(mark)) <= top]
    return {
        "title": {"text": unit},
        "tickvals": [math.log(mark) for mark in marks],
        "ticktext": [f"{m:g}" for m in marks],
    }
