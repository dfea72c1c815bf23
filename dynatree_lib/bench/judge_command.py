"""`dynatree judge`: have verification rules judge the same drafted trees of a pair, and print what each would keep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import (
    add_machine,
    add_pair,
    add_sampling,
    add_workload,
    pair_of,
    progress,
    room_for,
    sampling_of,
    table,
    with_interval,
    workload_of,
)

if TYPE_CHECKING:
    from ..drafters.base import Drafter
    from ..models.pairs import Pair
    from ..verifiers import Verifier
    from .paired import Paired

TREES = "sampled-tree:branching=1,sampled-tree,sampled-tree:shape=eagle"
RULES = "token-level,traversal"
MARGIN = 8


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dynatree judge`."""
    what = parser.add_argument_group("what is judged")
    add_pair(what)
    what.add_argument(
        "--trees",
        default=TREES,
        metavar="LIST",
        help="drafters, as for `dynatree bench` (default: %(default)s)",
    )
    what.add_argument(
        "--rules", default=RULES, metavar="LIST",
        help="verification rules; each is compared with the first (default: %(default)s)",
    )  # fmt: skip
    add_workload(what, limit=40)
    how = parser.add_argument_group("how")
    how.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help="trees up to this place of a text")
    how.add_argument("--seeds", type=int, default=1, metavar="N", help="texts of each prompt, tree and rule")
    add_sampling(how, temperature=1.0)
    add_machine(how)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write one JSON line per tree")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out file")


def main(args: argparse.Namespace, out: Callable[[str], object] | None = None) -> int:
    """Judge, save, and write a table to `out` (standard output)."""
    from .methods import variants
    from .paired import judge
    from .records import check_writable

    # Everything that can be checked is checked before models are loaded.
    sampling, rules, methods = sampling_of(args), _rules(args.rules), variants(args.trees)
    if args.seeds < 1:
        raise ValueError(f"--seeds is {args.seeds}; give at least 1.")
    if args.out and check_writable(args.out).exists() and not args.overwrite:
        raise ValueError(f"{args.out} exists; replace it with --overwrite, or give another file.")
    pair = pair_of(args)
    workload = workload_of(args, room_for(pair, args.max_new_tokens + MARGIN), pair.tokenizer, args.limit)
    judged = judge(
        pair, {one.label: _drafter(one, pair) for one in methods}, rules, workload.prompts,
        max_new_tokens=args.max_new_tokens, sampling=sampling, seeds=range(args.seed, args.seed + args.seeds),
        margin=MARGIN, source=workload.source, progress=progress,
    )  # fmt: skip
    if args.out:
        judged.write(args.out)
    (out or sys.stdout.write)(report(judged))
    return 0


def _rules(text: str) -> dict[str, Verifier]:
    from ..verifiers import VERIFIERS, Greedy

    known = {rule.name: rule for rule in VERIFIERS if rule is not Greedy}
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"There is no rule '{name}' at temperature > 0; choose from {', '.join(known)}.")
    if not names:
        raise ValueError(f"No rule was given; choose from {', '.join(known)}.")
    return {name: known[name]() for name in names}


def _drafter(method: object, pair: Pair) -> Drafter:
    from .methods import Variant
    from .runner import DrafterRunner

    assert isinstance(method, Variant)
    runner = method.runner(pair)
    if not isinstance(runner, DrafterRunner):
        raise ValueError(f"'{method.label}' does not draft in this library's loop, so no rule can judge its trees.")
    return runner.drafter


def report(judged: Paired) -> str:
    """What each rule keeps of each tree, and how much more than the first rule."""
    setup, rows = judged.setup, [["trees", "rule", "tokens per iteration", "over the first rule [95 %]"]]
    for tree, rules in setup["rules"].items():
        mine = judged.where(tree=tree)
        for rule in rules:
            gain = "" if rule == rules[0] else with_interval(*mine.gain(rule, rules[0]), 3)
            rows.append([tree, rule, f"{mine.mean(rule):.3f}", gain])
    lines = [
        f"{setup['pair']} in {setup['dtype']}, {_told(setup['sampling'])}; {len(setup['prompts'])} prompts, trees up "
        f"to place {setup['max_new_tokens']}, seeds {setup['seeds'][0]} to {setup['seeds'][-1]}.",
        setup["workload"],
        "",
        *table(rows),
        "",
        f"{len(judged.rows)} trees, each judged by every rule; the expectation over the rule's own coins. Bonus token "
        "included; interval: bootstrap over prompts.",
    ]
    return "\n".join(lines) + "\n"


def _told(sampling: Mapping[str, float | None]) -> str:
    return ", ".join(f"{name.replace('_', '-')} {value:g}" for name, value in sampling.items() if value is not None)
