"""Method options as text: `chain:length=6,fixed-tree:depth=6,branching=3/2/1,tau=none` to names and typed values.

What names and options exist belongs to `methods`; what a value means, and its limits, to the class that takes it.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from dynatree_lib.costs import Costs
from dynatree_lib.drafters import Drafter


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
    """Default of every field of a dataclass that a user may set: those with a default, but not a drafter's model."""
    fields = {field.name: field.default for field in dataclasses.fields(settings)}
    models = ("draft",) if issubclass(settings, Drafter) else ()
    known = {name: default for name, default in fields.items() if name not in models}
    return {name: default for name, default in known.items() if default is not dataclasses.MISSING}


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
    kinds = [_reading(kind) for kind in (get_args(hint) if get_origin(hint) in (Union, UnionType) else (hint,))]
    for read, _ in kinds:
        with contextlib.suppress(ValueError, KeyError):
            return read(value)
    raise ValueError(f"Option {name} is {value!r}; give {' or '.join(described for _, described in kinds)}.")


_BOOLEANS = {"true": True, "yes": True, "1": True, "false": False, "no": False, "0": False}
_SIMPLE: dict[Any, tuple[Callable[[str], Any], str]] = {
    int: (int, "a whole number"),
    float: (float, "a number"),
    str: (str, "a word"),
    bool: (lambda text: _BOOLEANS[text.lower()], "true or false"),
    NoneType: (lambda text: {"none": None}[text.lower()], "none"),
}


def _reading(kind: Any) -> tuple[Callable[[str], Any], str]:
    """Return how to read a value of a type from text, and what such a text is."""
    if get_origin(kind) is Literal:
        choices = {str(choice): choice for choice in get_args(kind)}
        return choices.__getitem__, "one of " + ", ".join(choices)
    if kind is Costs:
        return Costs.read, "costs such as 1.0/1.05/1.1+0.2/0.21+0.15"
    if get_origin(kind) is not tuple:
        return _SIMPLE[kind]
    read, _ = _reading(get_args(kind)[0])

    def read_several(text: str) -> tuple[Any, ...]:
        if "/" not in text:
            raise ValueError
        return tuple(map(read, text.split("/")))

    return read_several, "values separated by '/' such as 3/2/1"
