"""The best that a lossless rule can do: linear programmes on models small enough to enumerate.

`best_tokens` asks for the largest expected tokens of an iteration, over all rules that see the drafted tree, the
target's and the draft's distributions everywhere, and whose output has the target's distribution. `optimal_plan` asks
the same of one group of siblings: the optimum of the transport between what may be drawn and what the target wants
(SpecTr). It is a plan for `Transport` and `ConditionalTransport`, at small vocabularies.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import product

import numpy as np
from scipy.optimize import linprog
from scipy.sparse import coo_array, csr_array

from dynatree_lib.drafters.base import Drafter
from dynatree_lib.models.toy import ToyModel
from dynatree_lib.sampling import Sampling
from dynatree_lib.tree import DISTINCT

from ..rules.transport import Group, Shares, hub_plan
from .exact import Text, Tokens, proposals, text_distribution

MOST_DRAWS = 5_000
"""Sequences of siblings that may be drawn, up to which `optimal_plan` looks at all of them."""
Paths = frozenset[Text]


def drafted_paths(drafter: Drafter, prompt: Tokens, sampling: Sampling) -> Mapping[Paths, float]:
    """Return the probability of each set of paths a drafted tree may have, node 0 being the empty path.

    A tree is more than the set: the order of siblings and copies among them. None of that tells of the target's
    distribution, so no rule gains by it.
    """
    found: dict[Paths, float] = defaultdict(float)
    for proposal, mass in proposals(drafter, prompt, sampling):
        tree = proposal.tree
        found[frozenset(tuple(tree.tokens[tree.path(node)].tolist()) for node in range(len(tree)))] += mass
    return dict(found)


def best_tokens(target: ToyModel, drafter: Drafter, prompt: Tokens, sampling: Sampling) -> float:
    """Return the most tokens that a lossless rule emits in an iteration on average, the bonus token included.

    Variables: the probability that each set of paths gives to each of its nodes as the last accepted one, and for each
    node and bonus token the probability of emitting this text over the target's. The output, completed by the target,
    has the target's distribution if the latter sum to 1 along every text: where a text ends with probability x p, the
    target goes on with a share x of all that follows.

    Args:
        target: the table.
        drafter: of the trees.
        prompt: tokens before the tree, node 0 last.
        sampling: the target's.

    Raises:
        RuntimeError: where the programme is not solved, which it always can be.
    """
    sets = drafted_paths(drafter, prompt, sampling)
    length = max(len(path) for paths in sets for path in paths) + 1
    wanted = {number: text_distribution(target, prompt, number, sampling) for number in range(length + 1)}
    reached = {path for paths in sets for path in paths if path in wanted[len(path)]}  # by the target
    nodes = {path: row for row, path in enumerate(sorted(reached))}
    texts = {text: row for row, text in enumerate(wanted[length])}
    ends = [(row, nodes[path]) for row, paths in enumerate(sets) for path in paths if path in nodes]
    bonus = [(path, (*path, token)) for path in nodes for token in range(target.vocab_size)]
    bonus = [(path, text) for path, text in bonus if text in wanted[len(text)]]
    first, count = len(sets), len(ends)
    most = [(row, column, 1.0) for column, (row, _) in enumerate(ends)]  # a set gives what it has
    most += [(first + node, column, -1.0) for column, (_, node) in enumerate(ends)]  # a node, what comes to it
    most += [
        (first + nodes[path], count + column, wanted[len(text)][text]) for column, (path, text) in enumerate(bonus)
    ]
    below: dict[Text, list[Text]] = defaultdict(list)
    for text, size in product(texts, range(1, length + 1)):
        below[text[:size]].append(text)
    equal = [(texts[whole], count + column, 1.0) for column, (_, text) in enumerate(bonus) for whole in below[text]]
    depths = [len(path) for path in nodes]
    gain = np.array([*(depths[node] for _, node in ends), *np.zeros(len(bonus))])
    solved = linprog(
        -gain,
        A_ub=_matrix(most, len(sets) + len(nodes), len(gain)), b_ub=[*sets.values(), *np.zeros(len(nodes))],
        A_eq=_matrix(equal, len(texts), len(gain)), b_eq=np.ones(len(texts)), method="highs",
        options={"presolve": False},  # which takes rare trees, with probabilities near its tolerance, for infeasible
    )  # fmt: skip
    if solved.status != 0:
        raise RuntimeError(f"The linear programme of the best lossless rule was not solved: {solved.message}")
    return 1 - float(solved.fun)


def _matrix(entries: Sequence[tuple[int, int, float]], height: int, width: int) -> csr_array:
    """Return a sparse matrix of (row, column, value)."""
    rows, columns, values = zip(*entries, strict=True)
    return coo_array((values, (rows, columns)), shape=(height, width)).tocsr()


def optimal_plan(row: np.ndarray, group: Group) -> Shares:
    """Return the shares of a group under a plan that accepts one of it as often as any plan can.

    Drawn siblings are transported by a linear programme over all sets of tokens that may be drawn; give the rule
    `together` as large as the most siblings of a node. Deterministic siblings have an optimum in closed form.

    Raises:
        ValueError: for more than 5,000 sequences of siblings that may be drawn.
    """
    if group.drawn is None or len(group.tokens) == 1 or group.draws[0] != group.draws[-1]:
        return hub_plan(row, group)
    support = int((group.drawn > 0).sum())
    if support ** len(group.tokens) > MOST_DRAWS:
        raise ValueError(
            f"{len(group.tokens)} siblings drawn from {support} tokens can be drawn in more than {MOST_DRAWS:,} ways; "
            "the optimal plan is for small vocabularies. Use hub_plan, or a sampling with a small top_k."
        )
    shares, rest = _solved(tuple(row.tolist()), tuple(group.drawn.tolist()), group.draws[0], len(group.tokens))
    mine, accepted = shares[frozenset(group.tokens)], list[float]()
    for place, token in enumerate(group.tokens):
        accepted.append(0.0 if token in group.tokens[:place] else mine[token])
    return Shares(accepted, np.array(rest))


@lru_cache(maxsize=4096)
def _solved(
    row: tuple[float, ...], drawn: tuple[float, ...], draws: int, count: int
) -> tuple[dict[frozenset[int], dict[int, float]], list[float]]:
    """Return the share of each token of each set, given the set, and what is left of the row."""
    sets = drawn_sets(drawn, draws, count)
    pairs = [(place, token) for place, tokens in enumerate(sets) for token in sorted(tokens)]
    most = [(place, column, 1.0) for column, (place, _) in enumerate(pairs)]
    most += [(len(sets) + token, column, 1.0) for column, (_, token) in enumerate(pairs)]
    masses = np.array([*sets.values()])
    solved = linprog(
        -np.ones(len(pairs)), A_ub=_matrix(most, len(sets) + len(row), len(pairs)), b_ub=[*masses, *row], method="highs"
    )
    given = np.zeros((len(sets), len(row)))
    for (place, token), share in zip(pairs, solved.x, strict=True):
        given[place, token] = max(share, 0.0)
    # The solution is feasible up to 1e-9; scaled down it is so up to rounding, and then the rule is exact.
    given *= np.minimum(1, masses / np.maximum(given.sum(1), 1e-300))[:, None]
    given *= np.minimum(1, np.array(row) / np.maximum(given.sum(0), 1e-300))
    shares = {
        tokens: {token: given[place, token] / masses[place] for token in tokens} for place, tokens in enumerate(sets)
    }
    return shares, np.maximum(np.array(row) - given.sum(0), 0).tolist()


def drawn_sets(drawn: tuple[float, ...], draws: int, count: int) -> dict[frozenset[int], float]:
    """Return the probability of each set of tokens that `count` draws from a distribution may give.

    Args:
        drawn: probabilities of the tokens.
        draws: `IID` or `DISTINCT`.
        count: draws.
    """
    found: dict[frozenset[int], float] = defaultdict(float)
    support = [token for token, share in enumerate(drawn) if share > 0]
    for tokens in product(support, repeat=count):
        if draws != DISTINCT or len(set(tokens)) == count:
            mass, left = 1.0, list(drawn)
            for token in tokens:
                mass *= left[token] / sum(left)
                if draws == DISTINCT:
                    left[token] = 0.0
            found[frozenset(tokens)] += mass
    return dict(found)
