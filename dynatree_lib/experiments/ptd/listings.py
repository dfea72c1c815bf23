"""What Progressive Tree Drafting's listings would write: line 20 of its Algorithm 1, the bias of its Algorithm 2 on a
model, and the overlap of sampled texts (its Table 2).

Laws of whole texts on a table come from `exact`, the readings of Algorithm 2 from `as_published`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...decoding import Generation
from ...drafters.base import Proposal
from ...drafters.progressive_tree import Grown, ProgressiveState, ProgressiveTree
from ...measure.metrics import Interval, bootstrap
from ...models.base import LanguageModel
from ...sampling import RandomSource, Sampling, Scores
from ...verifiers.base import Verdict

Row = dict[str, Any]
Overlap = Callable[[Sequence[str], Sequence[str]], Mapping[str, float]]


# ------------------------------------------------------------------------------------------- line 20 of Algorithm 1
@dataclass
class NotedState(ProgressiveState):
    """A text's state, and what line 20 would have added at each iteration.

    Attributes:
        scored: tokens along eligible edges of the draft tree that was scored, T^(i-1).
        printed: the same of T^i, grown and pruned, as the line stands after step 3.
    """

    scored: list[list[int]] = field(default_factory=list)
    printed: list[list[int]] = field(default_factory=list)


class LineTwenty(ProgressiveTree):
    """`ProgressiveTree`, which also notes what line 20 of Algorithm 1 would add to the text if its edges were those of
    the draft tree; the text is its own. Greedy decoding and greedy expansion only: what a node verifies is then what it
    is extended by.
    """

    def start(self, prompt: Sequence[int], random: RandomSource) -> NotedState:
        """See `Drafter.start`."""
        return NotedState(**vars(super().start(prompt, random)))

    def observe(
        self, state: ProgressiveState, proposal: Proposal, scores: Scores, verdict: Verdict
    ) -> ProgressiveState:
        """See `Drafter.observe`."""
        assert isinstance(state, NotedState)
        first, own = (
            int(scores.argmax[0]),
            scores.argmax[len(proposal.tree) :].tolist(),
        )  # none where nothing was beside
        verified = {id(node): token for node, token in zip(state.order, own, strict=False)}
        state.scored.append(eligible(state.subtrees, verified, first))
        super().observe(state, proposal, scores, verdict)
        state.printed.append(eligible(state.subtrees, verified, first))
        return state


def eligible(subtrees: Sequence[Grown], verified: Mapping[int, int], first: int) -> list[int]:
    """Tokens along eligible edges from the last token down, and the verification token of the last node.

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
    """What one reading of line 20 would have added along a text: `iterations`, `tokens` per iteration, `wrong`
    iterations (a token that is not the text's), `wrong_tokens`.

    Args:
        noted: tokens per iteration.
        text: the target's greedy text.
        places: tokens of the text before each iteration.
    """
    pairs = [
        (added[: len(text) - place], text[place : place + len(added)])
        for added, place in zip(noted, places, strict=True)
    ]
    apart = [sum(one != other for one, other in zip(*pair, strict=True)) for pair in pairs]
    return {
        "iterations": len(pairs),
        "tokens": sum(len(added) for added, _ in pairs) / len(pairs),
        "wrong": sum(map(bool, apart)),
        "wrong_tokens": sum(apart),
    }


# ---------------------------------------------------------------------------------- the bias of line 13 on a model
def cover_rows(
    target: LanguageModel, prompt: Sequence[int], written: Generation, sampling: Sampling
) -> list[dict[str, float]]:
    """What the candidates for the next token have of the target's law, at each tree of a text.

    With two candidates or more `ListedSampling` as printed writes one of them for certain, and gives none less than its
    own probability; so the distance (total variation) of its next token from the target's law is 1 - `covered`.

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
    for one in written.iterations:
        tree = one.tree
        distribution = session.score(tree.tokens[:1], tree.parents[:1], sampling).distribution(0)
        tokens = sorted({*tree.tokens[tree.children(0)].tolist()})
        if len(tokens) > 1:
            rows.append(
                {"place": place, "candidates": len(tokens), "covered": float(distribution[tokens].double().sum())}
            )
        session.commit([0])
        session.extend(tree.tokens[list(one.verdict.path)].tolist())
        place += one.committed
    return rows


# --------------------------------------------------------------------------------------------------- sampled overlap
def overlap_rows(
    texts: Iterable[Row],
    measure: Overlap,
    by: Sequence[str] = ("benchmark", "prompt"),
    *,
    reference: str = "ar",
    same_seed: bool = False,
) -> list[Row]:
    """How much the texts of each method overlap with the reference method's texts of the same prompt.

    The reference method itself is one of them: its texts of one seed against its own of another.

    Args:
        texts: one row per text: `benchmark`, `prompt`, `method`, `seed`, `text`.
        measure: texts and their references to numbers, such as `overlap.overlap`.
        by: pairs with the same values of these columns are measured together.
        reference: the method whose texts are the references.
        same_seed: pair texts of one seed instead of texts of different seeds.

    Returns:
        one row per group and method: the columns of `by`, `method`, `pairs`, and the numbers.
    """
    rows = list(texts)
    known: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row["method"] == reference:
            known.setdefault((row["benchmark"], row["prompt"]), []).append(row)
    groups: dict[tuple[str, ...], list[tuple[str, str]]] = {}
    for row in rows:
        others = [one for one in known[row["benchmark"], row["prompt"]] if (one["seed"] == row["seed"]) == same_seed]
        group = groups.setdefault((*(row[name] for name in by), row["method"]), [])
        group += [(row["text"], one["text"]) for one in others]
    return [
        dict(zip((*by, "method"), key, strict=True)) | {"pairs": len(pairs), **measure(*zip(*pairs, strict=True))}
        for key, pairs in groups.items()
    ]


def overlap_gap(
    rows: Iterable[Row], method: str, number: str, *, reference: str = "ar", seed: int = 0
) -> tuple[float, Interval]:
    """A method's overlap less the reference method's with itself, mean over prompts, with its paired 95 % interval.

    Args:
        rows: of `overlap_rows`.
        method: whose overlap.
        number: which.
        reference: the method that the rows are compared with.
        seed: of the bootstrap.

    Raises:
        ValueError: where no prompt has both.
    """
    sides: dict[str, dict[tuple[str, str], float]] = {method: {}, reference: {}}
    for row in rows:
        if row["method"] in sides:
            sides[row["method"]][row["benchmark"], row["prompt"]] = row[number]
    gaps = np.array([[sides[method][key] - sides[reference][key]] for key in sides[method] if key in sides[reference]])
    if not len(gaps):
        raise ValueError(f"No prompt has texts of both '{method}' and '{reference}'; give rows of both.")
    return float(gaps.mean()), bootstrap(gaps, lambda drawn: drawn[..., 0].mean(-1), seed)
