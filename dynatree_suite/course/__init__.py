"""The course in the notebooks: exercises whose answers are checked, with a hint for each usual mistake."""

from typing import Any

from .basics import BASICS
from .chapters import CHAPTERS
from .checking import Exercise, unwritten

EXERCISES: dict[str, Exercise] = {**BASICS, **CHAPTERS}
"""By number: of the notebook, and of the exercise in it."""


def check(number: str, answer: Any = None) -> bool | None:
    """Print whether an answer is right, or what it overlooks.

    Args:
        number: of the exercise, "03.2" for the second of notebook 03.
        answer: a value or a function, as the exercise asks; None or `...` for none yet.

    Returns:
        True for a right answer, False for a wrong one, None for none.

    Raises:
        ValueError: for a number that no exercise has.
    """
    if number not in EXERCISES:
        raise ValueError(f"There is no exercise {number!r} with a checker; there are {', '.join(EXERCISES)}.")
    exercise = EXERCISES[number]
    if answer is None or answer is ... or unwritten(answer, exercise.cases):
        print(f"Exercise {number}: no answer yet.")
        return None
    hint = exercise.hint(answer)
    print(f"Exercise {number}: " + (f"right. {exercise.praise}" if hint is None else f"not yet. {hint}"))
    return hint is None


__all__ = ["EXERCISES", "Exercise", "check"]
