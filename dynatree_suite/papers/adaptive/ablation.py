"""Counts of an ablation beyond a benchmark's table: trees compared, and what an adaptation does along texts.

Texts are decoded without a clock, so that the same seed gives the same numbers; times belong to `protocol`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd

from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling
from dynatree_lib.tree import TokenTree

from ...bench.methods import Variant, variants
from ...bench.prompts import prepare_prompts
from ...bench.runner import Completed
from ...costs.cost_model import MeasuredCosts, counts_of, decoded

Row = dict[str, Any]
Texts = Mapping[str, Sequence[Completed]]
"""Method label -> its texts, in the order of the prompts."""


def decode(
    pair: Pair, methods: str | Sequence[str | Variant], prompts: Sequence[Any], max_new_tokens: int
) -> dict[str, list[Completed]]:
    """Return greedy texts by method label, prompt after prompt, every text to the budget; nothing is timed.

    A method with `carry` begins each text with what it learnt in the text before.

    Raises:
        ValueError: for what `methods.variants` and `prompts.prepare_prompts` refuse, or a method that does not show
            its trees.
    """
    ready, texts = prepare_prompts(pair, prompts, max_new_tokens), {}
    for method in variants(methods):
        texts[method.label] = list(decoded(pair, method, ready, max_new_tokens, Sampling()))
        if any(text.iterations is None for text in texts[method.label]):
            raise ValueError(f"'{method.label}' does not show its trees; give a method of this library's loop.")
    return texts


def count_rows(texts: Texts, costs: MeasuredCosts | None = None) -> list[Row]:
    """Return one row per method: counts of its iterations, which need no clock.

    Keys: `method`, `tokens_per_iteration`, `nodes` and `levels` (drafted nodes and draft forwards per iteration),
    `acceptance` (accepted / drafted), `drafted` (the mean of that over iterations, the paper's statistic), with `costs`
    `predicted` (speed-up over `ar` by nodes and levels alone: reading the prompt and a rule's own work on the host are
    left out), and where D_0 is reported `base_depth` (mean) and `iteration` (mean of committed tokens / (D_0 + 2), the
    default's statistic).
    """
    rows = []
    for label, done in texts.items():
        iterations = [step for text in done for step in text.iterations or ()]
        counts = counts_of(text.run((label, "", 0)) for text in done)
        accepted = [len(step.verdict.path) for step in iterations]
        shares = [path / drafted for path, drafted in zip(accepted, counts.nodes, strict=True) if drafted]
        row: Row = {
            "method": label,
            "tokens_per_iteration": counts.tokens / counts.iterations,
            "nodes": float(np.mean(counts.nodes)),
            "levels": counts.draft_forwards / counts.iterations,
            "acceptance": sum(accepted) / max(sum(counts.nodes), 1),
            "drafted": float(np.mean(shares)) if shares else 0.0,
        }
        depths = [int(step.report["base_depth"]) for step in iterations if "base_depth" in step.report]
        if depths:
            uses = [step.committed / (depth + 2) for step, depth in zip(iterations, depths, strict=True)]
            row |= {"base_depth": float(np.mean(depths)), "iteration": float(np.mean(uses))}
        rows.append(row if costs is None else {**row, "predicted": costs.speed(counts)})
    return rows


def same_trees(texts: Sequence[Completed], others: Sequence[Completed]) -> tuple[int, int]:
    """Return (equal, all): iterations of `texts` that verify the tree the other method verifies at the same place."""
    pairs = [(_by_place(text), _by_place(other)) for text, other in zip(texts, others, strict=True)]
    same = [place in there and equal_trees(tree, there[place]) for here, there in pairs for place, tree in here.items()]
    return sum(same), len(same)


def _by_place(text: Completed) -> dict[int, TokenTree]:
    """Tokens committed before -> the tree verified there."""
    iterations = text.iterations or []
    places = np.cumsum([0, *(step.committed for step in iterations)])
    return {int(place): step.tree for place, step in zip(places, iterations, strict=False)}


def equal_trees(tree: TokenTree, other: TokenTree) -> bool:
    """Say whether two trees hold the same tokens in the same places and order."""
    return np.array_equal(tree.tokens, other.tokens) and np.array_equal(tree.parents, other.parents)


def adaptation_frame(texts: Texts) -> pd.DataFrame:
    """Return one row per iteration of each method's texts in order, for drafters that report their state.

    Columns: `series` (the label), `text` (number), `tokens` (committed before the iteration, over all texts), and what
    the drafter reported before it (`Iteration.report`): D_0, tau_h and so on.
    """
    rows = []
    for label, done in texts.items():
        before = 0
        for number, text in enumerate(done):
            for iteration in text.iterations or ():
                rows.append({"series": label, "text": number, "tokens": before, **iteration.report})
                before += iteration.committed
    return pd.DataFrame(rows)
