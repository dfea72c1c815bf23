"""`HFModel`: an unpatched transformers model as a `LanguageModel`, with tree attention by mask and depth positions."""

from __future__ import annotations

import copy
import hashlib
from typing import Any

import numpy as np
import torch
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from ..masks import additive, ancestor_matrix, depth_positions, sliding_window
from .base import LanguageModel, Session
from .cache import TreeCache
from .check import check_architecture, check_tree_attention
from .lean import LeanGPTNeoX

LONGEST_JOINT_PREFILL = 256
"""Queued tokens up to this many are read in one forward with the tree; more are read before it, without a mask."""


class HFModel(LanguageModel):
    """A transformers causal language model that can score token trees.

    Args:
        model: a `PreTrainedModel` of a supported architecture, with sdpa or eager attention; it is put in eval mode.
        tokenizer: its tokenizer, or None.
        lean: use the lean forward where the architecture has one (`models/lean.py`).
        check: score a small tree both ways once and refuse the model if the logits differ.

    Raises:
        ValueError: for an architecture or attention implementation that cannot score trees; the sentence says why.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        check: bool = True,
        lean: bool = True,
    ) -> None:
        check_architecture(model.config)
        self.model = model.eval()
        self.tokenizer = tokenizer
        config = model.config
        self.name = config.name_or_path or config.model_type
        self.vocab_size = int(config.vocab_size)
        self.context = int(config.max_position_embeddings)
        ends = getattr(model.generation_config, "eos_token_id", None)
        self.eos_token_ids = _as_tuple(getattr(config, "eos_token_id", None) if ends is None else ends)
        self.vocabulary = vocabulary_fingerprint(tokenizer) if tokenizer is not None else None
        self.layers = int(config.num_hidden_layers)
        self.session_class: type[HFSession] = HFSession
        self.lean = LeanGPTNeoX.of(model) if lean else None
        if check:
            check_tree_attention(self)

    @property
    def device(self) -> torch.device:
        """Device of the input embeddings."""
        return self.model.get_input_embeddings().weight.device

    @property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.model.dtype

    @property
    def parameters(self) -> int:
        """Number of weights, tied ones counted once."""
        return sum(weight.numel() for weight in self.model.parameters())

    def session(self) -> HFSession:
        """A new, empty session with its own cache."""
        return self.session_class(self)

    def with_sessions(self, session_class: type[HFSession]) -> HFModel:
        """The same model (weights shared) opening sessions of another class."""
        other = copy.copy(self)
        other.session_class = session_class
        return other

    def narrowed(self, width: int) -> HFModel:
        """The same model (weights shared) whose rows of logits end after `width` tokens.

        Some families pad their embeddings differently per size; the surplus columns are no tokens.
        """
        other = copy.copy(self)
        other.vocab_size = min(self.vocab_size, width)
        return other

    def forward(
        self, tokens: np.ndarray, positions: np.ndarray, mask: Any, cache: TreeCache, keep: int
    ) -> torch.Tensor:
        """One forward of (n,) tokens; (keep, V) logits of the last `keep` rows."""
        device = self.device
        ids, places = torch.from_numpy(tokens).to(device), torch.from_numpy(positions).to(device)
        if self.lean is not None and (mask is not None or len(tokens) == 1):
            return self.lean(ids, places, mask, cache, keep)[:, : self.vocab_size]
        output = self.model(
            input_ids=ids[None],
            position_ids=places[None],
            attention_mask=mask,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=keep,
        )
        return output.logits[0, :, : self.vocab_size]

    def mask(self, allowed: np.ndarray, rows: np.ndarray, keys: np.ndarray) -> torch.Tensor | dict[str, torch.Tensor]:
        """What the model takes as attention mask for (n, m) bool `allowed`; one mask per layer type where it has types.

        Args:
            rows: (n,) positions of the scored rows.
            keys: (m,) positions of the cache columns.
        """
        config = self.model.config
        window = getattr(config, "sliding_window", None)
        types = set(getattr(config, "layer_types", None) or ())
        if window is None or (types and "sliding_attention" not in types):
            return self._additive(allowed)
        narrow = self._additive(sliding_window(allowed, rows, keys, window))
        return {"full_attention": self._additive(allowed), "sliding_attention": narrow} if types else narrow

    def _additive(self, allowed: np.ndarray) -> torch.Tensor:
        return additive(allowed, self.dtype).to(self.device)[None, None]


class HFSession(Session):
    """One sequence in the cache of a transformers model."""

    def __init__(self, model: HFModel) -> None:
        super().__init__(model.name)
        self.model = model
        self._reset()

    def _reset(self) -> None:
        self._cache = TreeCache(self.model.layers)

    @torch.inference_mode()
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        if len(queue) > LONGEST_JOINT_PREFILL or not len(tokens):
            self._prefill(np.asarray(queue, np.int64))
            queue = []
        if not len(tokens):
            return torch.empty(0, self.model.vocab_size)
        joined = np.concatenate([np.asarray(queue, np.int64), tokens]) if queue else tokens
        base = self._cache.get_seq_length() - (len(parents) - len(tokens))  # committed rows in the cache
        mask, positions = self._mask_and_positions(base, len(queue), len(tokens), parents)
        return self.model.forward(joined, positions, mask, self._cache, keep=len(tokens))

    def _prefill(self, queue: np.ndarray) -> None:
        if not len(queue):
            return
        # No mask: transformers builds its own causal one, and sdpa can use its fast causal kernel.
        start = self.position - len(queue)
        positions = np.arange(start, self.position)
        self.model.forward(queue, positions, None, self._cache, keep=1)

    def _mask_and_positions(self, base: int, queued: int, count: int, parents: np.ndarray) -> tuple[Any, np.ndarray]:
        """Mask over [committed, queued, pending] columns for the queued rows and the last `count` nodes."""
        nodes = len(parents)
        node_positions = self._node_positions(parents)
        keys = np.concatenate([np.arange(self.position - queued - base, self.position), node_positions])
        rows = np.concatenate([keys[base : base + queued], node_positions[nodes - count :]])
        allowed = np.zeros((queued + count, base + queued + nodes), bool)
        allowed[:, :base] = True
        allowed[:queued, base : base + queued] = np.tri(queued, dtype=bool)
        allowed[queued:, base : base + queued] = True
        allowed[queued:, base + queued :] = ancestor_matrix(parents)[nodes - count :]
        if len(rows) == 1 and allowed.all():
            return None, rows  # one row that sees everything needs no mask, and attention is faster without
        return self.model.mask(allowed, rows, keys), rows

    def _node_positions(self, parents: np.ndarray) -> np.ndarray:
        return depth_positions(parents, self.position)

    @torch.inference_mode()
    def _keep(self, rows: np.ndarray) -> None:
        self._cache.keep(self.length, torch.from_numpy(rows))


def vocabulary_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Hash of a tokenizer's token-to-id map: equal for tokenizers that number the same tokens alike."""
    listing = "\n".join(f"{index}\t{token}" for token, index in sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(listing.encode()).hexdigest()[:16]


def _as_tuple(ids: int | list[int] | None) -> tuple[int, ...]:
    return () if ids is None else (ids,) if isinstance(ids, int) else tuple(ids)
