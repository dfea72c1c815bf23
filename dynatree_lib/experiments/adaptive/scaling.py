"""How methods scale with length: budgets read off one long run, a text in stretches, prompts cut to a length.

Pure functions of records and prompts; nothing is decoded or timed here. Memory belongs to `footprint`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Any

import numpy as np

from ...measure.grids import rows as summary_rows
from ...measure.metrics import Interval, bootstrap
from ...measure.prompts import BenchPrompt, prepare_prompts
from ...measure.protocol import Results
from ...measure.records import Records, Run
from ...models.pairs import Pair

Row = dict[str, Any]


# ------------------------------------------------------------------------------------------------- generation length
def by_length(results: Results, lengths: Iterable[int]) -> list[Row]:
    """`grids.rows` for every budget, read off one run with the longest; each row has `new_tokens`.

    Raises:
        ValueError: for a length below 1 or beyond the run's.
    """
    return [{**row, "new_tokens": tokens} for tokens in lengths for row in summary_rows(shortened(results, tokens))]


def shortened(results: Results, tokens: int) -> Results:
    """The results as a budget of `tokens` would have left them.

    A greedy text of T tokens is the beginning of any longer one, and an emission says when its tokens were there. Only
    the last iteration differs from a run with that budget, which would have drafted no deeper than it needed. Traced
    runs are left out.

    Raises:
        ValueError: for a length below 1 or beyond the run's, or a method with `carry`, whose later texts would begin
            otherwise after shorter ones.
    """
    whole = results.records
    carried = [one["label"] for one in whole.header.setup["methods"] if one["options"].get("carry")]
    if carried:
        raise ValueError(f"'{carried[0]}' carries what it learns from text to text; measure each length by itself.")
    budget = whole.header.setup["max_new_tokens"]
    if not 1 <= tokens <= budget:
        raise ValueError(f"The length is {tokens}; the run went to {budget} tokens, so give one from 1 to {budget}.")
    header = replace(whole.header, setup={**whole.header.setup, "max_new_tokens": tokens})
    runs = {key: cut_run(run, tokens) for key, run in whole.runs.items()}
    divergences = {key: one for key, one in whole.divergences.items() if one.index < tokens}
    return Results(Records(header, runs, dict(whole.failures), divergences, {}, list(whole.notes)))


def cut_run(run: Run, tokens: int) -> Run:
    """A run up to the emission that brought token number `tokens`.

    Counters, which are sums over the text, are shared out: forwards of the draft by drafted levels, which is exact
    where every level read is kept, rows by drafted nodes, anything else by iterations. Memory peaks are unknown.

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
    surplus = int(ends[last]) - tokens
    emissions = [*run.emissions[:last], [run.emissions[last][0], run.emissions[last][1] - surplus]]
    accepted = None if run.accepted is None else [*run.accepted[:last], run.accepted[last] - surplus]
    short = replace(
        run, seconds=run.emissions[last][0], tokens=run.tokens[:tokens], emissions=emissions, iterations=last + 1,
        finish_reason="length", accepted=accepted,
        nodes=None if run.nodes is None else run.nodes[: last + 1],
        depths=None if run.depths is None else run.depths[: last + 1],
        side_nodes=None if run.side_nodes is None else run.side_nodes[: last + 1],
        cache_rows=run.cache_rows - (len(run.tokens) - tokens), peak_device_bytes=None, peak_rss_bytes=None,
    )  # fmt: skip
    return replace(short, counters={name: _share(name, run, short) for name in run.counters})


def _share(name: str, run: Run, short: Run) -> int:
    """The part of a sum that belongs to the shorter run."""
    whole, part = run.iterations, short.iterations
    by = {"draft_forwards": (run.depths, short.depths), "draft_rows": (run.nodes, short.nodes)}.get(name, (None, None))
    if by[0] and by[1] and sum(by[0]):
        whole, part = sum(by[0]), sum(by[1])
    return round(run.counters[name] * part / whole)


# ------------------------------------------------------------------------------------------------- position in a text
def stretches(results: Results, width: int, labels: Iterable[str] | None = None) -> list[Row]:
    """Every run in stretches of `width` tokens, a row for each in which an iteration begins.

    Keys: `method`, `prompt`, `position` (token in the middle), `iterations` that begin there, and of these `tokens`,
    `seconds` and `nodes` (None where not shown); `repeated`, the share of the stretch's tokens that end a 4-gram which
    occurred in the text before. The first iteration is left out: it reads the prompt.

    Raises:
        ValueError: for a width below 1.
    """
    if width < 1:
        raise ValueError(f"The width of a stretch is {width}; give at least 1 token.")
    chosen = None if labels is None else set(labels)
    runs = results.records.runs.values()
    return [row for run in runs if chosen is None or run.method in chosen for row in _stretches_of(run, width)]


def _stretches_of(run: Run, width: int) -> Iterable[Row]:
    times, counts = np.array(run.emissions, float).T
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]]).astype(int)
    seconds, repeated = np.diff(times, prepend=0.0), repeats_before(run.tokens)
    for begin in range(0, len(run.tokens), width):
        mine = np.flatnonzero((starts >= max(begin, 1)) & (starts < begin + width))
        if len(mine):
            yield {
                "method": run.method,
                "prompt": run.prompt,
                "position": begin + width / 2,
                "iterations": len(mine),
                "tokens": int(counts[mine].sum()),
                "seconds": float(seconds[mine].sum()),
                "nodes": None if run.nodes is None else int(np.array(run.nodes)[mine].sum()),
                "repeated": float(repeated[begin : begin + width].mean()),
            }


def repeats_before(tokens: Sequence[int], n: int = 4) -> np.ndarray:
    """(T,) bool: whether the n-gram that ends at this token occurred in the text before."""
    seen: set[tuple[int, ...]] = set()
    out = np.zeros(len(tokens), bool)
    for end in range(n, len(tokens) + 1):
        gram = tuple(tokens[end - n : end])
        out[end - 1] = gram in seen
        seen.add(gram)
    return out


def pooled(
    rows: Iterable[Row], by: Sequence[str] = ("position",), reference: str | None = None, seed: int = 0
) -> list[Row]:
    """Stretches taken together over prompts: one row per method and value of the columns `by`, in order of appearance.

    Keys: `method`, the columns `by`, `texts`, `iterations`, `repeated`, `nodes_per_iteration`, `seconds_per_iteration`,
    and with their 95 % bootstrap intervals over prompts (`..._interval`) `tokens_per_iteration` and, with a reference
    method that has the same stretches, `iteration_cost`: seconds per iteration over the reference's.
    """
    groups: dict[tuple[Any, ...], list[Row]] = defaultdict(list)
    for row in rows:
        groups[(row["method"], *(row[name] for name in by))].append(row)
    out = []
    for (method, *values), mine in groups.items():
        row = {"method": method, **dict(zip(by, values, strict=True)), **_pooled(mine, seed)}
        base = groups.get((reference, *values)) if reference else None
        out.append({**row, **(_cost(mine, base, seed) if base else {})})
    return out


def _pooled(rows: list[Row], seed: int) -> Row:
    counts = np.array(list(_sums(rows, "tokens", "iterations").values()), float)
    iterations = sum(row["iterations"] for row in rows)
    shown = all(row["nodes"] is not None for row in rows)
    return {
        "texts": len(counts),
        "iterations": iterations,
        "repeated": float(np.mean([row["repeated"] for row in rows])),
        "seconds_per_iteration": sum(row["seconds"] for row in rows) / iterations,
        "nodes_per_iteration": sum(row["nodes"] for row in rows) / iterations if shown else None,
        "tokens_per_iteration": float(_ratio(counts[None])[0]),
        "tokens_per_iteration_interval": bootstrap(counts, _ratio, seed),
    }


def _cost(rows: list[Row], base: list[Row], seed: int) -> Row:
    mine, its = _sums(rows, "seconds", "iterations"), _sums(base, "seconds", "iterations")
    both = np.array([[*mine[prompt], *its[prompt]] for prompt in mine if prompt in its], float)
    if not len(both):
        return {}
    return {"iteration_cost": float(_ratio(both[None])[0]), "iteration_cost_interval": bootstrap(both, _ratio, seed)}


def _sums(rows: Iterable[Row], *columns: str) -> dict[str, np.ndarray]:
    """Prompt -> sums of the columns over its rows."""
    out: dict[str, np.ndarray] = defaultdict(lambda: np.zeros(len(columns)))
    for row in rows:
        out[row["prompt"]] += [row[name] for name in columns]
    return out


def _ratio(drawn: np.ndarray) -> np.ndarray:
    """(m, n, 2) or (m, n, 4) resampled sums -> (m,) ratios, or ratios of two ratios."""
    sums = drawn.sum(-2)
    own = sums[..., 0] / sums[..., 1]
    return own if sums.shape[-1] == 2 else own / (sums[..., 2] / sums[..., 3])


def by_repetition(rows: Iterable[Row], edges: Sequence[float], late: int) -> list[Row]:
    """`pooled` by how much a stretch repeats (`repetition`: between which edges) and where it stands (`part`).

    Args:
        rows: of `stretches`.
        edges: shares of repeated 4-grams, ascending, that part the classes.
        late: tokens after which a stretch is late.
    """
    ends = [0.0, *edges, 1.0]
    names = [f"{low:.0%} to {high:.0%}" for low, high in pairwise(ends)]
    parts = (f"first {late} tokens", f"after {late} tokens")
    placed = [(int(np.searchsorted(edges, row["repeated"], "right")), row["position"] > late, row) for row in rows]
    placed.sort(key=lambda place: place[:2])
    return pooled(
        [{**row, "repetition": names[level], "part": parts[after]} for level, after, row in placed],
        by=("repetition", "part"),
    )


def late_over_early(
    rows: Sequence[Row], label: str, late: int, without: str | None = None, seed: int = 0
) -> tuple[float, Interval]:
    """Tokens per iteration after `late` tokens over those before, with its bootstrap interval over prompts.

    With another label in `without`, that ratio over the other's: how a gain changes along the text.

    Raises:
        ValueError: if no prompt has stretches on both sides of `late`.
    """
    names = [label] if without is None else [label, without]
    sides = [
        _sums((row for row in rows if row["method"] == name and (row["position"] > late) == after), *_COUNTS)
        for name in names
        for after in (True, False)
    ]
    prompts = [prompt for prompt in sides[0] if all(prompt in side for side in sides)]
    if not prompts:
        raise ValueError(f"No text of '{label}' has stretches before and after token {late}; give another place.")
    counts = np.array([np.concatenate([side[prompt] for side in sides]) for prompt in prompts])

    def change(drawn: np.ndarray) -> np.ndarray:
        grown = [_ratio(drawn[..., at : at + 4]) for at in range(0, drawn.shape[-1], 4)]
        return grown[0] if len(grown) == 1 else grown[0] / grown[1]

    return float(change(counts[None])[0]), bootstrap(counts, change, seed)


_COUNTS = ("tokens", "iterations")


# ----------------------------------------------------------------------------------------------------- prompt length
def long_prompts(pair: Pair, prompts: Iterable[Any], tokens: int) -> list[BenchPrompt]:
    """The prompts that have at least so many tokens, ready to be cut.

    Raises:
        ValueError: if none has.
    """
    ready = [one for prompt in prompts for one in prepare_prompts(pair, [prompt], 1)]
    found = [one for one in ready if len(one.ids) >= tokens]
    if not found:
        longest = max((len(one.ids) for one in ready), default=0)
        raise ValueError(f"No prompt has {tokens} tokens; the longest has {longest}, so cut them shorter.")
    return found


def cut_prompts(prompts: Iterable[BenchPrompt], tokens: int) -> list[BenchPrompt]:
    """The first `tokens` tokens of each prompt, named `id@tokens`.

    Raises:
        ValueError: for a length below 1, or a prompt that is shorter.
    """
    prompts = list(prompts)
    short = [one.id for one in prompts if len(one.ids) < tokens]
    if tokens < 1 or short:
        raise ValueError(f"Prompts cannot be cut to {tokens} tokens{f': {short[0]} is shorter' if short else ''}.")
    return [BenchPrompt.from_ids(f"{one.id}@{tokens}", one.ids[:tokens]) for one in prompts]


def mean_characters(tokenizer: Any, prompts: Sequence[BenchPrompt]) -> float:
    """Mean length of the prompts in characters of text."""
    return float(np.mean([len(tokenizer.decode(one.ids)) for one in prompts]))
