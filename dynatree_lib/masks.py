"""Tree attention masks: which nodes a node sees when a tree is scored in one forward (DynaTree, section 3.4).

The boolean matrix here is the paper's A; `additive` turns it into what a transformers model takes. The slow literal
loop of the definition is in tests/reference.py and in notebook 02.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import torch

from .tree import ROOT, depths_of


def ancestor_matrix(parents: np.ndarray) -> np.ndarray:
    """Return the (n, n) bool matrix that is true at (i, j) where node j is node i or an ancestor of it.

    Args:
        parents: (n,) int64, -1 for a root; a parent comes before its children. Forests are allowed.

    Raises:
        ValueError: for a parent that does not come before its child.
    """
    return _ancestors(np.ascontiguousarray(parents, np.int64).tobytes())


@lru_cache(maxsize=256)  # trees of one drafter keep returning to the same few shapes
def _ancestors(parents: bytes) -> np.ndarray:
    above = np.frombuffer(parents, np.int64)
    if not ((above >= ROOT) & (above < np.arange(len(above)))).all():
        raise ValueError(f"The parents are {above.tolist()}; give each node one that comes before it, or -1.")
    out = np.eye(len(above), dtype=bool)
    node = above
    while (node >= 0).any():  # every pass doubles how far up a node sees, so a prompt of 256 tokens takes nine
        deep = np.flatnonzero(node >= 0)
        out[deep] |= out[node[deep]]
        node = np.where(node >= 0, node[node], ROOT)
    out.flags.writeable = False
    return out


def laid_out(
    queue: Sequence[int] | np.ndarray, tokens: np.ndarray, parents: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Lay q queued tokens and n new nodes out for one forward.

    Args:
        queue: (q,) committed tokens that were not read yet.
        tokens: (n,) the new nodes.
        parents: (p,) parents of all pending nodes, the last n of which are new; roots hang below the queue's end.

    Returns:
        (q + n,) int64 tokens; (q + p,) parents of the forest of queue and pending nodes; (q + n, q + p) bool, which
        nodes of the forest each token sees.
    """
    queued = len(queue)
    if queued:  # a chain, below whose last token the roots, -1, come to hang
        tokens, parents = np.concatenate([queue, tokens]), np.concatenate([np.arange(queued) - 1, parents + queued])
    return tokens, parents, ancestor_matrix(parents)[len(parents) - len(tokens) :]


def tree_mask(parents: np.ndarray, prefix: int) -> np.ndarray:
    """Return the (n, prefix + n) bool mask A of the paper: a node sees the whole prefix, its ancestors and itself.

    Raises:
        ValueError: as for `ancestor_matrix`.
    """
    n = len(parents)
    out = np.ones((n, prefix + n), bool)
    out[:, prefix:] = ancestor_matrix(parents)
    return out


def depth_positions(parents: np.ndarray, position: int) -> np.ndarray:
    """Return the (n,) int64 position of each node: `position` for the roots, 1 more per level."""
    return position + _depths(np.ascontiguousarray(parents, np.int64).tobytes())


@lru_cache(maxsize=256)
def _depths(parents: bytes) -> np.ndarray:
    return depths_of(np.frombuffer(parents, np.int64))


def additive(allowed: np.ndarray | torch.Tensor, dtype: torch.dtype, base: int = 0) -> torch.Tensor:
    """Return the (..., n, base + m) mask of `dtype`: 0 where allowed, the dtype's most negative number elsewhere.

    Not -inf: a line with nothing allowed (padding) would become NaN and spread.

    Args:
        allowed: (..., n, m) bool; the mask of a tensor is on its device.
        base: columns of committed tokens, which come first; every node sees them.
    """
    hidden = torch.as_tensor(~allowed)
    mask = torch.zeros((*hidden.shape[:-1], base + hidden.shape[-1]), dtype=dtype, device=hidden.device)
    mask[..., base:].masked_fill_(hidden, torch.finfo(dtype).min)
    return mask


def sliding_window(allowed: np.ndarray, positions: np.ndarray, key_positions: np.ndarray, window: int) -> np.ndarray:
    """Restrict (n, m) bool `allowed` to keys less than `window` positions back, counted in depth.

    A sliding-window layer does the same for a plain sequence.

    Args:
        positions: (n,) positions of the scored nodes.
        key_positions: (m,) positions of the KV entries.
    """
    return allowed & (positions[:, None] - key_positions[None, :] < window)


def chunk(allowed: np.ndarray, positions: np.ndarray, key_positions: np.ndarray, size: int) -> np.ndarray:
    """Restrict (n, m) bool `allowed` to keys in the same chunk of `size` positions (Llama 4's local attention).

    Args:
        positions: (n,) positions of the scored nodes.
        key_positions: (m,) positions of the KV entries.
    """
    return allowed & (positions[:, None] // size == key_positions[None, :] // size)
