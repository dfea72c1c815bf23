"""Machine code that another process compiles, so that a first text need not wait for it.

python3 -m dynatree_cpu.preparing KIND WAYS: compile the forwards of a kind of weights and keep them on disk.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numba
import numpy as np

from . import kernels

WAYS = f"{kernels.LANES}-{kernels.BFLOAT16:d}{kernels.MATRICES:d}{kernels.BYTES:d}{kernels.QUANTISED:d}"
"""What the machine code is made for: another process has to find the same in its processor."""


class Compiler:
    """A process that compiles the forwards of a kind of weights.

    Args:
        kind: as in `kernels`.
    """

    def __init__(self, kind: np.dtype) -> None:
        command = [sys.executable, "-P", "-m", "dynatree_cpu.preparing", str(kind), WAYS]
        there = {**os.environ, "PYTHONPATH": os.pathsep.join(each or str(Path.cwd()) for each in sys.path)}
        silent = subprocess.DEVNULL
        self.process = subprocess.Popen(
            command, env=there, stdin=silent, stdout=silent, stderr=subprocess.PIPE, text=True, errors="replace"
        )
        self.said = ""

    def failure(self) -> str | None:
        """Say how it ended where it has ended; "" for nothing to say, None while it compiles."""
        status = self.process.poll()
        if status is None:
            return None
        self.wait()
        said = self.said.strip().splitlines()
        return "" if status == 0 else said[-1] if said else f"it ended with status {status}"

    def wait(self) -> None:
        """Wait until it has ended."""
        if not self.process.stderr.closed:  # type: ignore[union-attr]
            self.said = self.process.communicate()[1]


_cache: Any = kernels.run._cache  # type: ignore[attr-defined]
_compilers: dict[tuple[int, np.dtype], Compiler] = {}


def ready(kind: np.dtype, *, begin: bool = True, wait: bool = False) -> bool:
    """Return whether forwards of a kind of weights are compiled.

    Also true where another process would be of no use: what it compiles could not be kept, or it has failed. Then this
    process compiles at the first forward.

    Args:
        kind: as in `kernels`.
        begin: have another process compile them where they are not.
        wait: until it has compiled them.
    """
    if kept(kind):
        return True
    if not (begin or wait):
        return False
    if not _writable(Path(_cache.cache_path)):
        return True
    key = os.getpid(), kind  # the child of another process cannot be waited for
    if key not in _compilers:
        try:
            _compilers[key] = Compiler(kind)
        except OSError:  # no process can be started here
            return True
        meanwhile = "It is waited for." if wait else "Until then transformers' own forward runs the model."
        logging.getLogger(__name__).warning(
            "Another process compiles the forward of few tokens for this processor, once: about half a minute. %s",
            meanwhile,
        )
    compiler = _compilers[key]
    if wait:
        compiler.wait()
    failure = compiler.failure()
    if failure is None:
        return False
    if not kept(kind):
        logging.getLogger(__name__).warning(
            "The process that was to compile the forward of few tokens did not (%s); this one does it now.",
            failure or "nothing is kept",
        )
    return True


def kept(kind: np.dtype) -> bool:
    """Return whether forwards of a kind of weights are compiled, in this process or on disk."""
    signature = signatures(kind)["run"]
    return signature in kernels.run.overloads or (_cache.load_overload(signature, kernels.run.targetctx) is not None)


def signatures(kind: np.dtype) -> dict[str, tuple[Any, ...]]:
    """Return the arguments of all functions of `kernels` that forwards of a kind of weights take; `run` is the last."""
    number, whole, single, double = numba.from_dtype(kind), numba.int64, numba.float32, numba.float64
    given = number if kind == kernels.BFLOAT16_BITS else single  # of features
    return {
        "lay": (whole[::1], whole[::1], whole, whole, whole[::1], numba.uint8[::1]),
        "rank": (single[:, ::1], double, whole[:, ::1], double[:, ::1], double[:, ::1]),
        "invert": (single[:, ::1], whole, double, double),
        "softmax_of": (single[:, ::1], whole, double, single[::1]),
        "give": (given[:, ::1], given[:, ::1], whole[::1], whole, single[:, ::1]),
        "keep_states": (single[:, ::1], given[:, ::1], whole),
        "fuse": (
            single[:, ::1], single[::1], whole, single, whole, double, whole, given[::1], single[:, ::1], single[::1],
            whole[::1], number[::1],
        ),
        "run": (whole[::1], whole, whole, number[::1], whole[::1]),
    }  # fmt: skip


def compile_now(kind: np.dtype) -> None:
    """Compile what forwards of a kind of weights run, or load it; numba keeps it on disk."""
    for name, arguments in signatures(kind).items():
        getattr(kernels, name).compile(arguments)


def _writable(folder: Path) -> bool:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return False
    return os.access(folder, os.W_OK)


def main(arguments: Sequence[str]) -> None:
    """Compile; see the module."""
    kind, ways = arguments
    if ways != WAYS:
        sys.exit(f"This process finds another processor ({WAYS}) than the one that asks ({ways}).")
    compile_now(np.dtype(kind))


if __name__ == "__main__":
    main(sys.argv[1:])
