"""Proof that a notebook finished, and everything needed to tell whether that result is still valid.

An executed notebook cannot prove its own success (after a dead kernel it looks finished), so a receipt is written
beside it last of all. A receipt names the notebook, its parameters, the library and the data by their hashes, and
every file the notebook wrote. This module reads, writes and checks; it runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any

from dynatree_lib import __version__
from dynatree_lib.models.fetch import PACKAGED, fetched
from dynatree_lib.models.pairs import MODELS_FOLDER, PAIRS, two_sources
from dynatree_lib.paths import data_path, sha256_of

from .. import PACKAGES
from ..bench.environment import git_commit
from ..files import write_atomically
from ..papers.workloads import FOLDER_VARIABLE
from .plan import Job, has_shape, project_root, read_source
from .shipped import reference_path

SCHEMA = 1
ORPHANED = 2.0
"""Seconds after which a kernel has noticed that its runner is gone."""
RUN_FILE = "run.json"


class Files:
    """Where everything about one notebook lies in a run's folder.

    Attributes:
        out: the run's folder.
        name: the notebook's name, without .ipynb.
        executed: the executed notebook; present only after success.
        partial: the notebook while it runs.
        receipt: the proof of success, written last.
        failure: the problem, instead of a receipt.
        summary: claims, tables and figures the notebook hands to the report.
        page: the executed notebook as HTML, made by the report.
        records: the notebook's folder of JSONL records.
        figures: the notebook's folder of figures.
    """

    def __init__(self, out: Path, name: str) -> None:
        self.out, self.name = out, name
        self.executed = out / f"{name}.ipynb"
        self.partial = out / f"{name}.partial.ipynb"
        self.receipt = out / f"{name}.receipt.json"
        self.failure = out / f"{name}.failure.json"
        self.summary = out / f"{name}.summary.json"
        self.page = out / f"{name}.html"
        self.records = out / "records" / name
        self.figures = out / "figures" / name

    def stopped(self, status: str) -> Path:
        """Return the path of a notebook that stopped half-way; status is `failed` or `interrupted`."""
        return self.out / f"{self.name}.{status}.ipynb"

    def written(self) -> list[Path]:
        """Return the files that the notebook itself wrote: records, figures, summary."""
        places = (self.summary, *self.records.rglob("*"), *self.figures.rglob("*"))
        return sorted(path for path in places if path.is_file())

    def prepare(self, basis: Mapping[str, Any], resume: bool) -> None:
        """Remove the files of an earlier attempt, so that they cannot pass for results of the next attempt.

        With `resume` it goes on from the records that an attempt left which stopped, where nothing has changed since. A
        partial file means that a runner was killed: its kernel may write for another second, so that is waited for.
        """
        if self.partial.is_file():
            time.sleep(ORPHANED)
        unfinished = not differences(basis, read_or_empty(self.failure, NOTE).get("fingerprint") or {})
        stopped = [self.stopped(status) for status in ("failed", "interrupted")]
        for path in (self.executed, self.partial, self.receipt, self.failure, self.summary, self.page, *stopped):
            path.unlink(missing_ok=True)
        for folder in (self.figures,) if resume and unfinished else (self.figures, self.records):
            shutil.rmtree(folder, ignore_errors=True)


PARTS = {
    "source_sha256": "the notebook",
    "library_sha256": "the library",
    "data_sha256": "the data",
    "parameters": "its parameters",
    "profile": "the profile",
    "divide": "what its amounts are divided by",
    "pair_files": "the files of its pair",
    "fetched": "which models are fetched",
    "folders": "the folders of models or data",
}
"""Everything that a result depends on and that is known before, as a fingerprint has it -> in words.

Besides, a receipt names the records of outputs/reference that the notebook read.
"""
FOLDERS = (MODELS_FOLDER, FOLDER_VARIABLE)
"""Environment variables that name folders of models and data sets: another folder may hold others of the same names."""


def pair_files(name: str) -> dict[str, str]:
    """Return the SHA-256 of each file of a pair that is a folder here, or two, by path from target/ or draft/.

    A pair's name says nothing of what lies in a folder of one's own. Empty for one of `PAIRS`, hub names, or no pair.
    """
    roles = ("target", "draft")
    places = [(role, Path(source)) for role, source in zip(roles, two_sources(name) or (), strict=False)]
    if name not in PAIRS and not places:
        places = [(role, Path(name, role)) for role in roles]
    found = {}
    for role, place in places:
        for path in sorted(path for path in place.rglob("*") if path.is_file()):
            stat = path.stat()
            found[f"{role}/{path.relative_to(place).as_posix()}"] = _sha256(path, stat.st_size, stat.st_mtime_ns)
    return found


@cache
def _sha256(path: Path, _size: int, _modified: int) -> str:
    """Return a file's SHA-256, which is computed anew where its size or its time of change differs."""
    return sha256_of(path)


def fingerprint(job: Job) -> dict[str, Any]:
    """Return the present fingerprint of a job, as a receipt stores it; with equal ones two jobs do the same work."""
    parameters = dict(job.parameters)
    files = pair_files(pair) if isinstance(pair := parameters.get("pair"), str) else {}
    models = [name for name in PACKAGED if fetched(name)]
    divide = None if job.divide == 1 else job.divide
    folders = {name: str(Path(place).resolve()) for name in FOLDERS if (place := os.environ.get(name))}
    versions = job.source.sha256, library_sha256(), data_sha256()
    values = (*versions, parameters, job.profile, divide, files, models, folders)
    return dict(json.loads(json.dumps(dict(zip(PARTS, values, strict=True)), default=str)))


def changed_since(job: Job, basis: Mapping[str, Any]) -> list[str]:
    """Return in words what is no longer as in a job's fingerprint; the notebook is read again."""
    try:
        source = read_source(job.source.path).sha256
    except (OSError, ValueError):
        source = None
    return differences({**fingerprint(job), "source_sha256": source}, basis)


def differences(basis: Mapping[str, Any], stored: Mapping[str, Any]) -> list[str]:
    """Return in words the parts in which a stored fingerprint differs."""
    return [word for part, word in PARTS.items() if basis[part] != stored.get(part)]


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n")


OPTIONAL = (str, NoneType)
REFERENCES = [{"name": str, "sha256": str}]
NOTE = {
    **dict.fromkeys(("title", "status", "problem", "library_sha256", "profile", "started", "commit"), OPTIONAL),
    **dict.fromkeys(("parameters", "fingerprint", "environment"), (dict, NoneType)),
    **dict.fromkeys(("seconds", "memory_mb"), (int, float, NoneType)),
    "references": REFERENCES,
}
"""Of a receipt or a failure note. These are shapes, as for `plan.has_shape`."""
RUN = {
    "notebooks": [str], "profile": OPTIONAL, "started": OPTIONAL, "commit": OPTIONAL, "environment": (dict, NoneType)
}  # fmt: skip
SUMMARY = {
    "claims": [{"claim": str, "value": (str, int, float, NoneType), "unit": OPTIONAL, "holds": (bool, NoneType),
                "record": OPTIONAL}],
    "tables": [{"caption": OPTIONAL, "html": str}],
    "figures": [{"path": str, "caption": OPTIONAL}],
    "sizes": [{"what": str, "here": str, "paper": str}],
    "references": REFERENCES,
}  # fmt: skip


def read_json(path: Path, shape: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read a receipt, run file or summary.

    Args:
        path: of the file.
        shape: of its entries, those that are there.

    Raises:
        ValueError: in a full sentence, where it is truncated, no JSON object, or has an entry of another shape.
    """
    if path.exists() and not path.is_file():  # reading a pipe would wait for ever
        raise ValueError(f"{path.name} is no file; remove it.")
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} is truncated or not JSON ({error}).") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds a {type(content).__name__} where a JSON object belongs.")
    for name, part in (shape or {}).items():
        if name in content and not has_shape(content[name], part):
            raise ValueError(f"{path.name} holds something else than the suite writes as '{name}'.")
    return content


def read_or_problem(path: Path, shape: Mapping[str, Any] | None = None) -> tuple[dict[str, Any], str]:
    """Return what a JSON file holds and "", nothing and "" where there is no file, else nothing and the problem."""
    try:
        return read_json(path, shape), ""
    except FileNotFoundError:
        return {}, ""
    except (OSError, ValueError) as error:
        return {}, str(error)


def read_or_empty(path: Path, shape: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read a JSON file; an empty dictionary where it is missing, damaged or misshapen."""
    return read_or_problem(path, shape)[0]


def sha256_files(folder: Path, paths: Iterable[Path]) -> str:
    """Return one SHA-256 over names and contents."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(folder).as_posix()}:{sha256_of(path)}\n".encode())
    return digest.hexdigest()


def library_sha256() -> str:
    """Return the hash of the library's source as it lies on disk, which a kernel loads."""
    folder = Path(__file__).resolve().parents[2]
    return sha256_files(folder, (path for name in PACKAGES for path in (folder / name).rglob("*.py")))


def data_sha256() -> str:
    """Return the hash of the data that ships with the library, bundled models included."""
    folder = data_path()
    return sha256_files(folder, (path for path in folder.rglob("*") if path.is_file()))


@cache
def own_version() -> tuple[str, str]:
    """Return the hashes of library and data at the first call in this process, which runs that version to its end."""
    return library_sha256(), data_sha256()


def write_receipt(files: Files, job: Job, basis: Mapping[str, Any], cost: Mapping[str, Any]) -> None:
    """Write the receipt of a finished notebook: its fingerprint, what it read, the hashes of its files, its cost."""
    content = {
        "schema": SCHEMA,
        "notebook": job.name,
        "title": job.source.title,
        "headline": job.source.headline,
        **basis,
        "library_version": __version__,
        "commit": git_commit(),
        **cost,
        "references": read_or_empty(files.summary, SUMMARY).get("references", []),
        "executed_sha256": sha256_of(files.executed),
        "written": {path.relative_to(files.out).as_posix(): sha256_of(path) for path in files.written()},
    }
    write_json(files.receipt, content)


def why_rerun(files: Files, basis: Mapping[str, Any], root: Path | None = None) -> str | None:
    """Return why a notebook has to run (again), as the end of a sentence; None when its receipt is valid.

    `root` is the checkout, found by itself where it is not given.
    """
    receipt, problem = read_or_problem(files.receipt, NOTE)
    if problem:
        return f"its receipt cannot be read: {problem}"
    if not receipt:
        return "it has not finished before"
    if not _complete(receipt):
        return "its receipt is incomplete or of another version of the suite"
    if changed := differences(basis, receipt):
        return f"{' and '.join(changed)} changed since"
    for read in receipt.get("references", []):
        path = reference_path(read["name"], root or project_root())
        if path is None or sha256_of(path) != read["sha256"]:
            return f"outputs/reference/{read['name']} {'is gone' if path is None else 'changed since'}"
    return damage(files, receipt)


def has_finished(files: Files, basis: Mapping[str, Any], root: Path | None = None) -> bool:
    """Whether a notebook has a valid receipt; a failure note beside it, of a runner that was killed then, is removed.

    `root` as for `why_rerun`.
    """
    valid = why_rerun(files, basis, root) is None
    if valid:
        files.failure.unlink(missing_ok=True)
    return valid


def _complete(receipt: Mapping[str, Any]) -> bool:
    return receipt.get("schema") == SCHEMA and isinstance(receipt.get("written"), dict)


def asked_otherwise(files: Files, basis: Mapping[str, Any]) -> str:
    """Return in what a sound result was asked for otherwise than now, "seed=1, now 2"; empty where it was not.

    That is by parameters, profile and divisor: a rehearsal and a run of whole amounts do not replace each other.
    """
    receipt = read_or_empty(files.receipt, NOTE)
    if not _complete(receipt) or damage(files, receipt):
        return ""
    then, this = (
        {"profile": one.get("profile"), "--divide": one.get("divide") or 1, **(one.get("parameters") or {})}
        for one in (receipt, basis)
    )
    default = "the notebook's own"
    return ", ".join(
        f"{name}={then.get(name, default)}, now {this.get(name, default)}"
        for name in {**then, **this}
        if then.get(name, default) != this.get(name, default)
    )


def damage(files: Files, receipt: Mapping[str, Any]) -> str | None:
    """Return which file is missing or altered; None when every file is as the receipt says."""
    expected = {files.executed.name: receipt.get("executed_sha256"), **receipt["written"]}
    for relative, sha256 in expected.items():
        path = files.out / relative
        if not path.is_file():
            return f"{relative} is missing"
        if sha256_of(path) != sha256:
            return f"{relative} is truncated or was altered since"
    return None


def now() -> str:
    """Return the time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
