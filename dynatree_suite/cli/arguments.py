"""What the shared options of `options` mean: a pair, prompts, a sampling; and how commands write tables and records."""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pandas as pd
import torch

from dynatree_lib.engines.static import static_pair
from dynatree_lib.models.pairs import Pair, load_pair
from dynatree_lib.sampling import Sampling

from ..bench.clock import choose_threads, iteration_seconds
from ..bench.records import check_writable
from ..files import write_atomically
from ..papers.workloads import Workload, join_workloads, load_workload

MOST_THREADS = 1024
"""Torch ends the process where the system cannot start as many as it was told."""
FASTEST = "fastest"
"""The value of --dtype that takes the faster of float32 and bfloat16."""


def sampling_of(args: argparse.Namespace) -> Sampling:
    """The sampling; ValueError as for `Sampling`."""
    return Sampling(args.temperature, args.top_k, args.top_p)


def pair_of(args: argparse.Namespace, *, settled: bool = True) -> Pair:
    """Load the pair, with the number of threads set before; ValueError for none, and for more than any machine has.

    It is `settled`, because most commands measure.
    """
    if args.threads not in (None, "auto"):
        if not re.fullmatch(r"\d{1,4}", args.threads, re.ASCII) or not 1 <= int(args.threads) <= MOST_THREADS:
            raise ValueError(f"--threads is {args.threads}; give a whole number from 1 to {MOST_THREADS}, or auto.")
        torch.set_num_threads(int(args.threads))
    if args.pair is None and args.target is None and args.draft is None:
        args.pair = "tiny"
    names = {"target": args.target, "draft": args.draft, "device_map": args.device, "engine": args.engine}
    names["draft_dtype"], names["vocabularies"] = args.draft_dtype, args.vocabularies
    if args.dtype == FASTEST:
        pairs = {dtype: load_pair(args.pair, **names, dtype=dtype).settle() for dtype in ("float32", "bfloat16")}
        seconds = iteration_seconds(pairs)
        args.dtype = min(seconds, key=seconds.__getitem__)
        times = ", ".join(f"{dtype}: {1000 * each:.2f} ms" for dtype, each in seconds.items())
        progress(f"{args.dtype} is the fastest here (an iteration's forwards: {times}); texts may differ between them.")
        pair = pairs[args.dtype]
    else:
        pair = load_pair(args.pair, **names, dtype=args.dtype)
    if settled:
        pair.settle()
    if args.static:
        pair = static_pair(pair, warm=True)
    if args.threads == "auto":
        found = choose_threads(pair)
        times = ", ".join(f"{count}: {1000 * seconds:.2f} ms" for count, seconds in found.items())
        progress(f"{torch.get_num_threads()} threads are fastest (an iteration's forwards by threads: {times}).")
    return pair


def workload_of(args: argparse.Namespace, pair: Pair, further: int, limit: int | None = None) -> Workload:
    """Return the prompts that leave room for `further` tokens in the target's context; ValueError if no prompt can.

    Of several workloads up to `limit` prompts each.
    """
    check_least(args, max_new_tokens=1)
    longest = pair.target.context - further
    if longest < 1:
        raise ValueError(
            f"--max-new-tokens is {args.max_new_tokens} and the context of '{pair.name}' is {pair.target.context}; "
            "ask for fewer tokens."
        )
    names = [name.strip() + (f"/{args.task}" if args.task else "") for name in args.workload.split(",")]
    options = {"seed": args.seed, "source": args.data or "auto", "max_tokens": longest, "tokenizer": pair.tokenizer}
    return join_workloads([load_workload(name, limit=limit, **options) for name in names])


def names_in(text: str, known: Collection[str], what: str, use: str) -> list[str]:
    """Return the names of a list with commas; ValueError for a name that is unknown or given twice, and for no name."""
    names = [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise ValueError(f"There is no {what} '{name}' {use}; choose from {', '.join(known)}.")
        if names.count(name) > 1:
            raise ValueError(f"The {what} '{name}' is given twice; give each once.")
    if not names:
        raise ValueError(f"No {what} was given; choose from {', '.join(known)}.")
    return names


def check_least(args: argparse.Namespace, **least: int) -> None:
    """Raise ValueError for an option with a value below its least, and for a count (least above 0) of over 10^9."""
    for name, count in least.items():
        value, option = getattr(args, name), f"--{name.replace('_', '-')}"
        if value < count:
            raise ValueError(f"{option} is {value}; give at least {count}.")
        if count and value > 10**9:
            raise ValueError(f"{option} is {value}; give at most {10**9}.")


def on_workers(args: argparse.Namespace) -> bool:
    """Whether several things run at a time; ValueError where workers are to be started and another's taken."""
    if args.scheduler is not None and not args.scheduler.strip():
        raise ValueError("--scheduler is ''; give the address that `dask scheduler` prints, such as tcp://host:8786.")
    if args.workers is not None and args.scheduler:
        raise ValueError(
            "--workers and --scheduler were both given; the first starts workers, the second has its own: give one."
        )
    return args.workers is not None or bool(args.scheduler)


def check_new(path: Path | None, overwrite: bool) -> None:
    """Raise ValueError if a file to be written exists and may not be replaced, or cannot be written."""
    if path is not None:
        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists; replace it with --overwrite, or give another file.")
        check_writable(path)


# -------------------------------------------------------------------------------------------------------------- texts
def text_lines(frame: pd.DataFrame) -> list[str]:
    """Return a frame of text as lines of aligned columns, the first to the left, a rule below the headings."""
    first, *others = ([name, *frame[name]] for name in frame)
    columns = [[cell.ljust(max(map(len, first))) for cell in first]]
    columns += [[cell.rjust(max(map(len, other))) for cell in other] for other in others]
    heading, *lines = map("  ".join, zip(*columns, strict=True))
    return [heading, "-" * len(heading), *lines]


def machine(environment: Mapping[str, Any], device: str | None) -> str:
    """Return what a record was made on: the GPU or the CPU, and the number of threads."""
    gpu = environment.get("gpu")
    name = gpu["name"] if gpu and device == "cuda" else environment.get("cpu") or "an unknown CPU"
    return f"{name}, {environment.get('threads')} threads"


@contextmanager
def saving(path: Path | None, record: Callable[[], Mapping[str, Any] | str]) -> Iterator[None]:
    """Write a record after the block has printed it, where a file was given, and say so.

    So a full disk loses no table, and a reader of the output that goes away no record.

    Args:
        path: of the file.
        record: gives its text, or what it holds as JSON.
    """
    try:
        yield
    finally:
        if path is not None:
            found = record()
            text = found if isinstance(found, str) else json.dumps(found, indent=1, ensure_ascii=False) + "\n"
            write_atomically(path, text)
            print(f"Saved in {path}.")


def progress(line: str) -> None:
    """Write a line to standard error at once."""
    print(line, file=sys.stderr, flush=True)
