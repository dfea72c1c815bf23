"""The speed of this machine's memory and arithmetic, which bounds the speed of a forward.

Plain decoding reads all weights and the whole cache for every token and does next to no arithmetic with them, so that
memory bounds it (`metrics.Bound`). Nodes scored together share what is read, until arithmetic bounds them (`ceilings`).
Both limits are measured here with torch's own operators, in the run that they are compared with.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from functools import partial

import numpy as np
import torch

from dynatree_lib.models.huggingface import HFModel

from .clock import median_of
from .environment import cache_bytes_per_row
from .records import Bandwidth

STREAM = {"cpu": 2**28, "cuda": 2**30}
"""Bytes by device: a buffer much larger than its caches."""
SIDE = {"cpu": 1024, "cuda": 8192}
"""Rows and columns of the matrices that are multiplied."""
HINT = 16
"""Number of rows that oneDNN lays weights out for, that of the engines for a CPU; it serves any number."""
REPEATS = 9
QUEUED = 10
"""Repetitions of work between two events of a GPU."""


def measure_bandwidth(device: torch.device, weight_bytes: int, when: str = "before") -> list[Bandwidth]:
    """Measure reading and copying of two buffers: as large as a model's weights, and much larger than any cache.

    A model whose weights are little more than a cache is read faster than main memory delivers, so the first buffer
    bounds it. Weights larger than the second buffer (`STREAM`) are measured by it alone.

    Args:
        device: a CPU, with torch's present number of threads, or a GPU.
        weight_bytes: bytes that a forward reads (`forward_bytes`).
        when: for the record.

    Raises:
        ValueError: for another kind of device.
    """
    largest, out = STREAM[_checked(device)], []
    for size in sorted({min(weight_bytes, largest), largest}):
        buffer = torch.ones(max(size // 8, 1), dtype=torch.int64, device=device)  # sums of int64 keep up with memory
        other, moved = torch.empty_like(buffer), buffer.nbytes
        read, copied = median_seconds(buffer.sum, device), median_seconds(partial(other.copy_, buffer), device)
        out.append(Bandwidth(when, moved, moved / read, 2 * moved / copied))
    return out


def matmul_flops(device: torch.device, dtype: torch.dtype) -> float:
    """Measure floating-point operations per second of a matrix product, a multiplication and an addition being two.

    On a CPU the faster of torch's product and oneDNN's over weights in its own layout, which differ by half.

    Raises:
        ValueError: for a device that is neither a CPU nor a GPU.
    """
    side = SIDE[_checked(device)]
    left, right = (torch.ones(side, side, dtype=dtype, device=device) for _ in range(2))
    out = torch.empty_like(left)
    seconds = [median_seconds(lambda: torch.mm(left, right, out=out), device, 5)]
    if device.type == "cpu":
        with contextlib.suppress(RuntimeError):  # no oneDNN, or none for this dtype
            packed = torch.ops.mkldnn._reorder_linear_weight(right, HINT)
            product = torch.ops.mkldnn._linear_pointwise.default
            seconds.append(median_seconds(lambda: product(left, packed, None, "none", [], ""), device, 5))
    return 2 * side**3 / min(seconds)


def median_seconds(work: Callable[[], object], device: torch.device, repeats: int = REPEATS) -> float:
    """Return the median seconds of work on a device, after two calls that do not count; a GPU's own clock times it."""
    for _ in range(2):
        work()
    if device.type != "cuda":
        return median_of(work, device, repeats=repeats)
    return float(np.median([_by_events(work, device) for _ in range(repeats)]))


def _by_events(work: Callable[[], object], device: torch.device) -> float:
    with torch.cuda.device(device):
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        work()  # the launches below queue up behind it, so that they take no time of their own
        start.record()
        for _ in range(QUEUED):
            work()
        end.record()
        end.synchronize()
    return start.elapsed_time(end) / 1000 / QUEUED


def _checked(device: torch.device) -> str:
    if device.type not in STREAM:
        raise ValueError(f"The memory of a '{device.type}' device cannot be timed here; use a CPU or a CUDA GPU.")
    return device.type


# -------------------------------------------------------------------------------------------------------------- models
def forward_bytes(model: HFModel) -> int:
    """Return the bytes of weights that a forward reads.

    All weights but tables of embeddings, of which it reads a few rows, unless the output layer shares the table (tied
    weights) and reads it whole. An engine that reads fewer bytes says so (`forward_bytes`).
    """
    own: int | None = getattr(model.engine, "forward_bytes", None)
    if own is not None:
        return own
    core = model.model
    output = core.get_output_embeddings()
    head = None if output is None else output.weight
    tables = {part.weight for part in core.modules() if isinstance(part, torch.nn.Embedding)} - {head}
    return sum(weight.nbytes for weight in core.parameters() if weight not in tables)


def ceilings(model: HFModel, prefix: int, bytes_per_second: float, flops: float) -> dict[str, float]:
    """Return the limits of a forward of n nodes after `prefix` tokens, in nodes per second.

    Every number that a forward reads from weights or cache is used in one multiplication and one addition per node, so
    the arithmetic intensity of n nodes is 2 n / (bytes per number) FLOP per byte.

    Returns:
        `memory`, nodes per second of a forward of one node that reads at `bytes_per_second` (n nodes: n times that),
        and `compute`, nodes per second at `flops` operations per second, whatever n; `flop_per_byte` of one node.
    """
    read, size = forward_bytes(model) + prefix * cache_bytes_per_row(model), model.dtype.itemsize
    return {"memory": bytes_per_second / read, "compute": flops * size / (2 * read), "flop_per_byte": 2 / size}
