"""`DySpecTree`: a drawn tree that grows node by node where the next token is most likely to be accepted (DySpec)."""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush

import numpy as np
import torch
from typing_extensions import override

from dynatree_lib.checks import is_number
from dynatree_lib.drafters.base import ModelDrafter
from dynatree_lib.drafters.builder import TreeBuilder
from dynatree_lib.drafters.checks import check_counts, require
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.sampling import one_thread
from dynatree_lib.tree import DISTINCT, POINT
from dynatree_lib.verifiers.base import Drawing


@dataclass(frozen=True)
class DySpecTree(ModelDrafter):
    """Greedy growth of a drawn tree (Xiong et al. 2024, Algorithm 1).

    Every place where a token could be drawn has a value, the probability that verification comes there if the draft is
    right. The place of most value draws its token from what is left of the draft's distribution there. A token x with
    probability R(x) leaves the value v (1 - R(x)) to the place of its next sibling, and has v R(x) below itself.

    Where the tree grows depends on what was drawn in other branches, but only on what was drawn before. So every token
    follows its recorded distribution given all earlier draws, and token-level verification and traversal are lossless.
    Rules that need to know how many siblings there are refuse it: the first child's token decides on a second.

    How probable a drawn token was is not how likely it is to be accepted: a draft that is right has every token that it
    draws accepted. With `accepted` that probability is the same for every token, and the tree grows by it.

    Where the target's temperature is 0, nothing is drawn: a place takes the most probable token that is left.

    Args:
        draft: the draft model.
        max_nodes: most nodes, node 0 included.
        depth: most levels below node 0.
        branching: most children of a node.
        accepted: probability with which a drawn token is taken to be accepted; None is R(x), as published.

    Raises:
        ValueError: for max_nodes < 2, depth or branching < 1, or `accepted` outside 0 to 1.
    """

    draft: LanguageModel
    max_nodes: int = 16
    depth: int = 8
    branching: int = 4
    accepted: float | None = None
    name = "dyspec-tree"
    drawing = Drawing.GROWN

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "depth", "branching", "max_nodes")
        share = self.accepted
        holds = share is None or (is_number(share) and 0 <= share <= 1)
        require(holds, f"accepted is {share!r}; give a number from 0 to 1, or None for the draft's probability.")

    @override
    @one_thread()
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        places = _Places(builder)
        levels, number = [0], 0
        waiting = [(-1.0, 0, 0, 0)]  # minus value, order of equal values, node that a child is drawn for, its children
        while waiting and len(builder) < self.max_nodes:
            minus, _, node, children = heappop(waiting)
            child, share = places.drawn(node, [place[2] for place in waiting])
            if child is None:
                continue  # the draft gives no further token any probability
            share = share if self.accepted is None else self.accepted
            levels.append(levels[node] + 1)
            if levels[child] < min(self.depth, max_depth):
                number += 1
                heappush(waiting, (minus * share, number, child, 0))
            if children + 1 < self.branching:
                number += 1
                heappush(waiting, (minus * (1 - share), number, node, children + 1))


class _Places:
    """The tokens that are left to draw from at each node that was read."""

    def __init__(self, builder: TreeBuilder) -> None:
        self.builder = builder
        self.left: dict[int, torch.Tensor] = {}
        self.plain: dict[int, torch.Tensor] = {}

    def drawn(self, node: int, waiting: list[int]) -> tuple[int | None, float]:
        """Draw a child of a node, without replacement.

        Args:
            node: the parent.
            waiting: nodes that may be next; the unread ones are read in the same forward, which decides nothing.

        Returns:
            the child, and the probability that it had of what was left; None and 0 where nothing was.
        """
        if node not in self.left:
            self._read(np.array(sorted({node, *(other for other in waiting if other not in self.left)})))
        left, builder = self.left[node], self.builder
        total = float(left.sum(dtype=torch.float64))
        if not total > 0:
            return None, 0.0
        token, draws = self._picked(left)
        share = float(left[token]) / total
        left[token] = 0
        named = token if builder.drafted is None else int(builder.drafted[token])
        logprob = np.array([float(self.plain[node][token])])
        (child,) = builder.add(np.array([node]), np.array([named]), logprob, draws).tolist()
        return child, min(share, 1.0)

    def _picked(self, left: torch.Tensor) -> tuple[int, int]:
        """Draw an index by (K,) weights, at temperature 0 the largest; return it and how it was drawn."""
        if self.builder.sampling.greedy:
            return int(left.numpy().argmax()), POINT
        return self.builder.state.random.draw(left), DISTINCT

    def _read(self, nodes: np.ndarray) -> None:
        builder = self.builder
        given = builder.distributions_of(nodes)
        builder.record(nodes, given)
        for node, sampled, plain in zip(nodes.tolist(), *given, strict=True):
            self.left[node], self.plain[node] = sampled.clone(), plain
