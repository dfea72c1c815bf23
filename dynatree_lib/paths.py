"""Where the files that ship with the package lie, and where what is downloaded or made once goes."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

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


def sha256_of(file: Path) -> str:
    """SHA-256 of a file, hexadecimal."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()
