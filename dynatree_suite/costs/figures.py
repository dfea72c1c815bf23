"""Figures of speed: the limits of a forward, how cost grows, where an iteration's time goes, and what rounding changes.

They draw rows of `cost_growth`, summaries and traced events of the benchmark, and audits of `precision`; nothing is
measured here.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
import pandas as pd
from plotly import express as px
from plotly import graph_objects as go

from dynatree_lib.plots import theme

from ..charts import look
from ..charts.charts import Row, error_bars, line_panels, stacked_bars, sweep_lines
from ..charts.clock import PARTS

LIMIT = {"color": theme.INK, "dash": "dash", "width": 1.6}
COSTS = (1, 2, 4, 8)
"""Costs of an iteration that `bound_plane` draws lines for."""
SIZES = {
    "prefix": ("tokens of the text", "the text"), "nodes": ("nodes of the tree", "the tree"),
    "width": ("nodes of the level", "the level"),
}  # fmt: skip
"""Column of work that grows -> its unit, and the thing that grows."""
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
_TICKS = [digit * 10.0**power for power in range(-3, 8) for digit in (1, 2, 5)]
LOGARITHMIC = {"type": "log", "tickvals": _TICKS, "ticktext": [f"{tick:,.7g}" for tick in _TICKS]}
"""An axis whose labels are whole numbers; plotly's own abbreviate 20 to a small 2."""


# ------------------------------------------------------------------------------------------------------------ forwards
def roofline(rows: Sequence[Row], limits: Mapping[str, float], setup: str = "") -> go.Figure:
    """Draw nodes per second of a forward over the nodes it scores, below the machine's two ceilings.

    Args:
        rows: of `cost_growth.forward_times`: `model`, `rows` (nodes scored), `milliseconds`.
        limits: of `bandwidth.ceilings`: `memory` and `compute` in nodes per second, `flop_per_byte` of one node.
        setup: model and machine, for the horizontal axis.
    """
    frame = pd.DataFrame(rows)
    title, unit = "Few nodes wait for memory, many for arithmetic", f"{limits['flop_per_byte']:g} FLOP/byte per node"
    axis = f"nodes scored in one forward (arithmetic intensity: {unit}{'; ' if setup else ''}{setup})"
    frame["nodes per second"] = 1000 * frame["rows"] / frame["milliseconds"]
    drawn = sweep_lines(frame, "rows", "nodes per second", "model", title=title, x_title=axis, log_x=True)
    first, last = int(frame["rows"].min()), int(frame["rows"].max())
    knee = min(max(limits["compute"] / limits["memory"], first), last)
    slope = [min(limits["memory"] * place, limits["compute"]) for place in (first, knee)]
    ceilings = [("limit of memory: weights and cache read once per forward", [first, knee], slope, "dash")]
    if knee < last:
        ceilings.append(("of arithmetic", [knee, last], [limits["compute"]] * 2, "dot"))
    for name, places, speeds, dash in ceilings:
        look = {"line": {**LIMIT, "dash": dash}, "name": name, "hoverinfo": "skip"}
        drawn.add_scatter(x=places, y=speeds, mode="lines", **look)
    drawn.update_yaxes(**LOGARITHMIC)
    return drawn.update_layout(height=480, legend_traceorder="normal")


def engine_curves(
    rows: Sequence[Row], bound: float | Mapping[str, float] | None = None, title: str = "The same forward by engine"
) -> go.Figure:
    """Draw milliseconds of a forward over its nodes, one line per engine; both axes logarithmic.

    Args:
        rows: of `cost_growth.forward_times`.
        bound: milliseconds that reading weights and cache takes at the measured bandwidth, or None; where engines read
            different bytes, the text of a line -> its milliseconds.
        title: above the figure.
    """
    drawn = sweep_lines(
        rows, "rows", "milliseconds", "model", interval="interval", title=title, log_x=True,
        x_title="nodes scored in one forward",
    )  # fmt: skip
    times = [row["milliseconds"] for row in rows]
    bounds = bound if isinstance(bound, Mapping) else {"reading weights and cache once": bound}
    for text, least in bounds.items():
        if least is not None:
            drawn.add_hline(y=least, line=look.REFERENCE)
            _note(drawn, max(row["rows"] for row in rows), least, text, 12, "right")
            times.append(least)
    ends = [math.log10(min(times) / 1.4), math.log10(1.4 * max(times))]
    return drawn.update_yaxes(**LOGARITHMIC, range=ends)


def _note(drawn: go.Figure, x: float, y: float, text: str, shift: int, anchor: str) -> None:
    """Write text at a place of a figure whose axes are both logarithmic."""
    place = {"x": math.log10(x), "y": math.log10(y), "yshift": shift, "xanchor": anchor}
    drawn.add_annotation(text=text, showarrow=False, font_size=13, **place)


def cost_and_overhead(rows: Sequence[Row], x: str, whole: str = "iteration", note: str = "") -> go.Figure:
    """Draw an iteration's time as work grows beside the model's own forward, and their difference in a second panel.

    Args:
        rows: of `cost_growth.iteration_costs`, or of `level_costs` of tools/growth.py.
        x: "prefix", "nodes" or "width".
        whole: "iteration", or "level".
        note: in the second panel, for example the result of `cost_growth.flatness`.
    """
    unit, thing = SIZES[x]
    panels = {"time": f"{whole} and forward", "overhead": "overhead, on its own scale"}
    names = {whole: f"one {whole} of the loop", "forward": "the forward alone", "overhead": "their difference"}
    lines = []
    for name in names:
        panel = name if name in panels else "time"
        columns = {x: x, name: panel, f"{name}_interval": f"{panel}_interval"}
        lines += [{"what": names[name], **{to: row[of] for of, to in columns.items()}} for row in rows]
    title = f"One {whole} as {thing} grows: the forward's share, and the loop's"
    drawn = line_panels(lines, x, panels, "what", title=title, x_title=unit, log_x=True)
    drawn.update_traces(line_dash="dash", selector={"name": names["forward"]})
    if note:
        place = {"x": 0.5, "y": 0.04, "xref": "x2 domain", "yref": "y2 domain", "yanchor": "bottom"}
        drawn.add_annotation(text=theme.escaped(note), showarrow=False, font_color=theme.MUTED, font_size=13, **place)
    return drawn.update_yaxes(title_text="milliseconds", rangemode="tozero")


# ---------------------------------------------------------------------------------------------------------- iterations
def bound_plane(rows: Sequence[Row], bound: float) -> go.Figure:
    """Draw tokens per second over tokens per iteration of each method, with the bound that memory sets plain decoding.

    On the line marked k an iteration takes as long as k tokens of plain decoding at the bandwidth bound: a method is
    fast by accepting tokens (to the right) or by cheap iterations (towards the line marked 1).

    Args:
        rows: summaries as in the JSON of `dynatree bench`: `label`, `method`, `tokens_per_iteration`,
            `tokens_per_second` and its `..._interval`.
        bound: tokens per second of plain decoding at the bound (`bandwidth.tokens_per_second` there).
    """
    title = "Speed is tokens per iteration over what an iteration costs"
    drawn = theme.figure(title, x="tokens per iteration", y="tokens per second", height=520)
    furthest = 1.25 * max(row["tokens_per_iteration"] for row in rows)
    for cost in COSTS:
        ends, line = [0.9, furthest], LIMIT if cost == 1 else {"color": "#b5b5b5", "dash": "dot", "width": 1.3}
        heights = [bound * place / cost for place in ends]
        drawn.add_scatter(x=ends, y=heights, mode="lines", line=line, showlegend=False, hoverinfo="skip")
        _note(drawn, furthest, heights[1], f"{cost} step{'s' * (cost > 1)} at the bound", 0, "left")
    names = [str(row.get("method", row["label"])) for row in rows]
    colors, symbols = look.series_colors(names), look.series_symbols(names)
    for row, name in zip(rows, names, strict=True):
        speed = row["tokens_per_second"]
        drawn.add_scatter(
            x=[row["tokens_per_iteration"]], y=[speed], mode="markers", name=theme.escaped(row["label"]),
            error_y=error_bars([speed], [row.get("tokens_per_second_interval")]),
            marker={"size": 12, "color": colors[name], "symbol": symbols[name]},
        )  # fmt: skip
    ticks, ends = [1, 2, 3, 4, 5, 6, 8, 10, 15, 20], [math.log10(0.88), math.log10(furthest)]
    drawn.update_xaxes(type="log", tickvals=ticks, range=ends)
    drawn.update_yaxes(**LOGARITHMIC)
    legend = {"orientation": "v", "x": 1.32, "y": 1, "xanchor": "left", "yanchor": "top"}
    return drawn.update_layout(legend=legend, margin={"t": 60, "r": 60})


def iteration_parts(rows: Sequence[Row], title: str = "Where an iteration's time goes") -> go.Figure:
    """Draw what an iteration of each method costs in greedy steps, split into drafting, verification and the host.

    Args:
        rows: summaries as in the JSON of `dynatree bench`, with `label`, `iteration_cost` and `iteration_split` (or
            `split`, which has the first iteration, too, in older files); methods without a traced run are left out. The
            height is the timed runs', the split the traced ones'.
        title: above the figure.
    """
    splits = [row.get("iteration_split") or row.get("split") for row in rows]
    parts = [
        {"method": row["label"], **{part: split[part] * row["iteration_cost"] for part in PARTS}}
        for row, split in zip(rows, splits, strict=True)
        if split and row.get("iteration_cost")
    ]
    drawn = stacked_bars(parts, list(PARTS), title=title, unit="greedy steps of hf-generate per iteration")
    least = 0.06 * max((sum(row[part] for part in PARTS) for row in parts), default=0.0)  # a label's width
    for trace, color in zip(drawn.data, PARTS.values(), strict=True):
        trace.update(marker_color=color, text=[f"{value:.2f}" if value >= least else "" for value in trace.x])
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
        [{**row, "panel": f"{audit['dtype']}, {audit['tokens']:,} tokens"}
         for audit in audits for row in audit["comparisons"]]
    )  # fmt: skip
    known = rows["rate"].notna()
    rows["value"] = rows["rate"].where(known, rows["first_rate"])
    ends = rows["interval"].where(known, rows["first_interval"])
    rows["above"], rows["below"] = ends.str[1] - rows["value"], rows["value"] - ends.str[0]
    rows["symbol"] = known.map({True: "circle", False: "circle-open"})
    rows["texts"] = rows["identical"].astype(str) + " of " + rows["prompts"].astype(str) + " texts identical"
    rows["nodes"] = rows["rows"].where(rows["group"] == "rows", 0)  # groups in order, node counts ascending
    rows["kind"], rows["order"] = rows["group"].map(GROUPS).str[0], rows["group"].map(list(GROUPS).index)
    labels = rows.sort_values(["order", "nodes"], kind="stable")["label"].drop_duplicates().tolist()
    drawn = px.scatter(
        rows.sort_values("symbol", kind="stable"), "value", "label", color="kind", facet_col="panel",
        error_x="above", error_x_minus="below", custom_data=["texts", "symbol"],
        color_discrete_map=dict(GROUPS.values()), facet_col_spacing=0.04, height=220 + 24 * len(labels),
        category_orders={"label": labels, "kind": list(dict(GROUPS.values())), "panel": rows["panel"].unique()},
        labels={"value": "flips per 1000 tokens", "label": "", "kind": ""}, title=theme.escaped(title),
        template=theme.TEMPLATE,
    )  # fmt: skip
    drawn.for_each_trace(lambda trace: trace.update(marker={"size": 9, "symbol": trace.customdata[:, 1]}))
    drawn.update_traces(hovertemplate="%{y}: %{x:.2f} per 1000 tokens, %{customdata[0]}<extra></extra>")
    drawn.update_xaxes(matches=None).update_yaxes(ticksuffix="  ")
    return _panel_titles(drawn).update_layout(legend_y=1 + 40 / (24 * len(labels) + 35))


def _panel_titles(drawn: go.Figure) -> go.Figure:
    """Leave "panel=" out of the titles of panels, below the legend."""
    drawn.for_each_annotation(lambda note: note.update(text=note.text.removeprefix("panel="), font_size=14))
    return drawn.update_layout(margin_t=125)


def margin_histograms(audits: Sequence[Row]) -> go.Figure:
    """Draw one panel per dtype: margins in float64 of all places of the texts, and of the two tokens of every flip.

    The margin axis is logarithmic; the dotted line is the dtype's spacing at the median place.

    Args:
        audits: results of `precision.audit_precision`, one per dtype.
    """
    spacings, kinds = [], []
    for audit in audits:
        logits, ulps = np.array(audit["margins"]), np.array(audit["margins_ulps"])
        some = ulps > 0  # the dtype's spacing at the best logit of the median place
        spacings.append(float(np.median(logits[some] / ulps[some])) if some.any() else audit["epsilon"])
        flips = [flip["exact_margin"] for row in audit["comparisons"] for flip in row["flips"]]
        panel = f"{audit['dtype']}: {audit['tokens']:,} places, {audit['ties']} exact ties, {len(flips)} flips of all"
        for kind, margins in {"all places": audit["exact_margins"], "flips": flips}.items():
            kinds.append((f"{panel} comparisons", kind, np.log10(np.maximum(np.abs(margins), 1e-12))))
    everything = np.concatenate([*(margins for _, _, margins in kinds), np.log10(spacings)])
    low, high = math.floor(everything.min()), math.ceil(everything.max())
    edges = np.linspace(low, high, (high - low) * BINS_PER_DECADE + 1)
    counts = [
        {"panel": panel, "kind": kind, "margin": 10**middle, "share": count / max(1, len(margins))}
        for panel, kind, margins in kinds
        for middle, count in zip((edges[1:] + edges[:-1]) / 2, np.histogram(margins, edges)[0], strict=True)
    ]
    drawn = px.bar(
        counts, "margin", "share", color="kind", facet_col="panel", facet_col_wrap=1, barmode="overlay", opacity=0.75,
        color_discrete_map={"all places": "#b5b5b5", "flips": "#d55e00"}, facet_row_spacing=0.28 / (len(audits) + 1),
        labels={"margin": "margin in float64, logits; dotted: spacing of the dtype", "kind": ""}, log_x=True,
        range_x=[10.0**low, 10.0**high], height=190 + 180 * len(audits),
        title="How close the best two tokens are, everywhere and at flips",
        template=theme.TEMPLATE,
    )  # fmt: skip
    drawn.for_each_trace(lambda trace: trace.update(
        width=np.diff(10**edges) * 0.9,
        hovertemplate=f"margins around %{{x:.2g}}: %{{y:.1%}} of {trace.name}<extra></extra>",
    ))  # fmt: skip
    for row, spacing in enumerate(reversed(spacings), 1):
        drawn.add_vline(x=spacing, line={"color": theme.INK, "dash": "dot", "width": 1.3}, row=row, col=1)
    drawn.update_xaxes(dtick=1, exponentformat="power").update_yaxes(tickformat=".0%", rangemode="tozero", matches=None)
    return _panel_titles(drawn).update_layout(bargap=0.05, legend_y=1 + 30 / (180 * len(audits)))
