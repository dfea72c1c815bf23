"""Look of charts: a colour and a symbol that belong to a method wherever it is drawn, lines of comparison, panels.

Colours are from the palettes of `dynatree_lib.plots.theme`. Methods also differ in marker symbol, so that no figure
rests on colour alone.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from dynatree_lib.plots.theme import INK, MUTED, SERIES_COLORS, TEMPLATE, escaped, share_legend

METHOD_COLORS = {
    "hf-generate": "#8c8c8c",
    "hf-assisted": "#88ccee",
    "hf-prompt-lookup": "#ddcc77",
    "ar": "#4d4d4d",
    "ar-fast": "#000000",
    "streaming-llm": "#aa4499",
    "chain": "#0072b2",
    "fixed-tree": "#d55e00",
    "adaptive-tree": "#009e73",
    "best-first-tree": "#882255",
    "cost-aware-tree": "#ee3377",
    "cost-aware-sampled-tree": "#66a61e",
    "lookup-tree": "#117733",
    "sampled-tree": "#44aa99",
    "ptd": "#332288",
    "lookahead": "#999933",
    "self-draft": "#cc79a7",
    "prompt-lookup": "#e69f00",
    "suffix-tree": "#b86e00",
    "token-recycling": "#56b4e9",
    "auto": "#d7263d",
    "union-tree": "#4477aa",
    "dyspec-tree": "#997700",
}
"""Colour of each method name; the same in every notebook."""

OTHER = "#5b7f9e"
"""Colour of bars that belong to no method."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "cross", "hexagon")

REFERENCE = {"color": INK, "dash": "dash", "width": 1.3}
"""Line at a value that a figure compares with."""
IDEAL = {"color": MUTED, "dash": "dash", "width": 1.5}
"""Line on which both axes are equal."""


def finish(drawn: go.Figure, legend: bool) -> go.Figure:
    """Show the legend, or leave it out together with the space above the plot that it would have taken."""
    drawn.update_layout(showlegend=legend)
    return drawn if legend else drawn.update_layout(margin_t=56)


def panels(names: Iterable[Any], parts: Sequence[go.Figure], columns: int, title: str, **spacing: Any) -> go.Figure:
    """Return figures side by side, `columns` in a line, each below its name, with one legend; their axes are new."""
    titles = [escaped(str(name)) for name in names]
    drawn = make_subplots(rows=math.ceil(len(parts) / columns), cols=columns, subplot_titles=titles, **spacing)
    for number, part in enumerate(parts):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        for trace in part.data:
            drawn.add_trace(trace, **place)
        for shape in part.layout.shapes:
            drawn.add_shape(shape, **place)
        for note in part.layout.annotations:
            drawn.add_annotation(note, **place)
    return share_legend(drawn.update_layout(template=TEMPLATE, title_text=escaped(title)))


def bar_color(label: str) -> str:
    """Return a method's colour, also for a label like "fixed-tree (paper)"; other labels share one neutral colour."""
    return METHOD_COLORS.get(label.partition(" (")[0], OTHER)


def series_colors(names: Iterable[Any]) -> dict[Any, str]:
    """Return a colour for each name: fixed for a method, the next of the palette for any other name."""
    palette = cycle(SERIES_COLORS)
    return {name: METHOD_COLORS.get(name) or next(palette) for name in dict.fromkeys(names)}


def series_symbols(names: Iterable[Any]) -> dict[Any, str]:
    """Return a marker symbol for each name: fixed for a method, in order for any other name."""
    fixed = {name: number for number, name in enumerate(METHOD_COLORS)}
    return {name: SYMBOLS[fixed.get(name, order) % len(SYMBOLS)] for order, name in enumerate(dict.fromkeys(names))}
