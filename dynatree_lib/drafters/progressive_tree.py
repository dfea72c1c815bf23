"""`ProgressiveTree`: a tree of the target's own guesses, grown in its own forward (Progressive Tree Drafting)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..costs import CostCurve
from ..models.base import LanguageModel
from ..sampling import GREEDY, RandomSource, Sampling, Scores, probabilities
from ..tree import ROOT, TokenTree
from ..verifiers.base import Verdict
from .base import Drafter, Proposal, check_whole, check_window, random_tokens
from .pool import Candidate, CandidatePool, RankChances, best_first, ranked

PRIOR = (0.5, 0.2, 0.1, 0.05, 0.03)
"""Chance of the candidates by rank before the text has shown any."""
WEIGHT = 50.0
"""Greedy steps for which the rate given counts against the rate of the text itself."""


class Grown:
    """A node of the draft tree T; its children stand in the order they were added."""

    __slots__ = ("children", "token")

    def __init__(self, token: int) -> None:
        self.token = token
        self.children: dict[int, Grown] = {}

    @property
    def height(self) -> int:
        """Levels below it."""
        levels, below = 0, [*self.children.values()]
        while below:
            levels, below = levels + 1, [child for node in below for child in node.children.values()]
        return levels


@dataclass
class ProgressiveState:
    """A text's draft tree and candidate pool.

    Attributes:
        root: the last committed token.
        chance: the drafting stream.
        subtrees: the subtrees T_s of the draft tree's root.
        pool: candidate trees by root token.
        tail: the last tokens of the text, where the text itself is merged.
        order: nodes of the draft tree depth first, as they are scored; `parents` their parents, 0 being the root.
        chances: of candidates by rank.
        committed, spent: tokens, and predicted cost in greedy steps, so far.
    """

    root: int
    random: RandomSource
    subtrees: list[Grown]
    pool: CandidatePool
    probabilities: RankChances
    order: list[Grown] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)
    committed: float = 0.0
    spent: float = 0.0


@dataclass(frozen=True)
class ProgressiveTree(Drafter):
    """Progressive Tree Drafting (its sections 3.2 and 3.3): no draft model, training or corpus.

    Beside the candidate tree the target scores a draft tree T that begins with random tokens of the prompt. Every node
    is extended by the token the target predicts there, so T grows by a level per iteration; where a subtree T_s of the
    root becomes too deep, its earliest child's branch takes its place (stepwise pruning). All subtrees of T are
    merged into a pool, and what the pool has after the last token is the candidate tree.

    Left open by the paper, chosen by counts on bundled prompts outside the first 20
    (outputs/reference/cpu/ptd_choices.json): the initial tree, the caps, and which candidates go first under a cap:
    siblings rank by when they were merged last, and how often each rank was right is learnt from the text.

    Args:
        depth: d_max, most levels of a subtree T_s below its root, so of a candidate tree. (Section 3.2 limits T_s,
            Algorithm 1 the whole tree.)
        children: most children of a node of the draft tree.
        start_tree: children per node of the initial tree, level by level, or of its one level; drawn from the prompt's
            tokens, equal draws falling together.
        max_draft: most rows of the draft tree; where it has more, those nodes stay whose path takes the earliest
            children (the least sum of their ranks among siblings), those of earlier subtrees first.
        max_candidates: most rows of the candidate tree.
        max_pool: most nodes kept in the pool; the least recently merged go.
        text_depth: levels of what follows each token of the text itself that are merged too, as Lookahead and
            Self-Draft can; 0 for none, as in the paper.
        prune_first: merge what stepwise pruning leaves, the order of Algorithm 1; False merges the grown tree and
            prunes it then, which loses no prediction.
        temperature, top_k, top_p: how a node's next token is chosen: at temperature 0 the most probable, above it drawn
            (section 4.2.4).
        verify_cost: cost of the target's forward over 1, 2, 4, ... rows in greedy steps, as for `CostAwareTree`; then
            only candidates are verified whose chance exceeds what their row costs. None verifies all.
        rate: tokens per greedy step to begin with, for `verify_cost`; the text's own takes over.

    Raises:
        ValueError: for depth or children < 1, an initial tree that is empty or deeper than `depth`, caps below 1, a
            pool too small for what is merged at a time, a rate that is not positive, or costs that are no curve.
    """

    depth: int = 6
    children: int = 4
    start_tree: int | tuple[int, ...] = 4
    max_draft: int = 64
    max_candidates: int = 32
    max_pool: int = 20_000
    text_depth: int = 0
    prune_first: bool = True
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    verify_cost: tuple[float, ...] | None = None
    rate: float = 1.2
    name = "ptd"

    def __post_init__(self) -> None:
        check_whole(self, "depth", "children", "max_draft", "max_candidates", "max_pool", "text_depth")
        for name in ("depth", "children", "max_draft", "max_candidates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1.")
        if isinstance(self.start_tree, Sequence):  # a list will do
            object.__setattr__(self, "start_tree", tuple(self.start_tree))
        whole = all(isinstance(count, int) and count >= 1 for count in self._levels)
        if not whole or not 1 <= len(self._levels) <= self.depth:
            raise ValueError(
                f"start_tree is {self.start_tree}; give at least 1 child per node, a whole number, for 1 to "
                f"{self.depth} levels (depth)."
            )
        if self.max_draft <= self.depth:
            raise ValueError(
                f"max_draft is {self.max_draft} and depth {self.depth}; the draft tree could not grow deep enough to "
                f"move on, so give at least {self.depth + 1} rows, or less depth."
            )
        if self.text_depth < 0:
            raise ValueError(f"text_depth is {self.text_depth}; give the levels to merge, or 0 for none.")
        least = 2 * max(self._grown, (self.text_depth + 1) * (self.text_depth + 2) // 2)
        if self.max_pool < least:
            raise ValueError(
                f"max_pool is {self.max_pool}; up to {least // 2} nodes are merged at a time, so give at least {least}."
            )
        Sampling(self.temperature, self.top_k, self.top_p)
        if self.verify_cost is not None:
            object.__setattr__(self, "verify_cost", tuple(self.verify_cost))
            CostCurve(self.verify_cost)
        if not 0 < self.rate < math.inf:
            raise ValueError(f"rate is {self.rate}; give a positive number.")

    @classmethod
    def examples(cls, draft: LanguageModel) -> Iterator[Drafter]:
        """The default, tight caps with the text merged, drawn expansion, a cost-aware cap."""
        yield cls()
        yield cls(depth=3, children=2, start_tree=(2, 2), max_draft=6, max_candidates=4, max_pool=150, text_depth=2)
        yield cls(depth=4, children=3, temperature=1.0, top_k=3, start_tree=(1,), prune_first=False)
        yield cls(depth=4, start_tree=(2,), text_depth=9, verify_cost=(1.0, 1.3, 1.35, 1.4, 1.6, 2.1, 3.2))

    @property
    def _levels(self) -> Sequence[int]:
        """Children per node of the initial tree, by level."""
        return self.start_tree if isinstance(self.start_tree, Sequence) else (self.start_tree,)

    @property
    def _grown(self) -> int:
        """Most nodes that are merged of a draft tree at a time."""
        return (1 if self.prune_first else 2) * self.max_draft * (self.depth + 2)

    # ------------------------------------------------------------------------------------------------------ the state
    def check(self, target: LanguageModel) -> None:
        """See `Drafter.check`."""
        check_window(target, self.depth + 1, f"A draft tree of depth {self.depth}")

    def start(self, prompt: Sequence[int], random: RandomSource) -> ProgressiveState:
        """See `Drafter.start`."""
        subtrees = Grown(ROOT)
        level = [subtrees]
        for count in self._levels:
            for node in level:
                node.children = {token: Grown(token) for token in random_tokens(prompt, count, random)}
            level = [child for node in level for child in node.children.values()]
        state = ProgressiveState(
            int(prompt[-1]), random, [*subtrees.children.values()], CandidatePool(self.max_pool), RankChances(PRIOR),
            committed=WEIGHT * self.rate, spent=WEIGHT,
        )  # fmt: skip
        self._read(state, prompt)
        self._cut(state)
        self._list(state)
        return state

    def extend(self, state: ProgressiveState, tokens: Sequence[int]) -> ProgressiveState:
        """See `Drafter.extend`."""
        self._read(state, tokens)
        state.root = int(tokens[-1])
        return state

    def inherit(self, state: ProgressiveState, earlier: ProgressiveState) -> ProgressiveState:
        """See `Drafter.inherit`: the pool and what was learnt of it; the draft tree is the new text's own."""
        pool = earlier.pool.copy()
        pool.absorb(state.pool)
        state.pool, state.probabilities = pool, earlier.probabilities.copy()
        return state

    def report(self, state: ProgressiveState) -> dict[str, float]:
        """Size of the pool."""
        return {"pool_nodes": float(state.pool.nodes)}

    # --------------------------------------------------------------------------------------------------- an iteration
    def propose(self, state: ProgressiveState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        """See `Drafter.propose`."""
        below = [state.root, *(node.token for node in state.order)]
        side_tree = TokenTree.build(below, [ROOT, *state.parents])
        worth = self._worth(state, len(state.order))
        cached = state.pool.roots.get(state.root)
        tokens, parents, ranks = best_first(cached, state.probabilities, max_depth, worth)
        logprobs = [0.0, *(math.log(state.probabilities[rank]) for rank in ranks)]
        return Proposal(TokenTree.build([state.root, *tokens], [ROOT, *parents], logprobs), side_tree=side_tree)

    def observe(
        self, state: ProgressiveState, proposal: Proposal, scores: Scores, verdict: Verdict
    ) -> ProgressiveState:
        """See `Drafter.observe`."""
        tree, side_tree = proposal.tree, proposal.side_tree
        tokens = verdict.tokens(tree)
        self._learn(state, tokens)
        state.committed += len(tokens)
        if self._curve is not None:
            state.spent += float(self._curve.at(len(scores)))
        if side_tree is not None:
            self._grow(state, self._predicted(state, scores, len(tree)))
            if not self.prune_first:
                self._merge(state)
            state.subtrees = [self._stepped(subtree) for subtree in state.subtrees]
            self._cut(state)
            self._list(state)
            if self.prune_first:
                self._merge(state)
        state.pool.settle()
        self._read(state, tokens)
        state.root = verdict.next_token
        return state

    @cached_property
    def _curve(self) -> CostCurve | None:
        return None if self.verify_cost is None else CostCurve(self.verify_cost)

    def _worth(self, state: ProgressiveState, drafting: int) -> Sequence[float]:
        """Chance that the next candidate must exceed, by how many there are."""
        if self._curve is None:
            return [0.0] * self.max_candidates
        rate = state.committed / state.spent
        return [rate * self._curve.marginal_cost(1 + drafting + count) for count in range(self.max_candidates)]

    def _learn(self, state: ProgressiveState, tokens: Sequence[int]) -> None:
        """Which of the cached candidates on the committed path were right, whether they paid for a row or not."""
        node = state.pool.roots.get(state.root)
        for token in tokens:
            if node is None or not node.children:
                return
            siblings = [one.token for one in ranked(node)[: self.max_candidates]]
            state.probabilities.learn(len(siblings), siblings.index(token) if token in siblings else None)
            node = node.children.get(token)

    def _predicted(self, state: ProgressiveState, scores: Scores, first: int) -> list[int]:
        """The next token of each node of the draft tree, whose rows begin at `first`."""
        expansion = Sampling(self.temperature, self.top_k, self.top_p)
        if expansion.greedy:
            return scores.argmax[first:].tolist()
        return state.random.draw_each(probabilities(scores.logits[first:], expansion))

    # ------------------------------------------------------------------------------------------------- the draft tree
    def _grow(self, state: ProgressiveState, predicted: Sequence[int]) -> None:
        """T^i from T^(i-1): every node gets the token predicted there as a child, unless it has its children."""
        for node, token in zip(state.order, predicted, strict=True):
            if token not in node.children and len(node.children) < self.children:
                node.children[token] = Grown(token)

    def _stepped(self, subtree: Grown) -> Grown:
        """Stepwise pruning: of a subtree that is too deep, the earliest child's branch."""
        return next(iter(subtree.children.values())) if subtree.height > self.depth else subtree

    def _cut(self, state: ProgressiveState) -> None:
        """Keep `max_draft` nodes: those with the least sum of birth ranks on their path, earlier subtrees first."""
        nodes = [(0, place, subtree) for place, subtree in enumerate(state.subtrees)]
        for later, place, node in nodes:  # grows while it is read; parents come before their children
            nodes += ((later + rank, place, child) for rank, child in enumerate(node.children.values()))
        if len(nodes) <= self.max_draft:
            return
        kept = {id(node) for _, _, node in sorted(nodes, key=lambda one: one[:2])[: self.max_draft]}
        for _, _, node in nodes:
            node.children = {token: child for token, child in node.children.items() if id(child) in kept}
        state.subtrees = [subtree for subtree in state.subtrees if id(subtree) in kept]

    def _list(self, state: ProgressiveState) -> None:
        """The draft tree depth first."""
        state.order, state.parents = [], []
        todo = [(subtree, 0) for subtree in reversed(state.subtrees)]
        while todo:
            node, parent = todo.pop()
            state.order.append(node)
            state.parents.append(parent)
            index = len(state.order)
            todo += [(child, index) for child in reversed(node.children.values())]

    def _merge(self, state: ProgressiveState) -> None:
        """M of every subtree of the draft tree into the pool's tree with its root token."""
        pool = state.pool
        todo: list[tuple[Grown, list[Candidate]]] = [(subtree, []) for subtree in state.subtrees]
        for node, above in todo:  # grows while it is read; `above`: where the paths from its ancestors end in the pool
            ends = [pool.child(end, node.token) for end in above]
            if node.children:
                ends.append(pool.root(node.token))
                todo += ((child, ends) for child in node.children.values())

    def _read(self, state: ProgressiveState, tokens: Sequence[int]) -> None:
        """Merge what the text's last tokens are followed by."""
        for token in tokens if self.text_depth else ():
            state.tail = [*state.tail, int(token)][-self.text_depth - 1 :]
            for start in range(len(state.tail) - 1):
                state.pool.merge(state.tail[start:])
            state.pool.settle()
