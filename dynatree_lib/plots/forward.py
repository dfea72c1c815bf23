"""Figures of a forward with a side tree: both trees below the last token, and the mask of the whole forward.

The draft tree of Progressive Tree Drafting (its Figures 2 and 3) is the side tree of this library.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np
from plotly import graph_objects as go

from ..decoding import Iteration
from ..drafters.base import Proposal
from ..masks import ancestor_matrix
from ..models.texts import label
from ..tree import TokenTree
from . import theme
from .trees import ROLES, Style, draw_mask, draw_trees, tree_boxes, verified

PURPLE = ("#efeaf7", "#ddd3ee", "#c8b9e4", "#b39fd9", "#9c84cd")
DRAFT = (PURPLE[1], "#332288", "#1d1350")
RANDOM = ("#d6d6d6", "#7f7f7f", "#333333")
ADDED = ("#ffffff", "#332288", "#32217f")
FORWARD: Mapping[str, Style] = {
    "node 0": ("last committed token", theme.NODE0),
    **{role: ROLES[role] for role in ("accepted", "bonus", "last")},
    "rejected": ("candidate, not accepted", theme.DRAFTED),
    "random": ("draft tree: random token", RANDOM),
    "drafted": ("draft tree: an earlier prediction", DRAFT),
    "guess": ("draft tree: for later iterations, never committed", DRAFT),
    "added": ("predicted now, joins the draft tree", ADDED),
}


# ----------------------------------------------------------------------------------------------------------- the trees
def forward_trees(
    iteration: Iteration,
    tokenizer: Any = None,
    *,
    random: Collection[int] | None = None,
    predicted: Sequence[int] | None = None,
    children: int | None = None,
) -> go.Figure:
    """Draw an iteration with a side tree: candidate tree and draft tree below the same last token.

    Args:
        iteration: without a side tree the candidate tree alone is drawn.
        tokenizer: shows token text instead of numbers.
        random: nodes of the side tree that are random tokens; None where that is not known.
        predicted: (m - 1,) the target's next token of each node of the side tree after node 0; those that will be added
            are drawn.
        children: most children of a node of the draft tree, for the predictions that join; None for no limit.
    """
    side_tree, (tree, roles) = iteration.side_tree, verified(iteration)
    tokens, parents = (array.tolist() for array in Proposal(tree, side_tree=side_tree).nodes)
    drafted = len(tokens) - len(tree)
    old = "guess" if random is None else "drafted"
    roles += ["random" if node in (random or ()) else old for node in range(1, drafted + 1)]
    if side_tree is not None and predicted is not None:
        for node, token in joining(side_tree, predicted, children):
            parents.append(len(tree) + node - 1)
            tokens.append(token)
            roles.append("added")
    emitted = f"{iteration.committed} token{'s' * (iteration.committed > 1)} emitted"
    text = f"One forward: last token, {len(iteration.tree) - 1} candidates, {drafted} draft nodes; {emitted}"
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
GROUP_COLORS = ("#5c5c5c", "#6a51a3", "#0072b2")
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
