"""What rounding does to a sampled token: float32 against float64, with a bound.

A rule that is lossless in exact arithmetic is off in float32 by a little. Here that little is computed, not sampled:
the rules of `verifiers` run on float32 distributions, every coin is enumerated, and the distribution of the token that
they emit is summed in float64. The reference is the softmax of the same logits in float64. docs/design.md proves the
bound for one node: with one drawn child, or with children that were chosen. For deeper trees and several drawn children
`toy_bound` is an estimate that the cases must keep to, not a theorem.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import count, product
from typing import Any

import numpy as np
import pandas as pd
import torch
from typing_extensions import override

from dynatree_lib.decoding import generate
from dynatree_lib.drafters import SampledTree
from dynatree_lib.models.pairs import Pair
from dynatree_lib.models.toy import ToyModel, ToySession
from dynatree_lib.sampling import DraftDistributions, RandomSource, Sampling, Scores
from dynatree_lib.tree import DISTINCT, POINT, TokenTree
from dynatree_lib.verifiers import Block, TargetWalk, TokenLevel, Traversal, Verdict, Verifier

from . import exact
from .audit import serves, tabled_pair

UNIT = 2.0**-24
"""Largest relative error of one operation in float32."""
STEPS = 5
"""Roundings of a probability besides that of the exponent: the exponential, counted four times, and a quotient."""
REJECTION = 3
"""Roundings of a token's residual at each rejected child."""


@dataclass(frozen=True)
class Rounded:
    """How far one distribution is off, and its bound.

    Attributes:
        where: "toy" or the pair.
        dtype: of the logits.
        tree: how the tree came about.
        rule: of verification.
        bias: total variation from the float64 distribution.
        bound: what the bias is held to.
    """

    where: str
    dtype: str
    tree: str
    rule: str
    bias: float
    bound: float


# --------------------------------------------------------------------------------------------------------------- bounds
def softmax_bound(logits: torch.Tensor, temperature: float = 1.0) -> float:
    """Return the largest total variation between a float32 softmax, normalised exactly, and the softmax itself.

    Args:
        logits: (V,), any dtype.
        temperature: above 0.
    """
    exact_shares = (logits.double() / temperature).softmax(-1)
    known = exact_shares > 0
    entropy = float(-(exact_shares[known] * exact_shares[known].log()).sum())
    shift = 0.0
    if temperature != 1:
        scaled = (logits.double() / temperature).abs()
        shift = float((exact_shares[known] * scaled[known]).sum()) + float(scaled[known].max()) * float(
            exact_shares.max() < 1
        )
    return (entropy + STEPS + shift) * UNIT


def excess(distribution: torch.Tensor) -> float:
    """Return how far the sum of a float32 distribution, taken exactly, is from 1."""
    return abs(float(distribution.double().sum()) - 1)


# ------------------------------------------------------------------------------------------------------ the first token
def first_token(rule: Verifier, tree: TokenTree, scores: Scores, distributions: DraftDistributions) -> np.ndarray:
    """Return the (V,) float64 distribution of a rule's first token for a tree of one level, over all its coins."""
    if rule.walks(tree):  # its first draw is the token, whether the tree has it or not
        return _normalised(scores.distribution(0))

    def decide(random: RandomSource) -> tuple[tuple[int, ...], torch.Tensor | None]:
        assert isinstance(random, exact.CoinReplay)
        return rule.verify(tree, scores, distributions, random).path, random.weights

    emitted = np.zeros(scores.logits.shape[-1])
    for (path, weights), chance in exact.outcomes(decide, exact.CoinReplay):
        if path:
            emitted[tree.tokens[path[0]]] += chance
        elif weights is not None:
            emitted += chance * _normalised(weights)
    return emitted


def _normalised(weights: torch.Tensor) -> np.ndarray:
    return (weights.double() / weights.double().sum()).numpy()


def deterministic(
    logits: torch.Tensor, tokens: Sequence[int], rule: Verifier, sampling: Sampling
) -> tuple[float, float]:
    """Return bias and bound of a rule on a node whose children are these tokens.

    Args:
        logits: (V,) of the target, float32 or shorter.
        tokens: of the children, in order.
        rule: of verification.
        sampling: at a temperature above 0, without top-k and top-p.

    Raises:
        ValueError: for a token outside the vocabulary.
    """
    for token in tokens:
        if not 0 <= token < len(logits):
            raise ValueError(f"A child is token {token}; give tokens of 0 to {len(logits) - 1}, which have a logit.")
    tree = TokenTree.build([0, *tokens], [-1, *[0] * len(tokens)], draws=[POINT] * (1 + len(tokens)))
    scores = Scores(logits.expand(len(tree), -1), sampling)
    emitted = first_token(rule, tree, scores, DraftDistributions())
    bound = (
        softmax_bound(logits, sampling.temperature) + excess(scores.distribution(0)) + REJECTION * len(tokens) * UNIT
    )
    return _off(emitted, logits, sampling), bound


def drawn(logits: torch.Tensor, draft: torch.Tensor, rule: Verifier, sampling: Sampling) -> tuple[float, float]:
    """Return bias and bound of a rule on a node with one child that is drawn from the draft's distribution.

    Args:
        logits: (V,) of the target.
        draft: (K,) float32 distribution of the first K tokens that the child is drawn from, as a drafter records it.
        rule: of verification.
        sampling: of the target.
    """
    distributions = DraftDistributions()
    distributions.record(0, draft)
    scores, emitted = Scores(logits.expand(2, -1), sampling), np.zeros(logits.shape[-1])
    shares = _normalised(draft)
    for token in np.flatnonzero(shares).tolist():
        tree = TokenTree.build([0, token], [-1, 0], draws=[POINT, DISTINCT])
        emitted += shares[token] * first_token(rule, tree, scores, distributions)
    bound = softmax_bound(logits, sampling.temperature) + excess(scores.distribution(0)) + excess(draft)
    return _off(emitted, logits, sampling), bound + REJECTION * UNIT


def _off(emitted: np.ndarray, logits: torch.Tensor, sampling: Sampling) -> float:
    wanted = (logits.double() / sampling.temperature).softmax(-1).numpy()
    return float(np.abs(emitted - wanted).sum() / 2)


# ----------------------------------------------------------------------------------------------------------- toy models
class RoundedToy(ToyModel):
    """A toy model whose logits have a short dtype; its table is their softmax in float64."""

    def __init__(self, model: ToyModel, dtype: torch.dtype) -> None:
        @cache
        def logits(context: tuple[int, ...]) -> torch.Tensor:
            return torch.tensor(model.distribution(context), dtype=torch.float64).log().to(dtype)

        self.logits = logits
        super().__init__(lambda context: logits(context).double().softmax(-1).tolist(), model.vocab_size)

    @override
    def session(self) -> RoundedSession:
        return RoundedSession(self)


class RoundedSession(ToySession):
    """A session that gives the logits in their own dtype."""

    model: RoundedToy

    @override
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        self._text += queue
        self._nodes += tokens.tolist()
        first = len(parents) - len(tokens)
        rows = [self.model.logits(self._context(node, parents)) for node in range(first, len(parents))]
        return torch.stack(rows) if rows else torch.empty(0, self.model.vocab_size)


EXTREMES = ("generic", "almost equal", "almost certain", "tiny", "far apart")
"""Kinds of distributions that rounding could harm."""
DRAWN: dict[str, dict[str, Any]] = {
    "drawn chain": {"depth": 2, "branching": 1},
    "drawn siblings": {"depth": 1, "branching": 3},
    "drawn tree": {"depth": 2, "branching": (2, 1)},
    "drawn with replacement": {"depth": 1, "branching": 2, "draw": "iid"},
}
RULES: tuple[type[Verifier], ...] = (TokenLevel, Traversal, Block, TargetWalk)


def extreme_pair(kind: str, vocabulary: int, seed: int) -> tuple[ToyModel, ToyModel]:
    """Return target and draft whose distributions rounding could harm: an element of `EXTREMES`."""

    def changed(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        if kind == "almost equal":
            q = p * (1 + 1e-7 * rng.normal(size=vocabulary))
        elif kind == "almost certain":
            p, q = (np.where(np.arange(vocabulary) == rng.integers(vocabulary), 1, 1e-7 * x) for x in (p, q))
        elif kind == "tiny":
            p, q = (x ** float(rng.choice([8, 20, 40])) for x in (p, q))
        elif kind == "far apart":
            low = 10.0 ** -rng.integers(1, 37, size=vocabulary)
            p, q = p * low, q * low[::-1]
        return p, q

    return tabled_pair(changed, vocabulary, seed)


def toy_bound(vocabulary: int, nodes: int, sampling: Sampling, largest: float) -> float:
    """Return what a tree of so many nodes over a small vocabulary is held to: not proved, but for a single node.

    Every node's distribution is counted once: its softmax, its sum (of V terms), and as many for the draft; every
    drafted node may be rejected once. For the products along paths, whose errors add, all of it is doubled.

    Args:
        vocabulary: V.
        nodes: of the tree, node 0 included.
        sampling: of the target.
        largest: logit by absolute value.
    """
    shift = 2 * largest / sampling.temperature if sampling.temperature != 1 else 0.0
    softmax = math.log(vocabulary) + STEPS + shift + vocabulary + STEPS
    return 2 * nodes * (2 * softmax + REJECTION) * UNIT


def toys(instances: int, seed: int = 0) -> Iterator[Rounded]:
    """Yield what rounding does to iterations on toy models of 2 to 5 tokens, by enumeration of trees and coins."""
    turns, made = list(product(EXTREMES, DRAWN, ("float32", "bfloat16"), (1.0, 0.7))), 0
    for place in count():
        turn, number = divmod(place, len(turns))
        kind, name, dtype, temperature = turns[number]
        vocabulary = 2 + (turn + number) % (3 if name == "drawn tree" else 4)
        target, draft = extreme_pair(kind, vocabulary, seed * 100_000 + place)
        low, drafts = (RoundedToy(one, getattr(torch, dtype)) for one in (target, draft))
        sampling, drafter = Sampling(temperature), SampledTree(drafts, **DRAWN[name])
        largest = max(float(one.logits((0,)).abs().max()) for one in (low, drafts))
        rules = {rule.name: rule() for rule in RULES if serves(rule(), drafter, sampling)}
        for rule, found in exact.iterations(low, drafter, rules, [0], sampling).items():
            nodes = 1 + max(len(text) for text in found.emitted) * 3
            bound = toy_bound(vocabulary, nodes, sampling, largest)
            yield Rounded("toy", dtype, f"{name}, {kind}", rule, found.bias(low, [0], sampling), bound)
            made += 1
            if made >= instances:
                return


# ---------------------------------------------------------------------------------------------------------- a real pair
@dataclass
class Keeping(exact.ObservingVerifier):
    """A rule with what it decided on: the target's logits after node 0, and the draft's distribution."""

    kept: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    @override
    def observe(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, verdict: Verdict
    ) -> None:
        if distributions is not None and len(tree) > 1:
            self.kept.append((scores.row(0).clone(), distributions.distribution(0).clone()))


PLACES = 2
"""Places of an answer at which `on_pair` looks."""


def on_pair(pair: Pair, prompts: Sequence[Sequence[int]], sampling: Sampling, seed: int = 0) -> Iterator[Rounded]:
    """Yield what rounding does to a token on a real vocabulary, at `PLACES` of the answer to each prompt.

    Each is that of one drawn child under token-level verification and traversal, and of the draft's four most probable
    tokens as deterministic children, under token-level verification and the target walk.
    """
    dtype = str(pair.target.dtype).removeprefix("torch.")
    for prompt in prompts:
        keeping, drafter = Keeping(TokenLevel()), SampledTree(pair.draft, depth=1, branching=1)
        options: dict[str, Any] = {"verifier": keeping, "sampling": sampling, "max_new_tokens": 2 * PLACES + 4}
        generate(pair.target, list(prompt), drafter, seed=seed, **options)
        for logits, draft in keeping.kept[:PLACES]:
            for rule in (TokenLevel(), Traversal()):
                yield Rounded(pair.name, dtype, "one drawn child", rule.name, *drawn(logits, draft, rule, sampling))
            children = draft.topk(4).indices.tolist()
            for fixed in (TokenLevel(), TargetWalk()):
                found = deterministic(logits, children, fixed, sampling)
                yield Rounded(pair.name, dtype, "four deterministic children", fixed.name, *found)


def summary(rows: Sequence[Rounded]) -> pd.DataFrame:
    """Return by place, dtype, tree and rule: `instances`, largest `bias`, and `share`, the largest of the bound."""
    frame = pd.DataFrame(rows)
    frame = frame.assign(tree=frame["tree"].str.partition(",")[0], share=frame["bias"] / frame["bound"])
    groups = frame.groupby(["where", "dtype", "tree", "rule"], sort=False, as_index=False)
    return groups.agg(instances=("bias", "size"), bias=("bias", "max"), share=("share", "max"))


def to_json(rows: Sequence[Rounded]) -> list[dict[str, Any]]:
    """Return the rows as JSON holds them, biases and bounds with three digits."""
    return [{**asdict(row), "bias": float(f"{row.bias:.3g}"), "bound": float(f"{row.bound:.3g}")} for row in rows]
