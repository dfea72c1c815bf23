"""`ToyModel`: an exact table model on a tiny vocabulary, for tests, proofs by enumeration, and teaching."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from ..checks import described, whole
from ..tree import ROOT
from .base import LanguageModel, Session

INEXACT = 1e-6
"""By how much the sum of probabilities may miss 1."""
CONTEXTS = 4096
"""Most contexts whose distributions a random model keeps."""
Table = Callable[[tuple[int, ...]], Sequence[float]]


class ToyModel(LanguageModel):
    """A language model given by a function from a context to the distribution of the next token.

    Args:
        distribution: context (all tokens so far) -> (V,) probabilities; zeros allowed.
        vocab_size: V.
        context: most positions.
        eos_token_ids: tokens that end a text.
    """

    def __init__(
        self, distribution: Table, vocab_size: int, context: int = 10_000, eos_token_ids: tuple[int, ...] = ()
    ) -> None:
        if not callable(distribution):
            raise TypeError(f"distribution is {described(distribution)}; give a function of the tokens so far.")
        self.distribution = distribution
        self.name = "toy"
        self.vocab_size = whole("vocab_size", vocab_size, 1)
        self.context = whole("context", context, 1)
        self.eos_token_ids = eos_token_ids

    @classmethod
    def random(
        cls, vocab_size: int = 4, seed: int = 0, order: int = 2, sharpness: float = 2.0, **kwargs: Any
    ) -> ToyModel:
        """Return a random Markov model of the last `order` tokens; higher sharpness is more predictable."""

        @lru_cache(maxsize=CONTEXTS)
        def after(recent: tuple[int, ...]) -> Sequence[float]:
            random = np.random.default_rng([seed, *(token + 1 for token in recent)])
            logits = random.normal(size=vocab_size) * sharpness
            weights = np.exp(logits - logits.max())
            return tuple((weights / weights.sum()).tolist())

        return cls(lambda context: after(tuple(context[-order:])), vocab_size, **kwargs)

    def mixed(self, other: ToyModel, share: float) -> ToyModel:
        """Return a draft for this model: (1 - share) of its probabilities plus `share` of those of the other model."""

        def distribution(context: tuple[int, ...]) -> Sequence[float]:
            first, second = np.asarray(self.distribution(context)), np.asarray(other.distribution(context))
            return ((1 - share) * first + share * second).tolist()

        return ToyModel(distribution, self.vocab_size, self.context, self.eos_token_ids)

    @override
    def session(self) -> ToySession:
        return ToySession(self)


class ToySession(Session):
    """A session that looks every context up in the table, in float64."""

    def __init__(self, model: ToyModel) -> None:
        self.model = model
        super().__init__(model.name, model.vocab_size)

    @override
    def _reset(self) -> None:
        self._text: list[int] = []
        self._nodes: list[int] = []

    @override
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        self._text += queue
        self._nodes += tokens.tolist()
        first = len(parents) - len(tokens)
        distributions = [self.model.distribution(self._context(node, parents)) for node in range(first, len(parents))]
        size = self.model.vocab_size
        for one in distributions:
            total = sum(one)
            if len(one) != size or (total and abs(total - 1) > INEXACT) or min(one) < 0:  # NaN and zeros: see `Scores`
                raise ValueError(
                    f"The distribution of a ToyModel has {len(one)} entries that sum to {total:.6g}, the least "
                    f"{min(one, default=0):.6g}; give {size} probabilities that sum to 1."
                )
        return torch.tensor(distributions, dtype=torch.float64).reshape(-1, size).log()

    def _context(self, node: int, parents: np.ndarray) -> tuple[int, ...]:
        path: list[int] = []
        while node != ROOT:
            path.append(self._nodes[node])
            node = int(parents[node])
        return (*self._text, *reversed(path))

    @override
    def _keep(self, nodes: np.ndarray) -> None:
        self._text += [self._nodes[node] for node in nodes]
        self._nodes = []
