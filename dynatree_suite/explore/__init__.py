"""Explorers: widgets for JupyterLab, Colab and VS Code, to walk through a text, to decode it again with a
slider, to decide on a tree by hand, and to see where time went.

What they show is computed and drawn elsewhere (`decoding`, `plots`); here are controls and what follows from moving
one. In a notebook every explorer comes with a static figure, for pages that run no code.
"""

from __future__ import annotations

try:
    import ipywidgets as _ipywidgets  # noqa: F401
except ImportError as error:
    raise ImportError("Explorers need ipywidgets: pip install 'dynatree-lib[notebooks]'.") from error

from .choice import Choice
from .coins import Coins
from .gain import Gain
from .live import Live
from .mask import Mask
from .race import Race
from .timeline import Timeline
from .walk import Walk

__all__ = ["Choice", "Coins", "Gain", "Live", "Mask", "Race", "Timeline", "Walk"]
