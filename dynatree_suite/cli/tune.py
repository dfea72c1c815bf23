"""`dynatree tune`: measure a pair's costs on this machine and print the configuration to use."""

from __future__ import annotations

import argparse
import re
from pathlib import Path

import pandas as pd

from dynatree_lib.models.fetch import PACKAGED
from dynatree_lib.models.pairs import Pair, two_sources

from ..bench.environment import public_name
from ..bench.records import check_writable
from ..bench.tables import with_interval
from ..costs.cost_model import MeasuredCosts, timed_tokens
from ..costs.ranks import RankAcceptance
from ..costs.tune import TIMED_PROMPTS, Tuned, brief, tunable, tune
from ..papers.workloads import WorkloadPrompt, load_workload
from . import arguments
from .options import JUDGED, TUNED


def main(args: argparse.Namespace) -> int:
    """Tune, print the result, and save it."""
    sampling = arguments.sampling_of(args)
    arguments.check_least(args, limit=1, max_new_tokens=2, max_rows=4)
    names = args.methods and arguments.names_in(args.methods, tunable(not sampling.greedy), "method", "to tune")
    path = check_writable(args.out or _default_file(args))
    if args.pair in PACKAGED and not (args.dtype or args.device):
        args.dtype = arguments.FASTEST
    pair = arguments.pair_of(args)
    prompts, source = _prompts(args, pair)
    tuned = tune(
        pair, prompts, max_new_tokens=args.max_new_tokens, max_rows=args.max_rows, sampling=sampling, seed=args.seed,
        names=names or (), check=not args.no_check, progress=arguments.progress,
    )  # fmt: skip
    with arguments.saving(path, tuned.to_json):
        print(report(tuned, source), end="")
    return 0


def _default_file(args: argparse.Namespace) -> Path:
    named = args.pair or "tiny"
    parts = [args.target, args.draft] if args.target and args.draft else two_sources(named) or [named]
    name = "+".join(re.sub(r"[^\w.+-]+", "-", public_name(part)) for part in parts)
    try:
        TUNED.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"The folder {TUNED} cannot be made ({error.strerror}); give --out FILE.") from error
    return TUNED / f"{name}.json"


def _prompts(args: argparse.Namespace, pair: Pair) -> tuple[list[WorkloadPrompt], str]:
    """Return prompts to tune on, and a sentence on where they come from."""
    timing = min(pair.target.context, pair.draft.context) - timed_tokens(min(args.limit, TIMED_PROMPTS))
    if timing < 1:
        raise ValueError(f"The contexts of '{pair.name}' are too short to time it; tune on more prompts (--limit).")
    further = max(args.max_new_tokens, pair.target.context - timing)
    workload = arguments.workload_of(args, pair, further)
    if not workload.bundled:
        chosen = list(workload.prompts[-args.limit :])
        return chosen, f"The last {len(chosen)} of {workload.source}"
    judged = set(load_workload("bundled", limit=JUDGED).ids)
    in_turns = arguments.workload_of(args, pair, further, JUDGED + args.limit)
    chosen = [prompt for prompt in in_turns.prompts if prompt.id not in judged][: args.limit]
    if not chosen:
        raise ValueError(
            f"All prompts of '{args.workload}' are judged on, so none is left to tune on; choose another workload."
        )
    return chosen, f"{len(chosen)} of the bundled prompts, none of the first {JUDGED}, which results are judged on."


# -------------------------------------------------------------------------------------------------------------- texts
def report(tuned: Tuned, source: str) -> str:
    """Return the measured costs, the predictions and the choice as text."""
    costs, (length, speed) = tuned.costs, tuned.setup["best_chain"]
    device = costs.measured.get("setup", {}).get("target", {}).get("device")
    headings = ["method", "x ar predicted", "x ar measured [95 %]", "tokens/iter", "nodes", "levels"]
    predictions = [
        (brief(one.spec), f"{one.speed:.2f}", with_interval(one.measured, one.interval) or "-",
         *(f"{number:.2f}" for number in (one.tokens, one.nodes, one.levels)))
        for one in tuned.predictions
    ]  # fmt: skip
    lines = [
        f"{tuned.pair} on {arguments.machine(costs.measured.get('environment', {}), device)}; a greedy step takes "
        f"{1000 * costs.step_seconds:.2f} ms.",
        source,
        "",
        *arguments.text_lines(_cost_table(costs)),
        f"In greedy steps. Drafting adds {costs.overhead:.2f} to an iteration, whatever is drafted.",
        "",
        *arguments.text_lines(_acceptance_table(tuned.acceptance)),
        f"By these rates a chain of {length} is the best, at {speed:.2f} x ar.",
        "",
        *arguments.text_lines(pd.DataFrame(predictions, columns=headings)),
        f"The best of {tuned.setup['candidates']} candidates, one per method. The measured speeds are a check on the "
        "prompts that were tuned on: judge the choice on others.",
        "",
        f"Use {tuned.spec}",
        f"or  {tuned.python}",
        *([f"with dtype={dtype}, in which it was tuned"] if (dtype := tuned.setup.get("dtype")) else []),
        tuned.reason,
    ]
    return "\n".join(lines) + "\n"


def _cost_table(costs: MeasuredCosts) -> pd.DataFrame:
    curves = {
        "an iteration that verifies them": pd.Series(costs.verify_points),
        "a drafted level that reads them": pd.Series(costs.draft_points),
    }
    table = pd.DataFrame(curves).map("{:.2f}".format, na_action="ignore").fillna("-").T
    return table.rename(columns=lambda power: str(2**power)).rename_axis("nodes").reset_index()


def _acceptance_table(acceptance: RankAcceptance) -> pd.DataFrame:
    table = pd.DataFrame(acceptance.rates).map("{:.2f}".format).T
    *levels, last = (str(level + 1) for level in table)
    table = table.set_axis([*levels, f"{last}+"], axis="columns")
    table.insert(0, "level", [f"child {rank + 1} is right" for rank in table.index])
    return table
