"""Verification rules drawn: a tree step by step while a rule decides on it."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from fractions import Fraction
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ..tree import TokenTree
from ..verifiers.residual import Recorded, Residual
from . import theme
from .iterations import Row
from .trees import leaf_places

Line = tuple[str, float, str]
States = Mapping[str, tuple[tuple[str, str, str], str, Line]]
_ENTERED = (theme.DRAFTED[1], 3, "solid")
STATES: States = {
    "tested": (theme.BONUS, "looked at now", _ENTERED),
    "entered": (theme.DRAFTED, "on the path to it", _ENTERED),
    "waiting": (("#ffffff", *theme.DRAFTED[1:]), "not looked at yet", (theme.DRAFTED[1], 1.5, "solid")),
    "gone": (theme.REJECTED, "rejected and deleted", (theme.REJECTED[1], 1.2, "dot")),
}
"""State of a node at a step: (fill, line, text) colours, the legend, and the line to its parent."""
CHANCES: States = {
    "accepted": (theme.ACCEPTED, "accepted for certain", (theme.ACCEPTED[1], 2, "solid")),
    "open": (theme.DRAFTED, "not decided yet, with its probability", (theme.DRAFTED[1], 2, "solid")),
    "rejected": (theme.REJECTED, "rejected for certain", (theme.REJECTED[1], 2, "dot")),
}
"""State of a node while a rule decides, as `STATES`."""
LINE_HEIGHT = 384  # px of one line of steps
LEVEL_HEIGHT = 100  # px between two levels of `acceptance_tree`
WEIGHT, WEIGHT_TEXT = "#6baed6", "#2171b5"
OUTLINE = {"color": "rgba(0,0,0,0)", "line": {"color": theme.INK, "width": 1.6}}
ROUNDING = 1e-9  # a difference below this is rounding


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
        _draw_step(drawn, tree, step, letters, upper)
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
    height = 150 + LEVEL_HEIGHT * tree.depth
    drawn = theme.figure(title, height=height).update_xaxes(visible=False).update_yaxes(visible=False)
    known = {True: "accepted", False: "rejected"}
    states = [known[chance > 0.5] if min(chance, 1 - chance) < ROUNDING else "open" for chance in chances]
    names = _names(tree, [theme.escaped(letter) for letter in letters])
    marks = [f"{name}<br>{fraction(chance)}" for name, chance in zip(names, chances, strict=True)]
    hover = [f"{name}: {chance:.4f}" for name, chance in zip(names, chances, strict=True)]
    _draw_nodes(drawn, tree, states, CHANCES, marks, size=52, hover=hover)
    across = leaf_places(tree.parents)
    drawn.update_xaxes(range=[across.min() - 0.7, across.max() + 0.7])
    drawn.update_yaxes(range=[-tree.depth - 0.5, 0.5])
    return drawn.update_layout(margin={"l": 20, "r": 20, "b": 10}, legend={"itemsizing": "constant"})


def _draw_nodes(
    drawn: go.Figure,
    tree: TokenTree,
    states: Sequence[str],
    styles: States,
    marks: Sequence[str],
    *,
    size: float,
    hover: Sequence[str] | None = None,
    place: Mapping[str, int] | None = None,
) -> None:
    """Draw each node in the style of its state, with its mark, and the line to its parent, the first states on top.

    A state without a node has its place in the legend unless the figure has panels.
    """
    across, down, panel = leaf_places(tree.parents), -tree.depths, place or {}
    for line in reversed(dict.fromkeys(line for _, _, line in styles.values())):
        ends = [(n, tree.parents[n]) for n in range(1, len(tree)) if styles[states[n]][2] == line]
        x, y = ([value for a, b in ends for value in (axis[b], axis[a], None)] for axis in (across, down))
        look: dict[str, Any] = {"line": dict(zip(("color", "width", "dash"), line, strict=True)), "hoverinfo": "skip"}
        drawn.add_scatter(x=x, y=y, mode="lines", **look, showlegend=False, **panel)
    for state, ((fill, edge, ink), meaning, _) in styles.items():
        nodes = [n for n in range(len(tree)) if states[n] == state]
        look = {"mode": "markers+text", "text": [marks[n] for n in nodes], "textfont": {"size": 13, "color": ink}}
        look |= {"hovertemplate": "%{text}<extra>" + meaning + "</extra>"}
        if hover is not None:
            look |= {"customdata": [hover[n] for n in nodes], "hovertemplate": "%{customdata}<extra></extra>"}
        look |= {"name": meaning, "marker": {"size": size, "color": fill, "line": {"color": edge, "width": 2}}}
        x, y = ([axis[n] for n in nodes] or [None] for axis in (across, down))
        drawn.add_scatter(x=x, y=y, **look, showlegend=False if panel and not nodes else None, **panel)


def _names(tree: TokenTree, letters: Sequence[str]) -> list[str]:
    """Return what nodes are called: their number, and their token but for node 0."""
    return ["X<sub>0</sub>", *(f"X<sub>{n}</sub>={letters[token]}" for n, token in enumerate(tree.tokens[1:], 1))]


def _draw_step(drawn: go.Figure, tree: TokenTree, step: Row, letters: Sequence[str], place: dict[str, int]) -> None:
    path, names, across = [0, *tree.path(step["node"])], _names(tree, letters), leaf_places(tree.parents)
    states = [
        "gone" if n in step["gone"] else "tested" if n == step["node"] else "entered" if n in path else "waiting"
        for n in range(len(tree))
    ]
    _draw_nodes(drawn, tree, states, STATES, names, size=40, place=place)
    drawn.update_xaxes(range=[across.min() - 0.6, across.max() + 0.6], **place)
    drawn.update_yaxes(range=[-tree.depth - 0.45, 0.95], **place)
    heading = f"<b>{theme.escaped(step['text'])}</b>: {fraction(step['acceptance'])}"
    drawn.add_annotation(x=float(across.mean()), y=0.85, text=heading, showarrow=False, font_size=14, **place)


def _draw_weights(drawn: go.Figure, tree: TokenTree, step: Row, letters: Sequence[str], place: dict[str, int]) -> None:
    names, values, distribution = [*letters, "stop"], [*step["weights"], step["stop"]], step["distribution"]
    tried, outlines = None, [None] * len(letters)
    if distribution is not None:
        tried, outlines = int(tree.tokens[step["node"]]), distribution
    fills = [theme.BONUS[1] if token == tried else WEIGHT for token in range(len(letters))]
    hover = {"hovertemplate": "r(%{x}) = %{y:.4f}<extra></extra>", "showlegend": False}
    drawn.add_bar(x=names, y=values, marker_color=[*fills, theme.REJECTED[1]], **hover, **place)
    hover = {"hovertemplate": "q(%{x}) = %{y:.4f}<extra></extra>", "legendrank": 2000}
    name = "q, the distribution the token was drawn from"
    drawn.add_bar(x=list(letters), y=outlines, marker=OUTLINE, name=name, **hover, **place)
    against = "" if distribution is None else f", q of X<sub>{step['node']}</sub>"
    caption = f"<span style='color:{WEIGHT_TEXT}'>r of X<sub>{step['of']}</sub></span>{against}"
    corner = {"xref": "x domain", "x": 0.5, "yref": "y domain", "y": 1.02, "yanchor": "bottom"}
    drawn.add_annotation(text=caption, showarrow=False, font_size=13, **corner, **place)
    below = [fraction(value) for value in (distribution or ())] + [""] * len(names)
    marks = [
        f"{name}<br><span style='color:{WEIGHT_TEXT}'>{fraction(value)}</span><br>{under}"
        for name, value, under in zip(names, values, below, strict=False)
    ]
    drawn.update_xaxes(tickvals=names, ticktext=marks, tickfont_size=13, tickangle=0, ticks="", visible=True, **place)
    drawn.update_yaxes(visible=True, range=[0, 1.12], tickvals=[0, 0.5, 1], showticklabels=place["col"] == 1, **place)


def fraction(value: float) -> str:
    """Return a number as a fraction, "7/11", or as a decimal number if no denominator up to 1,000 fits."""
    near = Fraction(value).limit_denominator(1000)
    return str(near) if abs(near - value) < ROUNDING else f"{value:.4g}"
