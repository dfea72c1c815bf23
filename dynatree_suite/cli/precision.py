"""`dynatree precision`: where rounding changes greedy texts, by dtype, of methods and of plain decoding itself."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from statistics import median
from typing import Any

import pandas as pd

from ..bench.environment import describe_environment, describe_model, public_pair_name
from ..bench.methods import variants
from ..bench.prompts import prepare_prompts
from ..bench.records import check_writable
from ..bench.tables import number, with_interval
from ..proofs.precision import OLD_COLUMNS, SPARE, audit_precision
from . import arguments

DTYPES = ("float64", "float32", "bfloat16", "float16")
MOST = 4096
"""Nodes of the largest forward, whose mask is that many squared."""
Row = dict[str, Any]


def main(args: argparse.Namespace) -> int:
    """Audit each dtype, print the report, and save."""
    if args.json:
        check_writable(args.json)
    record = _measured(args)
    with arguments.saving(args.json, lambda: record):
        print("\n".join(report(record)))
    return 0


def _node_counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ValueError(f"--rows is '{text}'; give whole numbers separated by commas, such as 2,8,32.") from error
    if any(not 2 <= count <= MOST for count in counts):
        raise ValueError(f"--rows is '{text}'; one node is the reference itself, so give numbers from 2 to {MOST}.")
    return sorted(set(counts))


def _measured(args: argparse.Namespace) -> Row:
    # Everything that can be checked is checked before models are loaded.
    arguments.check_least(args, seed=0)
    methods, counts = variants(args.methods), _node_counts(args.rows)
    dtypes = arguments.names_in(args.dtypes, DTYPES, "dtype", "to audit")
    audits = []
    for dtype in dtypes:
        pair = arguments.pair_of(argparse.Namespace(**vars(args), dtype=dtype, static=False))
        workload = arguments.workload_of(args, pair, args.max_new_tokens + SPARE, args.limit)
        prompts = prepare_prompts(pair, workload.prompts, args.max_new_tokens)
        audit = audit_precision(
            pair, methods, prompts, max_new_tokens=args.max_new_tokens, node_counts=counts, seed=args.seed,
            progress=arguments.progress,
        )  # fmt: skip
        audits.append({**audit, "target": describe_model(pair.target), "draft": describe_model(pair.draft)})
    setup = {
        "pair": public_pair_name(pair),
        "methods": [method.label for method in methods],
        "row_counts": counts,
        "workload": workload.source,
        "prompts": [{"id": prompt.id, "sha256": prompt.sha256, "tokens": len(prompt.ids)} for prompt in prompts],
        "max_new_tokens": args.max_new_tokens,
        "eos_rule": "EOS is an ordinary token: every text goes to the budget",
        "seed": args.seed,
    }
    return {"environment": describe_environment(), "setup": setup, "dtypes": audits}


# -------------------------------------------------------------------------------------------------------------- texts
def report(record: Row) -> Iterator[str]:
    """Yield lines: a table per dtype with what it rests on."""
    setup, devices = record["setup"], [audit["target"]["device"] for audit in record["dtypes"]]
    where = arguments.machine(record["environment"], "cuda" if "cuda" in devices else None)
    yield (
        f"{setup['pair']} on {where}; {len(setup['prompts'])} prompts, {setup['max_new_tokens']} new tokens, "
        f"{setup['eos_rule']}."
    )
    yield setup["workload"]
    for audit in record["dtypes"]:
        yield from _of_dtype(audit)
    yield from ("", *_TERMS)


_TERMS = (
    "The reference is plain decoding, one node at a time. Every method is led along its text, and its own choice is "
    "recorded at each token; a flip is another choice. Until the first: the same up to the first flip of each text, "
    "which is all that free decoding sees.",
    "Noise: root mean square change of the margin between the reference's best two tokens; error: the same from the "
    "margins of the same weights in float64. Both, and margins, are in ulps: the dtype's spacing at the best logit.",
    "Intervals: exact for flips, bootstrap over prompts otherwise. Where texts differ, both are greedy texts of one "
    "model, rounded in another order.",
)


def _of_dtype(audit: Row) -> Iterator[str]:
    margins = pd.Series(audit["margins_ulps"])
    yield ""
    yield (
        f"{audit['dtype']}, engine {audit['engine']}: {audit['tokens']} tokens, {audit['ties']} exact ties, "
        f"{int((margins <= 1).sum())} margins of at most 1 ulp, median margin {margins.median():.3g} ulps. They are "
        f"off by {audit['error_ulps']:.3g} ulps from those of the same weights in float64, which prefers another token "
        f"at {audit['inexact']} places."
    )
    yield ""
    yield from arguments.text_lines(pd.DataFrame([_line(row) for row in audit["comparisons"]]))
    flips = pd.DataFrame([flip for row in audit["comparisons"] for flip in row["flips"]])
    if len(flips):
        yield (
            f"Of {len(flips)} flips float64 sides with the reference in {(flips['exact_margin'] > 0).sum()}; "
            f"{(flips['margin'] == 0).sum()} are at exact ties, the largest margin is {flips['margin'].max():.3g} "
            f"({flips['margin_ulps'].max():.3g} ulps)."
        )
    yield from (_sentence(row) for row in audit["against"])


def _line(row: Row) -> dict[str, str]:
    margins = [flip["margin_ulps"] for flip in row["flips"]]
    return {
        "comparison": row["label"],
        "nodes": number(row["rows"], 1) or "-",
        "identical": f"{row['identical']}/{row['prompts']}",
        "flips per 1000 [95 %]": with_interval(row["rate"], row["interval"], 1) or "-",
        "until the first [95 %]": with_interval(row["first_rate"], row["first_interval"], 1) or "-",
        "noise [95 %]": with_interval(row["noise_ulps"], row["noise_interval"]) or "-",
        "error": number(row["error_ulps"], 2) or "-",
        "margins at flips": f"median {median(margins):.2g}, largest {max(margins):.2g}" if margins else "-",
    }


def _sentence(row: Row) -> str:
    row = {OLD_COLUMNS.get(name, name): value for name, value in row.items()}
    ends = [math.inf if end is None else end for end in row["noise_interval"] or ()]
    noise = with_interval(row["noise_ratio"], ends or None) or "-"
    verdict = "more often" if row["exceeds"] else "no more often, as far as can be told"
    return (
        f"{row['label']} against {row['against']}: {row['both']} flips of both, {row['method_alone']} of the method "
        f"alone, {row['other_alone']} of the other alone ({verdict}); noise ratio {noise}."
    )
