"""`TokenRecycling`: a tree of the target's second choices, remembered by the token they followed (Luo et al. 2024)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from copy import deepcopy
from dataclasses import dataclass, field

import numpy as np
from typing_extensions import override

from ..sampling import RandomSource, Scores, most_probable
from ..verifiers.base import Verdict
from .base import Proposal
from .checks import check_counts, check_switches
from .guessing import Guess, GuessingDrafter, GuessState
from .rates import SuccessRates

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)
"""Probabilities that separate the classes in which remembered tokens are counted."""
PRIOR = (0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.7, 0.8)
"""Probability by class that a remembered token is right, before the text has shown any."""
FROM_TEXT = (0.4, 0.15, 0.1, 0.05)
"""The same of tokens that followed in the text, the latest first."""
MEMORY = 0.99
"""Weight of the earlier outcomes at each new outcome of a class."""

Key = tuple[int, ...]
"""The last tokens that predictions are remembered by."""
Entry = tuple[list[int], list[int]]
"""Remembered tokens, and the class of each."""


def _rates(sizes: int) -> list[SuccessRates]:
    return [SuccessRates((*PRIOR, *FROM_TEXT), MEMORY) for _ in range(sizes)]


@dataclass
class RecyclingState(GuessState):
    """The adjacency lists of a text.

    Attributes:
        lists: of the last 1, 2, ... tokens: what may follow them.
        rates: how often tokens of each class were right, for each of these.
        tail: the last tokens of the text, as many as the longest key.
    """

    lists: list[dict[Key, Entry]]
    rates: list[SuccessRates]
    tail: Key = field(default=())


@dataclass(frozen=True)
class TokenRecycling(GuessingDrafter):
    """The most probable next tokens of everything the target has scored, remembered by the token before them.

    The target's forward gives, for every node of a tree, many tokens that may follow; plain decoding throws them away.
    Token Recycling keeps the k best by the node's token, and drafts a tree by looking up what followed a token, what
    followed that, and so on. The paper has a fixed tree and knows the last token alone. Here lists are kept by the last
    `context` tokens too and the longest key that is known counts. A tree takes the most probable nodes, by the
    target's probability when the list was made, corrected by how often tokens of such probability were right.

    Args:
        remembered: k, tokens kept of a list.
        context: tokens of the longest key; 1 is the paper's.
        text: whether a key that nothing was scored after has what followed it in the text; nothing is scored in a
            prompt.

    Raises:
        ValueError: for remembered or context < 1, and as for `GuessingDrafter`, which has the other options.
    """

    remembered: int = 8
    context: int = 2
    text: bool = True
    name = "token-recycling"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "remembered", "context")
        check_switches(self, "text")

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> RecyclingState:
        lists: list[dict[Key, Entry]] = [{} for _ in range(self.context)]
        return self.extend(RecyclingState(**self.begun(prompt), lists=lists, rates=_rates(self.context)), prompt)

    @override
    def extend(self, state: RecyclingState, tokens: Sequence[int]) -> RecyclingState:
        for token in map(int, tokens):
            for size, entry in self._entries(state, state.tail):
                for other, kind in zip(*entry, strict=True):
                    state.rates[size].learn(kind, other == token)
            if self.text:
                self._note(state, token)
            state.tail = (*state.tail, token)[-self.context :]
            state.root = token
        return state

    @override
    def inherit(self, state: RecyclingState, earlier: RecyclingState) -> RecyclingState:
        super().inherit(state, earlier)
        # What the target predicted earlier is worth more than what followed in the new prompt.
        state.lists = [{**new, **old} for old, new in zip(earlier.lists, state.lists, strict=True)]
        state.rates = deepcopy(earlier.rates)
        return state

    def report(self, state: RecyclingState) -> dict[str, float]:
        """Return how many keys have a list."""
        return {"lists": float(sum(map(len, state.lists)))}

    def _note(self, state: RecyclingState, token: int) -> None:
        """Note that a token followed in the text, where nothing was scored."""
        for size, lists in enumerate(state.lists):
            key = state.tail[-size - 1 :]
            if len(key) <= size:
                return
            tokens, kinds = lists.get(key, ([], [len(PRIOR)]))
            if kinds[0] >= len(PRIOR):
                tokens = [token, *(other for other in tokens if other != token)][: len(FROM_TEXT)]
                lists[key] = tokens, [len(PRIOR) + rank for rank in range(len(tokens))]

    @override
    def observe(self, state: RecyclingState, proposal: Proposal, scores: Scores, verdict: Verdict) -> RecyclingState:
        tree, tail = proposal.tree, state.tail
        state = super().observe(state, proposal, scores, verdict)
        tokens, logprobs, _ = most_probable(scores.logits[: len(tree)], self.remembered, 1.0)
        kinds = np.searchsorted(EDGES, np.exp(logprobs), side="right")
        keys: list[Key] = []
        for node, (token, parent) in enumerate(zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)):
            keys.append(tail if node == 0 else (*keys[parent], token)[-self.context :])
            entry = tokens[node].tolist(), kinds[node].tolist()
            for size, lists in enumerate(state.lists[: len(keys[-1])]):
                lists[keys[-1][-size - 1 :]] = entry
        return state

    # ------------------------------------------------------------------------------------------------------- the tree
    def _entries(self, state: RecyclingState, key: Key) -> Iterable[tuple[int, Entry]]:
        """Yield the list of the longest key that has one, with its number."""
        for size in range(min(len(key), self.context) - 1, -1, -1):
            entry = state.lists[size].get(key[-size - 1 :])
            if entry is not None:
                yield size, entry
                return

    @override
    def first(self, state: RecyclingState) -> Key:
        return state.tail

    @override
    def guesses(self, state: RecyclingState, handle: Key) -> Iterable[Guess]:
        for size, (tokens, kinds) in self._entries(state, handle):
            rates = state.rates[size]
            return [
                (token, rates[kind], (*handle, token)[-self.context :])
                for token, kind in zip(tokens, kinds, strict=True)
            ]
        return []
