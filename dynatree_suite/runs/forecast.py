"""How long a run will take on this machine, and which of its notebooks an hour holds.

A notebook's estimate for the profile `colab` was measured on one machine, with one pair. Most of its time is forwards
of the target, so elsewhere it is scaled by the time of one plain step: a few are timed before the run begins.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from dataclasses import replace
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

from .plan import Job

REFERENCE_STEP = 0.0145
"""Seconds of a plain step of SmolLM2 in float32 on two threads of an Intel Xeon, where the estimates were measured."""
STEPS = 40


def step_seconds(profile: str, parameters: dict[str, Any]) -> float:
    """Return the time of a plain step of a run's pair on its device: a median, measured in a process of its own.

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
    """Return the median time of a plain step, after some that warm up; the pair is loaded as a notebook loads it."""
    import time

    from dynatree_lib.decoding import generate
    from dynatree_lib.drafters import NoDraft

    from .models import load
    from .notebook import begin

    pair = load(begin("forecast", **given))
    clock: list[float] = []
    prompt = pair.ids("Count from one to a hundred in words.")

    def note(_: object) -> None:
        clock.append(time.perf_counter())

    generate(pair.target, prompt, NoDraft(), max_new_tokens=2 * STEPS, eos_token_ids=(), on_tokens=note)
    return median(later - sooner for sooner, later in zip(clock[STEPS:], clock[STEPS + 1 :], strict=False))


def scaled(jobs: Sequence[Job], seconds: float) -> list[Job]:
    """Return jobs whose estimates are scaled by the time of a plain step here, where they run the pair."""
    scale = seconds / REFERENCE_STEP
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
