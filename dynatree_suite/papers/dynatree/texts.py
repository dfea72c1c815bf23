"""The texts of both DynaTree papers: splits of their data sets, and prompts of the kind that the first paper has."""

from __future__ import annotations

import os
from dataclasses import replace

from ..workloads import Workload, WorkloadPrompt, load_workload

SPLITS = {"wikitext-2": "validation", "pg-19": "test"}
"""Workload -> the split that its prompts are of; "test" for all others.

The authors' code reads WikiText-2's validation split (papers/benchmark_main_D8B3.py, lines 142 to 178). It reads PG-19
from a file data/pg19.parquet (benchmark_adaptive_pg19.py, lines 138 to 173) and does not say of which split that is;
"test" is this project's choice.
"""

FIXED = {
    "fixed-sweep": (
        "Write an essay that goes on from the first words below.",
        "Do not address the reader, and use no lists.",
        "Give each idea a paragraph of its own.",
        "",
        "Language models became large for a simple reason, which researchers noticed when",
    ),
    "fixed-main": (
        "Continue the article below in plain English.",
        "Write whole paragraphs, without headings.",
        "Keep to what a student of computer science can follow.",
        "",
        "In less than ten years, language models have grown from small networks that completed a phrase into",
    ),
}
"""A prompt to choose settings on, and one to judge them on; of the kind of the first paper's two fixed prompts: three
lines of instructions, and the beginning of a text on how language models developed. The words are this project's."""


def tuning_and_judging(
    name: str, tune: int, judge: int, *, fixed: bool = False, source: str | os.PathLike[str] = "auto", seed: int = 0
) -> tuple[Workload, Workload]:
    """Return prompts to choose settings on, and others to judge them on.

    Args:
        name: of the workload.
        tune: prompts to choose on.
        judge: prompts to judge on.
        fixed: whether the first prompt of each is that of `FIXED`.
        source: of the workload, as for `load_workload`.
        seed: of the workload's random subsets.
    """
    texts = load_workload(
        name, source=source, split=SPLITS.get(name, "test"), limit=max(1, tune + judge - 2 * fixed), seed=seed
    )
    first, second = (WorkloadPrompt(key, "essay", ("\n".join(lines),)) for key, lines in FIXED.items())
    cut, end = tune - fixed, tune + judge - 2 * fixed
    parts = ((first,) * fixed + texts.prompts[:cut], (second,) * fixed + texts.prompts[cut:end])
    sentence = "The first to tune on and the first to judge on are fixed prompts, written for this project. " * fixed
    tuning, judging = (replace(texts, prompts=part, source=sentence + texts.source) for part in parts)
    return tuning, judging
