"""What a gain depends on: drafts of graded quality, ratios p / q along chains, levels that are kept."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...decoding import generate
from ...drafters import SampledTree
from ...measure.exact import Replay
from ...measure.prompts import prepare_prompts
from ...models.huggingface import HFModel
from ...models.pairs import Pair
from ...sampling import DraftDistributions, RandomSource, Sampling, Scores
from ...tree import TokenTree
from ...verifiers import TokenLevel
from ...verifiers.base import Drawing, Verdict, Verifier
from ...verifiers.residual import Recorded

Row = dict[str, Any]


def noisy_draft(target: HFModel, noise: float, seed: int = 0) -> HFModel:
    """The target with noise on its weight matrices: a draft as good or as bad as one likes.

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
class _RatioProbe(Verifier):
    """Token-level verification that notes (p / q of each token, entropy of node 0's row) of every chain."""

    noted: list[tuple[list[float], float]] = field(default_factory=list)
    name = "ratio-probe"

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        recorded, tokens = Recorded(tree, distributions), tree.tokens.tolist()
        ratios = [scores.prob(node - 1, tokens[node]) / recorded.prob(node) for node in range(1, len(tree))]
        self.noted.append((ratios, float(torch.special.entr(scores.distribution(0)).sum())))
        return TokenLevel().sample(tree, scores, distributions, random)


def chain_ratios(
    pair: Pair,
    prompts: Sequence[Any],
    *,
    length: int = 5,
    max_new_tokens: int = 64,
    sampling: Sampling | None = None,
    seed: int = 0,
) -> list[Row]:
    """One row per chain of this length drafted in texts of these prompts: `prompt`, `ratios` of the target's
    probability to the draft's of each token, `entropy` of the target's law where the chain begins, in nats."""
    drafter, out = SampledTree(pair.draft, depth=length, branching=1), []
    for one in prepare_prompts(pair, prompts, max_new_tokens):
        probe = _RatioProbe()
        generate(
            pair.target, one.ids, drafter, verifier=probe, sampling=sampling or Sampling(1.0), seed=seed,
            max_new_tokens=max_new_tokens, eos_token_ids=(), keep_state=False,
        )  # fmt: skip
        full = [noted for noted in probe.noted if len(noted[0]) == length]  # the end of a text drafts less
        out += [{"prompt": one.id, "ratios": ratios, "entropy": entropy} for ratios, entropy in full]
    return out


@dataclass
class KeptLevels(Verifier):
    """A rule for `paired.judge` that decides as `rule` does and adds up how deep the kept paths go.

    Attributes:
        rule: any rule but the target walk, whose expectation is not enumerated.
        ways: level of the last kept node -> probability, summed over the judged trees.
    """

    rule: Verifier
    ways: dict[int, float] = field(default_factory=dict)
    name = "kept-levels"

    def check(self, sampling: Sampling, drawing: Drawing = Drawing.FIXED, chain: bool = False) -> None:
        """See `Verifier.check`."""
        self.rule.check(sampling, drawing, chain)

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """See `Verifier.verify`."""
        verdict = self.rule.sample(tree, scores, distributions, random)
        if isinstance(random, Replay):  # judged; a driver's own coins decide texts and are not counted
            self.ways[len(verdict.path)] = self.ways.get(len(verdict.path), 0.0) + random.probability
        return verdict

    def reached(self, level: int) -> float:
        """Probability that a node at this level is kept."""
        return sum(p for depth, p in self.ways.items() if depth >= level) / sum(self.ways.values())
