"""Choosing a configuration for a pair on this machine: cost model first, one short timed run as a check.

Candidates are counted on a few prompts without a clock, and the cost model turns counts into speeds, so that many are
compared in the time that few take to measure, and those of one method on equal terms. Between methods their measured
factors decide too, which a disturbed machine can shift; so the check has the last word. `tune_command` is the command
line.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise, product
from pathlib import Path
from typing import Any

import numpy as np

from ..decoding import generate
from ..drafters import DRAFTERS, Drafter, NoDraft
from ..models.base import LanguageModel
from ..models.pairs import Pair
from ..sampling import Sampling
from .cost_model import Counts, MeasuredCosts, best_chain, check_countable, count, measure_costs, public_pair_name
from .grids import text
from .methods import Variant, variant, variants
from .metrics import speedup
from .options import option_types, parse_spec
from .prompts import BenchPrompt, prepare_prompts
from .protocol import Results, run_benchmark
from .ranks import RankAcceptance, RanksProbe
from .records import check_writable, write_atomically

FORMAT = 1
"""Version of the file; a reader refuses others."""
TIMED_PROMPTS = 3
"""Prompts the costs are measured on."""
LEGS = (2, 2)
"""Prompts of the first legs of the race, all others being the last: after each the best third of a method goes on."""
REPEATS = 2
"""Timed runs per prompt in the check."""
COSTS = ("verify_cost", "draft_cost", "overhead")
"""Options of cost-aware drafting that are measured, not chosen."""


@dataclass(frozen=True)
class Prediction:
    """The best candidate of one method.

    Attributes:
        method: its name.
        spec: as `dynatree bench --methods` takes it.
        speed: predicted speed-up over `ar`.
        tokens, nodes, levels: tokens committed, nodes and levels drafted per iteration, counted on the prompts.
        measured: speed-up over `ar` in the check, with its paired 95 % interval; None without a check.
        interval: see `measured`.
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
    """What tuning found.

    Attributes:
        pair: name of the pair.
        spec: the configuration to use, as `dynatree bench --methods` takes it.
        reason: a sentence on why.
        costs: the cost model of pair and machine.
        acceptance: how often the draft's choices are right, by level and rank.
        predictions: the best candidate of each method, fastest prediction first.
        setup: prompts, budget, sampling, number of candidates.
    """

    pair: str
    spec: str
    reason: str
    costs: MeasuredCosts
    acceptance: RankAcceptance
    predictions: tuple[Prediction, ...]
    setup: dict[str, Any] = field(default_factory=dict)

    @property
    def method(self) -> str:
        """Name of the method to use."""
        return variant(self.spec).name

    @property
    def options(self) -> dict[str, Any]:
        """All its options, defaults filled in."""
        return variant(self.spec).options

    def drafter(self, draft: LanguageModel) -> Drafter:
        """The drafter to use, for `generate`."""
        kind = self._kind
        return kind() if kind is NoDraft else kind(draft, **self._own)  # type: ignore[call-arg]

    @property
    def _kind(self) -> type[Drafter]:
        return next(one for one in DRAFTERS if one.name == self.method)

    @property
    def _own(self) -> dict[str, Any]:
        return {name: value for name, value in self.options.items() if name in option_types(self._kind)}

    @property
    def python(self) -> str:
        """The same as an expression, with `dt` for `dynatree_lib`."""
        defaults, draft = variant(self.method).options, [] if self._kind is NoDraft else ["pair.draft"]
        changed = [f"{name}={value!r}" for name, value in self._own.items() if value != defaults[name]]
        return f"dt.{self._kind.__name__}({', '.join([*draft, *changed])})"

    def to_json(self) -> dict[str, Any]:
        """Ready for `json.dump`; `load_tuned` reads it from a file."""
        body = {**asdict(self), "costs": self.costs.to_json(), "options": self.options, "python": self.python}
        return {"kind": "tuned", "format": FORMAT, **body}


def load_tuned(path: str | Path) -> Tuned:
    """What `dynatree tune` saved.

    Raises:
        ValueError: if there is no such file, or it is none of this format.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no file {path}; `dynatree tune --pair NAME --out {path}` writes one.")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if (body["kind"], body["format"]) != ("tuned", FORMAT):
            raise ValueError("another kind or format")
        rates = body["acceptance"]
        acceptance = RankAcceptance(tuple(map(tuple, rates["rates"])), tuple(rates["seen"]))
        tuned = Tuned(
            body["pair"], body["spec"], body["reason"], MeasuredCosts.from_json(body["costs"]), acceptance,
            tuple(_prediction(one) for one in body["predictions"]), body["setup"],
        )  # fmt: skip
        variant(tuned.spec)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no tuned configuration of format {FORMAT}; tune again ({error}).") from error
    return tuned


def _prediction(body: Mapping[str, Any]) -> Prediction:
    interval = body["interval"]
    return Prediction(**{**body, "interval": interval and (interval[0], interval[1])})


# --------------------------------------------------------------------------------------------------------- candidates
def candidates(costs: MeasuredCosts, max_rows: int = 64) -> list[Variant]:
    """Configurations of every method that are worth counting: library defaults, and grids around them.

    Args:
        costs: given to cost-aware drafting.
        max_rows: largest budget of nodes.
    """
    budgets = [nodes for nodes in (8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256) if nodes <= max_rows]
    fixed = _grid(
        "fixed-tree", depth=(5, 7, 9), branching=((2, 1), (3, 1), (3, 2, 1)), tau=(0.03, 0.1),
        max_nodes=budgets[1::2],
    )  # fmt: skip
    adaptive = _grid("adaptive-tree", max_nodes=budgets[1::2], mid_branching=(1, 2), max_branching=(2, 3))
    aware = _grid("cost-aware-tree", **{name: (value,) for name, value in costs.options().items()},
                  max_nodes=(max_rows,), child=(0.7, 0.85, 1.0), branching=(2, 4))  # fmt: skip
    lookup = _grid("lookup-tree", **{name: (value,) for name, value in costs.options().items()},
                   max_nodes=(max_rows,), ngram=(2, 3), longest=(8, 12))  # fmt: skip
    first = _grid("best-first-tree", max_nodes=budgets, depth=(5, 8, 12))
    chains = _grid("chain", length=range(1, 13))
    specs = [
        "ar",
        *chains,
        "fixed-tree",
        *fixed,
        "best-first-tree",
        *first,
        "adaptive-tree",
        *adaptive,
        *aware,
        *lookup,
        *_without_model(costs),
    ]
    return [variant(spec) for spec in dict.fromkeys(specs)]


def _without_model(costs: MeasuredCosts) -> list[str]:
    """Candidates that need no draft model; the rows of their draft are few, because rows are what they cost."""
    ptd = [
        f"ptd:start_tree={lines},depth={depth},max_draft={lines * (depth + 1)},text_depth=10,prune_first=false,"
        f"verify_cost={text(costs.verify_points)}"
        for lines, depth in ((1, 3), (1, 6), (2, 3), (2, 6), (4, 6))
    ]
    lookahead = _grid("lookahead", window=(3, 7), ngram=(3, 5), guesses=(3, 7), text=("true",))
    self_draft = _grid("self-draft", branches=(1, 3, 6), candidates=(3, 10))
    copies = _grid("prompt-lookup", ngram=(2, 3), length=(6, 10, 15))
    return ["ptd", *ptd, *lookahead, *self_draft, *copies]


def _grid(method: str, **axes: Sequence[Any]) -> list[str]:
    points = product(*axes.values())
    return [f"{method}:" + ",".join(f"{k}={text(v)}" for k, v in zip(axes, point, strict=True)) for point in points]


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
    check: bool = True,
    out: str | Path | None = None,
    progress: Callable[[str], None] | None = None,
    clock: Callable[[], float] = time.perf_counter,
) -> Tuned:
    """The configuration to use for a pair on this machine.

    Args:
        pair: target and draft.
        prompts: a few of the kind that will be decoded, as for `run_benchmark`; not those the result is judged on.
        max_new_tokens: tokens per text.
        max_rows: largest tree.
        sampling: greedy by default.
        seed: of sampling.
        costs: measured by default.
        methods: specs of the candidates; `candidates(costs, max_rows)` by default.
        check: whether to time the best of each method against `ar` in one interleaved run. A method that was predicted
            to be slower is chosen if the interval of its measured ratio to the best prediction lies above 1.
        out: JSON file for the result.
        progress: called with a line of text now and then.
        clock: seconds.

    Raises:
        ValueError: before any work, for what `measure_costs`, `count` and `run_benchmark` refuse.
    """
    if max_new_tokens < 2:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; drafting needs texts of at least 2 tokens.")
    ready, path = prepare_prompts(pair, prompts, max_new_tokens), check_writable(Path(out)) if out else None
    given = check_countable(variants(methods)) if methods else []
    say, sampling = progress or _ignore, sampling or Sampling()
    costs = costs or measure_costs(pair, ready[:TIMED_PROMPTS], max_rows=max_rows, progress=say, clock=clock)
    say("acceptance by level and rank")
    acceptance = fit_acceptance(pair, ready, max_new_tokens, sampling, seed)
    tuning = _Tuning(pair, ready, max_new_tokens, sampling, seed, costs, say, clock)
    found = tuning.predict(given or candidates(costs, max_rows))
    spec, reason = found[0].spec, "It has the best prediction."
    if check:
        found, spec, reason = tuning.check(found)
    setup = {**tuning.setup(), "max_rows": max_rows, "best_chain": list(best_chain(costs, acceptance))}
    tuned = Tuned(public_pair_name(pair), spec, reason, costs, acceptance, tuple(found), setup)
    if path:
        write_atomically(path, json.dumps(tuned.to_json(), indent=1, ensure_ascii=False) + "\n")
    return tuned


def _ignore(line: str) -> None:
    """No progress is wanted."""


def fit_acceptance(
    pair: Pair, prompts: Sequence[BenchPrompt], max_new_tokens: int, sampling: Sampling, seed: int = 0
) -> RankAcceptance:
    """How often the draft's first, second, ... choice is right at each level, from one run of `RanksProbe`."""
    probe = RanksProbe(pair.draft)
    texts = (
        generate(
            pair.target, one.ids, probe,
            max_new_tokens=max_new_tokens, sampling=sampling, seed=seed, eos_token_ids=(), keep_state=False,
        )
        for one in prompts
    )  # fmt: skip
    return RankAcceptance.from_iterations(each for one in texts for each in one.iterations)


@dataclass
class _Tuning:
    pair: Pair
    prompts: list[BenchPrompt]
    budget: int
    sampling: Sampling
    seed: int
    costs: MeasuredCosts
    say: Callable[[str], None]
    clock: Callable[[], float]
    candidates: int = 0

    def setup(self) -> dict[str, Any]:
        """What the result rests on."""
        return {
            "prompts": [{"id": one.id, "sha256": one.sha256, "tokens": len(one.ids)} for one in self.prompts],
            "max_new_tokens": self.budget,
            "sampling": asdict(self.sampling),
            "seed": self.seed,
            "candidates": self.candidates,
        }

    def predict(self, methods: Sequence[Variant]) -> list[Prediction]:
        """The best candidate of each method, by successive halving; fastest first."""
        self.candidates = len(methods)
        counts: dict[str, list[Counts]] = {one.label: [] for one in methods}
        running, speeds = list(methods), dict.fromkeys(counts, 0.0)
        for number, prompts in enumerate(self._legs()):
            running = _better_third(running, speeds) if number else running
            for place, one in enumerate(running, 1):
                counts[one.label].append(
                    count(self.pair, [one], prompts, self.budget, self.sampling, self.seed)[one.label]
                )
                speeds[one.label] = self.costs.speed(Counts.total(counts[one.label]))
                self.say(f"[{place}/{len(running)}] {speeds[one.label]:.2f} x ar predicted: {brief(one.label)}")
        found = [_predicted(one, Counts.total(counts[one.label]), self.costs) for one in running]
        best = {one.method: one for one in sorted(found, key=lambda one: one.speed)}
        return sorted(best.values(), key=lambda one: -one.speed)

    def _legs(self) -> list[list[BenchPrompt]]:
        ends = [0, *np.cumsum(LEGS).tolist(), len(self.prompts)]
        return [leg for start, end in pairwise(ends) if (leg := self.prompts[start : max(start, end)])]

    def check(self, found: Sequence[Prediction]) -> tuple[list[Prediction], str, str]:
        """The predictions with what was measured, the spec to use, and why."""
        timed = [variant("ar"), *(variant(one.spec, one.method) for one in found if one.method != "ar")]
        results = run_benchmark(
            self.pair, timed, self.prompts, max_new_tokens=self.budget, sampling=self.sampling, seed=self.seed,
            repeats=REPEATS, progress=self.say, clock=self.clock,
        )  # fmt: skip
        measured = {one.label: one for one in results.summaries()}
        both = [
            replace(one, measured=its.speedup_ar, interval=its.speedup_ar_interval)
            if (its := measured.get(one.method)) else one
            for one in found
        ]  # fmt: skip
        return both, *choose(both, results)


def _better_third(methods: Sequence[Variant], speeds: Mapping[str, float]) -> list[Variant]:
    """The third of each method's candidates with the highest speeds, at least one."""
    kept = []
    for name in dict.fromkeys(one.name for one in methods):
        own = sorted((one for one in methods if one.name == name), key=lambda one: -speeds[one.label])
        kept += own[: -(-len(own) // 3)]
    return kept


def _predicted(one: Variant, counts: Counts, costs: MeasuredCosts) -> Prediction:
    tokens, nodes, levels = (
        number / counts.iterations for number in (counts.tokens, sum(counts.nodes), counts.draft_forwards)
    )
    return Prediction(one.name, one.label, costs.speed(counts), tokens, nodes, levels)


def choose(found: Sequence[Prediction], results: Results) -> tuple[str, str]:
    """The best prediction, unless another method was faster in the check with an interval above 1; and the reason.

    Args:
        found: best prediction first.
        results: runs labelled by the methods' names.
    """
    runs = {one.method: [run for run in results.records.runs.values() if run.method == one.method] for one in found}
    first = found[0]
    ratios = {one.spec: speedup(runs[one.method], runs[first.method]) for one in found[1:]}
    faster = {spec: ratio for spec, ratio in ratios.items() if ratio and ratio[1][0] > 1}
    if not faster:
        return first.spec, "It has the best prediction, and no other method was faster in the check beyond doubt."
    spec, (value, (low, high)) = max(faster.items(), key=lambda item: item[1][0])
    measured = f"{value:.2f} [{low:.2f}, {high:.2f}] times the speed of the best prediction"
    return spec, f"In the check it had {measured}, {brief(first.spec)}."


def brief(spec: str) -> str:
    """A spec for a table: measured costs, which are long and shown elsewhere, are left out."""
    name, options = parse_spec(spec)
    shown = ",".join(f"{key}={value}" for key, value in options.items() if key not in COSTS)
    return f"{name}:{shown}" if shown else name
