"""Methods beside each other: what an iteration commits against what it costs, and speeds by kind of task.

They draw rows of `bench.chooser`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Mapping, Sequence

from plotly import graph_objects as go

from dynatree_lib.plots import theme

from ..bench.chooser import GROUPS, front, speed_of
from . import look
from .charts import Row, error_bars

SPEEDS = (1.0, 1.5, 2.0)
"""Speeds over plain decoding for which `method_plane` draws a line."""
LOWEST = 0.75
"""Where both axes of `method_plane` begin."""
LONGEST = 14
"""Characters of options beside a point of `method_plane`."""
TICKS = (0.8, 1, 1.2, 1.5, 2, 2.5, 3, 4, 5, 6, 8, 10, 15, 20)
COLORS = dict(zip(GROUPS, ("#666666", "#0072b2", "#d55e00"), strict=True))


def method_plane(rows: Sequence[Row], title: str = "What an iteration commits, and what it costs") -> go.Figure:
    """Draw tokens per iteration over the cost of an iteration, with the front and lines of equal speed.

    Args:
        rows: of `chooser.map_rows`, of one run and kind.
        title: above the figure.
    """
    axes = {"x": "cost of an iteration, in steps of plain decoding", "y": "tokens per iteration"}
    drawn = theme.figure(title, height=520, **axes)
    widest, highest = (1.3 * max(row[name] for row in rows) for name in ("cost", "tokens"))
    for speed in SPEEDS:
        ends = LOWEST * max(1.0, 1 / speed), min(widest, highest / speed)
        line = {"color": "#999999", "dash": "dot", "width": 1.3}
        heights = [speed * end for end in ends]
        drawn.add_scatter(x=ends, y=heights, mode="lines", line=line, showlegend=False, hoverinfo="skip")
        place = {"x": math.log10(ends[1]), "y": math.log10(heights[1])}  # annotations count in powers on such axes
        drawn.add_annotation(**place, text=f"{speed:g} x plain", showarrow=False, xanchor="right", yanchor="bottom")
    best = front(rows)
    costs, tokens = ([row[name] for row in best] for name in ("cost", "tokens"))
    line = {"color": theme.INK, "width": 1.5, "shape": "hv"}
    drawn.add_scatter(x=costs, y=tokens, mode="lines", line=line, name="front", hoverinfo="skip")
    ahead = {row["method"] for row in best}  # nothing lies to their left
    names = short_names([row["method"] for row in rows])
    places = label_places(rows, names, ahead, (widest, 1.05 * highest))
    for group, color in COLORS.items():
        some = [row for row in rows if row["group"] == group]
        if some:
            drawn.add_scatter(
                x=[row["cost"] for row in some], y=[row["tokens"] for row in some], mode="markers+text", name=group,
                text=[f" {theme.escaped(names[row['method']])} " for row in some],
                textposition=[places[row["method"]] for row in some],
                hovertext=[f"{theme.escaped(row['method'])}: {speed_of(row)} x plain" for row in some],
                hoverinfo="text", marker={"size": 10, "color": color}, textfont={"size": 11},
            )  # fmt: skip
    ticks = {"type": "log", "tickvals": TICKS, "ticktext": [f"{tick:g}" for tick in TICKS]}
    drawn.update_xaxes(range=[math.log10(LOWEST), math.log10(widest)], **ticks)
    drawn.update_yaxes(range=[math.log10(LOWEST), math.log10(1.05 * highest)], **ticks)
    return drawn.update_layout(legend_y=1.05, margin_t=105)  # names of lines stand between plot and legend


def label_places(
    rows: Sequence[Row], names: Mapping[str, str], ahead: Collection[str], ends: tuple[float, float]
) -> dict[str, str]:
    """Return where each method's label stands: beside, above or below its point, as far as possible over no other.

    Args:
        rows: of one run and kind.
        names: method -> label.
        ahead: methods of the front, whose labels stand to the left where they can.
        ends: of the two axes.
    """
    size = (700.0, 350.0)  # pixels of the plot, about
    spans = [math.log(end / LOWEST) for end in ends]
    points = {
        row["method"]: tuple(
            pixels * math.log(row[name] / LOWEST) / span
            for pixels, span, name in zip(size, spans, ("cost", "tokens"), strict=True)
        )
        for row in rows
    }
    taken = [(x - 6, y - 6, x + 6, y + 6) for x, y in points.values()]
    places = {}
    for method in sorted(points, key=lambda method: method not in ahead):
        (x, y), wide = points[method], 6.2 * len(names[method]) + 8
        boxes = {
            "middle right": (x + 7, y - 7, x + 7 + wide, y + 7), "middle left": (x - 7 - wide, y - 7, x - 7, y + 7),
            "top center": (x - wide / 2, y + 7, x + wide / 2, y + 21),
            "bottom center": (x - wide / 2, y - 21, x + wide / 2, y - 7),
        }  # fmt: skip
        order = ("middle left", "top center", "bottom center", "middle right")
        order = order if method in ahead else ("middle right", "top center", "bottom center", "middle left")
        inside = [place for place in order if boxes[place][0] >= 0 and boxes[place][2] <= size[0]]
        covered = {place: sum(_overlap(boxes[place], one) for one in taken) for place in inside or order[:1]}
        places[method] = min(covered, key=lambda place: covered[place])  # the first of those that cover nothing
        taken.append(boxes[places[method]])
    return places


def _overlap(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the area that two boxes share."""
    wide, high = (min(first[side + 2], second[side + 2]) - max(first[side], second[side]) for side in (0, 1))
    return max(wide, 0.0) * max(high, 0.0)


def short_names(labels: Sequence[str]) -> dict[str, str]:
    """Return each label as a figure shows it: its method, with the options where several labels have that method."""
    methods = Counter(label.partition(":")[0] for label in labels)
    names = {}
    for label in labels:
        method, _, options = label.partition(":")
        told = options if methods[method] > 1 else ""
        names[label] = f"{method}: {told if len(told) <= LONGEST else told[: LONGEST - 1] + '…'}" if told else method
    return names


def method_speeds(rows: Sequence[Row], title: str = "") -> go.Figure:
    """Draw the speed of each method with its interval by kind of task, one panel for each.

    Args:
        rows: of `chooser.map_rows`, of one run.
        title: above the figure.
    """
    kinds = list(dict.fromkeys(row["kind"] for row in rows))
    methods = [row["method"] for row in sorted((row for row in rows if row["kind"] == kinds[0]), key=_by_speed)]
    parts = []
    for kind in kinds:
        part = theme.figure()
        for group, color in COLORS.items():
            some = [row for row in rows if (row["kind"], row["group"]) == (kind, group)]
            part.add_scatter(
                x=[row["speed"] for row in some], y=[row["method"] for row in some], mode="markers", name=group,
                marker={"color": color, "size": 8},
                error_x=error_bars([row["speed"] for row in some], [row["interval"] for row in some]),
            )  # fmt: skip
        part.add_vline(x=1, line=look.REFERENCE)
        parts.append(part)
    drawn = look.panels(kinds, parts, len(kinds), title, shared_yaxes=True, horizontal_spacing=0.03)
    drawn.update_yaxes(categoryorder="array", categoryarray=methods, type="category").update_xaxes(matches="x")
    drawn.add_annotation(
        text="speed over plain decoding", x=0.5, y=0, yshift=-52, xref="paper", yref="paper", showarrow=False
    )
    legend = {"y": 1 + 30 / (24 * len(methods)), "yanchor": "bottom"}
    return drawn.update_layout(height=220 + 24 * len(methods), margin={"l": 240, "t": 120, "b": 70}, legend=legend)


def _by_speed(row: Row) -> float:
    return float(row["speed"])
