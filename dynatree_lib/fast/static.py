"""Static execution: forwards over buffers of a fixed size, on a GPU captured as CUDA graphs and replayed.

On a GPU a small forward is mostly launches. A CUDA graph launches all of it at once and needs everything at fixed
addresses: so the cache is allocated whole, tokens, positions, cache columns and the tree arrive in one small integer
tensor, and the mask is made of them on the device. Forwards are padded to a few numbers of rows and a few widths of the
cache, with a graph for each that is used. Elsewhere the same step runs without capture.

Columns: 0 belongs to padding rows, which write it and see nothing else; row r of the text lies in column 1 + r.
"""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import torch
from transformers.cache_utils import Cache, DynamicLayer

from ..masks import ancestor_matrix, below_chain, depth_positions
from ..models.cache import TreeCache
from ..models.check import check_tree_attention
from ..models.huggingface import HFModel, HFSession, in_inference_mode
from ..models.pairs import Pair

ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of rows that forwards are padded to."""
CAPACITY = 4096
"""Rows of text there is room for by default, where the model reads as many."""
NARROWEST = 256
"""Columns of the narrowest forward by default; each further width is twice the one before."""
CHUNK = 512
"""Tokens of a long prompt that are read in one forward."""
WORD = 64
"""Ancestors in one integer."""
WARM_UPS = 3
"""Runs of a step before it is captured: libraries choose kernels and allocate workspaces in the first ones."""


class StaticModel(HFModel):
    """A model (weights shared) whose sessions run over static buffers, on a CUDA device by replaying graphs.

    There is one set of buffers. Sessions take turns: when another one's turn comes, a session's rows are copied aside
    and back later, which costs a copy of its cache and happens only where several are used alternately.

    Attributes:
        context: most positions of a sequence; a text ends there with "context".
        buffers: the buffers and the graphs.

    Args:
        model: what is to be run; it stays usable by itself.
        capacity: rows of text there is room for; by default the model's context, at most `CAPACITY`.
        rows: numbers of rows that forwards are padded to; the largest is the most a tree may have.
        widths: columns of the cache that forwards are padded to; all of them are added as the last. By default
            powers of two from `NARROWEST`.
        graphs: capture on a CUDA device; False runs the same steps without, to compare.
        check: score a small tree over the buffers and by the model's own forward and refuse if they differ.

    Raises:
        ValueError: for a model with sliding windows or on several devices, sizes that make no buffers, or logits that
            differ.
    """

    def __init__(
        self,
        model: HFModel,
        capacity: int | None = None,
        rows: Sequence[int] = ROWS,
        widths: Sequence[int] | None = None,
        *,
        graphs: bool = True,
        check: bool = True,
    ) -> None:
        reason = why_not_static(model)
        if reason:
            raise ValueError(reason)
        self.__dict__.update(model.__dict__)
        self.context = min(model.context, CAPACITY if capacity is None else capacity)
        if self.context < 2 or not rows or list(rows) != sorted(set(rows)) or rows[0] < 1:
            raise ValueError(
                f"capacity is {capacity} and rows {tuple(rows)}; give at least 2 and ascending positive numbers."
            )
        self.session_class = StaticSession
        self.buffers = Buffers(model, self.context, tuple(rows), widths, graphs)
        if check:
            check_tree_attention(self)

    def forward(self, tokens: np.ndarray, positions: np.ndarray, mask: Any, cache: Any, keep: int) -> torch.Tensor:
        """See `HFModel.forward`; over the buffers' cache, `mask` is what `Buffers.tell` said, None for text alone."""
        if cache is not self.buffers.cache:
            return super().forward(tokens, positions, mask, cache, keep)
        if mask is None:
            return self.buffers.read(tokens, positions)[:, : self.vocab_size]
        logits, end = self.buffers.forward(*mask), len(tokens)
        # A copy, because the next forward writes its logits to the same place.
        return logits[end - keep : end, : self.vocab_size].clone()

    @property
    def greedy(self) -> GreedyStep:
        """Plain greedy decoding on the device; one for all models that share the buffers and the vocabulary."""
        return self.buffers.greedy(self.vocab_size)

    @torch.inference_mode()
    def warm(self, rows: Sequence[int] | None = None, widths: Sequence[int] | None = None) -> StaticModel:
        """Capture graphs now and not when first needed: of these numbers of rows and widths, by default all, and of
        plain decoding at these widths."""
        buffers = self.buffers
        buffers.lend(None)
        for width in buffers.widths if widths is None else [buffers.width(each) for each in widths]:
            for count in buffers.rows if rows is None else {buffers.bucket(each) for each in rows}:
                buffers.integers.zero_()  # padding alone
                buffers.forward(count, width)
            self.greedy.begin(0, 0)
            self.greedy.run(1, width)
        return self


class StaticSession(HFSession):
    """One sequence in the buffers of a `StaticModel`.

    Attributes:
        aside: (L, 2, 1, H, rows, D) cache of this sequence while another one has the buffers.
        fresh: whether nothing of it was read yet.
    """

    model: StaticModel

    def _reset(self) -> None:
        self.aside: torch.Tensor | None = None
        self.fresh = True

    @in_inference_mode
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        model, buffers = self.model, self.model.buffers
        buffers.lend(self)
        waiting, position = np.asarray(queue, np.int64), self.position - len(queue)  # rows stand where they are read
        if not len(tokens) or len(queue) + len(parents) > buffers.rows[-1]:
            for start in range(0, len(waiting), CHUNK):
                part = waiting[start : start + CHUNK]
                model.forward(part, position + start + np.arange(len(part)), None, buffers.cache, keep=1)
            waiting, position = waiting[:0], self.position
        if not len(tokens):
            return torch.empty(0, model.vocab_size)
        forest = below_chain(len(waiting), parents)
        new = len(waiting) + len(tokens)
        positions = depth_positions(forest, position)[-new:]
        joined = np.concatenate([waiting, tokens]) if len(waiting) else tokens
        told = buffers.tell(position, joined, positions, ancestor_matrix(forest)[-new:])
        return model.forward(joined, positions, told, buffers.cache, keep=len(tokens))

    @in_inference_mode
    def _keep(self, rows: np.ndarray) -> None:
        if len(rows) and rows[-1] != len(rows) - 1:  # otherwise they stand there already
            self.model.buffers.lend(self)
            self.model.buffers.move(1 + self.length + rows, 1 + self.length)


class StaticCache(Cache):
    """Keys and values of all layers in one tensor that never moves.

    Attributes:
        states: (L, 2, 1, H, columns, D); zeros at the start of a text, because a hidden column still meets a weight,
            of zero.
        slots: (n,) int64 columns that the next forward's rows are written to, on the device.
        width: columns that the next forward reads.

    Args:
        like: (L, 2, 1, H, any, D) states of this model.
        columns: to make room for.
    """

    def __init__(self, like: torch.Tensor, columns: int) -> None:
        super().__init__(layers=[DynamicLayer() for _ in like])  # what transformers reads layer types from
        self.states = like.new_zeros((*like.shape[:4], columns, like.shape[5]))
        self._views = [tuple(layer.unbind(0)) for layer in self.states.unbind(0)]
        self.slots, self.width = torch.zeros(1, dtype=torch.int64, device=like.device), columns

    def aim(self, slots: torch.Tensor, width: int) -> None:
        """Say where the next forward writes and how far it reads."""
        self.slots, self.width = slots, width

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (1, H, n, D) states of one layer to the slots; views (1, H, width, D)."""
        keys, values = self._views[layer_idx]
        keys.index_copy_(2, self.slots, key_states)
        values.index_copy_(2, self.slots, value_states)
        return keys[:, :, : self.width], values[:, :, : self.width]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before the next forward's rows, as if these were the last ones it reads."""
        return self.width - len(self.slots)

    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Width and offset of an attention mask."""
        return self.width, 0


class Buffers:
    """What a `StaticModel`'s forwards run over, and the graphs of the forwards.

    Attributes:
        rows: numbers of rows of a forward, ascending.
        widths: numbers of columns, ascending; the last is all of them.
        cache: the cache.
        integers: what a forward is about, on the device: the committed rows, then for each of its rows a token, a
            position, a column, and bits that say which of the columns after the committed ones it sees.
        graph_bytes: memory reserved while graphs were captured, and so kept by them; 0 without CUDA.
        dirty: columns that may hold anything; those behind them are zeros.
    """

    def __init__(
        self, model: HFModel, capacity: int, rows: tuple[int, ...], widths: Sequence[int] | None, graphs: bool
    ) -> None:
        self.engine, self.device, self.dtype, self.rows = model.engine, model.device, model.dtype, rows
        self.capacity, self.words = capacity, -(-rows[-1] // WORD)
        columns = -(-(1 + capacity + rows[-1]) // WORD) * WORD
        given = [NARROWEST << power for power in range(columns.bit_length())] if widths is None else widths
        whole = {-(-int(width) // 8) * 8 for width in given}  # attention kernels want rows of masks aligned
        self.widths = (*sorted(width for width in whole if 0 < width < columns), columns)
        self.cache = StaticCache(_one_row(model), columns)
        self.columns = torch.arange(columns, device=self.device)
        size = 1 + rows[-1] * (3 + self.words)
        self.captures = graphs and self.device.type == "cuda"
        self._host = torch.zeros(size, dtype=torch.int64, pin_memory=self.device.type == "cuda")
        self.integers = torch.zeros(size, dtype=torch.int64, device=self.device)
        self._sent = torch.cuda.Event() if self.device.type == "cuda" else None
        self._graphs: dict[Any, tuple[Any, Any]] = {}
        self._pool: Any = None
        self._holder: Callable[[], StaticSession | None] = _nobody
        self.graph_bytes, self.dirty = 0, 0
        self._logits: torch.Tensor | None = None
        self._greedy: dict[int, GreedyStep] = {}

    @property
    def buffer_bytes(self) -> int:
        """Bytes of the cache, of what forwards are told and of their logits, on the device."""
        parts = (self.cache.states, self.columns, self.integers, *([] if self._logits is None else [self._logits]))
        return sum(part.nbytes for part in parts)

    def bucket(self, rows: int) -> int:
        """The number of rows that so many are padded to.

        Raises:
            ValueError: for more than the largest.
        """
        return _at_least(self.rows, rows, "rows to score at once or pending", "rows=(..., MORE)")

    def width(self, columns: int) -> int:
        """The width that a forward over so many columns is padded to; ValueError for more than there are."""
        return _at_least(self.widths, columns, "columns", "a larger capacity")

    def greedy(self, vocab_size: int) -> GreedyStep:
        """The step of plain decoding over so many tokens; graphs hold its tensors, so it lives as long as they do."""
        if vocab_size not in self._greedy:
            self._greedy[vocab_size] = GreedyStep(self, vocab_size)
        return self._greedy[vocab_size]

    # ----------------------------------------------------------------------------------------------- whose rows are in
    def lend(self, session: StaticSession | None) -> None:
        """Have this session's rows in the cache; another's are copied aside first."""
        holder = self._holder()
        if holder is not None and holder is not session:
            holder.aside = self.cache.states[..., : 1 + holder.length + holder.pending, :].clone()
        if holder is not session:
            self._holder = _nobody if session is None else weakref.ref(session)
        if session is not None and session.fresh:  # a weight of 0 does not hide a NaN that an earlier text left
            self.cache.states[..., : self.dirty, :] = 0
            self.dirty, session.fresh = 0, False
        if session is not None and session.aside is not None:
            self.cache.states[..., : session.aside.shape[4], :] = session.aside
            session.aside = None

    def lent_to(self, session: StaticSession) -> bool:
        """Whether this session's rows are in the cache."""
        return self._holder() is session

    def move(self, source: np.ndarray, first: int) -> None:
        """Copy the (k,) columns `source`, ascending, to the k columns from `first` on, in all layers at once."""
        states = self.cache.states
        index = torch.from_numpy(source).to(self.device, non_blocking=True)
        states[..., first : first + len(source), :] = states.index_select(4, index)

    # ------------------------------------------------------------------------------------------------------- forwards
    def read(self, tokens: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        """Read (n,) tokens at these consecutive positions as text, without a graph; (1, V) logits of the last.

        Raises:
            ValueError: if there is no room for them.
        """
        end = int(positions[-1]) + 1
        if end > self.capacity:
            raise ValueError(
                f"A text of {end} tokens does not fit static buffers of {self.capacity}; make the StaticModel with a "
                "larger capacity, or shorten the text."
            )
        self.dirty = max(self.dirty, 1 + end)
        slots = self.columns[1 + end - len(tokens) : 1 + end]
        columns = self.columns[: -(-(1 + end) // WORD) * WORD]
        mask = self.mask((columns > 0) & (columns <= slots[:, None]))
        self.cache.aim(slots, len(columns))
        ids, places = torch.from_numpy(tokens).to(self.device), torch.from_numpy(positions).to(self.device)
        return self.engine(ids[None], places[None], mask, self.cache, 1)[0]

    def tell(self, base: int, tokens: np.ndarray, positions: np.ndarray, seen: np.ndarray) -> tuple[int, int]:
        """Say what the next `forward` is about.

        Args:
            base: committed rows, which all rows see.
            tokens: (n,) ids.
            positions: (n,) of them.
            seen: (n, m) bool, which of the m rows after the committed ones, these n the last of them, each sees.

        Returns:
            the rows and the width to run it with.

        Raises:
            ValueError: if they do not fit.
        """
        new, tail = seen.shape
        self.bucket(tail)  # there are bits for no more
        rows, width = self.bucket(new), self.width(1 + base + tail)
        self.dirty = max(self.dirty, width)
        with self._told(1 + rows * (3 + self.words)) as packed:
            packed[0] = base
            table = packed[1:].reshape(3 + self.words, rows)
            table[0, :new], table[1, :new] = tokens, positions
            table[2, :new] = np.arange(1 + base + tail - new, 1 + base + tail)
            bits = np.packbits(seen, axis=1, bitorder="little")
            words = np.zeros((new, 8 * self.words), np.uint8)
            words[:, : bits.shape[1]] = bits
            table[3:, :new] = words.view("<i8").T
        return rows, width

    @contextlib.contextmanager
    def _told(self, size: int) -> Iterator[np.ndarray]:
        """(size,) zeros to fill in; then they are on their way to the device, in one copy."""
        if self._sent is not None:
            self._sent.synchronize()  # until the last ones have left the host
        packed = self._host[:size].numpy()
        packed[:] = 0
        yield packed
        self.integers[:size].copy_(self._host[:size], non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self.device))

    def forward(self, rows: int, width: int) -> torch.Tensor:
        """Run what stands in `integers`; (rows, V) logits, valid until the next forward."""
        logits: torch.Tensor = self.replay((rows, width), lambda: self._step(rows, width))
        return logits

    def _step(self, rows: int, width: int) -> torch.Tensor:
        table = self.integers[1 : 1 + rows * (3 + self.words)].view(3 + self.words, rows)
        slots = table[2]
        self.cache.aim(slots, width)
        seen = self._seen(self.integers[0], slots, table[3:], width)
        logits = self.engine(table[0][None], table[1][None], self.mask(seen), self.cache, rows)[0]
        if self._logits is None:
            self._logits = logits.new_empty((self.rows[-1], logits.shape[-1]))
        return self._logits[:rows].copy_(logits)  # one place for all graphs, which would each keep their own

    def _seen(self, base: torch.Tensor, slots: torch.Tensor, bits: torch.Tensor, width: int) -> torch.Tensor:
        """(n, width) bool: committed rows, and those that the bits name; of padding rows column 0."""
        columns = self.columns[:width]
        tail = columns - (1 + base)
        word = bits.index_select(0, (tail // WORD).clamp(0, self.words - 1))
        named = ((word.T >> (tail % WORD)) & 1).bool() & (tail >= 0) & (tail < WORD * self.words)
        real = ((columns > 0) & (tail < 0)) | named
        return torch.where(slots[:, None] > 0, real, columns == 0)

    def mask(self, seen: torch.Tensor) -> torch.Tensor:
        """(1, 1, n, m) additive mask from (n, m) bool."""
        mask = torch.zeros(seen.shape, dtype=self.dtype, device=self.device)
        return mask.masked_fill_(~seen, torch.finfo(self.dtype).min)[None, None]

    # --------------------------------------------------------------------------------------------------------- graphs
    def replay(self, key: Any, step: Callable[[], Any], state: Sequence[torch.Tensor] = ()) -> Any:
        """Run a step over static tensors: captured the first time on a CUDA device, replayed from then on.

        Args:
            key: names the step.
            step: only launches kernels, and returns tensors of fixed size.
            state: tensors that the step changes; the runs before the capture leave them as they were.

        Raises:
            RuntimeError: if it cannot be captured; the sentence says what serves instead.
        """
        if not self.captures:
            return step()
        if key not in self._graphs:
            try:
                self._graphs[key] = self._captured(step, state)
            except RuntimeError as error:
                raise RuntimeError(
                    f"Forward {key} of engine '{self.engine.name}' could not be captured as a CUDA graph ({error}); "
                    "use StaticModel(model, graphs=False), or another engine."
                ) from error
        graph, output = self._graphs[key]
        graph.replay()
        return output

    def _captured(self, step: Callable[[], Any], state: Sequence[torch.Tensor]) -> tuple[Any, Any]:
        before = [each.clone() for each in state]
        with torch.cuda.device(self.device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    step()
                    for each, value in zip(state, before, strict=True):
                        each.copy_(value)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            reserved, graph = torch.cuda.memory_reserved(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):  # torch's own is the first device's
                output = step()
            self.graph_bytes += max(0, torch.cuda.memory_reserved() - reserved)
        return graph, output


class GreedyStep:
    """Plain greedy decoding over the buffers: the argmax is fed back on the device, the host reads when it likes.

    Attributes:
        state: (3,) int64 on the device: the last token, its position, the tokens chosen since `begin`.
        chosen: (capacity + 1,) int64 on the device: the tokens chosen, -1 where the logits described no law.
    """

    def __init__(self, buffers: Buffers, vocab_size: int) -> None:
        self.buffers, self.vocab_size = buffers, vocab_size
        self.state = torch.zeros(3, dtype=torch.int64, device=buffers.device)
        self.chosen = torch.zeros(buffers.capacity + 1, dtype=torch.int64, device=buffers.device)

    def begin(self, token: int, position: int) -> None:
        """Go on after this token, whose position is also the number of rows in the cache."""
        self.state.copy_(torch.tensor([token, position, 0]))

    def run(self, steps: int, width: int) -> None:
        """Choose so many tokens, each by a forward of `width` columns; nothing is waited for."""
        self.buffers.dirty = max(self.buffers.dirty, width)
        for _ in range(steps):
            self.buffers.replay(("greedy", self.vocab_size, width), lambda: self._step(width), (self.state,))

    def _step(self, width: int) -> torch.Tensor:
        buffers, (token, position, count) = self.buffers, self.state.split(1)
        slot, columns = position + 1, buffers.columns[:width]
        buffers.cache.aim(slot, width)
        mask = buffers.mask(((columns > 0) & (columns <= slot))[None])
        logits = buffers.engine(token[None], position[None], mask, buffers.cache, 1)[0, :, : self.vocab_size]
        best = logits.max(-1)
        told = torch.where(best.values.isfinite(), best.indices, -1)
        self.chosen.index_copy_(0, count, told)
        self.state.add_(1)
        self.state[:1].copy_(best.indices)
        return told


def static_pair(pair: Pair, capacity: int | None = None, *, warm: bool = False, **options: Any) -> Pair:
    """The pair on static buffers, each model on its own, `warm` or not; options as for `StaticModel`."""
    target, draft = (StaticModel(model, capacity, **options) for model in (pair.target, pair.draft))
    if warm:
        target.warm()
        draft.warm()
    return Pair(pair.name, target, draft, pair.tokenizer)


def why_not_static(model: HFModel) -> str | None:
    """Why a model cannot run over static buffers, in a sentence; None if it can."""
    if model.window is not None:
        return (
            f"'{model.name}' has sliding-window layers, whose cache has another shape than static buffers; use the "
            "HFModel itself."
        )
    devices = {weight.device for weight in model.model.parameters()}
    if len(devices) > 1:
        return (
            f"'{model.name}' is spread over {len(devices)} devices and static buffers lie on one; load it on one "
            "device, or use the HFModel itself."
        )
    return None


@torch.inference_mode()
def _one_row(model: HFModel) -> torch.Tensor:
    """(L, 2, 1, H, any, D) states of a cache with one row, which tell their shape."""
    cache = TreeCache(model.layers, 1)
    model.forward(np.zeros(1, np.int64), np.zeros(1, np.int64), None, cache, 1)
    return cache.states


def _at_least(sizes: Sequence[int], wanted: int, what: str, way_out: str) -> int:
    for size in sizes:
        if size >= wanted:
            return size
    raise ValueError(f"{wanted} {what} do not fit static buffers for {sizes[-1]}; make the StaticModel with {way_out}.")


def _nobody() -> None:
    """Nobody's rows are in the cache."""
