"""Drafters propose a token tree; one file per idea.

To add a drafter: one file, imported and named in `__all__` here. A drafter that needs a draft model is a
`ModelDrafter`.
"""

from inspect import isabstract

from .adaptive_tree import AdaptiveTree
from .auto import Auto
from .base import Drafter, ModelDrafter, NoDraft, Proposal
from .best_first_tree import BestFirstTree
from .chain import Chain
from .cost_aware_sampled_tree import CostAwareSampledTree
from .cost_aware_tree import CostAwareTree
from .fixed_tree import FixedTree
from .lookup_tree import LookupTree
from .progressive_tree import ProgressiveTree
from .prompt_lookup import PromptLookup
from .sampled_tree import SampledTree
from .suffix_tree import SuffixTree
from .token_recycling import TokenRecycling

__all__ = [
    "DRAFTERS",
    "AdaptiveTree",
    "Auto",
    "BestFirstTree",
    "Chain",
    "CostAwareSampledTree",
    "CostAwareTree",
    "Drafter",
    "FixedTree",
    "LookupTree",
    "ModelDrafter",
    "NoDraft",
    "ProgressiveTree",
    "PromptLookup",
    "Proposal",
    "SampledTree",
    "SuffixTree",
    "TokenRecycling",
]

_named = [globals().get(name) for name in __all__]
DRAFTERS: tuple[type[Drafter], ...] = tuple(
    kind for kind in _named if isinstance(kind, type) and issubclass(kind, Drafter) and not isabstract(kind)
)  # fmt: skip
"""Every drafter named above; the contract tests run over all of them."""
