"""`Chain`: linear speculative decoding, the draft's greedy continuation of K tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from typing_extensions import override

from ..models.base import LanguageModel
from .base import ModelDrafter
from .builder import TreeBuilder
from .checks import check_counts


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
        super().__post_init__()
        check_counts(self, "length")

    @override
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        node = np.array([0])
        for _ in range(min(self.length, max_depth)):
            tokens, logprobs = builder.best(node, 1)
            node = builder.add(node, tokens[:, 0], logprobs[:, 0])
