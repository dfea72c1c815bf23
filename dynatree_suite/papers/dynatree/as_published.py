"""Differences between the published DynaTree code and this library, to be measured.

`Switches`: the published DynaTree implementation's way of decoding, one switch per difference, for the ablation. Two of
the five differences are choices that the core offers (`root`, `commit`). Three are faults and live here only, as
sessions that misbehave: tree nodes without positions, a draft that reads its whole prefix again each iteration, and one
draft forward per node over a cache that all siblings write to. (Read from the authors' public repository
cny123222/DynaTree, spec_decode/core/tree_speculative_generator.py at commit 94fee74.)
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any, Literal

import numpy as np
import torch
from typing_extensions import override

from dynatree_lib.drafters import FixedTree
from dynatree_lib.models.huggingface import HFModel, HFSession
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling, Scores

from ...bench.methods import Variant, custom
from ...bench.runner import DrafterRunner, Instrument, Runner

Ids = Sequence[int] | np.ndarray


@dataclass(frozen=True)
class Switches:
    """The five differences; the defaults are this library's, `PUBLISHED` is the paper's code.

    Attributes:
        root: "draft": level 1 holds only the draft's top-1 token; "target": node 0 is the token the target has chosen.
        commit: "rebuild": drop the tree and read the accepted tokens again; "gather": keep their KV entries.
        positions: "flat": node i is scored at position L + i; "depth": at its depth below the text.
        draft_cache: "reread": the draft reads the whole text each iteration; "kept": it keeps its accepted entries.
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
    """Return target, drafter and `commit` that together decode with these switches.

    `tree.depth` is the paper's D: levels below its root. With root="draft" one level is added for that root; with
    root="target" too, so that both may accept equally long paths.

    Raises:
        TypeError: for a draft that is not a transformers model.
    """
    draft = tree.draft
    if not isinstance(draft, HFModel):
        raise TypeError("The published implementation's faults need transformers models; this tree's draft is not one.")
    faults = {NodeByNodeSession: switches.batching == "node", RereadingSession: switches.draft_cache == "reread"}
    if kinds := [kind for kind, wanted in faults.items() if wanted]:
        draft = draft.altered(session_class=type("PublishedDraftSession", tuple(kinds), {}))
    if switches.positions == "flat":
        target = target.altered(session_class=FlatPositionSession)
    return target, replace(tree, draft=draft, root=switches.root, depth=tree.depth + 1), switches.commit


def corrections() -> list[tuple[str, Switches]]:
    """List the steps from the published code to this library's, one more difference corrected at each."""
    steps, now = [("as published", PUBLISHED)], PUBLISHED
    for name in ("positions", "batching", "draft_cache", "root", "commit"):
        now = replace(now, **{name: getattr(Switches(), name)})
        steps.append((f"+ {name.replace('_', ' ')}", now))
    return steps


def single_faults() -> list[tuple[str, Switches]]:
    """List this library's way, and with one of the published differences put back at a time."""
    faults = {field.name: getattr(PUBLISHED, field.name) for field in fields(Switches)}
    single = [(f"only {name.replace('_', ' ')}", Switches(**{name: fault})) for name, fault in faults.items()]
    return [("corrected", Switches()), *single]


class FlatPositionSession(HFSession):
    """Fault: no position ids for the tree, so a node's position is its place in the flattened tree."""

    @override
    def _positions(self, forest: np.ndarray, first: int) -> np.ndarray:
        return first + np.arange(len(forest))


class _ReadsAgain(HFSession):
    """A session that remembers its text, so that an accepted path is read again instead of keeping its KV entries."""

    @override
    def start(self, prompt: Sequence[int]) -> None:
        self._text: list[int] = []
        self._nodes: list[int] = []
        super().start(prompt)

    @override
    def extend(self, tokens: Sequence[int]) -> None:
        super().extend(tokens)
        self._text += [int(token) for token in tokens]

    @override
    def score(self, tokens: Ids, parents: Ids, sampling: Sampling) -> Scores:
        self._nodes = [*self._nodes[: self.pending], *(int(token) for token in tokens)]
        return super().score(tokens, parents, sampling)

    @override
    def commit(self, path: Sequence[int]) -> None:
        tokens = [self._nodes[node] for node in path]
        self.rollback()
        self.extend(tokens)


class NodeByNodeSession(_ReadsAgain):
    """Fault: one forward per node, each appended to one cache, so a node also sees its siblings and their children."""

    @override
    @torch.inference_mode()
    def _read(self, queue: list[int], tokens: np.ndarray, parents: np.ndarray) -> torch.Tensor:
        self._prefill(np.asarray(queue, np.int64))
        logits = []
        for token in tokens:
            position = np.array([self._cache.get_seq_length()])
            logits.append(self.model.forward(np.array([token]), position, None, self._cache, keep=1))
        return torch.cat(logits)


class RereadingSession(_ReadsAgain):
    """Waste: the cache is thrown away before each tree, and the whole text is read again with its first level."""

    @override
    def score(self, tokens: Ids, parents: Ids, sampling: Sampling) -> Scores:
        if not self.pending:
            self._reset()
            self._queue, self.length = list(self._text), 0
        return super().score(tokens, parents, sampling)


def switched(steps: Iterable[tuple[str, Switches]], **options: Any) -> list[Variant]:
    """Return variants of the fixed tree under the published code's differences, with these options of `FixedTree`.

    All draft with the pair's draft that reads tokens alone (`Pair.common_draft`): the faults know no features.
    """

    def make(pair: Pair, _: Instrument, switches: Switches) -> Runner:
        target, drafter, commit = arrange(pair.target, FixedTree(pair.common_draft, **options), switches)
        return DrafterRunner(target, drafter, {"commit": commit})

    return [
        custom(
            label, partial(make, switches=switches), name="fixed-tree", lossless=switches.positions == "depth",
            traced=False, common=True,
        )
        for label, switches in steps
    ]  # fmt: skip
