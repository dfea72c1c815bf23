"""Drafts on their target's features: EAGLE's form (Li et al. 2024, section 4).

Such a draft reads a token together with the feature of the place before it, the target's last hidden state there, and
predicts the feature and so the token that follow. Below the text, where the target has not been, it goes on with the
features that it predicted itself. Hidden states after earlier layers may be joined to the target's features
(`pruned.Fusion`), as in EAGLE-3 (Li et al. 2025, section 3.1). `pruned.on_features` makes a draft.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from typing_extensions import override

from ..sampling import GREEDY, Scores
from ..tree import TokenTree
from .base import LanguageModel, Session
from .engine import Eager, Features
from .huggingface import HFModel, HFSession, in_inference_mode
from .proof import difference_from_paths

RECENT = 256
"""Tokens of a prompt that such a draft reads: it learnt on windows of so many, and is right less often with more."""
CAPACITY = 64
"""Features of nodes for which a session has space at first; it grows."""


class EagleModel(HFModel):
    """A draft on features as a `LanguageModel`; drafters use it like any other draft model.

    Attributes:
        recent: tokens of a prompt, the last ones, that it reads; None for all.

    Args:
        model: from `pruned.on_features`.
        tokenizer: of the target.
        check: compare the engine's tree of features with a walk down each of its paths.
        engine: as for `HFModel`.

    Raises:
        ValueError: where the two differ.
    """

    FIELDS: ClassVar[tuple[str, ...]] = (*HFModel.FIELDS, "feature_layers", "recent")

    def __init__(self, model: Any, tokenizer: Any = None, *, check: bool = True, engine: str = "auto") -> None:
        super().__init__(model, tokenizer, check=False, engine=engine)
        self.feature_layers, self.session_class = tuple(model.feature_layers), EagleSession
        self.recent: int | None = RECENT
        if not getattr(self.awaited or self.engine, "gives_features", False):
            self.engine, self.awaited = Eager(model), None
        if check:
            _check_features(self)

    @override
    def _prove_engine(self) -> None:
        _check_features(self)

    @override
    def check_target(self, target: LanguageModel) -> None:
        wanted, given = self.feature_size, target.feature_size
        if wanted != given:
            raise ValueError(
                f"Draft '{self.name}' reads features of width {wanted} of its target, and '{target.name}' gives "
                f"{'none' if given is None else given}; take the target it was trained for, as an HFModel, or a draft "
                "that reads tokens alone."
            )
        deepest, layers = max(self.feature_layers or ()), getattr(target, "layers", 0)
        if deepest > layers:
            raise ValueError(
                f"Draft '{self.name}' reads the states after layer {deepest} of its target, and '{target.name}' "
                f"has {layers} layers; take the target it was trained for."
            )


class EagleSession(HFSession, in_one_call=True):
    """A sequence of tokens with their features.

    As a draft it reads a token when the target has given its state at the place before; until then it drafts nothing.

    The first token of a text has no place before it and is never read, so positions are smaller by one than the
    target's; attention looks at distances alone.
    """

    model: EagleModel
    feature_layers = (-1,)  # its own, for the nodes below

    @override
    def _reset(self) -> None:
        super()._reset()
        model = self.model
        width = model.feature_size or 0
        self._known = torch.zeros(CAPACITY, width, dtype=model.dtype, device=model.device)  # below the text, of nodes
        self._none, self._waiting = self._known[:0], list[Tensor]()  # features of no tokens, and of the queue
        # states of the target at the last places of the text, and how many of these were queued with them, for `_fuse`
        self._unfused: list[tuple[Tensor, int]] = []
        self._unread: list[int] = []  # committed tokens, node 0 the last, whose features the target has not given yet

    @property
    @override
    def ready(self) -> bool:  # type: ignore[override]
        return not self._unread

    @property
    def feature(self) -> Tensor:
        """(h,) feature of the last committed token, which nodes below the text come with; zeros at first."""
        self._fuse()
        return self._known[0]

    @feature.setter
    def feature(self, feature: Tensor) -> None:
        self._fuse()
        self._known[0] = feature

    @in_inference_mode
    def fused(self, states: Tensor) -> Tensor:
        """Return the (n, h) features that (n, k h) hidden states of the target make, in this model's dtype."""
        fusion, arrays = getattr(self.model.model, "fusion", None), self.model.arrays
        if fusion is None:
            return states.to(self._known)
        fused = None if arrays is None else arrays.fused(states)
        return fusion(states.to(self._known)) if fused is None else fused.to(self._known)

    @override
    @in_inference_mode
    def extend(self, tokens: Sequence[int], features: Tensor | None = None) -> None:
        """Append committed tokens and the (n, h) features of the places before them; without these, they are zeros."""
        self._fuse()
        super().extend(tokens)
        if len(tokens):
            given = self._known.new_zeros(len(tokens), self._known.shape[1]) if features is None else features
            self._waiting.append(given.to(self._known))
            self._known[0] = 0

    @override
    def begin(self, text: Sequence[int]) -> None:
        self.start([])
        self._unread = list(text[-(self.model.recent or len(text)) :])

    @override
    def resume(self, text: Sequence[int]) -> None:
        self._unread += text[1:] if self._unread else text

    @override
    def follow(self, read: Sequence[int], tokens: Sequence[int], path: Sequence[int], scores: Scores) -> None:
        """Queue the path with the target's states in place of the features that were predicted; node 0 alone stays.

        It came with a state of the target. `scores` hold those of the target's queue, then of the nodes. They become
        features when tokens are read next, so that places where nothing is drafted cost no more than this.
        """
        states = scores.features
        assert states is not None
        self.commit(read[:1])
        queued = len(states) - len(scores)
        waiting = len(self._unread) - 1 if self._unread else 0  # node 0 is the last of them
        known = min(waiting, queued)  # of the others, those that the target has just read
        tokens = [*self._unread[waiting - known : waiting], *tokens]
        if [*path] == [*range(len(path))]:
            states = states[queued - known : queued + len(path)]
        else:
            states = torch.cat([states[queued - known : queued], states[queued:][[*path]]])
        unknown = known < waiting or not (self.position or self._unfused)
        if read or unknown:  # it was read, or nothing is known of the place before it
            tokens = tokens[1:]
        super().extend(tokens)
        self._unfused.append((states, len(tokens)))
        self._unread = []

    def _fuse(self) -> None:
        """Turn the target's states into features of the queue, and the one of the last committed token."""
        if not self._unfused:
            return
        several, self._unfused = self._unfused, []
        features, end = self.fused(several[0][0] if len(several) == 1 else torch.cat([each for each, _ in several])), 0
        for states, count in several:
            own, end = features[end : end + len(states)], end + len(states)
            if count == len(own):
                self._waiting.append(torch.cat([self._known[:1], own[:-1]]))
            elif count:
                self._waiting.append(own[-count - 1 : -1])
            self._known[0] = own[-1]

    @override
    @in_inference_mode
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> Tensor:
        self._fuse()
        pending, before = len(parents), len(parents) - len(tokens)
        _check_level(parents, before)
        logits = super()._read(queue, tokens, parents)
        read = self._features()
        assert read is not None
        self._make_room(pending)
        self._known[before + 1 : pending + 1] = read[len(read) - len(tokens) :]
        return logits

    @override
    def _features_of(self, parents: np.ndarray, nodes: int) -> Features:
        above = parents[len(parents) - nodes :]
        given = self._known[torch.from_numpy(above + 1).to(self._known.device)]
        return Features((-1,), torch.cat([*self._waiting, given]) if self._waiting else given)

    @override
    def _have_read(self, parents: np.ndarray, nodes: int) -> None:
        super()._have_read(parents, nodes)
        self._waiting = []

    def _make_room(self, nodes: int) -> None:
        if nodes >= len(self._known):
            self._known = torch.cat([self._known, self._known.new_zeros(nodes, self._known.shape[1])])

    @override
    def _level_features(self, parents: np.ndarray, before: int) -> tuple[Tensor, Tensor]:
        self._fuse()
        _check_level(parents, before)
        waiting = self._waiting
        self._make_room(len(parents))
        return waiting[0] if len(waiting) == 1 else torch.cat(waiting) if waiting else self._none, self._known

    @override
    def _keep(self, nodes: np.ndarray) -> None:
        super()._keep(nodes)
        if len(nodes):
            self.feature = self._known[1 + int(nodes[-1])]


def _check_level(parents: np.ndarray, before: int) -> None:
    """Raise ValueError unless all nodes after the first `before` are below those."""
    if any(parent >= before for parent in parents.tolist()[before:]):
        raise ValueError("A draft on features reads a tree level by level: a node comes with what its parent gave.")


@torch.inference_mode()
def _check_features(model: EagleModel) -> None:
    """Score a tree after a short text, level by level; compare with its paths, walked by transformers' own forward."""
    random = np.random.default_rng(0)
    ids = random.integers(1, model.vocab_size, 12)
    features = torch.from_numpy(random.standard_normal((6, model.feature_size or 0))).to(model.device, model.dtype)

    def begun(model: HFModel) -> Session:
        session: Any = model.session()
        session.extend(ids[:5], features[:5])
        session.feature = features[5]
        return session

    tree = TokenTree.build(ids[5:].tolist(), [-1, 0, 0, 1, 1, 2, 3])
    session = begun(model)
    levels = (slice(0, 1), slice(1, 3), slice(3, 6), slice(6, 7))
    logits = torch.cat([session.score(tree.tokens[part], tree.parents[part], GREEDY).logits for part in levels])
    eager = model.altered(engine=Eager(model.model))

    def walked(path: list[int]) -> Tensor:
        walk = begun(eager)
        return [walk.score([token], [place - 1], GREEDY).logits[0] for place, token in enumerate(path)][-1]

    off = difference_from_paths(logits, tree, walked, model)
    if off:
        raise ValueError(
            f"Draft '{model.name}' does not score a tree as it scores its paths ({off}); use engine='eager' or float32."
        )
