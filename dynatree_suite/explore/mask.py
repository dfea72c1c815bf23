"""Who sees whom: a node of a tree, the row of the mask that is its own, and what a causal mask would let it see."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import ipywidgets as widgets

from dynatree_lib import plots
from dynatree_lib.checks import of_kind
from dynatree_lib.plots.trees import check_tree
from dynatree_lib.tree import TokenTree

from .walk import Explorer, line, player, put, watch


class Mask(Explorer):
    """A tree as one of its nodes sees it, above the mask in which that node has a row.

    The slider takes arrow keys.

    Args:
        tree: n nodes.
        prefix: (t,) tokens before node 0.
        tokenizer: shows token text instead of numbers.

    Attributes:
        node: the slider; setting `node.value` lets another node look.
        causal: checkbox; a causal mask in place of the tree mask.

    Raises:
        TypeError: for a tree or a prefix that is none.
    """

    def __init__(self, tree: TokenTree, prefix: Sequence[int], tokenizer: Any = None) -> None:
        check_tree(tree)
        of_kind("The prefix", prefix, (list, tuple), "give the list of its token ids")
        self.drawn, self.prefix, self.tokenizer = tree, list(prefix), tokenizer
        self.play, self.node = player("node", 0, len(tree) - 1)
        self.causal = widgets.Checkbox(description="causal mask instead", indent=False)
        self.place, self.tree, self.mask = widgets.HTML(), widgets.Output(), widgets.Output()
        super().__init__([line(self.play, self.node, self.causal), self.place, self.tree, self.mask])
        watch(self.show, self.node, self.causal)

    def show(self) -> None:
        """Draw what the node sees that the slider stands at."""
        tree, node, causal = self.drawn, self.node.value, self.causal.value
        position = len(self.prefix) + int(tree.depths[node])
        self.place.value = (
            f"Node {node} stands at position {position}: {len(self.prefix)} tokens of the prefix, and level "
            f"{tree.depths[node]} of the tree. Its place in the forward is {len(self.prefix) + node}."
        )
        put(self.tree, plots.seen_tree(tree, node, self.tokenizer, causal=causal))
        look = {"prefix_tokens": self.prefix, "row": node, "causal": causal}
        put(self.mask, plots.tree_mask(tree, len(self.prefix), self.tokenizer, **look))
