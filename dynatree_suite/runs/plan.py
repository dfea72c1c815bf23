"""The plan of a run: the notebooks of a folder, their parameters, and the expected cost.

Everything that can be wrong with a request (an unknown parameter, a pattern that matches nothing, a notebook without
a parameters cell) is found here, before a kernel starts. `run` executes; `receipts` knows whether an earlier result is
still valid.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import astuple, dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path
from types import NoneType
from typing import Any

from dynatree_lib.checks import check_unicode, chosen, is_number, whole

PROFILES = {
    "smoke": ("tiny", "cpu", "float32"),
    "laptop": ("tiny", "cpu", "float32"),
    "colab": ("smollm2", "auto", "auto"),
    "paper": ("pythia-2.8b/70m", "cuda", "float16"),
}
"""Profile -> pair, device and dtype that `None` in a parameters cell stands for.

A device "auto" is a GPU where torch finds one; a dtype "auto" is float32 on the CPU, and on a GPU bfloat16, or float16
where the GPU has no bfloat16.
"""
DIVIDE = "DYNATREE_DIVIDE"
"""Environment variable: what amounts of work are divided by, for a rehearsal (`dynatree run --divide`)."""
PARAMETERS_TAG = "parameters"
NOTEBOOK = {
    "cells": [{"cell_type": str, "source": (str, list), "metadata": {"tags": (list, NoneType)}}],
    "metadata": {"dynatree": (dict, NoneType)},
}
"""The shape of a parsed notebook, as for `has_shape`."""


@dataclass(frozen=True)
class Cost:
    """Time and memory of a notebook; None where unknown."""

    seconds: float | None = None
    memory_mb: float | None = None

    @property
    def time(self) -> str:
        """The time with a unit that suits it."""
        if self.seconds is None:
            return "unknown"
        if self.seconds < 100:
            return f"{self.seconds:.1f} s" if self.seconds < 10 else f"{self.seconds:.0f} s"
        return f"{self.seconds / 60:.0f} min" if self.seconds < 6000 else f"{self.seconds / 3600:.1f} h"

    @property
    def memory(self) -> str:
        """The memory with a unit that suits it."""
        if self.memory_mb is None:
            return "unknown"
        return f"{self.memory_mb:.0f} MB" if self.memory_mb < 1000 else f"{self.memory_mb / 1000:.1f} GB"

    def __str__(self) -> str:
        return f"{self.time}, {self.memory}" if self.memory_mb else self.time


@dataclass(frozen=True)
class Source:
    """A notebook of the notebooks folder."""

    path: Path
    title: str
    headline: bool
    parameters: tuple[str, ...]  # names assigned in the cell tagged `parameters`
    estimates: Mapping[str, Cost]  # by profile
    sha256: str  # of cell types, sources and tags

    @property
    def name(self) -> str:
        """The file's name, without .ipynb."""
        return self.path.stem


@dataclass(frozen=True)
class Job:
    """A notebook with its parameters for this run."""

    source: Source
    profile: str
    parameters: Mapping[str, Any] = field(default_factory=dict)
    divide: int = 1  # amounts of work are divided by it
    scale: float = 1.0  # of the estimate, on this machine

    @property
    def name(self) -> str:
        """The notebook's name, without .ipynb."""
        return self.source.name

    @property
    def estimate(self) -> Cost:
        """The author's estimate for this profile, scaled; none for a rehearsal."""
        stated = self.source.estimates.get(self.profile, Cost())
        if stated.seconds is None or self.divide > 1:
            return Cost(None, stated.memory_mb)
        return replace(stated, seconds=stated.seconds * self.scale)

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on a GPU: by its parameter `device`, or by its profile where that is left open."""
        device = self.parameters.get("device") or PROFILES[self.profile][1]
        if "device" not in self.source.parameters:
            return False
        if device == "auto":
            import torch  # here, because a plan without it need not wait for torch

            return torch.cuda.is_available()
        return str(device).startswith("cuda")

    @property
    def expected(self) -> str:
        """The estimated time as the end of a line: " (about 4 min)"."""
        return f" (about {self.estimate.time})" if self.estimate.seconds is not None else ""


def project_root(start: Path | None = None) -> Path:
    """Return the checkout: DYNATREE_ROOT, else the nearest parent of `start` (or of the library) with its files.

    A folder that `dynatree notebooks` made counts as one. Return the current folder where there is neither, because the
    library was installed from a wheel.
    """
    if named := os.environ.get("DYNATREE_ROOT"):
        return Path(named)
    here = (start or Path.cwd()).resolve()
    for folder in (here, *here.parents, Path(__file__).resolve().parents[2]):
        checkout = (folder / "pyproject.toml").is_file() and (folder / "dynatree_lib").is_dir()
        if checkout or (folder / "notebooks" / "00_start_here.ipynb").is_file():
            return folder
    return here


def has_shape(value: Any, shape: Any) -> bool:
    """Return whether parsed JSON has a shape: a type or several, `[shape]` for a list, or a dictionary of shapes.

    Keys that a dictionary's shape does not name may hold anything; a missing key counts as None.
    """
    if isinstance(shape, list):
        return isinstance(value, list) and all(has_shape(item, shape[0]) for item in value)
    if isinstance(shape, dict):
        return isinstance(value, dict) and all(has_shape(value.get(key), part) for key, part in shape.items())
    return isinstance(value, shape)


def read_source(path: Path) -> Source:
    """Read a notebook; ValueError when it is no notebook, or has no parameters cell, or several."""
    try:
        if path.exists() and not path.is_file():
            raise ValueError("it is no file")
        notebook = json.loads(path.read_text(encoding="utf-8"))
        if not has_shape(notebook, NOTEBOOK):
            raise ValueError("its cells or its metadata are not as the notebook format has them")
        cells = notebook["cells"]
        about = notebook["metadata"].get("dynatree") or {}
        estimates = {profile: Cost(**cost) for profile, cost in (about.get("estimate") or {}).items()}
        costs = [value for cost in estimates.values() for value in astuple(cost) if value is not None]
        if not all(is_number(value) and 0 <= value < 1e12 for value in costs):
            raise ValueError("its estimates are no seconds and MB that can be")
        sources = [cell_source(cell) for cell in cells]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise ValueError(f"{path} is not a readable notebook: {error}. Restore it from the repository.") from error
    tagged = [source for cell, source in zip(cells, sources, strict=True) if PARAMETERS_TAG in _tags(cell)]
    if len(tagged) != 1:
        raise ValueError(f"{path} has {len(tagged)} cells tagged '{PARAMETERS_TAG}' and must have exactly one.")
    return Source(
        path=path,
        title=about.get("title") or path.stem,
        headline=bool(about.get("headline", False)),
        parameters=assigned_names(tagged[0], path),
        estimates=estimates,
        sha256=source_hash(cells),
    )


def _tags(cell: Mapping[str, Any]) -> list[str]:
    return list(cell["metadata"].get("tags") or ())


def cell_source(cell: Mapping[str, Any]) -> str:
    """Return a cell's text, which the notebook format stores as a string or as a list of lines."""
    return "".join(cell.get("source", ""))


def assigned_names(code: str, path: Path) -> tuple[str, ...]:
    """Return the names that a parameters cell assigns, in order of appearance.

    They are read from the syntax tree, because papermill goes line by line and misses values that span lines.
    """
    try:
        tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:  # the last two for too deep an expression
        told = error if str(error) else "it is nested too deeply"
        raise ValueError(f"The parameters cell of {path} is not valid Python: {told}.") from error
    assignments = [node for node in tree.body if isinstance(node, ast.Assign | ast.AnnAssign)]
    names = [node for assignment in assignments for node in ast.walk(assignment) if isinstance(node, ast.Name)]
    return tuple(dict.fromkeys(name.id for name in names if isinstance(name.ctx, ast.Store)))


def source_hash(cells: Sequence[Mapping[str, Any]]) -> str:
    """Hash cell types, sources and tags, but no outputs, so that opening a notebook does not outdate a run."""
    parts = [[cell.get("cell_type"), cell_source(cell), _tags(cell)] for cell in cells]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()


def find_sources(folder: Path) -> list[Source]:
    """Return every notebook of a folder in running order, which is the order of the names."""
    if not folder.is_dir():
        raise FileNotFoundError(
            f"There is no notebooks folder at {folder}; name one with --notebooks DIR, or go into the folder that "
            "`dynatree notebooks` has made."
        )
    sources = [read_source(path) for path in sorted(folder.glob("*.ipynb"))]
    if not sources:
        raise FileNotFoundError(f"The folder {folder} holds no notebook (*.ipynb); name another with --notebooks DIR.")
    return sources


def select(sources: Sequence[Source], only: Iterable[str] = (), headline: bool = False) -> list[Source]:
    """Return the notebooks that match any pattern (all, without patterns); with `headline` only headline notebooks.

    Every pattern has to match a notebook, because a misspelt pattern would otherwise leave a notebook out in silence.
    """
    patterns = [pattern.removesuffix(".ipynb") for pattern in only]
    for pattern in patterns:
        if not any(fnmatchcase(source.name, pattern) for source in sources):
            names = ", ".join(source.name for source in sources)
            raise ValueError(f"--only '{pattern}' matches no notebook; choose from {names}.")
    matching = [s for s in sources if not patterns or any(fnmatchcase(s.name, pattern) for pattern in patterns)]
    selected = [source for source in matching if source.headline or not headline]
    if not selected:
        raise ValueError("None of the selected notebooks is a headline one; leave --headline out to run them.")
    return selected


def parse_override(text: str) -> tuple[str, Any]:
    """Return `name=value` as a pair, with the value read as a Python literal where possible, else as text."""
    name, equals, value = text.partition("=")
    if not equals or not name.isidentifier():
        raise ValueError(f"-p '{text[:60]}' gives no parameter a value; write name=value, for example -p seed=1.")
    words = {"true": True, "false": False, "none": None, "null": None}
    found: Any = words.get(value.lower(), value)
    if found is value:
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            found = ast.literal_eval(value)
    try:
        return name, _parameter(found)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"-p {name}={value[:60]!r} cannot be a parameter ({error}); give a number, a text, or a list or dictionary "
            "of such values."
        ) from error


def _parameter(value: Any) -> Any:
    """Return a value as papermill writes it and JSON keeps it: tuples as lists; an error for what neither can hold."""
    if isinstance(value, list | tuple):
        return [_parameter(one) for one in value]
    if isinstance(value, dict):
        if others := [key for key in value if not isinstance(key, str)]:
            raise TypeError(f"the key {others[0]!r} is no text")
        return {_parameter(key): _parameter(one) for key, one in value.items()}
    if isinstance(value, str):
        check_unicode(value, "a text")
    json.dumps(value)
    return value


def make_jobs(sources: Sequence[Source], profile: str, overrides: Mapping[str, Any], divide: int = 1) -> list[Job]:
    """Give every notebook the profile, and the overrides it has a parameter for.

    Args:
        sources: the notebooks.
        profile: of all of them.
        overrides: parameters by name.
        divide: what amounts of work are divided by.

    Raises:
        ValueError: for an unknown profile, an override that no selected notebook has, or a divisor below 1.
    """
    chosen("profile", profile, tuple(PROFILES))
    whole("divide", divide, 1)
    if "profile" in overrides:
        raise ValueError(f"Choose the profile with --profile {overrides['profile']}, not with -p profile=...")
    unknown = [name for name in overrides if not any(name in source.parameters for source in sources)]
    if unknown:
        valid = "\n".join(f"  {source.name}: {', '.join(source.parameters)}" for source in sources)
        raise ValueError(f"No selected notebook has a parameter '{unknown[0]}'; choose from\n{valid}")
    given = {"profile": profile, **overrides}
    return [
        Job(source, profile, {name: value for name, value in given.items() if name in source.parameters}, divide)
        for source in sources
    ]
