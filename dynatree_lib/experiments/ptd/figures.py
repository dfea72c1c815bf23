"""Pictures of drafting inside the target's own forward: the two trees below the last token, the mask of the whole
forward, the draft tree over several steps, and the pool (Progressive Tree Drafting, Figures 1 to 3)."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np
from plotly import graph_objects as go

from ...decoding import Iteration
from ...drafters import Proposal
from ...drafters.pool import Candidate
from ...masks import ancestor_matrix
from ...plots import theme
from ...plots.tokens import label
from ...plots.trees import LEVEL_WIDTH, MEANING, ROW_HEIGHT, draft_tree
from ...tree import ROOT, TokenTree

LONGEST = 9  # characters of a label
HEADING = 1.1  # rows of height that a heading takes
GAP = 0.4  # levels between two columns
NARROW = 90  # px between two levels where there are columns
Style = tuple[str, tuple[str, str, str]]
"""What the legend says of a role, and its fill, line and ink."""

PURPLE = ("#efeaf7", "#ddd3ee", "#c8b9e4", "#b39fd9", "#9c84cd")
DRAFT = (PURPLE[1], "#332288", "#1d1350")
CANDIDATE = theme.DRAFTED
RANDOM = ("#d6d6d6", "#7f7f7f", "#333333")
ADDED = ("#ffffff", "#332288", "#332288")
DROPPED = "#c44e4e"
FORWARD: Mapping[str, Style] = {
    "last": ("last committed token", theme.NODE0),
    "accepted": (MEANING["accepted"], theme.ACCEPTED),
    "bonus": (MEANING["bonus"], theme.BONUS),
    "candidate": ("candidate, not accepted", CANDIDATE),
    "random": ("draft tree: random token", RANDOM),
    "drafted": ("draft tree: an earlier prediction", DRAFT),
    "added": ("predicted now, joins the draft tree", ADDED),
}


@dataclass(frozen=True)
class _Part:
    """A tree to draw: its heading; of each node its role and what stands after its token; nodes to ring."""

    heading: str
    tree: TokenTree
    roles: Sequence[str]
    notes: Sequence[str] = ()
    ringed: Collection[int] = ()


# ----------------------------------------------------------------------------------------------------- one iteration
def forward_trees(
    one: Iteration,
    tokenizer: Any = None,
    *,
    random: Collection[int] = (),
    predicted: Sequence[int] | None = None,
    children: int | None = None,
    title: str = "",
) -> go.Figure:
    """One iteration of a method that drafts beside its tree: candidate tree and draft tree below the same last token.

    Args:
        one: the iteration; without `beside` the candidate tree alone is drawn.
        tokenizer: shows token text instead of numbers.
        random: nodes of `one.beside` that are random tokens.
        predicted: (m - 1,) the target's next token of each node of `one.beside` after node 0; those that will be added
            are drawn.
        children: most children of a node of the draft tree, for what will be added; None for no limit.
        title: above the figure; by default the counts.
    """
    path = [0, *one.verdict.path]
    tree = TokenTree.build([*one.tree.tokens, one.verdict.next_token], [*one.tree.parents, path[-1]])
    tokens, parents = (array.tolist() for array in Proposal(tree, side_tree=one.side_tree).nodes)
    roles = ["last", *("accepted" if node in path else "candidate" for node in range(1, len(tree) - 1)), "bonus"]
    rows = len(tokens) - len(tree)
    roles += ["random" if node in random else "drafted" for node in range(1, rows + 1)]
    if one.side_tree is not None and predicted is not None:
        for node, token in joining(one.side_tree, predicted, children):
            parents.append(len(tree) + node - 1)
            tokens.append(token)
            roles.append("added")
    kept = f"{one.committed} token{'s' * (one.committed > 1)} committed"
    text = title or f"One forward: last token, {len(tree) - 2} candidates, {rows} draft rows; {kept}"
    return _draw([_Part("", TokenTree.build(tokens, parents), roles)], FORWARD, tokenizer, title=text)


def joining(side_tree: TokenTree, predicted: Sequence[int], children: int | None = None) -> list[tuple[int, int]]:
    """(node, token) of the predictions that a draft tree takes in: not yet a child of their node, which has room.

    Args:
        beside: the draft tree.
        predicted: (m - 1,) next token of each node after node 0.
        children: most children of a node, or None.

    Raises:
        ValueError: for predictions that are not one per node.
    """
    if len(predicted) != len(side_tree) - 1:
        raise ValueError(
            f"There are {len(predicted)} predictions for {len(side_tree) - 1} nodes of the side tree; give one for "
            "each after node 0."
        )
    out = []
    for node, token in enumerate(predicted, start=1):
        known = side_tree.children(node)
        if token not in side_tree.tokens[known] and (children is None or len(known) < children):
            out.append((node, int(token)))
    return out


# ------------------------------------------------------------------------------------------------------------ its mask
GROUPS = ("last token", "draft tree", "candidate tree")
GROUP_COLORS = ("#4d4d4d", "#6a51a3", "#0072b2")
CELLS = ("not seen", "not seen: the other tree", "prefix", *GROUPS)
CELL_COLORS = ("#f6f6f6", "#f3cdb8", "#c4d9ea", *GROUP_COLORS)


def forward_mask(one: Iteration | Proposal, tokenizer: Any = None, *, prefix: int = 3, title: str = "") -> go.Figure:
    """The attention mask of the whole forward in its three groups, relative positions above (Figure 3).

    Rows and columns stand as the paper has them: last token, draft tree, candidate tree. The order in the cache, where
    the draft tree comes last, makes no difference to what a node sees.

    Args:
        one: an iteration, or what a drafter proposes.
        tokenizer: labels rows with token text.
        prefix: columns drawn of the prefix, which every node sees.
        title: above the figure.
    """
    side_tree = one.side_tree or TokenTree.root_only(int(one.tree.tokens[0]))
    tokens, parents = Proposal(side_tree, side_tree=one.tree).nodes
    group = np.repeat([0, 1, 2], [1, len(side_tree) - 1, len(one.tree) - 1])
    depths = np.concatenate([side_tree.depths, one.tree.depths[1:]])
    apart = (group[:, None] != group) & (np.minimum(group[:, None], group) > 0)
    cells = np.where(ancestor_matrix(parents), 3 + group, apart.astype(int))
    cells = np.hstack([np.full((len(cells), prefix), 2), cells])
    names = [theme.escaped(label(token, tokenizer)) for token in tokens]
    drawn = theme.figure(title or f"Who sees whom: {len(tokens)} rows of one forward, relative positions above")
    drawn.update_layout(height=23 * len(tokens) + 210, margin={"l": 110, "r": 60, "t": 135, "b": 50}, legend_y=1.09)
    _draw_cells(drawn, cells, names, ["prefix"] * prefix + names)
    places = ["≤ −1" if prefix == 1 else "…" if i == 0 else str(i - prefix) for i in range(prefix)]
    drawn.update_xaxes(side="top", ticktext=[*places, *map(str, depths)], tickangle=0, ticks="", tickfont_size=12)
    _bracket(drawn, group, prefix)
    return drawn


def _draw_cells(drawn: go.Figure, cells: np.ndarray, rows: Sequence[str], columns: Sequence[str]) -> None:
    count = len(CELLS)
    steps = [(place, color) for i, color in enumerate(CELL_COLORS) for place in (i / count, (i + 1) / count)]
    words = [[f"{row} → {column}: {CELLS[cell]}" for column, cell in zip(columns, line, strict=True)]
             for row, line in zip(rows, cells, strict=True)]  # fmt: skip
    look = {"colorscale": steps, "showscale": False, "xgap": 1, "ygap": 1, "hovertemplate": "%{text}<extra></extra>"}
    drawn.add_heatmap(z=cells, zmin=-0.5, zmax=count - 0.5, text=words, name="mask", **look)
    for name, color in zip(CELLS, CELL_COLORS, strict=True):
        marker = {"symbol": "square", "size": 13, "color": color, "line": {"color": "#999999", "width": 1}}
        drawn.add_scatter(
            x=[None], y=[None], mode="markers", marker=marker, name=f"seen: {name}" if name in GROUPS else name
        )
    drawn.update_xaxes(tickvals=list(range(len(columns))), showgrid=False, range=[-0.5, len(columns) - 0.5])
    drawn.update_yaxes(tickvals=list(range(len(rows))), ticktext=list(rows), showgrid=False, ticks="")
    drawn.update_yaxes(range=[len(rows) - 0.5, -0.5], tickfont_size=12)


def _bracket(drawn: go.Figure, group: np.ndarray, prefix: int) -> None:
    """A bar of its colour beside and below each group, with its name where there is room."""
    for number, (name, color) in enumerate(zip(GROUPS, GROUP_COLORS, strict=True)):
        mine = np.flatnonzero(group == number)
        if not len(mine):
            continue
        first, end = mine[0] - 0.45, mine[-1] + 0.45
        bar = {"type": "rect", "fillcolor": color, "line_width": 0}
        drawn.add_shape(**bar, xref="paper", x0=1.006, x1=1.014, y0=first, y1=end)
        drawn.add_shape(**bar, yref="paper", y0=-0.012, y1=-0.004, x0=prefix + first, x1=prefix + end)
        if number:
            place = (first + end) / 2
            text = {"text": name, "showarrow": False, "font": {"color": color, "size": 13}}
            drawn.add_annotation(**text, xref="paper", x=1.02, y=place, textangle=90, xanchor="left")
            drawn.add_annotation(**text, yref="paper", y=-0.018, x=prefix + place, yanchor="top")


# ---------------------------------------------------------------------------------------------------------- its growth
def draft_steps(
    trees: Sequence[TokenTree], depth: int, tokenizer: Any = None, *, columns: int = 2, title: str = ""
) -> go.Figure:
    """The draft tree over several iterations: what was added when, and what the next step drops (Figure 3).

    Args:
        trees: `Round.beside` of consecutive iterations of a `ProgressiveTree`, from its initial tree on.
        depth: its d_max.
        tokenizer: shows token text instead of numbers.
        columns: pictures beside each other.
        title: above the figure.
    """
    births = draft_births(trees, depth)
    styles: dict[str, Style] = {"last": FORWARD["last"], "0": ("random token", RANDOM)}
    newest = max(int(born.max()) for born in births)
    for step in range(1, newest + 1):
        fill = PURPLE[min(step, len(PURPLE)) - 1]
        styles[str(step)] = ("predicted: the later, the darker", (fill, DRAFT[1], DRAFT[2]))
    parts = []
    for number, (tree, born) in enumerate(zip(trees, births, strict=True)):
        gone: set[int] = set()
        if number + 1 < len(trees):
            gone = {*range(1, len(tree))} - {*survivors(tree, trees[number + 1], depth).tolist()}
        dropped = f", {len(gone)} dropped after it" if gone else ""
        heading = f"iteration {number + 1}: {len(tree) - 1} draft rows{dropped}"
        roles = ["last", *map(str, born[1:])]
        parts.append(_Part(heading, tree, roles, ringed=gone))
    return _draw(parts, styles, tokenizer, columns=columns, title=title or f"The draft tree in {len(trees)} iterations")


def draft_births(trees: Sequence[TokenTree], depth: int) -> list[np.ndarray]:
    """For each of consecutive draft trees, (m,) the step in which each node was added: 0 in the first tree.

    Args:
        trees: as for `draft_steps`.
        depth: d_max.
    """
    births = [np.zeros(len(trees[0]), np.int64)] if trees else []
    for step, (before, tree) in enumerate(pairwise(trees), start=1):
        old = survivors(before, tree, depth)
        births.append(np.where(old < 0, step, births[-1][old]))
    return births


def survivors(before: TokenTree, tree: TokenTree, depth: int) -> np.ndarray:
    """(m,) the node of `before`, the draft tree an iteration earlier, that each node of `tree` was; -1 for a new one.

    A subtree of the root that had d_max = `depth` levels has grown beyond, so its earliest child took its place.
    """
    heights = np.zeros(len(before), np.int64)
    for node in range(len(before) - 1, 0, -1):
        heights[before.parents[node]] = max(heights[before.parents[node]], heights[node] + 1)
    old = np.full(len(tree), -1)
    old[0] = 0
    for root, was in zip(tree.children(0), before.children(0), strict=False):
        old[root] = before.children(was)[0] if heights[was] == depth else was
    for node in range(1, len(tree)):
        above = old[tree.parents[node]]
        if above > 0:
            same = [child for child in before.children(above) if before.tokens[child] == tree.tokens[node]]
            old[node] = same[0] if same else -1
    return old


# ------------------------------------------------------------------------------------------------------------ its pool
def pool_trees(
    roots: Iterable[Candidate],
    tokenizer: Any = None,
    *,
    levels: int = 3,
    widest: int = 4,
    columns: int = 1,
    title: str = "",
) -> go.Figure:
    """Cached candidate trees: what the pool has after some tokens, the latest merged first.

    Args:
        roots: trees of a `CandidatePool`, such as `pool.roots[token]`.
        tokenizer: shows token text instead of numbers.
        levels: most levels drawn of a tree.
        widest: most children drawn of a node.
        columns: pictures beside each other.
        title: above the figure.
    """
    roots = [*roots]
    now = max((node.stamp for root in roots for node in _below(root)), default=0)
    styles: dict[str, Style] = {
        "root": ("token that the tree follows", theme.NODE0),
        "new": ("merged in the latest iteration", DRAFT),
        "old": ("merged earlier", (PURPLE[0], "#a89bc4", "#4b3f6b")),
    }
    parts = []
    for root in roots:
        tree, drawn = _clipped(root, levels, widest)
        roles = ["root", *("new" if node.stamp == now else "old" for node in drawn[1:])]
        all_of, shown = sum(1 for _ in _below(root)) - 1, len(tree) - 1
        heading = f"{all_of} nodes" + (f", {shown} shown" if shown < all_of else "")
        parts.append(_Part(heading, tree, roles, ["", *(f"×{node.count}" for node in drawn[1:])]))
    return _draw(
        parts, styles, tokenizer, columns=columns, title=title or "The pool: what followed a token, and how often"
    )


def _below(root: Candidate) -> list[Candidate]:
    """The node and all nodes below it."""
    nodes = [root]
    for node in nodes:  # grows while it is read
        nodes += node.children.values()
    return nodes


def _clipped(root: Candidate, levels: int, widest: int) -> tuple[TokenTree, list[Candidate]]:
    """The first children of the first levels as a token tree, and the nodes it holds."""
    nodes, parents, depths = [root], [ROOT], [0]
    for index, node in enumerate(nodes):  # grows while it is read
        if depths[index] < levels:
            best = sorted(node.children.values(), key=lambda one: (-one.stamp, -one.count))[:widest]
            nodes += best
            parents += [index] * len(best)
            depths += [depths[index] + 1] * len(best)
    return TokenTree.build([node.token for node in nodes], parents), nodes


# ---------------------------------------------------------------------------------------------------------- the drawing
def _draw(
    parts: Sequence[_Part], styles: Mapping[str, Style], tokenizer: Any, *, columns: int = 1, title: str = ""
) -> go.Figure:
    """Trees in a grid, row by row, under one legend."""
    drawn, top = theme.figure(title), 0.0
    wide = max(part.tree.depth for part in parts) + 1 + GAP if parts else 4.0
    for first in range(0, len(parts), columns):
        lowest = top
        for column, part in enumerate(parts[first : first + columns]):
            if part.heading:
                look = {"showarrow": False, "xanchor": "left", "font": {"size": 13, "color": theme.MUTED}}
                drawn.add_annotation(x=column * wide, y=top, text=theme.escaped(part.heading), **look)
            begin = top + (HEADING if part.heading else 0.0)
            lowest = max(lowest, begin + _draw_part(drawn, part, styles, tokenizer, column * wide, begin))
        top = lowest + 1.5
    there = {role for part in parts for role in part.roles}
    for text, (fill, line, _) in dict(styles[role] for role in styles if role in there).items():
        _legend(drawn, text, fill, line)
    if any(part.ringed for part in parts):
        _legend(drawn, "dropped by the step that follows", "#ffffff", DROPPED)
    across = max(wide * min(columns, max(len(parts), 1)) - GAP, 4.0)
    drawn.update_xaxes(visible=False, range=[-0.08, across + 0.1])
    drawn.update_yaxes(visible=False, range=[top - 0.7, -0.8])
    drawn.update_layout(height=round(ROW_HEIGHT * (top + 0.1)) + 125, margin={"l": 10, "r": 10, "t": 110, "b": 10})
    if across > 7 or columns > 1:
        drawn.update_layout(width=round((LEVEL_WIDTH if columns == 1 else NARROW) * across) + 40)
    return drawn.update_layout(hovermode="closest", legend_itemsizing="constant")


def _draw_part(
    drawn: go.Figure, part: _Part, styles: Mapping[str, Style], tokenizer: Any, left: float, top: float
) -> float:
    """Edges and boxes of one tree; the place of its lowest box below its first."""
    tree = part.tree
    places = [
        (left + note.x, top + note.y) for note in draft_tree(tree).layout.annotations
    ]  # in the order of the nodes
    _draw_edges(drawn, part, styles, places)
    for node, (x, y) in enumerate(places):
        meaning, (fill, edge, ink) = styles[part.roles[node]]
        edge, thick = (DROPPED, 2.5) if node in part.ringed else (edge, 1.3)
        token, note = int(tree.tokens[node]), part.notes[node] if part.notes else ""
        text = f"<b>{theme.escaped(label(token, tokenizer, LONGEST))}</b> {note}".strip()
        hover = f"<b>{theme.escaped(label(token, tokenizer, 60))}</b> (token {token})<br>{meaning}"
        drawn.add_annotation(
            x=x, y=y, text=text, hovertext=hover, showarrow=False, xanchor="left", bgcolor=fill, borderpad=3,
            bordercolor=edge, borderwidth=thick, font={"color": ink, "size": 13},
        )  # fmt: skip
    return max(y for _, y in places) - top


def _draw_edges(
    drawn: go.Figure, part: _Part, styles: Mapping[str, Style], places: Sequence[tuple[float, float]]
) -> None:
    """One trace for all edges that look alike."""
    lines: dict[tuple[str, float, str], tuple[list[float | None], list[float | None]]] = {}
    for node in range(1, len(part.tree)):
        (x, y), (_, above), role = places[node], places[part.tree.parents[node]], part.roles[node]
        dash = "dot" if role in ("added", "bonus") or node in part.ringed else "solid"
        kind = (styles[role][1][1], 3.5 if role in ("accepted", "bonus") else 1.4, dash)
        along, across = lines.setdefault(kind, ([], []))
        along += [x - 0.9, x - 0.13, x - 0.05, x + 0.05, None]
        across += [above, above, y, y, None]
    for (color, width, dash), (along, across) in lines.items():
        look = {"line": {"color": color, "width": width, "dash": dash}, "hoverinfo": "skip", "showlegend": False}
        drawn.add_scatter(x=along, y=across, mode="lines", name="edges", **look)


def _legend(drawn: go.Figure, text: str, fill: str, line: str) -> None:
    marker = {"symbol": "square", "size": 12, "color": fill, "line": {"color": line, "width": 2}}
    drawn.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=text, hoverinfo="skip")
