"""A draft with another tokenizer as a draft of the target's vocabulary (TLI, Timor et al. 2025, section 4).

`TranslatedModel` wraps any draft model, so every drafter works with it. It drafts the tokens that both vocabularies
have: its distribution is the draft's, renormalised on them (token-level intersection). Other tokens of a text are read
as the several tokens that the draft has for them. Which tokens match is left to `vocabulary`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, cast

import numpy as np
import torch
from typing_extensions import override

from ..checks import of_kind
from ..sampling import GREEDY
from ..tree import ROOT
from .base import LanguageModel, Session
from .huggingface import HFModel
from .vocabulary import Translation


class TranslatedModel(LanguageModel):
    """A draft model under the target's token ids; the draft of a drafter, not a target.

    Args:
        draft: reads and drafts in its own vocabulary.
        translation: from the target's vocabulary into the draft's.

    Raises:
        TypeError: for a draft that is no language model.
        ValueError: for a draft on features, vocabularies of other sizes than the models, or a draft that drafts none
            of the target's tokens.
    """

    def __init__(self, draft: LanguageModel, translation: Translation) -> None:
        self.drafted = drafted_of(draft, translation)
        self.untranslated, self.translation = draft, translation
        self.name, self.context = draft.name, draft.context
        self.vocab_size, self.vocabulary = len(translation.target), translation.target.fingerprint

    @override
    def session(self) -> TranslatedSession:
        return TranslatedSession(self)


class TranslatedHFModel(HFModel):
    """The same for a transformers model, as the draft of a `Pair`: what records say of it is said of the draft."""

    def __init__(self, draft: HFModel, translation: Translation) -> None:
        of_kind("The draft", draft, HFModel, "wrap other models with TranslatedModel")
        drafted = drafted_of(draft, translation)
        self._take_over(draft)
        self._draft, self.translation = draft, translation
        self.vocab_size, self.vocabulary = len(translation.target), translation.target.fingerprint
        self.eos_token_ids, self.drafted, self.session_class = (), drafted, cast(Any, TranslatedSession)

    @property
    def untranslated(self) -> HFModel:
        """The draft in its own vocabulary, with what `altered` was given for this one."""
        return self._draft.altered(engine=self.engine, around=self.around)


def drafted_of(draft: LanguageModel, translation: Translation) -> np.ndarray:
    """Return the (K,) target ids that a draft drafts, ascending; raise what `TranslatedModel` raises."""
    of_kind("The draft", draft, LanguageModel, "wrap a transformers model as HFModel(model, tokenizer)")
    if draft.feature_layers is not None:
        raise ValueError(
            f"Draft '{draft.name}' reads features of its own target, so it cannot draft for one with another "
            "tokenizer; give a draft that reads tokens alone."
        )
    if len(translation.draft) != draft.vocab_size:
        raise ValueError(
            f"The translation is into a vocabulary of {len(translation.draft)} tokens and draft '{draft.name}' has "
            f"{draft.vocab_size}; make it for this draft."
        )
    drafted = translation.shared[_columns(draft.session().drafted, translation) >= 0]
    if not len(drafted):
        raise ValueError(
            f"Draft '{draft.name}' drafts some tokens alone, and none of them is in the vocabulary of "
            f"'{translation.target.owner}'; give a draft that drafts all of its tokens."
        )
    return drafted


def _columns(drafted: np.ndarray | None, translation: Translation) -> np.ndarray:
    """Return the column of a draft's logits of each shared token, -1 where it does not draft it."""
    if drafted is None:
        return translation.columns
    places = np.minimum(np.searchsorted(drafted, translation.columns), len(drafted) - 1)
    return np.where(drafted[places] == translation.columns, places, -1)


class _Chain(NamedTuple):
    """What the draft has read for a node: the pending nodes `first` to `end - 1` of its session.

    None are read for a node that lies beyond the draft's context, or below such a node.
    """

    token: int
    first: int = 0
    end: int = 0
    depth: int = 0
    """Draft tokens from below the text down to the last of these."""


class TranslatedSession(Session):
    """A text of target tokens, which the draft's own session reads in the draft's tokens.

    `length` and `position` are those of the draft's session, so that a drafter knows the room in the draft's context.
    Nodes beyond the context are not read. Their logits are zero, which can cost acceptance and nothing else.

    Attributes:
        inner: the draft's session.
    """

    def __init__(self, model: TranslatedModel | TranslatedHFModel) -> None:
        self.model, self.inner = model, model.untranslated.session()
        self.drafted = model.drafted
        columns = _columns(self.inner.drafted, model.translation)
        self._columns = torch.from_numpy(columns[columns >= 0])
        self.most_probable = self.inner.most_probable
        self._chains: list[_Chain] = []
        super().__init__(model.name, model.vocab_size)

    @property
    @override
    def queued(self) -> int:
        return self.inner.queued

    def _follow(self) -> None:
        self.length, self.position, self._queue = self.inner.length, self.inner.position, []

    @override
    def _reset(self) -> None:
        self.inner.start([])
        self._chains = []

    @override
    def extend(self, tokens: Sequence[int]) -> None:
        super().extend(tokens)
        self.inner.extend(self.model.translation.of_text([int(token) for token in tokens], not self.inner.position))
        self._follow()

    @override
    def commit(self, path: Sequence[int]) -> None:
        super().commit(path)
        self._follow()

    @override
    def _have_read(self, parents: np.ndarray, nodes: int) -> None:
        super()._have_read(parents, nodes)
        self._follow()

    @override
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        inner, before = self.inner, len(parents) - len(tokens)
        if not len(tokens):
            inner.flush()
            return torch.empty(0, len(self._columns))
        chains, flat, above = self._chains[:before], list[int](), list[int]()
        for token, parent in zip(tokens.tolist(), parents[before:].tolist(), strict=True):
            chains.append(self._lay(token, None if parent == ROOT else chains[parent], flat, above))
        rows = np.array([chain.end - 1 - inner.pending for chain in chains[before:]])
        read = self._logits(np.array(flat, np.int64), np.array(above, np.int64))
        self._chains = chains
        if np.array_equal(rows, np.arange(len(read))):  # every node is one token of the draft
            return read
        logits = read.new_zeros(len(rows), read.shape[1])
        known = np.array([chain.end > chain.first for chain in chains[before:]])
        logits[torch.from_numpy(known)] = read[torch.from_numpy(rows[known])]
        return logits

    def _lay(self, token: int, parent: _Chain | None, flat: list[int], above: list[int]) -> _Chain:
        """Append the draft tokens of a node to `flat`, and their parents to `above`; return where they are."""
        ids = self.model.translation.of_node(token)
        last, depth = (ROOT, 0) if parent is None else (parent.end - 1, parent.depth)
        unread = parent is not None and parent.end == parent.first
        if unread or self.inner.position + depth + len(ids) > self.model.context:
            return _Chain(token)
        first = self.inner.pending + len(flat)
        end = first + len(ids)
        flat += ids
        above += [last, *range(first, end - 1)]
        return _Chain(token, first, end, depth + len(ids))

    def _logits(self, tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        """(m, K) logits of the shared tokens after m draft tokens, read in one forward; none is read for none."""
        if not len(tokens):
            return torch.zeros(0, len(self._columns))
        if (parents < self.inner.pending).all():
            logits = self.inner.level(tokens, parents)
        else:
            logits = self.inner.score(tokens, parents, GREEDY).logits
        self._columns = self._columns.to(logits.device)
        shared = logits.index_select(-1, self._columns)
        # A draft that has no probability for any of them says nothing here: all are equal then.
        return shared.masked_fill_(shared.amax(-1, keepdim=True).isneginf(), 0.0)

    @override
    def _keep(self, nodes: np.ndarray) -> None:
        path = [self._chains[node] for node in nodes.tolist()]
        self._chains = []
        self.inner.commit([node for chain in path for node in range(chain.first, chain.end)])
        unread = [chain.token for chain in path if chain.end == chain.first]
        if unread:
            self.inner.extend(self.model.translation.of_text(unread))
