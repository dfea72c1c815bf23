"""Drafters propose a token tree; one file per idea. To add one: a file, and a line in `DRAFTERS`."""

from .adaptive_tree import AdaptiveTree
from .base import Drafter, ModelDrafter, NoDraft, Proposal
from .best_first_tree import BestFirstTree
from .chain import Chain
from .cost_aware_tree import CostAwareTree
from .fixed_tree import FixedTree
from .lookahead import Lookahead
from .lookup_tree import LookupTree
from .progressive_tree import ProgressiveTree
from .prompt_lookup import PromptLookup
from .sampled_tree import SampledTree
from .self_draft import SelfDraft

DRAFTERS: tuple[type[Drafter], ...] = (
    NoDraft,
    Chain,
    FixedTree,
    AdaptiveTree,
    BestFirstTree,
    CostAwareTree,
    LookupTree,
    SampledTree,
    PromptLookup,
    Lookahead,
    SelfDraft,
    ProgressiveTree,
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
    "Lookahead",
    "LookupTree",
    "ModelDrafter",
    "NoDraft",
    "ProgressiveTree",
    "PromptLookup",
    "Proposal",
    "SampledTree",
    "SelfDraft",
]
