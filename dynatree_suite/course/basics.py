"""The exercises of notebooks 00 to 04; the notebooks ask the questions."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from dynatree_lib.masks import depth_positions, tree_mask

from .checking import Exercise

Numbers = Sequence[float] | np.ndarray


# ------------------------------------------------------------------------------- 01: acceptance, costs, speed
def _tokens(a: float, k: int) -> float:
    return float(sum(a**i for i in range(k + 1)))


def _speedup(a: float, k: int, t: Callable[[int], float], c: float) -> float:
    return _tokens(a, k) / (t(k + 1) + k * c)


def _flat(n: int) -> float:
    return 1.0


def _rising(n: int) -> float:
    return 1 + 0.05 * (n - 1)


def _accepted(p: Numbers, q: Numbers) -> float:
    return float(np.minimum(p, q).sum())


DISTRIBUTIONS = [
    (np.array(p), np.array(q))
    for p, q in [
        ([0.5, 0.3, 0.2], [0.2, 0.3, 0.5]),
        ([0.7, 0.2, 0.1], [0.5, 0.1, 0.4]),
        ([0.25, 0.25, 0.25, 0.25], [0.4, 0.3, 0.2, 0.1]),
    ]
]


# ------------------------------------------------------------------------------------------- 02: masks and positions
PARENTS = [np.array(parents) for parents in ([-1, 0, 1, 2], [-1, 0, 0, 1, 1, 2], [-1, 0, 0, 0, 3, 4, 1])]
BEHIND = [(parents, prefix) for parents in PARENTS for prefix in (0, 3)]


def _causal(parents: np.ndarray, prefix: int) -> np.ndarray:
    n = len(parents)
    return np.tri(n, prefix + n, prefix, dtype=bool)


def _only(parents: np.ndarray, prefix: int) -> np.ndarray:
    """A node sees the prefix, its parent and itself."""
    mask = np.zeros((len(parents), prefix + len(parents)), dtype=bool)
    mask[:, :prefix] = True
    for node, parent in enumerate(parents):
        mask[node, [prefix + node, prefix + max(parent, 0)]] = True
    return mask


def _blind(parents: np.ndarray, prefix: int) -> np.ndarray:
    """A node sees the prefix and its ancestors, not itself."""
    mask = tree_mask(parents, prefix).copy()
    mask[np.arange(len(parents)), prefix + np.arange(len(parents))] = False
    return mask


def _ones(b: int, d: int, t: int) -> int:
    return sum(b**level * (t + level + 1) for level in range(d + 1))


def _causal_ones(b: int, d: int, t: int) -> int:
    n = _nodes([b] * d)
    return n * t + n * (n + 1) // 2


# ---------------------------------------------------------------------------------------------- 03: nodes and worth
SHAPES: list[tuple[Sequence[int]]] = [((3, 2, 1),), ((2, 2, 2, 2),), ((1, 1, 1),), ((4,),)]


def _nodes(branching: Sequence[int]) -> int:
    return int(1 + np.cumprod(branching).sum())


def path_probabilities(parents: Sequence[int], p: Numbers) -> np.ndarray:
    """The probability of each node that it and all above it are accepted; 1 for node 0."""
    out = np.ones(len(parents))
    for node in range(1, len(parents)):
        out[node] = out[parents[node]] * p[node]
    return out


TREES = [
    ([-1, 0, 0, 1, 1], [1, 0.6, 0.2, 0.5, 0.25]),
    ([-1, 0, 1, 2], [1, 0.8, 0.8, 0.8]),
    ([-1, 0, 0, 0, 2, 4], [1, 0.5, 0.3, 0.1, 0.9, 0.4]),
]


# --------------------------------------------------------------------------------------------------------- 04: rules
def _residual(p: Numbers, q: Numbers) -> np.ndarray:
    left = np.maximum(np.subtract(p, q), 0)
    return left / left.sum()


def _without(q: Numbers, drawn: int) -> np.ndarray:
    left = np.array(q, float)
    left[drawn] = 0
    return left / left.sum()


def _two(
    p: Numbers,
    q: Numbers,
    second: Callable[[Numbers, int], np.ndarray] = _without,
    left: Callable[[Numbers, Numbers], Numbers] = _residual,
) -> float:
    """The probability that one of two drawn siblings is accepted, token by token."""
    total, residual = 0.0, left(p, q)
    for token, share in enumerate(q):
        first = min(1.0, p[token] / share)
        total += share * (first + (1 - first) * _accepted(residual, second(q, token)))
    return total


BASICS: dict[str, Exercise] = {
    "00.1": Exercise(
        right=(4, 11),
        mistakes={
            "The accepted tokens are not all that is emitted: what does the target add after them?": (3, 11),
            "The forward scores one node more than was drafted: which token has the target not read yet?": (4, 10),
            "Both are one short: think of the bonus token, and of node 0.": (3, 10),
            "Rejected nodes are scored and not emitted.": (11, 11),
        },
        praise="Three accepted and the bonus token; ten drafted nodes and node 0.",
        parts=(
            "what is added to the text: accepted tokens, and what the target adds itself",
            "all nodes that the target reads at once: what was drafted, and the last token of the text",
        ),
    ),
    "00.2": Exercise(
        right=8,
        mistakes={
            "`depth` counts levels below node 0, so node 0 is not one of them.": 7,
            "A chain's length counts drafted tokens; the bonus token is not drafted.": 9,
            "With one child per node there is one node on each level. How many levels are there?": 1,
        },
        praise="One node on each of eight levels: a chain of eight.",
        parts=("the drafted nodes of that tree, one below another",),
    ),
    "00.3": Exercise(
        right=(6, 6),
        mistakes={
            "All five levels are accepted. What is emitted after the last accepted token?": (5, 6),
            "Drafting runs the draft once for each level, and here the draft is the target.": (6, 1),
            "Drafting costs five forwards; the tree must be verified as well.": (6, 5),
            "Both are one short: think of the bonus token, and of the forward that verifies.": (5, 5),
            "Of the nodes of a level one can be accepted, whatever their number.": (63, 6),
        },
        praise="Six tokens for six forwards of the target: right guesses alone make nothing faster, cheap ones do.",
        parts=(
            "one accepted token for each level of which the draft is right, and the bonus token",
            "one forward for each level that is drafted, and the one that verifies",
        ),
    ),
    "01.1": Exercise(
        right=_tokens,
        mistakes={
            "This counts accepted guesses. An iteration emits the bonus token as well.": lambda a, k: _tokens(a, k) - 1,
            "The sum ends one guess too early: the last guess may be accepted and the bonus token comes after it.": (
                lambda a, k: _tokens(a, k - 1)
            ),
            "A guess is reached only if all before it were accepted; this counts each as if it were reached.": (
                lambda a, k: 1 + k * a
            ),
        },
        praise="A geometric sum, cut at K.",
        cases=[(0.5, 1), (0.5, 4), (0.8, 3), (1.0, 5), (0.0, 6)],
    ),
    "01.2": Exercise(
        right=_speedup,
        mistakes={
            "The target's forward scores node 0 as well as the K guesses.": (
                lambda a, k, t, c: _tokens(a, k) / (t(k) + k * c)
            ),
            "The draft's forwards cost something too.": lambda a, k, t, c: _tokens(a, k) / t(k + 1),
            "This is the cost of a token; a speedup is its inverse.": lambda a, k, t, c: 1 / _speedup(a, k, t, c),
            "The draft runs K times in an iteration, not once.": lambda a, k, t, c: _tokens(a, k) / (t(k + 1) + c),
        },
        praise="Tokens over cost; plain decoding has one token for a cost of one.",
        cases=[(0.6, 4, _flat, 0.1), (0.6, 4, _rising, 0.1), (0.9, 8, _rising, 0.02), (0.3, 2, _rising, 0.3)],
    ),
    "01.3": Exercise(
        right=_accepted,
        mistakes={
            "This is the probability that two independent draws agree. The rule accepts more than that.": (
                lambda p, q: float(np.dot(p, q))
            ),
            "Average min(1, p/q) over tokens as they are drawn, that is, weighted by q.": (
                lambda p, q: float(np.minimum(1, np.divide(p, q)).mean())
            ),
            "This is the probability of rejection.": lambda p, q: 1 - _accepted(p, q),
        },
        praise="The mass that the two distributions share.",
        cases=DISTRIBUTIONS,
    ),
    "02.1": Exercise(
        right=lambda parents, prefix: depth_positions(parents, prefix),
        mistakes={
            "Siblings are alternatives for the same place of the text, so they share a position.": (
                lambda parents, prefix: prefix + np.arange(len(parents))
            ),
            "Node 0 comes after the prefix: its position is the number of tokens before it.": (
                lambda parents, prefix: depth_positions(parents, 0)
            ),
            "Positions count from 0, so node 0 behind t tokens stands at t.": (
                lambda parents, prefix: depth_positions(parents, prefix + 1)
            ),
        },
        praise="Depth decides, not the order in which nodes are stored.",
        cases=[(parents, prefix) for parents, prefix in BEHIND if prefix],
    ),
    "02.2": Exercise(
        right=lambda parents, prefix: tree_mask(parents, prefix),
        mistakes={
            "This is a causal mask: a node would see siblings and their children.": _causal,
            "A node sees all its ancestors, not only its parent. Which row already has them?": _only,
            "A node sees itself, too.": _blind,
            "The columns of the prefix are missing.": lambda parents, prefix: tree_mask(parents, 0),
        },
        praise="A row is its parent's row and one entry more.",
        cases=BEHIND,
    ),
    "02.3": Exercise(
        right=_ones,
        mistakes={
            "A node sees itself, too.": lambda b, d, t: sum(b**level * (t + level) for level in range(d + 1)),
            "Node 0 has a row as well.": lambda b, d, t: _ones(b, d, t) - t - 1,
            "These are the ones of a causal mask over as many nodes.": _causal_ones,
        },
        praise="Level by level: B^d rows of t + d + 1 ones.",
        cases=[(2, 3, 10), (3, 2, 0), (2, 5, 100)],
    ),
    "03.1": Exercise(
        right=_nodes,
        mistakes={
            "Node 0 is a node as well.": lambda branching: _nodes(branching) - 1,
            "Each node of a level has that many children, so the numbers multiply down the tree.": (
                lambda branching: 1 + sum(branching)
            ),
            "This counts the last level alone.": lambda branching: int(np.prod(branching)),
        },
        praise="Every level has as many nodes as the one above times its branching.",
        cases=SHAPES,
    ),
    "03.2": Exercise(
        right=lambda parents, p: float(path_probabilities(parents, p).sum()),
        mistakes={
            "The bonus token is emitted in every iteration.": lambda parents, p: float(
                path_probabilities(parents, p).sum() - 1
            ),
            "A node counts only if everything above it was accepted: use the probability of its path.": (
                lambda parents, p: float(1 + sum(p[1:]))
            ),
            "This follows the best path alone. Other branches are accepted at times, and they count.": (
                lambda parents, p: float(1 + _best_path(parents, p))
            ),
        },
        praise="One for the bonus token, and each node's path probability: expectations add up.",
        cases=TREES,
    ),
    "03.3": Exercise(
        right=lambda tokens, cost, marginal: marginal * tokens / cost,
        mistakes={
            "In the node's time the tree would emit tokens anyway, at its own rate. The node must bring as many.": (
                lambda tokens, cost, marginal: marginal
            ),
            "The rate is tokens over cost, not cost over tokens.": lambda tokens, cost, marginal: (
                marginal * cost / tokens
            ),
            "Plain decoding's rate is 1; the tree is faster, so its time is worth more.": (
                lambda tokens, cost, marginal: marginal / cost
            ),
        },
        praise="Above it (tokens + p) / (cost + marginal) exceeds tokens / cost, below it falls short.",
        cases=[(2.5, 1.4, 0.02), (4.0, 1.2, 0.1), (1.0, 1.0, 0.05)],
    ),
    "04.1": Exercise(
        right=_residual,
        mistakes={
            "What is left has to sum to 1.": lambda p, q: np.maximum(np.subtract(p, q), 0),
            "Where the draft gives more than the target nothing is left to add.": (
                lambda p, q: np.abs(np.subtract(p, q)) / np.abs(np.subtract(p, q)).sum()
            ),
            "Drawing from the target again adds to tokens whose share accepted drafts have already filled.": (
                lambda p, q: np.array(p, float)
            ),
        },
        praise="The part of the target that accepted drafts do not cover.",
        cases=DISTRIBUTIONS,
    ),
    "04.2": Exercise(
        right=_without,
        mistakes={
            "This draws with replacement: the second sibling could be the first one again.": (
                lambda q, drawn: np.array(q, float)
            ),
            "A distribution sums to 1.": lambda q, drawn: np.where(np.arange(len(q)) == drawn, 0, q),
            "Removed is the token that was drawn, not the most probable one.": (
                lambda q, drawn: _without(q, int(np.argmax(q)))
            ),
        },
        praise="A rule that divides by q itself here would be biased; the tree must record this distribution.",
        cases=[(q, drawn) for _, q in DISTRIBUTIONS for drawn in range(3)],
    ),
    "04.3": Exercise(
        right=_two,
        mistakes={
            "The second token is drawn from what is left of q without the first.": (
                lambda p, q: _two(p, q, lambda q, drawn: np.array(q, float))
            ),
            "After a rejection the second token is tested against the residual, no longer against p.": (
                lambda p, q: _two(p, q, left=lambda p, q: p)
            ),
            "The two decisions are not independent: that the first was rejected says something about it.": (
                lambda p, q: 1 - (1 - _accepted(p, q)) ** 2
            ),
            "This is for one sibling.": _accepted,
        },
        praise="The first by min(1, p/q). The second, given the first, by what the residual and the rest of q share.",
        cases=DISTRIBUTIONS,
    ),
}
"""By number: of the notebook, and of the exercise in it."""


def _best_path(parents: Sequence[int], p: Numbers) -> float:
    """Expected accepted tokens along the path of the most probable children from node 0 on."""
    node, below, total = 0, 1.0, 0.0
    while children := [child for child, parent in enumerate(parents) if parent == node]:
        node = max(children, key=lambda child: p[child])
        below *= p[node]
        total += below
    return total
