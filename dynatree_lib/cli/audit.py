"""`dynatree audit`: check on toy models, by exact enumeration, that every rule is lossless for what it serves."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .arguments import check_new, progress, text_lines

if TYPE_CHECKING:
    from ..measure.audit import Audit


def configure(parser: argparse.ArgumentParser) -> None:
    """Add the options of `dynatree audit`."""
    parser.add_argument(
        "--instances", type=int, default=3000, metavar="N",
        help="least number of (models, drafter, rule) to check (default: %(default)s, a few minutes)",
    )  # fmt: skip
    parser.add_argument("--seed", type=int, default=0, help="of the models (default: %(default)s)")
    parser.add_argument("--out", type=Path, metavar="FILE", help="save the record as JSON")
    parser.add_argument("--overwrite", action="store_true", help="replace an existing --out file")


def main(args: argparse.Namespace, out: Callable[[str], object] | None = None) -> int:
    """Audit, save, and write the result to `out` (standard output); 1 if anything failed."""
    from ..measure.audit import run_audit
    from ..measure.records import write_atomically

    for name, least in (("instances", 1), ("seed", 0)):
        if getattr(args, name) < least:
            raise ValueError(f"--{name} is {getattr(args, name)}; give at least {least}.")
    check_new(args.out, args.overwrite)
    audit = run_audit(args.instances, args.seed, progress)
    if args.out:
        write_atomically(args.out, audit.to_json())
    lines = [*report(audit), *([f"Saved in {args.out}."] if args.out else [])]
    (out or sys.stdout.write)("\n".join(lines) + "\n")
    return 1 if audit.failures() or audit.missing() else 0


def report(audit: Audit) -> Iterator[str]:
    """Yield lines: deviations by rule, identities, what the controls showed, which rule emits more, and failures."""
    import pandas as pd

    rules = pd.DataFrame(audit.summary()).groupby("rule", as_index=False)
    rows = rules.agg(kinds=("tree", "size"), instances=("instances", "sum"), deviation=("deviation", "max"))
    counted, deviation = {"instances": "instances"}, {"deviation": "largest deviation"}
    yield from _lines(rows.to_dict("records"), {"rule": "rule", "kinds": "tree kinds", **counted, **deviation})
    yield f"Deviation: total variation from the target's distribution; limit {audit.setup['limit']}."
    yield ""
    yield from _lines(audit.identity_summary(), {"identity": "identity", **counted, **deviation})
    yield ""
    titles = {"control": "control", "rule": "rule", **counted, "biased": "biased", "refused": "refused"}
    yield from _lines(audit.control_summary(), {**titles, "bias": "largest bias"})
    yield f"Biased: by more than {audit.setup['seen']}; refused: a token its recorded distribution cannot have drawn."
    yield ""
    titles = {"tree": "Traversal over TokenLevel", "more": "more", "equal": "equal", "fewer": "fewer"}
    yield from _lines(audit.comparison(), {**titles, "least": "least", "most": "most"})
    yield "Instances in which it emits more, as many or fewer tokens, and the ends of the difference per iteration."
    yield ""
    ways = audit.checks["outcomes"].sum()
    success = (
        f"All {len(audit.checks)} instances are lossless ({ways} outcomes enumerated), and every control was seen."
    )
    yield from [*audit.failures(), *audit.missing()] or [success]


_FORMATS = {"deviation": ".1e", "bias": ".3f", "least": ".4f", "most": ".4f"}


def _lines(rows: Sequence[Mapping[str, Any]], titles: Mapping[str, str]) -> list[str]:
    """Return a table with these columns under their titles; "-" stands for None."""
    import pandas as pd

    cells = [["-" if row[n] is None else format(row[n], _FORMATS.get(n, "")) for n in titles] for row in rows]
    return text_lines(pd.DataFrame(cells, columns=list(titles.values())))
