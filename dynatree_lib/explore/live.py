"""Decode a prompt again whenever a control moves, and compare with plain decoding of the same prompt."""

from __future__ import annotations

from collections.abc import Mapping
from time import perf_counter

import ipywidgets as widgets

from .. import plots
from ..decoding import autoregressive, generate
from ..measure.methods import METHODS
from ..models.pairs import Pair
from ..sampling import Sampling
from ..summary import summarize
from .walk import Walk

DRAFTERS = (
    "chain", "fixed-tree", "adaptive-tree", "best-first-tree", "sampled-tree", "lookup-tree", "prompt-lookup", "ptd",
)  # fmt: skip
"""Methods that can be chosen."""
CONTROLS: Mapping[str, tuple[float, float, float]] = {
    "length": (1, 12, 1),
    "depth": (1, 12, 1),
    "branching": (1, 5, 1),
    "base_depth": (1, 8, 1),
    "max_depth": (1, 12, 1),
    "min_branching": (1, 4, 1),
    "mid_branching": (1, 4, 1),
    "max_branching": (1, 6, 1),
    "tau": (0.0, 0.5, 0.01),
    "tau_high": (0.1, 1.0, 0.01),
    "tau_low": (0.0, 0.9, 0.01),
    "rho_stop": (0.0, 0.5, 0.01),
    "max_nodes": (1, 64, 1),
}
"""Options of methods that have a slider: lowest and highest value, and the step between."""
NOTED_EVERY = 0.2
"""Seconds between two moves of the bar that shows how far a text has come."""


class Live(widgets.VBox):
    """A prompt, a drafter, its options, a budget and a temperature; what they give is decoded anew at each change.

    Args:
        pair: target and draft.
        prompt: to begin with.
        method: one of `DRAFTERS`.
        budget: tokens to begin with.

    Attributes:
        generation: the latest text.
        walk: its iterations (`Walk`).

    Raises:
        ValueError: for a method that cannot be chosen.
    """

    def __init__(self, pair: Pair, prompt: str, *, method: str = "fixed-tree", budget: int = 40) -> None:
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
        self.method.observe(lambda change: self._choose(), "value")
        for control in (self.prompt, self.budget, self.temperature):
            control.observe(lambda change: self.decode(), "value")
        self._choose()

    def _choose(self) -> None:
        """Offer the options of the drafter that has been chosen, at its defaults."""
        self.sliders = {
            name: _slider(name, default, *CONTROLS[name])
            for name, default in METHODS[self.method.value].defaults.items()
            if name in CONTROLS and isinstance(default, int | float)
        }
        for slider in self.sliders.values():
            slider.observe(lambda change: self.decode(), "value")
        self.options.children = tuple(self.sliders.values())
        self.decode()

    def decode(self) -> None:
        """Decode with the controls as they stand, and show it; what cannot be decoded is said in their place."""
        try:
            self._decode()
        except ValueError as error:
            self.figures.value = f"<b>{plots.theme.escaped(str(error))}</b>"

    def _decode(self) -> None:
        method, chosen = METHODS[self.method.value], {name: slider.value for name, slider in self.sliders.items()}
        options = {**method.defaults, **chosen}
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
        words = f"<b>{summarize(out).tokens_per_iteration:.2f} tokens per iteration</b>, which takes "
        words += f"{iteration / step:.2f} plain steps: {len(out.tokens) / seconds:.0f} tokens/s against "
        words += f"{1 / step:.0f} (one run each). "
        if sampling.greedy:
            same = out.tokens == plain
            words += (
                "The text is plain decoding's." if same else "A near tie was rounded otherwise than in plain decoding."
            )
        self.figures.value, prefix = words, len(ids) - 1
        gap = "\n\n" if getattr(self.pair.tokenizer, "chat_template", None) else ""  # between a question and its answer
        self.walk = Walk(out, self.pair.tokenizer, prompt=self.prompt.value + gap, prefix=prefix)
        self.below.children = (self.walk,)


def _slider(name: str, value: float, low: float, high: float, step: float) -> widgets.Widget:
    kind = widgets.IntSlider if isinstance(value, int) and isinstance(step, int) else widgets.FloatSlider
    inside = min(max(value, low), high)
    look = {"continuous_update": False, "style": {"description_width": "110px"}, "layout": {"width": "380px"}}
    return kind(inside, min=low, max=high, step=step, description=name, **look)
