"""Figures of sensitivity: settings of two parameters coloured by speed, and dots with intervals beside other values.

As in `charts`, every function takes rows and names of columns, and published values are drawn hollow.
"""

from __future__ import annotations

from collections.abc import Sequence

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ...plots import theme
from ...plots.rows import Row


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
