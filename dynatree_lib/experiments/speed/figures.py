"""Figures of speed: the limits of a forward, how cost grows, where an iteration's time goes, and what rounding changes.

They draw rows of `cost_growth`, summaries and traced events of the benchmark, and audits of `precision`; nothing is
measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ...plots import theme
from ...plots.charts import error_bars, stacked_bars, sweep_lines

Row = dict[str, Any]
PARTS = {"draft": "#0072b2", "verify": "#d55e00", "host": "#b5b5b5"}
"""Colours of an iteration's parts: forwards of the draft, of the target, and everything else."""
EDGES = {"draft": 0.6, "verify": 0.6, "host": 0}
"""Widths of white edges around the bars of these parts."""
LIMIT = {"color": theme.INK, "dash": "dash", "width": 1.6}
COSTS = (1, 2, 4, 8)
"""Costs of an iteration that `bound_plane` draws lines for."""
SIZES = {
    "prefix": ("tokens of the text", "the text"), "nodes": ("nodes of the tree", "the tree"),
    "width": ("nodes of the level", "the level"),
}  # fmt: skip
"""Column of work that grows -> its unit, and the thing that grows."""
ROLES = {"draft": ("draft", "a level of the draft"), "target": ("verify", "the target's forward")}
"""Role of a traced forward -> its part of an iteration, and its name in a legend."""
GROUPS = {
    "rows": ("ar among other nodes", "#0072b2"),
    "prompt": ("ar, prompt read otherwise", "#56b4e9"),
    "mask": ("ar under a mask", "#999933"),
    "engine": ("ar, other engines", "#009e73"),
    "again": ("ar once more", "#666666"),
    "method": ("methods", "#d55e00"),
}
"""Group of a comparison -> its name in a legend, its colour."""
BINS_PER_DECADE = 3


# ------------------------------------------------------------------------------------------------------------ forwards
def roofline(
    rows: Sequence[Row], limits: Mapping[str, float], series: str = "model", *, title: str = "", setup: str = ""
) -> go.Figure:
    """Draw nodes per second of a forward over the nodes it scores, below the machine's two ceilings.

    Args:
        rows: of `cost_growth.forward_times`: `rows` (nodes scored), `milliseconds`, and the column `series`.
        limits: of `bandwidth.ceilings`: `memory` and `compute` in nodes per second, `flop_per_byte` of one node.
        series: column that tells the lines apart.
        title: above the figure.
        setup: model and machine, for the horizontal axis.
    """
    first, last = (end(row["rows"] for row in rows) for end in (min, max))
    speeds = [{**row, "speed": 1000 * row["rows"] / row["milliseconds"]} for row in rows]
    title = title or "Few nodes wait for memory, many for arithmetic"
    drawn = sweep_lines(speeds, "rows", "speed", series, title=title, log_x=True, y_title="nodes per second")
    unit = f"arithmetic intensity: {limits['flop_per_byte']:g} FLOP/byte per node" + (f"; {setup}" if setup else "")
    drawn.update_xaxes(title_text=theme.escaped(f"nodes scored in one forward ({unit})"))
    knee = min(max(limits["compute"] / limits["memory"], first), last)
    slope = [min(limits["memory"] * place, limits["compute"]) for place in (first, knee)]
    name = "limit of memory: weights and cache read once per forward"
    drawn.add_scatter(x=[first, knee], y=slope, mode="lines", line=LIMIT, name=name, hoverinfo="skip")
    if knee < last:
        flat, line = [limits["compute"]] * 2, {**LIMIT, "dash": "dot"}
        drawn.add_scatter(x=[knee, last], y=flat, mode="lines", line=line, name="of arithmetic", hoverinfo="skip")
    drawn.update_yaxes(type="log", dtick="D2")
    return drawn.update_layout(height=480, legend_traceorder="normal")


def engine_curves(
    rows: Sequence[Row], bound: float | None = None, series: str = "model", *, title: str = ""
) -> go.Figure:
    """Draw milliseconds of a forward over its nodes, one line per engine; both axes logarithmic.

    Args:
        rows: of `cost_growth.forward_times`.
        bound: milliseconds that reading weights and cache takes at the measured bandwidth, or None.
        series: column that tells the lines apart.
        title: above the figure.
    """
    drawn = sweep_lines(
        rows, "rows", "milliseconds", series, interval="interval", title=title or "The same forward by engine",
        x_title="nodes scored in one forward", y_title="milliseconds", log_x=True, reference=bound,
    )  # fmt: skip
    times = [row["milliseconds"] for row in rows]
    if bound is not None:
        _note(drawn, max(row["rows"] for row in rows), bound, "reading weights and cache once", 12, "right")
        times.append(bound)
    ends = [math.log10(min(times) / 1.4), math.log10(1.4 * max(times))]
    return drawn.update_yaxes(type="log", dtick="D2", range=ends)


def _note(drawn: go.Figure, x: float, y: float, text: str, shift: int, anchor: str) -> None:
    """Write text at a place of a figure whose axes are both logarithmic."""
    place = {"x": math.log10(x), "y": math.log10(y), "yshift": shift, "xanchor": anchor}
    drawn.add_annotation(text=text, showarrow=False, font_size=13, **place)


def cost_and_overhead(
    rows: Sequence[Row], x: str, whole: str = "iteration", *, title: str = "", note: str = ""
) -> go.Figure:
    """Draw an iteration's time as work grows beside the model's own forward, and their difference in a second panel.

    Args:
        rows: of `cost_growth.iteration_costs` or `cost_growth.level_costs`.
        x: "prefix", "nodes" or "width".
        whole: "iteration", or "level".
        title: above the figure.
        note: in the second panel, for example the result of `cost_growth.flatness`.
    """
    titles = [f"{whole} and forward", "overhead, on its own scale"]
    drawn = make_subplots(cols=2, horizontal_spacing=0.12, subplot_titles=titles)
    unit, thing = SIZES[x]
    title = title or f"One {whole} as {thing} grows: the forward's share, and the loop's"
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=440)
    rows = sorted(rows, key=lambda row: row[x])
    places = [row[x] for row in rows]
    names = {whole: f"one {whole} of the loop", "forward": "the forward alone", "overhead": "their difference"}
    for (name, shown), column, color in zip(names.items(), (1, 1, 2), theme.SERIES_COLORS, strict=False):
        values = [row[name] for row in rows]
        drawn.add_scatter(
            x=places, y=values, row=1, col=column, mode="lines+markers", name=shown, marker={"size": 8},
            error_y=error_bars(values, [row[f"{name}_interval"] for row in rows]),
            line={"color": color, "dash": "dash" if name == "forward" else "solid"},
        )  # fmt: skip
    drawn.update_xaxes(type="log", tickvals=places, ticktext=[str(place) for place in places], title_text=unit)
    drawn.update_yaxes(title_text="milliseconds", rangemode="tozero")
    if note:
        drawn.add_annotation(
            x=0.5, y=0.04, xref="x2 domain", yref="y2 domain", yanchor="bottom", showarrow=False,
            text=theme.escaped(note), font={"size": 13, "color": theme.MUTED},
        )  # fmt: skip
    return drawn.update_layout(margin_t=120, legend_y=1.1)


# ---------------------------------------------------------------------------------------------------------- iterations
def bound_plane(rows: Sequence[Row], bound: float, *, title: str = "") -> go.Figure:
    """Draw tokens per second over tokens per iteration of each method, with the bound that memory sets plain decoding.

    On the line marked k an iteration takes as long as k tokens of plain decoding at the bandwidth bound: a method is
    fast by accepting tokens (to the right) or by cheap iterations (towards the line marked 1).

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
        _note(drawn, furthest, heights[1], f"{cost} step{'s' * (cost > 1)} at the bound", 0, "left")
    names = [str(row.get("method", row["label"])) for row in rows]
    colors, symbols = theme.series_colors(names), theme.series_symbols(names)
    for row, name in zip(rows, names, strict=True):
        speed = row["tokens_per_second"]
        drawn.add_scatter(
            x=[row["tokens_per_iteration"]], y=[speed], mode="markers", name=theme.escaped(row["label"]),
            error_y=error_bars([speed], [row.get("tokens_per_second_interval")]),
            marker={"size": 12, "color": colors[name], "symbol": symbols[name]},
        )  # fmt: skip
    ticks, ends = [1, 2, 3, 4, 5, 6, 8, 10, 15, 20], [math.log10(0.88), math.log10(furthest)]
    drawn.update_xaxes(type="log", tickvals=ticks, range=ends)
    drawn.update_yaxes(type="log", dtick="D2")
    legend = {"orientation": "v", "x": 1.2, "y": 1, "xanchor": "left", "yanchor": "top"}
    return drawn.update_layout(legend=legend, margin={"t": 60, "r": 60})


def iteration_timeline(
    events: Mapping[str, Sequence[Sequence[Any]]], step: float, *, after: int = 2, steps: float = 8.0, title: str = ""
) -> go.Figure:
    """Draw what runs when, for several methods on one axis: draft levels, target forwards, and the host between them.

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
    names = {"host": "host", **dict(ROLES.values())}
    bars: list[Row] = []
    for label, forwards in events.items():
        commits = [(end / step, count) for role, _, end, count in forwards if role == "commit"]
        if len(commits) <= after:
            raise ValueError(f"The traced run of '{label}' has {len(commits)} iterations; leave out fewer.")
        begin = commits[after - 1][0] if after else 0.0
        last = min(steps, commits[-1][0] - begin)
        bars.append({"part": "host", "label": label, "start": 0.0, "length": last, "text": ""})
        for role, start, end, count in forwards:
            if role in ROLES and begin * step <= start < (begin + last) * step:
                place = start / step - begin
                bar = {"part": ROLES[role][0], "label": label, "start": place, "text": f"{count} nodes"}
                bars.append({**bar, "length": min(end / step - begin, last) - place})
        for end, count in commits[after:]:
            if end - begin <= last:
                _mark(drawn, label, end - begin, count)
    for part, name in names.items():
        shown = pd.DataFrame([bar for bar in bars if bar["part"] == part], columns=list(bars[0]))
        drawn.add_bar(
            y=shown["label"], base=shown["start"], x=shown["length"], hovertext=shown["text"], name=name, width=0.5,
            orientation="h", marker={"color": PARTS[part], "line": {"color": "#ffffff", "width": EDGES[part]}},
        )  # fmt: skip
    drawn.update_xaxes(range=[0, 1.01 * steps])
    order = {"categoryorder": "array", "categoryarray": [*events]}
    drawn.update_yaxes(autorange="reversed", showgrid=False, ticksuffix="  ", **order)
    return drawn.update_layout(legend_traceorder="normal")


def _mark(drawn: go.Figure, label: str, place: float, count: int) -> None:
    """Write the tokens that an iteration committed above its end."""
    text = f"+{count}"
    drawn.add_annotation(x=place, y=label, text=text, showarrow=False, yshift=24, font={"size": 12}, xanchor="right")
    marker = {"symbol": "line-ns-open", "size": 34, "color": theme.INK, "line_width": 1.4}
    drawn.add_scatter(x=[place], y=[label], mode="markers", showlegend=False, hoverinfo="skip", marker=marker)


def iteration_parts(rows: Sequence[Row], *, title: str = "") -> go.Figure:
    """Draw what an iteration of each method costs in greedy steps, split into drafting, verification and the host.

    Args:
        rows: summaries as in the JSON of `dynatree bench`, with `label`, `iteration_cost` and `split`; methods without
            a traced run are left out. The height is the timed runs', the split the traced ones'.
        title: above the figure.
    """
    parts = [
        {"method": row["label"], **{part: row["split"][part] * row["iteration_cost"] for part in PARTS}}
        for row in rows
        if row.get("split") and row.get("iteration_cost")
    ]
    title = title or "Where an iteration's time goes"
    drawn = stacked_bars(parts, list(PARTS), title=title, unit="greedy steps of hf-generate per iteration")
    for trace, color in zip(drawn.data, PARTS.values(), strict=True):
        trace.update(marker_color=color, text=[f"{value:.2f}" if value >= 0.05 else "" for value in trace.x])
    return drawn


# ------------------------------------------------------------------------------------------------------------ rounding
def flip_rates(audits: Sequence[Row], *, title: str = "Flips of the greedy token against plain decoding") -> go.Figure:
    """Draw one panel per dtype, one line per comparison: flips per 1000 tokens with their exact interval.

    A comparison of which only its own text is known is hollow: flips until the first of each text.

    Args:
        audits: results of `precision.audit_precision`, one per dtype.
        title: above the figure.
    """
    rows = pd.DataFrame(
        [{"panel": panel, **row} for panel, audit in enumerate(audits, 1) for row in audit["comparisons"]]
    )
    known = rows["rate"].notna()
    rows["value"], rows["ends"] = (
        rows["rate"].where(known, rows["first_rate"]),
        rows["interval"].where(known, rows["first_interval"]),
    )
    rows["symbol"] = known.map({True: "circle", False: "circle-open"})
    rows["text"] = [f"{row.identical} of {row.prompts} texts identical" for row in rows.itertuples()]
    rows["order"] = rows["group"].map(list(GROUPS).index)
    rows["nodes"] = rows["rows"].where(rows["group"] == "rows", 0)  # groups in order, node counts ascending
    labels = rows.sort_values(["order", "nodes"], kind="stable")["label"].drop_duplicates().tolist()
    drawn = make_subplots(
        cols=len(audits), shared_yaxes=True, horizontal_spacing=0.04,
        subplot_titles=[f"{audit['dtype']}, {audit['tokens']:,} tokens" for audit in audits],
    )  # fmt: skip
    for (group, panel), dots in rows.groupby(["group", "panel"], sort=False):
        color, values = GROUPS[group][1], dots["value"].tolist()
        drawn.add_scatter(
            x=values, y=dots["label"], row=1, col=panel, mode="markers", text=dots["text"], showlegend=False,
            error_x={**(error_bars(values, dots["ends"].tolist()) or {}), "color": color}, legendgroup=group,
            marker={"size": 9, "color": color, "symbol": dots["symbol"]},
            hovertemplate="%{y}: %{x:.2f} per 1000 tokens, %{text}<extra></extra>",
        )  # fmt: skip
    for group, (name, color) in GROUPS.items():
        if group in set(rows["group"]):
            drawn.add_scatter(x=[None], y=labels[:1], mode="markers", marker_color=color, name=name, legendgroup=group)
    for panel, dots in rows.groupby("panel"):
        most = max(end for _, end in dots["ends"])
        drawn.update_xaxes(range=[-0.03 * most, 1.05 * most], row=1, col=panel)
    drawn.update_layout(
        template=theme.TEMPLATE, title_text=theme.escaped(title), height=220 + 24 * len(labels), margin_t=125,
        legend_y=1 + 40 / (24 * len(labels) + 35),
    )  # fmt: skip
    drawn.update_annotations(font_size=14)
    drawn.update_xaxes(title_text="flips per 1000 tokens")
    return drawn.update_yaxes(type="category", categoryorder="array", categoryarray=labels[::-1], ticksuffix="  ")


def margin_histograms(
    audits: Sequence[Row], *, title: str = "How close the best two tokens are, everywhere and at flips"
) -> go.Figure:
    """Draw one panel per dtype: margins in float64 of all places of the texts, and of the two tokens of every flip.

    The margin axis is logarithmic; the dotted line is the dtype's spacing at the median place.

    Args:
        audits: results of `precision.audit_precision`, one per dtype.
        title: above the figure.
    """
    flips = [[flip["exact_margin"] for row in audit["comparisons"] for flip in row["flips"]] for audit in audits]
    kinds = [
        {"all places": _logarithms(audit["exact_margins"]), "flips": _logarithms(margins)}
        for audit, margins in zip(audits, flips, strict=True)
    ]
    spacings = [_spacing(audit) for audit in audits]
    everything = np.concatenate([*(margins for kind in kinds for margins in kind.values()), np.log10(spacings)])
    low, high = math.floor(everything.min()), math.ceil(everything.max())
    edges = np.linspace(low, high, (high - low) * BINS_PER_DECADE + 1)
    drawn = make_subplots(
        rows=len(audits), shared_xaxes=True, vertical_spacing=0.28 / (len(audits) + 1),
        subplot_titles=[
            f"{audit['dtype']}: {audit['tokens']:,} places, {audit['ties']} exact ties, {len(margins)} flips of all "
            "comparisons" for audit, margins in zip(audits, flips, strict=True)
        ],
    )  # fmt: skip
    for panel, (audit, kind, spacing) in enumerate(zip(audits, kinds, spacings, strict=True), 1):
        for (name, margins), color in zip(kind.items(), ("#b5b5b5", "#d55e00"), strict=True):
            drawn.add_bar(
                x=10 ** ((edges[1:] + edges[:-1]) / 2), width=np.diff(10**edges) * 0.9, row=panel, col=1, name=name,
                y=np.histogram(margins, edges)[0] / max(1, len(margins)), marker_color=color, opacity=0.75,
                hovertemplate=f"margins around %{{x:.2g}}: %{{y:.1%}} of {name}<extra>{audit['dtype']}</extra>",
                legendgroup=name, showlegend=panel == 1,
            )  # fmt: skip
        drawn.add_vline(x=spacing, line={"color": theme.INK, "dash": "dot", "width": 1.3}, row=panel, col=1)
    drawn.update_layout(
        template=theme.TEMPLATE, title_text=theme.escaped(title), barmode="overlay", bargap=0.05, margin_t=125,
        height=190 + 180 * len(audits), legend_y=1 + 30 / (180 * len(audits)),
    )  # fmt: skip
    drawn.update_annotations(font_size=14)
    drawn.update_xaxes(type="log", dtick=1, exponentformat="power", range=[low, high])
    drawn.update_xaxes(title_text="margin in float64, logits; dotted: spacing of the dtype", row=len(audits), col=1)
    return drawn.update_yaxes(title_text="share", tickformat=".0%", rangemode="tozero")


def _logarithms(margins: Sequence[float]) -> np.ndarray:
    return np.log10(np.maximum(np.abs(np.array(margins, float)), 1e-12))


def _spacing(audit: Row) -> float:
    """Return the dtype's spacing at the best logit of the median place."""
    logits, ulps = np.array(audit["margins"]), np.array(audit["margins_ulps"])
    return float(np.median(logits[ulps > 0] / ulps[ulps > 0])) if (ulps > 0).any() else audit["epsilon"]
