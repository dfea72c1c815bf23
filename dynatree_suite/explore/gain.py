"""What a rule gains over another: exact, for a target and a draft over a few tokens that the reader sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from dynatree_lib import plots
from dynatree_lib.drafters import SampledTree
from dynatree_lib.models.toy import ToyModel
from dynatree_lib.sampling import Sampling
from dynatree_lib.verifiers.base import Verifier

from .. import charts
from ..proofs import ceiling, exact
from .coins import check_rules
from .walk import Explorer, line, put, shown_table, watch

LETTERS = "abc"
SHAPES: Mapping[str, Mapping[str, Any]] = {
    **{f"chain of {depth}": {"branching": 1, "depth": depth} for depth in (1, 2, 3, 4)},
    "2 siblings": {"branching": 2, "depth": 1},
    "2 siblings, one with a child": {"shape": (0, 0, 1)},
    "binary tree of depth 2": {"branching": 2, "depth": 2},
}
"""Trees, each quick to enumerate over three tokens: name -> options of `SampledTree`."""
BOUND = "any lossless rule, at most"
ROUNDING = 1e-9
ONE, PROMPT = Sampling(temperature=1.0), (0,)


class Gain(Explorer):
    """Expected tokens of an iteration under several rules, where each next token is independent of the text.

    Sliders set weights; a probability is a weight over the sum of the three. All trees that may be drawn and all coins
    are enumerated. The last bar is the most that any lossless rule could emit of these trees (`proofs.ceiling`).

    Args:
        rules: name -> rule; the first is what the others are compared with.
        target, draft: weights of `a`, `b`, `c` to begin with; whole numbers from 1 to 20.
        tree: one of `SHAPES`.

    Attributes:
        target, draft: the sliders; setting `target[0].value` computes anew.
        tree: the list of trees.
        tokens: name of a rule, or `BOUND` -> expected tokens of an iteration, the bonus token included.

    Raises:
        TypeError: for rules that are none.
        ValueError: without a rule, for other weights or another tree.
    """

    def __init__(
        self,
        rules: Mapping[str, Verifier],
        target: tuple[int, int, int] = (2, 4, 4),
        draft: tuple[int, int, int] = (5, 3, 2),
        *,
        tree: str = "chain of 3",
    ) -> None:
        check_rules(rules, "to ask")
        if tree not in SHAPES:
            raise ValueError(f"tree is {tree!r}; choose one of {', '.join(SHAPES)}.")
        self.rules, self.tokens = dict(rules), dict[str, float]()
        self.target, self.draft = _weights("target", target), _weights("draft", draft)
        self.tree = widgets.Dropdown(options=tuple(SHAPES), value=tree, description="tree")
        self.ratios, self.said, self.bars = widgets.HTML(), widgets.HTML(), widgets.Output()
        sides = line(*(widgets.VBox(sliders) for sliders in (self.target, self.draft)))
        super().__init__([self.tree, sides, self.ratios, self.said, self.bars])
        watch(self.count, self.tree, *self.target, *self.draft)

    def count(self) -> None:
        """Enumerate anew, as the controls stand."""
        (p, target), (q, draft) = (_model(sliders) for sliders in (self.target, self.draft))
        drafter = SampledTree(draft, **SHAPES[self.tree.value])
        found = exact.iterations(target, drafter, self.rules, PROMPT, ONE)
        self.tokens = {name: one.tokens for name, one in found.items()}
        self.tokens[BOUND] = ceiling.best_tokens(target, drafter, PROMPT, ONE)
        lines = [
            {"token": letter, "p, target": mine, "q, draft": drawn, "r = p / q": mine / drawn, "drafted": meaning}
            for letter, mine, drawn in zip(LETTERS, p, q, strict=True)
            for meaning in [_meaning(mine / drawn)]
        ]
        self.ratios.value = shown_table(lines, "The same at every place of the text")
        first, *others = self.rules
        self.said.value = " ".join(
            f"<b>{plots.theme.escaped(name)}</b> emits {100 * (self.tokens[name] / self.tokens[first] - 1):+.1f} % "
            f"against {plots.theme.escaped(first)}."
            for name in others
        )
        rows = [{"rule": name, "tokens": value} for name, value in self.tokens.items()]
        title = f"Expected tokens of an iteration: {self.tree.value}"
        put(self.bars, charts.bars_with_intervals(rows, "tokens", label="rule", title=title, unit="tokens, exact"))


def _weights(whose: str, values: tuple[int, int, int]) -> tuple[widgets.IntSlider, ...]:
    if len(values) != len(LETTERS) or not all(value in range(1, 21) for value in values):
        raise ValueError(f"The weights of the {whose} are {values!r}; give {len(LETTERS)} whole numbers from 1 to 20.")
    return tuple(
        widgets.IntSlider(value, min=1, max=20, description=f"{whose}: {letter}", continuous_update=False)
        for letter, value in zip(LETTERS, values, strict=True)
    )


def _model(sliders: tuple[widgets.IntSlider, ...]) -> tuple[list[float], ToyModel]:
    whole = sum(slider.value for slider in sliders)
    shares = [slider.value / whole for slider in sliders]
    return shares, ToyModel(lambda context: shares, len(shares))


def _meaning(ratio: float) -> str:
    if abs(ratio - 1) < ROUNDING:
        return "just as often as the target wants it"
    return "too often: alone, accepted with probability r" if ratio < 1 else "too seldom: repairs a mistake before it"
