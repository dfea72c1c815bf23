"""Figures over a length: several quantities of the same methods, one panel each."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from . import theme
from .charts import sweep_lines
from .rows import Row

MOST_TICKS = 6
"""Values that a logarithmic axis of one panel can name without crowding."""


def line_panels(
    rows: Sequence[Row],
    x: str,
    panels: Mapping[str, str],
    series: str = "method",
    published: Sequence[Row] | None = None,
    *,
    title: str = "",
    x_title: str = "",
    log_x: bool = False,
    references: Mapping[str, float] | None = None,
    columns: int = 2,
) -> go.Figure:
    """`sweep_lines` of several columns over the same `x`, one panel each under one legend.

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
    drawn = make_subplots(
        rows=lines,
        cols=columns,
        subplot_titles=[theme.escaped(name) for name in panels.values()],
        vertical_spacing=0.34 / (lines + 1),
        horizontal_spacing=0.09,
    )
    shown: set[str] = set()
    for number, column in enumerate(panels):
        part = sweep_lines(
            rows, x, column, series, published, interval=f"{column}_interval", log_x=log_x,
            reference=(references or {}).get(column),
        )  # fmt: skip
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for trace in part.data:
            if trace.x:
                if trace.error_y.array:
                    trace.error_y.update(color=trace.line.color, thickness=1.2)
                drawn.add_trace(trace.update(showlegend=trace.name not in shown, legendgroup=trace.name), **place)
                shown.add(trace.name)
        for shape in part.layout.shapes:
            drawn.add_hline(y=shape.y0, line=shape.line, **place)
        drawn.update_xaxes(_axis(part, log_x), **place)
    _finish(drawn, title, x_title or x, lines, columns)
    return drawn


def _axis(part: go.Figure, log_x: bool) -> go.layout.XAxis:
    """The axis of a single figure for a panel; on a logarithmic one only as many numbers as stand apart."""
    axis = part.layout.xaxis.update(title_text=None, anchor=None, domain=None)
    places = sorted({place for trace in part.data for place in trace.x or ()})
    if not log_x or len(places) < 2:
        return axis
    round_numbers = [factor * 10**power for power in range(-3, 7) for factor in (1, 2, 5)]
    few = len(places) <= MOST_TICKS
    marked = places if few else [number for number in round_numbers if places[0] <= number <= places[-1]]
    return axis.update(tickvals=marked, ticktext=[f"{number:g}" for number in marked])


def _finish(drawn: go.Figure, title: str, x_title: str, lines: int, columns: int) -> None:
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=150 + 290 * lines)
    drawn.update_annotations(font_size=14)
    for column in range(1, columns + 1):
        drawn.update_xaxes(title_text=theme.escaped(x_title), row=lines, col=column)
    entries = sum(trace.showlegend is True for trace in drawn.data)
    drawn.update_layout(margin_t=105 + 22 * (math.ceil(entries / 6) - 1), legend={"y": 1 + 24 / (290 * lines)})
