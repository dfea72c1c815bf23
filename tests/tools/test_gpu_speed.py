"""The tool that measures a GPU, run from end to end on the CPU with small shapes."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from dynatree_suite.bench.protocol import read_results
from dynatree_suite.bench.statistics import ratio
from dynatree_suite.files import sole_run
from tools import gpu_speed
from tools.fill_tables import filled
from tools.gpu_speed import CAPTIONS, Record, goals, main

ROOT = Path(__file__).resolve().parents[2]
H200, H100 = (ROOT / "outputs" / "reference" / name for name in ("h200", "h100"))


@pytest.fixture
def told(monkeypatch):
    lines = []
    monkeypatch.setattr(gpu_speed, "progress", lines.append)
    return lines


@pytest.mark.slow
def test_it_runs_from_end_to_end_and_a_failure_loses_nothing(tmp_path, monkeypatch, told):
    monkeypatch.setattr(gpu_speed, "METHODS_MEASURED", "hf-generate,ar,ar-fast,chain:length=4")
    monkeypatch.setattr(gpu_speed, "attention", _broken)
    assert main([str(tmp_path), "--device", "cpu", "--dtype", "float32", "--tiny"]) == 1
    body = json.loads((tmp_path / "gpu_speed.json").read_text(encoding="utf-8"))
    assert body["attention"]["error"] == "RuntimeError: no attention today"
    assert "gpu_speed: attention failed: RuntimeError: no attention today" in told
    assert set(body) == {*CAPTIONS, "environment", "plan", "dtype", "device", "models"}
    assert all("random weights" in body[name]["caption"] for name in ("memory", "plain", "iterations", "costs"))
    assert body["agreement"]["rows"]["finite"]
    assert body["agreement"]["rows"]["largest_difference"] < 1e-4
    for row in body["plain"]["rows"]:
        assert row["ar_fast"] > row["bound"] > 0
    for row in body["iterations"]["rows"]:
        assert row["nodes"] > 10
        assert sum(row["shares"].values()) == pytest.approx(1)
    assert {row["model"] for row in body["forwards"]["rows"]} == {"eager", "lean", "static", "static, no graphs"}
    assert "error" not in body["methods"]
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


@pytest.fixture
def stub(monkeypatch, told, tmp_path):
    """Replaces measuring by the number of the call, and returns the command into a folder, which gives the record."""
    calls = iter(range(100))

    def shapes(record, *_):
        for name in gpu_speed._MEASURED["shapes"]:
            record.take(name, lambda: next(calls))

    monkeypatch.setattr(gpu_speed, "measure_shapes", shapes)
    for name in ("methods", "as_loaded", "joined", "goals"):
        monkeypatch.setattr(gpu_speed, name, lambda *_: next(calls))

    def run(*options):
        main([str(tmp_path), "--device", "cpu", "--tiny", *options])
        return json.loads((tmp_path / "gpu_speed.json").read_text(encoding="utf-8"))

    return run


def test_another_pair_s_numbers_are_not_kept(stub, tmp_path):
    mine = tmp_path / "mine"
    for role in ("target", "draft"):
        (mine / role).mkdir(parents=True)
        (mine / role / "config.json").write_text(role)
    stub("--parts", "shapes,pair")
    with pytest.raises(ValueError, match="holds 'methods' of the pair 'tiny', and '.*/mine' is another"):
        stub("--parts", "as_loaded", "--pair", str(mine))
    first = stub("--parts", "pair", "--pair", str(mine), "--again")
    assert first["methods"]["pair"]["files"].keys() == {"draft/config.json", "target/config.json"}
    assert stub("--parts", "pair", "--pair", str(mine))["methods"] == first["methods"]
    (mine / "draft" / "config.json").write_text("trained once more")
    with pytest.raises(ValueError, match="is another, or its files are; give another folder"):
        stub("--parts", "pair", "--pair", str(mine))


def test_again_measures_the_parts_asked_for_and_keeps_the_others(stub, monkeypatch):
    first = stub()
    second = stub("--parts", "pair", "--again")
    changed = {name for name in CAPTIONS if first[name] != second[name]}
    assert changed == {"methods", "joined", "goals"}  # what follows from measurements is computed each time
    with pytest.raises(ValueError, match="holds 'memory' measured with other sizes"):
        stub("--parts", "pair", "--again", "--tokens", "9")
    monkeypatch.setattr(gpu_speed, "describe_environment", lambda: {"cpu": "another"})
    with pytest.raises(ValueError, match="on another device or machine or at another commit"):
        stub()
    assert stub("--again")["environment"] == {"cpu": "another"}


@pytest.mark.parametrize("content", ["[]", "{", '{"methods": 3}'])
def test_a_damaged_record_is_told_in_a_sentence(stub, tmp_path, content):
    (tmp_path / "gpu_speed.json").write_text(content)
    with pytest.raises(ValueError, match="is damaged, or no record of tools.gpu_speed; move it away"):
        stub()


PYTHON = """#!/usr/bin/env bash
echo "${2##*.} ${*:3}" >> "$LOG"
if [ "$2" = tools.pair_training ]; then
  mkdir -p "$OUT/work" && touch "$OUT/work/begun.json"
  [ -f "$OUT/stop" ] && exit 1
  mkdir -p "$OUT/pythia-160m-14m" && touch "$OUT/pythia-160m-14m/card.json"
fi
"""


def test_a_training_that_stopped_goes_on_and_no_other_pair_is_measured_in_its_place(tmp_path):
    out, log, python = tmp_path / "out", tmp_path / "log", tmp_path / "bin" / "python3"
    out.mkdir()
    python.parent.mkdir()
    python.write_text(PYTHON)
    python.chmod(0o755)
    environment = {**os.environ, "PATH": f"{python.parent}:{os.environ['PATH']}", "OUT": str(out), "LOG": str(log)}

    def run():
        log.unlink(missing_ok=True)
        command = [ROOT / "tools" / "gpu_speed.sh", str(out), str(tmp_path)]
        code = subprocess.run(command, env=environment, check=False, capture_output=True).returncode
        return code, log.read_text().splitlines()

    (out / "stop").touch()
    code, called = run()
    assert code == 1
    assert [line.split()[0] for line in called] == ["gpu_speed", "pair_training"]
    assert (out / "work" / "begun.json").is_file()
    (out / "stop").unlink()
    code, called = run()
    assert code == 0
    assert called[1].endswith("--resume")
    assert called[2].endswith(f"--parts pair,joined --pair {out / 'pythia-160m-14m'}")
    assert not (out / "work").exists()


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


def test_two_runs_into_one_folder_are_refused(tmp_path):
    with sole_run(tmp_path), pytest.raises(RuntimeError, match="Another run works in"):
        main([str(tmp_path), "--device", "cpu", "--tiny"])
    assert not (tmp_path / "gpu_speed.json").exists()


def test_mistakes_are_told_before_anything_is_made(tmp_path):
    with pytest.raises(ValueError, match="no part 'shape'"):
        main([str(tmp_path / "new"), "--parts", "shape"])
    with pytest.raises(ValueError, match="sees no CUDA device"):
        main([str(tmp_path / "new")])
    with pytest.raises(RuntimeError, match="device type.*: gpu"):
        main([str(tmp_path / "new"), "--device", "gpu"])
    with pytest.raises(ValueError, match="no pair named 'big'"):
        main([str(tmp_path / "new"), "--device", "cpu", "--pair", "big"])
    assert not (tmp_path / "new").exists()
    (tmp_path / "FILE").touch()
    with pytest.raises((ValueError, OSError), match="FILE"):
        main([str(tmp_path / "FILE"), "--device", "cpu", "--tiny"])


# ------------------------------------------------------------------------------------------------------- what was found
def test_the_page_says_what_the_records_say():
    page = (ROOT / "docs" / "gpu.md").read_text(encoding="utf-8")
    assert filled(page, ROOT / "docs") == page
    told, body = " ".join(page.split()), json.loads((H200 / "gpu_speed.json").read_text(encoding="utf-8"))
    took = {(row["model"], row["prefix"], row["rows"]): row["milliseconds"] for row in body["forwards"]["rows"]}
    layers, single = body["models"]["target"]["layers"], took["static", 128, 1]
    assert f"A layer takes {took['eager', 128, 1] / layers:.2f} ms in transformers' forward" in told
    bound = 1000 * body["plain"]["rows"][0]["bound"] / layers
    assert f"{single / layers:.2f} ms in a graph, {bound:.2f} ms of which are the reading" in told
    more = [took["static", prefix, 64] / took["static", prefix, 1] for prefix in (128, 1024)]
    assert f"64 nodes takes {more[0]:.2f} times as long as one of 1, after 1,024 tokens {more[1]:.2f} times" in told
    overheads = [row["overhead"] for row in body["growth"]["rows"]]
    assert f"takes {min(overheads):.2f} to {max(overheads):.2f} ms beyond its forward" in told
    plain = max(row["ar_fast_over_bound"] for row in body["plain"]["rows"])
    assert f"{plain:.1f} times the time of reading the weights (goal: 1.4)" in told
    memory = body["memory"]["rows"]["trees_over_both"]["reserved"]
    assert f"{memory:.1f} times the memory of plain decoding (goal: 1.05)" in told


def test_the_page_says_what_smollm2_did():
    told = " ".join((ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").split())
    results = read_results(H100 / "smollm2-bfloat16.jsonl.gz")
    stored = json.loads((H100 / "smollm2-bfloat16.json").read_text(encoding="utf-8"))
    rows = {one["label"]: one for one in results.summaries()}
    for one in stored["methods"]:
        assert rows[one["label"]]["tokens_per_second"] == pytest.approx(one["tokens_per_second"])
        assert rows[one["label"]]["identical"] == one["identical"]
    gains = [rows[name]["speedup_hf_generate"] for name in ("ar", "prompt-lookup")]
    assert (
        f"{gains[0]:.1f} times as many tokens as `hf-generate` by CUDA graphs alone, and {gains[1]:.1f} times" in told
    )
    each = {name: 1000 * rows[name]["tokens_per_iteration"] / rows[name]["tokens_per_second"]
            for name in ("ar", "fixed-tree", "prompt-lookup")}  # fmt: skip
    over = each["fixed-tree"] / each["ar"]
    assert f"{over:.1f} times as long as one of `ar` ({each['fixed-tree']:.1f} ms against {each['ar']:.1f})" in told
    assert f"prompt lookup only {each['prompt-lookup'] / each['ar']:.1f} times" in told
    assert [label for label, one in rows.items() if one["speedup_ar_fast"] < 1 and not label.startswith("hf-")] == [
        "chain", "best-first-tree"
    ]  # fmt: skip
    same = [int(one["identical"].split("/")[0]) for label, one in rows.items() if label != "hf-generate"]
    assert f"In bfloat16 {min(same)} to {max(same)} of 13 are" in told


def test_the_page_says_what_smollm2_did_in_float32():
    told = " ".join((ROOT / "docs" / "gpu.md").read_text(encoding="utf-8").split())
    results = read_results(H100 / "smollm2-float32.jsonl.gz")
    frame, rows = results.records.frame(), results.summaries()
    assert {row["identical"] for row in rows} == {"14/14"}
    assert f"by each of the {len(rows) - 1} other methods" in told
    speeds = [ratio(frame, name, over="ar-fast") for name in ("token-recycling", "prompt-lookup")]
    assert "token recycling runs at {} of `ar-fast`, prompt lookup at {}".format(*speeds) in told
