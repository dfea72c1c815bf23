"""Probes: drafters that make an iteration of a known shape, and the time of iterations in the real loop.

A probe's tokens are the last of the vocabulary, which a target hardly ever chooses. So an iteration commits one token
whatever the probe proposes, and all probes read the same text. `cost_model` turns the times into costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial

import numpy as np
import pandas as pd
import torch
from typing_extensions import override

from dynatree_lib.decoding import DecodingState, generate
from dynatree_lib.drafters import Drafter, NoDraft
from dynatree_lib.drafters.base import ModelDrafter, Proposal
from dynatree_lib.drafters.builder import DraftState, TreeBuilder
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.sampling import GREEDY, Sampling
from dynatree_lib.tree import ROOT, TokenTree

from ..bench.clock import interleaved, synchronize
from ..bench.prompts import BenchPrompt

DEEPEST = 8
"""Deepest level of a probe's tree."""
PROPOSED = 4
"""Nodes of the tree that a probe of drafting proposes, because a single node would be verified by another kernel."""
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

    @override
    def propose(self, state: int, max_depth: int, sampling: Sampling = GREEDY) -> Proposal:
        tree = self._tree
        return Proposal(TokenTree(np.append(state, tree.tokens[1:]), tree.parents, tree.logprobs, tree.draws))


@dataclass(frozen=True)
class LevelsProbe(ModelDrafter):
    """Drafts levels and proposes `PROPOSED` nodes: the first level reads node 0, each further level `width` nodes.

    The drafted nodes are thrown away, so that the target's part is the same for all levels and widths.

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
        """Draft all levels whatever `max_depth` is, because next to nothing is accepted."""
        frontier, breadth = np.array([0]), self.width
        for _ in range(self.levels):
            tokens, logprobs = builder.best(frontier, breadth)
            frontier = builder.add(np.repeat(frontier, tokens.shape[1]), tokens.ravel(), logprobs.ravel())
            breadth = 1
        builder.keep(np.array([0]))
        unlikely = (builder.highest - np.arange(PROPOSED - 1)) % self.draft.vocab_size
        builder.add(np.zeros_like(unlikely), unlikely, np.zeros(len(unlikely)))


@dataclass
class Timing:
    """The times of one drafter.

    Attributes:
        drafter: a probe, or a real drafter.
        tokens: committed in each block, before the next drafter has its turn.
        blocks: a row for each iteration of a block but its first, which finds everything cold, and its last, which may
            draft nothing: `seconds`, `levels` drafted, nodes the draft `read` in them, `nodes` scored below node 0.
        begins: seconds of the first iteration of each text, which reads the prompt.
    """

    drafter: Drafter
    tokens: int
    blocks: list[pd.DataFrame] = field(default_factory=list)
    begins: list[float] = field(default_factory=list)
    state: DecodingState | None = None

    @property
    def iterations(self) -> pd.DataFrame:
        """All blocks together."""
        return pd.concat(self.blocks)

    def begin(self, target: LanguageModel, ids: Sequence[int], clock: Callable[[], float]) -> None:
        """Begin a text with a block that counts for the prompt alone."""
        self.begins.append(self._block(target, ids, FIRST, clock)["seconds"].iloc[0])

    def go_on(self, target: LanguageModel, clock: Callable[[], float]) -> None:
        """Continue the text by one block."""
        self.blocks.append(self._block(target, (), self.tokens, clock).iloc[1:-1])

    def _block(
        self, target: LanguageModel, ids: Sequence[int], tokens: int, clock: Callable[[], float]
    ) -> pd.DataFrame:
        drafting = self.state.drafter_state if self.state else None
        session = drafting.session if isinstance(drafting, DraftState) else None
        marks: list[tuple[float, int, int]] = []  # at the start and after each iteration

        def mark(committed: object = None) -> None:
            marks.append((clock(), session.forwards if session else 0, session.scored if session else 0))

        mark()
        out = generate(
            target, ids, self.drafter, state=self.state, max_new_tokens=tokens, eos_token_ids=(), on_tokens=mark
        )
        if out.state is None:  # generate() swallows Ctrl-C to save the text
            raise KeyboardInterrupt
        self.state = out.state
        steps = pd.DataFrame(np.diff(marks, axis=0), columns=["seconds", "levels", "read"])
        return steps.assign(nodes=[len(one.tree) - 1 + one.side_nodes for one in out.iterations])


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
    for timing in timings:
        Timing(timing.drafter, timing.tokens).begin(target, prompts[0].ids, clock)

    def block(timing: Timing, ids: Sequence[int]) -> None:
        timing.go_on(target, clock) if timing.state else timing.begin(target, ids, clock)
        synchronize(device)

    for number, prompt in enumerate(prompts, 1):
        progress(f"[{number}/{len(prompts)}] cost of an iteration: {len(timings)} drafters on {prompt.id}")
        for timing in timings:
            timing.state = None
        interleaved([partial(block, timing, prompt.ids) for timing in timings], turns + 1, device)
