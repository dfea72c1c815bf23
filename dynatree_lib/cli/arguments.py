"""What the commands of `bench` share: options that name a pair, prompts, a sampling and a machine, and what they mean.

Also how a number with its interval and a table are written as text.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas as pd

    from ..models.pairs import Pair
    from ..sampling import Sampling
    from ..workloads import Workload

Options = argparse.ArgumentParser | argparse._ArgumentGroup  # what an option may be added to


def add_pair(to: Options) -> None:
    """--pair, or --target and --draft."""
    to.add_argument("--pair", help="a named pair (see `dynatree pairs`) or a folder; 'tiny' by default")
    to.add_argument("--target", help="hub name or folder of a target, with --draft, instead of --pair")
    to.add_argument("--draft", help="hub name or folder of its draft")


def add_workload(to: Options, *, which: str = "name of the workload", limit: int | None = None) -> None:
    """--workload, --task, --data, --limit."""
    help_ = f"{which}, or several separated by commas (default: the bundled prompts)"
    to.add_argument("--workload", default="bundled", help=help_)
    to.add_argument("--task", help="only this task of the workload, e.g. code with the bundled prompts")
    to.add_argument("--data", metavar="DIR", help="local folder of the data set, instead of the hub")
    default = "" if limit is None else " (default: %(default)s)"
    to.add_argument(
        "--limit", type=int, default=limit, help=f"at most this many prompts, of each task in turn{default}"
    )


def add_sampling(to: Options, temperature: float = 0.0) -> None:
    """--temperature, --top-k, --top-p, --seed."""
    meaning = "0 is greedy decoding" if temperature == 0 else "above 0"
    to.add_argument("--temperature", type=float, default=temperature, help=f"{meaning} (default: %(default)s)")
    to.add_argument("--top-k", type=int, metavar="K", help="sample from the K most probable tokens")
    to.add_argument("--top-p", type=float, metavar="P", help="sample from the fewest tokens of together this mass")
    to.add_argument("--seed", type=int, default=0)


def add_machine(to: Options, dtypes: str | None = None) -> None:
    """--device, --dtype, --engine, --static, --threads; with a default of --dtypes, that list for --dtype, --static."""
    to.add_argument("--device", help="cpu, cuda, cuda:1, auto (default: cpu)")
    to.add_argument("--engine", default="auto", help="eager, lean or packed forwards (default: the fastest)")
    to.add_argument("--threads", help="torch threads; auto tries how many are fastest (default: torch's own choice)")
    if dtypes is not None:
        to.add_argument("--dtypes", default=dtypes, metavar="LIST", help="one after the other (default: %(default)s)")
        return
    to.add_argument("--dtype", help="float32, bfloat16, float16, float64 (default: float32 on the CPU)")
    to.add_argument("--static", action="store_true", help="static buffers; on a GPU, CUDA graphs captured beforehand")


def sampling_of(args: argparse.Namespace) -> Sampling:
    """The sampling; ValueError as for `Sampling`."""
    from ..sampling import Sampling

    return Sampling(args.temperature, args.top_k, args.top_p)


def pair_of(args: argparse.Namespace) -> Pair:
    """Load the pair, with the number of threads set before; ValueError for fewer than one."""
    import torch

    from ..models.pairs import load_pair

    trying = args.threads == "auto"
    if args.threads is not None and not trying:
        if not (args.threads.isdecimal() and int(args.threads) >= 1):
            raise ValueError(f"--threads is {args.threads}; give a whole number of at least 1, or auto.")
        torch.set_num_threads(int(args.threads))
    if args.pair is None and args.target is None and args.draft is None:
        args.pair = "tiny"
    pair = load_pair(
        args.pair, target=args.target, draft=args.draft, device_map=args.device, dtype=args.dtype, engine=args.engine
    )
    if args.static:
        from ..fast.static import static_pair

        pair = static_pair(pair, warm=True)
    if trying:
        from ..measure.clock import choose_threads

        found = choose_threads(pair)
        times = ", ".join(f"{count}: {1000 * seconds:.2f} ms" for count, seconds in found.items())
        progress(f"{torch.get_num_threads()} threads are fastest (an iteration's forwards by threads: {times}).")
    return pair


def workload_of(args: argparse.Namespace, longest: int, tokenizer: Any, limit: int | None = None) -> Workload:
    """Return the prompts, none with more than `longest` tokens; of several workloads up to `limit` each."""
    from ..workloads import join_workloads, load_workload

    given = [name.strip() for name in args.workload.split(",")]
    names = [f"{name}/{args.task}" if args.task else name for name in given]
    several = [
        load_workload(
            name, limit=limit, seed=args.seed, source=args.data or "auto", max_tokens=longest, tokenizer=tokenizer
        )
        for name in names
    ]
    return several[0] if len(several) == 1 else join_workloads(several)


def longest_prompt(pair: Pair, max_new_tokens: int) -> int:
    """Return how many tokens a prompt may have; ValueError if the budget fills the context."""
    if max_new_tokens < 1:
        raise ValueError(f"--max-new-tokens is {max_new_tokens}; ask for at least 1 token.")
    longest = pair.target.context - max_new_tokens
    if longest < 1:
        raise ValueError(
            f"--max-new-tokens is {max_new_tokens} and the context of '{pair.name}' is {pair.target.context}; "
            "ask for fewer tokens."
        )
    return longest


def check_new(path: Path | None, overwrite: bool) -> None:
    """Raise ValueError if a file to be written exists and may not be replaced, or cannot be written."""
    if path is not None:
        from ..measure.records import check_writable

        if path.exists() and not overwrite:
            raise ValueError(f"{path} exists; replace it with --overwrite, or give another file.")
        check_writable(path)


# -------------------------------------------------------------------------------------------------------------- texts
def text_lines(frame: pd.DataFrame) -> list[str]:
    """Return a frame of text as lines; see `table`."""
    return table([list(frame), *frame.itertuples(index=False, name=None)])


def table(rows: Sequence[Sequence[str]]) -> list[str]:
    """Return lines of aligned columns, the first to the left, a rule below the headings."""
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    lines = [
        "  ".join(cell.ljust(width) if column == 0 else cell.rjust(width)
                  for column, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in rows
    ]  # fmt: skip
    return [lines[0], "-" * len(lines[0]), *lines[1:]]


def progress(line: str) -> None:
    """Write a line to standard error at once."""
    print(line, file=sys.stderr, flush=True)
