"""The base of Lookahead and Self-Draft: candidates are pooled n-grams, found by the token before them."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from ..sampling import GREEDY, Sampling, Scores
from ..tree import TokenTree
from ..verifiers.base import Verdict
from .base import Drafter, Proposal
from .checks import check_counts, check_switches
from .pool import NgramPool


@dataclass
class NgramState:
    """The n-gram pool of a text.

    Attributes:
        root: the last committed token.
        pool: n-grams by the token before them.
        tail: the last tokens of the text, where n-grams of the text are pooled too.
    """

    root: int
    pool: NgramPool
    tail: list[int]


class NgramDrafter(Drafter):
    """A drafter that proposes the n-grams pooled after the last token, as one tree with shared prefixes.

    A subclass fills the pool: it guesses in a side tree, and the target extends each guess by a token.
    """

    ngram: int
    text: bool
    """Whether the n-grams of the text itself are pooled too."""

    def __post_init__(self) -> None:
        """Raise ValueError for hyper-parameters that subclasses share."""
        check_switches(self, "text")
        check_counts(self, "ngram", least=2, because="it counts the token an n-gram is found by, so ")

    @override
    def extend(self, state: Any, tokens: Sequence[int]) -> Any:
        for token in tokens if self.text else ():
            state.tail.append(int(token))
            if len(state.tail) == self.ngram:
                first, *rest = state.tail
                state.pool.add(first, tuple(rest))
                del state.tail[0]
        state.root = int(tokens[-1])
        return state

    @override
    def inherit(self, state: Any, earlier: Any) -> Any:
        state.pool = earlier.pool.joined(state.pool)
        return state

    def report(self, state: Any) -> dict[str, float]:
        """Return the size of the pool."""
        return {"pool_ngrams": float(len(state.pool))}

    @override
    def propose(self, state: Any, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        ngrams = [ngram[: max(max_depth, 0)] for ngram in state.pool.after(state.root)]
        return Proposal(TokenTree.from_paths(state.root, ngrams), side_tree=self.side_tree(state))

    @override
    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        if proposal.side_tree is not None:
            self.grow(state, [int(scores.argmax[0]), *scores.argmax[len(proposal.tree) :].tolist()])
        return self.extend(state, verdict.tokens(proposal.tree))

    @abstractmethod
    def side_tree(self, state: Any) -> TokenTree:
        """Return the guesses that the target extends, below the last token."""

    @abstractmethod
    def grow(self, state: Any, predicted: list[int]) -> None:
        """Pool the n-grams that end in a prediction and extend the guesses.

        `predicted` has the token after each node of the side tree.
        """
