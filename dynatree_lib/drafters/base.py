"""What a drafter is, the empty drafter, and the machinery that drafters with a draft model share.

A drafter object holds hyper-parameters only. What changes while decoding is in the state it returns from `start`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal

import numpy as np
import torch

from ..models.base import LanguageModel, Session
from ..sampling import GREEDY, DraftDistributions, RandomSource, Sampling, Scores, bad_logits, unchecked
from ..tree import DISTINCT, IID, POINT, ROOT, TokenTree, renumbering
from ..verifiers.base import Drawing, Verdict


@dataclass(frozen=True)
class Proposal:
    """What a drafter proposes.

    Attributes:
        tree: the tree to verify; node 0 is the last committed token.
        laws: what sampled children were drawn from, for rules that need it; None from drafters that sample nothing.
        beside: for methods that draft inside the target's own forward: a tree below the same node 0 whose other nodes
            are scored in the same forward, at positions by depth, unseen by the nodes of `tree`; never kept.
    """

    tree: TokenTree
    distributions: DraftDistributions | None = None
    side_tree: TokenTree | None = None

    @cached_property
    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Token and parent of every row of the target's forward: the n nodes of `tree`, then those of `beside` below
        node 0. (n + m,) int64 each.
        """
        if self.side_tree is None:
            return self.tree.tokens, self.tree.parents
        above = self.side_tree.parents[1:]
        shifted = np.where(above > 0, above + len(self.tree) - 1, 0)
        return (
            np.concatenate([self.tree.tokens, self.side_tree.tokens[1:]]),
            np.concatenate([self.tree.parents, shifted]),
        )


class Drafter(ABC):
    """Proposes a token tree each iteration."""

    name: str
    """Method name in records and plots."""

    @property
    def model(self) -> LanguageModel | None:
        """The draft model, or None for drafters without one."""
        return None

    @property
    def drawing(self) -> Drawing:
        """How the tokens come about, which decides what verifies them without bias; deterministic by default."""
        return Drawing.FIXED

    @property
    def chain(self) -> bool:
        """Whether its trees never branch."""
        return False

    def check(self, target: LanguageModel) -> None:  # noqa: B027 - most drafters serve every target
        """Raise ValueError, before any work, where this drafter cannot serve the target."""

    @classmethod
    def examples(cls, draft: LanguageModel) -> Iterator[Drafter]:
        """Instances that the contract tests run; override to cover every switch."""
        yield cls(draft)  # type: ignore[call-arg]

    @abstractmethod
    def start(self, prompt: Sequence[int], random: RandomSource) -> Any:
        """State for a new text of these committed tokens; `chance` is the drafting stream."""

    @abstractmethod
    def extend(self, state: Any, tokens: Sequence[int]) -> Any:
        """State after more committed tokens that did not come from this drafter (a chat turn)."""

    @abstractmethod
    def propose(self, state: Any, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        """A tree at most `room` levels deep; deeper nodes could never be kept. `sampling` is the target's.

        What stands beside the tree may be deeper; where the target's context ends before it does, the loop leaves all
        of it out, and `observe` is handed the proposal without it.
        """

    @abstractmethod
    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        """State after the verdict on a proposal; `rows` are the target's rows of `proposal.nodes`."""

    def inherit(self, state: Any, earlier: Any) -> Any:
        """A new text's state with what this drafter learnt in an earlier text, whose state is left as it is."""
        return state

    def report(self, state: Any) -> dict[str, float]:
        """Numbers of the state worth keeping in each Round (adaptation, pool sizes)."""
        return {}


@dataclass(frozen=True)
class NoDraft(Drafter):
    """Drafts nothing: autoregressive decoding through the same loop."""

    name = "ar"
    chain = True

    @classmethod
    def examples(cls, draft: LanguageModel) -> Iterator[Drafter]:
        """The one instance."""
        yield cls()

    def start(self, prompt: Sequence[int], random: RandomSource) -> int:
        """The state is the last committed token."""
        return int(prompt[-1])

    def extend(self, state: int, tokens: Sequence[int]) -> int:
        """See `Drafter.extend`."""
        return int(tokens[-1])

    def propose(self, state: int, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        """Node 0 alone."""
        return Proposal(TokenTree.root_only(state))

    def observe(self, state: int, proposal: Proposal, scores: Scores, verdict: Verdict) -> int:
        """See `Drafter.observe`."""
        return verdict.next_token


@dataclass
class DraftState:
    """State of a drafter with a draft model.

    Attributes:
        session: the draft's session; it has read, or has queued, every committed token but `root`.
        root: the last committed token, node 0 of the next tree.
        chance: the drafting stream.
        row_of: (n,) pending row of each node of the current tree, -1 for nodes the draft has not read.
    """

    session: Session
    root: int
    random: RandomSource
    row_of: np.ndarray = field(default_factory=lambda: np.empty(0, np.int64))


class ModelDrafter(Drafter):
    """A drafter with a draft model whose cache is kept between iterations: subclasses grow the tree level by level."""

    draft: LanguageModel

    @property
    def model(self) -> LanguageModel:
        """The draft model."""
        return self.draft

    def start(self, prompt: Sequence[int], random: RandomSource) -> DraftState:
        """See `Drafter.start`; the prompt is read by the first forward of `propose`."""
        if not isinstance(self.draft, LanguageModel):
            raise TypeError(f"The draft is a {type(self.draft).__name__}; wrap a transformers model as HFModel(model).")
        session = self.draft.session()
        session.start(self._known(prompt[:-1]))
        return DraftState(session, int(prompt[-1]), random)

    def extend(self, state: DraftState, tokens: Sequence[int]) -> DraftState:
        """See `Drafter.extend`."""
        state.session.extend(self._known([state.root, *tokens[:-1]]))
        state.root = int(tokens[-1])
        return state

    def propose(self, state: DraftState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        """See `Drafter.propose`; nothing is drafted where the draft's own context is exhausted."""
        state.session.rollback()  # an interrupted iteration may have left nodes behind
        max_depth = min(max_depth, self.draft.context - state.session.position - 1)
        builder = TreeBuilder(state, self.draft.vocab_size - 1, sampling)
        if max_depth > 0:
            self.grow(builder, max_depth)
        state.row_of = builder.row_of
        return Proposal(builder.tree(), builder.distributions)

    def _known(self, tokens: Sequence[int]) -> list[int]:
        # A target with padded embeddings may emit an id that the draft has no row for. Reading another token in its
        # place can cost acceptance and nothing else.
        return [min(int(token), self.draft.vocab_size - 1) for token in tokens]

    @abstractmethod
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        """Add nodes to a tree that holds node 0, at most `room` levels of them."""

    def observe(self, state: DraftState, proposal: Proposal, scores: Scores, verdict: Verdict) -> DraftState:
        """See `Drafter.observe`: keep the accepted rows in the draft's cache, queue what it has not read."""
        path = [0, *verdict.path]
        read = [int(row) for row in state.row_of[path] if row >= 0]
        state.session.commit(read)
        state.session.extend(self._known(proposal.tree.tokens[path[len(read) :]].tolist()))
        state.root = verdict.next_token
        return state


ROOM = 64
"""Nodes that a growing tree has room for at first; it doubles."""
COLUMNS = {"tokens": np.int64, "parents": np.int64, "logprobs": np.float64, "cumulative": np.float64,
           "row_of": np.int64, "draws": np.uint8}  # fmt: skip


class TreeBuilder:
    """A tree while it grows: node arrays, and the draft's forward over a frontier of nodes.

    Attributes:
        state: the state it grows for.
        sampling: the target's.
        laws: what sampled children were drawn from; None before the first.
        cumulative: (n,) float64 draft log-probability of the path to each node.
        row_of: (n,) int64 pending row of each node in the draft's session, -1 when not read.
        highest: largest token id the draft knows.
    """

    tokens: np.ndarray
    parents: np.ndarray
    logprobs: np.ndarray
    cumulative: np.ndarray
    row_of: np.ndarray
    draws: np.ndarray

    def __init__(self, state: DraftState, highest: int, sampling: Sampling = GREEDY) -> None:
        self.state = state
        self.sampling = sampling
        self.distributions: DraftDistributions | None = None
        self.session = state.session
        self.highest = highest
        self._room = {name: np.empty(ROOM, dtype) for name, dtype in COLUMNS.items()}
        self._fill(0, [state.root], [ROOT], [0.0], [0.0], [-1], [POINT])

    def __len__(self) -> int:
        return len(self.tokens)

    def read(self, frontier: np.ndarray) -> Scores:
        """One draft forward over the nodes in `frontier` (their parents read before); rows of these nodes."""
        above = self.parents[frontier]
        parents = np.where(above >= 0, self.row_of[above], ROOT)
        first = self.session.pending
        self.row_of[frontier] = range(first, first + len(frontier))
        tokens = np.minimum(self.tokens[frontier], self.highest)
        return self.session.score(tokens, parents, GREEDY)

    def logits(self, frontier: np.ndarray) -> torch.Tensor:
        """Read the frontier; its (f, V) logits in float32 or float64."""
        logits = self.read(frontier).logits
        return logits if logits.dtype == torch.float64 else logits.float()

    def best(self, frontier: np.ndarray, breadth: int) -> tuple[np.ndarray, np.ndarray]:
        """Read the frontier; the `breadth` most probable next tokens of each node.

        Returns:
            tokens (f, breadth) int64 and their log-probabilities (f, breadth) float64, most probable first, equally
            probable ones by token id.
        """
        tokens, logprobs, _ = self.most_probable(frontier, breadth)
        return tokens, logprobs

    def most_probable(
        self, frontier: np.ndarray, breadth: int, sharpness: float = 1.0
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The same with a third array, the log-probabilities under the law raised to `sharpness`.

        Raises:
            ValueError: for logits that describe no law; the message names the node and the draft.
        """
        tokens, logprobs, sharp = most_probable(self.logits(frontier), breadth, sharpness)
        if np.isnan(logprobs[:, 0]).any():
            raise ValueError(bad_logits(self.session.owner, int(frontier[np.isnan(logprobs[:, 0])][0])))
        return tokens, logprobs, sharp

    def sample(
        self, frontier: np.ndarray, logits: torch.Tensor, counts: np.ndarray, draw: Draw, sampling: Sampling
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
        """Draw children of each node of the frontier from the draft's law, and record that law.

        Args:
            frontier: (f,) nodes that were read.
            logits: (f, V) of them.
            counts: (f,) children wanted of each; fewer come where fewer tokens are possible.
            draw: how. At temperature 0 each is the limit of falling temperatures: the most probable tokens.
            sampling: what the draft's logits mean.

        Returns:
            four (k,) arrays of the children, node after node, siblings in draw order: index into `frontier`, token,
            log-probability under the draft's law at temperature 1, and law code (`POINT`, `IID`, `DISTINCT`).

        Raises:
            ValueError: for logits that describe no law; the message names the node and the draft.
        """
        given = unchecked(logits, Sampling(1.0) if sampling.greedy else sampling)
        distributions, plain = torch.stack((given, logits.log_softmax(-1))).cpu()  # one transfer per level
        bad = distributions.isnan().any(-1).nonzero()
        if len(bad):
            raise ValueError(bad_logits(self.session.owner, int(frontier[int(bad[0])])))
        self.distributions = self.distributions or DraftDistributions(self.session.owner)
        drawn: list[tuple[int, int, int]] = []
        for index, (node, count) in enumerate(zip(frontier.tolist(), counts.tolist(), strict=True)):
            self.distributions.record(node, distributions[index])
            how = "top" if sampling.greedy else draw
            drawn += [(index, *child) for child in _children(distributions[index], count, how, self.state.random)]
        rows, tokens, codes = np.array(drawn, np.int64).reshape(-1, 3).T
        shares = plain[torch.from_numpy(rows), torch.from_numpy(tokens)]
        return rows, tokens, shares.double().numpy(), codes.astype(np.uint8)

    def add(
        self, parents: np.ndarray, tokens: np.ndarray, logprobs: np.ndarray, draws: np.ndarray | None = None
    ) -> np.ndarray:
        """Append (k,) children, deterministic ones unless `law` has their codes; their node indices."""
        first = len(self)
        while first + len(tokens) > len(self._room["tokens"]):
            self._room = {
                name: np.concatenate([max_depth, np.empty_like(max_depth)]) for name, max_depth in self._room.items()
            }
        self._fill(
            first, tokens, parents, logprobs, self.cumulative[parents] + logprobs, -1, POINT if draws is None else draws
        )
        return np.arange(first, len(self))

    def add_path(self, tokens: Sequence[int], logprobs: np.ndarray) -> None:
        """Append a path of deterministic nodes below node 0, the only node so far."""
        self._fill(1, tokens, np.arange(len(tokens)), logprobs, np.cumsum(logprobs), -1, POINT)

    def _fill(self, first: int, *columns: Any) -> None:
        """Write values from node `first` on, in the order of `COLUMNS`, and forget what stood behind them."""
        end = first + len(columns[0])
        for (name, max_depth), values in zip(self._room.items(), columns, strict=True):
            max_depth[first:end] = values
            setattr(self, name, max_depth[:end])

    def keep(self, nodes: np.ndarray) -> None:
        """Forget all other nodes; `nodes` are ascending indices, closed under parents, node 0 among them.

        Raises:
            RuntimeError: for a sampled tree, whose nodes must not be selected once they are drawn.
        """
        if self.draws.any():
            raise RuntimeError("keep() would select nodes of a sampled tree after they were drawn, which biases it.")
        parents = renumbering(len(self), nodes)[self.parents[nodes]]
        kept = (column[nodes] for column in (self.logprobs, self.cumulative, self.row_of, self.draws))
        self._fill(0, self.tokens[nodes], parents, *kept)

    def tree(self) -> TokenTree:
        """The finished tree."""
        return TokenTree(self.tokens, self.parents, self.logprobs, self.draws)


Draw = Literal["top", "iid", "distinct", "hybrid"]
"""How the children of a node are chosen: the most probable tokens, drawn with replacement (copies stay as slots), drawn
without, or all but the last the most probable and the last drawn from the rest."""


def _children(draws: torch.Tensor, count: int, draw: Draw, random: RandomSource) -> list[tuple[int, int]]:
    """Up to `count` (token, law code) in draw order."""
    if draw == "iid":
        return [(random.draw(draws), IID) for _ in range(count)]
    if draw == "distinct":
        return [(token, DISTINCT) for token in random.draw_distinct(draws, count)]
    best = draws.topk(min(count, len(draws)))
    top = [int(i) for i, p in zip(best.indices, best.values, strict=True) if p > 0]
    if draw == "top" or len(top) < count:  # no more than `count` tokens are possible: nothing is left to draw
        return [(token, POINT) for token in top]
    rest = draws.index_fill(0, torch.tensor(top[: count - 1], dtype=torch.int64, device=draws.device), 0)
    last = [(token, DISTINCT) for token in (random.draw_distinct(rest, 1) if count else [])]
    return [*((token, POINT) for token in top[: count - 1]), *last]


def most_probable(
    logits: torch.Tensor, breadth: int, sharpness: float = 1.0
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The `breadth` most probable tokens of each of (f, V) rows.

    Returns:
        tokens (f, breadth) int64, most probable first, equally probable ones by token id; their log-probabilities
        (f, breadth) float64; and those under the law raised to `sharpness` and normalised again.
    """
    breadth = min(breadth, logits.shape[-1])
    indices = logits.topk(min(breadth + 1, logits.shape[-1]), -1).indices  # one more, to see a tie at the edge
    distributions = [logits] if sharpness == 1 else [logits, sharpness * logits]
    shares = [draws.log_softmax(-1).gather(-1, indices) for draws in distributions]
    if logits.device.type == "cpu":
        tokens, found = indices.numpy(), [share.numpy().astype(np.float64) for share in shares]
    else:  # one transfer; ids are exact below 2^24
        ids, *found = torch.stack((indices.to(logits.dtype), *shares)).cpu().double().numpy()
        tokens = ids.astype(np.int64)
    tokens = _ties_by_id(tokens, found[0], breadth, logits)
    return tokens[:, :breadth], found[0][:, :breadth], found[-1][:, :breadth]


def _ties_by_id(tokens: np.ndarray, logprobs: np.ndarray, breadth: int, logits: torch.Tensor) -> np.ndarray:
    """The same tokens with equal values in order of id, which topk leaves open; 16-bit logits have many such."""
    equal = logprobs[:, 1:] == logprobs[:, :-1]
    if not equal.any():
        return tokens
    tokens = np.take_along_axis(tokens, np.lexsort((tokens, -logprobs), axis=-1), -1)
    for row in np.flatnonzero(equal[:, breadth - 1 :].any(-1)):  # the tie may go on among the tokens left out
        tokens[row] = logits[row].sort(stable=True, descending=True).indices[: tokens.shape[1]].cpu().numpy()
    return tokens


def check_whole(drafter: Drafter, *names: str) -> None:
    """Raise ValueError for the first of these hyper-parameters that is no whole number."""
    for name in names:
        if not isinstance(getattr(drafter, name), int):
            raise ValueError(f"{name} is {getattr(drafter, name)!r}; give a whole number.")


def random_tokens(text: Sequence[int], count: int, random: RandomSource) -> list[int]:
    """`count` tokens drawn from those of a text, each as probable as it is frequent there; they may be equal."""
    weights = torch.ones(len(text))
    return [int(text[random.draw(weights)]) for _ in range(count)]


def check_window(target: LanguageModel, depth: int, what: str) -> None:
    """Raise ValueError where rows `depth` positions ahead cannot fit the target's context."""
    if depth + 1 >= target.context:
        raise ValueError(
            f"{what} reaches {depth} positions ahead and the context of '{target.name}' is "
            f"{target.context}; make it smaller."
        )
