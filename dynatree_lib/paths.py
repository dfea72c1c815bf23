"""Where the files that ship with the package lie; how a file is written whole or not at all, and by one process."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

_PACKAGE = Path(__file__).resolve().parent


def data_path(*parts: str) -> Path:
    """Return a path below the shipped data folder, e.g. `data_path("prompts", "code.jsonl")`.

    The folder is `dynatree_lib/data` in an installed wheel and `data/` next to the package in a checkout or an editable
    install.

    Raises:
        FileNotFoundError: when neither has the file.
    """
    candidates = [folder.joinpath(*parts) for folder in (_PACKAGE / "data", _PACKAGE.parent / "data")]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    name = "/".join(("data", *parts))
    raise FileNotFoundError(
        f"{name} was found neither inside the installed package ({candidates[0]}) nor next to it in a checkout "
        f"({candidates[1]}). Install dynatree_lib from a wheel that carries its data, or run from a full checkout."
    )


def cache_folder() -> Path:
    """Return the folder for what is downloaded or made once: $DYNATREE_CACHE, or `dynatree` in the user's cache folder.

    Everything in it can be deleted and is made again.
    """
    own = os.environ.get("DYNATREE_CACHE")
    return Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dynatree"


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


def check_own(folder: Path, marker: str, option: str) -> None:
    """Raise FileExistsError for a folder that holds something and lacks the file that we mark our folders with.

    Args:
        folder: what is going to be replaced.
        marker: name of that file.
        option: the option that named the folder.
    """
    if folder.is_dir() and any(folder.iterdir()) and not (folder / marker).is_file():
        raise FileExistsError(
            f"{folder} holds other things than a training writes ({marker} is missing) and would be replaced; give "
            f"another {option}, or a new folder inside it."
        )


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


def sha256_of(file: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
