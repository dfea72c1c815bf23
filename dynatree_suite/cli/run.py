"""`dynatree run`: execute notebooks of the suite, each in a kernel of its own, with a receipt for each."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from ..runs.plan import Job, find_sources, make_jobs, parse_override, project_root, select
from ..runs.run import INTERRUPTED, check_place, default_out, describe_plan, require_papermill, run_jobs
from . import arguments


def main(args: argparse.Namespace) -> int:
    """Run notebooks; 0 when every notebook finished, 1 when one failed, 130 after Ctrl-C."""
    arguments.on_workers(args)  # before any work
    if args.resume and args.overwrite:
        raise ValueError(
            "--resume and --overwrite were both given; the first keeps what is valid, the second nothing: give one."
        )
    if args.timeout is not None and not args.timeout > 0:
        raise ValueError(f"--timeout is {args.timeout}; give the minutes that a notebook may take, such as 60.")
    root = project_root()
    folder = (args.notebooks or root / "notebooks").resolve()
    sources = select(find_sources(folder), args.only, args.headline)
    jobs = make_jobs(sources, args.profile, dict(parse_override(text) for text in args.overrides))
    out = (args.out or default_out(root, args.profile, args.resume)).resolve()
    if args.dry_run:
        say(describe_plan(jobs, out, args.resume))
        return 0
    require_papermill()
    check_place(jobs, out, args.resume, args.overwrite)
    code = _run(args, jobs, out, root)
    if args.report and code != INTERRUPTED:
        from ..runs.report import build_report  # here, because it loads nbconvert

        say(f"Report: {build_report(out)}")
    return code


def _run(args: argparse.Namespace, jobs: Sequence[Job], out: Path, root: Path) -> int:
    timeout = None if args.timeout is None else 60 * args.timeout
    how = {"resume": args.resume, "overwrite": args.overwrite, "say": say, "timeout": timeout}
    if not arguments.on_workers(args):
        return run_jobs(jobs, out, root, progress=sys.stderr.isatty(), **how)
    from ..runs import cluster  # here, because it needs Dask

    gpu = any(map(cluster.on_gpu, jobs))
    with cluster.workers_for(args.workers, args.scheduler, gpu) as client:
        return cluster.run_on_workers(jobs, out, root, client, **how)


def say(text: str) -> None:
    """Print a line at once, so that progress shows through a pipe too."""
    print(text, flush=True)
