"""`dynatree audit`: check on toy models, by exact enumeration, that every rule is lossless for what it serves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .arguments import check_new, progress, table

if TYPE_CHECKING:
    from ..measure.audit import Audit

INSTANCES = 3000


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dynatree audit`."""
    parser.add_argument(
        "--instances", type=int, default=INSTANCES, metavar="N",
        help="least number of (models, drafter, rule) to check (default: %(default)s, a few minutes)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the models (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="save the record as JSON")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out file")


def main(args: argparse.Namespace, out: Callable[[str], object] | None = None) -> int:
    """Audit, save, and write what was found to `out` (standard output); 1 if anything failed."""
    from ..measure.audit import run_audit
    from ..measure.records import write_atomically

    _check(args)
    check_new(args.out, args.overwrite)
    audit = run_audit(args.instances, args.seed, progress)
    if args.out:
        write_atomically(args.out, audit.to_json())
    lines = [*report(audit), *([f"Saved in {args.out}."] if args.out else [])]
    (out or sys.stdout.write)("\n".join(lines) + "\n")
    return 1 if audit.failures() or audit.missing() else 0


def _check(args: argparse.Namespace) -> None:
    for name, least in (("instances", 1), ("seed", 0)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name} is {getattr(args, name)}; give at least {least}.")


def report(audit: Audit) -> Iterator[str]:
    """Lines: deviations by rule, identities, what the controls showed, who keeps more, and every failure."""
    yield from table([["rule", "tree kinds", "instances", "largest deviation"], *_rule_rows(audit)])
    yield f"Deviation: total variation from the target's law; limit {audit.setup['limit']}."
    yield ""
    yield from table([["identity", "instances", "largest deviation"], *_identity_rows(audit)])
    yield ""
    yield from table([["control", "rule", "instances", "biased", "refused", "largest bias"], *_control_rows(audit)])
    yield f"Biased: by more than {audit.setup['seen']}; refused: a token its recorded law cannot have drawn."
    yield ""
    yield from table([["Traversal over TokenLevel", "more", "equal", "fewer", "least", "most"], *_gain_rows(audit)])
    yield "Instances in which it keeps more, as many or fewer tokens, and the ends of the difference per iteration."
    yield ""
    yield from [*audit.failures(), *audit.missing()] or [_success(audit)]


def _rule_rows(audit: Audit) -> Iterator[list[str]]:
    rows = audit.summary()
    for rule in dict.fromkeys(row["rule"] for row in rows):
        mine = [row for row in rows if row["rule"] == rule]
        instances, deviation = sum(row["instances"] for row in mine), max(row["deviation"] for row in mine)
        yield [rule, str(len(mine)), str(instances), f"{deviation:.1e}"]


def _identity_rows(audit: Audit) -> Iterator[list[str]]:
    for row in audit.identity_summary():
        yield [row["identity"], str(row["instances"]), f"{row['deviation']:.1e}"]


def _control_rows(audit: Audit) -> Iterator[list[str]]:
    for row in audit.control_summary():
        bias = "-" if row["bias"] is None else f"{row['bias']:.3f}"
        yield [row["control"], row["rule"], *(str(row[name]) for name in ("instances", "biased", "refused")), bias]


def _gain_rows(audit: Audit) -> Iterator[list[str]]:
    for row in audit.comparison():
        counts = [str(row[name]) for name in ("more", "equal", "fewer")]
        yield [row["tree"], *counts, f"{row['least']:.4f}", f"{row['most']:.4f}"]


def _success(audit: Audit) -> str:
    ways = sum(one.outcomes for one in audit.checks)
    return f"All {len(audit.checks)} instances are lossless ({ways} outcomes enumerated), and every control was seen."
