"""Running notebooks side by side on Dask workers: of this machine, or of a cluster.

A worker has one thread and runs one notebook at a time. What a notebook leaves behind is what `run` leaves: the same
files, the same receipt. So a run can be resumed with or without workers. A notebook whose worker dies is started again
by another worker; one that fails does not stop the others.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.environment import available_cores
from .plan import Cost, Job
from .receipts import Files, differences, fingerprint, now, own_version, read_or_empty, why_rerun
from .run import (
    INTERRUPTED,
    Outcome,
    Say,
    begun,
    begun_run,
    code_cells,
    describe_outcomes,
    execute,
    exit_code,
    shorten,
    write_failure,
)

if TYPE_CHECKING:
    from distributed import Client, Future

DEATHS = 3
"""A notebook whose worker dies this often has failed."""
PATIENCE = 15
"""Seconds to wait for a scheduler's answer, and for a notebook that was told to stop."""
STARTING = 120
"""Seconds to wait for the workers of this machine."""
DELAY = 60
"""Seconds after which a file of another machine is visible on a shared file system."""
EVERY = 30.0
"""Seconds between two lines on what is running."""
NO_WORKER = "No worker is left; the run goes on when one comes, or stop it by Ctrl-C."
GONE = 300
"""Seconds that a run waits for a worker of this machine where none is left. Each starts again by itself, or never."""
GPU = "GPU"
"""The resource that a worker with a GPU declares."""
CORES = "DYNATREE_WORKER_CORES"
"""Environment variable: the cores of a local worker, which its kernels keep to."""


@dataclass(frozen=True)
class Finished:
    """What a worker reports of a notebook."""

    outcome: Outcome
    cost: Cost
    where: str
    again: bool  # an earlier worker died while it ran this notebook


def require_distributed() -> None:
    """Raise RuntimeError with the way out where Dask is not installed; where it is, let the run alone speak."""
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise RuntimeError("Workers need Dask: pip install 'dynatree-lib[cluster]'.") from error
    for name in ("distributed", "distributed.client"):  # Dask gives the second a level of its own
        logging.getLogger(name).setLevel(logging.CRITICAL)


# ------------------------------------------------------------------------------------------------------------ workers
@contextmanager
def local_workers(count: int, gpu: bool = False) -> Iterator[Client]:
    """Yield a client of `count` workers on this machine, each with its share of the cores, or with a GPU of its own.

    Raises:
        ValueError: for more workers than cores, or than GPUs.
    """
    require_distributed()
    mine = sorted(_cores())
    cards = _gpus() if gpu else []
    there, what = (len(cards), "GPU") if gpu else (len(mine), "core")
    if gpu and not there:
        raise ValueError("--workers was given for notebooks with device=cuda, and torch sees no GPU on this machine.")
    if not 1 <= count <= there:
        have = f"there {'is' if there == 1 else 'are'} {there} {what}{'' if there == 1 else 's'}"
        raise ValueError(f"--workers is {count} and {have} here; give 1 to {there}, at most one worker for each.")
    from dask import config
    from distributed import Client, Nanny, Scheduler, SpecCluster
    from distributed.deploy import spec

    threads = str(max(1, len(mine) // count))
    limits = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
    workers: dict[int, dict[str, Any]] = {}
    for number in range(count):
        own = {"CUDA_VISIBLE_DEVICES": cards[number]} if gpu else {CORES: ",".join(map(str, mine[number::count]))}
        options = {
            "nthreads": 1, "memory_limit": 0, "dashboard": False, "env": {**limits, **own}, "host": "127.0.0.1",
            "resources": {GPU: 1} if gpu else {}, "preload": [__name__], "silence_logs": logging.CRITICAL,
        }  # fmt: skip
        workers[number] = {"cls": Nanny, "options": options}
    alone = {"host": "127.0.0.1", "dashboard": False, "dashboard_address": "127.0.0.1:0"}  # a free port, not Dask's own
    plan = {"cls": Scheduler, "options": {**alone, "allowed_failures": DEATHS - 1}}
    # A busy machine starts a worker in 20 s, not 15.
    with config.set({"distributed.deploy.lost-worker-timeout": f"{GONE}s"}), ExitStack() as stack:
        try:
            loop = stack.enter_context(_loop_without_ctrl_c())
            cluster = stack.enter_context(SpecCluster(workers=workers, scheduler=plan, loop=loop, silence_logs=False))
            client = stack.enter_context(Client(cluster))
            client.wait_for_workers(count, timeout=STARTING)
        except TimeoutError as error:
            raise RuntimeError(
                f"The {count} workers did not start within {STARTING} s; run without --workers."
            ) from error
        except RuntimeError as error:
            raise RuntimeError(
                f"The {count} workers did not start ({error}); try again, or run without --workers."
            ) from error
        except KeyboardInterrupt:
            # Of a cluster that has not begun these would say that it cannot be closed, and that its workers are gone.
            atexit.unregister(spec.close_clusters)
            logging.getLogger("asyncio").setLevel(logging.CRITICAL)
            raise
        yield client


@contextmanager
def _loop_without_ctrl_c() -> Iterator[Any]:
    """Yield Dask's event loop, in a thread that blocks SIGINT; its workers inherit that and unblock it in `dask_setup`.

    Otherwise Ctrl-C reaches workers while they import, and each prints a traceback.
    """
    from distributed.utils import LoopRunner

    resource_tracker.ensure_running()  # to launch it unblocks SIGINT in its caller, which would start workers next
    runner, before = LoopRunner(), signal.pthread_sigmask(signal.SIG_BLOCK, ())
    try:
        try:
            signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            runner.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        yield runner.loop
    finally:
        runner.stop()


@contextmanager
def scheduler_at(address: str) -> Iterator[Client]:
    """Yield a client of a Dask scheduler that runs already, such as `tcp://10.0.0.1:8786`.

    Raises:
        RuntimeError: where none answers.
    """
    require_distributed()
    from distributed import Client

    try:
        client = Client(address, timeout=PATIENCE)
    except (OSError, ValueError, TypeError) as error:
        raise RuntimeError(
            f"No Dask scheduler answers at '{address}' ({type(error).__name__}). Start one with `dask scheduler` "
            "and give the address that it prints, such as tcp://10.0.0.1:8786."
        ) from error
    with client:
        yield client


def workers_for(count: int | None, address: str | None, gpu: bool) -> AbstractContextManager[Client]:
    """Return the context of a client: of the scheduler at this address, or else of so many local workers."""
    return scheduler_at(address) if address else local_workers(count or 0, gpu)


def check_workers(client: Client, folders: Sequence[Path], gpu: bool) -> None:
    """Raise RuntimeError unless every worker can do this run's work.

    A worker needs one thread, this library and its data, and the folders of the run. For work on a GPU some worker
    needs the resource `GPU`. Without this check a request that no worker can serve would wait for ever. The workers of
    a machine must not compute in more threads than it has cores: a forward would take many times as long.
    """
    workers = workers_of(client)
    if not workers:
        raise RuntimeError("The scheduler has no workers; start some with `dask worker ADDRESS --nthreads 1`.")
    if gpu and not any(one["resources"].get(GPU) for one in workers.values()):
        raise RuntimeError(
            "device=cuda needs workers with a GPU, and no worker declares one; start them with "
            "`CUDA_VISIBLE_DEVICES=0 dask worker ADDRESS --nthreads 1 --resources GPU=1`, one for each GPU."
        )
    if busy := [address for address, one in workers.items() if one["nthreads"] != 1]:
        raise RuntimeError(
            f"The worker {busy[0]} has {workers[busy[0]]['nthreads']} threads, and would do as many things at once "
            "in one process; start workers with --nthreads 1."
        )
    mine = (*own_version(), True)
    token = folders[0] / f".{os.getpid()}-{socket.gethostname()}.seen"
    token.touch()
    try:
        found = client.run(_seen, str(token), [str(folder) for folder in folders], on_error="return")
    finally:
        token.unlink(missing_ok=True)
    for address, seen in found.items():
        if isinstance(seen, Exception):
            raise RuntimeError(
                f"The worker {address} cannot run this version of dynatree_lib ({type(seen).__name__}: "
                f"{shorten(str(seen), 100)}); install it there."
            )
        names = ("this version of dynatree_lib", "the same data", f"sight of {' and '.join(map(str, folders))}")
        has = getattr(seen, "has", seen)  # an earlier version answers with that alone
        if missing := [name for name, its, ours in zip(names, has, mine, strict=True) if its != ours]:
            raise RuntimeError(
                f"The worker {address} does not have {' and '.join(missing)}. Workers need the library of this "
                "process and a file system that all share."
            )
    for host in dict.fromkeys(seen.host for seen in found.values()):
        there = [seen for seen in found.values() if seen.host == host]
        threads, cores = sum(seen.threads for seen in there), len(frozenset().union(*(seen.cores for seen in there)))
        if threads > cores:
            raise RuntimeError(
                f"The {len(there)} workers on {host} would compute in {threads} threads on {cores} cores; start them "
                f"with OMP_NUM_THREADS={max(1, cores // len(there))}, and no more of them than cores."
            )


def workers_of(client: Client) -> Mapping[str, Any]:
    """Return address -> facts of the workers that a scheduler has; none where it is gone."""
    found: Mapping[str, Any] = client.scheduler_info(n_workers=-1).get("workers", {})
    return found


@dataclass(frozen=True)
class _Seen:
    """What a worker is and sees.

    Attributes:
        has: the hashes of library and data, and whether it sees the run's folders.
        host: name of its machine.
        threads: that its kernels compute in.
        cores: that it may use.
    """

    has: tuple[str, str, bool]
    host: str
    threads: int
    cores: frozenset[int]


def _seen(token: str, folders: Sequence[str]) -> _Seen:
    """On a worker: what it is and sees."""
    cores = _cores()
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    sees = Path(token).is_file() and all(Path(folder).is_dir() for folder in folders)
    return _Seen((*own_version(), sees), socket.gethostname(), int(threads) if threads.isdigit() else len(cores), cores)


def dask_setup(_worker: Any) -> None:
    """Dask calls this in a new local worker: it leaves the terminal's session, and keeps to its cores.

    So Ctrl-C reaches the run alone, and the kernels that the worker starts have its cores.
    """
    os.setsid()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops what came since `_loop_without_ctrl_c` blocked it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, handler)
    if (mine := os.environ.get(CORES)) and hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, [int(core) for core in mine.split(",")])


def _cores() -> frozenset[int]:
    """The cores that this process may use."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(available_cores()))


def _gpus() -> list[str]:
    """The GPUs that torch sees, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (visible or [str(number) for number in range(torch.cuda.device_count())])[: torch.cuda.device_count()]


def still_wanted() -> Callable[[], bool]:
    """On a worker, in a task: return a function that tells whether someone still waits for this task."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()

    def wanted() -> bool:
        task = worker.state.tasks.get(key)
        return task is not None and task.state == "executing"

    return wanted


def submitted(client: Client, function: Callable[..., Any], *args: Any, name: str, gpu: bool) -> Future:
    """Send a task to a worker, to one with a GPU where it needs one."""
    resources = {GPU: 1} if gpu else None
    return client.submit(function, *args, pure=False, key=f"{name}-{time.time_ns()}", resources=resources)


# ---------------------------------------------------------------------------------------------------------- execution
def run_on_workers(
    jobs: Sequence[Job],
    out: Path,
    root: Path,
    client: Client,
    *,
    resume: bool,
    say: Say,
    overwrite: bool = False,
    timeout: float | None = None,
) -> int:
    """Run jobs into `out` on the workers of a client and return the exit code, as `run.run_jobs` does one by one.

    The longest go first. Ctrl-C stops the notebooks that are running and keeps everything that has finished; so does a
    scheduler that dies.
    """
    out.mkdir(parents=True, exist_ok=True)
    sources = sorted({job.source.path.parent for job in jobs})
    check_workers(client, (out, root, *sources), any(map(on_gpu, jobs)))
    with begun_run(jobs, out, resume, overwrite):
        return _Fanout(client, jobs, out, root, resume, say, timeout).run()


class _Fanout:
    """A run on workers under way."""

    def __init__(
        self, client: Client, jobs: Sequence[Job], out: Path, root: Path, resume: bool, say: Say, timeout: float | None
    ) -> None:
        self.client, self.out, self.root, self.resume, self.say = client, out, root, resume, say
        self.timeout, self.count = timeout, len(jobs)
        self.outcomes: list[Outcome] = []
        self.running: dict[Future, Job] = {}
        self.basis: dict[str, dict[str, Any]] = {}
        self.seen: set[str] = set()
        self.alone: float | None = None  # since when there has been no worker
        self.waiting: list[Job] = []
        for job in jobs:
            if resume and why_rerun(Files(out, job.name), fingerprint(job)) is None:
                Files(out, job.name).failure.unlink(missing_ok=True)
                self.outcomes.append(Outcome(job.name, "kept"))
                say(f"{job.name}: kept, its receipt is valid")
            else:
                self.waiting.append(job)
        self.waiting.sort(key=lambda job: -(job.estimate.seconds or 0))

    def run(self) -> int:
        """Run everything and return the exit code."""
        spoken, stopped = time.monotonic(), False
        try:
            while self.running or (self.waiting and self.client.status != "closed"):
                self._send()
                for future in [one for one in self.running if one.done()]:
                    self._settle(future)
                for job in self.running.values():
                    if job.name not in self.seen and Files(self.out, job.name).partial.is_file():
                        self.seen.add(job.name)
                        self.say(f"{job.name}: running{job.expected}")
                if time.monotonic() - spoken > EVERY:
                    spoken = time.monotonic()
                    self._report()
                    if self._abandoned():
                        self._give_up()
                        break
                time.sleep(0.2)
        except KeyboardInterrupt:
            stopped = True
            self._stop()
        if self.client.status == "closed":
            self.say("The scheduler is gone.")
        self.say(describe_outcomes(self.outcomes, self.count, self.out))
        return INTERRUPTED if stopped else exit_code(self.outcomes) or int(bool(self.waiting))

    def _send(self) -> None:
        """Send as many notebooks as there are workers for, so that none waits at a worker that may die."""
        if not self.waiting or self.client.status != "running":  # the scheduler need not be asked, or does not answer
            return
        workers = workers_of(self.client).values()
        cards = sum(bool(one["resources"].get(GPU)) for one in workers)
        for job in list(self.waiting):
            using = sum(map(on_gpu, self.running.values()))
            free = cards - using if on_gpu(job) else len(workers) - len(self.running)
            if free <= 0:
                continue
            self.waiting.remove(job)
            basis = self.basis[job.name] = fingerprint(job)
            Files(self.out, job.name).prepare(basis, self.resume)
            args = (job, basis, str(self.out), str(self.root), self.timeout, self.resume)
            self.running[submitted(self.client, run_one, *args, name=job.name, gpu=on_gpu(job))] = job

    def _settle(self, future: Future) -> None:
        """Note the outcome of a task that has ended, and say it."""
        job = self.running.pop(future)
        files, basis = Files(self.out, job.name), self.basis[job.name]
        found, problem = _result(future), ""
        if isinstance(found, str):  # no worker is left to say more; it may have died between receipt and report
            problem = "" if why_rerun(files, basis) is None else found
            if not problem:
                files.failure.unlink(missing_ok=True)
            found = Finished(Outcome(job.name, "finished"), Cost(), "a worker that is gone", True)
        elif found.outcome.status == "finished" and (reason := _late(files, basis)):
            problem = f"the worker says that it finished, but here {reason}"
        outcome = found.outcome
        if problem:
            outcome = self._failed(job, problem)
        self.outcomes.append(outcome)
        again = ", started again after its worker died" if found.again and outcome.status == "finished" else ""
        problem = f": {outcome.problem}" if outcome.problem else ""
        place = f"[{len(self.outcomes)}/{self.count}]"
        self.say(f"{place} {job.name}: {outcome.status} after {found.cost} on {found.where}{again}{problem}")

    def _failed(self, job: Job, problem: str) -> Outcome:
        """Keep what a notebook has got to, and its problem."""
        files, outcome = Files(self.out, job.name), Outcome(job.name, "failed", problem)
        if files.partial.is_file():
            files.partial.replace(files.stopped("failed"))
        write_failure(files, job, outcome, self.basis[job.name], {"finished": now()})
        return outcome

    def _report(self) -> None:
        """Say what is running; that no worker is left, where none is."""
        if not workers_of(self.client):
            self.alone = self.alone or time.monotonic()
            self.say(NO_WORKER)
            return
        self.alone = None
        if line := under_way(self.running.values(), self.out):
            self.say(line)

    def _abandoned(self) -> bool:
        """Whether this machine has had no worker for too long; those of a scheduler's may come at any time."""
        return self.client.cluster is not None and self.alone is not None and time.monotonic() - self.alone >= GONE

    def _give_up(self) -> None:
        """Note that what was running has failed, because no worker is left."""
        self.client.cancel(list(self.running), force=True)
        for job in self.running.values():
            self.outcomes.append(self._failed(job, f"no worker has started again for {GONE} s"))
        self.running.clear()

    def _stop(self) -> None:
        """Cancel what is running, which its workers notice, and wait until they have settled its files."""
        for future in [one for one in self.running if one.done()]:
            self._settle(future)
        began = [job for job in self.running.values() if Files(self.out, job.name).partial.is_file()]
        self.client.cancel(list(self.running), force=True)
        for job in began:
            files, until = Files(self.out, job.name), time.monotonic() + PATIENCE
            ends = (files.receipt, files.stopped("interrupted"), files.stopped("failed"))
            while not any(end.is_file() for end in ends) and time.monotonic() < until:
                time.sleep(0.1)
            done = files.receipt.is_file()
            self.outcomes.append(
                Outcome(job.name, "finished" if done else "interrupted", "" if done else "stopped by Ctrl-C")
            )


def _result(future: Future) -> Finished | str:
    """Return what a worker reports, or in words why none can."""
    try:
        found: Finished = future.result()
    except Exception as error:
        kind = type(error).__name__
        if kind == "KilledWorker":
            deaths = error.allowed_failures + 1  # type: ignore[attr-defined]
            return f"its worker died {deaths} times while it ran; did the machine run out of memory?"
        if kind in ("CancelledError", "FutureCancelledError"):
            return "the connection to the scheduler was lost; if it still runs, its worker stops it"
        return f"its worker reports {kind}: {shorten(str(error))}"
    return found


def _late(files: Files, basis: Mapping[str, Any]) -> str | None:
    """Return why a receipt is not valid; waits for a shared file system to show what another machine has written."""
    until = time.monotonic() + DELAY
    while (reason := why_rerun(files, basis)) and time.monotonic() < until:
        time.sleep(0.5)
    return reason


def run_one(job: Job, basis: Mapping[str, Any], out: str, root: str, timeout: float | None, resume: bool) -> Finished:
    """On a worker: run a notebook, unless an earlier worker that died had finished it."""
    files, where = Files(Path(out), job.name), f"{socket.gethostname()}, process {os.getpid()}"
    if others := differences(fingerprint(job), basis):
        problem = f"the worker on {where} does not have the same: {' and '.join(others)}"
        outcome = Outcome(job.name, "failed", problem)
        write_failure(files, job, outcome, basis, {"finished": now()})
        return Finished(outcome, Cost(), where, False)
    again = files.partial.is_file() or files.receipt.is_file()
    if why_rerun(files, basis, Path(root)) is None:
        files.failure.unlink(missing_ok=True)
        receipt = read_or_empty(files.receipt)
        cost = Cost(receipt.get("seconds"), receipt.get("memory_mb"))
        return Finished(Outcome(job.name, "finished"), cost, where, again)
    if again:
        files.prepare(basis, resume)
    outcome, cost = execute(job, files, basis, Path(root), progress=False, timeout=timeout, wanted=still_wanted())
    return Finished(outcome, cost, where, again)


def under_way(jobs: Iterable[Job], out: Path) -> str:
    """Return a line on the notebooks that are running: which cell of how many; empty where none has begun."""
    parts = []
    for job in jobs:
        if cells := code_cells(Files(out, job.name).partial):
            parts.append(f"{job.name} (cell {sum(map(begun, cells))} of {len(cells)})")
    return f"Running: {', '.join(parts)}." if parts else ""


def on_gpu(job: Job) -> bool:
    """Whether a job runs on a GPU: by its parameter `device`, or by its profile where that is left open."""
    from .notebook import DEFAULTS

    if "device" not in job.source.parameters:
        return False
    return str(job.parameters.get("device") or DEFAULTS[job.profile][1]).startswith("cuda")
