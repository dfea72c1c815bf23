"""What running a method means to the protocol: a request, a `Runner` that serves it, what comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from dynatree_lib.decoding import DecodingState, Iteration, generate
from dynatree_lib.drafters.base import Drafter
from dynatree_lib.drafters.builder import DraftState
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.sampling import Sampling
from dynatree_lib.verifiers import Verifier

from .records import Key, Run

OnTokens = Callable[[list[int]], None]
Instrument = Callable[[LanguageModel, str], LanguageModel]
"""Wraps a model ("target" or "draft") before a method uses it: how a traced run gets at the sessions."""


def untouched(model: LanguageModel, role: str) -> LanguageModel:
    """The instrument of a timed run: none."""
    return model


def quiet(given: object) -> None:
    """Do nothing with tokens, or a line of progress: a callback where nobody listens."""


@dataclass(frozen=True)
class Completed:
    """What one run produced.

    Attributes:
        tokens: generated ids, cut at the budget and after the first EOS.
        forwards: of the target, those that decided tokens.
        iterations: one per iteration, or None where the method does not show its trees (Hugging Face's).
        finish_reason: "eos", "length", "context", "stop".
        kv_entries: entries of the target's cache at its fullest, drafted nodes included.
        counters: further counts of the method, such as evictions.
        seconds: what the method took by its own clock, for one that runs as a process of its own; None otherwise.
        emissions: seconds since its start and number of tokens, several times, where `seconds` is given.
    """

    tokens: list[int]
    forwards: int
    iterations: list[Iteration] | None
    finish_reason: str
    kv_entries: int
    counters: dict[str, int] = field(default_factory=dict)
    seconds: float | None = None
    emissions: list[list[float]] | None = None

    def run(self, key: Key, seconds: float = 1.0, emissions: list[list[float]] | None = None, **peaks: Any) -> Run:
        """Return its record; where nothing was timed, with one emission after a second."""
        method, prompt, repeat = key
        shapes: dict[str, Any] = {} if self.iterations is None else {
            "nodes": [len(one.tree) - 1 for one in self.iterations],
            "accepted": [len(one.verdict.path) for one in self.iterations],
            "depths": [one.tree.depth for one in self.iterations],
            "side_nodes": [one.side_nodes for one in self.iterations],
        }  # fmt: skip
        emissions = [[seconds, len(self.tokens)]] if emissions is None else emissions
        emissions = [[round(at, 6), count] for at, count in emissions]  # further digits are noise, and half of a file
        return Run(
            method, prompt, repeat, seconds, self.tokens, emissions, self.forwards, self.finish_reason,
            **shapes, counters=self.counters, kv_entries=self.kv_entries, **peaks,
        )  # fmt: skip


class Runner(Protocol):
    """Runs a method on one prompt."""

    def __call__(
        self,
        prompt_ids: Sequence[int],
        *,
        max_new_tokens: int,
        eos_token_ids: tuple[int, ...],
        on_tokens: OnTokens,
        sampling: Sampling,
        seed: int,
    ) -> Completed:
        """Decode at most `max_new_tokens`; `on_tokens` gets new ids as soon as the host has them."""
        ...


@dataclass
class DrafterRunner:
    """Runs this library's loop with a drafter.

    Attributes:
        target: the model whose text it is.
        drafter: proposes the trees.
        options: further keyword arguments of `generate`.
        cache_limit: committed entries the target's cache keeps, or None for all.
        count: session of the target after the run to counters of the method.
        carry: whether each text begins with what the drafter learnt in the text before.
    """

    target: LanguageModel
    drafter: Drafter
    options: dict[str, Any] = field(default_factory=dict)
    cache_limit: int | None = None
    count: Callable[[Any], dict[str, int]] | None = None
    carry: bool = False
    before: DecodingState | None = field(default=None, init=False)

    def check(self, sampling: Sampling) -> None:
        """Raise ValueError, before any work, if the verification rule cannot serve this sampling or drafter."""
        rule: Verifier | None = self.options.get("verifier")
        if rule is not None:
            rule.check(sampling, self.drafter.drawing, self.drafter.chain)

    def __call__(self, prompt_ids: Sequence[int], **request: Any) -> Completed:
        """See `Runner`; a request is what `generate` takes."""
        out = generate(self.target, prompt_ids, self.drafter, warm=self.before, **request, **self.options)
        assert out.state is not None
        counters = self.count(out.state.target) if self.count else {}
        forwards, nodes = self.drafter.drafting_work(out.state.drafter_state)
        if self.drafter.models or forwards:
            counters = {**counters, "draft_forwards": forwards, "draft_nodes": nodes}
        if self.carry:
            self.before = _without_caches(out.state)
        entries = fullest(len(prompt_ids), out.iterations, self.cache_limit)
        return Completed(out.tokens, len(out.iterations), out.iterations, out.finish_reason, entries, counters)


def _without_caches(state: DecodingState) -> DecodingState:
    """The state with what the drafter learnt, its memory given back: the next text has caches of its own."""
    state.target.start(())
    drafting = getattr(state.drafter_state, "drafting", state.drafter_state)  # of a drafter that may have a draft
    if isinstance(drafting, DraftState):
        drafting.session.start(())
    return state


def fullest(prompt: int, iterations: Sequence[Iteration], limit: int | None = None) -> int:
    """Rows of the target's cache at its fullest: what is committed before an iteration, and that iteration's tree.

    Args:
        prompt: tokens of the prompt; they are read whole, whatever the limit.
        iterations: of one text.
        limit: committed entries the cache keeps between iterations, or None for all.
    """
    most, committed = 0, prompt - 1
    for one in iterations:
        most = max(most, committed + len(one.tree) + one.side_nodes)
        committed += one.committed
        committed = committed if limit is None else min(committed, limit)
    return most
