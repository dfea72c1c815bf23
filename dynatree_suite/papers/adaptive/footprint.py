"""Parts of a method's memory: weights, caches, logits, from model shapes and records.

Sizes are in MiB. Nothing is measured here; the peaks on a GPU come from the records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...bench.protocol import Results

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


def footprint(results: Results) -> list[dict[str, Any]]:
    """Return the memory of each method in MiB, computed from shapes and counts, and the peak on a GPU.

    Keys: `method`, `weights` of the models it uses, `cache` at the fullest, `logits` of the largest tree, `computed`
    (their sum), `change` over the sum of `ar` in per cent, `peak` allocated on the GPU (both models are loaded
    whatever the method) or None on a CPU.
    """
    target = results.records.header.setup["target"]
    logits = target["vocabulary"] * int("".join(filter(str.isdigit, target["dtype"]))) / 8
    rows = []
    for summary in results.summaries():
        runs = [run for run in results.records.runs.values() if run.method == summary["label"]]
        largest = 1 + max((max(run.nodes) for run in runs if run.nodes), default=0)
        parts = {"weights": summary["weight_bytes"], "cache": summary["cache_bytes"], "logits": largest * logits}
        sizes = {name: size / MIB for name, size in parts.items()}
        peak = None if summary["peak_device_bytes"] is None else summary["peak_device_bytes"] / MIB
        rows.append({"method": summary["label"], **sizes, "computed": sum(sizes.values()), "peak": peak})
    base = next((row["computed"] for row in rows if row["method"] == "ar"), None)
    return [{**row, "change": 100 * (row["computed"] / base - 1) if base else None} for row in rows]
