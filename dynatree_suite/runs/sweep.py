"""Sweeps: every combination of a grid measured, one file per configuration, and all of them as one data frame.

A configuration is a small benchmark of its own: a method against plain decoding, prompt by prompt in turn. Its row is
written when it is done, whole or not at all, with what it depends on. So a sweep that was stopped goes on with the
configurations that are missing, here or on the workers of `cluster`, and no configuration is measured twice.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from functools import lru_cache
from itertools import product
from math import prod
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from dynatree_lib.checks import whole
from dynatree_lib.models.engine import check_engine
from dynatree_lib.models.pairs import Pair, load_pair
from dynatree_lib.paths import data_path
from dynatree_lib.sampling import Sampling

from ..bench.environment import describe_environment, git_commit
from ..bench.grids import text
from ..bench.methods import variant
from ..bench.protocol import checked_runner, run_benchmark
from ..bench.statistics import ratio
from ..files import check_regular, sole_run, write_atomically
from ..papers.workloads import WORKLOADS, load_workload
from .cluster import STOPPED, work
from .receipts import now, own_version, pair_files, read_json, read_or_empty, write_json
from .run import INTERRUPTED
from .words import Say, shorten, words_of

if TYPE_CHECKING:
    from distributed import Client

SCHEMA = 1
HEAD, TABLE, ROWS = "sweep.json", "sweep.csv", "rows"
MOST = 10_000
"""Configurations of a grid: each is checked before the first is measured."""
MEASURED = (
    "tokens_per_iteration", "acceptance", "nodes_per_iteration", "draft_levels", "tokens_per_second", "iteration_cost",
    "tokens", "iterations", "identical",
)  # fmt: skip
"""Columns of a row that are taken from the method's summary (`metrics.summarize_records`)."""


@dataclass(frozen=True)
class Setting:
    """What a benchmark of a sweep runs on; every field may be an axis of the grid."""

    pair: str = "tiny"
    device: str = "cpu"
    dtype: str | None = None
    engine: str = "auto"
    workload: str = "bundled"
    data: str | None = None
    limit: int = 1
    max_new_tokens: int = 64
    temperature: float = 0.0
    seed: int = 0
    repeats: int = 1
    against: str = "ar-fast"


SETTINGS = tuple(field.name for field in fields(Setting))


@dataclass(frozen=True)
class Point:
    """One configuration of a sweep: a method with its options, and what it runs on."""

    method: str
    setting: Setting
    axes: tuple[tuple[str, Any], ...]  # name and value of each axis

    @property
    def plain(self) -> dict[str, Any]:
        """What it is, as JSON holds it."""
        return {"method": self.method, **asdict(self.setting)}

    @property
    def on_gpu(self) -> bool:
        """Whether it runs on a GPU."""
        return self.setting.device.startswith("cuda")

    def __str__(self) -> str:
        return ", ".join(f"{name}={text(value)}" for name, value in self.axes) or self.method


# ---------------------------------------------------------------------------------------------------------------- grids
def read_grid(path: str | Path) -> list[Point]:
    """Return the configurations of a YAML file, or of a grid that comes with the library, such as `dynatree-fixed`.

    The file has `method`, `grid` (name -> list of values), and, where they differ from the defaults, `options` of the
    method and the fields of `Setting`. An axis is an option of the method or a field of `Setting`.

    Raises:
        ValueError: for a file that cannot be read, an unknown key, option, workload or value.
    """
    content = _content(path)
    known = ("method", "options", "grid", *SETTINGS)
    if unknown := [key for key in content if key not in known]:
        raise ValueError(f"{path} has the key '{unknown[0]}'; a sweep has {', '.join(known)}.")
    axes, options = content.get("grid") or {}, content.get("options") or {}
    for name, value in (("grid", axes), ("options", options)):
        if not isinstance(value, dict):
            raise ValueError(f"'{name}' of {path} is {value!r}; write it as name: value pairs.")
    for name, values in axes.items():
        if not isinstance(values, list) or not values:
            raise ValueError(f"The axis '{name}' of {path} is {values!r}; give a list of at least one value.")
        if name in options or name in content:
            raise ValueError(f"'{name}' of {path} is an axis and a fixed value; give it once.")
    if not isinstance(content.get("method"), str):
        raise ValueError(f"{path} names no method; add a line such as `method: fixed-tree`.")
    if (count := prod(map(len, axes.values()))) > MOST:
        raise ValueError(f"The grid of {path} has {count:,} configurations; give at most {MOST:,}, or several grids.")
    fixed = {name: content[name] for name in SETTINGS if name in content}
    points = []
    for values in product(*axes.values()):
        point = dict(zip(axes, values, strict=True))
        setting = Setting(**fixed, **{name: value for name, value in point.items() if name in SETTINGS})
        own = options | {name: value for name, value in point.items() if name not in SETTINGS}
        spec = ",".join(f"{name}={text(value)}" for name, value in own.items())
        points.append(Point(":".join(filter(None, (content["method"], spec))), setting, tuple(point.items())))
    for one in points:
        _check(one)
    if len({(one.method, one.setting) for one in points}) < len(points):  # 0 and 0.0 are one
        raise ValueError(f"The grid of {path} has the same configuration twice; give each value of an axis once.")
    return points


def _content(path: str | Path) -> dict[str, Any]:
    import yaml  # type: ignore[import-untyped]

    class Loader(yaml.SafeLoader):
        """YAML's own takes the last of several equal keys without a word."""

        def construct_mapping(self, node: Any, deep: bool = False) -> Any:
            names = [key.value for key, _ in node.value]
            if twice := [name for name in names if names.count(name) > 1]:
                raise ValueError(f"it has '{twice[0]}' twice; give it once")
            return super().construct_mapping(node, deep)

    file = Path(path)
    if not file.is_file():
        shipped = {one.stem: one for one in data_path("sweeps").glob("*.yml")}
        if str(path) not in shipped:
            names = ", ".join(sorted(shipped))
            raise ValueError(f"There is no file {path}; give a YAML file, or a grid of the library ({names}).")
        file = shipped[str(path)]
    try:
        content = yaml.load(file.read_text(encoding="utf-8"), Loader)
    except (yaml.YAMLError, ValueError, LookupError, AttributeError, RecursionError) as error:  # of a wrong !!tag, too
        raise ValueError(f"{path} is no YAML; write `method: ...` and `grid: ...` ({shorten(str(error))}).") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path} holds a {type(content).__name__}; a sweep is `method: ...` and `grid: ...`.")
    return content


def _check(point: Point) -> None:
    """Raise ValueError for a configuration of wrong values, before any is measured."""
    setting = point.setting
    for name, least in (("limit", 1), ("max_new_tokens", 1), ("repeats", 1), ("seed", 0)):
        whole(name, getattr(setting, name), least)
    for name in ("pair", "device", "engine", "workload", "against", "dtype", "data"):
        value = getattr(setting, name)
        if not isinstance(value, str) and not (value is None and name in ("dtype", "data")):
            raise ValueError(f"{name} is {value!r}; give a name.")
    check_engine(setting.engine)
    if setting.workload not in WORKLOADS:
        raise ValueError(f"There is no workload {setting.workload!r}; choose from {', '.join(WORKLOADS)}.")
    sampling = Sampling(temperature=setting.temperature)
    method, against = variant(point.method), variant(setting.against)
    if method.label == against.label:
        raise ValueError(f"'{method.label}' would be compared with itself; name another method in `against`.")
    if setting.device == "cpu":  # a GPU may be another machine's
        pair = _loaded(setting)
        for one in (method, against):
            checked_runner(pair, one, sampling, setting.repeats)
        if (context := pair.target.context) <= setting.max_new_tokens:
            raise ValueError(
                f"max_new_tokens is {setting.max_new_tokens} and the context of '{setting.pair}' {context}."
            )


# ------------------------------------------------------------------------------------------------------------ measuring
def measure(point: Point) -> dict[str, Any]:
    """Measure a configuration and return its row: its axes, the method, the columns `MEASURED`, and the speed-up.

    `speedup` is tokens per second over the method in `against`, prompt by prompt in turn, with `low` and `high` (95 %
    bootstrap over prompts).
    """
    setting = point.setting
    pair, sampling = _loaded(setting), Sampling(temperature=setting.temperature)
    workload = load_workload(
        setting.workload, limit=setting.limit, seed=setting.seed, source=setting.data or "auto",
        max_tokens=pair.target.context - setting.max_new_tokens, tokenizer=pair.tokenizer,
    )  # fmt: skip
    results = run_benchmark(
        pair, [setting.against, point.method], workload.prompts, max_new_tokens=setting.max_new_tokens,
        sampling=sampling, seed=setting.seed, repeats=setting.repeats, source=workload.source,
    )  # fmt: skip
    if failures := results.records.failures:
        raise RuntimeError(next(iter(failures.values())).error)
    summary = results.summary(point.method)
    speed = ratio(results.records.frame(), point.method, over=setting.against)
    return {
        **dict(point.axes), "method": point.method, **{name: summary[name] for name in MEASURED},
        "speedup": speed.value, "low": speed.low, "high": speed.high,
    }  # fmt: skip


def _loaded(setting: Setting) -> Pair:
    files = tuple(pair_files(setting.pair).items())
    return _pair(setting.pair, setting.device, setting.dtype, setting.engine, files)


@lru_cache(maxsize=1)
def _pair(name: str, device: str, dtype: str | None, engine: str, _files: tuple[tuple[str, str], ...]) -> Pair:
    return load_pair(name, device_map=device, dtype=dtype, engine=engine).settle()


@dataclass(frozen=True)
class Sweep:
    """The folder of a sweep, and one version of the library and its data, whose rows count.

    Attributes:
        out: the folder.
        points: the configurations of its grid, in order.
        version: hashes of library and data.
    """

    out: Path
    points: Sequence[Point]
    version: tuple[str, str] = field(default_factory=own_version)

    def file(self, point: Point) -> Path:
        """The file of a configuration's row."""
        return row_file(self.out, point.plain)

    def row(self, point: Point) -> dict[str, Any] | None:
        """The row of a configuration that was measured with this library and these data; None where there is none."""
        content = read_or_empty(self.file(point))
        row = content.get("row")
        if not isinstance(row, dict) or any(content.get(name) != value for name, value in self._basis(point).items()):
            return None
        return {**dict(point.axes), **row}

    def keep(self, point: Point) -> None:
        """Measure a configuration and write its row; ValueError where this process has another library or data."""
        if own_version() != self.version:
            raise ValueError("This worker has another version of the library or its data; install the same everywhere.")
        basis = self._basis(point)
        row = measure(point)
        if self._basis(point) != basis:
            raise ValueError(
                f"The files of the pair {point.setting.pair} changed while it was measured; measure again."
            )
        content = {**basis, "measured": now(), "environment": describe_environment(), "row": row}
        write_json(self.file(point), content)

    def attempt(self, point: Point) -> str:
        """Measure a configuration, unless a worker that died had; return what went wrong, or an empty text."""
        try:
            if self.row(point) is None:
                self.keep(point)
        except Exception as error:  # one configuration must not stop the others
            return f"{type(error).__name__}: {shorten(words_of(error))}"
        return ""

    def _basis(self, point: Point) -> dict[str, Any]:
        library, data = self.version
        return {
            "schema": SCHEMA, "library_sha256": library, "data_sha256": data, "point": point.plain,
            "pair_files": pair_files(point.setting.pair),
        }  # fmt: skip

    def missing(self) -> list[Point]:
        """The configurations that have no row yet."""
        return [point for point in self.points if self.row(point) is None]

    def frame(self) -> pd.DataFrame:
        """Return the rows that there are, in the order of the grid."""
        rows = [row for point in self.points if (row := self.row(point)) is not None]
        return pd.DataFrame([{name: text(v) if isinstance(v, list) else v for name, v in row.items()} for row in rows])

    def begin(self, resume: bool) -> None:
        """Write the head of the folder.

        Raises:
            ValueError: where it holds a sweep already and `resume` is not given.
        """
        if (self.out / HEAD).exists() and not resume:
            raise ValueError(f"{self.out} holds a sweep already; go on with it by --resume, or give another --out.")
        (self.out / ROWS).mkdir(exist_ok=True)  # so that a place that cannot be written to is named before measuring
        check_regular(self.out / TABLE)
        head = {"points": len(self.points), "commit": git_commit(), "environment": describe_environment()}
        grid = [(point.plain, point.axes) for point in self.points]
        write_json(self.out / HEAD, {**head, "started": now(), "grid": grid})


def row_file(out: Path, plain: Mapping[str, Any]) -> Path:
    """Return the file of a configuration's row in a sweep's folder; its name is a hash of all that the point is."""
    method, *setting = plain.items()
    name = hashlib.sha256(json.dumps([method[1], dict(setting)]).encode()).hexdigest()[:16]
    return out / ROWS / f"{name}.json"


def read_sweep(folder: str | Path) -> pd.DataFrame:
    """Return the rows of a sweep's folder as a data frame, finished or not, in the order of the grid.

    Rows of earlier versions of the library are among them, with `library` False; sweep.csv leaves them out.

    Raises:
        ValueError: for a folder without a sweep, or with a damaged one.
    """
    folder = Path(folder)
    if not (folder / HEAD).is_file():
        raise ValueError(f"{folder} holds no sweep ({HEAD} is missing); `dynatree sweep GRID --out DIR` makes one.")
    grid = read_json(folder / HEAD, {"grid": [[(dict, list)]]}).get("grid")
    if grid is None:
        raise ValueError(f"{folder / HEAD} has no grid, so another program wrote it; name the folder of a sweep.")
    rows, (library, _) = [], own_version()
    for plain, axes in grid:
        content = read_or_empty(row_file(folder, plain))
        if content.get("point") == plain and isinstance(content.get("row"), dict):
            rows.append({**dict(axes), **content["row"], "library": content["library_sha256"] == library})
    return pd.DataFrame(rows)


# ------------------------------------------------------------------------------------------------------------- running
def run_sweep(sweep: Sweep, *, resume: bool, say: Say, client: Client | None = None) -> int:
    """Measure the configurations that are missing, here or on the workers of a client, and write the table.

    Return the exit code: 0, 1 where a row is missing, 130 after Ctrl-C.
    """
    with sole_run(sweep.out):
        sweep.begin(resume)
        todo, began, problems = sweep.missing(), time.monotonic(), list[str]()
        kept = len(sweep.points) - len(todo)

        def settle(point: Point, found: str | None, problem: str) -> None:
            if problem == STOPPED:
                return
            problems.append(found or problem)
            rest = (time.monotonic() - began) / len(problems) * (len(todo) - len(problems))
            result = f"failed: {problems[-1]}" if problems[-1] else "done"
            place = f"[{kept + len(problems)}/{len(sweep.points)}]"
            say(f"{place} {point}: {result}, about {rest / 60:.0f} min left")

        attempt = replace(sweep, points=()).attempt
        stopped = work(client, todo, lambda point: (attempt, point), settle, say)
        write_atomically(sweep.out / TABLE, sweep.frame().to_csv(index=False))
        left, failed = len(sweep.missing()), sum(map(bool, problems))
        say(f"{len(sweep.points) - left} of {len(sweep.points)} configurations have a row, {kept} of them from before.")
        say(f"Table: {sweep.out / TABLE}")
        if left:
            way = f"the same command with --resume --out {sweep.out} goes on."
            say(f"{failed} failed, {left - failed} not measured; {way}")
        return INTERRUPTED if stopped else int(left > 0)
