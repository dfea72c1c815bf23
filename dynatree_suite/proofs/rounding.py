"""What rounding does to a sampled token: float32 against float64, with a bound.

A rule that is lossless in exact arithmetic is off in float32 by a little. Here that little is computed, not sampled:
the rules of `verifiers` run on float32 distributions, every coin is enumerated, and the distribution of the token that
they emit is summed in float64. The reference is the softmax of the same logits in float64. docs/design.md proves the
bound for one node: with one drawn child, or with children that were chosen. For deeper trees and several drawn children
`toy_bound` is an estimate that the cases must keep to, not a theorem.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import count, product
from typing import Any

import numpy as np
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
from .audit import serves

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
class Coins(RandomSource):
    """A source with scripted coins that keeps what is drawn from instead of drawing.

    Attributes:
        probability: of the coins thrown.
        weights: (V,) float64, what the last token would be drawn from; None before.
    """

    def __init__(self, replay: exact.Replay) -> None:
        self._replay = replay
        self.weights: torch.Tensor | None = None

    @override
    def accept(self, probability: float) -> bool:
        return self._replay.accept(probability)

    @override
    def accept_lazily(self, bound: float, probability: Callable[[], float]) -> bool:
        return self._replay.accept(probability())

    @override
    def draw(self, weights: torch.Tensor) -> int:
        self.weights = weights.double()
        return 0


def first_token(rule: Verifier, tree: TokenTree, scores: Scores, distributions: DraftDistributions) -> np.ndarray:
    """Return the (V,) float64 distribution of a rule's first token for a tree of one level, over all its coins."""
    emitted = np.zeros(scores.logits.shape[-1])
    for (path, weights), chance in exact.outcomes(lambda random: _verdict(rule, tree, scores, distributions, random)):
        if path:
            emitted[tree.tokens[path[0]]] += chance
        else:
            emitted += chance * (weights / weights.sum()).numpy()
    return emitted


def _verdict(
    rule: Verifier, tree: TokenTree, scores: Scores, distributions: DraftDistributions, random: RandomSource
) -> tuple[tuple[int, ...], torch.Tensor]:
    assert isinstance(random, exact.Replay)
    coins = Coins(random)
    if isinstance(rule, TargetWalk):  # its first draw is the token, whether the tree has it or not
        return (), scores.distribution(0).double()
    path = rule.verify(tree, scores, distributions, coins).path
    return path, coins.weights if coins.weights is not None else torch.ones(1)


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


def drawn(
    logits: torch.Tensor, draft: torch.Tensor, rule: Verifier, sampling: Sampling, ids: np.ndarray | None = None
) -> tuple[float, float]:
    """Return bias and bound of a rule on a node with one child that is drawn from the draft's distribution.

    Args:
        logits: (V,) of the target.
        draft: (K,) float32 distribution that the child is drawn from, as a drafter records it.
        rule: of verification.
        sampling: of the target.
        ids: (K,) tokens that the draft's entries are of; None for the first K.
    """
    distributions = DraftDistributions()
    distributions.record(0, draft, ids)
    scores, emitted = Scores(logits.expand(2, -1), sampling), np.zeros(logits.shape[-1])
    shares = (draft.double() / draft.double().sum()).numpy()
    names = np.arange(len(draft)) if ids is None else ids
    for place in np.flatnonzero(shares):
        tree = TokenTree.build([0, int(names[place])], [-1, 0], draws=[POINT, DISTINCT])
        emitted += shares[place] * first_token(rule, tree, scores, distributions)
    bound = softmax_bound(logits, sampling.temperature) + excess(scores.distribution(0)) + excess(draft)
    return _off(emitted, logits, sampling), bound + REJECTION * UNIT


def _off(emitted: np.ndarray, logits: torch.Tensor, sampling: Sampling) -> float:
    wanted = (logits.double() / sampling.temperature).softmax(-1).numpy()
    return float(np.abs(emitted - wanted).sum() / 2)


# ----------------------------------------------------------------------------------------------------------- toy models
class RoundedToy(ToyModel):
    """A toy model whose logits have a short dtype; its table is their softmax in float64."""

    def __init__(self, model: ToyModel, dtype: torch.dtype) -> None:
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

    def table(side: int, context: tuple[int, ...]) -> list[float]:
        rng = np.random.default_rng([seed, vocabulary, *(token + 1 for token in context)])
        p, q = rng.dirichlet(np.ones(vocabulary), 2)
        if kind == "almost equal":
            q = p * (1 + 1e-7 * rng.normal(size=vocabulary))
        elif kind == "almost certain":
            p, q = (np.where(np.arange(vocabulary) == rng.integers(vocabulary), 1, 1e-7 * x) for x in (p, q))
        elif kind == "tiny":
            p, q = (x ** float(rng.choice([8, 20, 40])) for x in (p, q))
        elif kind == "far apart":
            low = 10.0 ** -rng.integers(1, 37, size=vocabulary)
            p, q = p * low, q * low[::-1]
        chosen = (p, q)[side]
        return (chosen / chosen.sum()).tolist()

    return ToyModel(lambda context: table(0, context), vocabulary), ToyModel(
        lambda context: table(1, context), vocabulary
    )


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
    turns = list(product(EXTREMES, DRAWN, ("float32", "bfloat16"), (1.0, 0.7)))
    made = 0
    for turn in count():
        for number, (kind, name, dtype, temperature) in enumerate(turns):
            vocabulary = 2 + (turn + number) % (3 if name == "drawn tree" else 4)
            target, draft = extreme_pair(kind, vocabulary, seed * 100_000 + turn * len(turns) + number)
            low, drafts = (RoundedToy(one, getattr(torch, dtype)) for one in (target, draft))
            sampling, drafter = Sampling(temperature), SampledTree(drafts, **DRAWN[name])
            largest = max(float(one.logits((0,)).abs().max()) for one in (low, drafts))
            for rule in RULES:
                if not serves(rule(), drafter, sampling):
                    continue
                bias, found = exact.bias(low, drafter, rule(), [0], sampling)
                nodes = 1 + max(len(text) for text in found.emitted) * 3
                yield Rounded(
                    "toy", dtype, f"{name}, {kind}", rule.name, bias, toy_bound(vocabulary, nodes, sampling, largest)
                )
                made += 1
                if made >= instances:
                    return


# ---------------------------------------------------------------------------------------------------------- a real pair
class Keeping(TokenLevel):
    """Token-level verification that keeps what it decides on: the target's logits after node 0, and the draft's."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: list[tuple[torch.Tensor, torch.Tensor]] = []

    @override
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        if distributions is not None and len(tree) > 1:
            self.kept.append((scores.row(0).clone(), distributions.distribution(0).clone()))
        return super().sample(tree, scores, distributions, random)


def on_pair(
    pair: Pair, prompts: Sequence[Sequence[int]], sampling: Sampling, *, seed: int = 0, places: int = 2
) -> Iterator[Rounded]:
    """Yield what rounding does to a token on a real vocabulary, at some places of the answer to each prompt.

    Each is that of one drawn child under token-level verification and traversal, and of the draft's four most probable
    tokens as deterministic children, under token-level verification and the target walk.
    """
    dtype = str(pair.target.dtype).removeprefix("torch.")
    for prompt in prompts:
        keeping = Keeping()
        drafter, budget = SampledTree(pair.draft, depth=1, branching=1), 2 * places + 4
        generate(
            pair.target, list(prompt), drafter, verifier=keeping, sampling=sampling, seed=seed, max_new_tokens=budget
        )
        for logits, draft in keeping.kept[:places]:
            for rule in (TokenLevel(), Traversal()):
                yield Rounded(pair.name, dtype, "one drawn child", rule.name, *drawn(logits, draft, rule, sampling))
            children = draft.topk(4).indices.tolist()
            for fixed in (TokenLevel(), TargetWalk()):
                found = deterministic(logits, children, fixed, sampling)
                yield Rounded(pair.name, dtype, "four deterministic children", fixed.name, *found)


def summary(rows: Sequence[Rounded]) -> list[dict[str, Any]]:
    """Return one dictionary per place, dtype, tree and rule: instances, largest bias, largest share of the bound."""
    groups: dict[tuple[str, ...], list[Rounded]] = {}
    for row in rows:
        groups.setdefault((row.where, row.dtype, row.tree.partition(",")[0], row.rule), []).append(row)
    return [
        {**dict(zip(("where", "dtype", "tree", "rule"), key, strict=True)), "instances": len(some),
         "bias": max(row.bias for row in some), "share": max(row.bias / row.bound for row in some)}
        for key, some in groups.items()
    ]  # fmt: skip


def to_json(rows: Sequence[Rounded]) -> list[dict[str, Any]]:
    """Return the rows as JSON holds them, biases and bounds with three digits."""
    return [{**asdict(row), "bias": float(f"{row.bias:.3g}"), "bound": float(f"{row.bound:.3g}")} for row in rows]
