"""Break runs, benchmarks and sweeps at random points, and count what is lost.

python3 -m tools.inject_faults [--injections 248] [--seed 0] [--kinds kill-runner,...] [--out faults.json]

Every injection runs a small suite (or benchmark, or sweep), breaks it, asks for the rest with --resume, and compares:
nothing that had finished may be run again or be gone, nothing unfinished may have been reported as done, and in the end
everything is there once. It prints a table; the exit code is 1 if anything was lost. Linux only, 5 s an injection.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, timedelta, tzinfo
from functools import wraps
from pathlib import Path
from typing import Any

import nbformat
import psutil
import torch

import dynatree_lib as dt
from dynatree_lib.paths import data_path
from dynatree_suite.bench import protocol
from dynatree_suite.bench.environment import git_commit
from dynatree_suite.bench.records import read_records
from dynatree_suite.cli.main import main as command
from dynatree_suite.runs import receipts, sweep
from dynatree_suite.runs import run as runs_of_suite
from dynatree_suite.runs.receipts import Files, damage, read_or_empty

from .apart import FILES, NETWORK, apart, mount

NAMES = ("10_a", "20_b", "30_c")
LINES = 12
"""Lines of each notebook's record; they come one by one, so that a kill can fall between them."""
CELL = """import os, time
from pathlib import Path
folder = Path(os.environ["DYNATREE_OUT"]) / "records" / "NAME"
folder.mkdir(parents=True, exist_ok=True)
with (folder / "lines.jsonl").open("w") as file:
    for number in range(LINES):
        print(number, file=file, flush=True)
        time.sleep(0.04)
"""
WANTED = "".join(f"{number}\n" for number in range(LINES))
ROOM = 2**26
"""Bytes of a disk that is not full."""
METHODS, PROMPTS = "ar-fast,prompt-lookup", 4
GRID = "method: prompt-lookup\nmax_new_tokens: 4\ngrid: {ngram: [1, 2, 3], length: [1, 2, 3], seed: [0, 1]}\n"
fork = multiprocessing.get_context("fork")


@dataclass
class Trial:
    """One injection: a folder of its own, and its own random source."""

    folder: Path
    chance: random.Random
    lost: list[str] = field(default_factory=list)

    @property
    def out(self) -> Path:
        """The folder of what is run."""
        return self.folder / "out"

    def check(self, holds: bool, words: str) -> None:
        """Note a loss unless this holds."""
        if not holds:
            self.lost.append(words)


# ------------------------------------------------------------------------------------------------------------ the suite
def suite(trial: Trial, *options: str) -> list[str]:
    """Return the arguments that run the three notebooks, which are written first."""
    folder = trial.folder / "notebooks"
    folder.mkdir(exist_ok=True)
    for name in NAMES:
        path = folder / f"{name}.ipynb"
        if not path.exists():
            source = CELL.replace("NAME", name).replace("LINES", str(LINES))
            cells = [nbformat.v4.new_code_cell("profile = 'smoke'", metadata={"tags": ["parameters"]}, id="parameters"),
                     nbformat.v4.new_code_cell(source, id="lines")]  # fmt: skip
            kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
            nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata={**kernel, "dynatree": {}}), path)
    return ["run", "--notebooks", str(folder), "--out", str(trial.out), "--profile", "smoke", *options]


def finished(trial: Trial) -> dict[str, str]:
    """Return the notebooks with a sound receipt and when each was finished; note those that only claim to be done."""
    found = {}
    for name in NAMES:
        files = Files(trial.out, name)
        receipt = read_or_empty(files.receipt)
        if not receipt.get("written") or damage(files, receipt):
            continue
        record = files.records / "lines.jsonl"
        trial.check(
            record.is_file() and record.read_text() == WANTED, f"{name} is called done, and its record is not whole"
        )
        found[name] = f"{receipt['started']} {receipt['executed_sha256']}"
    return found


def resumed(trial: Trial, kept: dict[str, str], *options: str) -> None:
    """Run the rest, and compare: everything is there, and what was kept is as it was."""
    code, said = here(suite(trial, "--resume", *options))
    trial.check(code == 0, f"the rest did not run: {said[-300:]}")
    now = finished(trial)
    trial.check(set(now) == set(NAMES), f"after the rest {', '.join(set(NAMES) - set(now))} is missing")
    for name, stamp in kept.items():
        trial.check(now.get(name) == stamp, f"{name} had finished and ran again")
    trial.check(not list(trial.out.glob("*.partial*")), "a partial file is left")


def here(arguments: list[str]) -> tuple[int, str]:
    """Run a command in this process; return its exit code and what it printed."""
    text = io.StringIO()
    with contextlib.redirect_stdout(text), contextlib.redirect_stderr(text):
        code = command(arguments)
    return code, text.getvalue()


def started(arguments: list[str]) -> multiprocessing.process.BaseProcess:
    """Start a command in a process of its own session, silent."""

    def work() -> None:
        os.setsid()
        signal.signal(signal.SIGINT, signal.default_int_handler)
        quiet = os.open(os.devnull, os.O_WRONLY)
        os.dup2(quiet, 1)
        os.dup2(quiet, 2)
        os._exit(command(arguments))

    process = fork.Process(target=work)
    process.start()
    return process


def offspring(process: multiprocessing.process.BaseProcess) -> list[psutil.Process]:
    """Return all processes below this one."""
    try:
        return psutil.Process(process.pid).children(recursive=True)
    except psutil.Error:
        return []


def gone(processes: list[psutil.Process]) -> bool:
    """Whether these processes end by themselves within a minute; a worker that still starts must finish that first."""
    _, alive = psutil.wait_procs(processes, timeout=60)
    for one in alive:
        one.kill()
    return not alive


def broken(trial: Trial, send: int, arguments: list[str], seconds: float) -> None:
    """Start a command, and send its process a signal at a random moment."""
    process = started(arguments)
    time.sleep(trial.chance.uniform(0.02, seconds))
    below = offspring(process)
    with contextlib.suppress(ProcessLookupError):
        os.kill(int(process.pid or 0), send)
    process.join(30)
    trial.check(not process.is_alive(), "it did not end")
    trial.check(gone(below), "a process was left behind")


# ------------------------------------------------------------------------------------------------------ faults of a run
def kill_runner(trial: Trial) -> None:
    """SIGKILL of the runner."""
    broken(trial, signal.SIGKILL, suite(trial), 5)
    resumed(trial, finished(trial))


def terminate_runner(trial: Trial) -> None:
    """SIGTERM of the runner."""
    broken(trial, signal.SIGTERM, suite(trial), 5)
    resumed(trial, finished(trial))


def interrupt_runner(trial: Trial) -> None:
    """Ctrl-C."""
    broken(trial, signal.SIGINT, suite(trial), 5)
    resumed(trial, finished(trial))


def kill_runner_and_resume_at_once(trial: Trial) -> None:
    """SIGKILL of the runner, and --resume while its kernel may still write."""
    process = started(suite(trial))
    time.sleep(trial.chance.uniform(0.5, 4))
    process.kill()
    process.join(30)
    resumed(trial, finished(trial))


def kill_kernel(trial: Trial) -> None:
    """SIGKILL of a kernel."""
    process = started(suite(trial))
    time.sleep(trial.chance.uniform(0.3, 3))
    for child in offspring(process):
        with contextlib.suppress(psutil.Error):
            child.kill()
    process.join(60)
    trial.check(not process.is_alive(), "it did not end")
    resumed(trial, finished(trial))


def kill_worker(trial: Trial) -> None:
    """SIGKILL of a Dask worker."""
    process = started(suite(trial, "--workers", "2"))
    until = time.monotonic() + 30
    while not list(trial.out.glob("*.partial*")) and time.monotonic() < until:
        time.sleep(0.05)
    time.sleep(trial.chance.uniform(0, 1.5))
    trial.check(_worker_killed(process), "there was no worker to kill")
    process.join(90)
    trial.check(process.exitcode == 0, f"the run ended with {process.exitcode}")
    trial.check(set(finished(trial)) == set(NAMES), "a notebook did not finish in the same run")
    resumed(trial, finished(trial))


def _worker_killed(process: multiprocessing.process.BaseProcess) -> bool:
    """Kill the parent of a kernel, as soon as there is one."""
    while process.is_alive():
        for child in offspring(process):
            with contextlib.suppress(psutil.Error, AttributeError):
                if "ipykernel_launcher" in " ".join(child.cmdline()):
                    child.parent().kill()
                    return True
        time.sleep(0.02)
    return False


def kill_run_with_workers(trial: Trial) -> None:
    """SIGKILL of a run with workers."""
    broken(trial, signal.SIGKILL, suite(trial, "--workers", "2"), 7)
    resumed(trial, finished(trial))


def hanging_notebook(trial: Trial) -> None:
    """A notebook that hangs, and a time-out."""
    suite(trial)
    hung = trial.chance.choice(NAMES)
    path = trial.folder / "notebooks" / f"{hung}.ipynb"
    whole = path.read_text()
    path.write_text(whole.replace("import os, time", "while True: pass"))
    code, said = here(suite(trial, "--timeout", "0.2"))
    trial.check(code == 1 and "longer than the time-out" in said, "the time-out was not reported")
    kept = finished(trial)
    trial.check(set(kept) == set(NAMES) - {hung}, "another notebook than the hanging one is missing")
    path.write_text(whole)
    resumed(trial, kept)


def two_runs(trial: Trial) -> None:
    """Two runs into one folder at the same time, each with workers or without."""
    ways = [trial.chance.choice([(), ("--workers", "2")]) for _ in range(2)]
    first = started(suite(trial, *ways[0]))
    time.sleep(trial.chance.uniform(0, 2))
    second = started(suite(trial, *ways[1]))
    for process in (first, second):
        process.join(60)
        trial.check(not process.is_alive(), "a run did not end")
    trial.check(sorted((first.exitcode, second.exitcode)) == [0, 2], f"{first.exitcode} and {second.exitcode}")
    resumed(trial, finished(trial))


def second_run(trial: Trial) -> None:
    """A second run into a finished folder, without a word."""
    here(suite(trial))
    kept = finished(trial)
    code, said = here(suite(trial))
    trial.check(code == 2 and "--overwrite" in said, "it was not refused")
    resumed(trial, kept)


@contextlib.contextmanager
def clock_set_back(days: int) -> Iterator[None]:
    """Set the clock of the suite back, wherever it reads the date."""
    modules = (receipts, runs_of_suite)

    class Clock(datetime):
        @classmethod
        def now(cls, tz: tzinfo | None = None) -> Clock:
            return super().now(tz) - timedelta(days)

    for module in modules:
        module.datetime = Clock  # type: ignore[attr-defined]
    try:
        yield
    finally:
        for module in modules:
            module.datetime = datetime  # type: ignore[attr-defined]


def clock_backwards(trial: Trial) -> None:
    """The clock goes backwards between two notebooks."""
    here(suite(trial, "--only", NAMES[0]))
    kept = finished(trial)
    with clock_set_back(trial.chance.randint(1, 9000)):
        resumed(trial, kept)
        (before,) = (stamp[:19] for stamp in kept.values())
        after = {name: stamp[:19] for name, stamp in finished(trial).items() if name not in kept}
        trial.check(bool(after) and max(after.values()) < before, f"the clock did not go back: {after}")


def with_own(what: int) -> Callable[[Callable[[Trial], None]], Callable[[Trial], None]]:
    """Let a kind of fault have file systems, or a network, of its own."""

    def decorated(kind: Callable[[Trial], None]) -> Callable[[Trial], None]:
        @wraps(kind)
        def run(trial: Trial) -> None:
            trial.lost += apart(what, lambda: tried(kind, trial))

        return run

    return decorated


@with_own(FILES)
def full_disk_in_run(trial: Trial) -> None:
    """A full disk while notebooks run."""
    trial.out.mkdir()
    mount(trial.out, 4096 * trial.chance.randint(1, 16))
    code, said = here(suite(trial))
    kept = finished(trial)
    trial.check(code != 0 or set(kept) == set(NAMES), "it ended as if all were well")
    trial.check("Traceback" not in said, f"it ended with a traceback: {said[-300:]}")
    mount(trial.out, ROOM, again=True)
    resumed(trial, kept)


@with_own(FILES)
def read_only_outputs(trial: Trial) -> None:
    """A folder that is read-only from the start, or from one notebook to the next."""
    trial.out.mkdir()
    mount(trial.out, ROOM)
    begun = trial.chance.random() < 0.5
    if begun:
        here(suite(trial, "--only", NAMES[0]))
    kept = finished(trial)
    trial.check(set(kept) == set(NAMES[:begun]), "the first notebook did not finish")
    mount(trial.out, ROOM, again=True, read_only=True)
    code, said = here(suite(trial, *["--resume"] * begun))
    words = code == 2 and "Read-only file system" in said
    trial.check(words and "Traceback" not in said and "Errno" not in said, f"it ended with {code}: {said[-300:]}")
    trial.check(finished(trial) == kept, "something is called done that was not run")
    mount(trial.out, ROOM, again=True)
    resumed(trial, kept)


def no_folder(trial: Trial) -> None:
    """A place where no folder can be made."""
    trial.folder.joinpath("out").write_text("a file, where the folder should be")
    code, said = here(suite(trial))
    trial.check(code != 0 and "Traceback" not in said, f"it ended with {code}: {said[-200:]}")
    trial.out.unlink()
    resumed(trial, {})


def _harmed(trial: Trial, choose: Callable[[Files], Path], harm: Callable[[Path], None]) -> None:
    """Harm one file of one notebook of a finished run: only that notebook may run again."""
    here(suite(trial))
    kept, name = finished(trial), trial.chance.choice(NAMES)
    harm(choose(Files(trial.out, name)))
    claimed = finished(trial)
    trial.check(name not in claimed, f"the harm to {name} was not noticed")
    kept.pop(name, None)
    resumed(trial, kept)


def _cut(trial: Trial) -> Callable[[Path], None]:
    def cut(path: Path) -> None:
        whole = path.read_bytes()
        path.write_bytes(whole[: trial.chance.randrange(len(whole) - 1)])

    return cut


def truncated_receipt(trial: Trial) -> None:
    """A receipt that ends in the middle."""
    _harmed(trial, lambda files: files.receipt, _cut(trial))


def truncated_notebook(trial: Trial) -> None:
    """An executed notebook that ends in the middle."""
    _harmed(trial, lambda files: files.executed, _cut(trial))


def truncated_record(trial: Trial) -> None:
    """A notebook's record that ends in the middle."""
    _harmed(trial, lambda files: files.records / "lines.jsonl", _cut(trial))


def missing_record(trial: Trial) -> None:
    """A notebook's record that is gone."""
    _harmed(trial, lambda files: files.records / "lines.jsonl", Path.unlink)


def flipped_byte(trial: Trial) -> None:
    """One byte of an executed notebook or of a record that has changed."""

    def flip(path: Path) -> None:
        whole = bytearray(path.read_bytes())
        whole[trial.chance.randrange(len(whole))] ^= 1 << trial.chance.randrange(8)
        path.write_bytes(whole)

    record = trial.chance.random() < 0.5
    _harmed(trial, lambda files: files.records / "lines.jsonl" if record else files.executed, flip)


def receipt_of_another_version(trial: Trial) -> None:
    """A receipt that another version wrote."""

    def age(path: Path) -> None:
        content = json.loads(path.read_text())
        path.write_text(json.dumps({**content, **trial.chance.choice([{"schema": 0}, {"library_sha256": "older"}])}))

    here(suite(trial))
    kept, name = finished(trial), trial.chance.choice(NAMES)
    age(Files(trial.out, name).receipt)
    code, said = here(suite(trial, "--resume", "--dry-run"))
    trial.check(code == 0 and "1 to run" in said, "the other version was not noticed")
    kept.pop(name)
    resumed(trial, kept)


def damaged_run_file(trial: Trial) -> None:
    """The file that describes the run ends in the middle."""
    here(suite(trial, "--only", NAMES[0], "--only", NAMES[1]))
    kept = finished(trial)
    _cut(trial)(trial.out / receipts.RUN_FILE)
    code, said = here(["report", str(trial.out)])
    trial.check(code == 0 or "Traceback" not in said, "the report ended with a traceback")
    resumed(trial, kept)


# ------------------------------------------------------------------------------------------------ faults of a benchmark
def bench(trial: Trial, *options: str) -> list[str]:
    """Return the arguments of a small benchmark with records."""
    return ["bench", "--methods", METHODS, "--limit", str(PROMPTS), "--max-new-tokens", "24", "--warmup", "0",
            "--records", str(trial.folder / "bench.jsonl"), *options]  # fmt: skip


def rest_of_bench(trial: Trial, kept: set[Any]) -> None:
    """Resume a benchmark, and compare: every run is there once, and what was kept is as it was."""
    there = (trial.folder / "bench.jsonl").exists()
    code, said = here(bench(trial, *(["--resume"] if there else [])))
    trial.check(code == 0, f"the rest did not run: {said[-300:]}")
    runs = read_records(trial.folder / "bench.jsonl").runs
    wanted = {(method, prompt, 0) for method in METHODS.split(",") for prompt in {key[1] for key in runs}}
    trial.check(set(runs) == wanted and len(wanted) == 2 * PROMPTS, f"{len(runs)} runs of {2 * PROMPTS}")
    for key, run in runs.items():
        trial.check((run.method, run.prompt, run.repeat) == key, f"a number of {run.prompt} stands under {key}")
    trial.check(kept <= {(key, run.seconds) for key, run in runs.items()}, "a run that was recorded was measured again")


def recorded(trial: Trial) -> set[Any]:
    """Return what the records hold already, with its time; what is disturbed may be measured again."""
    path = trial.folder / "bench.jsonl"
    try:
        records = read_records(path)
        frame = records.frame()
    except ValueError:
        return set()
    calm = set() if frame.empty else {(row.method, row.prompt) for row in frame.itertuples() if not row.disturbed}
    return {(key, run.seconds) for key, run in records.runs.items() if key[:2] in calm}


def kill_bench(trial: Trial) -> None:
    """SIGKILL of a benchmark."""
    broken(trial, signal.SIGKILL, bench(trial), 2.5)
    rest_of_bench(trial, recorded(trial))


def truncated_bench(trial: Trial) -> None:
    """A benchmark's records that end in the middle."""
    here(bench(trial))
    path = trial.folder / "bench.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[: trial.chance.randrange(whole.index(b"\n") + 1, len(whole))])
    rest_of_bench(trial, recorded(trial))


@with_own(FILES)
def full_disk_in_bench(trial: Trial) -> None:
    """A full disk while a benchmark writes its records."""
    mount(trial.folder, ROOM)
    here(bench(trial))
    records = trial.folder / "bench.jsonl"
    pages = trial.chance.randint(0, records.stat().st_size // 4096)
    records.unlink()
    mount(trial.folder, 4096 * (pages + 1), again=True)
    trial.folder.joinpath("other").write_bytes(bytes(4096))
    code, said = here(bench(trial))
    told = "No space left on device" in said and "Errno" not in said and "Traceback" not in said
    trial.check(code == 2 and told, f"it ended with {code}: {said[-300:]}")
    mount(trial.folder, ROOM, again=True)
    rest_of_bench(trial, recorded(trial))


def records_of_another_setup(trial: Trial) -> None:
    """Records of another setup or version."""
    here(bench(trial))
    path = trial.folder / "bench.jsonl"
    whole = path.read_text()
    head, rest = whole.split("\n", 1)
    content = json.loads(head)
    changed = trial.chance.choice([{"format": 99}, {"setup": {**content.get("setup", {}), "seed": 5}}])
    path.write_text(json.dumps({**content, **changed}) + "\n" + rest)
    code, _ = here(bench(trial, "--resume"))
    trial.check(code == 2, "records of another setup were taken over")
    path.write_text(whole)
    rest_of_bench(trial, recorded(trial))


def no_memory_on_the_device(trial: Trial) -> None:
    """A method runs out of the device's memory; the next one still runs."""
    honest, unlucky = protocol._Benchmark._call, trial.chance.randrange(1, PROMPTS)
    calls = {"prompt-lookup": 0}

    def call(self: Any, runner: Any, prompt: str, *rest: Any) -> Any:
        if runner is self.runners["prompt-lookup"]:
            calls["prompt-lookup"] += 1
            if calls["prompt-lookup"] == unlucky:
                raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 GiB.")
        return honest(self, runner, prompt, *rest)

    protocol._Benchmark._call = call  # type: ignore[method-assign]
    try:
        code, said = here(bench(trial))
    finally:
        protocol._Benchmark._call = honest  # type: ignore[method-assign]
    trial.check(code == 1 and "20.00 GiB" in said, "the error and its size were not reported")
    runs = read_records(trial.folder / "bench.jsonl").runs
    trial.check(len(runs) == 2 * PROMPTS - 1, f"{len(runs)} runs instead of {2 * PROMPTS - 1}")
    rest_of_bench(trial, recorded(trial))


# ---------------------------------------------------------------------------------------------------- faults of a sweep
def _sweep(trial: Trial, *options: str) -> list[str]:
    grid = trial.folder / "grid.yml"
    grid.write_text(GRID)
    return ["sweep", str(grid), "--out", str(trial.out), *options]


def rest_of_sweep(trial: Trial) -> None:
    """Resume a sweep, and compare: every row is there once, and rows that were there are as they were."""
    before = {path: path.read_text() for path in trial.out.glob("rows/*.json") if read_or_empty(path).get("row")}
    code, said = here(_sweep(trial, "--resume"))
    trial.check(code == 0, f"the rest did not run: {said[-300:]}")
    frame = sweep.read_sweep(trial.out)
    trial.check(
        len(frame) == 18 and not frame.duplicated(["ngram", "length", "seed"]).any(), f"{len(frame)} rows of 18"
    )
    for path, text in before.items():
        trial.check(path.read_text() == text, "a row that had been measured was measured again")


def kill_sweep(trial: Trial) -> None:
    """SIGKILL of a sweep."""
    broken(trial, signal.SIGKILL, _sweep(trial), 3)
    rest_of_sweep(trial)


def truncated_row(trial: Trial) -> None:
    """A sweep's row that ends in the middle."""
    here(_sweep(trial))
    _cut(trial)(trial.chance.choice(sorted(trial.out.glob("rows/*.json"))))
    rest_of_sweep(trial)


# ---------------------------------------------------------------------------------------- models, machine code and hubs
def truncated_model(trial: Trial) -> None:
    """A model's file that ends in the middle."""
    shutil.copytree(data_path("tiny"), trial.folder / "pair")
    file = trial.chance.choice(sorted((trial.folder / "pair").rglob("*.safetensors")))
    _cut(trial)(file)
    code, said = here(["bench", "--pair", str(trial.folder / "pair"), "--limit", "1"])
    told = str(file.parent) in said and "damaged" in said and "Traceback" not in said
    trial.check(code == 2 and told, f"{code}: {said[-200:]}")


def truncated_machine_code(trial: Trial) -> None:
    """A file of the machine code kept on disk that ends in the middle."""
    (trial.folder / "sums.py").write_text(SUMS, encoding="utf-8")

    def summed() -> tuple[int, str]:
        done = subprocess.run(
            [sys.executable, str(trial.folder / "sums.py")], capture_output=True, text=True, check=False,
            env={**os.environ, "NUMBA_CACHE_DIR": str(trial.folder / "code")},
        )  # fmt: skip
        return done.returncode, done.stdout or done.stderr[-200:]

    wanted, kept = summed(), sorted((trial.folder / "code").rglob("*.nb?"))
    trial.check(wanted == (0, "55\n") and bool(kept), f"{wanted} and {len(kept)} files before the fault")
    _cut(trial)(trial.chance.choice(kept))
    found = [summed(), summed()]
    trial.check(found == [wanted, wanted], f"{found} instead of {wanted}")


SUMS = """from dynatree_cpu.machine_code import machine_code

@machine_code(nogil=True)
def add(first, second):
    return first + second

@machine_code(nogil=True)
def total(count):
    out = 0
    for number in range(count + 1):
        out = add(out, number)
    return out

print(total(10))
"""


@with_own(NETWORK)
def hub_without_network(trial: Trial) -> None:
    """A hub name without a network."""
    began = time.monotonic()
    code, said = here(
        ["bench", "--target", "someone/no-such-model", "--draft", "someone/no-such-draft", "--limit", "1"]
    )
    seconds = time.monotonic() - began
    trial.check(code == 2 and "someone/no-such-model" in said, f"{code}: {said[-200:]}")
    trial.check(seconds < 10, f"the answer took {seconds:.0f} s")


KINDS = (
    kill_runner, kill_runner_and_resume_at_once, terminate_runner, interrupt_runner, kill_kernel, kill_worker,
    kill_run_with_workers, hanging_notebook,
    two_runs, second_run, clock_backwards, full_disk_in_run, read_only_outputs, no_folder, truncated_receipt,
    truncated_notebook,
    truncated_record, missing_record, flipped_byte, receipt_of_another_version, damaged_run_file, kill_bench,
    truncated_bench, full_disk_in_bench, records_of_another_setup, no_memory_on_the_device, kill_sweep, truncated_row,
    truncated_model, truncated_machine_code, hub_without_network,
)  # fmt: skip


@contextlib.contextmanager
def folders() -> Iterator[Path]:
    """Yield a folder for all injections, which is removed afterwards."""
    with tempfile.TemporaryDirectory(prefix="faults-") as folder:
        yield Path(folder)


def inject(kind: Callable[[Trial], None], seed: int, folder: Path) -> list[str]:
    """Return what one injection lost; nothing, where all is well."""
    folder.mkdir(parents=True)
    lost = tried(kind, Trial(folder, random.Random(f"{kind.__name__} {seed}")))
    shutil.rmtree(folder, ignore_errors=True)
    return lost


def tried(kind: Callable[[Trial], None], trial: Trial) -> list[str]:
    """Return what a trial lost."""
    try:
        kind(trial)
    except Exception as error:
        trial.lost.append(f"the injection itself failed: {type(error).__name__}: {error}")
    return trial.lost


def say(line: str, file: Any = None) -> None:
    """Write a line at once."""
    stream = file or sys.stdout
    stream.write(line + "\n")
    stream.flush()


def main() -> int:
    """Inject faults of every kind in turn and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--injections", type=int, default=248)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kinds", help="names separated by commas (default: all)")
    parser.add_argument("--out", type=Path, help="the table as JSON; kinds that it has already are replaced")
    args = parser.parse_args()
    os.environ.setdefault("PYDEVD_DISABLE_FILE_VALIDATION", "1")
    torch.set_num_threads(1)  # a process that is forked has none of its parent's threads
    dt.load_pair("tiny")
    wanted = args.kinds.split(",") if args.kinds else [kind.__name__ for kind in KINDS]
    kinds = [kind for kind in KINDS if kind.__name__ in wanted]
    rows = {kind.__name__: {"what": str(kind.__doc__), "injections": 0, "lost": []} for kind in kinds}
    with folders() as folder:
        for number in range(args.injections):
            kind = kinds[number % len(kinds)]
            lost = inject(kind, args.seed + number // len(kinds), folder / f"{number}")
            rows[kind.__name__]["injections"] += 1
            rows[kind.__name__]["lost"] += lost
            say(f"[{number + 1}/{args.injections}] {kind.__name__}: {'; '.join(lost) or 'nothing lost'}", sys.stderr)
    say(f"{'fault':75} injections  lost")
    for row in rows.values():
        say(f"{row['what']:75} {row['injections']:10}  {len(row['lost']) or 'nothing'}")
    total, lost = sum(row["injections"] for row in rows.values()), sum(len(row["lost"]) for row in rows.values())
    say(f"{len(rows)} kinds, {total} injections, lost: {lost or 'nothing'}.")
    if args.out:
        known = json.loads(args.out.read_text(encoding="utf-8"))["kinds"] if args.out.exists() else {}
        body = {name: {**row, "seed": args.seed, "commit": git_commit()} for name, row in rows.items()}
        every = {kind.__name__: (known | body)[kind.__name__] for kind in KINDS if kind.__name__ in known | body}
        args.out.write_text(json.dumps({"kinds": every}, indent=1) + "\n", encoding="utf-8")
    return int(lost > 0)


if __name__ == "__main__":
    raise SystemExit(main())
