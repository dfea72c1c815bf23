"""Token-level verification, top down: one rule that has a name for each way its trees are drawn.

On a chain it is speculative sampling (Leviathan et al.; Chen et al.). With siblings drawn with replacement it is
recursive rejection sampling (RRS, SpecInfer), without replacement RRSw (EAGLE, Sequoia; Traversal Verification,
Algorithm 2). With deterministic siblings it is the corrected rule of Progressive Tree Drafting: Algorithm 2 with the
normaliser of its proof.
"""

from __future__ import annotations

from typing_extensions import override

from ..sampling import DraftDistributions, RandomSource, Scores
from ..tree import TokenTree
from .base import Verdict
from .residual import Recorded, Residual, ResidualRule


class TokenLevel(ResidualRule):
    """Try the children of the accepted node in draw order, each against what its rejected siblings have left."""

    name = "token-level"

    @override
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        recorded = Recorded(tree, distributions)
        path = [0]
        while True:
            residual = Residual(scores, path[-1])
            for child in recorded.children[path[-1]]:
                if random.accept(residual.ratio(recorded, child)):
                    path.append(child)
                    break
                residual.reject(recorded, child)
            else:
                return Verdict(tuple(path[1:]), random.draw(residual.weights))
