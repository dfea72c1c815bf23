"""Target walk: sample from the target at each node and go where the sample leads.

It never looks at how the tree was drafted, so it is lossless for every tree; for a deterministic tree no lossless rule
keeps more. At temperature 0 it is greedy verification.
"""

from __future__ import annotations

import numpy as np

from ..sampling import Chance, Rows, Sampling
from ..tree import TokenTree
from .base import Verdict, Verifier
from .greedy import Greedy


class TargetWalk(Verifier):
    """Draw y from the target's law at the current node; walk to the child with y, or stop with y as bonus token."""

    def check(self, sampling: Sampling) -> None:
        """Every sampling is served."""

    def verify(self, tree: TokenTree, rows: Rows, laws: Rows | None, chance: Chance) -> Verdict:
        """See `Verifier.verify`; draws once per kept node, and once more."""
        if rows.sampling.greedy:
            return Greedy().verify(tree, rows, laws, chance)
        node = 0
        path: list[int] = []
        while True:
            token = chance.draw(rows.row(node))
            step = np.flatnonzero((tree.parents == node) & (tree.tokens == token))
            if not len(step):
                return Verdict(tuple(path), token)
            node = int(step[0])
            path.append(node)
