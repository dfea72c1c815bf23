"""`dynatree judge`: have verification rules judge the same drafted trees of a pair, and print what each would emit."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from functools import partial
from typing import Any

import pandas as pd

from dynatree_lib.drafters.base import Drafter
from dynatree_lib.verifiers import Greedy

from ..bench.methods import variants
from ..bench.tables import sampling_text
from ..proofs.judge import Judged, judge
from ..rules import ALL_RULES
from . import arguments

MARGIN = 24
LOOP_OPTIONS = ("commit", "verifier", "carry")


def main(args: argparse.Namespace) -> int:
    """Judge, print a table, and save."""
    # Everything that can be checked is checked before models are loaded.
    sampling, trees = arguments.sampling_of(args), _trees(args.trees)
    known = {rule.name: rule for rule in ALL_RULES if rule is not Greedy}
    rules = {name: known[name]() for name in arguments.names_in(args.rules, known, "rule", "at temperature > 0")}
    arguments.check_least(args, seeds=1, max_new_tokens=1)
    if sampling.greedy:
        raise ValueError("At temperature 0 every rule accepts the same path; give a --temperature above 0.")
    for make in trees.values():
        drafter = make(None)
        for rule in rules.values():
            rule.check(sampling, drafter.drawing, drafter.chain)
    arguments.check_new(args.out, args.overwrite)
    pair = arguments.pair_of(args)
    workload = arguments.workload_of(args, pair, args.max_new_tokens + MARGIN, args.limit)
    judged = judge(
        pair, {label: make(pair.draft) for label, make in trees.items()}, rules, workload.prompts,
        max_new_tokens=args.max_new_tokens, sampling=sampling, seeds=range(args.seed, args.seed + args.seeds),
        margin=MARGIN, source=workload.source, progress=arguments.progress,
    )  # fmt: skip
    with arguments.saving(args.out, judged.to_lines):
        print(report(judged), end="")
    return 0


def _trees(text: str) -> dict[str, Callable[[Any], Drafter]]:
    """Return label -> draft model -> drafter."""
    out: dict[str, Callable[[Any], Drafter]] = {}
    for variant in variants(text):
        method, label = variant.method, variant.label
        if method.drafter is None:
            raise ValueError(f"'{label}' does not draft in this library's loop, so no rule can judge its trees.")
        if any(variant.options[name] != method.defaults[name] for name in LOOP_OPTIONS if name in variant.options):
            raise ValueError(
                f"'{label}': {', '.join(LOOP_OPTIONS)} say how trees are decoded, not drawn; leave them out."
            )
        out[label] = partial(method.drafter, variant.options)
    return out


def report(judged: Judged) -> str:
    """Return what each rule emits of each tree, and how much more than the first rule, as a text."""
    setup, rows = judged.setup, []
    for tree, rules in setup["rules"].items():
        part = judged.where(tree=tree)
        for rule in rules:
            gain = part.gain(rule, rules[0])
            text = f"{gain:.3f}" if len(setup["prompts"]) > 1 else f"{gain.value:.3f}"
            rows.append([tree, rule, f"{part.mean(rule):.3f}", text if rule != rules[0] else ""])
    columns = ["trees", "rule", "tokens per iteration", "over the first rule [95 %]"]
    lines = [
        f"{setup['pair']} in {setup['dtype']}, {sampling_text(setup['sampling'])}; {len(setup['prompts'])} prompts, "
        f"trees up to place {setup['max_new_tokens']}, seeds {setup['seeds'][0]} to {setup['seeds'][-1]}.",
        setup["workload"],
        "",
        *arguments.text_lines(pd.DataFrame(rows, columns=columns)),
        "",
        f"{len(judged.rows)} trees, each judged by every rule; the expectation over the rule's own coins. Bonus token "
        "included; interval: bootstrap over prompts.",
    ]
    return "\n".join(lines) + "\n"
