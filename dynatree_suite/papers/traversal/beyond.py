"""Verification rules beyond the five papers: small trees to compare them on, exactly, and smallest counterexamples.

The optimum beside the rules is that of `proofs.ceiling`. Everything here runs on toy models.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import product
from typing import Any

import pandas as pd

from dynatree_lib.drafters import SampledTree
from dynatree_lib.models.toy import ToyModel
from dynatree_lib.sampling import Sampling
from dynatree_lib.verifiers import Verifier

from ...proofs.audit import PAIRS, PROMPT, serves, toy_pair
from ...proofs.ceiling import best_tokens
from ...proofs.exact import bias, iterations, text_distribution

ONE = Sampling(1.0)
Row = dict[str, Any]

CHAINS: Mapping[str, Row] = {f"chain of {depth}": {"depth": depth, "branching": 1} for depth in (2, 3)}
"""Options of `SampledTree` for chains small enough to enumerate."""
TREES: Mapping[str, Row] = {
    **CHAINS,
    "2 siblings, i.i.d.": {"depth": 1, "branching": 2, "draw": "iid"},
    "2 siblings": {"depth": 1, "branching": 2},
    "3 siblings": {"depth": 1, "branching": 3},
    "3 siblings, i.i.d.": {"depth": 1, "branching": 3, "draw": "iid"},
    "2 paths, i.i.d.": {"depth": 2, "branching": (2, 1), "draw": "iid"},
    "2 paths": {"depth": 2, "branching": (2, 1)},
    "2x2, i.i.d.": {"depth": 2, "branching": 2, "draw": "iid"},
    "2x2": {"depth": 2, "branching": 2},
    "2x2, top and one drawn": {"depth": 2, "branching": 2, "draw": "hybrid"},
    "uneven, i.i.d.": {"shape": (0, 0, 0, 1), "draw": "iid"},
    "uneven": {"shape": (0, 0, 0, 1)},
}
"""Options of `SampledTree` for trees small enough to enumerate; siblings are drawn without replacement unless named."""
UNEVEN = ("uneven, i.i.d.", "uneven")
"""Trees of three siblings, the first of which alone has a child."""
SMALL = ("chain of 2", "2 siblings, i.i.d.", "2 siblings", "3 siblings", "uneven")
"""Trees that are quick to enumerate over three tokens too."""


def fits(rule: Verifier, tree: str) -> bool:
    """Return whether a rule takes the shape of this tree: GBV without counting copies wants nodes that branch alike."""
    return tree not in UNEVEN or getattr(rule, "copies", None) != "forgotten"


def compare(
    rules: Mapping[str, Verifier],
    tree: str,
    seeds: Iterable[int],
    *,
    kinds: Sequence[str] = ("generic",),
    vocabulary: int = 3,
    optimum: bool = True,
) -> Iterator[Row]:
    """Yield a row per pair of toy models and rule that serves the tree.

    Args:
        rules: label -> rule.
        tree: one of `TREES`.
        seeds: of the models' tables.
        kinds: of the models, elements of `audit.PAIRS`.
        vocabulary: V.
        optimum: also solve for the best lossless rule.

    Yields:
        `tree`, `pair`, `seed`, `rule`, `bias` (total variation between the completed output and the target), `accepted`
        (expected drafted tokens of an iteration), and `optimum` (of the best lossless rule), if asked for.
    """
    for kind, seed in product(kinds, seeds):
        target, draft = toy_pair(kind, vocabulary, seed)
        drafter = SampledTree(draft, **TREES[tree])
        served = {name: rule for name, rule in rules.items() if serves(rule, drafter, ONE) and fits(rule, tree)}
        if not served:
            continue
        best = {"optimum": best_tokens(target, drafter, PROMPT, ONE) - 1} if optimum else {}
        head = {"tree": tree, "pair": kind, "seed": seed}
        for name, one in iterations(target, drafter, served, PROMPT, ONE).items():
            off = one.bias(target, PROMPT, ONE)
            yield {**head, "rule": name, "bias": off, "accepted": one.tokens - 1, **best}


def checked(rules: Mapping[str, Verifier], count: int, trees: Sequence[str] = tuple(TREES)) -> Iterator[Row]:
    """Yield `count` rows of `compare` for each rule: all kinds of models and trees; 2 tokens, 3 where that is quick."""
    done = dict.fromkeys(rules, 0)
    for number in range(100 * count):
        turn = {name: rule for name, rule in rules.items() if done[name] < count}
        if not turn:
            return
        kind, tree = PAIRS[number % len(PAIRS)], trees[number // len(PAIRS) % len(trees)]
        vocabulary = 2 + number // (len(PAIRS) * len(trees)) % 2 if tree in SMALL else 2
        for row in compare(turn, tree, [number], kinds=[kind], vocabulary=vocabulary, optimum=False):
            done[row["rule"]] += 1
            yield row


def shares(rows: Iterable[Row], *by: str) -> pd.DataFrame:
    """Return mean accepted drafted tokens, those of the optimum, and the ratio of the two as `share`, by columns."""
    table = pd.DataFrame(rows).groupby(list(by), sort=False, as_index=False)[["accepted", "optimum"]].mean()
    return table.assign(share=table["accepted"] / table["optimum"])


@dataclass(frozen=True)
class Counterexample:
    """Models with one distribution after every text, and a chain, on which a rule is biased.

    Attributes:
        target: distribution of the target.
        draft: distribution of the draft.
        depth: drafted tokens.
        bias: total variation.
        accepted: expected drafted tokens that the rule accepts.
        texts: one row per text of depth + 1 tokens: `text`, `target` and `emitted`, probabilities.
    """

    target: tuple[Fraction, ...]
    draft: tuple[Fraction, ...]
    depth: int
    bias: float
    accepted: float
    texts: list[Row]


def smallest_counterexample(
    rule: Verifier, vocabularies: Iterable[int] = (2, 3), largest: int = 6
) -> Counterexample | None:
    """Return the first chain on which the rule is biased: shallowest, fewest tokens, smallest denominator.

    Chains have up to 3 tokens.

    Args:
        rule: serves chains, if need be by `unsafe`.
        vocabularies: V.
        largest: denominator of the probabilities of both models.

    Returns:
        The counterexample with the largest bias of that size, or None if there is none up to these sizes.
    """
    for depth, size, denominator in product((1, 2, 3), vocabularies, range(2, largest + 1)):
        found = [
            one
            for p, q in product(_distributions(size, denominator), repeat=2)
            if p != q and (one := counterexample(rule, p, q, depth)).bias > 1e-9
        ]
        if found:
            return max(found, key=lambda one: one.bias)
    return None


def _distributions(size: int, denominator: int) -> list[tuple[Fraction, ...]]:
    """Return all distributions of positive multiples of 1 / denominator."""
    weights = (one for one in product(range(1, denominator), repeat=size) if sum(one) == denominator)
    return [tuple(Fraction(weight, denominator) for weight in one) for one in weights]


def counterexample(
    rule: Verifier, target: Sequence[Fraction | float], draft: Sequence[Fraction | float], depth: int
) -> Counterexample:
    """Return what a rule makes of a chain where both models have one distribution after every text."""
    p, q = (constant(*distribution) for distribution in (target, draft))
    off, found = bias(p, SampledTree(q, depth=depth, branching=1), rule, PROMPT, ONE)
    emitted = found.completed(p, PROMPT, depth + 1, ONE)
    texts = [
        {"text": "".join("abc"[token] for token in text), "target": share, "emitted": emitted.get(text, 0.0)}
        for text, share in text_distribution(p, PROMPT, depth + 1, ONE).items()
    ]
    first, second = (tuple(Fraction(value).limit_denominator(1000) for value in one) for one in (target, draft))
    return Counterexample(first, second, depth, off, found.tokens - 1, texts)


def constant(*distribution: Fraction | float) -> ToyModel:
    """Return a model with the same distribution after every text."""
    shares = [float(share) for share in distribution]
    return ToyModel(lambda context: shares, len(shares))
