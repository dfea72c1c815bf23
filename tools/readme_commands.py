"""Measure what the README's commands take in a fresh clone of this commit: seconds, and disk once it is set up.

python3 -m tools.readme_commands [OUT]

Set-up comes first, so the seconds of the others are without it. SmolLM2 is fetched anew. Nothing else should run: the
load before the first command goes into the record. All of it takes 40 minutes on two cores, and downloads what pip has
not kept.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from dynatree_lib.measure.environment import describe_environment
from dynatree_lib.paths import write_atomically

OUT = Path("outputs/reference/readme_commands.json")
COMMANDS = ("setup", "reproduce", "test")


def main(argv: Sequence[str] | None = None) -> None:
    """Run the commands one after another, and write the record once all have succeeded."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("out", type=Path, nargs="?", default=OUT, help="JSON file to write (default: %(default)s)")
    out = parser.parse_args(argv).out
    load, seconds = os.getloadavg()[0], dict[str, float]()
    with tempfile.TemporaryDirectory() as folder:
        clone, own = Path(folder) / "clone", {"DYNATREE_CACHE": str(Path(folder) / "cache")}
        subprocess.run(["git", "clone", "--quiet", ".", str(clone)], check=True)
        for command in COMMANDS:
            began = time.perf_counter()
            code = subprocess.run(["make", command], cwd=clone, env=os.environ | own, check=False).returncode
            if code:
                raise SystemExit(f"make {command} ended with {code}, as it says above, so nothing is recorded.")
            seconds[command] = round(time.perf_counter() - began, 1)
            if command == "setup":
                disk = size(Path(folder))
    body = {"environment": describe_environment(), "load": round(load, 2), "seconds": seconds, "disk_bytes": disk}
    write_atomically(out, json.dumps(body, indent=1) + "\n")
    sys.stdout.write(f"{seconds}, {disk / 1e9:.1f} GB\n")


def size(folder: Path) -> int:
    """Return the bytes on disk of a folder's files, each counted once."""
    seen: dict[tuple[int, int], int] = {}
    for path in folder.rglob("*"):
        about = path.lstat()
        seen[about.st_dev, about.st_ino] = about.st_blocks * 512
    return sum(seen.values())


if __name__ == "__main__":
    main()
