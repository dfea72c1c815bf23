"""Block Verification (Sun et al.): the optimal lossless rule for a chain, which looks at the block as a whole."""

from __future__ import annotations

import torch

from ..sampling import Chance, Laws, Rows, Sampling
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

    def refused(self, drawing: Drawing, chain: bool) -> str | None:
        """Chains whose tokens do not follow their recorded laws."""
        return drawing.value if drawing is Drawing.SELECTED else None

    def sample(self, tree: TokenTree, rows: Rows, laws: Laws | None, chance: Chance) -> Verdict:
        """See `Verifier.verify`; a coin per node from the last to the first, a row operation only where it succeeds."""
        recorded, last = Recorded(tree, laws), len(tree) - 1
        if tree.depth != last:
            raise ValueError(f"Block Verification was given a tree of {last + 1} nodes that branches; use Traversal.")
        weights = [1.0]
        for node in range(1, last + 1):
            ratio = rows.prob(node - 1, int(tree.tokens[node])) / recorded.prob(node)
            weights.append(min(1.0, weights[-1] * ratio))
        for node in range(last, -1, -1):
            if node and not chance.accept(weights[node]):  # no prefix is kept more often than its weight
                continue
            row, share = rows.row(node), 1.0
            if node < last:
                rest = recorded.rest(row * weights[node], node + 1)
                mass = float(rest.sum(dtype=torch.float64))
                share = mass / (mass + 1 - weights[node]) / weights[node] if mass > 0 else 0.0
                row = rest if mass > 0 else row
            if node == 0 or chance.accept(share):
                break
        return Verdict(tuple(range(1, node + 1)), chance.draw(row))
