"""The cost model: what an iteration costs, how often a draft is right, and the speed that follows from both.

The speed of a method is its tokens over the cost of its iterations. Tokens, nodes and levels are counted without a
clock, exactly. The cost of a forward by the tokens it scores is measured once for a pair and a machine, and each
method's own work on the host as a factor. So a configuration can be chosen for a new machine without a sweep. Probes
are in `probes`, choosing a configuration is in `tune`.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dynatree_lib.costs import CostCurve, Costs
from dynatree_lib.drafters import NoDraft
from dynatree_lib.drafters.base import ModelDrafter
from dynatree_lib.engines.static import StaticModel
from dynatree_lib.measuring import DEEPEST, WIDTHS, DraftingProbe, LevelsProbe, assembled, rows_probes
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling

from ..bench.environment import describe_environment, public_name, public_pair_name
from ..bench.methods import Variant, variants
from ..bench.prompts import BenchPrompt, prepare_prompts
from ..bench.protocol import SEEDS, Results
from ..bench.records import Header, Run, check_writable, typed
from ..bench.runner import Completed, quiet
from ..drafters import ALL_DRAFTERS
from ..files import write_atomically
from .probes import FIRST, Timing, time_blocks
from .ranks import RankAcceptance

FORMAT = 1
"""Version of the file; a reader refuses others."""
ITERATIONS = 96
"""Timed iterations of each probe, over all prompts."""
BLOCK, STRETCH, STRETCHES = 8, 48, 2
"""Timed iterations of a probe before the next probe's turn; most tokens of a real drafter, and how often for each
prompt."""
QUIET = 1.3
"""Single iterations are averaged up to this ratio to their lower quartile; other work slowed the rest."""
SHORTEST = 24
"""Fewest tokens of a real drafter, where few iterations are asked for."""
LONGEST = 16
"""Longest chain that is forecast."""


# ------------------------------------------------------------------------------------------------------------- counts
@dataclass(frozen=True)
class Counts:
    """What a method did, without a clock.

    Attributes:
        tokens: generated.
        iterations: target forwards that decided tokens.
        nodes: tokens scored by each forward of the target, node 0 not counted: drafted nodes and side nodes; with
            `commit="rebuild"` the second forward of an iteration is one of the forwards.
        draft_forwards: levels drafted.
        draft_nodes: nodes the draft read in them.
        prompt_tokens: read before the first token, over all texts; 0 leaves reading the prompt out of the cost.
        method: name of the method, whose own host work the costs may know.
    """

    tokens: int
    iterations: int
    nodes: tuple[int, ...]
    draft_forwards: int = 0
    draft_nodes: int = 0
    prompt_tokens: int = 0
    method: str = ""

    @classmethod
    def total(cls, counts: Iterable[Counts]) -> Counts:
        """Return the counts of one method over several texts together."""
        parts = list(counts)
        names = ("tokens", "iterations", "draft_forwards", "draft_nodes", "prompt_tokens")
        nodes = tuple(number for part in parts for number in part.nodes)
        sums = {name: sum(getattr(part, name) for part in parts) for name in names}
        return cls(nodes=nodes, method=parts[0].method if parts else "", **sums)


def count(
    pair: Pair,
    methods: str | Sequence[str | Variant],
    prompts: Sequence[Any],
    max_new_tokens: int,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> dict[str, Counts]:
    """Return label -> counts of each method over the prompts, all texts to the budget; no clock is read.

    Raises:
        ValueError: for what `variants` and `prepare_prompts` refuse, and for methods with a loop of their own.
    """
    chosen, ready = check_countable(variants(methods)), prepare_prompts(pair, prompts, max_new_tokens)
    entries = [{"label": one.label, "name": one.name, "options": one.options} for one in chosen]
    header = Header({}, {"methods": entries, "prompts": [{"id": one.id, "tokens": len(one.ids)} for one in ready]})
    counts = {}
    for method in chosen:
        texts = decoded(pair, method, ready, max_new_tokens, sampling or Sampling(), seed)
        runs = (text.run((method.label, prompt.id, 0)) for prompt, text in zip(ready, texts, strict=True))
        counts[method.label] = counts_of(runs, header)
    return counts


def decoded(
    pair: Pair, method: Variant, prompts: Sequence[BenchPrompt], budget: int, sampling: Sampling, seed: int = 0
) -> Iterator[Completed]:
    """Yield the method's text of each prompt, one after another, every text to the budget; no clock is read.

    Seeds are those of a benchmark's first repeat, so that its texts are the same.
    """
    runner = method.runner(pair)
    options: dict[str, Any] = {"eos_token_ids": (), "on_tokens": quiet, "sampling": sampling}
    for number, prompt in enumerate(prompts):
        yield runner(prompt.ids, max_new_tokens=budget, seed=seed + SEEDS * number, **options)


def check_countable(methods: list[Variant]) -> list[Variant]:
    """Return the methods; raise ValueError naming the first that does not run in this library's loop."""
    for method in methods:
        if not _in_our_loop(method.options):
            raise ValueError(
                f"'{method.label}' does not run in this library's loop, so it cannot be counted; leave it out."
            )
    return methods


def _in_our_loop(options: Mapping[str, Any]) -> bool:
    return "commit" in options  # an option of every drafter of the table, and of nothing else


def counts_of(runs: Iterable[Run], header: Header | None = None) -> Counts:
    """Return the counts from the records of one method.

    Args:
        runs: of one label.
        header: of their file; without it the prompts' lengths and the method's name and options are not known.

    Raises:
        ValueError: if a run does not show its trees.
    """
    setup = header.setup if header else {"prompts": [], "methods": []}
    lengths = {prompt["id"]: prompt["tokens"] for prompt in setup["prompts"]}
    entries = {entry["label"]: entry for entry in setup["methods"]}
    counts = []
    for run in runs:
        if run.nodes is None or run.accepted is None:
            raise ValueError(f"The run of '{run.method}' on {run.prompt} shows no trees, so there is nothing to count.")
        entry = entries.get(run.method, {})
        rebuilt = entry.get("options", {}).get("commit") == "rebuild"
        nodes = np.add(run.nodes, run.side_nodes or 0).tolist() + (run.accepted if rebuilt else [])
        levels = [run.counters.get(name, 0) for name in ("draft_forwards", "draft_nodes")]
        facts = (*levels, lengths.get(run.prompt, 0), entry.get("name", ""))
        counts.append(Counts(len(run.tokens), run.iterations, tuple(nodes), *facts))
    return Counts.total(counts)


# -------------------------------------------------------------------------------------------------------------- costs
@dataclass(frozen=True)
class MeasuredCosts:
    """What forwards cost on one machine, in units of one greedy step of `ar`, an iteration without a tree.

    Attributes:
        step_seconds: one greedy step on a quiet machine.
        verify_points: an iteration that scores 1, 2, 4, ... tokens, host time included.
        draft_points: drafting a level by reading 1, 2, 4, ... nodes.
        overhead: what drafting adds to an iteration, however many levels are drafted.
        reading: reading one token of the prompt, by the target and by the draft.
        factors: name of a method -> cost of its iterations over what their nodes and levels predict: the work of its
            drafting on the host.
        measured: environment, setup, and the quartiles of each probe.
    """

    step_seconds: float
    verify_points: tuple[float, ...]
    draft_points: tuple[float, ...]
    overhead: float = 0.0
    reading: tuple[float, float] = (0.0, 0.0)
    factors: dict[str, float] = field(default_factory=dict)
    measured: dict[str, Any] = field(default_factory=dict)

    def options(self) -> dict[str, Any]:
        """Return the options of a cost-aware drafter for this machine."""
        overhead, prompt = round(self.overhead, 4), round(self.reading[1], 4)
        return {"costs": Costs(self.verify_points, self.draft_points, overhead, prompt)}

    def steps(self, counts: Counts) -> float:
        """Return the predicted cost of all that was counted, in greedy steps."""
        cost = float(read(self.verify_points, np.array(counts.nodes) + 1).sum())
        per_prompt_token = self.reading[0]
        if counts.draft_forwards:
            first = min(counts.iterations, counts.draft_forwards)  # an iteration's first level reads node 0 alone
            below = counts.draft_forwards - first
            width = max((counts.draft_nodes - first) / max(below, 1), 1.0)
            levels = first * read(self.draft_points, 1) + below * read(self.draft_points, width)
            cost += float(levels) + self.overhead * first
            per_prompt_token += self.reading[1]
        return self.factors.get(counts.method, 1.0) * cost + per_prompt_token * counts.prompt_tokens

    def speed(self, counts: Counts) -> float:
        """Return the predicted speed-up over `ar`: the cost of as many tokens by `ar` over this cost."""
        plain = counts.tokens * self.verify_points[0] + self.reading[0] * counts.prompt_tokens
        return plain / self.steps(counts)

    def to_json(self) -> dict[str, Any]:
        """Return a body for `json.dump`; `MeasuredCosts.from_json` reads it."""
        return {"kind": "costs", "format": FORMAT, **asdict(self)}

    @classmethod
    def from_json(cls, body: Mapping[str, Any]) -> MeasuredCosts:
        """Return the costs of a body from `to_json`.

        Raises:
            ValueError: for anything else.
        """
        try:
            if (body["kind"], body["format"]) != ("costs", FORMAT):
                raise ValueError
            costs: MeasuredCosts = typed({one.name: body[one.name] for one in fields(cls)}, cls)
            _ = CostCurve(costs.verify_points), CostCurve(costs.draft_points)  # which check their points
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"This is no cost model of format {FORMAT}; measure the costs again.") from error
        return costs


def read(points: Sequence[float], scored: float | np.ndarray) -> np.ndarray:
    """Return the cost of scoring so many tokens: linear between the points at 1, 2, 4, ... tokens.

    Beyond the last point the cost goes on with the slope of the last two points, as measured. `CostCurve.at`, which
    drafters read, goes on with the slope of its convex hull instead, because there a marginal cost must never fall.
    """
    knots = 2.0 ** np.arange(len(points))
    count = np.asarray(scored, float)
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
    """Time the loop with probes of known shape, all interleaved: greedy steps, trees of 1, 2, 4, ... nodes, levels.

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
            not leave enough of both contexts.
    """
    if max_rows < 4 or iterations < 1:
        raise ValueError(f"max_rows is {max_rows} and iterations {iterations}; give at least 4 and 1.")
    path, say = None if records is None else check_writable(Path(records)), progress or quiet
    timed = timed_tokens(len(prompts), iterations)
    ready = prepare_prompts(pair, prompts, timed)
    longest = max(len(prompt.ids) for prompt in ready)
    if longest + timed > pair.draft.context:
        raise ValueError(
            f"A prompt has {longest} tokens and with the {timed} that are timed exceeds the draft's context of "
            f"{pair.draft.context}; measure on shorter prompts, or on more, so that fewer tokens of each are timed."
        )
    setup = {
        "pair": public_pair_name(pair),
        "target": _describe_model(pair.target),
        "draft": _describe_model(pair.draft),
        "prompts": [{"id": prompt.id, "sha256": prompt.sha256, "tokens": len(prompt.ids)} for prompt in ready],
        "max_rows": max_rows,
        "iterations": iterations,
    }
    measured = {"environment": describe_environment(), "setup": setup}
    if path and existing == "reuse" and (known := _known(path, measured, say)):
        return known
    costs, probes = _measure(pair, ready, max_rows, iterations, say, clock)
    costs = replace(costs, measured={**measured, "probes": probes})
    if path:
        write_atomically(path, json.dumps(costs.to_json(), indent=1) + "\n")
    return costs


def timed_tokens(prompts: int, iterations: int = ITERATIONS) -> int:
    """Return the tokens that timing needs after each of so many prompts, in both contexts."""
    probing = FIRST + _turns(iterations, prompts) * (BLOCK + 2)
    count, tokens = _stretches(iterations)
    return max(probing, FIRST + count * tokens) + DEEPEST


def _stretches(iterations: int) -> tuple[int, int]:
    """Return how often a real drafter is timed for each prompt, and for how many tokens."""
    return (STRETCHES if iterations >= BLOCK else 1), min(STRETCH, max(SHORTEST, 2 * iterations))


def _turns(iterations: int, prompts: int) -> int:
    return -(-iterations // (BLOCK * max(prompts, 1)))


def _describe_model(model: LanguageModel) -> dict[str, Any]:
    """Return the properties of a model that its speed depends on; the values of its weights are not among them."""
    if not isinstance(model, HFModel):
        return {"name": model.name}
    return {
        "name": public_name(model.name), "parameters": model.parameters, "layers": model.layers,
        "drafted_tokens": model.vocab_size if model.drafted is None else len(model.drafted),
        "dtype": str(model.dtype).removeprefix("torch."), "attention": model.model.config._attn_implementation,
        "engine": model.engine.name, "static": isinstance(model, StaticModel), "device": str(model.device.type),
    }  # fmt: skip


def _known(path: Path, measured: dict[str, Any], progress: Callable[[str], None]) -> MeasuredCosts | None:
    """Return the costs of the file where they are of this pair, machine and setup."""
    if not path.exists():
        return None
    try:
        costs = MeasuredCosts.from_json(json.loads(path.read_text(encoding="utf-8")))
    except ValueError as error:
        progress(f"Measuring the costs again: {path.name} cannot be read ({error})")
        return None
    if all(costs.measured.get(part) == measured[part] for part in measured):
        progress(f"Costs from {path.name}")
        return costs
    progress(f"Measuring the costs again: {path.name} is of another pair, machine or setup.")
    return None


def _measure(
    pair: Pair,
    prompts: Sequence[BenchPrompt],
    max_rows: int,
    iterations: int,
    progress: Callable[[str], None],
    clock: Callable[[], float],
) -> tuple[MeasuredCosts, list[dict[str, Any]]]:
    """Return the costs, and each probe with its quartiles in seconds."""
    target, draft = pair.target, pair.draft
    sizes = [2**power for power in range(max_rows.bit_length())]
    widths = [width for width in WIDTHS if width <= max_rows]
    verifying = [Timing(probe, BLOCK + 2) for probe in rows_probes(target, sizes)]
    probes = [LevelsProbe(draft, width, clock) for width in widths]
    drafting = [Timing(probe, BLOCK + 2) for probe in probes]
    time_blocks(target, [*verifying, *drafting], prompts, _turns(iterations, len(prompts)), progress, clock)
    verify = [quiet_mean(one.iterations["seconds"]) for one in verifying]
    step, levels = verify[0], [quiet_mean(probe.taken) for probe in probes]
    reading = _reading(verifying, drafting, [len(prompt.ids) for prompt in prompts], step)
    known = assembled(verify, levels, sizes, widths)
    kinds: list[Any] = [*ALL_DRAFTERS]
    count, tokens = _stretches(iterations)
    real = [Timing(kind(draft) if issubclass(kind, ModelDrafter) else kind(), tokens) for kind in kinds]
    host = DraftingProbe(draft, costs=known, features=draft.feature_layers, clock=clock)
    time_blocks(target, [*real, Timing(host, tokens)], prompts, count, progress, clock)
    costs = MeasuredCosts(step, known.verify, known.draft, host.cost(step), reading)
    real = [timing for timing in real if len(timing.iterations)]  # few tokens may be all guessed at once
    told = []
    for timing in (*verifying, *drafting, *real):
        probe, seconds = timing.drafter, timing.iterations["seconds"]
        shape = {name: getattr(probe, name) for name in ("rows", "levels", "width") if hasattr(probe, name)}
        quartiles = seconds.quantile([0.25, 0.5, 0.75]).tolist()
        told.append({"probe": probe.name, **shape, "iterations": len(seconds), "seconds": quartiles})
    return replace(costs, factors=_factors(real, costs)), told


def _reading(
    verifying: Sequence[Timing], drafting: Sequence[Timing], lengths: Sequence[int], step: float
) -> tuple[float, float]:
    """Return the greedy steps that reading one token of the prompt takes, by the target and by the draft."""
    begins = [np.array(timing.begins) - timing.iterations["seconds"].median() for timing in (*verifying, *drafting)]
    parts = np.split(np.array(begins) / lengths, [len(verifying)])
    by_target, by_both = (float(np.median(part)) for part in parts)
    return max(by_target, 0.0) / step, max(by_both - by_target, 0.0) / step


def quiet_mean(times: Sequence[float] | np.ndarray) -> float:
    """Return the mean of the times up to `QUIET` times their lower quartile, because other work only adds time."""
    seconds = np.asarray(times, float)
    return float(seconds[seconds <= QUIET * np.quantile(seconds, 0.25)].mean())


def _factors(timings: Sequence[Timing], costs: MeasuredCosts) -> dict[str, float]:
    """Return the time of each drafter's iterations over what nodes and levels predict, relative to `ar`'s."""
    ratios = {}
    for timing in timings:
        iterations = timing.iterations
        counts = (Counts(0, 1, (one.nodes,), one.levels, one.read) for one in iterations.itertuples())
        ratios[timing.drafter.name] = quiet_mean(iterations["seconds"] / [costs.steps(one) for one in counts])
    plain = ratios.pop(NoDraft.name)
    return {name: round(ratio / plain, 4) for name, ratio in ratios.items()}


# ----------------------------------------------------------------------------------------------------------- forecasts
def prediction_rows(results: Results, costs: MeasuredCosts) -> list[dict[str, Any]]:
    """Return predicted and measured speed-up over `ar` of every method of this library's loop, for a table or a figure.

    A row has `method` (the label), `name`, `predicted`, `measured`, `low` and `high` (its paired 95 % interval) and
    `predicted_iteration`, `tokens_per_iteration`. Methods with another loop, and those made for one run, have no row.
    `measured` is None in a run without `ar`.
    """
    rows = []
    for method in results.summaries():
        if _in_our_loop(method["options"]):
            runs = [run for run in results.records.runs.values() if run.method == method["label"]]
            counts = counts_of(runs, results.records.header)
            low, high = method["speedup_ar_interval"] or (None, None)
            rows.append(
                {"method": method["label"], "name": method["method"], "predicted": costs.speed(counts),
                 "measured": method["speedup_ar"], "low": low, "high": high,
                 "predicted_iteration": costs.steps(counts) / counts.iterations,
                 "tokens_per_iteration": counts.tokens / counts.iterations}
            )  # fmt: skip
    return rows


def shape_speed(costs: MeasuredCosts, acceptance: RankAcceptance, branchings: Sequence[int]) -> float:
    """Return the predicted tokens per greedy step of an unpruned tree of these children per node, level by level.

    A chain of K has the branchings (1,) * K. Reading the prompt is left out.
    """
    widths = np.cumprod([1, *branchings])  # nodes of each level, node 0's first
    drafting = costs.overhead + read(costs.draft_points, widths[:-1]).sum()
    factor = costs.factors.get("chain" if max(branchings) == 1 else "fixed-tree", 1.0)
    return acceptance.expected_tokens(branchings) / factor / float(read(costs.verify_points, widths.sum()) + drafting)


def best_chain(costs: MeasuredCosts, acceptance: RankAcceptance) -> tuple[int, float]:
    """Return the best chain length up to `LONGEST`, and its predicted speed in tokens per greedy step."""
    speeds = {length: shape_speed(costs, acceptance, (1,) * length) for length in range(1, LONGEST + 1)}
    return max(speeds.items(), key=lambda item: item[1])
