"""`dynatree judge`: have verification rules judge the same drafted trees of a pair, and print what each would keep."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import (
    add_machine,
    add_pair,
    add_sampling,
    add_workload,
    check_new,
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
    from ..measure.judge import Paired
    from ..sampling import Sampling
    from ..verifiers import Verifier

TREES = "sampled-tree:branching=1,sampled-tree,sampled-tree:shape=eagle"
RULES = "token-level,traversal"
MARGIN = 24
LOOP_OPTIONS = ("commit", "verifier", "carry")


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dynatree judge`."""
    what = parser.add_argument_group("what is judged")
    add_pair(what)
    what.add_argument(
        "--trees", default=TREES, metavar="LIST", help="drafters, as for `dynatree bench` (default: %(default)s)"
    )
    what.add_argument(
        "--rules", default=RULES, metavar="LIST",
        help="rules among target-walk, token-level, block, traversal; each is compared with the first "
        "(default: %(default)s)",
    )  # fmt: skip
    add_workload(what, limit=40)
    how = parser.add_argument_group("how")
    told = "(default: %(default)s)"
    how.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help=f"trees up to this place {told}")
    how.add_argument("--seeds", type=int, default=1, metavar="N", help=f"texts of each prompt, tree and rule {told}")
    add_sampling(how, temperature=1.0)
    add_machine(how)
    parser.add_argument("--out", type=Path, metavar="FILE", help="write one JSON line per tree")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out file")


def main(args: argparse.Namespace, out: Callable[[str], object] | None = None) -> int:
    """Judge, save, and write a table to `out` (standard output)."""
    from ..measure.judge import judge

    # Everything that can be checked is checked before models are loaded.
    sampling, rules, trees = sampling_of(args), _rules(args.rules), _trees(args.trees)
    _check(args, sampling, rules, trees)
    pair = pair_of(args)
    workload = workload_of(args, room_for(pair, args.max_new_tokens) - MARGIN, pair.tokenizer, args.limit)
    judged = judge(
        pair, {label: make(pair.draft) for label, make in trees.items()}, rules, workload.prompts,
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


def _trees(text: str) -> dict[str, Callable[[Any], Drafter]]:
    """Label -> draft model -> drafter."""
    from ..measure.methods import variants

    out: dict[str, Callable[[Any], Drafter]] = {}
    for one in variants(text):
        loop = {name: value for name, value in one.options.items() if name in LOOP_OPTIONS}
        if one.method.drafter is None:
            raise ValueError(f"'{one.label}' does not draft in this library's loop, so no rule can judge its trees.")
        if loop != {name: one.method.defaults[name] for name in loop}:
            raise ValueError(
                f"'{one.label}': {', '.join(LOOP_OPTIONS)} say how trees are decoded, not drawn; leave them out."
            )
        out[one.label] = partial(one.method.drafter, one.options)
    return out


def _check(
    args: argparse.Namespace,
    sampling: Sampling,
    rules: Mapping[str, Verifier],
    trees: Mapping[str, Callable[[Any], Drafter]],
) -> None:
    for name in ("seeds", "max_new_tokens"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {getattr(args, name)}; give at least 1.")
    if sampling.greedy:
        raise ValueError("At temperature 0 every rule keeps the same path; give a --temperature above 0.")
    for make in trees.values():
        drafter = make(None)
        for rule in rules.values():
            rule.check(sampling, drafter.drawing, drafter.chain)
    check_new(args.out, args.overwrite)


def report(judged: Paired) -> str:
    """What each rule keeps of each tree, and how much more than the first rule."""
    setup, rows = judged.setup, [["trees", "rule", "tokens per iteration", "over the first rule [95 %]"]]
    for tree, rules in setup["rules"].items():
        mine = judged.where(tree=tree)
        for rule in rules:
            ratio, interval = mine.gain(rule, rules[0])
            gain = with_interval(ratio, interval, 3) if len(setup["prompts"]) > 1 else f"{ratio:.3f}"
            gain = "" if rule == rules[0] else gain
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
