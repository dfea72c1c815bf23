"""Checks of hyper-parameters that several drafters share; each raises ValueError with the value and the way out."""

from __future__ import annotations

import operator
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from ..models.base import LanguageModel

if TYPE_CHECKING:
    from .base import Drafter


COMPARE = {"<": operator.lt, "<=": operator.le}


def require(holds: object, message: str) -> None:
    """Raise ValueError with this message unless the rule holds."""
    if not holds:
        raise ValueError(message)


def check_counts(drafter: Drafter, *names: str, least: int = 1, because: str = "") -> None:
    """Check that these hyper-parameters are whole numbers of at least `least`; of a tuple, all its entries."""
    for name in names:
        value = getattr(drafter, name)
        counts = value if isinstance(value, tuple) else (value,)
        whole = all(isinstance(count, int | np.integer) and count >= least for count in counts)
        require(whole and bool(counts), f"{name} is {value!r}; {because}give a whole number of at least {least}.")


def check_max_nodes(drafter: Drafter) -> None:
    """Check the node budget `max_nodes`."""
    check_counts(drafter, "max_nodes", least=2, because="the budget counts node 0, so ")


def check_choices(drafter: Drafter, **choices: tuple[Any, ...]) -> None:
    """Check that each of these hyper-parameters is one of its choices."""
    for name, known in choices.items():
        value = getattr(drafter, name)
        require(value in known, f"{name} is {value!r}; choose from {', '.join(map(repr, known))}.")


def check_rules(drafter: Drafter, *rules: str) -> None:
    """Check rules of hyper-parameters such as "0 < tau_low < tau_high < 1"; a hyper-parameter that is None is off.

    What follows a comma in a rule is part of the message only.
    """
    for rule in rules:
        comparison = rule.partition(",")[0].split()
        fields = {term: getattr(drafter, term) for term in comparison[::2] if hasattr(drafter, term)}
        if None in fields.values():
            continue
        values = [fields[term] if term in fields else float(term) for term in comparison[::2]]
        holds = all(COMPARE[sign](*pair) for sign, pair in zip(comparison[1::2], pairwise(values), strict=True))
        given = ", ".join(f"{name} is {value}" for name, value in fields.items())
        require(holds, f"{given}; the rule is {rule}.")


def check_reach(target: LanguageModel, depth: int, text: str) -> None:
    """Check that the target's context holds nodes `depth` positions ahead; `text` names them."""
    require(
        depth + 1 < target.context,
        f"{text} reaches {depth} positions ahead and the context of '{target.name}' is {target.context}; make it "
        "smaller.",
    )


def make_tuples(drafter: Drafter, *names: str) -> None:
    """Turn these hyper-parameters into tuples where they are lists, so that a drafter can be hashed and compared."""
    for name in names:
        if isinstance(getattr(drafter, name), list):
            object.__setattr__(drafter, name, tuple(getattr(drafter, name)))
