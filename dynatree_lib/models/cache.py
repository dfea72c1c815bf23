"""A key/value cache whose tail can be rewritten: tree nodes are appended, the accepted path moved up, the rest dropped.

transformers' own DynamicCache concatenates, which copies the whole cache at each forward; this one writes into a buffer
with spare capacity and hands out views. All layers of a device share one tensor, so that a commit is one gather.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer


class TreeCache(Cache):
    """The keys and values of all layers of one sequence.

    Attributes:
        stores: (L, 2, 1, H, capacity, D) keys and values in the dtype of the first ones written; one such tensor
            for each device, of the layers there. Empty before the first forward.
        widths: components of a key and of a value, the larger of which is D; multi-head latent attention (DeepSeek)
            has values narrower than keys.
        size: entries in use. A forward appends its entries layer by layer; they count once the last layer has them,
            so that an interrupted forward leaves nothing behind.
        unchanged: so many entries, from the first on, have not changed since an engine set this. An engine that keeps
            a copy of them in an order of its own sets it after each forward.

    Args:
        layers: L of the model.
        capacity: entries to allocate beyond those of the first forward; it doubles when needed.
        devices: of each layer; by default that of the first layer's states.
        last: the last layer that has entries of its own, by default the last of all: in some models later layers share
            those of earlier ones (Gemma 3n).
    """

    def __init__(
        self, layers: int, capacity: int = 256, devices: Sequence[torch.device] | None = None, last: int | None = None
    ) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(layers)])  # what transformers reads layer types from
        self.depth, self.capacity, self.devices = layers, capacity, devices
        self.last = layers - 1 if last is None else last
        self.stores: list[torch.Tensor] = []
        self.widths = (0, 0)
        self.size = 0
        self.unchanged = 0

    @property
    def states(self) -> torch.Tensor:
        """The store of a model on one device."""
        (states,) = self.stores
        return states

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Append (1, H, n, D) states of one layer; return views (1, H, size + n, D) of all its entries."""
        end = self.size + key_states.shape[2]
        if layer_idx == 0:
            self.widths = key, value = key_states.shape[-1], value_states.shape[-1]
            self._reserve(key_states if key >= value else value_states, end)
        keys, values = self._views[layer_idx]
        keys[:, :, self.size : end] = key_states
        values[:, :, self.size : end] = value_states
        if layer_idx == self.last:
            self.size = end
        return keys[:, :, :end], values[:, :, :end]

    def room_for(self, like: torch.Tensor, heads: int, width: int, count: int) -> tuple[int, torch.Tensor]:
        """Allocate what `count` further entries of (heads, width) states need, with the dtype and device of `like`.

        Returns:
            entries in use, and the store of a model on one device, for a caller that writes the states itself and
            then sets `size`.
        """
        if not self.stores or self.size + count > self.capacity:
            self.widths = width, width
            self._reserve(like.new_empty(1, heads, 0, width), self.size + count)
        return self.size, self.states

    def _reserve(self, like: torch.Tensor, end: int) -> None:
        """Allocate stores for `end` entries of the width of `like`, where there are none or they are too small."""
        if not self.stores:
            self.capacity += end
        elif end <= self.capacity:
            return
        else:
            self.capacity = max(end, 2 * self.capacity)
        self._places = list(self.devices or [like.device] * self.depth)
        batch, heads, _, width = like.shape
        old, self.stores = self.stores, []
        for number, device in enumerate(self._devices()):
            count = self._places.count(device)
            store = like.new_empty((count, 2, batch, heads, self.capacity, width), device=device)
            if old:
                store[..., : self.size, :] = old[number][..., : self.size, :]
            self.stores.append(store)
        self.look()

    def look(self) -> None:
        """Take the views of all layers' keys and values anew, after `stores` were replaced."""
        parts = {device: iter(store.unbind(0)) for device, store in zip(self._devices(), self.stores, strict=True)}
        layers = [next(parts[device]) for device in self._places]
        key, value = self.widths
        self._views = [(layer[0][..., :key], layer[1][..., :value]) for layer in layers]

    def _devices(self) -> list[torch.device]:
        """Each device once, in the order of `stores`."""
        return list(dict.fromkeys(self._places))

    def keep(self, base: int, entries: np.ndarray) -> None:
        """Keep the first `base` entries, move the entries `base + entries` behind them, forget the others.

        Args:
            entries: (k,) int64, ascending.
        """
        count = len(entries)
        if count and entries[-1] != count - 1:  # otherwise they stand there already
            for store in self.stores:
                index = torch.from_numpy(base + entries).to(store.device)
                store[..., base : base + count, :] = store.index_select(4, index)
        self.size, self.unchanged = base + count, min(self.unchanged, base)

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Return the number of entries in use."""
        return self.size

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Return width and offset of an attention mask for `query_length` further tokens."""
        return self.size + query_length, 0
