"""What a verifier is: a rule that looks at a tree and the target's rows and keeps a path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

import numpy as np

from ..sampling import DraftDistributions, RandomSource, Sampling, Scores
from ..tree import TokenTree


class Drawing(Enum):
    """How the tokens of a drafter's trees come about. A rule that divides by draft laws is lossless for some only."""

    FIXED = "its tokens are deterministic"
    RECORDED = "each token was drawn from its recorded law, given all that was drawn before it"
    BY_PATH = (
        "its branches share random numbers, so a token follows its recorded law given its own path and earlier "
        "siblings, but not given what was drawn in other branches"
    )
    SELECTED = (
        "drawn tokens were kept, removed, ordered or recorded with a view to their own values or to what was drawn "
        "after them, so that those in the tree do not follow their recorded laws"
    )


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided.

    Attributes:
        path: accepted nodes below node 0, from the top down.
        next_token: the bonus token after the last accepted node; it becomes node 0 of the next tree.
    """

    path: tuple[int, ...]
    next_token: int

    def tokens(self, tree: TokenTree) -> list[int]:
        """What it adds to the text: the tokens of the path in the tree it was given on, and the next token."""
        return [*tree.tokens[list(self.path)].tolist(), self.next_token]


class Verifier(ABC):
    """A verification rule. Stateless; all randomness through the `Chance` it is handed."""

    name: str
    """Name of the rule in records and plots."""

    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        """Raise ValueError, before any work, if this rule cannot serve this `Sampling` or these trees without bias.

        Args:
            sampling: the target's.
            drawing: how the drafter's tokens come about.
            chain: whether its trees never branch.
        """
        return  # a rule that does not look at how a tree was drafted serves every tree

    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """Decide on one tree. At temperature 0 every rule is greedy verification.

        Args:
            tree: n nodes.
            rows: the target's rows, one per node.
            laws: what sampled children were drawn from, by parent node.
            chance: the verifying stream.

        Raises:
            ValueError: for logits that describe no law, or a drafted token that its recorded law cannot have drawn.
        """
        return (
            follow_argmax(tree, scores) if scores.sampling.greedy else self.sample(tree, scores, distributions, random)
        )

    @abstractmethod
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """The rule at temperature > 0; arguments as for `verify`."""


def follow_argmax(tree: TokenTree, scores: Scores) -> Verdict:
    """The longest path on which every token is the target's argmax; the argmax after it is the bonus token."""
    choice = scores.argmax
    hits = np.flatnonzero(tree.tokens[1:] == choice[tree.parents[1:]]) + 1
    length, last = {0: 0}, 0  # nodes reached along argmax tokens; siblings may repeat a token, so keep all
    for node in hits.tolist():
        above = int(tree.parents[node])
        if above in length:
            length[node] = length[above] + 1
            last = node if length[node] > length[last] else last
    return Verdict(tuple(tree.path(last)), int(choice[last]))
