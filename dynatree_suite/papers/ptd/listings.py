"""Progressive Tree Drafting's listings read literally: the readings of its Algorithm 2, line 20 of its Algorithm 1, and
the overlap of sampled texts (its Table 2).

The distributions of whole texts come from `exact`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import pandas as pd
import torch
from typing_extensions import override

from dynatree_lib.decoding import Generation
from dynatree_lib.drafters.base import Proposal
from dynatree_lib.drafters.pool import TokenNode
from dynatree_lib.drafters.progressive_tree import ProgressiveState, ProgressiveTree
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.sampling import DraftDistributions, RandomSource, Sampling, Scores
from dynatree_lib.tree import TokenTree
from dynatree_lib.verifiers.base import Drawing, Verdict
from dynatree_lib.verifiers.residual import ResidualRule

from ...bench.statistics import Estimate, estimate

Row = dict[str, Any]
Overlap = Callable[[Sequence[str], Sequence[str]], Mapping[str, float]]


# -------------------------------------------------------------------------------------------------------- Algorithm 2
READINGS = {
    "candidates": "line 13 as printed: what is left is divided by its sum over the remaining candidates",
    "unscaled": "line 13 left out: a rejected candidate's probability is set to zero and nothing is divided",
    "original": "line 13 over the whole vocabulary, as in Appendix C, but line 18 draws from what was there before it",
    "one number": "the same, line 18 too, but one random number for all candidates, as section 3.3 can be read",
}
"""How Algorithm 2 of Progressive Tree Drafting can be read; no reading keeps the target's distribution."""


@dataclass(frozen=True)
class ListedSampling(ResidualRule):
    """Algorithm 2 of Progressive Tree Drafting (its appendix B) as it is listed, which is biased.

    `TokenLevel` is the corrected rule. As printed, Algorithm 2 never ends for a node with one child that is rejected:
    the loop of line 4 waits for a set that no line makes smaller, while nothing is left to divide. Here every candidate
    is tried once and nothing is divided by zero. Where line 18 has nothing left to draw from, it draws from the node's
    distribution.

    Args:
        reading: one of `READINGS`.
    """

    reading: str = "candidates"
    name = "listed-sampling"
    refuses: ClassVar[tuple[Drawing, ...]] = tuple(Drawing)

    def __post_init__(self) -> None:
        if self.reading not in READINGS:
            raise ValueError(f"reading is {self.reading!r}; choose from {', '.join(map(repr, READINGS))}.")

    @override
    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        path = [0]
        while True:
            child, distribution = self._try(tree, path[-1], scores.distribution(path[-1]), random)
            if child is None:
                return Verdict(tuple(path[1:]), random.draw(distribution))
            path.append(child)

    def _try(
        self, tree: TokenTree, node: int, distribution: torch.Tensor, random: RandomSource
    ) -> tuple[int | None, torch.Tensor]:
        """Return the selected child, or None, and the distribution that line 18 draws from."""
        children = tree.children(node).tolist()
        tokens = tree.tokens[children].tolist()
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


def cover_rows(
    target: LanguageModel, prompt: Sequence[int], written: Generation, sampling: Sampling
) -> list[dict[str, float]]:
    """Return the target's probability of the candidates for the next token, at each tree of a text.

    With two candidates or more `ListedSampling` as printed writes one of them for certain, and gives none less than its
    own probability. So the distance (total variation) of its next token from the target's distribution is
    1 - `covered`.

    Args:
        target: the model that wrote the text.
        prompt: before the text.
        written: the text.
        sampling: the target's.

    Returns:
        one row per tree with at least two different candidates: `place` in the text, `candidates`, `covered`.
    """
    session, rows, place = target.session(), [], 0
    session.start(prompt[:-1])
    for iteration in written.iterations:
        tree = iteration.tree
        distribution = session.score(tree.tokens[:1], tree.parents[:1], sampling).distribution(0)
        tokens = sorted({*tree.tokens[tree.children(0)].tolist()})
        if len(tokens) > 1:
            covered = float(distribution[tokens].double().sum())
            rows.append({"place": place, "candidates": len(tokens), "covered": covered})
        session.commit([0])
        session.extend(tree.tokens[list(iteration.verdict.path)].tolist())
        place += iteration.committed
    return rows


# ------------------------------------------------------------------------------------------- line 20 of Algorithm 1
@dataclass
class NotedState(ProgressiveState):
    """A text's state, and the tokens that line 20 would have added at each iteration.

    Attributes:
        scored: tokens along eligible edges of the draft tree that was scored, T^(i-1).
        printed: the same of T^i, grown and pruned, as the line stands after step 3.
    """

    scored: list[list[int]] = field(default_factory=list)
    printed: list[list[int]] = field(default_factory=list)


class LineTwenty(ProgressiveTree):
    """`ProgressiveTree`, which also notes the tokens that line 20 of Algorithm 1 would add over the draft tree's edges.

    The text stays that of `ProgressiveTree`. Greedy decoding and greedy expansion only, because there a node's
    verification token is the token that extends it.
    """

    @override
    def start(self, prompt: Sequence[int], random: RandomSource) -> NotedState:
        return NotedState(**vars(super().start(prompt, random)))

    @override
    def observe(
        self, state: ProgressiveState, proposal: Proposal, scores: Scores, verdict: Verdict
    ) -> ProgressiveState:
        assert isinstance(state, NotedState)
        first, *_ = best = scores.argmax.tolist()
        side = best[len(proposal.tree) :]  # empty without a side tree
        verified = {id(node): token for node, token in zip(state.order, side, strict=False)}
        state.scored.append(eligible(state.subtrees, verified, first))
        super().observe(state, proposal, scores, verdict)
        state.printed.append(eligible(state.subtrees, verified, first))
        return state


def eligible(subtrees: Sequence[TokenNode], verified: Mapping[int, int], first: int) -> list[int]:
    """Return the tokens along eligible edges from the last token down, and the verification token of the last node.

    Args:
        subtrees: below the last token.
        verified: id of a node -> its verification token V_n; a node that was not scored has none.
        first: the verification token of the last token itself.
    """
    tokens, level = [first], {node.token: node for node in reversed(subtrees)}
    while (node := level.get(tokens[-1])) is not None and id(node) in verified:
        tokens.append(verified[id(node)])
        level = node.children
    return tokens


def line_twenty_row(noted: Sequence[Sequence[int]], text: Sequence[int], places: Sequence[int]) -> Row:
    """Return what one reading of line 20 would have added along a text.

    Keys: `iterations`, `tokens` per iteration, `wrong` iterations (a token that is not the text's), `wrong_tokens`.

    Args:
        noted: tokens per iteration.
        text: the target's greedy text.
        places: tokens of the text before each iteration.
    """
    pairs = [
        (added[: len(text) - place], text[place : place + len(added)])
        for added, place in zip(noted, places, strict=True)
    ]
    wrong = [sum(token != right for token, right in zip(*pair, strict=True)) for pair in pairs]
    return {
        "iterations": len(pairs),
        "tokens": sum(len(added) for added, _ in pairs) / len(pairs),
        "wrong": sum(map(bool, wrong)),
        "wrong_tokens": sum(wrong),
    }


# --------------------------------------------------------------------------------------------------- sampled overlap
PLACE = ["benchmark", "model", "prompt"]
"""Columns of what texts are compared within."""


def overlap_rows(
    texts: Iterable[Row], measure: Overlap, by: Sequence[str] = PLACE, *, same_seed: bool = False
) -> list[Row]:
    """Return how much the texts of each method overlap with texts of `ar` of the same prompt and model.

    `ar` itself is among the methods: its texts of one seed against its own texts of another.

    Args:
        texts: one row per text: `benchmark`, `model`, `prompt`, `method`, `seed`, `text`.
        measure: texts and their references to numbers, such as `overlap.overlap`.
        by: pairs with the same values of these columns are measured together.
        same_seed: pair texts of one seed instead of texts of different seeds.

    Returns:
        one row per group and method: the columns of `by`, `method`, `pairs`, and the numbers.
    """
    frame = pd.DataFrame(texts)[[*PLACE, "method", "seed", "text"]]
    plain = frame[frame["method"] == "ar"].drop(columns="method")
    pairs = frame.merge(plain, on=PLACE, suffixes=("", " of ar"))
    pairs = pairs[(pairs["seed"] == pairs["seed of ar"]) == same_seed]
    keys = list(dict.fromkeys([*by, "method"]))
    return [
        dict(zip(keys, group, strict=True))
        | {"pairs": len(part), **measure(part["text"].tolist(), part["text of ar"].tolist())}
        for group, part in pairs.groupby(keys, sort=False)
    ]


def overlap_gap(rows: Iterable[Row], method: str, number: str, seed: int = 0) -> Estimate:
    """Return a method's overlap less that of `ar` with itself, mean over prompts, paired.

    Args:
        rows: of `overlap_rows`.
        method: whose overlap.
        number: column of the overlap.
        seed: of the bootstrap.

    Raises:
        ValueError: where no prompt has both.
    """
    numbers = pd.DataFrame(rows).pivot_table(number, PLACE, "method", sort=False)
    paired = numbers.reindex(columns=[method, "ar"]).dropna()
    if paired.empty:
        raise ValueError(f"No prompt has texts of both '{method}' and 'ar'; give rows of both.")
    gaps = (paired[method] - paired["ar"]).to_numpy()[:, None]
    return estimate(gaps, lambda drawn: drawn[..., 0].mean(-1), seed)
