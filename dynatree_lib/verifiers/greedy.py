"""Greedy verification: the longest path on which every token is the target's argmax (DynaTree, section 3.5)."""

from __future__ import annotations

from ..sampling import DraftDistributions, RandomSource, Sampling, Scores
from ..tree import TokenTree
from .base import Drawing, Verdict, Verifier


class Greedy(Verifier):
    """Follow the target's argmax while the tree contains it; the argmax after the last kept node is the bonus token."""

    name = "greedy"

    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        """Greedy verification serves temperature 0 only."""
        if not sampling.greedy:
            raise ValueError(
                f"Greedy verification at temperature {sampling.temperature} would not sample from the target; "
                "use TargetWalk (any tree) or leave the verifier out."
            )

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """Refused: see `check`."""
        self.check(scores.sampling)
        raise AssertionError("unreachable: verify() samples at temperature > 0 only")
