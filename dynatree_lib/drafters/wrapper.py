"""`Wrapper`: the base of drafters that are made of others."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from typing_extensions import override

from ..models.base import LanguageModel
from .base import Drafter


@dataclass
class WrapperState:
    """The state of a drafter that is made of others.

    Attributes:
        parts: states of the others, in the order of `Wrapper.parts`.
    """

    parts: list[Any]


class Wrapper(Drafter):
    """A drafter that is made of others: it needs what they need, and hands on to them what it is told."""

    @property
    @abstractmethod
    def parts(self) -> tuple[Drafter, ...]:
        """The drafters that it is made of."""

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """Those of all parts."""
        return tuple({id(model): model for part in self.parts for model in part.models}.values())

    @property
    def side_trees(self) -> bool:
        """Whether a part drafts by side trees."""
        return any(part.side_trees for part in self.parts)

    @override
    def check(self, target: LanguageModel) -> None:
        for part in self.parts:
            part.check(target)

    def each(self, state: Any) -> Iterator[tuple[Drafter, Any]]:
        """Yield each part with its state."""
        return zip(self.parts, state.parts, strict=True)

    @override
    def extend(self, state: Any, tokens: Sequence[int]) -> Any:
        state.parts = [part.extend(own, tokens) for part, own in self.each(state)]
        return state

    @override
    def inherit(self, state: Any, earlier: Any) -> Any:
        pairs = zip(self.each(state), earlier.parts, strict=True)
        state.parts = [part.inherit(own, before) for (part, own), before in pairs]
        return state

    @override
    def renumber(self, state: Any, nodes: np.ndarray, size: int) -> None:
        for part, own in self.each(state):
            part.renumber(own, nodes, size)

    @override
    def drafting_work(self, state: Any) -> tuple[int, int]:
        works = [part.drafting_work(own) for part, own in self.each(state)]
        return sum(forwards for forwards, _ in works), sum(nodes for _, nodes in works)

    @override
    def drafting_cost(self, state: Any) -> float:
        return sum(part.drafting_cost(own) for part, own in self.each(state))
