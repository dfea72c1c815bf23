"""The strongest plain decoding here: one token per forward and nothing else, to measure trees against.

There are no trees and no bookkeeping of sessions. On the CPU the model's engine runs over a cache of exactly the text's
length, and the host takes the argmax. On static buffers (a `StaticModel`, or any model on a CUDA device that can be
made one) a captured step feeds its own argmax back, while the host reads tokens in bursts. The texts are those of
`autoregressive`.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Literal

import numpy as np
import torch

from ..checks import chosen, of_kind, whole
from ..decoding import Generation, Interrupted, check_request, checked_ends, checked_prompt
from ..models.engine import Features
from ..models.huggingface import HFModel
from ..models.texts import Prompt
from ..sampling import RandomSource, Ranking, Sampling, Scores, bad_logits, one_thread
from ..stopping import Stopping
from ..tree import ROOT
from .static import CAPACITY, StaticModel, StaticSession, why_not_static

EVERY = 16
"""Tokens that the host reads at a time where the device feeds itself."""
_STATIC: weakref.WeakKeyDictionary[HFModel, StaticModel] = weakref.WeakKeyDictionary()


def autoregressive_fast(
    target: HFModel,
    prompt: Prompt,
    *,
    max_new_tokens: int = 128,
    eos_token_ids: int | Sequence[int] | None = None,
    sampling: Sampling | None = None,
    seed: int = 0,
    on_tokens: Callable[[list[int]], None] | None = None,
    every: int = EVERY,
    interrupt: Literal["raise", "return"] = "raise",
) -> Generation:
    """Decode without drafts, as fast as this library can.

    Args:
        target: an `HFModel`; on a CUDA device its static buffers and graphs are made by the first call and kept as long
            as the model.
        prompt: as for `generate`.
        max_new_tokens: token budget.
        eos_token_ids: tokens that end the text; the model's own by default, () for none.
        sampling: greedy by default; above temperature 0 the host draws each token, as `autoregressive` does.
        seed: for the draws.
        on_tokens: called with new tokens: one at a time, or as they are read from the device.
        every: tokens that the host reads at a time from the device; the device may compute up to twice as many beyond
            an EOS, which are cut off.
        interrupt: what Ctrl-C does, as for `generate`.

    Returns:
        Text and finish reason of `autoregressive`; no iterations and no state.

    Raises:
        Interrupted: on Ctrl-C, unless `interrupt` is "return".
        TypeError: for a target that is no `HFModel`.
        ValueError: as `generate` does for prompts and budgets, for every < 1, and for logits that describe no
            distribution.
    """
    check_request(target, sampling, on_tokens)
    of_kind("The target", target, HFModel, "give an HFModel, or use autoregressive(), which serves any")
    target.check_modules()
    every, seed = whole("every", every, 1), whole("seed", seed)
    chosen("interrupt", interrupt, ("raise", "return"))
    ids = checked_prompt(target, prompt, None, max_new_tokens, target.tokenizer)
    budget = min(max_new_tokens, target.context - len(ids))
    stopping, tokens = Stopping(max_new_tokens, checked_ends(target, eos_token_ids)), list[int]()
    target.warn_of_config(sampling)
    static, sampling, random = _static(target, len(ids) + budget), sampling or Sampling(), RandomSource(seed, "verify")
    if static is None:
        bursts = _one_by_one(target, ids, budget, sampling, random)
    elif sampling.greedy:
        bursts = _fed_back(static, ids, budget, every)
    else:
        bursts = _scored(static, ids, budget, sampling, random)
    reason: str | None = None
    try:
        for fresh in bursts:
            count, reason = stopping.cut(tokens, fresh)
            tokens += fresh[:count]
            if on_tokens:
                on_tokens(fresh[:count])
            if reason:
                break
    except KeyboardInterrupt as error:
        reason = "interrupted"
        if interrupt == "raise":
            raise Interrupted(Generation(tokens, [], reason, tokenizer=target.tokenizer)) from error
    return Generation(tokens, [], reason or "context", tokenizer=target.tokenizer)


def _static(target: HFModel, capacity: int) -> StaticModel | None:
    """The target on static buffers of this capacity; None where the plain cache serves it."""
    if isinstance(target, StaticModel):
        return target
    if target.device.type != "cuda" or why_not_static(target):
        return None
    known = _STATIC.get(target)
    if known is None or known.context < capacity:
        known = StaticModel(target, min(target.context, max(capacity, CAPACITY)))
        known.warm(trees=False)  # now, and not in the middle of a text that is being timed
        _STATIC[target] = known
    return known


@torch.inference_mode()
def _one_by_one(
    target: HFModel, ids: list[int], budget: int, sampling: Sampling, random: RandomSource
) -> Iterator[list[int]]:
    """Each token by a forward over a cache of exactly the text, chosen by the host."""
    cache, length = target.new_cache(budget), len(ids)
    logits = target.forward(np.array(ids), np.arange(length), None, cache, 1)
    token, place = torch.zeros(2, 1, 1, dtype=torch.int64, device=target.device)
    ranking = Ranking()
    features, invert = Features(ranking=ranking), None if target.arrays is None else target.arrays.invert
    for position in range(length, length + budget):
        scores = Scores(logits[-1:], sampling, target.name, invert=invert)
        scores.know(ranking)
        with nullcontext() if sampling.greedy and scores.looked_through else one_thread():
            chosen = scores.next_token(0, random)
        yield [chosen]
        if position + 1 == length + budget:
            return
        if target.arrays is None:
            token.fill_(chosen)
            place.fill_(position)
            logits = target.engine(token, place, None, cache, 1)[0, :, : target.vocab_size]
        else:
            logits = target.run_forward(np.array([chosen]), np.array([position]), None, cache, 1, features)


@torch.inference_mode()
def _fed_back(static: StaticModel, ids: list[int], budget: int, every: int) -> Iterator[list[int]]:
    """Tokens in bursts, the first alone; each burst is computed while the host handles the burst before."""
    session, buffers = StaticSession(static), static.buffers
    session.start(ids[:-1])
    with buffers.turn:
        session.flush()
        buffers.begin(ids[-1], len(ids) - 1)
    waiting: Callable[[], list[int]] | None = None
    for first in [0, *range(1, budget, every)]:
        last = min(first + every, budget) if first else 1
        with buffers.turn:
            if not buffers.lent_to(session):
                raise RuntimeError(
                    f"The static buffers of '{static.name}' were used for another text while this one was decoded; "
                    "decode them one after another, or with a StaticModel each."
                )
            for count in range(first, last):
                # padding's column, and the text up to this token
                buffers.choose(buffers.width(1 + len(ids) + count), static.vocab_size)
            ready = _fetched(buffers.chosen[first:last], static.name)
        if waiting:
            yield waiting()
        waiting = ready
    if waiting:
        yield waiting()


def _scored(
    static: StaticModel, ids: list[int], budget: int, sampling: Sampling, random: RandomSource
) -> Iterator[list[int]]:
    """Each token by a forward of a session on static buffers, drawn by the host."""
    session, token = static.session(), ids[-1]
    session.start(ids[:-1])
    for _ in range(budget):
        scores = session.score([token], [ROOT], sampling)
        token = scores.next_token(0, random)
        yield [token]
        session.commit([0])


def _fetched(tokens: torch.Tensor, owner: str) -> Callable[[], list[int]]:
    """(k,) tokens on their way to the host; the call waits for them and for nothing launched later."""
    cuda = tokens.device.type == "cuda"
    host = torch.empty(tokens.shape, dtype=tokens.dtype, pin_memory=cuda).copy_(tokens, non_blocking=True)
    arrived = torch.cuda.current_stream(tokens.device).record_event() if cuda else None

    def wait() -> list[int]:
        if arrived is not None:
            arrived.synchronize()
        numbers: list[int] = host.tolist()
        if min(numbers) < 0:
            raise ValueError(bad_logits(owner, 0))
        return numbers

    return wait
