"""A key/value cache whose tail can be rewritten: tree nodes are appended, the accepted path moved up, the rest dropped.

transformers' own DynamicCache concatenates, which copies the whole cache at each forward; this one writes into a buffer
with spare room and hands out views. All layers share one tensor, so that a commit is one gather.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer


class TreeCache(Cache):
    """Keys and values of all layers of one sequence.

    Attributes:
        states: (L, 2, 1, H, capacity, D) keys and values in the dtype of the first ones written; None before.
        size: rows in use. A forward appends its rows layer by layer and they count once the last layer has them, so
            that an interrupted forward leaves nothing behind.

    Args:
        layers: L of the model.
        capacity: rows to make room for beyond the first forward's; it doubles when needed.
    """

    def __init__(self, layers: int, capacity: int = 256) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(layers)])  # what transformers reads layer types from
        self.depth, self.capacity = layers, capacity
        self.states: torch.Tensor | None = None
        self.size = 0

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (1, H, n, D) states of one layer; views (1, H, size + n, D) of all its rows."""
        end = self.size + key_states.shape[2]
        if layer_idx == 0:
            self._make_room(key_states, end)
        keys, values = self._views[layer_idx]
        keys[:, :, self.size : end] = key_states
        values[:, :, self.size : end] = value_states
        if layer_idx == self.depth - 1:
            self.size = end
        return keys[:, :, :end], values[:, :, :end]

    def _make_room(self, like: torch.Tensor, end: int) -> None:
        if self.states is None:
            self.capacity += end
        elif end <= self.capacity:
            return
        else:
            self.capacity = max(end, 2 * self.capacity)
        old, (batch, heads, _, width) = self.states, like.shape
        self.states = like.new_empty((self.depth, 2, batch, heads, self.capacity, width))
        if old is not None:
            self.states[..., : self.size, :] = old[..., : self.size, :]
        self._views = [tuple(layer.unbind(0)) for layer in self.states.unbind(0)]

    def keep(self, base: int, rows: np.ndarray) -> None:
        """Keep the first `base` rows, move the rows `base + rows` behind them, forget the others.

        Args:
            rows: (k,) int64, ascending.
        """
        count = len(rows)
        if count and rows[-1] != count - 1:  # otherwise they stand there already
            assert self.states is not None
            index = torch.from_numpy(base + rows).to(self.states.device)
            self.states[..., base : base + count, :] = self.states.index_select(4, index)
        self.size = base + count

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Rows in use."""
        return self.size

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Width and offset of an attention mask for `query_length` more rows."""
        return self.size + query_length, 0
