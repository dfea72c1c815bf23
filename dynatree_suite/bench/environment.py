"""Where a number was measured: versions, machine, commit, models. No host or user names, no absolute paths."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from dynatree_lib.paths import sha256_of

from .. import PACKAGES

if TYPE_CHECKING:
    from dynatree_lib.models.huggingface import HFModel
    from dynatree_lib.models.pairs import Pair

_HOME = Path(__file__).resolve().parents[2]
_PACKAGES = ("torch", "transformers", "numpy", "safetensors")


def describe_environment() -> dict[str, Any]:
    """Everything about this machine and this code that may change a time."""
    from dynatree_lib import __version__

    return {
        "library": __version__,
        "commit": git_commit(),
        "python": platform.python_version(),
        **{name: package_version(name) for name in _PACKAGES},
        "os": f"{platform.system()} {platform.release().split('-')[0]} {platform.machine()}",
        "cpu": cpu_name(),
        "cores": available_cores(),
        "threads": torch.get_num_threads(),
        "gpu": describe_gpu(),
    }


def available_cores() -> int:
    """CPU cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def cpu_name() -> str | None:
    """The processor's model name, where the system tells it."""
    facts = Path("/proc/cpuinfo")
    if not facts.exists():
        return platform.processor() or None
    found = re.search(r"^model name\s*: (.*)$", facts.read_text(encoding="utf-8", errors="replace"), re.M)
    return found[1].strip() if found else None


def describe_gpu() -> dict[str, Any] | None:
    """Name, memory, CUDA and driver of the first GPU that torch sees, or None."""
    if not torch.cuda.is_available():
        return None
    facts = torch.cuda.get_device_properties(0)
    driver = _output(["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"])
    return {"name": facts.name, "memory_bytes": facts.total_memory, "cuda": torch.version.cuda, "driver": driver}


COMMIT = "DYNATREE_COMMIT"
"""Environment variable: the commit of a copy that has no history, as in a container."""


@cache
def git_commit() -> str | None:
    """Commit of the checkout this package runs from; "COMMIT+dirty.DIGEST" if tracked files or the packages differ.

    The digest is of the packages' files that differ, so that equal names stand for equal code. Outside a checkout it is
    $DYNATREE_COMMIT, or None.
    """
    root = _output(["git", "-C", str(_HOME), "rev-parse", "--show-toplevel"])
    if root is None or Path(root).resolve() != _HOME:  # an installed package may lie inside another project
        return os.environ.get(COMMIT) or None
    commit = _output(["git", "-C", root, "rev-parse", "HEAD"])
    changed = _output(["git", "-C", root, "status", "--porcelain", "--untracked-files=no"])
    files = _changed_files(root)
    return f"{commit}+dirty.{_digest(root, files)}" if commit and (changed or files) else commit


def _changed_files(root: str) -> list[str]:
    """Files of the packages that are not those of the commit, relative to the checkout: changed, deleted, or new."""
    kinds = ["diff", "HEAD", "--name-only", "-z", "--no-renames"], ["ls-files", "--others", "--exclude-standard", "-z"]
    listed = [_output(["git", "-C", root, *kind, "--", *PACKAGES]) or "" for kind in kinds]
    return sorted({name for text in listed for name in text.split("\0") if name})


def _digest(root: str, files: list[str]) -> str:
    digest = hashlib.sha256()
    for name in files:
        file = Path(root, name)
        digest.update(f"{name}\0{sha256_of(file) if file.is_file() else None}\n".encode())
    return digest.hexdigest()[:12]


def _output(command: list[str]) -> str | None:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def package_version(package: str) -> str | None:
    """Installed version of a package, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def describe_model(model: HFModel) -> dict[str, Any]:
    """A model as a record needs it: shape, dtype, attention, sizes, and hashes of its files where they are local."""
    return {
        "name": public_name(model.name),
        "type": model.model.config.model_type,
        "parameters": model.parameters,
        "layers": model.layers,
        "vocabulary": model.vocab_size,
        "drafted_tokens": model.vocab_size if model.drafted is None else len(model.drafted),
        "context": model.context,
        "dtype": str(model.dtype).removeprefix("torch."),
        "attention": model.model.config._attn_implementation,
        "engine": model.engine.name,
        "device": str(model.device.type),
        "weight_bytes": weight_bytes(model),
        "cache_bytes_per_row": cache_bytes_per_row(model),
        "files": file_hashes(model.name),
    }


def public_name(name: str) -> str:
    """A model's name without the path to its folder: hub names stay, folders keep their last two parts."""
    return "/".join(Path(name).parts[-2:]) if Path(name).is_absolute() or Path(name).exists() else name


def public_pair_name(pair: Pair | str) -> str:
    """Return a pair's name without the folders of this machine, also where it is made of two folders."""
    from dynatree_lib.models.pairs import two_sources

    name = pair if isinstance(pair, str) else pair.name
    names = () if isinstance(pair, str) else (pair.target.name, pair.draft.name)
    return " + ".join(map(public_name, names if name == " + ".join(names) else two_sources(name) or [name]))


def public_text(text: str) -> str:
    """Text without the folders of this machine, for error messages that go into records."""
    for folder in sorted({str(Path.cwd()), str(Path.home()), sys.prefix}, key=len, reverse=True):
        if len(folder) > 1:
            text = text.replace(folder, "...")
    return text


def file_hashes(folder: str) -> dict[str, str]:
    """SHA-256 of config.json and the weights in a local model folder; empty for a hub model."""
    place = Path(folder)
    weights = list(place.glob("*.safetensors")) or list(place.glob("*.bin"))
    files = sorted([*place.glob("config.json"), *weights]) if place.is_dir() else []
    return {file.name: sha256_of(file) for file in files}


def describe_draft(model: HFModel) -> dict[str, Any]:
    """`describe_model` of a draft; where it has no files of its own, `files` holds a hash of its parameters.

    Drafts are trained anew more often than they are renamed.
    """
    described = describe_model(model)
    return {**described, "files": described["files"] or {"parameters": parameters_sha256(model)}}


def parameters_sha256(model: HFModel) -> str:
    """SHA-256 of a model's parameters with their names, hexadecimal."""
    digest = hashlib.sha256()
    for name, tensor in model.model.named_parameters():
        digest.update(name.encode())
        if not tensor.is_meta:  # kept elsewhere, and read when it is needed
            digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def weight_bytes(model: HFModel) -> int:
    """Bytes of a model's weights and buffers, tied ones counted once."""
    return sum(tensor.nbytes for tensor in (*model.model.parameters(), *model.model.buffers()))


@torch.inference_mode()
def cache_bytes_per_row(model: HFModel) -> int:
    """Bytes of keys and values one token takes in the cache, read off a cache that holds one."""
    from dynatree_lib.models.engine import cache_name

    read = model.model(torch.zeros(1, 1, dtype=torch.long, device=model.device), use_cache=True)
    cache_of_one = getattr(read, cache_name(model.model))
    return sum(layer.keys.nbytes + layer.values.nbytes for layer in cache_of_one.layers)


def peak_rss_bytes() -> int | None:
    """Largest resident size of this process so far, in bytes; None where the system does not tell."""
    try:
        import resource
    except ImportError:  # Windows
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else peak * 1024
