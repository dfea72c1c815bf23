"""`PromptLookup`: what followed the last tokens when they occurred before, with no model at all (Saxena 2023)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from ..sampling import GREEDY, RandomSource, Sampling, Scores
from ..tree import ROOT, TokenTree
from ..verifiers.base import Verdict
from .base import Drafter, Proposal
from .checks import check_counts, check_rules
from .copying import Copies


@dataclass(frozen=True)
class PromptLookup(Drafter):
    """Copy up to `length` tokens from the latest place where the last `ngram` tokens, or fewer, occurred before.

    The state is an index for each length looked for, the longest first.

    Args:
        ngram: tokens that are looked for first; where they did not occur, one less, down to `shortest`.
        length: most tokens copied.
        shortest: fewest tokens that must have occurred.

    Raises:
        ValueError: for length or shortest < 1, or ngram < shortest.
    """

    ngram: int = 3
    length: int = 10
    shortest: int = 1
    name = "prompt-lookup"
    chain = True

    def __post_init__(self) -> None:
        check_counts(self, "ngram", "length", "shortest")
        check_rules(self, "shortest <= ngram, because the longest is looked for first")

    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> list[Copies]:
        return self.extend([Copies(size, []) for size in range(self.ngram, self.shortest - 1, -1)], prompt)

    @override
    def extend(self, state: list[Copies], tokens: Sequence[int]) -> list[Copies]:
        for copies in state:
            copies.append(tokens)
        return state

    @override
    def propose(self, state: list[Copies], max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        count = min(self.length, max_depth)
        copied = next(filter(None, (copies.following(count) for copies in state)), [])
        return Proposal(TokenTree.build([state[0].text[-1], *copied], range(ROOT, len(copied))))

    @override
    def observe(self, state: list[Copies], proposal: Proposal, scores: Scores, verdict: Verdict) -> list[Copies]:
        return self.extend(state, verdict.tokens(proposal.tree))
