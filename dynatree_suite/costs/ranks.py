"""How often the draft's first, second, ... choice is right at each level, and what a tree can expect from it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from dynatree_lib.checks import whole
from dynatree_lib.decoding import Iteration
from dynatree_lib.drafters.base import ModelDrafter
from dynatree_lib.drafters.builder import TreeBuilder
from dynatree_lib.models.base import LanguageModel

FEW = 50
"""A level with fewer accepted and expanded nodes than this is pooled with the levels below it."""


@dataclass(frozen=True)
class RanksProbe(ModelDrafter):
    """Expands the draft's first choice level by level into `branching` children, so that iterations show every rank.

    Args:
        draft: the draft model.
        depth: levels below node 0.
        branching: ranks that are seen.
    """

    draft: LanguageModel
    depth: int = 12
    branching: int = 4
    name = "ranks-probe"

    @override
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
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
        """Return the rates of the iterations of one or more texts.

        A node counts for rank k if it was accepted and has more than k children. A drafter that expands only where it
        is confident shows rates that are too high: take unpruned trees, such as those of `RanksProbe`.

        Raises:
            ValueError: if nothing was drafted.
        """
        outcomes = [outcome for iteration in iterations for outcome in _outcomes(iteration)]
        if not outcomes:
            raise ValueError(
                "These iterations hold no drafted node, so they show no acceptance; give iterations of a drafter."
            )
        levels, ranks = max(level for level, _, _ in outcomes) + 1, max(count for _, count, _ in outcomes)
        hits, seen = np.zeros((2, levels, ranks))
        for level, children, right in outcomes:
            seen[level, :children] += 1
            if right is not None:
                hits[level, right] += 1
        few = np.flatnonzero(seen[:, 0] < FEW)
        last = int(few[0]) if len(few) else levels - 1
        if seen[last:, 0].sum() < FEW:  # too few even together: they join the level above
            last = max(last - 1, 0)
        for table in (hits, seen):
            table[last] = table[last:].sum(0)
        hits, seen = hits[: last + 1], seen[: last + 1]
        pooled = hits.sum(0) / np.maximum(seen.sum(0), 1)  # for ranks that a level was never asked for
        rates = np.where(seen > 0, hits / np.maximum(seen, 1), pooled)
        return cls(tuple(tuple(row) for row in rates.tolist()), tuple(int(row[0]) for row in seen))

    def hit(self, level: int, children: int) -> float:
        """Return the probability that one of so many children at this level (0: just below node 0) is right."""
        return min(sum(self.rates[min(level, len(self.rates) - 1)][:children]), 1.0)

    def expected_tokens(self, branchings: Sequence[int]) -> float:
        """Return tokens per iteration, the bonus token included, of an unpruned tree of these children per level."""
        hits = [self.hit(level, children) for level, children in enumerate(branchings)]
        return 1.0 + float(np.cumprod(hits).sum())

    def slots(self, nodes: int, depth: int = 99) -> tuple[int, ...]:
        """Return the shape of `nodes` drafted nodes with most expected tokens, as `SampledTree.shape` takes it.

        A node is worth the product of the rates along its path. Sequoia's dynamic programme (Chen et al. 2024, section
        3.1) finds the best tree, here with rates that may differ by level, and rise with the rank. Fewer nodes come
        back where the levels and ranks have no room for them. For a sampled tree take the rates from iterations of a
        sampled tree, because there a rank is a place in draw order.

        Raises:
            ValueError: for nodes or levels that are no whole number of at least 1.
        """
        nodes, depth = whole("nodes", nodes, 1), whole("depth", depth, 1)
        nothing = np.array([0.0] + [-np.inf] * nodes)  # [n]: most that exactly n nodes are worth, if there is room
        first, below = {}, nothing
        for level in reversed(range(min(depth, nodes))):
            siblings = nothing
            for rank in reversed(range(len(self.rates[0]))):
                rate = max(self._rate(level, rank), 1e-300)  # 0 times "no room" would be no number
                own = rate * (1 + below[:-1])  # [m - 1]: this child, and m - 1 nodes below it
                worth = [own[:n] + siblings[n - 1 :: -1][:n] for n in range(1, nodes + 1)]
                first[level, rank] = [0, *(1 + int(one.argmax()) for one in worth)]
                siblings = np.array([0.0, *(one.max() for one in worth)])
            below = siblings
        chosen: list[tuple[int, ...]] = []  # paths, as child numbers from node 0 down
        room = int(np.flatnonzero(np.isfinite(below))[-1])
        waiting: list[tuple[tuple[int, ...], int, int]] = [((), 0, room)]  # parent, its child's rank, nodes to spend
        while waiting:
            above, rank, left = waiting.pop()
            if left:
                spent = first[len(above), rank][left]
                chosen.append((*above, rank))
                waiting += [((*above, rank), 0, spent - 1), (above, rank + 1, left - spent)]
        chosen.sort(key=lambda path: (len(path), path))
        place = {(): 0, **{path: number for number, path in enumerate(chosen, 1)}}
        return tuple(place[path[:-1]] for path in chosen)

    def _rate(self, level: int, rank: int) -> float:
        return self.rates[min(level, len(self.rates) - 1)][rank]


def _outcomes(iteration: Iteration) -> Iterator[tuple[int, int, int | None]]:
    """Yield (level, children, rank of the right child or None) of every accepted node that has children."""
    tree, verdict = iteration.tree, iteration.verdict
    for level, (node, token) in enumerate(zip([0, *verdict.path], verdict.tokens(tree), strict=True)):
        children = tree.tokens[tree.children(node)].tolist()
        if children:
            yield level, len(children), children.index(token) if token in children else None
