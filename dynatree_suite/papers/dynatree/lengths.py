"""A sweep of fixed trees at each generation length, in the words of the first DynaTree paper (Figure 3, Table 3)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from ...bench.grids import fastest
from ...bench.protocol import Results
from ..adaptive.scaling import shortened

Row = dict[str, Any]


def swept(results: Results, lengths: Iterable[int]) -> list[Row]:
    """Return the rows of all fixed trees of a run at each length, read off its texts (`scaling.shortened`).

    Besides the columns of `Results.rows` a row has those of the paper: `new_tokens`; `D`, `B`, `tau`; the plain
    baseline's `ar_tokens_per_second`; `speedup` over it; and `accept`, committed tokens per drafted node.

    Args:
        results: of a run with `hf-generate`, whose trees have the options `depth`, `branching` and `tau`.
        lengths: from 1 to the run's.
    """
    rows = []
    for tokens in lengths:
        found = shortened(results, tokens).rows()
        plain = next(row for row in found if row["name"] == "hf-generate")["tokens_per_second"]
        for row in (row for row in found if row["name"] == "fixed-tree"):
            shape = {"new_tokens": tokens, "D": row["depth"] - 1, "B": row["branching"], "ar_tokens_per_second": plain}
            rows.append({**row, **shape, "speedup": row["speedup_hf_generate"], "accept": row["acceptance_published"]})
    return rows


def best_of_each_length(rows: Iterable[Row]) -> list[Row]:
    """Return the fastest row of each length, as the paper's Table 3 has it."""
    rows = list(rows)
    lengths = dict.fromkeys(row["new_tokens"] for row in rows)
    return [dict(fastest(row for row in rows if row["new_tokens"] == tokens)) for tokens in lengths]
