"""The base of Lookahead and Self-Draft: candidates are pooled n-grams, found by the token before them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from typing_extensions import override

from ..tree import TokenTree
from .base import Drafter
from .pool import NgramPool


@dataclass
class NgramState:
    """The n-gram pool of a text.

    Attributes:
        root: the last committed token.
        pool: n-grams by the token before them.
        tail: the last tokens of the text, where its own n-grams are pooled too.
    """

    root: int
    pool: NgramPool
    tail: list[int]


PooledState = TypeVar("PooledState", bound=NgramState)


class NgramDrafter(Drafter, Generic[PooledState]):
    """A drafter whose candidates are the n-grams pooled after the last token; subclasses fill the pool."""

    ngram: int
    text: bool
    """Whether the n-grams of the text itself are pooled too."""

    @override
    def extend(self, state: PooledState, tokens: Sequence[int]) -> PooledState:
        for token in tokens if self.text else ():
            state.tail.append(int(token))
            if len(state.tail) == self.ngram:
                first, *rest = state.tail
                state.pool.add(first, tuple(rest))
                del state.tail[0]
        state.root = int(tokens[-1])
        return state

    @override
    def inherit(self, state: PooledState, earlier: PooledState) -> PooledState:
        pool = earlier.pool.copy()
        pool.absorb(state.pool)
        state.pool = pool
        return state

    def report(self, state: PooledState) -> dict[str, float]:
        """Return the size of the pool."""
        return {"pool_ngrams": float(len(state.pool))}

    def candidates_of(self, state: PooledState, max_depth: int) -> TokenTree:
        """Return the n-grams pooled after the last token, cut at `max_depth`, as one tree with shared prefixes."""
        return TokenTree.from_paths(state.root, [ngram[: max(max_depth, 0)] for ngram in state.pool.after(state.root)])
