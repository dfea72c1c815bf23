"""Figures of drafting inside the target's own forward (Progressive Tree Drafting, Figures 1 to 3).

Candidate tree and side tree below the last token, the mask of the whole forward, the draft tree over several steps, and
the pool. The draft tree of the paper is the side tree of this library.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from plotly import graph_objects as go

from ...decoding import Iteration
from ...drafters import Proposal
from ...drafters.pool import TokenNode
from ...masks import ancestor_matrix
from ...models.texts import label
from ...plots import theme
from ...plots.trees import ROLES, Style, draw_mask, draw_trees, tree_boxes
from ...tree import ROOT, TokenTree

PURPLE = ("#efeaf7", "#ddd3ee", "#c8b9e4", "#b39fd9", "#9c84cd")
DRAFT = (PURPLE[1], "#332288", "#1d1350")
CANDIDATE = theme.DRAFTED
RANDOM = ("#d6d6d6", "#7f7f7f", "#333333")
ADDED = ("#ffffff", "#332288", "#332288")
DROPPED = "#c44e4e"
FORWARD: Mapping[str, Style] = {
    "last": ("last committed token", theme.NODE0),
    "accepted": ROLES["accepted"],
    "bonus": ROLES["bonus"],
    "candidate": ("candidate, not accepted", CANDIDATE),
    "random": ("draft tree: random token", RANDOM),
    "drafted": ("draft tree: an earlier prediction", DRAFT),
    "added": ("predicted now, joins the draft tree", ADDED),
}


# ----------------------------------------------------------------------------------------------------- one iteration
def forward_trees(
    iteration: Iteration,
    tokenizer: Any = None,
    *,
    random: Collection[int] = (),
    predicted: Sequence[int] | None = None,
    children: int | None = None,
) -> go.Figure:
    """Draw an iteration with a side tree: candidate tree and draft tree below the same last token.

    Args:
        iteration: without a side tree the candidate tree alone is drawn.
        tokenizer: shows token text instead of numbers.
        random: nodes of the side tree that are random tokens.
        predicted: (m - 1,) the target's next token of each node of the side tree after node 0; those that will be added
            are drawn.
        children: most children of a node of the draft tree, for the predictions that join; None for no limit.
    """
    path, side_tree = [0, *iteration.verdict.path], iteration.side_tree
    tree = TokenTree.build([*iteration.tree.tokens, iteration.verdict.next_token], [*iteration.tree.parents, path[-1]])
    tokens, parents = (array.tolist() for array in Proposal(tree, side_tree=side_tree).nodes)
    drafted = len(tokens) - len(tree)
    roles = ["last", *("accepted" if node in path else "candidate" for node in range(1, len(tree) - 1)), "bonus"]
    roles += ["random" if node in random else "drafted" for node in range(1, drafted + 1)]
    if side_tree is not None and predicted is not None:
        for node, token in joining(side_tree, predicted, children):
            parents.append(len(tree) + node - 1)
            tokens.append(token)
            roles.append("added")
    committed = f"{iteration.committed} token{'s' * (iteration.committed > 1)} committed"
    text = f"One forward: last token, {len(tree) - 2} candidates, {drafted} draft nodes; {committed}"
    return draw_trees([("", tree_boxes(TokenTree.build(tokens, parents), roles, tokenizer))], FORWARD, title=text)


def joining(side_tree: TokenTree, predicted: Sequence[int], children: int | None = None) -> list[tuple[int, int]]:
    """Return (node, token) of the predictions that a draft tree takes in: new children of nodes below the limit.

    Args:
        side_tree: the draft tree.
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
    known = [side_tree.children(node) for node in range(len(side_tree))]
    return [
        (node, int(token))
        for node, token in enumerate(predicted, start=1)
        if token not in side_tree.tokens[known[node]] and (children is None or len(known[node]) < children)
    ]


# ------------------------------------------------------------------------------------------------------------ the mask
GROUPS = ("last token", "draft tree", "candidate tree")
GROUP_COLORS = ("#4d4d4d", "#6a51a3", "#0072b2")
CELLS = ("not seen", "not seen: the other tree", "prefix", *GROUPS)
CELL_COLORS = ("#f6f6f6", "#f3cdb8", "#c4d9ea", *GROUP_COLORS)


def forward_mask(drafted: Iteration | Proposal, tokenizer: Any = None, prefix: int = 3) -> go.Figure:
    """Draw the attention mask of the whole forward in its three groups, relative positions above (Figure 3).

    Rows and columns stand as the paper has them: last token, draft tree, candidate tree. The order in the cache, where
    the draft tree comes last, makes no difference to what a node sees.

    Args:
        drafted: an iteration, or a drafter's proposal.
        tokenizer: labels nodes with token text.
        prefix: columns drawn of the prefix, which every node sees.
    """
    side_tree = drafted.side_tree or TokenTree.build([int(drafted.tree.tokens[0])], [-1])
    tokens, parents = Proposal(side_tree, side_tree=drafted.tree).nodes
    group = np.repeat([0, 1, 2], [1, len(side_tree) - 1, len(drafted.tree) - 1])
    depths = np.concatenate([side_tree.depths, drafted.tree.depths[1:]])
    apart = (group[:, None] != group) & (np.minimum(group[:, None], group) > 0)
    cells = np.where(ancestor_matrix(parents), 3 + group, apart.astype(int))
    cells = np.hstack([np.full((len(cells), prefix), 2), cells])
    names = [theme.escaped(label(token, tokenizer)) for token in tokens]
    title = f"Who sees whom: {len(tokens)} nodes of one forward, relative positions above"
    figure = draw_mask(cells, dict(zip(CELLS, CELL_COLORS, strict=True)), names, ["prefix"] * prefix + names, title)
    places = ["≤ −1" if prefix == 1 else "…" if i == 0 else str(i - prefix) for i in range(prefix)]
    figure.update_xaxes(side="top", tickangle=0, ticks="", ticktext=[*places, *map(str, depths)])
    figure.update_layout(margin={"t": 135, "b": 50}, legend_y=1.09)
    _bracket(figure, group, prefix)
    return figure


def _bracket(figure: go.Figure, group: np.ndarray, prefix: int) -> None:
    """Draw a bar in its colour at the right of and below each group, with the group's name."""
    for number, (name, color) in enumerate(zip(GROUPS, GROUP_COLORS, strict=True)):
        nodes = np.flatnonzero(group == number)
        if not len(nodes):
            continue
        first, end = nodes[0] - 0.45, nodes[-1] + 0.45
        bar = {"type": "rect", "fillcolor": color, "line_width": 0}
        figure.add_shape(**bar, xref="paper", x0=1.006, x1=1.014, y0=first, y1=end)
        figure.add_shape(**bar, yref="paper", y0=-0.012, y1=-0.004, x0=prefix + first, x1=prefix + end)
        if number:
            place = (first + end) / 2
            text = {"text": name, "showarrow": False, "font": {"color": color, "size": 13}}
            figure.add_annotation(**text, xref="paper", x=1.02, y=place, textangle=90, xanchor="left")
            figure.add_annotation(**text, yref="paper", y=-0.018, x=prefix + place, yanchor="top")


# ------------------------------------------------------------------------------------------- the draft tree over time
def draft_steps(trees: Sequence[TokenTree], depth: int, tokenizer: Any = None) -> go.Figure:
    """Draw the draft tree over several iterations: when nodes were added, and what the next step drops (Figure 3).

    Args:
        trees: `Iteration.side_tree` of consecutive iterations of a `ProgressiveTree`, from its initial tree on.
        depth: the drafter's d_max.
        tokenizer: shows token text instead of numbers.
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
        heading = f"iteration {number + 1}: {len(tree) - 1} draft nodes{dropped}"
        roles = ["last", *map(str, born[1:])]
        parts.append((heading, tree_boxes(tree, roles, tokenizer, ringed=gone)))
    title, ring = f"The draft tree in {len(trees)} iterations", ("dropped by the step that follows", DROPPED)
    return draw_trees(parts, styles, title=title, columns=2, ring=ring)


def draft_births(trees: Sequence[TokenTree], depth: int) -> list[np.ndarray]:
    """Return, for each of consecutive draft trees, (m,) the step that added each node: 0 in the first tree.

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
    """Return (m,) the node of `before`, the tree an iteration earlier, that each node of `tree` was; -1 for a new node.

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


# ------------------------------------------------------------------------------------------------------------ the pool
def pool_trees(
    roots: Iterable[TokenNode], tokenizer: Any = None, *, levels: int = 3, widest: int = 4, columns: int = 1
) -> go.Figure:
    """Draw cached candidate trees: what the pool has after some tokens, the latest merged first.

    Args:
        roots: trees of a `CandidatePool`, such as `pool.roots[token]`.
        tokenizer: shows token text instead of numbers.
        levels: most levels drawn of a tree.
        widest: most children drawn of a node.
        columns: trees in a line.
    """
    roots = list(roots)
    now = max((root.stamp for root in roots), default=0)  # a tree's root is the latest of its nodes
    styles: dict[str, Style] = {
        "root": ("token that the tree follows", theme.NODE0),
        "new": ("merged in the latest iteration", DRAFT),
        "old": ("merged earlier", (PURPLE[0], "#a89bc4", "#4b3f6b")),
    }
    parts = []
    for root in roots:
        (tree, shown), (_, nodes) = _clipped(root, levels, widest), _clipped(root)
        roles = ["root", *("new" if node.stamp == now else "old" for node in shown[1:])]
        heading = f"{len(nodes) - 1} nodes" + (f", {len(tree) - 1} shown" if len(tree) < len(nodes) else "")
        notes = ["", *(f" ×{node.count}" for node in shown[1:])]
        parts.append((heading, tree_boxes(tree, roles, tokenizer, notes=notes)))
    return draw_trees(parts, styles, title="The pool: what followed a token, and how often", columns=columns)


def _clipped(root: TokenNode, levels: float = math.inf, widest: int | None = None) -> tuple[TokenTree, list[TokenNode]]:
    """Return the first children of the first levels as a token tree, and the nodes it holds; by default all."""
    nodes, parents, depths = [root], [ROOT], [0]
    for index, node in enumerate(nodes):  # grows while it is read
        if depths[index] < levels:
            best = sorted(node.children.values(), key=lambda child: (-child.stamp, -child.count))[:widest]
            nodes += best
            parents += [index] * len(best)
            depths += [depths[index] + 1] * len(best)
    return TokenTree.build([node.token for node in nodes], parents), nodes
