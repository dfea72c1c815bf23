"""`LookupTree`: the cost-aware tree with a path copied from the text itself, which costs no drafting."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..models.base import LanguageModel
from ..sampling import Chance, Rows
from ..tree import ROOT, renumbering
from ..verifiers.base import Verdict
from .base import Drafter, DraftState, Growth, Proposal
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
    """Estimates beside the nodes of a Growth.

    Attributes:
        chance: (n,) a(u).
        copy: (n,) the child of each node that was copied, -1 for none.
    """

    chance: np.ndarray
    copy: np.ndarray

    def keep(self, nodes: np.ndarray) -> None:
        self.copy = renumbering(len(self.chance), nodes)[self.copy[nodes]]
        self.chance = self.chance[nodes]


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
    def start(self, prompt: Sequence[int], chance: Chance) -> LookupState:
        """See `Drafter.start`."""
        state = super().start(prompt, chance)
        copies = Copies(self.ngram, [])
        copies.append(prompt)
        return LookupState(
            state.session, state.root, state.chance, sharpness=state.sharpness, committed=state.committed,
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

    def observe(self, state: DraftState, proposal: Proposal, rows: Rows, verdict: Verdict) -> DraftState:
        """See `Drafter.observe`."""
        assert isinstance(state, LookupState)
        tokens = verdict.tokens(proposal.tree)
        state.copies.learn(state.copied, tokens)
        state.copies.append(tokens)
        state.copied = []
        return super().observe(state, proposal, rows, verdict)

    def report(self, state: CostAwareState) -> dict[str, float]:
        """Sharpness and rate in use, and the chance of the first copied token and of a later one."""
        assert isinstance(state, LookupState)
        first, later = state.copies.chances(2)
        return {**super().report(state), "first_copy": float(first), "later_copy": float(later)}

    # ------------------------------------------------------------------------------------------------------- the tree
    def grow(self, growth: Growth, room: int) -> None:
        """See `ModelDrafter.grow`."""
        state = growth.state
        assert isinstance(state, LookupState)
        rate, grown = state.committed / state.spent, _Grown(np.ones(1), np.array([ROOT]))
        self._copy(growth, grown, state, min(self.longest, self.max_nodes - 1, room), rate)
        frontier = np.array([0])
        for level in range(min(self.depth, room)):
            frontier = self._unlike_copies(growth, grown, frontier, rate, level)
            if not len(frontier):
                break
            state.drafting += float(self._prices.reading[len(frontier)]) + (0.0 if level else self.overhead)
            frontier = self._read(growth, grown, frontier, rate)
        state.expected = self._cut(growth, grown.chance, rate)

    def _copy(self, growth: Growth, grown: _Grown, state: LookupState, count: int, rate: float) -> None:
        """Add the copied tokens whose row pays."""
        state.copied = state.copies.following(count)
        chances = np.cumprod(state.copies.chances(len(state.copied)))
        pays = chances > rate * self._prices.row[len(growth) + np.arange(len(chances))]
        count = len(chances) if pays.all() else int(pays.argmin())
        grown.chance = np.append(grown.chance, chances[:count])
        grown.copy = np.append(np.arange(1, count + 1), ROOT)
        growth.add_path(state.copied[:count], np.log(grown.chance[1:] / grown.chance[:-1]))

    def _unlike_copies(
        self, growth: Growth, grown: _Grown, frontier: np.ndarray, rate: float, level: int
    ) -> np.ndarray:
        """The nodes of the frontier that are worth reading for what a copy does not already promise."""
        has = grown.copy[frontier] >= 0
        promised = np.where(has, grown.chance[grown.copy[frontier]], 0.0)
        fresh = np.ones(len(growth))
        fresh[frontier] = grown.chance[frontier] - promised
        if level == 0 and len(growth) > 1:  # a copy pays for the tree; levels of drafting have to bear the overhead
            return frontier if self._worth_drafting(rate, float(fresh[0]), self.overhead) else frontier[:0]
        return self._worth_reading(frontier, fresh, rate, len(growth))

    def _read(self, growth: Growth, grown: _Grown, frontier: np.ndarray, rate: float) -> np.ndarray:
        """Read nodes of the frontier and add the children that pay; the next frontier, copied children included."""
        state = growth.state
        assert isinstance(state, LookupState)
        tokens, logprobs, shares = growth.most_probable(frontier, self.branching, state.sharpness)
        copy = grown.copy[frontier]
        copied = np.where(copy >= 0, growth.tokens[copy], -1)[:, None] == tokens
        left = grown.chance[frontier] - np.where(copy >= 0, grown.chance[copy], 0.0)
        chances = left[:, None] * np.exp(shares)
        for row in np.flatnonzero(copied.any(-1)):  # draft and copy agree
            self._raise(grown, int(copy[row]), float(chances[row][copied[row]][0]))
        rows, ranks = np.nonzero((chances > rate * self._prices.row[min(len(growth), self.max_nodes)]) & ~copied)
        before = len(growth)
        growth.add(frontier[rows], tokens[rows, ranks], logprobs[rows, ranks])
        grown.chance = np.concatenate([grown.chance, chances[rows, ranks]])
        grown.copy = np.concatenate([grown.copy, np.full(len(rows), ROOT)])
        following = np.sort(np.concatenate([copy[copy >= 0], np.arange(before, len(growth))]))
        if len(growth) <= self.max_nodes:
            return following
        kept = highest(grown.chance, self.max_nodes)
        growth.keep(kept)
        grown.keep(kept)
        return np.flatnonzero(np.isin(kept, following))

    @staticmethod
    def _raise(grown: _Grown, node: int, by: float) -> None:
        """The draft thinks so too: a copied node's chance, and those of the copies below it in proportion."""
        factor = 1 + by / grown.chance[node]
        while node >= 0:
            grown.chance[node] *= factor
            node = int(grown.copy[node])
