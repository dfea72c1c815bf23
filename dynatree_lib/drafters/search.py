"""Which nodes a tree takes: the most probable, and as many as pay for their time."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from typing import Any, NamedTuple

import numpy as np

from ..costs import Costs
from ..tree import ROOT, TokenTree

Guess = tuple[int, float, Any]
"""A token, the probability that it comes next, and the place after it: what its own guesses are looked up by."""


class Chosen(NamedTuple):
    """A node that `best_first` chose."""

    token: int
    parent: int
    """0 is node 0; then the chosen nodes in order."""
    share: float
    """Probability that the token is right if its parent is."""
    probability: float
    """Probability of the whole path."""


def best_first(
    place: Any, guesses: Callable[[Any], Iterable[Guess]], depth: int, most: int, worth: Callable[[int], float]
) -> list[Chosen]:
    """Return the most probable nodes below node 0, most probable first; of equally probable ones the first guessed.

    The probability of a node is the product of the guesses' probabilities along its path.

    Args:
        place: what the guesses below node 0 are looked up by.
        guesses: of the next token after a place.
        depth: most levels.
        most: most nodes.
        worth: nodes chosen so far -> probability that the next one must exceed.
    """
    chosen: list[Chosen] = []
    waiting: list[tuple[float, int, int, int, int, float, Any]] = []
    number = count()  # decides between equal probabilities

    def push(parent: int, level: int, probability: float, place: Any) -> None:
        for token, share, after in guesses(place):
            heappush(waiting, (-probability * share, next(number), parent, level + 1, token, share, after))

    if depth > 0:
        push(0, 0, 1.0, place)
    while waiting and len(chosen) < most:
        minus, _, parent, level, token, share, after = heappop(waiting)
        if -minus <= worth(len(chosen)):
            break
        chosen.append(Chosen(token, parent, share, -minus))
        if level < depth:
            push(len(chosen), level, -minus, after)
    return chosen


def tree_of(root: int, chosen: Sequence[Chosen]) -> TokenTree:
    """Return the deterministic tree of these nodes below node 0 = `root`."""
    rows = ((node.token, node.parent, math.log(node.share)) for node in chosen)
    return TokenTree.build(*zip((root, ROOT, 0.0), *rows, strict=True))


def most_paying(gains: np.ndarray, rate: float, costs: Costs) -> int:
    """Return the number of nodes whose tokens exceed by most the tokens that their time would bring anyway.

    Node 0 always stays. Where nodes are free, all of them do.

    Args:
        gains: (n,) expected tokens of each node, descending.
        rate: tokens per unit of cost.
        costs: of verifying nodes.
    """
    if costs.free:
        return len(gains)
    return int(np.argmax(np.cumsum(gains) - rate * costs.scoring(np.arange(1, len(gains) + 1)))) + 1


def highest(values: np.ndarray, count: int) -> np.ndarray:
    """Return the ascending indices of the `count` highest values; of equal values the first."""
    return np.sort(np.argsort(-values, kind="stable")[:count])
