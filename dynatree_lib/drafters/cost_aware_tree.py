"""`CostAwareTree`: nodes and levels of each iteration chosen by what they gain and what they cost."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..costs import CostCurve
from ..models.base import LanguageModel
from ..sampling import RandomSource, Scores
from ..verifiers.base import Verdict
from .base import Drafter, DraftState, ModelDrafter, Proposal, TreeBuilder, check_whole
from .best_first_tree import highest

WEIGHT = 50.0
"""Greedy steps for which the rate given counts against the rate of the text itself."""
SHARPNESS = (0.5, 8.0)
"""Limits of the learnt sharpness."""


@dataclass
class CostAwareState(DraftState):
    """A draft state and what was learnt about the text.

    Attributes:
        sharpness: exponent on the draft's probabilities, after its updates.
        committed: tokens, and `spent`: predicted cost in greedy steps, so far; their ratio is the rate in use.
        expected: accepted tokens that the draft promised for the current tree.
        drafting: predicted cost of drafting the current tree.
    """

    sharpness: float = 1.0
    committed: float = 0.0
    spent: float = 0.0
    expected: float = 0.0
    drafting: float = 0.0


@dataclass(frozen=True)
class CostAwareTree(ModelDrafter):
    """Rows and levels as long as they bring more tokens than their time, by the draft's word and a measured cost curve.

    Let a(u) be the estimated probability that node u is accepted, and r the tokens committed per unit of cost so far.
    A row is worth having if it gains more tokens than its time would have brought anyway: a(u) > r * its price. A
    further level is drafted if its nodes can be expected to gain more than r * (its forward + their rows), looking one
    level ahead; the first one if some number of levels can. With the right r this aims at the largest long-run rate
    (renewal reward), where best-first trees of a fixed size maximise the tokens of an iteration whatever it costs.

    a(u) is the product along the path of the draft's probabilities raised to `sharpness` and normalised: a greedy
    target takes the draft's first choice more often than the draft's probability says. The sharpness follows the text:
    it grows when more tokens are accepted than promised, and falls when fewer are. No clock is read: the same text
    gives the same trees.

    The default costs are those of the bundled pair on two CPU cores, rounded; for another machine or pair `dynatree
    tune` measures them. Sharpness, learning and child were chosen on bundled prompts outside the first 20.

    Args:
        draft: the draft model.
        verify_cost: cost of the target's forward over 1, 2, 4, ... rows, the host's share included, in greedy steps
            of the target; `dynatree tune` measures it.
        draft_cost: cost of one level of drafting by reading 1, 2, 4, ... nodes, in the same unit.
        overhead: what drafting adds to an iteration besides, however many levels are drafted.
        rate: tokens per greedy step to begin with; the text's own takes over.
        sharpness: exponent to begin with.
        learning: how fast the sharpness follows the text; 0 keeps it.
        child: probability that a node has an accepted child if it is accepted itself, assumed before it is read.
        branching: most children of a node.
        depth: most levels below node 0.
        max_nodes: most nodes, node 0 included.

    Raises:
        ValueError: for costs that are no curve, a rate, sharpness <= 0, learning < 0, child outside (0, 1],
            branching or depth < 1, max_nodes < 2.
    """

    draft: LanguageModel
    verify_cost: tuple[float, ...] = (1.0, 1.05, 1.1, 1.3, 1.5, 2.1, 3.3)
    draft_cost: tuple[float, ...] = (0.2, 0.21, 0.23, 0.26, 0.32)
    overhead: float = 0.15
    rate: float = 2.0
    sharpness: float = 2.0
    learning: float = 0.03
    child: float = 0.85
    branching: int = 4
    depth: int = 16
    max_nodes: int = 64
    name = "cost-aware-tree"

    def __post_init__(self) -> None:
        for name in ("verify_cost", "draft_cost"):  # a list will do
            object.__setattr__(self, name, tuple(getattr(self, name)))
            CostCurve(getattr(self, name))
        if not 0 <= self.overhead < math.inf:
            raise ValueError(f"overhead is {self.overhead}; give 0 or a positive number, in greedy steps.")
        for name in ("rate", "sharpness"):
            if not 0 < getattr(self, name) < math.inf:
                raise ValueError(f"{name} is {getattr(self, name)}; give a positive number.")
        check_whole(self, "max_nodes", "depth", "branching")
        if not 0 <= self.learning < math.inf:
            raise ValueError(f"learning is {self.learning}; give 0 to keep the sharpness, or a small positive number.")
        if not 0 < self.child <= 1:
            raise ValueError(f"child is {self.child}; give a probability inside (0, 1].")
        if min(self.branching, self.depth) < 1:
            raise ValueError(f"branching is {self.branching} and depth {self.depth}; both must be at least 1.")
        if self.max_nodes < 2:
            raise ValueError(f"max_nodes is {self.max_nodes}; the budget counts node 0, so give at least 2.")

    @classmethod
    def examples(cls, draft: LanguageModel) -> Iterator[Drafter]:
        """The default, rows that cost nothing, rows and levels that cost much, no learning."""
        yield cls(draft)
        yield cls(draft, verify_cost=(1.0, 1.0, 1.0), draft_cost=(0.001, 0.001), depth=4, max_nodes=40)
        yield cls(draft, verify_cost=(1.0, 1.4, 2.2), draft_cost=(0.2, 0.3), learning=0.0)

    # ------------------------------------------------------------------------------------------------------ the state
    @cached_property
    def verifying(self) -> CostCurve:
        """The target's cost by rows."""
        return CostCurve(self.verify_cost)

    @cached_property
    def reading(self) -> CostCurve:
        """The draft's cost by rows of a level."""
        return CostCurve(self.draft_cost)

    def start(self, prompt: Sequence[int], random: RandomSource) -> CostAwareState:
        """See `Drafter.start`."""
        state = super().start(prompt, random)
        return CostAwareState(
            state.session, state.root, state.random,
            sharpness=self.sharpness, committed=WEIGHT * self.rate, spent=WEIGHT,
        )  # fmt: skip

    def inherit(self, state: CostAwareState, earlier: CostAwareState) -> CostAwareState:
        """See `Drafter.inherit`: sharpness and rate go on, the rate with no more weight than a given one."""
        state.sharpness = earlier.sharpness
        state.committed = WEIGHT * earlier.committed / earlier.spent
        return state

    def observe(self, state: DraftState, proposal: Proposal, scores: Scores, verdict: Verdict) -> DraftState:
        """See `Drafter.observe`."""
        assert isinstance(state, CostAwareState)
        state.committed += len(verdict.path) + 1
        state.spent += state.drafting + float(self._prices.verifying[len(proposal.tree) - 1])
        surprise = len(verdict.path) - state.expected
        low, high = SHARPNESS
        state.sharpness = max(low, min(high, state.sharpness * math.exp(self.learning * surprise)))
        state.expected = state.drafting = 0.0  # an iteration without room for a tree promises nothing
        return super().observe(state, proposal, scores, verdict)

    def report(self, state: CostAwareState) -> dict[str, float]:
        """Sharpness and rate in use."""
        return {"sharpness": state.sharpness, "rate": state.committed / state.spent}

    # ------------------------------------------------------------------------------------------------------- the tree
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        """See `ModelDrafter.grow`."""
        state = builder.state
        assert isinstance(state, CostAwareState)
        rate = state.committed / state.spent
        estimate = np.ones(1)  # a(u)
        frontier = np.array([0])
        for _ in range(min(self.depth, max_depth)):
            frontier = self._worth_reading(frontier, estimate, rate, len(builder))
            if not len(frontier):
                break
            tokens, logprobs, shares = builder.most_probable(frontier, self.branching, state.sharpness)
            state.drafting += float(self._prices.reading[len(frontier)]) + self._extra(len(builder))
            probabilities = estimate[frontier][:, None] * np.exp(shares)
            rows, ranks = np.nonzero(probabilities > rate * self._prices.row[len(builder)])
            before = len(builder)
            frontier = builder.add(frontier[rows], tokens[rows, ranks], logprobs[rows, ranks])
            estimate = np.concatenate([estimate, probabilities[rows, ranks]])
            if len(builder) > self.max_nodes:
                kept = highest(estimate, self.max_nodes)
                builder.keep(kept)
                estimate, frontier = estimate[kept], np.flatnonzero(kept >= before)
        state.expected = self._cut(builder, estimate, rate)

    def _worth_reading(self, frontier: np.ndarray, estimate: np.ndarray, rate: float, nodes: int) -> np.ndarray:
        """The nodes whose best child can be expected to pay for its row and their own; none if not for the forward."""
        if nodes == 1:
            once = self.overhead + self.verifying.step
            return frontier if self._worth_drafting(rate, 1.0, once) else frontier[:0]
        if len(frontier) == 1:
            worth = estimate[frontier[0]] * self.child > rate * (self._prices.row[nodes] + self._prices.reading[1])
            return frontier if worth else frontier[:0]
        order = np.argsort(-estimate[frontier], kind="stable")
        gain = np.cumsum(estimate[frontier[order]]) * self.child
        cost = self._prices.row[nodes] * np.arange(1, len(order) + 1) + self._prices.reading[1 : len(order) + 1]
        net = gain - rate * cost
        best = int(np.argmax(net)) if len(net) else 0
        return np.sort(frontier[order[: best + 1]]) if len(net) and net[best] > 0 else frontier[:0]

    def _worth_drafting(self, rate: float, share: float, once: float) -> bool:
        """Whether some number of levels, gaining `share` of their tokens, pays for itself and for what is paid once."""
        marginal_costs = self._prices
        return bool((share * marginal_costs.gain > rate * (marginal_costs.levels + once)).any())

    def _extra(self, nodes: int) -> float:
        """The first level, when there is node 0 alone, bears the overhead."""
        return self.overhead if nodes == 1 else 0.0

    def _cut(self, builder: TreeBuilder, estimate: np.ndarray, rate: float) -> float:
        """Keep the most probable nodes, as many as pay (a parent is no less probable); the tokens they promise."""
        gain = np.cumsum(-np.sort(-estimate))
        size = int(np.argmax(gain - rate * self._prices.verifying[: len(gain)])) + 1
        if size < len(estimate):
            builder.keep(highest(estimate, size))
        return float(gain[size - 1]) - 1

    @cached_property
    def _prices(self) -> _Prices:
        counts = range(1, self.max_nodes + 1)
        rows = np.array([0.0, *(self.verifying.marginal_cost(count) for count in counts)])
        reading = np.array([0.0, *self.reading.at(np.array(counts))])
        levels = np.arange(1, self.depth + 1)
        gain, cost = np.cumsum(self.child**levels), levels * (rows[1] + reading[1])
        return _Prices(rows, reading, self.verifying.at(np.array(counts)), gain, cost)


@dataclass(frozen=True)
class _Prices:
    """The curves as tables up to the largest tree.

    Attributes:
        row: price of one row more in a tree of [n] nodes.
        reading: cost of a level that reads [n] nodes.
        verifying: cost of verifying [n - 1] nodes.
        gain: tokens that a path of [l - 1] levels can be expected to gain.
        levels: what it costs.
    """

    row: np.ndarray
    reading: np.ndarray
    verifying: np.ndarray
    gain: np.ndarray
    levels: np.ndarray
