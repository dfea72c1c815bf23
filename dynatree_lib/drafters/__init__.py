"""Drafters propose a token tree; one file per idea. To add one: a file, and a line in `DRAFTERS`."""

from .adaptive_tree import AdaptiveTree
from .base import Drafter, ModelDrafter, NoDraft, Proposal
from .best_first_tree import BestFirstTree
from .chain import Chain
from .cost_aware_tree import CostAwareTree
from .fixed_tree import FixedTree
from .lookup_tree import LookupTree
from .sampled_tree import SampledTree

DRAFTERS: tuple[type[Drafter], ...] = (
    NoDraft,
    Chain,
    FixedTree,
    AdaptiveTree,
    BestFirstTree,
    CostAwareTree,
    LookupTree,
    SampledTree,
)
"""Every drafter; the contract tests run over all of them."""

__all__ = [
    "DRAFTERS",
    "AdaptiveTree",
    "BestFirstTree",
    "Chain",
    "CostAwareTree",
    "Drafter",
    "FixedTree",
    "LookupTree",
    "ModelDrafter",
    "NoDraft",
    "Proposal",
    "SampledTree",
]
