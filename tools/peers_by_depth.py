"""Time plain decoding by the depth of the text: `ar-fast` and llama.cpp with and without flash attention, in turns.

    python3 -m tools.peers_by_depth FILE [--turns N]

Both have SmolLM2's weights in their own 4 bits and as many threads, and write `TOKENS` tokens after a text of so many.
llama.cpp is timed by its own llama-bench; DYNATREE_LLAMA_CPP names the folder that tools/llama_cpp_peer.sh made.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch

from dynatree_lib.engines.plain import autoregressive_fast
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import load_pair
from dynatree_suite.bench.clock import interleaved
from dynatree_suite.bench.environment import describe_environment
from dynatree_suite.bench.records import check_writable
from dynatree_suite.costs.cost_growth import any_text
from dynatree_suite.files import write_atomically

from .llama_cpp import FOLDER

DEPTHS = (0, 128, 256, 512)
TOKENS = 64
"""Tokens of the text before those that are timed, and number of these."""
FLASH = {"llama.cpp": 0, "llama.cpp, flash attention": 1}
OURS = "ar-fast"


def ours(target: HFModel, depth: int) -> float:
    """Return the tokens/s of plain decoding after so many tokens; at depth 0 one token is read, as by llama-bench."""
    times: list[float] = []
    autoregressive_fast(
        target, any_text(target, max(depth, 1)), max_new_tokens=1 + TOKENS, eos_token_ids=(),
        on_tokens=lambda tokens: times.append(time.perf_counter()),
    )  # fmt: skip
    return TOKENS / (times[-1] - times[0])


def theirs(folder: Path, flash: int, depth: int) -> float:
    """Return the tokens/s that llama-bench reports."""
    done = subprocess.run(
        [folder / "bin" / "llama-bench", "-m", folder / "target-q4_1.gguf", "-t", str(torch.get_num_threads()), "-p",
         "0", "-n", str(TOKENS), "-d", str(depth), "-fa", str(flash), "-r", "1", "-o", "json"],
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    (row,) = json.loads(done.stdout)
    return float(row["avg_ts"])


def better(rows: Sequence[dict[str, Any]], depth: int) -> dict[str, Any]:
    """Return the row of llama.cpp's faster setting at a depth, by the median."""
    settings = [row for row in rows if row["depth"] == depth and row["method"] in FLASH]
    return max(settings, key=lambda row: median(row["speeds"]))


def depths_record(turns: int) -> dict[str, Any]:
    """Measure all of it.

    Returns:
        `environment`, `engine`, `tokens`, and `rows` with `method`, `depth` and `speeds` (tokens/s of each turn).

    Raises:
        ValueError: where llama.cpp is missing.
    """
    folder = Path(os.environ.get(FOLDER, ""))
    if not (folder / "bin" / "llama-bench").is_file():
        raise ValueError(f"There is no llama-bench; run tools/llama_cpp_peer.sh once, and set {FOLDER} as it says.")
    target = load_pair("smollm2").target
    ours(target, 1)  # compiles what is not compiled yet
    work: dict[tuple[str, int], Callable[[], float]] = {}
    for depth in DEPTHS:
        work[OURS, depth] = partial(ours, target, depth)
        work |= {(name, depth): partial(theirs, folder, flash, depth) for name, flash in FLASH.items()}
    speeds = dict(zip(work, interleaved(list(work.values()), turns, target.device), strict=True))
    rows = [
        {"method": name, "depth": depth, "speeds": [round(each, 2) for each in found]}
        for (name, depth), found in speeds.items()
    ]
    return {
        "kind": "depths", "environment": describe_environment(), "engine": target.engine.name, "tokens": TOKENS,
        "rows": rows,
    }  # fmt: skip


def main() -> None:
    """Write the record."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.peers_by_depth", description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="JSON file to write")
    parser.add_argument("--turns", type=int, default=10, help="times that each is timed (default: %(default)s)")
    args = parser.parse_args()
    check_writable(args.file)
    body = depths_record(args.turns)
    write_atomically(args.file, json.dumps(body, indent=1) + "\n")


if __name__ == "__main__":
    try:
        main()
    except (ValueError, OSError) as error:
        sys.exit(f"peers_by_depth: {error}")
