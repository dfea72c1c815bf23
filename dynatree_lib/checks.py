"""Checks of single arguments of any function; an error names the value and the way out."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from numbers import Integral, Real
from typing import Any


def is_whole(value: object, least: int | None = None) -> bool:
    """Return whether a value is a whole number of Python or numpy, at least `least`; True and False are none."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        return False
    return least is None or int(value) >= least


def is_number(value: object) -> bool:
    """Return whether a value is a number of Python or numpy; True and False are none."""
    return not isinstance(value, bool) and isinstance(value, Real)


def whole(name: str, value: Any, least: int | None = None) -> int:
    """Return a whole number as Python's; ValueError for anything else, and for less than `least`."""
    if not is_whole(value, least):
        at_least = "" if least is None else f" of at least {least}"
        raise ValueError(f"{name} is {value!r}; give a whole number{at_least}.")
    return int(value)


def chosen(name: str, value: Any, known: Sequence[Any]) -> None:
    """Raise ValueError unless a value is one of its choices."""
    if value not in known:
        raise ValueError(f"{name} is {value!r}; choose from {', '.join(map(repr, known))}.")


def of_kind(name: str, value: object, kind: type | tuple[type, ...], way_out: str) -> None:
    """Raise TypeError unless a value is an instance of a class, or of one of several.

    Args:
        name: what is wanted, for the message.
        value: what was given.
        kind: what it must be.
        way_out: an imperative sentence without its full stop.
    """
    if not isinstance(value, kind):
        raise TypeError(f"{name} is {described(value)}; {way_out}.")


def as_tuple(value: Any) -> tuple[Any, ...]:
    """Return one value as a tuple of one, several as a tuple."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return (value,) if isinstance(value, str | bytes | bytearray) or not isinstance(value, Iterable) else tuple(value)


def first_line(error: BaseException) -> str:
    """Return the first line of an error's message, without its full stop; its kind where there is no message."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")


def decodes(tokenizer: object) -> None:
    """Raise TypeError for an object that does not decode token ids."""
    if not hasattr(tokenizer, "decode") or isinstance(tokenizer, type | bytes):
        raise TypeError(
            f"The tokenizer is {described(tokenizer)}; give an object that decodes token ids, such as "
            "AutoTokenizer.from_pretrained(...)."
        )


def check_unicode(text: str, name: str) -> None:
    """Raise ValueError for a text that has no UTF-8; `name` begins the message."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            f"{name} has {text[error.start]!r}, which is no character but stands for a byte that is not UTF-8; give a "
            "text in UTF-8."
        ) from None


def described(value: object) -> str:
    """Return a short description of a value that is out of place: itself, or its class where it is an object."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    if value is None or isinstance(value, str | bytes | Real):
        text = repr(value)
        return text if len(text) <= 60 else f"{text[:57]}..."
    kind = type(value).__name__
    return f"{'an' if kind[0] in 'AEIOUaeiou' or kind.startswith('HF') else 'a'} {kind}"
