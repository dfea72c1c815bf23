"""Hugging Face's own decoding methods as runners, this library's plain loop, and StreamingLLM with chain speculation.

The Hugging Face methods run `model.generate` under a generation configuration of our own, lent to the model for the
call, so that a checkpoint's defaults (sampling, EOS ids, assistant settings) neither change the measurement nor are
changed by it. Clocks belong to `protocol`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from transformers import GenerationConfig
from transformers.generation.streamers import BaseStreamer
from transformers.utils import logging

from dynatree_lib.drafters import Chain
from dynatree_lib.engines.plain import EVERY, autoregressive_fast
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.models.translated import TranslatedHFModel
from dynatree_lib.sampling import Sampling

from .runner import Completed, DrafterRunner, Instrument, OnTokens, Runner
from .streaming import StreamingModel, StreamingSession


@dataclass(frozen=True)
class HFGenerate:
    """transformers' plain `generate`: one forward per token."""

    def runner(self, pair: Pair, instrument: Instrument) -> Runner:
        """The method on this pair; its sessions are transformers' own, so nothing is instrumented."""
        return _HFRunner(pair.target, {})


@dataclass(frozen=True)
class HFAssisted:
    """transformers' assisted generation with the pair's draft; where that has another tokenizer, by transformers' own
    matching of texts or vocabularies.

    The defaults are those of transformers 5: a constant number of drafted tokens, drafting stopped early where the
    draft gives its token less than `confidence`. (Where scikit-learn is installed transformers adapts the confidence
    during a text.)

    Attributes:
        num_assistant_tokens: most tokens drafted per iteration.
        schedule: "constant", or "heuristic_transient": two more after a full hit, one fewer after a miss, from the
            start again for each text. ("heuristic" would carry over from text to text.)
        confidence: draft probability below which drafting stops; 0 never stops.
    """

    num_assistant_tokens: int = 20
    schedule: Literal["constant", "heuristic_transient"] = "constant"
    confidence: float = 0.4

    def __post_init__(self) -> None:
        if self.num_assistant_tokens < 1:
            raise ValueError(f"num_assistant_tokens is {self.num_assistant_tokens}; draft at least 1 token.")
        if not 0 <= self.confidence < 1:
            raise ValueError(f"confidence is {self.confidence}; give a probability in [0, 1), 0 for no early stop.")

    def runner(self, pair: Pair, instrument: Instrument) -> Runner:
        """The method on this pair."""
        assistant = {
            "num_assistant_tokens": self.num_assistant_tokens,
            "num_assistant_tokens_schedule": self.schedule,
            "assistant_confidence_threshold": self.confidence,
        }
        return _HFRunner(pair.target, {}, self.num_assistant_tokens, pair.common_draft, assistant)


@dataclass(frozen=True)
class HFPromptLookup:
    """transformers' prompt lookup decoding: drafts are copied from the text so far.

    Attributes:
        num_tokens: most tokens copied per iteration.
        ngram: longest suffix looked for.
    """

    num_tokens: int = 10
    ngram: int = 2

    def __post_init__(self) -> None:
        if self.num_tokens < 1 or self.ngram < 1:
            raise ValueError(f"num_tokens is {self.num_tokens} and ngram is {self.ngram}; both need to be at least 1.")

    def runner(self, pair: Pair, instrument: Instrument) -> Runner:
        """The method on this pair."""
        configuration = {"prompt_lookup_num_tokens": self.num_tokens, "max_matching_ngram_size": self.ngram}
        return _HFRunner(pair.target, configuration, self.num_tokens)


@dataclass(frozen=True)
class ARFast:
    """Plain decoding without trees, as fast as this library can: `plain.autoregressive_fast`.

    Attributes:
        every: tokens that the host reads at a time where the device feeds itself.
    """

    every: int = EVERY

    def __post_init__(self) -> None:
        if self.every < 1:
            raise ValueError(f"every is {self.every}; read at least 1 token at a time.")

    def runner(self, pair: Pair, instrument: Instrument) -> Runner:
        """The method on this pair; it has no sessions to instrument."""

        def run(prompt_ids: Sequence[int], **request: Any) -> Completed:
            out = autoregressive_fast(pair.target, prompt_ids, every=self.every, **request)
            entries = len(prompt_ids) + len(out.tokens) - 1
            return Completed(out.tokens, len(out.tokens), None, out.finish_reason, entries)

        return run


@dataclass(frozen=True)
class StreamingLLM:
    """StreamingLLM's cache with chain speculation, the last baseline of the first DynaTree paper.

    Attributes:
        cache: KV entries the target's cache keeps (the paper's 1024); its own runs never reach it, so they never evict.
        sinks: first entries of the text, which are never evicted.
        block: entries freed at least by an eviction; None is a sixteenth of the cache.
        length: K of the chain.
        draft: "full": the draft reads the whole text; "streaming": its cache is bounded in the same way.
    """

    cache: int = 1024
    sinks: int = 4
    block: int | None = None
    length: int = 4
    draft: Literal["full", "streaming"] = "full"

    def runner(self, pair: Pair, instrument: Instrument) -> Runner:
        """The method on this pair."""
        target = instrument(self._bounded(pair.target), "target")
        model = pair.common_draft  # a bounded cache keeps no features
        draft = instrument(self._bounded(model) if self.draft == "streaming" else model, "draft")
        return DrafterRunner(target, Chain(draft, self.length), cache_limit=self.cache, count=_evictions)

    def _bounded(self, model: HFModel) -> StreamingModel:
        return StreamingModel(model, self.cache, self.sinks, self.block)


def _evictions(session: StreamingSession) -> dict[str, int]:
    return {"evictions": session.evictions, "evicted_entries": session.evicted}


@dataclass(frozen=True)
class _HFRunner:
    target: HFModel
    configuration: dict[str, Any]
    candidates: int = 0  # most entries a verification adds to the cache
    draft: HFModel | None = None
    assistant: dict[str, Any] | None = None

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
        relay = _Relay(on_tokens, max_new_tokens, eos_token_ids)
        ids = torch.tensor([list(prompt_ids)], device=self.target.device)
        common = {"eos_token_id": list(eos_token_ids) or None, "pad_token_id": 0}
        own = {**common, **_sampled(sampling), **self.configuration, "max_new_tokens": max_new_tokens}
        extra: dict[str, Any] = {}
        with contextlib.ExitStack() as stack:
            stack.enter_context(lent_configuration(self.target.model, GenerationConfig(**own)))
            if self.draft is not None:
                translated = isinstance(self.draft, TranslatedHFModel)
                given = {"pad_token_id": 0} if translated else common  # the target's ids mean nothing to such a draft
                assistant = GenerationConfig(**given, **(self.assistant or {}))
                stack.enter_context(lent_configuration(self.draft.model, assistant))
                extra["assistant_model"] = self.draft.model
                if translated:
                    extra["tokenizer"], extra["assistant_tokenizer"] = self.target.tokenizer, self.draft.tokenizer
            stack.enter_context(torch.inference_mode())  # as this library's forwards run; less than no_grad
            stack.enter_context(_seeded(self.target.device, sampling, seed))
            # Without a mask transformers would take prompt tokens equal to the padding id for padding.
            out = self.target.model.generate(ids, attention_mask=torch.ones_like(ids), streamer=relay, **extra)
        tokens = _cut(out[0, len(prompt_ids) :].tolist(), max_new_tokens, eos_token_ids)
        reason = "eos" if tokens and tokens[-1] in eos_token_ids else "length"
        entries = len(prompt_ids) + len(tokens) - 1 + self.candidates
        return Completed(tokens, relay.chunks, None, reason, entries)


class _Relay(BaseStreamer):
    """Hands each chunk of new ids on and counts the chunks: one per target forward. The first put is the prompt."""

    def __init__(self, on_tokens: OnTokens, budget: int, eos: tuple[int, ...]) -> None:
        self.on_tokens, self.budget, self.eos = on_tokens, budget, eos
        self.chunks, self._prompt, self._room = 0, True, budget

    def put(self, value: torch.Tensor) -> None:
        if self._prompt:
            self._prompt = False
            return
        self.chunks += 1
        fresh = _cut(value.reshape(-1).tolist(), self._room, self.eos)
        self._room -= len(fresh)
        if fresh:
            self.on_tokens(fresh)

    def end(self) -> None:
        """Nothing is buffered."""


def _cut(tokens: list[int], budget: int, eos: tuple[int, ...]) -> list[int]:
    ends = [index for index, token in enumerate(tokens) if token in eos]
    return tokens[: min(budget, ends[0] + 1 if ends else budget)]


def _sampled(sampling: Sampling) -> dict[str, Any]:
    if sampling.greedy:
        return {"do_sample": False}
    distribution = {"temperature": sampling.temperature, "top_k": sampling.top_k or 0, "top_p": sampling.top_p or 1.0}
    return {"do_sample": True, **distribution}


@contextlib.contextmanager
def lent_configuration(model: Any, configuration: GenerationConfig) -> Iterator[None]:
    """Put a generation configuration in place of the model's own, which comes back untouched; log nothing meanwhile."""
    own, level = model.generation_config, logging.get_verbosity()
    model.generation_config = configuration
    logging.set_verbosity_error()
    try:
        yield
    finally:
        model.generation_config = own
        logging.set_verbosity(level)


@contextlib.contextmanager
def _seeded(device: torch.device, sampling: Sampling, seed: int) -> Iterator[None]:
    """Seed torch's global generator, which `generate` samples from, and put its state back afterwards."""
    if sampling.greedy:
        yield
        return
    with torch.random.fork_rng(devices=[device] if device.type == "cuda" else []):
        torch.manual_seed(seed)
        yield
