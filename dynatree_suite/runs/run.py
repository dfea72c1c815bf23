"""Running notebooks through papermill, each in a kernel of its own: one after another, or on the workers of `cluster`.

A notebook runs under a partial name. Once it has finished it gets its own name, and then its receipt. A notebook that
fails keeps its output, and the others still run. `plan` decides what to run; `receipts` decides what is done.
"""

from __future__ import annotations

import os
import socket
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Event, Thread
from typing import TYPE_CHECKING, Any

from dynatree_lib.checks import check_unicode

from ..bench.environment import describe_environment, git_commit, package_version
from ..files import sole_run
from .cluster import STOPPED, still_wanted, work
from .plan import DIVIDE, Cost, Job, cell_source
from .receipts import (
    NOTE,
    RUN,
    RUN_FILE,
    Files,
    asked_otherwise,
    changed_since,
    differences,
    fingerprint,
    has_finished,
    now,
    read_or_empty,
    why_rerun,
    write_json,
    write_receipt,
)
from .words import Say, shorten, words_of

if TYPE_CHECKING:
    from distributed import Client

INTERRUPTED = 130  # a shell's exit code for Ctrl-C
PACKAGES = ("datasets", "papermill", "plotly")  # of the notebooks, besides those that decoding needs
LONGEST_SOCKET = 100  # bytes; macOS takes 103, of which Jupyter adds "-1" to "-5"
SOONEST = 0.25  # seconds between two looks at a kernel's memory and at the time


@dataclass(frozen=True)
class Outcome:
    """The end of a notebook: finished, kept (its receipt is valid), failed or interrupted; as text without its name."""

    name: str
    status: str
    problem: str = ""
    cost: Cost = field(default_factory=Cost)
    where: str = ""  # " on HOST, ..." for a worker's

    def __str__(self) -> str:
        if self.status == "kept":
            return "kept, its receipt is valid"
        return f"{self.status} after {self.cost}{self.where}{': ' if self.problem else ''}{self.problem}"


def require_papermill() -> None:
    """Raise RuntimeError with the way out where the notebooks extra is not installed."""
    try:
        import papermill  # noqa: F401
    except ImportError as error:
        raise RuntimeError("Running notebooks needs papermill: pip install 'dynatree-lib[notebooks]'.") from error


def default_out(root: Path, profile: str, resume: bool, divide: int = 1) -> Path:
    """Return a new folder named by profile and time; to resume, the last such folder there is, by name.

    A new folder's name comes after those that are there, also where the clock was set back since. A rehearsal has
    folders of its own.
    """
    outputs, kind = root / "outputs", profile if divide == 1 else f"rehearsed-{profile}"
    earlier = sorted(path.parent for path in outputs.glob(f"{kind}-*/{RUN_FILE}"))
    if resume and earlier:
        return earlier[-1]
    new = outputs / f"{kind}-{datetime.now():%Y%m%d-%H%M%S}"
    return new if not earlier or earlier[-1] < new else earlier[-1].with_name(f"{earlier[-1].name}-2")


def check_place(jobs: Sequence[Job], out: Path, resume: bool, overwrite: bool) -> None:
    """Check that a run into this folder replaces nothing that it should not.

    Raises:
        ValueError: where a notebook lies that no run wrote, such as the one to be run; where a notebook has finished,
            without `resume` and `overwrite`; with `resume`, where it has finished with other parameters.
    """
    for job in jobs:
        files = Files(out, job.name)
        ours = any(path.is_file() for path in (out / RUN_FILE, files.receipt, files.failure))
        if files.executed.exists() and (not ours or files.executed.samefile(job.source.path)):
            raise ValueError(
                f"{files.executed} is a notebook that no run wrote and this one would replace it; give another --out."
            )
    finished = [job.name for job in jobs if Files(out, job.name).receipt.is_file()]
    if finished and not (resume or overwrite):
        others = f" and {len(finished) - 1} more" if len(finished) > 1 else ""
        raise ValueError(
            f"{finished[0]}{others} finished in {out} before; keep what is valid with --resume, run all again with "
            "--overwrite, or give another --out."
        )
    for job in jobs if resume else ():
        if asked := asked_otherwise(Files(out, job.name), fingerprint(job)):
            raise ValueError(
                f"{job.name} finished in {out} with other parameters ({asked}) and would be run again; give the same, "
                "another --out, or --overwrite."
            )


# ----------------------------------------------------------------------------------------------------------- execution
def run_jobs(
    jobs: Sequence[Job],
    out: Path,
    root: Path,
    *,
    resume: bool,
    say: Say,
    overwrite: bool = False,
    progress: bool = False,
    timeout: float | None = None,
    client: Client | None = None,
) -> int:
    """Run jobs into `out` and return the exit code: 0, 1 where one has not finished, 130 after Ctrl-C.

    Args:
        jobs: run in this order; on workers the longest first.
        out: folder of the run, which this process holds until it returns.
        root: the checkout, or the folder of the notebooks.
        resume: skip jobs whose receipt is valid.
        say: is told how the run goes.
        overwrite: run jobs that have finished in `out` once more.
        progress: show a bar for each notebook.
        timeout: seconds after which a notebook has failed.
        client: of the workers, without which the notebooks run here.

    Raises:
        ValueError: as for `check_place`.
        RuntimeError: where another run works in `out`.
    """
    check_unicode(str(out), "The folder of the run")  # notebooks and records name it
    outcomes: list[Outcome] = []
    bases: dict[str, dict[str, Any]] = {}

    def ended(outcome: Outcome) -> None:
        outcomes.append(outcome)
        say(f"[{len(outcomes)}/{len(jobs)}] {outcome.name}: {outcome}")

    def call(job: Job) -> tuple[Any, ...]:
        files, basis = Files(out, job.name), fingerprint(job)
        again = f" again, because {why_rerun(files, basis)}" if resume and files.receipt.is_file() else ""
        say(f"{job.name}: running{again}{job.expected}")
        files.prepare(basis, resume)
        bases[job.name] = basis
        if client is None:
            return execute, job, files, basis, root, progress, timeout
        return execute_on_worker, job, basis, out, root, resume, timeout

    def settle(job: Job, outcome: Outcome | None, problem: str) -> None:
        ended(outcome or without_report(job, Files(out, job.name), bases[job.name], problem))
        if outcome and outcome.status == "interrupted":
            raise KeyboardInterrupt

    def under_way(running: Collection[Job]) -> str:
        cells = [(job.name, *cells_of(Files(out, job.name).partial)) for job in running]
        parts = [f"{name} (cell {len(begun)} of {count})" for name, begun, count in cells if count]
        return f"Running: {', '.join(parts)}." if parts else ""

    with sole_run(out):
        check_place(jobs, out, resume, overwrite)  # another run may have finished a job a moment before
        write_run_file(out, jobs)
        todo = []
        for job in jobs:
            if resume and has_finished(Files(out, job.name), fingerprint(job)):
                ended(Outcome(job.name, "kept"))
            else:
                todo.append(job)
        if client is not None:
            todo.sort(key=lambda job: -(job.estimate.seconds or 0))
        stopped = work(client, todo, call, settle, say, under_way)
    say(describe_outcomes(outcomes, len(jobs), out))
    done = sum(outcome.status in ("finished", "kept") for outcome in outcomes)
    return INTERRUPTED if stopped else int(done < len(jobs))


def execute(
    job: Job,
    files: Files,
    basis: Mapping[str, Any],
    root: Path,
    progress: bool,
    timeout: float | None = None,
    wanted: Callable[[], bool] | None = None,
) -> Outcome:
    """Execute a notebook and settle its files.

    Args:
        job: what to execute.
        files: where everything about it lies.
        basis: the job's fingerprint.
        root: the checkout, or the folder of the notebooks.
        progress: whether to show a bar.
        timeout, wanted: of `Watch`.
    """
    facts = {"started": now(), "environment": describe_machine()}
    clock = time.perf_counter()
    killed = Outcome(job.name, "interrupted", "its runner was killed, or it runs now")
    write_failure(files, job, killed, basis, facts)  # so that it goes on from its records even then
    status, problem = "finished", ""
    with Watch(timeout, wanted) as watch, kernel_environment(job, files.out, root):
        try:
            run_papermill(job, files.partial, root, progress)
        except KeyboardInterrupt:
            status, problem = "interrupted", STOPPED
        except Exception as error:  # a dead kernel, a time-out or a broken notebook must not stop the others
            told = " in ".join(filter(None, (watch.reason, watch.reason and at_cell(files.partial))))
            status, problem = watch.status or "failed", told or describe_failure(error, files.partial)
    if status == "finished" and (changed := changed_since(job, basis)):
        status, problem = "failed", f"{' and '.join(changed)} changed while it ran; run it again"
    cost = Cost(round(time.perf_counter() - clock, 2), max(watch.readings, default=None))
    outcome = Outcome(job.name, status, problem, cost)
    if status == "finished":
        files.partial.replace(files.executed)
        write_receipt(files, job, basis, {**facts, "finished": now(), **asdict(cost)})
        files.failure.unlink(missing_ok=True)
    else:
        write_failure(files, job, outcome, basis, {**facts, "finished": now()})
    return outcome


def execute_on_worker(
    job: Job, basis: Mapping[str, Any], out: Path, root: Path, resume: bool, timeout: float | None
) -> Outcome:
    """On a worker: run a notebook, unless an earlier worker that died had finished it; options as for `run_jobs`."""
    files, where = Files(out, job.name), f" on {socket.gethostname()}, process {os.getpid()}"
    others = differences(fingerprint(job), basis) + ["the run's folder"] * (not (out / RUN_FILE).is_file())
    if others:  # of a worker that came after `check_workers`
        outcome = Outcome(job.name, "failed", f"the worker{where} does not have the same: {' and '.join(others)}")
        write_failure(files, job, outcome, basis, {"finished": now()})
        return outcome
    again = files.partial.is_file() or files.receipt.is_file()
    if has_finished(files, basis, root):
        receipt = read_or_empty(files.receipt)
        outcome = Outcome(job.name, "finished", cost=Cost(receipt.get("seconds"), receipt.get("memory_mb")))
    else:
        if again:
            files.prepare(basis, resume)
        outcome = execute(job, files, basis, root, progress=False, timeout=timeout, wanted=still_wanted())
    return replace(outcome, where=f"{where}{', started again after its worker died' if again else ''}")


def without_report(job: Job, files: Files, basis: Mapping[str, Any], problem: str) -> Outcome:
    """Return the outcome of a notebook whose worker reports nothing; it may have died after it wrote the receipt."""
    if has_finished(files, basis):
        return Outcome(job.name, "finished", where=" on a worker that is gone")
    if problem == STOPPED:  # its worker sees to the files
        return Outcome(job.name, "interrupted", problem)
    failed = Outcome(job.name, "failed", problem)
    write_failure(files, job, failed, basis, {"finished": now()})
    return failed


def write_failure(files: Files, job: Job, outcome: Outcome, basis: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Keep a notebook as far as it came, and write what stopped it, in place of a receipt."""
    if files.partial.is_file():
        files.partial.replace(files.stopped(outcome.status))
    about = {"notebook": job.name, "title": job.source.title, "status": outcome.status, "problem": outcome.problem}
    where = {"profile": job.profile, "commit": git_commit()}
    write_json(files.failure, {**about, "fingerprint": basis, **where, **facts, **asdict(outcome.cost)})


def run_papermill(job: Job, target: Path, root: Path, progress: bool) -> None:
    """Execute a notebook into its partial file, section by section, and let its errors through."""
    import papermill
    from papermill.iorw import write_ipynb
    from traitlets.config import Config

    from .sections import ENGINE

    # papermill fills parameters into the braces of paths
    source, partial = (str(path).replace("{", "{{").replace("}", "}}") for path in (job.source.path, target))
    with kernel_connection() as connection:
        notebook = papermill.execute_notebook(
            source,
            partial,
            parameters=dict(job.parameters),
            engine_name=ENGINE,
            kernel_name="python3",
            progress_bar={"desc": job.name, "leave": False} if progress else False,
            store_widget_state=False,  # a widget's state can add megabytes; every widget has a static figure too
            config=Config({"KernelManager": connection}),
        )
    paths = {"input_path": job.source.path, "output_path": target.with_name(f"{job.name}.ipynb")}
    for key, path in paths.items():  # papermill notes full paths, which mean nothing on another machine
        notebook.metadata.papermill[key] = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
    write_ipynb(notebook, str(target))


@contextmanager
def kernel_connection() -> Iterator[dict[str, str]]:
    """Yield a kernel manager's options: how the kernel is reached, by sockets that are files in a folder of its own.

    TCP ports are chosen before the kernel binds them: of kernels that start at once, two may be given the same one,
    and a kernel dies. TCP is left where sockets cannot be files: on Windows, and where the folder's path is too long
    or not ASCII. After Ctrl-C or an error kernels are killed: one that was about to start would miss its sockets.
    """
    with TemporaryDirectory(prefix="kernel-", ignore_cleanup_errors=True) as folder:
        sockets = Path(folder) / "socket"
        files = os.name == "posix" and folder.isascii() and len(bytes(sockets)) <= LONGEST_SOCKET
        try:  # without encryption the kernel would warn about plain TCP
            yield {"transport": "ipc", "ip": str(sockets)} if files else {"transport_encryption": "auto"}
        except BaseException:
            kill_kernels()
            raise


def kill_kernels() -> None:
    """Kill the kernels of this process, and what they have started."""
    import psutil

    for process in psutil.Process().children(recursive=True):
        with suppress(psutil.Error):
            if any("ipykernel_launcher" in part for part in process.cmdline()):
                for one in (process, *process.children(recursive=True)):
                    with suppress(psutil.Error):
                        one.kill()


@contextmanager
def kernel_environment(job: Job, out: Path, root: Path) -> Iterator[None]:
    """Set environment variables for the kernels, which inherit those of this process; restore them afterwards.

    PYTHONPATH makes a kernel import the very library whose hash goes into the receipt.
    """
    home = Path(__file__).resolve().parents[2]
    checkout = [str(home)] if (home / "pyproject.toml").is_file() else []
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    variables = {
        "DYNATREE_ROOT": str(root),
        "DYNATREE_PROFILE": job.profile,
        DIVIDE: str(job.divide),
        "DYNATREE_OUT": str(out),
        "PYTHONPATH": os.pathsep.join([*checkout, *inherited]),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Figures as data: the report renders them with one shared plotly.min.js instead of 5 MB in every notebook.
        "PLOTLY_RENDERER": "plotly_mimetype",
    }
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Watch:
    """Watches a running notebook: reads its memory, and kills its kernel after the time-out or when told to.

    Args:
        timeout: seconds after which the notebook has failed; None for no limit.
        wanted: tells whether the notebook's result is still asked for; asked four times a second.

    Attributes:
        readings: resident memory of this process's children in MB, read four times a second.
        status, reason: outcome of a notebook whose kernel was killed here, and why; empty where none was.
    """

    def __init__(self, timeout: float | None, wanted: Callable[[], bool] | None = None) -> None:
        self.readings: list[float] = []
        self.status, self.reason = "", ""
        self._timeout, self._wanted, self._done = timeout, wanted, Event()
        self._thread = Thread(target=self._look, daemon=True)

    def __enter__(self) -> Watch:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join()

    def _look(self) -> None:
        import psutil

        process, started = psutil.Process(), time.monotonic()
        while not self._done.wait(SOONEST):
            used = 0
            for child in process.children(recursive=True):
                with suppress(psutil.Error):  # gone since it was listed
                    used += child.memory_info().rss
            self.readings.append(round(used / 2**20, 1))
            if self._timeout is not None and time.monotonic() - started > self._timeout:
                self.status, self.reason = "failed", f"it took longer than the time-out of {Cost(self._timeout).time}"
            elif self._wanted is not None and not self._wanted():
                self.status, self.reason = "interrupted", "the run was stopped"
            if self.status:  # also what was only about to start when this was found
                kill_kernels()


def write_run_file(out: Path, jobs: Sequence[Job]) -> None:
    """Write how a run's folder was begun; a later run into the folder adds its notebooks alone.

    Receipts and failure notes say of each notebook when, where and in which profile it ran.
    """
    begun = {"profile": jobs[0].profile, "started": now(), "commit": git_commit(), "environment": describe_machine()}
    known = read_or_empty(out / RUN_FILE, RUN)
    names = sorted({*known.get("notebooks", []), *(job.name for job in jobs)})
    write_json(out / RUN_FILE, {**begun, **known, "notebooks": names})


def describe_machine() -> dict[str, Any]:
    """Return everything about this machine and this code that may change a notebook's results."""
    return describe_environment() | {name: package_version(name) for name in PACKAGES}


# --------------------------------------------------------------------------------------------------------------- words
def describe_failure(error: Exception, left: Path) -> str:
    """Return one line that names the cells and their errors; `left` is the notebook as far as it came."""
    from papermill.exceptions import PapermillExecutionError

    from .sections import failures, in_a_line

    found = failures(read_or_empty(left).get("cells", []))
    if found and isinstance(error, PapermillExecutionError):
        return in_a_line(found)
    cell = at_cell(left)  # a dead kernel says nothing of the cell, and may have died after a section had failed
    ended = f"{cell}{' ended with ' if cell else ''}{type(error).__name__}: {shorten(words_of(error))}"
    return "; ".join([in_a_line(found), ended] if found else [ended])


def at_cell(left: Path) -> str:
    """Return number and first line of the cell that was started last; empty where none was."""
    begun, _ = cells_of(left)
    if not begun:
        return ""
    from .sections import describe_cell

    return describe_cell(begun[-1].get("execution_count") or len(begun), cell_source(begun[-1]))


def cells_of(notebook: Path) -> tuple[list[dict[str, Any]], int]:
    """Return the code cells that papermill has started of a notebook that runs or has stopped, and how many it has."""
    cells = [cell for cell in read_or_empty(notebook).get("cells", []) if cell["cell_type"] == "code"]
    return [cell for cell in cells if cell["metadata"].get("papermill", {}).get("start_time")], len(cells)


def describe_outcomes(outcomes: Sequence[Outcome], planned: int, out: Path) -> str:
    """Return the last lines of a run: how many of each status, every problem, and the way on."""
    counts = Counter(outcome.status for outcome in outcomes)
    order = ("finished", "kept", "failed", "interrupted")
    words = [f"{counts[status]} {status}" for status in order if counts[status]]
    words += [f"{planned - len(outcomes)} not started"] if planned > len(outcomes) else []
    lines = [f"{planned} notebook{'' if planned == 1 else 's'}: {', '.join(words)}."]
    lines += [f"  {outcome.name} {outcome.status}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    lines += [f"Results: {out}"]
    if counts["failed"] or counts["interrupted"] or planned > len(outcomes):
        lines += [f"Finished notebooks stay; run only the rest with the same command and --resume --out {out}."]
    return "\n".join(lines)


def describe_plan(jobs: Sequence[Job], out: Path, resume: bool) -> str:
    """Return the dry run: a line per notebook with time and memory, then the totals."""
    rows = [("notebook", "time", "memory", "action", "parameters")]
    costs: list[Cost] = []
    for job in jobs:
        files = Files(out, job.name)
        cost, reason = expected_cost(job, files), why_rerun(files, fingerprint(job)) if resume else "asked for"
        costs += [] if reason is None else [cost]
        parameters = ", ".join(f"{name}={value}" for name, value in job.parameters.items())
        action = "keep: its receipt is valid" if reason is None else f"run: {reason}"
        rows.append((job.name, cost.time, cost.memory, action, parameters))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    seconds = [cost.seconds for cost in costs if cost.seconds is not None]
    memory = [cost.memory_mb for cost in costs if cost.memory_mb is not None]
    total = Cost(sum(seconds), max(memory, default=None))
    bound = "at least" if len(seconds) < len(costs) else "about"
    peak = f", at most {total.memory} at a time" if memory else ""
    summary = f"{len(costs)} to run, {bound} {total.time} in all{peak}."
    return "\n".join([f"Would run into {out}:", *lines, summary])


def expected_cost(job: Job, files: Files) -> Cost:
    """Return the cost of an earlier run of this profile and divisor in the same folder, else the author's estimate."""
    receipt = read_or_empty(files.receipt, NOTE)
    if receipt.get("profile") != job.profile or (receipt.get("divide") or 1) != job.divide:
        return job.estimate
    return Cost(receipt.get("seconds"), receipt.get("memory_mb"))
