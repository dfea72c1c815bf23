"""`HFModel`: an unpatched transformers model as a `LanguageModel`, with tree attention by mask and depth positions."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable
from functools import cached_property, wraps
from typing import Any, ClassVar, Self, TypeVar, cast

import numpy as np
import torch
from numpy import ndarray
from transformers import PreTrainedModel, PreTrainedTokenizerBase
from typing_extensions import override

from ..checks import as_tuple
from ..masks import additive, chunk, depth_positions, laid_out, sliding_window
from ..sampling import Ranking, Sampling
from .architecture import WINDOWED, check_loaded, reach
from .base import LanguageModel, Session
from .cache import TreeCache
from .engine import ArrayEngine, Eager, Engine, Features, Modules, check_threads, engine_of, prepared
from .generation_config import warn_of
from .proof import check_tree_attention

Method = TypeVar("Method", bound=Callable[..., Any])
SIGHT = {"sliding_attention": sliding_window, "chunked_attention": chunk}
"""Type of layers -> which of the tokens that a node may see it does see."""
LONGEST_JOINT_PREFILL = 256
"""Queued tokens up to this many are read in one forward with the tree; more are read before it."""
READ_BEHIND_A_CACHE = 512
"""Tokens that a forward reads behind a cache: all of a long text at once would need its length times itself of mask."""


class HFModel(LanguageModel):
    """A transformers causal language model that can score token trees: any that proves it (`check`).

    Attributes:
        configured: whether its caller applies the checkpoint's generation config, as `hf.generate` does.
        drafted: (K,) ids of the tokens that its logits are of, see `Session`; None for all.
        around: observes every forward, see `observed`.
        awaited: the engine that runs texts as soon as its machine code is compiled (`settle`); None where none is.

    Args:
        model: a `PreTrainedModel` with sdpa or eager attention; it is put in eval mode.
        tokenizer: its tokenizer, or None.
        engine: what runs its forwards (one of `engine.engines()`); "auto" is the fastest that serves it.
        check: score small trees both ways once and refuse the model if the logits differ.

    Raises:
        TypeError: for what is no loaded model, such as a name, or has no head that scores tokens.
        ValueError: for a model or attention implementation that cannot score trees, weights on the meta device, or an
            engine that cannot serve it; the sentence says why.
    """

    FIELDS: ClassVar[tuple[str, ...]] = (
        "model", "tokenizer", "name", "vocab_size", "context", "eos_token_ids", "vocabulary", "layers", "feature_size",
        "session_class", "around", "drafted", "engine", "set_aside", "awaited", "modules", "configured",
    )  # fmt: skip
    """What a model is made of: `altered` changes these, and another way to run the model takes them over."""

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase | None = None,
        *,
        check: bool = True,
        engine: str = "auto",
    ) -> None:
        check_loaded(model, tokenizer)
        self.model = model.eval()
        self.tokenizer = tokenizer
        config = self.config
        self.name = model.config.name_or_path or config.model_type
        self.vocab_size = int(config.vocab_size)
        self.context = reach(config)
        ends = (getattr(each, "eos_token_id", None) for each in (model.generation_config, config))
        self.eos_token_ids = as_tuple(next((each for each in ends if each is not None), ()))
        self.vocabulary = vocabulary_fingerprint(tokenizer) if tokenizer is not None else None
        self.layers = int(config.num_hidden_layers)
        self.feature_size = int(config.hidden_size)
        self.session_class: type[HFSession] = HFSession
        self.around: Callable[..., torch.Tensor] | None = None
        self.drafted: np.ndarray | None = None
        self.set_aside: Engine | None = None
        self.awaited: Engine | None = None
        self.configured = False
        self.engine: Engine = engine_of(model, engine)
        self.modules = Modules(model)
        if engine == "auto" and not prepared(self.engine, begin=False):
            self.engine, self.awaited = Eager(model), self.engine
        if check:
            check_tree_attention(self, may_fall_back=engine == "auto")

    @property
    def config(self) -> Any:
        """Configuration of the model, of its text part where it has several."""
        return self.model.config.get_text_config(decoder=True)

    @property
    def arrays(self) -> ArrayEngine | None:
        """The engine, if it reads arrays."""
        return cast(ArrayEngine, self.engine) if hasattr(self.engine, "read") else None

    @cached_property
    def device(self) -> torch.device:
        """Device of the input embeddings."""
        return self.model.get_input_embeddings().weight.device

    @cached_property
    def dtype(self) -> torch.dtype:
        """Dtype of the weights."""
        return self.model.dtype

    @cached_property
    def windows(self) -> dict[str, int]:
        """Type of layers that see a part of the text -> its length in tokens; see `WINDOWED`."""
        types = getattr(self.config, "layer_types", None) or ["sliding_attention"]
        sizes = {kind: getattr(self.config, name, None) for kind, name in WINDOWED.items() if kind in types}
        return {kind: int(size) for kind, size in sizes.items() if size}

    @property
    def window(self) -> int | None:
        """Tokens that the layers with the shortest sight look back, where the model has such layers."""
        return min(self.windows.values(), default=None)

    @cached_property
    def layer_devices(self) -> list[torch.device] | None:
        """Device of each layer's keys and values, where they lie on several."""
        if len({weight.device for weight in self.model.parameters()}) == 1:
            return None
        numbered = [part for part in decoder_of(self.model).modules() if hasattr(part, "layer_idx")]
        found = {
            part.layer_idx: next(part.parameters()).device
            for part in numbered
            if sum(hasattr(inner, "layer_idx") for inner in part.modules()) == 1  # a layer may have several caches
        }
        devices: list[torch.device] = []
        for layer in range(self.layers):
            devices.append(found.get(layer, devices[-1] if devices else self.device))
        return devices

    @property
    def parameters(self) -> int:
        """Number of weights, tied ones counted once."""
        return sum(weight.numel() for weight in self.model.parameters())

    def new_cache(self, capacity: int = 256) -> TreeCache:
        """Return an empty cache for one sequence of this model; `capacity` is as for `TreeCache`."""
        sharing = getattr(self.config, "kv_sharing_modes", None) or ()
        own = [layer for layer, mode in enumerate(sharing) if mode != "reuse"]
        return TreeCache(self.layers, capacity, self.layer_devices, own[-1] if own else None)

    def _prove_engine(self) -> None:
        """Raise ValueError unless the engine's logits are those of transformers' own forward."""
        check_tree_attention(self, engine_only=True)

    def settle(self) -> Self:
        """Wait for the engine whose machine code is being compiled, if one is; return the model."""
        self._take_awaited(wait=True)
        return self

    def _take_awaited(self, wait: bool = False) -> None:
        """Let the awaited engine run the model, if it can and passes its proof; see to it that it soon can."""
        awaited = self.awaited
        if awaited is None or not prepared(awaited, wait=wait):
            return
        self.engine, self.awaited = awaited, None
        try:
            self._prove_engine()
        except ValueError as error:
            logging.getLogger(__name__).warning("%s So transformers' own forward runs it (engine 'eager').", error)
            self.engine = Eager(self.modules.model)

    def check_modules(self) -> None:
        """Let transformers' own forward run a model that has got hooks or other modules since it was loaded.

        Another engine would leave them out. A warning says so once. The engine is back when they are gone. Whatever
        begins a text calls this.

        Raises:
            RuntimeError: in a fork of a process that had loaded models (`check_threads`).
        """
        check_threads()
        self._take_awaited()
        if self.set_aside is None and type(self.engine) is Eager:
            return
        changed = self.modules.changed()
        if changed and self.set_aside is None:
            self.set_aside, self.engine = self.engine, Eager(self.modules.model)
            if not self.modules.told:
                logging.getLogger(__name__).warning(
                    "Model '%s' has changed since it was loaded: %s. So transformers' own forward runs it, because its "
                    "engine '%s' would leave that out.", self.name, changed, self.set_aside.name,
                )  # fmt: skip
            self.modules.told = True
        elif self.set_aside is not None and not changed:
            self.engine, self.set_aside = self.set_aside, None

    def session(self) -> HFSession:
        """Return a new, empty session with its own cache."""
        return self.session_class(self)

    @override
    def warn_of_config(self, sampling: Sampling | None, processed: bool = False, ended: bool = False) -> None:
        if not self.configured:
            warn_of(self.model, self.name, sampling, processed, ended)

    def altered(self, **fields: Any) -> Self:
        """Return the same model (weights shared) with other values of some `FIELDS`.

        Args:
            fields: such as `engine`, one that wraps this model's; or `vocab_size`, where the logits end: some families
                pad their embeddings differently per size, and the surplus columns are no tokens.

        Raises:
            AttributeError: for what is no field of the model.
        """
        other = copy.copy(self)
        for name in ("device", "dtype", "windows", "layer_devices"):  # what is read off the model as it is now
            vars(other).pop(name, None)
        for name, value in fields.items():
            if name not in self.FIELDS:
                raise AttributeError(f"A model has no field '{name}' to alter; it has {', '.join(self.FIELDS)}.")
            setattr(other, name, value)
        if "engine" in fields and "awaited" not in fields:
            other.awaited = None
        return other

    def _take_over(self, other: HFModel) -> None:
        """Be the model that `other` is; a subclass that runs it in another way begins with this."""
        for name in HFModel.FIELDS:
            setattr(self, name, getattr(other, name))

    def forward(
        self,
        tokens: ndarray,
        positions: ndarray,
        mask: Any,
        cache: TreeCache,
        keep: int,
        features: Features | None = None,
    ) -> torch.Tensor:
        """Run one forward of (n,) tokens of one sequence and return (keep, V) logits of the last `keep` tokens.

        Without a mask each token sees the cache and the tokens before it: for an empty cache, or a single token.
        """
        arguments = tokens, positions, mask, cache, keep, features
        return self.run_forward(*arguments) if self.around is None else self.around(self.run_forward, *arguments)

    def run_forward(
        self,
        tokens: ndarray,
        positions: ndarray,
        mask: Any,
        cache: TreeCache,
        keep: int,
        features: Features | None = None,
    ) -> torch.Tensor:
        """Run what `forward` runs, without the observer of `observed`."""
        more = () if features is None else (features,)
        if self.arrays is not None:
            logits = self.arrays.read(tokens, positions, mask, cache, keep, *more)
            return logits if logits.shape[1] == self.vocab_size else logits[:, : self.vocab_size]
        ids, places = torch.from_numpy(np.stack((tokens, positions))).to(self.device).split(1)
        return self.engine(ids, places, mask, cache, keep, *more)[0, :, : self.vocab_size]

    def observed(self, around: Callable[..., torch.Tensor]) -> Self:
        """Return the same model (weights shared) whose sessions run each forward as `around(run, *arguments)`.

        `around` returns the logits of `run(*arguments)`; it may time the call or keep its arguments. One that changes
        no logits may say so by an attribute `only_looks = True`: then forwards may say which tokens are most probable.
        """
        return self.altered(around=around)

    def mask(
        self, base: int, tail: np.ndarray, queries: np.ndarray, keys: np.ndarray
    ) -> np.ndarray | torch.Tensor | dict[str, torch.Tensor]:
        """Return what `forward` takes as mask for n tokens; one for each type of layers where the model has types.

        Args:
            base: cache columns that all tokens see.
            tail: (n, m) bool, which of the columns after them.
            queries: (n,) positions of the tokens.
            keys: (m,) positions of the tail's columns; those before them go on downwards.
        """
        if self.arrays is not None:
            return tail
        full = additive(tail, self.dtype, base).to(self.device)[None, None]
        if not self.windows:
            return full
        allowed = np.concatenate([np.ones((len(tail), base), bool), tail], 1)
        columns = np.concatenate([np.arange(keys[0] - base, keys[0]), keys])
        masks = {"full_attention": full}
        for kind, size in self.windows.items():
            seen = SIGHT[kind](allowed, queries, columns, size)
            masks[kind] = additive(seen, self.dtype).to(self.device)[None, None]
        return masks if getattr(self.config, "layer_types", None) else masks["sliding_attention"]


def decoder_of(model: Any) -> Any:
    """Return the part of a transformers model that reads text; all of it where it reads nothing else.

    Parts that read pictures number their layers too.
    """
    kind = type(model.config.get_text_config(decoder=True))
    return next((part for part in model.modules() if type(getattr(part, "config", None)) is kind), model)


def in_dtype(model: Any, dtype: torch.dtype) -> Any:
    """Return a copy of a transformers model with its weights in another dtype.

    Its buffers stay as they are, as when the model is loaded in that dtype: rounded rotary frequencies would turn far
    tokens by wrong angles.
    """
    other = copy.deepcopy(model)
    for weight in other.parameters():
        weight.data = weight.data.to(dtype)
    return other


def in_inference_mode(method: Method) -> Method:
    """Return the method in torch's inference mode, which is entered only where the caller has not entered it.

    To enter it takes as long as some of these methods, and `generate` has entered it.
    """
    guarded = torch.inference_mode()(method)

    @wraps(method)
    def run(*args: Any, **options: Any) -> Any:
        return (method if torch.is_inference_mode_enabled() else guarded)(*args, **options)

    return cast(Method, run)


class HFSession(Session):
    """One sequence in the cache of a transformers model.

    Args of a subclass:
        in_one_call: whether `level` may be one call of the engine, past this class's `_read` and `_positions`.
    """

    in_one_call = True
    _forward_features: Features | None = None

    def __init_subclass__(cls, in_one_call: bool = False, **options: Any) -> None:
        super().__init_subclass__(**options)
        cls.in_one_call = in_one_call

    def __init__(self, model: HFModel) -> None:
        model.check_modules()
        self.model, self.drafted = model, model.drafted
        if model.arrays is not None:
            self.most_probable, self.invert = model.arrays.most_probable, model.arrays.invert
            self.softmax = model.arrays.softmax
        super().__init__(model.name, model.vocab_size)

    def _reset(self) -> None:
        self._cache = self.model.new_cache()
        self._forward_features = None
        if self.feature_layers and not getattr(self.model.engine, "gives_features", False):
            self.model = self.model.altered(engine=Eager(self.model.model))

    def go_on(self, cache: TreeCache) -> None:
        """Begin after a text that was read already: a cache has its entries."""
        self.start([])
        self._cache, self.length, self.position = cache, cache.size, cache.size

    @in_inference_mode
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        self._forward_features = self._features_of(parents, len(tokens))
        if len(queue) > LONGEST_JOINT_PREFILL or not len(tokens):
            self._prefill(np.asarray(queue, np.int64))
            queue = []
        if not len(tokens):
            return torch.empty(0, self.model.vocab_size)
        if self._may_rank():
            self._forward_features = self._forward_features or Features()
            self._forward_features.ranking = Ranking()
        if len(parents) == 1 and not queue:  # plain decoding
            place = self._positions(parents, self.position)
            return self.model.forward(tokens, place, None, self._cache, 1, self._forward_features)
        engine, features = self.model.arrays, self._forward_features
        if engine is not None and self.in_one_call and (features is None or features.given is None):
            joined = np.array([*queue, *tokens], np.int64)
            if engine.runs(len(joined), self._cache):
                return self._in_one_call(engine, joined, parents, len(queue), None, features)
        joined, forest, tail = laid_out(queue, tokens, parents)
        keys = self._positions(forest, self.position - len(queue))
        queries, mask = keys[len(keys) - len(joined) :], None
        if len(joined) > 1 or not tail.all():  # a token that sees everything needs no mask, which is faster
            base = self._cache.size - (len(parents) - len(tokens))  # committed KV entries
            mask = self.model.mask(base, tail, queries, keys)
        return self.model.forward(joined, queries, mask, self._cache, len(tokens), self._forward_features)

    def _features_of(self, parents: np.ndarray, nodes: int) -> Features | None:
        """Return the features of the forwards that read the queue and the last `nodes` of the pending nodes."""
        return Features(self.feature_layers) if self.feature_layers else None

    def _may_rank(self) -> bool:
        """Whether a forward's logits are what its caller gets."""
        around = self.model.around
        return self.model.arrays is not None and (around is None or getattr(around, "only_looks", False))

    @override
    def _ranking(self) -> Ranking | None:
        return None if self._forward_features is None else self._forward_features.ranking

    @override
    @in_inference_mode
    def best(
        self, tokens: np.ndarray, parents: np.ndarray, breadth: int, sharpness: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        ranking = Ranking(sharpness) if self._may_rank() else None
        logits = self.level(tokens, parents, ranking)
        found = None if ranking is None else ranking.best(logits, breadth)
        return self.most_probable(logits, breadth, sharpness) if found is None else found

    @override
    @in_inference_mode
    def level(self, tokens: np.ndarray, parents: np.ndarray, ranking: Ranking | None = None) -> torch.Tensor:
        """Do what `Session.level` says; where it is one call, note what is found out about the logits."""
        engine, queue = self.model.arrays, self._queue
        if engine is None or not self.in_one_call:
            return super().level(tokens, parents)
        joined, every = np.array([*queue, *tokens], np.int64), self._all_parents(parents)
        if not engine.runs(len(joined), self._cache):
            return super().level(tokens, parents)
        given = self._level_features(every, self.pending)
        logits = self._in_one_call(engine, joined, every, len(queue), given, Features(ranking=ranking))
        self._have_read(every, len(tokens))
        return logits

    def _in_one_call(
        self, engine: ArrayEngine, joined: np.ndarray, parents: np.ndarray, queued: int,
        given: tuple[torch.Tensor, torch.Tensor] | None, features: Features | None,
    ) -> torch.Tensor:  # fmt: skip
        """Read queue and nodes by `ArrayEngine.level`; arguments as there, `given` its `features`."""
        model = self.model
        logits = engine.level(joined, parents, queued, self.position, self._cache, given, model.around, features)
        return logits if logits.shape[1] == model.vocab_size else logits[:, : model.vocab_size]

    def _level_features(self, parents: np.ndarray, before: int) -> tuple[torch.Tensor, torch.Tensor] | None:
        """What `ArrayEngine.level` takes as features, with room for those of the new nodes.

        `parents` are those of all pending nodes, `before` of which were read before.
        """
        return None

    def _prefill(self, queue: np.ndarray) -> None:
        # From the start, sdpa can use its fast causal kernel; behind a cache, a mask has a row for every token.
        size = READ_BEHIND_A_CACHE if self._cache.size else max(1, len(queue))
        for start in range(0, len(queue), size):
            part = queue[start : start + size]
            positions = self.position - len(queue) + start + np.arange(len(part))
            base, mask = self._cache.size, None
            if base and len(part) > 1:
                mask = self.model.mask(base, np.tri(len(part), dtype=bool), positions, positions)
            self.model.forward(part, positions, mask, self._cache, 1, self._forward_features)

    def _positions(self, forest: np.ndarray, first: int) -> np.ndarray:
        return depth_positions(forest, first)

    def _features(self) -> torch.Tensor | None:
        if not self.feature_layers:
            return None
        read: list[torch.Tensor] = [] if self._forward_features is None else self._forward_features.read
        if not read:
            return torch.empty(0, len(self.feature_layers) * (self.model.feature_size or 0), device=self.model.device)
        return read[0] if len(read) == 1 else torch.cat(read)

    @in_inference_mode
    def _keep(self, nodes: np.ndarray) -> None:
        self._cache.keep(self.length, nodes)


def vocabulary_fingerprint(tokenizer: PreTrainedTokenizerBase) -> str:
    """Return a hash of a tokenizer's token-to-id map: equal for tokenizers that number the same tokens alike."""
    listing = "\n".join(f"{index}\t{token}" for token, index in sorted(tokenizer.get_vocab().items()))
    return hashlib.sha256(listing.encode()).hexdigest()[:16]
