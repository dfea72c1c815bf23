"""Several methods on one text, side by side: where each stands after the same number of target forwards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import ipywidgets as widgets

from dynatree_lib import plots
from dynatree_lib.checks import of_kind
from dynatree_lib.decoding import Generation
from dynatree_lib.plots.iterations import check_text

from .walk import Explorer, line, player, put, watch


class Race(Explorer):
    """The texts of several methods after the same number of target forwards, and the trees of the latest ones.

    Args:
        generations: name of a method -> result of `generate`, with at least one iteration, all from the same prompt.
        tokenizer: shows text instead of token numbers.
        prompt: shown before the texts.

    Attributes:
        forwards: the slider; setting `forwards.value` moves on.

    Raises:
        TypeError: for texts that are no mapping to generations, and for a tokenizer or prompt that is none.
        ValueError: without methods, and for a text without iterations.
    """

    def __init__(self, generations: Mapping[str, Generation], tokenizer: Any = None, *, prompt: str = "") -> None:
        of_kind("What races", generations, Mapping, "give {name of a method: what generate returned, ...}")
        for name, one in generations.items():
            check_text(one, tokenizer, prompt, name=f"The text of {name!r}")
        empty = [name for name, one in generations.items() if not one.iterations]
        if empty or not generations:
            raise ValueError(
                f"There are no iterations to compare{f' of {empty[0]!r}' if empty else ''}; give texts of generate()."
            )
        self.generations, self.tokenizer, self.prompt = generations, tokenizer, prompt
        most = max(len(one.iterations) for one in generations.values())
        self.play, self.forwards = player("target forwards", 1, most)
        self.texts = {name: widgets.HTML(layout={"flex": "1 1 320px"}) for name in generations}
        self.trees = widgets.Output()
        texts = line(*self.texts.values(), align_items="flex-start")
        super().__init__([widgets.HBox([self.play, self.forwards]), texts, self.trees])
        watch(self.show, self.forwards)

    def show(self) -> None:
        """Draw where every method stands."""
        latest = {}
        for name, generation in self.generations.items():
            last = len(generation.iterations) - 1
            number = min(self.forwards.value - 1, last)
            ended = " (its text has ended)" if self.forwards.value - 1 > last else ""
            latest[name] = generation.iterations[number]
            text = plots.step_text(generation, number, self.tokenizer, prompt=self.prompt, branches=0)
            self.texts[name].value = f"<b>{plots.theme.escaped(name)}</b>{ended}{text}"
        put(self.trees, plots.stacked_trees(latest, self.tokenizer, title="The latest iteration of each method"))
