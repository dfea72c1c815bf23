"""Where the files that ship with the package lie, and how a file is written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
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

    Raises:
        ValueError: where `path` is a device, a pipe or the like, whose place the file would take.
    """
    check_regular(path)
    partial = path.with_name(path.name + ".partial")
    with partial.open("wb") as file:
        yield file
    partial.replace(path)


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

    Raises:
        ValueError: as for `whole_file`.
    """
    with whole_file(path) as file:
        file.write(text.encode())
