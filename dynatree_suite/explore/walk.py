"""Walk through a text that has been decoded: its iterations one by one, by a slider, by keys, or played."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from typing import Any

import ipywidgets as widgets

from dynatree_lib import plots
from dynatree_lib.checks import whole
from dynatree_lib.decoding import Generation, Iteration
from dynatree_lib.plots.iterations import check_text
from dynatree_lib.plots.theme import DARK_PAGES, dark_css

from ..papers.published import html_table

PACE = 1200
"""Milliseconds of an iteration while it plays."""


class Explorer(widgets.VBox):
    """Controls and what they change, with the style that figures need on a dark page.

    Args:
        parts: from top to bottom.
    """

    def __init__(self, parts: Sequence[widgets.Widget]) -> None:
        style = widgets.HTML(f"<style>{dark_css(DARK_PAGES)}</style>", layout={"display": "none"})
        super().__init__([style, *parts])


class Walk(Explorer):
    """The iterations of a text: the text with its rejected branches, the tree, on request the mask, and the state.

    Where a drafter has a side tree in the target's forward, both trees are drawn, and the mask is that of both. The
    slider takes arrow keys, Page up and Page down.

    Args:
        generation: result of `generate`, with at least one iteration.
        tokenizer: shows text instead of token numbers.
        prompt: shown before the text.
        prefix: KV entries before the first iteration's node 0, for the mask: the tokens of the prompt but the last.
            At least 0.

    Attributes:
        place: the slider; setting `place.value` moves on.

    Raises:
        TypeError: for a generation, tokenizer or prompt that is none.
        ValueError: for a text without iterations, such as `autoregressive_fast` gives, or another prefix.
    """

    def __init__(self, generation: Generation, tokenizer: Any = None, *, prompt: str = "", prefix: int = 0) -> None:
        check_text(generation, tokenizer, prompt)
        whole("prefix", prefix, 0)
        if not generation.iterations:
            raise ValueError("This text has no iterations to walk through; decode it with generate().")
        self.generation, self.tokenizer, self.prompt, self.prefix = generation, tokenizer, prompt, prefix
        last = len(generation.iterations) - 1
        self.play, self.place = player("iteration", 0, last)
        self.mask = widgets.Checkbox(description="attention mask", indent=False)
        self.text, self.state = widgets.HTML(), widgets.HTML()
        self.tree, self.seen = widgets.Output(), widgets.Output()
        controls = line(self.play, self.place, self.mask)
        super().__init__([controls, self.text, self.tree, self.state, self.seen])
        watch(self.show, self.place, self.mask)

    @property
    def iteration(self) -> Iteration:
        """The iteration that is shown."""
        return self.generation.iterations[self.place.value]

    def show(self) -> None:
        """Draw the iteration that the slider stands at."""
        number, iteration = self.place.value, self.iteration
        self.text.value = str(plots.step_text(self.generation, number, self.tokenizer, prompt=self.prompt))
        draw = plots.draft_tree if iteration.side_tree is None else plots.forward_trees
        put(self.tree, draw(iteration, self.tokenizer))
        state = iteration.report
        self.state.value = shown_table([state], "State of the drafter before this iteration") if state else ""
        if not self.mask.value:
            self.seen.outputs = ()
        elif iteration.side_tree is not None:
            put(self.seen, plots.forward_mask(iteration, self.tokenizer))
        else:
            before = sum(one.committed for one in self.generation.iterations[:number])
            put(self.seen, plots.tree_mask(iteration.tree, self.prefix + before, self.tokenizer))


def line(*parts: widgets.Widget, **layout: str) -> widgets.HBox:
    """Return widgets side by side, in further lines where the page is narrow."""
    return widgets.HBox(parts, layout={"flex_flow": "row wrap", **layout})


def watch(act: Callable[[], None], *controls: widgets.Widget) -> None:
    """Act now, and whenever one of the controls is moved."""
    for control in controls:
        control.observe(lambda change: act(), "value")
    act()


def player(name: str, first: int, last: int) -> tuple[widgets.Play, widgets.IntSlider]:
    """Return a slider and a button that plays it."""
    place = slider(name, first, first, last)
    play = widgets.Play(value=first, min=first, max=last, interval=PACE, description=f"play by {name}")
    widgets.jslink((play, "value"), (place, "value"))
    return play, place


def slider(name: str, value: int, least: int, most: int) -> widgets.IntSlider:
    """Return a slider over whole numbers that acts while it is dragged."""
    made = widgets.IntSlider(value, min=least, max=most, description=name, layout={"width": "420px"})
    made.style.description_width = "initial"
    return made


def shown_table(rows: list[dict[str, Any]], caption: str) -> str:
    """Return rows as a table, with the class by which JupyterLab styles tables of outputs; widgets are none."""
    return f'<div class="jp-RenderedHTMLCommon">{html_table(rows, caption=caption)}</div>'


def put(place: widgets.Output, figure: Any) -> None:
    """Show a figure in place of what was there.

    The figure is put there as state. Displaying it there would send messages that runners without a page, such as
    papermill, do not understand.
    """
    data: dict[str, Any] = {plots.theme.FIGURE_TYPE: json.loads(figure.to_json())}
    if "google.colab" in sys.modules:  # its pages know figures as HTML alone
        data = {"text/html": figure.to_html(include_plotlyjs="cdn", full_html=False)}
    place.outputs = ({"output_type": "display_data", "data": data, "metadata": {}},)
