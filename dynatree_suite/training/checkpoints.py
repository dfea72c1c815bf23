"""Checkpoints of a training run as safetensors: tensors, and all else as JSON; nothing is pickled."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import save

from dynatree_lib.paths import whole_file

ENTRY = "state"
"""The name under which the file's metadata has what is no tensor."""


def write_checkpoint(path: Path, state: Any) -> None:
    """Write nested dictionaries, lists and tuples of tensors, numbers, texts and None, whole or not at all.

    Raises:
        TypeError: for a value of another kind.
    """
    tensors: dict[str, torch.Tensor] = {}
    plain = _without_tensors(state, tensors)
    data = save(tensors, metadata={ENTRY: json.dumps(plain)})
    with whole_file(path) as file:
        file.write(data)


def read_checkpoint(path: Path, device: str = "cpu") -> Any:
    """Read what `write_checkpoint` wrote, its tensors on a device.

    Raises:
        ValueError: for a file that is truncated, or none of these.
    """
    try:
        with safe_open(path, framework="pt", device=device) as file:
            plain = json.loads((file.metadata() or {})[ENTRY])
            return _with_tensors(plain, file)
    except (KeyError, ValueError, OSError, RuntimeError) as error:
        raise _damaged(path, error) from error
    except Exception as error:  # safetensors' own error has no base class but this
        if type(error).__name__ != "SafetensorError":
            raise
        raise _damaged(path, error) from error


def _damaged(path: Path, error: Exception) -> ValueError:
    return ValueError(f"{path} is no checkpoint that can be read ({error}); remove it, and training begins anew.")


def _without_tensors(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    """Return a value as JSON holds it; keys of dictionaries may be numbers, and tensors go into `tensors`."""
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()  # one copy each: tied weights share their memory
        return {"tensor": name}
    if isinstance(value, dict):
        return {"pairs": [[key, _without_tensors(one, tensors)] for key, one in value.items()]}
    if isinstance(value, list | tuple):
        return {type(value).__name__: [_without_tensors(one, tensors) for one in value]}
    if value is None or isinstance(value, bool | int | float | str):
        return value
    raise TypeError(f"A checkpoint cannot hold a {type(value).__name__}.")


def _with_tensors(value: Any, file: Any) -> Any:
    if not isinstance(value, dict):
        return value
    ((kind, content),) = value.items()
    if kind == "tensor":
        return file.get_tensor(content)
    if kind == "pairs":
        return {key: _with_tensors(one, file) for key, one in content}
    parts = [_with_tensors(one, file) for one in content]
    return tuple(parts) if kind == "tuple" else parts
