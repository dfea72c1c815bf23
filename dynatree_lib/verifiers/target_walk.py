"""Target walk: sample from the target at each node and go where the sample leads.

It never looks at how the tree was drafted, so it is lossless for every tree. For a deterministic tree no lossless rule
accepts more.
"""

from __future__ import annotations

import numpy as np
from typing_extensions import override

from ..sampling import DraftDistributions, RandomSource, Scores
from ..tree import TokenTree
from .base import SamplingRule, Verdict


class TargetWalk(SamplingRule):
    """Draw y from the target's distribution at the current node; walk to the child with y, or stop with y as bonus.

    It draws once per token of the text, so a seed gives the text that plain sampling gives with it, up to rounding.
    """

    name = "target-walk"

    @override
    def walks(self, tree: TokenTree) -> bool:
        return True

    @override
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        return walk(tree, scores, random)


def walk(tree: TokenTree, scores: Scores, random: RandomSource) -> Verdict:
    """Do what `TargetWalk` does above temperature 0."""
    if len(tree) == 1:
        return Verdict((), scores.next_token(0, random))
    nodes = np.array([0])  # copies among siblings are walked together: one path of tokens, so one distribution
    while True:
        token = scores.next_token(int(nodes[0]), random)
        step = np.flatnonzero(np.isin(tree.parents, nodes) & (tree.tokens == token))
        if not len(step):
            return Verdict(tuple(tree.path(int(nodes[0]))), token)
        nodes = step
