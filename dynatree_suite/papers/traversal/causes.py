"""What a gain depends on: drafts of graded quality, ratios p / q along chains, levels that are accepted."""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any

import torch
from typing_extensions import override

from dynatree_lib.drafters import SampledTree
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import DraftDistributions, RandomSource, Sampling, Scores
from dynatree_lib.tree import TokenTree
from dynatree_lib.verifiers import TokenLevel
from dynatree_lib.verifiers.base import Verdict
from dynatree_lib.verifiers.residual import Recorded

from ...proofs.exact import ObservingVerifier, Replay
from .which import iterations_of

Row = dict[str, Any]


def noisy_draft(target: HFModel, noise: float, seed: int = 0) -> HFModel:
    """Return the target with noise on its weight matrices: a draft of any quality.

    Args:
        target: is left as it is.
        noise: standard deviation of the noise, in those of each matrix's entries.
        seed: same seed, same draft.
    """
    other, generator = copy.deepcopy(target.model), torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for weight in other.parameters():
            if weight.ndim > 1:
                drawn = torch.randn(weight.shape, generator=generator)
                weight += (drawn * noise * float(weight.float().std())).to(weight)
    return HFModel(other, target.tokenizer)


@dataclass
class _RatioProbe(ObservingVerifier):
    """A rule with, for every chain, p / q of each token and the entropy of the target's distribution at node 0."""

    rows: list[Row] = field(default_factory=list)

    @override
    def observe(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, verdict: Verdict
    ) -> None:
        recorded, tokens = Recorded(tree, distributions), tree.tokens.tolist()
        ratios = [scores.prob(node - 1, tokens[node]) / recorded.prob(node) for node in range(1, len(tree))]
        self.rows.append({"ratios": ratios, "entropy": float(torch.special.entr(scores.distribution(0)).sum())})


def chain_ratios(
    pair: Pair,
    prompts: Sequence[Any],
    *,
    length: int = 5,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> list[Row]:
    """Return one row per chain of this length that begins in the first `max_new_tokens` tokens of these prompts' texts.

    A text goes on behind them, so that its end cuts no chain short.

    Keys: `prompt`, `ratios` of the target's probability to the draft's of each token, and `entropy` of the target's
    distribution where the chain begins, in nats.
    """
    drafter, out = SampledTree(pair.draft, depth=length, branching=1), []
    probe, warm = _RatioProbe(TokenLevel()), sampling or Sampling(1.0)
    for prompt, text in iterations_of(pair, drafter, prompts, warm, max_new_tokens + length, seed, probe):
        places = accumulate((step.committed for step in text), initial=0)
        for place, row in zip(places, probe.rows, strict=False):
            if place < max_new_tokens and len(row["ratios"]) == length:  # a draft on features drafts nothing at first
                out.append({"prompt": prompt, **row})
        probe.rows.clear()
    return out


@dataclass
class AcceptedLevels(ObservingVerifier):
    """A rule for `judge` with the levels that the accepted paths reach, summed over the judged trees.

    Attributes:
        rule: any rule but the target walk, whose expectation is not enumerated.
        levels: level of the last accepted node -> probability, summed over trees.
    """

    levels: dict[int, float] = field(default_factory=lambda: defaultdict(float))

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        verdict = super().verify(tree, scores, distributions, random)
        if isinstance(random, Replay):  # judged; a driver's own coins decide texts and are not counted
            self.levels[len(verdict.path)] += random.probability
        return verdict

    def reached(self, level: int) -> float:
        """Return the probability that a node at this level is accepted."""
        return sum(p for depth, p in self.levels.items() if depth >= level) / sum(self.levels.values())
