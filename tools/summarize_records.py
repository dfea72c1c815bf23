"""Write again what `dynatree bench` wrote besides records: the JSON of summaries and the printed table.

    python3 -m tools.summarize_records outputs/reference/smollm2/float32.jsonl.gz ...

For each FILE.jsonl.gz it writes FILE.json and FILE.txt, where they are there. Nothing is measured. Run it after a
change of how summaries are computed, then tools.fill_tables and tools.reference_tables.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path

from dynatree_suite.bench.protocol import read_results
from dynatree_suite.cli.bench import report
from dynatree_suite.files import write_atomically

from . import peers


def main(paths: Sequence[str]) -> None:
    """Write the summaries of each file of records."""
    peers.known()
    for path in map(Path, paths):
        results, stem = read_results(path), path.name.removesuffix(".gz").removesuffix(".jsonl")
        for name, body in (
            (f"{stem}.json", json.dumps(results.to_json(), indent=1, ensure_ascii=False) + "\n"),
            (f"{stem}.txt", report(results)),
        ):
            if (path.parent / name).is_file():
                write_atomically(path.parent / name, body)


if __name__ == "__main__":
    main(sys.argv[1:])
