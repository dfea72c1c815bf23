"""Running notebooks: receipts, resuming, failures, and what survives each of them."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest
from jupyter_client.connect import LocalPortCache
from suite_notebooks import cells_here, records_notebook, wait_for, write_notebook

from dynatree_suite.cli.main import main
from dynatree_suite.runs import receipts
from dynatree_suite.runs import run as running
from dynatree_suite.runs.run import default_out, describe_failure

pytest.importorskip("papermill")
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def run(tmp_path, capsys):
    """Run `dynatree run` on tmp_path/notebooks into tmp_path/out; returns exit code and what it printed."""

    def call(*options):
        code = main(["run", "--notebooks", str(tmp_path / "notebooks"), "--out", str(tmp_path / "out"), *options])
        captured = capsys.readouterr()
        return code, captured.out + captured.err

    call.notebooks, call.out = tmp_path / "notebooks", tmp_path / "out"
    return call


@pytest.fixture
def quick(run, monkeypatch):
    """`run`, with cells that run in this process."""
    monkeypatch.setattr(running, "run_papermill", cells_here)
    return run


def receipt(run, name):
    return json.loads((run.out / f"{name}.receipt.json").read_text())


def test_a_finished_notebook_has_a_receipt(run):
    records_notebook(run.notebooks, "10_x", about={"title": "X", "headline": True})
    code, text = run("--profile", "smoke", "-p", "seed=1")
    assert code == 0, text
    found = receipt(run, "10_x")
    assert found["parameters"] == {"profile": "smoke", "seed": 1}
    assert found["executed_sha256"] == receipts.sha256_of(run.out / "10_x.ipynb")
    assert list(found["written"]) == ["records/10_x/speed.jsonl"]
    assert len((run.out / "records/10_x/speed.jsonl").read_text().splitlines()) == 2  # the override arrived
    assert found["seconds"] > 0
    assert not list(run.out.glob("*.partial*"))
    assert str(run.out) not in json.dumps(json.loads((run.out / "10_x.ipynb").read_text())["metadata"])


def test_braces_in_a_folder_s_name_are_letters(run, tmp_path):
    records_notebook(run.notebooks, "10_x")
    run.out = tmp_path / "{profile}" / "{a} {0}"
    code, text = run("--out", str(run.out), "--profile", "smoke")
    assert code == 0, text
    assert receipt(run, "10_x")["profile"] == "smoke"
    assert {path.name for path in tmp_path.iterdir()} == {"notebooks", "{profile}"}


def test_kernels_know_profile_folder_root_and_library(run):
    write_notebook(
        run.notebooks,
        "10_x",
        "import os, pathlib",
        "assert profile == os.environ['DYNATREE_PROFILE'] == 'smoke'",
        f"assert os.environ['DYNATREE_OUT'] == {str(run.out)!r}",
        f"assert pathlib.Path(os.environ['DYNATREE_ROOT']) == pathlib.Path({str(ROOT)!r})",
        f"import importlib.util as u\nassert u.find_spec('dynatree_lib').origin.startswith({str(ROOT)!r})",
    )
    before = dict(os.environ)
    code, text = run("--profile", "smoke")
    assert code == 0, text
    assert dict(os.environ) == before


@pytest.mark.parametrize("room", ["short", "too long for a socket"])
def test_a_kernel_whose_ports_another_took_runs_where_sockets_are_files(run, tmp_path, monkeypatch, room):
    """Two kernels that start at once may be given the same TCP port; the second dies as it binds it."""
    write_notebook(run.notebooks, "10_x", "print('ran')")
    short = room == "short"
    folder = Path(tempfile.mkdtemp()) if short else tmp_path / ("t" * 80)
    folder.mkdir(exist_ok=True)
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        monkeypatch.setattr(LocalPortCache, "find_available_port", lambda *_: taken)
        code, text = run("--profile", "smoke")
    assert (code == 0) == short, text
    assert ("Kernel died" in text) == (not short), text
    assert not list(folder.iterdir())


def test_resume_redoes_only_what_changed(quick):
    for name in ("10_x", "20_y", "30_z"):
        records_notebook(quick.notebooks, name)
    assert quick()[0] == 0
    first = {name: receipt(quick, name)["started"] for name in ("10_x", "20_y", "30_z")}
    write_notebook(quick.notebooks, "20_y", "print('edited')")
    (quick.out / "30_z.receipt.json").write_text('{"schema": 1, "note')  # truncated
    code, text = quick("--resume")
    assert code == 0
    assert "10_x: kept" in text
    assert "20_y: running again, because the notebook changed since" in text
    assert "30_z: running again, because its receipt cannot be read: 30_z.receipt.json is truncated" in text
    assert receipt(quick, "10_x")["started"] == first["10_x"]
    assert not (quick.out / "records/20_y").exists()  # the old records do not pass for the new notebook's


@pytest.fixture(scope="module")
def two_finished(tmp_path_factory):
    """A folder with two notebooks and, in `out`, what running the first and then the second wrote."""
    folder = tmp_path_factory.mktemp("finished")
    for name in ("10_x", "20_y"):
        records_notebook(folder / "notebooks", name)
    monkeypatch = pytest.MonkeyPatch()
    monkeypatch.setattr(running, "run_papermill", cells_here)
    for name in ("10_x", "20_y"):
        options = ["--notebooks", str(folder / "notebooks"), "--out", str(folder / "out"), "--only", name]
        assert main(["run", *options]) == 0
    monkeypatch.undo()
    return folder


@pytest.mark.parametrize(
    ("harm", "words"),
    [
        (lambda out: (out / "records/10_x/speed.jsonl").write_text('{"x"'), "speed.jsonl is truncated or was altered"),
        (lambda out: (out / "records/10_x/speed.jsonl").unlink(), "speed.jsonl is missing"),
        (lambda out: (out / "10_x.ipynb").write_text("{}"), "10_x.ipynb is truncated or was altered"),
        (lambda out: (out / "10_x.receipt.json").write_text("[]"), "holds a list where a JSON object belongs"),
        (lambda out: (out / "10_x.receipt.json").write_text('{"schema": 0}'), "another version of the suite"),
        (lambda out: (out / "10_x.receipt.json").write_bytes(b"\xff\xfe"), "is truncated or not JSON"),
    ],
)
def test_damage_is_named_and_only_that_notebook_runs_again(run, two_finished, harm, words):
    shutil.copytree(two_finished, run.out.parent, dirs_exist_ok=True)
    harm(run.out)
    code, text = run("--resume", "--dry-run")
    assert code == 0
    assert words in text
    assert "1 to run" in text


def test_resume_notices_library_data_and_parameters(quick, monkeypatch):
    records_notebook(quick.notebooks, "10_x")
    assert quick()[0] == 0
    assert "its parameters changed" in quick("--resume", "--dry-run", "-p", "seed=4")[1]
    monkeypatch.setattr(receipts, "library_sha256", lambda: "other")
    assert "the library changed" in quick("--resume", "--dry-run")[1]
    monkeypatch.setattr(receipts, "data_sha256", lambda: "other")
    assert "the library and the data changed" in quick("--resume", "--dry-run")[1]
    there = receipts.fetched("smollm2")
    monkeypatch.setattr(receipts, "fetched", lambda name: None if there else quick.out)
    assert "the data and which models are fetched changed" in quick("--resume", "--dry-run")[1]


def test_resume_notices_the_files_of_a_pair_of_one_s_own(quick, tmp_path):
    config = tmp_path / "mine" / "target" / "config.json"
    config.parent.mkdir(parents=True)
    config.write_text("first")
    write_notebook(quick.notebooks, "10_x", parameters="pair = None")
    options = ["-p", f"pair={tmp_path / 'mine'}"]
    assert quick(*options)[0] == 0
    assert "10_x: kept" in quick("--resume", *options)[1]
    config.write_text("trained once more")
    assert "the files of its pair changed" in quick("--resume", "--dry-run", *options)[1]


REFERENCE = "from dynatree_suite.runs.notebook import begin\nbegin('10_x', profile='smoke').reference('speed.json')"


def test_resume_notices_a_record_of_outputs_reference_that_changed(quick, tmp_path, monkeypatch):
    monkeypatch.setenv("DYNATREE_ROOT", str(tmp_path))
    record = tmp_path / "outputs" / "reference" / "speed.json"
    record.parent.mkdir(parents=True)
    record.write_text("first")
    write_notebook(quick.notebooks, "10_x", REFERENCE)
    assert quick()[0] == 0
    assert receipt(quick, "10_x")["references"] == [{"name": "speed.json", "sha256": receipts.sha256_of(record)}]
    assert "10_x: kept" in quick("--resume")[1]
    record.write_text("measured once more")
    assert "outputs/reference/speed.json changed since" in quick("--resume", "--dry-run")[1]
    record.unlink()
    assert "outputs/reference/speed.json is gone" in quick("--resume", "--dry-run")[1]


def test_a_notebook_or_library_that_changes_while_it_runs_is_no_result(quick, monkeypatch):
    path = quick.notebooks / "10_x.ipynb"
    write_notebook(quick.notebooks, "10_x", f"path = {str(path)!r}", "open(path, 'w').close()")
    records_notebook(quick.notebooks, "20_y")
    code, text = quick()
    assert code == 1
    assert "10_x failed: the notebook changed while it ran; run it again" in text
    assert not (quick.out / "10_x.receipt.json").exists()
    assert receipt(quick, "20_y")
    hashes = iter("abb")  # before and after
    monkeypatch.setattr(receipts, "library_sha256", lambda: next(hashes, "b"))
    code, text = quick("--only", "20_y", "--overwrite")
    assert code == 2, "the other cannot be read"
    path.unlink()
    code, text = quick("--overwrite")
    assert "20_y failed: the library changed while it ran; run it again" in text


def test_resume_with_other_parameters_keeps_what_has_finished(quick):
    records_notebook(quick.notebooks, "10_x")
    assert quick("-p", "seed=1", "--profile", "smoke")[0] == 0
    for options, words in (
        (["-p", "seed=2", "--profile", "smoke"], "(seed=1, now 2)"),
        (["--profile", "smoke"], "(seed=1, now the notebook's own)"),
        (["-p", "seed=1", "--profile", "laptop"], "(profile=smoke, now laptop)"),
    ):
        code, text = quick("--resume", *options)
        assert code == 2
        assert f"with other parameters {words} and would be run again; give the same, another --out" in text
        assert receipt(quick, "10_x")["parameters"] == {"profile": "smoke", "seed": 1}
    (quick.out / "records/10_x/speed.jsonl").unlink()  # nothing sound is left to keep
    assert quick("--resume", "-p", "seed=2", "--profile", "smoke")[0] == 0
    assert receipt(quick, "10_x")["parameters"]["seed"] == 2


@pytest.mark.parametrize("options", [[], ["--overwrite"], ["--resume"]])
def test_a_notebook_that_no_run_wrote_is_not_replaced(run, options):
    source = records_notebook(run.notebooks, "10_x")
    whole = source.read_text()
    run.out.symlink_to(run.notebooks)
    code, text = run(*options)
    assert code == 2
    assert "is a notebook that no run wrote and this one would replace it; give another --out" in text
    (run.out / "run.json").write_text("{}")  # as an earlier version left it there
    assert run(*options)[0] == 2
    run.out.unlink()
    run.out.mkdir()
    (run.out / "10_x.ipynb").write_text("another notebook")
    assert run(*options)[0] == 2
    assert (source.read_text(), (run.out / "10_x.ipynb").read_text()) == (whole, "another notebook")


def test_a_later_run_adds_its_notebooks_and_leaves_how_the_folder_was_begun(quick, monkeypatch):
    records_notebook(quick.notebooks, "10_x")
    records_notebook(quick.notebooks, "20_y")
    assert quick("--only", "10_x")[0] == 0
    begun = json.loads((quick.out / "run.json").read_text())
    monkeypatch.setattr(running, "describe_environment", lambda: {"cpu": "another"})
    assert quick("--resume", "--profile", "laptop")[0] == 0
    assert json.loads((quick.out / "run.json").read_text()) == {**begun, "notebooks": ["10_x", "20_y"]}
    assert receipt(quick, "10_x")["environment"] == begun["environment"]
    assert receipt(quick, "20_y")["environment"]["cpu"] == "another"


def test_the_note_of_a_run_that_was_killed_after_its_receipt_does_not_outlive_a_resume(quick):
    records_notebook(quick.notebooks, "10_x")
    assert quick()[0] == 0
    note = quick.out / "10_x.failure.json"
    note.write_text('{"status": "interrupted"}')
    assert quick("--resume")[0] == 0
    assert not note.exists()


def test_a_failing_notebook_does_not_stop_the_others(run):
    write_notebook(run.notebooks, "10_x", "x = 1", "ratio = 0.9\nassert ratio > 1, f'{ratio} is too slow'")
    write_notebook(run.notebooks, "20_y", "import os\nos._exit(3)")
    records_notebook(run.notebooks, "30_z")
    code, text = run()
    assert code == 1
    assert (
        "10_x failed: cell In [4] `assert ratio > 1, f'{ratio} is too slow'` raised AssertionError: 0.9 is too slow"
        in text
    )
    assert "20_y failed: cell In [3] `import os` ended with DeadKernelError" in text
    assert "3 notebooks: 1 finished, 2 failed" in text
    assert (run.out / "10_x.failed.ipynb").is_file()
    assert not (run.out / "10_x.ipynb").exists()
    assert not (run.out / "10_x.receipt.json").exists()


def test_after_a_repair_the_failure_is_gone(quick):
    write_notebook(quick.notebooks, "10_x", "1 / 0")
    assert quick()[0] == 1
    write_notebook(quick.notebooks, "10_x", "1 / 1")
    assert quick("--resume")[0] == 0
    assert sorted(path.name for path in quick.out.iterdir()) == ["10_x.ipynb", "10_x.receipt.json", "run.json"]


def test_records_of_an_unfinished_attempt_stay_for_the_same_job_only(quick):
    records_notebook(quick.notebooks, "10_x")
    path = quick.notebooks / "10_x.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"][-1]["source"] = (
        "(folder).mkdir(parents=True, exist_ok=True)\nspeed = folder / 'speed.jsonl'\nold = speed.exists()\n"
        "speed.write_text('{}')\nassert old, 'first attempt'"
    )
    path.write_text(json.dumps(notebook))
    assert quick()[0] == 1
    assert quick()[0] == 1  # without --resume a run starts from nothing
    assert quick("--resume", "-p", "seed=3")[0] == 1  # another job
    assert quick("--resume", "-p", "seed=3")[0] == 0


class Killed(BaseException):
    """Stands for SIGKILL: nothing that the runner does about errors may see to it."""


@pytest.mark.parametrize(("options", "kept"), [([], True), (["-p", "seed=3"], False)], ids=["same", "other"])
def test_a_killed_run_goes_on_from_its_records_for_the_same_job_only(run, monkeypatch, options, kept):
    source = write_notebook(run.notebooks, "10_x")
    speed, found = run.out / "records/10_x/speed.jsonl", []

    def killed(job, target, root, progress):
        target.write_text("half a notebook")
        speed.parent.mkdir(parents=True)
        speed.write_text("{}\n")
        raise Killed

    def finishing(job, target, root, progress):
        found.append((speed.exists(), target.exists()))
        target.write_text(source.read_text())

    monkeypatch.setattr(receipts, "ORPHANED", 0)
    monkeypatch.setattr(running, "run_papermill", killed)
    with pytest.raises(Killed):
        run()
    failure = json.loads((run.out / "10_x.failure.json").read_text())
    assert failure["problem"] == "its runner was killed, or it runs now"
    assert (run.out / "10_x.partial.ipynb").exists()
    monkeypatch.setattr(running, "run_papermill", finishing)
    code, text = run("--resume", *options)
    assert code == 0, text
    assert found == [(kept, False)]
    assert list(receipt(run, "10_x")["written"]) == (["records/10_x/speed.jsonl"] if kept else [])
    assert not list(run.out.glob("*.partial*")) + list(run.out.glob("*.failure*"))


def test_bad_requests_run_nothing(run):
    records_notebook(run.notebooks, "10_x")
    for options, words in [
        (["-p", "sede=1"], "No selected notebook has a parameter 'sede'"),
        (["--only", "11_*"], "--only '11_*' matches no notebook"),
        (["-p", "seed"], "name=value"),
    ]:
        code, text = run(*options)
        assert code == 2
        assert words in text
        assert not run.out.exists()


def test_dry_run_shows_estimates_and_writes_nothing(run):
    cost = {"laptop": {"seconds": 240, "memory_mb": 1500}}
    write_notebook(run.notebooks, "10_x", about={"estimate": cost})
    write_notebook(run.notebooks, "20_y")
    code, text = run("--dry-run")
    assert code == 0
    assert not run.out.exists()
    assert "4 min" in text
    assert "1.5 GB" in text
    assert "unknown" in text
    assert "2 to run, at least 4 min in all, at most 1.5 GB at a time." in text


def test_an_earlier_receipt_is_the_better_estimate(quick):
    records_notebook(quick.notebooks, "10_x", about={"estimate": {"laptop": {"seconds": 7200}}})
    assert "2.0 h" in quick("--dry-run")[1]
    quick()
    assert "2.0 h" not in quick("--dry-run")[1]


def test_resume_without_a_folder_takes_the_newest_of_the_profile(tmp_path):
    for name in ("laptop-20250101-000000", "laptop-20260101-000000", "paper-20270101-000000"):
        (tmp_path / "outputs" / name).mkdir(parents=True)
        (tmp_path / "outputs" / name / "run.json").write_text("{}")
    assert default_out(tmp_path, "laptop", resume=True).name == "laptop-20260101-000000"
    assert default_out(tmp_path, "smoke", resume=True).name.startswith("smoke-2")
    assert not default_out(tmp_path, "laptop", resume=False).exists()


def test_a_rehearsal_and_a_run_do_not_replace_each_other(quick, tmp_path):
    records_notebook(quick.notebooks, "10_x", about={"estimate": {"laptop": {"seconds": 7200}}})
    assert quick()[0] == 0
    (receipt,) = tmp_path.rglob("10_x.receipt.json")
    before = receipt.read_text()
    code, told = quick("--divide", "10", "--resume")
    assert code == 2
    assert "10_x finished in" in told
    assert "--divide=1, now 10" in told
    assert receipt.read_text() == before
    assert "unknown" in quick("--divide", "10", "--dry-run", "--resume")[1]  # a whole run's seconds say nothing of it
    folder = default_out(tmp_path, "laptop", resume=False, divide=10)
    assert folder.name.startswith("rehearsed-laptop-")
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    assert not default_out(tmp_path, "laptop", resume=True).is_dir()


@pytest.mark.parametrize("name", ["DYNATREE_MODELS", "DYNATREE_DATA"])
def test_what_ran_with_another_folder_of_models_or_data_is_no_longer_valid(quick, tmp_path, monkeypatch, name):
    records_notebook(quick.notebooks, "10_x")
    monkeypatch.setenv(name, str(tmp_path / "stand-ins"))
    assert quick()[0] == 0
    assert "keep: its receipt is valid" in quick("--resume", "--dry-run")[1]
    monkeypatch.setenv(name, str(tmp_path / "real"))
    assert "run: the folders of models or data changed since" in quick("--resume", "--dry-run")[1]


def test_a_clock_that_was_set_back_hides_no_run(tmp_path):
    from tools.inject_faults import clock_set_back

    def begun(resume):
        folder = default_out(tmp_path, "smoke", resume)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "run.json").write_text("{}")
        return folder

    folders, before = [begun(False)], receipts.now()
    with clock_set_back(1):
        assert receipts.now() < before
        folders += [begun(False), begun(False)]
        assert begun(True) == folders[-1]
    assert folders == sorted(set(folders))


HOLD = """import runpy, sys
from pathlib import Path
with runpy.run_path(sys.argv[2])["sole_run"](Path(sys.argv[1])):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_lock_on_a_file_that_an_earlier_run_removed_holds_no_folder(tmp_path, monkeypatch):
    """A run opens the file, its holder ends and removes it, a third run makes it anew and holds the folder."""
    import fcntl

    from dynatree_suite.files import sole_run

    honest, holders = fcntl.flock, []

    def flock(file, how):
        if not holders:
            (tmp_path / ".running").unlink()
            third = subprocess.Popen(
                [sys.executable, "-c", HOLD, str(tmp_path), str(ROOT / "dynatree_suite" / "files.py")],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            )  # fmt: skip
            holders.append(third)
            assert third.stdout.readline() == "held\n"
        honest(file, how)

    monkeypatch.setattr(fcntl, "flock", flock)
    with pytest.raises(RuntimeError, match="Another run works in .*; wait until it has ended"), sole_run(tmp_path):
        pass
    holders[0].communicate()
    with sole_run(tmp_path):
        assert (tmp_path / ".running").exists()
    assert not (tmp_path / ".running").exists()


def test_peak_memory_is_in_the_receipt(run):
    write_notebook(run.notebooks, "10_x", "import time\nblock = bytearray(150_000_000)\ntime.sleep(0.7)")
    run()
    assert 150 < receipt(run, "10_x")["memory_mb"] < 600


@pytest.mark.slow
@pytest.mark.parametrize("later", [0.1, 0.4, 0.8])
def test_ctrl_c_leaves_no_kernel_that_misses_its_sockets(run, later):
    """A kernel that was about to start is killed: without its folder it would print a traceback after the summary."""
    write_notebook(run.notebooks, "10_x", "import time\ntime.sleep(300)")
    command = [sys.executable, "-m", "dynatree_suite", "run", "--notebooks", str(run.notebooks), "--out", str(run.out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
    ) as runner:
        while "running" not in runner.stdout.readline():
            pass
        time.sleep(later)
        runner.send_signal(signal.SIGINT)
        text, _ = runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert "ipc path" not in text
    assert "interrupted" in text
    assert text.rstrip().splitlines()[-1].startswith("Finished notebooks stay")


@pytest.mark.parametrize("error", [OSError(27, "File too large"), OSError(28, "No space left", "a.ipynb")])
def test_what_the_system_refuses_is_told_without_its_number(error, tmp_path):
    words = describe_failure(error, tmp_path / "none.ipynb")
    assert "Errno" not in words
    assert error.strerror in words


def test_a_folder_that_is_no_utf_8_is_refused(run):
    records_notebook(run.notebooks, "10_x")
    code, text = run("--out", os.fsdecode(os.fsencode(str(run.out)) + b"\xff"))
    assert code == 2
    assert "The folder of the run has '\\udcff', which is no character" in text


def test_a_pipe_where_a_receipt_belongs_is_no_receipt(run):
    records_notebook(run.notebooks, "10_x")
    run.out.mkdir()
    os.mkfifo(run.out / "10_x.failure.json")
    assert receipts.read_or_empty(run.out / "10_x.failure.json") == {}


@pytest.mark.slow
def test_ctrl_c_marks_the_running_notebook_and_keeps_the_finished(run):
    records_notebook(run.notebooks, "10_x")
    write_notebook(run.notebooks, "20_y", "import time\ntime.sleep(300)")
    records_notebook(run.notebooks, "30_z")
    command = [sys.executable, "-m", "dynatree_suite", "run", "--notebooks", str(run.notebooks), "--out", str(run.out)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=environment
    ) as runner:
        wait_for(lambda: (run.out / "20_y.partial.ipynb").exists())
        time.sleep(1)
        runner.send_signal(signal.SIGINT)
        text, _ = runner.communicate(timeout=60)
    assert runner.returncode == 130
    assert "1 finished, 1 interrupted, 1 not started" in text
    assert receipt(run, "10_x")
    assert (run.out / "20_y.interrupted.ipynb").is_file()
    assert not (run.out / "30_z.ipynb").exists()
    write_notebook(run.notebooks, "20_y", "1")
    assert main(["run", "--notebooks", str(run.notebooks), "--out", str(run.out), "--resume"]) == 0
    assert not (run.out / "20_y.interrupted.ipynb").exists()
