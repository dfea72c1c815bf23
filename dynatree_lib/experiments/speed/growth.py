"""How the cost of an iteration grows with the text and with the tree, beside the model's own forward.

What an iteration takes beyond its forward is this library's, and should stay flat as work grows. Probes make
iterations of a known shape in the real loop; between them the same forward is run alone, its mask and positions ready,
on the same cache. All shapes take turns, block by block. `dynatree growth FILE` writes a record.

Rows are JSON objects: times in milliseconds, medians over turns with their quartiles, and each turn's values, from
which `flatness` takes its interval.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import numpy as np
import torch

from ...decoding import DecodingState, generate
from ...drafters import NoDraft
from ...measure.metrics import bootstrap
from ...measure.probes import DEEPEST, FIRST, LEVELS, LevelsProbe, RowsProbe, Timing
from ...measure.protocol import _known_objects_frozen, _quiet_machine, _synchronize
from ...measure.trace import with_forward
from ...models.base import Session
from ...models.huggingface import HFModel
from ...models.pairs import Pair
from ...sampling import GREEDY
from ...tree import ROOT

Row = dict[str, Any]
Clock = Callable[[], float]

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
        facts: what a row says of it.
        timings: what is timed in the loop; of two the difference counts, `per` times what is asked.
        of: the session of a state whose model is run alone.
        nodes: (n,) tokens and parents of the rows that are run alone.
        samples: in the loop, alone, and their difference, of each turn, in milliseconds.
    """

    facts: Row
    timings: list[Timing]
    of: Callable[[DecodingState], Session]
    nodes: tuple[np.ndarray, np.ndarray]
    per: int = 1
    samples: list[tuple[float, float, float]] = field(default_factory=list)


def growth(
    pair: Pair,
    prefixes: Sequence[int] = (256,),
    nodes: Sequence[int] = NODES,
    *,
    turns: int = TURNS,
    progress: Callable[[str], None] | None = None,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Iterations of the loop for every prefix with every number of nodes, beside the target's forward of as many rows.

    An iteration ends with its tokens on the host and commits one token. Nothing is drafted, so that all that stands
    beside the forward is the loop: mask, positions, verification, cache.

    Args:
        pair: its target is measured.
        prefixes: tokens of the text, at the middle of what is timed.
        nodes: rows of the target's forward, node 0 among them; 1 is plain decoding.
        turns: blocks of `BLOCK` iterations of each shape.
        progress: called with a line of text now and then.
        clock: seconds.

    Returns:
        rows with `prefix`, `nodes`, in milliseconds `iteration`, `forward` and `overhead` (the median difference of an
        iteration and the forwards before and after it), `..._interval` of each (quartiles over turns), and `turns`:
        [[iteration, forward, overhead], ...].

    Raises:
        ValueError: before any work, for no shapes, turns below 1, or a prefix that the context or the turns leave no
            room for.
    """
    _check(pair.target, prefixes, nodes, turns)
    target, vocabulary = _remembering(pair.target), pair.target.vocab_size
    shapes = []
    for prefix in prefixes:
        for rows in nodes:
            probe = NoDraft() if rows == 1 else RowsProbe(rows, vocabulary)
            facts, alone = {"prefix": prefix, "nodes": rows}, _tree(rows, vocabulary)
            shapes.append(_Shape(facts, [Timing(probe, BLOCK + 2)], lambda state: state.target, alone))
    _measure(target, shapes, turns, progress, clock)
    return [_row(one, "iteration") for one in shapes]


def level_growth(
    pair: Pair,
    prefixes: Sequence[int] = (256,),
    widths: Sequence[int] = WIDTHS,
    *,
    turns: int = TURNS,
    progress: Callable[[str], None] | None = None,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """The same for a level of drafting: the most probable next token of `widths` nodes, beside the draft's forward.

    A level's time is the difference between iterations with `LEVELS` levels more and without, over `LEVELS`.

    Returns:
        rows with `prefix`, `width`, and `level`, `forward` and `overhead` as in `growth`.

    Raises:
        ValueError: as for `growth`, and for a prefix that does not fit the draft's context.
    """
    for model in (pair.target, pair.draft):
        _check(model, prefixes, widths, turns)
    draft, shapes = _remembering(pair.draft), []
    for prefix in prefixes:
        for width in widths:
            timings = [Timing(LevelsProbe(draft, levels, width), BLOCK + 2) for levels in (1 + LEVELS, 1)]
            siblings = np.arange(width) % draft.vocab_size, np.full(width, ROOT)
            facts = {"prefix": prefix, "width": width}
            shapes.append(_Shape(facts, timings, lambda state: state.drafting.session, siblings, LEVELS))
    _measure(pair.target, shapes, turns, progress, clock)
    return [_row(one, "level") for one in shapes]


def forward_times(
    models: Mapping[str, HFModel],
    rows: Sequence[int] = NODES,
    prefix: int = 256,
    *,
    turns: int = TURNS,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """One forward alone by its rows, for several models (a model's engines, say), interleaved.

    Returns:
        rows with `model` (the key), `rows`, `prefix`, `milliseconds` and `interval` (quartiles).

    Raises:
        ValueError: as for `growth`.
    """
    found: dict[tuple[str, int], list[float]] = {}
    sessions = {}
    for name, model in models.items():
        _check(model, [prefix], rows, min(turns, 1))
        sessions[name] = _remembering(model).session()
        sessions[name].start(any_text(model, prefix))
        sessions[name].flush()
    for _ in range(turns + 1):  # the first does not count
        for name, session in sessions.items():
            for count in rows:
                with _quiet_machine(models[name].device):
                    took = _alone(session, _tree(count, models[name].vocab_size), clock)
                found.setdefault((name, count), []).append(1000 * took)
    return [
        {"model": name, "rows": count, "prefix": prefix, "milliseconds": float(np.median(times[1:])),
         "interval": _quartiles(times[1:])}
        for (name, count), times in found.items()
    ]  # fmt: skip


def flatness(rows: Sequence[Row], over: str, whole: str = "iteration") -> Row:
    """How overhead changes over a range of work: its least-squares line over the column `over`.

    Args:
        rows: of `growth` or `level_growth`, with one value of the other column.
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
    slopes = lambda drawn: _slopes(places, np.median(drawn, -2))  # noqa: E731
    slope, (low, high), span = float(slopes(gaps[None])[0]), bootstrap(gaps, slopes), float(np.ptp(places))
    return {
        "over": over, "first": places.min(), "last": places.max(), "overhead": float(np.median(gaps, 0).mean()),
        "slope": 1000 * slope, "slope_interval": (1000 * low, 1000 * high),
        "rise": slope * span, "rise_interval": (low * span, high * span),
        "forward_rise": float(slopes(forwards[None])[0]) * span,
        "share": slope * span / max(row[whole] for row in rows),
    }  # fmt: skip


def _slopes(places: np.ndarray, values: np.ndarray) -> np.ndarray:
    """(..., n) values at n places -> (...) slopes of their least-squares lines."""
    centred = places - places.mean()
    out: np.ndarray = values @ centred / (centred @ centred)
    return out


# ---------------------------------------------------------------------------------------------------------- measuring
def _check(model: HFModel, prefixes: Sequence[int], counts: Sequence[int], turns: int) -> None:
    if not prefixes or not counts or min(counts) < 1 or turns < 1:
        raise ValueError(
            f"The prefixes are {tuple(prefixes)}, the sizes {tuple(counts)} and the turns {turns}; give one of each at "
            "least, and none below 1."
        )
    before, after = FIRST + _timed(turns) // 2 + 1, _timed(turns) // 2 + DEEPEST + 2
    for prefix in prefixes:
        if not before <= prefix <= model.context - after:
            raise ValueError(
                f"A prefix of {prefix} tokens cannot be timed in {turns} turns on '{model.name}', whose context is "
                f"{model.context}; give {before} to {model.context - after} tokens, or fewer turns."
            )


def _timed(turns: int) -> int:
    """Tokens that are committed in so many turns."""
    return turns * (BLOCK + 2)


def _tree(rows: int, vocabulary: int) -> tuple[np.ndarray, np.ndarray]:
    tree = RowsProbe(rows, vocabulary).propose(0, DEEPEST).tree
    return tree.tokens, tree.parents


def any_text(model: HFModel, tokens: int) -> list[int]:
    """Any text will do: its cost is that of its length."""
    return [(31 * place + 7) % model.vocab_size for place in range(tokens)]


def _measure(
    target: HFModel, shapes: Sequence[_Shape], turns: int, progress: Callable[[str], None] | None, clock: Clock
) -> None:
    device = target.device
    for one in shapes:
        for timing in one.timings:
            timing.begin(target, any_text(target, one.facts["prefix"] - FIRST - _timed(turns) // 2), clock)
    with _known_objects_frozen():
        for turn in range(turns):
            if progress:
                progress(f"[{turn + 1}/{turns}] cost as work grows: {len(shapes)} shapes")
            first = turn % len(shapes)
            for one in [*shapes[first:], *shapes[:first]]:
                with _quiet_machine(device):
                    one.samples.append(_sample(target, one, clock))


def _sample(target: HFModel, shape: _Shape, clock: Clock) -> tuple[float, float, float]:
    whole, *without = shape.timings
    assert whole.state is not None
    session = shape.of(whole.state)
    if not without:
        pairs = 1000 * _paired(target, whole, session, shape.nodes, clock)
        loop, alone = np.median(pairs, 0)
        return float(loop), float(alone), float(np.median(pairs[:, 0] - pairs[:, 1]))
    before = _alone(session, shape.nodes, clock)
    loop = _block(target, whole, clock)
    alone = (before + _alone(session, shape.nodes, clock)) / 2
    loop = (loop - sum(_block(target, one, clock) for one in without)) / shape.per
    return 1000 * loop, 1000 * alone, 1000 * (loop - alone)


def _paired(
    target: HFModel, timing: Timing, session: Session, nodes: tuple[np.ndarray, np.ndarray], clock: Clock
) -> np.ndarray:
    """(n, 2) seconds of each iteration of one more block, and of a forward alone: one before it and one after it.

    So close together that whatever else the machine does meets both. The first and last iteration do not count.
    """
    marks: list[tuple[float, float, float]] = []

    def mark(tokens: list[int]) -> None:
        _synchronize(target.device)
        end = clock()
        alone = _alone(session, nodes, clock, 1)
        marks.append((end, alone, clock()))

    out = generate(
        target, (), timing.drafter, state=timing.state, max_new_tokens=timing.tokens, eos_token_ids=(), on_tokens=mark
    )
    if out.state is None:  # generate() swallows Ctrl-C to save the text
        raise KeyboardInterrupt
    timing.state = out.state
    return np.array([(after[0] - before[2], (before[1] + after[1]) / 2) for before, after in pairwise(marks[:-1])])


def _block(target: HFModel, timing: Timing, clock: Clock) -> float:
    """Median seconds of the iterations of one more block."""
    timing.go_on(target, clock)
    _synchronize(target.device)
    return float(np.median([one.seconds for one in timing.blocks[-1]]))


@torch.inference_mode()
def _alone(session: Session, nodes: tuple[np.ndarray, np.ndarray], clock: Clock, repeats: int = BLOCK // 2) -> float:
    """Median seconds of a forward of these rows, its mask and positions ready, waited for; the cache stays."""
    model: Any = session.model  # type: ignore[attr-defined]
    session.flush()
    session.score(*nodes, GREEDY)
    arguments, keep = model.latest[0]
    times = []
    for _ in range(repeats):
        session.rollback()
        _synchronize(model.device)
        start = clock()
        model.forward(*arguments, keep=keep)
        _synchronize(model.device)
        times.append(clock() - start)
    session.rollback()
    return float(np.median(times))


def _remembering(model: HFModel) -> HFModel:
    """The same model, with the arguments of its latest forward in `latest[0]`."""
    latest: list[tuple[tuple[Any, ...], int]] = []

    def wrap(forward: Callable[..., Any]) -> Callable[..., Any]:
        def remembered(*arguments: Any, keep: int) -> Any:
            latest[:] = [(arguments, keep)]
            return forward(*arguments, keep=keep)

        return remembered

    other: Any = with_forward(model, wrap)
    if other is None:
        raise ValueError(f"'{model.name}' shows no forward of its own that could be timed alone; give an HFModel.")
    other.latest = latest
    found: HFModel = other
    return found


def _row(shape: _Shape, whole: str) -> Row:
    columns = dict(zip((whole, "forward", "overhead"), np.array(shape.samples).T, strict=True))
    row = dict(shape.facts)
    for name, values in columns.items():
        row |= {name: float(np.median(values)), f"{name}_interval": _quartiles(values)}
    return {**row, "turns": [list(one) for one in shape.samples]}


def _quartiles(values: Iterable[float]) -> list[float]:
    low, high = np.quantile(list(values), [0.25, 0.75])
    return [float(low), float(high)]


# ------------------------------------------------------------------------------------------------------------ a record
def growth_record(pair: Pair, turns: int = TURNS, progress: Callable[[str], None] | None = None) -> Row:
    """All of it for one pair: `environment`, `models`, rows of `growth` over prefixes (at 16 nodes) and over nodes (at
    256 tokens), of `level_growth` over both, and what `flatness` says of each."""
    from ...measure.cost_model import public_pair_name
    from ...measure.environment import describe_environment, describe_model

    longest = min(model.context for model in (pair.target, pair.draft)) - _timed(turns) // 2 - DEEPEST - 2
    prefixes = [prefix for prefix in PREFIXES if prefix <= longest]
    parts = {
        "prefix": growth(pair, prefixes, (16,), turns=turns, progress=progress),
        "nodes": growth(pair, (256,), NODES, turns=turns, progress=progress),
        "level prefix": level_growth(pair, prefixes, (4,), turns=turns, progress=progress),
        "level width": level_growth(pair, (256,), WIDTHS, turns=turns, progress=progress),
    }
    flat = {
        name: flatness(rows, name.split()[-1], "level" if name.startswith("level") else "iteration")
        for name, rows in parts.items()
    }
    models = {"target": describe_model(pair.target), "draft": describe_model(pair.draft)}
    head = {"kind": "growth", "environment": describe_environment(), "pair": public_pair_name(pair), "models": models}
    return {**head, "rows": parts, "flatness": flat}
