"""`Chain`: linear speculative decoding, the draft's greedy continuation of K tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..models.base import LanguageModel
from .base import Drafter, ModelDrafter, TreeBuilder


@dataclass(frozen=True)
class Chain(ModelDrafter):
    """Draft `length` tokens one after another, each the draft's most probable.

    Args:
        draft: the draft model.
        length: K, tokens drafted per iteration.

    Raises:
        ValueError: if length < 1.
    """

    draft: LanguageModel
    length: int = 4
    name = "chain"
    chain = True

    def __post_init__(self) -> None:
        if self.length < 1:
            raise ValueError(f"length is {self.length}; a chain drafts at least 1 token per iteration.")

    @classmethod
    def examples(cls, draft: LanguageModel) -> Iterator[Drafter]:
        """Shortest, usual, long."""
        yield from (cls(draft, length) for length in (1, 4, 9))

    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        """See `ModelDrafter.grow`."""
        node = np.array([0])
        for _ in range(min(self.length, max_depth)):
            tokens, logprobs = builder.best(node, 1)
            node = builder.add(node, tokens[:, 0], logprobs[:, 0])
