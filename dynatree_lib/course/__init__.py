"""The course in notebooks 00 to 04: exercises whose answers are checked, with a hint for each usual mistake."""

from .checking import Exercise
from .exercises import EXERCISES, check

__all__ = ["EXERCISES", "Exercise", "check"]
