"""`dynatree run`: execute notebooks of the suite, each in a kernel of its own, with a receipt for each."""

from __future__ import annotations

import argparse
import sys

from ..runs import forecast
from ..runs.cluster import workers_for
from ..runs.plan import find_sources, make_jobs, parse_override, project_root, select
from ..runs.receipts import Files, fingerprint, why_rerun
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
    overrides = dict(parse_override(text) for text in args.overrides)
    jobs = make_jobs(sources, args.profile, overrides, args.divide)
    if args.hours is not None and not args.hours > 0:
        raise ValueError(f"--hours is {args.hours}; give the hours that the run may take, such as 1.")
    if args.hours is not None and args.divide > 1:
        raise ValueError("--hours goes by estimates of whole amounts, and --divide has none; give one of the two.")
    out = (args.out or default_out(root, args.profile, args.resume, args.divide)).resolve()
    priced, kept = args.profile == "colab" and args.divide == 1, set[str]()
    if args.resume and (priced or args.hours is not None):
        kept = {job.name for job in jobs if why_rerun(Files(out, job.name), fingerprint(job)) is None}
    if priced and len(kept) < len(jobs):
        jobs = forecast.scaled(jobs, forecast.iteration_seconds(args.profile, dict(jobs[0].parameters)))
    if args.hours is not None:
        jobs, left = forecast.within(jobs, args.hours, kept)
        for job in left:
            say(f"{job.name}: left out, {args.hours:g} h do not hold it{job.expected}")
        if not jobs:
            raise ValueError(f"No notebook fits into {args.hours:g} h; give --hours more, or choose with --only.")
    if args.dry_run:
        say(describe_plan(jobs, out, args.resume))
        return 0
    require_papermill()
    if args.profile == "colab":
        say(describe_plan(jobs, out, args.resume))
    check_place(jobs, out, args.resume, args.overwrite)
    timeout = None if args.timeout is None else 60 * args.timeout
    options = {"resume": args.resume, "overwrite": args.overwrite, "timeout": timeout, "progress": sys.stderr.isatty()}
    with workers_for(args.workers, args.scheduler, (out, root, folder), any(job.on_gpu for job in jobs)) as client:
        code = run_jobs(jobs, out, root, say=say, client=client, **options)
    if args.report and code != INTERRUPTED:
        from ..runs.report import build_report  # here, because it loads nbconvert

        say(f"Report: {build_report(out)}")
    return code


def say(text: str) -> None:
    """Print a line at once, so that progress shows through a pipe too."""
    print(text, flush=True)
