"""Words of errors, and who is told how a run goes."""

from __future__ import annotations

from collections.abc import Callable

Say = Callable[[str], None]


def words_of(error: Exception) -> str:
    """Return an error's words; those of the operating system without their number."""
    if isinstance(error, OSError) and error.strerror:
        return f"{error.filename}: {error.strerror}" if error.filename else error.strerror
    return str(error)


def shorten(text: str, limit: int = 300) -> str:
    """Return a text on one line of limited length."""
    flat = " ".join(text.split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"
