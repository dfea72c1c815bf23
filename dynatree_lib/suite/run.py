"""Running notebooks one after another through papermill, each in a kernel of its own.

A notebook runs under a partial name. Once it has finished it gets its own name, and then its receipt. A notebook that
fails keeps its output, and the others still run. `plan` decides what to run; `receipts` decides what is done.
"""

from __future__ import annotations

import os
import re
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from datetime import datetime
from pathlib import Path
from threading import Event, Thread
from typing import Any

from ..measure.environment import describe_environment, git_commit, package_version
from .plan import Cost, Job, cell_source
from .receipts import (
    RUN_FILE,
    Files,
    differences,
    fingerprint,
    now,
    read_or_empty,
    why_rerun,
    write_json,
    write_receipt,
)

INTERRUPTED = 130  # a shell's exit code for Ctrl-C
PACKAGES = ("datasets", "papermill", "plotly")  # of the notebooks, besides those that decoding needs
Say = Callable[[str], None]


@dataclass(frozen=True)
class Outcome:
    """The end of a notebook: finished, kept (its receipt is valid), failed or interrupted."""

    name: str
    status: str
    problem: str = ""


def require_papermill() -> None:
    """Raise RuntimeError with the way out where the notebooks extra is not installed."""
    try:
        import papermill  # noqa: F401
    except ImportError as error:
        raise RuntimeError("Running notebooks needs papermill: pip install 'dynatree-lib[notebooks]'.") from error


def default_out(root: Path, profile: str, resume: bool) -> Path:
    """Return a new folder named by profile and time; to resume, the newest such folder there is."""
    outputs = root / "outputs"
    earlier = sorted(path.parent for path in outputs.glob(f"{profile}-*/{RUN_FILE}"))
    return earlier[-1] if resume and earlier else outputs / f"{profile}-{datetime.now():%Y%m%d-%H%M%S}"


# ----------------------------------------------------------------------------------------------------------- execution
def run_jobs(jobs: Sequence[Job], out: Path, root: Path, *, resume: bool, say: Say, progress: bool = False) -> int:
    """Run jobs in order into `out` and return the exit code; with `resume` skip those whose receipt is valid.

    Ctrl-C ends the run and keeps everything that has finished.
    """
    write_run_file(out, jobs)
    outcomes: list[Outcome] = []
    for number, job in enumerate(jobs, 1):
        files, basis = Files(out, job.name), fingerprint(job)
        head, reason = f"[{number}/{len(jobs)}] {job.name}:", why_rerun(files, basis) if resume else ""
        if reason is None:
            outcome, result = Outcome(job.name, "kept"), "kept, its receipt is valid"
        else:
            again = f" again, because {reason}" if reason and files.receipt.is_file() else ""
            expected = f" (about {job.estimate.time})" if job.estimate.seconds is not None else ""
            say(f"{head} running{again}{expected}")
            unfinished = not differences(basis, read_or_empty(files.failure).get("fingerprint", {}))
            files.clear(keep_records=resume and unfinished)  # the notebook then goes on from its records
            outcome, cost = execute(job, files, basis, root, progress)
            result = f"{outcome.status} after {cost}{': ' + outcome.problem if outcome.problem else ''}"
        say(f"{head} {result}")
        outcomes.append(outcome)
        if outcome.status == "interrupted":
            break
    say(describe_outcomes(outcomes, len(jobs), out))
    statuses = {outcome.status for outcome in outcomes}
    return INTERRUPTED if "interrupted" in statuses else int("failed" in statuses)


def execute(job: Job, files: Files, basis: Mapping[str, Any], root: Path, progress: bool) -> tuple[Outcome, Cost]:
    """Execute a notebook and settle its files; return the outcome and the cost."""
    started, clock = now(), time.perf_counter()
    outcome = Outcome(job.name, "finished")
    with children_memory() as readings, kernel_environment(job, files.out, root):
        try:
            run_papermill(job, files.partial, root, progress)
        except KeyboardInterrupt:
            outcome = Outcome(job.name, "interrupted", "stopped by Ctrl-C")
        except Exception as error:  # a dead kernel, a time-out or a broken notebook must not stop the others
            outcome = Outcome(job.name, "failed", describe_failure(error, files.partial))
    cost = Cost(round(time.perf_counter() - clock, 2), max(readings, default=None))
    facts = {"started": started, "finished": now(), **asdict(cost)}
    if outcome.status == "finished":
        files.partial.replace(files.executed)
        write_receipt(files, job, basis, facts)
    else:  # keep the notebook as far as it came, and the problem beside it
        if files.partial.is_file():
            files.partial.replace(files.stopped(outcome.status))
        about = {"notebook": job.name, "title": job.source.title, "status": outcome.status, "problem": outcome.problem}
        write_json(files.failure, {**about, "fingerprint": basis, **facts})
    return outcome, cost


def run_papermill(job: Job, target: Path, root: Path, progress: bool) -> None:
    """Execute a notebook into its partial file, and let its errors through."""
    import papermill
    from papermill.iorw import write_ipynb
    from traitlets.config import Config

    notebook = papermill.execute_notebook(
        str(job.source.path),
        str(target),
        parameters=dict(job.parameters),
        kernel_name="python3",
        progress_bar={"desc": job.name, "leave": False} if progress else False,
        store_widget_state=False,  # a widget's state can add megabytes; every widget has a static figure beside it
        config=Config({"KernelManager": {"transport_encryption": "auto"}}),  # else the kernel warns about plain TCP
    )
    paths = {"input_path": job.source.path, "output_path": target.with_name(f"{job.name}.ipynb")}
    for key, path in paths.items():  # papermill notes full paths, which mean nothing on another machine
        notebook.metadata.papermill[key] = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
    write_ipynb(notebook, str(target))


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


@contextmanager
def children_memory() -> Iterator[list[float]]:
    """Yield the resident memory, in MB, of this process's children while the block runs, read four times a second."""
    import psutil

    readings: list[float] = []
    done = Event()

    def watch() -> None:
        process = psutil.Process()
        while not done.wait(0.25):
            used = 0
            for child in process.children(recursive=True):
                with suppress(psutil.Error):  # gone since it was listed
                    used += child.memory_info().rss
            readings.append(round(used / 2**20, 1))

    thread = Thread(target=watch, daemon=True)
    thread.start()
    try:
        yield readings
    finally:
        done.set()
        thread.join()


def write_run_file(out: Path, jobs: Sequence[Job]) -> None:
    """Write the subject of a run's folder; a later run into the same folder adds its notebooks."""
    known = read_or_empty(out / RUN_FILE).get("notebooks", [])
    content = {
        "profile": jobs[0].profile,
        "started": now(),
        "commit": git_commit(),
        "environment": describe_environment() | {name: package_version(name) for name in PACKAGES},
        "notebooks": sorted({*known, *(job.name for job in jobs)}),
    }
    write_json(out / RUN_FILE, content)


# --------------------------------------------------------------------------------------------------------------- words
def describe_failure(error: Exception, left: Path) -> str:
    """Return one line that names the cell and the error; `left` is the notebook as far as it came."""
    from papermill.exceptions import PapermillExecutionError

    if isinstance(error, PapermillExecutionError):
        cell = describe_cell(error.exec_count, failing_line(error.traceback) or error.source)
        return f"{cell} raised {error.ename}: {shorten(error.evalue)}"
    cells = [cell for cell in read_or_empty(left).get("cells", []) if cell["cell_type"] == "code"]
    started = [cell for cell in cells if cell.get("metadata", {}).get("papermill", {}).get("start_time")]
    cell = ""
    if started:  # a dead kernel or a time-out says nothing of the cell, which is the last that was started
        count = started[-1].get("execution_count") or len(started)
        cell = f"{describe_cell(count, cell_source(started[-1]))} ended with "
    return f"{cell}{type(error).__name__}: {shorten(str(error))}"


def failing_line(traceback: Iterable[str]) -> str:
    """Return the cell's line that a kernel's coloured traceback points at, or an empty text."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(traceback))
    pointed = re.search(r"^-+> ?\d+ (.*)", plain, re.MULTILINE)
    return pointed[1].strip() if pointed else ""


def describe_cell(count: int | None, source: str) -> str:
    """Return a cell's number and first line."""
    lines = [line for line in source.splitlines() if line.strip()] or [""]
    return f"cell In [{count}] `{shorten(lines[0], 60)}`"


def shorten(text: str, limit: int = 300) -> str:
    """Return a text on one line of limited length."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def describe_outcomes(outcomes: Sequence[Outcome], planned: int, out: Path) -> str:
    """Return the last lines of a run: how many of each status, every problem, and the way on."""
    counts = Counter(outcome.status for outcome in outcomes)
    order = ("finished", "kept", "failed", "interrupted")
    words = [f"{counts[status]} {status}" for status in order if counts[status]]
    words += [f"{planned - len(outcomes)} not started"] if planned > len(outcomes) else []
    lines = [f"{planned} notebook{'' if planned == 1 else 's'}: {', '.join(words)}."]
    lines += [f"  {outcome.name} {outcome.status}: {outcome.problem}" for outcome in outcomes if outcome.problem]
    lines += [f"Results: {out}"]
    if counts["failed"] or counts["interrupted"]:
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
    """Return the cost of an earlier run of this profile in the same folder, else the author's estimate."""
    receipt = read_or_empty(files.receipt)
    if receipt.get("profile") != job.profile:
        return job.estimate
    return Cost(receipt.get("seconds"), receipt.get("memory_mb"))
