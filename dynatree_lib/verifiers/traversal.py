"""Traversal Verification (Algorithm 3): leaf to root, whole paths at a time, lossless."""

from __future__ import annotations

from ..sampling import Chance, Laws, Rows, Sampling
from ..tree import TokenTree
from .base import Drawing, Verdict
from .residual import Recorded, Residual, ResidualRule


class Traversal(ResidualRule):
    """Descend along first children to a leaf and test it; a rejected node gives way to its next sibling, whose first
    children are descended in turn; a node without children left is tested itself. Node 0 is never rejected.

    A node's acceptance is that of its whole path, and is known only once its earlier siblings are rejected. On a chain
    it is Block Verification, and so optimal (Theorem 3.4); on trees it usually keeps more than token-level
    verification, and not always.
    """

    name = "traversal"

    refuses = (Drawing.SELECTED, Drawing.BY_PATH)

    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        """See `Verifier.check`."""
        one_path = chain and drawing is Drawing.BY_PATH  # then there are no other branches to depend on
        super().check(sampling, Drawing.RECORDED if one_path else drawing, chain)

    def sample(self, tree: TokenTree, rows: Rows, laws: Laws | None, chance: Chance) -> Verdict:
        """See `Verifier.verify`; at most a coin per node, and a row operation per rejected node."""
        recorded = Recorded(tree, laws)
        waiting = [iter(children) for children in recorded.children]
        node, residuals = 0, {0: Residual(rows, 0)}
        while True:
            now = residuals[node]
            child = next(waiting[node], None) if now.mass > 0 else None
            if child is not None:
                acceptance = now.ratio(recorded, child)
                if acceptance > 0:  # its descendants first; no coin yet
                    residuals[child] = Residual(rows, child, acceptance)
                    node = child
                    continue
            elif node == 0 or (now.mass > 0 and chance.accept(now.acceptance)):
                return Verdict(tuple(tree.path(node)), chance.draw(now.row))
            else:
                child, node = node, int(tree.parents[node])
            residuals[node].reject(recorded, child)
