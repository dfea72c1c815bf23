"""Beyond one sequence: tokens per second of batches against batch size, and whether every text is still its own.

Prompts are decoded in groups of the batch size. Every group is timed with one method after the other, the first method
rotated, and again after all others; its time is the median. Groups, not runs, are drawn anew for intervals. Decoding is
greedy, to the budget, so that all generate equally much; texts are compared with plain decoding of each prompt alone.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from statistics import median
from typing import Any

import numpy as np
import torch
from transformers import GenerationConfig

from dynatree_lib.decoding import autoregressive
from dynatree_lib.engines.batched import SharedForward
from dynatree_lib.engines.batching import generate_batch
from dynatree_lib.models.pairs import Pair

from .baselines import lent_configuration
from .clock import known_objects_frozen, quiet_machine, rotated, synchronize
from .methods import Variant, variants
from .prompts import BenchPrompt, prepare_prompts
from .protocol import divergence
from .records import Run
from .runner import DrafterRunner, quiet
from .statistics import estimate, sum_quotient

WARMUP_TOKENS = 8
GROUPS = 4
"""Groups of prompts from which an interval is given."""
Row = dict[str, Any]


@dataclass
class Group:
    """One run of one group of prompts with one method."""

    texts: list[list[int]]
    iterations: int
    forwards: list[SharedForward]
    seconds: float = 0.0
    peak_device_bytes: int | None = None


Batch = Callable[[Sequence[BenchPrompt], int], Group]
"""Decodes some prompts together to a budget; the time of the group it returns is still missing."""


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
) -> list[Row]:
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
        a row for each batch size and method, sizes in the order given; prefill is included in everything. `method`;
        `batch`, sequences decoded together (the last group of prompts may have fewer). `tokens` generated for all
        prompts in one repeat; `seconds`, summed over groups of each group's median time; `tokens_per_second` of all
        sequences together, with its bootstrap `interval` over groups, None below `GROUPS` of them. `iterations`: target
        forwards that decided tokens, summed over sequences: what single runs would have needed. `forwards`,
        `rows_per_forward`, `padded`: forwards of the target in fact, nodes that sequences wanted in each, and the share
        of padding among the nodes computed; with the prefix `draft_` the same of the draft, 0 without a draft.
        `identical` of `prompts`: texts equal to plain decoding of the prompt alone; of the others `near_ties`, those
        that leave it at a near-tie (`protocol.divergence`), and all of them in `divergences`, from the first repeat.
        `peak_device_bytes`: most that was allocated on the GPU, weights included; None on a CPU.

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
    groups: dict[tuple[int, str], dict[int, list[Group]]] = defaultdict(lambda: defaultdict(list))
    labels = list(batches)
    with known_objects_frozen():
        for repeat, size in product(range(repeats), batch_sizes):
            for number, first in enumerate(range(0, len(ready), size)):
                for label in rotated(labels, number + repeat):  # so that a slow minute hits all methods alike
                    some = ready[first : first + size]
                    group = _timed(batches[label], some, max_new_tokens, pair.target.device, clock)
                    groups[size, label][first].append(group)
                    speed = sum(map(len, group.texts)) / group.seconds
                    progress(f"{label}, {size} at a time from prompt {first}: {speed:.0f} tokens/s")
    return [
        {"method": label, "batch": size, **_row(pair, label, list(groups[size, label].values()), ready, plain, seed)}
        for size, label in product(batch_sizes, labels)
    ]


def _timed(
    decode: Batch, prompts: Sequence[BenchPrompt], budget: int, device: torch.device, clock: Callable[[], float]
) -> Group:
    with quiet_machine(device):
        start = clock()
        group = decode(prompts, budget)
        synchronize(device)
        group.seconds = clock() - start
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


def _row(
    pair: Pair,
    label: str,
    groups: Sequence[Sequence[Group]],
    prompts: Sequence[BenchPrompt],
    plain: Sequence[list[int]],
    seed: int,
) -> Row:
    """Return what `throughput` says of the repeats of each group: times are medians, the rest is of the first."""
    firsts = [repeats[0] for repeats in groups]
    texts = [text for group in firsts for text in group.texts]
    wrong = [
        divergence(pair.target, prompt.ids, _as_run("ar", prompt, expected), _as_run(label, prompt, text))
        for prompt, expected, text in zip(prompts, plain, texts, strict=True)
        if text != expected
    ]
    times = [median(one.seconds for one in repeats) for repeats in groups]
    table = np.array([[sum(map(len, group.texts)), time] for group, time in zip(firsts, times, strict=True)])
    speed, (tokens, seconds) = estimate(table, sum_quotient, seed), table.sum(0)
    row: Row = {
        "tokens": int(tokens), "seconds": float(seconds), "tokens_per_second": speed.value,
        "interval": speed.interval if len(groups) >= GROUPS else None,
        "iterations": sum(group.iterations for group in firsts),
    }  # fmt: skip
    for role, prefix in (("target", ""), ("draft", "draft_")):
        forwards = [forward for group in firsts for forward in group.forwards if forward.role == role]
        nodes, computed = (sum(getattr(forward, name) for forward in forwards) for name in ("tokens", "computed"))
        row[f"{prefix}forwards"], row[f"{prefix}rows_per_forward"] = len(forwards), nodes / max(len(forwards), 1)
        row[f"{prefix}padded"] = 1 - nodes / computed if computed else 0.0
    row |= {"identical": len(texts) - len(wrong), "prompts": len(texts)}
    row |= {"near_ties": sum(one.near_tie for one in wrong), "divergences": [asdict(one) for one in wrong]}
    peaks = [group.peak_device_bytes for group in firsts if group.peak_device_bytes is not None]
    return {**row, "peak_device_bytes": max(peaks, default=None)}


def _as_run(label: str, prompt: BenchPrompt, tokens: list[int]) -> Run:
    return Run(label, prompt.id, 0, 1.0, tokens, [[1.0, len(tokens)]], 1, "length")
