"""Forwards of several texts at once by tokens, texts and length of the cache, which a roofline is judged by.

A forward is run alone as a batch runs it (`engines.batched`): mask and positions ready, over slots of one cache. All
sizes take turns. `tools/roofline_reference.py` writes a record of both pairs in two dtypes; `points_of` reads its rows,
and those of other records of forwards, for `costs.roofline`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import torch
from transformers import AutoConfig

from dynatree_lib.engines.batched import ALIGNED, SlotCache, mask_of
from dynatree_lib.masks import tree_mask
from dynatree_lib.measuring import RowsProbe
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import load_pair
from dynatree_lib.paths import data_path

from ..bench.bandwidth import forward_bytes, matmul_flops, measure_bandwidth
from ..bench.clock import median_of, quartiles_in_turns
from ..bench.environment import describe_environment
from ..bench.runner import quiet
from .roofline import Machine, Point, Shape, fit, seconds_of, split

Row = dict[str, Any]
Size = tuple[int, int, int]
"""Tokens of each text, texts, tokens in the cache of each."""
Clock = Callable[[], float]

TOKENS, TEXTS, PREFIX = (1, 2, 4, 8, 16, 32, 64), (1, 2, 4, 8, 16), 256
SIZES: tuple[Size, ...] = tuple((tokens, texts, PREFIX) for texts, tokens in product(TEXTS, TOKENS))
LENGTHS: tuple[Size, ...] = tuple((*size, kv) for kv in (64, 1000) for size in ((1, 1), (8, 1), (1, 8)))
"""Forwards over shorter and longer caches."""
CALIBRATION: tuple[Size, ...] = ((1, 1, 256), (64, 1, 256), (4, 8, 256), (16, 16, 256), (8, 1, 1000))
"""Sizes to which a machine is fitted; all others are predicted.

No batch of single tokens is among them: in bfloat16 torch attends from these by a kernel of its own, which takes longer
for one token than for two, and a fit would spread that over all other sizes.
"""
FORWARDS, FEW = 3, 64
"""Timed forwards in a turn, of which the median counts, up to `FEW` tokens; one where there are more."""
TURNS = 6
MIDDLE = 150
"""Tokens in the cache in the middle of a text of the record of batches."""
GROWTH = {
    "target": (("prefix", "nodes"), "nodes", ((1, 256), (64, 256), (16, 128), (16, 1000))),
    "draft": (("level prefix", "level width"), "width", ((1, 256), (16, 256), (4, 1000))),
}
"""Role -> its parts in a record of growth, the column of its tokens, and the (tokens, prefix) that are fitted to."""


def grid_times(
    models: Mapping[str, HFModel],
    sizes: Sequence[Size] = SIZES + LENGTHS,
    *,
    turns: int = TURNS,
    progress: Callable[[str], None] = quiet,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Time one forward alone for each model and size, interleaved.

    Args:
        models: plain models (no drafts on features) by the key of their rows.
        sizes: (tokens, texts, KV entries) of each forward.
        turns: of all sizes; one more goes before them and does not count.
        progress: called with a line of text per model.
        clock: seconds.

    Returns:
        rows with `model` (the key), `tokens`, `texts`, `kv`, `milliseconds` (median over turns) and `interval`
        (quartiles).

    Raises:
        ValueError: before any work, for sizes that cannot be or exceed a context, a draft on features, or no turns.
    """
    if turns < 1 or not sizes or any(min(tokens, texts) < 1 or kv < 0 for tokens, texts, kv in sizes):
        raise ValueError(
            f"The sizes are {tuple(sizes)} (tokens, texts, KV entries) and the turns {turns}; give at least one of "
            "each, of at least one token and text."
        )
    longest = max(tokens + kv for tokens, _, kv in sizes)
    for model in models.values():
        if model.feature_layers:
            raise ValueError(f"'{model.name}' reads its target's features, which batches have not; give a plain draft.")
        if longest > model.context:
            raise ValueError(
                f"Forwards over {longest} tokens exceed the context of '{model.name}', {model.context}; give smaller "
                "sizes."
            )
    rows = []
    for name, model in models.items():
        progress(f"{name}: {len(sizes)} sizes, {turns} turns")
        cache = SlotCache(model.layers)
        work = {size: partial(_timed, *_forward(model, cache, size, sizes), model.device, clock) for size in sizes}
        for size, (low, median, high) in quartiles_in_turns(work, turns, model.device).items():
            row = dict(zip(("tokens", "texts", "kv"), size, strict=True))
            rows.append({"model": name, **row, "milliseconds": 1000 * median, "interval": [1000 * low, 1000 * high]})
    return rows


def _forward(model: HFModel, cache: SlotCache, size: Size, sizes: Sequence[Size]) -> tuple[Callable[[], Any], int]:
    """Return what runs a forward of trees of this size, and how often to time it in a turn."""
    tokens, texts, kv = size
    needed = max(one[1] for one in sizes), max(one[0] + one[2] for one in sizes) + ALIGNED
    tree = RowsProbe(tokens, model.vocab_size).propose(0, 8).tree
    below = np.broadcast_to(tree_mask(tree.parents, 0), (texts, tokens, tokens)).copy()
    mask = mask_of(np.full(texts, kv), below, model.dtype, model.device)
    rows = torch.from_numpy(np.stack([tree.tokens, kv + tree.depths, kv + np.arange(tokens)]))
    ids, positions, places = rows.to(model.device)[:, None].expand(3, texts, tokens).contiguous()

    def run() -> torch.Tensor:
        cache.aim_at(list(range(texts)), places, mask.shape[-1], needed)
        return model.engine(ids, positions, mask, cache, tokens)

    return run, FORWARDS if tokens * texts <= FEW else 1


@torch.inference_mode()
def _timed(run: Callable[[], Any], repeats: int, device: torch.device, clock: Clock) -> float:
    """Return the median seconds of a few forwards, after one that finds its weights elsewhere."""
    run()
    return median_of(run, device, clock, repeats)


# ------------------------------------------------------------------------------------------------------------ a record
def grid_record(
    pairs: Sequence[str] = ("tiny", "smollm2"),
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    sizes: Sequence[Size] = SIZES + LENGTHS,
    engine: str = "packed",
    *,
    turns: int = TURNS,
    progress: Callable[[str], None] = quiet,
    clock: Clock = time.perf_counter,
) -> Row:
    """Measure targets and drafts of pairs on a CPU, one dtype after the other.

    A pair's draft is the one that reads tokens alone (`Pair.common_draft`). Batches have a shared forward in the engine
    "packed", which serves both families, so single texts are timed there too.

    Returns:
        `environment`, `engine`, `shapes` (sizes of each model, as `Shape` takes them), and `parts`: for each pair and
        dtype `pair`, `dtype`, `bytes_per_second` and `flops` (as `bench.bandwidth` finds them), `rows` of
        `grid_times` whose models are "target" and "draft", and `weight_bytes` of both, as `Shape` takes them.

    Raises:
        ValueError: for what `load_pair` and `grid_times` refuse.
    """
    shapes: dict[str, Any] = {}
    parts: list[Row] = []
    for name, dtype in product(pairs, dtypes):
        progress(f"{name} in {dtype}")
        pair = load_pair(name, dtype=dtype, draft_dtype=dtype, engine=engine)
        models = {"target": pair.target, "draft": pair.common_draft}
        speeds = measure_bandwidth(pair.target.device, forward_bytes(pair.target))
        flops = matmul_flops(pair.target.device, pair.target.dtype)
        rows = grid_times(models, sizes, turns=turns, progress=progress, clock=clock)
        speeds += measure_bandwidth(pair.target.device, forward_bytes(pair.target), "after")
        largest = max(one.size for one in speeds)
        fastest = max(max(one.read, one.copy) for one in speeds if one.size == largest)
        own = {role: Shape.of(model, f"{name}/{role}") for role, model in models.items()}
        read = {role: shape.weight_bytes for role, shape in own.items()}
        parts.append({"pair": name, "dtype": dtype, "bytes_per_second": fastest, "flops": flops, "weight_bytes": read,
                      "rows": rows})  # fmt: skip
        shapes |= {shape.name: vars(shape) for shape in own.values()}
    return {"kind": "forward grid", "environment": describe_environment(), "engine": engine, "shapes": shapes,
            "parts": parts}  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- points
def shapes_of(record: Row) -> dict[str, Shape]:
    """Return the shapes of a record's models by "pair/role"."""
    return {name: Shape(**sizes) for name, sizes in record["shapes"].items()}


def points_of(rows: Iterable[Mapping[str, Any]], shapes: Mapping[str, Shape], group: str = "") -> list[Point]:
    """Return the points of rows of forwards, for `costs.roofline`.

    Args:
        rows: of `grid_times`, or of `cost_growth.forward_times` (`rows` and `prefix` in place of `tokens` and `kv`).
        shapes: by the rows' `model`; rows of other models are left out.
        group: for tables of errors.
    """
    points = []
    for row in rows:
        if row["model"] in shapes:
            tokens, kv = row.get("tokens", row.get("rows")), row.get("kv", row.get("prefix"))
            seconds = row["milliseconds"] / 1000
            points.append(Point(shapes[row["model"]], tokens, row.get("texts", 1), kv, seconds, group or row["model"]))
    return points


def parts_of(record: Row) -> dict[tuple[str, str], list[Point]]:
    """Return (pair, dtype) -> points of a record, grouped by "target" and "draft"."""
    shapes, found = shapes_of(record), {}
    for part in record["parts"]:
        own = {role: shapes[f"{part['pair']}/{role}"] for role in ("target", "draft")}
        read = part.get("weight_bytes", {})  # of a weight, where the engine in this dtype reads fewer than the dtype's
        known = {role: replace(shape, dtype=part["dtype"], weight_bytes=read.get(role)) for role, shape in own.items()}
        found[part["pair"], part["dtype"]] = points_of(part["rows"], known)
    return found


def judged(
    points: Sequence[Point], start: Machine, calibration: Iterable[Size] = CALIBRATION, series: str = ""
) -> tuple[Machine, list[Row]]:
    """Fit a machine to the points of a few sizes, and predict all points.

    Args:
        points: of one model.
        start: where the fit starts (`roofline.fit`); its bandwidth stays.
        calibration: sizes that are fitted to.
        series: goes into every row.

    Returns:
        the fitted machine, and rows with `series`, `tokens`, `texts`, `kv`, `measured` and `predicted` in milliseconds,
        `error` (predicted over measured, less 1), `calibration` (whether it was fitted to) and `text` for hovering.

    Raises:
        ValueError: for a size that was not measured, and what `roofline.fit` refuses.
    """
    chosen, _ = split(points, calibration)
    machine, fitted = fit(start, chosen), {point.size for point in chosen}
    return machine, prediction_rows(points, machine, series, fitted)


def prediction_rows(
    points: Iterable[Point], machine: Machine, series: str = "", fitted: Collection[Size] = ()
) -> list[Row]:
    """Return the rows of `judged` for a machine that is known; `fitted` are the sizes that it was fitted to."""
    rows = []
    for point in points:
        predicted, (tokens, texts, kv) = seconds_of(machine, point.shape, *point.size), point.size
        text = f"{point.group}: {tokens} tokens of {texts} texts after {kv}"
        rows.append(
            {"series": series, "tokens": tokens, "texts": texts, "kv": kv, "measured": 1000 * point.seconds,
             "predicted": 1000 * predicted, "error": predicted / point.seconds - 1,
             "calibration": point.size in fitted, "text": text}
        )  # fmt: skip
    return rows


def machine_of(part: Mapping[str, Any], name: str, **known: Any) -> Machine:
    """Return the machine that a part of a record measured without any forward: its memory and its matrix products."""
    return Machine(name, part["bytes_per_second"], {part["dtype"]: part["flops"]}, **known)


# ------------------------------------------------------------------------------------------------------------- batches
def predicted_batches(
    rows: Iterable[Mapping[str, Any]], models: Mapping[str, tuple[Machine, Shape]], host: tuple[float, float], kv: int
) -> list[Row]:
    """Return measured and predicted tokens per second of batches.

    Args:
        rows: of `throughput.throughput`, of methods of this library's loop, "ar" among them.
        models: "target" and "draft" -> machine and shape.
        host: seconds of the host for an iteration of one text, and for a level of one text. Texts take turns on the
            host, so that a batch takes as many of both.
        kv: tokens in the cache of each text, in the middle.

    Returns:
        rows with `method`, `batch`, `measured` and `predicted` (tokens per second), and the gain over "ar" of the same
        batch, `measured gain` and `predicted gain`.
    """
    found = []
    for row in rows:
        batch, seconds = row["batch"], host[0] * row["iterations"]
        for role, prefix in (("target", ""), ("draft", "draft_")):
            forwards, padded = row[f"{prefix}forwards"], row[f"{prefix}padded"]
            if forwards:
                machine, shape = models[role]
                each = max(row[f"{prefix}rows_per_forward"] / (1 - padded) / batch, 1.0)
                seconds += forwards * seconds_of(machine, shape, each, batch, kv)
        seconds += host[1] * row["draft_forwards"] * batch
        speeds = {"measured": row["tokens_per_second"], "predicted": row["tokens"] / seconds}
        found.append({"method": row["method"], "batch": batch, **speeds})
    plain = {row["batch"]: row for row in found if row["method"] == "ar"}
    return [
        {**row, **{f"{kind} gain": row[kind] / plain[row["batch"]][kind] for kind in ("measured", "predicted")}}
        for row in found
    ]


def batch_prediction(growth: Row, batches: Row, bytes_per_second: float) -> list[Row]:
    """Predict a record of batches on the bundled pair from a record of single texts on the same machine.

    Of the single texts, four forwards of the target and three of the draft are fitted to, and the medians of what the
    loop adds to an iteration and to a level are taken for the host.

    Args:
        growth: of `growth_record` of tools/growth.py.
        batches: with the rows of `throughput.throughput`.
        bytes_per_second: of the machine's memory.

    Returns:
        rows of `predicted_batches`, of the methods that draft with a model alone, and of "ar".
    """
    models, host = {}, []
    for role, (parts, column, sizes) in GROWTH.items():
        shape = Shape.of_config(AutoConfig.from_pretrained(data_path("tiny", role)), "float32", f"tiny/{role}")
        rows = [row for part in parts for row in growth["rows"][part]]
        points = [Point(shape, row[column], 1, row["prefix"], row["forward"] / 1000, role) for row in rows]
        chosen, _ = split(points, [(tokens, 1, kv) for tokens, kv in sizes])
        start = Machine(f"one text, {role}", bytes_per_second, {"float32": 10 * bytes_per_second}, launch=1e-5)
        models[role] = fit(start, chosen), shape
        host.append(float(np.median([row["overhead"] for row in rows])) / 1000)
    known = [row for row in batches["rows"] if row["method"] in ("ar", "chain:length=4", "fixed-tree")]
    return predicted_batches(known, models, (host[0], host[1]), MIDDLE)
