"""Target walk: sample from the target at each node and go where the sample leads.

It never looks at how the tree was drafted, so it is lossless for every tree; for a deterministic tree no lossless rule
keeps more. At temperature 0 it is greedy verification.
"""

from __future__ import annotations

import numpy as np

from ..sampling import DraftDistributions, RandomSource, Scores
from ..tree import TokenTree
from .base import Verdict, Verifier


class TargetWalk(Verifier):
    """Draw y from the target's law at the current node; walk to the child with y, or stop with y as bonus token.

    One draw per token of the text, so a seed gives the text that plain sampling gives with it, up to rounding.
    """

    name = "target-walk"

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """See `Verifier.verify`; draws once per kept node, and once more. Copies among siblings are walked together."""
        nodes = np.array([0])  # all of one path of tokens, so of one law
        while True:
            token = random.draw(scores.distribution(int(nodes[0])))
            step = np.flatnonzero(np.isin(tree.parents, nodes) & (tree.tokens == token))
            if not len(step):
                return Verdict(tuple(tree.path(int(nodes[0]))), token)
            nodes = step
