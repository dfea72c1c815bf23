"""Verification rules drawn: a tree step by step while a rule decides on it, and distributions beside the target's."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any

import numpy as np
import pandas as pd
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ..tree import TokenTree
from ..verifiers.residual import Recorded, Residual
from . import theme
from .iterations import Row
from .trees import leaf_places

STATES = {
    "tested": (*theme.BONUS, "looked at now"),
    "entered": (*theme.DRAFTED, "on the path to it"),
    "waiting": ("#ffffff", theme.DRAFTED[1], theme.DRAFTED[2], "not looked at yet"),
    "gone": (*theme.REJECTED, "rejected and deleted"),
}
"""State of a node at a step: fill, line and text colour, and the legend."""
CHANCES = {
    "accepted": (theme.ACCEPTED, "accepted for certain", "solid"),
    "open": (theme.DRAFTED, "not decided yet, with its probability", "solid"),
    "rejected": (theme.REJECTED, "rejected for certain", "dot"),
}
"""State of a node while a rule decides: colours, legend, and the line to its parent."""
GAP, PANEL_HEIGHT = 64, 200  # px between two lines of panels, and of a panel
LINE_HEIGHT = 384  # px of one line of steps
SHADES = ("#c6dbef", "#6baed6", "#2171b5", "#08306b", "#000000")
OUTLINE = {"color": "rgba(0,0,0,0)", "line": {"color": theme.INK, "width": 1.6}}
ROUNDING = 1e-9  # a distance below this is rounding


def step_row(residual: Residual, recorded: Recorded, node: int, child: int | None = None, **more: Any) -> Row:
    """Return one step of a rule as a row for `verification_steps`; `more` is `text` and `gone`.

    Args:
        residual: the state of `node`, before the step.
        recorded: of the tree.
        node: whose state it is.
        child: the child that is tried against it; None if the node itself is, all its children being rejected.
    """
    weights = residual.weights * residual.scale
    distribution = None if child is None else (1 - recorded.rest(weights.new_ones(len(weights)), child)).tolist()
    return {
        "of": node,
        "node": node if child is None else child,
        "weights": weights.tolist(),
        "stop": residual.stop,
        "distribution": distribution,
        "acceptance": residual.acceptance if child is None else residual.ratio(recorded, child),
        "gone": (),
        **more,
    }


def verification_steps(
    tree: TokenTree, steps: Sequence[Row], letters: Sequence[str], *, columns: int = 4, title: str = ""
) -> go.Figure:
    """Draw small multiples: the tree at each step of a rule, and below it what the step decides on.

    Bars are the weights r of the tokens after a node and its weight of stopping above. Outlines are the distribution q
    that the token being tried was drawn from. It is accepted with probability min(1, r/q) at its token.

    Args:
        tree: the drafted tree.
        steps: from `step_row`, with a `text` for the heading and the nodes that are `gone`.
        letters: what to call each token.
        columns: panels side by side.
        title: above the figure.
    """
    lines = math.ceil(len(steps) / columns)
    drawn = make_subplots(rows=2 * lines, cols=columns, horizontal_spacing=0.04)
    drawn.update_xaxes(visible=False).update_yaxes(visible=False)  # of places without a step
    letters = [theme.escaped(letter) for letter in letters]
    for number, step in enumerate(steps):
        line, column = divmod(number, columns)
        upper, lower = ({"row": 2 * line + half, "col": column + 1} for half in (1, 2))
        _draw_nodes(drawn, tree, step, letters, upper)
        _draw_weights(drawn, tree, step, letters, lower)
        drawn.update_yaxes(domain=[1 - (line + 0.48) / lines, 1 - line / lines], **upper)
        drawn.update_yaxes(domain=[1 - (line + 0.80) / lines, 1 - (line + 0.56) / lines], **lower)
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=105 + LINE_HEIGHT * lines)
    drawn.update_layout(barmode="overlay", bargap=0.2, margin={"l": 45, "r": 15, "t": 95, "b": 10})
    return theme.share_legend(drawn).update_layout(
        legend={"y": 1 + 18 / (LINE_HEIGHT * lines), "itemsizing": "constant"}
    )


def acceptance_tree(tree: TokenTree, chances: Sequence[float], letters: Sequence[str], *, title: str = "") -> go.Figure:
    """Draw a tree with the probability of each node to be accepted.

    Args:
        tree: the drafted tree.
        chances: (n,) of node 0, which is part of the text, and of the drafted nodes.
        letters: what to call each token.
        title: above the figure.
    """
    across, down = leaf_places(tree.parents), -tree.depths
    height = 150 + PANEL_HEIGHT * tree.depth // 2
    drawn = theme.figure(title, height=height).update_xaxes(visible=False).update_yaxes(visible=False)
    known = {True: "accepted", False: "rejected"}
    states = [known[chance > 0.5] if min(chance, 1 - chance) < ROUNDING else "open" for chance in chances]
    for state, ((_, line, _), _, dash) in CHANCES.items():
        x, y = _edges(tree, [node for node in range(1, len(tree)) if states[node] == state], across, down)
        drawn.add_scatter(
            x=x, y=y, mode="lines", line={"color": line, "width": 2, "dash": dash}, hoverinfo="skip", showlegend=False
        )
    for state, ((fill, line, ink), meaning, _) in CHANCES.items():
        nodes = [node for node in range(len(tree)) if states[node] == state]
        names = _names(tree, nodes, [theme.escaped(letter) for letter in letters])
        marks = [f"{name}<br>{fraction(chances[node])}" for name, node in zip(names, nodes, strict=True)]
        hover = [f"{name}: {chances[node]:.4f}" for name, node in zip(names, nodes, strict=True)]
        drawn.add_scatter(
            x=[across[node] for node in nodes] or [None], y=[down[node] for node in nodes] or [None],
            mode="markers+text", text=marks, textfont={"size": 13, "color": ink}, name=meaning, customdata=hover,
            hovertemplate="%{customdata}<extra></extra>",
            marker={"size": 52, "color": fill, "line": {"color": line, "width": 2}},
        )  # fmt: skip
    drawn.update_xaxes(range=[across.min() - 0.7, across.max() + 0.7])
    drawn.update_yaxes(range=[-tree.depth - 0.5, 0.5])
    return drawn.update_layout(margin={"l": 20, "r": 20, "b": 10}, legend={"itemsizing": "constant"})


def _edges(
    tree: TokenTree, nodes: Sequence[int], across: np.ndarray, down: np.ndarray
) -> tuple[list[float | None], list[float | None]]:
    """Return x and y of a line from each node to its parent, with a gap after each."""
    x = [value for node in nodes for value in (across[tree.parents[node]], across[node], None)]
    return x, [value for node in nodes for value in (down[tree.parents[node]], down[node], None)]


def _names(tree: TokenTree, nodes: Sequence[int], letters: Sequence[str]) -> list[str]:
    """Return what nodes are called: their number, and their token but for node 0."""
    return [f"X<sub>{node}</sub>" + (f"={letters[tree.tokens[node]]}" if node else "") for node in nodes]


def _draw_nodes(drawn: go.Figure, tree: TokenTree, step: Row, letters: Sequence[str], place: dict[str, int]) -> None:
    across, down = leaf_places(tree.parents), -tree.depths
    path = [0, *tree.path(step["node"])]
    states = [
        "gone" if n in step["gone"] else "tested" if n == step["node"] else "entered" if n in path else "waiting"
        for n in range(len(tree))
    ]
    for state, width in (("gone", 1.2), ("waiting", 1.5), ("entered", 3)):
        ends = [n for n in range(1, len(tree)) if state == ("entered" if states[n] == "tested" else states[n])]
        x, y = _edges(tree, ends, across, down)
        style = {"color": STATES[state][1], "width": width, "dash": "dot" if state == "gone" else "solid"}
        drawn.add_scatter(x=x, y=y, mode="lines", line=style, hoverinfo="skip", showlegend=False, **place)
    for state, (fill, line, ink, meaning) in STATES.items():
        nodes = [n for n in range(len(tree)) if states[n] == state]
        names = _names(tree, nodes, letters)
        look = {"mode": "markers+text", "text": names, "textfont": {"size": 13, "color": ink}}
        look |= {"name": meaning, "hovertemplate": "%{text}<extra>" + meaning + "</extra>"}
        marker = {"size": 40, "color": fill, "line": {"color": line, "width": 2}}
        x, y = [across[n] for n in nodes] or [None], [down[n] for n in nodes] or [None]
        drawn.add_scatter(x=x, y=y, **look, marker=marker, showlegend=None if nodes else False, **place)
    drawn.update_xaxes(range=[across.min() - 0.6, across.max() + 0.6], **place)
    drawn.update_yaxes(range=[-tree.depth - 0.45, 0.95], **place)
    heading = f"<b>{theme.escaped(step['text'])}</b>: {fraction(step['acceptance'])}"
    drawn.add_annotation(x=float(across.mean()), y=0.85, text=heading, showarrow=False, font_size=14, **place)


def _draw_weights(drawn: go.Figure, tree: TokenTree, step: Row, letters: Sequence[str], place: dict[str, int]) -> None:
    names, values, distribution = [*letters, "stop"], [*step["weights"], step["stop"]], step["distribution"]
    tried, outlines = None, [None] * len(letters)
    if distribution is not None:
        tried, outlines = int(tree.tokens[step["node"]]), distribution
    fills = [theme.BONUS[1] if token == tried else SHADES[1] for token in range(len(letters))]
    hover = {"hovertemplate": "r(%{x}) = %{y:.4f}<extra></extra>", "showlegend": False}
    drawn.add_bar(x=names, y=values, marker_color=[*fills, theme.REJECTED[1]], **hover, **place)
    hover = {"hovertemplate": "q(%{x}) = %{y:.4f}<extra></extra>", "legendrank": 2000}
    name = "q, the distribution the token was drawn from"
    drawn.add_bar(x=list(letters), y=outlines, marker=OUTLINE, name=name, **hover, **place)
    against = "" if distribution is None else f", q of X<sub>{step['node']}</sub>"
    caption = f"<span style='color:{SHADES[2]}'>r of X<sub>{step['of']}</sub></span>{against}"
    corner = {"xref": "x domain", "x": 0.5, "yref": "y domain", "y": 1.02, "yanchor": "bottom"}
    drawn.add_annotation(text=caption, showarrow=False, font_size=13, **corner, **place)
    below = [fraction(value) for value in (distribution or ())] + [""] * len(names)
    marks = [
        f"{name}<br><span style='color:{SHADES[2]}'>{fraction(value)}</span><br>{under}"
        for name, value, under in zip(names, values, below, strict=False)
    ]
    drawn.update_xaxes(tickvals=names, ticktext=marks, tickfont_size=13, tickangle=0, ticks="", visible=True, **place)
    drawn.update_yaxes(visible=True, range=[0, 1.12], tickvals=[0, 0.5, 1], showticklabels=place["col"] == 1, **place)


def fraction(value: float, largest: int = 1000) -> str:
    """Return a number as a fraction, "7/11", or as a decimal number if no denominator up to `largest` fits."""
    near = Fraction(value).limit_denominator(largest)
    return str(near) if abs(near - value) < ROUNDING else f"{value:.4g}"


def distribution_panels(
    rows: Any, parts: Sequence[str], panel: str = "panel", *, columns: int = 3, title: str = ""
) -> go.Figure:
    """Draw distributions beside the target's: a bar per outcome, outlined where the target's probability ends.

    The heading of a panel has the total variation between the two distributions.

    Args:
        rows: one per outcome and panel: `text` names the outcome, `target` is its probability under the target.
        parts: columns that add up to the probability of the outcome; stacked.
        panel: column that tells the panels apart.
        columns: panels side by side.
        title: above the figure.
    """
    frame = pd.DataFrame(rows)
    frame["whole"] = frame[list(parts)].sum(axis=1)
    apart = (frame["whole"] - frame["target"]).abs().groupby(frame[panel], sort=False).sum() / 2
    far = ["equal" if value < ROUNDING else f"TV {value:.4g}" for value in apart]
    titles = [f"{theme.escaped(str(name))}: {text}" for name, text in zip(apart.index, far, strict=True)]
    lines = math.ceil(len(apart) / columns)
    height = lines * PANEL_HEIGHT + (lines - 1) * GAP
    spacing = {"vertical_spacing": GAP / height, "horizontal_spacing": 0.08 / columns}
    drawn = make_subplots(rows=lines, cols=columns, subplot_titles=titles, **spacing)
    drawn.update_xaxes(visible=False).update_yaxes(visible=False)  # of places without a panel
    shades = [theme.SERIES_COLORS[1]] if len(parts) == 1 else SHADES
    looks: list[tuple[str, Row]] = [
        (part, {"width": 0.62, "marker_color": color}) for part, color in zip(parts, shades, strict=False)
    ]
    for number, (_, group) in enumerate(frame.groupby(panel, sort=False)):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        bases = group[list(parts)].cumsum(axis=1).shift(axis=1, fill_value=0)
        for part, look in [*looks, ("target", {"width": 0.86, "marker": OUTLINE})]:
            name, foot = theme.escaped(part), {} if part == "target" else {"base": bases[part]}
            look = {**look, **foot, "hovertemplate": f"%{{x}}: %{{y:.4f}}<extra>{name}</extra>"}
            drawn.add_bar(x=group["text"].astype(str).map(theme.escaped), y=group[part], name=name, **look, **place)
        drawn.update_xaxes(type="category", ticks="", visible=True, **place).update_yaxes(visible=True, **place)
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=height + 165)
    drawn.update_layout(barmode="overlay", margin={"l": 60, "r": 15, "t": 120, "b": 45})
    theme.share_legend(drawn).update_layout(legend={"y": 1 + 32 / height, "traceorder": "normal"})
    top = frame[["whole", "target"]].max(axis=None)
    drawn.update_annotations(font_size=14).update_yaxes(range=[0, 1.05 * top], showticklabels=False)
    return drawn.update_yaxes(title_text="probability", showticklabels=True, col=1)
