"""`dynatree audit`: do texts keep the target's distribution? By enumeration on toy models, by tests on a real pair."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import pandas as pd

from ..bench.environment import describe_environment
from ..bench.methods import variants
from ..bench.prompts import prepare_prompts
from ..bench.tables import sampling_text
from ..proofs import rounding
from ..proofs.audit import Audit, run_audit
from ..proofs.fit import Fit, check_texts
from . import arguments, options

TITLES = {
    "kinds": "tree kinds",
    "tree": "Traversal over TokenLevel",
    "deviation": "largest deviation",
    "bias": "largest bias",
}
FORMATS = {"deviation": "{:.1e}", "bias": "{:.3f}", "least": "{:.4f}", "most": "{:.4f}", "share": "{:.4f}"}


def main(args: argparse.Namespace) -> int:
    """Audit, print the result, and save; 1 if anything failed."""
    arguments.check_least(args, instances=1, seed=0, seeds=1)
    on_pair = (args.pair, args.target, args.draft) != (None, None, None)
    check_used(args, on_pair)
    if args.rounding:
        return rounded(args, on_pair)
    if on_pair and arguments.sampling_of(args).greedy:
        raise ValueError(
            "At temperature 0 nothing is drawn; give another, or compare greedy texts with `dynatree bench`."
        )
    methods = variants(args.methods)
    arguments.check_new(args.out, args.overwrite)
    audit: Audit | Fit
    if on_pair:
        pair = arguments.pair_of(args)
        workload = arguments.workload_of(args, pair, args.max_new_tokens, args.limit)
        audit = check_texts(
            pair, methods, workload.prompts, max_new_tokens=args.max_new_tokens, sampling=arguments.sampling_of(args),
            seeds=range(args.seed, args.seed + args.seeds), source=workload.source, progress=arguments.progress,
        )  # fmt: skip
        lines, failed = tested(audit), audit.failures()
    else:
        audit = run_audit(args.instances, args.seed, arguments.progress, args.optimum)
        lines, failed = report(audit), [*audit.failures(), *audit.missing()]
    with arguments.saving(args.out, audit.to_json):
        print("\n".join(lines))
    return 1 if failed else 0


def check_used(args: argparse.Namespace, on_pair: bool) -> None:
    """Raise ValueError for an option that this audit would not look at, given another value than its default."""
    parser = argparse.ArgumentParser()
    options.audit(parser)
    pair_alone = ("workload", "task", "data", "limit", "temperature", "top_k", "top_p", "device", "dtype", "engine",
                  "draft_dtype", "threads", "static", "vocabularies")  # fmt: skip
    used = {
        "instances": not on_pair,
        "optimum": not on_pair and not args.rounding,
        **dict.fromkeys(("methods", "seeds", "max_new_tokens"), on_pair and not args.rounding),
        **dict.fromkeys(pair_alone, on_pair),
    }
    for name, needed in used.items():
        if not needed and getattr(args, name) != parser.get_default(name):
            raise ValueError(
                f"--{name.replace('_', '-')} is {getattr(args, name)}, and an audit {'of rounding ' * args.rounding}"
                f"on {'a pair' if on_pair else 'toy models'} does not use it; leave it out."
            )


def rounded(args: argparse.Namespace, on_pair: bool) -> int:
    """Audit what rounding does to a token's distribution, on toy models or a pair; 1 if a bias exceeds its bound."""
    sampling = arguments.sampling_of(args)
    if sampling.greedy or sampling.top_k is not None or sampling.top_p is not None:
        raise ValueError(
            "--rounding compares whole distributions: give a --temperature above 0, no --top-k, no --top-p."
        )
    arguments.check_new(args.out, args.overwrite)
    if not on_pair:
        rows = list(rounding.toys(args.instances, args.seed))
    else:
        pair = arguments.pair_of(args)
        workload = arguments.workload_of(args, pair, 16, args.limit)
        prompts = [one.ids for one in prepare_prompts(pair, workload.prompts, 16)]
        rows = list(rounding.on_pair(pair, prompts, sampling, seed=args.seed))
    table = rounding.summary(rows).rename(columns={"where": "model", "dtype": "logits"})
    biases, shares = table.pop("bias").map("{:.1e}".format), (100 * table.pop("share")).map("{:.1f} %".format)
    table = table.astype(str).assign(**{"largest bias": biases, "of its bound": shares})
    beyond = [row for row in rows if not row.bias <= row.bound]
    record = {"environment": describe_environment(), "seed": args.seed, "distributions": rounding.to_json(rows)}
    with arguments.saving(args.out, lambda: record):
        print("\n".join(arguments.text_lines(table)))
        print("Bias: total variation of what float32 code emits from the softmax of the same logits in float64.")
        for row in beyond:
            print(
                f"{row.rule} on {row.tree} ({row.dtype}) is off by {row.bias:.1e}, beyond its bound of {row.bound:.1e}."
            )
        print(f"{len(rows)} distributions, {len(beyond) or 'none'} beyond the bound.")
    return 1 if beyond else 0


def tested(fit: Fit) -> Iterator[str]:
    """Yield lines: what was tested, the p-values of each method, and failures."""
    setup, rows = fit.setup, []
    for row in fit.rows:
        label = f"{row['method']} (control)" if row["control"] else row["method"]
        verdict = "biased" if fit.biased(row) else "no bias seen"
        p = (f"{row[name]:.2g}" for name in ("surprise_p", "place_p"))
        rows.append([label, str(row["texts"]), str(row["tokens"]), f"{row['surprise_z']:+.2f}", *p, verdict])
    yield f"{setup['pair']}, {sampling_text(setup['sampling'])}. {setup['workload']}"
    columns = ["method", "texts", "tokens", "surprise, z", "its p", "places, p", "verdict"]
    yield from arguments.text_lines(pd.DataFrame(rows, columns=columns))
    yield f"Biased: a p below {fit.limit:.1e}, by which {100 * setup['alpha']:g} % of audits of sound methods fail."
    yield "z above 0: likelier tokens than the target's own."
    texts = min(row["texts"] for row in fit.rows)
    yield from fit.failures() or [
        f"No method was seen to differ from the target in {texts} texts, and every control was. A bias that is smaller "
        "than the controls' takes more texts to see: raise --limit, --seeds or --max-new-tokens."
    ]


def report(audit: Audit) -> Iterator[str]:
    """Yield lines: deviations by rule, identities, what the controls showed, which rule emits more, and failures."""
    rules = pd.DataFrame(audit.summary()).groupby("rule", as_index=False)
    rows = rules.agg(kinds=("tree", "size"), instances=("instances", "sum"), deviation=("deviation", "max"))
    yield from _lines(rows, "rule", "kinds", "instances", "deviation")
    yield f"Deviation: total variation from the target's distribution; limit {audit.setup['limit']}."
    yield ""
    yield from _lines(audit.identity_summary(), "identity", "instances", "deviation")
    yield ""
    yield from _lines(audit.control_summary(), "control", "rule", "instances", "biased", "refused", "bias")
    yield f"Biased: by more than {audit.setup['seen']}; refused: a token its recorded distribution cannot have drawn."
    yield ""
    yield from _lines(audit.comparison(), "tree", "more", "equal", "fewer", "least", "most")
    yield "Instances in which it emits more, as many or fewer tokens, and the ends of the difference per iteration."
    yield ""
    if shares := audit.shares():
        known = pd.DataFrame(shares).dropna()
        sums = known[["accepted", "optimum"]].mul(known["instances"], axis=0).assign(instances=known["instances"])
        sums = sums.groupby(known["rule"]).sum().reset_index()
        yield from _lines(sums.assign(share=sums["accepted"] / sums["optimum"]), "rule", "instances", "share")
        yield "Share of the drafted tokens that the best lossless rule would accept, on the trees that the rule serves."
        yield ""
    ways = audit.checks["outcomes"].sum()
    success = (
        f"All {len(audit.checks)} instances are lossless ({ways} outcomes enumerated), and every control was seen."
    )
    yield from [*audit.failures(), *audit.missing()] or [success]


def _lines(rows: Any, *names: str) -> list[str]:
    """Return a table with these columns under their titles; "-" stands for None."""
    frame = pd.DataFrame(rows, columns=names)
    for name in frame.columns.intersection(FORMATS):
        frame[name] = frame[name].map(FORMATS[name].format, na_action="ignore")
    return arguments.text_lines(frame.rename(columns=TITLES).fillna("-").astype(str))
