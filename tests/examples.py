"""Instances of every drafter that the contract tests run: they cover its switches.

A drafter without an entry here is run with its defaults.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import dynatree_lib as dt
from dynatree_lib.drafters import Drafter, ModelDrafter
from dynatree_suite.drafters import ALL_DRAFTERS, WRAPPERS, DySpecTree, Lookahead, SelfDraft, UnionTree

# AdaptiveTree: thresholds that act at random models' low confidence, and budgets that bind
_FLAT = {"tau_high": 0.3, "tau_low": 0.1, "rho_stop": 0.001, "rho_deep": 0.01, "tau": None}
_SMALL = {**_FLAT, "mid_branching": 1, "max_branching": 2, "base_depth": 1, "max_depth": 2}
_PTD_TIGHT = {"depth": 3, "children": 2, "start_tree": (2, 2), "max_draft": 6, "max_candidates": 4, "max_pool": 150}

OPTIONS: dict[type[Drafter], list[dict[str, Any]]] = {
    dt.Chain: [{"length": 1}, {"length": 4}, {"length": 9}],
    dt.FixedTree: [
        {},
        {"depth": 4, "branching": 3, "tau": None, "max_nodes": 40},
        {"depth": 3, "branching": (3, 2, 1), "tau": 0.1, "prune": "remove"},
        {"depth": 6, "branching": 2, "tau": 0.2, "max_nodes": 9, "root": "draft"},
    ],
    dt.AdaptiveTree: [
        {},
        {**_FLAT, "base_depth": 2, "max_depth": 6, "max_nodes": 30, "history": None},
        {**_FLAT, "tau": 0.02, "history": "drafted", "prune": "remove", "max_nodes": 40},
        {**_FLAT, "breadth": None, "history": "text", "root": "draft", "max_nodes": 12},
        {**_FLAT, "depth": None, "base_depth": 3, "max_nodes": 25, "deep": ">="},
        {**_SMALL, "draw": "distinct", "max_nodes": 6},
        {**_SMALL, "tau": 0.2, "draw": "iid", "prune": "remove", "max_nodes": 5},
    ],
    # a budget that binds early, one that never does, a chain
    dt.BestFirstTree: [{}, {"max_nodes": 40, "depth": 3, "branching": 3}, {"max_nodes": 5, "depth": 6, "branching": 1}],
    # nodes that cost nothing, nodes and levels that cost much without learning
    dt.CostAwareTree: [
        {},
        {"costs": dt.Costs((1.0, 1.0, 1.0), (0.001, 0.001), 0.15), "depth": 4, "max_nodes": 40},
        {"costs": dt.Costs((1.0, 1.4, 2.2), (0.2, 0.3), 0.15), "learning": 0.0},
    ],
    # nodes that cost nothing, a small budget, a chain
    dt.CostAwareSampledTree: [
        {},
        {"costs": dt.Costs((1.0, 1.0, 1.0), (0.001, 0.001), 0.15), "depth": 2, "branching": 2, "max_nodes": 5},
        {"costs": dt.Costs((1.0, 1.2, 1.6), (0.01, 0.02)), "branching": 1, "depth": 3},
    ],
    # frequent matches of one token, free drafting beside copies, budgets that bind
    dt.LookupTree: [
        {},
        {"ngram": 3, "longest": 4},
        {"costs": dt.Costs((1.0, 1.0), (0.001, 0.001)), "ngram": 1, "depth": 4, "max_nodes": 12},
        {"match": "suffix", "ngram": 1},
    ],
    dt.SampledTree: [
        {"depth": 3, "branching": 1},
        {"depth": 2, "branching": 2},
        {"depth": 2, "branching": (2, 1), "draw": "iid"},
        {"depth": 2, "branching": 2, "draw": "hybrid"},
        {"depth": 2, "branching": 2, "draw": "top"},
        {"shape": (0, 0, 1, 1, 3), "temperature": 0.7},
    ],
    # tight caps with the text merged, drawn expansion, a cost-aware cap
    dt.ProgressiveTree: [
        {},
        {**_PTD_TIGHT, "text_depth": 2},
        {"depth": 4, "children": 3, "temperature": 1.0, "top_k": 3, "start_tree": (1,), "prune_first": False},
        {"depth": 4, "start_tree": (2,), "text_depth": 9, "costs": dt.Costs((1.0, 1.3, 1.35, 1.4, 1.6, 2.1, 3.2))},
    ],
    # the paper's setting for 7B models, the smallest windows, pooled text
    Lookahead: [{}, {"window": 1, "ngram": 2, "guesses": 2}, {"window": 3, "ngram": 3, "guesses": 3, "text": True}],
    SelfDraft: [
        {},
        {"branches": 1, "length": 1, "perturbation": 1, "ngram": 2, "candidates": 1},
        {"branches": 3, "length": 3, "ngram": 3, "text": False},
    ],
    dt.PromptLookup: [{}, {"ngram": 1, "length": 2}],
    # a wide tree, a priced one, a chain
    dt.SuffixTree: [
        {"costs": None},
        {"costs": dt.Costs((1.0, 1.2, 1.5, 2.0)), "depth": 4, "shortest": 2},
        {"branching": 1, "max_nodes": 5, "costs": None},
    ],
    # as published but for its tree, a priced one, one that knows the target's predictions alone
    dt.TokenRecycling: [
        {"context": 1, "costs": None},
        {"costs": dt.Costs((1.0, 1.1, 1.3, 1.8)), "remembered": 3, "depth": 3},
        {"text": False, "max_nodes": 9, "costs": None},
    ],
    # a budget that binds, one that does not and a limit on children that does, a single child
    DySpecTree: [
        {"max_nodes": 6, "depth": 3},
        {"max_nodes": 40, "depth": 2, "branching": 2},
        {"branching": 1},
        {"accepted": 0.5, "max_nodes": 6},
    ],
}

_WRAPPED: dict[type[Drafter], Callable[[Any], list[Drafter]]] = {
    # with a draft and without one; free nodes and dear ones; a text that may lose nothing, and one that may lose all
    dt.Auto: lambda draft: [
        dt.Auto(draft),
        dt.Auto(),
        dt.Auto(draft, costs=dt.Costs((1.0, 1.01, 1.02, 1.04), (0.01, 0.01)), max_nodes=12, share=0.9),
        dt.Auto(costs=dt.Costs((1.0, 1.01, 1.02, 1.04)), max_nodes=9, depth=3, share=0.9),
        dt.Auto(draft, share=0.0),
        dt.Auto(draft, costs=None, max_nodes=10, branching=2),
    ],
    # a model and copies, two models, no model, a side tree; budgets that bind, one above a part's, and a price
    UnionTree: lambda draft: [
        UnionTree(dt.LookupTree(draft), dt.TokenRecycling(costs=None), max_nodes=20, costs=None),
        UnionTree(dt.LookupTree(draft, max_nodes=4), dt.FixedTree(draft, depth=3)),
        UnionTree(dt.TokenRecycling(), dt.FixedTree(draft), costs=dt.Costs((1.0, 1.1, 1.2, 1.5, 2.0))),
        UnionTree(dt.SuffixTree(costs=None), dt.TokenRecycling(context=1, costs=None), max_nodes=6, costs=None),
        UnionTree(dt.ProgressiveTree(**_PTD_TIGHT), dt.PromptLookup(ngram=1), costs=None),
    ],
}
EVERY = (*ALL_DRAFTERS, *WRAPPERS)
"""Every kind of drafter that the contract tests run."""


def needs_draft(kind: type[Drafter]) -> bool:
    """Whether instances of this kind have the draft model."""
    return issubclass(kind, ModelDrafter) or kind in _WRAPPED


def examples(kind: type[Drafter], draft: Any) -> list[Drafter]:
    """The instances of a drafter that the contract tests run, with this draft model where it needs one."""
    if kind in _WRAPPED:
        return _WRAPPED[kind](draft)
    models = (draft,) if issubclass(kind, ModelDrafter) else ()
    return [kind(*models, **options) for options in OPTIONS.get(kind, [{}])]
