"""What two papers publish and this library does otherwise, to be measured: DynaTree's code, and PTD's Algorithm 2.

`Switches`: the published DynaTree implementation's way of decoding, one switch per difference, for the ablation. Two of
the five differences are choices that the core offers (`root`, `commit`). Three are faults and live here only, as
sessions that misbehave: tree nodes without positions, a draft that reads its whole prefix again each iteration, and one
draft forward per node over a cache that all siblings write to. (Read from the authors' public repository
cny123222/DynaTree, spec_decode/core/tree_speculative_generator.py at commit 94fee74.)

`ListedSampling`: the sampling rule of Progressive Tree Drafting as its listing, or its prose, can be read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any, ClassVar, Literal

import numpy as np
import torch

from ...decoding import Generation, generate
from ...drafters import FixedTree
from ...measure.methods import Variant, custom
from ...measure.runner import DrafterRunner, Instrument, Runner
from ...models.huggingface import HFModel, HFSession
from ...models.pairs import Pair
from ...sampling import DraftDistributions, RandomSource, Sampling, Scores
from ...tree import TokenTree
from ...verifiers.base import Drawing, Verdict
from ...verifiers.residual import ResidualRule


@dataclass(frozen=True)
class Switches:
    """The five differences; the defaults are this library's, `PUBLISHED` the paper's code.

    Attributes:
        root: "draft": level 1 holds only the draft's top-1 token; "target": node 0 is what the target has chosen.
        commit: "rebuild": drop the tree and read the accepted tokens again; "gather": keep their cache rows.
        positions: "flat": node i is scored at position L + i; "depth": at its depth below the text.
        draft_cache: "reread": the draft reads the whole text each iteration; "kept": it keeps its accepted rows.
        batching: "node": one draft forward per node, which also attends to every node read before it; "level".
    """

    root: Literal["target", "draft"] = "target"
    commit: Literal["gather", "rebuild"] = "gather"
    positions: Literal["depth", "flat"] = "depth"
    draft_cache: Literal["kept", "reread"] = "kept"
    batching: Literal["level", "node"] = "level"


PUBLISHED = Switches("draft", "rebuild", "flat", "reread", "node")


def arrange(
    target: HFModel, tree: FixedTree, switches: Switches
) -> tuple[HFModel, FixedTree, Literal["gather", "rebuild"]]:
    """Target, drafter and `commit` that together decode with these switches.

    `tree.depth` is the paper's D: levels below its root. With root="draft" one level is added for that root; with
    root="target" too, so that both may keep equally long paths.
    """
    draft = tree.draft
    if not isinstance(draft, HFModel):
        raise TypeError("The published implementation's faults need transformers models; this tree's draft is not one.")
    kinds: list[type[HFSession]] = []
    if switches.batching == "node":
        kinds.append(NodeByNodeSession)
    if switches.draft_cache == "reread":
        kinds.append(RereadingSession)
    if kinds:
        draft = draft.with_sessions(type("PublishedDraftSession", tuple(kinds), {}))
    if switches.positions == "flat":
        target = target.with_sessions(FlatPositionSession)
    return target, replace(tree, draft=draft, root=switches.root, depth=tree.depth + 1), switches.commit


def generate_with(
    target: HFModel, prompt: Sequence[int], tree: FixedTree, switches: Switches, **options: Any
) -> Generation:
    """`generate` with some of the differences; see `arrange`."""
    target, drafter, commit = arrange(target, tree, switches)
    return generate(target, prompt, drafter, commit=commit, **options)


def corrections() -> list[tuple[str, Switches]]:
    """From the published code to this library's, one more difference corrected at each step."""
    steps, now = [("as published", PUBLISHED)], PUBLISHED
    for name in ("positions", "batching", "draft_cache", "root", "commit"):
        now = replace(now, **{name: getattr(Switches(), name)})
        steps.append((f"+ {name.replace('_', ' ')}", now))
    return steps


def single_faults() -> list[tuple[str, Switches]]:
    """This library's way with one of the published differences put back at a time."""
    names = [field.name for field in fields(Switches)]
    back = [(f"only {name.replace('_', ' ')}", {name: getattr(PUBLISHED, name)}) for name in names]
    return [("corrected", Switches()), *((label, replace(Switches(), **change)) for label, change in back)]


class FlatPositionSession(HFSession):
    """Fault: no position ids for the tree, so a node's position is its place in the flattened tree."""

    def _node_positions(self, parents: np.ndarray) -> np.ndarray:
        return self.position + np.arange(len(parents))


class _ReadsAgain(HFSession):
    """Remembers its text, so that an accepted path can be read again instead of keeping its cache rows."""

    def start(self, prompt: Sequence[int]) -> None:
        """See `Session.start`."""
        self._text: list[int] = []
        self._nodes: list[int] = []
        super().start(prompt)

    def extend(self, tokens: Sequence[int]) -> None:
        """See `Session.extend`."""
        super().extend(tokens)
        self._text += [int(token) for token in tokens]

    def score(
        self, tokens: Sequence[int] | np.ndarray, parents: Sequence[int] | np.ndarray, sampling: Sampling
    ) -> Scores:
        """See `Session.score`."""
        self._nodes = [*self._nodes[: self.pending], *(int(token) for token in tokens)]
        return super().score(tokens, parents, sampling)

    def commit(self, path: Sequence[int]) -> None:
        """Drop all nodes and queue the path's tokens."""
        tokens = [self._nodes[row] for row in path]
        self.rollback()
        self.extend(tokens)


class NodeByNodeSession(_ReadsAgain):
    """Fault: one forward per node, each appended to one cache, so a node also sees its siblings and their children."""

    @torch.inference_mode()
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        self._prefill(np.asarray(queue, np.int64))
        logits = []
        for token in tokens:
            position = np.array([self._cache.get_seq_length()])
            logits.append(self.model.forward(np.array([token]), position, None, self._cache, keep=1))
        return torch.cat(logits)


class RereadingSession(_ReadsAgain):
    """Waste: the cache is thrown away before each tree, and the whole text read again."""

    def score(
        self, tokens: Sequence[int] | np.ndarray, parents: Sequence[int] | np.ndarray, sampling: Sampling
    ) -> Scores:
        """See `Session.score`; the first level of each tree reads the whole text."""
        if not self.pending:
            self._reset()
            self._queue, self.length = list(self._text), 0
        return super().score(tokens, parents, sampling)


Reading = Literal["candidates", "unscaled", "original", "one number"]

READINGS: dict[Reading, str] = {
    "candidates": "line 13 as printed: what is left is divided by its sum over the remaining candidates",
    "unscaled": "line 13 left out: a rejected candidate's probability is set to zero and nothing is divided",
    "original": "line 13 over the whole vocabulary, as in Appendix C, but line 18 draws from the node's law before it",
    "one number": "the same, line 18 too, but one random number for all candidates, as section 3.3 can be read",
}
"""How Algorithm 2 of Progressive Tree Drafting can be read; none keeps the target's law."""


@dataclass(frozen=True)
class ListedSampling(ResidualRule):
    """Algorithm 2 of Progressive Tree Drafting (its appendix B) as it is listed, which is biased; `TokenLevel` is the
    corrected rule.

    As printed it never ends for a node with one child that is rejected: the loop of line 4 waits for a set that no line
    makes smaller, while nothing is left to divide. Here every candidate is tried once, nothing is divided by zero, and
    where line 18 has nothing left to draw from it draws from the node's law.

    Args:
        reading: one of `READINGS`.
    """

    reading: Reading = "candidates"
    name = "listed-sampling"
    refuses: ClassVar[tuple[Drawing, ...]] = tuple(Drawing)

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ValueError(f"reading is {self.reading!r}; choose from {', '.join(map(repr, READINGS))}.")

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """See `Verifier.verify`; how tokens were drawn is not looked at."""
        path = [0]
        while True:
            children = tree.children(path[-1]).tolist()
            child, distribution = self._try(
                children, tree.tokens[children].tolist(), scores.distribution(path[-1]), random
            )
            if child is None:
                return Verdict(tuple(path[1:]), random.draw(distribution))
            path.append(child)

    def _try(
        self, children: list[int], tokens: list[int], distribution: torch.Tensor, random: RandomSource
    ) -> tuple[int | None, torch.Tensor]:
        """The child that is taken, or None, and what line 18 draws from."""
        left, seen = distribution.double().clone(), 0.0
        for place, (child, token) in enumerate(zip(children, tokens, strict=True)):
            share = min(1.0, float(left[token]))
            if random.accept(max(0.0, share - seen) / (1 - seen) if seen < 1 else 0.0):
                return child, left
            seen = max(seen, share) if self.reading == "one number" else 0.0
            left[token] = 0
            total = float((left[list({*tokens[place + 1 :]})] if self.reading == "candidates" else left).sum())
            left /= total if total > 0 and self.reading != "unscaled" else 1.0
        return None, distribution if self.reading == "original" or not left.any() else left


def switched(steps: Iterable[tuple[str, Switches]], **tree: Any) -> list[Variant]:
    """Variants of the fixed tree under the published code's differences; `tree` holds the options of `FixedTree`."""
    return [_switched(label, switches, tree) for label, switches in steps]


def _switched(label: str, switches: Switches, options: Mapping[str, Any]) -> Variant:
    def make(pair: Pair, instrument: Instrument) -> Runner:
        target, drafter, commit = arrange(pair.target, FixedTree(pair.draft, **options), switches)
        return DrafterRunner(target, drafter, {"commit": commit})

    return custom(label, make, name="fixed-tree", lossless=switches.positions == "depth", traced=False)
