"""Where the files that ship with the package lie."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent


def data_path(*parts: str) -> Path:
    """Path below the shipped data folder, e.g. `data_path("prompts", "code.jsonl")`.

    The folder is `dynatree_lib/data` in an installed wheel and `data/` beside the package in a checkout
    or an editable install. Raises FileNotFoundError when neither has the file.
    """
    candidates = [folder.joinpath(*parts) for folder in (_PACKAGE / "data", _PACKAGE.parent / "data")]
    for candidate in candidates:
        if candidate.exists():
            return candidate
    name = "/".join(("data", *parts))
    raise FileNotFoundError(
        f"{name} was found neither inside the installed package ({candidates[0]}) nor beside it in a checkout "
        f"({candidates[1]}). Install dynatree_lib from a wheel that carries its data, or run from a full checkout."
    )
