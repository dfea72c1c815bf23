"""How an answer is checked: compared with the right one on many cases, and with what usual mistakes would give."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import numpy as np


@dataclass(frozen=True)
class Exercise:
    """A question with a right answer and usual wrong ones, each with a hint.

    Attributes:
        right: the answer, or a function that computes it.
        mistakes: hint -> what that mistake answers; a function where `right` is one.
        praise: one sentence for a right answer.
        cases: arguments on which functions are compared; none where the answer is no function.
        parts: of an answer in numbers, what each number counts; it leads on from an answer that no mistake gives.
    """

    right: Any
    mistakes: Mapping[str, Any]
    praise: str
    cases: Sequence[tuple[Any, ...]] = ()
    parts: Sequence[str] = ()

    def hint(self, answer: Any) -> str | None:
        """Return what an answer overlooks, or None where it is right."""
        if not self.cases:
            found = [hint for hint, wrong in self.mistakes.items() if same(answer, wrong)]
            return None if same(answer, self.right) else found[0] if found else self._lead(answer)
        if not callable(answer):
            return f"The answer is a function; {answer!r} is none."
        results = []
        for case in self.cases:
            try:
                results.append(answer(*deepcopy(case)))  # an answer may write into its arguments
            except Exception as error:  # whatever a reader's function raises is their hint
                return f"With {shown(case)} it raises {type(error).__name__}: {error}"
        off = [place for place, case in enumerate(self.cases) if not same(results[place], self.right(*case))]
        if not off:
            return None
        for hint, wrong in self.mistakes.items():
            if all(same(result, wrong(*case)) for result, case in zip(results, self.cases, strict=True)):
                return hint
        case = self.cases[off[0]]
        return f"With {shown(case)} it gives {text(results[off[0]])}, and {text(self.right(*case))} is right."

    def _lead(self, answer: Any) -> str:
        """Say of an answer that no listed mistake gives which of its numbers are wrong, and what they count."""
        wanted = np.asarray(self.right, dtype=float)
        try:
            given = np.asarray(answer, dtype=float)
        except (TypeError, ValueError):
            given = np.empty((0, 0))
        if given.shape != wanted.shape:
            form = f"{wanted.size} numbers, such as (1, 2)" if wanted.ndim else "one number, such as 3"
            return f"The answer is {form}; {answer!r} is none."
        names = ("The first number", "The second number", "The third number") if wanted.ndim else ("The number",)
        told = zip(names, given.flat, wanted.flat, self.parts, strict=False)
        return " ".join(
            f"{name}, {number:g}, is not right: it counts {part}."
            for name, number, right, part in told
            if not same(number, right)
        )


def same(answer: Any, expected: Any) -> bool:
    """Whether two answers are equal: texts and truths exactly, numbers and arrays of one shape up to rounding."""
    try:
        found, wanted = (np.asarray(value, dtype=float) for value in (answer, expected))
    except (TypeError, ValueError):
        return bool(np.all(answer == expected))
    return found.shape == wanted.shape and bool(np.allclose(found, wanted, rtol=1e-9, atol=1e-12))


def shown(case: tuple[Any, ...]) -> str:
    """Arguments as one would type them."""
    return ", ".join(getattr(value, "__name__", None) or text(value) for value in case)


def text(value: Any) -> str:
    """A value in few words."""
    return f"{value:.6g}" if isinstance(value, float) else str(value).replace("\n", "")


def unwritten(answer: Any, cases: Sequence[tuple[Any, ...]]) -> bool:
    """Whether an answer is a function whose body is still empty."""
    if not callable(answer) or not cases:
        return False
    try:
        return answer(*deepcopy(cases[0])) is None
    except Exception:  # it has a body, and `hint` says what is wrong with it
        return False
