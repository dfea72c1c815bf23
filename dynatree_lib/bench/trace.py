"""Traced runs: where the time of an iteration goes. Separate from timed runs, because every forward is waited for.

The core holds no clock; this module wraps the models a method uses, so that their sessions time `score`. Everything
that is neither a draft's forward nor the target's counts as host time.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..models.base import LanguageModel, Session
from ..sampling import Rows, Sampling

Clock = Callable[[], float]
Synchronize = Callable[[], None]


@dataclass
class Trace:
    """What one traced run saw.

    Attributes:
        clock: seconds.
        synchronize: waits for the device.
        events: [role, start, end, rows]: forwards of "target" and "draft" with the nodes they scored, and
            "commit" with the tokens of an iteration; seconds since `begin`.
    """

    clock: Clock
    synchronize: Synchronize
    events: list[list[Any]] = field(default_factory=list)
    started: float = 0.0

    def begin(self) -> None:
        """Start the clock of this run."""
        self.events.clear()
        self.synchronize()
        self.started = self.clock()

    def now(self) -> float:
        """Seconds since `begin`, the device idle."""
        self.synchronize()
        return self.clock() - self.started

    def instrument(self, model: LanguageModel, role: str) -> LanguageModel:
        """An `Instrument`: the model with timed sessions."""
        return TracedModel(model, role, self)

    def on_tokens(self, tokens: list[int]) -> None:
        """Mark the end of an iteration."""
        at = self.now()
        self.events.append(["commit", at, at, len(tokens)])

    def total(self, role: str) -> float:
        """Seconds in forwards of one role."""
        return sum(end - start for name, start, end, _ in self.events if name == role)


class TracedModel(LanguageModel):
    """A model whose sessions report their forwards to a `Trace`; otherwise the model itself."""

    def __init__(self, model: LanguageModel, role: str, trace: Trace) -> None:
        self.model, self.role, self.trace = model, role, trace
        self.name, self.vocab_size, self.context = model.name, model.vocab_size, model.context
        self.eos_token_ids, self.vocabulary = model.eos_token_ids, model.vocabulary

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)  # what a drafter may ask of its kind of model beyond `LanguageModel`

    def session(self) -> Session:
        """The model's own session with a timed `score`; `flush` scores, so a rebuilt cache is timed too."""
        session = self.model.session()
        session.score = _timed(session.score, self.role, self.trace)  # type: ignore[method-assign]
        return session


def _timed(score: Callable[..., Rows], role: str, trace: Trace) -> Callable[..., Rows]:
    def timed(tokens: Sequence[int] | np.ndarray, parents: Sequence[int] | np.ndarray, sampling: Sampling) -> Rows:
        start = trace.now()
        rows = score(tokens, parents, sampling)
        trace.events.append([role, start, trace.now(), len(tokens)])
        return rows

    return timed
