"""The interface of a drafter, the empty drafter, and the base of all drafters with a draft model.

A drafter object holds hyper-parameters only. What changes while decoding is in the state it returns from `start`.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from typing_extensions import override

from ..costs import Costs
from ..models.base import LanguageModel, check_model
from ..sampling import GREEDY, DraftDistributions, RandomSource, Sampling, Scores
from ..tree import TokenTree
from ..verifiers.base import Drawing, Verdict
from .builder import DraftState, TreeBuilder


@dataclass(frozen=True)
class Proposal:
    """The proposal of a drafter.

    Attributes:
        tree: the tree to verify; node 0 is the last committed token.
        distributions: the distributions that sampled children were drawn from; None where nothing is sampled.
        side_tree: for methods that draft inside the target's own forward: a tree below the same node 0. Its other
            nodes are scored in the same forward, at positions by depth, unseen by the nodes of `tree`; they are never
            committed.
        ranked: most probable tokens of each node that the drafter's `observe` will ask for (`Scores.ranked`); found
            before verification, they spare a greedy rule its own search.
    """

    tree: TokenTree
    distributions: DraftDistributions | None = None
    side_tree: TokenTree | None = None
    ranked: int = 0

    @cached_property
    def nodes(self) -> tuple[np.ndarray, np.ndarray]:
        """Token and parent of all scored nodes: the n of `tree`, then the m of `side_tree` below node 0.

        (n + m,) int64 each.
        """
        if self.side_tree is None:
            return self.tree.tokens, self.tree.parents
        above = self.side_tree.parents[1:]
        parents = np.where(above > 0, above + len(self.tree) - 1, 0)
        tokens = np.concatenate([self.tree.tokens, self.side_tree.tokens[1:]])
        return tokens, np.concatenate([self.tree.parents, parents])


class Drafter(ABC):
    """A method that proposes a token tree in each iteration."""

    name: str
    """Method name in records and plots."""

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """All draft models that read the target's tokens, each once."""
        return ()

    @property
    def model(self) -> LanguageModel | None:
        """The first draft model, or None for drafters without one."""
        return next(iter(self.models), None)

    @property
    def feature_layers(self) -> tuple[int, ...] | None:
        """Layers of the target whose hidden states a draft model reads; None where none reads any."""
        layers = (getattr(model, "feature_layers", None) for model in self.models)
        return next((found for found in layers if found is not None), None)

    @property
    def drawing(self) -> Drawing:
        """How the tokens come about, which decides the rules without bias; deterministic by default."""
        return Drawing.FIXED

    @property
    def chain(self) -> bool:
        """Whether its trees never branch."""
        return False

    @property
    def side_trees(self) -> bool:
        """Whether it drafts inside the target's own forward, by side trees."""
        return False

    def check(self, target: LanguageModel) -> None:  # noqa: B027 - most drafters serve every target
        """Raise ValueError, before any work, where this drafter cannot serve the target."""

    def priced(self, measure: Callable[[LanguageModel | None], Costs]) -> Drafter:
        """Return the drafter with measured costs where it asks for them (`checks.Priced`), itself where it does not.

        One that is made of others prices them.

        Args:
            measure: draft model or None -> the costs of the target with it on this machine.
        """
        names: list[str] = [one.name for one in fields(self)] if is_dataclass(self) else []
        parts = {name: part.priced(measure) for name in names if isinstance(part := getattr(self, name), Drafter)}
        return replace(self, **parts) if parts else self  # type: ignore[type-var]

    def predicted(self, state: Any) -> float:
        """Return the greedy steps that a text has taken by the drafter's costs; NaN where it does not add them up."""
        return math.nan

    @abstractmethod
    def start(self, prompt: Sequence[int], random: RandomSource) -> Any:
        """Return the state for a new text of these committed tokens; `random` is the drafting stream."""

    @abstractmethod
    def extend(self, state: Any, tokens: Sequence[int]) -> Any:
        """Return the state after more committed tokens that did not come from this drafter (a chat turn)."""

    @abstractmethod
    def propose(self, state: Any, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        """Propose a tree of at most `max_depth` levels; deeper nodes could never be accepted.

        A side tree may be deeper. Where the target's context ends before it does, the loop leaves it out, and `observe`
        is given the proposal without it. `sampling` is the target's.
        """

    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        """Return the state after the verdict on a proposal; `scores` are the target's of `proposal.nodes`.

        By default the text goes on by the emitted tokens, wherever they came from.
        """
        return self.extend(state, verdict.tokens(proposal.tree))

    def inherit(self, state: Any, earlier: Any) -> Any:
        """Return a new text's state with everything learnt in an earlier text; the earlier state does not change."""
        return state

    def renumber(self, state: Any, nodes: np.ndarray, size: int) -> None:  # noqa: B027 - few care
        """Note that the tree just proposed becomes part of a larger tree, the one that `observe` is given.

        Args:
            state: of the text.
            nodes: (n,) node of the larger tree that each proposed node became, -1 where it was left out.
            size: nodes of the larger tree.
        """

    def drafting_work(self, state: Any) -> tuple[int, int]:
        """Return the forwards of draft models in this text so far, and the nodes that they read."""
        return 0, 0

    def drafting_cost(self, state: Any) -> float:
        """Return the predicted cost of drafting the current tree in greedy steps; 0 for a drafter without costs."""
        return 0.0

    def report(self, state: Any) -> dict[str, float]:
        """Return the numbers of the state that each Iteration keeps (adaptation, pool sizes)."""
        return {}


def renumbered(values: np.ndarray, nodes: np.ndarray, size: int, other: float) -> np.ndarray:
    """Return the (size,) values of a larger tree's nodes (`Drafter.renumber`): of proposed nodes, else `other`."""
    out, stay = np.full(size, other, values.dtype), nodes >= 0
    out[nodes[stay]] = values[stay]
    return out


@dataclass(frozen=True)
class NoDraft(Drafter):
    """No drafting: autoregressive decoding through the same loop. The state is the last committed token."""

    name = "ar"
    chain = True

    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> int:
        return int(prompt[-1])

    @override
    def extend(self, state: int, tokens: Sequence[int]) -> int:
        return int(tokens[-1])

    @override
    def propose(self, state: int, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        return Proposal(TokenTree.alone(state))


class ModelDrafter(Drafter):
    """A drafter with a draft model, which is its first field; subclasses grow the tree level by level.

    The draft's cache is kept between iterations. The state is a `DraftState`, whose `learnt` a subclass may use.
    """

    draft: LanguageModel

    def __post_init__(self) -> None:
        """Raise TypeError for a draft that is no `LanguageModel`; subclasses with checks of their own call this.

        None is for checking the hyper-parameters before a model is loaded; `generate` refuses it.
        """
        if self.draft is not None:
            check_model("draft", self.draft)

    @property
    def models(self) -> tuple[LanguageModel, ...]:
        """The draft model, or None where hyper-parameters are checked before it is loaded."""
        return (self.draft,)

    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> Any:
        session = self.draft.session()
        session.begin(self._known(prompt))
        return DraftState(session, int(prompt[-1]), random, learnt=self.begun(prompt))

    def begun(self, prompt: Sequence[int]) -> Any:
        """Return `DraftState.learnt` for a new text; None for a drafter that learns nothing."""
        return None

    @override
    def extend(self, state: Any, tokens: Sequence[int]) -> Any:
        state.session.resume(self._known([state.root, *tokens]))
        state.root = int(tokens[-1])
        return state

    @override
    def check(self, target: LanguageModel) -> None:
        self.draft.check_target(target)

    @override
    def propose(self, state: Any, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        state.session.rollback()  # an interrupted iteration may have left nodes behind
        max_depth = min(max_depth, self.draft.context - state.session.position - 1)
        builder = TreeBuilder(state, self.draft.vocab_size - 1, sampling)
        if max_depth > 0 and state.session.ready:  # the draft's own context is not exhausted
            self.grow(builder, max_depth)
        state.pending = builder.pending
        return Proposal(builder.tree(), builder.distributions)

    @override
    def renumber(self, state: Any, nodes: np.ndarray, size: int) -> None:
        state.pending = renumbered(state.pending, nodes, size, -1)

    @override
    def drafting_work(self, state: Any) -> tuple[int, int]:
        return state.session.forwards, state.session.scored

    def _known(self, tokens: Sequence[int]) -> list[int]:
        # A target with padded embeddings may emit an id that the draft does not know. Reading another token in its
        # place can cost acceptance and nothing else.
        return [min(int(token), self.draft.vocab_size - 1) for token in tokens]

    @abstractmethod
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        """Add nodes to a tree that holds node 0, at most `max_depth` levels of them."""

    @override
    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        return self.follow(state, proposal, scores, verdict)

    def follow(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        """Go on with the draft's cache after the verdict on a proposal."""
        path = [0, *verdict.path]
        read = [number for number in map(state.pending.item, path) if number >= 0]
        state.session.follow(read, self._known([*map(proposal.tree.tokens.item, path)]), path, scores)
        state.root = verdict.next_token
        return state
