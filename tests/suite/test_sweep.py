"""Sweeps: each configuration once, whatever stops them."""

import json
import os
import random
import re
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pandas as pd
import pytest
from suite_notebooks import wait_for

from dynatree_lib.paths import data_path
from dynatree_suite.cli.main import main
from dynatree_suite.runs import sweep as module
from dynatree_suite.runs.sweep import Sweep, read_grid, read_sweep, run_sweep

GRID = """
method: fixed-tree
options: {max_nodes: 9}
max_new_tokens: 8
grid:
  depth: [1, 2]
  branching: [[2, 1], 1]
"""


def grid(folder: Path, text: str = GRID) -> Path:
    path = folder / "grid.yml"
    path.write_text(text)
    return path


@pytest.fixture
def measured(monkeypatch):
    """Replaces measuring by a row of the axes alone, and counts the calls."""
    calls = []

    def measure(point):
        calls.append(str(point))
        if "depth=9" in str(point):
            raise RuntimeError("too deep")
        return {**dict(point.axes), "method": point.method}

    monkeypatch.setattr(module, "measure", measure)
    return calls


def test_a_sweep_measures_every_configuration_against_plain_decoding(tmp_path, capsys):
    out = tmp_path / "out"
    assert main(["sweep", str(grid(tmp_path)), "--out", str(out)]) == 0
    assert "4 of 4 configurations have a row, 0 of them from before." in capsys.readouterr().out
    frame = read_sweep(out)
    assert list(zip(frame["depth"], map(str, frame["branching"]), strict=True)) == [
        (1, "[2, 1]"), (1, "1"), (2, "[2, 1]"), (2, "1"),
    ]  # fmt: skip
    assert (frame["tokens_per_iteration"] >= 1).all()
    assert (frame["tokens"] == 8).all()
    assert frame["method"].iloc[0] == "fixed-tree:max_nodes=9,depth=1,branching=2/1"
    assert ((frame["low"] <= frame["speedup"]) & (frame["speedup"] <= frame["high"])).all()
    table = pd.read_csv(out / "sweep.csv")
    assert list(table["branching"]) == ["2/1", "1", "2/1", "1"]
    assert table["tokens_per_iteration"].tolist() == pytest.approx(frame["tokens_per_iteration"].tolist())


def test_a_stopped_sweep_goes_on_with_what_is_missing(tmp_path, measured, capsys):
    out, path = tmp_path / "out", str(grid(tmp_path))
    points = read_grid(path)
    assert main(["sweep", path, "--out", str(out)]) == 0
    files = [Sweep(out, points).file(point) for point in points]
    files[0].write_text('{"row": {"dep')  # truncated
    files[1].unlink()
    content = json.loads(files[2].read_text())
    files[2].write_text(json.dumps({**content, "library_sha256": "another library"}))
    measured.clear()
    assert main(["sweep", path, "--out", str(out)]) == 2
    assert "holds a sweep already; go on with it by --resume" in capsys.readouterr().err
    assert main(["sweep", path, "--out", str(out), "--resume", "--dry-run"]) == 0
    assert "Would measure 3 configurations" in capsys.readouterr().out
    assert not measured
    assert main(["sweep", path, "--out", str(out), "--resume"]) == 0
    assert measured == [str(point) for point in points[:3]]
    assert "4 of 4 configurations have a row, 1 of them from before." in capsys.readouterr().out
    assert len(read_sweep(out)) == 4


def test_a_row_of_one_configuration_is_not_read_as_another(tmp_path, measured):
    points = read_grid(grid(tmp_path))
    sweep = Sweep(tmp_path / "out", points)
    assert run_sweep(sweep, resume=False, say=print) == 0
    sweep.file(points[0]).write_text(sweep.file(points[1]).read_text())
    assert sweep.missing() == [points[0]]


def test_rows_of_a_pair_whose_files_changed_since_are_measured_again(tmp_path, measured):
    shutil.copytree(data_path("tiny"), tmp_path / "mine")
    path = grid(tmp_path, f"pair: {tmp_path / 'mine'}\n{GRID}")
    sweep = Sweep(tmp_path / "out", read_grid(path))
    assert run_sweep(sweep, resume=False, say=print) == 0
    assert not sweep.missing()
    (tmp_path / "mine" / "draft" / "config.json").write_text("trained once more")
    assert len(sweep.missing()) == 4


def test_one_configuration_that_fails_does_not_stop_the_others(tmp_path, measured, capsys):
    path, out = str(grid(tmp_path, GRID.replace("[1, 2]", "[9, 2]"))), tmp_path / "out"
    assert main(["sweep", path, "--out", str(out)]) == 1
    text = capsys.readouterr().out
    assert "depth=9, branching=2/1: failed: RuntimeError: too deep" in text
    assert "2 failed, 0 not measured" in text
    assert len(read_sweep(out)) == 2


def test_ctrl_c_keeps_the_rows(tmp_path, monkeypatch, capsys):
    def measure(point):
        if point.axes[0] == ("depth", 2):
            raise KeyboardInterrupt
        return dict(point.axes)

    monkeypatch.setattr(module, "measure", measure)
    assert main(["sweep", str(grid(tmp_path)), "--out", str(tmp_path / "out")]) == 130
    assert "0 failed, 2 not measured; the same command with --resume" in capsys.readouterr().out
    assert len(pd.read_csv(tmp_path / "out" / "sweep.csv")) == 2


def test_an_axis_that_was_fixed_before_is_in_the_rows_of_before(tmp_path, measured):
    out = tmp_path / "out"
    first = read_grid(grid(tmp_path))
    assert run_sweep(Sweep(out, first), resume=False, say=print) == 0
    text = GRID.replace("max_new_tokens: 8\n", "").replace("grid:", "grid:\n  max_new_tokens: [8, 9]")
    sweep = Sweep(out, read_grid(grid(tmp_path, text)))
    assert len(sweep.missing()) == 4
    assert run_sweep(sweep, resume=True, say=print) == 0
    assert sweep.frame()["max_new_tokens"].tolist() == [8] * 4 + [9] * 4
    assert read_sweep(out)["library"].all()


def test_a_worker_that_died_after_its_row_does_not_measure_it_again(tmp_path, measured):
    sweep = Sweep(tmp_path / "out", read_grid(grid(tmp_path)))
    assert [sweep.attempt(sweep.points[0]) for _ in range(2)] == ["", ""]
    assert len(measured) == 1


class Elsewhere:
    """A client of one worker, which does the first task that it gets; what becomes of others is given."""

    def __init__(self, rest):
        self.rest, self.status, self.cluster = rest, "running", None
        self.sent, self.cancelled, self.workers = 0, [], {"tcp://far:1": {"nthreads": 1, "resources": {}}}

    def submit(self, function, *args, **how):
        self.sent += 1
        return Task(function(*args)) if self.sent == 1 else self.rest(self)

    def scheduler_info(self, n_workers):
        return {"workers": self.workers}

    def cancel(self, futures, force):
        self.cancelled += futures


@dataclass(eq=False)
class Task:
    found: str | None = None
    status: str = "finished"

    def done(self):
        return self.status != "pending"

    def cancelled(self):
        return self.status == "cancelled"

    def result(self):
        return self.found


def test_a_scheduler_that_dies_leaves_the_rows_and_the_table(tmp_path, measured):
    def lost(client):
        client.status = "closed"
        return Task(status="cancelled")

    said, client = [], Elsewhere(lost)
    sweep = Sweep(tmp_path / "out", read_grid(grid(tmp_path)))
    assert run_sweep(sweep, resume=False, say=said.append, client=client) == 1
    assert said[0].startswith("[1/4] depth=1, branching=2/1: done")
    assert said[1].startswith("[2/4] depth=1, branching=1: failed: the connection to the scheduler was lost")
    assert said[2:4] == ["The scheduler is gone.", "1 of 4 configurations have a row, 0 of them from before."]
    assert "1 failed, 2 not measured; the same command with --resume" in said[-1]
    assert len(pd.read_csv(tmp_path / "out" / "sweep.csv")) == 1
    assert not client.cancelled  # nobody is there to be told


def test_that_no_worker_is_left_is_said(tmp_path, measured, monkeypatch):
    from dynatree_suite.runs import cluster

    def gone(client):
        client.workers = {}
        return Task(status="pending")

    said, client = [], Elsewhere(gone)
    monkeypatch.setattr(cluster, "EVERY", 0.0)

    def say(line):
        said.append(line)
        if line == cluster.NO_WORKER:
            raise KeyboardInterrupt

    assert run_sweep(Sweep(tmp_path / "out", read_grid(grid(tmp_path))), resume=False, say=say, client=client) == 130
    assert said[0].startswith("[1/4] depth=1, branching=2/1: done")
    assert said[1] == "No worker is left; the run goes on when one comes, or stop it by Ctrl-C."
    assert len(client.cancelled) == 1
    assert "0 failed, 3 not measured" in said[-1]


def test_two_sweeps_into_one_folder_are_refused(tmp_path, measured, capsys):
    from dynatree_suite.files import sole_run

    path, out = str(grid(tmp_path)), tmp_path / "out"
    with sole_run(out):
        assert main(["sweep", path, "--out", str(out)]) == 2
    assert "Another run works in" in capsys.readouterr().err
    assert not measured


def test_the_grid_of_the_paper_has_its_450_configurations():
    from dynatree_suite.papers.published import published

    points = read_grid("dynatree-fixed")
    ours = {(p.setting.max_new_tokens, *(value for name, value in p.axes if name != "max_new_tokens")) for p in points}
    logged = published("dynatree-fixed").log("sweep").rows
    assert ours == {(row["new_tokens"], row["D"] + 1, row["B"], row["tau"]) for row in logged}
    assert len(points) == len(logged) == 450


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("grid: {depth: [1]}", "names no method"),
        ("method: fixed-tree\ngrid: [1]", "'grid' of .* write it as name: value pairs"),
        ("method: fixed-tree\ngrid: {depth: 3}", "axis 'depth' .* is 3; give a list"),
        ("method: fixed-tree\ngrid: {depth: []}", "give a list of at least one value"),
        ("method: fixed-tree\ngrid: {deepness: [3]}", "has no option 'deepness'"),
        ("method: fixed-trees\ngrid: {depth: [3]}", "no method 'fixed-trees'"),
        ("method: fixed-tree\ngrid: {depth: [0]}", "depth is 0"),
        ("method: fixed-tree\ngrid: {depth: [2, 2]}", "same configuration twice"),
        ("method: fixed-tree\noptions: {depth: 2}\ngrid: {depth: [2]}", "an axis and a fixed value"),
        ("method: fixed-tree\nseed: 1\ngrid: {seed: [2]}", "an axis and a fixed value"),
        ("method: fixed-tree\nlimits: 3", "has the key 'limits'"),
        ("method: fixed-tree\nlimit: 2.5", "limit is 2.5; give a whole number"),
        ("method: fixed-tree\nlimit: true", "limit is True"),
        ("method: fixed-tree\ngrid: {max_new_tokens: [8, many]}", "max_new_tokens is 'many'"),
        ("method: fixed-tree\nworkload: gsm", "no workload 'gsm'"),
        ("method: fixed-tree\ntemperature: warm", "temperature is 'warm'"),
        ("method: fixed-tree\ntemperature: -1", "temperature"),
        ("method: ar-fast", "compared with itself"),
        ("method: fixed-tree\npair: 3", "pair is 3; give a name"),
        ("method: fixed-tree\npair: no-such-pair", "no-such-pair"),
        ("method: fixed-tree\nengine: warp", "engine"),
        ("method: fixed-tree\ndtype: float13", "float13"),
        ("method: fixed-tree\nagainst: 3", "against is 3; give a name"),
        ("method: fixed-tree\ngrid: {max_new_tokens: [8, 99999]}", "max_new_tokens is 99999 and the context"),
        ("method: fixed-tree:verifier=block\ntemperature: 1", "cannot run"),
        ("method: fixed-tree\ngrid: {temperature: [0, 0.0]}", "same configuration twice"),
        ("method: fixed-tree\ngrid: {temperature: [0, -0.0]}", "same configuration twice"),
        ("method: fixed-tree\nmethod: chain", "it has 'method' twice"),
        ("method: fixed-tree\ngrid: {depth: [1], depth: [2]}", "it has 'depth' twice"),
        ("- a list", "holds a list"),
        ("method: [", "is no YAML"),
        ("method: fixed-tree\nrepeats: !!bool maybe", "is no YAML"),
        ("method: fixed-tree\nseed: !!int ''", "is no YAML"),
        ("method: fixed-tree\nseed: !!timestamp x", "is no YAML"),
        (f"method: {'[' * 500}", "is no YAML"),
        ("", "holds a NoneType"),
    ],
)
def test_a_grid_that_cannot_be_measured(tmp_path, capsys, text, words):
    path = grid(tmp_path, text)
    with pytest.raises(ValueError, match=words):
        read_grid(path)
    assert main(["sweep", str(path), "--out", str(tmp_path / "out")]) == 2
    assert not (tmp_path / "out").exists()
    capsys.readouterr()


@pytest.mark.parametrize("harm", [lambda out: (out / "rows").touch(), lambda out: (out / "sweep.csv").mkdir(),
                                  lambda out: (out / "rows").symlink_to(out / "none")])  # fmt: skip
def test_a_place_that_no_row_can_be_written_to_is_named_before_any_is_measured(tmp_path, measured, capsys, harm):
    path, out = grid(tmp_path, "method: fixed-tree\ngrid: {depth: [1, 2]}"), tmp_path / "out"
    out.mkdir()
    harm(out)
    assert main(["sweep", str(path), "--out", str(out)]) == 2
    assert re.search("(rows: File exists|sweep.csv is no regular file).*; give another", capsys.readouterr().err)
    assert not measured


def test_what_is_no_grid_and_no_sweep(tmp_path):
    with pytest.raises(ValueError, match=r"There is no file nowhere.yml; .* \(dynatree-fixed\)"):
        read_grid("nowhere.yml")
    with pytest.raises(ValueError, match=r"holds no sweep \(sweep.json is missing\)"):
        read_sweep(tmp_path)


@pytest.mark.parametrize(
    ("head", "words"),
    [("{}", "has no grid"), ('{"grid": 3}', "something else than the suite writes as 'grid'"), ("[", "truncated")],
)
def test_a_damaged_sweep_is_not_read(tmp_path, head, words):
    (tmp_path / "sweep.json").write_text(head)
    with pytest.raises(ValueError, match=words):
        read_sweep(tmp_path)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_three_kills_and_each_configuration_once(tmp_path):
    axes = {"ngram": [1, 2, 3], "length": [1, 2, 3, 4, 5], "seed": list(range(6))}
    text = "method: prompt-lookup\nmax_new_tokens: 1\nagainst: ar\ngrid:\n" + "".join(
        f"  {name}: {values}\n" for name, values in axes.items()
    )
    path, out, chance = grid(tmp_path, text), tmp_path / "out", random.Random(0)
    command = [
        sys.executable,
        "-m",
        "dynatree_suite",
        "sweep",
        str(path),
        "--out",
        str(out),
        "--resume",
        "--workers",
        "2",
    ]
    counts = []
    for _ in range(3):
        process = subprocess.Popen(
            command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True
        )
        wanted = len(list(out.glob("rows/*.json"))) + chance.randint(4, 24)
        wait_for(lambda wanted=wanted: len(list(out.glob("rows/*.json"))) >= wanted, 180)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        counts.append(len(list(out.glob("rows/*.json"))))
    stamps = {file.name: file.stat().st_mtime_ns for file in out.glob("rows/*.json")}
    done = subprocess.run(command, capture_output=True, text=True, timeout=500, check=False)
    assert done.returncode == 0, done.stderr
    frame = read_sweep(out)
    assert len(frame) == 90 == len(pd.read_csv(out / "sweep.csv"))
    assert not frame.duplicated(list(axes)).any()
    valid = [name for name, stamp in stamps.items() if (out / "rows" / name).stat().st_mtime_ns == stamp]
    assert len(valid) >= counts[-1] - 2  # a worker that outlived the run by a moment may have been writing
