"""How often the draft's first, second, ... choice is right at each level, and what a tree can expect from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np

from ..decoding import Iteration
from ..drafters.base import ModelDrafter, TreeBuilder
from ..models.base import LanguageModel

FEW = 50
"""A level with fewer nodes than this that were accepted and expanded is taken together with those below it."""


@dataclass(frozen=True)
class RanksProbe(ModelDrafter):
    """Expands the draft's first choice level by level into `branching` children: its rounds show every rank.

    Args:
        draft: the draft model.
        depth: levels below node 0.
        branching: ranks that are seen.
    """

    draft: LanguageModel
    depth: int = 12
    branching: int = 4
    name = "ranks-probe"

    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        """See `ModelDrafter.grow`."""
        node = np.array([0])
        for _ in range(min(self.depth, max_depth)):
            tokens, logprobs = builder.best(node, self.branching)
            node = builder.add(np.repeat(node, tokens.shape[1]), tokens[0], logprobs[0])[:1]


@dataclass(frozen=True)
class RankAcceptance:
    """Probability that the child of draft rank k is the target's token, given that its parent was accepted.

    Attributes:
        rates: one row per level, the first just below node 0, with one probability per rank; the last row holds for all
            deeper levels.
        seen: accepted and expanded nodes that each row's first rate rests on.
    """

    rates: tuple[tuple[float, ...], ...]
    seen: tuple[int, ...]

    @classmethod
    def from_iterations(cls, iterations: Iterable[Iteration]) -> RankAcceptance:
        """Rates of the rounds of one or more texts.

        A node counts for rank k if it was accepted and has more than k children. A drafter that expands only what it
        is sure of shows rates that are too high: take unpruned trees, such as those of `RanksProbe`.

        Raises:
            ValueError: if nothing was drafted.
        """
        outcomes = [one for each in iterations for one in _outcomes(each)]
        if not outcomes:
            raise ValueError("These rounds hold no drafted node, so they show no acceptance; give rounds of a drafter.")
        levels, ranks = max(level for level, _, _ in outcomes) + 1, max(count for _, count, _ in outcomes)
        hits, seen = np.zeros((2, levels, ranks))
        for level, children, right in outcomes:
            seen[level, :children] += 1
            if right is not None:
                hits[level, right] += 1
        last = _last_level(seen[:, 0])
        for table in (hits, seen):
            table[last] = table[last:].sum(0)
        hits, seen = hits[: last + 1], seen[: last + 1]
        pooled = hits.sum(0) / np.maximum(seen.sum(0), 1)  # for ranks that a level was never asked for
        rates = np.where(seen > 0, hits / np.maximum(seen, 1), pooled)
        return cls(tuple(tuple(row) for row in rates.tolist()), tuple(int(row[0]) for row in seen))

    def hit(self, level: int, children: int) -> float:
        """Probability that one of so many children at this level (0 is just below node 0) is right."""
        return min(sum(self.rates[min(level, len(self.rates) - 1)][:children]), 1.0)

    def expected_tokens(self, branchings: Sequence[int]) -> float:
        """Tokens per iteration, the bonus token included, of an unpruned tree of these children per node and level."""
        hits = [self.hit(level, children) for level, children in enumerate(branchings)]
        return 1.0 + float(np.cumprod(hits).sum())

    def slots(self, nodes: int, depth: int = 99) -> tuple[int, ...]:
        """The shape of `nodes` drafted nodes from which most tokens are expected, as `SampledTree.shape` takes it.

        A slot is worth the product of the rates along its path, so the best shape is grown from the best slots, as in
        Sequoia, whose dynamic programme finds the same where rates fall with the rank. For a sampled tree take the
        rates from rounds of one: there a rank is a place in draw order.

        Raises:
            ValueError: for fewer than one node or level.
        """
        if nodes < 1 or depth < 1:
            raise ValueError(f"nodes={nodes} and depth={depth} leave no tree; give at least 1 of each.")
        waiting: list[tuple[float, tuple[int, ...], float]] = [(-self._rate(0, 0), (0,), 1.0)]
        chosen: dict[tuple[int, ...], float] = {}  # child numbers from node 0 down -> worth
        while waiting and len(chosen) < nodes:
            minus_worth, path, above = heappop(waiting)
            chosen[path] = -minus_worth
            level, rank = len(path) - 1, path[-1]
            if rank + 1 < len(self.rates[0]):
                heappush(waiting, (-above * self._rate(level, rank + 1), (*path[:-1], rank + 1), above))
            if level + 1 < depth:
                heappush(waiting, (minus_worth * self._rate(level + 1, 0), (*path, 0), -minus_worth))
        order = sorted(chosen, key=lambda path: (len(path), path))
        slot = {(): 0, **{path: number for number, path in enumerate(order, 1)}}
        return tuple(slot[path[:-1]] for path in order)

    def _rate(self, level: int, rank: int) -> float:
        return self.rates[min(level, len(self.rates) - 1)][rank]


def _outcomes(one: Iteration) -> Iterator[tuple[int, int, int | None]]:
    """(level, children, rank of the right one or None) of every accepted node that has children."""
    path = [0, *one.verdict.path]
    tokens = one.verdict.tokens(one.tree)
    for level, (node, token) in enumerate(zip(path, tokens, strict=True)):
        children = one.tree.tokens[one.tree.children(node)].tolist()
        if children:
            yield level, len(children), children.index(token) if token in children else None


def _last_level(seen: np.ndarray) -> int:
    """The level from which on levels are taken together: the first with too few nodes, or the one above it."""
    few = np.flatnonzero(seen < FEW)
    first = int(few[0]) if len(few) else len(seen) - 1
    return max(first - 1, 0) if seen[first:].sum() < FEW else first
