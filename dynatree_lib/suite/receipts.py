"""Proof that a notebook finished, and everything needed to tell whether that result still stands.

An executed notebook cannot prove its own success (after a dead kernel it looks finished), so a receipt is written
beside it last of all. A receipt names the notebook, its parameters, the library and the data by their hashes, and
every file the notebook wrote. This module reads, writes and checks; it runs nothing.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import lru_cache
from pathlib import Path
from typing import Any

from .. import __version__
from ..measure.environment import available_cores, cpu_name, git_commit, package_version, sha256_of
from ..paths import data_path
from .plan import Job

SCHEMA = 1
PACKAGES = ("torch", "transformers", "numpy", "safetensors", "datasets", "papermill", "plotly")


@dataclass(frozen=True)
class Files:
    """Where everything about one notebook lies in a run's folder."""

    out: Path
    name: str

    @property
    def executed(self) -> Path:
        """The executed notebook; present only after success."""
        return self.out / f"{self.name}.ipynb"

    @property
    def partial(self) -> Path:
        """The notebook while it runs."""
        return self.out / f"{self.name}.partial.ipynb"

    @property
    def receipt(self) -> Path:
        """The proof of success, written last."""
        return self.out / f"{self.name}.receipt.json"

    @property
    def failure(self) -> Path:
        """What went wrong, instead of a receipt."""
        return self.out / f"{self.name}.failure.json"

    @property
    def summary(self) -> Path:
        """Claims, tables and figures the notebook hands to the report."""
        return self.out / f"{self.name}.summary.json"

    @property
    def page(self) -> Path:
        """The executed notebook as HTML, made by the report."""
        return self.out / f"{self.name}.html"

    @property
    def records(self) -> Path:
        """The notebook's folder of JSONL records."""
        return self.out / "records" / self.name

    @property
    def figures(self) -> Path:
        """The notebook's folder of figures."""
        return self.out / "figures" / self.name

    def stopped(self, status: str) -> Path:
        """The notebook as far as it came; status is `failed` or `interrupted`."""
        return self.out / f"{self.name}.{status}.ipynb"

    def written(self) -> list[Path]:
        """The files the notebook itself wrote: records, figures, summary."""
        folders = [path for folder in (self.records, self.figures) for path in folder.rglob("*") if path.is_file()]
        return sorted([*folders, *([self.summary] if self.summary.is_file() else [])])

    def clear(self, keep_records: bool = False) -> None:
        """Remove what an earlier attempt left, so that nothing old can pass for a result of the next one."""
        for path in (self.executed, self.partial, self.receipt, self.failure, self.summary, self.page):
            path.unlink(missing_ok=True)
        for status in ("failed", "interrupted"):
            self.stopped(status).unlink(missing_ok=True)
        for folder in [self.figures] if keep_records else [self.figures, self.records]:
            shutil.rmtree(folder, ignore_errors=True)


@dataclass(frozen=True)
class Fingerprint:
    """What a result depends on. Two runs with equal fingerprints would do the same work."""

    source_sha256: str
    library_sha256: str
    data_sha256: str
    parameters: dict[str, Any]
    profile: str

    def differences(self, other: Mapping[str, Any]) -> list[str]:
        """Which parts differ from a stored fingerprint, in words."""
        words = {
            "source_sha256": "the notebook",
            "library_sha256": "the library",
            "data_sha256": "the data",
            "parameters": "its parameters",
            "profile": "the profile",
        }
        mine = json.loads(json.dumps(asdict(self), default=str))
        return [word for key, word in words.items() if mine[key] != other.get(key)]


def fingerprint(job: Job) -> Fingerprint:
    """The fingerprint of a job as things stand now."""
    return Fingerprint(job.source.sha256, library_sha256(), data_sha256(), dict(job.parameters), job.profile)


def write_json(path: Path, content: Mapping[str, Any]) -> None:
    """Write a JSON file whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    draft = path.with_name(path.name + ".partial")
    draft.write_text(json.dumps(content, indent=1, ensure_ascii=False, default=str) + "\n", encoding="utf-8")
    draft.replace(path)


def read_json(path: Path) -> dict[str, Any]:
    """Read a JSON object; ValueError in a full sentence when it is truncated or something else."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise ValueError(f"{path.name} is truncated or not JSON ({error}).") from error
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} holds a {type(content).__name__} where a JSON object belongs.")
    return content


def sha256_files(folder: Path, paths: Iterable[Path]) -> str:
    """One SHA-256 over names and contents."""
    digest = hashlib.sha256()
    for path in sorted(paths):
        digest.update(f"{path.relative_to(folder).as_posix()}:{sha256_of(path)}\n".encode())
    return digest.hexdigest()


@lru_cache(maxsize=1)
def library_sha256() -> str:
    """Hash of the library's source as it was when this process first asked."""
    folder = Path(__file__).resolve().parents[1]
    return sha256_files(folder, folder.rglob("*.py"))


@lru_cache(maxsize=1)
def data_sha256() -> str:
    """Hash of the data that ships with the library, the bundled models among it."""
    folder = data_path()
    return sha256_files(folder, (path for path in folder.rglob("*") if path.is_file()))


def write_receipt(files: Files, job: Job, basis: Fingerprint, cost: Mapping[str, Any]) -> None:
    """Write the receipt of a finished notebook: what it depended on, what it wrote, what it cost."""
    content = {
        "schema": SCHEMA,
        "notebook": job.name,
        "title": job.source.title,
        "headline": job.source.headline,
        **asdict(basis),
        "library_version": __version__,
        "commit": git_commit(),
        **cost,
        "executed_sha256": sha256_of(files.executed),
        "written": {path.relative_to(files.out).as_posix(): sha256_of(path) for path in files.written()},
    }
    write_json(files.receipt, content)


def why_rerun(files: Files, basis: Fingerprint) -> str | None:
    """None when the receipt stands; otherwise why the notebook has to run (again), as the end of a sentence."""
    if not files.receipt.is_file():
        return "it has not finished before"
    try:
        receipt = read_json(files.receipt)
    except (ValueError, OSError) as error:
        return f"its receipt cannot be read: {error}"
    if receipt.get("schema") != SCHEMA or not isinstance(receipt.get("written"), dict):
        return "its receipt is incomplete or of another version of the suite"
    changed = basis.differences(receipt)
    if changed:
        return f"{' and '.join(changed)} changed since"
    return damage(files, receipt)


def damage(files: Files, receipt: Mapping[str, Any]) -> str | None:
    """None when every file is as the receipt says; otherwise which one is missing or altered."""
    expected = {files.executed.name: receipt.get("executed_sha256"), **receipt["written"]}
    for relative, sha256 in expected.items():
        path = files.out / relative
        if not path.is_file():
            return f"{relative} is missing"
        if sha256_of(path) != sha256:
            return f"{relative} is truncated or was altered since"
    return None


def environment() -> dict[str, Any]:
    """Where a run took place."""
    return {
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "processor": cpu_name() or "unknown",
        "cores": available_cores(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "packages": {name: found for name in PACKAGES if (found := package_version(name))},
    }


def now() -> str:
    """The time in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")
