"""Token-level verification, top down: one rule with several names, because trees are drawn in several ways.

On a chain it is speculative sampling (Leviathan et al.; Chen et al.). With siblings drawn with replacement it is
recursive rejection sampling (RRS, SpecInfer), without replacement RRSw (EAGLE, Sequoia; Traversal Verification,
Algorithm 2). With deterministic siblings it is the corrected rule of Progressive Tree Drafting: Algorithm 2 with the
normaliser of its proof.
"""

from __future__ import annotations

from .residual import TopDown, one_by_one


class TokenLevel(TopDown):
    """Try the children of the accepted node in draw order, each against the residual of those rejected before it."""

    name = "token-level"
    accepted = staticmethod(one_by_one)
