"""Target walk: sample from the target at each node and go where the sample leads.

It never looks at how the tree was drafted, so it is lossless for every tree; for a deterministic tree no lossless rule
keeps more. At temperature 0 it is greedy verification.
"""

from __future__ import annotations

import numpy as np

from ..sampling import Chance, Laws, Rows
from ..tree import TokenTree
from .base import Verdict, Verifier


class TargetWalk(Verifier):
    """Draw y from the target's law at the current node; walk to the child with y, or stop with y as bonus token.

    One draw per token of the text, so a seed gives the text that plain sampling gives with it, up to rounding.
    """

    name = "target-walk"

    def sample(self, tree: TokenTree, rows: Rows, laws: Laws | None, chance: Chance) -> Verdict:
        """See `Verifier.verify`; draws once per kept node, and once more."""
        node = 0
        path: list[int] = []
        while True:
            token = chance.draw(rows.row(node))
            step = np.flatnonzero((tree.parents == node) & (tree.tokens == token))
            if not len(step):
                return Verdict(tuple(path), token)
            node = int(step[0])
            path.append(node)
