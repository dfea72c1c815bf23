"""`dynatree bench`: measure methods on a pair and a workload, print a table, write JSON."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Any

import pandas as pd

from ..bench.grids import text
from ..bench.methods import METHODS, variant, variants
from ..bench.metrics import drafting_metrics
from ..bench.protocol import Results, run_benchmark
from ..bench.records import check_writable
from ..bench.tables import bound_sentence, disturbed_sentence, method_table
from ..costs.tune import load_tuned
from . import arguments


def main(args: argparse.Namespace) -> int:
    """Run the benchmark and print the table; 1 if a method failed on some prompt."""
    if args.methods == "help":
        print(method_list(), end="")
        return 0
    results = _measured(args)
    with arguments.saving(args.json, results.to_json):
        print(report(results), end="")
    return 1 if results.records.failures else 0


def _measured(args: argparse.Namespace) -> Results:
    # Everything that can be checked is checked before models are loaded.
    best = load_tuned(args.tuned).predictions if args.tuned else ()
    tuned = [variant(one.spec, f"{one.method} (tuned)") for one in best if one.method != "ar"]
    methods = variants([*variants([*METHODS] if args.methods == "all" else args.methods), *tuned])
    sampling = arguments.sampling_of(args)
    for path in filter(None, (args.json, args.records)):
        check_writable(path)
    if args.json and args.records and args.json.resolve() == args.records.resolve():
        raise ValueError(
            f"--json and --records are both {args.json}, and each would replace the other; give two files."
        )
    if args.resume and not args.records:
        raise ValueError("--resume needs --records FILE; give the file to go on with.")
    pair = arguments.pair_of(args)
    workload = arguments.workload_of(args, pair, args.max_new_tokens, args.limit)
    return run_benchmark(
        pair, methods, workload.prompts,
        max_new_tokens=args.max_new_tokens, sampling=sampling, seed=args.seed, warmup=args.warmup, repeats=args.repeats,
        ignore_eos=not args.stop_at_eos, trace=args.trace, bandwidth=True, records=args.records,
        existing="resume" if args.resume else "replace" if args.overwrite else "refuse",
        progress=arguments.progress, source=workload.source, turns=args.turns,
    )  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- texts
def method_list() -> str:
    """Every method with its options and their defaults."""
    lines = []
    for name, method in METHODS.items():
        options = ", ".join(f"{key}={text(value)}" for key, value in method.defaults.items())
        lines.append(f"{name:18} {options or 'no options'}{'' if method.lossless else '  [lossy]'}\n")
    return "".join(lines)


def report(results: Results) -> str:
    """Return the table with what it rests on."""
    setup, summaries = results.records.header.setup, results.summaries()
    where = arguments.machine(results.records.header.environment, setup["target"]["device"])
    lines = [
        f"{setup['pair']} in {setup['dtype']} on {where}; {setup['max_new_tokens']} new tokens, {setup['eos_rule']}.",
        setup["workload"] + ("" if setup["turns"].startswith("the first") else f" Turns: {setup['turns']}."),
        "",
        *arguments.text_lines(method_table(summaries)),
        "",
        *_drafting(results, summaries),
        *_remarks(results, summaries),
    ]
    return "\n".join(lines) + "\n"


def _drafting(results: Results, summaries: Sequence[dict[str, Any]]) -> list[str]:
    """Return Progressive Tree Drafting's terms with intervals, if a method drafts in a side tree."""
    if not any(one["side_nodes_per_iteration"] for one in summaries):
        return []
    frame, terms = results.records.frame(), {"decoding_efficiency": "DE", "hit_rate": "HR", "accept_length": "AL"}
    rows = []
    for summary in (summary for summary in summaries if summary["nodes_per_iteration"]):
        found = drafting_metrics(frame[frame["method"] == summary["label"]])
        rows.append({"method": summary["label"], **{short: str(found.get(name, "")) for name, short in terms.items()}})
    return [
        *arguments.text_lines(pd.DataFrame(rows)),
        "",
        "DE: tokens per iteration; HR: share of iterations that accept a drafted token; AL: their tokens.",
        "Dft/Ver: nodes of the side tree and drafted nodes of the tree, per iteration (PTD, section 4.1).",
        "",
    ]


def _remarks(results: Results, summaries: Sequence[dict[str, Any]]) -> list[str]:
    setup, bandwidth = results.records.header.setup, results.bandwidth
    lines = [
        "tokens/s: all tokens over all seconds; intervals: bootstrap over prompts.",
        "Iteration cost: seconds per iteration in units of one greedy step of hf-generate.",
    ]
    if bandwidth is not None:
        lines += [
            bound_sentence(bandwidth),
            f"Memory, the faster of reading and copying: {_speeds(bandwidth['measured'])}.",
        ]
    if any(one["split"] for one in summaries):
        lines.append("Draft, verify: time in the models' forwards; host: all the rest (traced runs, apart from these).")
    if setup["reference"] and any(one["identical"] for one in summaries):
        lines.append(f"Identical: texts that equal those of {setup['reference']}, token for token.")
    lines += [disturbed_sentence(summaries)] * any(one["disturbed"] for one in summaries)
    steps = f", or {count} steps of {setup['dtype']}" if (count := setup.get("near_tie_steps")) else ""
    for one in summaries:
        label, left = one["label"], one["divergences"]
        if left and one["lossless"]:
            lines.append(f"{label}: {len(left)} divergent runs, {one['near_ties']} of them near-ties "
                         f"(margin of at most {setup['near_tie_margin']:g}{steps}).")  # fmt: skip
        counts = {name: n for name, n in one["counters"].items() if not name.startswith("draft_")}
        if counts:
            lines.append(f"{label}: {', '.join(f'{name} {n}' for name, n in counts.items()).replace('_', ' ')}.")
    lines += [f"{one.method} failed on {one.prompt}: {one.error}" for one in results.records.failures.values()]
    engines = f"Forwards by the engine {setup['target']['engine']} (target) and {setup['draft']['engine']} (draft)."
    return [*lines, *results.records.notes, engines]


def _speeds(measured: Sequence[dict[str, Any]]) -> str:
    """Return the GB/s of each size of buffer, before and after the runs."""
    sizes: dict[int, list[str]] = {}
    for one in measured:
        speed = f"{max(one['read'], one['copy']) / 1e9:.1f} GB/s {one['when']} the runs"
        sizes.setdefault(one["size"], []).append(speed)
    return "; ".join(f"{size / 2**20:.0f} MiB at {', '.join(speeds)}" for size, speeds in sizes.items())
