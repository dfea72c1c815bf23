"""Greedy verification: the longest path on which every token is the target's argmax (DynaTree, section 3.5)."""

from __future__ import annotations

from typing_extensions import override

from ..sampling import DraftDistributions, RandomSource, Sampling, Scores
from ..tree import TokenTree
from .base import Drawing, Verdict, Verifier, follow_argmax


class Greedy(Verifier):
    """A rule for temperature 0: follow the target's argmax while the tree contains it; the next is the bonus token."""

    name = "greedy"

    @override
    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        if not sampling.greedy:
            raise ValueError(
                f"Greedy verification at temperature {sampling.temperature} would not sample from the target; "
                "use TargetWalk (any tree) or leave the verifier out."
            )

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        return follow_argmax(tree, scores)
