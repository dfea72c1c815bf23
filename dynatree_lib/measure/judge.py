"""Verification rules on the same drafted trees: a difference of 2 % is visible on few prompts.

A text is decoded with one rule (the driver), and at every iteration each rule is asked how many tokens it would commit
of that very tree. The answer is the expectation over the rule's own coins, enumerated on the production code, so that
only trees and texts vary, and those are the same for all rules. Every lossless rule has the same law of texts; what the
driver decides is at which places of a text trees are drafted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..decoding import generate
from ..drafters.base import Drafter
from ..models.pairs import Pair
from ..sampling import DraftDistributions, RandomSource, Sampling, Scores
from ..tree import TokenTree
from ..verifiers import TargetWalk
from ..verifiers.base import Drawing, Verdict, Verifier
from .environment import describe_environment, public_name
from .exact import Replay, outcomes
from .metrics import Interval, bootstrap, quotient
from .prompts import prepare_prompts
from .records import write_atomically

FORMAT = 1
"""Version of the file; a reader refuses others."""
NEGLIGIBLE = 1e-7
"""Probability below which a way of an iteration's coins is not followed."""
Row = dict[str, Any]


# --------------------------------------------------------------------------------------------- what a rule would keep
class _Coins(Replay):
    """Takes scripted coins; the bonus token, which no length depends on, is not drawn."""

    def accept(self, probability: float) -> bool:
        if self.probability * (1 - probability) < NEGLIGIBLE:  # hardly any way is left on which this coin fails
            probability = 1.0
        return super().accept(probability)

    def draw(self, weights: torch.Tensor) -> int:
        return 0


def expected_tokens(
    verifier: Verifier, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None
) -> float:
    """Expected tokens committed of this tree, the bonus token included, over the rule's own randomness.

    Once a way's probability is below `NEGLIGIBLE`, it ends with the next coin.
    """
    if isinstance(verifier, TargetWalk) and not scores.sampling.greedy:
        return float(_walked(tree, scores).sum())
    found = outcomes(lambda random: verifier.verify(tree, scores, distributions, random), _Coins)
    return 1 + sum(len(verdict.path) * probability for verdict, probability in found)


def _walked(tree: TokenTree, scores: Scores) -> np.ndarray:
    """(n,) probability that the target walks through each node: that of its path, counted at its first copy."""
    out, first = np.zeros(len(tree)), dict[tuple[int, int], int]()
    original = np.zeros(len(tree), np.int64)
    out[0] = 1
    for node in range(1, len(tree)):
        place = int(original[tree.parents[node]]), int(tree.tokens[node])
        original[node] = first.setdefault(place, node)
        if original[node] == node and out[place[0]] > 0:
            out[node] = out[place[0]] * scores.prob(*place)
    return out


@dataclass
class _Judge(Verifier):
    """Asks every rule about each tree that starts before `budget`, and decides as the driver does."""

    rules: Mapping[str, Verifier]
    driver: Verifier
    budget: int
    margin: int | None = None
    judged: list[Row] = field(default_factory=list)
    committed: int = 0
    name = "paired"

    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        for rule in self.rules.values():
            rule.check(sampling, drawing, chain)

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        verdict = self.driver.sample(tree, scores, distributions, random)
        if self.margin is not None and tree.depth >= self.margin:
            raise ValueError(
                f"A tree has {tree.depth} levels and margin is {self.margin}, so the end of a text may cut such trees "
                "short; give a margin of more tokens than the trees have levels."
            )
        if self.committed < self.budget:
            tokens = {name: expected_tokens(rule, tree, scores, distributions) for name, rule in self.rules.items()}
            row = {"place": self.committed, "nodes": len(tree) - 1, "levels": tree.depth}
            self.judged.append({**row, "kept": len(verdict.path) + 1, "tokens": tokens})
        self.committed += len(verdict.path) + 1
        return verdict


# ------------------------------------------------------------------------------------------------------- the protocol
@dataclass(frozen=True)
class Paired:
    """Judged trees of one experiment.

    Attributes:
        environment, setup: where and what.
        rows: one per judged tree: `tree` (label), `prompt`, `task`, `seed`, `driver`, `place` (tokens before it),
            `nodes`, `levels`, `kept` (by the driver, bonus token included) and `tokens`, rule -> expected tokens.
    """

    environment: dict[str, Any]
    setup: dict[str, Any]
    rows: list[Row]

    def where(self, **values: Any) -> Paired:
        """The part whose rows have these values; a tuple allows several."""
        several = {name: value if isinstance(value, tuple) else (value,) for name, value in values.items()}
        rows = [row for row in self.rows if all(row[name] in some for name, some in several.items())]
        return Paired(self.environment, self.setup, rows)

    def mean(self, rule: str) -> float:
        """Tokens per iteration of a rule, the bonus token included."""
        return float(np.mean([row["tokens"][rule] for row in self.rows]))

    def gain(self, rule: str, base: str, seed: int = 0) -> tuple[float, Interval]:
        """Tokens per iteration of a rule over the base's on the same trees, with its 95 % bootstrap interval over
        prompts.

        Raises:
            ValueError: without rows.
        """
        sums: dict[str, list[float]] = {}
        for row in self.rows:
            mine = sums.setdefault(row["prompt"], [0.0, 0.0])
            mine[0] += row["tokens"][rule]
            mine[1] += row["tokens"][base]
        if not sums:
            raise ValueError("There is no judged tree to compare rules on; give prompts, or another selection.")
        table = np.array(list(sums.values()))
        return float(quotient(table[None])[0]), bootstrap(table, quotient, seed)

    def write(self, path: str | Path) -> None:
        """Write a header line and one line per tree."""
        head = {"format": FORMAT, "environment": self.environment, "setup": self.setup}
        lines = [head, *({**row, "tokens": _rounded(row["tokens"])} for row in self.rows)]
        write_atomically(Path(path), "".join(json.dumps(line) + "\n" for line in lines))


def _rounded(tokens: Mapping[str, float]) -> dict[str, float]:
    return {rule: round(value, 5) for rule, value in tokens.items()}


def read_paired(path: str | Path) -> Paired:
    """Judged trees from a file.

    Raises:
        ValueError: if the file is of another format.
    """
    head, *rows = (json.loads(line) for line in Path(path).read_text(encoding="utf-8").splitlines())
    if head.get("format") != FORMAT:
        raise ValueError(f"{path} has format {head.get('format')}; this version reads {FORMAT}. Measure it again.")
    return Paired(head["environment"], head["setup"], rows)


def judge(
    pair: Pair,
    drafters: Mapping[str, Drafter],
    rules: Mapping[str, Verifier] | Callable[[str], Mapping[str, Verifier]],
    prompts: Sequence[Any],
    *,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    seeds: Iterable[int] = (0,),
    drivers: Sequence[str] | None = None,
    margin: int = 24,
    source: str = "prompts given by the caller",
    progress: Callable[[str], None] | None = None,
) -> Paired:
    """Have rules judge the same trees.

    Args:
        pair: target and draft.
        drafters: label -> drafter of the trees.
        rules: label -> rule; or a function of the drafter's label that gives them, where a rule does not serve all.
        prompts: as for `run_benchmark`.
        max_new_tokens: trees that start before this place of the text are judged.
        sampling: the target's; temperature 1 by default.
        seeds: a text of each prompt, drafter and driver for each.
        drivers: labels of the rules that decide texts, every one in turn; all by default.
        margin: tokens beyond `max_new_tokens` that are decoded so that the last trees are not cut short; more than the
            trees have levels.
        source: sentence on where the prompts come from, for the record.
        progress: called with a line of text per drafter and driver.

    Raises:
        ValueError: before any work, for greedy sampling, a rule that would be biased for a drafter, and what
            `prepare_prompts` refuses; at the first tree that is deeper than the margin allows.
    """
    sampling, seeds = sampling or Sampling(1.0), list(seeds)
    if sampling.greedy:
        raise ValueError("At temperature 0 every rule keeps the same path; give a sampling with temperature > 0.")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}, and no tree starts before that place; give at least 1.")
    ready = prepare_prompts(pair, prompts, max_new_tokens + margin)
    chosen = {label: dict(rules(label) if callable(rules) else rules) for label in drafters}
    for label, drafter in drafters.items():
        _Judge(chosen[label], TargetWalk(), 0).check(sampling, drafter.drawing, drafter.chain)
    tasks = {getattr(one, "id", ""): getattr(one, "task", "") for one in prompts}
    rows: list[Row] = []
    for label, drafter in drafters.items():
        for driver in drivers or chosen[label]:
            if progress:
                progress(f"{label}, driven by {driver}: {len(ready)} prompts, {len(seeds)} seeds")
            for seed, one in product(seeds, ready):
                judge_ = _Judge(chosen[label], chosen[label][driver], max_new_tokens, margin)
                generate(
                    pair.target, one.ids, drafter, verifier=judge_, sampling=sampling, seed=seed,
                    max_new_tokens=max_new_tokens + margin, eos_token_ids=(), keep_state=False,
                )  # fmt: skip
                head = {"tree": label, "prompt": one.id, "task": tasks.get(one.id, ""), "seed": seed, "driver": driver}
                rows += [{**head, **row} for row in judge_.judged]
    setup = {
        "pair": public_name(pair.name),
        "dtype": str(getattr(pair.target, "dtype", torch.float64)).removeprefix("torch."),
        "workload": source,
        "prompts": [{"id": one.id, "sha256": one.sha256} for one in ready],
        "sampling": asdict(sampling),
        "seeds": seeds,
        "max_new_tokens": max_new_tokens,
        "eos_rule": "EOS is an ordinary token",
        "trees": {label: {"name": one.name, **_options(one)} for label, one in drafters.items()},
        "rules": {label: list(mine) for label, mine in chosen.items()},
    }
    return Paired(describe_environment(), setup, rows)


def _options(drafter: Drafter) -> dict[str, Any]:
    return {one.name: getattr(drafter, one.name) for one in fields(drafter) if one.name != "draft"}  # type: ignore[arg-type]
