"""Files and folders of runs: written whole or not at all, and by one process."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO


@contextmanager
def whole_file(path: Path) -> Iterator[IO[bytes]]:
    """Open a partial file that takes the name `path` when it is complete, so that a reader never sees half a file.

    Where writing fails, as on a full disk, nothing is left of it.

    Raises:
        ValueError: where `path` is a device, a pipe or the like, whose place the file would take.
    """
    check_regular(path)
    partial = partial_of(path)
    try:
        with partial.open("wb") as file:
            yield file
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def partial_of(path: Path) -> Path:
    """Return the name of a file while it is written."""
    return path.with_name(f"{path.name}.partial")


def check_regular(path: Path) -> None:
    """Raise ValueError for what is there and no file: a device, a pipe, a folder."""
    if path.exists() and not path.is_file():
        raise ValueError(f"{path} is no regular file and would be replaced by one; give another name.")


@contextmanager
def whole_folder(path: Path) -> Iterator[Path]:
    """Make a partial folder that takes the place of `path`, and of all that is in it, when it is complete."""
    partial = partial_of(path)
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir(parents=True)
    yield partial
    shutil.rmtree(path, ignore_errors=True)
    partial.replace(path)


def write_atomically(path: Path, text: str) -> None:
    """Write a text file in one step: a reader sees the old content or the new, never half of it.

    What UTF-8 cannot hold, as in the name of a file that is no UTF-8, becomes an escape, which JSON reads back.

    Raises:
        ValueError: as for `whole_file`.
    """
    with whole_file(path) as file:
        file.write(text.encode(errors="backslashreplace"))


@contextmanager
def sole_run(folder: Path) -> Iterator[None]:
    """Hold a folder for one run, and make it; a second one would delete what the first is writing.

    Raises:
        RuntimeError: where another run holds it.
    """
    folder.mkdir(parents=True, exist_ok=True)
    refusal = f"Another run works in {folder}; wait until it has ended, or give another folder."
    with held(folder / ".running", refusal):
        yield


@contextmanager
def sole_writer(path: Path | None) -> Iterator[None]:
    """Hold a file in an existing folder for one process that writes to it; None for no file.

    Raises:
        RuntimeError: where another process holds it.
    """
    if path is None:
        yield
        return
    refusal = f"Another run writes to {path}; wait until it has ended, or give another file."
    with held(path.with_name(f"{path.name}.lock"), refusal):
        yield


@contextmanager
def held(lock: Path, refusal: str) -> Iterator[None]:
    """Hold a lock, a file that is there meanwhile; RuntimeError with `refusal` where another process holds it."""
    try:
        import fcntl  # noqa: F401
    except ImportError:  # not on this system
        yield
        return
    while (file := _locked(lock, refusal)) is None:
        pass  # a run that ended took the file away
    with file:
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)


def _locked(lock: Path, refusal: str) -> IO[str] | None:
    """Return a file that this process has locked; None where the file of that name is another one by now.

    A run that ends removes its file, and a lock on the removed file would leave what it guards to the next one too.
    """
    import fcntl

    file = lock.open("a")
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        file.close()
        raise RuntimeError(refusal) from error
    except OSError:  # a file system without locks
        pass
    with suppress(FileNotFoundError):
        if os.path.samestat(lock.stat(), os.fstat(file.fileno())):
            return file
    file.close()
    return None
