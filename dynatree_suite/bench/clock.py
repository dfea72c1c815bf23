"""Conditions of a timed run: a device that has finished, no garbage collected meanwhile, turns, how many threads."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import TypeVar

import numpy as np
import torch

from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import GREEDY

from .environment import available_cores

T = TypeVar("T")
K = TypeVar("K")

NODES, LEVELS, TURNS = 16, 4, 15
"""Nodes the target scores, levels the draft reads, and timed iterations of each number of threads."""
QUARTILES = (0.25, 0.5, 0.75)


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all its work; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextlib.contextmanager
def known_objects_frozen() -> Iterator[None]:
    """Take living objects out of garbage collection, so that a collection between runs looks at new objects only.

    Objects that were frozen before, as by another measurement around this one, stay so; who froze first unfreezes.
    """
    outermost = not gc.get_freeze_count()
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        if outermost:
            gc.unfreeze()


@contextlib.contextmanager
def quiet_machine(device: torch.device) -> Iterator[None]:
    """Collect garbage now and not while a clock runs; wait for the device and reset its memory peak."""
    collecting = gc.isenabled()
    gc.collect()
    gc.disable()
    synchronize(device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def rotated(items: Sequence[T], turn: int) -> list[T]:
    """Return the items in the order of a turn: another one goes first in each."""
    first = turn % len(items)
    return [*items[first:], *items[:first]]


def interleaved(work: Sequence[Callable[[], T]], turns: int, device: torch.device) -> list[list[T]]:
    """Do all work in every turn, the first one rotated, so that a slow minute of the machine hits all of it alike.

    Args:
        work: functions that time themselves.
        turns: how often.
        device: waited for before each function.

    Returns:
        the results of each function, one per turn.
    """
    results: list[list[T]] = [[] for _ in work]
    with known_objects_frozen():
        for turn in range(turns):
            for place in rotated(range(len(work)), turn):
                with quiet_machine(device):
                    results[place].append(work[place]())
    return results


def quartiles_in_turns(work: Mapping[K, Callable[[], float]], turns: int, device: torch.device) -> dict[K, list[float]]:
    """Return the quartiles over turns of what each function returns; one turn goes before and does not count."""
    results = interleaved(list(work.values()), turns + 1, device)
    return {key: np.quantile(found[1:], QUARTILES).tolist() for key, found in zip(work, results, strict=True)}


def median_of(
    work: Callable[[], object],
    device: torch.device,
    clock: Callable[[], float] = time.perf_counter,
    repeats: int = 1,
    before: Callable[[], object] = lambda: None,
) -> float:
    """Return the median seconds of work until the device has done it; what runs `before` each repeat does not count."""
    seconds = []
    for _ in range(repeats):
        before()
        synchronize(device)
        start = clock()
        work()
        synchronize(device)
        seconds.append(clock() - start)
    return float(np.median(seconds))


def choose_threads(pair: Pair, clock: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Set torch to the number of threads with the fastest iteration, which for small models is seldom every core.

    Returns:
        threads -> median seconds of an iteration's forwards (`NODES` nodes of the target, `LEVELS` times one node of
        the draft, after 64 tokens): 1, 2, 4, ... and all cores, timed in turn.
    """
    cores, iterate, device = available_cores(), _iteration_of(pair), pair.target.device

    def timed(count: int) -> float:
        torch.set_num_threads(count)
        return median_of(iterate, device, clock, before=iterate)  # which wakes the threads

    counts = sorted({cores, *(2**power for power in range(cores.bit_length()))})
    found = quartiles_in_turns({count: partial(timed, count) for count in counts}, TURNS, device)
    medians = {count: median for count, (_, median, _) in found.items()}
    torch.set_num_threads(min(medians, key=medians.__getitem__))
    return medians


def iteration_seconds(pairs: Mapping[str, Pair], clock: Callable[[], float] = time.perf_counter) -> dict[str, float]:
    """Return the median seconds of an iteration's forwards of each pair, as for `choose_threads`, timed in turn."""
    device = next(iter(pairs.values())).target.device
    work = {name: partial(median_of, _iteration_of(pair), device, clock) for name, pair in pairs.items()}
    return {name: median for name, (_, median, _) in quartiles_in_turns(work, TURNS, device).items()}


def _iteration_of(pair: Pair) -> Callable[[], None]:
    """What runs the forwards of an iteration."""
    target, draft = pair.target.session(), pair.draft.session()
    for session in (target, draft):
        session.start([1] * 64)
        session.flush()

    def iterate() -> None:
        for session, nodes in (*[(draft, 1)] * LEVELS, (target, NODES)):
            session.score(np.ones(nodes, np.int64), np.arange(nodes) - 1, GREEDY)
            session.rollback()

    return iterate
