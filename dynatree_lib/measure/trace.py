"""Traced runs: where the time of an iteration goes. Separate from timed runs, because every forward is waited for.

The core holds no clock; this module wraps the forward of the models a method uses (`HFModel.forward`: one call of the
engine). Everything else counts as host time: drafting rules, masks, caches, verification. What tracing itself takes is
measured and taken off.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np

Clock = Callable[[], float]
Synchronize = Callable[[], None]
Forward = Callable[..., Any]

MARKS = 32
"""Empty marks that tell what a mark takes."""


@dataclass
class Trace:
    """What one traced run saw.

    Attributes:
        clock: seconds.
        synchronize: waits for the device.
        events: [role, start, end, nodes]: forwards of "target" and "draft" with the nodes they scored (0 where they
            read a prompt whole), and "commit" with the tokens of an iteration; seconds since `begin`.
        overhead: seconds that one event adds to the time outside forwards.
    """

    clock: Clock
    synchronize: Synchronize
    events: list[list[Any]] = field(default_factory=list)
    started: float = 0.0
    overhead: float = 0.0

    def begin(self) -> None:
        """Start the clock of this run."""
        for _ in range(MARKS):
            self.on_tokens([])
        times = [start for _, start, _, _ in self.events[-MARKS:]]
        self.overhead = float(np.median(np.diff(times)))
        self.events.clear()
        self.synchronize()
        self.started = self.clock()

    def now(self) -> float:
        """Seconds since `begin`, the device idle."""
        self.synchronize()
        return self.clock() - self.started

    def instrument(self, model: Any, role: str) -> Any:
        """Return a model that can be observed (`HFModel.observed`) with timed forwards."""

        def timed(run: Forward, tokens: np.ndarray, positions: np.ndarray, mask: Any, cache: Any, keep: int) -> Any:
            start = self.now()
            logits = run(tokens, positions, mask, cache, keep)
            nodes = 0 if mask is None and len(tokens) > keep else keep  # a prompt, read whole
            self.events.append([role, start, self.now(), nodes])
            return logits

        return model.observed(timed)

    def on_tokens(self, tokens: list[int]) -> None:
        """Mark the end of an iteration."""
        at = self.now()
        self.events.append(["commit", at, at, len(tokens)])

    def total(self, role: str) -> float:
        """Seconds in forwards of one role."""
        return sum(end - start for name, start, end, _ in self.events if name == role)

    def parts(self, seconds: float) -> dict[str, float]:
        """Seconds of a run split into `draft`, `verify` and `host`, what tracing took left out."""
        draft, verify = self.total("draft"), self.total("target")
        host = seconds - draft - verify - self.overhead * len(self.events)
        return {"draft": draft, "verify": verify, "host": max(host, 0.0)}
