"""numba's functions, compiled once and kept on disk. Where the disk fails they are compiled anew."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

from filelock import FileLock
from numba import njit
from numba.core.caching import FunctionCache
from numba.core.dispatcher import Dispatcher


class KeptCode(FunctionCache):
    """A function's machine code on disk. numba's own cache raises where a file was cut off or cannot be written."""

    def load_overload(self, sig: Any, target_context: Any) -> Any:
        """Return what was compiled for a signature, or None: compile it."""
        try:
            return super().load_overload(sig, target_context)
        except Exception as error:  # whatever half a file leads to
            _say(f"Machine code in {self.cache_path} is damaged ({type(error).__name__}); it is compiled anew.")
            return None

    def save_overload(self, sig: Any, data: Any) -> None:
        """Keep what was compiled, where the disk takes it.

        One process at a time: numba names the file after those that its index names, so two that compile for different
        weights at the same moment would take one name, and one index entry would lead to the other's machine code.
        """
        try:
            folder = Path(self.cache_path)
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / "machine_code.lock"):
                self._save(sig, data)
        except OSError as error:
            _say(
                f"Machine code cannot be kept in {self.cache_path} ({error.strerror}), so every process compiles it; "
                "set NUMBA_CACHE_DIR to a folder that can be written to."
            )

    def _save(self, sig: Any, data: Any) -> None:
        try:
            super().save_overload(sig, data)
        except OSError:
            raise
        except Exception:  # the index was cut off
            self.flush()
            super().save_overload(sig, data)


def machine_code(**options: Any) -> Callable[[Callable[..., Any]], Dispatcher]:
    """Return a decorator: `numba.njit` with these options, and what it compiles is kept on disk where that can be."""

    def decorate(function: Callable[..., Any]) -> Dispatcher:
        made = njit(**options)(function)
        try:
            made._cache = KeptCode(function)  # what njit(cache=True) does, with numba's FunctionCache
        except RuntimeError:
            _say(
                "There is no folder in which machine code can be kept, so every process compiles it; set "
                "NUMBA_CACHE_DIR to a folder that can be written to."
            )
        return made

    return decorate


@cache
def _say(sentence: str) -> None:
    logging.getLogger(__name__).warning(sentence)  # once, not for every function
