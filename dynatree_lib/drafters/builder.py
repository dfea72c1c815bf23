"""`TreeBuilder`: a tree while it grows, and the draft's forward over a frontier of its nodes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from ..models.base import Session
from ..sampling import DraftDistributions, RandomSource, Sampling, bad_logits, one_thread, unchecked
from ..tree import DISTINCT, IID, POINT, ROOT, TokenTree, renumbering

Draw = Literal["top", "iid", "distinct", "hybrid"]
"""How the children of a node are chosen: the most probable tokens; drawn with replacement, where copies stay; drawn
without replacement; or all but the last the most probable and the last drawn from the rest."""


@dataclass
class DraftState:
    """The state of a drafter with a draft model.

    Attributes:
        session: the draft's session; it has read, or has queued, every committed token but `root`.
        root: the last committed token, node 0 of the next tree.
        random: the drafting stream.
        pending: (n,) number of each node of the current tree among the session's pending nodes, -1 where not read.
        learnt: anything else that the drafter knows about the text (`ModelDrafter.begun`).
    """

    session: Any
    root: int
    random: RandomSource
    pending: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))
    learnt: Any = None


CAPACITY = 64
"""Nodes for which a tree builder has space at first; it doubles."""
COLUMNS = {
    "tokens": np.int64, "parents": np.int64, "logprobs": np.float64, "cumulative": np.float64,
    "pending": np.int64, "draws": np.uint8,
}  # fmt: skip


class Given(NamedTuple):
    """The distributions that the children of a level are drawn from."""

    sampled: torch.Tensor
    """(f, K) probabilities, on the CPU."""
    plain: torch.Tensor
    """(f, K) log-probabilities at temperature 1, on the CPU."""


def best_after(
    session: Session, nodes: Sequence[int] | np.ndarray, tokens: np.ndarray, parents: np.ndarray, breadth: int,
    sharpness: float,
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:  # fmt: skip
    """Have a draft read nodes of a tree; return what `TreeBuilder.most_probable` returns.

    Args:
        session: the draft's.
        nodes: (f,) numbers in the tree, for the message.
        tokens, parents, breadth, sharpness: as for `Session.best`.

    Raises:
        ValueError: for logits that describe no distribution; the message names the node and the draft.
    """
    places, logprobs, sharp = session.best(tokens, parents, breadth, sharpness)
    for node, logprob in zip(nodes, logprobs[:, 0].tolist(), strict=True):
        if math.isnan(logprob):
            raise ValueError(bad_logits(session.owner, int(node)))
    return places if session.drafted is None else session.drafted[places], logprobs, sharp


class TreeBuilder:
    """A tree while it grows: node arrays, and the draft's forward over a frontier of nodes.

    Attributes:
        state: the state of the text, a `DraftState`.
        sampling: how the draft's logits become probabilities: as the target's, unless a drafter sets its own.
        highest: largest token id the draft knows.
        drafted: (K,) ids of the tokens that the draft's logits are of, or None for all.
        distributions: the distributions that sampled children were drawn from; None before the first.
        tokens, parents, logprobs, draws: (n,) as in `TokenTree`.
        cumulative: (n,) float64 draft log-probability of the path to each node.
        pending: (n,) int64, as in `DraftState`.
    """

    tokens: np.ndarray
    parents: np.ndarray
    logprobs: np.ndarray
    cumulative: np.ndarray
    pending: np.ndarray
    draws: np.ndarray

    def __init__(self, state: Any, highest: int, sampling: Sampling) -> None:
        self.state = state
        self.sampling = sampling
        self.highest = highest
        self.drafted = state.session.drafted
        self.distributions: DraftDistributions | None = None
        self._columns = {name: np.empty(CAPACITY, dtype) for name, dtype in COLUMNS.items()}
        self._write(0, [state.root], [ROOT], [0.0], [0.0], [-1], [POINT])

    def __len__(self) -> int:
        return len(self.tokens)

    def logits(self, frontier: np.ndarray) -> torch.Tensor:
        """Score the (f,) nodes of `frontier` in one draft forward; their parents were read before.

        Returns:
            (f, K) logits of the tokens that it drafts, in float32 or float64.
        """
        logits: torch.Tensor = self.state.session.level(*self._read(frontier))
        return logits if logits.dtype == torch.float64 else logits.float()

    def _read(self, frontier: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens of the frontier, and their parents among the draft's pending nodes, where they are now."""
        above, session = self.parents[frontier], self.state.session
        parents = np.where(above >= 0, self.pending[above], ROOT)
        self.pending[frontier] = range(session.pending, session.pending + len(frontier))
        return np.minimum(self.tokens[frontier], self.highest), parents

    def best(self, frontier: np.ndarray, breadth: int) -> tuple[np.ndarray, np.ndarray]:
        """Read the frontier; return the `breadth` most probable next tokens of each node.

        Returns:
            tokens (f, breadth) int64 and their log-probabilities (f, breadth) float64, most probable first, equally
            probable ones by token id.
        """
        tokens, logprobs, _ = self.most_probable(frontier, breadth)
        return tokens, logprobs

    def most_probable(
        self, frontier: np.ndarray, breadth: int, sharpness: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Do what `best` does, with a third array: log-probabilities under the distribution raised to `sharpness`.

        Raises:
            ValueError: for logits that describe no distribution; the message names the node and the draft.
        """
        return best_after(self.state.session, frontier, *self._read(frontier), breadth, sharpness)

    def distributions_of(self, frontier: np.ndarray) -> Given:
        """Read the frontier; return the distributions of its children, which a drafter may look at before it draws.

        Raises:
            ValueError: for logits that describe no distribution; the message names the node and the draft.
        """
        logits, sampling = self.logits(frontier), Sampling(1.0) if self.sampling.greedy else self.sampling
        with one_thread():
            given = Given(unchecked(logits, sampling), logits.log_softmax(-1))
            if logits.device.type != "cpu":
                given = Given(*torch.stack(given).cpu())  # one transfer
        bad = given.sampled[:, 0].isnan().numpy()  # one NaN makes all of a row NaN
        if bad.any():
            raise ValueError(bad_logits(self.state.session.owner, int(frontier[bad][0])))
        return given

    @one_thread()
    def draw(
        self, frontier: np.ndarray, given: Given, counts: np.ndarray, draw: Draw
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Draw children of each node of the frontier from the draft's distribution, and record that distribution.

        Args:
            frontier: (f,) nodes that were read.
            given: their `distributions_of`.
            counts: (f,) children wanted of each; fewer come where fewer tokens are possible.
            draw: how. At temperature 0 all are the limit of falling temperatures: the most probable tokens.

        Returns:
            four (k,) arrays of the children, node after node, siblings in draw order: index into `frontier`, token,
            log-probability under the draft at temperature 1, and how it was drawn (`POINT`, `IID`, `DISTINCT`).
        """
        self.record(frontier, given)
        children: list[tuple[int, int, int]] = []
        how = "top" if self.sampling.greedy else draw
        for index, count in enumerate(counts.tolist()):
            children += [(index, *child) for child in _children(given.sampled[index], count, how, self.state.random)]
        indices, tokens, draws = np.array(children, np.int64).reshape(-1, 3).T
        logprobs = given.plain[torch.from_numpy(indices), torch.from_numpy(tokens)]
        return indices, self._named(tokens), logprobs.double().numpy(), draws.astype(np.uint8)

    def record(self, nodes: np.ndarray, given: Given) -> None:
        """Record the distributions that the children of (f,) nodes are drawn from."""
        self.distributions = self.distributions or DraftDistributions(self.state.session.owner)
        for node, distribution in zip(nodes.tolist(), given.sampled, strict=True):
            self.distributions.record(node, distribution, self.drafted)

    def shares(self, given: Given, indices: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Return the (k,) probabilities of drawn tokens, whose parents are `indices` into the frontier."""
        numbers = tokens if self.drafted is None else np.searchsorted(self.drafted, tokens)
        return given.sampled[torch.from_numpy(indices), torch.from_numpy(numbers)].double().numpy()

    def _named(self, tokens: np.ndarray) -> np.ndarray:
        """Return the ids of tokens that are given by their place among the draft's logits."""
        return tokens if self.drafted is None else self.drafted[tokens]

    def add(
        self, parents: np.ndarray, tokens: np.ndarray, logprobs: np.ndarray, draws: np.ndarray | int = POINT
    ) -> np.ndarray:
        """Append (k,) children; return their nodes."""
        first = len(self)
        while first + len(tokens) > len(self._columns["tokens"]):
            self._columns = {name: np.concatenate([old, np.empty_like(old)]) for name, old in self._columns.items()}
        self._write(first, tokens, parents, logprobs, self.cumulative[parents] + logprobs, -1, draws)
        return np.arange(first, len(self))

    def add_path(self, tokens: Sequence[int], logprobs: np.ndarray) -> None:
        """Append a path of deterministic nodes below node 0, the only node so far."""
        self._write(1, tokens, np.arange(len(tokens)), logprobs, np.cumsum(logprobs), -1, POINT)

    def _write(self, first: int, *columns: Any) -> None:
        """Write values from node `first` on, in the order of `COLUMNS`, and forget the nodes after them."""
        end = first + len(columns[0])
        for (name, column), values in zip(self._columns.items(), columns, strict=True):
            column[first:end] = values
            setattr(self, name, column[:end])

    def keep(self, nodes: np.ndarray) -> None:
        """Forget all other nodes; `nodes` are ascending, node 0 and all parents included.

        Raises:
            RuntimeError: for a sampled tree, whose nodes must not be selected once they are drawn.
        """
        if self.draws.any():
            raise RuntimeError("keep() would select nodes of a sampled tree after they were drawn, which biases it.")
        parents = renumbering(len(self), nodes)[self.parents[nodes]]
        others = (column[nodes] for column in (self.logprobs, self.cumulative, self.pending, self.draws))
        self._write(0, self.tokens[nodes], parents, *others)

    def tree(self) -> TokenTree:
        """Return the finished tree."""
        return TokenTree(self.tokens, self.parents, self.logprobs, self.draws)


def _children(distribution: torch.Tensor, count: int, draw: Draw, random: RandomSource) -> list[tuple[int, int]]:
    """Return up to `count` children in draw order: token, and how it was drawn."""
    if draw == "iid":
        return [(random.draw(distribution), IID) for _ in range(count)]
    if draw == "distinct":
        return [(token, DISTINCT) for token in random.draw_distinct(distribution, count)]
    best = distribution.topk(min(count, len(distribution)))
    top = [int(i) for i, p in zip(best.indices, best.values, strict=True) if p > 0]
    if draw == "top" or len(top) < count:  # no more than `count` tokens are possible: nothing is left to draw
        return [(token, POINT) for token in top]
    rest = distribution.index_fill(0, torch.tensor(top[: count - 1], dtype=torch.int64, device=distribution.device), 0)
    last = random.draw_distinct(rest, 1) if count else []
    return [*((token, POINT) for token in top[: count - 1]), *((token, DISTINCT) for token in last)]
