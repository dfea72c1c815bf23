"""`Lookahead`: n-grams from parallel Jacobi iterations inside the target's own forward (Fu et al. 2024)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from typing_extensions import override

from dynatree_lib.drafters.checks import check_counts, check_reach
from dynatree_lib.drafters.pool import random_tokens
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.sampling import RandomSource
from dynatree_lib.tree import ROOT, TokenTree

from .ngrams import NgramDrafter, NgramPool, NgramState


@dataclass
class LookaheadState(NgramState):
    """The n-gram pool and the window of a text.

    Attributes:
        levels: the window, oldest guesses first. The columns of level 0 begin a position after those of the others,
            because its column 0 is the last committed token itself.
    """

    levels: list[list[int]]


@dataclass(frozen=True)
class Lookahead(NgramDrafter):
    """Lookahead decoding: `window` future positions are guessed in parallel by fixed-point (Jacobi) iteration.

    As published it is slower than plain decoding on a CPU: SmolLM2 in 4 bits decodes at 0.12 of its plain speed at
    temperature 1 (outputs/reference/rules-1.jsonl.gz). Use `Auto()`, which needs no draft model either.

    The window holds the guesses of the last n - 1 iterations. Column j is a path of n - 1 tokens, one of each
    iteration. The target predicts the token after it, which makes an n-gram for the pool, and the window moves on by a
    position. Level 0 is a chain below the last token, and every column starts below the place in it that comes before;
    so the window's mask is that of a tree of (n - 1) * window - 1 nodes. The n-grams pooled after the last token are
    verified as one tree with shared prefixes (LADE verifies separate lines).

    Args:
        window: W, future positions guessed at a time.
        ngram: N, tokens of an n-gram; the first token finds it.
        guesses: G, most n-grams verified, and kept per token.
        text: whether the n-grams of the prompt and the text itself are pooled too.

    Raises:
        ValueError: for window or guesses < 1, or ngram < 2; by `generate`, for a window that does not fit the context.
    """

    window: int = 15
    ngram: int = 5
    guesses: int = 15
    text: bool = False
    name = "lookahead"
    side_trees = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "window", "guesses")

    # ------------------------------------------------------------------------------------------------------ the state
    @property
    def reach(self) -> int:
        """Positions ahead of the last token that the window holds at most."""
        return max(self.window + self.ngram - 3, 0)

    @override
    def check(self, target: LanguageModel) -> None:
        check_reach(target, self.reach, f"A window of {self.window} with n-grams of {self.ngram}")

    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> LookaheadState:
        first = random_tokens(prompt, self.reach, random)
        state = LookaheadState(int(prompt[-1]), NgramPool(self.guesses), [], [first])
        return self.extend(state, prompt)

    # --------------------------------------------------------------------------------------------------- an iteration
    @override
    def side_tree(self, state: LookaheadState) -> TokenTree:
        """Return the window level by level: level 0 a chain, column j of the others below its place j."""
        first, *others = state.levels
        tokens, parents = [state.root, *first], [ROOT, *range(len(first))]
        above = [*range(len(first) + 1)]  # column j is below node j of level 0; its column 0 is node 0
        for level in others:
            tokens += level
            parents += above
            above = [*range(len(tokens) - len(level), len(tokens))]
        return TokenTree.build(tokens, parents)

    @override
    def grow(self, state: LookaheadState, predicted: list[int]) -> None:
        """Pool the n-grams of a full window with the token predicted after each column; move on by a position."""
        levels = state.levels
        if self.ngram > 2:  # otherwise the columns are node 0 and level 0
            predicted = predicted[-len(levels[-1]) :]
        if len(levels) == self.ngram - 1:
            for first, *rest in zip([state.root, *levels[0]], *levels[1:], predicted, strict=False):
                state.pool.add(first, tuple(rest))
            moved = [*levels[1:], predicted]
            state.levels = [moved[0][1:], *moved[1:]]
        elif len(levels) == 1:
            state.levels = [levels[0][1:], predicted]
        else:
            state.levels = [*(level[1:] for level in levels), predicted[1:]]
