"""Pictures of token trees: a tree, several trees below each other, the attention mask, the positions.

Tokens are labelled as a reader can see them: spaces and line ends visible, long labels shortened.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
from plotly import graph_objects as go

from ..checks import is_whole, of_kind, whole
from ..decoding import Iteration
from ..masks import ancestor_matrix
from ..models.texts import label
from ..tree import TokenTree
from . import theme

ROW_HEIGHT = 34  # px between two leaves
LEVEL_WIDTH = 132  # px between two levels, wide enough for a label
LONGEST_LABEL = 11  # characters
NARROW = 100  # px between two levels where there are columns
GAP = 0.4  # levels between two columns
HEADING = 1.2  # rows of height that a heading takes
MASK_MARK = "#b5179e"  # line over the cells of a mask, which are light on every page, and the gaps, which are not
SHOWN_PREFIX = 6  # prefix columns drawn of a long prefix

Style = tuple[str, tuple[str, str, str]]
ROLES: Mapping[str, Style] = {
    "node 0": ("node 0: last committed token", theme.NODE0),
    "accepted": ("accepted by the target", theme.ACCEPTED),
    "bonus": ("bonus: the target's own next token", theme.BONUS),
    "last": ("drafted, and the last token of the text", theme.BONUS),
    "rejected": ("rejected", theme.REJECTED),
    "drafted": ("drafted", theme.DRAFTED),
    "below tau": ("path probability below tau", theme.BELOW_TAU),
}
"""Role of a drawn token -> its text in the legend, and its (fill, line, text) colours."""
STRONG = ("accepted", "bonus", "last")
"""Roles with a strong edge."""
ADDED = ("bonus", "added")
"""Roles with a dotted edge: tokens that the target adds."""


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
    of_kind(
        "The tree", tree, (Iteration, TokenTree), "give an iteration, such as generation.iterations[0], or its tree"
    )
    nodes = tree.tree if isinstance(tree, Iteration) else tree
    counts = f"A tree of {len(nodes) - 1} drafted nodes, {nodes.depth} levels deep"
    if isinstance(tree, Iteration):
        counts = f"{len(nodes) - 1} nodes drafted, {accepted_count(tree)} accepted, {tree.committed} tokens emitted by "
        counts += "one target forward"
    return draw_trees([("", _verified_boxes(tree, tokenizer, tau))], ROLES, title=title or counts)


def stacked_trees(iterations: Mapping[str, Iteration], tokenizer: Any = None, *, title: str = "") -> go.Figure:
    """Draw an iteration of several methods below each other, for example all from the same place in a text.

    Args:
        iterations: heading -> iteration; drawn from top to bottom.
        tokenizer: shows token text instead of numbers.
        title: above the figure.

    Raises:
        TypeError: for what is no mapping to iterations.
    """
    of_kind("iterations", iterations, Mapping, "give {heading: iteration, ...}")
    parts = []
    for heading, iteration in iterations.items():
        of_kind(f"The iteration of {heading!r}", iteration, Iteration, "give one, such as generation.iterations[0]")
        count = iteration.committed
        text = f"<b>{theme.escaped(heading)}</b>: {len(iteration.tree) - 1} drafted, "
        text += f"{count} {'token' if count == 1 else 'tokens'} emitted by one target forward"
        parts.append((text, _verified_boxes(iteration, tokenizer)))
    return draw_trees(parts, ROLES, title=title)


def last_drafted(iteration: Iteration) -> list[int]:
    """Return the nodes that are the last token of a text that ended inside an accepted path; none elsewhere.

    The verdict of such an iteration is cut: its next token is a drafted node, no bonus token. Siblings that were drawn
    with the same token are all returned.
    """
    tree, path = iteration.tree, iteration.verdict.path
    end = path[-1] if path else 0
    nodes: list[int] = np.flatnonzero((tree.parents == end) & (tree.tokens == iteration.verdict.next_token)).tolist()
    return nodes


def accepted_count(iteration: Iteration) -> int:
    """Return how many drafted tokens the iteration added to the text."""
    return len(iteration.verdict.path) + bool(last_drafted(iteration))


def verified(iteration: Iteration) -> tuple[TokenTree, list[str]]:
    """Return an iteration's tree with the bonus token below the last accepted node, and each node's role in `ROLES`.

    Where a text ended inside an accepted path, its last token is a drafted node, and there is no bonus token.
    """
    tree, path, token = iteration.tree, iteration.verdict.path, iteration.verdict.next_token
    end = path[-1] if path else 0
    roles = ["node 0", *("accepted" if node in path else "rejected" for node in range(1, len(tree)))]
    last = last_drafted(iteration)
    for node in last:
        roles[node] = "last"
    if not last:
        tree, roles = TokenTree.build([*tree.tokens, token], [*tree.parents, end]), [*roles, "bonus"]
    return tree, roles


def _verified_boxes(tree: Iteration | TokenTree, tokenizer: Any, tau: float | None = None) -> pd.DataFrame:
    """Return `tree_boxes` of a tree, of an iteration as it was `verified`."""
    if isinstance(tree, Iteration):
        nodes, (shown, roles) = tree.tree, verified(tree)
    else:
        nodes = shown = tree
        roles = ["node 0", *["drafted"] * (len(tree) - 1)]
    probability, cumulative = np.exp(nodes.logprobs), np.exp(nodes.cumulative)
    notes, details = [""] * len(shown), [""] * len(shown)
    for node in range(1, len(nodes)):
        if tau is not None and cumulative[node] < tau and roles[node] in ("drafted", "rejected"):
            roles[node] = "below tau"
        share = probability[node]
        notes[node] = " <.01" if share < 0.005 else f" {share:.2f}".replace("0.", ".", 1)
        place = f"node {node}, parent {nodes.parents[node]}, level {nodes.depths[node]}"
        details[node] = f"<br>{place}<br>draft probability {share:.4f}, of the path {cumulative[node]:.4f}"
    return tree_boxes(shown, roles, tokenizer, notes=notes, details=details)


def tree_boxes(
    tree: TokenTree,
    roles: Sequence[str],
    tokenizer: Any = None,
    *,
    notes: Sequence[str] | None = None,
    details: Sequence[str] | None = None,
    ringed: Collection[int] = (),
) -> pd.DataFrame:
    """Return a row per node, as `draw_trees` takes them.

    Args:
        tree: n nodes.
        roles: (n,) of each node, which decides about its colours.
        tokenizer: shows token text instead of numbers.
        notes: (n,) HTML after the label.
        details: (n,) HTML shown on hovering.
        ringed: nodes with a strong frame.
    """
    boxes = pd.DataFrame({"parent": tree.parents, "level": tree.depths, "y": leaf_places(tree.parents), "role": roles})
    short, long = (
        pd.Series([theme.escaped(label(token, tokenizer, longest)) for token in tree.tokens])
        for longest in (LONGEST_LABEL, 60)
    )
    boxes["text"] = "<b>" + short + "</b>" + pd.Series(notes or [""] * len(tree))
    boxes["hover"] = "<b>" + long + "</b> (token " + pd.Series(tree.tokens).astype(str) + ")"
    boxes["hover"] += pd.Series(details or [""] * len(tree))
    return boxes.assign(ringed=boxes.index.isin(list(ringed)))


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


def draw_trees(
    parts: Sequence[tuple[str, pd.DataFrame]],
    styles: Mapping[str, Style],
    *,
    title: str,
    columns: int = 1,
    row_height: int = ROW_HEIGHT,
    ring: tuple[str, str] = ("", theme.INK),
) -> go.Figure:
    """Draw one tree or more in a grid, line by line, under one legend.

    Args:
        parts: of each tree its heading (HTML, or none) and its boxes (`tree_boxes`).
        styles: role -> what the legend says, and (fill, line, text) colours.
        title: above the figure.
        columns: trees in a line.
        row_height: px between two leaves.
        ring: what the legend says of ringed boxes, and the colour of their frame.
    """
    drawn, top, placed = theme.figure(title), 0.0, []
    wide = max(boxes["level"].max() for _, boxes in parts) + 1 + GAP
    for first in range(0, len(parts), columns):
        lowest = top
        for column, (heading, boxes) in enumerate(parts[first : first + columns]):
            left, y = column * wide, boxes["y"] + top
            if heading:
                y += HEADING
                drawn.add_annotation(x=left, y=top, text=heading, showarrow=False, xanchor="left", font_size=14)
            above = y.reindex(boxes["parent"]).to_numpy()
            placed.append(boxes.assign(x=boxes["level"] + left, y=y, above=above))
            lowest = max(lowest, y.max())
        top = lowest + 1.5
    _draw_boxes(drawn, pd.concat(placed), styles, ring)
    across = max(wide * min(columns, len(parts)) - GAP, 4.0)
    drawn.update_xaxes(visible=False, range=[-0.08, across + 0.1])
    drawn.update_yaxes(visible=False, range=[top - 0.7, -0.8])
    drawn.update_layout(height=round(row_height * (top + 0.1)) + 125, margin={"l": 10, "r": 10, "t": 110, "b": 10})
    if across > 7 or columns > 1:
        drawn.update_layout(width=round((LEVEL_WIDTH if columns == 1 else NARROW) * across) + 40)
    return theme.share_legend(drawn).update_layout(hovermode="closest", legend_itemsizing="constant")


def _draw_boxes(drawn: go.Figure, boxes: pd.DataFrame, styles: Mapping[str, Style], ring: tuple[str, str]) -> None:
    """Draw edges, labels as annotations, and behind them a trace for each role, for the legend and for hovering."""
    boxes["hover"] += "<br>" + boxes["role"].map({role: meaning for role, (meaning, _) in styles.items()})
    groups = [(role, boxes[boxes["role"] == role]) for role in styles if role in set(boxes["role"])]
    look: dict[str, Any]
    for role, part in reversed(groups):  # what was accepted lies on what was not
        ends = part[part["parent"] >= 0]
        x = (ends["x"].to_numpy()[:, None] + [-0.9, -0.13, -0.05, 0.05, np.nan]).ravel()
        y = ends[["above", "above", "y", "y", "y"]].to_numpy().ravel()
        look = {"dash": "dot" if role in ADDED else "solid", "width": 3.5 if role in STRONG else 1.3}
        look["color"] = styles[role][1][1]
        drawn.add_scatter(x=x, y=y, mode="lines", line=look, name="edges", hoverinfo="skip", showlegend=False)
    for role, part in groups:
        meaning, (fill, line, _) = styles[role]
        marker = {"symbol": "square", "size": 12, "color": fill, "line": {"color": line, "width": 1.5}}
        look = {"mode": "markers", "marker": marker, "name": meaning, "hovertemplate": "%{text}<extra></extra>"}
        drawn.add_scatter(x=part["x"] + 0.04, y=part["y"], text=part["hover"], **look)
    if boxes["ringed"].any():
        legend_square(drawn, ring[0], "#ffffff", ring[1])
    for box in boxes.itertuples():
        fill, line, ink = styles[box.role][1]
        frame = {"bordercolor": ring[1], "borderwidth": 3} if box.ringed else {"bordercolor": line, "borderwidth": 1.3}
        look = {"showarrow": False, "xanchor": "left", "align": "left", "borderpad": 3, "bgcolor": fill}
        look |= {"font": {"color": ink, "size": 13}, "hovertext": box.hover, **frame}
        drawn.add_annotation(x=box.x, y=box.y, text=box.text, **look)


def legend_square(drawn: go.Figure, text: str, fill: str, line: str, width: float = 2) -> None:
    """Add a square of these colours to the legend."""
    marker = {"symbol": "square", "size": 13, "color": fill, "line": {"color": line, "width": width}}
    drawn.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=text, hoverinfo="skip")


# ------------------------------------------------------------------------------------------------- masks and positions
UNSEEN, BESIDE = "not seen", "not seen: on another branch at the same level"
KINDS = {UNSEEN: "#f4f4f4", BESIDE: "#f3cdb8", "prefix": "#c4d9ea", "ancestor": "#56b4e9", "the node itself": "#0b4f7d"}
"""Kinds of a mask's entries, with their colours."""
LEAK = "seen, though on another branch"
"""The kind of entry that a causal mask has and a tree mask has not."""
LEAKING = {**KINDS, LEAK: "#c44e4e"}
SIGHT: Mapping[str, Style] = {
    "the node itself": ("the node that looks", (KINDS["the node itself"], KINDS["the node itself"], "#ffffff")),
    "ancestor": ("seen: an ancestor", ("#cfe7f7", "#2b8cc4", "#0b3d5c")),
    LEAK: (LEAK, ("#f6d5d5", LEAKING[LEAK], "#6b1d1d")),
    BESIDE: (BESIDE, (KINDS[BESIDE], "#b4764f", "#5c3317")),
    UNSEEN: (UNSEEN, (KINDS[UNSEEN], "#9a9a9a", "#555555")),
}
"""Kind of a node for the one that looks -> its text in the legend, and its (fill, line, text) colours."""


def _sight(tree: TokenTree, causal: bool) -> np.ndarray:
    """Return (n, n) which kind of `LEAKING` each node is for each that looks."""
    unseen = (tree.depths[:, None] == tree.depths).astype(int)
    if causal:
        unseen = np.where(np.tri(len(tree), dtype=bool), 5, unseen)
    return np.where(np.eye(len(tree), dtype=bool), 4, np.where(ancestor_matrix(tree.parents), 3, unseen))


def seen_tree(tree: TokenTree, node: int, tokenizer: Any = None, *, causal: bool = False) -> go.Figure:
    """Draw a tree as one of its nodes sees it: itself, its ancestors, and the nodes to which it is blind.

    Args:
        tree: n nodes.
        node: the one that looks, from 0.
        tokenizer: shows token text instead of numbers.
        causal: with a causal mask in place of the tree mask, under which a node sees every earlier one.

    Raises:
        TypeError: for what is no tree.
        ValueError: for a node that the tree does not have.
    """
    check_tree(tree)
    if not is_whole(node, 0) or node >= len(tree):
        raise ValueError(f"node is {node!r}; the tree has nodes 0 to {len(tree) - 1}.")
    kinds = [*LEAKING]
    roles = [kinds[kind] for kind in _sight(tree, causal)[node]]
    seen = sum(role in ("ancestor", LEAK) for role in roles)
    title = f"What node {node} sees: the prefix, {seen} {'node' if seen == 1 else 'nodes'} and itself"
    boxes = tree_boxes(tree, roles, tokenizer, details=[f"<br>node {place}" for place in range(len(tree))])
    return draw_trees([("", boxes)], SIGHT, title=title)


def tree_mask(
    tree: TokenTree,
    prefix: int,
    tokenizer: Any = None,
    *,
    prefix_tokens: Sequence[int] = (),
    row: int | None = None,
    causal: bool = False,
    title: str = "",
) -> go.Figure:
    """Draw the paper's A (section 3.4): a row per scored node, a column per key that the node might look at.

    Args:
        tree: n nodes.
        prefix: t, KV entries before node 0; of a long prefix the last columns are drawn.
        tokenizer: labels with token text.
        prefix_tokens: (t,) the prefix, for column labels.
        row: a node whose row is framed.
        causal: draw a causal mask in place of the tree mask: every node sees every earlier one.
        title: above the figure.

    Raises:
        TypeError: for what is no tree.
        ValueError: for a prefix that is no whole number of at least 0.
    """
    _check_placed(tree, prefix)
    nodes = _names(tree, tokenizer)
    shown = min(prefix, SHOWN_PREFIX)
    columns = [f"x{prefix - shown + place + 1}" for place in range(shown)]
    if prefix_tokens:
        ends = prefix_tokens[len(prefix_tokens) - shown :]
        columns = [f"{x}: {theme.escaped(label(token, tokenizer))}" for x, token in zip(columns, ends, strict=True)]
    columns += nodes
    kinds = np.hstack([np.full((len(tree), shown), 2), _sight(tree, causal)])
    name = "Causal" if causal else "Tree attention"
    title = title or f"{name} mask: {len(tree)} rows, {prefix} + {len(tree)} columns"
    drawn = draw_mask(kinds, LEAKING if causal else KINDS, nodes, columns, title).update_xaxes(tickangle=-60)
    if row is not None:
        frame = {"line": {"color": MASK_MARK, "width": 3}, "fillcolor": "rgba(0,0,0,0)"}
        drawn.add_shape(type="rect", x0=-0.5, x1=len(columns) - 0.5, y0=row - 0.5, y1=row + 0.5, **frame)
    drawn.update_xaxes(title_text="seen (columns: end of the prefix | nodes)")
    drawn.update_yaxes(title_text="who looks (rows)")
    return drawn.add_vline(x=shown - 0.5, line={"color": MASK_MARK, "width": 2})


def draw_mask(
    cells: np.ndarray, kinds: Mapping[str, str], rows: Sequence[str], columns: Sequence[str], title: str
) -> go.Figure:
    """Draw a mask as a table in colours, under a legend.

    Args:
        cells: (rows, columns) number of the kind of each entry.
        kinds: name -> colour.
        rows: labels of who looks.
        columns: labels of what is seen.
        title: above the figure.
    """
    names, count = list(kinds), len(kinds)
    texts = [
        [f"{row} → {column}: {names[cell]}" for column, cell in zip(columns, line, strict=True)]
        for row, line in zip(rows, cells, strict=True)
    ]
    drawn = theme.figure(title, height=26 * len(rows) + 230, margin={"l": 120, "r": 60, "t": 110, "b": 40})
    scale = [(place / count, color) for kind, color in enumerate(kinds.values()) for place in (kind, kind + 1)]
    look = {"zmin": -0.5, "zmax": count - 0.5, "colorscale": scale, "showscale": False, "xgap": 1, "ygap": 1}
    drawn.add_heatmap(z=cells, text=texts, hovertemplate="%{text}<extra></extra>", name="mask", **look)
    for kind, color in kinds.items():
        legend_square(drawn, kind, color, "#999999", width=1)
    drawn.update_xaxes(tickvals=list(range(len(columns))), ticktext=columns, showgrid=False)
    drawn.update_yaxes(tickvals=list(range(len(rows))), ticktext=rows, showgrid=False, ticks="")
    return drawn.update_xaxes(range=[-0.5, len(columns) - 0.5]).update_yaxes(range=[len(rows) - 0.5, -0.5])


def positions(tree: TokenTree, prefix: int, tokenizer: Any = None) -> go.Figure:
    """Draw the nodes' positions after `prefix` tokens: by depth, and in the nodes' order, as a model numbers them.

    Raises:
        TypeError: for what is no tree.
        ValueError: for a prefix that is no whole number of at least 0.
    """
    _check_placed(tree, prefix)
    nodes = list(range(len(tree)))
    drawn = theme.figure("Position of each node", x="node, in scored order", y="position", height=430)
    for name, places, symbol in (
        ("by depth: siblings share a position", (prefix + tree.depths).tolist(), "circle"),
        ("by order: assumed by a model without position_ids", [prefix + node for node in nodes], "x"),
    ):
        drawn.add_scatter(x=nodes, y=places, mode="markers", name=name, marker={"size": 11, "symbol": symbol})
    return drawn.update_xaxes(tickvals=nodes, ticktext=_names(tree, tokenizer), tickangle=-60)


def check_tree(tree: Any) -> None:
    """Raise a TypeError for what is no tree."""
    of_kind("The tree", tree, TokenTree, "give a TokenTree, such as generation.iterations[0].tree")


def _check_placed(tree: Any, prefix: Any) -> None:
    check_tree(tree)
    whole("prefix", prefix, 0)


def _names(tree: TokenTree, tokenizer: Any) -> list[str]:
    return [theme.escaped(f"{node}: {label(token, tokenizer)}") for node, token in enumerate(tree.tokens)]
