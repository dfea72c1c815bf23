"""Siblings decided on together: transport between what was drawn and what the target wants.

A plan says, for each group of siblings that may be drawn, with which probability which of them is accepted. Summed over
all groups that may be drawn, no token may be accepted more often than the target wants it. What then is missing of each
token is known, and so a rule with any such plan is lossless. Plans differ in how often they accept one of the group;
the most that any plan accepts is the optimum of a linear programme (`proofs.ceiling`).

`Transport` goes top down, as token-level verification (SpecTr; SpecHub). `ConditionalTransport` goes from leaf to root,
as traversal: the row of a node is scaled by the acceptance of its path before a plan is made for its children. That is
how we read UniVer (arXiv 2605.04543), of which no code is public.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from typing_extensions import override

from dynatree_lib.checks import described, is_whole
from dynatree_lib.sampling import DraftDistributions, RandomSource, Scores
from dynatree_lib.tree import DISTINCT, POINT, TokenTree
from dynatree_lib.verifiers.base import Drawing, Verdict
from dynatree_lib.verifiers.residual import Recorded, Residual, TopDown

from .rows import drawn_from, row_of

T = TypeVar("T")


@dataclass(frozen=True)
class Shares:
    """The shares of the row that a plan gives to the group of siblings that was drawn.

    Attributes:
        accepted: probability that each of them is accepted, in draw order; they sum to at most 1.
        rest: (V,) float64, the part of the row r that is left by all groups that may be drawn.
    """

    accepted: Sequence[float]
    rest: np.ndarray


@dataclass(frozen=True)
class Group:
    """Siblings that a plan is made for, in draw order, and the distribution that they were drawn from.

    Attributes:
        tokens: their tokens.
        draws: how each was drawn.
        drawn: (V,) float64 distribution of the first that was drawn, given all siblings before it; None if none was.
    """

    tokens: tuple[int, ...]
    draws: tuple[int, ...]
    drawn: np.ndarray | None

    @property
    def pair(self) -> bool:
        """Whether these are two drawn siblings."""
        return len(self.tokens) == 2 and self.draws[0] == self.draws[1] != POINT


Plan = Callable[[np.ndarray, Group], Shares]
"""Row r, (V,) float64 with a sum of at most 1, and group -> shares."""


def hub_plan(row: np.ndarray, group: Group) -> Shares:
    """Return the shares of deterministic siblings with at most one drawn after them, or of two drawn ones.

    For the former it is an optimum in closed form (SpecTr's greedy drafts): the drawn token takes what it can, and what
    it leaves goes to the others. For two drawn siblings it is SpecHub's plan, widened to pairs that lack the hub. The
    hub is the draft's most probable token. A pair with the hub goes to the other token as far as the target wants it
    and then to the hub; one without it to its first token, then to its second, whose share is that of all pairs in
    which it is second. Both take time proportional to the vocabulary.
    """
    return _pair(row, group) if group.pair else _tops(row, group)


def _tops(row: np.ndarray, group: Group) -> Shares:
    tops = dict.fromkeys(token for token, how in zip(group.tokens, group.draws, strict=True) if how == POINT)
    taken, before, last = np.zeros_like(row), 1.0, 0.0
    if group.drawn is not None:
        taken = np.minimum(row, group.drawn)
        taken[list(tops)] = 0  # drawn all the same, it is a deterministic token's share
        token, left = group.tokens[-1], 1 - float(taken.sum())
        last = float(taken[token] / group.drawn[token])
        before = (1 - last) / left if left > 0 else 0.0  # of what is left, the part that comes with this drawn token
    else:
        left = 1.0
    for token in tops:
        taken[token] = min(float(row[token]), max(left, 0.0))
        left -= float(taken[token])
    accepted, seen = [], set[int]()
    for token, how in zip(group.tokens, group.draws, strict=True):
        accepted.append(last if how != POINT else 0.0 if token in seen else before * float(taken[token]))
        seen.add(token)
    return Shares(accepted, np.maximum(row - taken, 0))


def _pair(row: np.ndarray, group: Group) -> Shares:
    assert group.drawn is not None
    q, (one, two) = group.drawn, group.tokens
    hub = int(q.argmax())
    of_hub, others = float(q[hub]), q.copy()
    others[hub] = 0
    if group.draws[0] == DISTINCT:
        without = float(others.sum())  # 1 - q of the hub, without its rounding
        each = others / (1 - others)
        first = each * np.maximum(without - others, 0)  # drawn first, the hub not second
        with_hub = each * of_hub + (others * (of_hub / without) if without > 0 else 0)
        twice = 0.0
    else:
        each, without = others, float(others.sum())
        first, with_hub, twice = others * without, 2 * of_hub * others, of_hub**2
    takes_first = np.minimum(row, first)
    missed = each * (1 - _over(takes_first, first))  # first of a pair without the hub and not accepted, by q of second
    second = others * np.maximum(missed.sum() - (missed if group.draws[0] == DISTINCT else 0), 0)
    takes_second = np.minimum(row - takes_first, second)
    takes_with = np.minimum(row - takes_first - takes_second, with_hub)
    takes_first[hub] = takes_second[hub] = takes_with[hub] = 0
    left = float((with_hub - takes_with).sum()) + twice
    takes_hub = min(float(row[hub]), left)
    taken = takes_first + takes_second + takes_with
    taken[hub] = takes_hub
    if hub in (one, two):
        other = two if one == hub else one
        share = 0.0 if other == hub else float(_over(takes_with, with_hub)[other])
        of_rest = (1 - share) * (takes_hub / left if left > 0 else 0.0)
        accepted = [of_rest, share] if one == hub else [share, of_rest]
        if other == hub:
            accepted[1] = 0.0  # a copy
    else:
        share = float(_over(takes_first, first)[one])
        accepted = [share, (1 - share) * float(_over(takes_second, second)[two])]
    return Shares(accepted, np.maximum(row - taken, 0))


def _over(part: np.ndarray, whole: np.ndarray) -> np.ndarray:
    """Return part / whole, 0 where whole is."""
    return np.divide(part, whole, out=np.zeros_like(part), where=whole > 0)


def groups(recorded: Recorded, children: Sequence[int], size: int, together: int) -> Iterator[tuple[list[int], Group]]:
    """Yield children in groups that a plan decides on, in draw order, over a vocabulary of `size` tokens.

    A group is a run of deterministic siblings with the drawn one after it, or up to `together` siblings drawn in the
    same way. A drawn token that its recorded distribution excludes is an error here.
    """
    draws, left = recorded.tree.draws, list(children)
    while left:
        points = next((place for place, child in enumerate(left) if draws[child] != POINT), len(left))
        count = points + 1
        while not points and count < min(together, len(left)) and draws[left[count]] == draws[left[0]]:
            count += 1
        members, left = left[:count], left[count:]
        tokens = tuple(int(recorded.tree.tokens[child]) for child in members)
        codes = tuple(int(draws[child]) for child in members)
        first = next((child for child in members if draws[child] != POINT), None)
        if first is None:
            yield members, Group(tokens, codes, None)
            continue
        recorded.prob(first)  # an error where it is 0
        drawn = drawn_from(recorded, first, size)
        for place in range(members.index(first) + 1, count):
            copy = codes[place] == DISTINCT and tokens[place] in tokens[:place]
            if copy or not drawn[tokens[place]] > 0:
                recorded.prob(members[place])
        yield members, Group(tokens, codes, drawn)


@dataclass(frozen=True)
class Transport(TopDown):
    """Top down: of the children of the accepted node, a group at a time, accept one as a plan says.

    How many siblings there are must be decided before the first of them is drawn.

    Args:
        unsafe: also serve trees for which the rule is biased, to show the bias.
        plan: shares of a group.
        together: largest number of drawn siblings in a group; `hub_plan` takes two.

    Raises:
        ValueError: for another number with `hub_plan`, or one below 1.
        TypeError: for a plan that cannot be called.
    """

    plan: Plan = hub_plan
    together: int = 2
    name = "transport"
    refuses = (Drawing.SELECTED, Drawing.GROWN, Drawing.BY_PATH)  # it looks at later siblings of the nodes it accepts

    def __post_init__(self) -> None:
        super().__post_init__()
        if not callable(self.plan):
            raise TypeError(f"plan is {described(self.plan)}; give a function of a row and a Group, such as hub_plan.")
        if not is_whole(self.together, 1) or (self.plan is hub_plan and self.together > 2):
            raise ValueError(
                f"together is {self.together!r}; give a whole number of at least 1, and at most 2 with hub_plan."
            )

    @override
    def accepted(self, residual: Residual, recorded: Recorded, children: list[int], random: RandomSource) -> int | None:
        return self.first_accepted(
            residual, recorded, children, lambda child, share: child if random.accept(share) else None
        )

    def first_accepted(
        self, residual: Residual, recorded: Recorded, children: list[int], enter: Callable[[int, float], T | None]
    ) -> T | None:
        """Return the first result of entering a child, or None with the residual that the rejected children leave.

        Args:
            residual: of the parent.
            recorded: distributions that the children were drawn from.
            children: in draw order.
            enter: child, and its share of the probability that earlier ones left -> result, None if it is rejected.
        """
        for members, group in groups(recorded, children, len(residual.weights), self.together):
            if residual.mass <= 0:
                break
            shares, left = self.plan(row_of(residual), group), 1.0
            for child, share in zip(members, shares.accepted, strict=True):
                found = enter(child, min(1.0, share / left) if left > 0 else 0.0)
                if found is not None:
                    return found
                left -= share
            residual.leave(torch.from_numpy(shares.rest))
        return None


class ConditionalTransport(Transport):
    """Leaf to root: as traversal, but the acceptances of siblings are what a plan gives their group.

    A node that is entered with acceptance a has the row r = a P. Its group of children gets shares of r; each child is
    entered with its share, of what earlier ones left, and tested only when all below it is rejected. On a chain the
    rule is Block Verification.
    """

    name = "conditional-transport"

    @override
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        recorded = Recorded(tree, distributions)
        verdict = self._below(0, 1.0, recorded, scores, random)
        assert verdict is not None  # node 0 is never rejected
        return verdict

    def _below(
        self, node: int, acceptance: float, recorded: Recorded, scores: Scores, random: RandomSource
    ) -> Verdict | None:
        """Return the verdict if the node or one below it is accepted, which has this probability on average."""
        residual = Residual(scores, node, acceptance)

        def enter(child: int, share: float) -> Verdict | None:
            return self._below(child, share, recorded, scores, random) if share > 0 else None

        found = self.first_accepted(residual, recorded, recorded.children[node], enter)
        if found is None and (node == 0 or random.accept(residual.acceptance)):
            return Verdict(tuple(recorded.tree.path(node)), random.draw(residual.weights))
        return found
