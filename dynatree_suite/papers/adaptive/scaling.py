"""How methods scale with length: budgets read off one long run, and a text in stretches.

Pure functions of records; nothing is decoded or timed here. Memory belongs to `footprint`.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np
import pandas as pd

from ...bench.protocol import Results
from ...bench.records import Records, Run
from ...bench.statistics import Estimate, Table, estimate, quotient, ratio, sum_ratio, sums

Row = dict[str, Any]


# ------------------------------------------------------------------------------------------------- generation length
def by_length(results: Results, lengths: Iterable[int]) -> list[Row]:
    """Return `Results.rows` for every budget, read off one run with the longest; each row has `new_tokens`.

    Raises:
        ValueError: for a length below 1 or beyond the run's.
    """
    return [{**row, "new_tokens": tokens} for tokens in lengths for row in shortened(results, tokens).rows()]


def shortened(results: Results, tokens: int) -> Results:
    """Return the results as a budget of `tokens` would have left them.

    A greedy text of T tokens is the beginning of any longer text, and an emission says when its tokens were there. Only
    the last iteration differs from a run with that budget, which would have drafted no deeper than it needed. Traced
    runs are left out.

    Raises:
        ValueError: for a length below 1 or beyond the run's, or a method with `carry`, whose later texts would begin
            otherwise after shorter ones.
    """
    whole = results.records
    carried = [entry["label"] for entry in whole.header.setup["methods"] if entry["options"].get("carry")]
    if carried:
        raise ValueError(f"'{carried[0]}' carries what it learns from text to text; measure each length by itself.")
    budget = whole.header.setup["max_new_tokens"]
    if not 1 <= tokens <= budget:
        raise ValueError(f"The length is {tokens}; the run went to {budget} tokens, so give one from 1 to {budget}.")
    header = replace(whole.header, setup={**whole.header.setup, "max_new_tokens": tokens})
    runs = {key: cut_run(run, tokens) for key, run in whole.runs.items()}
    divergences = {key: place for key, place in whole.divergences.items() if place.index < tokens}
    return Results(Records(header, runs, dict(whole.failures), divergences, {}, list(whole.notes)))


def cut_run(run: Run, tokens: int) -> Run:
    """Return a run up to the emission that brought token number `tokens`.

    Counters, which are sums over the text, are shared out: forwards of the draft by drafted levels, which is exact
    where every level read is used, nodes the draft read by drafted nodes, others by iterations. Memory peaks are
    unknown.

    Raises:
        ValueError: if the run does not have one emission per iteration.
    """
    if len(run.emissions) != run.iterations:
        raise ValueError(
            f"The run of '{run.method}' on '{run.prompt}' has {len(run.emissions)} emissions for {run.iterations} "
            "iterations, so it cannot be cut; measure this length by itself."
        )
    ends = np.cumsum([count for _, count in run.emissions])
    if tokens >= ends[-1]:
        return run
    last = int(np.searchsorted(ends, tokens))
    surplus, (seconds, count) = int(ends[last]) - tokens, run.emissions[last]
    accepted = None if run.accepted is None else [*run.accepted[:last], run.accepted[last] - surplus]
    shapes = {name: getattr(run, name) for name in ("nodes", "depths", "side_nodes")}
    begun = {name: values and values[: last + 1] for name, values in shapes.items()}
    short = replace(
        run, seconds=seconds, tokens=run.tokens[:tokens], emissions=[*run.emissions[:last], [seconds, count - surplus]],
        iterations=last + 1, finish_reason="length", accepted=accepted, **begun,
        kv_entries=run.kv_entries - (len(run.tokens) - tokens), peak_device_bytes=None, peak_rss_bytes=None,
    )  # fmt: skip
    return replace(short, counters={name: _share(name, run, short) for name in run.counters})


def _share(name: str, run: Run, short: Run) -> int:
    """Return the part of a counter that belongs to the shorter run."""
    whole, part = run.iterations, short.iterations
    by = {"draft_forwards": (run.depths, short.depths), "draft_nodes": (run.nodes, short.nodes)}.get(name, (None, None))
    if by[0] and by[1] and sum(by[0]):
        whole, part = sum(by[0]), sum(by[1])
    return round(run.counters[name] * part / whole)


# ------------------------------------------------------------------------------------------------- position in a text
def stretches(results: Results, width: int, labels: Collection[str] | None = None) -> pd.DataFrame:
    """Return every run in stretches of `width` tokens, a row for each stretch in which an iteration begins.

    Columns: `method`, `prompt`, `position` (token in the middle), `iterations` that begin there, and of these `tokens`,
    `seconds` and `nodes` (NaN where not shown); `repeated`, the share of the stretch's tokens that end a 4-gram which
    occurred in the text before. The first iteration is left out: it reads the prompt.

    Raises:
        ValueError: for a width below 1.
    """
    if width < 1:
        raise ValueError(f"The width of a stretch is {width}; give at least 1 token.")
    parts = []
    for run in results.records.runs.values():
        if labels is None or run.method in labels:
            times, counts = np.array(run.emissions, float).T
            starts = np.cumsum(counts).astype(int) - counts.astype(int)
            columns = {"iterations": 1, "tokens": counts.astype(int), "seconds": np.diff(times, prepend=0.0)}
            frame = pd.DataFrame({**columns, "nodes": np.nan if run.nodes is None else run.nodes})
            begun = frame[starts > 0].groupby(starts[starts > 0] // width).sum(min_count=1)
            repeats, places = repeats_before(run.tokens), begun.index.to_numpy() * width
            shares = [float(repeats[place : place + width].mean()) for place in places]
            key = {"method": run.method, "prompt": run.prompt, "position": places + width / 2}
            parts.append(begun.assign(**key, repeated=shares))
    return pd.concat(parts, ignore_index=True)


def repeats_before(tokens: Sequence[int]) -> np.ndarray:
    """Return (T,) bool: whether the 4-gram that ends at this token occurred in the text before."""
    seen: set[tuple[int, ...]] = set()
    repeats = np.zeros(len(tokens), bool)
    for end in range(4, len(tokens) + 1):
        gram = tuple(tokens[end - 4 : end])
        repeats[end - 1] = gram in seen
        seen.add(gram)
    return repeats


def pooled(table: Table, by: Sequence[str] = ("position",), reference: str | None = None) -> list[Row]:
    """Take stretches together over prompts: one row per method and value of the columns `by`, in order of appearance.

    Keys: `method`, the columns `by`, `texts`, `iterations`, `repeated`, `nodes_per_iteration`, `seconds_per_iteration`,
    and with their 95 % bootstrap intervals over prompts (`..._interval`) `tokens_per_iteration` and, with a reference
    method that has the same stretches, `iteration_cost`: seconds per iteration over the reference's.
    """
    groups = dict(iter(pd.DataFrame(table).groupby(["method", *by], sort=False)))
    rows = []
    for (method, *place), part in groups.items():
        iterations, nodes = int(part["iterations"].sum()), part["nodes"]
        tokens = quotient(part, "tokens", "iterations", by="prompt")
        row = {
            "method": method,
            **dict(zip(by, place, strict=True)),
            "texts": part["prompt"].nunique(),
            "iterations": iterations,
            "repeated": float(part["repeated"].mean()),
            "seconds_per_iteration": float(part["seconds"].sum() / iterations),
            "nodes_per_iteration": None if nodes.isna().any() else float(nodes.sum() / iterations),
            "tokens_per_iteration": tokens.value,
            "tokens_per_iteration_interval": tokens.interval,
        }
        base = groups.get((reference, *place))
        if reference and base is not None and set(base["prompt"]) & set(part["prompt"]):
            both = pd.concat([part, base])
            cost = ratio(both, method, over=reference, of="seconds", per="iterations", by="prompt")
            row |= {"iteration_cost": cost.value, "iteration_cost_interval": cost.interval}
        rows.append(row)
    return rows


def by_repetition(table: Table, edges: Sequence[float], late: int) -> list[Row]:
    """Return `pooled` by how much a stretch repeats (`repetition`: between which edges) and its place (`part`).

    Args:
        table: of `stretches`.
        edges: shares of repeated 4-grams, ascending, that part the classes.
        late: tokens after which a stretch is late.
    """
    frame = pd.DataFrame(table)
    names = np.array([f"{low:.0%} to {high:.0%}" for low, high in pairwise([0.0, *edges, 1.0])])
    level, after = np.searchsorted(edges, frame["repeated"], "right"), frame["position"] > late
    parts = np.where(after, f"after {late} tokens", f"first {late} tokens")
    order = np.lexsort((after, level))
    return pooled(frame.assign(repetition=names[level], part=parts).iloc[order], by=("repetition", "part"))


def late_over_early(table: Table, label: str, late: int, without: str | None = None) -> Estimate:
    """Return tokens per iteration after `late` tokens over those before, with its bootstrap interval over prompts.

    With another label in `without`, that ratio over the other's: how a gain changes along the text. NaN where no text
    has stretches on both sides of `late`.
    """
    frame = pd.DataFrame(table)
    after = frame["position"] > late
    sides = [
        sums(frame[(frame["method"] == name) & part], ("tokens", "iterations"), "prompt")
        for name in ([label] if without is None else [label, without])
        for part in (after, ~after)
    ]
    counts = pd.concat(sides, axis=1, join="inner").to_numpy(float)
    if not len(counts):
        return Estimate(np.nan, np.nan, np.nan)

    def change(drawn: np.ndarray) -> np.ndarray:
        grown = sum_ratio(drawn[..., :4])
        return grown if without is None else grown / sum_ratio(drawn[..., 4:])

    return estimate(counts, change)
