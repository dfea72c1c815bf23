"""Figures of DynaTree adaptive: how a tree grew (its Figure 3), an ablation (Figure 5), history along texts, settings
(Figure 8). Decisions are read off the finished tree and the values in use; nothing is drafted or measured here.

As in `plots`, functions take a data frame or rows, and names of columns.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import pandas as pd
from plotly import express as px
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ...decoding import Iteration
from ...drafters import AdaptiveTree
from ...measure.statistics import Table
from ...plots import theme
from ...plots.charts import Row, line_panels
from ...plots.trees import LONGEST_LABEL, draft_tree
from ...plots.trees import label as token_label
from ..ptd.figures import legend_square

# ------------------------------------------------------------------------------------------------- growth of one tree
STRETCH = 1.45  # two lines in a box instead of one

# What the rule decided for a node -> (fill, line, ink). The first four were expanded.
DECISIONS = {
    "B_min": ("#dcebf8", "#0072b2", "#0b2d45"),
    "B_mid": ("#c9eddf", "#009e73", "#0b3d2e"),
    "B_max": ("#fde6b8", "#e69f00", "#4d3500"),
    "top-1": (theme.INK, theme.INK, "#ffffff"),
    "rho_stop": ("#ffffff", "#c4c4c4", "#767676"),
    "D_0": ("#ececec", "#8c8c8c", "#4d4d4d"),
    "D_max": ("#e3d7ea", "#882255", "#46112c"),
    "tau": ("#ffffff", "#c4c4c4", "#767676"),
    "no room": ("#f7d9d9", "#c44e4e", "#5c1f1f"),
}


def growth_rows(iteration: Iteration, drafter: AdaptiveTree) -> list[Row]:
    """Return one row per node of a tree that `drafter` drafted.

    Keys: `node`, `level` d(u), `path` p(u), `confidence` c(u) (the draft's best next token; None for a leaf),
    `children`, `decision` (a key of `DECISIONS`: the breadth of an expanded node, or the rule that kept a leaf from
    being expanded), `deep` (expanded although d(u) >= D_0).

    Raises:
        ValueError: if the iteration does not carry an adaptive tree's values.
    """
    tree, now = iteration.tree, iteration.adaptation
    if "base_depth" not in now:
        raise ValueError(
            f"This iteration's adaptation has {', '.join(now) or 'no values'}; growth_rows needs an iteration of an "
            "AdaptiveTree, which reports base_depth, tau_high and rho_deep."
        )
    rows = []
    for node in range(len(tree)):
        children, level, path = tree.children(node), int(tree.depths[node]), float(tree.cumulative[node])
        row: Row = {"node": node, "level": level, "path": math.exp(path), "children": len(children)}
        if len(children):
            best, deep = float(tree.logprobs[children[0]]), level >= int(now["base_depth"])
            row |= {"confidence": math.exp(best), "decision": _breadth(best, level, drafter, now), "deep": deep}
        else:
            row |= {"confidence": None, "decision": _stopped(path, level, drafter, now), "deep": False}
        rows.append(row)
    return rows


def _breadth(best: float, level: int, drafter: AdaptiveTree, now: Mapping[str, float]) -> str:
    if drafter.root == "draft" and level == 0:
        return "top-1"
    if drafter.breadth is None:
        return "B_mid"
    return "B_min" if best >= math.log(now["tau_high"]) else "B_max" if best < math.log(drafter.tau_low) else "B_mid"


def _stopped(cumulative: float, level: int, drafter: AdaptiveTree, now: Mapping[str, float]) -> str:
    """Say why a leaf was not expanded, in the order of Algorithm 1 but for tau, which acts only above rho_stop."""
    gated = drafter.depth is not None
    if gated and level >= drafter.max_depth:
        return "D_max"
    if gated and cumulative < math.log(drafter.rho_stop):
        return "rho_stop"
    if drafter.tau is not None and cumulative < math.log(drafter.tau):
        return "tau"
    deep = math.log(now["rho_deep"])
    passes = gated and (cumulative > deep if drafter.deep == ">" else cumulative >= deep)
    return "D_0" if level >= int(now["base_depth"]) and not passes else "no room"


def grown_tree(iteration: Iteration, drafter: AdaptiveTree, tokenizer: object = None, *, title: str = "") -> go.Figure:
    """Draw Figure 3 of DynaTree adaptive from a real tree: every node with p(u) and c(u), coloured by the decision.

    Args:
        iteration: an iteration of `drafter`.
        drafter: the hyper-parameters it ran with.
        tokenizer: shows token text instead of numbers.
        title: above the figure; by default the values in use.
    """
    rows, tree, now = growth_rows(iteration, drafter), iteration.tree, iteration.adaptation
    values = (
        f"D₀ = {now['base_depth']:.2f}, D_max = {drafter.max_depth}, τ_h = {now['tau_high']:.2f}, "
        f"τ_ℓ = {drafter.tau_low:.2f}, ρ_stop = {drafter.rho_stop:.2f}, ρ_deep = {now['rho_deep']:.2f}"
    )
    drawn = draft_tree(tree, tokenizer, title=title or values)
    drawn.data = [trace for trace in drawn.data if trace.mode == "lines"]
    drawn.update_layout(height=round((drawn.layout.height - 120) * STRETCH) + 130, margin_t=105)
    decided = {row["decision"] for row in rows}
    entries = [(text, *DECISIONS[name][:2]) for name, text in _meanings(drafter, now).items() if name in decided]
    if any(row["deep"] for row in rows):
        text = f"thick: expanded at D₀ = {int(now['base_depth'])} or deeper, p(u) > ρ_deep"
        entries.append((text, "#ffffff", theme.INK))
    for entry in entries:
        legend_square(drawn, *entry)
    for box, row in zip(drawn.layout.annotations, rows, strict=True):  # without a verdict, in the order of the nodes
        fill, line, ink = DECISIONS[row["decision"]]
        width, color = (3, theme.INK) if row["deep"] else (1.3, line)
        token = theme.escaped(token_label(int(tree.tokens[row["node"]]), tokenizer, LONGEST_LABEL))
        numbers, hover = f"p {row['path']:.2f}", f"node {row['node']}, level {row['level']}, p(u) {row['path']:.4f}"
        if row["confidence"] is not None:
            numbers += f" · c {row['confidence']:.2f}"
            hover += f"<br>c(u) {row['confidence']:.4f}, {row['children']} children"
        text, look = f"<b>{token}</b><br>{numbers.replace(' 0.', ' .')}", {"font": {"color": ink, "size": 12}}
        box.update(text=text, bgcolor=fill, bordercolor=color, borderwidth=width, align="left", **look)
        box.hovertext = f"<b>{token}</b><br>{hover}"
    return drawn


def _meanings(drafter: AdaptiveTree, now: Mapping[str, float]) -> dict[str, str]:
    """Decision -> its text in the legend, with the values in use."""
    high, low = f"{now['tau_high']:.2f}", f"{drafter.tau_low:.2f}"
    middle = f"{low} ≤ c(u) < {high}" if drafter.breadth else "breadth is fixed"
    budget = f"leaf: node budget {drafter.max_nodes} or text length used up"
    return {
        "B_min": f"B_min = {drafter.min_branching}: c(u) ≥ {high}",
        "B_mid": f"B_mid = {drafter.mid_branching}: {middle}",
        "B_max": f"B_max = {drafter.max_branching}: c(u) < {low}",
        "top-1": "the draft's top-1 token alone",
        "rho_stop": f"leaf: p(u) < ρ_stop = {drafter.rho_stop:g}",
        "D_0": f"leaf: at D₀, p(u) ≤ ρ_deep = {now['rho_deep']:g}" if drafter.depth else "leaf: at D₀",
        "D_max": f"leaf: at D_max = {drafter.max_depth}",
        "tau": f"leaf: p(u) < τ = {drafter.tau}",
        "no room": budget + (", or no child above τ" if drafter.prune == "remove" else ""),
    }


# ----------------------------------------------------------------------------------------------------------- ablation
@dataclass(frozen=True)
class Panel:
    """A panel of `progression`: bars on the left axis, lines on the right one.

    Attributes:
        bar: column of the bars.
        bar_title: of the left axis, and the bars' name.
        lines: column -> name of each line.
        line_title: of the right axis.
    """

    bar: str
    bar_title: str
    lines: Mapping[str, str]
    line_title: str


BARS = "#b9cde0"
LINES = ("#d55e00", "#009e73", "#332288")


def progression(sides: Mapping[str, Table], panels: Sequence[Panel], *, title: str = "") -> go.Figure:
    """Draw variants from left to right, one row of panels per side (measured, published), two quantities in each.

    Args:
        sides: name -> table with a column `variant`; a row without a value in a drawn column is left out there.
        panels: what to draw, from left to right.
        title: above the figure.
    """
    titles = [f"{side}: {panel.bar_title} and {panel.line_title}" for side in sides for panel in panels]
    specs = [[{"secondary_y": True}] * len(panels)] * len(sides)
    space = {"horizontal_spacing": 0.16, "vertical_spacing": 0.24}
    drawn = make_subplots(len(sides), len(panels), specs=specs, subplot_titles=titles, **space)
    for row, table in enumerate(sides.values(), start=1):
        for column, panel in enumerate(panels, start=1):
            _draw_panel(drawn, pd.DataFrame(table), panel, {"row": row, "col": column})
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=120 + 330 * len(sides))
    drawn.update_layout(margin_t=120, legend={"y": 1 + 0.16 / len(sides)}, bargap=0.35)
    return drawn.update_annotations(font_size=14)


def _draw_panel(drawn: go.Figure, frame: pd.DataFrame, panel: Panel, place: dict[str, int]) -> None:
    def points(column: str) -> tuple[list[str], list[float]]:
        """Names, a line for each of their parts so that they stay upright below narrow bars, and values."""
        known = frame.reindex(columns=["variant", column]).dropna()
        return [theme.escaped(name).replace(" &amp; ", "<br>&amp; ") for name in known["variant"]], list(known[column])

    names, values = points(panel.bar)
    inside = {"text": [f"{value:.3g}" for value in values], "textposition": "inside", "insidetextanchor": "start"}
    bar = {"name": panel.bar_title, "marker_color": BARS, "textangle": 0, "showlegend": False, **inside}
    drawn.add_bar(x=names, y=values, **bar, **place)
    for (column, name), color, symbol in zip(panel.lines.items(), LINES, theme.SYMBOLS, strict=False):
        names, values = points(column)
        line: Row = {"name": name, "legendgroup": name, "mode": "lines+markers", "line_color": color}
        line["showlegend"] = place["row"] == 1 and len(panel.lines) > 1
        drawn.add_scatter(x=names, y=values, marker={"size": 9, "symbol": symbol}, secondary_y=True, **line, **place)
    top = max((value for column in panel.lines for value in points(column)[1]), default=1)
    drawn.update_yaxes(title_text=panel.bar_title, secondary_y=False, **place).update_xaxes(tickangle=0, **place)
    look: Row = {"title_text": panel.line_title, "range": [0, 1.15 * top], "showgrid": False, "nticks": 5}
    if len(panel.lines) == 1:
        look |= {"title_font_color": LINES[0], "tickfont_color": LINES[0]}
    drawn.update_yaxes(secondary_y=True, tickmode="auto", **look, **place)


# ------------------------------------------------------------------------------------------------------------ history
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def adaptation(
    table: Table,
    panels: Mapping[str, str],
    *,
    x: str = "tokens",
    references: Mapping[str, float] | None = None,
    marks: Iterable[float] = (),
    title: str = "",
    x_title: str = "",
) -> go.Figure:
    """Draw a drafter's state as texts grow: one panel per quantity, one step line per series.

    Args:
        table: one row per iteration and series with `series` and the column `x`, such as `ablation.adaptation_frame`.
        panels: column -> title of the panel's axis, from top to bottom.
        x: column of the horizontal axis.
        references: column -> a value to mark with a horizontal line (a target, a bound).
        marks: places on the horizontal axis to mark with vertical lines (where texts begin).
        title: above the figure.
        x_title: of the horizontal axis.
    """
    words: Row = {"title": title, "x_title": x_title, "references": references, "columns": 1}
    drawn = line_panels(table, x, dict.fromkeys(panels, ""), "series", **words).update_xaxes(matches="x")
    names = list(dict.fromkeys(trace.name for trace in drawn.data))
    for trace in drawn.data:
        dash = DASHES[names.index(trace.name) % len(DASHES)]
        trace.update(mode="lines", line={"shape": "hv", "width": 2.2, "dash": dash})
    for row, text in enumerate(panels.values(), start=1):
        drawn.update_yaxes(title_text=text, row=row)
    for mark in marks:
        drawn.add_vline(x=mark, line={"color": "#cccccc", "width": 1}, layer="below")
    return drawn.update_layout(height=130 + 190 * len(panels))


# ----------------------------------------------------------------------------------------------------------- settings
def setting_scatter(
    table: Table,
    x: str,
    y: str,
    value: str,
    published: Table = None,
    *,
    mark: tuple[float, float] | None = None,
    title: str = "",
    unit: str = "",
) -> go.Figure:
    """Draw a sparse grid of settings, one large dot each, coloured by `value` with the number inside.

    Args:
        table: one row per dot.
        x: column of the horizontal axis.
        y: column of the vertical axis.
        value: column that gives colour and number; both panels share the scale.
        published: a table with the same columns, for a second panel.
        mark: (x, y) of a setting to ring, such as the default.
        title: above the figure.
        unit: title of the colour bar.
    """
    sides = {"measured": table} if published is None else {"measured": table, "published": published}
    dots = pd.concat({side: pd.DataFrame(rows) for side, rows in sides.items()}, names=["side"]).reset_index("side")
    drawn = px.scatter(
        dots, x, y, color=value, text=dots[value].map("{:.2f}".format), facet_col="side", facet_col_spacing=0.05,
        color_continuous_scale="Cividis", labels={value: unit or value}, height=440, title=theme.escaped(title),
        template=theme.TEMPLATE,
    )  # fmt: skip
    middle = (dots[value].min() + dots[value].max()) / 2  # white numbers on the dark half of the scale, dark elsewhere
    for number, (side, trace) in enumerate(zip(sides, drawn.data, strict=True), start=1):
        ink = ["#ffffff" if color < middle else theme.INK for color in trace.marker.color]
        trace.update(marker_size=40, textfont={"size": 12, "color": ink})
        trace.hovertemplate = f"{x} %{{x}}, {y} %{{y}}: %{{text}}<extra>{side}</extra>"
        if mark is not None:
            ring = {"size": 48, "symbol": "circle-open", "color": theme.INK, "line": {"width": 2}}
            look = {"marker": ring, "hoverinfo": "skip", "showlegend": False}
            drawn.add_scatter(x=mark[:1], y=mark[1:], mode="markers", **look, row=1, col=number)
    return drawn.for_each_annotation(lambda note: note.update(text=note.text.removeprefix("side=") * (len(sides) > 1)))
