"""Verification rules on the same drafted trees: a difference of 2 % is visible on few prompts.

A text is decoded with one rule (the driver), and at every iteration each rule is asked how many tokens it would emit
of that very tree. The answer is the expectation over the rule's own coins, enumerated on the production code. So only
trees and texts vary, and those are the same for all rules. Every lossless rule gives texts the same distribution; the
driver only decides at which places of a text trees are drafted.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
from typing_extensions import override

from dynatree_lib.decoding import generate
from dynatree_lib.drafters.base import Drafter
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import DraftDistributions, Sampling, Scores
from dynatree_lib.tree import TokenTree
from dynatree_lib.verifiers.base import Verdict, Verifier

from ..bench.environment import describe_environment, public_pair_name
from ..bench.options import option_defaults
from ..bench.prompts import prepare_prompts
from ..bench.protocol import SEEDS, plain
from ..bench.records import read_bytes
from ..bench.runner import quiet
from ..bench.statistics import Estimate, ratio
from ..files import write_atomically
from .exact import CoinReplay, ObservingVerifier, outcomes

FORMAT = 2
"""Version of the file. A reader also takes version 1, which has `kept` for `emitted`, and refuses others."""
NEGLIGIBLE = 1e-7
"""Probability below which a way of an iteration's coins is not followed."""
Row = dict[str, Any]


# --------------------------------------------------------------------------------------------- what a rule would emit
class _Coins(CoinReplay):
    """A replay of coins that leaves improbable ways out; on the bonus token, which is not drawn, no length depends."""

    @override
    def accept(self, probability: float) -> bool:
        if self.probability * (1 - probability) < NEGLIGIBLE:  # hardly any way is left on which this coin fails
            probability = 1.0
        return super().accept(probability)


def expected_tokens(
    verifier: Verifier, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None
) -> float:
    """Return the expected tokens emitted of this tree, the bonus token included, over the rule's own randomness.

    Once a way's probability is below `NEGLIGIBLE`, it ends with the next coin.
    """
    if verifier.walks(tree) and not scores.sampling.greedy:
        return float(_walked(tree, scores).sum())
    verdicts = outcomes(lambda random: verifier.verify(tree, scores, distributions, random), _Coins)
    return 1 + sum(len(verdict.path) * probability for verdict, probability in verdicts)


def _walked(tree: TokenTree, scores: Scores) -> np.ndarray:
    """Return the (n,) probability that the target walks through each node, counted at the first copy of its path."""
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
class _Judge(ObservingVerifier):
    """A driver whose trees every rule judges, up to a place of the text; `rule` is the driver."""

    rules: Mapping[str, Verifier]
    until: int
    margin: int
    rows: list[Row] = field(default_factory=list)
    place: int = 0

    @override
    def observe(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, verdict: Verdict
    ) -> None:
        if tree.depth >= self.margin:
            raise ValueError(
                f"A tree has {tree.depth} levels and margin is {self.margin}, so the end of a text may cut such trees "
                "short; give a margin of more tokens than the trees have levels."
            )
        emitted = len(verdict.path) + 1
        if self.place < self.until:
            tokens = {name: expected_tokens(rule, tree, scores, distributions) for name, rule in self.rules.items()}
            row = {"place": self.place, "nodes": len(tree) - 1, "levels": tree.depth}
            self.rows.append({**row, "emitted": emitted, "tokens": tokens})
        self.place += emitted


# ------------------------------------------------------------------------------------------------------- the protocol
@dataclass(frozen=True)
class Judged:
    """Judged trees of one experiment.

    Attributes:
        environment: versions, machine, commit (`describe_environment`).
        setup: pair, prompts, sampling, trees and rules.
        rows: one per judged tree: `tree` (label), `prompt`, `task`, `seed`, `driver`, `place` (tokens before it),
            `nodes`, `levels`, `emitted` (by the driver, bonus token included) and `tokens`, rule -> expected tokens.
    """

    environment: dict[str, Any]
    setup: dict[str, Any]
    rows: list[Row]

    def where(self, **values: Any) -> Judged:
        """Return the part whose rows have these values; a tuple allows several."""
        wanted = {name: value if isinstance(value, tuple) else (value,) for name, value in values.items()}
        return replace(self, rows=[row for row in self.rows if all(row[name] in wanted[name] for name in wanted)])

    def mean(self, rule: str) -> float:
        """Return a rule's tokens per iteration, the bonus token included."""
        return float(np.mean([row["tokens"][rule] for row in self.rows]))

    def gain(self, rule: str, base: str, seed: int = 0) -> Estimate:
        """Return a rule's tokens per iteration over the base's on the same trees, with its interval over prompts.

        Raises:
            ValueError: without rows.
        """
        if not self.rows:
            raise ValueError("There is no judged tree to compare rules on; give prompts, or another selection.")
        return ratio(judged_frame(self.rows), rule, over=base, column="rule", per="iterations", by="prompt", seed=seed)

    def write(self, path: str | Path) -> None:
        """Write `to_lines` to a file."""
        write_atomically(Path(path), self.to_lines())

    def to_lines(self) -> str:
        """Return a header line and one line per tree, as JSON, expectations rounded to five decimals."""
        lines = [{"format": FORMAT, "environment": self.environment, "setup": self.setup}]
        for row in self.rows:
            lines.append({**row, "tokens": {rule: round(value, 5) for rule, value in row["tokens"].items()}})
        return "".join(json.dumps(line) + "\n" for line in lines)


def judged_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Return rows of judged trees as a data frame with one row per tree and rule.

    Columns: those of the rows, with `rule`, its expected `tokens`, and `iterations`, which is 1.
    """
    split = ({**row, "rule": rule, "tokens": tokens} for row in rows for rule, tokens in row["tokens"].items())
    return pd.DataFrame(split).assign(iterations=1)


def read_judged(path: str | Path) -> Judged:
    """Read judged trees from a file, plain or packed by gzip.

    Raises:
        ValueError: if the file is of another format, or cannot be unpacked.
    """
    head, *rows = (json.loads(line) for line in read_bytes(Path(path)).decode("utf-8").splitlines())
    if head.get("format") not in (1, FORMAT):
        raise ValueError(
            f"{path} has format {head.get('format')}; this version reads 1 and {FORMAT}. Measure it again."
        )
    renamed = {"kept": "emitted"}
    rows = [{renamed.get(name, name): value for name, value in row.items()} for row in rows]
    return Judged(head["environment"], head["setup"], rows)


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
    progress: Callable[[str], None] = quiet,
) -> Judged:
    """Have rules judge the same trees.

    Args:
        pair: target and draft.
        drafters: label -> drafter of the trees.
        rules: label -> rule; or a function of the drafter's label that gives them, where a rule does not serve all.
        prompts: as for `run_benchmark`.
        max_new_tokens: trees that start before this place of the text are judged.
        sampling: the target's; temperature 1 by default.
        seeds: a text of each prompt, drafter and driver for each; the number of the prompt is added, times
            `protocol.SEEDS`.
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
        raise ValueError("At temperature 0 every rule accepts the same path; give a sampling with temperature > 0.")
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}, and no tree starts before that place; give at least 1.")
    ready = prepare_prompts(pair, prompts, max_new_tokens + margin)
    chosen = {label: dict(rules(label) if callable(rules) else rules) for label in drafters}
    for label, drafter in drafters.items():
        for rule in chosen[label].values():
            rule.check(sampling, drafter.drawing, drafter.chain)
    tasks = {getattr(prompt, "id", ""): getattr(prompt, "task", "") for prompt in prompts}
    rows: list[Row] = []
    for label, drafter in drafters.items():
        for driver in drivers or chosen[label]:
            progress(f"{label}, driven by {driver}: {len(ready)} prompts, {len(seeds)} seeds")
            for seed, (number, prompt) in product(seeds, enumerate(ready)):
                watched = _Judge(chosen[label][driver], chosen[label], max_new_tokens, margin)
                generate(
                    pair.target, prompt.ids, drafter, verifier=watched, sampling=sampling,
                    seed=seed + SEEDS * number, max_new_tokens=max_new_tokens + margin, eos_token_ids=(),
                    keep_state=False,
                )  # fmt: skip
                head = {"tree": label, "prompt": prompt.id, "task": tasks.get(prompt.id, ""), "seed": seed}
                rows += [{**head, "driver": driver, **row} for row in watched.rows]
    setup = {
        "pair": public_pair_name(pair),
        "dtype": str(getattr(pair.target, "dtype", torch.float64)).removeprefix("torch."),
        "workload": source,
        "prompts": [{"id": prompt.id, "sha256": prompt.sha256} for prompt in ready],
        "sampling": asdict(sampling),
        "seeds": seeds,
        "seeds_per_prompt": SEEDS,
        "max_new_tokens": max_new_tokens,
        "eos_rule": "EOS is an ordinary token",
        "trees": {
            label: {
                "name": drafter.name,
                **plain({name: getattr(drafter, name) for name in option_defaults(type(drafter))}),
            }
            for label, drafter in drafters.items()
        },
        "rules": {label: list(names) for label, names in chosen.items()},
    }
    return Judged(describe_environment(), setup, rows)
