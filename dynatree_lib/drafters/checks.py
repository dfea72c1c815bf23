"""Checks of hyper-parameters that several drafters share; a ValueError names the value and the way out.

`dynatree_lib.checks` checks single arguments of any kind.
"""

from __future__ import annotations

import operator
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from ..checks import chosen, is_number, is_whole
from ..costs import CostCurve, Costs
from ..models.base import LanguageModel

if TYPE_CHECKING:
    from .base import Drafter


COMPARE = {"<": operator.lt, "<=": operator.le}
CURVES = ("verify_cost", "draft_cost")
BOUNDS = {"overhead": "0 <= overhead < inf", "rate": "0 < rate < inf"}


def require(holds: object, message: str) -> None:
    """Raise ValueError with this message unless the rule holds."""
    if not holds:
        raise ValueError(message)


def check_counts(drafter: Drafter, *names: str, least: int = 1, because: str = "") -> None:
    """Check that these hyper-parameters are whole numbers of at least `least`, in a tuple every entry.

    A budget `max_nodes` counts node 0, so it is at least 2.
    """
    for name in names:
        if name == "max_nodes":
            least, because = 2, "the budget counts node 0, so "
        value = getattr(drafter, name)
        counts = value if isinstance(value, tuple) else (value,)
        whole = bool(counts) and all(is_whole(count, least) for count in counts)
        require(whole, f"{name} is {value!r}; {because}give a whole number of at least {least}.")


def check_choices(drafter: Drafter, **choices: tuple[Any, ...]) -> None:
    """Check that each of these hyper-parameters is one of its choices."""
    for name, known in choices.items():
        chosen(name, getattr(drafter, name), known)


def check_switches(drafter: Drafter, *names: str) -> None:
    """Check that these hyper-parameters are True or False."""
    check_choices(drafter, **dict.fromkeys(names, (True, False)))


def check_rules(drafter: Drafter, *rules: str) -> None:
    """Check rules of hyper-parameters such as "0 < tau_low < tau_high < 1".

    What follows a comma in a rule is part of the message. Where it offers None, a hyper-parameter that is None is off.
    """
    for rule in rules:
        terms, _, words = rule.partition(",")
        comparison = terms.split()
        fields = {term: getattr(drafter, term) for term in comparison[::2] if hasattr(drafter, term)}
        if "or None" in words and None in fields.values():
            continue
        values = [fields[term] if term in fields else float(term) for term in comparison[::2]]
        pairs = zip(comparison[1::2], pairwise(values), strict=True)
        holds = all(map(is_number, values)) and all(COMPARE[sign](*pair) for sign, pair in pairs)
        given = ", ".join(f"{name} is {value!r}" for name, value in fields.items())
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


class Priced:
    """A drafter with the hyper-parameter `verify_cost`, and perhaps `draft_cost`, `overhead` and `rate`."""

    @cached_property
    def costs(self: Any) -> Costs:
        """The predicted costs of an iteration."""
        curves = (getattr(self, name, None) for name in CURVES)
        return Costs(*(None if points is None else CostCurve(points) for points in curves))

    def check_costs(self: Any) -> None:
        """Check these hyper-parameters; lists of costs become tuples. None may stand for costs whose default it is."""
        curves = [name for name in CURVES if hasattr(self, name)]
        make_tuples(self, *curves)
        for name in curves:
            if getattr(self, name) is not None or getattr(type(self), name) is not None:
                CostCurve(getattr(self, name))  # raises ValueError for points that are no curve
        check_rules(self, *(rule for name, rule in BOUNDS.items() if hasattr(self, name)))
