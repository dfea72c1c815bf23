"""Figures of Progressive Tree Drafting: the draft tree over several steps (Figure 3), and the pool.

The draft tree of the paper is the side tree of this library. `plots.forward_trees` and `plots.forward_mask` draw a
single forward.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from plotly import graph_objects as go

from dynatree_lib.drafters.pool import TokenNode
from dynatree_lib.plots import theme
from dynatree_lib.plots.forward import DRAFT, FORWARD, PURPLE, RANDOM
from dynatree_lib.plots.trees import Style, draw_trees, tree_boxes
from dynatree_lib.tree import ROOT, TokenTree

DROPPED = "#c44e4e"


# ------------------------------------------------------------------------------------------- the draft tree over time
def draft_steps(trees: Sequence[TokenTree], depth: int, tokenizer: Any = None) -> go.Figure:
    """Draw the draft tree over several iterations: when nodes were added, and what the next step drops (Figure 3).

    Args:
        trees: `Iteration.side_tree` of consecutive iterations of a `ProgressiveTree`, from its initial tree on.
        depth: the drafter's d_max.
        tokenizer: shows token text instead of numbers.
    """
    births = draft_births(trees, depth)
    styles: dict[str, Style] = {"last": FORWARD["node 0"], "0": ("random token", RANDOM)}
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
