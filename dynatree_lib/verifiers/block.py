"""Block Verification (Sun et al.): the optimal lossless rule for a chain, which looks at the block as a whole."""

from __future__ import annotations

from functools import cached_property

import torch

from ..sampling import DraftDistributions, RandomSource, Sampling, Scores
from ..tree import TokenTree
from .base import Drawing, Verdict
from .residual import Recorded, ResidualRule


class Block(ResidualRule):
    """Keep the longest prefix whose own coin succeeds; a failed coin on the way down does not end the search.

    w_i = min(1, w_(i-1) P_(i-1)(x_i) / q_i(x_i)) is the weight of the first i tokens, S_i = sum [w_i P_i - q_(i+1)]_+,
    and prefix i is kept with probability S_i / (S_i + 1 - w_i), the whole block with w_g.
    """

    name = "block"

    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        """See `Verifier.check`; trees that branch are refused at any temperature above 0, also with `unsafe`."""
        if not chain and not sampling.greedy:
            raise ValueError(
                "Block Verification is a rule for chains and this drafter's trees may branch; use Traversal, which on "
                "a chain is the same rule, or a drafter of chains (Chain, SampledTree(branching=1))."
            )
        super().check(sampling, drawing, chain)

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """See `Verifier.verify`; a coin per node from the last up, a row operation only where it may succeed."""
        recorded, last = Recorded(tree, distributions), len(tree) - 1
        if tree.depth != last:
            raise ValueError(f"Block Verification was given a tree of {last + 1} nodes that branches; use Traversal.")
        weights = [1.0]
        for node in range(1, last + 1):
            ratio = scores.prob(node - 1, int(tree.tokens[node])) / recorded.prob(node) if weights[-1] > 0 else 0.0
            weights.append(min(1.0, weights[-1] * ratio))
        if random.accept(weights[last]):
            return Verdict(tuple(range(1, last + 1)), random.draw(scores.distribution(last)))
        for node in range(last - 1, 0, -1):
            rest = _Rest(scores, recorded, node, weights[node])
            if random.accept_lazily(weights[node], rest.kept):
                return Verdict(tuple(range(1, node + 1)), random.draw(rest.row))
        rest = _Rest(scores, recorded, 0, 1.0)
        return Verdict((), random.draw(rest.row if rest.mass > 0 else scores.distribution(0)))


class _Rest:
    """[w P - q]_+ at a node of the chain, computed when it is looked at."""

    def __init__(self, scores: Scores, recorded: Recorded, node: int, weight: float) -> None:
        self._given, self._weight = (scores, recorded, node), weight

    @cached_property
    def row(self) -> torch.Tensor:
        rows, recorded, node = self._given
        return recorded.rest(rows.distribution(node) * self._weight, node + 1)

    @cached_property
    def mass(self) -> float:
        return float(self.row.sum(dtype=torch.float64))

    def kept(self) -> float:
        """Probability that the block up to this node is kept, once longer ones were not; at most the weight."""
        return self.mass / (self.mass + 1 - self._weight) if self.mass > 0 else 0.0
