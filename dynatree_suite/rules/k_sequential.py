"""K-SEQ (SpecTr, Sun et al. 2023, Algorithm 3): siblings drawn with replacement are all tested against one row.

Recursive rejection sampling takes from the row what each rejected sibling would have got. K-SEQ leaves the row as it is
and divides it by a number between 1 and the number of siblings, large enough that nothing is accepted too often.
"""

from __future__ import annotations

from itertools import groupby

import numpy as np
import torch
from typing_extensions import override

from dynatree_lib.sampling import RandomSource
from dynatree_lib.tree import IID
from dynatree_lib.verifiers.base import Drawing
from dynatree_lib.verifiers.residual import Recorded, Residual, TopDown, one_by_one

from .rows import drawn_from, row_of

HALVINGS = 24
"""Of the interval that holds the divisor; the rule is exact with its upper end, however wide it is."""


class KSequential(TopDown):
    """Top down: accept a sibling x with probability min(1, p(x) / (d q(x))), d the divisor of all its siblings.

    How many siblings there are must be decided before the first of them is drawn. Siblings drawn without replacement
    and deterministic ones are tried as token-level verification does.
    """

    name = "k-sequential"
    refuses = (Drawing.SELECTED, Drawing.GROWN)

    @override
    def accepted(self, residual: Residual, recorded: Recorded, children: list[int], random: RandomSource) -> int | None:
        for draw, group in groupby(children, key=lambda child: recorded.tree.draws[child]):
            siblings = list(group)
            together = draw == IID and len(siblings) > 1
            child = (_together if together else one_by_one)(residual, recorded, siblings, random)
            if child is not None:
                return child
        return None


def _together(residual: Residual, recorded: Recorded, siblings: list[int], random: RandomSource) -> int | None:
    """Do what `TopDown.accepted` does for siblings drawn with replacement."""
    p, tokens = row_of(residual), recorded.tree.tokens
    for child in siblings:
        recorded.prob(child)  # an error where it is 0
    q = drawn_from(recorded, siblings[0], len(p))
    divisor = smallest_divisor(p, q, len(siblings))
    for child in siblings:
        token = int(tokens[child])
        if random.accept(min(1.0, float(p[token] / (divisor * q[token])))):
            return child
    each = np.minimum(q, p / divisor)  # what one sibling takes of each token
    residual.leave(torch.from_numpy(np.maximum(p - each * _repeated(float(each.sum()), len(siblings)), 0)))
    return None


def smallest_divisor(p: np.ndarray, q: np.ndarray, count: int) -> float:
    """Return the least d in [1, count] with 1 - (1 - b)^count <= d b, where b = sum min(q, p / d).

    Then no token is accepted more often than the target wants it: at most min(q, p / d) (1 - (1 - b)^count) / b <= p.

    Args:
        p: (V,) distribution of the target.
        q: (V,) distribution that the siblings were drawn from.
        count: siblings.
    """
    low, high = 1.0, float(count)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        if _repeated(float(np.minimum(q, p / middle).sum()), count) <= middle:
            high = middle
        else:
            low = middle
    return high


def _repeated(once: float, count: int) -> float:
    """Return (1 - (1 - b)^count) / b for the probability b that one sibling is accepted; count where b is 0."""
    return sum((1 - once) ** number for number in range(count))
