"""Beyond one sequence: tokens per second of batches against batch size, and whether every text is still its own.

Prompts are decoded in groups of the batch size. Every group is timed with one method after the other, the first method
rotated, and again after all others; its time is the median. Groups, not runs, are drawn anew for intervals. Decoding is
greedy, to the budget, so that all generate equally much; texts are compared with plain decoding of each prompt alone.
"""

from __future__ import annotations

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
from ...measure.baselines import lent_configuration
from ...measure.clock import known_objects_frozen, quiet_machine, synchronize
from ...measure.methods import Variant, variants
from ...measure.prompts import BenchPrompt, prepare_prompts
from ...measure.protocol import divergence
from ...measure.records import Divergence, Run
from ...measure.runner import DrafterRunner, quiet
from ...measure.statistics import Interval, estimate, sum_quotient
from ...models.pairs import Pair

WARMUP_TOKENS = 8
GROUPS = 4
"""Groups of prompts from which an interval is given."""
Key = tuple[int, str, int]
"""Batch size, method, number of the first prompt of a group."""


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
        forwards, rows_per_forward, padded: forwards of the target in fact, nodes that sequences wanted in each, and the
            share of padding among the nodes computed.
        draft_forwards, draft_rows_per_forward, draft_padded: the same of the draft; 0 without a draft.
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


@dataclass
class Group:
    """Results of the repeats of one group of prompts with one method: a time of each, the rest from the first."""

    texts: list[list[int]]
    iterations: int
    forwards: list[SharedForward]
    seconds: list[float] = field(default_factory=list)
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
    progress: Callable[[str], None] = quiet,
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
        an entry for each batch size and method, sizes in the order given.

    Raises:
        ValueError: before any work, for unknown methods, methods that decode no batches or carry state from text to
            text, sizes or repeats below 1, and all that `prepare_prompts` refuses.
    """
    chosen, ready = variants(methods), prepare_prompts(pair, prompts, max_new_tokens)
    for name, value in (("repeats", repeats), *(("a batch size", size) for size in batch_sizes)):
        if value < 1:
            raise ValueError(f"{name} is {value}; give at least 1.")
    batches = {variant.label: _batch(pair, variant) for variant in chosen}
    for decode in batches.values():
        decode(ready[: max(batch_sizes, default=1)], min(WARMUP_TOKENS, max_new_tokens))
    options: dict[str, Any] = {"max_new_tokens": max_new_tokens, "eos_token_ids": (), "keep_state": False}
    plain = [autoregressive(pair.target, prompt.ids, **options).tokens for prompt in ready]
    groups: dict[Key, Group] = {}
    with known_objects_frozen():
        for size, label, first in _schedule(batch_sizes, [*batches], len(ready), repeats):
            group = _timed(batches[label], ready[first : first + size], max_new_tokens, pair.target.device, clock)
            if groups.setdefault((size, label, first), group) is not group:
                groups[size, label, first].seconds += group.seconds
            speed = sum(map(len, group.texts)) / group.seconds[0]
            progress(f"{label}, {size} at a time from prompt {first}: {speed:.0f} tokens/s")
    firsts = {size: range(0, len(ready), size) for size in batch_sizes}
    return [
        _entry(pair, label, size, [groups[size, label, first] for first in firsts[size]], ready, plain, seed)
        for size in batch_sizes
        for label in batches
    ]


def _schedule(sizes: Sequence[int], labels: Sequence[str], prompts: int, repeats: int) -> Iterator[Key]:
    """Yield every run, so that a slow minute hits all methods alike."""
    for repeat in range(repeats):
        for size in sizes:
            for number, first in enumerate(range(0, prompts, size)):
                turn = (number + repeat) % len(labels)
                for label in [*labels[turn:], *labels[:turn]]:
                    yield size, label, first


def _timed(
    decode: Batch, prompts: Sequence[BenchPrompt], budget: int, device: torch.device, clock: Callable[[], float]
) -> Group:
    with quiet_machine(device):
        start = clock()
        group = decode(prompts, budget)
        synchronize(device)
        group.seconds = [clock() - start]
        if device.type == "cuda":
            group.peak_device_bytes = torch.cuda.max_memory_allocated(device)
    return group


def _batch(pair: Pair, variant: Variant) -> Batch:
    if variant.name == "hf-generate":
        return lambda prompts, budget: _hf_batch(pair, prompts, budget)
    runner = variant.runner(pair)
    if not isinstance(runner, DrafterRunner) or runner.target is not pair.target or runner.carry:
        raise ValueError(
            f"'{variant.label}' decodes no batches; give hf-generate, or methods of this library's own loop (ar, "
            "chain, fixed-tree, ...) without carry."
        )
    drafter, options = runner.drafter, {**runner.options, "eos_token_ids": ()}

    def decode(prompts: Sequence[BenchPrompt], budget: int) -> Group:
        forwards: list[SharedForward] = []
        ids = [prompt.ids for prompt in prompts]
        out = generate_batch(pair.target, ids, drafter, max_new_tokens=budget, on_forward=forwards.append, **options)
        return Group([text.tokens for text in out], sum(len(text.iterations) for text in out), forwards)

    return decode


def _hf_batch(pair: Pair, prompts: Sequence[BenchPrompt], budget: int) -> Group:
    """Run `generate` of transformers on one batch, prompts padded on the left."""
    lengths, model = [len(prompt.ids) for prompt in prompts], pair.target.model
    longest, count = max(lengths), len(prompts)
    ids = [[0] * (longest - len(prompt.ids)) + list(prompt.ids) for prompt in prompts]
    mask = [[0] * (longest - length) + [1] * length for length in lengths]
    padded, visible = (torch.tensor(table, device=pair.target.device) for table in (ids, mask))
    options = GenerationConfig(do_sample=False, max_new_tokens=budget, eos_token_id=None, pad_token_id=0)
    with lent_configuration(model, options), torch.inference_mode():
        texts = model.generate(padded, attention_mask=visible)[:, longest:].tolist()
    prefill, step = SharedForward("target", count, sum(lengths), count * longest), SharedForward("target", *[count] * 3)
    return Group(texts, budget * count, [prefill, *[step] * (budget - 1)])


def _entry(
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
        divergence(pair.target, prompt.ids, _as_run("ar", prompt, expected), _as_run(label, prompt, text))
        for prompt, expected, text in zip(prompts, plain, texts, strict=True)
        if text != expected
    ]
    table = np.array([[sum(map(len, group.texts)), median(group.seconds)] for group in groups])
    speed, (tokens, seconds) = estimate(table, sum_quotient, seed), table.sum(0)
    forwards = [forward for group in groups for forward in group.forwards]
    target, draft = (_shape([one for one in forwards if one.role == role]) for role in ("target", "draft"))
    peaks = [group.peak_device_bytes for group in groups if group.peak_device_bytes is not None]
    return Throughput(
        label, size, int(tokens), float(seconds), speed.value, speed.interval if len(groups) >= GROUPS else None,
        sum(group.iterations for group in groups), *target, *draft,
        len(texts) - len(wrong), len(texts), sum(one.near_tie for one in wrong), tuple(wrong), max(peaks, default=None),
    )  # fmt: skip


def _shape(forwards: Sequence[SharedForward]) -> tuple[int, float, float]:
    """Return the number of forwards, the nodes wanted in each, and the share of padding."""
    nodes, computed = sum(forward.tokens for forward in forwards), sum(forward.computed for forward in forwards)
    return len(forwards), nodes / max(len(forwards), 1), 1 - nodes / computed if computed else 0.0


def _as_run(label: str, prompt: BenchPrompt, tokens: list[int]) -> Run:
    return Run(label, prompt.id, 0, 1.0, tokens, [[1.0, len(tokens)]], 1, "length")
