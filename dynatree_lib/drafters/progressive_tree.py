"""`ProgressiveTree`: a tree of the target's own guesses, grown in its own forward (Progressive Tree Drafting)."""

from __future__ import annotations

from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property, partial

from typing_extensions import override

from ..costs import Pace
from ..models.base import LanguageModel
from ..sampling import GREEDY, RandomSource, Sampling, Scores, probabilities
from ..tree import ROOT, TokenTree
from ..verifiers.base import Verdict
from .base import Drafter, Proposal
from .checks import Priced, Pricing, check_counts, check_reach, check_switches, make_tuples, require
from .pool import CandidatePool, TokenNode, candidates, random_tokens, ranked
from .rates import SuccessRates
from .search import best_first, tree_of

PRIOR = (0.5, 0.2, 0.1, 0.05, 0.03)
"""Probability of the candidates by rank before the text has shown any."""
MEMORY = 0.98
"""Weight of the earlier candidates at each new candidate."""


@dataclass
class ProgressiveState:
    """The draft tree and the candidate pool of a text.

    Attributes:
        root: the last committed token.
        random: the drafting stream.
        subtrees: the subtrees T_s of the draft tree's root.
        pool: candidate trees by root token.
        rates: how often candidates were right, by rank.
        pace: of the text.
        order: nodes of the draft tree depth first, as they are scored; `parents` their parents, 0 being the root.
        tail: the last tokens of the text, where the text itself is merged.
    """

    root: int
    random: RandomSource
    subtrees: list[TokenNode]
    pool: CandidatePool
    rates: SuccessRates
    pace: Pace
    order: list[TokenNode] = field(default_factory=list)
    parents: list[int] = field(default_factory=list)
    tail: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class ProgressiveTree(Priced, Drafter):
    """Progressive Tree Drafting (its sections 3.2 and 3.3): no draft model, training or corpus.

    As published it is slower than plain decoding on a CPU: SmolLM2 with weights in full decodes greedily at 0.40 of its
    plain speed (outputs/reference/smollm2/float32.jsonl.gz). Use `Auto()`, which needs no draft model either.

    Beside the candidate tree the target scores a draft tree T that begins with random tokens of the prompt. Every node
    is extended by the token the target predicts there, so T grows by a level per iteration. Where a subtree T_s of the
    root becomes too deep, its earliest child's branch takes its place (stepwise pruning). All subtrees of T are
    merged into a pool, and the tree pooled after the last token is the candidate tree.

    Left open by the paper, chosen by counts on bundled prompts outside the first 20
    (outputs/reference/cpu/ptd_choices.json): the initial tree, the caps, and which candidates go first under a cap.
    With the caps here the trees are as large as in the paper's Table 4, where the draft tree has 31 to 42 nodes and the
    candidate tree 17 to 32 (docs/results.md). Siblings rank by when they were merged last, and how often each rank was
    right is learnt from the text.

    Args:
        depth: d_max, most levels of a subtree T_s below its root, so of a candidate tree. (Section 3.2 limits T_s,
            Algorithm 1 the whole tree.)
        children: most children of a node of the draft tree.
        start_tree: children per node of the initial tree, level by level, or of its one level; drawn from the prompt's
            tokens, equal draws falling together.
        max_draft: most nodes of the draft tree; where it has more, those nodes stay whose path takes the earliest
            children (the least sum of their ranks among siblings), those of earlier subtrees first.
        max_candidates: most drafted nodes of the candidate tree.
        max_pool: most nodes kept in the pool; the least recently merged go.
        text_depth: levels of the tokens after each token of the text itself that are merged too, as Lookahead and
            Self-Draft can; 0 for none, as in the paper.
        prune_first: merge what stepwise pruning leaves, the order of Algorithm 1; False merges the grown tree and
            prunes it then, which loses no prediction.
        temperature, top_k, top_p: how a node's next token is chosen: at temperature 0 the most probable, above it drawn
            (section 4.2.4).
        costs: of verifying, as for `CostAwareTree`; then only candidates that pay for their nodes are verified. None
            verifies all, as in the paper.
        rate: tokens per greedy step to begin with, for `costs`; the text's own takes over.

    Raises:
        ValueError: for depth or children < 1, an initial tree that is empty or deeper than `depth`, caps below 1, a
            pool too small for what is merged at a time, a rate that is not positive, or costs that are none.
    """

    depth: int = 6
    children: int = 4
    start_tree: int | tuple[int, ...] = 4
    max_draft: int = 44
    max_candidates: int = 100
    max_pool: int = 20_000
    text_depth: int = 0
    prune_first: bool = True
    temperature: float = 0.0
    top_k: int | None = None
    top_p: float | None = None
    costs: Pricing = None
    rate: float = 1.2
    name = "ptd"
    side_trees = True

    def __post_init__(self) -> None:
        self.check_costs()
        make_tuples(self, "start_tree")
        check_switches(self, "prune_first")
        check_counts(self, "depth", "children", "start_tree", "max_draft", "max_candidates", "max_pool")
        check_counts(self, "text_depth", least=0)
        require(
            len(self._levels) <= self.depth,
            f"start_tree is {self.start_tree} and depth {self.depth}; give at most {self.depth} levels, or more depth.",
        )
        require(
            self.max_draft > self.depth,
            f"max_draft is {self.max_draft} and depth {self.depth}; the draft tree could not grow deep enough to move "
            f"on, so give at least {self.depth + 1} nodes, or less depth.",
        )
        merged = (1 if self.prune_first else 2) * self.max_draft * (self.depth + 2)
        merged = max(merged, (self.text_depth + 1) * (self.text_depth + 2) // 2)  # of the draft tree, of the text
        require(
            self.max_pool >= 2 * merged,
            f"max_pool is {self.max_pool}; up to {merged} nodes are merged at a time, so give at least {2 * merged}.",
        )
        self.expansion  # noqa: B018 - raises ValueError for a temperature or filters that are none

    @property
    def _levels(self) -> Sequence[int]:
        """Children per node of the initial tree, by level."""
        return self.start_tree if isinstance(self.start_tree, tuple) else (self.start_tree,)

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def check(self, target: LanguageModel) -> None:
        check_reach(target, self.depth + 1, f"A draft tree of depth {self.depth}")

    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> ProgressiveState:
        root = TokenNode(ROOT)
        level = [root]
        for count in self._levels:
            for node in level:
                node.children = {token: TokenNode(token) for token in random_tokens(prompt, count, random)}
            level = [child for node in level for child in node.children.values()]
        state = ProgressiveState(
            int(prompt[-1]), random, [*root.children.values()], CandidatePool(self.max_pool),
            SuccessRates(PRIOR, MEMORY), pace=Pace.begun(self.rate),
        )  # fmt: skip
        self.merge_text(state, prompt)
        self.limit(state)
        self.list_nodes(state)
        return state

    @override
    def extend(self, state: ProgressiveState, tokens: Sequence[int]) -> ProgressiveState:
        self.merge_text(state, tokens)
        state.root = int(tokens[-1])
        return state

    @override
    def inherit(self, state: ProgressiveState, earlier: ProgressiveState) -> ProgressiveState:
        state.pool = earlier.pool.joined(state.pool)  # the draft tree is the new text's own
        state.rates = deepcopy(earlier.rates)
        return state

    def report(self, state: ProgressiveState) -> dict[str, float]:
        """Return the size of the pool."""
        return {"pool_nodes": float(state.pool.nodes)}

    # --------------------------------------------------------------------------------------------------- an iteration
    @override
    def propose(self, state: ProgressiveState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        drafted = [state.root, *(node.token for node in state.order)]
        side_tree = TokenTree.build(drafted, [ROOT, *state.parents])
        pooled, rate, scored = state.pool.roots.get(state.root), state.pace.rate, 1 + len(state.order)
        guesses = partial(candidates, rates=state.rates, most=self.max_candidates)
        chosen = best_first(
            pooled, guesses, max_depth if pooled else 0, self.max_candidates,
            lambda nodes: rate * self.prices.another(scored + nodes),
        )  # fmt: skip
        return Proposal(tree_of(state.root, chosen), side_tree=side_tree)

    @override
    def observe(
        self, state: ProgressiveState, proposal: Proposal, scores: Scores, verdict: Verdict
    ) -> ProgressiveState:
        tokens = verdict.tokens(proposal.tree)
        self._learn(state, tokens)
        state.pace.add(len(tokens), self.prices.scoring(len(scores)))
        if proposal.side_tree is not None:
            self.expand(state, self._predicted(state, scores, len(proposal.tree)))
            if not self.prune_first:
                self.merge_draft(state)
            state.subtrees = [self.stepped(subtree) for subtree in state.subtrees]
            self.limit(state)
            self.list_nodes(state)
            if self.prune_first:
                self.merge_draft(state)
        state.pool.settle()
        self.merge_text(state, tokens)
        state.root = verdict.next_token
        return state

    @cached_property
    def expansion(self) -> Sampling:
        """How the next token of a node of the draft tree is chosen."""
        return Sampling(self.temperature, self.top_k, self.top_p)

    def _learn(self, state: ProgressiveState, tokens: Sequence[int]) -> None:
        """Learn which pooled candidates on the committed path were right, whether they paid for a node or not."""
        node = state.pool.roots.get(state.root)
        for token in tokens:
            if node is None:
                return
            for rank, child in enumerate(ranked(node)[: self.max_candidates]):
                state.rates.learn(rank, child.token == token)
            node = node.children.get(token)

    def _predicted(self, state: ProgressiveState, scores: Scores, first: int) -> list[int]:
        """Return the next token of each node of the draft tree, whose scores begin at `first`."""
        if self.expansion.greedy:
            return scores.argmax[first:].tolist()
        return state.random.draw_each(probabilities(scores.logits[first:], self.expansion))

    # ------------------------------------------------------------------------------------------------- the draft tree
    def expand(self, state: ProgressiveState, predicted: Sequence[int]) -> None:
        """Make T^i from T^(i-1): a node gets the token predicted there as a child, unless it has its children."""
        for node, token in zip(state.order, predicted, strict=True):
            if token not in node.children and len(node.children) < self.children:
                node.children[token] = TokenNode(token)

    def stepped(self, subtree: TokenNode) -> TokenNode:
        """Return the earliest child's branch of a subtree that is too deep (stepwise pruning)."""
        return next(iter(subtree.children.values())) if subtree.height > self.depth else subtree

    def limit(self, state: ProgressiveState) -> None:
        """Keep `max_draft` nodes: those with the least sum of birth ranks on their path, earlier subtrees first."""
        nodes = [(0, place, subtree) for place, subtree in enumerate(state.subtrees)]
        for later, place, node in nodes:  # grows while it is read; parents come before their children
            nodes += ((later + rank, place, child) for rank, child in enumerate(node.children.values()))
        if len(nodes) <= self.max_draft:
            return
        staying = {id(node) for _, _, node in sorted(nodes, key=lambda entry: entry[:2])[: self.max_draft]}
        for _, _, node in nodes:
            node.children = {token: child for token, child in node.children.items() if id(child) in staying}
        state.subtrees = [subtree for subtree in state.subtrees if id(subtree) in staying]

    def list_nodes(self, state: ProgressiveState) -> None:
        """List the draft tree depth first, as it is scored."""
        state.order, state.parents = [], []
        todo = [(subtree, 0) for subtree in reversed(state.subtrees)]
        while todo:
            node, parent = todo.pop()
            state.order.append(node)
            state.parents.append(parent)
            index = len(state.order)
            todo += [(child, index) for child in reversed(node.children.values())]

    def merge_draft(self, state: ProgressiveState) -> None:
        """Merge every subtree of the draft tree into the pooled tree with its root token, by M."""
        pool = state.pool
        todo: list[tuple[TokenNode, list[TokenNode]]] = [(subtree, []) for subtree in state.subtrees]
        for node, above in todo:  # grows while it is read; `above`: where the paths from its ancestors end in the pool
            ends = [pool.merged(end.children, node.token) for end in above]
            if node.children:
                ends.append(pool.merged(pool.roots, node.token))
                todo += ((child, ends) for child in node.children.values())

    def merge_text(self, state: ProgressiveState, tokens: Sequence[int]) -> None:
        """Merge the tokens that follow the text's last tokens."""
        for token in tokens if self.text_depth else ():
            state.tail = [*state.tail, int(token)][-self.text_depth - 1 :]
            for start in range(len(state.tail) - 1):
                state.pool.merge(state.tail[start:])
            state.pool.settle()
