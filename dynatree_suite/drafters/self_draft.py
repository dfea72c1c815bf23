"""`SelfDraft`: n-grams from perturbed lines inside the target's own forward (Gao et al. 2025)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from typing_extensions import override

from dynatree_lib.drafters.checks import check_counts, check_reach, require
from dynatree_lib.drafters.pool import random_tokens
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.sampling import RandomSource
from dynatree_lib.tree import ROOT, TokenTree

from .ngrams import NgramDrafter, NgramPool, NgramState


@dataclass
class SelfDraftState(NgramState):
    """The context cache of a text, with n-grams of branches and text, and its draft branches.

    Attributes:
        branches: lines below the last token.
        full: tokens of each branch when it is full.
    """

    branches: list[list[int]]
    full: list[int]


@dataclass(frozen=True)
class SelfDraft(NgramDrafter):
    """Self-Draft without its corpus: branches that begin with random tokens of the prompt, and a context cache.

    It is slower than plain decoding on a CPU: SmolLM2 in 4 bits decodes at 0.21 of its plain speed at temperature 1
    (outputs/reference/rules-1.jsonl.gz). Use `Auto()`, which needs no draft model either.

    Beside the tree the target scores some lines below the last token, unseen by each other. A line begins with a few
    random tokens, the perturbation, and grows by the token predicted at its end; a full line loses its first token
    instead. The first line keeps predicted tokens only, and the last token is part of its n-grams. The n-grams of lines
    and predictions, and those of prompt and text, are kept by the token before them. Those after the last token are
    verified as one tree with shared prefixes.

    After the authors' public code (branches, caches, sizes); its corpus cache is left out, as the PTD paper has it.

    Args:
        branches: lines.
        length: tokens of a full branch that were predicted.
        perturbation: most random tokens a branch begins with; each branch draws its number.
        ngram: tokens of an n-gram; the first token finds it.
        candidates: most n-grams verified, and kept per token.
        text: whether the n-grams of the prompt and the text itself are cached, as in the paper.

    Raises:
        ValueError: for branches, length, perturbation or candidates < 1, ngram < 2, or longer than any branch with its
            prediction; by `generate`, for branches that do not fit the context.
    """

    branches: int = 6
    length: int = 4
    perturbation: int = 2
    ngram: int = 5
    candidates: int = 10
    text: bool = True
    name = "self-draft"
    side_trees = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "branches", "length", "perturbation", "candidates")
        require(
            self.ngram <= self.length + 2,
            f"ngram is {self.ngram} and a full branch has {self.length + 1} tokens at least, one more with the "
            f"prediction; give at most {self.length + 2}, or a greater length.",
        )

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def check(self, target: LanguageModel) -> None:
        check_reach(target, self.length + self.perturbation, f"A branch of length {self.length}")

    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> SelfDraftState:
        counts = [1 + random.draw(torch.ones(self.perturbation)) for _ in range(self.branches)]
        branches = [random_tokens(prompt, count, random) for count in counts]
        full = [self.length, *(count + self.length for count in counts[1:])]
        return self.extend(SelfDraftState(int(prompt[-1]), NgramPool(self.candidates), [], branches, full), prompt)

    # --------------------------------------------------------------------------------------------------- an iteration
    @override
    def side_tree(self, state: SelfDraftState) -> TokenTree:
        """Return the branches as lines below the last token."""
        tokens, parents = [state.root], [ROOT]
        for branch in state.branches:
            parents += [0, *range(len(tokens), len(tokens) + len(branch) - 1)]
            tokens += branch
        return TokenTree.build(tokens, parents)

    @override
    def grow(self, state: SelfDraftState, predicted: list[int]) -> None:
        """Pool every n-gram that ends in a prediction, and add the last prediction of each branch to the branch."""
        place, before = 0, self.ngram - 1
        for number, (branch, full) in enumerate(zip(state.branches, state.full, strict=True)):
            after = predicted[place + 1 : place + 1 + len(branch)]
            line = branch if number else [state.root, *branch]
            following = after if number else [predicted[0], *after]
            for end in range(before, len(line) + 1):
                state.pool.add(line[end - before], (*line[end - before + 1 : end], following[end - 1]))
            place += len(branch)
            branch.append(after[-1])
            del branch[: max(len(branch) - full, 0)]
