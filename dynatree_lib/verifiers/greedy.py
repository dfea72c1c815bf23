"""Greedy verification: the longest path on which every token is the target's argmax (DynaTree, section 3.5)."""

from __future__ import annotations

import numpy as np

from ..sampling import Chance, Rows, Sampling
from ..tree import TokenTree
from .base import Verdict, Verifier


class Greedy(Verifier):
    """Follow the target's argmax while the tree contains it; the argmax after the last kept node is the bonus token."""

    def check(self, sampling: Sampling) -> None:
        """Greedy verification serves temperature 0 only."""
        if not sampling.greedy:
            raise ValueError(
                f"Greedy verification at temperature {sampling.temperature} would not sample from the target; "
                "use TargetWalk (any tree) or leave the verifier out."
            )

    def verify(self, tree: TokenTree, rows: Rows, laws: Rows | None, chance: Chance) -> Verdict:
        """See `Verifier.verify`; uses only the argmax of each row."""
        choice = rows.argmax
        hits = np.flatnonzero(tree.tokens[1:] == choice[tree.parents[1:]]) + 1
        node, path = 0, []
        for hit in hits:  # ascending, and parents come before children: one pass follows the path
            if tree.parents[hit] == node:
                node = int(hit)
                path.append(node)
        return Verdict(tuple(path), int(choice[node]))
