"""What runs when in an iteration: the forwards of a traced run on a clock, and the host between them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from plotly import graph_objects as go

from dynatree_lib.plots import theme

PARTS = {"draft": "#0072b2", "verify": "#d55e00", "host": "#b5b5b5"}
"""Colours of an iteration's parts: forwards of the draft, of the target, and everything else."""
EDGES = {"draft": 0.6, "verify": 0.6, "host": 0}
"""Widths of white edges around the bars of these parts."""
ROLES = {"draft": ("draft", "a level of the draft"), "target": ("verify", "the target's forward")}
"""Role of a traced forward -> its part of an iteration, and its name in a legend."""
SHOWN = 3
"""Iterations of the slowest method on an axis whose length is not given."""


def iteration_timeline(
    events: Mapping[str, Sequence[Sequence[Any]]],
    step: float,
    after: int = 2,
    steps: float | None = 8.0,
    unit: str = "greedy steps of hf-generate",
) -> go.Figure:
    """Draw what runs when, for several methods on one axis: draft levels, target forwards, and the host between them.

    Every method begins at the end of one of its iterations. Where an iteration ends, the tokens it committed.

    Args:
        events: label -> events of a traced run (`trace.Trace.events`, `records.Split.events`).
        step: seconds of the axis's unit, by default a greedy step.
        after: iterations to leave out; the first reads the prompt.
        steps: length of the axis, in its unit; None: three iterations of the method whose iterations take longest.
        unit: its name.

    Raises:
        ValueError: without runs, or for a method with no more iterations than are left out.
    """
    if not events:
        raise ValueError("There are no traced runs to draw.")
    title = "Iterations on one clock: forwards and what lies between them"
    drawn = theme.figure(title, x=unit, height=170 + 62 * len(events), barmode="overlay")
    names = {"host": "host", **dict(ROLES.values())}
    bars, marks, ends, begins = [], [], {}, {}
    for label, forwards in events.items():
        ends[label] = [(end / step, count) for role, _, end, count in forwards if role == "commit"]
        if len(ends[label]) <= after:
            raise ValueError(f"The traced run of '{label}' has {len(ends[label])} iterations; leave out fewer.")
        begins[label] = ends[label][after - 1][0] if after else 0.0
    if steps is None:
        steps = max(commits[after:][:SHOWN][-1][0] - begins[label] for label, commits in ends.items())
    for label, forwards in events.items():
        commits, begin = ends[label], begins[label]
        last = min(steps, commits[-1][0] - begin)
        bars.append({"part": "host", "label": label, "start": 0.0, "length": last, "text": ""})
        for role, start, end, count in forwards:
            if role in ROLES and begin * step <= start < (begin + last) * step:
                place = start / step - begin
                bar = {"part": ROLES[role][0], "label": label, "start": place, "text": f"{count} nodes"}
                bars.append({**bar, "length": min(end / step - begin, last) - place})
        marks += [{"x": end - begin, "y": label, "text": f"+{n}"} for end, n in commits[after:] if end - begin <= last]
    for part, name in names.items():
        shown = pd.DataFrame([bar for bar in bars if bar["part"] == part], columns=list(bars[0]))
        drawn.add_bar(
            y=shown["label"], base=shown["start"], x=shown["length"], hovertext=shown["text"], name=name, width=0.5,
            orientation="h", marker={"color": PARTS[part], "line": {"color": "#ffffff", "width": EDGES[part]}},
        )  # fmt: skip
    ticks = pd.DataFrame(marks, columns=["x", "y"])
    line = {"symbol": "line-ns-open", "size": 34, "color": theme.INK, "line_width": 1.4}
    drawn.add_scatter(x=ticks["x"], y=ticks["y"], mode="markers", showlegend=False, hoverinfo="skip", marker=line)
    for mark in marks:  # the tokens that an iteration committed, above its end
        drawn.add_annotation(**mark, showarrow=False, yshift=24, font_size=12, xanchor="right")
    order = {"categoryorder": "array", "categoryarray": [*events]}
    drawn.update_yaxes(autorange="reversed", showgrid=False, ticksuffix="  ", **order)
    return drawn.update_xaxes(range=[0, 1.01 * steps]).update_layout(legend_traceorder="normal")
