"""`Auto`: plain decoding, copies, recycled predictions and the draft's tree, as far as each pays for its time."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

import numpy as np
import torch
from typing_extensions import override

from ..costs import Pace
from ..models.base import LanguageModel, Session, check_model
from ..sampling import GREEDY, PLAIN, DraftDistributions, RandomSource, Sampling, Scores
from ..tree import DISTINCT, POINT, ROOT, TokenTree
from ..verifiers.base import Drawing, Verdict
from .base import Drafter, Proposal, renumbered
from .builder import DraftState, best_after
from .checks import MEASURED, Priced, Pricing, check_counts, check_rules, require
from .cost_aware_sampled_tree import EDGES, FIRST
from .cost_aware_tree import SHARPNESS, CostAwareTree
from .guesses import Guesses, GuessesState
from .rates import SuccessRates
from .search import Chosen, best_first, tree_of
from .token_recycling import TokenRecycling

SPAN = 128
"""Tokens of a text from which `share` is of its own length; a shorter text may lose as much as this one."""
AT_ONCE = 1 / 3
"""Part of what a text may still lose that one iteration may lose: a few bad ones never silence a text for good."""
LUCK = 3
"""How many times as much a text may lose while the draft's tokens are drawn: then luck decides what is accepted."""
FEW = 16
"""Tokens of a prompt that the draft reads at least."""
CHILD, GUESSED, MEMORY, IDLE = 0.7, 0.35, 0.98, 0.25
"""Probability that a node has an accepted child, before the text has shown any: by the draft, by guesses alone. How
long outcomes count; part of that forgetting in an iteration that shows none."""
DRAWN = 0.6
"""Probability that the token drawn is the target's most probable one, before the text has shown any."""
TAKEN = 0.45
"""Probability that a token drawn from the draft is accepted, before the text has shown any."""
CREDIT, AGAIN, RECENT = 0.15, 0.05, 0.9
"""What an iteration's guesses are believed to gain beyond their price, in tokens, to begin with and after a rest; the
weight of earlier iterations at each new one."""
CHEAP = 0.75
"""Part of `share` that guesses may cost in every iteration; dearer ones are on trial, and rest."""
REST = (16, 64)
"""Iterations of the first rest, and most of a later one; each is twice as long as the one before."""

_ALONE = (1.0,), (False,), (True,)
"""Of node 0 alone: its estimate, whether the draft has read it, whether it is a guess."""


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
        pace: tokens of the text and their cost; None before its first iteration, unless inherited.
        sharpness: exponent on the draft's probabilities, as in `CostAwareTree`.
        child: how often a node that the draft read had an accepted child, if it was accepted itself: as a multiple of
            `drawn`, which is 1 at temperature 0.
        drawn: how often the token drawn was the target's most probable one.
        taken: how often a token drawn from the draft was accepted, if it was tested.
        by_class: the same by classes of its probability (`cost_aware_sampled_tree.EDGES`).
        tokens: committed.
        owed: greedy steps that the text has taken beyond its tokens, so beyond plain decoding; negative: gained.
        estimate: a(u) of the current tree's nodes, where the draft has read any.
        read: which of them it has read.
        guessed: which of them are guesses, node 0 among them.
        nodes: n.
        classes: of the drawn tokens below node 0, from the top down; () where none was drawn.
        cost: of drafting the current tree, in greedy steps.
        trial: of the guesses.
        missed: tokens that were committed while the guesses rested.
        aside: proposals, features and number of their scores, and verdicts that the draft was not told of yet.
    """

    root: int
    guesses: GuessesState
    drafting: DraftState | None
    pace: Pace | None = None
    sharpness: float = CostAwareTree.sharpness
    child: SuccessRates = field(default_factory=lambda: SuccessRates((CHILD,), MEMORY))
    drawn: SuccessRates = field(default_factory=lambda: SuccessRates((DRAWN,), MEMORY))
    taken: SuccessRates = field(default_factory=lambda: SuccessRates((TAKEN,), MEMORY))
    by_class: SuccessRates = field(default_factory=lambda: SuccessRates(FIRST, MEMORY))
    tokens: int = 0
    owed: float = 0.0
    estimate: Sequence[float] = (1.0,)
    read: Sequence[bool] = (False,)
    guessed: Sequence[bool] = (True,)
    nodes: int = 1
    classes: Sequence[int] = ()
    cost: float = 0.0
    trial: Trial = field(default_factory=Trial)
    missed: list[int] = field(default_factory=list)
    aside: list[tuple[Proposal, torch.Tensor | None, int, Verdict]] = field(default_factory=list)


@dataclass(frozen=True)
class Auto(Priced, Drafter):
    """The default: decides from iteration to iteration what is worth drafting, if anything, and needs no tuning.

    Guesses come first, because they cost no forward: what followed the text's suffixes before, and what the target
    predicted after its last tokens (`Guesses`). Where there is a draft model, it reads the nodes at which it may gain
    more than its time is worth, as in a `CostAwareTree`. Of all these nodes the most probable ones are verified, as
    many as pay. Where none pays, an iteration is plain decoding.

    Above temperature 0 the draft's tokens may be drawn from its distribution instead, as a chain: the higher the
    temperature, the more often are they accepted than its most probable ones. It does what was accepted more often so
    far, and leaves the guesses of an iteration out where a chain gains more. How long a chain becomes is decided before
    each draw, by all that was drawn before.

    By the costs, a text never loses more against plain decoding than `share` of its length, or of `SPAN` tokens if it
    is shorter: a tree is only as large as that allows even if none of it is accepted. An iteration may lose a part
    (`AT_ONCE`) of what is left of that. While the draft's tokens are drawn, luck decides what is accepted, and a text
    may lose `LUCK` times as much. Guesses cost time on the host. Where that is much of a step, they rest while they
    gain less.

    Args:
        draft: the draft model; None drafts without one.
        costs: of verifying and drafting; measured on this machine by default.
        max_nodes: most nodes, node 0 included.
        depth: most levels below node 0.
        branching: most children that the draft gives a node.
        share: most that a text may lose.
        draws: whether the draft's tokens may be drawn; without, every tree is deterministic, and above temperature 0 a
            seed's text is that of plain decoding (`TargetWalk`).
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
    draws: bool = True
    pool: int = 50_000
    name = "auto"

    def __post_init__(self) -> None:
        if self.draft is not None:
            check_model("draft", self.draft)
        self.check_costs()
        check_counts(self, "max_nodes", "depth", "branching")
        check_counts(self, "pool", least=0)
        check_rules(self, "0 <= share < 1")
        require(isinstance(self.draws, bool), f"draws is {self.draws!r}; give True or False.")

    @property
    def drawing(self) -> Drawing:
        """Drawn tokens follow their recorded distributions; without a draft nothing is drawn."""
        return Drawing.FIXED if self.draft is None or not self.draws else Drawing.RECORDED

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
        return AutoState(int(prompt[-1]), guesses, drafting)

    @override
    def extend(self, state: AutoState, tokens: Sequence[int]) -> AutoState:
        if len(tokens):
            self._catch_up(state)
            state.guesses = self._guesses.extend(state.guesses, tokens)
            if state.drafting is not None:
                self._tell(state)
                state.drafting = self._by_draft.extend(state.drafting, tokens)
                self._begin_anew(state)
            state.root = int(tokens[-1])
        return state

    def _begin_anew(self, state: AutoState) -> None:
        """Let the draft read no more than the last tokens of what it has not read, as of a prompt.

        A draft on features would have none of the text before; `_tell` limits what it reads.
        """
        recent = self._recent
        if state.drafting.session.queued > recent and self.feature_layers is None:  # type: ignore[union-attr]
            self._draft_from(state, [*state.guesses.text[-recent:], *state.missed][-recent:])

    def _draft_from(self, state: AutoState, text: Sequence[int]) -> None:
        """Let the draft begin with this text, as if nothing stood before it."""
        before = state.drafting
        assert before is not None
        state.drafting = self._by_draft.start(text, before.random)
        state.drafting.session.forwards, state.drafting.session.scored = self._by_draft.drafting_work(before)

    @override
    def inherit(self, state: AutoState, earlier: AutoState) -> AutoState:
        state.guesses = self._guesses.inherit(state.guesses, earlier.guesses, earlier.missed)
        if earlier.pace is not None:
            state.pace = Pace.begun(max(earlier.pace.rate, 1.0))
        return state

    @override
    def observe(self, state: AutoState, proposal: Proposal, scores: Scores, verdict: Verdict) -> AutoState:
        count = len(verdict.path) + 1
        cost = state.cost + self._scoring(state.nodes)  # of its own nodes, where a tree holds another drafter's too
        self._pace(state, scores.sampling).add(count, cost)
        state.tokens += count
        state.owed += cost - count * self._scoring(1)
        if state.drafting is not None:
            self._learn(state, verdict, scores.sampling)
            if any(state.read):
                state.drafting = self._by_draft.follow(state.drafting, proposal, scores, verdict)
            else:
                state.aside.append((proposal, scores.features, len(scores), verdict))
        if state.trial.rest:
            state.missed += verdict.tokens(proposal.tree)
            state.trial.rest -= 1
        else:
            state.guesses = self._guesses.observe(state.guesses, proposal, scores, verdict)
            if self.prices.guesses > CHEAP * self.share:
                nodes = state.nodes if state.drafting is None else sum(state.guessed)
                right = sum(state.guessed[node] for node in verdict.path)
                spent = self._scoring(nodes) - self._scoring(1) + self.prices.guesses
                state.trial.add(right - self._rate(state) * spent)
        if state.drafting is not None and not scores.sampling.greedy and scores.looked_through:
            likely = scores.ranked(1)[0]
            for node, token in zip([0, *verdict.path], verdict.tokens(proposal.tree), strict=True):
                state.drawn.learn(0, token == likely.item(node, 0))
        state.root, state.cost, state.nodes = verdict.next_token, 0.0, 1
        state.estimate, state.read, state.guessed = _ALONE
        state.classes = ()
        return state

    def _catch_up(self, state: AutoState) -> None:
        """Append to the guesses' text what was committed while they rested."""
        if state.missed:
            state.guesses = self._guesses.appended(state.guesses, state.missed)
            state.missed = []

    def _tell(self, state: AutoState) -> None:
        """Tell the draft of what was committed while it drafted nothing: of no more than it reads of a prompt."""
        assert state.drafting is not None
        first, _ = self._to_tell(state)
        aside, state.aside = state.aside, []
        if first:
            self._draft_from(state, aside[first][0].tree.tokens[:1].tolist())
        for proposal, features, count, verdict in aside[first:]:
            state.drafting.pending = np.full(len(proposal.tree), -1)
            scores = Scores(torch.empty(count, 0), GREEDY, features=features)
            state.drafting = self._by_draft.follow(state.drafting, proposal, scores, verdict)

    def _to_tell(self, state: AutoState) -> tuple[int, int]:
        """Return the first thing aside that the draft is told of, and how many tokens were committed from there on."""
        tokens, first = 0, len(state.aside)
        while first and tokens < self._recent:
            first -= 1
            tokens += len(state.aside[first][-1].path) + 1
        return first, tokens

    @staticmethod
    def _drawn(state: AutoState, sampling: Sampling) -> float:
        """Return the probability that the next token is the target's most probable one."""
        return 1.0 if sampling.greedy else state.drawn[0]

    def _learn(self, state: AutoState, verdict: Verdict, sampling: Sampling) -> None:
        """Learn how sharp the draft's word is to be taken, and how often what it read goes on."""
        if state.classes:
            for place, kind in enumerate(state.classes[: len(verdict.path) + 1]):
                state.taken.learn(0, place < len(verdict.path))
                state.by_class.learn(kind, place < len(verdict.path))
        else:
            state.taken.forget(0, TAKEN, IDLE)
        if state.classes or not any(state.read):
            # otherwise one bad beginning would silence the draft for the whole text
            state.child.forget(0, CHILD, IDLE)
            return
        surprise = len(verdict.path) - (sum(state.estimate) - 1)
        low, high = SHARPNESS
        state.sharpness = max(low, min(high, state.sharpness * math.exp(self._by_draft.learning * surprise)))
        drawn = self._drawn(state, sampling)
        for node, after in zip([0, *verdict.path], [*verdict.path, -1], strict=True):
            if state.read[node]:
                state.child.learn(0, after >= 0, drawn)

    @override
    def renumber(self, state: AutoState, nodes: np.ndarray, size: int) -> None:
        state.guessed = renumbered(np.array(state.guessed), nodes, size, 0).tolist()
        if state.drafting is not None and any(state.read):
            columns = np.array(state.estimate), np.array(state.read)
            state.estimate, state.read = (renumbered(each, nodes, size, 0).tolist() for each in columns)
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
        """Tokens of a prompt, the last ones, that the draft reads: for half of what an iteration may lose, or `FEW`."""
        prices = self.prices
        return max(FEW, int(AT_ONCE * self.share * SPAN / 2 / prices.prompt) if prices.prompt else sys.maxsize)

    def _expected_rate(self, sampling: Sampling) -> float:
        """Tokens per greedy step that the best path is expected to bring: the rate to begin with."""
        prices, step = self.prices, self.prices.scoring(1)
        if prices.free:
            return 1.0
        child = (GUESSED if self.draft is None else CHILD) * (1.0 if sampling.greedy else DRAWN)
        if not sampling.greedy and self.drawing is Drawing.RECORDED:
            child = max(child, TAKEN)
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
    def _drafted_paths(self) -> dict[int, list[float]]:
        """The `_paths` with trees of so many nodes that were asked for."""
        return {}

    # ------------------------------------------------------------------------------------------------------- the tree
    @staticmethod
    def _rate(state: AutoState) -> float:
        """Tokens per greedy step; plain decoding brings one, so no fewer are to be had."""
        return 1.0 if state.pace is None else max(state.pace.rate, 1.0)

    def _pace(self, state: AutoState, sampling: Sampling) -> Pace:
        """Return the pace of the text, which begins with its first iteration."""
        if state.pace is None:
            state.pace = Pace.begun(self._expected_rate(sampling))
        return state.pace

    def _allowed(self, state: AutoState, sampling: Sampling) -> float:
        """Return the most that the next iteration may cost beyond a greedy step."""
        share = self.share * (LUCK if self._chain(state, sampling) else 1)
        return AT_ONCE * (share * max(state.tokens, SPAN) - state.owed)

    @override
    def propose(self, state: AutoState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        self._pace(state, sampling)
        rate, depth, state.cost = self._rate(state), min(self.depth, max_depth), 0.0
        allowed, chosen = self._allowed(state, sampling), list[Chosen]()
        if self.prices.guesses > allowed and not state.trial.rest:
            state.trial.rest = 1
        if not state.trial.rest:
            self._catch_up(state)
            state.cost = self.prices.guesses
            chosen = best_first(
                self._guesses.first(state.guesses), lambda place: self._guesses.after(state.guesses, place),
                depth, self.max_nodes - 1, lambda nodes: rate * self._further[nodes],
            )  # fmt: skip
        if state.drafting is not None and self._levels_pay(state, chosen, rate, sampling):
            room = self._draft_room(state, max_depth, allowed)
            if room > 0:
                if self._chain(state, sampling):
                    return self._drawn_chain(state, rate, room, allowed, sampling)
                return self._with_draft(state, chosen, rate, room, allowed, sampling)
        size = self._size([1.0, *(node.probability for node in chosen)], rate, allowed - state.cost) if chosen else 1
        state.guessed, state.nodes = [True] * size, size
        tree = tree_of(state.root, chosen[: size - 1]) if size > 1 else TokenTree.alone(state.root)
        return Proposal(tree, ranked=self._ranked(state))

    def _ranked(self, state: AutoState) -> int:
        """Return how many predictions of each node the guesses will ask for."""
        return 0 if state.trial.rest else self._guesses.recycled.ranked

    def _size(self, gains: Sequence[float], rate: float, left: float) -> int:
        """Return how many nodes are verified: as many as pay (`most_paying`), and no more than cost what is left."""
        scored, total = self._scored, 0.0
        left += scored[1]
        size, most = 1, -math.inf
        for nodes, gain in enumerate(gains, 1):
            if nodes > 1 and scored[nodes] > left:
                break
            total += gain
            if total - rate * scored[nodes] > most:
                size, most = nodes, total - rate * scored[nodes]
        return size

    def _draft_room(self, state: AutoState, max_depth: int, allowed: float) -> int:
        """Return the levels that the draft may have, 0 where it may not draft now."""
        assert state.drafting is not None
        allowed -= state.cost + self._least + self.prices.overhead
        if self._to_tell(state)[1] * self._unread > allowed:
            return 0
        state.drafting.session.rollback()  # an interrupted iteration may have left nodes behind
        self._tell(state)
        self._begin_anew(state)
        session = state.drafting.session
        if not session.ready or self.prices.prompt * session.queued > allowed:
            return 0
        return min(self.depth, max_depth, self._by_draft.draft.context - session.position - 1)

    @cached_property
    def _least(self) -> float:
        """What a drafted level costs at least, with the node that it adds."""
        return self.prices.reading(1) + self._scoring(2) - self._scoring(1)

    @cached_property
    def _unread(self) -> float:
        """What a token costs that the draft was not told of, where it reads all."""
        return 0.0 if self.feature_layers is None else self.prices.prompt

    def _once(self, session: Session) -> float:
        """Return what drafting costs without its levels: of this iteration, and of what the draft has not read yet."""
        return self.prices.overhead + self.prices.prompt * session.queued

    def _child(self, state: AutoState, sampling: Sampling) -> float:
        """Return the probability that an accepted node that the draft reads has an accepted child."""
        return min(1.0, state.child[0] * self._drawn(state, sampling))

    def _chain(self, state: AutoState, sampling: Sampling) -> bool:
        """Return whether the draft's tokens are drawn: where these are accepted more often than its most probable."""
        drawn = self.drawing is Drawing.RECORDED and not sampling.greedy
        return drawn and state.taken[0] > self._child(state, sampling)

    def _levels_pay(self, state: AutoState, chosen: Sequence[Chosen], rate: float, sampling: Sampling) -> bool:
        """Return whether some number of drafted levels pays for its time, given what is guessed already.

        A drawn chain stands alone, so it has to gain more than the guesses.
        """
        if self._chain(state, sampling):
            guessed, most = 0.0, 0.0
            for nodes, node in enumerate(chosen, 2):
                guessed += node.probability
                most = max(most, guessed - rate * (self._scored[nodes] - self._scored[1]))
            return any(gain > most for gain in self._surplus(1, 1.0, state.taken[0], rate))
        fresh = 1.0 - max((node.probability for node in chosen if node.parent == 0), default=0.0)
        return any(gain > 0 for gain in self._surplus(len(chosen) + 1, fresh, self._child(state, sampling), rate))

    def _surplus(self, nodes: int, fresh: float, child: float, rate: float) -> Iterator[float]:
        """Yield what 1, 2, ... levels gain beyond their price, in tokens.

        Args:
            nodes: of the tree so far.
            fresh: probability that the first level can gain a token at all.
            child: probability that a node has an accepted child, if it is accepted itself.
            rate: tokens per greedy step.
        """
        if nodes not in self._drafted_paths:
            self._drafted_paths[nodes] = self._paths(nodes).tolist()
        tokens, share = 0.0, fresh
        for cost in self._drafted_paths[nodes]:
            share *= child
            tokens += share
            yield tokens - rate * cost

    def _with_draft(
        self, state: AutoState, chosen: Sequence[Chosen], rate: float, room: int, allowed: float, sampling: Sampling
    ) -> Proposal:
        """Propose what is guessed and what the draft adds to it."""
        drafting, nodes, prices = state.drafting, Growing(state.root, chosen), self.prices
        assert drafting is not None
        frontier, once, child = [0], self._once(drafting.session), self._child(state, sampling)
        for level in range(room):
            gains = nodes.fresh(frontier)
            if level:
                paying = self._by_draft.paying(gains, rate, len(nodes), child)
                frontier, gains = [frontier[each] for each in paying], [gains[each] for each in paying]
            cost = prices.reading(len(frontier)) + (0.0 if level else once) if frontier else math.inf
            if state.cost + cost + self._scoring(2) - self._scoring(1) > allowed:
                break
            state.cost += cost
            found = nodes.most_probable(frontier, drafting.session, self._highest, self.branching, state.sharpness)
            least = rate * self._further[min(len(nodes), self.max_nodes) - 1]
            frontier = nodes.add(frontier, gains, *found, least)
            if len(nodes) > self.max_nodes:
                frontier = nodes.keep(self.max_nodes, frontier)
        nodes.keep(self._size(sorted(nodes.estimate, reverse=True), rate, allowed - state.cost), [])
        state.estimate, state.read, state.guessed, state.nodes = nodes.estimate, nodes.read, nodes.guessed, len(nodes)
        drafting.pending = np.array(nodes.pending)
        return Proposal(nodes.tree(), ranked=self._ranked(state))

    def _drawn_chain(self, state: AutoState, rate: float, room: int, allowed: float, sampling: Sampling) -> Proposal:
        """Propose a chain of tokens drawn from the draft, as long as its next token is worth its price."""
        drafting, prices = state.drafting, self.prices
        assert drafting is not None
        session, tokens, logprobs, classes = drafting.session, [state.root], [0.0], list[int]()
        distributions, accepted = DraftDistributions(session.owner), 1.0
        cost = prices.reading(1) + self._once(session)
        for level in range(min(room, self.max_nodes - 1)):
            if level and not self._by_draft.paying([accepted], rate, len(tokens), state.taken[0]):
                break
            if state.cost + cost + self._scoring(len(tokens) + 1) - self._scoring(1) > allowed:
                break
            state.cost, cost = state.cost + cost, prices.reading(1)
            above = np.array([session.pending - 1 if level else ROOT])
            logits = session.level(np.array([min(tokens[-1], self._highest)]), above)
            scores = Scores(
                logits if logits.dtype == torch.float64 else logits.float(), sampling, session.owner,
                tokens=session.drafted, invert=session.invert, softmax=session.softmax,
            )  # fmt: skip
            place, given = scores.next_place(0, drafting.random), scores.own(0)
            distributions.record(level, given, session.drafted)
            share = given[place].item()
            kind = int(np.searchsorted(EDGES, share, side="right"))
            plain = share if sampling == PLAIN else float(replace(scores, sampling=PLAIN).own(0)[place])
            tokens.append(place if session.drafted is None else int(session.drafted[place]))
            logprobs.append(math.log(plain))
            classes.append(kind)
            accepted *= state.by_class[kind]
        count = len(tokens)
        state.read, state.guessed = [True] * (count - 1) + [False], [True] + [False] * (count - 1)
        state.estimate, state.nodes, state.classes = [1.0] * count, count, classes
        drafting.pending = np.array([*range(count - 1), -1])
        draws = [POINT] + [DISTINCT] * (count - 1)
        tree = TokenTree.build(tokens, range(-1, count - 1), logprobs, draws)
        return Proposal(tree, distributions if classes else None, ranked=self._ranked(state))

    @cached_property
    def _highest(self) -> int:
        """The largest token id that the draft knows."""
        assert self.draft is not None
        return self.draft.vocab_size - 1


class Growing:
    """A tree of guesses while a draft adds to it. It has few nodes, which lists serve several times as fast as arrays.

    Attributes:
        tokens, parents, logprobs: of each node, as in `TokenTree`.
        estimate: probability that the node is accepted.
        guessed: whether it is a guess; node 0 is one.
        read: whether the draft has read it.
        pending: its number among the draft's pending nodes, -1 where it was not read.

    Args:
        root: token of node 0.
        chosen: the guesses.
    """

    def __init__(self, root: int, chosen: Sequence[Chosen]) -> None:
        self.tokens, self.parents = [root, *(node.token for node in chosen)], [ROOT, *(node.parent for node in chosen)]
        self.logprobs = [0.0, *(math.log(node.share) for node in chosen)]
        self.estimate = [1.0, *(node.probability for node in chosen)]
        count = len(self.tokens)
        self.guessed, self.read, self.pending = [True] * count, [False] * count, [-1] * count

    def __len__(self) -> int:
        return len(self.tokens)

    def _guesses(self) -> list[int]:
        """Guessed nodes below node 0, ascending."""
        return [node for node in range(1, len(self)) if self.guessed[node]]

    def fresh(self, nodes: Sequence[int]) -> list[float]:
        """Return the probability of each of these nodes that its best guessed child is wrong, with the node's own."""
        best: dict[int, float] = {}
        for node in self._guesses():
            above = self.parents[node]
            best[above] = max(best.get(above, 0.0), self.estimate[node])
        return [max(self.estimate[node] - best.get(node, 0.0), 0.0) for node in nodes]

    def most_probable(
        self, frontier: Sequence[int], session: Session, highest: int, breadth: int, sharpness: float
    ) -> tuple[list[list[int]], list[list[float]], list[list[float]]]:
        """Have the draft read nodes; return tokens after each, their log-probabilities, and probabilities made sharper.

        Raises:
            ValueError: as `best_after`.
        """
        above = [self.parents[node] for node in frontier]
        parents = np.array([ROOT if parent == ROOT else self.pending[parent] for parent in above])
        for number, node in enumerate(frontier, session.pending):
            self.pending[node], self.read[node] = number, True
        tokens = np.array([min(self.tokens[node], highest) for node in frontier])
        found, logprobs, sharp = best_after(session, frontier, tokens, parents, breadth, sharpness)
        return found.tolist(), logprobs.tolist(), [[*map(math.exp, row)] for row in sharp.tolist()]

    def add(
        self,
        frontier: Sequence[int],
        gains: Sequence[float],
        tokens: Sequence[Sequence[int]],
        logprobs: Sequence[Sequence[float]],
        shares: Sequence[Sequence[float]],
        least: float,
    ) -> list[int]:
        """Add the draft's tokens that may be accepted more often than `least`; return the nodes of the next level.

        A token that is guessed already raises its guess. Arguments as `fresh` and `most_probable` return them.
        """
        here, known = {node: index for index, node in enumerate(frontier)}, set[tuple[int, int]]()
        below = [node for node in self._guesses() if self.parents[node] in here]
        for node in below:
            index = here[self.parents[node]]
            if self.tokens[node] in tokens[index]:
                known.add((index, self.tokens[node]))
                self._raise(node, gains[index] * shares[index][tokens[index].index(self.tokens[node])])
        before = len(self)
        for index, node in enumerate(frontier):
            for token, logprob, share in zip(tokens[index], logprobs[index], shares[index], strict=True):
                if gains[index] * share > least and (index, token) not in known:
                    self.tokens.append(token)
                    self.parents.append(node)
                    self.logprobs.append(logprob)
                    self.estimate.append(gains[index] * share)
        more = len(self) - before
        self.guessed += [False] * more
        self.read += [False] * more
        self.pending += [-1] * more
        return [*below, *range(before, len(self))]

    def _raise(self, node: int, share: float) -> None:
        """Raise the estimate of a guess that the draft has too; the guesses below it rise in proportion."""
        factor, below = 1 + share / self.estimate[node], {node}
        for other in range(node, len(self)):
            if self.guessed[other] and (other == node or self.parents[other] in below):
                below.add(other)
                above = self.estimate[self.parents[other]]  # a parent is no less probable
                self.estimate[other] = min(factor * self.estimate[other], above)

    def keep(self, count: int, frontier: Sequence[int]) -> list[int]:
        """Keep the most probable nodes, of equal ones the first; return those of the frontier that are among them."""
        if count >= len(self):
            return [*frontier]
        best = sorted(sorted(range(len(self)), key=lambda node: -self.estimate[node])[:count])
        place = {node: index for index, node in enumerate(best)}
        self.parents = [place.get(parent, ROOT) for parent in (self.parents[node] for node in best)]
        for name in ("tokens", "logprobs", "estimate", "guessed", "read", "pending"):
            column = getattr(self, name)
            setattr(self, name, [column[node] for node in best])
        return [place[node] for node in sorted(frontier) if node in place]

    def tree(self) -> TokenTree:
        """Return the finished tree."""
        return TokenTree.build(self.tokens, self.parents, self.logprobs)
