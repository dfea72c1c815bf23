"""What Lookahead and Self-Draft share: a pool of n-grams by the token before them, and candidates from it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from ..tree import TokenTree
from .base import Drafter
from .pool import NgramPool


@dataclass
class NgramState:
    """A text's n-gram pool.

    Attributes:
        root: the last committed token.
        pool: n-grams by the token before them.
        tail: the last tokens of the text, where its own n-grams are pooled too.
    """

    root: int
    pool: NgramPool
    tail: list[int]


State = TypeVar("State", bound=NgramState)


class NgramDrafter(Drafter, Generic[State]):
    """A drafter whose candidates are the n-grams pooled after the last token; subclasses say what else is pooled."""

    ngram: int
    text: bool

    def extend(self, state: State, tokens: Sequence[int]) -> State:
        """See `Drafter.extend`; pools the n-grams of the text that the tokens complete, where `text` says so."""
        for token in tokens if self.text else ():
            state.tail.append(int(token))
            if len(state.tail) == self.ngram:
                first, *rest = state.tail
                state.pool.add(first, tuple(rest))
                del state.tail[0]
        state.root = int(tokens[-1])
        return state

    def inherit(self, state: State, earlier: State) -> State:
        """See `Drafter.inherit`: the pool."""
        pool = earlier.pool.copy()
        pool.absorb(state.pool)
        state.pool = pool
        return state

    def report(self, state: State) -> dict[str, float]:
        """Size of the pool."""
        return {"pool_ngrams": float(len(state.pool))}

    def retrieved(self, state: State, max_depth: int) -> TokenTree:
        """What the pool has after the last token, at most `room` levels of it, as one tree with shared prefixes."""
        return TokenTree.from_paths(state.root, [ngram[: max(max_depth, 0)] for ngram in state.pool.after(state.root)])
