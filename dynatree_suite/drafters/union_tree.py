"""`UnionTree`: the trees of two drafters joined into one tree, as far as nodes pay."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from typing_extensions import override

from dynatree_lib.checks import of_kind
from dynatree_lib.costs import Pace
from dynatree_lib.drafters.base import Drafter, Proposal
from dynatree_lib.drafters.checks import MEASURED, Priced, Pricing, check_counts, require
from dynatree_lib.drafters.rates import SuccessRates
from dynatree_lib.drafters.search import highest, most_paying
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.sampling import GREEDY, RandomSource, Sampling, Scores
from dynatree_lib.tree import ROOT, TokenTree, renumbering
from dynatree_lib.verifiers.base import Drawing, Verdict

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
    """The states of the two drafters, and how often their nodes were right.

    Attributes:
        parts: states of the drafters, in the order of `UnionTree.parts`.
        rates: how often a node was right if its parent was, by the classes that the two drafters put it in.
        pace: of the text.
        joined, kinds: of the current iteration: the tree of all nodes, those left out included, and their classes.
    """

    parts: list[Any]
    rates: SuccessRates
    pace: Pace
    joined: TokenTree = field(init=False, repr=False)
    kinds: np.ndarray = field(init=False, repr=False)


@dataclass(frozen=True)
class UnionTree(Priced, Drafter):
    """Two drafters' trees as one: shared paths share nodes, and the nodes most likely to be right are verified.

    Each drafter says how probable a node is (`TokenTree.logprobs`). How often nodes of such probability are right is
    counted in the text, by both drafters' word together: a node that both draft is right more often. A node counts as
    likely as the product of these rates along its path. Both drafters learn from the whole joined tree.

    Args:
        first, second: the drafters. Both are deterministic. At most one has a side tree, and if both read features,
            they read the same.
        max_nodes: most nodes, node 0 included.
        costs: of verifying, measured on this machine by default: as many nodes are verified as pay (see
            `CostAwareTree`). None makes nodes free. Cost-aware drafters add the cost of drafting.
        rate: tokens per greedy step to begin with, where nodes cost anything; the text's own takes over.

    Raises:
        TypeError: for a value that is no drafter.
        ValueError: for a drafter that draws its tokens, two drafters by side trees, two drafts whose features differ,
            max_nodes < 2, costs that are none, or a rate that is not positive.
    """

    first: Drafter
    second: Drafter
    max_nodes: int = 48
    costs: Pricing = MEASURED
    rate: float = 1.5
    name = "union-tree"

    def __post_init__(self) -> None:
        self.check_costs()
        check_counts(self, "max_nodes")
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
        layers = {part.feature_layers for part in self.parts if part.feature_layers is not None}
        require(len(layers) < 2, f"The two drafts read different features {sorted(layers)}; give one such draft.")

    @property
    def parts(self) -> tuple[Drafter, Drafter]:
        """Both drafters."""
        return self.first, self.second

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """Those of both drafters."""
        return tuple({id(model): model for part in self.parts for model in part.models}.values())

    @property
    def side_trees(self) -> bool:
        """Whether a part drafts by side trees."""
        return any(part.side_trees for part in self.parts)

    @override
    def check(self, target: LanguageModel) -> None:
        for part in self.parts:
            part.check(target)

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> UnionState:
        parts = [part.start(prompt, random) for part in self.parts]
        return UnionState(parts, _rates(), Pace.begun(self.rate))

    def each(self, state: UnionState) -> Iterator[tuple[Drafter, Any]]:
        """Yield each drafter with its state."""
        return zip(self.parts, state.parts, strict=True)

    @override
    def extend(self, state: UnionState, tokens: Sequence[int]) -> UnionState:
        state.parts = [part.extend(own, tokens) for part, own in self.each(state)]
        return state

    @override
    def inherit(self, state: UnionState, earlier: UnionState) -> UnionState:
        state.rates = deepcopy(earlier.rates)
        state.pace = Pace.begun(earlier.pace.rate)
        pairs = zip(self.each(state), earlier.parts, strict=True)
        state.parts = [part.inherit(own, before) for (part, own), before in pairs]
        return state

    @override
    def renumber(self, state: UnionState, nodes: np.ndarray, size: int) -> None:
        for part, own in self.each(state):
            part.renumber(own, nodes, size)

    @override
    def drafting_work(self, state: UnionState) -> tuple[int, int]:
        works = [part.drafting_work(own) for part, own in self.each(state)]
        return sum(forwards for forwards, _ in works), sum(nodes for _, nodes in works)

    @override
    def drafting_cost(self, state: UnionState) -> float:
        return sum(part.drafting_cost(own) for part, own in self.each(state))

    def report(self, state: UnionState) -> dict[str, float]:
        """Return the numbers of both drafters."""
        reports = ((part.name, part.report(own)) for part, own in self.each(state))
        return {f"{name}: {key}": value for name, report in reports for key, value in report.items()}

    # ------------------------------------------------------------------------------------------------------- the tree
    @override
    def propose(self, state: UnionState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        proposals = [part.propose(own, max_depth, sampling) for part, own in self.each(state)]
        tree, places = joined([proposal.tree for proposal in proposals])
        kinds = np.zeros((2, len(tree)), np.int64)
        for side, (proposal, place) in enumerate(zip(proposals, places, strict=True)):
            kinds[side, place] = 1 + np.searchsorted(EDGES, np.exp(proposal.tree.logprobs), side="right")
        state.joined, state.kinds = tree, kinds[0] * CLASSES + kinds[1]
        estimate = np.ones(len(tree))
        for node in range(1, len(tree)):
            estimate[node] = estimate[tree.parents[node]] * state.rates[int(state.kinds[node])]
        likely = -np.sort(-estimate)[: self.max_nodes]
        keep = highest(estimate, most_paying(likely, state.pace.rate, self.prices))
        number = renumbering(len(tree), keep)
        for (part, own), place in zip(self.each(state), places, strict=True):
            part.renumber(own, number[place], len(keep))
        parts = (tree.tokens[keep], number[tree.parents[keep]], tree.logprobs[keep], tree.draws[keep])
        side_trees = (proposal.side_tree for proposal in proposals if proposal.side_tree is not None)
        return Proposal(TokenTree(*parts), side_tree=next(side_trees, None))

    @override
    def observe(self, state: UnionState, proposal: Proposal, scores: Scores, verdict: Verdict) -> UnionState:
        tokens = verdict.tokens(proposal.tree)
        self._learn(state, tokens)
        scoring = self.prices.scoring(len(proposal.tree))
        state.pace.add(len(tokens), self.drafting_cost(state) + scoring if not self.prices.free else 0.0)
        state.parts = [part.observe(own, proposal, scores, verdict) for part, own in self.each(state)]
        return state

    def _learn(self, state: UnionState, tokens: Sequence[int]) -> None:
        """Learn which nodes on the committed path were right, those that were left out included."""
        tree, kinds, node = state.joined, state.kinds, 0
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
