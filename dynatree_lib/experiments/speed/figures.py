"""Pictures of speed: what bounds a forward, what rows cost, how cost grows, and where the time of an iteration goes.

Rows come from `bench.growth`, the summaries of `bench.metrics` and the traced events of `bench.records`; nothing is
measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ...plots import theme
from ...plots.charts import stacked_bars, sweep_lines
from ...plots.iterations import error_bars
from ...plots.rows import Row, span

PARTS = {"draft": "#0072b2", "verify": "#d55e00", "host": "#b5b5b5"}
"""Colours of an iteration's parts: forwards of the draft, of the target, and everything else."""
LIMIT = {"color": theme.INK, "dash": "dash", "width": 1.6}
COSTS = (1, 2, 4, 8)
"""Costs of an iteration that `bound_plane` draws lines for."""


def roofline(
    rows: Sequence[Row], limits: Mapping[str, float], series: str = "model", *, title: str = "", what: str = ""
) -> go.Figure:
    """Rows per second of a forward over the rows it scores, below the machine's two ceilings.

    Args:
        rows: of `growth.forward_times`: `rows`, `milliseconds`, and the column `series`.
        limits: of `bandwidth.ceilings`: `memory` and `compute` in rows per second, `flop_per_byte` of one row.
        series: column that tells the lines apart.
        title: above the figure.
        what: model and machine, for the horizontal axis.
    """
    places = sorted({row["rows"] for row in rows})
    unit = f"arithmetic intensity: {limits['flop_per_byte']:g} FLOP/byte per row" + (f"; {what}" if what else "")
    title = title or "Few rows wait for memory, many for arithmetic"
    speeds = [{**row, "speed": 1000 * row["rows"] / row["milliseconds"]} for row in rows]
    drawn = sweep_lines(speeds, "rows", "speed", series, title=title, log_x=True, y_title="rows per second")
    drawn.update_xaxes(title_text=theme.escaped(f"rows scored in one forward ({unit})"))
    knee = min(max(limits["compute"] / limits["memory"], places[0]), places[-1])
    slope = [min(limits["memory"] * place, limits["compute"]) for place in (places[0], knee)]
    name = "limit of memory: weights and cache read once per forward"
    drawn.add_scatter(x=[places[0], knee], y=slope, mode="lines", line=LIMIT, name=name, hoverinfo="skip")
    if knee < places[-1]:
        flat, line = [limits["compute"]] * 2, {**LIMIT, "dash": "dot"}
        drawn.add_scatter(x=[knee, places[-1]], y=flat, mode="lines", line=line, name="of arithmetic", hoverinfo="skip")
    drawn.update_yaxes(type="log", dtick="D2")
    return drawn.update_layout(height=480, legend_traceorder="normal")


def _note(drawn: go.Figure, x: float, y: float, text: str, shift: int, anchor: str = "left") -> None:
    """Text at a place of a figure whose axes are both logarithmic."""
    drawn.add_annotation(
        x=math.log10(x), y=math.log10(y), text=text, showarrow=False, yshift=shift, xanchor=anchor, font_size=13
    )


def bound_plane(rows: Sequence[Row], bound: float, *, title: str = "") -> go.Figure:
    """Tokens per second over tokens per iteration of each method, with the speed that memory allows plain decoding.

    On the line marked k an iteration takes as long as k tokens of plain decoding at the bandwidth bound: a method is
    fast by keeping tokens (to the right) or by cheap iterations (towards the line marked 1).

    Args:
        rows: summaries as in the JSON of `dynatree bench`: `label`, `method`, `tokens_per_iteration`,
            `tokens_per_second` and its `..._interval`.
        bound: tokens per second of plain decoding at the bound (`bandwidth.tokens_per_second` there).
        title: above the figure.
    """
    title = title or "Speed is tokens per iteration over what an iteration costs"
    drawn = theme.figure(title, x="tokens per iteration", y="tokens per second", height=520)
    furthest = 1.25 * max(row["tokens_per_iteration"] for row in rows)
    for cost in COSTS:
        ends, line = [0.9, furthest], LIMIT if cost == 1 else {"color": "#b5b5b5", "dash": "dot", "width": 1.3}
        heights = [bound * place / cost for place in ends]
        drawn.add_scatter(x=ends, y=heights, mode="lines", line=line, showlegend=False, hoverinfo="skip")
        _note(drawn, furthest, heights[1], f"{cost} steps at the bound" if cost > 1 else "1 step at the bound", 0)
    names = [str(row.get("method", row["label"])) for row in rows]
    colors, symbols = theme.series_colors(names), theme.series_symbols(names)
    for row, name in zip(rows, names, strict=True):
        speed = row["tokens_per_second"]
        drawn.add_scatter(
            x=[row["tokens_per_iteration"]], y=[speed], mode="markers", name=theme.escaped(row["label"]),
            error_y=error_bars([speed], [row.get("tokens_per_second_interval")]),
            marker={"size": 12, "color": colors[name], "symbol": symbols[name]},
        )  # fmt: skip
    drawn.update_xaxes(
        type="log", tickvals=[1, 2, 3, 4, 5, 6, 8, 10, 15, 20], range=[math.log10(0.88), math.log10(furthest)]
    )
    drawn.update_yaxes(type="log", dtick="D2")
    legend = {"orientation": "v", "x": 1.2, "y": 1, "xanchor": "left", "yanchor": "top"}
    return drawn.update_layout(legend=legend, margin={"t": 60, "r": 60})


def engine_curves(
    rows: Sequence[Row], bound: float | None = None, series: str = "model", *, title: str = ""
) -> go.Figure:
    """Milliseconds of a forward over its rows, one line per engine; both axes logarithmic.

    Args:
        rows: of `growth.forward_times`.
        bound: milliseconds that reading weights and cache takes at the measured bandwidth, or None.
        series: column that tells the lines apart.
        title: above the figure.
    """
    drawn = sweep_lines(
        rows, "rows", "milliseconds", series, interval="interval", title=title or "The same forward by engine",
        x_title="rows scored in one forward", y_title="milliseconds", log_x=True, reference=bound,
    )  # fmt: skip
    times = [row["milliseconds"] for row in rows]
    if bound is not None:
        _note(drawn, max(row["rows"] for row in rows), bound, "reading weights and cache once", 12, "right")
        times.append(bound)
    ends = [math.log10(min(times) / 1.4), math.log10(1.4 * max(times))]
    return drawn.update_yaxes(type="log", dtick="D2", range=ends)


def cost_growth(rows: Sequence[Row], x: str, whole: str = "iteration", *, title: str = "", note: str = "") -> go.Figure:
    """What an iteration takes as work grows beside the model's own forward, and their difference in a second panel.

    Args:
        rows: of `growth.growth` or `growth.level_growth`.
        x: "prefix", "nodes" or "width".
        whole: "iteration", or "level".
        title: above the figure.
        note: in the second panel, for example what `growth.flatness` found.
    """
    drawn = make_subplots(
        cols=2, horizontal_spacing=0.12, subplot_titles=[f"{whole} and forward", "overhead, on its own scale"]
    )
    title = title or f"One {whole} as {_GROWS[x]} grows: the forward's share, and the loop's"
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=440)
    colors = {whole: theme.SERIES_COLORS[0], "forward": theme.SERIES_COLORS[1], "overhead": theme.SERIES_COLORS[2]}
    names = {whole: f"one {whole} of the loop", "forward": "the forward alone", "overhead": "their difference"}
    for column, name in ((1, whole), (1, "forward"), (2, "overhead")):
        mine = sorted(rows, key=lambda row: row[x])
        values = [row[name] for row in mine]
        drawn.add_scatter(
            x=[row[x] for row in mine], y=values, row=1, col=column, mode="lines+markers", name=names[name],
            error_y=error_bars(values, [row[f"{name}_interval"] for row in mine]),
            line={"color": colors[name], "dash": "dash" if name == "forward" else "solid"}, marker={"size": 8},
        )  # fmt: skip
    places = span(sorted(rows, key=lambda row: row[x]), x)
    drawn.update_xaxes(type="log", tickvals=places, ticktext=[str(place) for place in places], title_text=_UNITS[x])
    drawn.update_yaxes(title_text="milliseconds", rangemode="tozero")
    if note:
        drawn.add_annotation(
            x=0.5, y=0.04, xref="x2 domain", yref="y2 domain", yanchor="bottom", showarrow=False,
            text=theme.escaped(note), font={"size": 13, "color": theme.MUTED},
        )  # fmt: skip
    return drawn.update_layout(margin_t=120, legend_y=1.1)


_UNITS = {"prefix": "tokens of the text", "nodes": "nodes of the tree (rows)", "width": "nodes of the level"}
_GROWS = {"prefix": "the text", "nodes": "the tree", "width": "the level"}


def iteration_timeline(
    events: Mapping[str, Sequence[Sequence[Any]]], step: float, *, after: int = 2, steps: float = 8.0, title: str = ""
) -> go.Figure:
    """What runs when, for several methods on one axis: draft levels, target forwards, and the host between them.

    Every method begins at the end of one of its iterations. Where an iteration ends, the tokens it committed.

    Args:
        events: label -> events of a traced run (`records.Split.events`).
        step: seconds of a greedy step, the unit of the axis.
        after: iterations to leave out; the first reads the prompt.
        steps: length of the axis, in greedy steps.
        title: above the figure.

    Raises:
        ValueError: for a method with no more iterations than are left out.
    """
    title = title or "Iterations on one clock: forwards and what lies between them"
    drawn = theme.figure(title, x="greedy steps of hf-generate", height=170 + 62 * len(events), barmode="overlay")
    bars: dict[str, list[tuple[str, float, float, str]]] = {part: [] for part in ("host", "draft", "verify")}
    for label, mine in events.items():
        commits = [(end / step, count) for role, _, end, count in mine if role == "commit"]
        if len(commits) <= after:
            raise ValueError(f"The traced run of '{label}' has {len(commits)} iterations; leave out fewer.")
        begin = commits[after - 1][0] if after else 0.0
        last = min(steps, commits[-1][0] - begin)
        bars["host"].append((label, 0.0, last, ""))
        for role, start, end, rows in mine:
            if role in _ROLES and begin * step <= start < (begin + last) * step:
                place = start / step - begin
                bars[_ROLES[role]].append((label, place, min(end / step - begin, last) - place, f"{rows} rows"))
        for place, count in ((at - begin, count) for at, count in commits[after:] if at - begin <= last):
            _mark(drawn, label, place, count)
    for part, each in bars.items():
        drawn.add_bar(
            y=[label for label, *_ in each], base=[start for _, start, _, _ in each], width=0.5, orientation="h",
            x=[length for *_, length, _ in each], hovertext=[text for *_, text in each], name=_NAMES[part],
            marker={"color": PARTS[part], "line": {"color": "#ffffff", "width": 0 if part == "host" else 0.6}},
        )  # fmt: skip
    drawn.update_xaxes(range=[0, 1.01 * steps])
    drawn.update_yaxes(
        autorange="reversed", showgrid=False, ticksuffix="  ", categoryorder="array", categoryarray=[*events]
    )
    return drawn.update_layout(legend_traceorder="normal")


_ROLES = {"draft": "draft", "target": "verify"}
_NAMES = {"host": "host", "draft": "a level of the draft", "verify": "the target's forward"}


def _mark(drawn: go.Figure, label: str, place: float, count: int) -> None:
    """The tokens that an iteration committed, above its end."""
    text = f"+{count}"
    drawn.add_annotation(x=place, y=label, text=text, showarrow=False, yshift=24, font={"size": 12}, xanchor="right")
    drawn.add_scatter(
        x=[place], y=[label], mode="markers", showlegend=False, hoverinfo="skip",
        marker={"symbol": "line-ns-open", "size": 34, "color": theme.INK, "line_width": 1.4},
    )  # fmt: skip


def iteration_parts(rows: Sequence[Row], *, title: str = "") -> go.Figure:
    """What an iteration of each method costs in greedy steps, split into drafting, verification and the host.

    Args:
        rows: summaries as in the JSON of `dynatree bench`, with `label`, `iteration_cost` and `split`; methods without
            a traced run are left out. The height is the timed runs', the split the traced ones'.
        title: above the figure.
    """
    found = [
        {"method": row["label"], **{part: row["split"][part] * row["iteration_cost"] for part in PARTS}}
        for row in rows
        if row.get("split") and row.get("iteration_cost")
    ]
    title = title or "Where an iteration's time goes"
    drawn = stacked_bars(found, list(PARTS), title=title, unit="greedy steps of hf-generate per iteration")
    for trace, color in zip(drawn.data, PARTS.values(), strict=True):
        trace.update(marker_color=color, text=[f"{value:.2f}" if value >= 0.05 else "" for value in trace.x])
    return drawn
