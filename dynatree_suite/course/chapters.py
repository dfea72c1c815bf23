"""The exercises of the papers' notebooks 10, 11, 20 and 30; the notebooks ask the questions."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from .basics import path_probabilities
from .checking import Exercise

Emitted = tuple[float, float]
"""Tokens per iteration, and drafted nodes per iteration."""


# ---------------------------------------------------------------------------------------------- 10: pruning, and nodes
TREES = [
    ([-1, 0, 0, 1, 1, 2, 2], [1, 0.6, 0.2, 0.5, 0.25, 0.9, 0.1]),
    ([-1, 0, 1, 2, 3], [1, 0.6, 0.6, 0.6, 0.6]),
    ([-1, 0, 0, 0, 3, 4], [1, 0.5, 0.3, 0.1, 0.9, 0.9]),
]


def _expanded(parents: Sequence[int], p: Sequence[float], tau: float) -> list[int]:
    return [node for node, path in enumerate(path_probabilities(parents, p)) if path >= tau]


def _price(tree: Emitted, chain: Emitted, draft: float) -> float:
    """The price per node at which both have the same tokens per cost, 1 + draft + price * nodes."""
    return (tree[0] - chain[0]) * (1 + draft) / (chain[0] * tree[1] - tree[0] * chain[1])


# --------------------------------------------------------------------------------------------------- 11: the two rules
def _children(confidence: float) -> int:
    return 1 if confidence >= 0.9 else 3 if confidence < 0.4 else 2


def _grows(depth: int, path: float) -> bool:
    return depth < 8 and path >= 0.1 and (depth < 5 or path > 0.5)


def _ceilings(k: int, d: int, d0: int, d_max: int) -> tuple[float, float, float]:
    return ((k + 1) / k, 1.0, (d_max + 1) / (d0 + 2))


# --------------------------------------------------------------------------------------------- 20: a target that drafts
def _efficiency(hit_rate: float, accept_length: float) -> float:
    return hit_rate * accept_length + 1 - hit_rate


# ------------------------------------------------------------------------------------------------- 30: rules on a chain
def _token_level(r: Sequence[float]) -> float:
    return 1 + float(np.cumprod(np.minimum(1, r)).sum())


def _traversal(r: Sequence[float]) -> float:
    accepted, total = 1.0, 1.0
    for ratio in r:
        accepted = min(1.0, accepted * ratio)
        total += accepted
    return total


def _trees(a: np.ndarray, b: np.ndarray, reach: float, z: float = 1.96, ddof: int = 0) -> tuple[int, int]:
    paired, separate = (b - a).var(ddof=ddof), a.var(ddof=ddof) + b.var(ddof=ddof)
    return math.ceil(z**2 * paired / reach**2), math.ceil(z**2 * separate / reach**2)


RATIOS: list[tuple[Sequence[float]]] = [([0.5, 2.0],), ([2.0, 0.5],), ([0.8, 0.9, 1.5, 0.4, 3.0],), ([1.2, 1.1],)]
EMITTED = [
    (np.array([1.0, 3.0, 2.0, 5.0, 1.0, 4.0]), np.array([1.2, 3.1, 2.0, 5.3, 1.0, 4.4]), 0.05),
    (np.array([2.0, 2.5, 6.0, 1.0]), np.array([2.5, 2.4, 6.0, 1.6]), 0.1),
]

CHAPTERS: dict[str, Exercise] = {
    "10.1": Exercise(
        right=(5 / 16, 4 / 16),
        mistakes={
            "The paper divides *committed* tokens. Which token is committed without having been drafted?": (
                4 / 16,
                4 / 16,
            ),
            "Node 0 is scored, but not drafted: it is in neither divisor.": (5 / 17, 4 / 17),
            "The bonus token was not drafted, so it is no accepted one.": (5 / 16, 5 / 16),
            "Right, in per cent. Give shares: 0.25 stands for 25 %.": (100 * 5 / 16, 100 * 4 / 16),
            "Right, the other way round: the paper's number comes first.": (4 / 16, 5 / 16),
        },
        praise="The same iteration is 31 % or 25 %: compare a published acceptance only within its definition.",
        parts=(
            "committed tokens, the bonus token included, for each drafted node",
            "accepted drafted nodes for each drafted node",
        ),
    ),
    "10.2": Exercise(
        right=_expanded,
        mistakes={
            "The threshold is on the probability of the path, not on the token's own.": (
                lambda parents, p, tau: [node for node, own in enumerate(p) if own >= tau]
            ),
            "Node 0 is expanded, too: its path is empty, and has probability 1.": (
                lambda parents, p, tau: _expanded(parents, p, tau)[1:]
            ),
            "These are the nodes that stay in the tree. A node below tau stays as a leaf.": (
                lambda parents, p, tau: [
                    node
                    for node, parent in enumerate(parents)
                    if node == 0 or path_probabilities(parents, p)[parent] >= tau
                ]
            ),
        },
        praise="Path probabilities fall along a path, so below an unexpanded node nothing would be expanded either.",
        cases=[(parents, p, tau) for parents, p in TREES for tau in (0.1, 0.25)],
    ),
    "10.3": Exercise(
        right=_price,
        mistakes={
            "Drafting takes its part of an iteration, too: an iteration costs 1 + draft + price times nodes.": (
                lambda tree, chain, draft: _price(tree, chain, 0)
            ),
            "This is where the tree is as fast as plain decoding.": (
                lambda tree, chain, draft: (tree[0] - 1 - draft) / tree[1]
            ),
            "A further token is worth the time it takes the chain to write one; that is less than a plain step.": (
                lambda tree, chain, draft: (tree[0] - chain[0]) / (tree[1] - chain[1])
            ),
            "The chain's nodes have the same price as the tree's.": (
                lambda tree, chain, draft: (tree[0] - chain[0]) * (1 + draft) / (chain[0] * tree[1])
            ),
        },
        praise="Set tokens / cost equal on both sides. Below this price the tree wins, above it the chain.",
        cases=[((2.5, 16), (2.2, 5), 0.2), ((3.0, 64), (2.2, 5), 0.2), ((2.4, 12), (2.0, 4), 0.5)],
    ),
    "11.1": Exercise(
        right=_children,
        mistakes={
            "A doubtful draft gets more children, a confident one fewer.": lambda c: {1: 3, 2: 2, 3: 1}[_children(c)],
            "At tau_h itself the draft counts as confident.": lambda c: 1 if c > 0.9 else 3 if c < 0.4 else 2,
            "At tau_l itself the draft is not yet in doubt.": lambda c: 1 if c >= 0.9 else 3 if c <= 0.4 else 2,
        },
        praise="More guesses where the first is doubtful.",
        cases=[(0.95,), (0.9,), (0.6,), (0.4,), (0.1,)],
    ),
    "11.2": Exercise(
        right=_grows,
        mistakes={
            "D_0 is not the end: beyond it paths above rho_deep go on.": (
                lambda depth, path: depth < 5 and path >= 0.1
            ),
            "rho_stop holds at every depth, also above D_0.": (
                lambda depth, path: depth < 5 or (depth < 8 and path > 0.5)
            ),
            "At D_max everything ends.": lambda depth, path: path >= 0.1 and (depth < 5 or path > 0.5),
            "At rho_deep itself a path is not yet above it; at rho_stop itself a path still goes on.": (
                lambda depth, path: depth < 8 and path >= 0.1 and (depth < 5 or path >= 0.5)
            ),
            "At D_0 itself the stricter condition already holds.": (
                lambda depth, path: depth < 8 and path >= 0.1 and (depth <= 5 or path > 0.5)
            ),
        },
        praise="D_max and rho_stop hold everywhere; from D_0 on the path must also exceed rho_deep.",
        cases=[(0, 1.0), (4, 0.1), (4, 0.05), (5, 0.5), (5, 0.3), (6, 0.7), (8, 0.9), (1, 0.4)],
    ),
    "11.3": Exercise(
        right=_ceilings,
        mistakes={
            "The path length counts the bonus token.": (
                lambda k, d, d0, d_max: (1.0, (d + 1) / (d + 2), d_max / (d0 + 2))
            ),
            "DynaTree's trees go on beyond D_0; the divisor does not.": (
                lambda k, d, d0, d_max: ((k + 1) / k, 1.0, 1.0)
            ),
            "The paper divides by D_0 + 2, whatever D_max is.": (
                lambda k, d, d0, d_max: ((k + 1) / k, 1.0, (d_max + 1) / (d_max + 2))
            ),
            "The chain is divided by K, although it can commit one token more.": (
                lambda k, d, d0, d_max: (1.0, 1.0, (d_max + 1) / (d0 + 2))
            ),
        },
        praise="120, 100 and 129 % with the paper's settings: three scales in one column.",
        cases=[(5, 8, 5, 8), (4, 6, 5, 9), (8, 4, 3, 5)],
    ),
    "20.1": Exercise(
        right=_efficiency,
        mistakes={
            "A forward without a hit emits a token as well: the target's own.": lambda hr, al: hr * al,
            "AL counts the target's own token already.": lambda hr, al: hr * (al + 1) + 1 - hr,
            "AL is the mean of the forwards that hit. The others emit one token.": lambda hr, al: al,
        },
        praise="The mean of forwards that hit and forwards that do not.",
        cases=[(0.5, 3.0), (0.0, 2.0), (1.0, 2.5), (0.36, 3.2)],
    ),
    "20.2": Exercise(
        right=lambda tokens, drafted, verified: (tokens - 1) / (drafted + verified),
        mistakes={
            "Plain decoding emits a token per forward, too. What is gained is what exceeds it.": (
                lambda tokens, drafted, verified: tokens / (drafted + verified)
            ),
            "The draft tree's nodes are scored in the same forward and cost as much.": (
                lambda tokens, drafted, verified: (tokens - 1) / verified
            ),
            "Plain decoding scores the last token as well; its price is in the step.": (
                lambda tokens, drafted, verified: (tokens - 1) / (drafted + verified + 1)
            ),
        },
        praise="Tokens beyond the first pay for nodes beyond the first.",
        cases=[(2.08, 52, 12), (1.6, 20, 4), (3.0, 64, 32)],
    ),
    "20.3": Exercise(
        right=math.comb,
        mistakes={
            "This counts the nodes of all depths.": lambda k, d: 2**k,
            "Not only the newest node is extended: each gets a child, also those above it.": (lambda k, d: int(d <= k)),
            "This is a tree where every node has two children. Here older nodes have more children than newer ones.": (
                lambda k, d: 2**d if d <= k else 0
            ),
            "After one iteration there is one node at depth 1: count iterations from the first random token.": (
                lambda k, d: math.comb(k + 1, d)
            ),
        },
        praise="Pascal's triangle: those that were there, and a child of each node one level above.",
        cases=[(1, 1), (3, 1), (4, 2), (5, 5), (6, 3), (2, 4), (3, 0)],
    ),
    "30.1": Exercise(
        right=_token_level,
        mistakes={
            "The bonus token, the target's own, is emitted in every iteration.": lambda r: _token_level(r) - 1,
            "A token is reached only if all before it were accepted.": (lambda r: 1 + float(np.minimum(1, r).sum())),
            "A ratio above 1 accepts with probability 1. Token by token it cannot make up for one below 1.": (
                lambda r: 1 + float(np.minimum(1, np.cumprod(r)).sum())
            ),
            "This is the sum of traversal's weights. Token by token a ratio above 1 repairs nothing.": _traversal,
        },
        praise="Every r below 1 costs, and none above 1 helps.",
        cases=RATIOS,
    ),
    "30.2": Exercise(
        right=_traversal,
        mistakes={
            "This is token-level verification: no later r above 1 repairs anything.": _token_level,
            "The excess above 1 is lost at every token. Here it is kept for later ones.": (
                lambda r: 1 + float(np.minimum(1, np.cumprod(r)).sum())
            ),
            "The 1 is missing: the bonus token is emitted in every iteration.": lambda r: _traversal(r) - 1,
        },
        praise="A weight that was lowered can rise again, up to 1: that is the repair.",
        cases=RATIOS,
    ),
    "30.3": Exercise(
        right=_trees,
        mistakes={
            "On the same trees both rules share the trees' luck: take the variance of the differences.": (
                lambda a, b, reach: (_trees(a, b, reach)[1], _trees(a, b, reach)[1])
            ),
            "In separate runs both means are uncertain, so their variances add.": (
                lambda a, b, reach: (_trees(a, b, reach)[0], math.ceil(1.96**2 * a.var() / reach**2))
            ),
            "An interval of 95 % reaches 1.96 standard errors, not one.": lambda a, b, reach: _trees(a, b, reach, 1.0),
            "These are sample variances (n - 1). Asked for is the population variance, np.var with ddof=0.": (
                lambda a, b, reach: _trees(a, b, reach, ddof=1)
            ),
            "The second number is the trees of one rule, not of both together.": (
                lambda a, b, reach: (_trees(a, b, reach)[0], 2 * _trees(a, b, reach)[1])
            ),
            "The reach is half the interval's width, to each side of the mean.": (
                lambda a, b, reach: _trees(a, b, reach / 2)
            ),
        },
        praise="Separate runs need each count twice as well, once for each rule.",
        cases=EMITTED,
    ),
}
