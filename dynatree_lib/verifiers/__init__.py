"""Verifiers keep a path of the drafted tree and choose one more token; one file per rule."""

from .base import Verdict, Verifier
from .greedy import Greedy
from .target_walk import TargetWalk

VERIFIERS: tuple[type[Verifier], ...] = (Greedy, TargetWalk)
"""Every verifier; the contract tests run over all of them."""

__all__ = ["VERIFIERS", "Greedy", "TargetWalk", "Verdict", "Verifier"]
