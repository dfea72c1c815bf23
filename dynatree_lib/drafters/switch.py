"""`Switch`: another drafter, drafting only while that pays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from typing_extensions import override

from ..checks import of_kind
from ..sampling import GREEDY, RandomSource, Sampling, Scores
from ..verifiers.base import Drawing, Verdict
from .base import Drafter, Proposal
from .checks import Priced, check_counts, check_rules
from .wrapper import Wrapper, WrapperState


@dataclass
class SwitchState(WrapperState):
    """The drafter's state, and the tokens that drafting brought lately.

    Attributes:
        tokens, cost: of drafting iterations, the latest weighing most; cost in greedy steps.
        trial: drafting iterations before the next decision.
        plain: plain iterations before the next trial.
        wait: plain iterations after the next trial that fails.
        drafted: forwards of the draft for the current tree and nodes that they read, or None for a plain iteration.
    """

    tokens: float
    cost: float
    trial: int
    wait: int
    plain: int = 0
    drafted: tuple[int, int] | None = None


@dataclass(frozen=True)
class Switch(Wrapper, Priced):
    """Draft by another drafter while its tokens pay for its time, and decode plainly while they do not.

    The cost of an iteration is predicted from the nodes and the draft's forwards by measured costs. No clock is read,
    so the same text gives the same trees. Where drafting brought fewer tokens than plain decoding would have brought in
    the same time, plain iterations follow, then a trial of drafting. Each failed trial doubles the wait, up to
    `longest`. An iteration for which nothing was drafted counts for neither.

    Args:
        drafter: the drafter.
        verify_cost: cost of the target's forward over 1, 2, 4, ... nodes in greedy steps; `dynatree tune` measures it.
        draft_cost: cost of one forward of the draft that reads 1, 2, 4, ... nodes.
        overhead: cost that drafting by a model adds to an iteration besides the forwards.
        trial: iterations of a trial, and of the beginning.
        shortest, longest: fewest and most plain iterations between trials.
        memory: weight of the earlier drafting iterations at each new one.

    Raises:
        TypeError: for a value that is no drafter.
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
        of_kind("The drafter", self.drafter, Drafter, "give a drafter, such as LookupTree(draft)")
        self.check_costs()
        check_counts(self, "trial", "shortest", "longest")
        check_rules(self, "0 < memory < 1", "shortest <= longest")

    @property
    def parts(self) -> tuple[Drafter]:
        """The drafter."""
        return (self.drafter,)

    @property
    def drawing(self) -> Drawing:
        """As the drafter: whether to draft is decided before anything is drawn, by the text alone."""
        return self.drafter.drawing

    @property
    def chain(self) -> bool:
        """As the drafter."""
        return self.drafter.chain

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> SwitchState:
        return SwitchState([self.drafter.start(prompt, random)], 0.0, 0.0, self.trial, self.shortest)

    def report(self, state: SwitchState) -> dict[str, float]:
        """Return the drafter's numbers, and whether drafting is on."""
        return {**self.drafter.report(state.parts[0]), "drafting": float(state.plain == 0)}

    # --------------------------------------------------------------------------------------------------- an iteration
    @override
    def propose(self, state: SwitchState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        if state.plain:
            state.drafted = None
            return replace(self.drafter.propose(state.parts[0], 0, sampling), side_tree=None)
        forwards, nodes = self.drafting_work(state)
        proposal = self.drafter.propose(state.parts[0], max_depth, sampling)
        after = self.drafting_work(state)
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
        state.parts = [self.drafter.observe(state.parts[0], proposal, scores, verdict)]
        return state

    def _cost(self, scored: int, forwards: int, nodes: int) -> float:
        """Return the predicted cost of an iteration."""
        cost = self.costs.scoring(scored)
        return cost + self.overhead + forwards * self.costs.reading(nodes / forwards) if forwards else cost
