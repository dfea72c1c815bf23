"""`LookupTree`: the cost-aware tree with a path copied from the text itself, which costs no drafting."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from typing_extensions import override

from ..sampling import Scores
from ..verifiers.base import Verdict
from .base import Proposal
from .builder import TreeBuilder
from .checks import check_choices, check_counts
from .cost_aware_tree import CostAwareTree, Economy
from .prompt_lookup import Copies
from .search import highest
from .suffixes import SuffixCopies


@dataclass
class CopyingEconomy(Economy):
    """An `Economy` with the text, and the tokens copied for the current tree."""

    copies: Copies = field(init=False)
    copied: list[int] = field(default_factory=list)


@dataclass
class _Estimates:
    """The estimated probabilities of a tree builder's nodes.

    The copied path has the nodes 1, 2, ..., before all others. This stays so, because the most probable nodes are kept
    in their order, and no node is more probable than its parent.

    Attributes:
        probability: (n,) a(u).
        copied: nodes of the copied path: node i < `copied` has the copied child i + 1.
    """

    probability: np.ndarray
    copied: int

    def fresh(self, nodes: np.ndarray) -> np.ndarray:
        """Return the probability of each of these nodes minus the probability of its copied child."""
        out, above = self.probability[nodes], nodes < self.copied
        out[above] -= self.probability[nodes[above] + 1]
        return out


@dataclass(frozen=True)
class LookupTree(CostAwareTree):
    """A cost-aware tree that starts with a path copied from the text: the tokens that followed its last tokens before.

    Texts repeat themselves, and a copy (prompt lookup, n-gram speculation) needs no forward of the draft. How often
    copies are right is counted in the text, h for the first token and for later ones. Where a node has a copied child
    c, the next token is estimated by h * [c] + (1 - h) * the draft's sharpened distribution, so reading the node can
    gain only the share 1 - h. Where copies are good, nothing is drafted. Where they are not, this is a `CostAwareTree`.

    Args:
        ngram: tokens that must have occurred before; `CostAwareTree` has the other options.
        longest: most copied tokens.
        match: what is copied: "ngram", what followed the last `ngram` tokens at their latest place; "suffix", what most
            often followed the longest suffix that occurred before, if it has `ngram` tokens (SAM decoding).
        pool: with match="suffix" and `generate(..., warm=)`, most tokens of this and earlier texts to copy from;
            where there are more, the latest half stays. 0 copies from the text itself.

    Raises:
        ValueError: for ngram or longest < 1, pool < 0, an unknown match, and as for `CostAwareTree`.
    """

    ngram: int = 2
    longest: int = 12
    match: Literal["ngram", "suffix"] = "ngram"
    pool: int = 50_000
    name = "lookup-tree"
    learns = CopyingEconomy

    def __post_init__(self) -> None:
        super().__post_init__()
        check_counts(self, "ngram", "longest")
        check_counts(self, "pool", least=0)
        check_choices(self, match=("ngram", "suffix"))

    # ------------------------------------------------------------------------------------------------------ the state
    @override
    def begun(self, prompt: Sequence[int]) -> Any:
        learnt = super().begun(prompt)
        learnt.copies = (Copies if self.match == "ngram" else SuffixCopies)(self.ngram)
        learnt.copies.append(prompt)
        return learnt

    @override
    def extend(self, state: Any, tokens: Sequence[int]) -> Any:
        state.learnt.copies.append(tokens)
        return super().extend(state, tokens)

    @override
    def inherit(self, state: Any, earlier: Any) -> Any:
        copies, before = state.learnt.copies, earlier.learnt.copies
        if isinstance(copies, SuffixCopies) and isinstance(before, SuffixCopies):
            copies.continues(before, self.pool)
        return super().inherit(state, earlier)  # how often copies are right is counted in each text

    @override
    def observe(self, state: Any, proposal: Proposal, scores: Scores, verdict: Verdict) -> Any:
        learnt, tokens = state.learnt, verdict.tokens(proposal.tree)
        learnt.copies.learn(learnt.copied, tokens)
        learnt.copies.append(tokens)
        learnt.copied = []
        return super().observe(state, proposal, scores, verdict)

    def report(self, state: Any) -> dict[str, float]:
        """Return sharpness and rate in use, and the probability of the first copied token and of a later one."""
        rates = state.learnt.copies.rates
        return {**super().report(state), "first_copy": rates[0], "later_copy": rates[1]}

    # ------------------------------------------------------------------------------------------------------- the tree
    @override
    def grow(self, builder: TreeBuilder, max_depth: int) -> None:
        learnt = builder.state.learnt
        rate = learnt.pace.rate
        estimates = self._copy(builder, min(self.longest, self.max_nodes - 1, max_depth), rate)
        frontier = np.array([0])
        for level in range(min(self.depth, max_depth)):
            fresh = estimates.fresh(frontier)
            if level or len(builder) == 1:
                frontier = frontier[self.paying(fresh.tolist(), rate, len(builder))]
            elif not self.levels_pay(rate, float(fresh[0]), self.prices.overhead, self.child):
                break  # the copy pays for the tree, but levels of drafting have to bear the overhead
            if not len(frontier):
                break
            learnt.cost += self.level_costs[len(frontier)] + (0.0 if level else self.prices.overhead)
            frontier = self._read(builder, estimates, frontier, rate)
        learnt.estimate = self.cut(builder, estimates.probability, rate)

    def _copy(self, builder: TreeBuilder, count: int, rate: float) -> _Estimates:
        """Add the copied tokens that pay for a node."""
        learnt = builder.state.learnt
        learnt.copied = learnt.copies.following(count)
        probabilities = np.cumprod(learnt.copies.probabilities(len(learnt.copied)))
        pays = probabilities > rate * self.marginal_costs[1 : len(probabilities) + 1]
        count = len(probabilities) if pays.all() else int(pays.argmin())
        estimates = _Estimates(np.append(1.0, probabilities[:count]), count)
        builder.add_path(learnt.copied[:count], np.log(estimates.probability[1:] / estimates.probability[:-1]))
        return estimates

    def _read(self, builder: TreeBuilder, estimates: _Estimates, frontier: np.ndarray, rate: float) -> np.ndarray:
        """Read nodes of the frontier and add the children that pay; return the next frontier, copies included."""
        tokens, logprobs, sharp = builder.most_probable(frontier, self.branching, builder.state.learnt.sharpness)
        probabilities = estimates.fresh(frontier)[:, None] * np.exp(sharp)
        copies, proposed = frontier[frontier < estimates.copied] + 1, np.zeros(tokens.shape, bool)
        for node in copies.tolist():  # one at most, because the path has a node per level
            index = int(np.searchsorted(frontier, node - 1))
            proposed[index] = tokens[index] == builder.tokens[node]
            if proposed[index].any():  # the draft proposes the copied token too
                factor = 1 + float(probabilities[index][proposed[index]][0]) / estimates.probability[node]
                estimates.probability[node : estimates.copied + 1] *= factor  # the copies below in proportion
        least = rate * self.marginal_costs[min(len(builder), self.max_nodes)]
        parents, ranks = np.nonzero((probabilities > least) & ~proposed)
        fresh_nodes = builder.add(frontier[parents], tokens[parents, ranks], logprobs[parents, ranks])
        estimates.probability = np.append(estimates.probability, probabilities[parents, ranks])
        following = np.append(copies, fresh_nodes)
        if len(builder) <= self.max_nodes:
            return following
        best = highest(estimates.probability, self.max_nodes)
        builder.keep(best)
        estimates.probability, estimates.copied = estimates.probability[best], int((best <= estimates.copied).sum()) - 1
        return np.flatnonzero(np.isin(best, following))
