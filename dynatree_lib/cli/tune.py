"""`dynatree tune`: measure a pair's costs on this machine and print the configuration to use."""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import (
    add_machine,
    add_pair,
    add_sampling,
    add_workload,
    longest_prompt,
    pair_of,
    progress,
    sampling_of,
    table,
    workload_of,
)

if TYPE_CHECKING:
    from ..measure.cost_model import MeasuredCosts
    from ..measure.ranks import RankAcceptance
    from ..measure.tune import Tuned
    from ..models.pairs import Pair
    from ..workloads import Prompt

JUDGED = 20
"""The first prompts of the bundled workload are those that results are judged on; nothing is tuned on them."""
PROMPTS = 9
"""Prompts to tune on: one of each task of the bundled workload."""
FOLDER = Path("outputs") / "tuned"


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dynatree tune`."""
    what = parser.add_argument_group("what is tuned")
    add_pair(what)
    which = (
        "tune on prompts of this workload: the last ones, or, of the bundled prompts, those after the first "
        f"{JUDGED}, which results are judged on"
    )
    add_workload(what, which=which, limit=PROMPTS)
    how = parser.add_argument_group("how")
    how.add_argument("--max-new-tokens", type=int, default=128, metavar="N")
    how.add_argument("--max-rows", type=int, default=64, metavar="N", help="largest tree (default: %(default)s nodes)")
    add_sampling(how)
    how.add_argument("--no-check", action="store_true", help="choose by prediction alone, without a timed run")
    add_machine(how)
    parser.add_argument("--out", type=Path, metavar="FILE", help=f"where it is saved (default: {FOLDER}/<pair>.json)")


def main(args: argparse.Namespace, out: Callable[[str], object] | None = None) -> int:
    """Tune, save, and write the result to `out` (standard output)."""
    from ..measure.records import check_writable
    from ..measure.tune import tune

    sampling = sampling_of(args)
    for name, least in (("limit", 1), ("max_new_tokens", 2), ("max_rows", 4)):
        if (count := getattr(args, name)) < least:
            raise ValueError(f"--{name.replace('_', '-')} is {count}; give at least {least}.")
    path = check_writable(args.out or _default_file(args))
    pair = pair_of(args)
    prompts, source = _prompts(args, pair)
    tuned = tune(
        pair, prompts, max_new_tokens=args.max_new_tokens, max_rows=args.max_rows, sampling=sampling, seed=args.seed,
        check=not args.no_check, out=path, progress=progress,
    )  # fmt: skip
    (out or sys.stdout.write)(report(tuned, source, path))
    return 0


def _default_file(args: argparse.Namespace) -> Path:
    from ..measure.environment import public_name

    parts = [args.pair or "tiny"] if not (args.target and args.draft) else [args.target, args.draft]
    name = "+".join(re.sub(r"[^\w.+-]+", "-", public_name(part)) for part in parts)
    try:
        FOLDER.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"The folder {FOLDER} cannot be made ({error.strerror}); give --out FILE.") from error
    return FOLDER / f"{name}.json"


def _prompts(args: argparse.Namespace, pair: Pair) -> tuple[list[Prompt], str]:
    """Return prompts to tune on, and a sentence on where they come from."""
    from ..measure.cost_model import timed_tokens
    from ..measure.tune import TIMED_PROMPTS
    from ..workloads import load_workload

    texts = longest_prompt(pair, args.max_new_tokens)
    timing = min(pair.target.context, pair.draft.context) - timed_tokens(min(args.limit, TIMED_PROMPTS))
    if timing < 1:
        raise ValueError(f"The contexts of '{pair.name}' are too short to time it; tune on more prompts (--limit).")
    longest = min(texts, timing)
    workload = workload_of(args, longest, pair.tokenizer)
    if not workload.bundled:
        chosen = list(workload.prompts[-args.limit :])
        return chosen, f"The last {len(chosen)} of {workload.source}"
    judged = set(load_workload("bundled", limit=JUDGED).ids)
    in_turns = workload_of(args, longest, pair.tokenizer, JUDGED + args.limit)
    chosen = [prompt for prompt in in_turns.prompts if prompt.id not in judged][: args.limit]
    if not chosen:
        raise ValueError(
            f"All prompts of '{args.workload}' are judged on, so none is left to tune on; choose another workload."
        )
    return chosen, f"{len(chosen)} of the bundled prompts, none of the first {JUDGED}, which results are judged on."


# -------------------------------------------------------------------------------------------------------------- texts
def report(tuned: Tuned, source: str, path: Path) -> str:
    """Return the measured costs, the predictions and the choice as text."""
    from ..measure.tables import with_interval
    from ..measure.tune import brief

    costs, environment = tuned.costs, tuned.costs.measured.get("environment", {})
    length, speed = tuned.setup["best_chain"]
    on_gpu = costs.measured.get("setup", {}).get("target", {}).get("device") == "cuda"
    where = environment["gpu"]["name"] if on_gpu else environment.get("cpu") or "an unknown CPU"
    headings = ("method", "x ar predicted", "x ar measured [95 %]", "tokens/iter", "nodes", "levels")
    predictions = [
        (brief(one.spec), f"{one.speed:.2f}", with_interval(one.measured, one.interval) or "-",
         *(f"{number:.2f}" for number in (one.tokens, one.nodes, one.levels)))
        for one in tuned.predictions
    ]  # fmt: skip
    lines = [
        f"{tuned.pair} on {where}, {environment.get('threads')} threads; a greedy step takes "
        f"{1000 * costs.step_seconds:.2f} ms.",
        source,
        "",
        *table(_cost_rows(costs)),
        f"In greedy steps. Drafting adds {costs.overhead:.2f} to an iteration, whatever is drafted.",
        "",
        *table(_acceptance_rows(tuned.acceptance)),
        f"By these rates a chain of {length} is the best, at {speed:.2f} x ar.",
        "",
        *table([headings, *predictions]),
        f"The best of {tuned.setup['candidates']} candidates, one per method. The measured speeds are a check on the "
        "prompts that were tuned on: judge the choice on others.",
        "",
        f"Use {tuned.spec}",
        f"or  {tuned.python}",
        tuned.reason,
        f"Saved in {path}.",
    ]
    return "\n".join(lines) + "\n"


def _cost_rows(costs: MeasuredCosts) -> list[list[str]]:
    def cells(points: Sequence[float]) -> list[str]:
        return [f"{point:.2f}" for point in points] + ["-"] * (len(costs.verify_points) - len(points))

    return [
        ["nodes", *(str(2**power) for power in range(len(costs.verify_points)))],
        ["an iteration that verifies them", *cells(costs.verify_points)],
        ["a drafted level that reads them", *cells(costs.draft_points)],
    ]


def _acceptance_rows(acceptance: RankAcceptance) -> list[list[str]]:
    levels = [str(level) for level in range(1, len(acceptance.rates) + 1)]
    by_rank = enumerate(zip(*acceptance.rates, strict=True), start=1)
    rates = [[f"child {rank} is right", *(f"{rate:.2f}" for rate in levels_of)] for rank, levels_of in by_rank]
    return [["level", *levels[:-1], f"{levels[-1]}+"], *rates]
