"""Rows over the vocabulary as float64 arrays, which the rules of this room compute with."""

from __future__ import annotations

import numpy as np

from dynatree_lib.tree import POINT
from dynatree_lib.verifiers.residual import Recorded, Residual


def row_of(residual: Residual) -> np.ndarray:
    """Return r of a node as a new (V,) float64 array whose sum is the residual's mass."""
    weights = residual.weights.numpy().astype(np.float64)
    total = float(weights.sum())
    return weights * (residual.mass / total if total > 0 else 0.0)


def drawn_from(recorded: Recorded, node: int, size: int) -> np.ndarray:
    """Return q_c of any node as a new (size,) float64 array that sums to 1."""
    out, tree = np.zeros(size), recorded.tree
    if tree.draws[node] == POINT:
        out[int(tree.tokens[node])] = 1.0
        return out
    distribution = recorded.distribution(node).numpy().astype(np.float64)
    out[: len(distribution)] = distribution / distribution.sum()
    return out
