"""Pictures of one token tree: the tree itself, its attention mask, its positions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from plotly import graph_objects as go

from ..decoding import Iteration
from ..masks import ancestor_matrix
from ..tree import TokenTree
from ..verifiers.base import Verdict
from . import theme
from .tokens import label

ROW_HEIGHT = 34  # px between two leaves
LEVEL_WIDTH = 132  # px between two levels, room for a label
LONGEST_LABEL = 11
SHOWN_PREFIX = 6  # prefix columns drawn of a long prefix


@dataclass(frozen=True)
class _Box:
    """One drawn token: a node of the tree, or the bonus token, which hangs below the last accepted node."""

    token: int
    parent: int  # index of its parent's box, -1 for node 0
    level: int
    role: str  # a key of STYLES
    probability: float | None
    cumulative: float | None


STYLES = {
    "node 0": theme.NODE0,
    "accepted": theme.ACCEPTED,
    "bonus": theme.BONUS,
    "last": theme.BONUS,
    "rejected": theme.REJECTED,
    "drafted": theme.DRAFTED,
    "below tau": theme.BELOW_TAU,
}
MEANING = {
    "node 0": "node 0: last committed token",
    "accepted": "accepted by the target",
    "bonus": "bonus: the target's own next token",
    "last": "drafted, and the last token of the text",
    "rejected": "rejected",
    "drafted": "drafted",
    "below tau": "path probability below tau",
}


def draft_tree(
    tree: Iteration | TokenTree,
    tokenizer: Any = None,
    verdict: Verdict | None = None,
    *,
    tau: float | None = None,
    title: str = "",
) -> go.Figure:
    """A drafted tree from left to right, each node with its text and draft probability.

    Args:
        tree: a `Round` (its verdict is drawn), or a `TokenTree`.
        tokenizer: shows token text instead of numbers.
        verdict: for a `TokenTree`: its accepted path and bonus token; without one nodes are neither kept nor rejected.
        tau: nodes whose path probability is below it are drawn pale, as what pruning is about.
        title: above the figure; by default the counts.
    """
    if isinstance(tree, Iteration):
        verdict, tree = tree.verdict, tree.tree
    boxes = _boxes(tree, verdict, tau)
    height = _layout(boxes)
    levels = max(box.level for box in boxes) + 1
    drawn = theme.figure(title or _count(tree, verdict), height=round(ROW_HEIGHT * (height.max() + 1)) + 120)
    drawn.update_layout(margin={"l": 10, "r": 10, "t": 85, "b": 10}, hovermode="closest", legend_itemsizing="constant")
    if levels > 7:
        drawn.update_layout(width=LEVEL_WIDTH * levels + 40)
    drawn.update_xaxes(visible=False, range=[-0.08, max(levels, 4) + 0.05])
    drawn.update_yaxes(visible=False, range=[height.max() + 0.6, -0.6])
    _draw_edges(drawn, boxes, height)
    for role in (role for role in STYLES if any(box.role == role for box in boxes)):
        _draw_role(drawn, boxes, height, role, tokenizer)
    return drawn


def _count(tree: TokenTree, verdict: Verdict | None) -> str:
    if verdict is None:
        return f"A tree of {len(tree) - 1} drafted nodes, {tree.depth} levels deep"
    kept = len(verdict.path)
    return f"{len(tree) - 1} nodes drafted, {kept} accepted, {kept + 1} tokens committed by one target forward"


def _boxes(tree: TokenTree, verdict: Verdict | None, tau: float | None) -> list[_Box]:
    chances = np.exp(tree.cumulative)
    roles = _roles(tree, verdict, chances, 0.0 if tau is None else tau)
    boxes = [_Box(int(tree.tokens[0]), -1, 0, "node 0", None, None)]
    for node in range(1, len(tree)):
        chance = math.exp(tree.logprobs[node])
        parent, level = int(tree.parents[node]), int(tree.depths[node])
        boxes.append(_Box(int(tree.tokens[node]), parent, level, roles[node], chance, float(chances[node])))
    if verdict is not None and "last" not in roles:
        last = verdict.path[-1] if verdict.path else 0
        boxes.append(_Box(verdict.next_token, last, len(verdict.path) + 1, "bonus", None, None))
    return boxes


def _roles(tree: TokenTree, verdict: Verdict | None, chances: np.ndarray, tau: float) -> list[str]:
    """(n,) role of each node; where a text ended inside an accepted path its last token is a drafted one."""
    roles = ["below tau" if chance < tau else "drafted" if verdict is None else "rejected" for chance in chances]
    if verdict is not None:
        for node in verdict.path:
            roles[node] = "accepted"
        for node in tree.children(verdict.path[-1] if verdict.path else 0):
            if tree.tokens[node] == verdict.next_token:
                roles[node] = "last"
    return roles


def _layout(boxes: Sequence[_Box]) -> np.ndarray:
    """(n,) vertical place of each box: leaves one row apart in draw order, a parent in the middle of its children."""
    children: list[list[int]] = [[] for _ in boxes]
    for index, box in enumerate(boxes[1:], start=1):
        children[box.parent].append(index)
    place, free, stack = np.zeros(len(boxes)), 0, [(0, False)]
    while stack:
        index, done = stack.pop()
        if not children[index]:
            place[index] = free
            free += 1
        elif done:
            place[index] = (place[children[index][0]] + place[children[index][-1]]) / 2
        else:
            stack.append((index, True))
            stack += [(child, False) for child in reversed(children[index])]
    return place


def _draw_edges(drawn: go.Figure, boxes: Sequence[_Box], height: np.ndarray) -> None:
    kinds = {
        "bonus": (theme.BONUS[1], 3, "dot"),
        "last": (theme.BONUS[1], 3.5, "solid"),
        "accepted": (theme.ACCEPTED[1], 3.5, "solid"),
    }
    for kind in ("other", *kinds):
        x: list[float | None] = []
        y: list[float | None] = []
        for index, box in enumerate(boxes):
            if box.parent < 0 or (box.role if box.role in kinds else "other") != kind:
                continue
            x += [box.level - 1 + 0.1, box.level - 0.13, box.level - 0.05, box.level + 0.05, None]
            y += [height[box.parent], height[box.parent], height[index], height[index], None]
        color, width, dash = kinds.get(kind, (theme.REJECTED[1], 1.2, "solid"))
        line = {"color": color, "width": width, "dash": dash}
        if x:
            drawn.add_scatter(
                x=x, y=y, mode="lines", line=line, hoverinfo="skip", showlegend=False, name=f"edges: {kind}"
            )


def _draw_role(drawn: go.Figure, boxes: Sequence[_Box], height: np.ndarray, role: str, tokenizer: Any) -> None:
    """Boxes of one role: annotations for the labels, and a trace behind them for the legend and for hovering."""
    fill, line, ink = STYLES[role]
    chosen = [index for index, box in enumerate(boxes) if box.role == role]
    drawn.add_scatter(
        x=[boxes[index].level + 0.03 for index in chosen],
        y=[height[index] for index in chosen],
        mode="markers",
        marker={"symbol": "square", "size": 7, "color": fill, "line": {"color": line, "width": 1.5}},
        text=[_hover(index, boxes[index], tokenizer) for index in chosen],
        hovertemplate="%{text}<extra></extra>",
        name=MEANING[role],
    )
    for index in chosen:
        drawn.add_annotation(
            x=boxes[index].level,
            y=height[index],
            text=_text(boxes[index], tokenizer),
            showarrow=False,
            xanchor="left",
            bgcolor=fill,
            bordercolor=line,
            borderwidth=1.3,
            borderpad=3,
            font={"color": ink, "size": 13},
            hovertext=_hover(index, boxes[index], tokenizer),
        )


def _text(box: _Box, tokenizer: Any) -> str:
    text = f"<b>{theme.escaped(label(box.token, tokenizer, LONGEST_LABEL))}</b>"
    return text if box.probability is None else f"{text} {_short(box.probability)}"


def _short(probability: float) -> str:
    return "<.01" if probability < 0.005 else f"{probability:.2f}".replace("0.", ".", 1)


def _hover(index: int, box: _Box, tokenizer: Any) -> str:
    text = theme.escaped(label(box.token, tokenizer, 60))
    lines = [f"<b>{text}</b> (token {box.token})", MEANING[box.role]]
    if box.probability is not None:
        lines.insert(1, f"node {index}, parent {box.parent}, level {box.level}")
        lines.append(f"draft probability {box.probability:.4f}, of the path {box.cumulative:.4f}")
    return "<br>".join(lines)


KINDS = ("not seen", "not seen: on another branch at the same level", "prefix", "ancestor", "the node itself")
KIND_COLORS = ("#f4f4f4", "#f3cdb8", "#c4d9ea", "#56b4e9", "#0b4f7d")


def tree_mask(
    tree: TokenTree, prefix: int, tokenizer: Any = None, *, prefix_tokens: Sequence[int] = (), title: str = ""
) -> go.Figure:
    """The paper's A (section 3.4) as a picture: one row per scored node, one column per key it might look at.

    Args:
        tree: n nodes.
        prefix: t, rows of the cache before node 0; of a long prefix the last columns are drawn.
        tokenizer: labels with token text.
        prefix_tokens: (t,) the prefix, for column labels.
        title: above the figure.
    """
    shown = min(prefix, SHOWN_PREFIX)
    kinds = np.hstack([np.full((len(tree), shown), 2), _node_kinds(tree)])
    names = [f"{node}: {label(token, tokenizer)}" for node, token in enumerate(tree.tokens)]
    ends = prefix_tokens[len(prefix_tokens) - shown :] if prefix_tokens else [None] * shown
    columns = [
        f"x{prefix - shown + i + 1}" + ("" if t is None else f": {label(t, tokenizer)}") for i, t in enumerate(ends)
    ]
    drawn = theme.figure(title or f"Tree attention mask: {len(tree)} rows, {prefix} + {len(tree)} columns")
    drawn.update_layout(height=26 * len(tree) + 230, margin={"l": 120, "r": 30, "t": 110, "b": 20})
    _draw_kinds(drawn, kinds, names, [*columns, *names])
    drawn.add_vline(x=shown - 0.5, line={"color": theme.INK, "width": 2})
    drawn.update_xaxes(title_text="seen (columns: end of the prefix | nodes)", tickangle=-60)
    drawn.update_yaxes(title_text="who looks (rows)", autorange="reversed", ticks="")
    return drawn


def _node_kinds(tree: TokenTree) -> np.ndarray:
    """(n, n) index into `KINDS`."""
    sees = ancestor_matrix(tree.parents)
    level = tree.depths[:, None] == tree.depths[None, :]
    return np.where(np.eye(len(tree), dtype=bool), 4, np.where(sees, 3, np.where(level, 1, 0)))


def _draw_kinds(drawn: go.Figure, kinds: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    steps = [(place, color) for i, color in enumerate(KIND_COLORS) for place in (i / 5, (i + 1) / 5)]
    words = [
        [f"{theme.escaped(r)} → {theme.escaped(c)}: {KINDS[k]}" for c, k in zip(columns, row, strict=True)]
        for r, row in zip(rows, kinds, strict=True)
    ]
    drawn.add_heatmap(
        z=kinds,
        zmin=-0.5,
        zmax=4.5,
        colorscale=steps,
        showscale=False,
        xgap=1,
        ygap=1,
        text=words,
        hovertemplate="%{text}<extra></extra>",
        name="mask",
    )
    for kind, color in zip(KINDS, KIND_COLORS, strict=True):
        marker = {"symbol": "square", "size": 13, "color": color, "line": {"color": "#999999", "width": 1}}
        drawn.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=kind)
    drawn.update_xaxes(tickvals=list(range(len(columns))), ticktext=[theme.escaped(c) for c in columns], showgrid=False)
    drawn.update_yaxes(tickvals=list(range(len(rows))), ticktext=[theme.escaped(r) for r in rows], showgrid=False)


def positions(tree: TokenTree, prefix: int, tokenizer: Any = None, *, title: str = "") -> go.Figure:
    """Positions of the nodes after `prefix` tokens: by depth, and as a model numbers the rows when it is not told."""
    names = [f"{node}: {theme.escaped(label(token, tokenizer))}" for node, token in enumerate(tree.tokens)]
    nodes = list(range(len(tree)))
    drawn = theme.figure(title or "Position of each node", x="node, in the order of the rows", y="position", height=430)
    for name, place, color, symbol in (
        ("by depth: siblings share a position", prefix + tree.depths, theme.SERIES_COLORS[0], "circle"),
        (
            "by row: what a model assumes without position_ids",
            prefix + np.arange(len(tree)),
            theme.SERIES_COLORS[1],
            "x",
        ),
    ):
        drawn.add_scatter(
            x=nodes, y=place.tolist(), mode="markers", name=name, marker={"size": 11, "symbol": symbol, "color": color}
        )
    drawn.update_xaxes(tickvals=nodes, ticktext=names, tickangle=-60)
    return drawn
