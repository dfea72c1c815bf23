"""Drafters propose a token tree; one file per idea. To add one: a file, and a line in `DRAFTERS`."""

from .base import Drafter, ModelDrafter, NoDraft, Proposal
from .chain import Chain
from .fixed_tree import FixedTree

DRAFTERS: tuple[type[Drafter], ...] = (NoDraft, Chain, FixedTree)
"""Every drafter; the contract tests run over all of them."""

__all__ = ["DRAFTERS", "Chain", "Drafter", "FixedTree", "ModelDrafter", "NoDraft", "Proposal"]
