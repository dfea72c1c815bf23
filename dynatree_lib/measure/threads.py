"""How many threads are fastest: small models are not faster with every core of a large machine, often slower."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import torch

from ..models.pairs import Pair
from ..sampling import GREEDY
from .environment import available_cores

ROWS, LEVELS, ROUNDS = 16, 4, 15


def choose_threads(pair: Pair, clock: Callable[[], float] = time.perf_counter) -> dict[int, float]:
    """Set torch to the number of threads with the fastest iteration, and say what each took.

    Returns:
        threads -> median seconds of an iteration's forwards (`ROWS` rows of the target, `LEVELS` times one row of the
        draft, after 64 tokens): 1, 2, 4, ... and all cores, timed in turn.
    """
    cores = available_cores()
    counts = sorted({cores, *(2**power for power in range(cores.bit_length()) if 2**power <= cores)})
    work = _iteration(pair)
    times: dict[int, list[float]] = {count: [] for count in counts}
    for _ in range(ROUNDS + 1):
        for count in counts:
            torch.set_num_threads(count)
            work()  # wakes the threads
            start = clock()
            work()
            times[count].append(clock() - start)
    found = {count: median(taken[1:]) for count, taken in times.items()}  # the first turn warms up
    torch.set_num_threads(min(found, key=lambda count: found[count]))
    return found


def _iteration(pair: Pair) -> Callable[[], None]:
    target, draft = pair.target.session(), pair.draft.session()
    for session in (target, draft):
        session.start([1] * 64)
        session.flush()

    def work() -> None:
        for session, rows, times in ((draft, 1, LEVELS), (target, ROWS, 1)):
            for _ in range(times):
                session.score(np.ones(rows, np.int64), np.arange(rows) - 1, GREEDY)
                session.rollback()

    return work
