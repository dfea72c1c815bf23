"""The course in the notebooks: exercises whose answers are checked, with a hint for each usual mistake."""

from .basics import BASICS
from .chapters import CHAPTERS
from .checking import Exercise, check_with

EXERCISES: dict[str, Exercise] = {**BASICS, **CHAPTERS}
"""By number: of the notebook, and of the exercise in it."""

check = check_with(EXERCISES)

__all__ = ["EXERCISES", "Exercise", "check"]
