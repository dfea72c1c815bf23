"""The cost of an iteration as the text and the tree grow, beside the model's own forward.

The time of an iteration beyond its forward is this library's, and should stay flat as work grows. Probes make
iterations of a known shape in the real loop. Between them the same forward is run alone, its mask and positions ready,
on the same cache. All shapes take turns, block by block. `dynatree growth FILE` writes a record.

Rows are JSON objects: times in milliseconds, medians over turns with their quartiles, and the values of each turn,
from which `flatness` takes its interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch

from dynatree_lib.decoding import generate
from dynatree_lib.drafters import Drafter, NoDraft
from dynatree_lib.models.base import LanguageModel, Session
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import GREEDY
from dynatree_lib.tree import ROOT

from ..bench.clock import interleaved, synchronize
from ..bench.environment import describe_environment, describe_model, public_pair_name
from ..bench.runner import quiet
from ..bench.statistics import estimate
from .probes import DEEPEST, FIRST, LEVELS, LevelsProbe, RowsProbe, Timing

Row = dict[str, Any]
Clock = Callable[[], float]
Nodes = tuple[np.ndarray, np.ndarray]
"""(n,) tokens and parents."""
Sample = tuple[float, float, float]
"""Milliseconds in the loop, of the forward alone, and their difference."""

PREFIXES = (128, 256, 512, 1000, 2000)
NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WIDTHS = (1, 2, 4, 8, 16)
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
    _check(pair.target, prefixes, nodes, turns)
    target, vocabulary, work = _remembering(pair.target), pair.target.vocab_size, {}
    for prefix, count in product(prefixes, nodes):
        timing = _begun(target, NoDraft() if count == 1 else RowsProbe(count, vocabulary), prefix, turns, clock)
        work[prefix, count] = partial(_iteration, target, timing, _nodes(count, vocabulary), clock)
    return _measured(work, ("prefix", "nodes", "iteration"), turns, target.device, progress)


def level_costs(
    pair: Pair,
    prefixes: Sequence[int] = (256,),
    widths: Sequence[int] = WIDTHS,
    *,
    turns: int = TURNS,
    progress: Callable[[str], None] = quiet,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Time a level of drafting: the most probable next token of `widths` nodes, beside the draft's forward.

    A level's time is the difference between iterations with `LEVELS` levels more and without, over `LEVELS`. Arguments
    are those of `iteration_costs`.

    Returns:
        rows with `prefix`, `width`, and `level`, `forward` and `overhead` as in `iteration_costs`.

    Raises:
        ValueError: as for `iteration_costs`, and for a prefix that does not fit the draft's context.
    """
    for model in (pair.target, pair.draft):
        _check(model, prefixes, widths, turns)
    target, draft, work = pair.target, _remembering(pair.draft), {}
    for prefix, width in product(prefixes, widths):
        probes = (LevelsProbe(draft, levels, width) for levels in (1 + LEVELS, 1))
        deep, shallow = (_begun(target, probe, prefix, turns, clock) for probe in probes)
        siblings = _siblings(width, draft.vocab_size)
        work[prefix, width] = partial(_level, target, deep, shallow, siblings, clock)
    return _measured(work, ("prefix", "width", "level"), turns, target.device, progress)


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
    work: list[Callable[[], float]] = []
    for model in models.values():
        _check(model, [prefix], counts, min(turns, 1))
        session = _remembering(model).session()
        session.start(any_text(model, prefix))
        session.flush()
        shape = _siblings if model.feature_layers else _nodes
        work += [partial(_alone, session, shape(count, model.vocab_size), clock) for count in counts]
    times = interleaved(work, turns + 1, next(iter(models.values())).device)
    return [
        {"model": name, "rows": count, "prefix": prefix, "milliseconds": 1000 * float(np.median(counted)),
         "interval": _quartiles(1000 * np.array(counted))}
        for (name, count), (_, *counted) in zip(product(models, counts), times, strict=True)  # the first turn warms up
    ]  # fmt: skip


def flatness(rows: Sequence[Row], over: str, whole: str = "iteration") -> Row:
    """Return how overhead changes over a range of work: its least-squares line over the column `over`.

    Args:
        rows: of `iteration_costs` or `level_costs`, with one value of the other column.
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
def _check(model: LanguageModel, prefixes: Sequence[int], counts: Sequence[int], turns: int) -> None:
    if not prefixes or not counts or min(counts) < 1 or turns < 1:
        raise ValueError(
            f"The prefixes are {tuple(prefixes)}, the sizes {tuple(counts)} and the turns {turns}; give at least one "
            "of each, and none below 1."
        )
    before, after = FIRST + _timed(turns) // 2 + 1, _timed(turns) // 2 + DEEPEST + 2
    for prefix in prefixes:
        if not before <= prefix <= model.context - after:
            raise ValueError(
                f"A prefix of {prefix} tokens cannot be timed in {turns} turns on '{model.name}', whose context is "
                f"{model.context}; give {before} to {model.context - after} tokens, or fewer turns."
            )


def _timed(turns: int) -> int:
    """Return the number of tokens that are committed in so many turns."""
    return turns * (BLOCK + 2)


def _nodes(count: int, vocabulary: int) -> Nodes:
    tree = RowsProbe(count, vocabulary).propose(0, DEEPEST).tree
    return tree.tokens, tree.parents


def _siblings(count: int, vocabulary: int) -> Nodes:
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


def _remembering(model: LanguageModel) -> HFModel:
    if not isinstance(model, HFModel):
        raise ValueError(f"'{model.name}' shows no forward of its own that could be timed alone; give an HFModel.")
    return model.observed(LastForward())


def _begun(target: HFModel, drafter: Drafter, prefix: int, turns: int, clock: Clock) -> Timing:
    """Begin a text that has `prefix` tokens in the middle of what is timed."""
    timing = Timing(drafter, BLOCK + 2)
    timing.begin(target, any_text(target, prefix - FIRST - _timed(turns) // 2), clock)
    return timing


def _measured(
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
        for name, values in zip((whole, "forward", "overhead"), np.array(samples).T, strict=True):
            row |= {name: float(np.median(values)), f"{name}_interval": _quartiles(values)}
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
        alone = _alone(session, nodes, clock, 1)
        marks.append((end, alone, clock()))

    timing.state = generate(
        target, (), timing.drafter, state=timing.state, max_new_tokens=timing.tokens, eos_token_ids=(), on_tokens=mark
    ).state
    pairs = [(after[0] - before[2], (before[1] + after[1]) / 2) for before, after in pairwise(marks[:-1])]
    loop, alone = 1000 * np.array(pairs).T
    return float(np.median(loop)), float(np.median(alone)), float(np.median(loop - alone))


def _level(target: HFModel, deep: Timing, shallow: Timing, siblings: Nodes, clock: Clock) -> Sample:
    """Time one more block with the levels and one without, and the forward of a level before and after the first."""
    assert deep.state is not None
    session = deep.state.drafter_state.session
    before = _alone(session, siblings, clock)
    with_levels = _block(target, deep, clock)
    alone = (before + _alone(session, siblings, clock)) / 2
    level = (with_levels - _block(target, shallow, clock)) / LEVELS
    return 1000 * level, 1000 * alone, 1000 * (level - alone)


def _block(target: HFModel, timing: Timing, clock: Clock) -> float:
    timing.go_on(target, clock)
    synchronize(target.device)
    return float(timing.blocks[-1]["seconds"].median())


@torch.inference_mode()
def _alone(session: Session, nodes: Nodes, clock: Clock, repeats: int = BLOCK // 2) -> float:
    """Return the median seconds of a forward of these nodes, mask and positions ready, waited for; the cache stays."""
    model: HFModel = session.model  # type: ignore[attr-defined]
    session.flush()
    session.score(*nodes, GREEDY)
    arguments, times = model.around.arguments, []  # type: ignore[union-attr]
    for _ in range(repeats):
        session.rollback()
        if model.feature_layers:
            tokens, *others, features = arguments
            given = torch.zeros(len(tokens), model.feature_size or 0, dtype=model.dtype)
            arguments = tokens, *others, replace(features, given=given)
        synchronize(model.device)
        start = clock()
        model.run_forward(*arguments)
        synchronize(model.device)
        times.append(clock() - start)
    session.rollback()
    return float(np.median(times))


def _quartiles(values: Sequence[float] | np.ndarray) -> list[float]:
    return [float(end) for end in np.quantile(values, [0.25, 0.75])]


# ------------------------------------------------------------------------------------------------------------ a record
def growth_record(pair: Pair, turns: int = TURNS, progress: Callable[[str], None] = quiet) -> Row:
    """Measure all of it for one pair.

    Returns:
        `environment`, `models`; `rows` of `iteration_costs` over prefixes (at 16 nodes) and over nodes (at 256 tokens),
        and of `level_costs` over both; and `flatness` of each.
    """
    longest = min(model.context for model in (pair.target, pair.draft)) - _timed(turns) // 2 - DEEPEST - 2
    prefixes = [prefix for prefix in PREFIXES if prefix <= longest]
    parts = {
        "prefix": iteration_costs(pair, prefixes, (16,), turns=turns, progress=progress),
        "nodes": iteration_costs(pair, (256,), NODES, turns=turns, progress=progress),
        "level prefix": level_costs(pair, prefixes, (4,), turns=turns, progress=progress),
        "level width": level_costs(pair, (256,), WIDTHS, turns=turns, progress=progress),
    }
    flat = {
        name: flatness(rows, name.split()[-1], "level" if name.startswith("level") else "iteration")
        for name, rows in parts.items()
    }
    models = {"target": describe_model(pair.target), "draft": describe_model(pair.draft)}
    head = {"kind": "growth", "environment": describe_environment(), "pair": public_pair_name(pair), "models": models}
    return {**head, "rows": parts, "flatness": flat}
