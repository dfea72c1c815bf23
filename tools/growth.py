"""Measure how an iteration's cost grows with the text and the tree, beside the models' own forwards; one JSON file.

python3 -m tools.growth FILE [--turns N] [--pair NAME] [--engine NAME] [--device cuda] ...

Iterations over prefixes (at 16 nodes) and over nodes (at 256 tokens) come from `costs.cost_growth`; levels of drafting,
over prefixes and widths, are timed here.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from pathlib import Path

import numpy as np
import pandas as pd

from dynatree_lib.measuring import DEEPEST, LevelsProbe
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_suite.bench.environment import describe_environment, describe_model, public_pair_name
from dynatree_suite.bench.records import check_writable
from dynatree_suite.bench.runner import quiet
from dynatree_suite.bench.statistics import Estimate
from dynatree_suite.cli import arguments, options
from dynatree_suite.costs.cost_growth import (
    NODES,
    PREFIXES,
    TURNS,
    Clock,
    Nodes,
    Row,
    Sample,
    begun,
    check_timed,
    flatness,
    forward_alone,
    iteration_costs,
    measured,
    remembering,
    siblings,
    timed_tokens,
)
from dynatree_suite.costs.probes import Timing

WIDTHS = (1, 2, 4, 8, 16)


def level_costs(
    pair: Pair,
    prefixes: Sequence[int] = (256,),
    widths: Sequence[int] = WIDTHS,
    *,
    turns: int = TURNS,
    progress: Callable[[str], None] = quiet,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Time a level of drafting: the most probable next token of `widths` nodes, beside the draft's forward.

    Arguments are those of `iteration_costs`.

    Returns:
        rows with `prefix`, `width`, and `level`, `forward` and `overhead` as in `iteration_costs`.

    Raises:
        ValueError: as for `iteration_costs`, and for a prefix that does not fit the draft's context.
    """
    for model in (pair.target, pair.draft):
        check_timed(model, prefixes, widths, turns)
    target, draft, work = pair.target, remembering(pair.draft), {}
    for prefix, width in product(prefixes, widths):
        probe = LevelsProbe(draft, width, clock)
        timing = begun(target, probe, prefix, turns, clock)
        work[prefix, width] = partial(_level, target, timing, probe, siblings(width, draft.vocab_size), clock)
    return measured(work, ("prefix", "width", "level"), turns, target.device, progress)


def _level(target: HFModel, timing: Timing, probe: LevelsProbe, nodes: Nodes, clock: Clock) -> Sample:
    """Time the levels of one more block, and the forward of a level before and after it."""
    assert timing.state is not None
    session = timing.state.drafter_state.session
    before = forward_alone(session, nodes, clock)
    probe.taken.clear()
    timing.go_on(target, clock)
    level = float(np.median(probe.taken))
    alone = (before + forward_alone(session, nodes, clock)) / 2
    return 1000 * level, 1000 * alone, 1000 * (level - alone)


def growth_record(pair: Pair, turns: int = TURNS, progress: Callable[[str], None] = quiet) -> Row:
    """Measure all of it for one pair.

    Returns:
        `environment`, `models`; `rows` of `iteration_costs` and of `level_costs`, over both sizes; and `flatness` of
        each.
    """
    longest = min(model.context for model in (pair.target, pair.draft)) - timed_tokens(turns) // 2 - DEEPEST - 2
    prefixes = [prefix for prefix in PREFIXES if prefix <= longest]
    parts = {
        "prefix": iteration_costs(pair, prefixes, (16,), turns=turns, progress=progress),
        "nodes": iteration_costs(pair, (256,), NODES, turns=turns, progress=progress),
        "level prefix": level_costs(pair, prefixes, (4,), turns=turns, progress=progress),
        "level width": level_costs(pair, (256,), WIDTHS, turns=turns, progress=progress),
    }
    flat = {
        name: flatness(rows, name.split()[-1], "level" if name.startswith("level") else "iteration")
        for name, rows in parts.items()
    }
    models = {"target": describe_model(pair.target), "draft": describe_model(pair.draft)}
    head = {"kind": "growth", "environment": describe_environment(), "pair": public_pair_name(pair), "models": models}
    return {**head, "rows": parts, "flatness": flat}


def main(argv: Sequence[str] | None = None) -> None:
    """Measure a pair, write its record and print a table."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.growth", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument("--turns", type=int, default=TURNS, help="blocks of each shape (default: %(default)s)")
    options.add_pair(parser)
    options.add_machine(parser)
    args = parser.parse_args(argv)
    check_writable(args.file)
    record = growth_record(arguments.pair_of(args), args.turns, arguments.progress)
    with arguments.saving(args.file, lambda: record):
        lines = [
            {"over": name, "range": f"{flat['first']:g} to {flat['last']:g}", "overhead ms": f"{flat['overhead']:.3f}",
             "rise ms [95 %]": f"{Estimate(flat['rise'], *flat['rise_interval']):.3f}",
             "rise of the forward ms": f"{flat['forward_rise']:.3f}"}
            for name, flat in record["flatness"].items()
        ]  # fmt: skip
        sys.stdout.write("\n".join([*arguments.text_lines(pd.DataFrame(lines)), ""]))


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"growth: {error}")
