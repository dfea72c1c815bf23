"""Decode a prompt again whenever a control moves, and compare with plain decoding of the same prompt."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from time import perf_counter
from typing import Any

import ipywidgets as widgets

from dynatree_lib import plots
from dynatree_lib.checks import of_kind, whole
from dynatree_lib.decoding import autoregressive, generate
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling
from dynatree_lib.summary import summarize

from ..bench.methods import METHODS
from .walk import Explorer, Walk, watch

DRAFTERS = (
    "auto", "chain", "fixed-tree", "adaptive-tree", "best-first-tree", "sampled-tree", "lookup-tree", "prompt-lookup",
    "ptd",
)  # fmt: skip
"""Methods that can be chosen."""
CONTROLS: Mapping[str, tuple[float, float, float]] = {
    "length": (1, 12, 1),
    "depth": (1, 12, 1),
    "branching": (1, 5, 1),
    "base_depth": (1, 8, 1),
    "max_depth": (2, 12, 1),
    "min_branching": (1, 4, 1),
    "mid_branching": (1, 4, 1),
    "max_branching": (1, 6, 1),
    "tau": (0.01, 0.5, 0.01),
    "tau_high": (0.1, 0.99, 0.01),
    "tau_low": (0.01, 0.9, 0.01),
    "rho_stop": (0.01, 0.49, 0.01),
    "max_nodes": (2, 64, 1),
}
"""Options of methods that have a slider: lowest and highest value, and the step between.

An option with a value per level has a slider for each: `branching, level 1` and `branching, level 2 on`."""
BELOW: tuple[tuple[str, str, float], ...] = (
    ("min_branching", "mid_branching", 0), ("mid_branching", "max_branching", 0),
    ("base_depth", "max_depth", 1), ("tau_low", "tau_high", 0.01),
)  # fmt: skip
"""Sliders that bound each other: the first stays below the second by at least so much."""
MOST_NODES = int(CONTROLS["max_nodes"][1])
"""Most nodes of a tree, node 0 included, where depth and branching alone decide: 12 levels of 5 are 300 million."""
NOTED_EVERY = 0.2
"""Seconds between two moves of the bar that shows how far a text has come."""


class Live(Explorer):
    """A prompt, a drafter, its options, a budget and a temperature; what they give is decoded anew at each change.

    Where sliders bound each other, the others follow the one that is moved, and a sentence says so: every position that
    sliders reach can be decoded, by trees of at most `MOST_NODES` nodes.

    Args:
        pair: target and draft.
        prompt: to begin with.
        method: one of `DRAFTERS`.
        budget: tokens to begin with; 8 to 200, the nearest of them for others.

    Attributes:
        generation: the latest text that could be decoded.
        walk: its iterations (`Walk`).
        sliders: name -> slider of the method's options; setting `sliders[name].value` decodes again.

    Raises:
        TypeError: for a pair or a prompt that is none.
        ValueError: for a method that cannot be chosen, or a budget that is no whole number above 0.
    """

    def __init__(self, pair: Pair, prompt: str, *, method: str = "fixed-tree", budget: int = 40) -> None:
        of_kind("The pair", pair, Pair, "give what load_pair returns, a target with its draft")
        of_kind("The prompt", prompt, str, "give it as text; token ids are for generate")
        whole("budget", budget, 1)
        if method not in DRAFTERS:
            raise ValueError(f"method is '{method}'; choose one of {', '.join(DRAFTERS)}.")
        self.pair = pair
        wide = {"width": "98%"}
        self.prompt = widgets.Textarea(prompt, description="prompt", continuous_update=False, rows=3, layout=wide)
        self.method = widgets.Dropdown(options=DRAFTERS, value=method, description="drafter")
        self.budget = _slider("new tokens", budget, 8, 200, 8)
        self.temperature = _slider("temperature", 0.0, 0.0, 1.5, 0.1)
        self.options, self.progress = widgets.VBox(), widgets.IntProgress(description="decoding", layout=wide)
        self.figures, self.below = widgets.HTML(), widgets.VBox()
        fixed = widgets.VBox([self.method, self.budget, self.temperature])
        super().__init__([self.prompt, widgets.HBox([fixed, self.options]), self.progress, self.figures, self.below])
        self.plain: dict[tuple[str, int], tuple[list[int], float]] = {}  # tokens and seconds of plain decoding
        self.warm: set[str] = set()
        for control in (self.prompt, self.budget, self.temperature):
            control.observe(lambda change: self.decode(), "value")
        watch(self._choose, self.method)

    def _choose(self) -> None:
        """Offer the options of the drafter that has been chosen, at its defaults."""
        self.sliders = dict[str, widgets.Widget]()
        for name, default in METHODS[self.method.value].defaults.items():
            if name in CONTROLS and isinstance(default, int | float | tuple):
                levels = default if isinstance(default, tuple) else (default,)
                for one, value in zip(_names(name, default), levels, strict=True):
                    self.sliders[one] = _slider(one, value, *CONTROLS[name])
        for name, slider in self.sliders.items():
            slider.observe(partial(self._moved, name), "value")
        self.options.children = tuple(self.sliders.values())
        self.note, self.following = "", False
        self.decode()

    def chosen(self) -> dict[str, Any]:
        """Return all options of the drafter as its sliders stand."""
        options = dict(METHODS[self.method.value].defaults)
        for name, default in options.items():
            values = [self.sliders[one].value for one in _names(name, default) if one in self.sliders]
            if values:
                options[name] = tuple(values) if isinstance(default, tuple) else values[0]
        return options

    def _moved(self, name: str, change: Any) -> None:
        """Let the sliders that are bound by the moved one follow it, then decode."""
        if self.following:
            return
        self.following = True
        try:
            self.note = " ".join(self._follow(name))
        finally:
            self.following = False
        self.decode()

    def _follow(self, name: str) -> list[str]:
        """Move the sliders that have to follow one; return a sentence for each."""
        sliders, fixed, said = self.sliders, {name}, []
        for _ in BELOW:  # what follows may be followed itself
            for low, high, gap in BELOW:
                if {low, high} <= set(sliders) and sliders[low].value + gap > sliders[high].value:
                    if low in fixed:
                        mover, value, rule = high, sliders[low].value + gap, f"{'over' if gap else 'at least'} {low}"
                    else:
                        mover, value, rule = low, sliders[high].value - gap, f"{'under' if gap else 'at most'} {high}"
                    sliders[mover].value = round(value, 2)
                    fixed.add(mover)
                    said.append(f"{mover} went along to {sliders[mover].value:g}; it has to be {rule}.")
        if {"depth", "branching"} <= set(sliders) and "max_nodes" not in sliders:
            mover = "depth" if name == "branching" else "branching"
            drafted = _nodes(sliders["depth"].value, sliders["branching"].value)
            while _nodes(sliders["depth"].value, sliders["branching"].value) > MOST_NODES:
                sliders[mover].value -= 1
            if drafted > MOST_NODES:
                said.append(
                    f"{mover} went down to {sliders[mover].value}: the tree would have {drafted:,} nodes, and at most "
                    f"{MOST_NODES} are drafted here."
                )
        return said

    def decode(self) -> None:
        """Decode with the controls as they stand, and show it; what cannot be decoded is said in its place."""
        try:
            self._decode()
        except Exception as error:
            self.below.children, self.progress.value = (), 0  # a picture of other settings would pass for theirs
            self.figures.value = f"{self.note} <b>{plots.theme.escaped(str(error) or type(error).__name__)}</b>"
            if not isinstance(error, ValueError):
                raise
        finally:
            self.note = ""

    def _decode(self) -> None:
        method, options = METHODS[self.method.value], self.chosen()
        method.check(options)
        assert method.drafter is not None
        drafter, target = method.drafter(options, self.pair.draft), self.pair.target
        sampling, budget = Sampling(self.temperature.value), self.budget.value
        ids = self.pair.ids(self.prompt.value)
        self.progress.max, self.progress.value = budget, 0
        if self.method.value not in self.warm:  # a first call is not steady speed
            self.warm.add(self.method.value)
            generate(target, ids, drafter, max_new_tokens=8)
        begun = noted = perf_counter()
        emitted = 0

        def progress(tokens: list[int]) -> None:
            nonlocal emitted, noted
            emitted += len(tokens)
            if perf_counter() > noted + NOTED_EVERY:  # telling the page takes as long as a small model's token
                noted, self.progress.value = perf_counter(), emitted

        out = self.generation = generate(
            target, ids, drafter, max_new_tokens=budget, sampling=sampling, on_tokens=progress, keep_state=False
        )
        seconds = perf_counter() - begun
        self.progress.value = budget
        known = self.prompt.value, budget
        if known not in self.plain:
            begun = perf_counter()
            text = autoregressive(target, ids, max_new_tokens=budget, keep_state=False)
            self.plain[known] = text.tokens, perf_counter() - begun
        plain, of_plain = self.plain[known]
        step, iteration = of_plain / len(plain), seconds / len(out.iterations)
        words = f"{self.note} <b>{summarize(out).tokens_per_iteration:.2f} tokens per iteration</b>, which takes "
        words += f"{iteration / step:.2f} plain steps: {len(out.tokens) / seconds:.0f} tokens/s against "
        words += f"{1 / step:.0f} (one run each). "
        if sampling.greedy:
            words += "The text is plain decoding's." if out.tokens == plain else self._parted(ids, plain, out.tokens)
        self.figures.value, prefix = words, len(ids) - 1
        gap = "\n\n" if getattr(self.pair.tokenizer, "chat_template", None) else ""  # between a question and its answer
        self.walk = Walk(out, self.pair.tokenizer, prompt=self.prompt.value + gap, prefix=prefix)
        self.below.children = (self.walk,)

    def _parted(self, ids: list[int], plain: list[int], tokens: list[int]) -> str:
        """Return where a greedy text leaves plain decoding's, and how close the target's two best logits are there."""
        same = (ours == theirs for ours, theirs in zip(plain, tokens, strict=False))
        place = next((number for number, equal in enumerate(same) if not equal), min(len(plain), len(tokens)))
        *before, last = [*ids, *plain[:place]]
        session = self.pair.target.session()
        session.start(before)
        best, second = session.score([last], [-1], Sampling()).logits[0].topk(2).values.tolist()
        return (
            f"From token {place + 1} on the text is not plain decoding's: there the target's two best logits are "
            f"{best - second:.2g} apart. Rounding explains a near tie, nothing else."
        )


def _names(name: str, default: Any) -> list[str]:
    """Return the names of the sliders of an option: one, or one for each level that it has a value of."""
    if not isinstance(default, tuple):
        return [name]
    return [f"{name}, level {level}{' on' if level == len(default) else ''}" for level in range(1, len(default) + 1)]


def _nodes(depth: int, branching: int) -> int:
    """Return the nodes of a full tree, node 0 included."""
    return sum(branching**level for level in range(depth + 1))


def _slider(name: str, value: float, low: float, high: float, step: float) -> widgets.Widget:
    kind = widgets.IntSlider if isinstance(value, int) and isinstance(step, int) else widgets.FloatSlider
    inside = min(max(value, low), high)
    look = {"continuous_update": False, "style": {"description_width": "140px"}, "layout": {"width": "410px"}}
    return kind(inside, min=low, max=high, step=step, description=name, **look)
