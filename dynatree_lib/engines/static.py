"""Static execution: forwards over buffers of a fixed size, on a GPU captured as CUDA graphs and replayed.

On a GPU a small forward is mostly launches. A CUDA graph launches all of it at once and needs everything at fixed
addresses. So the cache is allocated whole; tokens, positions, cache columns and the tree arrive in one small integer
tensor; and the mask is made of them on the device. Forwards are padded to a few sizes (numbers of tokens) and a few
widths of the cache, with a graph for each pair that is used. Elsewhere the same step runs without capture.

Column 0 of the cache belongs to padding tokens, which write it and see nothing else; the KV entry of token t of the
text lies in column 1 + t.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Sequence
from functools import wraps
from typing import Any, cast

import numpy as np
import torch
from numpy import ndarray
from transformers.cache_utils import Cache, DynamicLayer
from typing_extensions import override

from ..checks import of_kind
from ..masks import additive, depth_positions, laid_out
from ..models.architecture import mixes_experts
from ..models.cache import TreeCache
from ..models.engine import Features, Modules, check_threads, hooked
from ..models.huggingface import HFModel, HFSession, Method, in_inference_mode
from ..models.pairs import Pair
from ..models.proof import check_tree_attention
from ..models.translated import TranslatedHFModel

SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
"""Numbers of tokens that forwards are padded to."""
CAPACITY = 4096
"""Longest text in tokens by default, where the model reads as many."""
NARROWEST = 256
"""Columns of the narrowest forward; each further width is twice the width before."""
CHUNK = 512
"""Tokens of a long prompt that are read in one forward."""
WORD = 64
"""Ancestors in one integer."""
WARM_UPS = 3
"""Runs of a step before it is captured: libraries choose kernels and allocate workspaces in the first ones."""


class StaticModel(HFModel):
    """A model (weights shared) whose sessions run over static buffers, on a CUDA device by replaying graphs.

    There is one set of buffers, and sessions take turns, also those of several threads. When another session's turn
    comes, a session's KV entries are copied aside and back later. This costs a copy of its cache and happens only where
    several are used alternately.

    Attributes:
        context: most positions of a sequence; a text ends there with "context".
        buffers: the buffers and the graphs.

    Args:
        model: to be run; it stays usable by itself.
        capacity: longest text in tokens; by default the model's context, at most `CAPACITY`.
        sizes: numbers of tokens that forwards are padded to; a tree may have at most as many nodes as the largest.
        graphs: capture on a CUDA device; False runs the same steps without, to compare.
        check: score a small tree over the buffers and by the model's own forward, and refuse if they differ.

    Raises:
        ValueError: for a model with sliding windows, on several devices or on its target's features, sizes that make
            no buffers, or logits that differ.
    """

    def __init__(
        self,
        model: HFModel,
        capacity: int | None = None,
        sizes: Sequence[int] = SIZES,
        *,
        graphs: bool = True,
        check: bool = True,
    ) -> None:
        of_kind("The model", model, HFModel, "wrap a transformers model as HFModel(model, tokenizer)")
        reason = why_not_static(model)
        if reason:
            raise ValueError(reason)
        model.check_modules()
        self._take_over(model)
        self.modules = Modules(model.modules.model)
        self.context = min(model.context, CAPACITY if capacity is None else capacity)
        if self.context < 2 or not sizes or list(sizes) != sorted(set(sizes)) or sizes[0] < 1:
            raise ValueError(
                f"capacity is {capacity} and sizes {tuple(sizes)}; give at least 2 and ascending positive numbers."
            )
        self.session_class, self.feature_size = StaticSession, None
        self.buffers, self.most_pending = Buffers(model, self.context, tuple(sizes), graphs), sizes[-1]
        if check:
            check_tree_attention(self, engine_only=True)

    @override
    def check_modules(self) -> None:
        """Raise ValueError where hooks or other modules were added: the buffers' steps are captured without them."""
        check_threads()
        changed = self.modules.changed()
        if changed:
            raise ValueError(
                f"'{self.name}' has changed since its static buffers were made: {changed}, which they would leave out; "
                "use the HFModel itself."
            )

    @override
    def run_forward(
        self, tokens: ndarray, positions: ndarray, mask: Any, cache: Any, keep: int, features: Features | None = None
    ) -> torch.Tensor:
        """Run one forward; over the buffers' cache, `mask` is the answer of `Buffers.send`, None for text alone."""
        if cache is not self.buffers.cache:
            return super().run_forward(tokens, positions, mask, cache, keep, features)
        if mask is None:
            return self.buffers.read(tokens, positions)[:, : self.vocab_size]
        logits, end = self.buffers.forward(*mask), len(tokens)
        # A copy, because the next forward writes its logits to the same place.
        return logits[end - keep : end, : self.vocab_size].clone()

    @torch.inference_mode()
    def warm(self, trees: bool = True) -> StaticModel:
        """Capture the graphs of plain decoding, and those of `trees`, now and not when first needed."""
        buffers = self.buffers
        with buffers.turn:
            buffers.lend(None)
            for width in buffers.widths:
                for size in buffers.sizes if trees else ():
                    buffers.integers.zero_()  # padding alone
                    buffers.forward(size, width)
                buffers.begin(0, 0)
                buffers.choose(width, self.vocab_size)
        return self


def _in_turn(method: Method) -> Method:
    """Return a method of a session that has the buffers for itself meanwhile."""

    @wraps(method)
    def run(session: StaticSession, *args: Any, **options: Any) -> Any:
        with session.model.buffers.turn:
            return method(session, *args, **options)

    return cast(Method, run)


class StaticSession(HFSession):
    """One sequence in the buffers of a `StaticModel`.

    Attributes:
        aside: (L, 2, 1, H, n, D) cache of this sequence while another session has the buffers.
    """

    model: StaticModel

    start, score = _in_turn(HFSession.start), _in_turn(HFSession.score)
    commit, rollback = _in_turn(HFSession.commit), _in_turn(HFSession.rollback)

    @override
    def _reset(self) -> None:
        self.aside: torch.Tensor | None = None

    @override
    @in_inference_mode
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        model, buffers = self.model, self.model.buffers
        buffers.lend(self)
        waiting, position = (np.asarray(queue, np.int64), self.position - len(queue))  # entries lie by position
        if not len(tokens) or len(queue) + len(parents) > buffers.sizes[-1]:
            for start in range(0, len(waiting), CHUNK):
                part = waiting[start : start + CHUNK]
                model.forward(part, position + start + np.arange(len(part)), None, buffers.cache, keep=1)
            waiting, position = waiting[:0], self.position
        if not len(tokens):
            return torch.empty(0, model.vocab_size)
        joined, forest, seen = laid_out(waiting, tokens, parents)
        positions = depth_positions(forest, position)[-len(joined) :]
        shape = buffers.send(position, joined, positions, seen)
        return model.forward(joined, positions, shape, buffers.cache, keep=len(tokens))

    @override
    @in_inference_mode
    def _keep(self, nodes: np.ndarray) -> None:
        if len(nodes) and nodes[-1] != len(nodes) - 1:  # otherwise they stand there already
            self.model.buffers.lend(self)
            self.model.buffers.move(1 + self.length + nodes, 1 + self.length)


class AimedCache(Cache):
    """A cache that is told before each forward where to write and how far to read.

    Attributes:
        places: (..., n) int64 columns that the next forward's KV entries are written to, on the device.
        width: columns that the next forward reads.
    """

    def __init__(self, layers: int) -> None:
        super().__init__(layers=[DynamicLayer() for _ in range(layers)])  # what transformers reads layer types from

    def aim(self, places: torch.Tensor, width: int) -> None:
        """Say where the next forward writes and how far it reads."""
        self.places, self.width = places, width

    @override
    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Columns before those of the next forward's tokens, as if these were the last columns that it reads."""
        return self.width - self.places.shape[-1]

    @override
    def get_mask_sizes(self, query_length: int, layer_idx: int = 0) -> tuple[int, int]:
        """Width and offset of an attention mask."""
        return self.width, 0


class StaticCache(AimedCache):
    """Keys and values of all layers in one tensor that never moves.

    Attributes:
        states: (L, 2, 1, H, columns, D); zeros at the start of a text, because a hidden column still is multiplied by
            zero.

    Args:
        like: with (L, 2, 1, H, any, D) states of this model.
        columns: of the cache.
    """

    def __init__(self, like: TreeCache, columns: int) -> None:
        shape, (key, value) = like.states.shape, like.widths
        super().__init__(shape[0])
        self.states = like.states.new_zeros((*shape[:4], columns, shape[5]))
        self._views = [(keys[..., :key], values[..., :value]) for keys, values in self.states.unbind(0)]

    @override
    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write (1, H, n, D) states of one layer to their places; return views (1, H, width, D)."""
        keys, values = self._views[layer_idx]
        keys.index_copy_(2, self.places, key_states)
        values.index_copy_(2, self.places, value_states)
        return keys[:, :, : self.width], values[:, :, : self.width]


class Buffers:
    """The buffers that a `StaticModel`'s forwards run over, and the graphs of the forwards.

    Attributes:
        sizes: numbers of tokens of a forward, ascending.
        widths: numbers of columns, ascending; the last is all of them.
        cache: keys and values.
        integers: description of a forward, on the device: the number of committed entries, then for each of its tokens
            an id, a position, a column, and bits that say which of the columns after the committed ones it sees.
        logits: (largest size, V) of the last forward.
        state: (3,) int64 of plain greedy decoding: the last token, its position, the tokens chosen since `begin`.
        chosen: (capacity + 1,) int64: the tokens chosen, -1 where the logits describe no distribution.
        turn: a lock, held while a session uses the buffers or changes what it knows of its text in them.
        graph_bytes: memory reserved while graphs were captured, and so kept by them; 0 without CUDA.
        dirty: columns that may hold anything; those behind them are zeros.
    """

    def __init__(self, model: HFModel, capacity: int, sizes: tuple[int, ...], graphs: bool) -> None:
        self.engine, self.device, self.dtype, self.sizes = model.engine, model.device, model.dtype, sizes
        self.capacity, self.words = capacity, -(-sizes[-1] // WORD)
        columns = -(-(1 + capacity + sizes[-1]) // WORD) * WORD
        doubled = (NARROWEST << power for power in range(columns.bit_length()))
        self.widths = (*(width for width in doubled if width < columns), columns)
        like, logits = _one_token(model)
        self.cache = StaticCache(like, columns)
        self.logits = logits.new_zeros((sizes[-1], logits.shape[-1]))
        self.columns = torch.arange(columns, device=self.device)
        cuda = self.device.type == "cuda"
        self._host = torch.zeros(1 + sizes[-1] * (3 + self.words), dtype=torch.int64, pin_memory=cuda)
        self.integers = torch.zeros_like(self._host, device=self.device)
        self.state, self.chosen = (self.integers.new_zeros(length) for length in (3, capacity + 1))
        self._sent = torch.cuda.Event() if cuda else None
        self.captures = graphs and cuda
        self._graphs: dict[Any, tuple[Any, Any]] = {}
        self._pool: Any = None
        self._holder: Callable[[], StaticSession | None] = _nobody
        self.turn = threading.RLock()
        self.graph_bytes, self.dirty = 0, 0

    def size(self, tokens: int) -> int:
        """Return the size that a forward of so many tokens is padded to; ValueError for more than the largest."""
        return _at_least(self.sizes, tokens, "tokens to score at once or pending", "sizes=(..., MORE)")

    def width(self, columns: int) -> int:
        """Return the width that a forward over so many columns is padded to; ValueError for more than there are."""
        return _at_least(self.widths, columns, "columns", "a larger capacity")

    # ----------------------------------------------------------------------------------------------- whose text is in
    def lend(self, session: StaticSession | None) -> None:
        """Give the cache to this session, or to none; the text of another session is copied aside first."""
        holder = self._holder()
        if holder is not None and holder is not session:
            holder.aside = self.cache.states[..., : 1 + holder.length + holder.pending, :].clone()
        if holder is not session:
            self._holder = _nobody if session is None else weakref.ref(session)
        if session is not None and not session.length + session.pending:
            self.cache.states[..., : self.dirty, :] = 0  # a weight of 0 does not hide a NaN that an earlier text left
            self.dirty = 0
        if session is not None and session.aside is not None:
            self.cache.states[..., : session.aside.shape[4], :] = session.aside
            session.aside = None

    def lent_to(self, session: StaticSession) -> bool:
        """Return whether this session's text is in the cache."""
        return self._holder() is session

    def move(self, source: np.ndarray, first: int) -> None:
        """Copy the (k,) columns `source`, ascending, to the k columns from `first` on, in all layers at once."""
        states = self.cache.states
        index = torch.from_numpy(source).to(self.device, non_blocking=True)
        states[..., first : first + len(source), :] = states.index_select(4, index)

    # ------------------------------------------------------------------------------------------------------- forwards
    def read(self, tokens: np.ndarray, positions: np.ndarray) -> torch.Tensor:
        """Read (n,) tokens at these consecutive positions as text, without a graph; return (1, V) logits of the last.

        Raises:
            ValueError: if they do not fit the buffers.
        """
        end = int(positions[-1]) + 1
        if end > self.capacity:
            raise ValueError(
                f"A text of {end} tokens does not fit static buffers of {self.capacity}; make the StaticModel with a "
                "larger capacity, or shorten the text."
            )
        self.dirty = max(self.dirty, 1 + end)
        own = self.columns[1 + end - len(tokens) : 1 + end]
        columns = self.columns[: -(-(1 + end) // WORD) * WORD]
        mask = self.mask((columns > 0) & (columns <= own[:, None]))
        self.cache.aim(own, len(columns))
        ids, places = torch.from_numpy(tokens).to(self.device), torch.from_numpy(positions).to(self.device)
        return self.engine(ids[None], places[None], mask, self.cache, 1)[0]

    def send(self, base: int, tokens: np.ndarray, positions: np.ndarray, seen: np.ndarray) -> tuple[int, int]:
        """Describe the next `forward`.

        Args:
            base: committed entries, which all tokens see.
            tokens: (n,) ids.
            positions: (n,) of the tokens.
            seen: (n, m) bool, which of the m entries after the committed ones each token sees; the last n of the m are
                the tokens' own.

        Returns:
            the size and the width to run the forward with.

        Raises:
            ValueError: if the tokens do not fit.
        """
        new, tail = seen.shape
        self.size(tail)  # there are bits for no more
        size, width = self.size(new), self.width(1 + base + tail)
        self.dirty = max(self.dirty, width)
        if self._sent is not None:
            self._sent.synchronize()  # until the last description has left the host
        count = 1 + size * (3 + self.words)
        numbers = self._host[:count].numpy()
        numbers[:] = 0
        numbers[0] = base
        table = numbers[1:].reshape(3 + self.words, size)
        table[0, :new], table[1, :new] = tokens, positions
        table[2, :new] = np.arange(1 + base + tail - new, 1 + base + tail)
        bits = np.packbits(seen, axis=1, bitorder="little")
        words = np.zeros((new, 8 * self.words), np.uint8)
        words[:, : bits.shape[1]] = bits
        table[3:, :new] = words.view("<i8").T
        self.integers[:count].copy_(self._host[:count], non_blocking=True)
        if self._sent is not None:
            self._sent.record(torch.cuda.current_stream(self.device))
        return size, width

    def forward(self, size: int, width: int) -> torch.Tensor:
        """Run the forward that `integers` describes; return (size, V) logits, valid until the next forward."""
        logits: torch.Tensor = self.replay((size, width), lambda: self._step(size, width))
        return logits

    def _step(self, size: int, width: int) -> torch.Tensor:
        table = self.integers[1 : 1 + size * (3 + self.words)].view(3 + self.words, size)
        places = table[2]
        self.cache.aim(places, width)
        seen = self._seen(self.integers[0], places, table[3:], width)
        logits = self.engine(table[0][None], table[1][None], self.mask(seen), self.cache, size)[0]
        return self.logits[:size].copy_(logits)  # one place for all graphs, which would each keep their own

    def _seen(self, base: torch.Tensor, places: torch.Tensor, bits: torch.Tensor, width: int) -> torch.Tensor:
        """(n, width) bool: the committed columns, and those that the bits name; of padding tokens column 0."""
        columns = self.columns[:width]
        tail = columns - (1 + base)
        word = bits.index_select(0, (tail // WORD).clamp(0, self.words - 1))
        named = ((word.T >> (tail % WORD)) & 1).bool() & (tail >= 0) & (tail < WORD * self.words)
        real = ((columns > 0) & (tail < 0)) | named
        return torch.where(places[:, None] > 0, real, columns == 0)

    def mask(self, seen: torch.Tensor) -> torch.Tensor:
        """Return a (1, 1, n, m) additive mask from (n, m) bool."""
        return additive(seen, self.dtype)[None, None]

    # ------------------------------------------------------------------------------------------- plain greedy decoding
    def begin(self, token: int, position: int) -> None:
        """Go on after this token, whose position is also the number of entries in the cache."""
        self.state.copy_(torch.tensor([token, position, 0]))

    def choose(self, width: int, vocab_size: int) -> None:
        """Choose one more token of the vocabulary by a forward of `width` columns and feed it back, on the device."""
        self.dirty = max(self.dirty, width)
        self.replay(("greedy", vocab_size, width), lambda: self._choose(width, vocab_size))

    def _choose(self, width: int, vocab_size: int) -> torch.Tensor:
        token, position, count = self.state.split(1)
        place, columns = position + 1, self.columns[:width]
        self.cache.aim(place, width)
        mask = self.mask(((columns > 0) & (columns <= place))[None])
        best = self.engine(token[None], position[None], mask, self.cache, 1)[0, :, :vocab_size].max(-1)
        chosen = torch.where(best.values.isfinite(), best.indices, -1)
        self.chosen.index_copy_(0, count, chosen)
        self.state.add_(1)
        self.state[:1].copy_(best.indices)
        return chosen

    # --------------------------------------------------------------------------------------------------------- graphs
    def replay(self, key: Any, step: Callable[[], Any]) -> Any:
        """Run a step over static tensors: captured the first time on a CUDA device, replayed from then on.

        Args:
            key: names the step.
            step: only launches kernels, and returns tensors of fixed size. The runs before the capture leave `state`
                as it was.

        Raises:
            RuntimeError: if the step cannot be captured; the sentence names a way out.
        """
        if not self.captures:
            return step()
        if key not in self._graphs:
            try:
                self._graphs[key] = self._captured(step)
            except RuntimeError as error:
                raise RuntimeError(
                    f"Forward {key} of engine '{self.engine.name}' could not be captured as a CUDA graph ({error}); "
                    "use StaticModel(model, graphs=False), or another engine."
                ) from error
        graph, output = self._graphs[key]
        graph.replay()
        return output

    def _captured(self, step: Callable[[], Any]) -> tuple[Any, Any]:
        state = self.state.clone()
        with torch.cuda.device(self.device):
            stream = torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UPS):
                    step()
                    self.state.copy_(state)
            torch.cuda.current_stream().wait_stream(stream)
            torch.cuda.synchronize()
            torch.cuda.empty_cache()
            self._pool = self._pool or torch.cuda.graph_pool_handle()
            reserved, graph = torch.cuda.memory_reserved(), torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph, pool=self._pool, stream=stream):  # torch's own is the first device's
                output = step()
            self.graph_bytes += max(0, torch.cuda.memory_reserved() - reserved)
        return graph, output


def static_pair(pair: Pair, capacity: int | None = None, *, warm: bool = False, **options: Any) -> Pair:
    """Put a pair on static buffers, each model on its own, `warm` or not; options as for `StaticModel`.

    The draft is the one that reads tokens alone (`Pair.common_draft`): static buffers hold no features.
    """
    of_kind("The pair", pair, Pair, "give a pair, as load_pair or make_pair returns it")
    target, draft = (StaticModel(model, capacity, **options) for model in (pair.target, pair.common_draft))
    if warm:
        target.warm()
        draft.warm()
    return Pair(pair.name, target, draft, pair.tokenizer)


def why_not_static(model: HFModel) -> str | None:
    """Say in a sentence why a model cannot run over static buffers; None if it can."""
    if model.window is not None:
        return (
            f"'{model.name}' has sliding-window layers, whose cache has another shape than static buffers; use the "
            "HFModel itself."
        )
    if mixes_experts(model.config):
        return (
            f"'{model.name}' is a mixture of experts, which waits for the device to learn how many tokens each expert "
            "has, so its forwards cannot be captured; use the HFModel itself."
        )
    if any("dynamic" in str(getattr(part, "rope_type", "")) for part in model.model.modules()):
        return (
            f"'{model.name}' has dynamic rotary scaling, which asks the device for the longest position of each "
            "forward, so its forwards cannot be captured; use the HFModel itself."
        )
    if model.feature_layers is not None:
        return (
            f"'{model.name}' drafts from its target's features, which static buffers do not hold; give a draft that "
            "reads tokens alone (`Pair.common_draft`), or use the pair as it was loaded."
        )
    if isinstance(model, TranslatedHFModel):
        return (
            f"'{model.name}' is translated for a target with another tokenizer, which static buffers do not do; put "
            "the draft on static buffers and translate that: TranslatedHFModel(StaticModel(draft.untranslated), "
            "draft.translation)."
        )
    hooks = hooked(model.model)
    if hooks:
        return (
            f"{hooks[0].upper()}{hooks[1:]} ('{model.name}'), which captured forwards would leave out; use the HFModel "
            "itself."
        )
    devices = {weight.device for weight in model.model.parameters()}
    if len(devices) > 1:
        return (
            f"'{model.name}' is spread over {len(devices)} devices and static buffers lie on one; load it on one "
            "device, or use the HFModel itself."
        )
    return None


@torch.inference_mode()
def _one_token(model: HFModel) -> tuple[TreeCache, torch.Tensor]:
    """The cache and the (1, 1, V) logits of a forward of one token, to read their shapes from."""
    cache, zero = model.new_cache(1), torch.zeros(1, 1, dtype=torch.int64, device=model.device)
    logits = model.engine(zero, zero, None, cache, 1)
    return cache, logits


def _at_least(sizes: Sequence[int], wanted: int, what: str, way_out: str) -> int:
    for size in sizes:
        if size >= wanted:
            return size
    raise ValueError(f"{wanted} {what} do not fit static buffers for {sizes[-1]}; make the StaticModel with {way_out}.")


def _nobody() -> None:
    """No session's text is in the cache."""
