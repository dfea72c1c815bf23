"""Choosing a configuration for a pair on this machine: cost model first, one short timed run as a check.

Candidates are counted on a few prompts without a clock, and the cost model turns counts into speeds, so that many are
compared in the time that few take to measure, and those of one method on equal terms. Between methods their measured
factors decide too, which other work on the machine can shift; so the timed check decides last. `cli.tune` is the
command line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from dynatree_lib.costs import ASSUMED, Costs
from dynatree_lib.decoding import generate
from dynatree_lib.drafters import Drafter
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling

from ..bench.environment import public_pair_name
from ..bench.grids import grid, text
from ..bench.methods import Variant, variant, variants
from ..bench.options import parse_spec
from ..bench.prompts import BenchPrompt, prepare_prompts
from ..bench.protocol import SEEDS, plain, run_benchmark
from ..bench.records import typed
from ..bench.runner import quiet
from ..bench.statistics import Estimate
from ..drafters import BASELINES, WRAPPERS
from .cost_model import Counts, MeasuredCosts, best_chain, check_countable, count, measure_costs
from .ranks import RankAcceptance, RanksProbe

FORMAT = 1
"""Version of the file; a reader refuses others."""
TIMED_PROMPTS = 3
"""Prompts the costs are measured on."""
LEGS = (2, 2)
"""Prompts of the first stages of the selection; after each stage the best third of a method's candidates goes on."""
REPEATS = 2
"""Timed runs per prompt in the check."""
COSTS = "costs"
"""The option of cost-aware drafting that is measured, not chosen."""
OLD_COSTS = ("verify_cost", "draft_cost", "overhead")
"""The options that it was before."""


@dataclass(frozen=True)
class Prediction:
    """The best candidate of one method.

    Attributes:
        method: its name.
        spec: as `dynatree bench --methods` takes it.
        speed: predicted speed-up over `ar`.
        tokens, nodes, levels: tokens committed, nodes and levels drafted per iteration, counted on the prompts.
        measured: speed-up over `ar` in the check; None without a check.
        interval: paired 95 % interval of `measured`.
    """

    method: str
    spec: str
    speed: float
    tokens: float
    nodes: float
    levels: float
    measured: float | None = None
    interval: tuple[float, float] | None = None


@dataclass(frozen=True)
class Tuned:
    """The result of tuning.

    Attributes:
        pair: name of the pair.
        spec: the configuration to use, as `dynatree bench --methods` takes it.
        reason: a sentence on the choice.
        costs: the cost model of pair and machine.
        acceptance: how often the draft's choices are right, by level and rank.
        predictions: the best candidate of each method, fastest prediction first.
        setup: prompts, budget, sampling, number of candidates, dtype of the target.
    """

    pair: str
    spec: str
    reason: str
    costs: MeasuredCosts
    acceptance: RankAcceptance
    predictions: tuple[Prediction, ...]
    setup: dict[str, Any] = field(default_factory=dict)

    def drafter(self, draft: LanguageModel | None) -> Drafter:
        """Return the drafter to use, for `generate`."""
        chosen = variant(self.spec)
        assert chosen.method.drafter is not None  # `tune` takes no other methods
        return chosen.method.drafter(chosen.options, draft)

    @property
    def python(self) -> str:
        """The drafter as an `expression`."""
        return expression(self.drafter(None))

    def to_json(self) -> dict[str, Any]:
        """Return a body for `json.dump`; `load_tuned` reads it from a file."""
        options = plain(variant(self.spec).options)
        own = {"costs": self.costs.to_json(), "options": options, "python": self.python}
        return {"kind": "tuned", "format": FORMAT, **asdict(self), **own}


def expression(drafter: Any) -> str:
    """Return a drafter as an expression; its draft is `pair.draft`.

    `dt` is `dynatree_lib`, and `drafters` is `dynatree_suite.drafters`, where the baselines are.
    """
    given = []
    for one in fields(drafter):
        value = getattr(drafter, one.name)
        if one.name == "draft":
            given.append("pair.draft")
        elif isinstance(value, Drafter):
            given.append(expression(value))
        elif value != one.default:
            given.append(f"{one.name}={'dt.' * isinstance(value, Costs)}{value!r}")
    place = "drafters" if isinstance(drafter, (*BASELINES, *WRAPPERS)) else "dt"
    return f"{place}.{type(drafter).__name__}({', '.join(given)})"


def load_tuned(path: str | Path) -> Tuned:
    """Return the result that `dynatree tune` saved.

    Raises:
        ValueError: if the file is missing, or of another format.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no file {path}; `dynatree tune --pair NAME --out {path}` writes one.")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if (body["kind"], body["format"]) != ("tuned", FORMAT):
            raise ValueError("another kind or format")
        body["costs"] = MeasuredCosts.from_json(body["costs"])
        tuned: Tuned = typed({one.name: body[one.name] for one in fields(Tuned)}, Tuned)
        predictions = tuple(replace(one, spec=_in_present_words(one.spec)) for one in tuned.predictions)
        tuned = replace(tuned, spec=_in_present_words(tuned.spec), predictions=predictions)
        variant(tuned.spec)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{path} holds no tuned configuration of format {FORMAT}; tune again ({error}).") from error
    return tuned


def _in_present_words(spec: str) -> str:
    """Return a spec whose costs may be written as before they were one option; also those of its parts."""
    name, options = parse_spec(spec)
    given = _joined_costs(options)
    for key, value in given.items():
        part, semicolon, inner = value.partition(";")
        if semicolon:
            joined = _joined_costs(dict(each.split("=", 1) for each in inner.split(";")))
            given[key] = ";".join([part, *(f"{inner_key}={each}" for inner_key, each in joined.items())])
    return ":".join([name, *([",".join(f"{key}={value}" for key, value in given.items())] if given else [])])


def _joined_costs(options: Mapping[str, str]) -> dict[str, str]:
    """Return options with one for costs in place of the three that there were, whose defaults were those of 2026."""
    old = {key: value for key, value in options.items() if key in OLD_COSTS}
    rest = {key: value for key, value in options.items() if key not in OLD_COSTS}
    if not old or old == {"verify_cost": "none"}:
        return rest | ({COSTS: "none"} if old else {})
    verify = old.get("verify_cost", text(ASSUMED.verify))
    drafted = set(old) != {"verify_cost"}
    draft, overhead = old.get("draft_cost", text(ASSUMED.draft)), old.get("overhead", str(ASSUMED.overhead))
    return rest | {COSTS: f"{verify}+{draft}+{overhead}" if drafted else verify}


# --------------------------------------------------------------------------------------------------------- candidates
def candidates(costs: MeasuredCosts, max_rows: int = 64, sampled: bool = False) -> list[Variant]:
    """Return the configurations of every method that are worth counting: library defaults, and grids around them.

    Args:
        costs: given to cost-aware drafting.
        max_rows: largest budget of nodes.
        sampled: whether texts are sampled, so that drawn trees are worth counting too.
    """
    budgets = [nodes for nodes in (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256) if nodes <= max_rows]
    priced = {name: (value,) for name, value in costs.options().items()} | {"max_nodes": (max_rows,)}
    scoring, branchings = Costs(costs.verify_points), ((2, 1), (3, 1), (3, 2, 1))
    specs = [
        "ar",
        *_grid("chain", length=range(1, 13)),
        "fixed-tree",
        *_grid("fixed-tree", depth=(5, 7, 9), branching=branchings, tau=(0.03, 0.1), max_nodes=budgets[1::2]),
        "best-first-tree",
        *_grid("best-first-tree", max_nodes=budgets, depth=(5, 8, 12)),
        "adaptive-tree",
        *_grid("adaptive-tree", max_nodes=budgets[1::2], mid_branching=(1, 2), max_branching=(2, 3)),
        *_grid("cost-aware-tree", **priced, child=(0.7, 0.85, 1.0), branching=(2, 4)),
        *_grid("lookup-tree", **priced, ngram=(2, 3), longest=(8, 12)),
        # Without a draft model. PTD's draft trees are small, because every scored node costs.
        "ptd",
        *(
            f"ptd:start_tree={lines},depth={depth},max_draft={lines * (depth + 1)},text_depth=10,prune_first=false,"
            f"costs={scoring}"
            for lines, depth in ((1, 3), (1, 6), (2, 3), (2, 6), (4, 6))
        ),
        *_grid("lookahead", window=(3, 7), ngram=(3, 5), guesses=(3, 7), text=("true",)),
        *_grid("self-draft", branches=(1, 3, 6), candidates=(3, 10)),
        *_grid("prompt-lookup", ngram=(2, 3), length=(6, 10, 15)),
        *_grid("suffix-tree", costs=(scoring,), max_nodes=(max_rows,)),
        *_grid("token-recycling", costs=(scoring,), max_nodes=(max_rows,)),
        *(
            f"union-tree:first={first},second=token-recycling;costs=none;max_nodes={max_rows // 2},"
            f"max_nodes={max_rows},costs={scoring}"
            for first in (f"suffix-tree;costs=none;max_nodes={max_rows // 2}", _inner("lookup-tree", priced))
        ),
    ]
    if sampled:
        specs += _grid("sampled-tree", depth=(1, 2, 3, 4, 6), branching=(1, (2, 1), (3, 1)))
        specs += _grid("cost-aware-sampled-tree", **priced, branching=(1, 2, 4))
    return [variant(spec) for spec in dict.fromkeys(specs)]


def tunable(sampled: bool = False) -> list[str]:
    """Return the names of the methods that have `candidates`."""
    anything = MeasuredCosts(1.0, (1.0, 1.0), (1.0, 1.0))
    return list(dict.fromkeys(one.name for one in candidates(anything, sampled=sampled)))


def _inner(method: str, axes: Mapping[str, Sequence[Any]]) -> str:
    """A method as a part of another, with the first value of each axis."""
    return ";".join([method, *(f"{name}={text(values[0])}" for name, values in axes.items())])


def _grid(method: str, **axes: Sequence[Any]) -> list[str]:
    return [f"{method}:{one.label}" for one in grid(method, {}, **axes)]


# ------------------------------------------------------------------------------------------------------------- tuning
def tune(
    pair: Pair,
    prompts: Sequence[Any],
    *,
    max_new_tokens: int = 128,
    max_rows: int = 64,
    sampling: Sampling | None = None,
    seed: int = 0,
    costs: MeasuredCosts | None = None,
    methods: str | Sequence[str] | None = None,
    names: Collection[str] = (),
    check: bool = True,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Tuned:
    """Return the configuration to use for a pair on this machine.

    Args:
        pair: target and draft.
        prompts: a few of the kind that will be decoded, as for `run_benchmark`; not those the result is judged on.
        max_new_tokens: tokens per text.
        max_rows: largest tree.
        sampling: greedy by default.
        seed: of sampling; the number of the prompt is added, times `protocol.SEEDS`.
        costs: measured by default.
        methods: specs of the candidates, besides plain decoding; those of `candidates` by default.
        names: of the methods whose `candidates` are tried, besides plain decoding; all by default.
        check: whether to time the best of each method against `ar` in one interleaved run; see `choose`.
        progress: called with a line of text now and then.
        clock: seconds.

    Raises:
        ValueError: before any work, for what `measure_costs`, `count` and `run_benchmark` refuse.
    """
    if max_new_tokens < 2:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; drafting needs texts of at least 2 tokens.")
    ready = prepare_prompts(pair, prompts, max_new_tokens)
    given = check_countable(variants(methods)) if methods else []
    say, sampling = progress or quiet, sampling or Sampling()
    costs = costs or measure_costs(pair, ready[:TIMED_PROMPTS], max_rows=max_rows, progress=say, clock=clock)
    say("acceptance by level and rank")
    acceptance = fit_acceptance(pair, ready, max_new_tokens, sampling, seed)
    tried = given or candidates(costs, max_rows, sampled=not sampling.greedy)
    tried = [one for one in tried if one.name in ("ar", *(names or [one.name]))]
    if all(one.name != "ar" for one in tried):
        tried = [variant("ar"), *tried]

    def counts_on(method: Variant, first: int, end: int) -> Counts:
        part = ready[first:end]  # whose prompts keep the seeds that they have among all
        return count(pair, [method], part, max_new_tokens, sampling, seed + SEEDS * first)[method.label]

    predictions = _predict(tried, len(ready), counts_on, costs, say)
    spec, reason = predictions[0].spec, "It has the best prediction."
    if check:
        timed = [variant("ar"), *(variant(one.spec, one.method) for one in predictions if one.method != "ar")]
        results = run_benchmark(
            pair, timed, ready, max_new_tokens=max_new_tokens, sampling=sampling, seed=seed, repeats=REPEATS,
            progress=say, clock=clock,
        )  # fmt: skip
        speeds = {one["label"]: (one["speedup_ar"], one["speedup_ar_interval"]) for one in results.summaries()}
        measured = (speeds.get(one.method, (None, None)) for one in predictions)
        predictions = [
            replace(one, measured=speed, interval=interval)
            for one, (speed, interval) in zip(predictions, measured, strict=True)
        ]
        spec, reason = choose(predictions)
    setup = {
        "prompts": [prompt.row for prompt in ready],
        "max_new_tokens": max_new_tokens,
        "sampling": asdict(sampling),
        "seed": seed,
        "seeds_per_prompt": SEEDS,
        "candidates": len(tried),
        "max_rows": max_rows,
        "dtype": str(getattr(pair.target, "dtype", "")).removeprefix("torch."),
        "best_chain": list(best_chain(costs, acceptance)),
    }
    return Tuned(public_pair_name(pair), spec, reason, costs, acceptance, tuple(predictions), setup)


def fit_acceptance(
    pair: Pair, prompts: Sequence[BenchPrompt], max_new_tokens: int, sampling: Sampling, seed: int = 0
) -> RankAcceptance:
    """Return how often the draft's first, second, ... choice is right at each level, from one run of `RanksProbe`."""
    probe = RanksProbe(pair.draft)
    options: dict[str, Any] = {"sampling": sampling, "eos_token_ids": (), "keep_state": False}
    texts = (
        generate(pair.target, one.ids, probe, max_new_tokens=max_new_tokens, seed=seed + SEEDS * number, **options)
        for number, one in enumerate(prompts)
    )
    return RankAcceptance.from_iterations(iteration for text in texts for iteration in text.iterations)


def _predict(
    methods: Sequence[Variant],
    prompts: int,
    counts_on: Callable[[Variant, int, int], Counts],
    costs: MeasuredCosts,
    progress: Callable[[str], None],
) -> list[Prediction]:
    """Return the best candidate of each method, by successive halving; fastest first.

    Args:
        methods: the candidates.
        prompts: number of all prompts.
        counts_on: the counts of a candidate on the prompts from one number to another.
        costs: of pair and machine.
        progress: called with a line of text per candidate.
    """
    counts: dict[str, list[Counts]] = {method.label: [] for method in methods}
    running, speeds = list(methods), dict.fromkeys(counts, 0.0)
    ends = [min(end, prompts) for end in (0, *np.cumsum(LEGS).tolist(), prompts)]
    for number, stage in enumerate(stage for stage in pairwise(ends) if stage[0] < stage[1]):
        running = _better_third(running, speeds) if number else running
        for place, method in enumerate(running, 1):
            counts[method.label].append(counts_on(method, *stage))
            speeds[method.label] = costs.speed(Counts.total(counts[method.label]))
            progress(f"[{place}/{len(running)}] {speeds[method.label]:.2f} x ar predicted: {brief(method.label)}")
    predictions = []
    for method in running:
        total = Counts.total(counts[method.label])
        sums = (total.tokens, sum(total.nodes), total.draft_forwards)
        tokens, nodes, levels = (number / total.iterations for number in sums)
        predictions.append(Prediction(method.name, method.label, speeds[method.label], tokens, nodes, levels))
    best = {prediction.method: prediction for prediction in sorted(predictions, key=lambda one: one.speed)}
    return sorted(best.values(), key=lambda prediction: -prediction.speed)


def _better_third(methods: Sequence[Variant], speeds: Mapping[str, float]) -> list[Variant]:
    """Return the third of each method's candidates with the highest speeds, at least one."""
    better = []
    for name in dict.fromkeys(method.name for method in methods):
        own = sorted((method for method in methods if method.name == name), key=lambda method: -speeds[method.label])
        better += own[: -(-len(own) // 3)]
    return better


def choose(predictions: Sequence[Prediction]) -> tuple[str, str]:
    """Return the spec of the fastest method, by prediction and check together, and the reason for it.

    What counts is the geometric mean of both speed-ups: the prediction knows no cost that was not measured, the check
    is noisy, and neither errs because the other does. Plain decoding has 1 in both.

    Args:
        predictions: of methods, best prediction first; one without a measured speed, whose run failed, is not chosen.
    """
    timed = [one for one in predictions if one.measured is not None and one.interval is not None]
    if not timed:
        return predictions[0].spec, "It has the best prediction."
    best = max(timed, key=lambda one: one.speed * (one.measured or 0.0))
    if best.method == "ar":
        return best.spec, "By prediction and check together no method is faster than plain decoding."
    measured = Estimate(best.measured or 0.0, *(best.interval or (0.0, 0.0)))
    speeds = f"{best.speed:.2f} and {measured} x ar"
    doubt = "" if measured.low > 1 else ", which the check alone does not tell from plain decoding"
    if measured.high < 1:
        doubt = ", though the check alone finds it slower than plain decoding"
    return best.spec, f"By prediction and check together it is the fastest: {speeds}{doubt}."


def brief(spec: str) -> str:
    """Return a spec for a table, without the measured costs, which are long and shown elsewhere."""
    name, options = parse_spec(spec)
    shown = ",".join(f"{key}={value}" for key, value in options.items() if key != COSTS)
    return f"{name}:{shown}" if shown else name
