"""`BatchedModel`: one model reads several sequences, each with its own tree, in shared forwards.

A forward is as long as the longest sequence's tokens; the other sequences are padded on the left, so that the tokens
whose logits are wanted come last everywhere. Each sequence has a slot of one cache: its KV entries are written behind
those already in the slot, and a mask made on the device says which of the slot's columns a token sees. Which sequences
wait for which is left to `batching`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from typing_extensions import override

from ..masks import additive, depth_positions, laid_out
from ..models.base import LanguageModel, Session
from ..models.huggingface import LONGEST_JOINT_PREFILL, HFModel, HFSession
from .static import AimedCache

WORTH = {"cpu": 24}
"""Tokens that cost as much as one more forward, by device type (CPU: 1.4 ms against 0.06 on the bundled target)."""
WORTH_ELSEWHERE = 256
SPARE = 256
"""KV entries that a slot has beyond those of the first forward; its capacity doubles when needed."""
ALIGNED = 8
"""Columns of a forward are a multiple of this, which fast attention kernels want of a mask."""


@dataclass
class Request:
    """Tokens of one sequence to read: committed tokens first, nodes of its tree after them.

    Attributes:
        session: of the sequence.
        tokens, positions: (n,) int64.
        base: columns of the slot that all the tokens see.
        tail: (n, t) bool, which of the t columns after them each token sees; the last n of the t are the tokens' own.
        keep: logits of this many last tokens are wanted.
        logits: (keep, V) once the request is served.
    """

    session: SlotSession
    tokens: np.ndarray
    positions: np.ndarray
    base: int
    tail: np.ndarray
    keep: int
    logits: torch.Tensor | None = None


@dataclass(frozen=True)
class SharedForward:
    """Size of one forward: `slots` sequences wanted `tokens` tokens; `computed` is their number with all padding."""

    role: str
    slots: int
    tokens: int
    computed: int


class BatchedModel(LanguageModel):
    """A model (weights shared) whose sessions have slots of one cache.

    Attributes:
        sessions: the sessions that have a slot, by slot.
        cache: keys and values of all slots. It grows when needed; its memory is freed with this object.
        ask: serves a request and returns its logits; given by whoever lets several sequences ask.
        on_forward: is called with every forward.

    Args:
        base: the model; it is not changed.
        role: of the model, for `SharedForward`.

    Raises:
        TypeError: for anything but a transformers model.
        ValueError: for a model with sliding windows, or whose sessions are not the plain ones.
    """

    ask: Callable[[Request], torch.Tensor]

    def __init__(self, base: LanguageModel, role: str = "target") -> None:
        if not isinstance(base, HFModel):
            raise TypeError(
                f"Batches need an HFModel and got a {type(base).__name__}, whose sessions cannot share a forward; "
                "decode its texts one by one with generate()."
            )
        if base.session_class is not HFSession or base.window is not None:
            own = f"sessions of its own ({base.session_class.__name__})"
            what = own if base.window is None else f"sliding-window layers (window {base.window})"
            raise ValueError(
                f"'{base.name}' has {what}, which batches do not support; give a plain HFModel without either, or "
                "decode its texts one by one with generate()."
            )
        base.check_modules()
        self.base, self.role = base, role
        self.name, self.vocab_size, self.context = base.name, base.vocab_size, base.context
        self.eos_token_ids, self.vocabulary, self.tokenizer = base.eos_token_ids, base.vocabulary, base.tokenizer
        self.device, self.dtype = base.device, base.dtype
        self.worth = WORTH.get(base.device.type, WORTH_ELSEWHERE)
        self.cache = SlotCache(base.layers)
        self.sessions: list[SlotSession] = []
        self.on_forward: Callable[[SharedForward], None] | None = None

    def session(self) -> SlotSession:
        """Return a new, empty session; it takes a slot with its first forward, and gives it back with `close`."""
        return SlotSession(self)

    @torch.inference_mode()
    def serve(self, requests: Sequence[Request]) -> None:
        """Read the tokens of all requests, at most one per session, in the forwards that cost least."""
        for request in requests:
            if request.session.slot is None:
                request.session.slot = len(self.sessions)
                self.sessions.append(request.session)
        self._settle()
        left = sorted(requests, key=lambda request: len(request.tokens), reverse=True)
        for count in cheapest_groups([len(request.tokens) for request in left], self.worth):
            self._forward(left[:count])
            left = left[count:]

    @torch.inference_mode()
    def close(self, session: SlotSession) -> None:
        """Give a session's slot back; the last slot moves into its place, so that slots in use stay together."""
        if session.slot is None:
            return
        self._settle()
        last = self.sessions.pop()
        if last is not session:
            assert last.slot is not None
            self.cache.copy(last.slot, session.slot, last.entries)
            self.sessions[session.slot], last.slot = last, session.slot
        session.slot = None

    def _settle(self) -> None:
        """Move the KV entries that sessions have committed since the last forward, all at once."""
        moves = [(session.slot, *move) for session in self.sessions for move in session.moves]
        if moves:
            self.cache.move(torch.tensor(moves, device=self.device))
        for session in self.sessions:
            session.moves = []

    def _forward(self, group: Sequence[Request]) -> None:
        """Run one forward for the group, and for the slots between theirs where that costs less than a copy."""
        length = len(group[0].tokens)
        slots = sorted(request.session.slot for request in group if request.session.slot is not None)
        together = range(slots[0], slots[-1] + 1)
        if (len(together) - len(slots)) * length <= self.worth:
            slots = list(together)
        sessions = [self.sessions[slot] for slot in slots]
        by_session = {request.session: request for request in group}
        requests = [by_session.get(session) for session in sessions]
        starts = [session.entries for session in sessions]
        inputs, bases, tails = envelope(requests, starts, length)
        keep = max(max(request.keep for request in group), 1)
        ids, positions, places = torch.from_numpy(inputs).to(self.device)
        mask = mask_of(bases, tails, self.dtype, self.device)
        width = mask.shape[-1]
        self.cache.aim_at(slots, places, width, (len(self.sessions), max(width, max(starts) + length)))
        logits = self.base.engine(ids, positions, mask, self.cache, keep)[..., : self.vocab_size]
        for number, request in enumerate(requests):
            if request is not None:
                request.logits = logits[number, keep - request.keep :]
                request.session.entries += len(request.tokens)
        if self.on_forward:
            tokens = sum(len(request.tokens) for request in group)
            self.on_forward(SharedForward(self.role, len(group), tokens, len(slots) * length))


class SlotSession(Session):
    """One sequence of a `BatchedModel`.

    Attributes:
        slot: its place in the cache, None before the first forward and after `close`.
        entries: KV entries of the slot in use, those of pending nodes included.
        moves: (to, from) places of KV entries in the slot, to be moved before the next forward.
    """

    def __init__(self, model: BatchedModel) -> None:
        super().__init__(model.name, model.vocab_size)
        self.model = model
        self.slot: int | None = None

    @override
    def _reset(self) -> None:
        self.entries = 0
        self.moves: list[tuple[int, int]] = []

    @override
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        while len(queue) > LONGEST_JOINT_PREFILL or (queue and not len(tokens)):
            chunk = min(len(queue), LONGEST_JOINT_PREFILL)
            self.model.ask(self._request(queue, chunk, tokens[:0], parents[:0]))
            queue = queue[chunk:]
        if not len(tokens):
            return torch.empty(0, self.model.vocab_size)
        return self.model.ask(self._request(queue, len(queue), tokens, parents))

    def _request(self, queue: list[int], chunk: int, tokens: np.ndarray, parents: np.ndarray) -> Request:
        """The first `chunk` tokens of the queue and these nodes, the last of the pending nodes of `parents`."""
        joined, forest, tail = laid_out(queue[:chunk], tokens, parents)
        positions = depth_positions(forest, self.position - len(queue))[-len(joined) :]
        return Request(self, joined, positions, self.entries - (len(parents) - len(tokens)), tail, len(tokens))

    @override
    def _keep(self, nodes: np.ndarray) -> None:
        old = (self.length + nodes).tolist()
        self.entries = self.length + len(old)
        self.moves += [move for move in zip(range(self.length, self.entries), old, strict=True) if move[0] != move[1]]


def envelope(
    requests: Sequence[Request | None], starts: Sequence[int], n: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the tokens of B slots, padded on the left to `n`. A slot without a request is padding only.

    A padding token is written behind its slot's own entries, where the next forward will overwrite it. It sees the
    columns that the other tokens see and the slot's first new column, so that its numbers are finite.

    Args:
        requests: of each slot.
        starts: KV entries of each slot in use before.
        n: tokens of the longest request.

    Returns:
        inputs: (3, B, n) int64: token, position, and place in the slot that the KV entry is written to.
        bases: (B,) int64 columns that all tokens of the slot see.
        tails: (B, n, t) bool, which of the t columns after them each token sees.
    """
    count, widest = len(requests), max(request.tail.shape[1] for request in requests if request is not None)
    inputs, tails = np.zeros((3, count, n), np.int64), np.zeros((count, n, widest), bool)
    bases = np.zeros(count, np.int64)
    for slot, request in enumerate(requests):
        padding = n - (0 if request is None else len(request.tokens))
        inputs[2, slot] = starts[slot] + (np.arange(n) - padding) % n
        tails[slot, :padding, 0] = True
        if request is not None:
            inputs[:2, slot, padding:] = request.tokens, request.positions
            bases[slot] = request.base
            tails[slot, padding:, : request.tail.shape[1]] = request.tail
    return inputs, bases, tails


def mask_of(bases: np.ndarray, tails: np.ndarray, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Return the (B, 1, n, m) additive mask: 0 for what a token sees, the dtype's most negative number elsewhere."""
    width = int(bases.max()) + tails.shape[2]
    columns = torch.arange(width + -width % ALIGNED, device=device)
    before, named = torch.from_numpy(bases).to(device)[:, None, None], torch.from_numpy(tails).to(device)
    seen = (columns < before).expand(*named.shape[:2], -1).contiguous()
    seen.scatter_(2, (before + columns[: named.shape[2]]).expand_as(named), named)
    return additive(seen, dtype)[:, None]


class SlotCache(AimedCache):
    """Keys and values of several sequences, each in its own slot.

    Attributes:
        states: (L, 2, B, H, capacity, D); None before the first forward. Entries never written are zero, because a
            masked column still is multiplied by zero.

    Args:
        layers: L of the model.
    """

    def __init__(self, layers: int) -> None:
        super().__init__(layers)
        self.depth = layers
        self.states: torch.Tensor | None = None

    def aim_at(self, slots: list[int], places: torch.Tensor, width: int, needed: tuple[int, int]) -> None:
        """Say where the next forward reads and writes.

        Args:
            slots: (B,) ascending, of the batch's sequences.
            places: (B, n) int64, place in its slot of each token's KV entry.
            width: m, columns that the forward sees.
            needed: slots, and entries of each, that the cache must have.
        """
        self.aim(places, width)
        self._index, self._needed = torch.tensor(slots, device=places.device)[:, None], needed
        together = slots[-1] - slots[0] + 1 == len(slots)
        self._slots = slice(slots[0], slots[-1] + 1) if together else self._index[:, 0]

    @override
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (B, H, n, D) states of one layer; return (B, H, m, D) of all its columns."""
        key, value = key_states.shape[-1], value_states.shape[-1]
        if layer_idx == 0:
            self._reserve(key_states if key >= value else value_states)
        assert self.states is not None
        keys, values = self.states[layer_idx].unbind(0)
        keys, values = keys[..., :key], values[..., :value]
        keys[self._index, :, self.places] = key_states.transpose(1, 2)
        values[self._index, :, self.places] = value_states.transpose(1, 2)
        return keys[self._slots, :, : self.width], values[self._slots, :, : self.width]

    def _reserve(self, like: torch.Tensor) -> None:
        """Have as many slots and entries as the next forward needs; what there is doubles."""
        old, (_, heads, _, width), (slots, entries) = self.states, like.shape, self._needed
        if old is None:
            self.states = like.new_zeros((self.depth, 2, slots, heads, entries + SPARE, width))
            return
        had_slots, had_entries = old.shape[2], old.shape[4]
        if slots > had_slots or entries > had_entries:
            slots = had_slots if slots <= had_slots else max(slots, 2 * had_slots)
            entries = had_entries if entries <= had_entries else max(entries, 2 * had_entries)
            self.states = like.new_zeros((self.depth, 2, slots, heads, entries, width))
            self.states[:, :, :had_slots, :, :had_entries] = old

    def move(self, moves: torch.Tensor) -> None:
        """Move (k, 3) entries: slot, new place, old place. All old places are read before any new one is written."""
        assert self.states is not None
        slot, new, old = moves.unbind(1)
        self.states[:, :, slot, :, new] = self.states[:, :, slot, :, old]

    def copy(self, source: int, target: int, entries: int) -> None:
        """Copy the first entries of a slot over those of another."""
        if self.states is not None:
            self.states[:, :, target, :, :entries] = self.states[:, :, source, :, :entries]


def cheapest_groups(sizes: Sequence[int], worth: int) -> list[int]:
    """Return how many of the sequences go into each forward, the longest first, so that the whole costs least.

    Args:
        sizes: tokens of each sequence, descending. A forward costs its sequences times the longest, and `worth`.
        worth: tokens that cost as much as a forward.
    """
    if len(sizes) * sizes[0] - sum(sizes) <= worth:  # no split can win more than all of the padding
        return [len(sizes)]
    best: list[tuple[int, list[int]]] = [(0, [])]
    for end in range(1, len(sizes) + 1):
        ways = ((best[start][0] + worth + (end - start) * sizes[start], start) for start in range(end))
        cost, start = min(ways)
        best.append((cost, [*best[start][1], end - start]))
    return best[-1][1]
