"""Parts of a method's memory: weights, caches, logits, from model shapes and records.

Sizes are in MiB. Nothing is measured here; the peaks on a GPU come from the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from ...bench.protocol import Results

Row = dict[str, Any]

MIB = 2**20


@dataclass(frozen=True)
class ModelShape:
    """The shape of a GPT-NeoX model (Pythia), from which its memory follows.

    Attributes:
        layers: of the model.
        width: of the hidden states; the feed-forward layers are four times as wide.
        vocabulary: logits per token scored.
        tied: whether the output shares the weights of the embedding.
    """

    layers: int
    width: int
    vocabulary: int
    tied: bool = False

    @property
    def parameters(self) -> int:
        """Embedding and output, per layer four matrices with biases and two norms, one norm at the end."""
        h = self.width
        return (1 if self.tied else 2) * self.vocabulary * h + self.layers * (12 * h * h + 13 * h) + 2 * h

    def weights(self, itemsize: int = 2) -> float:
        """Return MiB of the weights, at so many bytes per number."""
        return self.parameters * itemsize / MIB

    def kv_entry(self, itemsize: int = 2) -> float:
        """Return MiB of one token's keys and values."""
        return 2 * self.layers * self.width * itemsize / MIB

    def logits(self, itemsize: int = 2) -> float:
        """Return MiB of the logits of one token."""
        return self.vocabulary * itemsize / MIB


def allocated(device: str) -> int:
    """Return the bytes that torch has allocated on a GPU; 0 on another device."""
    return torch.cuda.memory_allocated(device) if device.startswith("cuda") else 0


def footprint(results: Results, held: int = 0) -> list[Row]:
    """Return the memory of each method in MiB, computed from shapes and counts, and the peak on a GPU.

    Keys: `method`, `weights` of the models it uses, `cache` at the fullest, `logits` of the largest tree, `computed`
    (their sum), `change` over the sum of `ar` in per cent, `peak` allocated on the GPU (both models are loaded
    whatever the method) or None on a CPU.

    Args:
        results: of one run.
        held: bytes that were allocated before the run's models were loaded, which no method needs.
    """
    target = results.records.header.setup["target"]
    logits = target["vocabulary"] * int("".join(filter(str.isdigit, target["dtype"]))) / 8
    rows = []
    for summary in results.summaries():
        runs = [run for run in results.records.runs.values() if run.method == summary["label"]]
        largest = 1 + max((max(run.nodes) for run in runs if run.nodes), default=0)
        parts = {"weights": summary["weight_bytes"], "cache": summary["cache_bytes"], "logits": largest * logits}
        sizes = {name: size / MIB for name, size in parts.items()}
        peak = None if summary["peak_device_bytes"] is None else (summary["peak_device_bytes"] - held) / MIB
        rows.append({"method": summary["label"], **sizes, "computed": sum(sizes.values()), "peak": peak})
    base = next((row["computed"] for row in rows if row["method"] == "ar"), None)
    return [{**row, "change": 100 * (row["computed"] / base - 1) if base else None} for row in rows]


DATA_SETS = {"pg-19": "pg19_mib", "wikitext-2": "wikitext2_mib"}
"""Data set -> its column in the paper's Table 5."""
PARTS = ("weights", "cache", "logits", "computed")


def like_table_5(printed: Iterable[Row], runs: Mapping[str, Results], held: int = 0) -> list[Row]:
    """Return what was measured and computed for each row of the paper's Table 5, under the columns that it has.

    Keys: `method`; the peaks on a GPU `pg19_mib`, `wikitext2_mib`, `average_mib`, and `change_percent` of the average
    over that of `ar`, all of them None on a CPU; and, as averages over both data sets, `weights`, `cache`, `logits`,
    `computed` of `footprint`, with `computed_percent` over `ar`.

    Args:
        printed: rows of the table, `ar` among them.
        runs: by data set; a run's methods have the names of `setting`.
        held: as for `footprint`.
    """
    sides = {name: {row["method"]: row for row in footprint(results, held)} for name, results in runs.items()}
    rows = []
    for row in printed:
        found = {name: sides[name][setting(row, name)] for name in DATA_SETS}
        peaks = {column: found[name]["peak"] for name, column in DATA_SETS.items()}
        average = None if None in peaks.values() else sum(peaks.values()) / len(peaks)
        parts = {part: sum(one[part] for one in found.values()) / len(found) for part in PARTS}
        rows.append({"method": row["method"], **peaks, "average_mib": average, **parts})
    plain = next(row for row in rows if row["method"] == "ar")
    for row in rows:
        for change, of in (("change_percent", "average_mib"), ("computed_percent", "computed")):
            row[change] = None if row[of] is None else 100 * (row[of] / plain[of] - 1)
    return rows


def setting(row: Row, data_set: str) -> str:
    """Name the method of a printed row on a data set: "ar", "chain (K=5)", "fixed-tree (D=8, B=3)"."""
    values = {name: value[data_set] if isinstance(value, dict) else value for name, value in row["config"].items()}
    shape = ", ".join(f"{name}={values[name]}" for name in ("K", "D", "B") if name in values)
    return f"{row['method']} ({shape})" if shape else str(row["method"])
