"""Greedy multi-path block verification (GBV, arXiv 2602.16961): choose a path of the tree, then verify it as a block.

A path that was chosen for being good was not drawn from the draft's distribution, but from that of the best of several
draws, which is known. Block Verification with this distribution in place of the draft's is lossless.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from math import comb
from typing import Literal, get_args

import numpy as np
import torch
from typing_extensions import override

from dynatree_lib.checks import chosen
from dynatree_lib.sampling import DraftDistributions, RandomSource, Scores
from dynatree_lib.tree import DISTINCT, IID, POINT, TokenTree
from dynatree_lib.verifiers.base import Drawing, Verdict
from dynatree_lib.verifiers.residual import Recorded, ResidualRule

from .rows import drawn_from

Order = Literal["ratio", "capped"]
Copies = Literal["counted", "forgotten"]


@dataclass(frozen=True)
class MultiPath(ResidualRule):
    """Go down to the best child, level by level; then verify this path as Block Verification does, once.

    The best child has the largest ratio of the target's to the draft's probability, ties by token id. Copies of one
    path of tokens are gone down together: the children of all of them are the next candidates. Of deterministic
    siblings the best is the target's most probable. Of those drawn without replacement it is the better of the first
    two, whose distribution takes no sum over sets. How many siblings there are must be decided before the first of them
    is drawn.

    Args:
        unsafe: also serve trees for which the rule is biased, to show the bias.
        order: "ratio", or "capped": ratios above 1 count as equal, as in the code of the paper's authors.
        copies: "counted": the best of the next draws is the best of as many as there are, given how many copies the
            path has. "forgotten": averaged over how many copies a path with these tokens may have, as in the paper. For
            that, how many children a node has may depend on its level alone, as where K paths are drawn.

    Raises:
        ValueError: for another order or way with copies.
    """

    order: Order = "ratio"
    copies: Copies = "counted"
    name = "multi-path"
    refuses = (Drawing.SELECTED, Drawing.GROWN, Drawing.BY_PATH)  # it looks at siblings off the path
    longest = False  # of three siblings without replacement it never takes the third

    def __post_init__(self) -> None:
        super().__post_init__()
        chosen("order", self.order, get_args(Order))
        chosen("copies", self.copies, get_args(Copies))

    @override
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        recorded = Recorded(tree, distributions)
        path, weights, drawn = [0], [1.0], list[np.ndarray]()  # of node 0 and the best nodes below it
        copies, counts = [0], {1: 1.0}
        while children := [child for node in copies for child in recorded.children[node]]:
            target = scores.distribution(path[-1]).numpy().astype(np.float64)
            best = _Best(target, recorded, children, self.order == "capped")
            if self.copies == "forgotten" and best.count:
                counts = best.forget(counts, self._each(tree, recorded, copies))
            token, distribution = best.token, best.distribution
            drawn.append(distribution)
            weights.append(min(1.0, weights[-1] * float(target[token]) / float(distribution[token])))
            copies = [child for child in children if tree.tokens[child] == token] if best.count else [best.child]
            path.append(copies[0])
        level = len(path) - 1

        def rest(level: int) -> np.ndarray:
            whole = scores.distribution(path[level]).numpy().astype(np.float64) * weights[level]
            return whole if level == len(drawn) else np.maximum(whole - drawn[level], 0)

        def acceptance(level: int) -> float:
            mass = float(rest(level).sum())
            return mass / (mass + (1 - weights[level])) if mass > 0 else 0.0  # mass + 1 may be 1

        if not random.accept(weights[level]):
            level -= 1
            while level and not random.accept_lazily(weights[level], partial(acceptance, level)):
                level -= 1
        left = torch.from_numpy(rest(level))
        if not left.any():  # an event of probability 0
            left = scores.distribution(path[level])
        return Verdict(tuple(tree.path(path[level])), random.draw(left))

    def _each(self, tree: TokenTree, recorded: Recorded, copies: list[int]) -> int:
        """Return how many children every node of a level has, for trees of which that can be said."""
        depth = tree.depths[copies[0]]
        found = {len(recorded.children[node]) for node in range(len(tree)) if tree.depths[node] == depth}
        if len(found) > 1:
            raise ValueError(
                f"MultiPath(copies='forgotten') was given a tree whose nodes at depth {depth} have different numbers "
                f"of children ({sorted(found)}); use MultiPath(), which counts copies."
            )
        return found.pop()


class _Best:
    """The best of the children of one path of tokens, and the distribution of its token.

    Attributes:
        token: of the best child.
        child: a node with it.
        distribution: (V,) float64 distribution of the token of the best child, given what was drawn above.
        count: children drawn with replacement; 0 where they were drawn otherwise.
    """

    def __init__(self, target: np.ndarray, recorded: Recorded, children: list[int], capped: bool) -> None:
        tree = recorded.tree
        how = {int(tree.draws[child]) for child in children}
        p, self.count = target, 0
        if how == {POINT}:
            self.child = max(children, key=lambda child: (float(p[int(tree.tokens[child])]), -child))
            self.distribution = drawn_from(recorded, self.child, len(p))
        else:
            siblings = children if how == {IID} else children[:2] if how == {DISTINCT} else children[:1]
            if how == {DISTINCT}:
                siblings = [child for child in siblings if tree.parents[child] == tree.parents[children[0]]]
            for child in siblings:
                recorded.prob(child)  # an error where it is 0
            q = self._q = drawn_from(recorded, children[0], len(p))
            ratio = np.divide(p, q, out=np.full_like(p, -1.0), where=q > 0)
            self._order = np.argsort(np.minimum(ratio, 1) if capped else ratio, kind="stable")
            rank = np.empty_like(self._order)
            rank[self._order] = np.arange(len(p))
            self.child = max(siblings, key=lambda child: (int(rank[int(tree.tokens[child])]), -child))
            if how == {IID}:
                self.count = len(children)
                self.distribution = self._best_of({self.count: 1.0})
            else:
                self.distribution = self._better_of_two() if len(siblings) == 2 else q
        self.token = int(tree.tokens[self.child])

    def _below(self, values: np.ndarray) -> np.ndarray:
        """Return for each token the sum of the values of those that come before it in the order."""
        return _sums_before(values, self._order)

    def _best_of(self, counts: dict[int, float]) -> np.ndarray:
        """Return the distribution of the best of so many draws with replacement, by the probability of the number."""
        worse, out = self._below(self._q), np.zeros_like(self._q)
        for count, share in counts.items():  # F^n - G^n = (F - G) (F^(n-1) + F^(n-2) G + ... + G^(n-1))
            powers = ((worse + self._q) ** (count - 1 - k) * worse**k for k in range(count))
            out += share * self._q * sum(powers)
        return out / out.sum()

    def _better_of_two(self) -> np.ndarray:
        """Return the distribution of the better of two draws without replacement."""
        q, worse = self._q, self._below(self._q)
        others = worse + _sums_before(q, self._order[::-1])  # 1 - q would lose them where q is close to 1
        over = np.divide(q, others, out=np.zeros_like(q), where=others > 0)
        out = over * worse + q * self._below(over)
        return out / out.sum()

    def forget(self, counts: dict[int, float], each: int) -> dict[int, float]:
        """Take for the distribution that over all numbers of copies; return their probabilities one level below.

        Args:
            counts: number of copies of the path above -> its probability given the tokens of the path.
            each: children of each copy.
        """
        self.distribution = self._best_of({each * number: share for number, share in counts.items()})
        q, worse = float(self._q[self.token]), float(self._below(self._q)[self.token])
        out: dict[int, float] = {}
        for number, share in counts.items():
            draws = each * number
            for copies in range(1, draws + 1):
                drawn = comb(draws, copies) * q**copies * worse ** (draws - copies)
                out[copies] = out.get(copies, 0.0) + share * drawn
        total = sum(out.values())
        return {number: share / total for number, share in out.items()}


def _sums_before(values: np.ndarray, order: np.ndarray) -> np.ndarray:
    """Return (V,) for each token the sum of the values that come before it in an order, with no digit lost to it."""
    out = np.empty_like(values)
    out[order] = np.concatenate([[0.0], values[order][:-1].cumsum()])
    return out
