"""Language models as this library sees them: something that opens a `Session`, which scores token trees."""

from .base import LanguageModel, Session
from .toy import ToyModel

__all__ = ["LanguageModel", "Session", "ToyModel"]
