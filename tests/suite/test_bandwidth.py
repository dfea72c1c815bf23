"""The speed of memory and arithmetic, and what a forward reads: sizes by hand, speeds above nothing."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from models import VOCABULARY, random_model

from dynatree_suite.bench import bandwidth
from dynatree_suite.bench.bandwidth import (
    REPEATS,
    ceilings,
    forward_bytes,
    matmul_flops,
    measure_bandwidth,
    median_seconds,
)
from dynatree_suite.bench.clock import median_of
from dynatree_suite.bench.environment import cache_bytes_per_row, weight_bytes

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(bandwidth, "STREAM", {"cpu": 2**18})
    monkeypatch.setattr(bandwidth, "SIDE", {"cpu": 32})


def test_a_buffer_of_the_weights_size_and_a_larger_one():
    found = measure_bandwidth(CPU, 2**14, "after")
    assert [(one.size, one.when) for one in found] == [(2**14, "after"), (2**18, "after")]
    assert all(one.read > 0 and one.copy > 0 for one in found)
    assert [one.size for one in measure_bandwidth(CPU, 2**30)] == [2**18]  # larger weights stream, as the buffer does


def test_copying_counts_what_is_read_and_what_is_written(monkeypatch):
    monkeypatch.setattr(bandwidth, "median_seconds", lambda work, device: 2.0)
    small, _ = measure_bandwidth(CPU, 1024)
    assert (small.read, small.copy) == (512, 1024)


def test_the_median_leaves_out_the_first_calls(monkeypatch):
    now, times = [0.0], iter([100.0, 100.0, *range(REPEATS)])
    monkeypatch.setattr(bandwidth, "median_of", partial(median_of, clock=lambda: now[0]))

    def work():
        now[0] += next(times)

    assert median_seconds(work, CPU) == (REPEATS - 1) / 2
    assert next(times, None) is None


def test_another_device_is_refused():
    with pytest.raises(ValueError, match="'meta' device cannot be timed"):
        measure_bandwidth(torch.device("meta"), 1024)
    with pytest.raises(ValueError, match="use a CPU or a CUDA GPU"):
        matmul_flops(torch.device("meta"), torch.float32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_product_of_any_type_has_a_speed(dtype):
    assert matmul_flops(CPU, dtype) > 0


def test_a_forward_reads_all_but_the_tables_it_looks_rows_up_in():
    untied, tied = random_model("gpt_neox"), random_model("gpt2")
    width, size = 32, 8  # hidden numbers, bytes of a float64
    assert forward_bytes(untied) == 8 * untied.parameters - VOCABULARY * width * size
    positions = tied.context * width * size
    assert forward_bytes(tied) == 8 * tied.parameters - positions  # the output reads the whole table of tokens
    assert forward_bytes(tied) < weight_bytes(tied)
    assert forward_bytes(untied) == sum(
        weight.nbytes for name, weight in untied.model.named_parameters() if "embed_in" not in name
    )


def test_the_ceilings_meet_where_arithmetic_takes_as_long_as_reading():
    model = random_model("gpt_neox")
    found = ceilings(model, 100, 1e9, 4e9)
    read = forward_bytes(model) + 100 * cache_bytes_per_row(model)
    assert found["memory"] == pytest.approx(1e9 / read)
    assert found["compute"] == pytest.approx(4e9 / (2 * read / 8))  # two operations with each number of eight bytes
    knee = found["compute"] / found["memory"]
    assert knee * found["flop_per_byte"] == pytest.approx(4.0)  # FLOP per byte of this machine
