"""Verifiers keep a path of the drafted tree and choose one more token; one file per rule.

To add one: a file, and a line in `VERIFIERS`.
"""

from .base import Drawing, Verdict, Verifier
from .block import Block
from .greedy import Greedy
from .target_walk import TargetWalk
from .token_level import TokenLevel
from .traversal import Traversal

VERIFIERS: tuple[type[Verifier], ...] = (Greedy, TargetWalk, TokenLevel, Block, Traversal)
"""Every verifier; the contract tests run over all of them."""


def default_verifier(greedy: bool, drawing: Drawing) -> Verifier:
    """A rule without bias that usually keeps most: greedy verification at temperature 0; above it, the target walk for
    deterministic trees and for those selected after drawing, traversal for sampled ones, token-level verification where
    branches share random numbers."""
    if greedy:
        return Greedy()
    if drawing is Drawing.RECORDED:
        return Traversal()
    return TokenLevel() if drawing is Drawing.BY_PATH else TargetWalk()


__all__ = [
    "VERIFIERS",
    "Block",
    "Drawing",
    "Greedy",
    "TargetWalk",
    "TokenLevel",
    "Traversal",
    "Verdict",
    "Verifier",
    "default_verifier",
]
