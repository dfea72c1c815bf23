"""What the PTD paper's analysis asks of texts: efficiency at equal overhead, branches that repeat, where time goes.

Counts come from records and rounds without a clock. Only `stage_rows` reads one, which is passed in.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, Literal

import numpy as np

from ...decoding import Iteration
from ...drafters.base import Drafter, Proposal
from ...measure.cost_model import MeasuredCosts, check_countable, counts_of
from ...measure.methods import Variant, variants
from ...measure.metrics import Interval, bootstrap, quotient
from ...measure.prompts import prepare_prompts
from ...measure.protocol import Results, _known_objects_frozen, _quiet_machine, _synchronize
from ...measure.records import Run
from ...measure.runner import DrafterRunner
from ...measure.trace import Clock, Trace
from ...models.base import LanguageModel
from ...models.pairs import Pair
from ...sampling import GREEDY, RandomSource, Sampling, Scores
from ...tree import TokenTree
from ...verifiers.base import Drawing, Verdict
from ..adaptive.ablation import faster, told

Row = dict[str, Any]

QUOTIENTS = {
    "DE": ("tokens", "iterations"),
    "HR": ("hits", "iterations"),
    "AL": ("kept", "hits"),
    "Dft": ("drafted", "iterations"),
    "Ver": ("verified", "iterations"),
    "rows": ("rows", "iterations"),
    "speed": ("plain", "cost"),
}
"""The quantities of section 4.1 as quotients of sums. `rows` is Dft + Ver; `speed` is the speed-up over `ar` that the
rows of each forward alone predict."""
COLUMNS = tuple(dict.fromkeys(name for parts in QUOTIENTS.values() for name in parts))
PLACES = 24
"""Places of the common range at which two fronts are compared."""


# ------------------------------------------------------------------------------------------------------------- counts
@dataclass(frozen=True)
class Tally:
    """Sums of each method of one or more runs, prompt by prompt.

    Attributes:
        sums: label -> (prompts, len(COLUMNS)) float64, the same prompts in the same order for every label.
    """

    sums: dict[str, np.ndarray]

    @classmethod
    def of(cls, results: Results, costs: MeasuredCosts) -> Tally:
        """Of the methods of a run that show their trees, on the prompts that all of them have."""
        shown: dict[str, dict[str, np.ndarray]] = {}
        for run in results.records.runs.values():
            if run.accepted is not None:
                mine = shown.setdefault(run.method, {})
                mine[run.prompt] = mine.get(run.prompt, 0) + _sums(run, costs)
        prompts = [prompt for prompt in next(iter(shown.values()), {}) if all(prompt in one for one in shown.values())]
        return cls({label: np.array([one[prompt] for prompt in prompts]) for label, one in shown.items()})

    def value(self, label: str, name: str) -> float:
        """One of `QUOTIENTS` over all prompts; NaN where its divisor is 0 (AL without a hit)."""
        return float(_pooled(self.sums[label], name))

    def row(self, label: str, seed: int = 0) -> Row:
        """All of `QUOTIENTS` of a method, each with its 95 % bootstrap interval over prompts as `<name>_interval`."""
        out: Row = {"method": label}
        for name in QUOTIENTS:
            interval = bootstrap(self.sums[label], partial(_pooled, name=name), seed)
            out |= {name: self.value(label, name), f"{name}_interval": interval}
        return out

    def over(self, label: str, other: str, name: str, seed: int = 0) -> Row:
        """A method's quantity over another's: `compared` of the paired 95 % bootstrap interval over prompts."""

        def ratio(drawn: np.ndarray) -> np.ndarray:
            first, second = np.split(drawn.sum(-2), 2, axis=-1)
            return np.asarray(_quotient(first, name) / _quotient(second, name))

        both = np.hstack([self.sums[label], self.sums[other]])
        return compared(f"{label} over {other}", float(ratio(both[None])[0]), bootstrap(both, ratio, seed))

    def front(self, labels: Iterable[str], x: str = "rows", y: str = "DE") -> list[str]:
        """The labels that no other one beats with less `x` and more `y`, by rising `x`."""
        order = sorted(labels, key=lambda label: (self.value(label, x), -self.value(label, y)))
        best, out = -np.inf, []
        for label in order:
            if self.value(label, y) > best:
                best = self.value(label, y)
                out.append(label)
        return out

    def at_equal(
        self, labels: Sequence[str], others: Sequence[str], at: str = "rows", of: str = "DE", seed: int = 0
    ) -> Row:
        """The front of `labels` over that of `others` where both have equally much of `at` ("rows" or "DE").

        The fronts are of DE over rows, linear between settings over the logarithm of rows. The ratio is the geometric
        mean over the range that both fronts cover; NaN where there is none. The interval is a paired 95 % bootstrap
        over prompts that draws the fronts anew each time. A front is the best of what was tried on these prompts, so
        both sides are flattered, the one with more settings more. As `compared`, named by the first labels.
        """
        count, both = len(labels), [*labels, *others]
        table = np.stack([self.sums[label] for label in both], axis=1)

        def ratio(drawn: np.ndarray) -> np.ndarray:
            sums = drawn.sum(-2).reshape(len(drawn), len(both), len(COLUMNS))
            rows, values = np.log(_quotient(sums, "rows")), np.log(_quotient(sums, "DE"))
            sides = ((rows[:, :count], values[:, :count]), (rows[:, count:], values[:, count:]))
            pairs = zip(*(zip(*side, strict=True) for side in sides), strict=True)
            return np.exp([_between(_corners(*mine), _corners(*its), at, of) for mine, its in pairs])

        flat = table.reshape(len(table), -1)
        return compared(f"{labels[0]} over {others[0]}", float(ratio(flat[None])[0]), bootstrap(flat, ratio, seed))


def compared(name: str, ratio: float, interval: Interval) -> Row:
    """A ratio as `ablation.compared` has it: `method`, `ratio`, `interval`, `holds` (above 1), `text`."""
    row: Row = {"method": name, "ratio": ratio, "interval": interval, "holds": faster(interval)}
    return {**row, "text": told(row)}


def _sums(run: Run, costs: MeasuredCosts) -> np.ndarray:
    """(len(COLUMNS),) of one run."""
    kept, drafted, verified = run.accepted or [], sum(run.side_nodes or ()), sum(run.nodes or ())
    cost = costs.steps(counts_of([run]))
    sums = {
        "tokens": len(run.tokens), "iterations": run.iterations, "hits": sum(one > 0 for one in kept),
        "kept": sum(one + 1 for one in kept if one), "drafted": drafted, "verified": verified,
        "rows": drafted + verified, "plain": len(run.tokens) * costs.verify_points[0], "cost": cost,
    }  # fmt: skip
    return np.array([sums[name] for name in COLUMNS], float)


def _quotient(sums: np.ndarray, name: str) -> np.ndarray:
    first, second = (sums[..., COLUMNS.index(part)] for part in QUOTIENTS[name])
    return np.divide(first, second, out=np.full(np.shape(first), np.nan), where=second > 0)


def _pooled(drawn: np.ndarray, name: str) -> np.ndarray:
    return _quotient(drawn.sum(-2), name)


def _corners(rows: np.ndarray, values: np.ndarray) -> dict[str, np.ndarray]:
    """The front of some settings: both coordinates rise."""
    order = np.lexsort((-values, rows))
    best = np.maximum.accumulate(values[order])
    keep = np.append(True, best[1:] > best[:-1])
    return {"rows": rows[order][keep], "DE": best[keep]}


def _between(mine: dict[str, np.ndarray], its: dict[str, np.ndarray], at: str, of: str) -> float:
    """Mean difference of two fronts over the range of `at` that both cover; NaN where they share none."""
    low, high = max(mine[at][0], its[at][0]), min(mine[at][-1], its[at][-1])
    if low > high:
        return float("nan")
    places = np.linspace(low, high, PLACES)
    return float(np.mean(np.interp(places, mine[at], mine[of]) - np.interp(places, its[at], its[of])))


# ------------------------------------------------------------------------------------------------------------ branches
Likeness = Literal["place", "order"]


def branches(side_tree: TokenTree) -> list[list[int]]:
    """Nodes of every line from below node 0 to a leaf."""
    leaves = np.setdiff1d(np.arange(1, len(side_tree)), side_tree.parents)
    return [side_tree.path(int(leaf)) for leaf in leaves]


def similarity(one: Sequence[int], other: Sequence[int], likeness: Likeness = "place") -> float:
    """How alike two lines of tokens are, 0 to 1 (the paper does not define it).

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
    """(lines,) of each line its similarity to the line that is most like it; 0 for a single line.

    Two lines are compared below the node where they part: what they share is scored once.
    """
    lines = branches(side_tree)
    best = np.zeros(len(lines))
    for (i, one), (j, other) in combinations(enumerate(lines), 2):
        shared = next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b))
        mine, its = (side_tree.tokens[line[shared:]].tolist() for line in (one, other))
        best[[i, j]] = np.maximum(best[[i, j]], similarity(mine, its, likeness))
    return best


def drafting_iterations(iterations: Sequence[Iteration], skip: int) -> list[TokenTree]:
    """What was scored beside the trees of one text, without its first `skip` times, which begin with random tokens."""
    return [one.side_tree for one in iterations if one.side_tree is not None][skip:]


def similar_rows(
    label: str, texts: Iterable[Sequence[TokenTree]], thresholds: Sequence[float], likeness: Likeness = "place"
) -> list[Row]:
    """Figure 1b: one row per threshold, with `iterations`, the share that have at least two branches more alike than
    the threshold, and `branches`, the share of all branches that are so alike to another one.

    Args:
        label: for the column `method`.
        texts: what was scored beside the trees, text by text (`drafting_rounds`).
        thresholds: similarities from 0 to 1.
        likeness: see `similarity`.
    """
    found = [most_similar(one, likeness) for text in texts for one in text]
    every = np.concatenate([*found, np.zeros(0)])
    return [
        {
            "method": label, "likeness": likeness, "threshold": limit,
            "iterations": float(np.mean([(one > limit).any() for one in found])) if found else 0.0,
            "branches": float((every > limit).mean()) if len(every) else 0.0,
        }
        for limit in thresholds
    ]  # fmt: skip


def repeated_rows(label: str, texts: Iterable[Sequence[TokenTree]], n: int = 3) -> Row:
    """Where the rows beside the trees go, as shares of them.

    A row yields the n-gram that ends in it. Keys: `method`; `twice`, rows whose n-gram another row of the same forward
    yields too (all but one of each); `again`, of the others those whose n-gram the forward before has scored; `new`,
    the rest. Rows with fewer than n - 1 drafted tokens above them count by what there is.
    """
    counts = np.zeros(3)
    for text in texts:
        before: set[tuple[int, ...]] = set()
        for side_tree in text:
            grams = [tuple(side_tree.tokens[side_tree.path(node)[-n:]].tolist()) for node in range(1, len(side_tree))]
            here = set(grams)
            counts += [len(grams) - len(here), len(here & before), len(here - before)]
            before = here
    shares = counts / max(counts.sum(), 1)
    return {"method": label, **dict(zip(("twice", "again", "new"), shares.tolist(), strict=True))}


# ---------------------------------------------------------------------------------------------------------- run time
STAGES = ("forward", "retrieval", "update", "other")
"""Where an iteration's time goes (Figure 8): the target's forward, `propose`, `observe`, the loop with its masks."""


@dataclass(frozen=True)
class Timed(Drafter):
    """A drafter whose `propose` and `observe` are reported to a `Trace`, as "retrieval" and "update"; otherwise itself.

    Args:
        drafter: does the work.
        trace: takes the times.
    """

    drafter: Drafter
    trace: Trace
    name = "timed"

    @property
    def model(self) -> LanguageModel | None:
        """The drafter's."""
        return self.drafter.model

    @property
    def drawing(self) -> Drawing:
        """The drafter's."""
        return self.drafter.drawing

    @property
    def chain(self) -> bool:
        """The drafter's."""
        return self.drafter.chain

    def check(self, target: LanguageModel) -> None:
        """See `Drafter.check`."""
        self.drafter.check(target)

    def start(self, prompt: Sequence[int], random: RandomSource) -> Any:
        """See `Drafter.start`."""
        return self.drafter.start(prompt, random)

    def extend(self, state: Any, tokens: Sequence[int]) -> Any:
        """See `Drafter.extend`."""
        return self.drafter.extend(state, tokens)

    def propose(self, state: Any, room: int, sampling: Sampling = GREEDY) -> Proposal:
        """See `Drafter.propose`; the arrays that the forward reads are made here."""
        start = self.trace.now()
        proposal = self.drafter.propose(state, room, sampling)
        rows = len(proposal.nodes[0])
        self.trace.events.append(["retrieval", start, self.trace.now(), rows])
        return proposal

    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        """See `Drafter.observe`."""
        start = self.trace.now()
        state = self.drafter.observe(state, proposal, scores, verdict)
        self.trace.events.append(["update", start, self.trace.now(), len(scores)])
        return state

    def inherit(self, state: Any, earlier: Any) -> Any:
        """See `Drafter.inherit`."""
        return self.drafter.inherit(state, earlier)

    def report(self, state: Any) -> dict[str, float]:
        """See `Drafter.report`."""
        return self.drafter.report(state)


def stage_rows(
    pair: Pair,
    methods: str | Sequence[str | Variant],
    prompts: Sequence[Any],
    max_new_tokens: int,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Greedy texts of methods of this library's loop, interleaved, their time split into `STAGES`.

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
    out = []
    with _known_objects_frozen():
        for number, prompt in enumerate(ready):
            first = number % len(chosen)
            for one in [*chosen[first:], *chosen[:first]]:
                trace = Trace(clock, lambda: _synchronize(pair.target.device))
                runner = one.runner(pair, trace.instrument)
                assert isinstance(runner, DrafterRunner)
                runner.drafter = Timed(runner.drafter, trace)
                options = {"eos_token_ids": (), "sampling": Sampling(), "seed": 0, "on_tokens": trace.on_tokens}
                with _quiet_machine(pair.target.device):
                    trace.begin()
                    runner(prompt.ids, max_new_tokens=max_new_tokens, **options)  # type: ignore[arg-type]
                out.append({"method": one.label, "prompt": prompt.id, **_stages(trace)})
    return out


def _stages(trace: Trace) -> Row:
    """Sums over the iterations after the first, from a trace's events."""
    ends = [at for name, at, _, _ in trace.events if name == "commit"]
    later = [event for event in trace.events if event[1] >= ends[0]][1:]
    seconds = ends[-1] - ends[0]
    roles = {"forward": "target", "retrieval": "retrieval", "update": "update"}
    parts = {stage: sum(end - start for name, start, end, _ in later if name == role) for stage, role in roles.items()}
    tokens = sum(count for name, _, _, count in later if name == "commit")
    counted = {"iterations": len(ends) - 1, "tokens": tokens, "seconds": seconds}
    return {**counted, **parts, "other": seconds - sum(parts.values())}


def stage_shares(rows: Iterable[Row], seed: int = 0) -> list[Row]:
    """Methods of `stage_rows` over all prompts: `method`, milliseconds per iteration of each stage and of `total`, and
    `own`, the share of retrieval and update in an iteration, with its bootstrap interval over prompts."""
    by_method: dict[str, list[Row]] = {}
    for row in rows:
        by_method.setdefault(row["method"], []).append(row)
    out = []
    for label, mine in by_method.items():
        iterations = sum(row["iterations"] for row in mine)
        parts = {stage: 1000 * sum(row[stage] for row in mine) / iterations for stage in STAGES}
        own = np.array([[row["retrieval"] + row["update"], row["seconds"]] for row in mine])
        share = {"own": float(quotient(own)), "own_interval": bootstrap(own, quotient, seed)}
        out.append({"method": label, **parts, "total": sum(parts.values()), **share})
    return out


def memory_of(thing: Any) -> int:
    """Bytes of an object and of all that it holds in containers, attributes and slots, each counted once; an estimate
    (`sys.getsizeof`), without what the allocator adds."""
    seen: dict[int, Any] = {}
    todo = [thing]
    while todo:
        one = todo.pop()
        if id(one) in seen:
            continue
        seen[id(one)] = one
        if isinstance(one, dict):
            todo += [*one.keys(), *one.values()]
        elif isinstance(one, list | tuple | set | frozenset):
            todo += one
        todo += [getattr(one, name) for name in getattr(type(one), "__slots__", ()) if hasattr(one, name)]
        todo += [one.__dict__] if hasattr(one, "__dict__") and not isinstance(one, type) else []
    return sum(map(sys.getsizeof, seen.values()))
