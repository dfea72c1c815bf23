"""The cost of an iteration as the text and the tree grow, beside the model's own forward.

The time of an iteration beyond its forward is this library's, and should stay flat as work grows. Probes make
iterations of a known shape in the real loop. Between them the same forward is run alone, its mask and positions ready,
on the same cache. All shapes take turns, block by block. `tools/growth.py` times levels of drafting too, and writes a
record of all.

Rows are JSON objects: times in milliseconds, medians over turns with their quartiles, and the values of each turn,
from which `flatness` takes its interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch

from dynatree_lib.decoding import generate
from dynatree_lib.drafters import Drafter, NoDraft
from dynatree_lib.measuring import DEEPEST, RowsProbe
from dynatree_lib.models.base import LanguageModel, Session
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import GREEDY
from dynatree_lib.tree import ROOT

from ..bench.clock import QUARTILES, interleaved, median_of, quartiles_in_turns, synchronize
from ..bench.runner import quiet
from ..bench.statistics import estimate
from .probes import FIRST, Timing

Row = dict[str, Any]
Clock = Callable[[], float]
Nodes = tuple[np.ndarray, np.ndarray]
"""(n,) tokens and parents."""
Sample = tuple[float, float, float]
"""Milliseconds in the loop, of the forward alone, and their difference."""

PREFIXES = (128, 256, 512, 1000, 2000)
NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
BLOCK = 8
"""Timed iterations of a shape, and forwards of it alone, before the next shape has its turn."""
TURNS = 8


def iteration_costs(
    pair: Pair,
    prefixes: Sequence[int] = (256,),
    nodes: Sequence[int] = NODES,
    *,
    turns: int = TURNS,
    progress: Callable[[str], None] = quiet,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Time iterations of the loop for every prefix and number of nodes, beside the target's forward of as many nodes.

    An iteration ends with its tokens on the host and commits one token. Nothing is drafted, so that the forward stands
    beside the loop alone: mask, positions, verification, cache.

    Args:
        pair: its target is measured.
        prefixes: tokens of the text, at the middle of what is timed.
        nodes: nodes that the target scores, node 0 among them; 1 is plain decoding.
        turns: blocks of `BLOCK` iterations of each shape.
        progress: called with a line of text now and then.
        clock: seconds.

    Returns:
        rows with `prefix`, `nodes`, in milliseconds `iteration`, `forward` and `overhead` (the median difference of an
        iteration and the forwards before and after it), `..._interval` of each (quartiles over turns), and `turns`:
        [[iteration, forward, overhead], ...].

    Raises:
        ValueError: before any work, for no shapes, turns below 1, or a prefix for which the context or the turns are
            too short.
    """
    check_timed(pair.target, prefixes, nodes, turns)
    target, vocabulary, work = remembering(pair.target), pair.target.vocab_size, {}
    for prefix, count in product(prefixes, nodes):
        timing = begun(target, NoDraft() if count == 1 else RowsProbe(count, vocabulary), prefix, turns, clock)
        work[prefix, count] = partial(_iteration, target, timing, _nodes(count, vocabulary), clock)
    return measured(work, ("prefix", "nodes", "iteration"), turns, target.device, progress)


def forward_times(
    models: Mapping[str, HFModel],
    counts: Sequence[int] = NODES,
    prefix: int = 256,
    *,
    turns: int = TURNS,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Time one forward alone by the nodes it scores, for several models (a model's engines, say), interleaved.

    The nodes are a tree, or the children of one node for a draft on features, which reads a tree level by level.

    Returns:
        rows with `model` (the key), `rows` (nodes scored), `prefix`, `milliseconds` and `interval` (quartiles).

    Raises:
        ValueError: as for `iteration_costs`.
    """
    work: dict[tuple[str, int], Callable[[], float]] = {}
    for name, model in models.items():
        check_timed(model, [prefix], counts, min(turns, 1))
        session = remembering(model).session()
        session.start(any_text(model, prefix))
        session.flush()
        shape = siblings if model.feature_layers else _nodes
        work |= {
            (name, count): partial(forward_alone, session, shape(count, model.vocab_size), clock) for count in counts
        }
    found = quartiles_in_turns(work, turns, next(iter(models.values())).device)
    return [
        {"model": name, "rows": count, "prefix": prefix, "milliseconds": 1000 * median,
         "interval": [1000 * low, 1000 * high]}
        for (name, count), (low, median, high) in found.items()
    ]  # fmt: skip


def flatness(rows: Sequence[Row], over: str, whole: str = "iteration") -> Row:
    """Return how overhead changes over a range of work: its least-squares line over the column `over`.

    Args:
        rows: of `iteration_costs`, or of `level_costs` of tools/growth.py, with one value of the other column.
        over: "prefix", "nodes" or "width".
        whole: "iteration" or "level".

    Returns:
        `over`, `first` and `last` (ends of the range), `overhead` (mean, milliseconds), `slope` (microseconds per unit
        of `over`), `rise` (milliseconds from end to end of that line) with `slope_interval` and `rise_interval` (95 %,
        turns drawn anew), `forward_rise` (of the forward, on its own line), and `share` (rise over the longest
        iteration).

    Raises:
        ValueError: for fewer than two places, or rows that differ elsewhere too.
    """
    places = np.array([row[over] for row in rows], float)
    other = {row[name] for row in rows for name in ("prefix", "nodes", "width") if name in row and name != over}
    if len(set(places)) < len(places) or len(places) < 2 or len(other) > 1:
        raise ValueError(f"flatness needs two or more rows that differ in '{over}' alone; choose them from the record.")
    _, forwards, gaps = np.array([row["turns"] for row in rows]).T  # (turns, places) each

    def slopes(drawn: np.ndarray) -> np.ndarray:  # (m, turns, places) -> (m,) of the medians over turns
        return np.asarray(np.polyfit(places, np.median(drawn, -2).T, 1)[0])

    slope, span = estimate(gaps, slopes), float(np.ptp(places))
    return {
        "over": over, "first": places.min(), "last": places.max(), "overhead": float(np.median(gaps, 0).mean()),
        "slope": 1000 * slope.value, "slope_interval": (1000 * slope.low, 1000 * slope.high),
        "rise": slope.value * span, "rise_interval": (slope.low * span, slope.high * span),
        "forward_rise": float(slopes(forwards[None])[0]) * span,
        "share": slope.value * span / max(row[whole] for row in rows),
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- measuring
def check_timed(model: LanguageModel, prefixes: Sequence[int], counts: Sequence[int], turns: int) -> None:
    """Raise ValueError for no prefixes, sizes or turns, and for a prefix that leaves no room for the turns."""
    if not prefixes or not counts or min(counts) < 1 or turns < 1:
        raise ValueError(
            f"The prefixes are {tuple(prefixes)}, the sizes {tuple(counts)} and the turns {turns}; give at least one "
            "of each, and none below 1."
        )
    before, after = FIRST + timed_tokens(turns) // 2 + 1, timed_tokens(turns) // 2 + DEEPEST + 2
    for prefix in prefixes:
        if not before <= prefix <= model.context - after:
            raise ValueError(
                f"A prefix of {prefix} tokens cannot be timed in {turns} turns on '{model.name}', whose context is "
                f"{model.context}; give {before} to {model.context - after} tokens, or fewer turns."
            )


def timed_tokens(turns: int) -> int:
    """Return the number of tokens that are committed in so many turns."""
    return turns * (BLOCK + 2)


def _nodes(count: int, vocabulary: int) -> Nodes:
    tree = RowsProbe(count, vocabulary).propose(0, DEEPEST).tree
    return tree.tokens, tree.parents


def siblings(count: int, vocabulary: int) -> Nodes:
    """Return so many children of one node, as a draft reads a level."""
    return np.arange(count) % vocabulary, np.full(count, ROOT)


def any_text(model: LanguageModel, tokens: int) -> list[int]:
    """Return a text of so many tokens; any text will do, because its cost is that of its length."""
    return [(31 * place + 7) % model.vocab_size for place in range(tokens)]


class LastForward:
    """An observer of a model's forwards (`HFModel.observed`) that keeps the arguments of the latest."""

    arguments: tuple[Any, ...]

    def __call__(self, run: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
        """Run a forward and keep its arguments."""
        self.arguments = arguments
        return run(*arguments)


def remembering(model: LanguageModel) -> HFModel:
    """Return the model with forwards that `forward_alone` repeats; ValueError for one without forwards of its own."""
    if not isinstance(model, HFModel):
        raise ValueError(f"'{model.name}' shows no forward of its own that could be timed alone; give an HFModel.")
    return model.observed(LastForward())


def begun(target: HFModel, drafter: Drafter, prefix: int, turns: int, clock: Clock) -> Timing:
    """Begin a text that has `prefix` tokens in the middle of what is timed."""
    timing = Timing(drafter, BLOCK + 2)
    timing.begin(target, any_text(target, prefix - FIRST - timed_tokens(turns) // 2), clock)
    return timing


def measured(
    work: Mapping[tuple[int, int], Callable[[], Sample]],
    names: tuple[str, str, str],
    turns: int,
    device: torch.device,
    progress: Callable[[str], None],
) -> list[Row]:
    """Return a row per shape of the work; `names` are those of its two sizes and of what is timed."""
    *sizes, whole = names
    progress(f"cost of one {whole} as work grows: {len(work)} shapes, {turns} turns")
    times = interleaved(list(work.values()), turns, device)
    rows = []
    for shape, samples in zip(work, times, strict=True):
        row: Row = dict(zip(sizes, shape, strict=True))
        for name, quartiles in zip((whole, "forward", "overhead"), np.quantile(samples, QUARTILES, 0).T, strict=True):
            low, row[name], high = quartiles.tolist()
            row[f"{name}_interval"] = [low, high]
        rows.append({**row, "turns": [list(sample) for sample in samples]})
    return rows


def _iteration(target: HFModel, timing: Timing, nodes: Nodes, clock: Clock) -> Sample:
    """Time one more block: medians of its iterations, of the mean of the forwards before and after each, of their gaps.

    So close together that whatever else the machine does meets both. The first and last iteration do not count.
    """
    assert timing.state is not None
    session, marks = timing.state.target, list[tuple[float, float, float]]()

    def mark(tokens: list[int]) -> None:
        synchronize(target.device)
        end = clock()
        marks.append((end, forward_alone(session, nodes, clock, 1), clock()))

    timing.state = generate(
        target, (), timing.drafter, state=timing.state, max_new_tokens=timing.tokens, eos_token_ids=(), on_tokens=mark
    ).state
    pairs = [(after[0] - before[2], (before[1] + after[1]) / 2) for before, after in pairwise(marks[:-1])]
    loop, alone = 1000 * np.array(pairs).T
    return float(np.median(loop)), float(np.median(alone)), float(np.median(loop - alone))


@torch.inference_mode()
def forward_alone(session: Session, nodes: Nodes, clock: Clock, repeats: int = BLOCK // 2) -> float:
    """Return the median seconds of a forward of these nodes, mask and positions ready, waited for; the cache stays."""
    model: HFModel = session.model  # type: ignore[attr-defined]
    session.flush()
    session.score(*nodes, GREEDY)
    arguments = model.around.arguments  # type: ignore[union-attr]

    def ready() -> None:
        session.rollback()
        if model.feature_layers:
            tokens, *_, features = arguments
            features.given = torch.zeros(len(tokens), model.feature_size or 0, dtype=model.dtype)

    seconds = median_of(lambda: model.run_forward(*arguments), model.device, clock, repeats, ready)
    session.rollback()
    return seconds
