"""Block Verification (Sun et al.): the optimal lossless rule for a chain, which looks at the block as a whole."""

from __future__ import annotations

from functools import partial

from typing_extensions import override

from ..sampling import DraftDistributions, RandomSource, Scores
from ..tree import TokenTree
from .base import Verdict
from .residual import Recorded, Residual, ResidualRule


class Block(ResidualRule):
    """Accept the longest prefix whose own coin succeeds; a failed coin on the way up does not end the search.

    w_i = min(1, w_(i-1) P_(i-1)(x_i) / q_i(x_i)) is the weight of the first i tokens, S_i = sum [w_i P_i - q_(i+1)]_+.
    Prefix i is accepted with probability S_i / (S_i + 1 - w_i), the whole block with its weight.
    """

    name = "block"
    for_chains = True

    @override
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        recorded, last = Recorded(tree, distributions), len(tree) - 1
        if tree.depth != last:
            raise ValueError(f"Block Verification was given a tree of {last + 1} nodes that branches; use Traversal.")
        residuals = [Residual(scores, 0)]
        for node in range(1, last + 1):
            weight = residuals[-1].ratio(recorded, node) if residuals[-1].mass > 0 else 0.0
            residuals.append(Residual(scores, node, weight))
        node, child = last, None
        # A coin per node from the last up (node 0 has one where it is the last); work of the vocabulary's width only
        # where the coin may succeed.
        while (node or not last) and not random.accept_lazily(
            residuals[node].mass, partial(residuals[node].acceptance_without, recorded, child)
        ):
            node, child = node - 1, node
        if node == 0 and child is not None:
            residuals[0].reject(recorded, child)
        return Verdict(tuple(range(1, node + 1)), residuals[node].next_token(random))
