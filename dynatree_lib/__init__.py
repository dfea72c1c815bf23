"""Tree speculative decoding: drafters, verification rules, the loop, and pictures of one decode.

import dynatree_lib as dt
pair = dt.load_pair("tiny")
out = dt.generate(pair.target, "def read_lines(path):", dt.FixedTree(pair.draft), max_new_tokens=200)
print(out.text(), dt.summarize(out))
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from . import hf, plots
    from .costs import Costs
    from .decoding import Generation, Iteration, autoregressive, generate
    from .drafters import *
    from .drafters.retokenized import Retokenized
    from .engines.batching import generate_batch
    from .engines.plain import autoregressive_fast
    from .engines.static import StaticModel, static_pair
    from .models.huggingface import HFModel
    from .models.pairs import Pair, load_pair, make_pair
    from .models.skipping import skipping
    from .models.toy import ToyModel
    from .models.translated import TranslatedHFModel, TranslatedModel
    from .sampling import RandomSource, Sampling
    from .summary import Summary, summarize
    from .tree import TokenTree
    from .verifiers import *

__version__ = "0.1.0"

# Nothing is imported before it is named: torch takes a second, transformers and plotly take several.
_ROOMS = ("drafters", "verifiers")
"""Rooms that offer everything in their `__all__` here."""
_PLACES = {
    "costs": ("Costs",),
    "decoding": ("Generation", "Iteration", "autoregressive", "generate"),
    "drafters.retokenized": ("Retokenized",),
    "engines.batching": ("generate_batch",),
    "engines.plain": ("autoregressive_fast",),
    "engines.static": ("StaticModel", "static_pair"),
    "hf": ("hf",),
    "models.huggingface": ("HFModel",),
    "models.pairs": ("Pair", "load_pair", "make_pair"),
    "models.skipping": ("skipping",),
    "models.toy": ("ToyModel",),
    "models.translated": ("TranslatedHFModel", "TranslatedModel"),
    "plots": ("plots",),
    "sampling": ("RandomSource", "Sampling"),
    "summary": ("Summary", "summarize"),
    "tree": ("TokenTree",),
}
"""Module -> the names that it offers here."""
_MODULES = {name: place for place, names in _PLACES.items() for name in names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return [*_MODULES, *(each for room in _ROOMS for each in import_module(f".{room}", __name__).__all__)]
    if name in _MODULES:
        module = import_module(f".{_MODULES[name]}", __name__)
        return module if name == _MODULES[name] else getattr(module, name)
    if not name.startswith("_"):
        for room in _ROOMS:
            if name in (module := import_module(f".{room}", __name__)).__all__:
                return getattr(module, name)
        if find_spec(f".{name}", __name__):  # a module, as in `dt.sampling.Scores`
            return import_module(f".{name}", __name__)
    raise AttributeError(f"module '{__name__}' has no attribute '{name}'")


def __dir__() -> list[str]:
    return sorted({*globals(), *__getattr__("__all__")})
