"""`TokenRecycling`: a tree of the target's second choices, remembered by the token they followed (Luo et al. 2024)."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import dataclass, field

from typing_extensions import override

from ..costs import Pace
from ..sampling import RandomSource, Scores
from ..tree import TokenTree
from ..verifiers.base import Verdict
from .base import Proposal
from .checks import check_counts, check_switches
from .guessing import GuessingDrafter, GuessState
from .rates import SuccessRates
from .search import Guess

EDGES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.85, 0.95)
"""Probabilities that separate the classes in which remembered tokens are counted."""
_LOG_EDGES = [*map(math.log, EDGES)]
PRIOR = (0.01, 0.03, 0.05, 0.1, 0.2, 0.3, 0.45, 0.6, 0.7, 0.8)
"""Probability by class that a remembered token is right, before the text has shown any."""
FROM_TEXT = (0.4, 0.15, 0.1, 0.05)
"""The same of tokens that followed in the text, the latest first."""
MEMORY = 0.99
"""Weight of the earlier outcomes at each new outcome of a class."""

Key = tuple[int, ...]
"""Tokens, the last of a text or a path, that the tokens after them are remembered by."""
Entry = tuple[list[int], list[int]]
"""Remembered tokens, and the class of each."""


def _from_text(entry: Entry) -> bool:
    """Return whether the tokens followed in a text; otherwise the target predicted them."""
    return entry[1][0] >= len(PRIOR)


def _followed(tokens: list[int], entry: Entry | None) -> Entry:
    """Return an entry of tokens that followed in the text, the latest first, then the tokens of an older entry."""
    known = list(dict.fromkeys([*tokens, *(entry[0] if entry else ())]))[: len(FROM_TEXT)]
    return known, [len(PRIOR) + rank for rank in range(len(known))]


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
        pool: most lists of keys of one length, those of earlier texts included (`generate(..., warm=)`); the oldest go.

    Raises:
        ValueError: for remembered, context or pool < 1, and as for `GuessingDrafter`, which has the other options.
    """

    remembered: int = 8
    context: int = 2
    text: bool = True
    pool: int = 50_000
    name = "token-recycling"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "remembered", "context", "pool")
        check_switches(self, "text")

    @property
    @override
    def ranked(self) -> int:
        return self.remembered

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> RecyclingState:
        return self.extend(self.begun(int(prompt[-1])), prompt)

    def begun(self, root: int) -> RecyclingState:
        """Return a state that knows nothing yet."""
        lists: list[dict[Key, Entry]] = [{} for _ in range(self.context)]
        rates = [SuccessRates((*PRIOR, *FROM_TEXT), MEMORY) for _ in range(self.context)]
        return RecyclingState(root, Pace.begun(self.rate), lists, rates)

    @override
    def extend(self, state: RecyclingState, tokens: Sequence[int]) -> RecyclingState:
        for token in map(int, tokens):
            size, entry = self.entry(state, state.tail)
            for other, kind in zip(*entry, strict=True):
                state.rates[size].learn(kind, other == token)
            self.append(state, token)
        return state

    def append(self, state: RecyclingState, token: int) -> None:
        """Append a token of the text."""
        if self.text:
            self._note(state, token)
        state.tail = (*state.tail, token)[-self.context :]
        state.root = token

    @override
    def inherit(self, state: RecyclingState, earlier: RecyclingState) -> RecyclingState:
        super().inherit(state, earlier)
        state.lists = [self._joined(old, new) for old, new in zip(earlier.lists, state.lists, strict=True)]
        state.rates = deepcopy(earlier.rates)
        return state

    def report(self, state: RecyclingState) -> dict[str, float]:
        """Return how many keys have a list."""
        return {"lists": float(sum(map(len, state.lists)))}

    def _note(self, state: RecyclingState, token: int) -> None:
        """Note that a token followed in the text, for keys that nothing was scored after."""
        for size, lists in enumerate(state.lists):
            key = state.tail[-size - 1 :]
            if len(key) <= size:
                return
            entry = lists.get(key)
            if entry is None or _from_text(entry):
                self._keep(lists, key, _followed([token], entry))

    def _keep(self, lists: dict[Key, Entry], key: Key, entry: Entry) -> None:
        """Make an entry the latest, and drop the oldest of too many."""
        lists.pop(key, None)
        lists[key] = entry
        if len(lists) > self.pool:
            del lists[next(iter(lists))]

    def _joined(self, earlier: dict[Key, Entry], lists: dict[Key, Entry]) -> dict[Key, Entry]:
        """Join earlier lists with those of a new prompt; a list that the target predicted stays."""
        out = dict(earlier)
        for key, entry in lists.items():
            old = out.get(key)
            if old is None or _from_text(old):
                self._keep(out, key, _followed(entry[0], old))
        return out

    @override
    def observe(self, state: RecyclingState, proposal: Proposal, scores: Scores, verdict: Verdict) -> RecyclingState:
        tail = state.tail
        state = super().observe(state, proposal, scores, verdict)
        self.remember(state, tail, proposal.tree, scores, verdict)
        return state

    def remember(self, state: RecyclingState, tail: Key, tree: TokenTree, scores: Scores, verdict: Verdict) -> None:
        """Remember what the target predicts after each node of a tree below the text that ended with `tail`."""
        tokens, logprobs = (each[: len(tree)].tolist() for each in scores.ranked(self.remembered))
        kinds = ([bisect_right(_LOG_EDGES, logprob) for logprob in row] for row in logprobs)
        entries = [*zip(tokens, kinds, strict=True)]
        keys: list[Key] = [tail]
        for token, parent in zip(tree.tokens[1:].tolist(), tree.parents[1:].tolist(), strict=True):
            keys.append((*keys[parent], token)[-self.context :])
        # Of nodes with the same key the accepted one counts, else the most probable.
        for node in (*range(len(tree) - 1, -1, -1), *verdict.path):
            for size, lists in enumerate(state.lists[: len(keys[node])]):
                self._keep(lists, keys[node][-size - 1 :], entries[node])

    # ------------------------------------------------------------------------------------------------------- the tree
    def entry(self, state: RecyclingState, key: Key) -> tuple[int, Entry]:
        """Return the list of the longest key that has one, after that key's tokens less 1; else an empty one."""
        for size in range(min(self.context, len(key)), 0, -1):
            if (entry := state.lists[size - 1].get(key[-size:])) is not None:
                return size - 1, entry
        return 0, ([], [])

    @override
    def first(self, state: RecyclingState) -> Key:
        return state.tail

    @override
    def guesses(self, state: RecyclingState, place: Key) -> list[Guess]:
        size, entry = self.entry(state, place)
        return [
            (token, state.rates[size][kind], (*place, token)[-self.context :])
            for token, kind in zip(*entry, strict=True)
        ]
