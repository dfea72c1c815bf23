"""Several pictures in one: trees from the same place in a text, bars of several workloads; and iterations as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ..decoding import Iteration
from . import theme
from .charts import Published, bars_with_intervals
from .rows import Row, span
from .trees import LEVEL_WIDTH, ROW_HEIGHT, draft_tree

HEADING = 1.3  # rows of height that a heading takes


def stacked_trees(iterations: Mapping[str, Iteration], tokenizer: Any = None, *, title: str = "") -> go.Figure:
    """One iteration of several methods below each other, for example all from the same place in a text.

    Args:
        rounds: heading -> iteration; drawn from top to bottom.
        tokenizer: shows token text instead of numbers.
        title: above the figure.
    """
    drawn, top, levels, shown = theme.figure(title), 0.0, 4.0, set()
    for heading, one in iterations.items():
        part = draft_tree(one, tokenizer)
        forwards = f"{one.committed} {'token' if one.committed == 1 else 'tokens'} committed by one target forward"
        text = f"<b>{theme.escaped(heading)}</b>: {len(one.tree) - 1} drafted, {forwards}"
        drawn.add_annotation(x=0, y=top, text=text, showarrow=False, xanchor="left", font_size=14)
        top += HEADING
        for trace in part.data:
            trace.update(y=[None if y is None else y + top for y in trace.y])
            if trace.showlegend is not False:
                trace.update(showlegend=trace.name not in shown, legendgroup=trace.name)
                shown.add(trace.name)
            drawn.add_trace(trace)
        for note in part.layout.annotations:
            drawn.add_annotation(note.update(y=note.y + top))
        top += part.layout.yaxis.range[0] + HEADING / 2
        levels = max(levels, part.layout.xaxis.range[1])
    drawn.update_xaxes(visible=False, range=[-0.08, levels])
    drawn.update_yaxes(visible=False, range=[top - HEADING / 2, -0.8])
    drawn.update_layout(height=round(ROW_HEIGHT * (top + 0.3)) + 110, hovermode="closest", legend_itemsizing="constant")
    if levels > 7:
        drawn.update_layout(width=round(LEVEL_WIDTH * levels) + 40)
    return drawn.update_layout(margin={"l": 10, "r": 10, "t": 95, "b": 10})


def bars_by_panel(
    rows: Sequence[Row],
    value: str,
    interval: str | None = None,
    panel: str = "dataset",
    published: Mapping[Any, Published] | None = None,
    *,
    title: str = "",
    unit: str = "",
    reference: float | None = None,
) -> go.Figure:
    """`bars_with_intervals` side by side, one panel per value of the column `panel`, over the same methods.

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
    names = span(rows, panel)
    drawn = make_subplots(
        cols=len(names), shared_yaxes=True, horizontal_spacing=0.05, subplot_titles=[str(name) for name in names]
    )
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), barmode="group")
    for column, name in enumerate(names, start=1):
        mine = [row for row in rows if row[panel] == name]
        theirs = None if published is None else published.get(name)
        part = bars_with_intervals(mine, value, interval, published=theirs, unit=unit, reference=reference)
        axis = "" if column == 1 else str(column)
        for trace in part.data:
            trace.update(xaxis=f"x{axis}", yaxis=f"y{axis}", showlegend=column == 1, legendgroup=trace.name)
            drawn.add_trace(trace)
        for note in part.layout.annotations:
            drawn.add_annotation(note.update(xref=f"x{axis}", yref=f"y{axis}"))
        for shape in part.layout.shapes:
            drawn.add_shape(shape.update(xref=f"x{axis}", yref=f"y{axis} domain"))
        drawn.update_xaxes(title_text=theme.escaped(unit or value), range=[0, _highest(part)], col=column)
        drawn.update_layout(height=part.layout.height + 30)
    drawn.update_yaxes(autorange="reversed", showgrid=False, type="category")
    drawn.update_yaxes(ticksuffix="  ", col=1)
    return drawn.update_layout(margin_t=120, legend_y=1.06)


def _highest(part: go.Figure) -> float:
    """End of a panel's axis, with room for the numbers written behind the bars."""
    ends = [note.x for note in part.layout.annotations]
    return 1.22 * max(ends, default=1.0)


def iteration_rows(iterations: Sequence[Iteration]) -> list[Row]:
    """One row per iteration: `iteration`, `committed` tokens, drafted `nodes`, drafted `levels`, and what the drafter
    reported of its state before it."""
    return [
        {
            "iteration": number,
            "committed": one.committed,
            "nodes": len(one.tree) - 1,
            "levels": one.tree.depth,
            **one.adaptation,
        }
        for number, one in enumerate(iterations)
    ]
