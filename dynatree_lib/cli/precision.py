"""`dynatree precision`: where rounding changes greedy texts, by dtype, of methods and of plain decoding itself."""

from __future__ import annotations

import argparse
import json
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from .arguments import add_pair, add_workload, progress, room_for, table, with_interval, workload_of

if TYPE_CHECKING:
    from ..measure.methods import Variant
    from ..models.pairs import Pair

DTYPES = ("float64", "float32", "bfloat16", "float16")
METHODS = "hf-generate,ar,chain:length=4,fixed-tree,cost-aware-tree,lookup-tree"
Row = dict[str, Any]


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dynatree precision`."""
    told = "(default: %(default)s)"
    what = parser.add_argument_group("what is compared")
    add_pair(what)
    what.add_argument("--dtypes", default="float32,bfloat16,float16", metavar="LIST", help=told)
    what.add_argument(
        "--methods", default=METHODS, metavar="LIST", help=f"as for `dynatree bench`, lossless ones {told}"
    )
    what.add_argument(
        "--rows", default="2,4,8,16,32,64", metavar="LIST",
        help=f"rows of the forwards in which plain decoding is compared with itself {told}",
    )  # fmt: skip
    add_workload(what, limit=12)
    how = parser.add_argument_group("how")
    how.add_argument("--max-new-tokens", type=int, default=64, metavar="N", help=f"of every text {told}")
    how.add_argument("--seed", type=int, default=0, help=f"of the choice of prompts and the bootstraps {told}")
    how.add_argument("--device", help="cpu, cuda, cuda:1, auto (default: cpu)")
    how.add_argument(
        "--engine",
        default="auto",
        help="the reference's, one that serves every dtype: eager, lean, packed (default: the fastest of each)",
    )
    how.add_argument("--threads", type=int, help="torch threads (default: torch's own choice)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the record as JSON")


def main(args: argparse.Namespace, out: Callable[[str], object] | None = None) -> int:
    """Audit each dtype, save, and write what was found to `out` (standard output)."""
    import torch

    from ..measure.methods import variants
    from ..measure.records import check_writable, write_atomically

    # Everything that can be checked is checked before models are loaded.
    methods, dtypes, rows = variants(args.methods), _dtypes(args.dtypes), _row_counts(args.rows)
    if args.threads is not None:
        if args.threads < 1:
            raise ValueError(f"--threads is {args.threads}; give at least 1.")
        torch.set_num_threads(args.threads)
    if args.json:
        check_writable(args.json)
    record = _measured(args, methods, dtypes, rows)
    if args.json:
        write_atomically(args.json, json.dumps(record, indent=1, ensure_ascii=False) + "\n")
    (out or sys.stdout.write)("\n".join(report(record)) + "\n")
    return 0


def _dtypes(text: str) -> list[str]:
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in DTYPES:
            raise ValueError(f"There is no dtype '{name}' to audit; choose from {', '.join(DTYPES)}.")
    if not names:
        raise ValueError(f"No dtype was given; choose from {', '.join(DTYPES)}.")
    return list(dict.fromkeys(names))


def _row_counts(text: str) -> list[int]:
    try:
        counts = [int(part) for part in text.split(",") if part.strip()]
    except ValueError as error:
        raise ValueError(f"--rows is '{text}'; give whole numbers separated by commas, such as 2,8,32.") from error
    if any(count < 2 for count in counts):
        raise ValueError(f"--rows is '{text}'; one row is the reference itself, so give numbers of at least 2.")
    return sorted(set(counts))


def _measured(args: argparse.Namespace, methods: Sequence[Variant], dtypes: Sequence[str], rows: Sequence[int]) -> Row:
    from ..experiments.speed.precision import SPARE, audit_precision
    from ..measure.environment import describe_environment, describe_model, public_name
    from ..measure.prompts import prepare_prompts

    record: Row = {"environment": {}, "setup": {}, "dtypes": []}
    for dtype in dtypes:
        pair = _pair(args, dtype)
        room = room_for(pair, args.max_new_tokens + SPARE)
        workload = workload_of(args, room, pair.tokenizer, args.limit)
        prompts = prepare_prompts(pair, workload.prompts, args.max_new_tokens)
        audit = audit_precision(
            pair, methods, prompts, max_new_tokens=args.max_new_tokens, row_counts=rows, seed=args.seed,
            progress=progress,
        )  # fmt: skip
        record["dtypes"].append({**audit, "target": describe_model(pair.target), "draft": describe_model(pair.draft)})
        record["setup"] = {
            "pair": " + ".join(public_name(part) for part in pair.name.split(" + ")),
            "methods": [one.label for one in methods],
            "row_counts": list(rows),
            "workload": workload.source,
            "prompts": [{"id": one.id, "sha256": one.sha256, "tokens": len(one.ids)} for one in prompts],
            "max_new_tokens": args.max_new_tokens,
            "eos_rule": "EOS is an ordinary token: every text goes to the budget",
            "seed": args.seed,
        }
    record["environment"] = describe_environment()
    return record


def _pair(args: argparse.Namespace, dtype: str) -> Pair:
    from ..models.pairs import load_pair

    name = "tiny" if args.pair is None and args.target is None and args.draft is None else args.pair
    return load_pair(
        name, target=args.target, draft=args.draft, device_map=args.device, dtype=dtype, engine=args.engine
    )


# -------------------------------------------------------------------------------------------------------------- texts
_HEADINGS = (
    "comparison", "rows", "identical", "flips per 1000 [95 %]", "until the first [95 %]", "noise [95 %]", "error",
    "margins at flips",
)  # fmt: skip


def report(record: Row) -> Iterator[str]:
    """Lines: a table per dtype with what it rests on."""
    setup, environment = record["setup"], record["environment"]
    gpu = environment["gpu"]
    on_gpu = gpu and any(one["target"]["device"] == "cuda" for one in record["dtypes"])
    where = gpu["name"] if on_gpu else environment["cpu"] or "unknown CPU"
    yield (
        f"{setup['pair']} on {where}, {environment['threads']} threads; {len(setup['prompts'])} prompts, "
        f"{setup['max_new_tokens']} new tokens, {setup['eos_rule']}."
    )
    yield setup["workload"]
    for audit in record["dtypes"]:
        yield from _of_dtype(audit)
    yield from ("", *_TERMS)


_TERMS = (
    "The reference is plain decoding, one row at a time. Every method is led along its text and asked at each token "
    "what it would choose; a flip is another choice. Until the first: the same up to the first flip of each text, "
    "which is all that free decoding sees.",
    "Noise: root mean square change of the margin between the reference's best two tokens; error: the same from the "
    "margins of the same weights in float64. Both, and margins, are in ulps: the dtype's spacing at the best logit.",
    "Intervals: exact for flips, bootstrap over prompts otherwise. Where texts differ, both are greedy texts of one "
    "model, rounded in another order.",
)


def _of_dtype(audit: Row) -> Iterator[str]:
    margins = np.array(audit["margins_ulps"])
    yield ""
    yield (
        f"{audit['dtype']}, engine {audit['engine']}: {audit['tokens']} tokens, {audit['ties']} exact ties, "
        f"{int((margins <= 1).sum())} margins of at most 1 ulp, median margin {np.median(margins):.3g} ulps. They are "
        f"off by {audit['error_ulps']:.3g} ulps from those of the same weights in float64, which prefers another token "
        f"at {audit['inexact']} places."
    )
    yield ""
    yield from table([_HEADINGS, *(_line(row) for row in audit["comparisons"])])
    flips = [flip for row in audit["comparisons"] for flip in row["flips"]]
    if flips:
        sides = sum(flip["exact_margin"] > 0 for flip in flips)
        yield (
            f"Of {len(flips)} flips float64 sides with the reference in {sides}; "
            f"{sum(flip['margin'] == 0 for flip in flips)} are at exact ties, the largest margin is "
            f"{max(flip['margin'] for flip in flips):.3g} ({max(flip['margin_ulps'] for flip in flips):.3g} ulps)."
        )
    yield from (_sentence(row) for row in audit["against"])


def _line(row: Row) -> list[str]:
    margins = [flip["margin_ulps"] for flip in row["flips"]]
    return [
        row["label"],
        "-" if row["rows"] is None else f"{row['rows']:.1f}",
        f"{row['identical']}/{row['prompts']}",
        with_interval(row["rate"], row["interval"], 1),
        with_interval(row["first_rate"], row["first_interval"], 1),
        with_interval(row["noise_ulps"], row["noise_interval"], 2),
        "-" if row["error_ulps"] is None else f"{row['error_ulps']:.2f}",
        f"median {np.median(margins):.2g}, largest {max(margins):.2g}" if margins else "-",
    ]


def _sentence(row: Row) -> str:
    ends = [math.inf if end is None else end for end in row["noise_interval"] or ()]
    noise = with_interval(row["noise_ratio"], ends or None, 2)
    verdict = "more often" if row["exceeds"] else "no more often, as far as can be told"
    return (
        f"{row['label']} against {row['against']}: {row['both']} flips of both, {row['mine']} of it alone, "
        f"{row['its']} of the other alone ({verdict}); noise ratio {noise}."
    )
