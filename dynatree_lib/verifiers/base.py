"""The interface of a verifier: a rule that looks at a tree and the target's scores and accepts a path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from enum import Enum

from typing_extensions import override

from ..sampling import DraftDistributions, RandomSource, Sampling, Scores
from ..tree import TokenTree


class Drawing(Enum):
    """How the tokens of a drafter's trees come about. A rule that divides by draft distributions needs to know."""

    FIXED = "its tokens are deterministic"
    RECORDED = "each token was drawn from its recorded distribution, given all that was drawn before it"
    GROWN = (
        "each token was drawn from its recorded distribution, but how many children a node has depends on which tokens "
        "its earlier children drew"
    )
    BY_PATH = (
        "its branches share random numbers, so a token follows its recorded distribution given its own path and "
        "earlier siblings, but not given what was drawn in other branches"
    )
    SELECTED = (
        "drawn tokens were selected, removed, ordered or recorded with a view to their own values or to what was drawn "
        "after them, so that those in the tree do not follow their recorded distributions"
    )


@dataclass(frozen=True)
class Verdict:
    """The decision of a verifier.

    Attributes:
        path: accepted nodes below node 0, from the top down.
        next_token: the bonus token after the last accepted node; it becomes node 0 of the next tree.
    """

    path: tuple[int, ...]
    next_token: int

    def tokens(self, tree: TokenTree) -> list[int]:
        """Return the emitted tokens: those of the path in the verified tree, then the bonus token."""
        return [*map(tree.tokens.item, self.path), self.next_token]


class Verifier(ABC):
    """A verification rule. It has no state; all its randomness comes through the given `RandomSource`."""

    name: str
    """Name of the rule in records and plots."""
    longest = True
    """Whether the rule accepts the longest path where the target leaves no choice (the audit checks it)."""

    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        """Check, before any work, that this rule serves these trees without bias; by default a rule serves all trees.

        Args:
            sampling: that of the target.
            drawing: how the drafter's tokens come about.
            chain: whether the drafter's trees never branch.

        Raises:
            ValueError: if the rule does not serve them.
        """
        return  # a rule that does not look at how a tree was drafted serves every tree

    def walks(self, tree: TokenTree) -> bool:
        """Return whether above temperature 0 this is the target walk on this tree: draws decide the path, not coins."""
        return False

    @abstractmethod
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """Decide on a tree.

        Args:
            tree: n nodes.
            scores: the target's, of the n nodes; further scores are not looked at.
            distributions: what sampled children were drawn from, by parent node.
            random: the verifying stream.

        Raises:
            ValueError: for logits that describe no distribution, or a drafted token that its recorded distribution
                cannot have drawn.
        """


class SamplingRule(Verifier):
    """A rule for temperatures above 0; at temperature 0 it is greedy verification, which serves every tree."""

    @override
    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        if not sampling.greedy:
            self.check_sampling(drawing, chain)

    def check_sampling(self, drawing: Drawing, chain: bool) -> None:
        """Do what `check` does, for a temperature above 0."""

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        if scores.sampling.greedy:
            return follow_argmax(tree, scores)
        return self.sample(tree, scores, distributions, random)

    @abstractmethod
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """Decide on a tree at a temperature above 0; arguments and errors as for `verify`."""


def follow_argmax(tree: TokenTree, scores: Scores) -> Verdict:
    """Return the longest path on which every token is the target's argmax; the argmax after it is the bonus token."""
    choice, longest = scores.argmax.tolist(), tuple[int, ...]()
    paths = {0: longest}  # to each node reached along argmax tokens
    for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
        if parent in paths and token == choice[parent]:  # siblings may repeat a token
            paths[node] = path = (*paths[parent], node)
            longest = path if len(path) > len(longest) else longest
    return Verdict(longest, choice[longest[-1] if longest else 0])
