"""What notebooks show of a real model, SmolLM2-135M: a few texts live, larger tables from records that are kept.

A notebook writes at most 8,000 of its tokens, so it measures little itself. The records are made by
tools/smollm2_reference.sh, and every table names its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import pandas as pd

from dynatree_lib.decoding import Generation, generate
from dynatree_lib.drafters import Drafter
from dynatree_lib.models.pairs import Pair
from dynatree_lib.plots.iterations import text_iterations
from dynatree_lib.sampling import GREEDY, Sampling

from ..bench.protocol import Results, read_results
from ..bench.statistics import Estimate, ratio
from ..bench.tables import method_table, sampling_text
from .notebook import REAL_PAIR, Notebook

QUESTIONS = {
    "story": "Write a short story about a fox who learns to read.",
    "code": "Write a Python function that returns the n-th Fibonacci number.",
    "translation": "Translate to French: The train leaves at nine, and the last bus at midnight.",
}
"""A question for each of a few kinds of task."""


def answers(
    pair: Pair, drafters: Mapping[str, Drafter], budget: int, sampling: Sampling = GREEDY, seed: int = 0
) -> dict[tuple[str, str], Generation]:
    """Answer each question with each drafter, in at most `budget` tokens; (kind of task, drafter's key) -> the text."""
    options: dict[str, Any] = {"max_new_tokens": budget, "sampling": sampling, "seed": seed, "keep_state": False}
    return {
        (task, name): generate(pair.target, pair.ids(question), drafter, **options)
        for task, question in QUESTIONS.items()
        for name, drafter in drafters.items()
    }


def answer_rows(texts: Mapping[tuple[str, str], Generation]) -> list[dict[str, Any]]:
    """Return a row for each text of `answers`: `task`, `method`, `tokens`, `iterations`, `tokens per iteration`."""
    rows = []
    for (task, method), text in texts.items():
        tokens, iterations = len(text.tokens), len(text.iterations)
        counts = {"tokens": tokens, "iterations": iterations, "tokens per iteration": tokens / iterations}
        rows.append({"task": task, "method": method, **counts})
    return rows


def answers_shown(texts: Mapping[tuple[str, str], Generation], method: str, tokenizer: Any) -> str:
    """Return the questions with a method's texts of `answers`, coloured by iteration, as HTML."""
    return "".join(
        text_iterations(texts[task, method], tokenizer, prompt=f"{question}\n\n")
        for task, question in QUESTIONS.items()
    )


@dataclass(frozen=True)
class Reference:
    """A benchmark kept with the project.

    Attributes:
        name: its path in the project.
        results: of the benchmark.
    """

    name: str
    results: Results

    @classmethod
    def of(cls, nb: Notebook, run: str) -> Reference:
        """Read a run of tools/smollm2_reference.sh: "float32", "float32-1", ...

        Raises:
            ValueError: where there is no such record.
        """
        name = f"{REAL_PAIR}/{run}.jsonl.gz"
        return cls(f"outputs/reference/{name}", read_results(nb.reference(name)))

    @cached_property
    def frame(self) -> pd.DataFrame:
        """One row per run (`Records.frame`)."""
        return self.results.records.frame()

    @cached_property
    def rows(self) -> dict[str, dict[str, Any]]:
        """The summary of each method, by its label."""
        return {row["label"]: row for row in self.results.summaries()}

    @property
    def caption(self) -> str:
        """What was measured, and where the record lies."""
        header = self.results.records.header
        setup, machine = header.setup, header.environment
        return (
            f"{setup['pair']} in {setup['dtype']}, {sampling_text(setup['sampling'])}, {len(setup['prompts'])} prompts "
            f"of Spec-Bench, at most {setup['max_new_tokens']} tokens, one interleaved run on {machine['cpu']}, "
            f"{machine['threads']} threads. Record: {self.name}."
        )

    def table(self, *columns: str, only: tuple[str, ...] = ()) -> pd.DataFrame:
        """Return a table of methods; columns as for `tables.method_table`, rows of all methods by default."""
        chosen = [row for label, row in self.rows.items() if not only or label in only]
        return method_table(chosen, only=columns)

    def tokens_over(self, method: str, baseline: str) -> Estimate:
        """Return the tokens per iteration of a method over another's."""
        return ratio(self.frame, method, over=baseline, of="tokens", per="iterations")

    def over(self, method: str, baseline: str, *, task: str | None = None, prefill: bool = True) -> Estimate:
        """Return the speed of a method over another's.

        Args:
            method: its label.
            baseline: the other's.
            task: prompts of this kind alone.
            prefill: whether the time until the first token counts.
        """
        frame = self.frame if task is None else self.frame[self.frame["task"] == task]
        of, per = ("tokens", "seconds") if prefill else ("further", "span")
        return ratio(frame, method, over=baseline, of=of, per=per)

    def by_task(self, method: str, baseline: str) -> list[dict[str, Any]]:
        """Return rows for `charts.bars_with_intervals`: a kind of task, the ratio of speeds, its interval."""
        rows = []
        for task in self.frame["task"].unique():
            found = self.over(method, baseline, task=task)
            rows.append({"task": task, "ratio": found.value, "interval": found.interval})
        return sorted(rows, key=lambda row: -row["ratio"])
