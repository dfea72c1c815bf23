"""Method options as text: `chain:length=6,fixed-tree:depth=6,branching=3/2/1,tau=none` to names and typed values.

What names and options exist belongs to `methods`; what a value means, and its limits, to the class that takes it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints


def split_specs(text: str) -> list[str]:
    """`"ar,chain:length=6,fixed-tree:depth=6,branching=3"` to one string per method.

    Commas separate methods and a method's options alike: a piece with `=` and no `:` continues the method before it.
    """
    specs: list[str] = []
    for piece in (piece.strip() for piece in text.split(",")):
        if piece and specs and "=" in piece and ":" not in piece:
            specs[-1] += ("," if ":" in specs[-1] else ":") + piece
        elif piece:
            specs.append(piece)
    return specs


def parse_spec(spec: str) -> tuple[str, dict[str, str]]:
    """`"chain:length=6"` to ("chain", {"length": "6"}).

    Raises:
        ValueError: for an option without a value or given twice.
    """
    name, _, rest = spec.partition(":")
    options: dict[str, str] = {}
    for piece in filter(None, (piece.strip() for piece in rest.split(","))):
        key, equals, value = (part.strip() for part in piece.partition("="))
        if not equals or not key or not value:
            raise ValueError(f"'{piece}' in '{spec}' is not an option; write NAME=VALUE, for example chain:length=6.")
        if key in options:
            raise ValueError(f"Option '{key}' is given twice in '{spec}'; keep one.")
        options[key] = value
    return name.strip(), options


def option_defaults(settings: type) -> dict[str, Any]:
    """Default of every field of a dataclass that a user may set: those with a default, so not the draft model."""
    fields = {field.name: field.default for field in dataclasses.fields(settings)}
    return {name: default for name, default in fields.items() if default is not dataclasses.MISSING}


def option_types(settings: type) -> dict[str, Any]:
    """Type of every field of a dataclass that a user may set."""
    hints = get_type_hints(settings)
    return {name: hints[name] for name in option_defaults(settings)}


def convert(name: str, value: Any, hint: Any) -> Any:
    """An option's value from text; values of other types pass unchanged.

    Raises:
        ValueError: if the text is no value of this type; the sentence says what is.
    """
    if not isinstance(value, str):
        return value
    for kind in get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,):
        try:
            return _as(value, kind)
        except (ValueError, KeyError):
            continue
    raise ValueError(f"Option {name}={value!r} is not {_described(hint)}.")


_WORDS: dict[Any, dict[str, Any]] = {
    bool: {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False},
    NoneType: {"none": None},
}
_NUMBERS: dict[Any, Callable[[str], Any]] = {int: int, float: float, str: str}


def _as(text: str, kind: Any) -> Any:
    if kind in _WORDS:
        return _WORDS[kind][text.lower()]
    if get_origin(kind) is tuple:
        if "/" not in text:
            raise ValueError
        return tuple(_as(part, get_args(kind)[0]) for part in text.split("/"))
    if get_origin(kind) is Literal:
        return {str(choice): choice for choice in get_args(kind)}[text]
    return _NUMBERS[kind](text)


def _described(hint: Any) -> str:
    if get_origin(hint) in (Union, UnionType):
        return " or ".join(_described(kind) for kind in get_args(hint))
    if get_origin(hint) is tuple:
        return "values separated by '/' such as 3/2/1"
    if get_origin(hint) is Literal:
        return "one of " + ", ".join(str(choice) for choice in get_args(hint))
    names = {int: "a whole number", float: "a number", bool: "true or false", NoneType: "none", str: "a word"}
    return names.get(hint, str(hint))
