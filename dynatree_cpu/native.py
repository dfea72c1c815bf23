"""A whole forward of few tokens of a Llama-family model in one call of machine code (`kernels`)."""

from __future__ import annotations

import ctypes
import logging
import math
import os
import struct
import threading
import time
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any, ClassVar, Self
from weakref import WeakKeyDictionary

import numpy as np
import torch
from numpy import ndarray
from transformers import PreTrainedModel

from dynatree_lib.masks import additive
from dynatree_lib.models.architecture import reach
from dynatree_lib.models.engine import Eager, Features
from dynatree_lib.sampling import Ranking

from . import kernels, preparing

FEW = 64
"""Tokens of a forward up to which this engine runs it; more run in transformers' own forward."""
PATIENCE = 2.0
"""Seconds of a first forward after which `COMPILING` is said."""
COMPILING = (
    "Compiling the forward of few tokens for this processor. This takes up to a minute, once: numba keeps the result "
    "on disk."
)
FIRST_COLUMNS = 256
"""Tokens of a text for which a forward has working space at first; it grows."""
ALIGNMENT = 64
VARYING = struct.Struct(f"{kernels.SHARPNESS - kernels.TOKENS}qd")
"""What differs from forward to forward of a job."""


@cache
def _say_compiling() -> None:
    logging.getLogger(__name__).warning(COMPILING)  # once, however many kinds of weights are compiled for


class Team:
    """The threads that run forwards of one kind of weights: the caller's and `threads - 1` that wait in between."""

    def __init__(self, threads: int, kind: np.dtype) -> None:
        self.threads, self.kind = threads, np.empty(0, kind)
        self.job, self.left, self.posted = np.zeros(kernels.FIELDS, np.int64), np.zeros(16, np.int64), 0
        self.used = False
        self.semaphores = np.zeros((threads, 16), np.int64)  # a sem_t takes at most 128 bytes
        self.signals = self.semaphores.ctypes.data + 128 * np.arange(threads)
        self.signals[0] = _latest.ctypes.data
        self.lock = threading.Lock()
        self.patience = threading.Timer(PATIENCE, _say_compiling)
        self.patience.daemon = True
        self.patience.start()
        library = ctypes.CDLL(None)
        for thread in range(1, threads):
            library.sem_init(ctypes.c_void_p(int(self.signals[thread])), 0, 0)
            arguments = self.job, thread, threads, self.kind, self.signals
            threading.Thread(target=kernels.run, args=arguments, daemon=True).start()

    def ready(self) -> bool:
        """Return whether all workers have left the last forward."""
        return int(self.left[0]) == self.posted

    def run(self, job: np.ndarray, alone: bool) -> None:
        """Run one forward; the caller holds the lock.

        A worker that the system keeps from running may still be on its way through a forward that has long been done
        without it. It is not waited for: until it has left, the caller runs alone, with counters of its own.
        """
        if alone:
            kernels.run(job, 0, 1, self.kind, self.signals)
            return
        self.job[:] = job
        self.job[kernels.LEFT] = self.left.ctypes.data
        self.posted += kernels.run(self.job, 0, self.threads, self.kind, self.signals)
        if not self.used:
            self.used = True
            self.patience.cancel()

    def settle(self) -> None:
        """Wait until all workers have left, because what they look at is about to go."""
        while not self.ready():
            time.sleep(0.001)


_latest = np.zeros(16, np.int64)
"""Which team has run the latest forward: the address of the semaphore of its first worker."""
_teams: dict[tuple[int, int, np.dtype], Team] = {}
_making = threading.Lock()


def team(threads: int, kind: np.dtype) -> Team:
    """Return this process's threads for forwards of a kind of weights (`kernels.FLOAT32` and so on)."""
    key = os.getpid(), threads, kind  # threads do not survive a fork
    if key not in _teams:
        with _making:
            if key not in _teams:
                _teams[key] = Team(threads, kind)
    return _teams[key]


def blocked(weight: torch.Tensor) -> torch.Tensor:
    """Pack an (out, in) matrix in blocks of `kernels.WIDTH` outputs, the last one filled with zeros; flat."""
    short = -len(weight) % kernels.WIDTH
    weight = torch.nn.functional.pad(weight, (0, 0, 0, short)) if short else weight
    if weight.dtype == torch.bfloat16:
        blocks = weight.view(-1, kernels.WIDTH, weight.shape[1] // 2, 2)
        return blocks.transpose(1, 2).reshape(-1)
    return weight.view(-1, kernels.WIDTH, weight.shape[1]).transpose(1, 2).reshape(-1)


def aligned(count: int, dtype: torch.dtype) -> torch.Tensor:
    """Allocate `count` elements that begin at a cache line.

    numpy asks the system for large pages where an array is large, so that fewer addresses are to be looked up.
    """
    size = dtype.itemsize
    raw = np.empty(count * size + ALIGNMENT, np.uint8)
    skip = -raw.ctypes.data % ALIGNMENT
    return torch.from_numpy(raw[skip : skip + count * size]).view(dtype)


def copied(packed: torch.Tensor) -> torch.Tensor:
    """Copy bytes to where a cache line begins."""
    place = aligned(len(packed), torch.uint8)
    return place.copy_(packed)


def split_space(width: int) -> int:
    """Return the bytes that products with quantised weights work in, for rows of so many inputs."""
    return int(kernels.SPACE + (FEW + kernels.DEEP) * kernels.split_bytes(width))


def most_probable(
    logits: torch.Tensor, breadth: int, sharpness: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Do what `sampling.most_probable` does, for the (f, V) logits of a compiled forward, or of a long one by torch."""
    breadth = min(breadth, logits.shape[-1])
    tokens = np.empty((len(logits), breadth), np.int64)
    shares, sharp = np.empty((2, len(logits), breadth))
    kernels.rank(logits.float().numpy(), sharpness, tokens, shares, sharp)
    return tokens, shares, sharp


def invert(logits: torch.Tensor, node: int, sharpness: float, coin: float) -> int:
    """Do what `sampling.Invert` describes, for the logits of a compiled forward, or of a long one by torch."""
    return int(kernels.invert(logits.float().numpy(), node, sharpness, coin))


def softmax(logits: torch.Tensor, node: int, sharpness: float) -> torch.Tensor | None:
    """Do what `sampling.Softmax` describes, for logits as `invert` takes them."""
    out = np.empty(logits.shape[1], np.float32)
    finite = kernels.softmax_of(logits.float().numpy(), node, sharpness, out)
    return torch.from_numpy(out) if finite else None


def matrices(layer: Any) -> Iterator[torch.Tensor]:
    """Yield a layer's matrices as a forward reads them: q, k and v joined, output, gate and up in turn, down."""
    attention, part = layer.self_attn, layer.mlp
    yield torch.cat([attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight])
    yield attention.o_proj.weight
    width = part.gate_proj.weight.shape[1]
    gate, up = (each.weight.view(-1, kernels.WIDTH, width) for each in (part.gate_proj, part.up_proj))
    yield torch.stack([gate, up], 1).reshape(-1, width)
    yield part.down_proj.weight


class CompiledLlama:
    """The forward of one model of the Llama family on a CPU, with a packed copy of its weights.

    Its buffers hold one forward at a time. Python threads that ask for one together wait for each other, also where
    torch's number of threads differs between them, so that their forwards are run by different teams.

    Args:
        model: in eval mode, on the CPU, in float32, or in bfloat16 where the processor multiplies in it.
        kind: of the packed weights, one of `kernels.GROUP_BYTES`; that of the model's dtype by default.
    """

    name = "compiled"
    copies_weights: ClassVar[bool] = True
    gives_features: ClassVar[bool] = True
    serves: ClassVar[str] = "see `compiled.Compiled`"
    narrow: ClassVar[torch.dtype] = torch.bfloat16 if kernels.BFLOAT16 else torch.float32
    apart: ClassVar[float] = 0.0
    """Which groups of inputs of quantised weights have 8 bits more: all, or those of outliers (`kernels.APART`)."""
    fewest: ClassVar[int] = 2
    """How many times 8 bits the others have (`kernels.FEWEST`)."""
    most_probable, invert, softmax = staticmethod(most_probable), staticmethod(invert), staticmethod(softmax)

    @torch.no_grad()
    def __init__(self, model: Any, kind: np.dtype | None = None) -> None:
        core, config = model.model, model.config
        self.eager = Eager(model)
        self.lock, self.teams = threading.Lock(), set[Team]()
        self.usual: tuple[tuple[int, int], Team] | None = None
        self.dtype = core.embed_tokens.weight.dtype
        self.half = self.dtype == torch.bfloat16
        self.kind = kind or (kernels.BFLOAT16_BITS if self.half else kernels.FLOAT32)
        self.of_kind = np.empty(0, self.kind)
        self.embedding, self.layers = core.embed_tokens.weight, config.num_hidden_layers
        self.job = np.zeros(kernels.FIELDS, np.int64)
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // heads
        width, mlp, rows = config.hidden_size, config.intermediate_size, len(model.lm_head.weight)
        across, self.vocab_size = (heads + 2 * groups) * size, rows
        self.rows = rows + -rows % kernels.WIDTH
        self.groups, self.size, self.width = groups, size, width
        count = self.layers * width * (across + heads * size + 3 * mlp)
        self.weights = aligned(count * kernels.GROUP_BYTES[self.kind] // kernels.GROUP, torch.uint8)
        self.vectors = torch.zeros(self.layers * (2 * width + across + 2 * size) + width)
        place = 0
        for index, layer in enumerate(core.layers):
            for matrix in matrices(layer):
                packed = self._packed(matrix)
                self.weights[place : place + len(packed)] = packed
                place += len(packed)
            attention = layer.self_attn
            biases = [each.bias for each in (attention.q_proj, attention.k_proj, attention.v_proj)]
            norms = [getattr(attention, name).weight for name in ("q_norm", "k_norm") if hasattr(attention, name)]
            vectors = self.vectors[index * (2 * width + across + 2 * size) :]
            vectors[:width] = layer.input_layernorm.weight
            vectors[width : width + across] = torch.cat(biases) if biases[0] is not None else 0
            vectors[width + across : 2 * width + across] = layer.post_attention_layernorm.weight
            if norms:
                vectors[2 * width + across : 2 * width + across + 2 * size] = torch.cat(norms)
        self.vectors[-width:] = core.norm.weight
        self._take_joint(getattr(model, "joint", None), getattr(model, "fusion", None))
        if kernels.BYTES and self.half and len(self.joint) and width % 4 == 0:
            self._take_bytes(model.lm_head.weight)
        else:
            self._take_head(model.lm_head.weight)
        everywhere = torch.arange(reach(config))[None]
        cos, sin = core.rotary_emb(torch.zeros(1), everywhere)
        self.cos, self.sin = (table[0, :, : size // 2].contiguous() for table in (cos, sin))
        self.hidden, self.qkv = aligned(FEW * width, torch.float32), aligned(FEW * across, torch.float32)
        rows_of_tiles = FEW + kernels.DEEP
        self.mixed, self.grown = (aligned(rows_of_tiles * each, torch.float32) for each in (heads * size, mlp))
        self.ids, self.positions = np.zeros((2, FEW), np.int64)
        job = self.job
        job[kernels.LAYERS], job[kernels.SIZE], job[kernels.HEADS] = self.layers, size, heads
        job[kernels.GROUPS], job[kernels.MLP], job[kernels.HIDDEN_SIZE] = groups, mlp, width
        job[kernels.ROWS], job[kernels.VOCAB], job[kernels.HEAD_NORMS] = self.rows, rows, bool(norms)
        self.pieces = np.empty(FEW * kernels.PARTS * kernels.PART_BYTES, np.uint8)
        job[kernels.PIECES] = self.pieces.ctypes.data
        self.ranked = np.empty((FEW, 3, kernels.BEST))
        self.ranked_place = self.ranked.ctypes.data
        job[kernels.WEIGHTS], job[kernels.VECTOR_WEIGHTS] = self.weights.data_ptr(), self.vectors.data_ptr()
        job[kernels.HEAD], job[kernels.COS], job[kernels.SIN] = (
            each.data_ptr() for each in (self.head, self.cos, self.sin)
        )
        job[kernels.HIDDEN], job[kernels.QKV] = self.hidden.data_ptr(), self.qkv.data_ptr()
        job[kernels.MIXED], job[kernels.GROWN] = self.mixed.data_ptr(), self.grown.data_ptr()
        self.shapes = kernels.tile_shapes()
        job[kernels.SHAPES] = self.shapes.ctypes.data
        job[kernels.JOINT], job[kernels.JOINT_NORMS], job[kernels.PAIRS] = (
            each.data_ptr() if len(each) else 0 for each in (self.joint, self.joint_norms, self.pairs)
        )
        job[kernels.EMBEDDING] = self.embedding.data_ptr()
        job[kernels.IDS], job[kernels.POSITIONS] = self.ids.ctypes.data, self.positions.ctypes.data
        if self.kind in (kernels.FOUR_BITS, kernels.EIGHT_BITS):
            widest = max(width * (2 if len(self.joint) else 1), heads * size, mlp)
            job[kernels.SPLIT_BYTES] = split_space(widest)
        self.known_slots: dict[tuple[int, ...], tuple[int, np.ndarray]] = {}
        self.arranged: WeakKeyDictionary[Any, torch.Tensor] = WeakKeyDictionary()
        self.scratch: list[torch.Tensor | np.ndarray] = []
        self._make_room(FIRST_COLUMNS, torch.get_num_threads())
        self.eps = config.rms_norm_eps
        numbers = [self.eps, 1 / math.sqrt(size), self.apart]
        job[[kernels.EPS, kernels.SCALE, kernels.APART]] = np.array(numbers).view(np.int64)
        job[kernels.FEWEST] = self.fewest

    def _take_joint(self, joint: Any, fusion: Any) -> None:
        """Pack what a draft on features has before its layers (`Joint`, `Fusion`), where the model is one."""
        width = self.width
        self.joint, self.joint_norms = torch.empty(0, dtype=self.dtype), torch.empty(0)
        self.pairs = aligned(0 if joint is None else 2 * FEW * width, torch.float32)
        if joint is not None:
            self.joint = copied(self._packed(joint.map.weight))
            self.joint_norms = torch.cat([joint.token_norm.weight, joint.feature_norm.weight]).float()
            self.given, self.found = np.zeros((2, FEW, width), np.float32)
        if fusion is not None:
            self.fusion = copied(self._packed(fusion.map.weight))
            self.fusion_norms = torch.cat([norm.weight for norm in fusion.norms]).float().numpy()
            inputs = aligned((FEW + kernels.DEEP) * len(self.fusion_norms), self.dtype)  # a tile may read past the last
            numbers = 2 * kernels.DEEP * kernels.WIDTH + split_space(len(self.fusion_norms)) // 4
            tile = aligned(numbers, torch.float32).numpy()
            self.fusing = self._bits(inputs), tile, np.zeros(2 * kernels.LINE // 8, np.int64)

    def _packed(self, matrix: torch.Tensor) -> torch.Tensor:
        """Pack an (out, in) matrix of a layer; flat uint8."""
        return blocked(matrix).view(torch.uint8)

    def _take_head(self, head: torch.Tensor) -> None:
        """Pack the head in the weights' own dtype."""
        self.head = aligned(self.rows * self.width, self.dtype)
        self.head[:] = blocked(head)
        self.job[kernels.HEAD_ROW] = self.width * self.dtype.itemsize

    def _take_bytes(self, head: torch.Tensor) -> None:
        """Pack the head of a draft in 8 bits: half the memory to read, and a draft need not be exact.

        Each row has the value of a step of its own, so that its largest number is 127 steps.
        """
        wide = torch.nn.functional.pad(head.float(), (0, 0, 0, self.rows - len(head)))
        self.head_scales = wide.abs().amax(1) / 127
        numbers = (wide / self.head_scales.clamp_min(torch.finfo(torch.float32).tiny)[:, None]).round().to(torch.int8)
        self.head_sums = numbers.sum(1, dtype=torch.int32)
        self.head = aligned(self.rows * self.width, torch.int8)
        self.head[:] = numbers.view(-1, kernels.WIDTH, self.width // 4, 4).transpose(1, 2).reshape(-1)
        self.job[[kernels.HEAD_SCALES, kernels.HEAD_SUMS, kernels.HEAD_ROW]] = (
            self.head_scales.data_ptr(), self.head_sums.data_ptr(), self.width,
        )  # fmt: skip

    def prepare(self, *, begin: bool, wait: bool) -> bool:
        """Return whether its machine code is compiled, as `preparing.ready` says."""
        return preparing.ready(self.kind, begin=begin, wait=wait)

    def __del__(self) -> None:
        for members in (_teams or {}).values():  # None while Python shuts down
            members.settle()

    def _make_room(self, columns: int, threads: int) -> None:
        """Allocate what threads work in, each for itself, for texts of so many tokens."""
        self.columns, self.threads = columns, threads
        width, wide = columns + -columns % kernels.WIDTH, self.size + -self.size % kernels.WIDTH
        numbers = 2 * kernels.DEEP * kernels.WIDTH + kernels.TILE * (wide + width) + width * FEW
        rows = (FEW + kernels.DEEP) * (2 if len(self.joint) else 1)  # a tile may read rows past the last
        private = 4 * (numbers + rows * self.width) + int(self.job[kernels.SPLIT_BYTES])
        private = private // 4096 * 4096 + 4096
        count = kernels.counters(self.layers, int(self.job[kernels.GROUPS]), threads) * kernels.LINE // 8
        self.taken = np.zeros((2, count), np.int64)  # counters for a team, and for the caller alone
        self.counters = [int(each.ctypes.data) for each in self.taken]
        space = aligned(private * threads // 4, torch.float32)
        self.scratch += [self.taken, space]  # earlier ones stay for late workers
        self.seen = np.zeros(FEW * columns, np.uint8)
        self.job[[kernels.PRIVATE, kernels.PRIVATE_BYTES]] = space.data_ptr(), private
        self.mask = self.seen.ctypes.data

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self | None:
        """Make the compiled forward of a model, or None where it has none."""
        config: Any = model.config
        plain = config.hidden_act == "silu" and not getattr(config, "mlp_bias", False)
        plain = plain and model.model.layers[0].self_attn.o_proj.bias is None
        dtypes = (torch.float32, torch.bfloat16) if kernels.BFLOAT16 else (torch.float32,)
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        heads, groups = config.num_attention_heads, config.num_key_value_heads
        widths = config.hidden_size, config.intermediate_size, (heads + 2 * groups) * size
        fits = all(width % kernels.WIDTH == 0 for width in widths)
        fits = fits and not any(each % 32 for each in (*widths, heads * size) if kernels.MATRICES)
        return cls.made(model) if plain and fits and model.dtype in dtypes else None

    @classmethod
    def made(cls, model: PreTrainedModel) -> Self | None:
        """Make the forward of a model of which everything but its weights has been looked at."""
        return cls(model)

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: torch.Tensor | None,
        cache: Any,
        keep: int,
        features: Features | None = None,
    ) -> torch.Tensor:
        """Compute (B, keep, V) logits, float32, as `Engine` says."""
        if len(ids) > 1 or not self.runs(ids.shape[1], cache):
            return self.eager(ids, positions, mask, cache, keep, features)
        seen = None if mask is None else (mask[0, 0] >= 0).numpy()
        return self.read(ids[0].numpy(), positions[0].numpy(), seen, cache, keep, features)[None]

    def _slots(self, wanted: tuple[int, ...]) -> int:
        """The address of what says of every layer which of the wanted states is the one after it, or -1."""
        if wanted not in self.known_slots:
            slots = np.full(self.layers, -1)
            slots[[layer if layer < 0 else layer - 1 for layer in wanted]] = np.arange(len(wanted))
            self.known_slots[wanted] = slots.ctypes.data, slots
        return self.known_slots[wanted][0]

    @property
    def parts(self) -> bool:
        """Whether more than `FEW` tokens are read in parts, because that is faster than transformers' forward.

        In bfloat16 without tiles torch takes up to five times as long.
        """
        return self.half and not kernels.MATRICES

    def runs(self, count: int, cache: Any) -> bool:
        """Whether a forward of so many tokens of one text over this cache is compiled."""
        return count <= FEW and hasattr(cache, "room_for")

    def read(
        self,
        tokens: ndarray,
        positions: ndarray,
        seen: ndarray | None,
        cache: Any,
        keep: int,
        features: Features | None = None,
    ) -> torch.Tensor:
        """Compute (keep, V) logits, float32, as `ArrayEngine` says."""
        count, tail = len(tokens), 0 if seen is None else seen.shape[1]
        if self.parts and count > FEW and hasattr(cache, "room_for"):
            return self._read_in_parts(tokens, positions, seen, cache, keep, features)
        if not self.runs(count, cache):
            mask = None if seen is None else additive(seen, self.dtype, cache.size + count - tail)[None, None]
            ids, places = torch.from_numpy(tokens)[None], torch.from_numpy(positions)[None]
            return self.eager(ids, places, mask, cache, keep, features)[0]
        members, features = self._members(), features or Features()
        with self.lock, members.lock:  # one forward at a time: of the engine's buffers, and of the threads
            self._prepare(members, cache, count)
            self.ids[:count], self.positions[:count] = tokens, positions
            if seen is not None:
                self.seen[: count * tail] = seen.reshape(-1)
            given, found, wanted = None, None, features.layers
            if len(self.joint):
                given = features.take(count).float().contiguous()
            if wanted:
                found = torch.empty(count, len(wanted) * self.width)
                features.read.append(found)
            addresses = (0 if given is None else given.data_ptr(), 0 if found is None else found.data_ptr())
            return self._forward(members, cache, (count, keep, tail), addresses, wanted, features.ranking)

    def _read_in_parts(
        self,
        tokens: ndarray,
        positions: ndarray,
        seen: ndarray | None,
        cache: Any,
        keep: int,
        features: Features | None,
    ) -> torch.Tensor:
        """Do what `read` does by forwards of at most `FEW` tokens; nothing is left of them where one is interrupted."""
        base, kept = cache.size, 0 if features is None else len(features.read)
        count, rows = len(tokens), []
        if features is not None:
            features.ranking = None
        try:
            for begin in range(0, count, FEW):
                end = min(begin + FEW, count)
                part = None if seen is None else seen[begin:end, : seen.shape[1] - count + end]
                wanted = max(0, end - max(begin, count - keep))
                rows.append(self.read(tokens[begin:end], positions[begin:end], part, cache, wanted, features))
        except BaseException:
            cache.keep(base, np.empty(0, np.int64))
            if features is not None:
                del features.read[kept:]
            raise
        return torch.cat(rows)

    def _members(self) -> Team:
        """The threads that a forward runs on now."""
        key = os.getpid(), torch.get_num_threads()
        if self.usual is None or self.usual[0] != key:
            self.usual = key, team(key[1], self.kind)
        return self.usual[1]

    def _prepare(self, members: Team, cache: Any, count: int) -> None:
        """Make room for `count` further tokens, in the cache and in what threads work in."""
        columns = cache.room_for(self.embedding, self.groups, self.size, count)[0] + count
        if columns > self.columns or members.threads > self.threads:
            self._make_room(max(self.columns, columns + columns // 2), max(self.threads, members.threads))

    def _forward(
        self,
        members: Team,
        cache: Any,
        sizes: tuple[int, int, int],
        features: tuple[int, int],
        wanted: tuple[int, ...],
        ranking: Ranking | None = None,
    ) -> torch.Tensor:
        """Run a forward of what lies in `ids`, `positions` and `seen`.

        Args:
            members: threads, whose lock and the engine's the caller holds.
            cache: with room for the tokens.
            sizes: tokens, those that logits are wanted of, columns that `seen` tells of.
            features: addresses of those that tokens come with, and of space for hidden states; 0 without.
            wanted: layers of those states.
            ranking: of the logits, if any.
        """
        job, (count, keep, tail), store = self.job, sizes, cache.states
        self.teams.add(members)
        alone = not all(each.ready() for each in self.teams)  # a worker of any may still look at the buffers
        self.taken[int(alone)].fill(0)
        logits = torch.empty(keep, self.rows)
        VARYING.pack_into(
            job.data, 8 * kernels.TOKENS, count, keep, cache.size, cache.size + count, tail, store.shape[-2],
            store.data_ptr(), self.mask if tail else 0, self.counters[alone], logits.data_ptr(), *features,
            self._slots(wanted), len(wanted), self._arranged(cache).data_ptr(), cache.unchanged,
            0 if ranking is None else self.ranked_place, 1.0 if ranking is None else ranking.sharpness,
        )  # fmt: skip
        members.run(job, alone)
        cache.unchanged = cache.size - cache.size % kernels.WIDTH
        cache.size += count
        if ranking is not None:
            ranking.found, ranking.of = self.ranked[:keep].copy(), self.vocab_size
        return logits if self.rows == self.vocab_size else logits[:, : self.vocab_size]

    def _arranged(self, cache: Any) -> torch.Tensor:
        """Return where keys and values of a cache are kept as attention reads them (`kernels.lay_out`)."""
        columns, wide = cache.states.shape[-2], self.size + -self.size % kernels.WIDTH
        count = self.layers * self.groups * (columns + -columns % kernels.WIDTH) * (self.size + wide)
        arranged = self.arranged.get(cache)
        if arranged is None or len(arranged) != count:
            arranged = self.arranged[cache] = aligned(count, torch.float32)
            cache.unchanged = 0
        return arranged

    def level(
        self,
        tokens: np.ndarray,
        parents: np.ndarray,
        queued: int,
        position: int,
        cache: Any,
        given: tuple[torch.Tensor, torch.Tensor] | None = None,
        around: Callable[..., torch.Tensor] | None = None,
        features: Features | None = None,
    ) -> torch.Tensor:
        """Read a tree, or a level of one, as `ArrayEngine` says."""
        nodes, features = len(tokens) - queued, features or Features()
        tail, members = queued + len(parents), self._members()
        with self.lock, members.lock:
            self._prepare(members, cache, len(tokens))
            ids, positions, seen = self.ids[: len(tokens)], self.positions[: len(tokens)], self.seen
            ids[:] = tokens
            kernels.lay(ids, parents, queued, position, positions, seen)
            places, wanted = (0, 0), features.layers
            if given is not None:
                waiting, known = (self._bits(each) for each in given)
                kernels.give(waiting, known, parents, nodes, self.given)
                places, wanted = (self.given.ctypes.data, self.found.ctypes.data), (-1,)
            elif wanted:
                states = torch.empty(len(tokens), len(wanted) * self.width)
                features.read.append(states)
                places = 0, states.data_ptr()

            def run(*_: Any) -> torch.Tensor:
                return self._forward(members, cache, (len(tokens), nodes, tail), places, wanted, features.ranking)

            if around is None:
                logits = run()
            else:
                mask = seen[: len(tokens) * tail].reshape(-1, tail)
                logits = around(run, ids, positions, mask, cache, nodes)
            if given is not None:
                kernels.keep_states(self.found[queued : len(tokens)], known, len(parents) - nodes)
        return logits

    def _bits(self, numbers: torch.Tensor) -> np.ndarray:
        """The array of a tensor of the weights' dtype, bfloat16 as its bits."""
        return (numbers.view(torch.uint16) if self.half else numbers).numpy()

    def fused(self, states: torch.Tensor) -> torch.Tensor | None:
        """Compute (n, h) float32 features of (n, k h) hidden states, or None where it is not compiled for so many."""
        if not 0 < len(states) <= FEW:
            return None
        out = torch.empty(len(states), self.width)
        with self.lock:
            inputs, tile, counters = self.fusing
            counters.fill(0)
            kernels.fuse(
                states.float().numpy(), self.fusion_norms, self.fusion.data_ptr(), np.float32(self.eps),
                int(self.job[kernels.SHAPES]), self.apart, self.fewest, inputs, out.numpy(), tile, counters,
                self.of_kind,
            )  # fmt: skip
        return out
