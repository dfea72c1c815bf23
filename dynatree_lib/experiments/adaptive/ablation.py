"""What an ablation asks beyond a benchmark's table: trees side by side, and what an adaptation does over a text.

Texts are decoded without a clock, so the same seed gives the same numbers; times belong to `protocol`.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...decoding import Iteration
from ...measure.cost_model import Counts, MeasuredCosts, counted, decoded
from ...measure.methods import Variant, variants
from ...measure.prompts import BenchPrompt, prepare_prompts
from ...measure.protocol import Results
from ...measure.runner import Completed
from ...models.pairs import Pair
from ...sampling import Sampling
from ...tree import TokenTree
from .sensitivity import ratios

Row = dict[str, Any]


def decode(
    pair: Pair, methods: str | Sequence[str | Variant], prompts: Sequence[Any], max_new_tokens: int
) -> dict[str, list[Completed]]:
    """Greedy texts by method label, prompt after prompt, every one to the budget; nothing is timed.

    A method with `carry` begins each text with what it learnt in the text before.

    Raises:
        ValueError: for what `methods.variants` and `prompts.prepare_prompts` refuse, or a method that does not show
            its trees.
    """
    ready = prepare_prompts(pair, prompts, max_new_tokens)
    return {one.label: _texts(pair, one, ready, max_new_tokens) for one in variants(methods)}


def _texts(pair: Pair, method: Variant, prompts: Sequence[BenchPrompt], budget: int) -> list[Completed]:
    texts = list(decoded(pair, method, prompts, budget, Sampling()))
    if any(text.iterations is None for text in texts):
        raise ValueError(f"'{method.label}' does not show its trees; give a method of this library's loop.")
    return texts


# ------------------------------------------------------------------------------------------------------------- trees
def count_row(label: str, texts: Sequence[Completed], costs: MeasuredCosts | None = None) -> Row:
    """What these texts' iterations were, without a clock.

    Keys: `method`, `tokens_per_iteration`, `nodes` and `levels` (drafted nodes and draft forwards per iteration),
    `acceptance` (accepted / drafted), `drafted` (the mean of that over iterations, the paper's statistic), with `costs`
    `predicted` (speed-up over `ar` by rows and levels alone: reading the prompt and a rule's own work on the host left
    out), and where D_0 is reported `base_depth` (mean)
    and `iteration` (mean of committed tokens / (D_0 + 2), the default's statistic).
    """
    iterations, counts = iterations_of(texts), Counts.total(counted(text) for text in texts)
    accepted = [len(one.verdict.path) for one in iterations]
    shares = [mine / drafted for mine, drafted in zip(accepted, counts.nodes, strict=True) if drafted]
    row: Row = {
        "method": label,
        "tokens_per_iteration": counts.tokens / counts.iterations,
        "nodes": float(np.mean(counts.nodes)),
        "levels": counts.draft_forwards / counts.iterations,
        "acceptance": sum(accepted) / max(sum(counts.nodes), 1),
        "drafted": float(np.mean(shares)) if shares else 0.0,
    }
    depths = [int(one.adaptation["base_depth"]) for one in iterations if "base_depth" in one.adaptation]
    if depths:
        uses = [one.committed / (depth + 2) for one, depth in zip(iterations, depths, strict=True)]
        row |= {"base_depth": float(np.mean(depths)), "iteration": float(np.mean(uses))}
    return row if costs is None else {**row, "predicted": costs.speed(counts)}


def iterations_of(texts: Iterable[Completed]) -> list[Iteration]:
    """All iterations of some texts, in order."""
    return [one for text in texts for one in text.iterations or ()]


def same_trees(texts: Sequence[Completed], others: Sequence[Completed]) -> tuple[int, int]:
    """(equal, all): iterations of `texts` that verify the tree the other method verifies at that place of the text."""
    pairs = [(_by_place(one), _by_place(other)) for one, other in zip(texts, others, strict=True)]
    found = [place in its and equal_trees(tree, its[place]) for mine, its in pairs for place, tree in mine.items()]
    return sum(found), len(found)


def _by_place(text: Completed) -> dict[int, TokenTree]:
    """Tokens committed before -> the tree verified there."""
    iterations = text.iterations or []
    places = np.cumsum([0, *(one.committed for one in iterations)])
    return {int(place): one.tree for place, one in zip(places, iterations, strict=False)}


def equal_trees(one: TokenTree, other: TokenTree) -> bool:
    """Whether two trees hold the same tokens in the same places and order."""
    return np.array_equal(one.tokens, other.tokens) and np.array_equal(one.parents, other.parents)


# -------------------------------------------------------------------------------------------------------- adaptation
def adaptation_rows(label: str, texts: Sequence[Completed]) -> list[Row]:
    """One row per iteration of all texts in order, for a drafter that reports its state (`Round.adaptation`).

    Keys: `series` (the label), `text` (number), `tokens` (committed before the iteration, over all texts), and what
    the drafter reported before it: D_0, tau_h and so on.
    """
    rows, before = [], 0
    for number, text in enumerate(texts):
        for one in text.iterations or ():
            rows.append({"series": label, "text": number, "tokens": before, **one.adaptation})
            before += one.committed
    return rows


def write_rows(path: Path, rows: Iterable[Row]) -> list[Row]:
    """Write rows as JSON lines, NaN as null, and return them as the file has them."""
    rows = [{name: None if value != value else value for name, value in row.items()} for row in rows]
    path.write_text("".join(json.dumps(row, allow_nan=False) + "\n" for row in rows), encoding="utf-8")
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


# ------------------------------------------------------------------------------------------------------------- speed
def compared(results: Results, labels: Iterable[str], reference: str) -> list[Row]:
    """Each method's tokens/s over the reference's, on the prompts both have.

    Keys: `method`, `ratio`, `interval` (paired, 95 %), `holds` (`faster`), `text` ("1.05 [1.01, 1.09]").

    Raises:
        ValueError: for a method, or a reference, without a run.
    """
    found = ratios(results, labels, [reference])
    return [{**row, "holds": faster(row["interval"]), "text": told(row)} for row in found]


def faster(interval: tuple[float, float]) -> bool | None:
    """True for an interval of a ratio above 1, False for one below, None where it includes 1."""
    low, high = interval
    return True if low > 1 else False if high < 1 else None


def told(row: Row) -> str:
    """A ratio with its interval."""
    low, high = row["interval"]
    return f"{row['ratio']:.2f} [{low:.2f}, {high:.2f}]"
