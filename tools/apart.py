"""Work in a process with a network, or file systems, of its own, by Linux's namespaces, which need no rights."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

NETWORK, FILES = 0x40000000, 0x00020000
"""What a process can have for itself: CLONE_NEWNET, where nothing answers, and CLONE_NEWNS, where it may mount."""
_USER, _READ_ONLY, _AGAIN, _PRIVATE = 0x10000000, 1, 32, 0x4000 | 0x40000
_libc = ctypes.CDLL(None, use_errno=True)
_fork = multiprocessing.get_context("fork")


def apart(what: int, work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a process of its own, which has `what` for itself.

    Raises:
        RuntimeError: where the process ends without a result; it has said why on standard error.
    """
    ours, theirs = _fork.Pipe(duplex=False)

    def begin() -> None:
        _leave(what)
        theirs.send(work())

    process = _fork.Process(target=begin)
    process.start()
    theirs.close()
    try:
        return ours.recv()
    except EOFError as error:
        raise RuntimeError("A process with namespaces of its own ended without a result.") from error
    finally:
        process.join()


def mount(folder: Path, size: int, *, again: bool = False, read_only: bool = False) -> None:
    """Mount an empty file system of `size` bytes, or let one that is mounted there have another size."""
    flags = _AGAIN * again | _READ_ONLY * read_only
    _checked(_libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", flags, f"size={size}".encode()))


def _leave(what: int) -> None:
    user, group = os.getuid(), os.getgid()
    _checked(_libc.unshare(_USER | what))
    Path("/proc/self/setgroups").write_text("deny", encoding="utf-8")
    Path("/proc/self/uid_map").write_text(f"0 {user} 1", encoding="utf-8")
    Path("/proc/self/gid_map").write_text(f"0 {group} 1", encoding="utf-8")
    if what == FILES:
        _checked(_libc.mount(None, b"/", None, _PRIVATE, None))


def _checked(result: int) -> None:
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
