"""The times of iterations of drafters in turns: of the library's probes (`measuring`), and of real drafters.

All probes commit one token an iteration and read the same text. `cost_model` turns the times into costs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

import numpy as np
import pandas as pd
import torch

from dynatree_lib.decoding import DecodingState, generate
from dynatree_lib.drafters import Drafter
from dynatree_lib.drafters.builder import DraftState
from dynatree_lib.models.base import LanguageModel

from ..bench.clock import interleaved, synchronize
from ..bench.prompts import BenchPrompt

FIRST = 10
"""Tokens of a text before anything counts but the reading of its prompt."""


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
        drafting = getattr(drafting, "drafting", drafting)  # of a drafter that may have a draft
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
