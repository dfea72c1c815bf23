"""What deciding costs: preparing the distributions a rule asks for, and the decision itself, timed apart.

Preparing is softmax and filters over the vocabulary at the nodes that are visited. Deciding is coins, ratios and the
residuals of rejected children.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pandas as pd
import torch
from typing_extensions import override

from dynatree_lib.decoding import generate
from dynatree_lib.drafters.base import Drafter
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import DraftDistributions, RandomSource, Sampling, Scores, probabilities
from dynatree_lib.tree import DISTINCT, ROOT, TokenTree
from dynatree_lib.verifiers.base import Verdict, Verifier

from ...bench.prompts import prepare_prompts
from ...proofs.exact import ObservingVerifier

Row = dict[str, Any]
Clock = Callable[[], float]


class _TimedScores(Scores):
    """Scores with the seconds and the nodes whose distributions they prepare."""

    def __init__(self, scores: Scores, clock: Clock) -> None:
        super().__init__(scores.logits, scores.sampling, scores.owner)
        self.clock, self.seconds, self.prepared = clock, 0.0, set[int]()

    @override
    def distribution(self, node: int) -> torch.Tensor:
        if node in self.prepared:
            return super().distribution(node)
        start = self.clock()
        distribution = super().distribution(node)
        self.seconds += self.clock() - start
        self.prepared.add(node)
        return distribution


@dataclass
class Stopwatch(ObservingVerifier):
    """A rule with, for each tree, the seconds of preparing and of deciding.

    Attributes:
        clock: seconds.
        rows: one per tree, with `prepare` and `decide` (seconds), `nodes_prepared`, and `tokens` emitted.
    """

    clock: Clock = time.perf_counter
    rows: list[dict[str, float]] = field(default_factory=list)

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        timed = _TimedScores(scores, self.clock)
        start = self.clock()
        verdict = self.rule.verify(tree, timed, distributions, random)
        row = {"prepare": timed.seconds, "decide": self.clock() - start - timed.seconds}
        self.rows.append({**row, "nodes_prepared": len(timed.prepared), "tokens": len(verdict.path) + 1})
        return verdict


def _by_rule(watches: Mapping[str, Stopwatch]) -> Any:
    """Return all trees of the watches grouped by rule, with the times as `prepare_ms` and `decide_ms`."""
    frame = pd.DataFrame([{"rule": rule, **row} for rule, watch in watches.items() for row in watch.rows])
    frame = frame.assign(prepare_ms=1000 * frame["prepare"], decide_ms=1000 * frame["decide"])
    return frame.groupby("rule", sort=False, as_index=False)


def synthetic_tree(
    shape: Sequence[int], vocab_size: int, sampling: Sampling, seed: int
) -> tuple[TokenTree, Scores, DraftDistributions]:
    """Make a tree of a shape at any vocabulary, without a model: random target logits, the draft's the same with noise.

    Logits have a standard deviation of 3, the draft's noise one of 1.

    Args:
        shape: parent slot of slots 1 to n.
        vocab_size: V.
        sampling: of both.
        seed: same seed, same tree.
    """
    generator, random = torch.Generator().manual_seed(seed), RandomSource(seed, "draft")
    parents, tokens, node_of = [ROOT], [0], {0: 0}
    logits = torch.randn(len(shape) + 1, vocab_size, generator=generator) * 3.0
    distributions = DraftDistributions("synthetic")
    for slot, count in zip(*np.unique(shape, return_counts=True), strict=True):
        distribution = probabilities(logits[slot] + torch.randn(vocab_size, generator=generator), sampling)
        if slot in node_of:  # filters may leave fewer tokens than slots
            distributions.record(node_of[slot], distribution)
            first = shape.index(slot) + 1
            for place, token in enumerate(random.draw_distinct(distribution, int(count))):
                node_of[first + place] = len(parents)
                parents.append(node_of[slot])
                tokens.append(token)
    tree = TokenTree.build(tokens, parents, draws=[DISTINCT] * len(tokens))
    return tree, Scores(logits[list(node_of)], sampling, "synthetic"), distributions


def time_decisions(
    rules: Mapping[str, Verifier],
    shape: Sequence[int],
    *,
    vocab_size: int = 50_304,
    trees: int = 20,
    repeats: int = 5,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Time rules on synthetic trees at temperature 1, interleaved tree by tree.

    Returns:
        One row per rule: `rule`, `nodes`, `vocab_size`, medians `decide_ms` and `prepare_ms` with `decide_worst_ms`,
        means `nodes_prepared` and `tokens`.

    Raises:
        ValueError: for fewer than one tree or repeat.
    """
    if trees < 1 or repeats < 1:
        raise ValueError(f"trees={trees} and repeats={repeats} leave nothing to time; give at least 1 of each.")
    watches = {name: Stopwatch(rule, clock) for name, rule in rules.items()}
    for number in range(trees):
        tree, scores, distributions = synthetic_tree(shape, vocab_size, Sampling(1.0), seed + number)
        for repeat in range(repeats + 1):
            for watch in watches.values():
                watch.verify(tree, scores, distributions, RandomSource(seed + number * 1000 + repeat))
                if repeat == 0:  # warms caches up
                    watch.rows.pop()
    table = _by_rule(watches).agg(
        decide_ms=("decide_ms", "median"), decide_worst_ms=("decide_ms", "max"), prepare_ms=("prepare_ms", "median"),
        nodes_prepared=("nodes_prepared", "mean"), tokens=("tokens", "mean"),
    )  # fmt: skip
    return table.assign(nodes=len(shape), vocab_size=vocab_size).to_dict("records")


def decision_shares(
    pair: Pair,
    drafter: Drafter,
    rules: Mapping[str, Verifier],
    prompts: Sequence[Any],
    *,
    max_new_tokens: int = 64,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Time how much of an iteration deciding takes in decoding at temperature 1, rules interleaved prompt by prompt.

    Returns:
        One row per rule: `rule`, `iteration_ms` (reading the prompt included), `decide_ms`, `prepare_ms` (means), and
        their shares `decide` and `prepare` of the iteration.
    """
    ready = prepare_prompts(pair, prompts, max_new_tokens)
    watches, seconds = {name: Stopwatch(rule, clock) for name, rule in rules.items()}, dict.fromkeys(rules, 0.0)
    for number, prompt in enumerate([ready[0], *ready]):
        for name, watch in watches.items():
            start = clock()
            generate(
                pair.target, prompt.ids, drafter, verifier=watch, sampling=Sampling(1.0), seed=seed,
                max_new_tokens=max_new_tokens, eos_token_ids=(), keep_state=False,
            )  # fmt: skip
            seconds[name] += clock() - start
            if number == 0:  # warms caches up
                seconds[name] = 0.0
                watch.rows.clear()
    table = _by_rule(watches)[["decide_ms", "prepare_ms"]].mean()
    table["iteration_ms"] = [1000 * seconds[name] / len(watches[name].rows) for name in table["rule"]]
    shares = {part: table[f"{part}_ms"] / table["iteration_ms"] for part in ("decide", "prepare")}
    return table.assign(**shares).to_dict("records")
