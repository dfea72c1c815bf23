"""`AdaptiveTree`: confidence-aware breadth and depth with history adaptation, the tree of DynaTree adaptive."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, get_args

import numpy as np
from typing_extensions import override

from ..models.base import LanguageModel
from ..sampling import Scores
from ..tree import POINT
from ..verifiers.base import Drawing, Verdict
from .base import ModelDrafter, Proposal
from .builder import DraftState, Draw, TreeBuilder
from .checks import check_choices, check_counts, check_rules

Mode = Literal["iteration", "drafted", "text"]
"""What is measured, and when. "iteration": after every iteration, committed tokens / (D_0 + 2) with its own D_0;
"drafted": the same with the paper's statistic, the fraction of drafted tokens committed; "text": the authors' code,
fixed steps once per text, on its tokens per iteration / (D_0 + 2) with the first D_0."""

AT_LEAST = 5
"""Texts before the authors' code adapts anything."""
DEAD_BAND = 0.1
"""Distance from the target acceptance within which the authors' code leaves everything as it is."""
STEP = 0.05
"""Step of both thresholds in the authors' code; the depth's is one level."""


@dataclass(frozen=True)
class AdaptiveTree(ModelDrafter):
    """DRAFTTREE of DynaTree adaptive (section 3.3, Algorithm 1), one draft forward per level.

    A node u at level d, with path probability p(u) under the draft, is expanded iff d < D_max, p(u) >= rho_stop,
    p(u) >= tau, and d < D_0 or p(u) > rho_deep. It gets B_min children where the draft is confident (its best next
    token has a probability of at least tau_h), B_max where that is below tau_l, and B_mid between. The budget is filled
    breadth first. Levels count from node 0, which is what the authors' code counts (`published`).

    Defaults are the paper's hyper-parameters, and those of its authors' code where it states none, but for history
    adaptation: with their a* = 0.7, D_0 sinks to its lower bound in some texts of the bundled pair. a* and the gains
    here were chosen on bundled prompts outside the first 20; notebook 12 has the experiment.

    Args:
        draft: the draft model.
        min_branching: B_min.
        mid_branching: B_mid.
        max_branching: B_max.
        tau_high: tau_h.
        tau_low: tau_l.
        base_depth: D_0.
        max_depth: D_max.
        rho_stop: a path less probable than this is not expanded.
        rho_deep: a path has to be more probable than this to be expanded from level D_0 on.
        tau: pruning threshold on the path probability; None switches it off. With the depth gate and `prune="stop"` it
            acts only above rho_stop.
        max_nodes: N_max, nodes of the tree, node 0 included.
        breadth: "confidence", or None: every node gets B_mid children.
        depth: "confidence", or None: all nodes above level D_0 are expanded, as far as tau lets them.
        history: what D_0 and tau_h follow (`Mode`): "iteration" (default), "drafted" (the paper's
            statistic), "text" (the authors' code), or None.
        window: W of history adaptation.
        target_acceptance: a*.
        depth_gain: eta_D, levels per unit of acceptance.
        confidence_gain: eta_h.
        deep: ">" expands beyond D_0 only above rho_deep, ">=" at it too (the earlier draft of the paper).
        root: "target": level 1 branches; "draft": it holds the draft's top-1 token alone, as in the paper.
        prune: "stop": a node below tau stays as a leaf (Algorithm 1); "remove": it is not added (section 3.3).
        draw: "top": children are the draft's most probable tokens, as in the paper; "distinct", "iid", "hybrid": drawn
            from the draft's distribution (`SampledTree`). Breadth and depth look only at what was drawn before, so the
            tree stays lossless under `Traversal`; with `prune="remove"` it does not, and `TargetWalk` verifies it.

    Raises:
        ValueError: unless 1 <= B_min <= B_mid <= B_max, 0 < tau_l < tau_h < 1, 1 <= D_0 < D_max,
            0 < rho_stop < rho_deep < 1, tau inside (0, 1), N_max >= 2, W >= 1, a* inside (0, 1), gains >= 0.
    """

    draft: LanguageModel
    min_branching: int = 1
    mid_branching: int = 2
    max_branching: int = 3
    tau_high: float = 0.9
    tau_low: float = 0.4
    base_depth: int = 5
    max_depth: int = 8
    rho_stop: float = 0.1
    rho_deep: float = 0.5
    tau: float | None = 0.05
    max_nodes: int = 256
    breadth: Literal["confidence"] | None = "confidence"
    depth: Literal["confidence"] | None = "confidence"
    history: Mode | None = "iteration"
    window: int = 10
    target_acceptance: float = 0.5
    depth_gain: float = 0.25
    confidence_gain: float = 0.02
    deep: Literal[">", ">="] = ">"
    root: Literal["target", "draft"] = "target"
    prune: Literal["stop", "remove"] = "stop"
    draw: Draw = "top"
    name = "adaptive-tree"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "min_branching", "mid_branching", "max_branching", "base_depth", "max_depth", "window")
        check_counts(self, "max_nodes")
        check_choices(self, breadth=("confidence", None), depth=("confidence", None), deep=(">", ">="))
        check_choices(self, root=("target", "draft"), prune=("stop", "remove"), draw=get_args(Draw))
        check_choices(self, history=(*get_args(Mode), None))
        check_rules(
            self,
            "1 <= min_branching <= mid_branching <= max_branching",
            "0 < tau_low < tau_high < 1",
            "0 < rho_stop < rho_deep < 1",
            "1 <= base_depth < max_depth",
            "0 < tau < 1, or None to prune nothing",
            "0 < target_acceptance < 1",
            "0 <= depth_gain < inf",
            "0 <= confidence_gain < inf",
        )

    @classmethod
    def published(cls, draft: LanguageModel, max_nodes: int = 256, **changes: Any) -> AdaptiveTree:
        """Return the authors' code: the draft's top-1 token as root, N_max without our node 0, history per text.

        a* is 0.7 and D_max 8 as on WikiText-2 (9 on PG-19); `changes` are further fields.
        """
        form = {"max_nodes": max_nodes + 1, "root": "draft", "history": "text", "target_acceptance": 0.7}
        return cls(draft, **{**form, **changes})

    @property
    def drawing(self) -> Drawing:
        """Sampled children are drawn from their recorded distributions, unless some are removed by their value."""
        if self.draw == "top":
            return Drawing.FIXED
        return Drawing.SELECTED if self.prune == "remove" and self.tau is not None else Drawing.RECORDED

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def begun(self, prompt: Sequence[int]) -> History:
        return History(self.base_depth, self.tau_high, self.rho_deep)

    @override
    def extend(self, state: DraftState, tokens: Sequence[int]) -> DraftState:
        state.learnt = state.learnt.after_text(self)  # another turn is another text to the history
        return super().extend(state, tokens)

    @override
    def inherit(self, state: DraftState, earlier: DraftState) -> DraftState:
        state.learnt = earlier.learnt.after_text(self)
        return state

    @override
    def observe(self, state: DraftState, proposal: Proposal, scores: Scores, verdict: Verdict) -> DraftState:
        if self.history:
            committed, drafted = len(verdict.path) + 1, len(proposal.tree) - 1
            state.learnt = state.learnt.after_iteration(self, committed, drafted)
        return super().observe(state, proposal, scores, verdict)

    def report(self, state: DraftState) -> dict[str, float]:
        """Return D_0, tau_h and rho_deep in use, and the mean acceptance they follow (NaN before the first)."""
        return {name: getattr(state.learnt, name) for name in ("base_depth", "tau_high", "rho_deep", "acceptance")}

    # ------------------------------------------------------------------------------------------------------- the tree
    @override
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        now = builder.state.learnt
        active = np.array([0])
        for level in range(min(self.max_depth, max_depth)):
            active = active[self._expandable(builder.cumulative[active], level, now)]
            space = self.max_nodes - len(builder)
            if not len(active) or space <= 0:
                return
            if self.prune == "stop":  # then every child is added, and nodes past the budget need no forward
                fewest = 1 if self.draw != "top" else min(self._bounds(level)[0], builder.highest + 1)
                active = active[: -(-space // fewest)]
            children = self._children(builder, active, level, now)
            if self.prune == "remove":
                indices, _, logprobs, _ = children
                likely = builder.cumulative[active][indices] + logprobs >= self._floor
                children = tuple(column[likely] for column in children)
            indices, *columns = (column[:space] for column in children)
            active = builder.add(active[indices], *columns)

    def _children(self, builder: TreeBuilder, active: np.ndarray, level: int, now: History) -> tuple[np.ndarray, ...]:
        """Read the active nodes; return of all children the index into them, token, log-probability and draw."""
        if self.draw != "top":
            given = builder.distributions_of(active)
            confidence = given.plain.numpy().max(-1).astype(np.float64)
            return builder.draw(active, given, self._breadths(confidence, level, now), self.draw)
        tokens, logprobs = builder.best(active, self._bounds(level)[1])
        chosen = np.arange(tokens.shape[1]) < self._breadths(logprobs[:, 0], level, now)[:, None]
        indices, ranks = np.nonzero(chosen)
        return indices, tokens[indices, ranks], logprobs[indices, ranks], np.full(len(indices), POINT, np.uint8)

    @property
    def _floor(self) -> float:
        return -math.inf if self.tau is None else math.log(self.tau)

    def _expandable(self, cumulative: np.ndarray, level: int, now: History) -> np.ndarray:
        """Return the (f,) bool of the depth gate and the pruning threshold for nodes at `level`."""
        alive = cumulative >= self._floor
        if self.depth is None:
            return alive & (level < int(now.base_depth))
        alive &= cumulative >= math.log(self.rho_stop)
        if level >= int(now.base_depth):
            deep = math.log(now.rho_deep)
            alive &= cumulative > deep if self.deep == ">" else cumulative >= deep
        return alive

    def _breadths(self, confidence: np.ndarray, level: int, now: History) -> np.ndarray:
        """Return the (f,) int B(u) from the log-probability of each node's most probable next token."""
        fewest, most = self._bounds(level)
        if fewest == most:
            return np.full(len(confidence), fewest)
        low, high = confidence < math.log(self.tau_low), confidence >= math.log(now.tau_high)
        return np.where(high, self.min_branching, np.where(low, self.max_branching, self.mid_branching))

    def _bounds(self, level: int) -> tuple[int, int]:
        """Return the fewest and most children of an expanded node at `level`."""
        if self.root == "draft" and level == 0:
            return 1, 1
        fixed = self.mid_branching, self.mid_branching
        return fixed if self.breadth is None else (self.min_branching, self.max_branching)


# -------------------------------------------------------------------------------------------------------- the history
@dataclass(frozen=True)
class History:
    """The values that adaptation changes, and the past it follows.

    They move so that the acceptance statistic comes to a*, in proportion to its distance (in mode "text" by fixed
    steps). D_0 stays within [1, D_max - 1]; tau_h inside (tau_l, 1), and within [0.5, 0.95] in mode "text"; rho_deep
    above rho_stop, and within [0.3, 0.8]. `rules` is the drafter whose options say how. The paper and its authors' code
    differ in the measured statistic, in how often it is measured, and in the rule.

    Attributes:
        base_depth: D_0, fractional; a tree uses its floor.
        tau_high: tau_h.
        rho_deep: changed by the authors' code only.
        recent: the last W acceptance statistics, oldest first.
        committed: tokens committed in this text (for "text").
        iterations: iterations of this text (for "text").
    """

    base_depth: float
    tau_high: float
    rho_deep: float
    recent: tuple[float, ...] = ()
    committed: int = 0
    iterations: int = 0

    @property
    def acceptance(self) -> float:
        """Mean of the recent statistics, NaN before the first."""
        return sum(self.recent) / len(self.recent) if self.recent else float("nan")

    def after_iteration(self, rules: AdaptiveTree, committed: int, drafted: int) -> History:
        """Return the history after an iteration: tokens committed, bonus included, and drafted, without node 0."""
        if rules.history == "text":
            return replace(self, committed=self.committed + committed, iterations=self.iterations + 1)
        if not drafted:  # an iteration without a tree says nothing about the draft
            return self
        share, ratio = (committed - 1) / drafted, committed / (int(self.base_depth) + 2)
        statistic = share if rules.history == "drafted" else ratio
        now = replace(self, recent=(*self.recent, statistic)[-rules.window :])
        error = now.acceptance - rules.target_acceptance
        return replace(
            now,
            base_depth=_moved(self.base_depth, rules.depth_gain * error, 1, rules.max_depth - 1),
            tau_high=_moved(self.tau_high, -rules.confidence_gain * error, *_just_inside(rules.tau_low)),
        )

    def after_text(self, rules: AdaptiveTree) -> History:
        """Return the history after a whole text; only mode "text" changes anything."""
        if rules.history != "text" or not self.iterations:
            return self
        statistic = self.committed / self.iterations / (rules.base_depth + 2)
        now = replace(self, recent=(*self.recent, statistic)[-rules.window :], committed=0, iterations=0)
        error = now.acceptance - rules.target_acceptance
        if len(now.recent) < min(AT_LEAST, rules.window) or abs(error) <= DEAD_BAND:
            return now
        sign = 1 if error > 0 else -1
        floor, ceiling = _just_inside(rules.tau_low)
        return replace(
            now,
            base_depth=_moved(now.base_depth, sign, 2, rules.max_depth - 1),
            tau_high=_moved(now.tau_high, -sign * STEP, max(0.5, floor), min(0.95, ceiling)),
            rho_deep=_moved(now.rho_deep, -sign * STEP, max(0.3, _just_inside(rules.rho_stop)[0]), 0.8),
        )


def _moved(value: float, by: float, low: float, high: float) -> float:
    """Return `value + by`, stopped at the bounds; a value that began beyond a bound is not moved back to it."""
    return max(value, min(value + by, high)) if by >= 0 else min(value, max(value + by, low))


def _just_inside(low: float) -> tuple[float, float]:
    """Return the ends of the open interval from `low` to 1, moved inside by a hundredth of its length."""
    margin = (1 - low) / 100
    return low + margin, 1 - margin
