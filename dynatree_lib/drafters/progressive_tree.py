"""`ProgressiveTree`: a tree of the target's own guesses, grown in its own forward (Progressive Tree Drafting)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from ..costs import CostCurve
from ..models.base import LanguageModel
from ..sampling import GREEDY, Chance, Rows, Sampling, probabilities
from ..tree import ROOT, TokenTree
from ..verifiers.base import Verdict
from .base import Drafter, Proposal, check_whole, check_window, random_tokens
from .pool import Candidate, CandidatePool, RankChances, best_first

PRIOR = (0.5, 0.25, 0.12, 0.06, 0.03)
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
        return 1 + max((child.height for child in self.children.values()), default=-1)


@dataclass
class ProgressiveState:
    """A text's draft tree and candidate pool.

    Attributes:
        root: the last committed token.
        chance: the drafting stream.
        subtrees: the subtrees T_s of the draft tree's root.
        pool: candidate trees by root token.
        recent: cached nodes at which the last tokens of the text end, where the text itself is merged.
        order: nodes of the draft tree depth first, as they are scored; `parents` their parents, 0 being the root.
        chances: of candidates by rank; `ranks`: those of the current candidate tree.
        committed, spent: tokens, and predicted cost in greedy steps, so far.
    """

    root: int
    chance: Chance
    subtrees: list[Grown]
    pool: CandidatePool
    chances: RankChances
    recent: list[Candidate] = field(default_factory=list)
    order: list[Grown] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    ranks: list[int] = field(default_factory=list)
    committed: float = 0.0
    spent: float = 0.0


@dataclass(frozen=True)
class ProgressiveTree(Drafter):
    """Progressive Tree Drafting (its sections 3.2 and 3.3): no draft model, training or corpus.

    Beside the candidate tree the target scores a draft tree T that begins with random tokens of the prompt. Every node
    is extended by the token the target predicts there, so T grows by a level per iteration; where a subtree T_s of the
    root becomes too deep, its earliest child's branch takes its place (stepwise pruning). All subtrees of T are
    merged into a pool, and what the pool has after the last token is the candidate tree.

    Left open by the paper, chosen on bundled prompts outside the first 20 (notebook 21): the initial tree, the caps,
    and which candidates go first under a cap: those whose rank among their siblings, the latest merged first, was right
    most often in this text.

    Args:
        depth: d_max, most levels of a subtree T_s below its root, so of a candidate tree. (Section 3.2 limits T_s,
            Algorithm 1 the whole tree.)
        children: most children of a node of the draft tree.
        start: children per node of the initial tree, level by level; drawn from the prompt's tokens.
        max_draft: most rows of the draft tree; where it has more, the nodes with the fewest later-born choices on
            their path stay.
        max_candidates: most rows of the candidate tree.
        max_pool: most nodes kept in the pool; the least recently merged go.
        text: whether the text itself is merged too, as Lookahead and Self-Draft do; the paper does not.
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
    start_tree: tuple[int, ...] = (4,)
    max_draft: int = 64
    max_candidates: int = 32
    max_pool: int = 20_000
    text: bool = False
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    verify_cost: tuple[float, ...] | None = None
    rate: float = 1.2
    name = "ptd"

    def __post_init__(self) -> None:
        object.__setattr__(self, "start_tree", tuple(self.start_tree))  # a list will do
        check_whole(self, "depth", "children", "max_draft", "max_candidates", "max_pool")
        for name in ("depth", "children", "max_draft", "max_candidates"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; give at least 1.")
        if not self.start_tree or min(self.start_tree) < 1 or len(self.start_tree) > self.depth:
            raise ValueError(
                f"start_tree is {self.start_tree}; give at least 1 child per node for 1 to {self.depth} levels (depth)."
            )
        least = 2 * (self.depth + 1) * (self.max_draft + 1)
        if self.max_pool < least:
            raise ValueError(
                f"max_pool is {self.max_pool}; a draft tree of {self.max_draft} rows and depth {self.depth} may merge "
                f"{least // 2} nodes at a time, so give at least {least}."
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
        yield cls(depth=3, children=2, start_tree=(2, 2), max_draft=6, max_candidates=4, max_pool=100, text=True)
        yield cls(depth=4, children=3, temperature=1.0, top_k=3, start_tree=(1,))
        yield cls(depth=4, start_tree=(2,), text=True, verify_cost=(1.0, 1.3, 1.35, 1.4, 1.6, 2.1, 3.2))

    # ------------------------------------------------------------------------------------------------------ the state
    def check(self, target: LanguageModel) -> None:
        """See `Drafter.check`."""
        check_window(target, self.depth + 1, f"a draft tree of depth {self.depth}")

    def start(self, prompt: Sequence[int], chance: Chance) -> ProgressiveState:
        """See `Drafter.start`."""
        subtrees = Grown(ROOT)
        level = [subtrees]
        for count in self.start_tree:
            for node in level:
                node.children = {token: Grown(token) for token in random_tokens(prompt, count, chance)}
            level = [child for node in level for child in node.children.values()]
        state = ProgressiveState(
            int(prompt[-1]), chance, [*subtrees.children.values()], CandidatePool(self.max_pool), RankChances(PRIOR),
            committed=WEIGHT * self.rate, spent=WEIGHT,
        )  # fmt: skip
        self._read(state, prompt)
        self._list(state)
        return state

    def extend(self, state: ProgressiveState, tokens: Sequence[int]) -> ProgressiveState:
        """See `Drafter.extend`."""
        self._read(state, tokens)
        state.root = int(tokens[-1])
        return state

    def inherit(self, state: ProgressiveState, earlier: ProgressiveState) -> ProgressiveState:
        """See `Drafter.inherit`: the pool and what was learnt of it; the draft tree is the new text's own."""
        state.pool, state.chances = earlier.pool.copy(), earlier.chances.copy()
        return state

    def report(self, state: ProgressiveState) -> dict[str, float]:
        """Size of the pool."""
        return {"pool_nodes": float(state.pool.nodes)}

    # --------------------------------------------------------------------------------------------------- an iteration
    def propose(self, state: ProgressiveState, room: int, sampling: Sampling = GREEDY) -> Proposal:
        """See `Drafter.propose`; near the end of the text there is no draft tree."""
        beside = None
        if state.order and room > self.depth:
            tokens = [state.root, *(node.token for node in state.order)]
            beside = TokenTree.build(tokens, [ROOT, *state.parents])
        worth = self._worth(state, 0 if beside is None else len(beside) - 1)
        tokens, parents, state.ranks, chances = best_first(state.pool.roots.get(state.root), state.chances, room, worth)
        tree = TokenTree.build([state.root, *tokens], [ROOT, *parents], [0.0, *_conditional(parents, chances)])
        return Proposal(tree, beside=beside)

    def observe(self, state: ProgressiveState, proposal: Proposal, rows: Rows, verdict: Verdict) -> ProgressiveState:
        """See `Drafter.observe`."""
        tree, beside = proposal.tree, proposal.beside
        self._learn(state, tree, verdict)
        state.committed += len(verdict.path) + 1
        if self._curve is not None:
            state.spent += float(self._curve.at(len(rows)))
        if beside is not None:
            self._grow(state, self._predicted(state, rows, len(tree)))
            state.subtrees = [self._stepped(subtree) for subtree in state.subtrees]
            self._cut(state)
            self._merge(state)
        self._read(state, [*tree.tokens[list(verdict.path)].tolist(), verdict.next_token])
        state.pool.settle()
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
        return [rate * self._curve.price(1 + drafting + count) for count in range(self.max_candidates)]

    def _learn(self, state: ProgressiveState, tree: TokenTree, verdict: Verdict) -> None:
        """Which candidates were right, at every node whose next token is known now."""
        path = [0, *verdict.path]
        for node, taken in zip(path, [*verdict.path, None], strict=True):
            siblings = tree.children(node)
            if len(siblings):
                ranks = [state.ranks[child - 1] for child in siblings]
                state.chances.learn(ranks, None if taken is None else state.ranks[taken - 1])

    def _predicted(self, state: ProgressiveState, rows: Rows, first: int) -> list[int]:
        """The next token of each node of the draft tree, whose rows begin at `first`."""
        expansion = Sampling(self.temperature, self.top_k, self.top_p)
        if expansion.greedy:
            return rows.argmax[first:].tolist()
        laws = probabilities(rows.logits[first:], expansion).cpu()
        return [state.chance.draw(law) for law in laws]

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
        """Keep `max_draft` nodes: those with the fewest later-born choices on their path, the shallowest first."""
        nodes = [(0, 0, subtree) for subtree in state.subtrees]
        for later, depth, node in nodes:  # grows while it is read
            nodes += ((later + rank, depth + 1, child) for rank, child in enumerate(node.children.values()))
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
        self._list(state)
        pool = state.pool
        ends: list[list[Candidate]] = [[]]  # where the paths from every ancestor to a node end in the pool
        for node, parent in zip(state.order, state.parents, strict=True):
            here = [pool.child(end, node.token) for end in ends[parent]]
            if node.children:
                here.append(pool.root(node.token))
            ends.append(here)

    def _read(self, state: ProgressiveState, tokens: Sequence[int]) -> None:
        """Merge what the text's last tokens were followed by."""
        if not self.text:
            return
        for token in tokens:
            ends = [state.pool.child(end, int(token)) for end in state.recent[-self.depth :]]
            state.recent = [*ends, state.pool.root(int(token))]


def _conditional(parents: Sequence[int], chances: Sequence[float]) -> list[float]:
    """Log-probability of each candidate given its parent."""
    whole = [1.0, *chances]
    return [math.log(chance / whole[parent]) for parent, chance in zip(parents, chances, strict=True)]
