"""The update shared by all rules that divide by draft distributions, and the recorded distribution of each token.

While a node u is verified it holds sub-probabilities r_u over the vocabulary and a number s_u with sum(r_u) + s_u = 1.
r_u(x) is the probability that the accepted path goes through u and x follows it; s_u that u is not accepted. They start
as r_u = a P_u and s_u = 1 - a, where a is the acceptance of u. A rejected child c turns them into [r_u - q_c]_+ / Z and
s_u / Z with Z = sum [r_u - q_c]_+ + s_u. All rules here follow from that one update (Traversal Verification, equations
1 to 3).
"""

from __future__ import annotations

from abc import abstractmethod
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from typing_extensions import override

from ..checks import of_kind
from ..sampling import DraftDistributions, RandomSource, Scores
from ..tree import DISTINCT, POINT, TokenTree
from .base import Drawing, SamplingRule, Verdict


@dataclass(frozen=True)
class ResidualRule(SamplingRule):
    """A rule that is lossless only where every token was drawn from the distribution recorded for it.

    Args:
        unsafe: also serve trees for which the rule is biased, to show the bias.

    Raises:
        TypeError: where `unsafe` is neither True nor False.
    """

    unsafe: bool = False
    refuses: ClassVar[tuple[Drawing, ...]] = (Drawing.SELECTED,)
    """Ways of drawing for which the rule is biased."""
    for_chains: ClassVar[bool] = False
    """Whether the rule serves trees that never branch, and no others."""

    def __post_init__(self) -> None:
        of_kind("unsafe", self.unsafe, bool, "give True or False")

    @override
    def check_sampling(self, drawing: Drawing, chain: bool) -> None:
        if self.for_chains and not chain:  # also with `unsafe`
            raise ValueError(
                f"{type(self).__name__} is a rule for chains and this drafter's trees may branch; use Traversal, which "
                "on a chain is the same rule, or a drafter of chains (Chain, SampledTree(branching=1))."
            )
        if chain and drawing in (Drawing.GROWN, Drawing.BY_PATH):  # there are no siblings and no other branches
            drawing = Drawing.RECORDED
        if drawing in self.refuses and not self.unsafe:
            raise ValueError(
                f"{type(self).__name__} would not sample from the target with this drafter: {drawing.value}. Use "
                f"TargetWalk, which serves every tree, or {type(self).__name__}(unsafe=True) to look at the bias."
            )


class ImpossibleToken(ValueError):
    """A drafted token that has no probability under the distribution recorded for it."""


class Recorded:
    """q_c, the distribution each token of a tree was drawn from, given all that was drawn before it.

    A deterministic token has a point mass. A token drawn without replacement has its parent's distribution without the
    tokens of its earlier siblings, normalised. Tensors as wide as the vocabulary are computed when they are needed.
    """

    def __init__(self, tree: TokenTree, distributions: DraftDistributions | None) -> None:
        self.tree = tree
        self.distributions = distributions or DraftDistributions()
        self._known: dict[int, torch.Tensor] = {}

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of each node, in draw order."""
        out: list[list[int]] = [[] for _ in range(len(self.tree))]
        for node, parent in enumerate(self.tree.parents[1:].tolist(), 1):
            out[parent].append(node)
        return out

    def prob(self, node: int) -> float:
        """Return q_c of the node's own token.

        Raises:
            ImpossibleToken: if it is zero.
        """
        if self.tree.draws[node] == POINT:
            return 1.0
        token, parent = int(self.tree.tokens[node]), int(self.tree.parents[node])
        if node == self.children[parent][0]:
            probability = self.distributions.prob(parent, token)
        else:
            distribution = self.distribution(node)
            probability = float(distribution[token]) if token < len(distribution) else 0.0
        if not probability > 0:
            raise ImpossibleToken(
                f"Tree node {node} holds token {token}, to which the distribution recorded for it by "
                f"{self.distributions.owner} gives no probability, so it cannot have been drawn from there; record the "
                "distribution that was sampled from, with the draft's own temperature and filters."
            )
        return probability

    def rest(self, weights: torch.Tensor, node: int) -> torch.Tensor:
        """Return [weights - q_c]_+ as a new (V,) tensor; a draft's distribution may be shorter than V."""
        if self.tree.draws[node] == POINT:
            token = int(self.tree.tokens[node])
            out = weights.clone()
            out[token] = max(0.0, float(out[token]) - 1)
            return out
        parent = int(self.tree.parents[node])
        if node == self.children[parent][0]:  # its distribution is that of the parent, perhaps of some tokens alone
            distribution, tokens = self.distributions.own(parent)
            if tokens is not None:
                return weights.index_add(0, torch.from_numpy(tokens), distribution.to(weights.dtype), alpha=-1).clamp_(
                    min=0
                )
        distribution = self.distribution(node)
        rest = torch.sub(weights[: len(distribution)], distribution).clamp_(min=0)
        return rest if len(rest) == len(weights) else torch.cat([rest, weights[len(rest) :]])

    def distribution(self, node: int) -> torch.Tensor:
        """Return q_c of a drawn node over the draft's vocabulary."""
        if node not in self._known:
            parent = int(self.tree.parents[node])
            siblings = self.children[parent]
            earlier = self.tree.tokens[siblings[: siblings.index(node)]]
            known = self.distributions.distribution(parent)
            if self.tree.draws[node] == DISTINCT and len(earlier):
                left = known.index_fill(0, torch.from_numpy(earlier[earlier < len(known)]), 0).double()
                known = (left / left.sum()).to(known.dtype)  # the sum may be smaller than float32 can divide by
            self._known[node] = known
        return self._known[node]


class Residual:
    """r and s of a node, r kept as `scale` * `weights`, so that a node without a rejected child costs nothing.

    Attributes:
        scale: factor of the weights.
        mass: sum of r.
        stop: s; exactly 0 at node 0.
    """

    def __init__(self, scores: Scores, node: int, acceptance: float = 1.0) -> None:
        self._scores, self._node = scores, node
        self.scale, self.mass, self.stop = acceptance, acceptance, 1 - acceptance

    @cached_property
    def weights(self) -> torch.Tensor:
        """(V,) weights of the next token; not normalised."""
        return self._scores.distribution(self._node)

    @property
    def acceptance(self) -> float:
        """Probability that the node is accepted once all its children are rejected."""
        return self.mass / (self.mass + self.stop)

    def ratio(self, recorded: Recorded, child: int) -> float:
        """Return the acceptance of a child: min(1, r / q_c) at its token."""
        token = int(recorded.tree.tokens[child])
        weight = self._scores.prob(self._node, token) if self._whole else float(self.weights[token])
        return min(1.0, self.scale * weight / recorded.prob(child))

    def reject(self, recorded: Recorded, child: int) -> None:
        """Update r and s after a child and all nodes below it were rejected."""
        self.leave(recorded.rest(self.weights * self.scale, child))

    def leave(self, rest: torch.Tensor) -> None:
        """Update r and s after children were rejected; `rest` is the part of r that they would not have taken."""
        mass = float(rest.sum(dtype=torch.float64))
        total = mass + self.stop
        if total > 0:  # 0 is an event of probability 0; the state then stays
            self.weights, self.scale = rest, 1 / total
            self.mass, self.stop = mass / total, self.stop / total

    def next_token(self, random: RandomSource) -> int:
        """Draw the bonus token from r."""
        return self._scores.next_token(self._node, random) if self._whole else random.draw(self.weights)

    @property
    def _whole(self) -> bool:
        """Whether the weights are still the target's distribution, which scores tell and draw from in less time."""
        known = vars(self).get("weights")
        return known is None or known is self._scores.distribution(self._node)

    def acceptance_without(self, recorded: Recorded, child: int | None) -> float:
        """Reject the last child, None for a leaf; return the acceptance, which is at most the mass before."""
        if child is not None:
            self.reject(recorded, child)
        return self.acceptance


class TopDown(ResidualRule):
    """A rule that goes from node 0 down: it accepts a child or draws the bonus token, and looks no further ahead."""

    @override
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        recorded, path = Recorded(tree, distributions), [0]
        while True:
            residual = Residual(scores, path[-1])
            child = self.accepted(residual, recorded, recorded.children[path[-1]], random)
            if child is None:
                return Verdict(tuple(path[1:]), residual.next_token(random))
            path.append(child)

    @abstractmethod
    def accepted(self, residual: Residual, recorded: Recorded, children: list[int], random: RandomSource) -> int | None:
        """Return the accepted child, or None with the residual that the rejected children leave."""


def one_by_one(residual: Residual, recorded: Recorded, children: list[int], random: RandomSource) -> int | None:
    """Do what `TopDown.accepted` does: try each child against the residual that the children before it left."""
    for child in children:
        if random.accept(residual.ratio(recorded, child)):
            return child
        residual.reject(recorded, child)
    return None
