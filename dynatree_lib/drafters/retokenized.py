"""`Retokenized`: a drafter in the draft's own vocabulary, its paths written in the target's (SLEM, Timor et al. 2025).

String-level exact match, section 3 of the paper: the draft drafts in its own tokens, the text of each path is split
again by the target's tokenizer, and what the target writes decides. So a drafted token may be any token of the target,
also one that the draft does not have. The paths have no probabilities under the target's tokens, so they are
deterministic.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from ..checks import of_kind
from ..models.base import LanguageModel
from ..models.vocabulary import Translation, Vocabulary
from ..sampling import GREEDY, RandomSource, Sampling, Scores
from ..tree import TokenTree
from ..verifiers.base import Drawing, Verdict
from .base import Drafter, ModelDrafter, Proposal
from .builder import DraftState
from .checks import require

LEVELS = 4
"""Levels of the draft's tree for each level that the target's text may still take: a target token is several of its."""


@dataclass(kw_only=True)
class RetokenizedState(DraftState):
    """What `Retokenized` knows of a text: `root` is the target's; `session` is the inner drafter's.

    Attributes:
        inner: state of the inner drafter, whose text stands for the same bytes as the target's.
        drafted: its proposal, in the draft's tokens; None before the first.
    """

    inner: Any
    drafted: Proposal | None = None


@dataclass(frozen=True)
class Retokenized(Drafter):
    """Let a drafter draft in the draft's own tokens; propose the texts of its paths, in the target's tokens.

    A drafter that learns from the accepted path learns from the path of its own tree that agrees with the text. The
    target's scores are of other nodes, so they are not handed to it.

    Args:
        drafter: deterministic, with a draft model that reads tokens alone.
        translation: between the target's vocabulary and the draft's.

    Raises:
        TypeError: for a drafter without a draft model.
        ValueError: for a drafter that draws its tokens or drafts on features, or whose draft has another vocabulary
            than the translation.
    """

    drafter: ModelDrafter
    translation: Translation
    name = "retokenized"

    def __post_init__(self) -> None:
        of_kind("The drafter", self.drafter, ModelDrafter, "give one with a draft model, such as Chain(draft)")
        draft, name = self.drafter.draft, self.drafter.name
        require(
            self.drafter.drawing is Drawing.FIXED,
            f"'{name}' draws its tokens, and a path that is split again has no probability to verify it by; give a "
            "deterministic drafter, or draft the tokens that both vocabularies have (make_pair with "
            "vocabularies='intersection').",
        )
        require(
            self.drafter.feature_layers is None,
            f"The draft of '{name}' reads features of its own target, so it cannot draft for one with another "
            "tokenizer; give a draft that reads tokens alone.",
        )
        if draft is not None:
            self._check_vocabulary("to", "draft", self.translation.draft, draft)

    def _check_vocabulary(self, side: str, role: str, vocabulary: Vocabulary, model: LanguageModel) -> None:
        require(
            vocabulary.is_of(model),
            f"The translation is {side} the vocabulary of '{vocabulary.owner}', and {role} '{model.name}' has another; "
            f"make it for this {role}.",
        )

    @property
    def chain(self) -> bool:
        """Whether its trees never branch: several paths of one text may be split differently."""
        return self.drafter.chain

    @override
    def check(self, target: LanguageModel) -> None:
        self._check_vocabulary("from", "target", self.translation.target, target)

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> RetokenizedState:
        ids = self.translation.of_text(prompt, begins=True) or [self.translation.stranger]
        inner = self.drafter.start(ids, random)
        return RetokenizedState(inner.session, int(prompt[-1]), random, inner=inner)

    @override
    def extend(self, state: RetokenizedState, tokens: Sequence[int]) -> RetokenizedState:
        ids = self.translation.of_text(tokens)
        if ids:
            state.inner = self.drafter.extend(state.inner, ids)
        state.root = int(tokens[-1])
        return state

    @override
    def inherit(self, state: RetokenizedState, earlier: RetokenizedState) -> RetokenizedState:
        state.inner = self.drafter.inherit(state.inner, earlier.inner)
        return state

    @override
    def drafting_work(self, state: RetokenizedState) -> tuple[int, int]:
        return self.drafter.drafting_work(state.inner)

    @override
    def report(self, state: RetokenizedState) -> dict[str, float]:
        return self.drafter.report(state.inner)

    # ------------------------------------------------------------------------------------------------------- the tree
    @override
    def propose(self, state: RetokenizedState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        state.drafted = self.drafter.propose(state.inner, LEVELS * max_depth, sampling)
        tree = state.drafted.tree
        leaves = sorted({*range(1, len(tree))} - {*tree.parents.tolist()})
        paths = [self.translation.back(tree.tokens[tree.path(leaf)].tolist())[:max_depth] for leaf in leaves]
        return Proposal(TokenTree.from_paths(state.root, paths))

    @override
    def observe(
        self, state: RetokenizedState, proposal: Proposal, scores: Scores, verdict: Verdict
    ) -> RetokenizedState:
        assert state.drafted is not None
        path, ids = self._agreeing(state.drafted.tree, verdict.tokens(proposal.tree))
        nothing = Scores(torch.empty(0, len(self.translation.draft)), GREEDY)
        larger, nodes = _with_path(state.drafted.tree, path, ids[:-1])
        self.drafter.renumber(state.inner, np.arange(len(state.drafted.tree)), len(larger))
        state.inner = self.drafter.observe(state.inner, Proposal(larger), nothing, Verdict(tuple(nodes), ids[-1]))
        state.drafted, state.root = None, verdict.next_token
        return state

    def _agreeing(self, tree: TokenTree, tokens: Sequence[int]) -> tuple[list[int], list[int]]:
        """Return the longest path of the draft's tree that the new text begins with, and the rest in draft tokens.

        The rest is never empty: the last node of a path that is all of the text is left out of the path.
        """
        ours, theirs = self.translation.target, self.translation.draft
        plain = next((place for place, token in enumerate(tokens) if ours.joined([token]) is None), len(tokens))
        text = ours.joined(tokens[:plain]) or b""
        read = {0: b""}  # the text of each node that agrees
        for node in range(1, len(tree)):
            above, data = read.get(int(tree.parents[node])), theirs.joined([int(tree.tokens[node])])
            if above is not None and data is not None and text.startswith(above + data):
                read[node] = above + data
        best = max(read, key=lambda node: len(read[node]))
        path, rest = tree.path(best), theirs.encode(text[len(read[best]) :]) or []
        ids = [*rest, *self.translation.of_text(tokens[plain:])]
        if ids:
            return path, ids
        return (path[:-1], [int(tree.tokens[path[-1]])]) if path else ([], [self.translation.stranger])


def _with_path(tree: TokenTree, path: Sequence[int], tokens: Sequence[int]) -> tuple[TokenTree, list[int]]:
    """Return a tree with a path of further tokens below the end of one of its paths, and the nodes of both."""
    first = len(tree)
    parents = [path[-1] if path else 0, *range(first, first + len(tokens))][: len(tokens)]
    larger = TokenTree.build(
        [*tree.tokens.tolist(), *tokens], [*tree.parents.tolist(), *parents], [*tree.logprobs, *[0.0] * len(tokens)]
    )
    return larger, [*path, *range(first, len(larger))]
