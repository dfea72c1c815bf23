"""The cost model: what an iteration costs, how often a draft is right, and the speed that follows from both.

The speed of a method is its tokens over the cost of its iterations. Tokens, rows and levels are counted without a
clock, exactly; the cost of a forward by its rows is measured once for a pair and a machine, and each method's own work
on the host as a factor. So a configuration can be chosen for a new machine without a sweep. What a probe is belongs to
`probes`, choosing to `tune`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np

from ..costs import CostCurve
from ..drafters import DRAFTERS, Chain, Drafter, NoDraft
from ..drafters.base import ModelDrafter
from ..models.base import LanguageModel
from ..models.huggingface import HFModel
from ..models.pairs import Pair
from ..sampling import Sampling
from .environment import describe_environment, public_name
from .methods import Variant, variants
from .probes import DEEPEST, FIRST, LEVELS, PROPOSED, LevelsProbe, RowsProbe, Timing, time_blocks
from .prompts import BenchPrompt, prepare_prompts
from .protocol import Results
from .ranks import RankAcceptance
from .records import Header, Run, check_writable, write_atomically
from .runner import Completed

FORMAT = 1
"""Version of the file; a reader refuses others."""
ITERATIONS = 96
"""Timed iterations of each probe, over all prompts."""
BLOCK, STRETCH, STRETCHES = 8, 48, 2
"""Timed iterations of a probe before the next has its turn; tokens of a real drafter, and how often for each prompt."""
WIDEST = 16
"""Most nodes of a drafted level that is timed."""
DISTURBED = 1.3
"""Ratio to the lower quartile beyond which an iteration counts as disturbed, by another process say."""
SMALLEST = 1e-4
"""Least cost that is believed, in greedy steps."""


# ------------------------------------------------------------------------------------------------------------- counts
@dataclass(frozen=True)
class Counts:
    """What a method did, without a clock.

    Attributes:
        tokens: generated.
        iterations: target forwards that decided tokens.
        nodes: rows of each forward of the target, node 0 not counted: drafted nodes, and what is scored beside the
            tree; with `commit="rebuild"` the second forward of an iteration is one of them.
        draft_forwards: levels drafted.
        draft_rows: nodes the draft read in them.
        prompt_tokens: read before the first token, over all texts; 0 leaves reading the prompt out of the cost.
        method: name of the method, whose own host work the costs may know.
    """

    tokens: int
    iterations: int
    nodes: tuple[int, ...]
    draft_forwards: int = 0
    draft_rows: int = 0
    prompt_tokens: int = 0
    method: str = ""

    @classmethod
    def total(cls, several: Iterable[Counts]) -> Counts:
        """Counts of one method over several texts together."""
        all_of = list(several)
        sums = {
            name: sum(getattr(one, name) for one in all_of)
            for name in cls.__dataclass_fields__
            if name not in _NOT_SUMS
        }
        return cls(
            **sums, nodes=tuple(n for one in all_of for n in one.nodes), method=all_of[0].method if all_of else ""
        )


_NOT_SUMS = ("nodes", "method")


def count(
    pair: Pair,
    methods: str | Sequence[str | Variant],
    prompts: Sequence[Any],
    max_new_tokens: int,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> dict[str, Counts]:
    """Label -> counts of each method over the prompts, all texts to the budget; no clock is read.

    Raises:
        ValueError: for what `variants` and `prepare_prompts` refuse, and for methods with a loop of their own.
    """
    chosen, ready = check_countable(variants(methods)), prepare_prompts(pair, prompts, max_new_tokens)
    out = {}
    for one in chosen:
        texts = zip(ready, decoded(pair, one, ready, max_new_tokens, sampling or Sampling(), seed), strict=True)
        rebuilt = one.options["commit"] == "rebuild"
        out[one.label] = Counts.total(counted(done, len(each.ids), one.name, rebuilt) for each, done in texts)
    return out


def decoded(
    pair: Pair, method: Variant, prompts: Sequence[BenchPrompt], budget: int, sampling: Sampling, seed: int = 0
) -> Iterator[Completed]:
    """The method's text of each prompt, one after another, every one to the budget; no clock is read."""
    runner = method.runner(pair)
    for each in prompts:
        yield runner(each.ids, max_new_tokens=budget, eos_token_ids=(), on_tokens=_ignore, sampling=sampling, seed=seed)


def check_countable(methods: list[Variant]) -> list[Variant]:
    """The methods, if the cost model knows their loop; ValueError naming the first whose it does not."""
    for one in methods:
        if not _own_loop(one.options):
            raise ValueError(
                f"'{one.label}' does not run in this library's loop, so it cannot be counted; leave it out."
            )
    return methods


def _ignore(given: object) -> None:
    """Nobody waits for the tokens, or for a line of progress."""


def _own_loop(options: Mapping[str, Any]) -> bool:
    return "commit" in options  # an option of every drafter of the table, and of nothing else


def counted(done: Completed, prompt: int = 0, method: str = "", rebuilt: bool = False) -> Counts:
    """Counts of one text; without `prompt`, `method` and `rebuilt`, of its rows and levels alone."""
    iterations = done.iterations or []
    nodes = [len(one.tree) - 1 + one.side_nodes for one in iterations]
    again = [len(one.verdict.path) for one in iterations] if rebuilt else []
    return Counts(len(done.tokens), done.forwards, (*nodes, *again), *_drafted(done.counters), prompt, method)


def _drafted(counters: Mapping[str, int]) -> tuple[int, int]:
    return counters.get("draft_forwards", 0), counters.get("draft_rows", 0)


def counts_of(runs: Iterable[Run], header: Header | None = None) -> Counts:
    """The same from the records of one method.

    Args:
        runs: of one label.
        header: of their file; without it the prompts' lengths and the method's name and options are not known.

    Raises:
        ValueError: if a run does not show its trees.
    """
    setup = header.setup if header else {"prompts": [], "methods": []}
    lengths = {one["id"]: one["tokens"] for one in setup["prompts"]}
    entries = {one["label"]: one for one in setup["methods"]}
    return Counts.total(_recorded(run, lengths.get(run.prompt, 0), entries.get(run.method, {})) for run in runs)


def _recorded(run: Run, prompt: int, entry: Mapping[str, Any]) -> Counts:
    if run.nodes is None or run.accepted is None:
        raise ValueError(f"The run of '{run.method}' on {run.prompt} shows no trees, so there is nothing to count.")
    rebuilt = entry.get("options", {}).get("commit") == "rebuild"
    rows = (drafted + more for drafted, more in zip(run.nodes, run.side_nodes or [0] * len(run.nodes), strict=True))
    nodes = (*rows, *(run.accepted if rebuilt else ()))
    return Counts(len(run.tokens), run.iterations, nodes, *_drafted(run.counters), prompt, entry.get("name", ""))


# -------------------------------------------------------------------------------------------------------------- costs
@dataclass(frozen=True)
class MeasuredCosts:
    """What forwards cost on one machine, in units of one greedy step: an iteration of `ar`.

    Attributes:
        step_seconds: one greedy step, undisturbed.
        verify_points: an iteration whose tree has 1, 2, 4, ... rows, host time included.
        draft_points: drafting a level by reading 1, 2, 4, ... nodes.
        overhead: what drafting adds to an iteration, however many levels are drafted.
        reading: reading one token of the prompt, by the target and by the draft.
        factors: name of a method -> cost of its iterations over that of a chain with as many rows and levels: the work
            of its rule on the host.
        measured: how: environment, setup, and the quartiles of each probe.
    """

    step_seconds: float
    verify_points: tuple[float, ...]
    draft_points: tuple[float, ...]
    overhead: float = 0.0
    reading: tuple[float, float] = (0.0, 0.0)
    factors: dict[str, float] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)

    @cached_property
    def verify(self) -> CostCurve:
        """The target's curve as cost-aware drafting reads it."""
        return CostCurve(self.verify_points)

    @cached_property
    def draft(self) -> CostCurve:
        """The draft's curve as cost-aware drafting reads it."""
        return CostCurve(self.draft_points)

    def options(self) -> dict[str, Any]:
        """Options of `CostAwareTree` for this machine."""
        return {
            "verify_cost": self.verify_points, "draft_cost": self.draft_points, "overhead": round(self.overhead, 4)
        }  # fmt: skip

    def steps(self, counts: Counts) -> float:
        """Predicted cost of all that was counted, in greedy steps."""
        verify = float(read(self.verify_points, np.array(counts.nodes) + 1).sum())
        factor = self.factors.get(counts.method, 1.0)
        return factor * (verify + self._drafting(counts)) + self._reading(counts)

    def speed(self, counts: Counts) -> float:
        """Predicted speed-up over `ar`: its cost of as many tokens over this cost."""
        plain = counts.tokens * self.verify_points[0] + self.reading[0] * counts.prompt_tokens
        return plain / self.steps(counts)

    def _drafting(self, counts: Counts) -> float:
        if not counts.draft_forwards:
            return 0.0
        first = min(counts.iterations, counts.draft_forwards)  # the first level of an iteration reads node 0 alone
        below = counts.draft_forwards - first
        width = max((counts.draft_rows - first) / max(below, 1), 1.0)
        levels = first * read(self.draft_points, 1) + below * read(self.draft_points, width)
        return float(levels) + self.overhead * first

    def _reading(self, counts: Counts) -> float:
        per_token = self.reading[0] + (self.reading[1] if counts.draft_forwards else 0.0)
        return per_token * counts.prompt_tokens

    def to_json(self) -> dict[str, Any]:
        """Ready for `json.dump`; `MeasuredCosts.from_json` reads it."""
        return {"kind": "costs", "format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> MeasuredCosts:
        """Costs from `to_json`.

        Raises:
            ValueError: for anything else.
        """
        try:
            if (body["kind"], body["format"]) != ("costs", FORMAT):
                raise ValueError
            verify, draft = (tuple(map(float, body[name])) for name in ("verify_points", "draft_points"))
            target_reads, draft_reads = map(float, body["reading"])
            step, overhead, measured = float(body["step_seconds"]), float(body["overhead"]), dict(body["measured"])
            factors = {str(name): float(value) for name, value in body["factors"].items()}
            made = cls(step, verify, draft, overhead, (target_reads, draft_reads), factors, measured)
            CostCurve(made.verify_points), CostCurve(made.draft_points)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"This is no cost model of format {FORMAT}; measure the costs again.") from error
        return made


def read(points: Sequence[float], rows: float | np.ndarray) -> np.ndarray:
    """Cost at so many rows: linear between the points at 1, 2, 4, ... rows, beyond the last with the last slope.

    Unlike a `CostCurve`, whose prices never fall, it keeps the step that a first row's own kernel can make.
    """
    knots = 2.0 ** np.arange(len(points))
    count = np.asarray(rows, float)
    slope = max(points[-1] - points[-2], 0.0) / (knots[-1] - knots[-2])
    return np.asarray(np.interp(count, knots, points) + np.maximum(count - knots[-1], 0) * slope)


def measure_costs(
    pair: Pair,
    prompts: Sequence[Any],
    *,
    records: str | Path | None = None,
    max_rows: int = 64,
    iterations: int = ITERATIONS,
    existing: Literal["reuse", "replace"] = "reuse",
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> MeasuredCosts:
    """Time the loop with probes of known shape, all interleaved: greedy steps, trees of 1, 2, 4, ... rows, levels.

    Args:
        pair: target and draft.
        prompts: texts to measure on, as for `run_benchmark`; a few, of usual length.
        records: JSON file to keep the costs in.
        max_rows: the largest trees that are timed have the greatest power of two within it.
        iterations: timed per probe, over all prompts.
        existing: what to do with costs in `records`: "reuse" takes them if they are of this pair, machine and setup.
        progress: called with a line of text now and then.
        clock: seconds.

    Raises:
        ValueError: before any work, for max_rows < 4, iterations < 1, a file that cannot be written, prompts that do
            not leave room in both contexts.
    """
    if max_rows < 4 or iterations < 1:
        raise ValueError(f"max_rows is {max_rows} and iterations {iterations}; give at least 4 and 1.")
    path = None if records is None else check_writable(Path(records))
    say = progress or _ignore
    turns = _turns(iterations, len(prompts))
    ready = _prompts(pair, prompts, timed_tokens(len(prompts), iterations))
    measured = {"environment": describe_environment(), "setup": _setup(pair, ready, max_rows, iterations)}
    if path and existing == "reuse" and (known := _known(path, measured, say)):
        return known
    found = _measure(pair, ready, max_rows, turns, measured, say, clock)
    if path:
        write_atomically(path, json.dumps(found.to_json(), indent=1) + "\n")
    return found


def timed_tokens(prompts: int, iterations: int = ITERATIONS) -> int:
    """Room that timing needs after each of so many prompts, in both contexts."""
    probing = FIRST + _turns(iterations, prompts) * (BLOCK + 2)
    return max(probing, FIRST + STRETCHES * STRETCH) + DEEPEST


def _turns(iterations: int, prompts: int) -> int:
    return -(-iterations // (BLOCK * max(prompts, 1)))


def _prompts(pair: Pair, prompts: Sequence[Any], room: int) -> list[BenchPrompt]:
    ready = prepare_prompts(pair, prompts, room)
    longest = max(len(one.ids) for one in ready)
    if longest + room > pair.draft.context:
        raise ValueError(
            f"A prompt has {longest} tokens and with the {room} that are timed exceeds the draft's context of "
            f"{pair.draft.context}; measure on shorter prompts, or on more, so that fewer tokens of each are timed."
        )
    return ready


def _setup(pair: Pair, prompts: Sequence[BenchPrompt], max_rows: int, iterations: int) -> dict[str, Any]:
    return {
        "pair": public_pair_name(pair),
        "target": _shape(pair.target),
        "draft": _shape(pair.draft),
        "prompts": [{"id": one.id, "sha256": one.sha256, "tokens": len(one.ids)} for one in prompts],
        "max_rows": max_rows,
        "iterations": iterations,
    }


def public_pair_name(pair: Pair) -> str:
    """The pair's name without the folders of this machine."""
    return " + ".join(public_name(part) for part in pair.name.split(" + "))


def _shape(model: LanguageModel) -> dict[str, Any]:
    """What of a model its speed depends on; the values of its weights are not among it."""
    if not isinstance(model, HFModel):
        return {"name": model.name}
    return {
        "name": public_name(model.name), "parameters": model.parameters, "layers": model.layers,
        "dtype": str(model.dtype).removeprefix("torch."), "attention": model.model.config._attn_implementation,
        "device": str(model.device.type),
    }  # fmt: skip


def _known(path: Path, measured: dict[str, Any], say: Callable[[str], None]) -> MeasuredCosts | None:
    if not path.exists():
        return None
    try:
        found = MeasuredCosts.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        say(f"Measuring the costs again: {path.name} cannot be read ({error})")
        return None
    if all(found.measured.get(part) == measured[part] for part in measured):
        say(f"Costs from {path.name}")
        return found
    say(f"Measuring the costs again: {path.name} is of another pair, machine or setup.")
    return None


def _measure(
    pair: Pair,
    prompts: Sequence[BenchPrompt],
    max_rows: int,
    turns: int,
    measured: dict[str, Any],
    say: Callable[[str], None],
    clock: Callable[[], float],
) -> MeasuredCosts:
    target, draft = pair.target, pair.draft
    rows = [2**power for power in range(1, max_rows.bit_length())]
    shapes = [(1, 1), *((1 + LEVELS, width) for width in (1, 2, 4, 8, WIDEST) if width <= max_rows)]
    verifying = [Timing(one, BLOCK + 2) for one in (NoDraft(), *(RowsProbe(n, target.vocab_size) for n in rows))]
    drafting = [Timing(LevelsProbe(draft, levels, width), BLOCK + 2) for levels, width in shapes]
    time_blocks(target, [*verifying, *drafting], prompts, turns, say, clock)
    costs = _costs(verifying, drafting, [len(one.ids) for one in prompts])
    real = [Timing(one, STRETCH) for one in _drafters(draft)]
    time_blocks(target, real, prompts, STRETCHES, say, clock)
    probes = [_described(one) for one in (*verifying, *drafting, *real)]
    return replace(costs, factors=_factors(real, costs), measured={**measured, "probes": probes})


def _drafters(draft: LanguageModel) -> list[Drafter]:
    """Every drafter, as it comes."""
    kinds = [kind for kind in DRAFTERS if kind is not NoDraft]
    return [kind(draft) if issubclass(kind, ModelDrafter) else kind() for kind in kinds]  # type: ignore[call-arg]


def _costs(verifying: Sequence[Timing], drafting: Sequence[Timing], lengths: Sequence[int]) -> MeasuredCosts:
    verify = np.array([undisturbed(one.seconds) for one in verifying])
    first, *deep = (undisturbed(one.seconds) for one in drafting)
    levels, step = (np.array(deep) - first) / LEVELS, float(verify[0])
    mine, both = (
        float(np.median([(one.begins - np.median(one.seconds)) / lengths for one in part]))
        for part in (verifying, drafting)
    )
    drafting_at_all = first - float(verify[PROPOSED.bit_length() - 1]) - float(levels[0])
    reading = (max(mine, 0.0) / step, max(both - mine, 0.0) / step)
    return MeasuredCosts(
        step, _rising(verify / step), _rising(levels / step), max(drafting_at_all / step, 0.0), reading
    )


def _factors(timings: Sequence[Timing], costs: MeasuredCosts) -> dict[str, float]:
    """Time of each drafter's iterations over what their rows and levels predict, relative to a chain's."""
    ratios = {}
    for timing in timings:
        iterations = [one for block in timing.blocks for one in block]
        counts = [Counts(0, 1, (one.nodes,), one.levels, one.read) for one in iterations]
        predicted = np.array([costs.steps(one) for one in counts])
        ratios[timing.drafter.name] = undisturbed(timing.seconds / predicted)
    return {name: round(ratio / ratios[Chain.name], 4) for name, ratio in ratios.items()}


def undisturbed(times: np.ndarray) -> float:
    """Mean of the times up to `DISTURBED` times their lower quartile: what disturbs an iteration makes it longer."""
    return float(times[times <= DISTURBED * np.quantile(times, 0.25)].mean())


def _rising(costs: np.ndarray) -> tuple[float, ...]:
    """Costs that never fall as rows are added: where they were measured to, the larger forward's cost bounds it."""
    rising = np.minimum.accumulate(np.maximum(costs, SMALLEST)[::-1])[::-1]
    return tuple(round(float(cost), 4) for cost in rising)


def _described(timing: Timing) -> dict[str, Any]:
    """A probe and its quartiles in seconds, as measured."""
    probe = timing.drafter
    shape = {name: getattr(probe, name) for name in ("rows", "levels", "width") if hasattr(probe, name)}
    quartiles = [float(value) for value in np.quantile(timing.seconds, [0.25, 0.5, 0.75])]
    return {"probe": probe.name, **shape, "iterations": len(timing.seconds), "seconds": quartiles}


# ----------------------------------------------------------------------------------------------------------- forecasts
def prediction_rows(results: Results, costs: MeasuredCosts) -> list[dict[str, Any]]:
    """Predicted and measured speed-up over `ar` of every method of this library's loop, for a table or a figure.

    A row has `method` (the label), `name`, `predicted`, `measured`, `low` and `high` (its paired 95 % interval) and
    `predicted_iteration`, `tokens_per_iteration`. Methods with another loop, and those made for one run, have no row.
    `measured` is None in a run without `ar`.
    """
    header, rows = results.records.header, []
    for one in results.summaries():
        if _own_loop(one.options):
            runs = [run for run in results.records.runs.values() if run.method == one.label]
            counts = counts_of(runs, header)
            low, high = one.speedup_ar_interval or (None, None)
            rows.append(
                {"method": one.label, "name": one.method, "predicted": costs.speed(counts), "measured": one.speedup_ar,
                 "low": low, "high": high, "predicted_iteration": costs.steps(counts) / counts.iterations,
                 "tokens_per_iteration": counts.tokens / counts.iterations}
            )  # fmt: skip
    return rows


def shape_speed(costs: MeasuredCosts, acceptance: RankAcceptance, branchings: Sequence[int]) -> float:
    """Predicted tokens per greedy step of an unpruned tree of these children per node, level by level.

    A chain of K has the branchings (1,) * K. Reading the prompt is left out.
    """
    widths = np.cumprod([1, *branchings])  # nodes of each level, node 0's first
    drafting = costs.overhead + read(costs.draft_points, widths[:-1]).sum()
    factor = costs.factors.get("chain" if max(branchings) == 1 else "fixed-tree", 1.0)
    return acceptance.expected_tokens(branchings) / factor / float(read(costs.verify_points, widths.sum()) + drafting)


def best_shape(
    costs: MeasuredCosts, acceptance: RankAcceptance, shapes: Iterable[Sequence[int]]
) -> tuple[tuple[int, ...], float]:
    """The fastest of some unpruned shapes, and its predicted speed in tokens per greedy step."""
    speeds = {tuple(shape): shape_speed(costs, acceptance, shape) for shape in shapes}
    return max(speeds.items(), key=lambda item: item[1])


def best_chain(costs: MeasuredCosts, acceptance: RankAcceptance, longest: int = 16) -> tuple[int, float]:
    """The best chain length up to `longest`, and its predicted speed in tokens per greedy step."""
    shape, speed = best_shape(costs, acceptance, [(1,) * length for length in range(1, longest + 1)])
    return len(shape), speed
