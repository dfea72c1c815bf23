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
        length, last = {0: 0}, 0  # nodes reached along argmax tokens; siblings may repeat a token, so keep all
        for node in hits.tolist():
            above = int(tree.parents[node])
            if above in length:
                length[node] = length[above] + 1
                last = node if length[node] > length[last] else last
        return Verdict(tuple(tree.path(last)), int(choice[last]))
