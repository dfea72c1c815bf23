"""`LanguageModel` and `Session`: one sequence read by one model, the only thing drafters and the decoding loop touch.

A session has committed KV entries (the text so far), queued tokens (committed, not read yet) and pending nodes
(scored, may still be dropped). This file does that bookkeeping; the forward pass and the cache belong to subclasses.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

import numpy as np
import torch

from ..checks import of_kind
from ..sampling import GREEDY, Invert, MostProbable, Ranking, Sampling, Scores, Softmax, most_probable
from ..tree import ROOT


class LanguageModel(ABC):
    """A causal language model.

    Attributes:
        name: for messages and records.
        vocab_size: V, number of logits of a node.
        context: most positions a sequence may have.
        eos_token_ids: tokens that end a text.
        vocabulary: fingerprint of the tokenizer's vocabulary, or None when unknown.
        feature_size: width h of the hidden states that its sessions give as features (`Scores.features`), or None where
            they give none.
        feature_layers: layers of its target whose hidden states it drafts from, counted from 1, -1 being the last,
            normed; None for a draft that reads tokens alone.
        most_pending: most nodes that may be scored and neither committed nor dropped; None for any number.
    """

    name: str
    vocab_size: int
    context: int
    eos_token_ids: tuple[int, ...] = ()
    vocabulary: str | None = None
    feature_size: int | None = None
    feature_layers: tuple[int, ...] | None = None
    most_pending: int | None = None

    @abstractmethod
    def session(self) -> Session:
        """Return a new, empty session."""

    def check_target(self, target: LanguageModel) -> None:  # noqa: B027 - most drafts read tokens alone
        """Raise ValueError where this model, as a draft, needs what the target does not give."""

    def warn_of_config(  # noqa: B027 - most have none
        self, sampling: Sampling | None, processed: bool = False, ended: bool = False
    ) -> None:
        """Warn of what its checkpoint's generation config asks for and a call does not apply.

        Arguments are those of `generation_config.unapplied`.
        """


def check_model(role: str, model: object) -> None:
    """Raise TypeError unless this is a `LanguageModel`; `role` is "target" or "draft"."""
    way_out = "wrap a transformers model as HFModel(model, tokenizer), or load it with load_pair"
    if isinstance(getattr(model, role, None), LanguageModel):
        way_out = f"give its attribute `{role}`"
    of_kind(f"The {role}", model, LanguageModel, way_out)


class Session(ABC):
    """One sequence read by one model.

    Attributes:
        length: number of committed KV entries.
        position: of the next token. It differs from `length` where entries were evicted, and by the queued tokens,
            which count in `length` only when a `score` has read them.
        forwards, scored: calls of `score` since `start`, and nodes in them.
        drafted: (K,) ids, ascending, of the tokens that the logits are of, for a model that drafts these alone; None
            for all V.
        feature_layers: layers whose hidden states scores hold as features, none by default; to be set before `start`.
    """

    drafted: np.ndarray | None = None
    most_probable: MostProbable = staticmethod(most_probable)  # of logits, for drafters
    invert: Invert | None = None
    softmax: Softmax | None = None
    feature_layers: tuple[int, ...] | None = None
    ready = True
    """Whether it can draft: a draft on features waits for those of the text."""

    def __init__(self, owner: str, vocab_size: int) -> None:
        self.owner, self.vocab_size = owner, vocab_size
        self.start([])

    @property
    def pending(self) -> int:
        """Number of scored nodes that are neither committed nor dropped."""
        return len(self._parents)

    @property
    def queued(self) -> int:
        """Number of committed tokens that the next forward reads."""
        return len(self._queue)

    def start(self, prompt: Sequence[int]) -> None:
        """Begin a new sequence with these committed tokens. They are read by the first `score`, in the same forward."""
        self._reset()
        self.length, self.position = 0, 0
        self.forwards, self.scored = 0, 0
        self._queue: list[int] = []
        self._parents = np.empty(0, np.int64)
        self.extend(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        """Append committed tokens that the model has not read.

        Raises:
            RuntimeError: where nodes are pending.
        """
        if self.pending:
            raise RuntimeError("extend() was called with scored nodes pending; commit() or rollback() them first.")
        self._queue.extend(int(token) for token in tokens)
        self.position += len(tokens)

    # --------------------------------------------------------------------------------------------- a draft of a target
    def begin(self, text: Sequence[int]) -> None:
        """Begin a text as a draft. Its last token is node 0 of the first tree, and is read with that tree."""
        self.start(text[:-1])

    def resume(self, text: Sequence[int]) -> None:
        """Go on as a draft. `text` begins with node 0 of the last tree; its last token is node 0 of the next tree."""
        self.extend(text[:-1])

    def follow(self, read: Sequence[int], tokens: Sequence[int], path: Sequence[int], scores: Scores) -> None:
        """Go on with what the target accepted of a draft's tree.

        Args:
            read: pending nodes of this session that are the first of the path, node 0 included.
            tokens: of the path, from node 0 on.
            path: nodes of the scored tree.
            scores: the target's, of that tree.
        """
        self.commit(read)
        self.extend(tokens[len(read) :])

    # --------------------------------------------------------------------------------------------------------- reading
    def score(
        self, tokens: Sequence[int] | np.ndarray, parents: Sequence[int] | np.ndarray, sampling: Sampling
    ) -> Scores:
        """Score n nodes in one forward under the tree mask and keep them pending.

        Args:
            tokens: (n,) token ids.
            parents: (n,) indices into all pending nodes (those of earlier calls first, then these); -1 puts a node
                below the committed text. So a tree can be grown level by level.
            sampling: defines the probabilities of the returned scores.

        Returns:
            scores of the n nodes: the distribution of the token after each.

        Raises:
            ValueError: for a parent that does not come before its child, and a token outside the vocabulary.
        """
        parents, tokens = self._all_parents(parents), np.asarray(tokens, np.int64)
        if not all(0 <= token < self.vocab_size for token in tokens.tolist()):
            outside = tokens[(tokens < 0) | (tokens >= self.vocab_size)][0]
            raise ValueError(
                f"score() was given token {outside}; give tokens of {self.owner}, 0 to {self.vocab_size - 1}."
            )
        logits = self._read(self._queue, tokens, parents)
        self._have_read(parents, len(tokens))
        scores = Scores(
            logits, sampling, self.owner, self._features(), self.drafted, self.most_probable, self.invert, self.softmax
        )
        ranking = self._ranking()
        if ranking is not None:
            scores.know(ranking)
        return scores

    def level(self, tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        """Score f nodes as `score` does; return their (f, V) logits alone, or (f, K) of `drafted` tokens."""
        return self.score(tokens, parents, GREEDY).logits

    def best(
        self, tokens: np.ndarray, parents: np.ndarray, breadth: int, sharpness: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Score f nodes as `level` does; return what `sampling.most_probable` says of their logits."""
        return self.most_probable(self.level(tokens, parents), breadth, sharpness)

    def _all_parents(self, parents: Sequence[int] | np.ndarray) -> np.ndarray:
        """Parents of all pending nodes, new ones included; ValueError for one that does not come before its child."""
        parents = np.asarray(parents, np.int64)
        pending = len(self._parents)
        if not all(ROOT <= parent < node for node, parent in enumerate(parents.tolist(), pending)):
            raise ValueError(
                f"score() was given the parents {parents.tolist()} with {pending} nodes pending; give each node one "
                "that comes before it, or -1."
            )
        return np.concatenate([self._parents, parents]) if pending else parents

    def _have_read(self, parents: np.ndarray, nodes: int) -> None:
        """Note that a forward has read the queue and `nodes` new nodes; `parents` are those of all pending nodes."""
        self.length += len(self._queue)
        self._queue = []
        self._parents = parents
        self.forwards, self.scored = self.forwards + 1, self.scored + nodes

    def flush(self) -> None:
        """Read the queued tokens now, in a forward of their own."""
        self.score([], [], Sampling())

    def commit(self, path: Sequence[int]) -> None:
        """Commit the pending nodes in `path`, a chain from the committed text down, and drop the others.

        Raises:
            ValueError: for nodes that are no such chain, or not pending.
        """
        above, pending = ROOT, len(self._parents)
        for node in path:
            if not 0 <= node < pending:
                raise ValueError(f"commit() was given node {node}; give some of the {pending} pending nodes, from 0.")
            if self._parents.item(node) != above:
                raise ValueError(
                    f"commit() needs a path: the parent of pending node {node} is {self._parents[node]}, not {above}."
                )
            above = node
        self._keep(np.asarray(path, np.int64))
        self.length += len(path)
        self.position += len(path)
        self._parents = np.empty(0, np.int64)

    def rollback(self) -> None:
        """Drop all pending nodes, and what an interrupted forward left behind."""
        self._keep(np.empty(0, np.int64))
        self._parents = np.empty(0, np.int64)

    @abstractmethod
    def _reset(self) -> None:
        """Forget the sequence, if there is one; the constructor calls it too."""

    @abstractmethod
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        """Read the queue as committed text, then the nodes; return the (n, V) logits of the nodes.

        `parents` covers all pending nodes; the last len(tokens) of them are new. The caller empties the queue.
        """

    def _features(self) -> torch.Tensor | None:
        """Return the (q + n, k h) features of what `_read` has just read, for a session that keeps them."""
        return None

    def _ranking(self) -> Ranking | None:
        """Return what the forward of `_read` has found out about its logits, if it has."""
        return None

    @abstractmethod
    def _keep(self, nodes: np.ndarray) -> None:
        """Move the KV entries of these pending nodes behind the committed ones and drop the other pending nodes."""
