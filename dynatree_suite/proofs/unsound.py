"""Drafters that each make one natural mistake with a sampled tree, for an audit to find; nothing to decode with.

`Traversal`, `Block` and `TokenLevel` divide by the distribution a token was drawn from. They are biased where drawn
tokens are removed, ordered or recorded with a view to their values. Each drafter here says so in `drawing` and is
refused by them (`unsafe=True` shows the bias); `GrownSiblings` only by rules that need to know how many siblings there
are. `TargetWalk` and greedy verification stay exact, because they never look
at how a tree came about.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
import torch
from typing_extensions import override

from dynatree_lib.drafters.base import Proposal
from dynatree_lib.drafters.builder import DraftState, Draw, TreeBuilder
from dynatree_lib.drafters.sampled_tree import SampledTree
from dynatree_lib.sampling import GREEDY, DraftDistributions, RandomSource, Sampling
from dynatree_lib.tree import DISTINCT, IID, TokenTree, renumbering
from dynatree_lib.verifiers.base import Drawing


@dataclass(frozen=True)
class Meddled(SampledTree):
    """A sampled tree that is changed after it was drawn; subclasses say how. Arguments as for `SampledTree`."""

    recorded: ClassVar[int | None] = None
    """How every node is recorded as drawn (`TokenTree.draws`), or None for as it was drawn."""

    @property
    @override
    def drawing(self) -> Drawing:
        return Drawing.SELECTED

    @override
    def propose(self, state: DraftState, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        drawn = super().propose(state, max_depth, sampling)
        tree, nodes = drawn.tree, [0]
        for node in nodes:  # grows while it is read
            nodes += self.arrange(tree, tree.children(node).tolist(), state.random)
        order = np.array(nodes)
        state.pending = state.pending[order]
        parents = renumbering(len(tree), order)[tree.parents[order]]
        draws = tree.draws[order] if self.recorded is None else np.full(len(order), self.recorded, np.uint8)
        distributions = DraftDistributions(state.session.owner)  # move with their nodes
        if drawn.distributions:
            for parent in {*parents[1:].tolist()}:
                distributions.record(parent, drawn.distributions.distribution(int(order[parent])))
        return Proposal(TokenTree(tree.tokens[order], parents, tree.logprobs[order], draws), distributions)

    def arrange(self, tree: TokenTree, siblings: list[int], random: RandomSource) -> list[int]:
        """Return those children of a node that stay, in the order they get; `siblings` come in draw order."""
        return siblings


@dataclass(frozen=True)
class TopAsDrawn(Meddled):
    """The most probable tokens, recorded as if they had been drawn without replacement."""

    draw: Draw = "top"
    name = "top-as-drawn"
    recorded = DISTINCT


class SortedSiblings(Meddled):
    """Drawn siblings, tried from the most to the least probable."""

    name = "sorted-siblings"

    @override
    def arrange(self, tree: TokenTree, siblings: list[int], random: RandomSource) -> list[int]:
        return sorted(siblings, key=lambda node: -tree.logprobs[node])


class ShuffledSiblings(Meddled):
    """Siblings drawn without replacement, tried in random order."""

    name = "shuffled-siblings"

    @override
    def arrange(self, tree: TokenTree, siblings: list[int], random: RandomSource) -> list[int]:
        return [siblings[i] for i in random.draw_distinct(torch.ones(len(siblings)), len(siblings))]


class BaseDistributionRecorded(Meddled):
    """Siblings drawn without replacement, each recorded as a draw from the whole distribution of its parent."""

    name = "base-distribution-recorded"
    recorded = IID


@dataclass(frozen=True)
class DuplicatesDropped(Meddled):
    """Siblings drawn with replacement, copies dropped, the others still recorded as draws with replacement."""

    draw: Draw = "iid"
    name = "duplicates-dropped"

    @override
    def arrange(self, tree: TokenTree, siblings: list[int], random: RandomSource) -> list[int]:
        first: dict[int, int] = {}
        for node in siblings:
            first.setdefault(int(tree.tokens[node]), node)
        return list(first.values())


@dataclass(frozen=True)
class UnlikelyRemoved(Meddled):
    """Drawn children below a threshold are removed, with all below them, once their values are seen.

    Args:
        threshold: least probability under the draft at temperature 1, given its path, of a child that stays.
    """

    threshold: float = 0.3
    name = "unlikely-removed"

    @override
    def arrange(self, tree: TokenTree, siblings: list[int], random: RandomSource) -> list[int]:
        return [node for node in siblings if tree.logprobs[node] >= np.log(self.threshold)]


@dataclass(frozen=True)
class Reranked(Meddled):
    """A drawn tree cut to its most probable nodes, as EAGLE-2 does with trees that are not drawn.

    Args:
        nodes: drafted nodes that stay.
    """

    nodes: int = 3
    name = "reranked"

    @override
    def arrange(self, tree: TokenTree, siblings: list[int], random: RandomSource) -> list[int]:
        best = np.argsort(-tree.cumulative, kind="stable")[: self.nodes + 1]
        return [node for node in siblings if node in best]


class LosersCut(Meddled):
    """The subtrees of node 0's children compete: only the one with the most probable deepest path keeps its nodes."""

    name = "losers-cut"

    @override
    def arrange(self, tree: TokenTree, siblings: list[int], random: RandomSource) -> list[int]:
        deepest = np.flatnonzero(tree.depths == tree.depth)
        winner = tree.path(int(deepest[tree.cumulative[deepest].argmax()]))[:1]
        return [node for node in siblings if tree.depths[node] != 2 or tree.parents[node] in winner]


class GrownSiblings(Meddled):
    """A node has further children only where its first is token 0, as where a tree grows token by token.

    Every token follows its recorded distribution given all that was drawn before it, so rules that try siblings one
    after another are exact. Those that decide on siblings together take their number for given, and are biased.
    """

    name = "grown-siblings"

    @property
    @override
    def drawing(self) -> Drawing:
        return Drawing.GROWN

    @override
    def arrange(self, tree: TokenTree, siblings: list[int], random: RandomSource) -> list[int]:
        return siblings[: None if siblings and tree.tokens[siblings[0]] == 0 else 1]


@dataclass(frozen=True)
class SharedNoise(SampledTree):
    """The same random numbers draw the children of all nodes of a level, for example by broadcasting.

    Along one path every token follows its recorded distribution, so `TokenLevel` stays exact; `Traversal` does not.

    Args:
        between: "nodes": as above. "siblings": the numbers that drew all siblings but the first draw the children of
            the first; other children are drawn with new ones. Rules that decide on siblings together are biased then.

    Raises:
        ValueError: for draw="iid", for which siblings would share a number, or another `between`.
    """

    between: Literal["nodes", "siblings"] = "nodes"
    name = "shared-noise"

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.between not in ("nodes", "siblings"):
            raise ValueError(f"between is {self.between!r}; choose 'nodes' or 'siblings'.")
        if self.draw == "iid":
            raise ValueError("draw is 'iid'; shared noise needs a number per sibling, so choose 'distinct'.")

    @property
    @override
    def drawing(self) -> Drawing:
        return Drawing.BY_PATH

    @override
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        numbers = _SharedNumbers if self.between == "nodes" else _LentNumbers
        builder.state = replace(builder.state, random=numbers(builder))
        super().grow(builder, max_depth)


class _SharedNumbers(RandomSource):
    """A uniform number per sibling, at which all nodes of a level invert their distributions.

    An interval is known of each number. A node's draw narrows it to the part that gives the drawn token, and the next
    node draws by how its own distribution divides that part. So every decision is the tree builder's own source's.
    """

    def __init__(self, builder: TreeBuilder) -> None:
        self._builder, self._source = builder, builder.state.random
        self._level = 0
        self._known: dict[int, tuple[float, float]] = {}

    @override
    def draw_distinct(self, weights: torch.Tensor, count: int) -> list[int]:
        if self._level != len(self._builder):  # nodes are added once their whole level is drawn
            self._level, self._known = len(self._builder), {}
        left = weights.double().clone()
        drawn: list[int] = []
        while len(drawn) < count and left.any():
            drawn.append(self._invert(left, len(drawn)))
            left[drawn[-1]] = 0
        return drawn

    def _invert(self, weights: torch.Tensor, number: int) -> int:
        low, high = self._known.get(number, (0.0, 1.0))
        edges = torch.cat([torch.zeros(1), weights.cumsum(0)])
        edges = (edges / edges[-1].clone()).clamp(low, high)
        token = self._source.draw(edges.diff())
        self._known[number] = float(edges[token]), float(edges[token + 1])
        return token


class _LentNumbers(_SharedNumbers):
    """The first node of a level draws its children at the numbers that drew its later siblings, others at new ones."""

    @override
    def draw_distinct(self, weights: torch.Tensor, count: int) -> list[int]:
        if self._level != len(self._builder):
            self._level = len(self._builder)
            self._known = {number - 1: span for number, span in self._known.items() if number}
        else:
            self._known = {}
        return super().draw_distinct(weights, count)


_KINDS: tuple[type[SampledTree], ...] = (
    TopAsDrawn, SortedSiblings, ShuffledSiblings, BaseDistributionRecorded, DuplicatesDropped, UnlikelyRemoved,
    Reranked, LosersCut, SharedNoise,
)  # fmt: skip
UNSOUND = {kind: str(kind.__doc__).partition("\n")[0] for kind in _KINDS}
"""Every drafter of this module that misleads traversal, and its mistake."""
