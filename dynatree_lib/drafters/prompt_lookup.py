"""`PromptLookup`: what followed the last tokens when they occurred before, with no model at all (Saxena 2023)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ..models.base import LanguageModel
from ..sampling import GREEDY, RandomSource, Sampling, Scores
from ..tree import ROOT, TokenTree
from ..verifiers.base import Verdict
from .base import Drafter, Proposal, check_whole
from .copying import Copies


@dataclass(frozen=True)
class PromptLookup(Drafter):
    """Copies up to `length` tokens from the latest place where the last `ngram` tokens, or fewer, occurred before.

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
        check_whole(self, "ngram", "length", "shortest")
        if self.length < 1:
            raise ValueError(f"length is {self.length}; copy at least 1 token.")
        if not 1 <= self.shortest <= self.ngram:
            raise ValueError(
                f"shortest is {self.shortest} and ngram {self.ngram}; look for at least 1 token, and no fewer first."
            )

    @classmethod
    def examples(cls, draft: LanguageModel) -> Iterator[Drafter]:
        """The default, and single tokens."""
        yield cls()
        yield cls(ngram=1, length=2)

    def start(self, prompt: Sequence[int], random: RandomSource) -> list[Copies]:
        """See `Drafter.start`; the state is one index per length looked for, the longest first."""
        sizes = range(self.ngram, self.shortest - 1, -1)
        return self.extend([Copies(size, []) for size in sizes], prompt)

    def extend(self, state: list[Copies], tokens: Sequence[int]) -> list[Copies]:
        """See `Drafter.extend`."""
        for copies in state:
            copies.append(tokens)
        return state

    def propose(self, state: list[Copies], max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        """See `Drafter.propose`."""
        count = min(self.length, max_depth)
        found = next(filter(None, (copies.following(count) for copies in state)), [])
        return Proposal(TokenTree.build([state[0].text[-1], *found], range(ROOT, len(found))))

    def observe(self, state: list[Copies], proposal: Proposal, scores: Scores, verdict: Verdict) -> list[Copies]:
        """See `Drafter.observe`."""
        return self.extend(state, verdict.tokens(proposal.tree))
