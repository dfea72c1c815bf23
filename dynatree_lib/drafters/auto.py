"""`Auto`: plain decoding, copies, recycled predictions and the draft's tree, as far as each pays for its time."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np
from typing_extensions import override

from ..costs import Pace
from ..models.base import LanguageModel, Session, check_model
from ..sampling import GREEDY, RandomSource, Sampling, Scores
from ..tree import TokenTree
from ..verifiers.base import Verdict
from .base import Drafter, Proposal, renumbered
from .builder import DraftState, TreeBuilder
from .checks import MEASURED, Priced, Pricing, check_counts, check_rules
from .cost_aware_tree import SHARPNESS, CostAwareTree
from .guesses import Guesses, GuessesState
from .rates import SuccessRates
from .search import Chosen, best_first, highest, tree_of
from .token_recycling import TokenRecycling

SPAN = 128
"""Tokens of a text from which `share` is of its own length; a shorter text may lose as much as this one."""
FEW = 32
"""Tokens of a prompt that the draft reads at least."""
CHILD, GUESSED, MEMORY = 0.7, 0.35, 0.98
"""Probability that a node has an accepted child, before the text has shown any: by the draft, by guesses alone. How
long outcomes count."""
CREDIT, AGAIN, RECENT = 0.15, 0.05, 0.9
"""What an iteration's guesses are believed to gain beyond their price, in tokens, to begin with and after a rest; the
weight of earlier iterations at each new one."""
CHEAP = 0.75
"""Part of `share` that guesses may cost in every iteration; dearer ones are on trial, and rest."""
REST = (16, 64)
"""Iterations of the first rest, and most of a later one; each is twice as long as the one before."""

_ALONE = np.ones(1), np.zeros(1, bool), np.ones(1, bool)
"""Of node 0 alone: its estimate, whether the draft has read it, whether it is a guess. Nobody writes into these."""


@dataclass
class Trial:
    """Whether guesses are made: while they gain less than their price they rest, twice as long each time.

    Attributes:
        worth: what an iteration's guesses gained lately beyond their price, in tokens.
        rest: iterations without guesses that are still to come.
        further: length of the next rest.
    """

    worth: float = CREDIT
    rest: int = 0
    further: int = REST[0]

    def add(self, gain: float) -> None:
        """Add what an iteration's guesses gained."""
        self.worth = RECENT * self.worth + (1 - RECENT) * gain
        if self.worth < 0:
            self.worth, self.rest, self.further = AGAIN, self.further, min(2 * self.further, REST[1])
        elif gain > 0:
            self.further = REST[0]


@dataclass
class AutoState:
    """What is known of a text.

    Attributes:
        root: the last committed token.
        guesses: of the next tokens, by the text itself.
        drafting: state of the draft model; None without one.
        pace: tokens of the text and their cost.
        sharpness: exponent on the draft's probabilities, as in `CostAwareTree`.
        child: how often a node that the draft read had an accepted child, if it was accepted itself.
        tokens: committed.
        owed: greedy steps that the text has taken beyond its tokens, so beyond plain decoding; negative: gained.
        estimate: (n,) a(u) of the current tree's nodes, where there is a draft model.
        read: (n,) which of them the draft has read.
        guessed: (n,) which of them are guesses, node 0 among them.
        nodes: n.
        cost: of drafting the current tree, in greedy steps.
        trial: of the guesses.
        missed: tokens that were committed while the guesses rested.
    """

    root: int
    guesses: GuessesState
    drafting: DraftState | None
    pace: Pace
    sharpness: float
    child: SuccessRates = field(default_factory=lambda: SuccessRates((CHILD,), MEMORY))
    tokens: int = 0
    owed: float = 0.0
    estimate: np.ndarray = field(default_factory=lambda: np.ones(1))
    read: np.ndarray = field(default_factory=lambda: np.zeros(1, bool))
    guessed: np.ndarray = field(default_factory=lambda: np.ones(1, bool))
    nodes: int = 1
    cost: float = 0.0
    trial: Trial = field(default_factory=Trial)
    missed: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Auto(Priced, Drafter):
    """The default: decides from iteration to iteration what is worth drafting, if anything, and needs no tuning.

    Guesses come first, because they cost no forward: what followed the text's suffixes before, and what the target
    predicted after its last tokens (`Guesses`). Where there is a draft model, it reads the nodes at which it may gain
    more than its time is worth, as in a `CostAwareTree`. Of all these nodes the most probable ones are verified, as
    many as pay. Where none pays, an iteration is plain decoding.

    By the costs, a text never loses more against plain decoding than `share` of its length, or of `SPAN` tokens if it
    is shorter: a tree is only as large as that allows even if none of it is accepted. Guesses cost time on the host.
    Where that is much of a step, they rest while they gain less.

    Args:
        draft: the draft model; None drafts without one.
        costs: of verifying and drafting; measured on this machine by default.
        max_nodes: most nodes, node 0 included.
        depth: most levels below node 0.
        branching: most children that the draft gives a node.
        share: most that a text may lose.
        pool: with `generate(..., warm=)`, most tokens of this and earlier texts that suffixes are looked for in.

    Raises:
        TypeError: for a draft that is no `LanguageModel`.
        ValueError: for costs that are none, max_nodes < 2, depth or branching < 1, share outside [0, 1), pool < 0.
    """

    draft: LanguageModel | None = None
    costs: Pricing = MEASURED
    max_nodes: int = 64
    depth: int = 16
    branching: int = 4
    share: float = 0.02
    pool: int = 50_000
    name = "auto"

    def __post_init__(self) -> None:
        if self.draft is not None:
            check_model("draft", self.draft)
        self.check_costs()
        check_counts(self, "max_nodes", "depth", "branching")
        check_counts(self, "pool", least=0)
        check_rules(self, "0 <= share < 1")

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """The draft model, if there is one."""
        return () if self.draft is None else (self.draft,)

    @override
    def check(self, target: LanguageModel) -> None:
        if self.draft is not None:
            self.draft.check_target(target)

    @cached_property
    def _guesses(self) -> Guesses:
        return Guesses(TokenRecycling(costs=None), self.pool)

    @cached_property
    def _by_draft(self) -> CostAwareTree:
        """What decides on the draft's levels."""
        assert self.draft is not None
        sizes = {"max_nodes": self.max_nodes, "depth": self.depth, "branching": self.branching}
        return CostAwareTree(self.draft, costs=self.prices, **sizes)

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> AutoState:
        guesses = self._guesses.start(prompt, random)
        drafting = None if self.draft is None else self._by_draft.start(prompt[-self._recent :], random)
        return AutoState(int(prompt[-1]), guesses, drafting, Pace.begun(self._expected_rate), CostAwareTree.sharpness)

    @override
    def extend(self, state: AutoState, tokens: Sequence[int]) -> AutoState:
        if len(tokens):
            self._catch_up(state)
            state.guesses = self._guesses.extend(state.guesses, tokens)
            if state.drafting is not None:
                state.drafting = self._by_draft.extend(state.drafting, tokens)
                self._begin_anew(state)
            state.root = int(tokens[-1])
        return state

    def _begin_anew(self, state: AutoState) -> None:
        """Let the draft read no more than the last tokens of what it has not read, as of a prompt.

        A draft on features would have none of the text before, so that it reads all.
        """
        drafting, recent = state.drafting, self._recent
        assert drafting is not None
        if drafting.session.queued > recent and self.feature_layers is None:
            text = [*state.guesses.text[-recent:], *state.missed][-recent:]
            state.drafting = self._by_draft.start(text, drafting.random)

    @override
    def inherit(self, state: AutoState, earlier: AutoState) -> AutoState:
        state.guesses = self._guesses.inherit(state.guesses, earlier.guesses, earlier.missed)
        state.pace = Pace.begun(max(earlier.pace.rate, 1.0))
        return state

    @override
    def observe(self, state: AutoState, proposal: Proposal, scores: Scores, verdict: Verdict) -> AutoState:
        count = len(verdict.path) + 1
        cost = state.cost + self._scoring(state.nodes)  # of its own nodes, where a tree holds another drafter's too
        state.pace.add(count, cost)
        state.tokens += count
        state.owed += cost - count * self._scoring(1)
        if state.drafting is not None:
            self._learn(state, verdict)
            state.drafting = self._by_draft.follow(state.drafting, proposal, scores, verdict)
        if state.trial.rest:
            state.missed += verdict.tokens(proposal.tree)
            state.trial.rest -= 1
        else:
            state.guesses = self._guesses.observe(state.guesses, proposal, scores, verdict)
            if self.prices.guesses > CHEAP * self.share:
                nodes = state.nodes if state.drafting is None else int(state.guessed.sum())
                right = int(state.guessed[[*verdict.path]].sum()) if verdict.path else 0
                spent = self._scoring(nodes) - self._scoring(1) + self.prices.guesses
                state.trial.add(right - self._rate(state) * spent)
        state.root, state.cost, state.nodes = verdict.next_token, 0.0, 1
        state.estimate, state.read, state.guessed = _ALONE
        return state

    def _catch_up(self, state: AutoState) -> None:
        """Append to the guesses' text what was committed while they rested."""
        if state.missed:
            state.guesses = self._guesses.appended(state.guesses, state.missed)
            state.missed = []

    def _learn(self, state: AutoState, verdict: Verdict) -> None:
        """Learn how sharp the draft's word is to be taken, and how often what it read goes on."""
        if not state.read.any():
            state.child.forget(0, CHILD)  # otherwise one bad beginning would silence the draft for the whole text
            return
        surprise = len(verdict.path) - (float(state.estimate.sum()) - 1)
        low, high = SHARPNESS
        state.sharpness = max(low, min(high, state.sharpness * math.exp(self._by_draft.learning * surprise)))
        for node, after in zip([0, *verdict.path], [*verdict.path, -1], strict=True):
            if state.read[node]:
                state.child.learn(0, after >= 0)

    @override
    def renumber(self, state: AutoState, nodes: np.ndarray, size: int) -> None:
        state.guessed = renumbered(state.guessed, nodes, size, 0)
        if state.drafting is not None:
            state.estimate, state.read = (renumbered(each, nodes, size, 0) for each in (state.estimate, state.read))
            state.drafting.pending = renumbered(state.drafting.pending, nodes, size, -1)

    @override
    def drafting_work(self, state: AutoState) -> tuple[int, int]:
        return (0, 0) if state.drafting is None else self._by_draft.drafting_work(state.drafting)

    @override
    def predicted(self, state: AutoState) -> float:
        return state.tokens + state.owed

    @override
    def drafting_cost(self, state: AutoState) -> float:
        return state.cost

    def report(self, state: AutoState) -> dict[str, float]:
        """Return the rate in use, what the text owes plain decoding, and what is known of the draft."""
        return {
            "rate": self._rate(state), "owed": state.owed, "sharpness": state.sharpness, "child": state.child[0],
        }  # fmt: skip

    # ------------------------------------------------------------------------------------------------- what paths cost
    @cached_property
    def _recent(self) -> int:
        """Tokens of a prompt, the last ones, that the draft reads: for half of what a text may lose, at least `FEW`."""
        prices = self.prices
        return max(FEW, int(self.share * SPAN / 2 / prices.prompt) if prices.prompt else sys.maxsize)

    @cached_property
    def _expected_rate(self) -> float:
        """Tokens per greedy step that the best path is expected to bring: the rate to begin with."""
        prices, step = self.prices, self.prices.scoring(1)
        if prices.free:
            return 1.0
        child = GUESSED if self.draft is None else CHILD
        tokens = 1 + np.cumsum(child ** np.arange(1, self.depth + 1))
        return max(1.0, float((tokens / (step + self._paths(1, self.draft is not None))).max()) * step)

    def _scoring(self, nodes: int) -> float:
        """Return the cost of an iteration that scores so many nodes."""
        known = self._scored
        return known[nodes] if nodes < len(known) else float(self.prices.scoring(nodes))

    @cached_property
    def _scored(self) -> list[float]:
        """[n] the cost of an iteration that scores n nodes."""
        return [0.0, *self.prices.scoring(np.arange(1, self.max_nodes + 1)).tolist()]

    def _paths(self, nodes: int, drafted: bool = True) -> np.ndarray:
        """(depth,) what a path of 1, 2, ... nodes adds to the cost of an iteration with a tree of so many."""
        levels, prices = self._levels, self.prices
        verified = prices.scoring(nodes + levels) - prices.scoring(nodes)
        return np.asarray(verified + (levels * prices.reading(1) + prices.overhead if drafted else 0.0))

    @cached_property
    def _levels(self) -> np.ndarray:
        """(depth,) 1, 2, ..."""
        return np.arange(1, self.depth + 1)

    @cached_property
    def _further(self) -> list[float]:
        """[n - 1] the least that a node costs on average, of some more than n: what it must gain to be considered."""
        most, more = self.max_nodes, np.arange(1, self.max_nodes + 1)
        scored = self.prices.scoring(np.arange(1, 2 * most + 1))
        return [float(((scored[nodes : nodes + most] - scored[nodes - 1]) / more).min()) for nodes in more.tolist()]

    @cached_property
    def _drafted_paths(self) -> dict[int, np.ndarray]:
        """The `_paths` with trees of so many nodes that were asked for."""
        return {}

    # ------------------------------------------------------------------------------------------------------- the tree
    @staticmethod
    def _rate(state: AutoState) -> float:
        """Tokens per greedy step; plain decoding brings one, so no fewer are to be had."""
        return max(state.pace.rate, 1.0)

    def _allowed(self, state: AutoState) -> float:
        """Return the most that the next iteration may cost beyond a greedy step."""
        return self.share * max(state.tokens, SPAN) - state.owed

    @override
    def propose(self, state: AutoState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        rate, depth, state.cost = self._rate(state), min(self.depth, max_depth), 0.0
        if state.drafting is not None:
            state.drafting.session.rollback()  # an interrupted iteration may have left nodes behind
        chosen: list[Chosen] = []
        if self.prices.guesses > self._allowed(state) and not state.trial.rest:
            state.trial.rest = 1
        if not state.trial.rest:
            self._catch_up(state)
            state.cost = self.prices.guesses
            chosen = best_first(
                self._guesses.first(state.guesses), lambda place: self._guesses.after(state.guesses, place),
                depth, self.max_nodes - 1, lambda nodes: rate * self._further[nodes],
            )  # fmt: skip
        room = self._draft_room(state, max_depth)
        if room > 0 and self._levels_pay(state, chosen, rate):
            return self._with_draft(state, chosen, rate, room, sampling)
        size = self._size([1.0, *(node.probability for node in chosen)], rate, state) if chosen else 1
        state.guessed, state.nodes = np.ones(size, bool), size
        if state.drafting is not None:
            state.estimate = np.array([1.0, *(node.probability for node in chosen[: size - 1])])
            state.read, state.drafting.pending = np.zeros(size, bool), np.full(size, -1)
        tree = tree_of(state.root, chosen[: size - 1]) if size > 1 else TokenTree.alone(state.root)
        return Proposal(tree, ranked=self._ranked(state))

    def _ranked(self, state: AutoState) -> int:
        """Return how many predictions of each node the guesses will ask for."""
        return 0 if state.trial.rest else self._guesses.recycled.ranked

    def _size(self, gains: Sequence[float], rate: float, state: AutoState) -> int:
        """Return how many nodes are verified: as many as pay (`most_paying`), and no more than a text may lose."""
        scored, total = self._scored, 0.0
        left = self._allowed(state) - state.cost + scored[1]
        size, most = 1, -math.inf
        for nodes, gain in enumerate(gains, 1):
            if nodes > 1 and scored[nodes] > left:
                break
            total += gain
            if total - rate * scored[nodes] > most:
                size, most = nodes, total - rate * scored[nodes]
        return size

    def _draft_room(self, state: AutoState, max_depth: int) -> int:
        """Return the levels that the draft may have, 0 where there is none that may draft now."""
        if state.drafting is None or not state.drafting.session.ready:
            return 0
        if not state.drafting.session.pending:
            self._begin_anew(state)
        session = state.drafting.session
        if state.cost + self._once(session) + self._least > self._allowed(state):
            return 0
        return min(self.depth, max_depth, self._by_draft.draft.context - session.position - 1)

    @cached_property
    def _least(self) -> float:
        """What a drafted level costs at least, with the node that it adds."""
        return self.prices.reading(1) + self._scoring(2) - self._scoring(1)

    def _once(self, session: Session) -> float:
        """Return what drafting costs without its levels: of this iteration, and of what the draft has not read yet."""
        return self.prices.overhead + self.prices.prompt * session.queued

    def _levels_pay(self, state: AutoState, chosen: Sequence[Chosen], rate: float) -> bool:
        """Return whether some number of drafted levels pays for its time, given what is guessed already."""
        fresh = 1.0 - max((node.probability for node in chosen if node.parent == 0), default=0.0)
        nodes = len(chosen) + 1
        if nodes not in self._drafted_paths:
            self._drafted_paths[nodes] = self._paths(nodes)
        tokens = fresh * np.cumsum(state.child[0] ** self._levels)
        return bool((tokens > rate * self._drafted_paths[nodes]).any())

    def _with_draft(
        self, state: AutoState, chosen: Sequence[Chosen], rate: float, room: int, sampling: Sampling
    ) -> Proposal:
        """Propose what is guessed and what the draft adds to it."""
        drafting, by_draft, prices = state.drafting, self._by_draft, self.prices
        assert drafting is not None
        assert self.draft is not None
        builder = TreeBuilder(drafting, self.draft.vocab_size - 1, sampling)
        for node in chosen:
            builder.add(np.array([node.parent]), np.array([node.token]), np.array([math.log(node.share)]))
        estimate = np.array([1.0, *(node.probability for node in chosen)])
        guessed, read = np.ones(len(builder), bool), np.zeros(len(builder), bool)
        frontier, allowed = np.array([0]), self._allowed(state)
        once = self._once(drafting.session)
        for level in range(room):
            fresh = _fresh(estimate, builder.parents, guessed)[frontier]
            if level:
                frontier = by_draft.paying(frontier, fresh, rate, len(builder), state.child[0])
                fresh = _fresh(estimate, builder.parents, guessed)[frontier]
            cost = prices.reading(len(frontier)) + (0.0 if level else once) if len(frontier) else math.inf
            if state.cost + cost + self._scoring(2) - self._scoring(1) > allowed:
                break
            state.cost += cost
            read[frontier] = True
            tokens, logprobs, sharp = builder.most_probable(frontier, self.branching, state.sharpness)
            shares = fresh[:, None] * np.exp(sharp)
            known = self._joined(builder, estimate, guessed, frontier, tokens, shares)
            least = rate * self._further[min(len(builder), self.max_nodes) - 1]
            parents, ranks = np.nonzero((shares > least) & ~known)
            below = np.flatnonzero(guessed & np.isin(builder.parents, frontier) & (np.arange(len(builder)) > 0))
            added = builder.add(frontier[parents], tokens[parents, ranks], logprobs[parents, ranks])
            estimate = np.append(estimate, shares[parents, ranks])
            guessed, read = (np.append(each, np.zeros(len(added), bool)) for each in (guessed, read))
            frontier = np.append(below, added)
            if len(builder) > self.max_nodes:
                best = highest(estimate, self.max_nodes)
                frontier = np.flatnonzero(np.isin(best, frontier))
                builder.keep(best)
                estimate, guessed, read = estimate[best], guessed[best], read[best]
        size = self._size((-np.sort(-estimate)).tolist(), rate, state)
        if size < len(estimate):
            best = highest(estimate, size)
            builder.keep(best)
            estimate, read, guessed = estimate[best], read[best], guessed[best]
        state.estimate, state.read, state.guessed, state.nodes = estimate, read, guessed, len(builder)
        drafting.pending = builder.pending
        return Proposal(builder.tree(), ranked=self._ranked(state))

    @staticmethod
    def _joined(
        builder: TreeBuilder, estimate: np.ndarray, guessed: np.ndarray, frontier: np.ndarray, tokens: np.ndarray,
        shares: np.ndarray,
    ) -> np.ndarray:  # fmt: skip
        """Raise the estimates of guessed nodes that the draft proposes too; return which of its tokens these are.

        The nodes below one rise in proportion.
        """
        known = np.zeros(tokens.shape, bool)
        for node in (np.flatnonzero(guessed[1:] & np.isin(builder.parents[1:], frontier)) + 1).tolist():
            index = int(np.searchsorted(frontier, builder.parents[node]))
            same = tokens[index] == builder.tokens[node]
            if same.any():
                known[index] |= same
                factor = 1 + float(shares[index][same][0]) / estimate[node]
                for other in _below(node, builder.parents, guessed):
                    above = estimate[builder.parents[other]]
                    estimate[other] = min(factor * estimate[other], above)  # a parent is no less probable
        return known


def _below(node: int, parents: np.ndarray, guessed: np.ndarray) -> list[int]:
    """Return a guessed node and all guessed nodes below it, ascending."""
    found = {node}
    for other in range(node + 1, len(guessed)):
        if guessed[other] and int(parents[other]) in found:
            found.add(other)
    return sorted(found)


def _fresh(estimate: np.ndarray, parents: np.ndarray, guessed: np.ndarray) -> np.ndarray:
    """Return the probability of each node that its best guessed child is wrong, with the node's own."""
    best = np.zeros(len(estimate))
    nodes = np.flatnonzero(guessed[1:]) + 1
    np.maximum.at(best, parents[nodes], estimate[nodes])
    return np.asarray(np.maximum(estimate - best, 0.0))
