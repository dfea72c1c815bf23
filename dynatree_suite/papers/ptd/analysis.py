"""What the PTD paper's analysis asks of texts: efficiency at equal overhead, branches that repeat, run time of stages.

Counts come from records and iterations without a clock. Only `stage_rows` reads a clock, which is passed in.
"""

from __future__ import annotations

import copy
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
import pandas as pd

from dynatree_lib.decoding import Iteration
from dynatree_lib.drafters.base import Drafter, Proposal
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling
from dynatree_lib.tree import TokenTree

from ...bench import statistics
from ...bench.clock import known_objects_frozen, quiet_machine, synchronize
from ...bench.methods import Variant, variants
from ...bench.prompts import prepare_prompts
from ...bench.protocol import Results
from ...bench.runner import DrafterRunner
from ...bench.statistics import Estimate
from ...bench.trace import Clock, Trace, iteration_sums
from ...costs.cost_model import MeasuredCosts, check_countable, counts_of

Row = dict[str, Any]

QUANTITIES = {
    "DE": ("tokens", "iterations"),
    "HR": ("hits", "iterations"),
    "AL": ("hit_tokens", "hits"),
    "Dft": ("side_nodes", "iterations"),
    "Ver": ("nodes", "iterations"),
    "scored": ("scored", "iterations"),
    "speed": ("plain", "cost"),
}
"""The quantities of section 4.1 as quotients of sums. `scored` is Dft + Ver; `speed` is the speed-up over `ar` that the
tokens scored by each forward alone predict."""
COLUMNS = list(dict.fromkeys(name for parts in QUANTITIES.values() for name in parts))
PLACES = 24
"""Places of the common range at which two fronts are compared."""


# ------------------------------------------------------------------------------------------------------------- counts
def counts_frame(results: Results, costs: MeasuredCosts) -> pd.DataFrame:
    """Return `method`, `prompt` and `COLUMNS` of the runs that show their trees, on prompts that all such methods have.

    `cost` and `plain` are the greedy steps that the counts predict for the run and for plain decoding of its tokens.
    """
    frame = results.records.frame()
    runs = results.records.runs.values()
    frame["scored"] = frame["nodes"] + frame["side_nodes"].fillna(0)
    frame["plain"] = frame["tokens"] * costs.verify_points[0]
    frame["cost"] = [np.nan if run.accepted is None else costs.steps(counts_of([run])) for run in runs]
    shown = frame[frame["accepted"].notna()].fillna({"side_nodes": 0})
    everywhere = shown.groupby("prompt")["method"].transform("nunique") == shown["method"].nunique()
    return shown.loc[everywhere, ["method", "prompt", *COLUMNS]]


def quantity(frame: pd.DataFrame, method: str, name: str, seed: int = 0) -> Estimate:
    """Return one of `QUANTITIES` of a method, with its interval over prompts; NaN where the divisor is 0."""
    return statistics.quotient(frame[frame["method"] == method], *QUANTITIES[name], by="prompt", seed=seed)


def quantity_row(frame: pd.DataFrame, method: str, seed: int = 0) -> Row:
    """Return all of `QUANTITIES` of a method, each with its interval over prompts as `<name>_interval`."""
    row: Row = {"method": method}
    for name in QUANTITIES:
        value = quantity(frame, method, name, seed)
        row |= {name: value.value, f"{name}_interval": value.interval}
    return row


@dataclass(frozen=True)
class Settings:
    """The settings of one run: their counts, and the speeds that these predict here and elsewhere.

    Attributes:
        here: `counts_frame` at this machine's costs.
        there: the same at other costs.
        rows: label -> `quantity_row`, with `speed_there` and `speed_there_interval`, the speed-up over `ar` that the
            run measured, and the method's `name`.
    """

    here: pd.DataFrame
    there: pd.DataFrame
    rows: dict[str, Row]

    @classmethod
    def of(cls, results: Results, costs: MeasuredCosts, others: MeasuredCosts) -> Settings:
        """Count the runs of a benchmark that has `ar`."""
        here, there = counts_frame(results, costs), counts_frame(results, others)
        rows: dict[str, Row] = {}
        for summary in results.summaries():
            label = summary["label"]
            speed = quantity(there, label, "speed")
            row = {"speed_there": speed.value, "speed_there_interval": speed.interval}
            row |= {"measured": summary["speedup_ar"], "name": summary["method"]}
            rows[label] = quantity_row(here, label) | row
        return cls(here, there, rows)

    @property
    def speeds(self) -> dict[str, dict[str, float]]:
        """The predicted speeds "here" and "there", by label."""
        keys = {"here": "speed", "there": "speed_there"}
        return {place: {label: row[key] for label, row in self.rows.items()} for place, key in keys.items()}


def over(frame: pd.DataFrame, method: str, other: str, name: str) -> Estimate:
    """Return one of `QUANTITIES` of a method over that of another, with its paired interval over prompts."""
    of, per = QUANTITIES[name]
    return statistics.ratio(frame, method, over=other, of=of, per=per, by="prompt")


def compared(name: str, ratio: Estimate) -> Row:
    """Return a ratio as a row: `method`, `ratio`, `interval`, `holds` (`Estimate.above`), `text`."""
    numbers = {"ratio": ratio.value, "interval": ratio.interval}
    return {"method": name, **numbers, "holds": ratio.above(), "text": str(ratio)}


def front(frame: pd.DataFrame, methods: Iterable[str]) -> list[str]:
    """Return the methods that no other one beats with fewer tokens scored and more DE, by rising tokens scored."""
    sums = statistics.sums(frame, ["scored", "tokens", "iterations"], by="method").loc[list(methods)]
    return list(sums.index[_corners(sums["scored"] / sums["iterations"], sums["tokens"] / sums["iterations"])])


def at_equal(
    frame: pd.DataFrame,
    methods: Sequence[str],
    others: Sequence[str],
    at: Literal["scored", "DE"] = "scored",
    of: Literal["scored", "DE"] = "DE",
    seed: int = 0,
) -> Estimate:
    """Return the front of `methods` over that of `others` where both have equally much of `at`.

    The fronts are of DE over tokens scored, linear between settings over the logarithm of tokens scored. The ratio is
    the geometric mean over the range that both fronts cover; NaN where there is none. The interval is a paired 95 %
    bootstrap over prompts that draws the fronts anew each time. A front is the best of what was tried on these prompts,
    so both sides are flattered, the side with more settings more.
    """
    parts = ["scored", "tokens", "iterations"]
    labels, count, axes = [*methods, *others], len(methods), [("scored", "DE").index(axis) for axis in (at, of)]
    sums = {label: statistics.sums(frame[frame["method"] == label], parts, by="prompt") for label in labels}
    prompts = sums[labels[0]].index
    table = np.hstack([sums[label].loc[prompts, parts].to_numpy(float) for label in labels])

    def ratio(drawn: np.ndarray) -> np.ndarray:
        scored, tokens, iterations = np.moveaxis(drawn.sum(-2).reshape(len(drawn), len(labels), 3), -1, 0)
        with np.errstate(divide="ignore"):  # a setting that scores nothing stands at minus infinity
            points = np.log([scored / iterations, tokens / iterations])  # (2, m, labels)
        sides = ((points[:, i, :count], points[:, i, count:]) for i in range(len(drawn)))
        fronts = ([side[:, _corners(*side)][axes] for side in both] for both in sides)
        return np.exp([_difference(*both) for both in fronts])

    return statistics.estimate(table, ratio, seed)


def _corners(scored: Any, values: Any) -> np.ndarray:
    """Return the places of the settings on the front, so that both coordinates rise."""
    order = np.lexsort((-np.asarray(values), scored))
    best = np.maximum.accumulate(np.asarray(values)[order])
    return np.asarray(order[np.append(True, best[1:] > best[:-1])])


def _difference(first: np.ndarray, second: np.ndarray) -> float:
    """Return the mean difference of (2, n) fronts over the common range of their first rows, NaN without any."""
    low, high = max(first[0, 0], second[0, 0]), min(first[0, -1], second[0, -1])
    if low > high:
        return float("nan")
    places = np.linspace(low, high, PLACES)
    return float(np.mean(np.interp(places, *first) - np.interp(places, *second)))


# ------------------------------------------------------------------------------------------------------------ branches
Likeness = Literal["place", "order"]


def branches(side_tree: TokenTree) -> list[list[int]]:
    """Return the nodes of every line from below node 0 to a leaf."""
    leaves = np.setdiff1d(np.arange(1, len(side_tree)), side_tree.parents)
    return [side_tree.path(int(leaf)) for leaf in leaves]


def similarity(one: Sequence[int], other: Sequence[int], likeness: Likeness = "place") -> float:
    """Return how alike two lines of tokens are, 0 to 1 (the paper does not define it).

    "place": places with equal tokens; "order": tokens of the longest common subsequence, so that a line is like its own
    shifted copy. Both over the length of the longer line.
    """
    longer = max(len(one), len(other))
    if likeness == "place":
        return sum(a == b for a, b in zip(one, other, strict=False)) / longer
    row = [0] * (len(other) + 1)
    for a in one:
        above = row
        row = [0]
        for index, b in enumerate(other):
            row.append(above[index] + 1 if a == b else max(row[-1], above[index + 1]))
    return row[-1] / longer


def most_similar(side_tree: TokenTree, likeness: Likeness = "place") -> np.ndarray:
    """Return (lines,) of each line its similarity to the line that is most like it; 0 for a single line.

    Two lines are compared below the node where they part, because the nodes they share are scored once.
    """
    lines = branches(side_tree)
    best = np.zeros(len(lines))
    for (i, one), (j, other) in combinations(enumerate(lines), 2):
        shared = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b))
        first, second = (side_tree.tokens[line[shared:]].tolist() for line in (one, other))
        alike = similarity(first, second, likeness)
        best[[i, j]] = np.maximum(best[[i, j]], alike)
    return best


def side_trees(iterations: Sequence[Iteration], skip: int) -> list[TokenTree]:
    """Return the side trees of one text without the first `skip`, which begin with random tokens."""
    return [one.side_tree for one in iterations if one.side_tree is not None][skip:]


def similar_rows(
    label: str, texts: Iterable[Sequence[TokenTree]], thresholds: Sequence[float], likeness: Likeness = "place"
) -> list[Row]:
    """Return Figure 1b: one row per threshold, with two shares.

    `iterations` have at least two branches more alike than the threshold; `branches` are so alike to another branch.

    Args:
        label: for the column `method`.
        texts: side trees, text by text (`side_trees`).
        thresholds: similarities from 0 to 1.
        likeness: see `similarity`.
    """
    best = [most_similar(tree, likeness) for text in texts for tree in text]
    every = np.concatenate([*best, np.zeros(0)])
    return [
        {
            "method": label, "likeness": likeness, "threshold": limit,
            "iterations": float(np.mean([(one > limit).any() for one in best])) if best else 0.0,
            "branches": float((every > limit).mean()) if len(every) else 0.0,
        }
        for limit in thresholds
    ]  # fmt: skip


def repeated_nodes(label: str, texts: Iterable[Sequence[TokenTree]], n: int = 3) -> Row:
    """Return shares of the side nodes by whether their n-grams are new.

    A node yields the n-gram that ends in it. Keys: `method`; `twice`, nodes whose n-gram another node of the same
    forward yields too (all but one of each); `again`, of the others those whose n-gram the forward before has scored;
    `new`, the rest. Nodes with fewer than n - 1 drafted tokens above them count by the tokens there are.
    """
    counts = np.zeros(3)
    for text in texts:
        before: set[tuple[int, ...]] = set()
        for tree in text:
            grams = [tuple(tree.tokens[tree.path(node)[-n:]].tolist()) for node in range(1, len(tree))]
            here = set(grams)
            counts += [len(grams) - len(here), len(here & before), len(here - before)]
            before = here
    shares = counts / max(counts.sum(), 1)
    return {"method": label, **dict(zip(("twice", "again", "new"), shares.tolist(), strict=True))}


# ---------------------------------------------------------------------------------------------------------- run time
ROLES = {"forward": "target", "retrieval": "retrieval", "update": "update"}
"""Stage of an iteration -> role of its events in a trace."""
STAGES = (*ROLES, "other")
"""Where an iteration's time goes (Figure 8): the target's forward, `propose`, `observe`, the loop with its masks."""


def timed(drafter: Drafter, trace: Trace) -> Drafter:
    """Return the same drafter, whose `propose` and `observe` report to a trace as "retrieval" and "update"."""

    def reporting(role: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def run(*given: Any, **options: Any) -> Any:
            start = trace.now()
            result = method(*given, **options)
            nodes = len(result.nodes[0]) if isinstance(result, Proposal) else 0  # the forward's arrays are made here
            trace.events.append([role, start, trace.now(), nodes])
            return result

        return run

    other = copy.copy(drafter)  # a drafter is frozen, so its methods cannot be assigned
    vars(other).update(propose=reporting("retrieval", drafter.propose), observe=reporting("update", drafter.observe))
    return other


def stage_rows(
    pair: Pair,
    methods: str | Sequence[str | Variant],
    prompts: Sequence[Any],
    max_new_tokens: int,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Decode greedy texts of methods of this library's loop, interleaved, and split their time into `STAGES`.

    One row per method and prompt: `method`, `prompt`, `iterations`, `tokens`, `seconds` and the seconds of each stage.
    The first iteration, which reads the prompt, is left out of all of them. Every forward is waited for, so that these
    are no speeds.

    Raises:
        ValueError: for what `variants` and `prepare_prompts` refuse, a budget below 2, or a method with a loop of its
            own.
    """
    chosen, ready = check_countable(variants(methods)), prepare_prompts(pair, prompts, max_new_tokens)
    if max_new_tokens < 2:
        raise ValueError(
            f"max_new_tokens is {max_new_tokens}; the first iteration does not count, so ask for at least 2."
        )
    device, rows = pair.target.device, []
    with known_objects_frozen():
        for number, prompt in enumerate(ready):
            first = number % len(chosen)
            for method in [*chosen[first:], *chosen[:first]]:
                trace = Trace(clock, lambda: synchronize(device))
                runner = method.runner(pair, trace.instrument)
                assert isinstance(runner, DrafterRunner)
                runner.drafter = timed(runner.drafter, trace)
                options: Row = {"eos_token_ids": (), "sampling": Sampling(), "seed": 0, "on_tokens": trace.on_tokens}
                with quiet_machine(device):
                    trace.begin()
                    runner(prompt.ids, max_new_tokens=max_new_tokens, **options)
                rows.append(
                    {"method": method.label, "prompt": prompt.id, **iteration_sums(trace.events, ROLES, "other")}
                )
    return rows


def stage_shares(rows: Iterable[Row]) -> list[Row]:
    """Return methods of `stage_rows` over all prompts.

    Keys: `method`, milliseconds per iteration of each stage and of `total`, and `own`, the share of retrieval and
    update in an iteration, with its bootstrap interval over prompts.
    """
    frame = pd.DataFrame(rows)
    frame["own"] = frame["retrieval"] + frame["update"]
    shares = []
    for method, part in frame.groupby("method", sort=False):
        stages = 1000 * part[list(STAGES)].sum() / part["iterations"].sum()
        own = statistics.quotient(part, "own", "seconds", by="prompt")
        total = {"total": float(stages.sum()), "own": own.value, "own_interval": own.interval}
        shares.append({"method": method, **stages.to_dict(), **total})
    return shares


def memory_of(thing: Any) -> int:
    """Return the bytes of an object and of all that it holds in containers, attributes and slots, each counted once.

    An estimate (`sys.getsizeof`), without what the allocator adds.
    """
    seen: dict[int, Any] = {}
    todo = [thing]
    while todo:
        part = todo.pop()
        if id(part) in seen:
            continue
        seen[id(part)] = part
        if isinstance(part, dict):
            todo += [*part.keys(), *part.values()]
        elif isinstance(part, list | tuple | set | frozenset):
            todo += part
        todo += [getattr(part, name) for name in getattr(type(part), "__slots__", ()) if hasattr(part, name)]
        todo += [part.__dict__] if hasattr(part, "__dict__") and not isinstance(part, type) else []
    return sum(map(sys.getsizeof, seen.values()))
