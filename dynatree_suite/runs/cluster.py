"""Work side by side on Dask workers: of this machine, or of a cluster; `run` and `sweep` say what the work is.

A worker has one thread and does one thing at a time. What it leaves behind is what is left without workers: the same
files, the same receipts. So a run can be resumed either way. What a worker was doing when it died is begun again by
another, which Dask sees to; what fails does not stop the rest.
"""

from __future__ import annotations

import atexit
import logging
import os
import signal
import socket
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from multiprocessing import resource_tracker
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..bench.environment import available_cores
from .receipts import own_version
from .words import Say, shorten

if TYPE_CHECKING:
    from distributed import Client, Future

DEATHS = 3
"""What kills its worker this often has failed."""
ANSWERING = 15
"""Seconds to wait for a scheduler's answer."""
STARTING = 120
"""Seconds to wait for the workers of this machine."""
EVERY = 30.0
"""Seconds between two lines on what is running."""
GONE = 300
"""Seconds in which a worker of this machine that died has to start again: a busy machine takes 20."""
NO_WORKER = "No worker is left; the run goes on when one comes, or stop it by Ctrl-C."
STOPPED = "stopped by Ctrl-C"
GPU = "GPU"
"""The resource that a worker with a GPU declares."""


# ------------------------------------------------------------------------------------------------------------ workers
@contextmanager
def workers_for(count: int | None, address: str | None, folders: Sequence[Path], gpu: bool) -> Iterator[Client | None]:
    """Yield a client whose workers can do a run's work: a scheduler's, or some of this machine; None for neither.

    Args:
        count: of the workers to start on this machine.
        address: of a Dask scheduler that runs already, such as `tcp://10.0.0.1:8786`.
        folders: of the run; the first is made.
        gpu: whether some of the work needs a GPU.

    Raises:
        ValueError: as for `local_workers`.
        RuntimeError: where no scheduler answers, and as for `check_workers`.
    """
    if count is None and not address:
        yield None
        return
    try:
        import distributed  # noqa: F401
    except ImportError as error:
        raise RuntimeError("Workers need Dask: pip install 'dynatree-lib[cluster]'.") from error
    for name in ("distributed", "distributed.client"):  # the run alone speaks; Dask gives the second a level of its own
        logging.getLogger(name).setLevel(logging.CRITICAL)
    with _client_of(address) if address else local_workers(count or 0, gpu) as client:
        check_workers(client, folders, gpu)
        yield client


@contextmanager
def local_workers(count: int, gpu: bool = False) -> Iterator[Client]:
    """Yield a client of `count` workers on this machine, each with its share of the cores, and with a GPU of its own.

    Raises:
        ValueError: for more workers than cores, or than GPUs.
    """
    cores, cards = available_cores(), _gpus() if gpu else []
    there, what = (len(cards), "GPU") if gpu else (cores, "core")
    if not there:
        raise ValueError("--workers was given for notebooks with device=cuda, and torch sees no GPU on this machine.")
    if not 1 <= count <= there:
        have = f"there {'is' if there == 1 else 'are'} {there} {what}{'' if there == 1 else 's'}"
        raise ValueError(f"--workers is {count} and {have} here; give 1 to {there}, at most one worker for each.")
    from dask import config
    from distributed import Client, LocalCluster
    from distributed.deploy.spec import close_clusters

    threads = str(max(1, cores // count))
    variables = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"), threads)
    with config.set({"distributed.deploy.lost-worker-timeout": f"{GONE}s"}), ExitStack() as stack:
        try:
            cluster = LocalCluster(
                n_workers=count,
                threads_per_worker=1,
                memory_limit=0,
                resources={GPU: 1} if gpu else {},
                env=variables | ({"CUDA_VISIBLE_DEVICES": ",".join(cards)} if gpu else {}),
                preload=[__name__],
                scheduler_kwargs={"allowed_failures": DEATHS - 1, "dashboard": False},
                dashboard_address="127.0.0.1:0",  # a free port, not Dask's own
                loop=stack.enter_context(_loop_without_ctrl_c()),
                silence_logs=logging.CRITICAL,
            )
            client = stack.enter_context(Client(stack.enter_context(cluster)))
            client.wait_for_workers(count, timeout=STARTING)
        except (RuntimeError, TimeoutError) as error:
            raise RuntimeError(
                f"The {count} workers did not start ({error}); try again, or run without --workers."
            ) from error
        except KeyboardInterrupt:
            # Of a cluster that has not begun these would say that it cannot be closed, and that its workers are gone.
            atexit.unregister(close_clusters)
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
    runner = LoopRunner()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
    try:
        runner.start()
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
    try:
        yield runner.loop
    finally:
        runner.stop()


def dask_setup(worker: Any) -> None:
    """Dask calls this in a new local worker: it leaves the terminal's session, and keeps to its cores and its GPU.

    So Ctrl-C reaches the run alone, and the kernels that the worker starts have its cores.
    """
    os.setsid()
    handler = signal.signal(signal.SIGINT, signal.SIG_IGN)  # drops what came since `_loop_without_ctrl_c` blocked it
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    signal.signal(signal.SIGINT, handler)
    if GPU in worker.state.total_resources:
        os.environ["CUDA_VISIBLE_DEVICES"] = os.environ["CUDA_VISIBLE_DEVICES"].split(",")[worker.name]
    if hasattr(os, "sched_setaffinity"):
        cores, threads = sorted(_cores()), int(os.environ["OMP_NUM_THREADS"])
        first = worker.name * threads % len(cores)
        os.sched_setaffinity(0, cores[first : first + threads])


def _cores() -> frozenset[int]:
    """The cores that this process may use."""
    return frozenset(os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else range(available_cores()))


def _gpus() -> list[str]:
    """The GPUs that torch sees, as CUDA_VISIBLE_DEVICES names them."""
    import torch

    visible = [name.strip() for name in os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",") if name.strip()]
    return (visible or [str(number) for number in range(torch.cuda.device_count())])[: torch.cuda.device_count()]


def _client_of(address: str) -> Client:
    """Return a client of a scheduler that runs already; RuntimeError where none answers."""
    from distributed import Client

    try:
        return Client(address, timeout=ANSWERING)
    except (OSError, ValueError, TypeError) as error:
        raise RuntimeError(
            f"No Dask scheduler answers at '{address}' ({type(error).__name__}). Start one with `dask scheduler` "
            "and give the address that it prints, such as tcp://10.0.0.1:8786."
        ) from error


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
    folders[0].mkdir(parents=True, exist_ok=True)
    token = folders[0] / f".{os.getpid()}-{socket.gethostname()}.seen"
    token.touch()
    try:
        found = client.run(seen, own_version(), folders, token, on_error="return")
    finally:
        token.unlink(missing_ok=True)
    machines: dict[str, list[Mapping[str, Any]]] = {}
    for address, one in found.items():
        if isinstance(one, Exception):
            raise RuntimeError(
                f"The worker {address} cannot run this version of dynatree_lib ({type(one).__name__}: "
                f"{shorten(str(one), 100)}); install it there."
            )
        if one["lacks"]:
            raise RuntimeError(
                f"The worker {address} does not have {' and '.join(one['lacks'])}. Workers need the library of this "
                "process and a file system that all share."
            )
        machines.setdefault(one["host"], []).append(one)
    for host, there in machines.items():
        threads, cores = sum(one["threads"] for one in there), len(set().union(*(one["cores"] for one in there)))
        if threads > cores:
            raise RuntimeError(
                f"The {len(there)} workers on {host} would compute in {threads} threads on {cores} cores; start them "
                f"with OMP_NUM_THREADS={max(1, cores // len(there))}, and no more of them than cores."
            )


def workers_of(client: Client) -> Mapping[str, Any]:
    """Return address -> facts of the workers that a scheduler has; none where it is gone."""
    found: Mapping[str, Any] = client.scheduler_info(n_workers=-1).get("workers", {})
    return found


def seen(version: tuple[str, str], folders: Sequence[Path], token: Path) -> dict[str, Any]:
    """On a worker: return what it lacks for a run, its machine's name, the threads of its kernels, and its cores.

    Args:
        version: hashes of the run's library and data.
        folders: of the run.
        token: a file that was just made in one of them.
    """
    (library, data), cores = own_version(), _cores()
    has = {
        "this version of dynatree_lib": library == version[0],
        "the same data": data == version[1],
        f"sight of {' and '.join(map(str, folders))}": all(path.exists() for path in (token, *folders)),
    }
    threads = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    return {
        "lacks": [what for what, there in has.items() if not there],
        "host": socket.gethostname(),
        "threads": int(threads) if threads.isdigit() else len(cores),
        "cores": cores,
    }


# ---------------------------------------------------------------------------------------------------------- execution
def work(
    client: Client | None,
    items: Sequence[Any],
    call: Callable[[Any], tuple[Any, ...]],
    settle: Callable[[Any, Any, str], None],
    say: Say,
    under_way: Callable[[Collection[Any]], str] = lambda running: "",
) -> bool:
    """Do items in this order: on workers as many at a time as there are, so that none waits at one that may die.

    It ends early after Ctrl-C, which it returns, where the scheduler is gone, and where no worker of this machine has
    started again.

    Args:
        client: of the workers; without it the items are done here, one after another.
        items: what is to be done: jobs of notebooks, or points of a sweep.
        call: returns function and arguments for an item, once it is its turn.
        settle: is told of each item that was begun what the function returned and "", or None and the problem.
        say: is told, every half minute, how it goes.
        under_way: returns a line on items that are being done.
    """
    waiting, spoken, problem = list(items), time.monotonic(), ""
    running: dict[Future, Any] = {}
    try:
        while client is None and waiting:
            item = waiting.pop(0)
            function, *args = call(item)
            settle(item, function(*args), "")
        while client and not problem and (running or (waiting and client.status != "closed")):
            for item in _sendable(client, waiting, running.values()):
                waiting.remove(item)
                resources = {GPU: 1} if item.on_gpu else None
                running[client.submit(*call(item), pure=False, resources=resources)] = item
            for future in [one for one in running if one.done()]:
                settle(running.pop(future), *_result(future))
            if client.cluster is not None and not client.cluster.workers:
                problem = f"no worker has started again for {GONE} s"
                say(f"The run ends, because {problem}.")
            if time.monotonic() - spoken > EVERY:
                spoken = time.monotonic()
                if line := under_way(running.values()) if workers_of(client) else NO_WORKER:
                    say(line)
            time.sleep(0.05)
    except KeyboardInterrupt:
        problem = STOPPED
    if client and client.status == "running":
        client.cancel(list(running), force=True)  # which their workers notice
    for item in running.values():
        settle(item, None, problem)
    if client and client.status == "closed":
        say("The scheduler is gone.")
    return problem == STOPPED


def _sendable(client: Client, waiting: Sequence[Any], running: Collection[Any]) -> list[Any]:
    """Return the first of the waiting items for which there are free workers, or workers with a free GPU."""
    if not waiting or client.status != "running":  # the scheduler need not be asked, or does not answer
        return []
    workers, out = workers_of(client).values(), list[Any]()
    for gpu in (True, False):
        able = sum(gpu <= bool(one["resources"].get(GPU)) for one in workers)
        free = able - sum(gpu <= item.on_gpu for item in (*running, *out))
        out += [item for item in waiting if item.on_gpu == gpu][: max(0, free)]
    return out


def _result(future: Future) -> tuple[Any, str]:
    """Return what a worker reports and "", or None and in words why it cannot."""
    from distributed import KilledWorker

    if future.cancelled():
        return None, "the connection to the scheduler was lost; if it still runs, its worker stops it"
    try:
        return future.result(), ""
    except KilledWorker as error:
        deaths = error.allowed_failures + 1
        return None, f"its worker died {deaths} times while it ran; did the machine run out of memory?"
    except Exception as error:
        return None, f"its worker reports {type(error).__name__}: {shorten(str(error))}"


def still_wanted() -> Callable[[], bool]:
    """On a worker, in a task: return a function that tells whether someone still waits for this task."""
    from distributed import get_worker

    worker = get_worker()
    key = worker.get_current_task()
    return lambda: getattr(worker.state.tasks.get(key), "state", None) == "executing"
