"""Claims about the texts of a notebook's benchmarks: every run finished, and greedy texts are the target's own."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from ..bench.protocol import Results
from .notebook import Notebook

Row = dict[str, Any]


def check_texts(nb: Notebook, *benchmarks: Results, record: Path | None = None) -> None:
    """State whether every run finished, and how many greedy texts of lossless methods are the reference's.

    In float32 and float64 a text may leave the reference's at a near-tie alone (`protocol.divergence`). In 16 bits
    rounding decides many choices, and texts of transformers' own methods differ, too: texts are counted beside those.

    Args:
        nb: the notebook.
        benchmarks: runs of it; sampled texts are not compared.
        record: the file of one of them.
    """
    failed = sum(len(one.records.failures) for one in benchmarks)
    nb.check("Every method ran on every prompt", not failed, f"failed runs: {failed}", record=record)
    rows = [row for one in benchmarks for row in _compared(one)]
    if not rows:
        return
    left = [divergence for row in rows for divergence in row["divergences"]]
    value = _equal(rows)
    if left:
        near, widest = sum(one["near_tie"] for one in left), max(one["margin"] for one in left)
        value += f"; {near} of {len(left)} divergences are near-ties, largest margin {widest:.2g}"
    if nb.exact:
        claim = "Greedy texts are the target's own, up to near-ties"
        nb.check(claim, all(one["near_tie"] for one in left), value, record=record)
        return
    theirs = {name: [row for row in rows if row["name"] == name] for name in ("hf-prompt-lookup", "hf-assisted")}
    value += "".join(f"; of transformers' {name} {_equal(own)}" for name, own in theirs.items() if own)
    nb.headline(f"Greedy texts in {nb.dtype} that are those of plain decoding", value, record=record)


def _compared(results: Results) -> list[Row]:
    """The rows of greedy lossless methods, the reference left out."""
    reference = results.records.header.setup["reference"]
    return [row for row in results.rows() if row["lossless"] and row["identical"] and row["label"] != reference]


def _equal(rows: Iterable[Row]) -> str:
    counts = [(row["runs"], len(row["divergences"])) for row in rows]
    runs = sum(count for count, _ in counts)
    return f"{runs - sum(left for _, left in counts)} of {runs}"
