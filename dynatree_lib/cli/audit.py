"""`dynatree audit`: check on toy models, by exact enumeration, that every rule is lossless for what it serves."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import pandas as pd

from ..measure.audit import Audit, run_audit
from ..paths import write_atomically
from . import arguments

TITLES = {
    "kinds": "tree kinds",
    "tree": "Traversal over TokenLevel",
    "deviation": "largest deviation",
    "bias": "largest bias",
}
FORMATS = {"deviation": "{:.1e}", "bias": "{:.3f}", "least": "{:.4f}", "most": "{:.4f}"}


def main(args: argparse.Namespace) -> int:
    """Audit, save, and print the result; 1 if anything failed."""
    arguments.check_least(args, instances=1, seed=0)
    arguments.check_new(args.out, args.overwrite)
    audit = run_audit(args.instances, args.seed, arguments.progress)
    if args.out:
        write_atomically(args.out, audit.to_json())
    print("\n".join([*report(audit), *([f"Saved in {args.out}."] if args.out else [])]))
    return 1 if audit.failures() or audit.missing() else 0


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
