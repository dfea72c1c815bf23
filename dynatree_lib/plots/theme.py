"""One look for every figure: template, sizes, and a colour that belongs to a method wherever it is drawn.

Colours come from the Okabe-Ito and Tol palettes, which stay apart under the common colour-vision deficiencies; methods
also differ in marker symbol, so that no figure rests on colour alone.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from plotly import graph_objects as go

FONT = "Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif"
INK, GRID, MUTED = "#222222", "#e4e4e4", "#666666"

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
    "lookup-tree": "#117733",
    "sampled-tree": "#44aa99",
    "ptd": "#332288",
    "lookahead": "#999933",
    "self-draft": "#cc79a7",
    "prompt-lookup": "#e69f00",
}
"""Colour of each method name; the same in every notebook."""

SERIES_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#332288", "#56b4e9", "#882255", "#666666")
OTHER = "#5b7f9e"
"""Bars that belong to no method."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "cross", "hexagon")

# Roles of tokens: (fill, line, text).
NODE0 = (INK, INK, "#ffffff")
ACCEPTED = ("#c9eddf", "#009e73", "#0b3d2e")
BONUS = ("#fde6b8", "#e69f00", "#4d3500")
REJECTED = ("#ececec", "#b5b5b5", "#5c5c5c")
DRAFTED = ("#dcebf8", "#0072b2", "#0b2d45")
BELOW_TAU = ("#ffffff", "#c4c4c4", "#767676")

TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 14, "color": INK},
        "title": {
            "font": {"size": 17},
            "x": 0,
            "xref": "paper",
            "xanchor": "left",
            "y": 1,
            "yanchor": "top",
            "pad": {"t": 14},
        },
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "colorway": list(SERIES_COLORS),
        "margin": {"l": 70, "r": 30, "t": 90, "b": 60},
        "legend": {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom", "font": {"size": 13}},
        "hoverlabel": {"font": {"family": FONT, "size": 13}, "align": "left"},
        "xaxis": {
            "gridcolor": GRID,
            "zeroline": False,
            "linecolor": MUTED,
            "showline": True,
            "ticks": "outside",
            "automargin": True,
            "title": {"standoff": 10},
        },
        "yaxis": {"gridcolor": GRID, "zeroline": False, "automargin": True, "title": {"standoff": 10}},
        "bargap": 0.28,
        "modebar": {"remove": ["select2d", "lasso2d", "autoScale2d"], "color": "#c8c8c8", "activecolor": MUTED},
    }
)


def figure(title: str = "", *, x: str = "", y: str = "", height: int = 420, **layout: Any) -> go.Figure:
    """An empty figure in the suite's look; `x` and `y` are axis titles, further arguments go to the layout."""
    drawn = go.Figure(layout=go.Layout(template=TEMPLATE, height=height, title_text=escaped(title), **layout))
    drawn.update_xaxes(title_text=escaped(x))
    drawn.update_yaxes(title_text=escaped(y))
    return drawn


def finish(drawn: go.Figure, legend: bool) -> go.Figure:
    """Show the legend, or leave it out together with the room above the plot that it would have taken."""
    drawn.update_layout(showlegend=legend)
    return drawn if legend else drawn.update_layout(margin_t=56)


def bar_color(label: str) -> str:
    """The colour of a method, also under a label such as "fixed-tree (paper)"; one neutral colour for anything else."""
    return METHOD_COLORS.get(label.partition(" (")[0], OTHER)


def series_colors(names: Iterable[Any]) -> dict[Any, str]:
    """A colour for each name: its own for a method, the next of the palette, in order, for anything else."""
    unnamed = iter(range(10_000))
    return {
        name: METHOD_COLORS.get(name) or SERIES_COLORS[next(unnamed) % len(SERIES_COLORS)]
        for name in dict.fromkeys(names)
    }


def series_symbols(names: Iterable[Any]) -> dict[Any, str]:
    """A marker symbol for each name: fixed for a method, in order for anything else."""
    methods = list(METHOD_COLORS)
    return {
        name: SYMBOLS[(methods.index(name) if name in METHOD_COLORS else order) % len(SYMBOLS)]
        for order, name in enumerate(dict.fromkeys(names))
    }


def escaped(text: str) -> str:
    """Text as plotly shows it literally: no tags, and no formula where a page has MathJax."""
    return html.escape(text, quote=False).replace("$", "&#36;")
