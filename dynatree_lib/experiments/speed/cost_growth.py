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
from dataclasses import dataclass, field
from itertools import pairwise, product
from typing import Any

import numpy as np
import torch

from ...decoding import DecodingState, generate
from ...drafters import NoDraft
from ...measure.clock import known_objects_frozen, quiet_machine, synchronize
from ...measure.environment import describe_environment, describe_model, public_pair_name
from ...measure.probes import DEEPEST, FIRST, LEVELS, LevelsProbe, RowsProbe, Timing
from ...measure.runner import quiet
from ...measure.statistics import estimate
from ...models.base import LanguageModel, Session
from ...models.huggingface import HFModel
from ...models.pairs import Pair
from ...sampling import GREEDY
from ...tree import ROOT

Row = dict[str, Any]
Clock = Callable[[], float]
Nodes = tuple[np.ndarray, np.ndarray]
"""(n,) tokens and parents."""

PREFIXES = (128, 256, 512, 1000, 2000)
NODES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
WIDTHS = (1, 2, 4, 8, 16)
BLOCK = 8
"""Timed iterations of a shape, and forwards of it alone, before the next shape has its turn."""
TURNS = 8


@dataclass
class _Shape:
    """One shape of work and its times.

    Attributes:
        facts: columns that describe the shape.
        timings: what is timed in the loop: iterations, or iterations with `levels` more levels and without.
        session: the session of a state whose model is run alone.
        nodes: what is scored alone.
        levels: levels between the two timings; 0 for a single timing.
        samples: milliseconds in the loop, alone, and their difference, of each turn.
    """

    facts: Row
    timings: list[Timing]
    session: Callable[[DecodingState], Session]
    nodes: Nodes
    levels: int = 0
    samples: list[tuple[float, float, float]] = field(default_factory=list)


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
    target, vocabulary = _remembering(pair.target), pair.target.vocab_size
    shapes = []
    for prefix, count in product(prefixes, nodes):
        timing = Timing(NoDraft() if count == 1 else RowsProbe(count, vocabulary), BLOCK + 2)
        facts = {"prefix": prefix, "nodes": count}
        shapes.append(_Shape(facts, [timing], lambda state: state.target, _nodes(count, vocabulary)))
    return _measured(target, shapes, turns, progress, clock)


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
    draft, shapes = _remembering(pair.draft), []
    for prefix, width in product(prefixes, widths):
        timings = [Timing(LevelsProbe(draft, levels, width), BLOCK + 2) for levels in (1 + LEVELS, 1)]
        siblings = np.arange(width) % draft.vocab_size, np.full(width, ROOT)
        facts = {"prefix": prefix, "width": width}
        shapes.append(_Shape(facts, timings, lambda state: state.drafting.session, siblings, LEVELS))
    return _measured(pair.target, shapes, turns, progress, clock)


def forward_times(
    models: Mapping[str, HFModel],
    counts: Sequence[int] = NODES,
    prefix: int = 256,
    *,
    turns: int = TURNS,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Time one forward alone by the nodes it scores, for several models (a model's engines, say), interleaved.

    Returns:
        rows with `model` (the key), `rows` (nodes scored), `prefix`, `milliseconds` and `interval` (quartiles).

    Raises:
        ValueError: as for `iteration_costs`.
    """
    times: dict[tuple[str, int], list[float]] = {(name, count): [] for name in models for count in counts}
    sessions = {}
    for name, model in models.items():
        _check(model, [prefix], counts, min(turns, 1))
        sessions[name] = _remembering(model).session()
        sessions[name].start(any_text(model, prefix))
        sessions[name].flush()
    for _ in range(turns + 1):  # the first turn does not count
        for name, count in times:
            with quiet_machine(models[name].device):
                seconds = _alone(sessions[name], _nodes(count, models[name].vocab_size), clock)
            times[name, count].append(1000 * seconds)
    return [
        {"model": name, "rows": count, "prefix": prefix, "milliseconds": float(np.median(counted)),
         "interval": _quartiles(counted)}
        for (name, count), (_, *counted) in times.items()
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


def _measured(
    target: HFModel, shapes: Sequence[_Shape], turns: int, progress: Callable[[str], None], clock: Clock
) -> list[Row]:
    for shape in shapes:
        for timing in shape.timings:
            timing.begin(target, any_text(target, shape.facts["prefix"] - FIRST - _timed(turns) // 2), clock)
    with known_objects_frozen():
        for turn in range(turns):
            progress(f"[{turn + 1}/{turns}] cost as work grows: {len(shapes)} shapes")
            first = turn % len(shapes)
            for shape in [*shapes[first:], *shapes[:first]]:
                with quiet_machine(target.device):
                    shape.samples.append((_level if shape.levels else _iteration)(target, shape, clock))
    rows = []
    for shape in shapes:
        row = dict(shape.facts)
        names = ("level" if shape.levels else "iteration", "forward", "overhead")
        for name, values in zip(names, np.array(shape.samples).T, strict=True):
            row |= {name: float(np.median(values)), f"{name}_interval": _quartiles(values)}
        rows.append({**row, "turns": [list(sample) for sample in shape.samples]})
    return rows


def _iteration(target: HFModel, shape: _Shape, clock: Clock) -> tuple[float, float, float]:
    """Time one more block: medians of its iterations, of the mean of the forwards before and after each, of their gaps.

    So close together that whatever else the machine does meets both. The first and last iteration do not count.
    """
    (timing,), marks = shape.timings, []
    assert timing.state is not None
    session = shape.session(timing.state)

    def mark(tokens: list[int]) -> None:
        synchronize(target.device)
        end = clock()
        alone = _alone(session, shape.nodes, clock, 1)
        marks.append((end, alone, clock()))

    timing.state = generate(
        target, (), timing.drafter, state=timing.state, max_new_tokens=timing.tokens, eos_token_ids=(), on_tokens=mark
    ).state
    pairs = [(after[0] - before[2], (before[1] + after[1]) / 2) for before, after in pairwise(marks[:-1])]
    loop, alone = 1000 * np.array(pairs).T
    return float(np.median(loop)), float(np.median(alone)), float(np.median(loop - alone))


def _level(target: HFModel, shape: _Shape, clock: Clock) -> tuple[float, float, float]:
    """Time one more block with the levels and one without, and the forward of a level before and after the first."""
    deep, shallow = shape.timings
    assert deep.state is not None
    session = shape.session(deep.state)
    before = _alone(session, shape.nodes, clock)
    with_levels = _block(target, deep, clock)
    alone = (before + _alone(session, shape.nodes, clock)) / 2
    level = (with_levels - _block(target, shallow, clock)) / shape.levels
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
