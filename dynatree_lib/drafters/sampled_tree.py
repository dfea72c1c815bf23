"""`SampledTree`: a tree of given shape, its tokens drawn from the draft (Traversal Verification, definition 3.1)."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, get_args

import numpy as np
from typing_extensions import override

from ..models.base import LanguageModel
from ..sampling import Sampling
from ..verifiers.base import Drawing
from .base import ModelDrafter
from .builder import Draw, TreeBuilder
from .checks import check_choices, check_counts, check_rules, make_tuples, require
from .fixed_tree import at_level

_EAGLE = "0 1 2 3 00 01 02 10 11 20 21 30 000 001 002 010 011 020 021 100 0000 0001 0002 00000 00001"
EAGLE_PATHS = tuple(_EAGLE.split())
"""The 25 nodes of EAGLE's sparse tree as child numbers from node 0 down: "01" is the second child of the first."""

MOST_NODES = 10_000


@dataclass(frozen=True)
class SampledTree(ModelDrafter):
    """Draw the children of every slot of a fixed shape from the draft's distribution. One draft forward per level.

    Where nodes cost time its default shape is slower than plain decoding: SmolLM2 in 4 bits decodes at 0.23 of its
    plain speed at temperature 1 (outputs/reference/rules-1.jsonl.gz). Use `Auto(draft)`, or `CostAwareSampledTree` for
    drawn trees.

    Where fewer tokens are possible than a node has slots (filters, low temperatures), the last slots stay empty. Where
    the target's temperature is 0, nothing is drawn: the tokens are the most probable, the limit of low temperatures.

    A subclass that removes, orders or otherwise selects nodes once they are drawn must declare it (`drawing`), or rules
    that divide by draft distributions will be biased.

    The default is the binary tree of depth 5 of the paper's tables, 62 drafted nodes.

    Args:
        draft: the draft model.
        depth: levels below node 0.
        branching: children per node; a tuple gives one value per level, the last repeated. 1 is a chain.
        draw: "distinct" draws siblings without replacement, "iid" with (copies stay as slots), "hybrid" takes all but
            the last as the most probable tokens and draws the last from the rest, "top" draws nothing.
        shape: "full": `depth` and `branching`; "eagle": EAGLE's sparse tree; or the parent slot of every slot in
            breadth-first order, node 0 being slot 0 (`slots_of_paths` makes it from child numbers).
        temperature: of the draft, above temperature 0; None takes the target's temperature and filters.

    Raises:
        ValueError: for depth or branching < 1, an unknown `draw` or `shape`, slots out of order, more than 10,000
            nodes, temperature <= 0.
    """

    draft: LanguageModel
    depth: int = 5
    branching: int | tuple[int, ...] = 2
    draw: Draw = "distinct"
    shape: Literal["full", "eagle"] | tuple[int, ...] = "full"
    temperature: float | None = None
    name = "sampled-tree"

    def __post_init__(self) -> None:
        super().__post_init__()
        make_tuples(self, "branching", "shape")
        check_counts(self, "depth", "branching")
        check_choices(self, draw=get_args(Draw))
        require(
            isinstance(self.shape, tuple) or self.shape in ("full", "eagle"),
            f"shape is {self.shape!r}; choose 'full', 'eagle', or give the parent slot of every slot.",
        )
        require(
            self.shape == "full" or (self.depth, self.branching) == (SampledTree.depth, SampledTree.branching),
            f"shape={self.shape!r} has its own depth and branching; leave these two out.",
        )
        size = np.cumprod([float(at_level(self.branching, level)) for level in range(self.depth)]).sum()
        require(
            self.shape != "full" or size <= MOST_NODES,
            f"depth={self.depth} and branching={self.branching} make {size:,.0f} nodes; a forward takes at most "
            f"{MOST_NODES:,} here. Give fewer levels or children, or a `shape` of its own.",
        )
        slots = self._slots
        whole = slots.dtype.kind == "i" and 0 < len(slots) <= MOST_NODES
        require(
            whole and slots[0] == 0 and not (np.diff(slots) < 0).any() and not (slots > np.arange(len(slots))).any(),
            f"shape is {self.shape}; give the parent slot of slots 1, 2, ... in breadth-first order, for example "
            "(0, 0, 1, 1) for two children of node 0 and two of the first of them.",
        )
        check_rules(self, "0 < temperature < inf, or None for the target's")

    @property
    def drawing(self) -> Drawing:
        """Every token is drawn from its recorded distribution."""
        return Drawing.FIXED if self.draw == "top" else Drawing.RECORDED

    @property
    def chain(self) -> bool:
        """Whether no slot has a sibling."""
        return len(set(self._slots.tolist())) == len(self._slots)

    @cached_property
    def _slots(self) -> np.ndarray:
        """(n,) parent slot of slots 1 to n."""
        if self.shape != "full":
            return np.array(slots_of_paths(EAGLE_PATHS) if self.shape == "eagle" else self.shape)
        parents, level = [], np.array([0])
        for number in range(self.depth):
            parents.append(np.repeat(level, at_level(self.branching, number)))
            level = np.arange(level[-1] + 1, level[-1] + 1 + len(parents[-1]))
        return np.concatenate(parents)

    @override
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        wanted = np.bincount(self._slots, minlength=len(self._slots) + 1)  # children of each slot
        first = np.cumsum([1, *wanted])  # slot of the first child
        if self.temperature is not None and not builder.sampling.greedy:
            builder.sampling = Sampling(self.temperature)
        nodes, slots = np.array([0]), np.array([0])
        for _ in range(max_depth):
            inner = wanted[slots] > 0
            nodes, slots = nodes[inner], slots[inner]
            if not len(nodes):
                return
            given = builder.distributions_of(nodes)
            indices, *columns = builder.draw(nodes, given, wanted[slots], self.draw)
            ranks = np.arange(len(indices)) - np.searchsorted(indices, indices)  # place among the siblings
            # A slot that stays empty is not in `nodes`, so the slots below it stay empty too.
            nodes, slots = builder.add(nodes[indices], *columns), first[slots[indices]] + ranks


def slots_of_paths(paths: Iterable[str]) -> tuple[int, ...]:
    """Return the parent slots of a shape given by child numbers from node 0 down, such as `EAGLE_PATHS`.

    Raises:
        ValueError: for a path whose parent or earlier sibling is missing.
    """
    order = sorted(paths, key=lambda path: (len(path), path))
    slot = {"": 0, **{path: number for number, path in enumerate(order, 1)}}
    for path in order:
        before = path[:-1] if path[-1] == "0" else path[:-1] + str(int(path[-1]) - 1)
        require(before in slot, f"Path {path} needs path {before or 'of node 0'} before it; add it.")
    return tuple(slot[path[:-1]] for path in order)
