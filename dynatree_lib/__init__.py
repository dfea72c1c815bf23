"""Tree speculative decoding: drafters, verification rules, the loop, and pictures of one decode.

import dynatree_lib as dt
pair = dt.load_pair("tiny")
out = dt.generate(pair.target, "def read_lines(path):", dt.FixedTree(pair.draft), max_new_tokens=200)
print(out.text(), dt.summarize(out))
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from . import decoding, drafters, verifiers
from .decoding import Generation, Iteration, autoregressive, generate
from .drafters import *
from .drafters.retokenized import Retokenized
from .models import ToyModel
from .sampling import RandomSource, Sampling
from .summary import Summary, summarize
from .tree import TokenTree
from .verifiers import *

if TYPE_CHECKING:
    from . import hf, plots
    from .engines.batching import generate_batch
    from .engines.plain import autoregressive_fast
    from .engines.static import StaticModel, static_pair
    from .models.huggingface import HFModel
    from .models.pairs import Pair, load_pair, make_pair
    from .models.skipping import skipping
    from .models.translated import TranslatedHFModel, TranslatedModel

__version__ = "0.1.0"
decoding.VIEW = f"{__name__}.plots.iterations:generation_view"

# transformers and plotly are slow to import; they are loaded when first used.
_LAZY = {
    "HFModel": ".models.huggingface",
    "load_pair": ".models.pairs",
    "make_pair": ".models.pairs",
    "Pair": ".models.pairs",
    "skipping": ".models.skipping",
    "TranslatedHFModel": ".models.translated",
    "TranslatedModel": ".models.translated",
    "StaticModel": ".engines.static",
    "static_pair": ".engines.static",
    "autoregressive_fast": ".engines.plain",
    "generate_batch": ".engines.batching",
    "plots": ".plots",
    "hf": ".hf",
}


def __getattr__(name: str) -> Any:
    if name not in _LAZY:
        raise AttributeError(f"module 'dynatree_lib' has no attribute '{name}'")
    from importlib import import_module

    module = import_module(_LAZY[name], __name__)
    return module if name in ("plots", "hf") else getattr(module, name)


__all__ = [
    "Generation",
    "HFModel",
    "Iteration",
    "Pair",
    "RandomSource",
    "Retokenized",
    "Sampling",
    "StaticModel",
    "Summary",
    "TokenTree",
    "ToyModel",
    "TranslatedHFModel",
    "TranslatedModel",
    "autoregressive",
    "autoregressive_fast",
    "generate",
    "generate_batch",
    "hf",
    "load_pair",
    "make_pair",
    "plots",
    "skipping",
    "static_pair",
    "summarize",
]
__all__ += drafters.__all__
__all__ += verifiers.__all__
