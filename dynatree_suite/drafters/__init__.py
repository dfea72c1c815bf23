"""Drafters to compare with: the PTD paper's baselines, DySpec, and two drafters' trees as one; one file per idea.

Every command that offers the library's drafters offers them too. To add one: one file, and its name in `BASELINES`.
"""

from __future__ import annotations

from dynatree_lib.drafters import DRAFTERS, Drafter

from .dyspec_tree import DySpecTree
from .lookahead import Lookahead
from .self_draft import SelfDraft
from .union_tree import UnionTree

BASELINES: tuple[type[Drafter], ...] = (DySpecTree, Lookahead, SelfDraft)
"""The drafters of this room."""
ALL_DRAFTERS: tuple[type[Drafter], ...] = tuple(sorted((*DRAFTERS, *BASELINES), key=lambda kind: kind.__name__))
"""Every drafter but those made of others, sorted by name; methods and contract tests have all of them."""
WRAPPERS: tuple[type[Drafter], ...] = (UnionTree,)
"""Drafters that are made of others."""

__all__ = ["ALL_DRAFTERS", "BASELINES", "WRAPPERS", "DySpecTree", "Lookahead", "SelfDraft", "UnionTree"]
