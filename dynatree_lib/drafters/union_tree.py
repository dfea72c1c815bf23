"""`UnionTree`: the trees of two drafters joined into one, under one priced budget."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from typing_extensions import override

from ..checks import of_kind
from ..costs import CostCurve, Pace
from ..models.base import LanguageModel
from ..sampling import GREEDY, RandomSource, Sampling, Scores
from ..tree import ROOT, TokenTree
from ..verifiers.base import Drawing, Verdict
from .base import Drafter, Proposal
from .best_first_tree import highest, most_paying
from .checks import check_max_nodes, check_rules, make_tuples, require
from .rates import SuccessRates

EDGES = (0.03, 0.1, 0.25, 0.5, 0.75, 0.9)
"""Probabilities that separate the classes of a drafter's nodes."""
PRIOR = (0.02, 0.06, 0.15, 0.35, 0.6, 0.8, 0.92)
"""Probability that a node of a class is right, before the text has shown any."""
CLASSES = len(PRIOR) + 1
"""Classes of a node for one drafter: 0 where it did not draft it."""
MEMORY = 0.99
"""Weight of the earlier outcomes at each new outcome of a class."""


def _rates() -> SuccessRates:
    one = (0.0, *PRIOR)
    joint = [1 - (1 - first) * (1 - second) for first in one for second in one]
    return SuccessRates([min(max(share, PRIOR[0]), 0.97) for share in joint], MEMORY)


@dataclass
class UnionState:
    """The states of the two drafters, and what was learnt about their nodes.

    Attributes:
        parts: the states.
        rates: how often a node was right if its parent was, by the classes that the two drafters put it in.
        pace: of the text.
        joined, kinds: of the current iteration: the tree of all nodes, those left out included, and their classes.
    """

    parts: list[Any]
    rates: SuccessRates
    pace: Pace
    joined: TokenTree | None = None
    kinds: np.ndarray | None = None


@dataclass(frozen=True)
class UnionTree(Drafter):
    """Two drafters' trees as one: shared paths share nodes, and the nodes most likely to be right are verified.

    Each drafter says how probable a node is (`TokenTree.logprobs`). How often nodes of such probability are right is
    counted in the text, by both drafters' word together: a node that both draft is right more often. A node counts as
    likely as the product of these rates along its path. Both drafters learn from the whole joined tree.

    Args:
        first, second: the drafters. Both are deterministic. At most one has a side tree, and if both read features,
            they read the same.
        max_nodes: most nodes, node 0 included.
        verify_cost: cost of the target's forward over 1, 2, 4, ... nodes in greedy steps; then as many nodes are
            verified as pay (see `CostAwareTree`). None prices nothing. Cost-aware drafters price their own drafting.
        rate: tokens per greedy step to begin with, for `verify_cost`; the text's own takes over.

    Raises:
        TypeError: for what is no drafter.
        ValueError: for a drafter that draws its tokens, two drafters by side trees, two drafts whose features differ,
            max_nodes < 2, costs that are no curve, or a rate that is not positive.
    """

    first: Drafter
    second: Drafter
    max_nodes: int = 48
    verify_cost: tuple[float, ...] | None = None
    rate: float = 1.5
    name = "union-tree"

    def __post_init__(self) -> None:
        make_tuples(self, "verify_cost")
        check_max_nodes(self)
        check_rules(self, "0 < rate < inf")
        if self.verify_cost is not None:
            CostCurve(self.verify_cost)  # raises ValueError where it is no curve
        for role, part in (("first", self.first), ("second", self.second)):
            of_kind(f"The {role} drafter", part, Drafter, "give a drafter, such as LookupTree(draft)")
            require(
                part.drawing is Drawing.FIXED,
                f"The {role} drafter, '{part.name}', draws its tokens, and leaving some out would bias the text; give "
                "drafters of deterministic trees.",
            )
        require(
            not (self.first.side_trees and self.second.side_trees),
            f"'{self.first.name}' and '{self.second.name}' both draft inside the target's forward by a side tree; give "
            "one such drafter.",
        )
        layers = {part.feature_layers for part in self._parts if part.feature_layers is not None}
        require(len(layers) < 2, f"The two drafts read different features {sorted(layers)}; give one such draft.")

    @property
    def _parts(self) -> tuple[Drafter, Drafter]:
        return self.first, self.second

    @property
    def side_trees(self) -> bool:
        """Whether one of them does."""
        return any(part.side_trees for part in self._parts)

    @property
    def model(self) -> LanguageModel | None:
        """The draft model of the first drafter that has one."""
        return next((part.model for part in self._parts if part.model is not None), None)

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """Those of both drafters."""
        return tuple({id(model): model for part in self._parts for model in part.models}.values())

    @property
    def feature_layers(self) -> tuple[int, ...] | None:
        """Those of the drafter that reads features."""
        return next((part.feature_layers for part in self._parts if part.feature_layers is not None), None)

    @override
    def check(self, target: LanguageModel) -> None:
        for part in self._parts:
            part.check(target)

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> UnionState:
        parts = [part.start(prompt, random) for part in self._parts]
        return UnionState(parts, _rates(), Pace.begun(self.rate))

    @override
    def extend(self, state: UnionState, tokens: Sequence[int]) -> UnionState:
        state.parts = [part.extend(own, tokens) for part, own in zip(self._parts, state.parts, strict=True)]
        return state

    @override
    def inherit(self, state: UnionState, earlier: UnionState) -> UnionState:
        pairs = zip(self._parts, state.parts, earlier.parts, strict=True)
        state.parts = [part.inherit(own, old) for part, own, old in pairs]
        state.rates = deepcopy(earlier.rates)
        state.pace = Pace.begun(earlier.pace.rate)
        return state

    @override
    def drafting_cost(self, state: UnionState) -> float:
        return sum(part.drafting_cost(own) for part, own in zip(self._parts, state.parts, strict=True))

    @override
    def drafting_work(self, state: UnionState) -> tuple[int, int]:
        works = [part.drafting_work(own) for part, own in zip(self._parts, state.parts, strict=True)]
        return sum(forwards for forwards, _ in works), sum(nodes for _, nodes in works)

    def report(self, state: UnionState) -> dict[str, float]:
        """Return the numbers of both drafters."""
        both = zip(self._parts, state.parts, strict=True)
        return {f"{part.name}: {key}": value for part, own in both for key, value in part.report(own).items()}

    # ------------------------------------------------------------------------------------------------------- the tree
    @override
    def propose(self, state: UnionState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        pairs = zip(self._parts, state.parts, strict=True)
        proposals = [part.propose(own, max_depth, sampling) for part, own in pairs]
        tree, places = joined([proposal.tree for proposal in proposals])
        kinds = np.zeros((2, len(tree)), np.int64)
        for side, (proposal, place) in enumerate(zip(proposals, places, strict=True)):
            kinds[side, place] = 1 + np.searchsorted(EDGES, np.exp(proposal.tree.logprobs), side="right")
        state.joined, state.kinds = tree, kinds[0] * CLASSES + kinds[1]
        estimate = np.ones(len(tree))
        for node in range(1, len(tree)):
            estimate[node] = estimate[tree.parents[node]] * state.rates[int(state.kinds[node])]
        keep = highest(estimate, self._size(state, estimate))
        number = np.full(len(tree) + 1, ROOT)  # the last place is what the parent of node 0 reads
        number[keep] = np.arange(len(keep))
        for part, own, place in zip(self._parts, state.parts, places, strict=True):
            part.renumber(own, number[place], len(keep))
        parts = (tree.tokens[keep], number[tree.parents[keep]], tree.logprobs[keep], tree.draws[keep])
        side_trees = (proposal.side_tree for proposal in proposals if proposal.side_tree is not None)
        return Proposal(TokenTree(*parts), side_tree=next(side_trees, None))

    def _size(self, state: UnionState, estimate: np.ndarray) -> int:
        """Return how many nodes are verified."""
        if self._costs is None:
            return self.max_nodes
        return most_paying(-np.sort(-estimate)[: self.max_nodes], state.pace.rate, self._costs)

    @cached_property
    def _costs(self) -> np.ndarray | None:
        """[n - 1] the cost of verifying n nodes."""
        return None if self.verify_cost is None else CostCurve(self.verify_cost).at(np.arange(1, self.max_nodes + 1))

    @override
    def observe(self, state: UnionState, proposal: Proposal, scores: Scores, verdict: Verdict) -> UnionState:
        tokens = verdict.tokens(proposal.tree)
        self._learn(state, tokens)
        cost = 0.0
        if self._costs is not None:
            cost = self.drafting_cost(state) + float(self._costs[len(proposal.tree) - 1])
        state.pace.add(len(tokens), cost)
        own = zip(self._parts, state.parts, strict=True)
        state.parts = [part.observe(state_, proposal, scores, verdict) for part, state_ in own]
        return state

    def _learn(self, state: UnionState, tokens: Sequence[int]) -> None:
        """Learn which nodes on the committed path were right, those that were left out included."""
        tree, kinds, node = state.joined, state.kinds, 0
        assert tree is not None
        assert kinds is not None
        for token in tokens:
            children = tree.children(node)
            right = children[tree.tokens[children] == token]
            for child in children.tolist():
                state.rates.learn(int(kinds[child]), child in right)
            if not len(right):
                return
            node = int(right[0])


def joined(trees: Sequence[TokenTree]) -> tuple[TokenTree, list[np.ndarray]]:
    """Join trees with the same node 0: siblings with the same token become one node.

    Returns:
        the joined tree, whose log-probabilities are those of the first tree that has a node; and for each tree the (n,)
        node of the joined tree that each of its nodes became.
    """
    tokens, parents, logprobs = [int(trees[0].tokens[0])], [ROOT], [0.0]
    known: dict[tuple[int, int], int] = {}
    places = []
    for tree in trees:
        place = np.zeros(len(tree), np.int64)
        for node in range(1, len(tree)):
            key = int(place[tree.parents[node]]), int(tree.tokens[node])
            if key not in known:
                known[key] = len(tokens)
                parents.append(key[0])
                tokens.append(key[1])
                logprobs.append(float(tree.logprobs[node]))
            place[node] = known[key]
        places.append(place)
    return TokenTree.build(tokens, parents, logprobs), places
