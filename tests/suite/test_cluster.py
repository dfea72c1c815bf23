"""Notebooks side by side on Dask workers: what is lost when a worker, a notebook or the run itself dies."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from suite_notebooks import records_notebook, wait_for, write_notebook

from dynatree_suite.bench.environment import available_cores
from dynatree_suite.cli.main import main
from dynatree_suite.runs.plan import find_sources, make_jobs
from dynatree_suite.runs.receipts import Files, fingerprint

pytest.importorskip("papermill")
distributed = pytest.importorskip("distributed")
ROOT = Path(__file__).resolve().parents[2]
KILL = "import os, signal\nos.kill(os.getppid(), signal.SIGKILL)"  # a kernel's parent is the worker
KILL_ONCE = f"""from pathlib import Path
first = Path(os.environ['DYNATREE_OUT']) / 'first'
if not first.exists():
    first.touch()
    {KILL.splitlines()[1]}"""


def command(folder: Path, *options: str) -> list[str]:
    options = ("--notebooks", str(folder / "notebooks"), "--out", str(folder / "out"), "--profile", "smoke", *options)
    return [sys.executable, "-m", "dynatree_suite", "run", *options]


def run(folder: Path, *options: str, **how):
    done = subprocess.run(command(folder, *options), capture_output=True, text=True, timeout=240, check=False, **how)
    return done.returncode, done.stdout + done.stderr


def receipt(folder: Path, name: str) -> dict:
    return json.loads(Files(folder / "out", name).receipt.read_text())


def printed(folder: Path, name: str) -> str:
    cells = json.loads(Files(folder / "out", name).executed.read_text())["cells"]
    return "".join("".join(output.get("text", "")) for cell in cells for output in cell.get("outputs", []))


def kernels_of(folder: Path) -> list[int]:
    """Processes that were started for a run into this folder."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.environ().get("DYNATREE_OUT") == str(folder / "out"):
                found.append(process.pid)
        except psutil.Error:
            continue
    return found


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_workers_that_die_notebooks_that_fail_or_hang_and_the_others(tmp_path):
    notebooks = tmp_path / "notebooks"
    records_notebook(notebooks, "10_good")
    write_notebook(notebooks, "20_fails", "1 / 0")
    write_notebook(notebooks, "30_once", "import os, signal", KILL_ONCE)
    write_notebook(notebooks, "40_always", KILL)
    write_notebook(notebooks, "50_hangs", "import time; time.sleep(600)")
    write_notebook(
        notebooks, "60_counts", "import os, signal", "blocked = signal.pthread_sigmask(signal.SIG_BLOCK, ())",
        "print(len(os.sched_getaffinity(0)), os.environ['OMP_NUM_THREADS'], signal.SIGINT in blocked)",
    )  # fmt: skip
    code, text = run(tmp_path, "--workers", "2", "--timeout", "0.5")
    assert code == 1, text
    assert "6 notebooks: 3 finished, 3 failed." in text
    assert "20_fails failed: cell In [3] `1 / 0` raised ZeroDivisionError" in text
    assert "40_always failed: its worker died 3 times" in text
    assert (
        "50_hangs failed: it took longer than the time-out of 30 s in cell In [3] `import time; time.sleep(600)`"
        in text
    )
    assert "30_once: finished" in text
    assert "started again after its worker died" in text
    assert not list((tmp_path / "out").glob("*.partial*"))
    for name in ("20_fails", "40_always", "50_hangs"):
        files = Files(tmp_path / "out", name)
        assert not files.receipt.exists()
        assert not files.executed.exists()
        assert json.loads(files.failure.read_text())["problem"]
    started = receipt(tmp_path, "10_good")["started"]
    assert sorted(path.name for path in (tmp_path / "out").glob("*.receipt.json")) == [
        "10_good.receipt.json", "30_once.receipt.json", "60_counts.receipt.json",
    ]  # fmt: skip
    assert not kernels_of(tmp_path)
    cores = len(os.sched_getaffinity(0))
    assert printed(tmp_path, "60_counts").split() == [str(cores // 2), str(cores // 2), "False"]

    for name in ("20_fails", "40_always", "50_hangs"):  # mended: only they run again, with and without workers
        write_notebook(notebooks, name, "x = 1")
    assert run(tmp_path, "--resume", "--only", "[24]*", "--workers", "1")[0] == 0
    code, text = run(tmp_path, "--resume")
    assert code == 0
    assert "6 notebooks: 1 finished, 5 kept." in text
    assert receipt(tmp_path, "10_good")["started"] == started


@pytest.mark.slow
def test_a_worker_that_starts_slowly_is_waited_for_and_one_that_never_does_is_not(tmp_path, monkeypatch):
    from dask import config

    from dynatree_suite.runs import cluster
    from dynatree_suite.runs.run import run_jobs

    write_notebook(tmp_path / "notebooks", "10_kills", KILL)
    records_notebook(tmp_path / "notebooks", "20_good")
    jobs, said, out = make_jobs(find_sources(tmp_path / "notebooks"), "smoke", {}), [], tmp_path / "out"
    monkeypatch.setattr(cluster, "EVERY", 0.5)
    with cluster.workers_for(1, None, (out, ROOT), gpu=False) as client:
        assert config.get("distributed.deploy.lost-worker-timeout") == "300s"  # Dask's 15 s do not do on a busy machine
        (nanny,) = client.cluster.workers.values()

        async def never():
            await nanny.close()

        monkeypatch.setattr(nanny, "instantiate", never)
        with config.set({"distributed.deploy.lost-worker-timeout": "2s"}):
            assert run_jobs(jobs, out, ROOT, resume=False, say=said.append, client=client) == 1
    assert cluster.NO_WORKER in said
    assert "2 notebooks: 1 failed, 1 not started." in said[-1]
    assert "10_kills failed: no worker has started again for 300 s" in said[-1]
    assert Files(out, "10_kills").stopped("failed").is_file()
    assert json.loads(Files(out, "10_kills").failure.read_text())["problem"] == "no worker has started again for 300 s"
    assert (
        main(["run", "--notebooks", str(tmp_path / "notebooks"), "--out", str(out), "--resume", "--only", "20*"]) == 0
    )


MEET = """import time
from pathlib import Path
folder = Path(os.environ['DYNATREE_OUT'])
(folder / f'{name}.here').touch()
until = time.monotonic() + 60
while len(list(folder.glob('*.here'))) < 2:
    assert time.monotonic() < until, 'the other never came'
    time.sleep(0.05)"""


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two cores")
def test_two_workers_run_two_notebooks_at_the_same_time(tmp_path):
    """Each notebook ends only once the other has begun."""
    for name in ("10_a", "20_b"):
        write_notebook(tmp_path / "notebooks", name, f"import os\nname = {name!r}", MEET)
    code, text = run(tmp_path, "--workers", "2")
    assert code == 0, text
    assert "2 notebooks: 2 finished." in text


@pytest.mark.slow
@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="two workers need two cores")
def test_each_worker_of_this_machine_has_cores_and_a_gpu_of_its_own(tmp_path, monkeypatch):
    from dynatree_suite.runs import cluster

    monkeypatch.setattr(cluster, "_gpus", lambda: ["7", "3"])
    with cluster.workers_for(2, None, (tmp_path,), gpu=True) as client:
        assert sorted(client.run(os.getenv, "CUDA_VISIBLE_DEVICES").values()) == ["3", "7"]
        one, other = client.run(os.sched_getaffinity, 0).values()
        assert one
        assert other
        assert not one & other


def test_the_comparison_of_one_and_two_workers_takes_turns(tmp_path):
    from tools.workers_reference import measured, speedup

    called = []

    def suite(workers):
        called.append(workers)
        return {"10_a": 1.0}

    runs = measured(suite, 3, tmp_path / "workers.json")
    assert called == [1, 2, 2, 1, 1, 2]
    record = json.loads((tmp_path / "workers.json").read_text())
    assert record["runs"] == runs
    assert record["environment"]["commit"]
    assert all(len(one["load"]) == 2 and one["notebooks"] == {"10_a": 1.0} for one in runs)
    found = speedup([{**one, "seconds": 30.0 / one["workers"] + one["turn"]} for one in runs])
    assert found.value == pytest.approx(93 / 48)
    assert found.low <= found.value <= found.high


@pytest.mark.slow
def test_ctrl_c_stops_the_kernels_and_keeps_what_has_finished(tmp_path):
    notebooks = tmp_path / "notebooks"
    records_notebook(notebooks, "10_good", about={"estimate": {"smoke": {"seconds": 900}}})  # goes first
    write_notebook(notebooks, "20_waits", "import time\ntime.sleep(300)")
    process = subprocess.Popen(
        command(tmp_path, "--workers", "1"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True, preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    wait_for(lambda: Files(tmp_path / "out", "20_waits").partial.exists() and kernels_of(tmp_path), 90)
    os.killpg(process.pid, signal.SIGINT)  # as a terminal does
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 130, text
    assert "2 notebooks: 1 finished, 1 interrupted." in text, text
    assert receipt(tmp_path, "10_good")["seconds"] > 0
    assert not Files(tmp_path / "out", "20_waits").receipt.exists()
    wait_for(lambda: not kernels_of(tmp_path), 10)


@pytest.mark.slow
@pytest.mark.parametrize("later", [0.0, 1.0])
@pytest.mark.parametrize("what", ["workers", "a kernel"])
def test_ctrl_c_while_workers_or_a_kernel_start_is_said_in_a_sentence(what, later, tmp_path):
    def has_begun():
        if what == "a kernel":
            return (tmp_path / "out").exists()
        with contextlib.suppress(psutil.Error):
            return sum("--multiprocessing-fork" in one.cmdline() for one in psutil.Process(process.pid).children()) == 2
        return False

    write_notebook(tmp_path / "notebooks", "10_waits", "import time\ntime.sleep(300)")
    process = subprocess.Popen(
        command(tmp_path, "--workers", "2"), stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        start_new_session=True, text=True, env={**os.environ, "PYTHONUNBUFFERED": "1"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )  # fmt: skip
    try:
        wait_for(has_begun, 90)
        time.sleep(later)
        os.killpg(process.pid, signal.SIGINT)
        text, _ = process.communicate(timeout=90)
    finally:
        process.kill()
    assert process.returncode == 130, text
    assert "Traceback" not in text, text
    assert re.search("stopped by Ctrl-C|1 not started|1 interrupted", text), text
    assert not Files(tmp_path / "out", "10_waits").receipt.exists()
    wait_for(lambda: not kernels_of(tmp_path), 10)


@pytest.mark.slow
def test_a_scheduler_that_runs_already_and_workers_that_cannot_serve(tmp_path, capsys):
    records_notebook(tmp_path / "notebooks", "10_good")
    options = ["run", "--notebooks", str(tmp_path / "notebooks"), "--out", str(tmp_path / "out"), "--profile", "smoke"]
    with distributed.LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as cluster:
        address = cluster.scheduler_address
        assert main([*options, "--scheduler", address]) == 0, capsys.readouterr()
        write_notebook(tmp_path / "notebooks", "20_gpu", parameters="device = 'cpu'")
        assert main([*options, "--scheduler", address, "--only", "20*", "-p", "device=cuda"]) == 2
        assert "no worker declares one" in capsys.readouterr().err
    options[4] = str(tmp_path / "other")
    with distributed.LocalCluster(
        n_workers=1, threads_per_worker=2, processes=False, dashboard_address=":0"
    ) as cluster:
        assert main([*options, "--scheduler", cluster.scheduler_address]) == 2
        assert "has 2 threads" in capsys.readouterr().err
        cluster.scale(0)
        while cluster.scheduler_info["workers"]:
            time.sleep(0.1)
        assert main([*options, "--scheduler", cluster.scheduler_address]) == 2
        assert "The scheduler has no workers" in capsys.readouterr().err


def test_a_notebook_that_a_worker_refuses_leaves_a_note(tmp_path):
    from dynatree_suite.runs.run import execute_on_worker

    records_notebook(tmp_path / "notebooks", "10_x")
    (job,) = make_jobs(find_sources(tmp_path / "notebooks"), "smoke", {})
    out = tmp_path / "out"
    out.mkdir()
    basis = {**fingerprint(job), "library_sha256": "another"}
    found = execute_on_worker(job, basis, out, tmp_path, resume=False, timeout=None)
    assert "does not have the same: the library and the run's folder" in found.problem
    note = json.loads((out / "10_x.failure.json").read_text())
    assert (note["status"], note["problem"]) == ("failed", found.problem)


class Far:
    """A client of workers that answer what they are asked with these."""

    def __init__(self, answers):
        self.answers = answers

    def scheduler_info(self, n_workers):
        return {"workers": {address: {"nthreads": 1, "resources": {}} for address in self.answers}}

    def run(self, function, *args, on_error):
        return {address: answer(function, *args) for address, answer in self.answers.items()}


def test_workers_of_another_version_or_without_the_folders_are_refused(tmp_path):
    from dynatree_suite.runs import cluster

    def elsewhere(seen, version, folders, token):
        """A worker with other data, which sees nothing of this file system."""
        assert token.is_file()
        here = seen(version, folders, token)
        return here | {"lacks": seen((version[0], "other"), [folder / "far" for folder in folders], token)["lacks"]}

    with pytest.raises(RuntimeError, match="worker tcp://far:1 does not have the same data and sight of"):
        cluster.check_workers(Far({"tcp://far:1": elsewhere}), (tmp_path, ROOT), gpu=False)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("machines", "words"),
    [
        ({"a": [(2, {0, 1}), (2, {0, 1})]}, "The 2 workers on a would compute in 4 threads on 2 cores; .*THREADS=1,"),
        ({"a": [(1, {0})], "b": [(8, range(8)), (8, range(8))]}, "The 2 workers on b .* 16 threads .*THREADS=4,"),
        ({"a": [(1, {0, 1}), (1, {0, 1})], "b": [(4, {4, 5, 6, 7}), (4, {0, 1, 2, 3})]}, None),
    ],
)
def test_workers_of_a_machine_that_would_crowd_its_cores_are_refused(tmp_path, machines, words):
    from dynatree_suite.runs import cluster

    answers = {
        f"tcp://{host}:{number}": lambda seen, *args, own={"host": host, "threads": threads, "cores": set(cores)}: (
            seen(*args) | own
        )
        for host, workers in machines.items()
        for number, (threads, cores) in enumerate(workers)
    }
    with pytest.raises(RuntimeError, match=words) if words else nullcontext():
        cluster.check_workers(Far(answers), (tmp_path,), gpu=False)


def test_a_worker_tells_its_machine_threads_and_cores(tmp_path, monkeypatch):
    from dynatree_suite.runs import cluster

    (tmp_path / "token").touch()
    for text, threads in (("3", 3), ("2,1", 2), ("", available_cores()), ("many", available_cores())):
        monkeypatch.setenv("OMP_NUM_THREADS", text)
        seen = cluster.seen(cluster.own_version(), [tmp_path], tmp_path / "token")
        assert (seen["threads"], len(seen["cores"]), seen["lacks"]) == (threads, available_cores(), [])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--workers", "0"], "--workers is 0"),
        (["--workers", "4096"], "at most one worker for each"),
        (["--workers", "1", "--scheduler", "tcp://127.0.0.1:1"], "were both given"),
        (["--timeout", "0"], "--timeout is 0.0; give the minutes"),
        (["--timeout", "nan"], "--timeout is nan"),
    ],
)
def test_what_cannot_be_asked_for(tmp_path, capsys, options, words):
    records_notebook(tmp_path / "notebooks", "10_good")
    assert main(["run", "--notebooks", str(tmp_path / "notebooks"), "--out", str(tmp_path / "out"), *options]) == 2
    assert words in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_scheduler_answers(tmp_path, monkeypatch, capsys):
    from dynatree_suite.runs import cluster

    monkeypatch.setattr(cluster, "ANSWERING", 1)
    records_notebook(tmp_path / "notebooks", "10_good")
    options = ["--notebooks", str(tmp_path / "notebooks"), "--out", str(tmp_path / "out")]
    assert main(["run", *options, "--scheduler", "tcp://127.0.0.1:1"]) == 2
    assert "No Dask scheduler answers at 'tcp://127.0.0.1:1'" in capsys.readouterr().err


def test_a_worker_that_cannot_load_the_library_is_named(tmp_path):
    from dynatree_suite.runs import cluster

    bare = Far({"tcp://far:1": lambda *_: ModuleNotFoundError("No module named 'dynatree_lib'")})
    with pytest.raises(RuntimeError, match=r"far:1 cannot run this version .*No module named.*install it there"):
        cluster.check_workers(bare, (tmp_path,), gpu=False)


@pytest.mark.parametrize(
    ("profile", "parameters", "overrides", "expected"),
    [
        ("paper", "profile = 'x'\ndevice = None", {}, True),
        ("laptop", "profile = 'x'\ndevice = None", {}, False),
        ("laptop", "profile = 'x'\ndevice = None", {"device": "cuda"}, True),
        ("paper", "profile = 'x'\ndevice = None", {"device": "cpu"}, False),
        ("paper", "profile = 'x'", {}, False),
    ],
)
def test_what_runs_on_a_gpu_follows_profile_and_parameter(tmp_path, profile, parameters, overrides, expected):
    write_notebook(tmp_path, "10_x", parameters=parameters)
    (job,) = make_jobs(find_sources(tmp_path), profile, overrides)
    assert job.on_gpu is expected


def test_two_runs_into_one_folder_are_refused(tmp_path, capsys):
    from dynatree_suite.files import sole_run

    records_notebook(tmp_path / "notebooks", "10_good")
    options = ["run", "--notebooks", str(tmp_path / "notebooks"), "--out", str(tmp_path / "out")]
    with sole_run(tmp_path / "out"):
        assert main(options) == 2
    assert "Another run works in" in capsys.readouterr().err
    assert main(options) == 0


def test_what_another_run_finished_while_workers_started_is_not_overwritten(tmp_path, capsys, monkeypatch):
    from dynatree_suite.cli import run as command

    records_notebook(tmp_path / "notebooks", "10_good")
    options = ["run", "--notebooks", str(tmp_path / "notebooks"), "--out", str(tmp_path / "out")]

    @contextlib.contextmanager
    def workers(count, *_):
        if count:
            assert main(options) == 0  # the other run
        yield None

    monkeypatch.setattr(command, "workers_for", workers)
    assert main([*options, "--workers", "1"]) == 2
    assert "10_good finished in" in capsys.readouterr().err
    assert receipt(tmp_path, "10_good")


def test_a_scheduler_that_is_gone_ends_the_run_in_words(tmp_path):
    from dynatree_suite.runs import cluster
    from dynatree_suite.runs.run import run_jobs

    class Gone:
        """A client that has given up to reach its scheduler."""

        status = "closed"

        def scheduler_info(self, n_workers):
            return {}

    said, notebooks = [], tmp_path / "notebooks"
    records_notebook(notebooks, "10_good")
    jobs = make_jobs(find_sources(notebooks), "smoke", {})
    assert run_jobs(jobs, tmp_path / "out", ROOT, resume=False, say=said.append, client=Gone()) == 1
    assert said[0] == "The scheduler is gone."
    assert "1 notebook: 1 not started." in said[1]
    assert "run only the rest with the same command and --resume" in said[1]
    with pytest.raises(RuntimeError, match="The scheduler has no workers"):
        cluster.check_workers(Gone(), (tmp_path,), gpu=False)


def test_a_notebook_that_hangs_is_stopped_without_workers_too(tmp_path, monkeypatch, capsys):
    from dynatree_suite.runs import run as running

    out = tmp_path / "out"

    def monotonic():
        """As if it took an hour to get to the cell that hangs."""
        return time.monotonic() + 3600 * ("sleep(600)" in running.at_cell(Files(out, "10_hangs").partial))

    write_notebook(tmp_path / "notebooks", "10_hangs", "import time; time.sleep(600)")
    records_notebook(tmp_path / "notebooks", "20_good")
    monkeypatch.setattr(running, "time", SimpleNamespace(monotonic=monotonic, perf_counter=time.perf_counter))
    assert main(["run", "--notebooks", str(tmp_path / "notebooks"), "--out", str(out), "--timeout", "50"]) == 1
    text = capsys.readouterr().out
    assert (
        "10_hangs failed: it took longer than the time-out of 50 min in cell In [3] `import time; time.sleep(600)`"
        in text
    )
    assert receipt(tmp_path, "20_good")["seconds"] > 0
