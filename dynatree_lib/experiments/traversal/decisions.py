"""What deciding costs: preparing the rows a rule asks for, and the decision itself, each timed by itself.

Preparing is softmax and filters over the vocabulary at the nodes that are visited; deciding is coins, ratios and the
residuals of rejected children. Both are small beside forwards of models worth speculating for, which is to be shown.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...decoding import generate
from ...drafters.base import Drafter
from ...measure.prompts import prepare_prompts
from ...models.pairs import Pair
from ...sampling import DraftDistributions, RandomSource, Sampling, Scores, probabilities
from ...tree import DISTINCT, ROOT, TokenTree
from ...verifiers.base import Drawing, Verdict, Verifier

Row = dict[str, Any]
Clock = Callable[[], float]


class _TimedScores(Scores):
    """Rows that count the seconds and the nodes they prepare."""

    def __init__(self, scores: Scores, clock: Clock) -> None:
        super().__init__(scores.logits, scores.sampling, scores.owner)
        self.clock, self.seconds, self.prepared = clock, 0.0, 0

    def distribution(self, node: int) -> torch.Tensor:
        if node in self._laws:
            return self._laws[node]
        start = self.clock()
        row = super().distribution(node)
        self.seconds += self.clock() - start
        self.prepared += 1
        return row


@dataclass
class Stopwatch(Verifier):
    """Decides as `rule` does and notes, for each tree, the seconds of preparing and of deciding.

    Attributes:
        rule: the rule.
        clock: seconds.
        noted: one (prepare, decide, rows prepared, tokens committed) per tree.
    """

    rule: Verifier
    clock: Clock = time.perf_counter
    noted: list[tuple[float, float, int, int]] = field(default_factory=list)
    name = "stopwatch"

    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        """See `Verifier.check`."""
        self.rule.check(sampling, drawing, chain)

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """See `Verifier.verify`."""
        timed = _TimedScores(scores, self.clock)
        start = self.clock()
        verdict = self.rule.sample(tree, timed, distributions, random)
        seconds = self.clock() - start
        self.noted.append((timed.seconds, seconds - timed.seconds, timed.prepared, len(verdict.path) + 1))
        return verdict


def synthetic_tree(
    shape: list[int], vocab_size: int, sampling: Sampling, seed: int, spread: float = 3.0, noise: float = 1.0
) -> tuple[TokenTree, Scores, DraftDistributions]:
    """A tree of a shape at any vocabulary, without a model: random target logits, the draft's the same with noise.

    Args:
        shape: parent slot of slots 1 to n.
        vocab_size: V.
        sampling: of both.
        seed: same seed, same tree.
        spread: standard deviation of the target's logits; noise: of the draft's around them.
    """
    generator, random = torch.Generator().manual_seed(seed), RandomSource(seed, "draft")
    parents, tokens, node_of = [ROOT], [0], {0: 0}
    logits, distributions = (
        torch.randn(len(shape) + 1, vocab_size, generator=generator) * spread,
        DraftDistributions("synthetic"),
    )
    for slot, count in zip(*np.unique(shape, return_counts=True), strict=True):
        distribution = probabilities(logits[slot] + torch.randn(vocab_size, generator=generator) * noise, sampling)
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
    sampling: Sampling | None = None,
    trees: int = 20,
    repeats: int = 5,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """Time rules on synthetic trees, interleaved tree by tree.

    Returns:
        One row per rule: `rule`, `nodes`, `vocab_size`, medians `decide_ms` and `prepare_ms` with `decide_worst_ms`,
        means `rows_prepared` and `tokens`.

    Raises:
        ValueError: for fewer than one tree or repeat.
    """
    if trees < 1 or repeats < 1:
        raise ValueError(f"trees={trees} and repeats={repeats} leave nothing to time; give at least 1 of each.")
    sampling, shape = sampling or Sampling(1.0), [int(slot) for slot in shape]
    watches = {name: Stopwatch(rule, clock) for name, rule in rules.items()}
    for number in range(trees):
        tree, rows, distributions = synthetic_tree(shape, vocab_size, sampling, seed + number)
        for repeat in range(repeats + 1):
            for watch in watches.values():
                watch.verify(tree, rows, distributions, RandomSource(seed + number * 1000 + repeat))
                if repeat == 0:  # warms caches up
                    watch.noted.pop()
    return [_timing(name, watch, len(shape), vocab_size) for name, watch in watches.items()]


def _timing(name: str, watch: Stopwatch, nodes: int, vocab_size: int) -> Row:
    prepare, decide, prepared, tokens = np.array(watch.noted).T
    return {
        "rule": name,
        "nodes": nodes,
        "vocab_size": vocab_size,
        "decide_ms": 1000 * float(np.median(decide)),
        "decide_worst_ms": 1000 * float(decide.max()),
        "prepare_ms": 1000 * float(np.median(prepare)),
        "rows_prepared": float(prepared.mean()),
        "tokens": float(tokens.mean()),
    }


def decision_shares(
    pair: Pair,
    drafter: Drafter,
    rules: Mapping[str, Verifier],
    prompts: Sequence[Any],
    *,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    seed: int = 0,
    clock: Clock = time.perf_counter,
) -> list[Row]:
    """How much of an iteration deciding takes in real decoding, rules interleaved prompt by prompt.

    Returns:
        One row per rule: `rule`, `iteration_ms` (reading the prompt included), `decide_ms`, `prepare_ms` (means), and
        their shares `decide` and `prepare` of the iteration.
    """
    sampling = sampling or Sampling(1.0)
    ready = prepare_prompts(pair, prompts, max_new_tokens)
    watches, seconds = {name: Stopwatch(rule, clock) for name, rule in rules.items()}, dict.fromkeys(rules, 0.0)
    for number, one in enumerate([ready[0], *ready]):
        for name, watch in watches.items():
            start = clock()
            generate(
                pair.target, one.ids, drafter, verifier=watch, sampling=sampling, seed=seed,
                max_new_tokens=max_new_tokens, eos_token_ids=(), keep_state=False,
            )  # fmt: skip
            seconds[name] += clock() - start
            if number == 0:  # warms caches up
                seconds[name] = 0.0
                watch.noted.clear()
    return [_share(name, watch, seconds[name]) for name, watch in watches.items()]


def _share(name: str, watch: Stopwatch, seconds: float) -> Row:
    prepare, decide = (sum(one[part] for one in watch.noted) for part in (0, 1))
    count = len(watch.noted)
    return {
        "rule": name,
        "iteration_ms": 1000 * seconds / count,
        "decide_ms": 1000 * decide / count,
        "prepare_ms": 1000 * prepare / count,
        "decide": decide / seconds,
        "prepare": prepare / seconds,
    }
