"""Exact distributions: every outcome of the production drafters and verifiers on a small model, with its probability.

All randomness comes through `RandomSource`, so a source that takes scripted branches replays every decision. The
distribution of an iteration's output follows without sampling error. Completed to a fixed length by the target itself,
this output must have the target's own distribution (Traversal Verification, definition 3.2). `texts` does the same for
whole texts of the production loop, where a drafter that learns from the text has something to propose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from typing_extensions import override

from dynatree_lib.decoding import DecodingState, Generation, generate
from dynatree_lib.drafters.base import Drafter, Proposal
from dynatree_lib.models.toy import ToyModel
from dynatree_lib.processing import LogitsProcessor
from dynatree_lib.sampling import NOTHING, DraftDistributions, RandomSource, Sampling, Scores, probabilities
from dynatree_lib.tree import TokenTree
from dynatree_lib.verifiers.base import Drawing, Verdict, Verifier

Result = TypeVar("Result")
Tokens = Sequence[int]
Text = tuple[int, ...]
TextDistribution = Mapping[Text, float]


class Replay(RandomSource):
    """A source that takes scripted branches and records their number and the probability of those taken.

    Args:
        script: index of the branch to take at each decision; beyond its end, the first possible branch.
        given: number of decisions, the first ones of the script, that are taken as given: no other branch is open
            there, and `probability` is conditional on them.

    Attributes:
        taken: the branch taken at each decision.
        open: possible branches at each decision.
        shares: probability of every branch at each decision.
        coins: whether each decision was one between rejecting (0) and accepting (1), and not a draw.
        probability: of the branches taken.
    """

    def __init__(self, script: Sequence[int], given: int = 0) -> None:
        self.script, self.given = script, given
        self.taken: list[int] = []
        self.open: list[list[int]] = []
        self.shares: list[list[float]] = []
        self.coins: list[bool] = []
        self.probability = 1.0

    def _choose(self, weights: Sequence[float], coin: bool = False) -> int:
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        step, total = len(self.taken), sum(weights)
        choice = self.script[step] if step < len(self.script) else possible[0]
        self.taken.append(choice)
        self.open.append(possible if step >= self.given else [choice])
        self.shares.append([weight / total for weight in weights])
        self.coins.append(coin)
        self.probability *= weights[choice] / total if step >= self.given else 1.0
        return choice

    @override
    def accept(self, probability: float) -> bool:
        return self._choose([1 - probability, probability], coin=True) == 1

    @override
    def accept_lazily(self, bound: float, probability: Callable[[], float]) -> bool:
        return self.accept(probability())

    @override
    def draw_lazily(self, weights: Callable[[], torch.Tensor], invert: Callable[[float], int]) -> int:
        return self.draw(weights())

    @override
    def draw_each(self, weights: torch.Tensor) -> list[int]:
        return [self.draw(row) for row in weights]

    @override
    def draw_distinct(self, weights: torch.Tensor, count: int) -> list[int]:
        left = weights.double().tolist()
        drawn: list[int] = []
        while len(drawn) < count and sum(left) > 0:
            drawn.append(self._choose(left))
            left[drawn[-1]] = 0.0
        if count and not drawn:
            raise ValueError(NOTHING)
        return drawn


class CoinReplay(Replay):
    """A replay of coins alone: a token is not drawn, and what it would be drawn from is kept.

    Attributes:
        weights: what the last token would be drawn from; None before.
    """

    weights: torch.Tensor | None = None

    @override
    def draw(self, weights: torch.Tensor) -> int:
        self.weights = weights
        return 0


def outcomes(
    run: Callable[[RandomSource], Result],
    replay: Callable[[Sequence[int]], Replay] = Replay,
    script: Sequence[int] = (),
) -> Iterator[tuple[Result, float]]:
    """Yield every result of `run` under every sequence of decisions, with its probability; `script` is the first."""
    while True:
        random = replay(script)
        yield run(random), random.probability
        step = len(random.taken) - 1
        while step >= 0 and random.taken[step] == random.open[step][-1]:
            step -= 1
        if step < 0:
            return
        following = random.open[step][random.open[step].index(random.taken[step]) + 1]
        script = [*random.taken[:step], following]


def proposals(
    drafter: Drafter, prompt: Tokens, sampling: Sampling, max_depth: int = 99
) -> Iterator[tuple[Proposal, float]]:
    """Yield every tree the drafter may propose after `prompt`, with its probability.

    A deterministic drafter may still begin with random tokens (Progressive Tree Drafting). Whatever they are, the text
    must have the target's distribution, so they are drawn once, from the drafting stream of seed 0.
    """

    def run(random: RandomSource) -> Proposal:
        return drafter.propose(drafter.start(prompt, random), max_depth, sampling)

    if drafter.drawing is Drawing.FIXED:
        return iter([(run(RandomSource(0, "draft")), 1.0)])
    return outcomes(run)


def verdicts(
    verifier: Verifier, proposal: Proposal, scores: Scores, given: Sequence[int] = ()
) -> Iterator[tuple[Verdict, float]]:
    """Yield every verdict on a proposal, with its probability; `given` are the branches of the first decisions."""

    def replay(script: Sequence[int]) -> Replay:
        return Replay(script, len(given))

    return outcomes(lambda random: decided(verifier, proposal, scores, random), replay, given)


def decided(verifier: Verifier, proposal: Proposal, scores: Scores, random: RandomSource) -> Verdict:
    """Return the verdict on a proposal under one source of decisions."""
    return verifier.verify(proposal.tree, scores, proposal.distributions, random)


def target_scores(target: ToyModel, prompt: Tokens, tree: TokenTree, sampling: Sampling) -> Scores:
    """Return the target's scores of a tree after `prompt`, whose last token is node 0."""
    session = target.session()
    session.start(prompt[:-1])
    return session.score(tree.tokens, tree.parents, sampling)


def next_token(model: ToyModel, context: Tokens, sampling: Sampling) -> torch.Tensor:
    """Return the (V,) float64 distribution of the token after `context`."""
    return probabilities(torch.tensor(model.distribution(tuple(context)), dtype=torch.float64).log(), sampling)


def text_distribution(target: ToyModel, prompt: Tokens, length: int, sampling: Sampling) -> TextDistribution:
    """Return the probability of every continuation of `length` tokens, straight from the table."""
    distribution: dict[Text, float] = {(): 1.0}
    for _ in range(length):
        distribution = {
            (*text, token): mass * share
            for text, mass in distribution.items()
            for token, share in enumerate(next_token(target, (*prompt, *text), sampling).tolist())
            if share > 0
        }
    return distribution


@dataclass(frozen=True)
class ExactIteration:
    """One iteration, exactly.

    Attributes:
        emitted: probability of everything an iteration may emit, accepted tokens and the bonus token.
        trees: trees that may be proposed, counted once per way of drawing them.
        outcomes: ways an iteration may go.
    """

    emitted: TextDistribution
    trees: int
    outcomes: int

    @property
    def tokens(self) -> float:
        """Expected tokens of the iteration, the bonus token included."""
        return sum(len(text) * mass for text, mass in self.emitted.items())

    def completed(self, target: ToyModel, prompt: Tokens, length: int, sampling: Sampling) -> TextDistribution:
        """Return the distribution of the first `length` tokens, where the target itself goes on after the emitted."""
        distribution: dict[Text, float] = defaultdict(float)
        for text, mass in self.emitted.items():
            rests = text_distribution(target, (*prompt, *text), max(0, length - len(text)), sampling)
            for rest, share in rests.items():
                distribution[(*text, *rest)[:length]] += mass * share
        return dict(distribution)

    def bias(self, target: ToyModel, prompt: Tokens, sampling: Sampling) -> float:
        """Return the total variation between the target's distribution and that of the completed output.

        It is 0 up to rounding for a lossless rule; outputs are compared at the length of the longest output.
        """
        length = max(len(text) for text in self.emitted)
        expected = text_distribution(target, prompt, length, sampling)
        return distance(self.completed(target, prompt, length, sampling), expected)


def iterations(
    target: ToyModel,
    drafter: Drafter,
    rules: Mapping[str, Verifier],
    prompt: Tokens,
    sampling: Sampling,
    max_depth: int = 99,
) -> dict[str, ExactIteration]:
    """Enumerate an iteration after `prompt` under each rule: every tree, drawn and scored once, and every verdict."""
    emitted = {name: defaultdict[Text, float](float) for name in rules}
    trees, counts = 0, dict.fromkeys(rules, 0)
    for proposal, drawn in proposals(drafter, prompt, sampling, max_depth):
        trees += 1
        scores = target_scores(target, prompt, proposal.tree, sampling)
        for name, rule in rules.items():
            for verdict, decided in verdicts(rule, proposal, scores):
                counts[name] += 1
                emitted[name][tuple(verdict.tokens(proposal.tree))] += drawn * decided
    return {name: ExactIteration(dict(texts), trees, counts[name]) for name, texts in emitted.items()}


def iteration(
    target: ToyModel, drafter: Drafter, verifier: Verifier, prompt: Tokens, sampling: Sampling, max_depth: int = 99
) -> ExactIteration:
    """Enumerate an iteration under one rule, as `iterations` does."""
    return iterations(target, drafter, {"": verifier}, prompt, sampling, max_depth)[""]


def distance(first: TextDistribution, second: TextDistribution) -> float:
    """Return the total variation between two distributions."""
    return sum(abs(first.get(text, 0.0) - second.get(text, 0.0)) for text in {*first, *second}) / 2


def bias(
    target: ToyModel, drafter: Drafter, verifier: Verifier, prompt: Tokens, sampling: Sampling, max_depth: int = 99
) -> tuple[float, ExactIteration]:
    """Return `ExactIteration.bias` of an iteration, and the iteration."""
    result = iteration(target, drafter, verifier, prompt, sampling, max_depth)
    return result.bias(target, prompt, sampling), result


@dataclass(frozen=True)
class Texts:
    """All texts the production loop may write, exactly.

    Attributes:
        distribution: probability of every text, cut at the length asked for.
        outcomes: ways the verifying stream's decisions may go.
        nodes: most drafted nodes of a tree; siblings: most children of a node that a tree had.
        accepted: expected accepted tokens, those of an iteration that goes beyond the length included.
    """

    distribution: TextDistribution
    outcomes: int
    nodes: int
    siblings: int
    accepted: float


@dataclass
class ObservingVerifier(Verifier):
    """A rule whose decisions a subclass looks at in `observe`.

    Attributes:
        rule: the rule that decides, at every temperature.
    """

    rule: Verifier
    name = "observing"

    @override
    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        self.rule.check(sampling, drawing, chain)

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        verdict = self.rule.verify(tree, scores, distributions, random)
        self.observe(tree, scores, distributions, verdict)
        return verdict

    def observe(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, verdict: Verdict
    ) -> None:
        """Look at a decision; the arguments are those of `Verifier.verify` and the verdict."""


@dataclass
class _Scripted(ObservingVerifier):
    """The rule with a random source of its own, whatever source it is handed."""

    random: RandomSource

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        return self.rule.verify(tree, scores, distributions, self.random)


def texts(
    target: ToyModel,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Tokens,
    length: int,
    sampling: Sampling,
    *,
    seed: int = 0,
    margin: int = 32,
    warm: DecodingState | None = None,
    logits_processors: Sequence[LogitsProcessor] = (),
) -> Texts:
    """Enumerate what `generate` may write after `prompt`: several iterations, every decision of the verifying stream.

    The drafting stream is that of `seed`, not enumerated: whatever it drew, a lossless rule must give each text the
    target's probability. This asks more than the right distribution on average over drafts. A drafter that draws its
    tokens from recorded distributions is biased given its draws.

    Args:
        target: the table.
        drafter: deterministic given the text and the drafting stream.
        verifier: the rule.
        prompt: tokens before the text.
        length: tokens of the texts that are compared.
        sampling: the target's.
        seed: of the drafting stream.
        margin: tokens of the budget beyond `length`, so that a drafter is not told that the text ends; a text is
            interrupted once it has `length`. At 0 the texts end there, as a budget ends them.
        warm: a text's state that these begin with, as for `generate`.
        logits_processors: as for `generate`.

    Raises:
        ValueError: for a drafter whose tokens are drawn from recorded distributions, and what `generate` refuses.
    """
    if drafter.drawing is not Drawing.FIXED:
        raise ValueError(
            f"'{drafter.name}' draws its tokens, so its texts have the target's distribution only on average over the "
            "drafting stream; give a deterministic drafter, or enumerate an iteration with iteration()."
        )

    def run(random: RandomSource) -> Generation:
        left = length

        def count(tokens: list[int]) -> None:
            nonlocal left
            left -= len(tokens)
            if left <= 0:
                raise KeyboardInterrupt

        return generate(
            target, prompt, drafter, verifier=_Scripted(verifier, random), sampling=sampling, seed=seed,
            max_new_tokens=length + margin, eos_token_ids=(), on_tokens=count, keep_state=False, warm=warm,
            interrupt="return", logits_processors=logits_processors,
        )  # fmt: skip

    distribution: dict[Text, float] = defaultdict(float)
    count, accepted, trees = 0, 0.0, list[TokenTree]()
    for generation, mass in outcomes(run):
        distribution[tuple(generation.tokens[:length])] += mass
        count, accepted = count + 1, accepted + mass * sum(len(it.verdict.path) for it in generation.iterations)
        trees += (it.tree for it in generation.iterations)
    siblings = max(int(np.bincount(tree.parents[1:], minlength=1).max()) for tree in trees)
    return Texts(dict(distribution), count, max(map(len, trees)) - 1, siblings, accepted)
