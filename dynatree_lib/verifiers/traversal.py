"""Traversal Verification (Algorithm 3): leaf to root, whole paths at a time, lossless."""

from __future__ import annotations

from functools import partial

from typing_extensions import override

from ..sampling import DraftDistributions, RandomSource, Scores
from ..tree import TokenTree
from .base import Drawing, Verdict
from .residual import Recorded, Residual, ResidualRule
from .target_walk import walk


class Traversal(ResidualRule):
    """Descend along first children to a leaf and test it; a rejected node gives way to its next sibling.

    From that sibling the rule descends again; a node without children left is tested itself. Node 0 is never rejected.
    A node's acceptance is that of its whole path, and is known only once its earlier siblings are rejected. On a chain
    the rule is Block Verification, and so optimal (Theorem 3.4). On trees it usually accepts more than token-level
    verification, but not always. Where nothing is drawn, the accepted path has the same distribution as in the target
    walk, which is taken then, because it needs less time.
    """

    name = "traversal"
    refuses = (Drawing.SELECTED, Drawing.BY_PATH)

    @override
    def walks(self, tree: TokenTree) -> bool:
        return not tree.draws.any()

    @override
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        if self.walks(tree):
            return walk(tree, scores, random)
        # At most a coin and an operation of the vocabulary's width per node, the latter seldom for a last child.
        recorded = Recorded(tree, distributions)
        waiting = [list(children) for children in recorded.children]
        residuals, node, rejected = {0: Residual(scores, 0)}, 0, None
        while True:
            now = residuals[node]
            if rejected is not None and (node == 0 or waiting[node]):
                now.reject(recorded, rejected)
                rejected = None
            if waiting[node] and now.mass > 0:
                child = waiting[node].pop(0)
                acceptance = now.ratio(recorded, child)
                if acceptance > 0:  # the nodes below the child first; no coin yet
                    residuals[child], node = Residual(scores, child, acceptance), child
                else:
                    rejected = child
            elif node == 0 or random.accept_lazily(now.mass, partial(now.acceptance_without, recorded, rejected)):
                return Verdict(tuple(tree.path(node)), now.next_token(random))
            else:
                rejected, node = node, int(tree.parents[node])
