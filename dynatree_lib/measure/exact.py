"""Exact laws: every outcome of the production drafters and verifiers on a small model, with its probability.

Randomness comes through `Chance` alone, so a `Chance` that takes scripted branches replays every decision. The law of
an iteration's output follows without sampling error: what was kept, completed to a fixed length by the target itself,
must have the target's own law (Traversal Verification, definition 3.2). `texts` does the same for whole texts from the
production loop, where a drafter that learns from the text has something to propose.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch

from ..decoding import DecodingState, Generation, generate
from ..drafters.base import Drafter, Proposal
from ..models.toy import ToyModel
from ..sampling import NOTHING, DraftDistributions, RandomSource, Sampling, Scores, probabilities
from ..tree import TokenTree
from ..verifiers.base import Drawing, Verdict, Verifier

Result = TypeVar("Result")
Text = tuple[int, ...]
TextDistribution = Mapping[Text, float]


class Replay(RandomSource):
    """Takes scripted branches; records how many there were and the probability of those taken.

    Args:
        script: index of the branch to take at each decision; beyond it, the first possible one.
    """

    def __init__(self, script: Sequence[int]) -> None:
        self.script = script
        self.taken: list[int] = []
        self.open: list[list[int]] = []
        self.probability = 1.0

    def _choose(self, weights: Sequence[float]) -> int:
        possible = [i for i, weight in enumerate(weights) if weight > 0]
        step = len(self.taken)
        choice = self.script[step] if step < len(self.script) else possible[0]
        self.taken.append(choice)
        self.open.append(possible)
        self.probability *= weights[choice] / sum(weights)
        return choice

    def accept(self, probability: float) -> bool:
        """See `Chance.accept`."""
        return self._choose([1 - probability, probability]) == 1

    def accept_lazily(self, bound: float, probability: Callable[[], float]) -> bool:
        """See `Chance.accept_lazily`."""
        return self.accept(probability())

    def draw_each(self, weights: torch.Tensor) -> list[int]:
        """See `Chance.draw_each`."""
        return [self.draw(row) for row in weights]

    def draw_distinct(self, weights: torch.Tensor, count: int) -> list[int]:
        """See `Chance.draw_distinct`."""
        left = weights.double().tolist()
        drawn: list[int] = []
        while len(drawn) < count and sum(left) > 0:
            drawn.append(self._choose(left))
            left[drawn[-1]] = 0.0
        if count and not drawn:
            raise ValueError(NOTHING)
        return drawn


def outcomes(
    run: Callable[[RandomSource], Result], replay: Callable[[Sequence[int]], Replay] = Replay
) -> Iterator[tuple[Result, float]]:
    """Every result of `run` under every sequence of decisions, with its probability."""
    script: list[int] = []
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
    drafter: Drafter, prompt: Sequence[int], sampling: Sampling, max_depth: int = 99
) -> Iterator[tuple[Proposal, float]]:
    """Every tree the drafter may propose after `prompt`, with its probability.

    A deterministic drafter may still begin with random tokens (Progressive Tree Drafting). Whatever they are, the text
    has to have the target's law, so they are drawn once, from the drafting stream of seed 0.
    """

    def run(random: RandomSource) -> Proposal:
        return drafter.propose(drafter.start(prompt, random), max_depth, sampling)

    if drafter.drawing is Drawing.FIXED:
        return iter([(run(RandomSource(0, "draft")), 1.0)])
    return outcomes(run)


def verdicts(verifier: Verifier, proposal: Proposal, scores: Scores) -> Iterator[tuple[Verdict, float]]:
    """Every verdict on a proposal, with its probability."""
    return outcomes(lambda random: verifier.verify(proposal.tree, scores, proposal.distributions, random))


def target_scores(target: ToyModel, prompt: Sequence[int], tree: TokenTree, sampling: Sampling) -> Scores:
    """The target's rows of a tree after `prompt`, whose last token is node 0."""
    session = target.session()
    session.start(prompt[:-1])
    return session.score(tree.tokens, tree.parents, sampling)


def text_distribution(target: ToyModel, prompt: Sequence[int], length: int, sampling: Sampling) -> TextDistribution:
    """Probability of every continuation of `length` tokens, straight from the table."""
    distribution: dict[Text, float] = {(): 1.0}
    for _ in range(length):
        distribution = {
            (*text, token): mass * share
            for text, mass in distribution.items()
            for token, share in enumerate(_shares(target, (*prompt, *text), sampling))
            if share > 0
        }
    return distribution


def _shares(target: ToyModel, context: Text, sampling: Sampling) -> list[float]:
    logits = torch.tensor(target.distribution(context), dtype=torch.float64).log()
    shares: list[float] = probabilities(logits, sampling).tolist()
    return shares


@dataclass(frozen=True)
class ExactIteration:
    """One iteration, exactly.

    Attributes:
        kept: probability of everything an iteration may emit, accepted tokens and the bonus token.
        trees: trees that may be proposed, counted once per way of drawing them.
        outcomes: ways an iteration may go.
    """

    kept: TextDistribution
    trees: int
    outcomes: int

    @property
    def tokens(self) -> float:
        """Expected tokens of the iteration, the bonus token included."""
        return sum(len(text) * mass for text, mass in self.kept.items())

    def completed(self, target: ToyModel, prompt: Sequence[int], length: int, sampling: Sampling) -> TextDistribution:
        """Law of the first `length` tokens, where the target itself goes on after what was kept."""
        distribution: dict[Text, float] = defaultdict(float)
        for text, mass in self.kept.items():
            rests = text_distribution(target, (*prompt, *text), max(0, length - len(text)), sampling)
            for rest, share in rests.items():
                distribution[(*text, *rest)[:length]] += mass * share
        return dict(distribution)


def iteration(
    target: ToyModel,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Sequence[int],
    sampling: Sampling,
    max_depth: int = 99,
) -> ExactIteration:
    """Enumerate an iteration after `prompt`: every tree, and every verdict on each."""
    kept: dict[Text, float] = defaultdict(float)
    trees = count = 0
    for proposal, drawn in proposals(drafter, prompt, sampling, max_depth):
        trees += 1
        scores = target_scores(target, prompt, proposal.tree, sampling)
        for verdict, decided in verdicts(verifier, proposal, scores):
            count += 1
            kept[tuple(verdict.tokens(proposal.tree))] += drawn * decided
    return ExactIteration(dict(kept), trees, count)


def distance(one: TextDistribution, other: TextDistribution) -> float:
    """Total variation between two laws."""
    return sum(abs(one.get(text, 0.0) - other.get(text, 0.0)) for text in {*one, *other}) / 2


def bias(
    target: ToyModel,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Sequence[int],
    sampling: Sampling,
    max_depth: int = 99,
) -> tuple[float, ExactIteration]:
    """Total variation between the target's law and that of an iteration's completed output, and the iteration.

    0 up to rounding for a lossless rule; outputs are compared at the length of the longest.
    """
    found = iteration(target, drafter, verifier, prompt, sampling, max_depth)
    length = max(len(text) for text in found.kept)
    expected = text_distribution(target, prompt, length, sampling)
    return distance(found.completed(target, prompt, length, sampling), expected), found


@dataclass(frozen=True)
class Texts:
    """All texts the production loop may write, exactly.

    Attributes:
        law: probability of every text, cut at the length asked for.
        outcomes: ways the verifying stream's decisions may go.
        nodes: most drafted nodes of a tree; siblings: most children of a node that a tree had.
        kept: expected drafted tokens that are kept, those of an iteration that goes beyond the length included.
    """

    distribution: TextDistribution
    outcomes: int
    nodes: int
    siblings: int
    kept: float


class _Scripted(Verifier):
    """A rule that decides by a chance of its own, whichever it is handed."""

    def __init__(self, rule: Verifier, random: RandomSource) -> None:
        self.rule, self.random, self.name = rule, random, rule.name

    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        """See `Verifier.check`."""
        self.rule.check(sampling, drawing, chain)

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """See `Verifier.sample`."""
        return self.rule.sample(tree, scores, distributions, self.random)


def texts(
    target: ToyModel,
    drafter: Drafter,
    verifier: Verifier,
    prompt: Sequence[int],
    length: int,
    sampling: Sampling,
    *,
    seed: int = 0,
    margin: int = 32,
    warm: DecodingState | None = None,
) -> Texts:
    """Enumerate what `generate` may write after `prompt`: several iterations, every decision of the verifying stream.

    The drafting stream is that of `seed`, not enumerated: whatever it drew, a lossless rule must give each text the
    target's probability. This asks more than the law of an average over drafts, and what `Drafter.drawing` may look at
    is another matter: a drafter that draws from recorded laws is biased given its draws.

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

    Raises:
        ValueError: for a drafter whose tokens are drawn from recorded laws, and what `generate` refuses.
    """
    if drafter.drawing is not Drawing.FIXED:
        raise ValueError(
            f"'{drafter.name}' draws its tokens, so its texts have the target's law only on average over the drafting "
            "stream; give a deterministic drafter, or enumerate an iteration with iteration()."
        )

    def run(random: RandomSource) -> Generation:
        left = length

        def count(tokens: list[int]) -> None:
            nonlocal left
            left -= len(tokens)
            if left <= 0:
                raise KeyboardInterrupt

        rule = _Scripted(verifier, random)
        return generate(
            target, prompt, drafter, verifier=rule, sampling=sampling, seed=seed, max_new_tokens=length + margin,
            eos_token_ids=(), on_tokens=count, keep_state=False, warm=warm,
        )  # fmt: skip

    distribution: dict[Text, float] = defaultdict(float)
    count, kept, trees = 0, 0.0, list[TokenTree]()
    for done, mass in outcomes(run):
        distribution[tuple(done.tokens[:length])] += mass
        count, kept = count + 1, kept + mass * sum(len(one.verdict.path) for one in done.iterations)
        trees += (one.tree for one in done.iterations)
    siblings = max(int(np.bincount(tree.parents[1:], minlength=1).max()) for tree in trees)
    return Texts(dict(distribution), count, max(map(len, trees)) - 1, siblings, kept)
