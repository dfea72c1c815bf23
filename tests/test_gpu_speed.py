"""The GPU's measuring command, run from end to end on the CPU with small shapes."""

from __future__ import annotations

import argparse
import json

import pytest

from dynatree_lib.cli import gpu as command
from dynatree_lib.cli import options
from dynatree_lib.experiments import gpu as gpu_speed
from dynatree_lib.experiments.gpu import CAPTIONS, Record, goals


def main(arguments):
    parser = argparse.ArgumentParser()
    options.gpu(parser)
    return command.main(parser.parse_args(arguments))


@pytest.fixture
def told(monkeypatch):
    lines = []
    monkeypatch.setattr(gpu_speed, "progress", lines.append)
    return lines


def test_it_runs_from_end_to_end_and_a_failure_loses_nothing(tmp_path, monkeypatch, told):
    monkeypatch.setattr(gpu_speed, "METHODS_MEASURED", "hf-generate,ar,ar-fast,chain:length=4")
    monkeypatch.setattr(gpu_speed, "attention", _broken)
    assert main([str(tmp_path), "--device", "cpu", "--dtype", "float32", "--tiny"]) == 1
    body = json.loads((tmp_path / "gpu_speed.json").read_text(encoding="utf-8"))
    assert body["attention"]["error"] == "RuntimeError: no attention today"
    assert "gpu_speed: attention failed: RuntimeError: no attention today" in told
    assert set(body) == {*CAPTIONS, "environment", "plan", "dtype", "models"}
    assert all("random weights" in body[name]["caption"] for name in ("memory", "plain", "iterations", "costs"))
    assert body["agreement"]["rows"]["finite"]
    assert body["agreement"]["rows"]["largest_difference"] < 1e-4
    for row in body["plain"]["rows"]:
        assert row["ar_fast"] > row["bound"] > 0
    for row in body["iterations"]["rows"]:
        assert row["nodes"] > 10
        assert sum(row["shares"].values()) == pytest.approx(1)
    assert {row["model"] for row in body["forwards"]["rows"]} == {"eager", "lean", "static", "static, no graphs"}
    measured = {one["label"]: one for one in body["methods"]["rows"]["results"]["methods"]}
    assert {one["identical"] for one in measured.values()} == {"2/2"}
    joined = {row["method"]: row for row in body["joined"]["rows"]}
    assert set(joined) == {"ar", "chain:length=4", "cost-aware-tree, measured costs", "lookup-tree, measured costs"}
    for label, row in joined.items():
        assert row["tokens_per_iteration"] == pytest.approx(measured[label]["tokens_per_iteration"])


def _broken(*args):
    raise RuntimeError("no attention today")


def test_a_measurement_without_what_it_needs_says_so(tmp_path, told):
    record = Record(tmp_path / "x.json", {"plain": {"error": "no"}})
    record.take("joined", lambda: record.rows("plain"))
    assert record.failed == ["joined"]
    assert "needs the measurement 'plain', which x.json does not hold" in record.body["joined"]["error"]


def test_goals_come_from_the_measurements(tmp_path):
    speeds = {"hf-generate": (10, {}), "ar-fast": (90, {}), "ar": (80, {"commit": ""}), "chain": (70, {"commit": ""})}
    methods = {"methods": [{"label": name, "method": name, "tokens_per_second": speed, "options": options}
                           for name, (speed, options) in speeds.items()]}  # fmt: skip
    body = {
        "plain": {"rows": [{"ar_fast_over_bound": 1.2}, {"ar_fast_over_bound": 1.5}]},
        "methods": {"rows": {"results": methods}},
        "memory": {"error": "OutOfMemoryError"},
    }
    measured = [row["measured"] for row in goals(Record(tmp_path / "x.json", body))]
    assert measured == [1.5, None, None, None, pytest.approx(7 / 9), 7.0]


def test_mistakes_are_told_before_anything_is_made(tmp_path):
    with pytest.raises(ValueError, match="no part 'shape'"):
        main([str(tmp_path / "new"), "--parts", "shape"])
    with pytest.raises(ValueError, match="sees no CUDA device"):
        main([str(tmp_path / "new")])
    assert not (tmp_path / "new").exists()
