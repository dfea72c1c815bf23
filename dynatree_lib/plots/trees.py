"""Pictures of token trees: a tree, several trees below each other, the attention mask, the positions.

Tokens are labelled as a reader can see them: spaces and line ends visible, long labels shortened.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from plotly import graph_objects as go

from ..decoding import Iteration
from ..masks import ancestor_matrix
from ..tree import TokenTree
from ..verifiers.base import Verdict
from . import theme

ROW_HEIGHT = 34  # px between two leaves
LEVEL_WIDTH = 132  # px between two levels, wide enough for a label
LONGEST_LABEL = 11  # characters
HEADING = 1.3  # rows of height that a heading takes
SHOWN_PREFIX = 6  # prefix columns drawn of a long prefix
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})

ROLES = {
    "node 0": ("node 0: last committed token", theme.NODE0),
    "accepted": ("accepted by the target", theme.ACCEPTED),
    "bonus": ("bonus: the target's own next token", theme.BONUS),
    "last": ("drafted, and the last token of the text", theme.BONUS),
    "rejected": ("rejected", theme.REJECTED),
    "drafted": ("drafted", theme.DRAFTED),
    "below tau": ("path probability below tau", theme.BELOW_TAU),
}
"""Role of a drawn token -> its text in the legend, and its (fill, line, text) colours."""


# -------------------------------------------------------------------------------------------------------------- tokens
def label(token: int, tokenizer: Any = None, longest: int = 14) -> str:
    """Return a token as a label of at most `longest` characters; its number where there is no tokenizer."""
    if tokenizer is None:
        return str(token)
    text = tokenizer.decode([int(token)]).translate(VISIBLE) or f"#{token}"
    text = re.sub("␣{4,}", lambda run: f"␣×{len(run[0])}", text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def pieces(tokens: Sequence[int], tokenizer: Any = None) -> list[str]:
    """Return the text of each token, so that the texts join to the decoded text.

    A character of several byte tokens belongs to the last of them; the earlier tokens have empty texts.
    """
    if tokenizer is None:
        return [f"{token} " for token in tokens]
    texts, before = [], ""
    for end in range(1, len(tokens) + 1):
        text = tokenizer.decode(list(tokens[:end]))
        unfinished = text.endswith("�") and end < len(tokens)
        texts.append("" if unfinished else text[len(before) :])
        before = before if unfinished else text
    return texts


# --------------------------------------------------------------------------------------------------------------- trees
def draft_tree(
    tree: Iteration | TokenTree, tokenizer: Any = None, *, tau: float | None = None, title: str = ""
) -> go.Figure:
    """Draw a drafted tree from left to right, each node with its text and draft probability.

    Args:
        tree: an `Iteration`, whose accepted path and bonus token are drawn, or a `TokenTree`.
        tokenizer: shows token text instead of numbers.
        tau: nodes whose path probability is below it are drawn pale, because pruning is about them.
        title: above the figure; by default the counts.
    """
    verdict = None
    if isinstance(tree, Iteration):
        verdict, tree = tree.verdict, tree.tree
    counts = f"A tree of {len(tree) - 1} drafted nodes, {tree.depth} levels deep"
    if verdict is not None:
        accepted = len(verdict.path)
        counts = f"{len(tree) - 1} nodes drafted, {accepted} accepted, {accepted + 1} tokens committed by one target "
        counts += "forward"
    boxes = _boxes(tree, verdict, tau)
    boxes["text"] = [theme.escaped(label(token, tokenizer, LONGEST_LABEL)) for token in boxes["token"]]
    boxes["full_text"] = [theme.escaped(label(token, tokenizer, 60)) for token in boxes["token"]]
    bottom, levels = boxes["y"].max(), int(boxes["level"].max()) + 1
    drawn = theme.figure(title or counts, height=round(ROW_HEIGHT * (bottom + 1)) + 120)
    drawn.update_layout(margin={"l": 10, "r": 10, "t": 85, "b": 10}, hovermode="closest", legend_itemsizing="constant")
    if levels > 7:
        drawn.update_layout(width=LEVEL_WIDTH * levels + 40)
    drawn.update_xaxes(visible=False, range=[-0.08, max(levels, 4) + 0.05])
    drawn.update_yaxes(visible=False, range=[bottom + 0.6, -0.6])
    _draw_edges(drawn, boxes)
    _draw_boxes(drawn, boxes)
    return drawn


def _boxes(tree: TokenTree, verdict: Verdict | None, tau: float | None) -> pd.DataFrame:
    """Return one row per drawn token: the nodes, and the bonus token below the last accepted node.

    Where a text ended inside an accepted path, its last token is a drafted node, and there is no bonus token.
    """
    boxes = pd.DataFrame({"token": tree.tokens, "parent": tree.parents, "level": tree.depths})
    boxes["probability"], boxes["cumulative"] = np.exp(tree.logprobs), np.exp(tree.cumulative)
    boxes["role"] = "drafted" if verdict is None else "rejected"
    if tau is not None:
        boxes.loc[boxes["cumulative"] < tau, "role"] = "below tau"
    if verdict is not None:
        boxes.loc[list(verdict.path), "role"] = "accepted"
        end = verdict.path[-1] if verdict.path else 0
        last = (boxes["parent"] == end) & (boxes["token"] == verdict.next_token)
        boxes.loc[last, "role"] = "last"
        if not last.any():
            boxes.loc[len(boxes)] = [verdict.next_token, end, len(verdict.path) + 1, np.nan, np.nan, "bonus"]
    boxes.loc[0, ["role", "probability", "cumulative"]] = ["node 0", np.nan, np.nan]
    boxes["y"] = leaf_places(boxes["parent"].to_numpy())
    return boxes


def leaf_places(parents: np.ndarray) -> np.ndarray:
    """Return the (n,) place of each node beside the others: leaves one apart in draw order, a parent amid its children.

    `parents` is (n,) as in a `TokenTree`.
    """
    paths = [(0,)]
    for node, parent in enumerate(parents[1:], start=1):
        paths.append((*paths[parent], node))
    inner = sorted({*parents.tolist()} - {-1}, reverse=True)
    leaves = sorted({*range(len(parents))} - {*inner}, key=paths.__getitem__)
    places = np.zeros(len(parents))
    places[leaves] = np.arange(len(leaves))
    for node in inner:
        children = np.flatnonzero(parents == node)
        places[node] = (places[children[0]] + places[children[-1]]) / 2
    return places


def _draw_edges(drawn: go.Figure, boxes: pd.DataFrame) -> None:
    strong = {"bonus": (theme.BONUS[1], 3, "dot"), "last": (theme.BONUS[1], 3.5, "solid")}
    strong["accepted"] = (theme.ACCEPTED[1], 3.5, "solid")
    kinds = boxes["role"].where(boxes["role"].isin(strong), "other")[1:]
    for kind in ("other", *strong):
        x: list[float | None] = []
        y: list[float | None] = []
        for box in boxes[1:][kinds == kind].itertuples():
            above = boxes["y"][box.parent]
            x += [box.level - 0.9, box.level - 0.13, box.level - 0.05, box.level + 0.05, None]
            y += [above, above, box.y, box.y, None]
        color, width, dash = strong.get(kind, (theme.REJECTED[1], 1.2, "solid"))
        style = {"line": {"color": color, "width": width, "dash": dash}, "name": f"edges: {kind}"}
        if x:
            drawn.add_scatter(x=x, y=y, mode="lines", hoverinfo="skip", showlegend=False, **style)


def _draw_boxes(drawn: go.Figure, boxes: pd.DataFrame) -> None:
    """Draw labels as annotations, and behind them a trace for each role, for the legend and for hovering."""
    hover = []
    for box in boxes.itertuples():
        lines = [f"<b>{box.full_text}</b> (token {box.token})", ROLES[box.role][0]]
        text, look = f"<b>{box.text}</b>", {"showarrow": False, "xanchor": "left", "borderpad": 3}
        if not np.isnan(box.probability):
            lines.insert(1, f"node {box.Index}, parent {box.parent}, level {box.level}")
            lines.append(f"draft probability {box.probability:.4f}, of the path {box.cumulative:.4f}")
            text += " <.01" if box.probability < 0.005 else f" {box.probability:.2f}".replace("0.", ".", 1)
        hover.append("<br>".join(lines))
        fill, line, ink = ROLES[box.role][1]
        look |= {"bgcolor": fill, "bordercolor": line, "borderwidth": 1.3, "font": {"color": ink, "size": 13}}
        drawn.add_annotation(x=box.level, y=box.y, text=text, hovertext=hover[-1], **look)
    boxes = boxes.assign(hover=hover)
    for role, (meaning, (fill, line, _)) in ROLES.items():
        part = boxes[boxes["role"] == role]
        marker = {"symbol": "square", "size": 7, "color": fill, "line": {"color": line, "width": 1.5}}
        style = {"mode": "markers", "marker": marker, "hovertemplate": "%{text}<extra></extra>", "name": meaning}
        if len(part):
            drawn.add_scatter(x=list(part["level"] + 0.03), y=list(part["y"]), text=list(part["hover"]), **style)


def stacked_trees(iterations: Mapping[str, Iteration], tokenizer: Any = None, *, title: str = "") -> go.Figure:
    """Draw an iteration of several methods below each other, for example all from the same place in a text.

    Args:
        iterations: heading -> iteration; drawn from top to bottom.
        tokenizer: shows token text instead of numbers.
        title: above the figure.
    """
    drawn, top, levels = theme.figure(title), 0.0, 4.0
    for heading, iteration in iterations.items():
        part, count = draft_tree(iteration, tokenizer), iteration.committed
        text = f"<b>{theme.escaped(heading)}</b>: {len(iteration.tree) - 1} drafted, "
        text += f"{count} {'token' if count == 1 else 'tokens'} committed by one target forward"
        drawn.add_annotation(x=0, y=top, text=text, showarrow=False, xanchor="left", font_size=14)
        top += HEADING
        for trace in part.data:
            drawn.add_trace(trace.update(y=[None if y is None else y + top for y in trace.y]))
        for note in part.layout.annotations:
            drawn.add_annotation(note.update(y=note.y + top))
        top += part.layout.yaxis.range[0] + HEADING / 2
        levels = max(levels, part.layout.xaxis.range[1])
    drawn.update_xaxes(visible=False, range=[-0.08, levels])
    drawn.update_yaxes(visible=False, range=[top - HEADING / 2, -0.8])
    drawn.update_layout(height=round(ROW_HEIGHT * (top + 0.3)) + 110, hovermode="closest", legend_itemsizing="constant")
    if levels > 7:
        drawn.update_layout(width=round(LEVEL_WIDTH * levels) + 40)
    return theme.share_legend(drawn).update_layout(margin={"l": 10, "r": 10, "t": 95, "b": 10})


# ------------------------------------------------------------------------------------------------- masks and positions
KINDS = {
    "not seen": "#f4f4f4",
    "not seen: on another branch at the same level": "#f3cdb8",
    "prefix": "#c4d9ea",
    "ancestor": "#56b4e9",
    "the node itself": "#0b4f7d",
}
"""Kinds of a mask's entries, with their colours."""


def tree_mask(
    tree: TokenTree, prefix: int, tokenizer: Any = None, *, prefix_tokens: Sequence[int] = (), title: str = ""
) -> go.Figure:
    """Draw the paper's A (section 3.4): a row per scored node, a column per key that the node might look at.

    Args:
        tree: n nodes.
        prefix: t, KV entries before node 0; of a long prefix the last columns are drawn.
        tokenizer: labels with token text.
        prefix_tokens: (t,) the prefix, for column labels.
        title: above the figure.
    """
    nodes = _names(tree, tokenizer)
    shown = min(prefix, SHOWN_PREFIX)
    columns = [f"x{prefix - shown + place + 1}" for place in range(shown)]
    if prefix_tokens:
        ends = prefix_tokens[len(prefix_tokens) - shown :]
        columns = [f"{x}: {theme.escaped(label(token, tokenizer))}" for x, token in zip(columns, ends, strict=True)]
    columns += nodes
    same_level = tree.depths[:, None] == tree.depths[None, :]
    kinds = np.where(np.eye(len(tree), dtype=bool), 4, np.where(ancestor_matrix(tree.parents), 3, same_level))
    kinds = np.hstack([np.full((len(tree), shown), 2), kinds])
    texts = [
        [f"{node} → {column}: {list(KINDS)[kind]}" for column, kind in zip(columns, row, strict=True)]
        for node, row in zip(nodes, kinds, strict=True)
    ]
    title = title or f"Tree attention mask: {len(tree)} rows, {prefix} + {len(tree)} columns"
    drawn = theme.figure(title, x="seen (columns: end of the prefix | nodes)", y="who looks (rows)")
    drawn.update_layout(height=26 * len(tree) + 230, margin={"l": 120, "r": 30, "t": 110, "b": 20})
    scale = [(place / 5, color) for kind, color in enumerate(KINDS.values()) for place in (kind, kind + 1)]
    look = {"zmin": -0.5, "zmax": 4.5, "colorscale": scale, "showscale": False, "xgap": 1, "ygap": 1}
    drawn.add_heatmap(z=kinds, text=texts, hovertemplate="%{text}<extra></extra>", name="mask", **look)
    for kind, color in KINDS.items():
        marker = {"symbol": "square", "size": 13, "color": color, "line": {"color": "#999999", "width": 1}}
        drawn.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=kind)
    drawn.add_vline(x=shown - 0.5, line={"color": theme.INK, "width": 2})
    drawn.update_xaxes(tickvals=list(range(len(columns))), ticktext=columns, tickangle=-60)
    drawn.update_yaxes(tickvals=list(range(len(nodes))), ticktext=nodes, autorange="reversed", ticks="")
    return drawn.update_xaxes(showgrid=False).update_yaxes(showgrid=False)


def positions(tree: TokenTree, prefix: int, tokenizer: Any = None, *, title: str = "") -> go.Figure:
    """Draw the nodes' positions after `prefix` tokens: by depth, and in the nodes' order, as a model numbers them."""
    nodes = list(range(len(tree)))
    drawn = theme.figure(title or "Position of each node", x="node, in scored order", y="position", height=430)
    for name, places, symbol in (
        ("by depth: siblings share a position", (prefix + tree.depths).tolist(), "circle"),
        ("by order: assumed by a model without position_ids", [prefix + node for node in nodes], "x"),
    ):
        drawn.add_scatter(x=nodes, y=places, mode="markers", name=name, marker={"size": 11, "symbol": symbol})
    return drawn.update_xaxes(tickvals=nodes, ticktext=_names(tree, tokenizer), tickangle=-60)


def _names(tree: TokenTree, tokenizer: Any) -> list[str]:
    return [theme.escaped(f"{node}: {label(token, tokenizer)}") for node, token in enumerate(tree.tokens)]
