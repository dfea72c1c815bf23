"""`dynatree run`: execute notebooks of the suite, each in a kernel of its own, with a receipt for each."""

from __future__ import annotations

import argparse
import sys

from ..suite.plan import find_sources, make_jobs, parse_override, project_root, select
from ..suite.run import INTERRUPTED, default_out, describe_plan, require_papermill, run_jobs


def main(args: argparse.Namespace) -> int:
    """Run notebooks; 0 when every notebook finished, 1 when one failed, 130 after Ctrl-C."""
    root = project_root()
    sources = select(find_sources(args.notebooks or root / "notebooks"), args.only, args.headline)
    jobs = make_jobs(sources, args.profile, dict(parse_override(text) for text in args.overrides))
    out = (args.out or default_out(root, args.profile, args.resume)).resolve()
    if args.dry_run:
        say(describe_plan(jobs, out, args.resume))
        return 0
    require_papermill()
    code = run_jobs(jobs, out, root, resume=args.resume, say=say, progress=sys.stderr.isatty())
    if args.report and code != INTERRUPTED:
        from ..suite.report import build_report  # here, because it loads nbconvert

        say(f"Report: {build_report(out)}")
    return code


def say(text: str) -> None:
    """Print a line at once, so that progress shows through a pipe too."""
    print(text, flush=True)
