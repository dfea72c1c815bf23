"""Token-level verification, top down: one rule that is known by a name for each way its trees are drawn.

On a chain it is speculative sampling (Leviathan et al.; Chen et al.), with siblings drawn with replacement recursive
rejection sampling (RRS, SpecInfer), without replacement RRSw (EAGLE, Sequoia; Traversal Verification, Algorithm 2), and
with deterministic siblings the corrected rule of Progressive Tree Drafting (Algorithm 2 with its proof's normaliser).
"""

from __future__ import annotations

from ..sampling import DraftDistributions, RandomSource, Scores
from ..tree import TokenTree
from .base import Verdict
from .residual import Recorded, Residual, ResidualRule


class TokenLevel(ResidualRule):
    """Try the children of the kept node in draw order, each against what its rejected siblings have left."""

    name = "token-level"

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """See `Verifier.verify`; a coin per tried child, a row operation per rejected one."""
        recorded = Recorded(tree, distributions)
        node = 0
        path: list[int] = []
        while True:
            residual = Residual(scores, node)
            for child in recorded.children[node]:
                if random.accept(residual.ratio(recorded, child)):
                    break
                residual.reject(recorded, child)
            else:
                return Verdict(tuple(path), random.draw(residual.row))
            node = child
            path.append(node)
