"""Pack the records of finished benchmarks: FILE.jsonl into FILE.jsonl.gz, of each run the first and last emission.

python3 -m tools.pack_records FILE [FILE ...]

Tables and maps need a run's time after its first token, and the times in between are most of a packed file. The
folder outputs/reference/cpu keeps all of them, because runs of it are cut short at several lengths. A file that is
packed already is written again.
"""

from __future__ import annotations

import dataclasses
import gzip
import sys
from pathlib import Path

from dynatree_suite.bench.records import PACKED, Records, Run, dumps, read_records
from dynatree_suite.files import whole_file


def pack(path: Path) -> Path:
    """Write a benchmark's packed file, remove the plain one, and return where the records are now.

    Raises:
        ValueError: where the file cannot be read whole; nothing is changed then.
    """
    body, place = packed(read_records(path)), path if path.suffix == PACKED else path.with_name(path.name + PACKED)
    with whole_file(place) as file:
        file.write(body)
    if place != path:
        path.unlink()
    return place


def packed(records: Records) -> bytes:
    """Return the bytes of a packed file.

    Raises:
        ValueError: where lines were left out when the records were read.
    """
    if records.notes:
        raise ValueError(f"These records are not whole, so they are not packed: {' '.join(records.notes)}")
    lines = (ends(line) if isinstance(line, Run) else line for line in records.lines())
    return gzip.compress("".join(map(dumps, [records.header, *lines])).encode(), mtime=0)


def ends(run: Run) -> Run:
    """Return a run with two emissions at most: the first, and all further tokens at the time of the last."""
    first, *further = run.emissions
    if not further:
        return run
    return dataclasses.replace(run, emissions=[first, [further[-1][0], sum(count for _, count in further)]])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stderr.write(f"{pack(Path(name))}\n")
