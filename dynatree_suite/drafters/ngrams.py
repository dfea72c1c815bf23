"""The base of Lookahead and Self-Draft: candidates are pooled n-grams, found by the token before them."""

from __future__ import annotations

from abc import abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from typing_extensions import override

from dynatree_lib.drafters.base import Drafter, Proposal
from dynatree_lib.drafters.checks import check_counts, check_switches
from dynatree_lib.sampling import GREEDY, Sampling, Scores
from dynatree_lib.tree import TokenTree
from dynatree_lib.verifiers.base import Verdict


class NgramPool:
    """For each token the n-grams that were seen after it, the latest `size` of them.

    Args:
        size: most n-grams per token; the least recently added goes first.
        tokens: most tokens; the least recently added to goes first.
    """

    def __init__(self, size: int, tokens: int = 10_000) -> None:
        self.size = size
        self.tokens = tokens
        self._after: OrderedDict[int, OrderedDict[tuple[int, ...], None]] = OrderedDict()
        self._count = 0

    def add(self, token: int, ngram: tuple[int, ...]) -> None:
        """Add an n-gram that was seen after `token`."""
        known = self._after.setdefault(token, OrderedDict())
        self._after.move_to_end(token)
        self._count += ngram not in known
        known[ngram] = None
        known.move_to_end(ngram)
        if len(known) > self.size:
            known.popitem(last=False)
            self._count -= 1
        if len(self._after) > self.tokens:
            self._count -= len(self._after.popitem(last=False)[1])

    def after(self, token: int) -> list[tuple[int, ...]]:
        """Return the n-grams seen after a token, the latest first."""
        return [*reversed(self._after.get(token, ()))]

    def joined(self, other: NgramPool) -> NgramPool:
        """Return a new pool of both pools' n-grams; the other's count as seen after all of this pool."""
        both = NgramPool(self.size, self.tokens)
        for pool in (self, other):
            for token, known in pool._after.items():
                for ngram in known:
                    both.add(token, ngram)
        return both

    def __len__(self) -> int:
        return self._count


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
        return super().observe(state, proposal, scores, verdict)

    @abstractmethod
    def side_tree(self, state: Any) -> TokenTree:
        """Return the guesses that the target extends, below the last token."""

    @abstractmethod
    def grow(self, state: Any, predicted: list[int]) -> None:
        """Pool the n-grams that end in a prediction and extend the guesses.

        `predicted` has the token after each node of the side tree.
        """
