"""`BatchedModel`: one model reads several sequences, each with a tree of its own, in forwards that they share.

A forward is as long as the longest sequence's rows; the others are padded on the left, so that the rows whose logits
are wanted come last for all. Each sequence has a lane of one cache, as long as its own text: rows are written behind
what stands in the lane, and a mask made on the device says which of the lane's columns a row sees. Who waits for whom
is no matter of this file (see `batching`): without anyone to gather them, requests are served one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from ..masks import ancestor_matrix, below_chain, depth_positions
from ..models.base import LanguageModel, Session
from ..models.huggingface import LONGEST_JOINT_PREFILL, HFModel, HFSession

WORTH = {"cpu": 24}
"""Rows that cost as much as one more forward, by device type (CPU: 1.4 ms against 0.06 a row on the bundled target)."""
WORTH_ELSEWHERE = 256
SPARE = 256
"""Rows that a lane has room for beyond the first forward; what there is doubles when needed."""
ALIGNED = 8
"""Columns of a forward are a multiple of this, which fast attention kernels want of a mask."""


@dataclass
class Request:
    """Rows that one sequence wants read: committed tokens first, nodes of its tree after them.

    Attributes:
        session: whose.
        tokens, positions: (n,) int64.
        base: columns of the lane that all the rows see.
        tail: (n, t) bool, which of the t columns after them each row sees; the last n of the t are the rows' own.
        keep: logits of this many last rows are wanted.
        logits: (keep, V) once it is served.
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
    """What one forward held: `rows` were wanted by `lanes` sequences, `computed` is their number with all padding."""

    role: str
    slots: int
    rows: int
    computed: int


class BatchedModel(LanguageModel):
    """A model (weights shared) whose sessions are lanes of one cache.

    Attributes:
        sessions: those that have a lane, by lane.
        cache: keys and values of all lanes. It grows when needed and its memory goes with this object.
        ask: hands a request over and returns its logits; at first it is served at once and alone.
        on_forward: told of every forward.

    Args:
        base: the model; it is not changed.
        role: of the model, for `SharedForward`.

    Raises:
        TypeError: for anything but a transformers model.
        ValueError: for one with sliding windows, or whose sessions are not the plain ones.
    """

    def __init__(self, base: LanguageModel, role: str = "target") -> None:
        _check(base)
        assert isinstance(base, HFModel)
        self.base, self.role = base, role
        self.name, self.vocab_size, self.context = base.name, base.vocab_size, base.context
        self.eos_token_ids, self.vocabulary, self.tokenizer = base.eos_token_ids, base.vocabulary, base.tokenizer
        self.device, self.dtype = base.device, base.dtype
        self.worth = WORTH.get(base.device.type, WORTH_ELSEWHERE)
        self.cache = LaneCache(base.layers)
        self.sessions: list[SlotSession] = []
        self.ask: Callable[[Request], torch.Tensor] = self._alone
        self.on_forward: Callable[[SharedForward], None] | None = None

    def session(self) -> SlotSession:
        """A new, empty session; it takes a lane with its first forward, and gives it back with `close`."""
        return SlotSession(self)

    @torch.inference_mode()
    def serve(self, requests: Sequence[Request]) -> None:
        """Read what is requested, at most one request of each session, in the forwards that cost least."""
        for request in requests:
            if request.session.slot is None:
                request.session.slot = len(self.sessions)
                self.sessions.append(request.session)
        self._settle()
        left = sorted(requests, key=lambda one: len(one.tokens), reverse=True)
        for count in cheapest_groups([len(one.tokens) for one in left], self.worth):
            self._forward(left[:count])
            left = left[count:]

    @torch.inference_mode()
    def close(self, session: SlotSession) -> None:
        """Give a session's lane back; the last lane moves into its place, so that lanes in use stay together."""
        if session.slot is None:
            return
        self._settle()
        last = self.sessions.pop()
        if last is not session:
            assert last.slot is not None
            self.cache.copy(last.slot, session.slot, last.rows)
            self.sessions[session.slot], last.slot = last, session.slot
        session.slot = None

    def _alone(self, request: Request) -> torch.Tensor:
        self.serve([request])
        assert request.logits is not None
        return request.logits

    def _settle(self) -> None:
        """Move the rows that sessions have committed since the last forward, all at once."""
        moves = [(one.slot, *move) for one in self.sessions for move in one.moves]
        if moves:
            self.cache.move(torch.tensor(moves, device=self.device))
        for one in self.sessions:
            one.moves = []

    def _forward(self, group: Sequence[Request]) -> None:
        """One forward for all of the group, and for the lanes between theirs where that costs less than a copy."""
        length = len(group[0].tokens)
        slots = sorted(one.session.slot for one in group if one.session.slot is not None)
        together = range(slots[0], slots[-1] + 1)
        if (len(together) - len(slots)) * length <= self.worth:
            slots = list(together)
        riders = [self.sessions[slot] for slot in slots]
        by_session = {one.session: one for one in group}
        envelope = Envelope.of([by_session.get(one) for one in riders], [one.rows for one in riders], length)
        keep = max(max(one.keep for one in group), 1)
        ids, places, entries = torch.from_numpy(envelope.rows).to(self.device)
        mask = envelope.mask(self.dtype, self.device)
        rows = max(mask.shape[-1], int(envelope.starts.max()) + length)
        self.cache.aim(slots, entries, mask.shape[-1], (len(self.sessions), rows))
        logits = self.base.engine(ids, places, mask, self.cache, keep)[..., : self.vocab_size]
        for row, one in enumerate(riders):
            request = by_session.get(one)
            if request is not None:
                request.logits = logits[row, keep - request.keep :]
                one.rows += len(request.tokens)
        if self.on_forward:
            rows = sum(len(one.tokens) for one in group)
            self.on_forward(SharedForward(self.role, len(group), rows, len(slots) * length))


class SlotSession(Session):
    """One sequence of a `BatchedModel`.

    Attributes:
        lane: its place in the cache, None before the first forward and after `close`.
        rows: rows of the lane in use, pending ones included.
        moves: (to, from) rows of the lane, to be moved before the next forward.
    """

    def __init__(self, model: BatchedModel) -> None:
        super().__init__(model.name)
        self.model = model
        self.slot: int | None = None
        self._reset()

    def _reset(self) -> None:
        self.rows = 0
        self.moves: list[tuple[int, int]] = []

    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        while len(queue) > LONGEST_JOINT_PREFILL or (queue and not len(tokens)):
            chunk = min(len(queue), LONGEST_JOINT_PREFILL)
            self.model.ask(self._request(queue, chunk, tokens[:0], parents[:0]))
            queue = queue[chunk:]
        if not len(tokens):
            return torch.empty(0, self.model.vocab_size)
        return self.model.ask(self._request(queue, len(queue), tokens, parents))

    def _request(self, queue: list[int], chunk: int, tokens: np.ndarray, parents: np.ndarray) -> Request:
        """The first `chunk` tokens of the queue and these nodes, the last of the pending rows `parents` is about."""
        count, forest = len(tokens), below_chain(chunk, parents)
        return Request(
            self,
            np.concatenate([np.asarray(queue[:chunk], np.int64), tokens]),
            depth_positions(forest, self.position - len(queue))[-(chunk + count) :],
            self.rows - (len(parents) - count),
            ancestor_matrix(forest)[-(chunk + count) :],
            count,
        )

    def _keep(self, rows: np.ndarray) -> None:
        to = range(self.length, self.length + len(rows))
        self.moves += [(new, self.length + old) for new, old in zip(to, rows.tolist(), strict=True)]
        self.moves = [(new, old) for new, old in self.moves if new != old]
        self.rows = to.stop


@dataclass
class Envelope:
    """The rows of several lanes, padded on the left to `n`, as arrays. A lane without a request is padding only.

    A padding row is written behind its lane's own rows, where the next forward will overwrite it, and sees what the
    others see and the lane's first new column, so that its numbers are finite.

    Attributes:
        rows: (3, B, n) int64: token, position, and place in the lane that the row is written to.
        starts: (B,) int64 rows in use before.
        bases: (B,) int64 columns that all rows of the lane see.
        tails: (B, n, t) bool, which of the t columns after them each row sees.
    """

    rows: np.ndarray
    starts: np.ndarray
    bases: np.ndarray
    tails: np.ndarray

    @classmethod
    def of(cls, requests: Sequence[Request | None], starts: Sequence[int], n: int) -> Envelope:
        """The envelope of one request, or None, per lane."""
        widest = max(one.tail.shape[1] for one in requests if one is not None)
        made = cls(
            np.zeros((3, len(requests), n), np.int64), np.asarray(starts, np.int64),
            np.zeros(len(requests), np.int64), np.zeros((len(requests), n, widest), bool),
        )  # fmt: skip
        for slot, one in enumerate(requests):
            padding = n - (0 if one is None else len(one.tokens))
            made.rows[2, slot] = starts[slot] + (np.arange(n) - padding) % n
            made.tails[slot, :padding, 0] = True
            if one is not None:
                made.rows[:2, slot, padding:] = one.tokens, one.positions
                made.bases[slot] = one.base
                made.tails[slot, padding:, : one.tail.shape[1]] = one.tail
        return made

    def mask(self, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """(B, 1, n, m) additive mask: 0 where a row may look, the dtype's most negative number elsewhere."""
        bases = torch.from_numpy(self.bases).to(device)[:, None, None]
        tails = torch.from_numpy(self.tails).to(device)
        columns = int(self.bases.max()) + tails.shape[2]
        columns += -columns % ALIGNED
        seen = (torch.arange(columns, device=device) < bases).expand(*tails.shape[:2], -1).contiguous()
        places = bases + torch.arange(tails.shape[2], device=device)
        seen.scatter_(2, places.expand_as(tails), tails)
        mask = torch.zeros(seen.shape, dtype=dtype, device=device)
        return mask.masked_fill_(~seen, torch.finfo(dtype).min)[:, None]


class LaneCache(Cache):
    """Keys and values of several sequences, each in a lane of its own.

    Attributes:
        states: (L, 2, B, H, capacity, D); None before the first forward. Never-written rows are zero, because a masked
            column still is multiplied by zero.

    Args:
        layers: L of the model.
    """

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(layers)])  # what transformers reads layer types from
        self.depth = layers
        self.states: torch.Tensor | None = None

    def aim(self, slots: list[int], entries: torch.Tensor, columns: int, room: tuple[int, int]) -> None:
        """Say where the next forward reads and writes.

        Args:
            lanes: (B,) ascending, of the batch's sequences.
            slots: (B, n) int64, place in its lane of each row.
            columns: m, columns that the forward sees.
            room: lanes, and rows of each, that are needed.
        """
        self._index, self._slots = torch.tensor(slots, device=entries.device)[:, None], entries
        together = slots[-1] - slots[0] + 1 == len(slots)
        self._lanes = slice(slots[0], slots[-1] + 1) if together else self._index[:, 0]
        self._columns, self._room = columns, room

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (B, H, n, D) states of one layer; (B, H, m, D) of all its columns."""
        if layer_idx == 0:
            self._make_room(key_states)
        assert self.states is not None
        keys, values = self.states[layer_idx].unbind(0)
        keys[self._index, :, self._slots] = key_states.transpose(1, 2)
        values[self._index, :, self._slots] = value_states.transpose(1, 2)
        return keys[self._lanes, :, : self._columns], values[self._lanes, :, : self._columns]

    def _make_room(self, like: torch.Tensor) -> None:
        old, (_, heads, _, width) = self.states, like.shape
        if old is None:
            self.states = like.new_zeros((self.depth, 2, self._room[0], heads, self._room[1] + SPARE, width))
            return
        have = old.shape[2], old.shape[4]
        slots, rows = (
            size if size >= need else max(2 * size, need) for size, need in zip(have, self._room, strict=True)
        )
        if (slots, rows) != have:
            self.states = like.new_zeros((self.depth, 2, slots, heads, rows, width))
            self.states[:, :, : have[0], :, : have[1]] = old

    def move(self, moves: torch.Tensor) -> None:
        """Move (k, 3) rows: lane, new place, old place. All old places are read before any new one is written."""
        assert self.states is not None
        slot, new, old = moves.unbind(1)
        self.states[:, :, slot, :, new] = self.states[:, :, slot, :, old]

    def copy(self, source: int, target: int, rows: int) -> None:
        """Copy the first rows of a lane over those of another."""
        if self.states is not None:
            self.states[:, :, target, :, :rows] = self.states[:, :, source, :, :rows]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before the rows of a forward, where transformers asks; the mask and the positions say the rest."""
        return self._columns - self._slots.shape[1]

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Width and offset of an attention mask."""
        return self._columns, 0


def cheapest_groups(sizes: Sequence[int], worth: int) -> list[int]:
    """How many of the sequences go into each forward, the longest first, so that the whole costs least.

    Args:
        sizes: rows of each sequence, descending. A forward costs its sequences times the longest of them, and `worth`.
        worth: rows that cost as much as a forward.
    """
    if len(sizes) * sizes[0] - sum(sizes) <= worth:  # no split can win more than all of the padding
        return [len(sizes)]
    best: list[tuple[int, list[int]]] = [(0, [])]
    for end in range(1, len(sizes) + 1):
        ways = ((best[at][0] + worth + (end - at) * sizes[at], at) for at in range(end))
        cost, at = min(ways)
        best.append((cost, [*best[at][1], end - at]))
    return best[-1][1]


def _check(base: LanguageModel) -> None:
    if not isinstance(base, HFModel):
        raise TypeError(
            f"Batches need an HFModel and got a {type(base).__name__}, whose sessions cannot share a forward; decode "
            "its texts one by one with generate()."
        )
    if base.session_class is not HFSession:
        raise ValueError(
            f"'{base.name}' opens sessions of its own ({base.session_class.__name__}), which batches would not use; "
            "give the plain HFModel, or decode its texts one by one with generate()."
        )
    if base.window is not None:
        raise ValueError(
            f"'{base.name}' has sliding-window layers (window {base.window}), which batches do not support; decode its "
            "texts one by one with generate()."
        )
