"""Beyond one sequence: tokens per second of batches against batch size, and whether every text is still its own.

Prompts are decoded in groups of the batch size. Every group is timed with one method after the other, the first one
rotated, and again after all others; its time is the median. Groups, not runs, are drawn anew for intervals. Greedy, to
the budget, so that all generate equally much; texts are compared with plain decoding of each prompt alone.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from ...decoding import autoregressive
from ...fast.batched import SharedForward
from ...fast.batching import generate_batch
from ...measure.baselines import _lent
from ...measure.methods import Variant, variants
from ...measure.metrics import Interval, bootstrap, quotient
from ...measure.prompts import BenchPrompt, prepare_prompts
from ...measure.protocol import _known_objects_frozen, _quiet_machine, _synchronize, divergence
from ...measure.records import Divergence, Run
from ...measure.runner import DrafterRunner
from ...models.pairs import Pair

WARMUP_TOKENS = 8


@dataclass(frozen=True)
class Throughput:
    """One method at one batch size. Prefill is included in everything.

    Attributes:
        method: its label.
        batch: sequences decoded together; the last group of prompts may have fewer.
        tokens: generated for all prompts, in one repeat.
        seconds: sum over groups of each group's median time.
        tokens_per_second: of all sequences together. interval: its 95 % bootstrap interval over groups, None below
            `GROUPS` of them.
        iterations: target forwards that decided tokens, summed over sequences: what single runs would have needed.
        forwards, rows_per_forward, padded: forwards of the target in fact, rows that sequences wanted in each, and the
            share of padding among the rows computed.
        draft_forwards, draft_rows_per_forward, draft_padded: the same of the draft; 0 without one.
        identical, prompts: texts equal to plain decoding of the prompt alone, of how many.
        near_ties: of the others, those that leave it at a near-tie (`protocol.divergence`).
        divergences: all the others, in the first repeat.
        peak_device_bytes: most that was allocated on the GPU, weights included; None on a CPU.
    """

    method: str
    batch: int
    tokens: int
    seconds: float
    tokens_per_second: float
    interval: Interval | None
    iterations: int
    forwards: int
    rows_per_forward: float
    padded: float
    draft_forwards: int
    draft_rows_per_forward: float
    draft_padded: float
    identical: int
    prompts: int
    near_ties: int
    divergences: tuple[Divergence, ...]
    peak_device_bytes: int | None


GROUPS = 4
"""Groups of prompts from which an interval is given."""


@dataclass
class Group:
    """What the repeats of one group of prompts with one method gave."""

    seconds: list[float] = field(default_factory=list)
    texts: list[list[int]] = field(default_factory=list)
    iterations: int = 0
    forwards: list[SharedForward] = field(default_factory=list)
    peak_device_bytes: int | None = None


Batch = Callable[[Sequence[BenchPrompt], int], Group]
"""Decodes some prompts together to a budget; the times of the group it returns are still empty."""


def throughput(
    pair: Pair,
    methods: str | Sequence[str | Variant],
    prompts: Sequence[Any],
    batch_sizes: Sequence[int] = (1, 2, 4, 8),
    *,
    max_new_tokens: int = 128,
    repeats: int = 3,
    seed: int = 0,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> list[Throughput]:
    """Measure methods at several batch sizes, greedily, all texts to the budget (EOS is an ordinary token).

    Args:
        pair: target and draft.
        methods: as for `run_benchmark`; "hf-generate" is transformers' own batch, padded on the left, the others those
            of this library's loop, by `generate_batch`.
        prompts: as for `run_benchmark`.
        batch_sizes: sequences decoded together.
        max_new_tokens: budget of every text.
        repeats: timed runs of each group of prompts.
        seed: of the bootstrap.
        progress: called with a line of text per run.
        clock: seconds.

    Returns:
        a row for each batch size and method, sizes in the order given.

    Raises:
        ValueError: before any work, for unknown methods, methods that decode no batches or carry state from text to
            text, sizes or repeats below 1, and what `prepare_prompts` refuses.
    """
    chosen, ready = variants(methods), prepare_prompts(pair, prompts, max_new_tokens)
    for name, value in (("repeats", repeats), *(("a batch size", size) for size in batch_sizes)):
        if value < 1:
            raise ValueError(f"{name} is {value}; give at least 1.")
    runs = {one.label: _runner(pair, one) for one in chosen}
    for run in runs.values():
        run(ready[: max(batch_sizes, default=1)], min(WARMUP_TOKENS, max_new_tokens))
    plain = [
        autoregressive(pair.target, one.ids, max_new_tokens=max_new_tokens, eos_token_ids=(), keep_state=False).tokens
        for one in ready
    ]
    with _known_objects_frozen():
        found = _measure(runs, ready, batch_sizes, max_new_tokens, repeats, pair.target.device, clock, progress)
    return [
        _row(pair, label, size, [found[size, label, first] for first in range(0, len(ready), size)], ready, plain, seed)
        for size in batch_sizes
        for label in runs
    ]


def _measure(
    runs: dict[str, Batch],
    prompts: Sequence[BenchPrompt],
    sizes: Sequence[int],
    budget: int,
    repeats: int,
    device: torch.device,
    clock: Callable[[], float],
    progress: Callable[[str], None] | None,
) -> dict[tuple[int, str, int], Group]:
    """(batch size, method, first prompt) -> its group, with a time for each repeat and the rest from the first."""
    found: dict[tuple[int, str, int], Group] = {}
    for key in _schedule(sizes, [*runs], len(prompts), repeats):
        size, label, first = key
        done = _timed(runs[label], prompts[first : first + size], budget, device, clock)
        if key in found:
            found[key].seconds += done.seconds
        else:
            found[key] = done
        if progress:
            speed = sum(map(len, done.texts)) / done.seconds[0]
            progress(f"{label}, {size} at a time from prompt {first}: {speed:.0f} tokens/s")
    return found


def _schedule(
    sizes: Sequence[int], labels: Sequence[str], prompts: int, repeats: int
) -> Iterator[tuple[int, str, int]]:
    """(batch size, method, first prompt of the group) of every run: a slow minute hits all methods alike."""
    for repeat in range(repeats):
        for size in sizes:
            for number, first in enumerate(range(0, prompts, size)):
                turn = (number + repeat) % len(labels)
                for label in [*labels[turn:], *labels[:turn]]:
                    yield size, label, first


def _timed(
    run: Batch, prompts: Sequence[BenchPrompt], budget: int, device: torch.device, clock: Callable[[], float]
) -> Group:
    with _quiet_machine(device):
        start = clock()
        done = run(prompts, budget)
        _synchronize(device)
        done.seconds.append(clock() - start)
        if device.type == "cuda":
            done.peak_device_bytes = torch.cuda.max_memory_allocated(device)
    return done


def _runner(pair: Pair, one: Variant) -> Batch:
    if one.name == "hf-generate":
        return lambda prompts, budget: _hf_batch(pair, prompts, budget)
    runner = one.runner(pair)
    if not isinstance(runner, DrafterRunner) or runner.target is not pair.target or runner.carry:
        raise ValueError(
            f"'{one.label}' decodes no batches; give hf-generate, or methods of this library's own loop (ar, chain, "
            "fixed-tree, ...) without carry."
        )
    drafted: DrafterRunner = runner

    def run(prompts: Sequence[BenchPrompt], budget: int) -> Group:
        forwards: list[SharedForward] = []
        found = generate_batch(
            drafted.target, [each.ids for each in prompts], drafted.drafter, max_new_tokens=budget, eos_token_ids=(),
            on_forward=forwards.append, **drafted.options,
        )  # fmt: skip
        if any(each.finish_reason == "interrupted" for each in found):  # a benchmark must stop
            raise KeyboardInterrupt
        return Group([], [each.tokens for each in found], sum(len(each.iterations) for each in found), forwards)

    return run


def _hf_batch(pair: Pair, prompts: Sequence[BenchPrompt], budget: int) -> Group:
    """`generate` of transformers on one batch, prompts padded on the left."""
    lengths = [len(one.ids) for one in prompts]
    longest, model = max(lengths), pair.target.model
    ids = torch.tensor([[0] * (longest - len(one.ids)) + list(one.ids) for one in prompts], device=pair.target.device)
    mask = torch.tensor([[0] * (longest - length) + [1] * length for length in lengths], device=ids.device)
    own = GenerationConfig(do_sample=False, max_new_tokens=budget, eos_token_id=None, pad_token_id=0)
    with contextlib.ExitStack() as stack:
        stack.enter_context(_lent(model, own))
        stack.enter_context(torch.inference_mode())
        out = model.generate(ids, attention_mask=mask)[:, longest:].tolist()
    step = SharedForward("target", len(prompts), len(prompts), len(prompts))
    prefill = SharedForward("target", len(prompts), sum(lengths), len(prompts) * longest)
    return Group([], out, budget * len(prompts), [prefill, *[step] * (budget - 1)])


def _row(
    pair: Pair,
    label: str,
    size: int,
    groups: Sequence[Group],
    prompts: Sequence[BenchPrompt],
    plain: Sequence[list[int]],
    seed: int,
) -> Throughput:
    texts = [text for group in groups for text in group.texts]
    wrong = [
        divergence(pair.target, one.ids, _as_run("ar", one, expected), _as_run(label, one, text))
        for one, expected, text in zip(prompts, plain, texts, strict=True)
        if text != expected
    ]
    table = np.array([[sum(map(len, group.texts)), median(group.seconds)] for group in groups])
    forwards = [one for group in groups for one in group.forwards]
    target, draft = (_shape([one for one in forwards if one.role == role]) for role in ("target", "draft"))
    peaks = [group.peak_device_bytes for group in groups if group.peak_device_bytes is not None]
    return Throughput(
        label, size, int(table[:, 0].sum()), float(table[:, 1].sum()), float(quotient(table)),
        bootstrap(table, quotient, seed) if len(groups) >= GROUPS else None,
        sum(group.iterations for group in groups), *target, *draft,
        len(texts) - len(wrong), len(texts), sum(one.near_tie for one in wrong), tuple(wrong), max(peaks, default=None),
    )  # fmt: skip


def _shape(forwards: Sequence[SharedForward]) -> tuple[int, float, float]:
    """Forwards, rows wanted in each, share of padding."""
    rows, computed = sum(one.rows for one in forwards), sum(one.computed for one in forwards)
    return len(forwards), rows / max(len(forwards), 1), 1 - rows / computed if computed else 0.0


def _as_run(label: str, prompt: BenchPrompt, tokens: list[int]) -> Run:
    return Run(label, prompt.id, 0, 1.0, tokens, [[1.0, len(tokens)]], 1, "length")
