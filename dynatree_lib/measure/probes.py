"""Probes: drafters that make an iteration of a known shape, and what iterations take, timed in the real loop.

A probe's tokens are the last of the vocabulary, which a target hardly ever chooses, so that an iteration commits one
token whatever the probe proposes, and all probes read the same text. What the times mean belongs to `cost_model`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch

from ..decoding import DecodingState, Iteration, generate
from ..drafters import Drafter, NoDraft
from ..drafters.base import DraftState, ModelDrafter, Proposal, TreeBuilder
from ..models.base import LanguageModel
from ..sampling import GREEDY, Sampling
from ..tree import ROOT, TokenTree
from .prompts import BenchPrompt
from .protocol import _known_objects_frozen, _quiet_machine, _synchronize

DEEPEST = 8
"""Deepest level of a probe's tree."""
PROPOSED = 4
"""Rows of the tree that a probe of drafting proposes: one alone would be verified by another kernel than a tree."""
FIRST = 10
"""Tokens of a text before anything counts but the reading of its prompt."""
LEVELS = 4
"""Levels whose time is taken together, below a first level that reads node 0 alone."""


@dataclass(frozen=True)
class RowsProbe(NoDraft):
    """Has the target score `rows` nodes and drafts nothing: a chain of up to `DEEPEST`, the rest children along it.

    Args:
        rows: nodes of the tree, node 0 included.
        vocab_size: V of the target.
    """

    rows: int
    vocab_size: int
    name = "rows-probe"

    @cached_property
    def _tree(self) -> TokenTree:
        spine = min(DEEPEST, max(1, self.rows // 2))
        parents = [ROOT, *(node - 1 if node <= spine else node % spine for node in range(1, self.rows))]
        return TokenTree.build([(self.vocab_size - 1 - node) % self.vocab_size for node in range(self.rows)], parents)

    def propose(self, state: int, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        """The tree below the last committed token."""
        tree = self._tree
        return Proposal(TokenTree(np.append(state, tree.tokens[1:]), tree.parents, tree.logprobs, tree.draws))


@dataclass(frozen=True)
class LevelsProbe(ModelDrafter):
    """Drafts levels and proposes `PROPOSED` rows: the first level reads node 0, each further one `width` nodes.

    What it drafts is thrown away, so that the target's part is the same for all levels and widths.

    Args:
        draft: the draft model.
        levels: forwards of the draft.
        width: nodes of a level.
    """

    draft: LanguageModel
    levels: int
    width: int
    name = "levels-probe"

    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        """See `ModelDrafter.grow`; next to nothing is accepted, so the room in the text does not matter."""
        frontier, breadth = np.array([0]), self.width
        for _ in range(self.levels):
            tokens, logprobs = builder.best(frontier, breadth)
            frontier = builder.add(np.repeat(frontier, tokens.shape[1]), tokens.ravel(), logprobs.ravel())
            breadth = 1
        builder.keep(np.array([0]))
        unlikely = (builder.highest - np.arange(PROPOSED - 1)) % self.draft.vocab_size
        builder.add(np.zeros_like(unlikely), unlikely, np.zeros(len(unlikely)))


@dataclass(frozen=True)
class TimedIteration:
    """One timed iteration: seconds, nodes drafted below node 0, levels drafted, nodes the draft read."""

    seconds: float
    nodes: int
    levels: int
    read: int


@dataclass
class Timing:
    """The times of one drafter.

    Attributes:
        drafter: a probe, or a real drafter.
        tokens: committed in each block, before the next drafter has its turn.
        blocks: iterations of each block but its first, which finds everything cold, and its last, which has no room
            to draft.
        begins: seconds of the first iteration of each text, which reads the prompt.
    """

    drafter: Drafter
    tokens: int
    blocks: list[list[TimedIteration]] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    state: DecodingState | None = None

    @property
    def seconds(self) -> np.ndarray:
        """(n,) of all iterations."""
        return np.array([one.seconds for block in self.blocks for one in block])

    def begin(self, target: LanguageModel, ids: Sequence[int], clock: Callable[[], float]) -> None:
        """Begin a text with a block that counts for the prompt alone."""
        self.state = None
        marks, _ = self._marked(target, ids, FIRST, clock)
        self.begins.append(marks[1][0] - marks[0][0])

    def go_on(self, target: LanguageModel, clock: Callable[[], float]) -> None:
        """One more block of the text."""
        marks, iterations = self._marked(target, (), self.tokens, clock)
        steps = [np.subtract(after, before) for before, after in pairwise(marks)]
        self.blocks.append(
            [
                TimedIteration(float(seconds), len(one.tree) - 1 + one.side_nodes, int(levels), int(read))
                for (seconds, levels, read), one in zip(steps[1:-1], iterations[1:-1], strict=True)
            ]
        )

    def _marked(
        self, target: LanguageModel, ids: Sequence[int], tokens: int, clock: Callable[[], float]
    ) -> tuple[list[tuple[float, int, int]], list[Iteration]]:
        """Time, levels drafted and nodes read so far: at the start, and after each iteration; and the iterations."""
        drafting = self.state.drafting if self.state else None
        session = drafting.session if isinstance(drafting, DraftState) else None
        marks: list[tuple[float, int, int]] = []

        def mark(committed: object = None) -> None:
            marks.append((clock(), session.forwards if session else 0, session.scored if session else 0))

        mark()
        out = generate(
            target, ids, self.drafter, state=self.state, max_new_tokens=tokens, eos_token_ids=(), on_tokens=mark
        )
        if out.state is None:  # generate() swallows Ctrl-C to save the text
            raise KeyboardInterrupt
        self.state = out.state
        return marks, out.iterations


def time_blocks(
    target: LanguageModel,
    timings: Sequence[Timing],
    prompts: Sequence[BenchPrompt],
    turns: int,
    progress: Callable[[str], None],
    clock: Callable[[], float],
) -> None:
    """Time all drafters, interleaved block by block, `turns` blocks after each prompt, after a warm-up."""
    device = getattr(target, "device", torch.device("cpu"))
    for one in timings:
        Timing(one.drafter, one.tokens).begin(target, prompts[0].ids, clock)
    with _known_objects_frozen():
        for number, prompt in enumerate(prompts, 1):
            progress(f"[{number}/{len(prompts)}] cost of an iteration: {len(timings)} drafters on {prompt.id}")
            for turn in range(turns + 1):
                first = turn % len(timings)
                for one in [*timings[first:], *timings[:first]]:
                    with _quiet_machine(device):
                        one.go_on(target, clock) if turn else one.begin(target, prompt.ids, clock)
                        _synchronize(device)
