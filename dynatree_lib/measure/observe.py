"""Verifiers that decide as another rule does and look at every tree, its scores and the verdict on it."""

from __future__ import annotations

from dataclasses import dataclass

from typing_extensions import override

from ..sampling import DraftDistributions, RandomSource, Sampling, Scores
from ..tree import TokenTree
from ..verifiers.base import Drawing, Verdict, Verifier


@dataclass
class ObservingVerifier(Verifier):
    """A rule whose decisions a subclass looks at in `observe`.

    Attributes:
        rule: the rule that decides, at every temperature.
    """

    rule: Verifier
    name = "observing"

    @override
    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        self.rule.check(sampling, drawing, chain)

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        verdict = self.rule.verify(tree, scores, distributions, random)
        self.observe(tree, scores, distributions, verdict)
        return verdict

    def observe(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, verdict: Verdict
    ) -> None:
        """Look at a decision; the arguments are those of `Verifier.verify` and the verdict."""
