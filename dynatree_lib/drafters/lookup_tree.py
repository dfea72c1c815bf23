"""`LookupTree`: the cost-aware tree with a path copied from the text itself, which costs no drafting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..models.base import LanguageModel
from ..sampling import RandomSource, Scores
from ..tree import ROOT, renumbering
from ..verifiers.base import Verdict
from .base import Drafter, DraftState, Proposal, TreeBuilder
from .best_first_tree import highest
from .copying import Copies
from .cost_aware_tree import CostAwareState, CostAwareTree


@dataclass
class LookupState(CostAwareState):
    """A cost-aware state, the text, and what was copied for the current tree."""

    copies: Copies = field(default_factory=lambda: Copies(1, []))
    copied: list[int] = field(default_factory=list)


@dataclass
class _Grown:
    """Estimates beside the nodes of a tree builder.

    Attributes:
        probability: (n,) a(u).
        copy: (n,) the child of each node that was copied, -1 for none.
    """

    probability: np.ndarray
    copy: np.ndarray

    def keep(self, nodes: np.ndarray) -> None:
        self.copy = renumbering(len(self.probability), nodes)[self.copy[nodes]]
        self.probability = self.probability[nodes]


@dataclass(frozen=True)
class LookupTree(CostAwareTree):
    """A `CostAwareTree` that starts with a path copied from the text: what followed its last tokens before.

    Texts repeat themselves, and a copy (prompt lookup, n-gram speculation) needs no forward of the draft. How often
    copies are right is counted in the text, h for the first token and for later ones. Where a node has a copied child
    c, the law of the next token is taken as h * [c] + (1 - h) * the draft's sharpened law, so reading the node can gain
    only the share 1 - h: where copies are good nothing is drafted, where they are not this is a `CostAwareTree`.

    Args:
        ngram: tokens that must have occurred before; `CostAwareTree` has the other options.
        longest: most copied tokens.

    Raises:
        ValueError: for ngram or longest < 1, and what `CostAwareTree` refuses.
    """

    ngram: int = 2
    longest: int = 12
    name = "lookup-tree"

    def __post_init__(self) -> None:
        super().__post_init__()
        for name in ("ngram", "longest"):
            if not isinstance(getattr(self, name), int) or getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)!r}; give a whole number of at least 1.")

    @classmethod
    def examples(cls, draft: LanguageModel) -> Iterator[Drafter]:
        """The default; matches of one token, which are everywhere; free drafting beside copies; budgets that bind."""
        yield cls(draft)
        yield cls(draft, ngram=3, longest=4)
        free: dict[str, Any] = {"verify_cost": (1.0, 1.0), "draft_cost": (0.001, 0.001), "overhead": 0.0}
        yield cls(draft, **free, ngram=1, depth=4, max_nodes=12)

    # ------------------------------------------------------------------------------------------------------ the state
    def start(self, prompt: Sequence[int], random: RandomSource) -> LookupState:
        """See `Drafter.start`."""
        state = super().start(prompt, random)
        copies = Copies(self.ngram, [])
        copies.append(prompt)
        return LookupState(
            state.session, state.root, state.random, sharpness=state.sharpness, committed=state.committed,
            spent=state.spent, copies=copies,
        )  # fmt: skip

    def extend(self, state: DraftState, tokens: Sequence[int]) -> DraftState:
        """See `Drafter.extend`."""
        assert isinstance(state, LookupState)
        state.copies.append(tokens)
        return super().extend(state, tokens)

    def inherit(self, state: CostAwareState, earlier: CostAwareState) -> CostAwareState:
        """See `Drafter.inherit`: also how often copies were right; the earlier text itself is not copied from."""
        assert isinstance(state, LookupState)
        assert isinstance(earlier, LookupState)
        state.copies.right, state.copies.tried = [*earlier.copies.right], [*earlier.copies.tried]
        return super().inherit(state, earlier)

    def observe(self, state: DraftState, proposal: Proposal, scores: Scores, verdict: Verdict) -> DraftState:
        """See `Drafter.observe`."""
        assert isinstance(state, LookupState)
        tokens = verdict.tokens(proposal.tree)
        state.copies.learn(state.copied, tokens)
        state.copies.append(tokens)
        state.copied = []
        return super().observe(state, proposal, scores, verdict)

    def report(self, state: CostAwareState) -> dict[str, float]:
        """Sharpness and rate in use, and the chance of the first copied token and of a later one."""
        assert isinstance(state, LookupState)
        first, later = state.copies.probabilities(2)
        return {**super().report(state), "first_copy": float(first), "later_copy": float(later)}

    # ------------------------------------------------------------------------------------------------------- the tree
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        """See `ModelDrafter.grow`."""
        state = builder.state
        assert isinstance(state, LookupState)
        rate, grown = state.committed / state.spent, _Grown(np.ones(1), np.array([ROOT]))
        self._copy(builder, grown, state, min(self.longest, self.max_nodes - 1, max_depth), rate)
        frontier = np.array([0])
        for level in range(min(self.depth, max_depth)):
            frontier = self._unlike_copies(builder, grown, frontier, rate, level)
            if not len(frontier):
                break
            state.drafting += float(self._prices.reading[len(frontier)]) + (0.0 if level else self.overhead)
            frontier = self._read(builder, grown, frontier, rate)
        state.expected = self._cut(builder, grown.probability, rate)

    def _copy(self, builder: TreeBuilder, grown: _Grown, state: LookupState, count: int, rate: float) -> None:
        """Add the copied tokens whose row pays."""
        state.copied = state.copies.following(count)
        probabilities = np.cumprod(state.copies.probabilities(len(state.copied)))
        pays = probabilities > rate * self._prices.row[len(builder) + np.arange(len(probabilities))]
        count = len(probabilities) if pays.all() else int(pays.argmin())
        grown.probability = np.append(grown.probability, probabilities[:count])
        grown.copy = np.append(np.arange(1, count + 1), ROOT)
        builder.add_path(state.copied[:count], np.log(grown.probability[1:] / grown.probability[:-1]))

    def _unlike_copies(
        self, builder: TreeBuilder, grown: _Grown, frontier: np.ndarray, rate: float, level: int
    ) -> np.ndarray:
        """The nodes of the frontier that are worth reading for what a copy does not already promise."""
        has = grown.copy[frontier] >= 0
        promised = np.where(has, grown.probability[grown.copy[frontier]], 0.0)
        fresh = np.ones(len(builder))
        fresh[frontier] = grown.probability[frontier] - promised
        if level == 0 and len(builder) > 1:  # a copy pays for the tree; levels of drafting have to bear the overhead
            return frontier if self._worth_drafting(rate, float(fresh[0]), self.overhead) else frontier[:0]
        return self._worth_reading(frontier, fresh, rate, len(builder))

    def _read(self, builder: TreeBuilder, grown: _Grown, frontier: np.ndarray, rate: float) -> np.ndarray:
        """Read nodes of the frontier and add the children that pay; the next frontier, copied children included."""
        state = builder.state
        assert isinstance(state, LookupState)
        tokens, logprobs, shares = builder.most_probable(frontier, self.branching, state.sharpness)
        copy = grown.copy[frontier]
        copied = np.where(copy >= 0, builder.tokens[copy], -1)[:, None] == tokens
        left = grown.probability[frontier] - np.where(copy >= 0, grown.probability[copy], 0.0)
        probabilities = left[:, None] * np.exp(shares)
        for row in np.flatnonzero(copied.any(-1)):  # draft and copy agree
            self._raise(grown, int(copy[row]), float(probabilities[row][copied[row]][0]))
        rows, ranks = np.nonzero((probabilities > rate * self._prices.row[min(len(builder), self.max_nodes)]) & ~copied)
        before = len(builder)
        builder.add(frontier[rows], tokens[rows, ranks], logprobs[rows, ranks])
        grown.probability = np.concatenate([grown.probability, probabilities[rows, ranks]])
        grown.copy = np.concatenate([grown.copy, np.full(len(rows), ROOT)])
        following = np.sort(np.concatenate([copy[copy >= 0], np.arange(before, len(builder))]))
        if len(builder) <= self.max_nodes:
            return following
        kept = highest(grown.probability, self.max_nodes)
        builder.keep(kept)
        grown.keep(kept)
        return np.flatnonzero(np.isin(kept, following))

    @staticmethod
    def _raise(grown: _Grown, node: int, by: float) -> None:
        """The draft thinks so too: a copied node's chance, and those of the copies below it in proportion."""
        factor = 1 + by / grown.probability[node]
        while node >= 0:
            grown.probability[node] *= factor
            node = int(grown.copy[node])
