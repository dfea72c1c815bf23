"""The proof that a model scores token trees, on its own weights: small trees against plain forwards of their paths.

Every node's logits are compared with those of a plain forward over its path, in a short text and behind a long one.
Some architectures read a 4-D mask or positions in another way without an error, which shows here.
"""

from __future__ import annotations

import copy
import logging
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch.overrides import TorchFunctionMode
from transformers import PretrainedConfig

from ..checks import first_line
from ..sampling import GREEDY
from ..tree import ROOT, TokenTree
from .architecture import LARGEST_TREE, WINDOWED, mixes_experts
from .engine import Eager, cache_name

if TYPE_CHECKING:
    from .cache import TreeCache
    from .huggingface import HFModel

TOLERANCE = {torch.float64: 1e-5, torch.float32: 1e-3, torch.float16: 0.03, torch.bfloat16: 0.15}
"""Largest difference ever allowed, as a share of the logits' spread. (In float64 as well, some models compute softmax
and norms in float32.)"""
LEAST = {torch.float64: 4e-6, torch.float32: 1e-4, torch.float16: 0.003, torch.bfloat16: 0.02}
"""Difference that is rounding in any model of this dtype, a part of which may be in float32."""
MASKED = 745
"""Distance from the largest logit at which a probability is 0 in float64."""
MARGIN = 4
"""The allowed difference is so many times that between two of transformers' own ways to read a text."""
SHORT, LONG = 4, 2**20
"""A window shorter than the proof's short texts, and one longer than any text, which tells whether windows differ."""
PREFIX, READ_FIRST = 9, 5
"""Tokens of text before the first tree, and those of them that are read before the others."""
LONGEST, SHORTEST, PRODUCTS = 1024, 576, 8 * 10**10
"""Tokens before the trees of the long trial: most, fewest on a CPU, and products of a token and a weight that a CPU
computes in about a second."""
WIDE = 40
"""Tokens of the text that an engine reads at once, with and without a mask: as many as a large tree has nodes."""
SAID = 10
"""Seconds of reading on a CPU from which on a warning announces the long trial."""
FIRST_TREE, FIRST_LEVELS = (-1, 0, 0, 1, 1, 3, 5), 3
"""Parents of the first tree's nodes, and how many of them are scored before the others."""
ACCEPTED = (0, 1, 3, 5)
"""Nodes of the first tree that are committed: their entries have to be moved together."""
SECOND_TREE = (-1, 0, 0)
"""Parents of the nodes of the tree that is scored after them and one more token."""
MAIN = (*ACCEPTED, 7, 8, 9)
"""Of the 11 nodes that are compared: those on one path, the accepted nodes and what follows them."""
FIRST_PATH = (0, 1, 3, 5, 6)
"""Those on the longest path of the first tree."""
PARTS = {
    "the text before the tree": slice(0, 1),
    "siblings": slice(1, 3),
    "nodes below siblings": slice(3, 7),
    "a token after a commit": slice(7, 8),
    "a tree after a commit": slice(8, 11),
}
"""What is compared, in the order in which it is scored."""
CAUSES = {
    "the text before the tree": "with a mask of its own or over this cache it reads the text in another way",
    "siblings": "it takes what a token sees, or its position, from the order of the tokens",
    "nodes below siblings": "it takes what a token sees, or its position, from the order of the tokens",
    "a token after a commit": "keys and values are not all that it keeps of the text",
    "a tree after a commit": "keys and values are not all that it keeps of the text",
}

UNREAD = (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError)
"""What transformers' own forward over a cache may raise; the library's forward over its cache is tried all the same."""
OVER_CACHE = "forward over the library's cache, mask and positions"
IN_LONG = "in a long text, what it makes of a token depends on which tokens one forward reads"


@torch.inference_mode()
def check_tree_attention(model: HFModel, *, engine_only: bool = False, may_fall_back: bool = False) -> None:
    """Score small trees over the cache and compare every node with a plain forward over its path.

    A text is read in two parts and a tree in two levels, a path is committed, and another tree follows. Windows
    are `SHORT` meanwhile, positions are those of the tree while the cache claims to be much longer, and
    where the router of a mixture of experts is undecided, the tree has the plain forward's experts. Then trees behind a
    long text are compared with one forward of it. transformers' own forward is proved first, then the engine.

    Args:
        model: on this engine and these sessions.
        engine_only: transformers' own forward is proved already.
        may_fall_back: leave the model to `Eager`, with a warning, where its engine fails and transformers' own forward
            passes.

    Raises:
        ValueError: if any logit differs by more than rounding; the sentence says what differed.
    """
    if model.window == 1:  # its cache keeps the last `window - 1` entries as [-0:], which are all
        raise ValueError(
            f"Model '{model.name}' has a window of one token, which transformers' own cache does not keep to, so there "
            "is no text that ours could be equal to; give a window of at least 2."
        )
    allowed, long = _by_dtype(TOLERANCE, model), None
    short = _Trial.of(model, PREFIX, routed=not engine_only)
    with windows_of(SHORT, model.model):
        plain = _attempt(model, "plain forward", lambda: short.plain(model))
        own = model.altered(engine=Eager(model.model))
        if not engine_only:
            noise = short.noise(model, plain[[*FIRST_PATH]], FIRST_PATH)
            allowed = _allowed(model, noise)
            found = _attempt(model, OVER_CACHE, lambda: short.scored(own))
            _compare(model, found, plain, allowed, PARTS, lambda part: _cause(own, short, plain, allowed, part, noise))
    if not engine_only:
        long = _check_long(model, allowed)
        if type(model.engine) is Eager:
            return
    try:
        with windows_of(SHORT, model.model):
            own.engine = model.engine
            _check_engine(own, plain, PARTS, lambda: short.scored(own))
        if not engine_only:
            _check_wide(model)
        if long:
            trial, plain, entries = long
            _check_engine(model, plain, trial.parts, lambda: trial.scored(model, 0, entries)[[*MAIN]])
    except ValueError as error:
        if not may_fall_back:
            raise
        logging.getLogger(__name__).warning("%s So transformers' own forward runs it (engine 'eager').", error)
        model.engine = Eager(model.model)


def _check_wide(model: HFModel) -> None:
    """Compare a forward of an engine over more tokens than the small trees have, as a text and under a mask."""
    trial = _Trial.of(model, WIDE, routed=True)
    plain, _ = trial.read(model.altered(engine=Eager(model.model)))
    once = f"{len(trial.texts[MAIN[-1]])} tokens at once"
    _check_engine(model, plain, {once: slice(None)}, lambda: trial.read(model)[0])
    _check_engine(model, plain, {f"{once} under a mask": slice(None)}, lambda: trial.read(model, masked=True)[0])


def _check_engine(
    model: HFModel, plain: torch.Tensor, parts: Mapping[str, slice], run: Callable[[], torch.Tensor]
) -> None:
    """Compare an engine's logits with those of transformers' own forward."""
    if model.drafted is not None:  # its engine computes the logits of these tokens alone
        plain = plain[:, torch.from_numpy(model.drafted).to(plain.device)]
    engine = f"engine '{model.engine.name}'"
    found, what = _attempt(model, engine, run), f"{engine} differs from its own forward"
    if found.shape != plain.shape:
        raise ValueError(
            f"The {engine} of '{model.name}' gave {' x '.join(map(str, found.shape))} logits where "
            f"{' x '.join(map(str, plain.shape))} were asked for; it is to give those of the last `keep` tokens."
        )
    _compare(model, found, plain, _of_engine(model), parts, lambda _: what, "use engine='eager' or float32")


def _of_engine(model: HFModel) -> float:
    """Return how far the logits of a model's engine may be off."""
    return max(_by_dtype(TOLERANCE, model), getattr(model.engine, "rounding", 0.0))


def _compare(
    model: HFModel,
    found: torch.Tensor,
    plain: torch.Tensor,
    allowed: float,
    parts: Mapping[str, slice],
    cause: Callable[[str], str],
    way_out: str | None = None,
) -> None:
    """Raise ValueError where logits differ from those of plain forwards by more than allowed.

    Args:
        model: for the sentence.
        found: (n, V) logits.
        plain: (n, V) logits that they should be.
        allowed: difference that is allowed.
        parts: rows of the logits by name, in the order in which they are compared.
        cause: says what is wrong where this part is the first that differs.
        way_out: what to do about it. Without one a model in 16 bits passes whose difference is rounding (`_way_out`).
    """
    worst = _worst(found, plain, allowed, parts)
    if worst is None:
        return
    part, off = worst
    way_out = _way_out(model, off) if way_out is None else way_out
    if way_out is None:
        return
    raise ValueError(
        f"Model '{model.name}' does not score a token tree as it scores its paths: {cause(part)} ({part} "
        f"{_told(off, allowed, model.dtype)}), so its output would be wrong{way_out and '; '}{way_out}."
    )


def _check_long(model: HFModel, allowed: float) -> _Long | None:
    """Compare trees behind a long text with one forward of the text and of their longest path.

    So what acts beyond the few tokens of the short trial is noticed: a window of the model's own, a memory of tokens
    further back, a scale that sets in. The trees are scored over the entries that the one forward left of the text,
    as they are after a prompt. None where no text can be so long.
    """
    own = model.altered(engine=Eager(model.model))
    long = _read_long(own)
    if long is not None:
        trial, plain, entries = long
        allowed = max(allowed, _allowed(model, trial.noise(own, plain, MAIN, entries)))
        found = _attempt(model, OVER_CACHE, lambda: trial.scored(own, 0, entries))
        _compare(model, found[[*MAIN]], plain, allowed, trial.parts, lambda _: IN_LONG)
    return long


def _read_long(model: HFModel) -> _Long | None:
    """Read as long a text as the context holds, on a CPU what it reads in about a second but no fewer than `SHORTEST`.

    A shorter one if that fails.
    """
    longest = LONGEST
    if model.device.type == "cpu":
        longest = max(SHORTEST, min(LONGEST, PRODUCTS // max(1, model.parameters)))
    longest = min(longest, model.context - 8)
    if model.device.type == "cpu" and longest * model.parameters > SAID * PRODUCTS:
        logging.getLogger(__name__).warning(
            "Before '%s' is used, it reads %d tokens to prove that it scores token trees, which takes about %.0f "
            "seconds on a CPU.", model.name, longest, longest * model.parameters / PRODUCTS,
        )  # fmt: skip
    failed = ""
    for length in (longest, longest // 2, longest // 4):
        trial = _Trial.of(model, length, routed=True) if length > 2 * PREFIX else None
        try:
            if trial:
                return trial, *trial.read(model)
        except Exception as error:
            failed = f"{type(error).__name__}: {error}"  # the error itself would keep the forward's tensors
    if failed:
        logging.getLogger(__name__).warning(
            "'%s' reads no text of %d tokens or more (%s), so what shows in long texts alone was not tried.",
            model.name, longest // 4, failed,
        )  # fmt: skip
    return None


def _allowed(model: HFModel, noise: float) -> float:
    """Difference that is allowed where transformers' own ways to read a text differ by so much."""
    return min(_by_dtype(TOLERANCE, model), max(_by_dtype(LEAST, model), MARGIN * noise))


def _way_out(model: HFModel, off: float) -> str | None:
    """What to do about a difference that is not allowed; None where it is rounding, as a float32 copy proves.

    How much a forward in 16 bits rounds depends on the kernels, and a GPU takes others for a tree than for a text. What
    differs in float32 too has no way out, which is "".
    """
    if model.dtype not in (torch.float16, torch.bfloat16):
        return ""
    plain = all(type(weight) is torch.nn.Parameter for weight in model.model.parameters())
    if not plain or not off <= _by_dtype(TOLERANCE, model):
        return "use float32"
    try:
        try:
            check_tree_attention(_in_float32(model, model.device))
        except torch.OutOfMemoryError:
            check_tree_attention(_in_float32(model, torch.device("cpu")))
    except ValueError:
        return ""
    except (RuntimeError, MemoryError) as error:
        return f"use float32, which could not be tried here to tell rounding from a fault ({first_line(error)})"
    return None


def _in_float32(model: HFModel, device: torch.device) -> HFModel:
    """Copy a model with its weights in float32, in the place of those on the CPU or on a device.

    Raises:
        MemoryError: where the machine has less memory left than the weights take, which would end the process.
        RuntimeError: where the device has too little.
    """
    needed, free = 4 * model.parameters, free_memory()
    if device.type == "cpu" and free is not None and free < needed:
        raise MemoryError(f"{needed / 1e9:.3g} GB of weights, and {free / 1e9:.3g} GB of memory are free")
    tensors = [*model.model.parameters(), *model.model.buffers()]
    copied: dict[int, Any] = {}
    for tensor in tensors:  # one by one, so that no copy in 16 bits takes memory as well
        place = tensor.device if device.type == model.device.type else device  # a model may lie on several
        wide = tensor.detach().to(place, torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
        copied[id(tensor)] = torch.nn.Parameter(wide, False) if isinstance(tensor, torch.nn.Parameter) else wide
    wide_model = copy.deepcopy(model.model, copied)
    return model.altered(model=wide_model, engine=Eager(wide_model))


def free_memory() -> int | None:
    """Return the bytes of memory that processes may still take; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
        return next(1024 * int(line.split()[1]) for line in lines if line.startswith("MemAvailable"))
    except (OSError, StopIteration):
        return None


def _told(off: float, allowed: float, dtype: torch.dtype) -> str:
    return f"off by {off:.2g} of the logits' spread, allowed {allowed:.2g}, {dtype}"


def _by_dtype(table: dict[torch.dtype, float], model: HFModel) -> float:
    return table.get(model.dtype, 0.0)


def _attempt(model: HFModel, what: str, run: Callable[[], torch.Tensor]) -> torch.Tensor:
    """Run a forward of an architecture that may not know how; ValueError with the reason where it does not."""
    try:
        return run()
    except (torch.OutOfMemoryError, MemoryError):
        raise
    except Exception as error:
        raise ValueError(
            f"Model '{model.name}' of type '{model.config.model_type}' cannot score token trees: its {what} raised "
            f"{type(error).__name__} ({first_line(error)})."
        ) from error


def _worst(
    found: torch.Tensor, plain: torch.Tensor, allowed: float, parts: Mapping[str, slice] = PARTS
) -> tuple[str, float] | None:
    """Return the first part that differs by more than allowed, and by how much; None where none does."""
    offs = difference(found, plain)
    for part, rows in parts.items():
        off = float(offs[rows].max())
        if not off <= allowed:  # also where it is no number
            return part, off
    return None


def difference(found: torch.Tensor, expected: torch.Tensor) -> torch.Tensor:
    """(n,) largest differences of (n, V) logits from those expected, as shares of the spread of these.

    The spread is from the median to the largest of the logits that are not masked. A mask is as far below the largest
    as no probability of float64 is. Equal infinities do not differ, and two units in a logit's last place are free.
    """
    free = 2 * torch.finfo(expected.dtype).eps
    found, expected = (part.cpu().double() for part in (found, expected))
    finite = expected.nan_to_num(0, 0, 0)
    off = torch.where(found == expected, 0.0, (found - expected).abs() - free * finite.abs()).clamp_min(0)
    largest = expected.amax(-1, keepdim=True)
    unmasked = expected.masked_fill(expected < largest - MASKED, torch.nan)
    spread = largest[:, 0] - unmasked.nanmedian(-1).values
    return off.amax(-1) / spread.clamp_min(1e-6)


def _cause(model: HFModel, trial: _Trial, plain: torch.Tensor, allowed: float, part: str, noise: float) -> str:
    """Say what differs, by leaving out in turn what makes the proof harder than a few tokens of plain text."""
    if _worst(trial.scored(model, claimed=0), plain, allowed) is None:
        return "it takes positions from the number of entries in the cache, also where positions are given"
    if model.windows:
        whole = copy.copy(model)
        whole.windows = {}
        with windows_of(LONG, model.model):
            full = trial.plain(whole)
            if _worst(trial.scored(whole), full, allowed) is None:
                names = ", ".join(WINDOWED[kind] for kind in model.windows)
                return f"its layers do not see what the configuration says of windows ({names})"
    if noise > _by_dtype(TOLERANCE, model):
        return f"transformers' own forwards disagree about a text read at once and in two parts (by {noise:.2g})"
    return CAUSES[part]


@contextmanager
def windows_of(size: int, model: torch.nn.Module) -> Iterator[None]:
    """Set all windows and chunks in the configurations of a model and of its parts to so many tokens, and back."""
    parts = [getattr(module, "config", None) for module in model.modules()]
    configs = {id(config): config for config in parts if isinstance(config, PretrainedConfig)}
    before = [(one, name, vars(one).get(name)) for one in configs.values() for name in WINDOWED.values()]
    before = [each for each in before if isinstance(each[2], int) and each[2] > 0]
    try:
        for config, name, _ in before:
            setattr(config, name, size)
        yield
    finally:
        for config, name, was in before:
            setattr(config, name, was)


@dataclass(frozen=True)
class _Trial:
    """Random tokens of a trial, and the texts that its nodes stand for.

    Attributes:
        prefix: text before the first tree.
        first: the first tree.
        token: committed after the accepted path of the first tree.
        second: the second tree.
        routing: how tokens of the tree come to the experts of the plain forward.
    """

    prefix: list[int]
    first: TokenTree
    token: int
    second: TokenTree
    routing: SameExperts | None

    @classmethod
    def of(cls, model: HFModel, length: int, routed: bool) -> _Trial:
        length = max(2, min(length, model.context - 8))  # a text of the proof is 7 tokens longer
        count = length + len(FIRST_TREE) + 1 + len(SECOND_TREE)
        ids = np.resize(np.random.default_rng(0).permutation(_plain_tokens(model))[:count], count).tolist()
        first = TokenTree.build(ids[length:][: len(FIRST_TREE)], FIRST_TREE)
        second = TokenTree.build(ids[-len(SECOND_TREE) :], SECOND_TREE)
        routing = SameExperts(_by_dtype(TOLERANCE, model)) if routed and mixes_experts(model.config) else None
        return cls(ids[:length], first, ids[length + len(FIRST_TREE)], second, routing)

    @property
    def accepted(self) -> list[int]:
        """Text up to the token after the accepted path."""
        return [*self.prefix, *self.first.tokens[list(ACCEPTED)].tolist(), self.token]

    @property
    def parts(self) -> dict[str, slice]:
        """What is compared in a long trial."""
        return {f"a tree after {len(self.prefix)} tokens": slice(None)}

    @property
    def texts(self) -> list[tuple[int, ...]]:
        """The text that each of the 11 nodes ends, in the order in which they are scored."""
        nodes = [
            (*text, *tree.tokens[[0, *tree.path(node)]].tolist())
            for text, tree in ((self.prefix, self.first), (self.accepted, self.second))
            for node in range(len(tree))
        ]
        return [*nodes[: len(self.first)], tuple(self.accepted), *nodes[len(self.first) :]]

    def named(self, text: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Name the tokens of a text for `routed`: by the text up to them, in the prefix by place alone, for speed."""
        length = len(self.prefix)
        return [(-2, place) if place < length else text[: place + 1] for place in range(len(text))]

    def plain(self, model: HFModel) -> torch.Tensor:
        """(11, V) logits after each text, by one forward of transformers' without a cache."""
        texts = self.texts
        whole = [text for text in texts if not any(other != text == other[: len(text)] for other in texts)]
        width = max(map(len, whole))
        ids = [[*text, *text[-1:] * (width - len(text))] for text in whole]  # what comes later is not seen
        names = [
            name
            for row, text in enumerate(whole)
            for name in [*self.named(text), *((-1, row, place) for place in range(len(text), width))]
        ]
        with self.routed(names):
            logits = model.model(torch.tensor(ids, device=model.device), use_cache=False).logits
        rows = [next(row for row, long in enumerate(whole) if long[: len(text)] == text) for text in texts]
        found = torch.stack([logits[row, len(text) - 1] for row, text in zip(rows, texts, strict=True)])
        return found[:, : model.vocab_size]

    def read(self, model: HFModel, masked: bool = False) -> tuple[torch.Tensor, TreeCache]:
        """(7, V) logits of the nodes of `MAIN`, by one forward of all their tokens, and the entries of the prefix.

        With `masked` a mask says what each token sees, which is the same.
        """
        text, cache = self.texts[MAIN[-1]], model.new_cache(LARGEST_TREE)
        places = np.arange(len(text))
        mask = model.mask(0, np.tri(len(text), dtype=bool), places, places) if masked else None
        with self.routed(self.named(text)):
            logits = model.forward(np.array(text), places, mask, cache, len(MAIN))
        cache.keep(len(self.prefix), np.empty(0, np.int64))
        return logits, cache

    def noise(
        self, model: HFModel, plain: torch.Tensor, path: Sequence[int], entries: TreeCache | None = None
    ) -> float:
        """Difference between a plain forward and transformers' own forward over a cache, with masks of its own.

        0 where transformers cannot read so, or where the difference is no number, which is not for noise to judge.

        Args:
            model: reads the nodes.
            plain: (k, V) logits of the plain forward.
            path: the k nodes, a path below the prefix.
            entries: of the prefix; without them the prefix is read first, into transformers' own cache.
        """
        text, length, name = self.texts[path[-1]], len(self.prefix), cache_name(model.model)
        ids, names, over = torch.tensor([text], device=model.device), self.named(text), entries
        try:
            if over is None:
                with self.routed(names[:length]):
                    over = getattr(model.model(ids[:, :length], use_cache=True), name)
            with self.routed(names[length:]):
                logits = model.model(ids[:, length:], **{name: over}, use_cache=True).logits[0]
        except UNREAD:
            return 0.0
        finally:
            if entries is not None:
                entries.keep(length, np.empty(0, np.int64))
        off = float(difference(logits[:, : model.vocab_size], plain).max())
        return off if np.isfinite(off) else 0.0

    def scored(self, model: HFModel, claimed: int | None = None, entries: TreeCache | None = None) -> torch.Tensor:
        """(11, V) logits of the nodes, by a session.

        Args:
            model: whose session.
            claimed: entries that the cache claims to have beyond those it has, while a level of the tree is scored with
                a mask and positions of its own: nothing may depend on it. By default as many as the model's context.
            entries: of the prefix, which is then not read.
        """
        first, second = self.first, self.second
        claimed = model.context if claimed is None else claimed
        nodes, prefix = self.texts, [] if entries is not None else self.named(tuple(self.prefix))
        early = min(READ_FIRST, len(prefix) - 1)
        forwards = [prefix[early:] + nodes[:FIRST_LEVELS], nodes[FIRST_LEVELS:7], nodes[7:8], nodes[8:]]
        if entries is None:
            forwards.insert(0, prefix[:early])
        waiting, around = iter(forwards), model.around

        def routed(run: Callable[..., torch.Tensor], *arguments: Any) -> torch.Tensor:
            with self.routed(next(waiting, ())):
                return run(*arguments) if around is None else around(run, *arguments)

        session = model.observed(routed).session()
        if entries is None:
            session.start(self.prefix[:early])
            session.flush()
            session.extend(self.prefix[early:])
        else:
            entries.keep(len(self.prefix), np.empty(0, np.int64))
            session.go_on(entries)
        rows = [session.score(first.tokens[:FIRST_LEVELS], first.parents[:FIRST_LEVELS], GREEDY).logits]
        with _claiming(session, claimed):
            rows.append(session.score(first.tokens[FIRST_LEVELS:], first.parents[FIRST_LEVELS:], GREEDY).logits)
        session.commit(ACCEPTED)
        rows.append(session.score([self.token], [ROOT], GREEDY).logits)
        session.commit([0])
        rows.append(session.score(second.tokens, second.parents, GREEDY).logits)
        return torch.cat(rows)

    def routed(self, names: Sequence[tuple[int, ...]]) -> AbstractContextManager[Any]:
        """Let the tokens of one forward, which these names tell apart, have the experts of the first that read them."""
        if self.routing is None:
            return nullcontext()
        self.routing.begin(names)
        return self.routing


def _plain_tokens(model: HFModel) -> np.ndarray:
    """Ids of the tokens that stand for nothing but themselves: no padding, no place for an image."""
    named = {**vars(model.model.config), **vars(model.config)}.items()
    special = [number for name, number in named if name.endswith(("token_id", "token_index")) and type(number) is int]
    plain = np.setdiff1d(np.arange(model.vocab_size), special)
    return plain if len(plain) else np.arange(model.vocab_size)


_Long = tuple[_Trial, torch.Tensor, "TreeCache"]
"""A long trial, the logits of its longest path (`MAIN`), and the entries of its text."""


@contextmanager
def _claiming(session: Any, more: int) -> Iterator[None]:
    """Let a session's cache claim so many more entries than it has, if it has a cache that could."""
    cache = getattr(session, "_cache", None)
    if cache is None:
        yield
        return
    cache.get_seq_length = lambda layer_idx=0: cache.size + more
    try:
        yield
    finally:
        del cache.get_seq_length


class SameExperts(TorchFunctionMode):
    """Gives a token the experts that it had before, where its scores are as good as tied.

    A router takes the best k of its scores. Where the last of them is hardly better than the next, rounding
    decides, and another expert is no small difference in the logits. So a proof in float32 or bfloat16 has to compare
    forwards of the same experts. Scores that differ by more are left alone, so that a router that is wrong is seen.

    Args:
        share: difference of scores up to which they are tied, as a share of a token's largest.
    """

    def __init__(self, share: float) -> None:
        super().__init__()
        self.share = share
        # number of a router's choice in a forward -> the experts that each token has there
        self.chosen: defaultdict[int, dict[tuple[int, ...], torch.Tensor]] = defaultdict(dict)
        self.names: Sequence[tuple[int, ...]] = ()
        self.call = 0

    def begin(self, names: Sequence[tuple[int, ...]]) -> None:
        """Say which tokens the next forward reads: equal names are the same token."""
        self.names, self.call = names, 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        if func is torch.topk or func is torch.Tensor.topk:
            scores, count = args[0] if args else kwargs["input"], len(self.names)
            along = found.indices.shape[:-1] == scores.shape[:-1]
            if count and along and scores.dtype.is_floating_point and scores[..., 0].numel() % count == 0:
                return self._followed(scores, found.values, found.indices)
        return found

    def _followed(self, scores: torch.Tensor, values: torch.Tensor, indices: torch.Tensor) -> Any:
        count, chosen = len(self.names), self.chosen[self.call]
        rows, own = scores.reshape(count, -1, scores.shape[-1]), indices.reshape(count, -1, indices.shape[-1])
        self.call += 1
        if any(one.shape != own.shape[1:] for one in chosen.values()):
            return torch.return_types.topk((values, indices))
        before = torch.stack([chosen.setdefault(name, first) for name, first in zip(self.names, own, strict=True)])
        given, worth = rows.gather(-1, before), rows.gather(-1, own)
        span = rows.masked_fill(~rows.isfinite(), 0).abs().amax(-1)
        tied = (worth.amin(-1) - given.amin(-1) <= self.share * span)[..., None]
        taken, values = torch.where(tied, before, own), torch.where(tied, given, worth)
        chosen.update(zip(self.names, taken, strict=True))
        return torch.return_types.topk((values.reshape(indices.shape), taken.reshape(indices.shape)))


def difference_from_paths(
    logits: torch.Tensor, tree: TokenTree, plain: Callable[[list[int]], torch.Tensor], model: HFModel
) -> str | None:
    """Say how far a tree's (n, V) logits are off, where that is more than its engine may be; None where it is not.

    `plain` returns the (V,) logits after a path, given by its tokens from node 0 down.
    """
    expected = torch.stack([plain(tree.tokens[[0, *tree.path(node)]].tolist()) for node in range(len(tree))])
    worst, allowed = float(difference(logits, expected).max()), _of_engine(model)
    return None if worst <= allowed else _told(worst, allowed, model.dtype)
