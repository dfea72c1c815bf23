"""Verifiers accept a path of the drafted tree and choose the bonus token; one file per rule.

To add a rule: one file, and its name in `VERIFIERS` or `BEYOND`.
"""

from .base import Drawing, Verdict, Verifier
from .block import Block
from .greedy import Greedy
from .hierarchical import Hierarchical
from .k_sequential import KSequential
from .multi_path import MultiPath
from .target_walk import TargetWalk
from .token_level import TokenLevel
from .transport import ConditionalTransport, Transport
from .traversal import Traversal

VERIFIERS: tuple[type[Verifier], ...] = (Greedy, TargetWalk, TokenLevel, Block, Traversal)
"""The papers' verifiers; the contract tests run over all of them."""
BEYOND: tuple[type[Verifier], ...] = (Hierarchical, KSequential, Transport, ConditionalTransport, MultiPath)
"""Rules beyond the papers; tests/lib/test_rules_beyond.py has their tests. `dynatree audit` enumerates both kinds."""


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
    "BEYOND",
    "VERIFIERS",
    "Block",
    "ConditionalTransport",
    "Drawing",
    "Greedy",
    "Hierarchical",
    "KSequential",
    "MultiPath",
    "TargetWalk",
    "TokenLevel",
    "Transport",
    "Traversal",
    "Verdict",
    "Verifier",
    "default_verifier",
]
