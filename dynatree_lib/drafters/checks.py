"""Checks of hyper-parameters that several drafters share; a ValueError names the value and the way out.

`dynatree_lib.checks` checks single arguments of any kind.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from dataclasses import replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Literal

from ..checks import chosen, is_number, is_whole
from ..costs import ASSUMED, FREE, Costs
from ..models.base import LanguageModel

if TYPE_CHECKING:
    from .base import Drafter


COMPARE = {"<": operator.lt, "<=": operator.le}
MEASURED: Literal["measured"] = "measured"
Pricing = Costs | Literal["measured"] | None
"""Values of the hyper-parameter `costs` (`Priced`)."""


def require(holds: object, message: str) -> None:
    """Raise ValueError with this message unless the rule holds."""
    if not holds:
        raise ValueError(message)


def check_counts(drafter: Drafter, *names: str, least: int = 1, because: str = "") -> None:
    """Check that these hyper-parameters are whole numbers of at least `least`, in a tuple every entry.

    A budget `max_nodes` counts node 0, so it is at least 2.
    """
    for name in names:
        fewest, reason = (2, "the budget counts node 0, so ") if name == "max_nodes" else (least, because)
        value = getattr(drafter, name)
        counts = value if isinstance(value, tuple) else (value,)
        whole = bool(counts) and all(is_whole(count, fewest) for count in counts)
        require(whole, f"{name} is {value!r}; {reason}give a whole number of at least {fewest}.")


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
    """A drafter that weighs tokens against `costs`, a hyper-parameter, and perhaps begins with a `rate`.

    The values of `costs` are `Costs`, "measured" (those of the target, the draft and this machine, which `generate`
    fills in), and None, which makes every node free.
    """

    @cached_property
    def prices(self: Any) -> Costs:
        """The costs in use. Where nothing has been measured yet they are `ASSUMED`."""
        return FREE if self.costs is None else ASSUMED if self.costs == MEASURED else self.costs

    def priced(self: Any, measure: Callable[[LanguageModel | None], Costs]) -> Any:
        """Return the drafter with measured costs in place of "measured" (`Drafter.priced`)."""
        other = super().priced(measure)  # type: ignore[misc]
        return replace(other, costs=measure(self.model)) if self.costs == MEASURED else other

    def check_costs(self: Any) -> None:
        """Check these hyper-parameters."""
        known = self.costs is None or self.costs == MEASURED or isinstance(self.costs, Costs)
        require(
            known,
            f"costs is {self.costs!r}; give Costs(...), 'measured' for those of the model on this machine, or None to "
            "make nodes free.",
        )
        if hasattr(self, "rate"):
            check_rules(self, "0 < rate < inf")
