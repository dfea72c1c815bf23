"""Verifiers accept a path of the drafted tree and choose the bonus token; one file per rule.

These are the papers' rules. To add one: one file, and its name in `VERIFIERS`.
"""

from .base import Drawing, Verdict, Verifier
from .block import Block
from .greedy import Greedy
from .target_walk import TargetWalk
from .token_level import TokenLevel
from .traversal import Traversal

VERIFIERS: tuple[type[Verifier], ...] = (Greedy, TargetWalk, TokenLevel, Block, Traversal)
"""The papers' verifiers; the contract tests run over all of them."""


def default_verifier(greedy: bool, drawing: Drawing) -> Verifier:
    """Return a rule without bias that usually accepts most.

    It is greedy verification at temperature 0. Above, it is the target walk for deterministic trees and those selected
    after drawing, traversal for drawn trees, and token-level verification where branches share random numbers.
    """
    if greedy:
        return Greedy()
    chosen = {Drawing.RECORDED: Traversal, Drawing.GROWN: Traversal, Drawing.BY_PATH: TokenLevel}
    return chosen.get(drawing, TargetWalk)()


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
