"""Traced runs: where the time of an iteration goes. Separate from timed runs, because every forward is waited for.

The core holds no clock; this module wraps the forward of the models a method uses (`HFModel.forward`: one call of the
engine). Everything else counts as host time: drafting rules, masks, caches, verification. `Trace.parts` takes off what
tracing itself takes; `iteration_means` counts it as host time.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import numpy as np

from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling

from .clock import quiet_machine, synchronize
from .methods import Variant, variants

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

        def timed(run: Forward, *arguments: Any) -> Any:
            tokens, _, mask, _, keep, *_ = arguments
            start = self.now()
            logits = run(*arguments)
            nodes = 0 if mask is None and len(tokens) > keep else keep  # a prompt, read whole
            self.events.append([role, start, self.now(), nodes])
            return logits

        timed.only_looks = True  # type: ignore[attr-defined]
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


def traced_runs(
    pair: Pair, prompt: str | Sequence[Mapping[str, str]], methods: Sequence[str | Variant], *, max_new_tokens: int = 64
) -> dict[str, list[list[Any]]]:
    """Return the events of one greedy text by each method: label -> `Trace.events`.

    Every method writes a text before its traced one, so what is set up once is not in the events.

    Args:
        pair: the models.
        prompt: a text, under the chat template where there is one, or messages.
        methods: names with options, as for `dynatree bench`.
        max_new_tokens: of each text.

    Raises:
        ValueError: for an unknown method, one whose time cannot be split, or one that carries what it learnt into the
            next text.
    """
    chosen, ids = variants(methods), pair.ids(prompt)
    if whole := [one.label for one in chosen if not one.method.traced]:
        raise ValueError(f"The time of {', '.join(whole)} cannot be split into drafting, verifying and the rest.")
    if carrying := [one.label for one in chosen if one.carries]:
        raise ValueError(f"{', '.join(carrying)} would know the text, having written it before; leave out carry=true.")
    device, events = pair.target.device, {}
    for one in chosen:
        trace = Trace(perf_counter, lambda: synchronize(device))
        runner = one.runner(pair, trace.instrument)
        for _ in range(2):
            with quiet_machine(device):
                trace.begin()
                runner(
                    ids, max_new_tokens=max_new_tokens, eos_token_ids=(), sampling=Sampling(), seed=0,
                    on_tokens=trace.on_tokens,
                )  # fmt: skip
        events[one.label] = list(trace.events)
    return events


def iteration_sums(
    events: Sequence[Sequence[Any]], stages: Mapping[str, str], rest: str, after: int = 1
) -> dict[str, float]:
    """Return the sums over the iterations of a traced run.

    Args:
        events: of `Trace`.
        stages: name of a stage -> role of its events.
        rest: name of the time outside all stages.
        after: iterations to leave out; the first reads the prompt.

    Returns:
        `iterations`, their `tokens` and `seconds`, and the seconds of each stage and of the rest.

    Raises:
        ValueError: unless iterations are left to count.
    """
    ends = [end for role, _, end, _ in events if role == "commit"]
    if len(ends) <= after:
        raise ValueError(f"This run has {len(ends)} iterations, and none is left after the first {after}.")
    begin = ends[after - 1] if after else 0.0
    later = [event for event in events if event[2] > begin]
    tokens, seconds = sum(nodes for role, _, _, nodes in later if role == "commit"), ends[-1] - begin
    took = {name: sum(end - start for of, start, end, _ in later if of == role) for name, role in stages.items()}
    whole = {"iterations": len(ends) - after, "tokens": tokens, "seconds": seconds}
    return {**whole, **took, rest: seconds - sum(took.values())}


def iteration_means(events: Sequence[Sequence[Any]], after: int = 1) -> dict[str, float]:
    """Return what an iteration of a traced run takes in the mean; arguments and errors as for `iteration_sums`.

    Returns:
        `iterations` counted, `tokens` of one, and its seconds in `draft`, `verify` and `host`.
    """
    sums = iteration_sums(events, {"draft": "draft", "verify": "target"}, "host", after)
    means = {name: sums[name] / sums["iterations"] for name in ("tokens", "draft", "verify", "host")}
    return {"iterations": sums["iterations"], **means}
