"""Engines: what runs one forward of a model. All give the same logits up to rounding, and a load-time check says so.

A decoder scores a few tokens at a time, so most of a small model's forward is calls and the reading of weights.
Engines differ in the number of calls and in the order of the weights in memory. `eager` is here; packages register
others.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from importlib.metadata import entry_points
from inspect import signature
from itertools import chain
from pkgutil import resolve_name
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, Self

import torch
from numpy import ndarray
from torch.nn import Module, Parameter
from torch.nn.modules import module as every_module

from ..sampling import Invert, MostProbable, Ranking, Softmax

if TYPE_CHECKING:
    from transformers import PreTrainedModel

COMPILING = "DYNATREE_COMPILING"
"""The environment variable that says whether loading a model waits for machine code: "wait" or "go on"."""
LARGEST_COPY = 2**30
"""Bytes of weights up to which `auto` takes an engine that holds a second copy of them."""


LIBRARY = __name__.partition(".")[0]
STOCK = (
    "torch.nn.modules.", "transformers.models.", "transformers.activations.", "transformers.pytorch_utils.",
    f"{LIBRARY}.",
)  # fmt: skip
"""Where the classes of a model's modules are from, unless it comes with code or somebody has put in others."""
HARMLESS = ("transformers.utils.output_capturing", "accelerate.hooks")
"""Where hooks are from that change nothing: they hand out hidden states, or move tensors between devices."""

CACHE_NAMES = ("cache", "past_key_values")
"""What transformers calls the argument and the output that is a KV cache: the first from 5.24 on."""


def cache_name(model: torch.nn.Module) -> str:
    """Return the one of `CACHE_NAMES` that the model's forward takes; where it names none, that of transformers."""
    from transformers.generation import GenerationMixin

    for function in (model.forward, GenerationMixin.prepare_inputs_for_generation):
        taken = signature(function).parameters
        for name in CACHE_NAMES:
            if name in taken:
                return name
    return CACHE_NAMES[-1]


@dataclass
class Features:
    """Hidden states of the forwards of one sequence: those that tokens come with, and those that are wanted.

    Attributes:
        layers: layers whose hidden states are wanted, counted from 1, -1 being the last, normed; () for none.
        given: (m, h) features of the next m tokens, for a model that reads features; forwards use them up.
        read: (n, k h) hidden states after the k `layers`, side by side, which every forward of n tokens appends.
        ranking: what the forward may find out about its logits, or None.
    """

    layers: tuple[int, ...] = ()
    given: torch.Tensor | None = None
    read: list[torch.Tensor] = field(default_factory=list)
    ranking: Ranking | None = None

    def take(self, count: int) -> torch.Tensor:
        """Return the (count, h) features that the next tokens come with, and forget them.

        Raises:
            ValueError: where there are not so many.
        """
        if self.given is None or len(self.given) < count:
            have = 0 if self.given is None else len(self.given)
            raise ValueError(f"A forward of {count} tokens needs as many features and was given {have}.")
        taken, self.given = self.given[:count], self.given[count:]
        return taken


class Engine(Protocol):
    """Runs forwards of one model.

    Attributes:
        name: what `HFModel(engine=...)` calls it.
        copies_weights: whether it holds a copy of the model's weights.
        serves: the models it serves, for messages.

    An engine that takes `features` says so with `gives_features = True`; others are called without. One that only runs
    where it is named, since it rounds much, has `by_name = True`. One that reads arrays is an `ArrayEngine` too.
    `narrow`, where it has that, is the dtype in which it runs the fastest here; `forward_bytes` are the bytes of
    weights that a forward reads, where they are not the model's. `rounding` is the share of the logits' spread by which
    they may differ from transformers', where that is more than in the dtype. `prepare(begin=, wait=)`, where it has
    that, is asked as `prepared` says. `coarsen(draft)` rounds a draft's weights, in place, to what the engine reads,
    and returns whether it could.
    """

    name: str
    copies_weights: ClassVar[bool]
    serves: ClassVar[str]

    @classmethod
    def of(cls, model: PreTrainedModel) -> Engine | None:
        """The engine of this model, or None where it cannot run it."""
        ...

    def __call__(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor | None, cache: Any, keep: int
    ) -> torch.Tensor:
        """(B, keep, V) logits, in the weights' dtype or float32, of the last `keep` of n tokens of B sequences.

        Args:
            ids: (B, n) int64 token ids.
            positions: (B, n) int64 positions.
            mask: (B, 1, n, m) additive mask over all m cache columns, those of these tokens included; None where each
                token sees the cache and the tokens before it, for an empty cache or a single token.
            cache: `update(key, value, layer)` takes (B, H, n, D) states and returns (B, H, m, D) of all columns.
            keep: tokens to compute logits of.

        With `gives_features` there is a sixth argument, a `Features` or None.
        """
        ...


class ArrayEngine(Protocol):
    """What an engine on the CPU may have besides: forwards and choices without tensors, which take time to make."""

    most_probable: MostProbable
    """What does the same as `sampling.most_probable`, for its logits."""
    invert: Invert
    """Draws from its logits."""
    softmax: Softmax
    """Computes distributions of its logits."""

    def read(
        self,
        tokens: ndarray,
        positions: ndarray,
        seen: ndarray | None,
        cache: Any,
        keep: int,
        features: Features | None = None,
    ) -> torch.Tensor:
        """(keep, V) logits of the last `keep` of (n,) tokens of one sequence.

        Args:
            tokens: (n,) int64 token ids.
            positions: (n,) int64 positions.
            seen: (n, m) bool, which of the cache's last m columns each token sees, these tokens' included; it sees all
                before them. None as for `Engine`.
            cache: as for `Engine`.
            keep: tokens to compute logits of.
            features: of the forward.
        """
        ...

    def runs(self, count: int, cache: Any) -> bool:
        """Whether `level` takes so many tokens of one text over this cache."""
        ...

    def level(
        self,
        tokens: ndarray,
        parents: ndarray,
        queued: int,
        position: int,
        cache: Any,
        given: tuple[torch.Tensor, torch.Tensor] | None = None,
        around: Callable[..., torch.Tensor] | None = None,
        features: Features | None = None,
    ) -> torch.Tensor:
        """Read q queued tokens and f nodes of a tree; return the (f, V) logits of the nodes, float32.

        Args:
            tokens: (q + f,) int64 token ids.
            parents: (p + f,) int64 of all pending nodes, p of which were read before; -1 is below the text. A queue
                comes with the first nodes only: q or p is 0.
            queued: q.
            position: of a node below the text.
            cache: as for `Engine`; it gets the entries of all q + f tokens.
            given: for a draft on features, (q, h) of the queue, and (m, h) of the text's last token and of the pending
                nodes, in which those of the new nodes are written; m > p + f.
            around: called as `HFModel.observed` says, with the forward.
            features: of the forward; what tokens come with is `given`.
        """
        ...

    def fused(self, states: torch.Tensor) -> torch.Tensor | None:
        """What `EagleSession.fused` returns, or None where this engine does not compute it."""
        ...


class Eager:
    """transformers' own forward."""

    name = "eager"
    copies_weights: ClassVar[bool] = False
    gives_features: ClassVar[bool] = True
    serves: ClassVar[str] = "every model"

    def __init__(self, model: PreTrainedModel) -> None:
        self.model = model
        taken = signature(model.forward).parameters.values()
        self.cache_name = cache_name(model)
        self.trims = any(one.name == "logits_to_keep" or one.kind is one.VAR_KEYWORD for one in taken)

    @classmethod
    def of(cls, model: PreTrainedModel) -> Self:
        """The engine of this model."""
        return cls(model)

    def __call__(
        self,
        ids: torch.Tensor,
        positions: torch.Tensor,
        mask: Any,
        cache: Any,
        keep: int,
        features: Features | None = None,
    ) -> torch.Tensor:
        """See `Engine`; a model with several types of layers takes a mask for each, in a dict."""
        features = features or Features()
        if features.given is None:
            inputs: dict[str, Any] = {"input_ids": ids}
        else:  # a model that reads features (`eagle`)
            embedded = self.model.get_input_embeddings()(ids)
            inputs = {"inputs_embeds": self.model.joint(embedded, features.take(ids.shape[1])[None])}
        if self.trims:
            inputs["logits_to_keep"] = keep
        if features.layers:
            inputs["output_hidden_states"] = True
        inputs[self.cache_name] = cache
        output = self.model(**inputs, position_ids=positions, attention_mask=mask, use_cache=True)
        if features.layers:
            features.read.append(torch.cat([output.hidden_states[layer][0] for layer in features.layers], -1))
        logits: torch.Tensor = output.logits
        return logits[:, -keep:]


def hooked(model: Module) -> str | None:
    """Say which module runs more than the forward of its class: a hook, or a forward of its own; None if none does."""
    if every_module._global_forward_hooks or every_module._global_forward_pre_hooks:
        return "torch has a hook around the forward of every module"
    for name, part in model.named_modules():
        named = f"its module '{name}'" if name else "the model"
        hooks = [*part._forward_hooks.values(), *part._forward_pre_hooks.values()]
        if any(getattr(hook, "__module__", None) not in HARMLESS for hook in hooks):
            return f"{named} has a hook around its forward"
        if "forward" in vars(part) and type(getattr(part, "_hf_hook", None)).__module__ not in HARMLESS:
            return f"{named} has a forward of its own"
    return None


def foreign(model: Module) -> str | None:
    """Say what a model runs besides the code of its class: hooks, or a module of another package (a LoRA layer).

    An engine that computes by itself would leave that out. None where there is nothing.
    """
    from transformers import PreTrainedModel

    own, homes = type(model).__module__.partition(".")[0], [*STOCK]
    if own != "transformers" and isinstance(model, PreTrainedModel):
        homes.append(f"{own}.")
    for kind in {type(part): None for part in model.modules()}:
        forward = getattr(kind.forward, "__module__", None) or kind.__module__
        for place, allowed in ((kind.__module__, homes), (forward, [*homes, "transformers."])):
            if not f"{place}.".startswith(tuple(allowed)):
                return f"it has modules of class {kind.__name__}, whose forward is that of {place}"
    return hooked(model)


_threads = {"used": False, "lost": False}
"""used: models were loaded in this process; lost: this is a fork of a process in which they were."""


def _note_fork() -> None:
    _threads["lost"] = _threads["used"]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_note_fork)


def check_threads() -> None:
    """Raise RuntimeError in a fork of a process that had loaded models: forwards would wait for its threads.

    A fork has none of these threads. A forward in one thread waits for none.
    """
    if _threads["lost"] and (threads := torch.get_num_threads()) > 1:
        raise RuntimeError(
            f"Process {os.getpid()} is a fork of one that had loaded models, and has lost that one's threads: a "
            f"forward in {threads} threads would wait for them for ever. Call torch.set_num_threads(1) here first, or "
            'start processes by multiprocessing.get_context("spawn").'
        )


class Modules:
    """Notices at the beginning of a text that a model's modules are not those that its engine was made of.

    Where nothing has changed, the look takes a tenth of a walk through the modules: 30 microseconds for 30 layers.

    Attributes:
        model: whose modules they are.
        told: whether a change was warned of.

    Args:
        model: as it is now.
    """

    def __init__(self, model: Module) -> None:
        self.model, self.told = model, False
        _threads["used"] = True
        self.remember()

    def remember(self) -> None:
        """Remember the modules and hooks of now; `changed` compares later ones with them."""
        parts = [*self.model.modules()]
        self.counted: list[dict[Any, Any]] = [*map(vars, parts)]
        self.counted += [every_module._global_forward_hooks, every_module._global_forward_pre_hooks]
        self.counted += [hooks for part in parts for hooks in (part._forward_hooks, part._forward_pre_hooks)]
        self.children = [part._modules for part in parts if part._modules]
        self.before = self._now()

    def _now(self) -> tuple[int, list[Module | None]]:
        """Number of attributes and hooks, and all modules but the model itself."""
        return sum(map(len, self.counted)), [*chain.from_iterable(map(dict.values, self.children))]

    def changed(self) -> str | None:
        """Say what has changed that the engine would leave out; None for nothing."""
        now = self._now()
        if now == self.before:
            return None
        replaced = "some of its modules were replaced" if now[1] != self.before[1] else None
        what = foreign(self.model) or replaced
        if not what:  # hooks of transformers' own, or attributes
            self.remember()
        return what


ENTRY_POINTS = "dynatree_lib.engines"
"""The group whose entry points name modules of installed packages. A module registers its engines when imported."""
_ENGINES: dict[str, str] = {"eager": f"{__name__}:Eager"}


def register(name: str, place: str) -> None:
    """Add an engine under `name`; `place` is "module:class" of an `Engine`."""
    _ENGINES[name] = place


def engines() -> dict[str, str]:
    """Return the "module:class" of each engine by name, "eager" first; `auto` tries the latest registered first."""
    _load_entry_points()
    return _ENGINES


@cache
def _load_entry_points() -> None:
    given = {name: place for name, place in _ENGINES.items() if name != Eager.name}
    for point in entry_points(group=ENTRY_POINTS):
        try:
            point.load()
        except ImportError as error:
            logging.getLogger(__name__).warning("The engines of '%s' cannot be loaded: %s.", point.value, error)
    for name, place in given.items():  # later than those of packages, also where they were registered before
        _ENGINES.pop(name)
        _ENGINES[name] = place


def prepared(engine: Engine, *, begin: bool = True, wait: bool = False) -> bool:
    """Return whether an engine can run now.

    Args:
        engine: any.
        begin: have another process compile what it needs.
        wait: until it can. It always waits where the environment variable `COMPILING` is "wait".
    """
    prepare = getattr(engine, "prepare", None)
    return prepare is None or bool(prepare(begin=begin, wait=wait or os.environ.get(COMPILING) == "wait"))


def check_engine(choice: str) -> None:
    """Raise ValueError for a name that is no engine's."""
    if choice not in ("auto", *engines()):
        raise ValueError(f"engine is {choice!r}; choose from {', '.join(('auto', *engines()))}.")


def engine_of(model: PreTrainedModel, choice: str = "auto") -> Engine:
    """The engine of this name for a model; "auto" is the fastest that serves it, without a copy of large weights.

    Only `eager` runs hooks, and modules that are not those of the model's class.

    Raises:
        ValueError: for an unknown name, or one that cannot serve this model; the sentence says what can.
    """
    check_engine(choice)
    small = sum(weight.nbytes for weight in model.parameters()) <= LARGEST_COPY
    # a quantised weight is a class of tensors, or integers: only the module that holds it knows how to multiply by it
    plain = all(type(weight) is Parameter and weight.is_floating_point() for weight in model.parameters())
    added = foreign(model)
    for name, place in reversed(engines().items()):
        if choice not in (name, "auto"):
            continue
        try:
            kind: type[Engine] = resolve_name(place)
        except (ImportError, AttributeError, ValueError) as error:
            raise ValueError(
                f"Engine '{name}' is registered as '{place}', which cannot be imported ({error}); register it as "
                "'module:class' of an installed module."
            ) from error
        by_itself = (small or not kind.copies_weights) and not getattr(kind, "by_name", False)
        if choice == name or by_itself:
            engine = kind.of(model) if (plain and not added) or kind is Eager else None
            if engine is not None:
                return engine
            if choice == name and added:
                raise ValueError(
                    f"Engine '{choice}' cannot run this {model.config.model_type} model: {added}, which the engine "
                    "would leave out; use engine='auto' or 'eager'."
                )
            if choice == name:
                raise ValueError(
                    f"Engine '{choice}' cannot run this {model.config.model_type} model in {model.dtype} on "
                    f"{model.device}: it serves {kind.serves}; use engine='auto'."
                )
    raise AssertionError("the engine 'eager' serves every model")
