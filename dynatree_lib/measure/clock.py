"""Conditions of a timed run: the device waited for, garbage collected before the clock starts and not while it runs."""

from __future__ import annotations

import contextlib
import gc
from collections.abc import Iterator

import torch


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
