"""What the rules that divide by draft laws share: the recorded law of each token, and the residual of a node.

While a node u is verified it holds a sub-probability row r_u and a number s_u with sum(r_u) + s_u = 1: r_u(x) is the
probability that the kept path goes through u and x follows it, s_u that u is not kept. It starts as r_u = a P_u,
s_u = 1 - a, where a is the acceptance of u, and a rejected child c takes [r_u - q_c]_+ / Z, s_u / Z of it, with
Z = sum [r_u - q_c]_+ + s_u. All rules here follow from that one update (Traversal Verification, equations 1 to 3).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch

from ..sampling import DraftDistributions, Sampling, Scores
from ..tree import DISTINCT, POINT, TokenTree
from .base import Drawing, Verifier


@dataclass(frozen=True)
class ResidualRule(Verifier):
    """A rule that is lossless only where every token was drawn from the law that was recorded for it.

    Args:
        unsafe: also serve trees for which the rule is biased, to show the bias.
    """

    unsafe: bool = False
    refuses: ClassVar[tuple[Drawing, ...]] = (Drawing.SELECTED,)
    """Ways of drawing for which the rule is biased."""

    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        """See `Verifier.check`."""
        if drawing in self.refuses and not sampling.greedy and not self.unsafe:
            raise ValueError(
                f"{type(self).__name__} would not sample from the target with this drafter: {drawing.value}. Use "
                f"TargetWalk, which serves every tree, or {type(self).__name__}(unsafe=True) to look at the bias."
            )


class ImpossibleToken(ValueError):
    """A drafted token has no mass under the law recorded for it."""


class Recorded:
    """q_c, the law each token of a tree was drawn from, given all that was drawn before it.

    A deterministic token has a point mass; one drawn without replacement, its parent's law without the tokens of its
    earlier siblings, normalised. Nothing of the width of the vocabulary is computed before it is asked for.
    """

    def __init__(self, tree: TokenTree, distributions: DraftDistributions | None) -> None:
        self.tree = tree
        self.distributions = distributions or DraftDistributions()
        self._rows: dict[int, torch.Tensor] = {}

    @cached_property
    def children(self) -> list[list[int]]:
        """Children of each node, in draw order."""
        out: list[list[int]] = [[] for _ in range(len(self.tree))]
        for node, parent in enumerate(self.tree.parents[1:].tolist(), 1):
            out[parent].append(node)
        return out

    def prob(self, node: int) -> float:
        """q_c of the node's own token.

        Raises:
            ImpossibleToken: if it is zero.
        """
        if self.tree.draws[node] == POINT:
            return 1.0
        row, token = self._row(node), int(self.tree.tokens[node])
        share = float(row[token]) if token < len(row) else 0.0
        if not share > 0:
            raise ImpossibleToken(
                f"Tree node {node} holds token {token}, to which the distribution recorded for it by "
                f"{self.distributions.owner} gives "
                "no mass, so it cannot have been drawn from that law; record the law that was sampled from, with the "
                "draft's own temperature and filters."
            )
        return share

    def rest(self, weights: torch.Tensor, node: int) -> torch.Tensor:
        """[weights - q_c]_+ as a new (V,) tensor; a draft's law may be shorter than V."""
        if self.tree.draws[node] == POINT:
            token = int(self.tree.tokens[node])
            out = weights.clone()
            out[token] = max(0.0, float(out[token]) - 1)
            return out
        row = self._row(node)
        if len(row) == len(weights):
            return torch.sub(weights, row).clamp_(min=0)
        return torch.cat([torch.sub(weights[: len(row)], row).clamp_(min=0), weights[len(row) :]])

    def _row(self, node: int) -> torch.Tensor:
        if node not in self._rows:
            parent = int(self.tree.parents[node])
            siblings = self.children[parent]
            earlier = self.tree.tokens[siblings[: siblings.index(node)]]
            row = self.distributions.distribution(parent)
            if self.tree.draws[node] == DISTINCT and len(earlier):
                left = row.index_fill(0, torch.from_numpy(earlier[earlier < len(row)]), 0).double()
                row = (left / left.sum()).to(row.dtype)  # what is left may be smaller than float32 can divide by
            self._rows[node] = row
        return self._rows[node]


class Residual:
    """r and s of one node, r kept as `scale` * `row` so that a node entered and left without a rejection costs nothing.

    Attributes:
        scale: factor of the row.
        mass: sum of r.
        stop: s; exactly 0 at node 0.
    """

    def __init__(self, scores: Scores, node: int, acceptance: float = 1.0) -> None:
        self._rows, self._node = scores, node
        self.scale, self.mass, self.stop = acceptance, acceptance, 1 - acceptance

    @cached_property
    def row(self) -> torch.Tensor:
        """(V,) weights of the next token; need not be normalised."""
        return self._rows.distribution(self._node)

    @property
    def acceptance(self) -> float:
        """Probability that the node is kept once all its children are rejected."""
        return self.mass / (self.mass + self.stop)

    def ratio(self, recorded: Recorded, child: int) -> float:
        """Acceptance of a child: min(1, r / q_c) at its token."""
        token = int(recorded.tree.tokens[child])
        return min(1.0, self.scale * float(self.row[token]) / recorded.prob(child))

    def reject(self, recorded: Recorded, child: int) -> None:
        """A child and all below it were rejected."""
        rest = recorded.rest(self.row * self.scale, child)
        mass = float(rest.sum(dtype=torch.float64))
        total = mass + self.stop
        if total > 0:  # 0 is an event of probability 0; the state then stays
            self.row, self.scale = rest, 1 / total
            self.mass, self.stop = mass / total, self.stop / total
