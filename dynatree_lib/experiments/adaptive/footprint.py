"""What the memory of a method is made of: weights, caches, logits, from model shapes and records.

Sizes are in MiB. Nothing is measured here; the peaks on a GPU come from the records.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from ...measure.protocol import Results

Row = dict[str, Any]
MIB = 2**20


@dataclass(frozen=True)
class ModelShape:
    """What the memory of a GPT-NeoX model (Pythia) follows from.

    Attributes:
        layers: of the model.
        width: of the hidden states; the feed-forward layers are four times as wide.
        vocabulary: logits per row.
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
        """MiB of the weights, at so many bytes per number."""
        return self.parameters * itemsize / MIB

    def cache_row(self, itemsize: int = 2) -> float:
        """MiB of one token's keys and values."""
        return 2 * self.layers * self.width * itemsize / MIB

    def logits_row(self, itemsize: int = 2) -> float:
        """MiB of one row of logits."""
        return self.vocabulary * itemsize / MIB


def per_unit(rows: Iterable[Mapping[str, Any]], x: str, y: str) -> float:
    """Slope of the least-squares line of `y` over `x`."""
    points = np.array([[row[x], row[y]] for row in rows], float)
    return float(np.polyfit(points[:, 0], points[:, 1], 1)[0])


def footprint(results: Results, reference: str = "ar") -> list[Row]:
    """Memory of each method in MiB, computed from shapes and rows, beside the peak on a GPU.

    Keys: `method`, `weights` of the models it uses, `cache` at the fullest, `logits` of the largest tree, `computed`
    (their sum), `change` over the reference's sum in per cent, `peak` allocated on the GPU (both models are loaded
    whatever the method) or None on a CPU.
    """
    target = results.records.header.setup["target"]
    logits_row = target["vocabulary"] * int("".join(filter(str.isdigit, target["dtype"]))) / 8
    out = []
    for one in results.summaries():
        runs = [run for run in results.records.runs.values() if run.method == one.label]
        largest = 1 + max((max(run.nodes) for run in runs if run.nodes), default=0)
        parts = {"weights": one.weight_bytes, "cache": one.cache_bytes, "logits": largest * logits_row}
        peak = None if one.peak_device_bytes is None else one.peak_device_bytes / MIB
        sizes = {name: size / MIB for name, size in parts.items()}
        out.append({"method": one.label, **sizes, "computed": sum(sizes.values()), "peak": peak})
    base = next((row["computed"] for row in out if row["method"] == reference), None)
    return [{**row, "change": 100 * (row["computed"] / base - 1) if base else None} for row in out]
