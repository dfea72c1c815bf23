"""`dynatree run`: execute notebooks one after another through papermill, each in a kernel of its own.

A notebook runs under a partial name; once it has finished it gets its own name and then its receipt. A notebook that
fails keeps its output and the others still run. What to run is `plan`'s part, what counts as done is `receipts`'.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from pathlib import Path
from threading import Event, Thread
from types import TracebackType
from typing import Any

from ..measure.environment import git_commit
from .plan import PROFILES, Estimate, Job, cell_source, find_sources, make_jobs, parse_override, project_root, select
from .receipts import Files, Fingerprint, environment, fingerprint, now, read_json, why_rerun, write_json, write_receipt

RUN_FILE = "run.json"
INTERRUPTED = 130  # what a shell reports for Ctrl-C
Say = Callable[[str], None]


def configure(parser: argparse.ArgumentParser) -> None:
    """The options of `dynatree run`."""
    add = parser.add_argument
    add("--profile", choices=PROFILES, default="laptop", help="how large a run (default: laptop)")
    add("--only", action="append", default=[], metavar="GLOB", help="only notebooks matching, e.g. '10_*'; repeatable")
    add("--headline", action="store_true", help="only the headline notebooks")
    add("-p", dest="overrides", action="append", default=[], metavar="NAME=VALUE", help="set a parameter; repeatable")
    add("--out", type=Path, help="folder of this run (default: outputs/<profile>-<time>; with --resume the newest)")
    add("--resume", action="store_true", help="skip notebooks whose receipt still stands")
    add("--dry-run", action="store_true", help="print what would run, with estimates, and stop")
    add("--notebooks", type=Path, help="folder of the notebooks (default: notebooks/ of the checkout)")
    add("--report", action="store_true", help="build report.html afterwards, also after failures")


def main(args: argparse.Namespace) -> int:
    """Run `dynatree run`; 0 when every notebook finished, 1 when one failed, 130 after Ctrl-C."""
    root = project_root()
    sources = select(find_sources(args.notebooks or root / "notebooks"), args.only, args.headline)
    jobs = make_jobs(sources, args.profile, dict(parse_override(text) for text in args.overrides))
    out = (args.out or default_out(root, args.profile, args.resume)).resolve()
    if args.dry_run:
        tell(describe_plan(jobs, out, args.resume))
        return 0
    require_papermill()
    code = run_jobs(jobs, out, root, resume=args.resume, say=tell, progress=sys.stderr.isatty())
    if args.report and code != INTERRUPTED:
        from .report import build_report  # here: it loads nbconvert

        tell(f"Report: {build_report(out)}")
    return code


def tell(text: str) -> None:
    """Write a line at once, so that progress shows through a pipe too."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def require_papermill() -> None:
    """RuntimeError with the way out where the notebooks extra is not installed."""
    try:
        import papermill  # noqa: F401
    except ImportError as error:
        raise RuntimeError("Running notebooks needs papermill: pip install 'dynatree-lib[notebooks]'.") from error


def default_out(root: Path, profile: str, resume: bool) -> Path:
    """A new folder named by profile and time; to resume, the newest such folder there is."""
    outputs = root / "outputs"
    earlier = sorted(path.parent for path in outputs.glob(f"{profile}-*/{RUN_FILE}"))
    if resume and earlier:
        return earlier[-1]
    return outputs / f"{profile}-{datetime.now():%Y%m%d-%H%M%S}"


@dataclass(frozen=True)
class Outcome:
    """How one notebook ended: finished, kept (its receipt stands), failed or interrupted."""

    name: str
    status: str
    problem: str = ""


def run_jobs(jobs: Sequence[Job], out: Path, root: Path, *, resume: bool, say: Say, progress: bool = False) -> int:
    """Run jobs in order into `out`; returns the exit code. Ctrl-C ends the run and keeps what is finished."""
    write_run_file(out, jobs)
    outcomes: list[Outcome] = []
    for number, job in enumerate(jobs, 1):
        say_numbered = partial(say_with, say, f"[{number}/{len(jobs)}] ")
        outcome = run_or_keep(job, out, root, resume, say_numbered, progress)
        outcomes.append(outcome)
        if outcome.status == "interrupted":
            break
    say(summary(outcomes, len(jobs), out))
    statuses = {outcome.status for outcome in outcomes}
    return INTERRUPTED if "interrupted" in statuses else int("failed" in statuses)


def say_with(say: Say, prefix: str, text: str) -> None:
    """Say a line under a prefix."""
    say(prefix + text)


def run_or_keep(job: Job, out: Path, root: Path, resume: bool, say: Say, progress: bool) -> Outcome:
    """Run one notebook, or keep its result where resuming finds that it still stands."""
    files, basis = Files(out, job.name), fingerprint(job)
    reason = why_rerun(files, basis) if resume else None
    if resume and reason is None:
        say(f"{job.name}: kept, its receipt stands")
        return Outcome(job.name, "kept")
    again = f" again, because {reason}" if reason and files.receipt.is_file() else ""
    say(f"{job.name}: running{again}{about(job.estimate)}")
    files.clear(keep_records=resume and unfinished(files, basis))
    outcome, cost = execute(job, files, basis, root, progress)
    say(f"{job.name}: {outcome.status} after {cost}{': ' + outcome.problem if outcome.problem else ''}")
    return outcome


def unfinished(files: Files, basis: Fingerprint) -> bool:
    """Whether an attempt at this very job stopped half-way, so that its loops can go on from their records."""
    try:
        return not basis.differences(read_json(files.failure)["fingerprint"])
    except (OSError, ValueError, KeyError):
        return False


def execute(job: Job, files: Files, basis: Fingerprint, root: Path, progress: bool) -> tuple[Outcome, str]:
    """Execute one notebook and settle its files; returns the outcome and its cost in words."""
    started, clock = now(), time.perf_counter()
    outcome = Outcome(job.name, "finished")
    with PeakMemory() as memory, kernel_environment(job, files.out, root):
        try:
            run_papermill(job, files.partial, root, progress)
        except KeyboardInterrupt:
            outcome = Outcome(job.name, "interrupted", "stopped by Ctrl-C")
        except Exception as error:  # a dead kernel, a time-out or a broken notebook must not stop the others
            outcome = Outcome(job.name, "failed", describe_failure(error, files.partial))
    cost: dict[str, Any] = {
        "started": started,
        "finished": now(),
        "seconds": round(time.perf_counter() - clock, 2),
        "memory_mb": memory.peak_mb,
    }
    if outcome.status == "finished":
        files.partial.replace(files.executed)
        write_receipt(files, job, basis, cost)
    else:
        keep_failure(outcome, job, files, basis, cost)
    return outcome, costs(cost["seconds"], cost["memory_mb"])


def run_papermill(job: Job, target: Path, root: Path, progress: bool) -> None:
    """Execute a notebook into its partial file; raises what went wrong."""
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
    where = {"input_path": job.source.path, "output_path": target.with_name(f"{job.name}.ipynb")}
    for key, path in where.items():  # papermill notes full paths, which mean nothing on another machine
        notebook.metadata.papermill[key] = path.relative_to(root).as_posix() if path.is_relative_to(root) else path.name
    write_ipynb(notebook, str(target))


@contextmanager
def kernel_environment(job: Job, out: Path, root: Path) -> Iterator[None]:
    """Environment variables for the kernels, which inherit this process's; restored afterwards."""
    given = {
        "DYNATREE_ROOT": str(root),
        "DYNATREE_PROFILE": job.profile,
        "DYNATREE_OUT": str(out),
        "PYTHONPATH": os.pathsep.join(library_path()),
        "PYDEVD_DISABLE_FILE_VALIDATION": "1",
        "TOKENIZERS_PARALLELISM": "false",
        # Figures as data: the report renders them with one shared plotly.min.js instead of 5 MB in every notebook.
        "PLOTLY_RENDERER": "plotly_mimetype",
    }
    before = {name: os.environ.get(name) for name in given}
    os.environ.update(given)
    try:
        yield
    finally:
        for name, value in before.items():
            restore(name, value)


def restore(name: str, value: str | None) -> None:
    """Give an environment variable its earlier value, or remove it where it had none."""
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


def library_path() -> list[str]:
    """PYTHONPATH under which a kernel imports the very library whose hash goes into the receipt."""
    home = Path(__file__).resolve().parents[2]
    inherited = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    return [str(home), *inherited] if (home / "pyproject.toml").is_file() else inherited


class PeakMemory:
    """Largest resident memory of this process's children while the block runs, in MB, looked at four times a second."""

    def __init__(self) -> None:
        self.peak_mb: float | None = None
        self._done = Event()
        self._thread = Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        import psutil

        me = psutil.Process()
        while not self._done.wait(0.25):
            used = 0
            for child in me.children(recursive=True):
                try:
                    used += child.memory_info().rss
                except psutil.Error:  # gone since it was listed
                    continue
            self.peak_mb = max(self.peak_mb or 0.0, round(used / 2**20, 1))


def describe_failure(error: Exception, left: Path) -> str:
    """One line that names the cell and the error."""
    from papermill.exceptions import PapermillExecutionError

    if isinstance(error, PapermillExecutionError):
        where = cell_words(error.exec_count, failing_line(error.traceback) or error.source)
        return f"{where} raised {error.ename}: {shorten(error.evalue)}"
    place = last_started_cell(left)
    return f"{place + ' ended with ' if place else ''}{type(error).__name__}: {shorten(str(error))}"


def failing_line(traceback: Iterable[str]) -> str:
    """The cell's line that a kernel's coloured traceback points at, or an empty text."""
    for line in re.sub(r"\x1b\[[0-9;]*m", "", "\n".join(traceback)).splitlines():
        if found := re.match(r"-+> ?\d+ (.*)", line):
            return found.group(1).strip()
    return ""


def last_started_cell(left: Path) -> str:
    """The cell a dead kernel or a time-out left behind: the last one that was started."""
    try:
        cells = read_json(left)["cells"]
    except (OSError, ValueError, KeyError):
        return ""
    started = [cell for cell in cells if cell.get("metadata", {}).get("papermill", {}).get("start_time")]
    code = [cell for cell in started if cell["cell_type"] == "code"]
    return cell_words(code[-1].get("execution_count") or len(code), cell_source(code[-1])) if code else ""


def cell_words(count: int | None, source: str) -> str:
    """A cell as a reader finds it: its number and its first line."""
    lines = [line for line in source.splitlines() if line.strip()] or [""]
    return f"cell In [{count}] `{shorten(lines[0], 60)}`"


def shorten(text: str, limit: int = 300) -> str:
    """A text on one line of limited length."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


def keep_failure(outcome: Outcome, job: Job, files: Files, basis: Fingerprint, cost: dict[str, Any]) -> None:
    """Keep the notebook as far as it came, and say beside it what happened."""
    if files.partial.is_file():
        files.partial.replace(files.stopped(outcome.status))
    content = {
        "notebook": job.name,
        "title": job.source.title,
        "status": outcome.status,
        "problem": outcome.problem,
        "fingerprint": basis.__dict__,
        **cost,
    }
    write_json(files.failure, content)


def write_run_file(out: Path, jobs: Sequence[Job]) -> None:
    """Note what this folder is about; a later run into the same folder adds its notebooks."""
    path = out / RUN_FILE
    try:
        known = list(read_json(path)["notebooks"])
    except (OSError, ValueError, KeyError, TypeError):
        known = []
    content = {
        "profile": jobs[0].profile,
        "started": now(),
        "commit": git_commit(),
        "environment": environment(),
        "notebooks": sorted({*known, *(job.name for job in jobs)}),
    }
    write_json(path, content)


def summary(outcomes: Sequence[Outcome], planned: int, out: Path) -> str:
    """The last lines of a run: how many of each kind, every problem, and the way on."""
    counts = {
        status: sum(o.status == status for o in outcomes) for status in ("finished", "kept", "failed", "interrupted")
    }
    words = ", ".join(f"{count} {status}" for status, count in counts.items() if count)
    plural = "" if planned == 1 else "s"
    lines = [
        f"{planned} notebook{plural}: {words}{f', {left} not started' if (left := planned - len(outcomes)) else ''}."
    ]
    lines += [f"  {o.name} {o.status}: {o.problem}" for o in outcomes if o.problem]
    lines += [f"Results: {out}"]
    if counts["failed"] or counts["interrupted"]:
        lines += [f"What is finished stays; run only the rest with the same command and --resume --out {out}."]
    return "\n".join(lines)


def describe_plan(jobs: Sequence[Job], out: Path, resume: bool) -> str:
    """The dry run: one line a notebook with time and memory, then the totals."""
    rows = [("notebook", "time", "memory", "action", "parameters")]
    todo: list[Estimate] = []
    for job in jobs:
        files = Files(out, job.name)
        cost, reason = expected(job, files), why_rerun(files, fingerprint(job)) if resume else "asked for"
        if reason is not None:
            todo.append(cost)
        given = ", ".join(f"{name}={value}" for name, value in job.parameters.items())
        action = "keep: its receipt stands" if reason is None else f"run: {reason}"
        rows.append((job.name, duration(cost.seconds), megabytes(cost.memory_mb), action, given))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([f"Would run into {out}:", *lines, total(todo)])


def expected(job: Job, files: Files) -> Estimate:
    """What an earlier run of this profile in the same folder took, else what the notebook's author states."""
    try:
        receipt = read_json(files.receipt)
    except (OSError, ValueError):
        return job.estimate
    if receipt.get("profile") != job.profile:
        return job.estimate
    return Estimate(receipt.get("seconds"), receipt.get("memory_mb"))


def total(costs: Sequence[Estimate]) -> str:
    """Sum of times and largest memory, said to be a lower bound where an estimate is missing."""
    seconds = [cost.seconds for cost in costs if cost.seconds is not None]
    memory = [cost.memory_mb for cost in costs if cost.memory_mb is not None]
    bound = "at least " if len(seconds) < len(costs) else "about "
    peak = f", at most {megabytes(max(memory))} at a time" if memory else ""
    return f"{len(costs)} to run, {bound}{duration(sum(seconds))} in all{peak}."


def costs(seconds: float, memory_mb: float | None) -> str:
    """Time and memory of a finished notebook, in words."""
    return duration(seconds) + (f", {megabytes(memory_mb)}" if memory_mb else "")


def about(estimate: Estimate) -> str:
    """The expected time as a remark, if there is one."""
    return f" (about {duration(estimate.seconds)})" if estimate.seconds is not None else ""


def duration(seconds: float | None) -> str:
    """Seconds as a person says them."""
    if seconds is None:
        return "unknown"
    if seconds < 100:
        return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 6000 else f"{seconds / 3600:.1f} h"


def megabytes(amount: float | None) -> str:
    """Megabytes as a person says them."""
    if amount is None:
        return "unknown"
    return f"{amount:.0f} MB" if amount < 1000 else f"{amount / 1000:.1f} GB"
