"""How long a run will take on this machine, and which of its notebooks an hour holds.

A notebook's estimate for the profile `colab` was measured on one machine, with one pair. Most of its time is iterations
with trees of a few nodes, so elsewhere it is scaled by the time of such an iteration: some are timed before the run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from itertools import pairwise
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from .plan import Job

REFERENCE = 0.027
"""Seconds of an iteration with SmolLM2, its weights in 4 bits, on two threads of an AMD EPYC: of all estimates."""
TREE: dict[str, Any] = {"depth": 4, "branching": 2, "tau": None, "max_nodes": 16}
"""The tree of a timed iteration."""
ITERATIONS = 20


def iteration_seconds(profile: str, parameters: dict[str, Any]) -> float:
    """Return the time of an iteration of a run's pair on its device: a median, measured in a process of its own.

    Raises:
        ValueError: with the process's own words, where the pair cannot be loaded.
    """
    given = {name: parameters[name] for name in ("pair", "device", "dtype") if parameters.get(name) is not None}
    command = [sys.executable, "-m", "dynatree_suite.runs.forecast", json.dumps({"profile": profile, **given})]
    with TemporaryDirectory() as folder:  # what a notebook notes of itself
        environment = {**os.environ, "DYNATREE_OUT": folder}
        done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    if done.returncode:
        words = done.stderr.strip().splitlines() or [f"its process ended with status {done.returncode}"]
        raise ValueError(f"The run's pair could not be timed: {words[-1]}")
    return float(done.stdout.split()[-1])


def measured(given: dict[str, Any]) -> float:
    """Return the median time of an iteration, after some that warm up; the pair is loaded as a notebook loads it."""
    import time

    from dynatree_lib.decoding import generate
    from dynatree_lib.drafters import FixedTree

    from .models import load
    from .notebook import begin

    pair = load(begin("forecast", **given))
    clock: list[float] = []

    def note(_: object) -> None:
        clock.append(time.perf_counter())

    ids, tree = pair.ids("Count from one to a hundred in words."), FixedTree(pair.draft, **TREE)
    budget = 2 * ITERATIONS * (TREE["depth"] + 1)  # enough iterations even where every path is accepted to its leaf
    generate(pair.target, ids, tree, max_new_tokens=budget, eos_token_ids=(), on_tokens=note)
    return median(later - sooner for sooner, later in pairwise(clock[ITERATIONS:]))


def scaled(jobs: Sequence[Job], seconds: float) -> list[Job]:
    """Return jobs whose estimates are scaled by the time of an iteration here, where they run the pair."""
    scale = seconds / REFERENCE
    return [replace(job, scale=scale) if "pair" in job.source.parameters else job for job in jobs]


def within(jobs: Sequence[Job], hours: float, done: Collection[str] = ()) -> tuple[list[Job], list[Job]]:
    """Return the jobs that fit into so many hours, in their order, and those left out.

    The headline notebooks come first, then the others in order. One without an estimate is left out. Those `done`, by
    name, take no time.
    """
    kept: set[str] = set()
    left = 3600 * hours
    for job in sorted(jobs, key=lambda job: not job.source.headline):
        seconds = 0.0 if job.name in done else job.estimate.seconds
        if seconds is not None and seconds <= left:
            kept.add(job.name)
            left -= seconds
    return [job for job in jobs if job.name in kept], [job for job in jobs if job.name not in kept]


if __name__ == "__main__":
    print(measured(json.loads(sys.argv[1])))  # noqa: T201
