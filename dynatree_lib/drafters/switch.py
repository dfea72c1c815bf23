"""`Switch`: another drafter, drafting only while that pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from typing_extensions import override

from ..checks import of_kind
from ..costs import CostCurve
from ..models.base import LanguageModel
from ..sampling import GREEDY, RandomSource, Sampling, Scores
from ..verifiers.base import Drawing, Verdict
from .base import Drafter, Proposal
from .checks import check_counts, check_rules, make_tuples


@dataclass
class SwitchState:
    """The drafter's state, and what drafting brought lately.

    Attributes:
        own: state of the drafter.
        tokens, cost: of drafting iterations, the latest weighing most; cost in greedy steps.
        trial: drafting iterations before the next decision.
        plain: plain iterations before the next trial.
        wait: plain iterations after the next trial that fails.
        drafted: forwards of the draft for the current tree and nodes that they read, or None for a plain iteration.
    """

    own: Any
    tokens: float
    cost: float
    trial: int
    wait: int
    plain: int = 0
    drafted: tuple[int, int] | None = None


@dataclass(frozen=True)
class Switch(Drafter):
    """Draft by another drafter while its tokens pay for its time, and decode plainly while they do not.

    What an iteration cost is predicted from its nodes and the draft's forwards by measured costs; no clock is read, so
    the same text gives the same trees. Where drafting brought fewer tokens than plain decoding would have in its time,
    plain iterations follow, then a trial of drafting. Each failed trial doubles the wait, up to `longest`. An iteration
    for which the drafter drafted nothing cost nothing and says nothing.

    Args:
        drafter: the drafter.
        verify_cost: cost of the target's forward over 1, 2, 4, ... nodes in greedy steps; `dynatree tune` measures it.
        draft_cost: cost of one forward of the draft that reads 1, 2, 4, ... nodes.
        overhead: what drafting by a model adds to an iteration besides.
        trial: iterations of a trial, and of the beginning.
        shortest, longest: fewest and most plain iterations between trials.
        memory: weight of the earlier drafting iterations at each new one.

    Raises:
        TypeError: for what is no drafter.
        ValueError: for costs that are no curve or negative, counts below 1, shortest > longest, or memory outside
            (0, 1).
    """

    drafter: Drafter
    verify_cost: tuple[float, ...] = (1.0, 1.05, 1.1, 1.3, 1.5, 2.1, 3.3)
    draft_cost: tuple[float, ...] = (0.2, 0.21, 0.23, 0.26, 0.32)
    overhead: float = 0.15
    trial: int = 6
    shortest: int = 8
    longest: int = 64
    memory: float = 0.8
    name = "switch"

    def __post_init__(self) -> None:
        make_tuples(self, "verify_cost", "draft_cost")
        of_kind("The drafter", self.drafter, Drafter, "give a drafter, such as LookupTree(draft)")
        for points in (self.verify_cost, self.draft_cost):
            CostCurve(points)  # raises ValueError where they are no curve
        check_counts(self, "trial", "shortest", "longest")
        check_rules(self, "0 <= overhead < inf", "0 < memory < 1", "shortest <= longest")

    @property
    def model(self) -> LanguageModel | None:
        """The drafter's draft model."""
        return self.drafter.model

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """Those of the drafter."""
        return self.drafter.models

    @property
    def feature_layers(self) -> tuple[int, ...] | None:
        """Those of the drafter."""
        return self.drafter.feature_layers

    @property
    def drawing(self) -> Drawing:
        """As the drafter: whether to draft is decided before anything is drawn, by the text alone."""
        return self.drafter.drawing

    @property
    def side_trees(self) -> bool:
        """As the drafter."""
        return self.drafter.side_trees

    @property
    def chain(self) -> bool:
        """As the drafter."""
        return self.drafter.chain

    @override
    def check(self, target: LanguageModel) -> None:
        self.drafter.check(target)

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> SwitchState:
        return SwitchState(self.drafter.start(prompt, random), 0.0, 0.0, self.trial, self.shortest)

    @override
    def extend(self, state: SwitchState, tokens: Sequence[int]) -> SwitchState:
        state.own = self.drafter.extend(state.own, tokens)
        return state

    @override
    def inherit(self, state: SwitchState, earlier: SwitchState) -> SwitchState:
        state.own = self.drafter.inherit(state.own, earlier.own)
        return state

    @override
    def renumber(self, state: SwitchState, nodes: np.ndarray, size: int) -> None:
        self.drafter.renumber(state.own, nodes, size)

    @override
    def drafting_cost(self, state: SwitchState) -> float:
        return self.drafter.drafting_cost(state.own)

    @override
    def drafting_work(self, state: SwitchState) -> tuple[int, int]:
        return self.drafter.drafting_work(state.own)

    def report(self, state: SwitchState) -> dict[str, float]:
        """Return the drafter's numbers, and whether drafting is on."""
        return {**self.drafter.report(state.own), "drafting": float(state.plain == 0)}

    # --------------------------------------------------------------------------------------------------- an iteration
    @override
    def propose(self, state: SwitchState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        if state.plain:
            state.drafted = None
            return replace(self.drafter.propose(state.own, 0, sampling), side_tree=None)
        forwards, nodes = self.drafter.drafting_work(state.own)
        proposal = self.drafter.propose(state.own, max_depth, sampling)
        after = self.drafter.drafting_work(state.own)
        state.drafted = after[0] - forwards, after[1] - nodes
        return proposal

    @override
    def observe(self, state: SwitchState, proposal: Proposal, scores: Scores, verdict: Verdict) -> SwitchState:
        if state.drafted is None:
            state.plain -= 1
            if not state.plain:
                state.trial, state.tokens, state.cost = self.trial, 0.0, 0.0
        elif state.drafted[0] or len(scores) > 1:
            state.tokens = self.memory * state.tokens + len(verdict.path) + 1
            state.cost = self.memory * state.cost + self._cost(len(scores), *state.drafted)
            state.trial = max(state.trial - 1, 0)
            pays = state.tokens > state.cost
            if not state.trial and not pays:
                state.plain, state.wait = state.wait, min(2 * state.wait, self.longest)
            elif not state.trial:
                state.wait = self.shortest
        state.own = self.drafter.observe(state.own, proposal, scores, verdict)
        return state

    def _cost(self, scored: int, forwards: int, nodes: int) -> float:
        """Return what an iteration is predicted to take, in greedy steps."""
        cost = float(self._verifying.at(scored))
        if not forwards:
            return cost
        return cost + self.overhead + forwards * float(self._drafting.at(nodes / forwards))

    @cached_property
    def _verifying(self) -> CostCurve:
        return CostCurve(self.verify_cost)

    @cached_property
    def _drafting(self) -> CostCurve:
        return CostCurve(self.draft_cost)
