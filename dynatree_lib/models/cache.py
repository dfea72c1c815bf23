"""A key/value cache whose tail can be rewritten: tree nodes are appended, the accepted path moved up, the rest dropped.

transformers' own DynamicCache concatenates, which copies the whole cache at each forward; this one writes into a buffer
with spare room and hands out views.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache, DynamicLayer


class TreeLayer(DynamicLayer):
    """Keys and values of one layer: (1, H, capacity, D) buffers of which `size` rows are in use."""

    def __init__(self, capacity: int) -> None:
        super().__init__()
        self.capacity = capacity
        self.size = 0

    def lazy_initialization(self, key_states: torch.Tensor, value_states: torch.Tensor) -> None:
        """Allocate the buffers in the shape and dtype of the first states."""
        self.dtype, self.device = key_states.dtype, key_states.device
        self.capacity += key_states.shape[2]  # room for the prompt, and as much again as usual
        self.keys = key_states.new_empty((*key_states.shape[:2], self.capacity, key_states.shape[3]))
        self.values = value_states.new_empty((*value_states.shape[:2], self.capacity, value_states.shape[3]))
        self.is_initialized = True

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (1, H, n, D) states; views of all rows in use."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        end = self.size + key_states.shape[2]
        if end > self.capacity:
            self._grow(max(end, 2 * self.capacity))
        self.keys[:, :, self.size : end] = key_states
        self.values[:, :, self.size : end] = value_states
        self.size = end
        return self.keys[:, :, :end], self.values[:, :, :end]

    def _grow(self, capacity: int) -> None:
        for name in ("keys", "values"):
            old = getattr(self, name)
            new = old.new_empty((*old.shape[:2], capacity, old.shape[3]))
            new[:, :, : self.size] = old[:, :, : self.size]
            setattr(self, name, new)
        self.capacity = capacity

    def keep(self, base: int, rows: torch.Tensor | None, count: int) -> None:
        """Leave `base` rows followed by the rows at `rows` (None when those already stand there)."""
        if rows is not None:
            self.keys[:, :, base : base + count] = self.keys.index_select(2, rows)
            self.values[:, :, base : base + count] = self.values.index_select(2, rows)
        self.size = base + count

    def get_seq_length(self) -> int:
        """Rows in use."""
        return self.size

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Width and offset of an attention mask for `query_length` more rows."""
        return self.size + query_length, 0


class TreeCache(Cache):
    """One `TreeLayer` per layer.

    Args:
        layers: number of layers of the model.
        capacity: rows to make room for at first; it doubles when needed.
    """

    def __init__(self, layers: int, capacity: int = 256) -> None:
        super().__init__(layers=[TreeLayer(capacity) for _ in range(layers)])

    def keep(self, base: int, rows: torch.Tensor) -> None:
        """Keep the first `base` rows, move the rows `base + rows` behind them, forget the others.

        Args:
            rows: (k,) int64 on the CPU, ascending.
        """
        count = len(rows)
        in_place = count == 0 or int(rows[-1]) == count - 1
        index = None if in_place else base + rows
        for layer in self.layers:
            if index is not None and index.device != layer.keys.device:
                index = index.to(layer.keys.device)
            layer.keep(base, index, count)
