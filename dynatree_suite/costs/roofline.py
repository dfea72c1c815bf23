"""A roofline: what a forward reads and computes, and the seconds that follow on a machine, at hand or on paper.

A forward reads all weights and the KV cache once, whatever the number of tokens that it scores, and computes with each
weight for each token. So its time is that of the reading and of the arithmetic, which overlap more or less
(`Machine.sharpness`), plus what grows with neither: launches, and the vectors between the matrix products. `predict`
gives the parts. Levels of drafting, iterations, speeds, the batch at which drafting stops to pay and the best tree
follow from it.

A machine's parameters come from a data sheet (`DATA_SHEETS`), or are fitted to a handful of measured forwards (`fit`);
then all others are predictions. Measuring is in `costs.forward_grid`, published speeds are in
`costs.predictions`. `cost_model` measures an iteration at every size instead, and knows nothing of sizes or
machines that it has not seen.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Self

import numpy as np

from dynatree_lib.checks import is_number, whole
from dynatree_lib.models.huggingface import HFModel

from .ranks import RankAcceptance

BYTES = {"float64": 8.0, "float32": 4.0, "bfloat16": 2.0, "float16": 2.0, "int8": 1.0, "int4": 0.5}
"""Bytes of a number by dtype."""
UNGATED, GATED = ("gpt_neox",), ("llama", "qwen2", "qwen3", "mistral")
"""Families of models by their MLP: two matrices, or three."""
PER_NUMBER = 16
"""Vector operations with each number of a layer's hidden states, queries, keys, values and inner MLP values."""
PER_SCORE = 10
"""Vector operations with each attention score: mask, maximum, exponential, sum, quotient."""
FITTED = ("flops", "vector", "launch")
"""Parameters of a machine that `fit` can fit; its bandwidth is measured, or read in a data sheet."""
PULL = 0.03
"""Weight of the start against a fitted point, per factor e: what points cannot tell stays as it was."""
FURTHEST = 7.0
"""Largest natural logarithm by which a fitted parameter leaves its start."""
TREE_SIZES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Drafted nodes that `best_tree` tries."""


def _at_least(name: str, value: Any, least: float) -> None:
    if not is_number(value) or not value >= least:
        raise ValueError(f"{name} is {value!r}; give a number of at least {least}.")


# -------------------------------------------------------------------------------------------------------------- shapes
@dataclass(frozen=True)
class Shape:
    """The sizes of a decoder that its forward's time depends on. Norms, biases and tables of embeddings are left out.

    Attributes:
        name: for messages and tables.
        layers, width: of the hidden states.
        heads, kv_heads, head_size: of the attention.
        mlp: inner width of the MLP.
        vocabulary: rows of the output layer.
        gated: whether the MLP has three matrices and not two.
        dtype: in which it computes, and keeps keys and values.
        weight_bytes: bytes of a weight; those of `dtype` by default, fewer where weights are quantised.

    Raises:
        ValueError: for a size below 1, an unknown dtype, or bytes that are not above 0.
    """

    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    mlp: int
    vocabulary: int
    gated: bool = True
    dtype: str = "float16"
    weight_bytes: float | None = None

    def __post_init__(self) -> None:
        for size in ("layers", "width", "heads", "kv_heads", "head_size", "mlp", "vocabulary"):
            _at_least(f"{size} of '{self.name}'", getattr(self, size), 1)
        if self.dtype not in BYTES:
            raise ValueError(f"dtype of '{self.name}' is {self.dtype!r}; choose from {', '.join(BYTES)}.")
        if self.weight_bytes is not None and not (is_number(self.weight_bytes) and self.weight_bytes > 0):
            raise ValueError(f"A weight of '{self.name}' has {self.weight_bytes!r} bytes; give a number above 0.")

    @classmethod
    def of_config(cls, config: Any, dtype: str = "float16", name: str = "") -> Self:
        """Return the shape of a transformers config.

        Raises:
            ValueError: for a family whose layers are not known here.
        """
        family = config.model_type
        if family not in (*UNGATED, *GATED):
            known = ", ".join((*UNGATED, *GATED))
            raise ValueError(
                f"The layers of a {family} model are not known here; give a Shape by its sizes, or one of {known}."
            )
        heads = config.num_attention_heads
        return cls(
            name or getattr(config, "name_or_path", "") or family,
            config.num_hidden_layers,
            config.hidden_size,
            heads,
            getattr(config, "num_key_value_heads", None) or heads,
            getattr(config, "head_dim", None) or config.hidden_size // heads,
            config.intermediate_size,
            config.vocab_size,
            family in GATED,
            dtype,
        )

    @classmethod
    def of(cls, model: HFModel, name: str = "") -> Self:
        """Return the shape of a loaded model.

        Its output layer has the tokens that it drafts, where those are some; its weights have the bytes that its engine
        reads of them, where those are not the dtype's.
        """
        shape = cls.of_config(model.model.config, str(model.dtype).removeprefix("torch."), name or model.name)
        if model.drafted is not None:
            shape = replace(shape, vocabulary=len(model.drafted))
        read: int | None = getattr(model.engine, "forward_bytes", None)
        return shape if read is None else replace(shape, weight_bytes=read / shape.weights)

    @property
    def layer_weights(self) -> int:
        """Weights of the matrices of one layer."""
        attention = self.width * self.head_size * 2 * (self.heads + self.kv_heads)
        return attention + (3 if self.gated else 2) * self.width * self.mlp

    @property
    def weights(self) -> int:
        """Weights that a forward reads: of all layers and of the output layer."""
        return self.layers * self.layer_weights + self.width * self.vocabulary

    @property
    def bytes(self) -> float:
        """Bytes of the weights that a forward reads."""
        return self.weights * (BYTES[self.dtype] if self.weight_bytes is None else self.weight_bytes)

    @property
    def cache_bytes(self) -> float:
        """Bytes of the keys and values of one token."""
        return 2 * self.layers * self.kv_heads * self.head_size * BYTES[self.dtype]

    @property
    def numbers(self) -> int:
        """Numbers of a token between the matrices of a layer: hidden states, queries, keys, values, inner values."""
        inner = (2 if self.gated else 1) * self.mlp
        return 2 * self.width + self.head_size * (self.heads + 2 * self.kv_heads) + inner

    def forward_bytes(self, tokens: float = 1, texts: int = 1, kv: int = 0) -> float:
        """Return the bytes of weights, keys and values that a forward reads and writes.

        Args:
            tokens: scored in each text.
            texts: in the batch.
            kv: tokens in the cache of each text.
        """
        return self.bytes + texts * (kv + tokens) * self.cache_bytes

    def matrix_operations(self, tokens: float = 1, texts: int = 1) -> float:
        """Return the floating-point operations of the matrix products with weights, two per weight and token."""
        return 2.0 * self.weights * tokens * texts

    def vector_operations(self, tokens: float = 1, texts: int = 1, kv: int = 0) -> float:
        """Return the operations between those products: attention, softmax, norms, rotation, activation."""
        scores = (kv + tokens) * self.heads * (4 * self.head_size + PER_SCORE)
        return float(self.layers * tokens * texts * (scores + PER_NUMBER * self.numbers))


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("pythia-70m", 6, 512, 8, 8, 64, 2048, 50304, gated=False),
        Shape("pythia-2.8b", 32, 2560, 32, 32, 80, 10240, 50304, gated=False),
        Shape("llama-68m", 2, 768, 12, 12, 64, 3072, 32000),
        Shape("llama2-7b", 32, 4096, 32, 32, 128, 11008, 32000),
        Shape("llama2-13b", 40, 5120, 40, 40, 128, 13824, 32000),
        Shape("llama2-70b", 80, 8192, 64, 8, 128, 28672, 32000),
        Shape("codellama-7b", 32, 4096, 32, 32, 128, 11008, 32016),
        Shape("codellama-13b", 40, 5120, 40, 40, 128, 13824, 32016),
        Shape("llama3.2-1b", 16, 2048, 32, 8, 64, 8192, 128256),
        Shape("llama3.1-8b", 32, 4096, 32, 8, 128, 14336, 128256),
        Shape("llama3.1-70b", 80, 8192, 64, 8, 128, 28672, 128256),
        Shape("qwen2.5-7b", 28, 3584, 28, 4, 128, 18944, 152064),
        Shape("qwen2.5-14b", 48, 5120, 40, 8, 128, 13824, 152064),
        Shape("qwen2.5-32b", 64, 5120, 40, 8, 128, 27648, 152064),
    )
}
"""Shapes of the papers' models and of a 70B target, from the config.json files that their authors publish; 16 bits."""


# ------------------------------------------------------------------------------------------------------------ machines
@dataclass(frozen=True)
class Machine:
    """One device with the software that runs forwards on it.

    Attributes:
        name: for messages and tables.
        bandwidth: bytes per second from main memory.
        flops: dtype -> operations per second of matrix products.
        vector: operations per second of everything between them.
        launch: seconds of a layer that depend on no size: calls, launches, gaps between kernels.
        queued: whether launches run ahead of the device, so that the longer of both counts and not their sum.
        sharpness: how the seconds of memory and of arithmetic make those of both, (m^s + a^s)^(1/s): 1 is one after
            the other, infinity the longer alone. Published speeds of forwards with many tokens want 1, and records of
            forwards on CPUs hardly tell 1 from 2 (notebook 51), so 1 is the default.
        host: seconds of an iteration outside of all forwards.
        link, latency: bytes per second between devices that share a model, and seconds of one exchange.
        memory: bytes of memory of one device.

    Raises:
        ValueError: for a speed or sharpness that cannot be.
    """

    name: str
    bandwidth: float
    flops: Mapping[str, float]
    vector: float = math.inf
    launch: float = 0.0
    queued: bool = False
    sharpness: float = 1.0
    host: float = 0.0
    link: float = math.inf
    latency: float = 0.0
    memory: float = math.inf

    def __post_init__(self) -> None:
        speeds = {"bandwidth": self.bandwidth, "vector": self.vector, "link": self.link, "memory": self.memory}
        speeds |= {**{f"flops of {one}": n for one, n in self.flops.items()}}
        for name, value in speeds.items():
            if not is_number(value) or not value > 0:
                raise ValueError(f"The {name} of '{self.name}' is {value!r}; give a number above 0, per second.")
        for name in ("launch", "host", "latency"):
            _at_least(f"{name} of '{self.name}'", getattr(self, name), 0)
        _at_least(f"sharpness of '{self.name}'", self.sharpness, 1)

    def speed_in(self, dtype: str) -> float:
        """Return operations per second in a dtype.

        Raises:
            ValueError: where it is not known.
        """
        if dtype not in self.flops:
            raise ValueError(
                f"How fast '{self.name}' multiplies in {dtype} is not known, only in {', '.join(self.flops)}; give "
                "its flops."
            )
        return self.flops[dtype]

    def overlapped(self, memory: float, arithmetic: float) -> float:
        """Return the seconds of reading and arithmetic together."""
        longer, shorter = max(memory, arithmetic), min(memory, arithmetic)
        if math.isinf(self.sharpness) or shorter <= 0:
            return longer
        return longer * (1 + (shorter / longer) ** self.sharpness) ** (1 / self.sharpness)


def _data_sheet(name: str, gigabytes: float, bandwidth: float, tensor: float, single: float, link: float) -> Machine:
    """Return a machine of a data sheet: GB, GB/s, dense tensor and float32 TFLOPS, GB/s to its neighbours one way."""
    halves = {"float16": 1e12 * tensor, "bfloat16": 1e12 * tensor, "float32": 1e12 * single}
    return Machine(
        name, 1e9 * bandwidth, halves, 1e12 * single, queued=True, sharpness=math.inf, link=1e9 * link, latency=8e-6,
        memory=1e9 * gigabytes,
    )  # fmt: skip


DATA_SHEETS = {
    "a100-40gb": _data_sheet("NVIDIA A100 40 GB", 40, 1555, 312, 19.5, 300),
    "a100-80gb": _data_sheet("NVIDIA A100 80 GB SXM", 80, 2039, 312, 19.5, 300),
    "h100": _data_sheet("NVIDIA H100 SXM", 80, 3350, 989, 67, 450),
    "h200": _data_sheet("NVIDIA H200 SXM", 141, 4800, 989, 67, 450),
    "l20": _data_sheet("NVIDIA L20", 48, 864, 119.5, 59.8, 32),
    "a6000": _data_sheet("NVIDIA RTX A6000", 48, 768, 154.8, 38.7, 56),
}
"""What NVIDIA's data sheets print of these GPUs: memory, dense 16-bit tensor and float32 operations, NVLink (L20 PCIe).

The latency of an exchange between GPUs, 8 microseconds, is no number of a data sheet but usual for NVLink. Launches and
the host are left at 0, because no data sheet knows the software: such a machine is a bound, not a prediction.
"""


# ------------------------------------------------------------------------------------------------------------ forwards
@dataclass(frozen=True)
class Forward:
    """The predicted time of one forward, in seconds, and its parts.

    Attributes:
        memory: reading weights, keys and values.
        arithmetic: matrix products.
        vector: everything between them.
        link: exchanges between devices.
        launch: launches of all layers.
        seconds: all together.
    """

    memory: float
    arithmetic: float
    vector: float
    link: float
    launch: float
    seconds: float


def predict(
    machine: Machine, shape: Shape, tokens: float = 1, texts: int = 1, kv: int = 0, devices: int = 1
) -> Forward:
    """Predict one forward.

    Args:
        machine: one device.
        shape: of the model.
        tokens: scored in each text; a mean over forwards is taken too.
        texts: in the batch.
        kv: tokens in the cache of each text.
        devices: that share every matrix (tensor parallel); two exchanges a layer.

    Raises:
        ValueError: for counts below 1, a cache below 0, or a dtype that the machine does not know.
    """
    for name, value in (("tokens", tokens), ("texts", texts), ("devices", devices)):
        _at_least(name, value, 1)
    _at_least("kv", kv, 0)
    read = shape.forward_bytes(tokens, texts, kv) / devices
    if devices > shape.kv_heads:  # a key head is on several devices
        read += texts * (kv + tokens) * shape.cache_bytes * (1 / shape.kv_heads - 1 / devices)
    memory = read / machine.bandwidth
    arithmetic = shape.matrix_operations(tokens, texts) / devices / machine.speed_in(shape.dtype)
    vector = shape.vector_operations(tokens, texts, kv) / devices / machine.vector
    link = 0.0
    if devices > 1:
        sent = 2 * (devices - 1) / devices * tokens * texts * shape.width * BYTES[shape.dtype]
        link = 2 * shape.layers * (machine.latency + sent / machine.link)
    launch, busy = machine.launch * shape.layers, machine.overlapped(memory, arithmetic) + vector + link
    seconds = max(launch, busy) if machine.queued else launch + busy
    return Forward(memory, arithmetic, vector, link, launch, seconds)


def seconds_of(
    machine: Machine, shape: Shape, tokens: float = 1, texts: int = 1, kv: int = 0, devices: int = 1
) -> float:
    """Return the seconds of `predict`."""
    return predict(machine, shape, tokens, texts, kv, devices).seconds


# ---------------------------------------------------------------------------------------------------------- iterations
@dataclass(frozen=True)
class Loop:
    """What an iteration runs besides one target forward over its nodes.

    Attributes:
        draft: the draft's shape; None where nothing is drafted by a model.
        levels: nodes that each forward of the draft reads. A draft that is run node by node has as many ones.
        reread: whether the draft reads the whole text again in each iteration.
        rebuild: tokens that a second forward of the target reads in each iteration; 0 without one.
    """

    draft: Shape | None = None
    levels: tuple[int, ...] = ()
    reread: bool = False
    rebuild: int = 0

    def __post_init__(self) -> None:
        if self.levels and self.draft is None:
            raise ValueError(f"Levels of {self.levels} nodes are to be drafted without a draft; give its shape.")


PLAIN = Loop()
"""Nothing drafted."""


def drafting_seconds(machine: Machine, loop: Loop, texts: int = 1, kv: int = 0) -> float:
    """Return the seconds of an iteration's forwards of the draft."""
    if loop.draft is None:
        return 0.0
    draft = loop.draft
    read = Counter(loop.levels)
    total = sum(number * seconds_of(machine, draft, count, texts, kv) for count, number in read.items())
    if loop.reread and kv:
        total += seconds_of(machine, draft, kv, texts)
    return total


def iteration_seconds(
    machine: Machine, target: Shape, nodes: int = 1, loop: Loop = PLAIN, texts: int = 1, kv: int = 0, devices: int = 1
) -> float:
    """Return the seconds of an iteration: drafting, the target's forward over `nodes` nodes, and the host.

    Args:
        machine: one device; the draft runs there too.
        target: its shape.
        nodes: scored in each text, node 0 among them.
        loop: how it drafts and commits.
        texts: in the batch, all in step.
        kv: tokens in the cache of each text.
        devices: that share the target.
    """
    seconds = seconds_of(machine, target, nodes, texts, kv, devices) + drafting_seconds(machine, loop, texts, kv)
    if loop.rebuild:
        seconds += seconds_of(machine, target, loop.rebuild, texts, kv, devices)
    return seconds + machine.host


def speed(
    machine: Machine,
    target: Shape,
    tokens: float = 1.0,
    nodes: int = 1,
    loop: Loop = PLAIN,
    texts: int = 1,
    kv: int = 0,
    devices: int = 1,
) -> float:
    """Return tokens per second of all texts together, with `tokens` counted per iteration and text."""
    if not tokens > 0:
        raise ValueError(f"{tokens} tokens are committed per iteration; give a number above 0.")
    return texts * tokens / iteration_seconds(machine, target, nodes, loop, texts, kv, devices)


def largest_batch(machine: Machine, target: Shape, nodes: int = 1, kv: int = 0, devices: int = 1) -> int:
    """Return how many texts' caches fit into the devices' memory with the target's weights; 0 where these do not.

    Raises:
        ValueError: for less than one node or device, or a cache below 0.
    """
    _at_least("nodes", nodes, 1)
    _at_least("kv", kv, 0)
    _at_least("devices", devices, 1)
    free = machine.memory * devices - target.bytes
    texts = free / ((kv + nodes) * target.cache_bytes)
    return int(min(max(texts, 0.0), 2.0**31))


def crossover_batch(
    machine: Machine,
    target: Shape,
    tokens: float,
    nodes: int,
    loop: Loop = PLAIN,
    kv: int = 0,
    devices: int = 1,
    most: int = 2048,
) -> int | None:
    """Return the smallest batch at which drafting is slower than plain decoding.

    None where it is not up to `most` texts, or up to the `largest_batch`.

    Raises:
        ValueError: for a batch of less than one text, and as for `largest_batch` and `speed`.
    """
    most = whole("most", most, 1)
    for texts in range(1, min(most, largest_batch(machine, target, nodes, kv, devices)) + 1):
        plain = speed(machine, target, 1.0, 1, PLAIN, texts, kv, devices)
        if speed(machine, target, tokens, nodes, loop, texts, kv, devices) < plain:
            return texts
    return None


# ---------------------------------------------------------------------------------------------------------- best trees
@dataclass(frozen=True)
class BestTree:
    """The tree with the highest predicted speed.

    Attributes:
        nodes: drafted; 0 where plain decoding is faster.
        depth: levels.
        levels: nodes that the draft reads for each of them.
        tokens: expected per iteration.
        seconds: of an iteration.
        speed: tokens per second of all texts.
        gain: over plain decoding.
    """

    nodes: int
    depth: int
    levels: tuple[int, ...]
    tokens: float
    seconds: float
    speed: float
    gain: float


def tree_levels(parents: Sequence[int]) -> tuple[int, ...]:
    """Return how many nodes have children on each level, which is what the draft reads for the next.

    Args:
        parents: of the drafted nodes, numbered from 1; 0 is node 0. A parent comes before its children.
    """
    depths = [0]
    for parent in parents:
        depths.append(depths[parent] + 1)
    read = Counter(depths[parent] for parent in set(parents))
    return tuple(read[level] for level in range(max(depths)))


def tree_tokens(acceptance: RankAcceptance, parents: Sequence[int]) -> float:
    """Return expected tokens per iteration, the bonus token included, of a tree of any shape; siblings by rank."""
    worth, depths, children = [1.0], [0], Counter[int]()
    for parent in parents:
        rates = acceptance.rates[min(depths[parent], len(acceptance.rates) - 1)]
        rank = children[parent]
        worth.append(worth[parent] * (rates[rank] if rank < len(rates) else 0.0))
        depths.append(depths[parent] + 1)
        children[parent] += 1
    return float(sum(worth))


def best_tree(
    machine: Machine,
    target: Shape,
    draft: Shape,
    acceptance: RankAcceptance,
    *,
    texts: int = 1,
    kv: int = 0,
    devices: int = 1,
    deepest: int = 12,
    sizes: Sequence[int] = TREE_SIZES,
) -> BestTree:
    """Return the tree with the highest predicted speed, of `sizes` nodes and up to `deepest` levels.

    For each size and depth the shape with most expected tokens is taken (`RankAcceptance.slots`).

    Raises:
        ValueError: for no sizes, sizes or levels that are no whole numbers of at least 1, and as for `predict`.
    """
    deepest, sizes = whole("deepest", deepest, 1), [whole("a size", size, 1) for size in sizes]
    if not sizes:
        raise ValueError("sizes is empty; give the numbers of drafted nodes to try.")
    plain = iteration_seconds(machine, target, 1, PLAIN, texts, kv, devices)
    best = BestTree(0, 0, (), 1.0, plain, texts / plain, 1.0)
    for depth in range(1, deepest + 1):
        for nodes in (size for size in sizes if size >= depth):
            levels, drafted, tokens = _best_of_size(acceptance, nodes, depth)
            seconds = iteration_seconds(machine, target, drafted + 1, Loop(draft, levels), texts, kv, devices)
            found = texts * tokens / seconds
            if found > best.speed:
                best = BestTree(drafted, len(levels), levels, tokens, seconds, found, tokens * plain / seconds)
    return best


@cache  # the same for every machine and batch
def _best_of_size(acceptance: RankAcceptance, nodes: int, depth: int) -> tuple[tuple[int, ...], int, float]:
    """Return levels, drafted nodes and expected tokens of the tree with most expected tokens."""
    parents = acceptance.slots(nodes, depth)
    return tree_levels(parents), len(parents), tree_tokens(acceptance, parents)


# ------------------------------------------------------------------------------------------------------------- fitting
@dataclass(frozen=True)
class Point:
    """One measured forward: its size, and its seconds.

    Attributes:
        shape: of the model.
        tokens: scored in each text.
        texts: in the batch.
        kv: tokens in the cache of each text.
        seconds: measured.
        group: for tables of errors.
    """

    shape: Shape
    tokens: int
    texts: int
    kv: int
    seconds: float
    group: str = field(default="", compare=False)

    @property
    def size(self) -> tuple[int, int, int]:
        """Tokens, texts and KV entries of each."""
        return self.tokens, self.texts, self.kv


def fit(machine: Machine, points: Iterable[Point], free: Sequence[str] = FITTED) -> Machine:
    """Fit parameters of a machine to measured forwards, by least squares of the logarithms of their seconds.

    Args:
        machine: where to start; what the points cannot tell stays as it is there. What starts at 0 or infinity starts
            at a value that hardly matters for these points.
        points: measured forwards, of one dtype if `flops` is free.
        free: names, of `FITTED`; "flops" is that of the points' dtype.

    Raises:
        ValueError: for fewer points than parameters, points of several dtypes, or seconds that are not above 0.
    """
    from scipy.optimize import least_squares

    points = list(points)
    dtypes = {point.shape.dtype for point in points}
    if len(points) < len(free):
        raise ValueError(
            f"{len(points)} measured forwards cannot fit {len(free)} parameters ({', '.join(free)}); give as many or "
            "more."
        )
    if len(dtypes) > 1:
        raise ValueError(f"The measured forwards are of {', '.join(sorted(dtypes))}; fit one dtype at a time.")
    if not all(is_number(point.seconds) and point.seconds > 0 for point in points):
        raise ValueError("A measured forward took no time; give seconds above 0.")
    if unknown := set(free) - set(FITTED):
        raise ValueError(f"A machine has no {sorted(unknown)[0]!r} that could be fitted; choose from {FITTED}.")
    (dtype,) = dtypes
    start = np.array([_start(machine, name, dtype, points) for name in free])
    measured = np.log([point.seconds for point in points])

    def made(steps: np.ndarray) -> Machine:
        values = dict(zip(free, (start * np.exp(steps)).tolist(), strict=True))
        if "flops" in values:
            values["flops"] = {**machine.flops, dtype: values["flops"]}
        return replace(machine, **values)

    def residuals(steps: np.ndarray) -> np.ndarray:
        candidate = made(steps)
        predicted = [seconds_of(candidate, point.shape, *point.size) for point in points]
        return np.concatenate([np.log(predicted) - measured, PULL * steps])

    found = least_squares(residuals, np.zeros(len(free)), bounds=(-FURTHEST, FURTHEST))
    return made(found.x)


def _start(machine: Machine, name: str, dtype: str, points: Sequence[Point]) -> float:
    value = machine.flops.get(dtype, math.inf) if name == "flops" else getattr(machine, name)
    if 0 < value < math.inf:
        return float(value)
    slowest = max(points, key=lambda point: point.seconds)
    if name == "launch":  # a tenth of the shortest forward
        fastest = min(points, key=lambda point: point.seconds)
        return fastest.seconds / 10 / fastest.shape.layers
    if name == "flops":
        return 2 * slowest.shape.matrix_operations(slowest.tokens, slowest.texts) / slowest.seconds
    return 5 * slowest.shape.vector_operations(*slowest.size) / slowest.seconds


def split(points: Iterable[Point], calibration: Iterable[tuple[int, int, int]]) -> tuple[list[Point], list[Point]]:
    """Return the points of these sizes (tokens, texts, KV entries), and all others.

    Raises:
        ValueError: where a size was not measured.
    """
    points, wanted = list(points), set(calibration)
    missing = wanted - {point.size for point in points}
    if missing:
        raise ValueError(f"No forward of {min(missing)} (tokens, texts, KV entries) was measured; choose another size.")
    return [point for point in points if point.size in wanted], [point for point in points if point.size not in wanted]
