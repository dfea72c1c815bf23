"""Hierarchical speculative decoding (HSD, arXiv 2601.05724) of a chain, in every reading of its ratios.

One reading is lossless: it is Block Verification in other words. Each of the others follows a definition of the paper
or a file of its code to the letter. They emit another distribution than the target's, so they need `unsafe=True`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import Literal, get_args

import torch
from typing_extensions import override

from dynatree_lib.checks import chosen
from dynatree_lib.sampling import DraftDistributions, RandomSource, Scores
from dynatree_lib.tree import TokenTree
from dynatree_lib.verifiers.base import Drawing, Verdict
from dynatree_lib.verifiers.residual import Recorded, ResidualRule

Reading = Literal["largest", "printed", "joint end", "capped", "never back", "uncapped"]
LOSSLESS: tuple[Reading, ...] = ("largest",)
"""Readings without bias."""


@dataclass(frozen=True)
class Hierarchical(ResidualRule):
    """Accept the whole chain, or step back until a prefix is accepted, whose branches then give the bonus token.

    r_i is the target's probability of the first i drafted tokens over the draft's, R_i a version of it that is made
    small enough (`reading`). D_i = sum [R_i P_i - q_(i+1)]_+ is what the target has more of than the draft among the
    tokens after prefix i, and E_i = sum [q_(i+1) - R_i P_i]_+ what it has less of. The whole chain is accepted with
    probability min(1, R); prefix i, once longer ones are rejected, with D_i / max(D_i, E_i), and the bonus token is
    drawn from [R_i P_i - q_(i+1)]_+. Node 0 is never rejected.

    Args:
        unsafe: also serve trees, and take readings, for which the rule is biased, to show the bias.
        reading: what R_i is, and where the rule leaves the formulas above.
            "largest": r_i over the largest of 1, r_1, ..., r_i.
            "printed": r_i over the largest of 1, r_1, ..., r_(i-1), as definition 4 (i < t) says.
            "joint end": "largest", but the whole chain is accepted with min(1, r), as in the paper's simulation.
            "capped": min(1, r_i), as in the released rule before its exception.
            "never back": the released rule: "capped", and no step back from a prefix i with r_(i+1) >= 1.
            "uncapped": r_i itself, as in the naive version (definitions 1 to 3), with one bonus token.

    Raises:
        ValueError: for another reading.
    """

    reading: Reading = "largest"
    name = "hierarchical"
    for_chains = True

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen("reading", self.reading, get_args(Reading))

    @override
    def check_sampling(self, drawing: Drawing, chain: bool) -> None:
        if self.reading not in LOSSLESS and not self.unsafe:
            raise ValueError(
                f"Hierarchical(reading='{self.reading}') would not sample from the target, with any drafter. Use "
                "Hierarchical(), which does, or TargetWalk, which serves every tree, or add unsafe=True to look at the "
                "bias."
            )
        super().check_sampling(drawing, chain)

    @override
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        recorded, last = Recorded(tree, distributions), len(tree) - 1
        if tree.depth != last:
            raise ValueError(f"Hierarchical was given a tree of {last + 1} nodes that branches; use Traversal.")
        joint = [0.0]  # log r_i
        for node in range(1, last + 1):
            probability = scores.prob(node - 1, int(tree.tokens[node]))
            divisor = log(recorded.prob(node))
            joint.append(joint[-1] + (log(probability) if probability > 0 else -float("inf")) - divisor)
        weights = [exp(min(self._reduced(joint[: node + 1]), 700.0)) for node in range(last + 1)]
        end = exp(min(0.0, joint[-1])) if self.reading == "joint end" else min(1.0, weights[-1])
        if random.accept(end):
            return Verdict(tuple(range(1, last + 1)), scores.next_token(last, random))
        for node in range(last - 1, -1, -1):
            rest = recorded.rest(scores.distribution(node) * weights[node], node + 1)
            more = float(rest.sum(dtype=torch.float64))
            less = more + 1 - weights[node]  # both distributions sum to 1
            kept = self.reading == "never back" and joint[node + 1] >= 0
            if node == 0 or kept or random.accept(more / max(more, less) if more > 0 else 0.0):
                break
        path = tuple(range(1, node + 1))
        if more > 0:
            return Verdict(path, random.draw(rest))
        if self.reading == "never back":  # the released rule then accepts one token more, and adds none
            return Verdict(path, int(tree.tokens[node + 1]))
        return Verdict(path, scores.next_token(node, random))  # an event of probability 0

    def _reduced(self, joint: list[float]) -> float:
        """Return log R_i, from log r_0, ..., log r_i."""
        if self.reading in ("largest", "joint end"):
            return joint[-1] - max(joint)
        if self.reading == "printed":
            return joint[-1] - max(joint[:-1], default=0.0)
        return joint[-1] if self.reading == "uncapped" else min(0.0, joint[-1])
