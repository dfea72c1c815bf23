"""Records of a benchmark: JSON lines, a header first, then one line per run, each written as soon as it is known.

A reader trusts nothing: every line is checked, a broken one is left out with a sentence, so that only its run is
repeated. What the numbers mean belongs to `metrics`.
"""

from __future__ import annotations

import contextlib
import dataclasses
import gzip
import json
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from types import UnionType
from typing import TYPE_CHECKING, Any, ClassVar, TextIO, get_args, get_origin, get_type_hints

from ..files import check_regular, partial_of, write_atomically

if TYPE_CHECKING:
    import pandas as pd

FORMAT = 1
"""Version of the line format; a reader refuses others."""

PACKED = ".gz"
"""Ending of a file that gzip has packed: to be read, not to be written to."""

Key = tuple[str, str, int]
"""(method label, prompt id, repeat)."""
TURN = "/turn-"
"""Stands in the id of a prompt that is a further turn of another, "ID/turn-2"."""


LATER = ("common_draft", "near_tie_steps", "seeds_per_prompt")
"""Entries of a setup that older files do not have; such a file is resumed by its own rules."""


@dataclass(frozen=True)
class Header:
    """What all runs of a file share.

    Attributes:
        environment: versions, machine, commit (`environment.describe_environment`).
        setup: pair, methods, prompts, budget, sampling, EOS rule, seeds, protocol.
        started: UTC time, not part of the comparison on resuming.
    """

    kind: ClassVar[str] = "header"
    environment: dict[str, Any]
    setup: dict[str, Any]
    started: str = ""

    def differences(self, other: Header) -> list[str]:
        """Names of the entries that differ, such as "environment.threads (2, now 1)".

        What an older file does not tell is not compared: `LATER`, and the hash of a draft without files. Nor are costs,
        because a resumed run goes on with the recorded ones.
        """
        out = []
        for part in ("environment", "setup"):
            mine, its = getattr(self, part), getattr(other, part)
            for name in dict.fromkeys([*mine, *its]):
                if name == "costs" or (name in LATER and name not in mine):
                    continue
                if name == "draft" and not mine.get(name, {}).get("files", True):
                    its = {**its, name: {**its.get(name, {}), "files": {}}}
                if mine.get(name) != its.get(name):
                    out.append(f"{part}.{name} ({_short(mine.get(name))}, now {_short(its.get(name))})")
        return out


@dataclass(frozen=True)
class _OfRun:
    """A line about one timed run: the method's label, the prompt's id, and which repeat (0, 1, ...)."""

    method: str
    prompt: str
    repeat: int

    @property
    def key(self) -> Key:
        """What identifies the run in its file."""
        return self.method, self.prompt, self.repeat


@dataclass(frozen=True)
class Run(_OfRun):
    """One timed run.

    Attributes:
        method, prompt, repeat: as for every line about a run.
        seconds: from before the call until it returned and the device was idle.
        tokens: generated ids.
        emissions: [seconds since the start, to a microsecond, number of tokens] for each chunk the host received;
            in files that tools.pack_records packed, of the first chunk and of all others at the time of the last.
        iterations: target forwards that decided tokens.
        finish_reason: why the text ended.
        nodes: drafted nodes of each iteration, node 0 not counted; None where the method does not show them.
        accepted: accepted drafted tokens of each iteration.
        depths: deepest drafted level of each iteration.
        counters: further counts, such as evictions.
        kv_entries: entries the target's cache holds at most, drafted nodes included.
        peak_device_bytes: most bytes allocated on the GPU during the run, weights included; None on a CPU.
        peak_rss_bytes: largest resident size of the process so far.
        side_nodes: nodes of the side tree in each iteration (`Proposal.side_tree`, node 0 not counted); None where the
            method does not show them, and in older files.
    """

    kind: ClassVar[str] = "run"
    seconds: float
    tokens: list[int]
    emissions: list[list[float]]
    iterations: int
    finish_reason: str
    nodes: list[int] | None = None
    accepted: list[int] | None = None
    depths: list[int] | None = None
    counters: dict[str, int] = field(default_factory=dict)
    kv_entries: int = 0
    peak_device_bytes: int | None = None
    peak_rss_bytes: int | None = None
    side_nodes: list[int] | None = None

    def __post_init__(self) -> None:
        if not (self.seconds > 0 and self.tokens and self.iterations > 0 and self.emissions):
            raise ValueError("a run needs a positive time, at least one token, one iteration and one emission")
        if sum(int(count) for _, count in self.emissions) != len(self.tokens):
            raise ValueError("the emissions of a run do not add up to its tokens")
        for name in ("nodes", "accepted", "depths", "side_nodes"):
            each = getattr(self, name)
            if each is not None and len(each) != self.iterations:
                raise ValueError(f"{name} has {len(each)} entries for {self.iterations} iterations")
        if self.accepted is not None and sum(self.accepted) + self.iterations != len(self.tokens):
            raise ValueError(
                f"{sum(self.accepted)} accepted tokens and one more of each of {self.iterations} iterations are not "
                f"its {len(self.tokens)} tokens, so that DE = HR * AL + (1 - HR) does not hold"
            )

    @property
    def conversation(self) -> str:
        """Id of the prompt; of its first turn where the prompt is a further turn."""
        return self.prompt.partition(TURN)[0]

    def row(self) -> dict[str, Any]:
        """Return the run as a row of `Records.frame`."""
        hits = None if self.accepted is None else [count + 1 for count in self.accepted if count]
        sums = {name: None if (each := getattr(self, name)) is None else sum(each) for name in _SHOWN}
        return {
            "method": self.method, "prompt": self.prompt, "conversation": self.conversation, "repeat": self.repeat,
            "tokens": len(self.tokens), "seconds": self.seconds, "iterations": self.iterations,
            "first": self.emissions[0][0], "last": self.emissions[-1][0],
            "span": self.emissions[-1][0] - self.emissions[0][0], "further": len(self.tokens) - self.emissions[0][1],
            **sums,
            "hits": None if hits is None else len(hits), "hit_tokens": None if hits is None else sum(hits),
            **self.counters, "kv_entries": self.kv_entries, "peak_device_bytes": self.peak_device_bytes,
        }  # fmt: skip


_SHOWN = ("nodes", "accepted", "side_nodes")


@dataclass(frozen=True)
class Failure(_OfRun):
    """A run that raised; a resumed benchmark tries it again."""

    kind: ClassVar[str] = "error"
    error: str


@dataclass(frozen=True)
class Divergence(_OfRun):
    """Where a method's text leaves the reference's.

    Attributes:
        index: first generated token that differs, or the length of the shorter text.
        expected: the reference's token there, None past its end.
        found: the method's.
        margin: target's logit of its most probable token minus that of the second, after the common prefix.
        near_tie: whether both tokens are within the run's limit of the best, so that rounding alone decides.
    """

    kind: ClassVar[str] = "divergence"
    index: int
    expected: int | None
    found: int | None
    margin: float
    near_tie: bool


@dataclass(frozen=True)
class Split:
    """Where the time of one traced run went; not a throughput measurement, because tracing synchronises.

    Attributes:
        seconds: the whole run, reading the prompt included, without what tracing itself took.
        draft: seconds in forwards of the draft.
        verify: seconds in forwards of the target.
        host: the rest: everything outside the models' forwards, building masks and bookkeeping too. (Where the setup
            has no entry "trace", in older files, a session's own part of these counts in its forward.)
        iterations: of the traced run.
        events: [role, start, end, nodes] of every forward and ["commit", t, t, tokens] at the end of every iteration,
            in seconds since the start; empty where only the sums were recorded.
    """

    kind: ClassVar[str] = "split"
    method: str
    prompt: str
    seconds: float
    draft: float
    verify: float
    host: float
    iterations: int
    events: list[list[Any]] = field(default_factory=list)

    @property
    def key(self) -> Key:
        """What identifies the run in its file."""
        return self.method, self.prompt, 0


@dataclass(frozen=True)
class Bandwidth:
    """How fast the device moved one buffer before or after the runs; every measurement stays.

    Attributes:
        when: "before" the timed runs or "after" them.
        size: bytes of the buffer.
        read: bytes per second of reading it, median of several.
        copy: bytes per second of copying it, what is read and what is written counted both.
    """

    kind: ClassVar[str] = "bandwidth"
    when: str
    size: int
    read: float
    copy: float

    def __post_init__(self) -> None:
        if not (self.size > 0 and self.read > 0 and self.copy > 0):
            raise ValueError("a bandwidth needs a positive size and positive speeds")


Line = Run | Failure | Divergence | Split | Bandwidth
_KINDS: dict[str, type[Line]] = {one.kind: one for one in (Run, Failure, Divergence, Split, Bandwidth)}


@dataclass
class Records:
    """A file's content. The latest line of a run wins.

    Attributes:
        header: what all runs share.
        runs, failures, divergences, splits: by (method label, prompt id, repeat).
        notes: full sentences about lines that were left out.
        bandwidths: every measurement, in order; empty in older files.
    """

    header: Header
    runs: dict[Key, Run] = field(default_factory=dict)
    failures: dict[Key, Failure] = field(default_factory=dict)
    divergences: dict[Key, Divergence] = field(default_factory=dict)
    splits: dict[Key, Split] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    bandwidths: list[Bandwidth] = field(default_factory=list)
    _file: TextIO | None = field(default=None, init=False, repr=False, compare=False)

    def add(self, line: Line) -> None:
        """Take a line in, and write it where there is a file; a run that succeeded replaces its earlier failure."""
        if isinstance(line, Bandwidth):
            self.bandwidths.append(line)
        else:
            places: dict[str, dict] = {
                "run": self.runs, "error": self.failures, "divergence": self.divergences, "split": self.splits,
            }  # fmt: skip
            places[line.kind][line.key] = line
        if isinstance(line, Run):
            self.failures.pop(line.key, None)
        if self._file:
            self._file.write(dumps(line))
            self._file.flush()
            os.fsync(self._file.fileno())

    @contextlib.contextmanager
    def kept_in(self, path: Path | None) -> Iterator[None]:
        """Write all lines to a file, in an existing folder, and every further line once it is added; None: to no file.

        A line is on disk before `add` returns.
        """
        if path is None:
            yield
            return
        write_atomically(path, dumps(self.header) + "".join(map(dumps, self.lines())))
        with path.open("a", encoding="utf-8", errors="backslashreplace") as self._file:
            yield
        self._file = None

    def frame(self) -> pd.DataFrame:
        """Return one row per method, prompt and repeat, in the order of the runs.

        Columns: `method` (label), `name` (the method's name), `prompt`, `conversation` (the prompt, or its first turn),
        `task` (the prompt's, "" where its workload names none), `repeat`, `tokens`, `seconds`, `iterations`; `first`
        and `last`, seconds of the first and the last emission; `span`, the seconds between them, and `further`, the
        tokens after the first emission, for speeds without the reading of the prompt;
        sums over iterations, NaN where the method does not show them: `nodes`, `accepted`, `hits` (iterations with an
        accepted node), `hit_tokens` (tokens of those), `side_nodes`; counters such as `draft_forwards` and
        `draft_nodes`; `kv_entries`, `peak_device_bytes`; and `disturbed` (`statistics.disturbed`).
        """
        import pandas as pd

        from .statistics import disturbed

        names = {entry["label"]: entry["name"] for entry in self.header.setup["methods"]}
        tasks = {entry["id"]: entry.get("task", "") for entry in self.header.setup.get("prompts", ())}
        frame = pd.DataFrame(
            [
                {"name": names.get(run.method, run.method), "task": tasks.get(run.prompt, ""), **run.row()}
                for run in self.runs.values()
            ]
        )
        return frame if frame.empty else frame.assign(disturbed=disturbed(frame))

    def lines(self) -> Iterator[Line]:
        """Every line but the header."""
        for place in (self.runs, self.failures, self.divergences, self.splits):
            yield from place.values()
        yield from self.bandwidths


def dumps(line: Header | Line) -> str:
    """One line of JSON with its newline."""
    body = {"kind": line.kind, **dataclasses.asdict(line)}
    if isinstance(line, Header):
        body = {"kind": line.kind, "format": FORMAT, **dataclasses.asdict(line)}
    return json.dumps(body, ensure_ascii=False, allow_nan=False) + "\n"


def check_writable(path: Path) -> Path:
    """The path, if a file can be written there.

    Raises:
        ValueError: if its folder is missing or may not be written to, it is a folder or a device, its name ends in
            `.gz`, or is too long for that of the partial file.
    """
    if path.suffix == PACKED:
        raise ValueError(f"{path} names a packed file, to which nothing can be added; leave out {PACKED}.")
    if path.is_dir():
        raise ValueError(f"{path} is a folder; give the name of a file to write.")
    check_regular(path)
    if not path.parent.is_dir():
        raise ValueError(f"{path} cannot be written because the folder {path.parent} does not exist; make it first.")
    if not os.access(path.parent, os.W_OK) or (path.exists() and not os.access(path, os.W_OK)):
        raise ValueError(f"{path} cannot be written: permission denied; choose another place.")
    partial = partial_of(path)
    try:
        if not partial.exists():
            partial.touch()
            partial.unlink()
    except OSError as error:
        reason = str(error.strerror).lower()
        raise ValueError(
            f"{path} cannot be written under {partial.name} first: {reason}; give another name."
        ) from error
    return path


def read_records(path: str | os.PathLike[str]) -> Records:
    """Read a benchmark's file, plain or packed by gzip (its name then ends in `.gz`).

    Raises:
        ValueError: if the file is missing, cannot be unpacked, or its first line is no header of this format. Other
            broken lines are left out and named in `notes`.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no records file {path}; `dynatree bench --records {path}` writes one.")
    first, *rest = read_bytes(path).decode("utf-8", errors="replace").split("\n")
    records = Records(_header(path, first))
    while rest and not rest[-1]:
        rest.pop()
    for number, text in enumerate(rest, 2):
        try:
            records.add(_parse(text))
        except (ValueError, TypeError, AttributeError, OverflowError, RecursionError) as error:
            last = number == len(rest) + 1
            reason = "is cut off, as after a crash" if last and text[-1:] != "}" else f"is not a record ({error})"
            records.notes.append(f"Line {number} of {path.name} {reason}; it is left out and counts as not done.")
    return records


def read_bytes(path: Path) -> bytes:
    """Read a file of records, plain or packed; ValueError where it cannot be unpacked."""
    if path.suffix != PACKED:
        return path.read_bytes()
    try:
        return gzip.decompress(path.read_bytes())
    except (OSError, EOFError, zlib.error) as error:
        raise ValueError(f"{path} cannot be unpacked ({error}); a packed file is whole or of no use.") from error


def _header(path: Path, text: str) -> Header:
    try:
        body = json.loads(text)
        found = body.get("format") if body.get("kind") == Header.kind else None
        header = Header(body["environment"], body["setup"], str(body.get("started", "")))
        sound = isinstance(header.environment, dict) and isinstance(header.setup, dict)
    except (ValueError, AttributeError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} does not begin with the header of a benchmark; it is no records file.") from error
    if found != FORMAT or not sound:
        raise ValueError(f"{path} has records of format {found} and this version reads format {FORMAT}; measure again.")
    return header


_RENAMED = {"beside": "side_nodes", "cache_rows": "kv_entries"}
"""Field of older files -> its name now."""
_RENAMED_COUNTERS = {"draft_rows": "draft_nodes", "evicted_rows": "evicted_entries"}


def _parse(text: str) -> Line:
    body = json.loads(text)
    if not isinstance(body, dict) or body.get("kind") not in _KINDS:
        raise ValueError("no known kind of line")
    kind = _KINDS[body.pop("kind")]
    body = {_RENAMED.get(name, name): value for name, value in body.items()}
    if kind is Run and "draft_rows" in (counters := body.get("counters") or {}):
        body["counters"] = {_RENAMED_COUNTERS.get(name, name): value for name, value in counters.items()}
    line: Line = typed(body, kind)
    return line


_hints_of = cache(get_type_hints)


def typed(value: Any, hint: Any) -> Any:
    """Return a value of JSON as a type hint says: lists as tuples and objects as dataclasses where it says so.

    Raises:
        ValueError: if it is of another type, or if an object's fields are missing or unknown.
    """
    kind: Any = get_origin(hint) or hint
    parts = get_args(hint)
    if kind is UnionType:
        for part in parts:
            with contextlib.suppress(ValueError):
                return typed(value, part)
    elif dataclasses.is_dataclass(hint) and isinstance(value, dict):
        hints = _hints_of(kind)
        with contextlib.suppress(KeyError, TypeError):
            return kind(**{name: typed(one, hints[name]) for name, one in value.items()})
        raise ValueError("fields are missing or unknown")
    elif kind is list and isinstance(value, list):
        return value if _are(parts[0], value) else [typed(one, parts[0]) for one in value]
    elif kind is tuple and isinstance(value, list):
        each = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        if len(each) == len(value):
            return tuple(map(typed, value, each))
    elif kind is dict and isinstance(value, dict):
        return {name: typed(one, parts[1]) for name, one in value.items()}
    elif kind is Any or _are(kind, [value]):
        return value
    raise ValueError(f"{_short(value)} is not of type {hint}")


def _are(kind: type, values: list[Any]) -> bool:
    return {*map(type, values)} <= ({int, float} if kind is float else {kind})


def _short(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= 60 else text[:57] + "..."
