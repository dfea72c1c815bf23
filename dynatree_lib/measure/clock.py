"""Conditions of a timed run: a device that has finished, no garbage collected meanwhile, how many threads."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Iterator
from statistics import median

import numpy as np
import torch

from ..models.pairs import Pair
from ..sampling import GREEDY
from .environment import available_cores

NODES, LEVELS, TURNS = 16, 4, 15
"""Nodes the target scores, levels the draft reads, and timed iterations of each number of threads."""


def synchronize(device: torch.device) -> None:
    """Wait until a GPU has done all its work; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    elif device.type == "mps":
        torch.mps.synchronize()


@contextlib.contextmanager
def known_objects_frozen() -> Iterator[None]:
    """Take living objects out of garbage collection, so that a collection between runs looks at new objects only."""
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
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


def choose_threads(pair: Pair, clock: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Set torch to the number of threads with the fastest iteration, which for small models is seldom every core.

    Returns:
        threads -> median seconds of an iteration's forwards (`NODES` nodes of the target, `LEVELS` times one node of
        the draft, after 64 tokens): 1, 2, 4, ... and all cores, timed in turn.
    """
    cores = available_cores()
    counts = sorted({cores, *(2**power for power in range(cores.bit_length()))})
    target, draft = pair.target.session(), pair.draft.session()
    for session in (target, draft):
        session.start([1] * 64)
        session.flush()

    def iterate() -> None:
        for session, nodes in (*[(draft, 1)] * LEVELS, (target, NODES)):
            session.score(np.ones(nodes, np.int64), np.arange(nodes) - 1, GREEDY)
            session.rollback()

    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(TURNS + 1):
        for count in counts:
            torch.set_num_threads(count)
            iterate()  # wakes the threads
            start = clock()
            iterate()
            times[count].append(clock() - start)
    medians = {count: median(seconds[1:]) for count, seconds in times.items()}  # the first turn warms up
    torch.set_num_threads(min(medians, key=medians.__getitem__))
    return medians
