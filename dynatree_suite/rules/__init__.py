"""Verification rules beyond the five papers, to compare the papers' own with; one file per rule.

To add a rule: one file, and its name in `BEYOND`. The papers' own are in `dynatree_lib.verifiers`.
"""

from __future__ import annotations

from dynatree_lib.verifiers import VERIFIERS, Verifier

from .hierarchical import Hierarchical
from .k_sequential import KSequential
from .multi_path import MultiPath
from .transport import ConditionalTransport, Transport

BEYOND: tuple[type[Verifier], ...] = (Hierarchical, KSequential, Transport, ConditionalTransport, MultiPath)
"""Rules beyond the papers; tests/suite/test_rules_beyond.py has their tests."""
ALL_RULES = (*VERIFIERS, *BEYOND)
"""Every rule, the library's first: `dynatree audit` enumerates them, and a method's option `verifier` names them."""

__all__ = ["ALL_RULES", "BEYOND", "ConditionalTransport", "Hierarchical", "KSequential", "MultiPath", "Transport"]
