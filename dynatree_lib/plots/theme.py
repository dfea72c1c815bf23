"""Look of every figure: template, sizes, and a colour that belongs to a method wherever the method is drawn.

Colours come from the Okabe-Ito and Tol palettes, which stay apart under the common colour-vision deficiencies. Methods
also differ in marker symbol, so that no figure rests on colour alone.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterable, Sequence
from itertools import cycle
from typing import Any

from plotly import graph_objects as go
from plotly.subplots import make_subplots

FIGURE_TYPE = "application/vnd.plotly.v1+json"
"""What a notebook calls the data of a plotly figure."""
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
    "cost-aware-sampled-tree": "#66a61e",
    "lookup-tree": "#117733",
    "sampled-tree": "#44aa99",
    "ptd": "#332288",
    "lookahead": "#999933",
    "self-draft": "#cc79a7",
    "prompt-lookup": "#e69f00",
    "suffix-tree": "#b86e00",
    "token-recycling": "#56b4e9",
    "union-tree": "#4477aa",
    "dyspec-tree": "#997700",
    "switch": "#6699cc",
}
"""Colour of each method name; the same in every notebook."""

SERIES_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#332288", "#56b4e9", "#882255", "#666666")
OTHER = "#5b7f9e"
"""Colour of bars that belong to no method."""
SYMBOLS = ("circle", "square", "diamond", "triangle-up", "x", "star", "pentagon", "cross", "hexagon")

# Roles of tokens: (fill, line, text).
NODE0 = (INK, INK, "#ffffff")
ACCEPTED = ("#c9eddf", "#009e73", "#0b3d2e")
BONUS = ("#fde6b8", "#e69f00", "#4d3500")
REJECTED = ("#ececec", "#b5b5b5", "#5c5c5c")
DRAFTED = ("#dcebf8", "#0072b2", "#0b2d45")
BELOW_TAU = ("#ffffff", "#c4c4c4", "#767676")

DARK = {
    INK: "#e8e8e8",
    MUTED: "#a9a9a9",
    GRID: "#3c4048",
    "#000000": "#ffffff",
    "#4d4d4d": "#b9b9b9",
    "#332288": "#9a8cf0",
    "#882255": "#e07aa8",
    "#117733": "#4fb774",
}
"""Colours that a dark page would swallow -> what is drawn there in their place.

Text on a filled box and marks on the cells of a mask take none of them, because the fill stays light.
"""

REFERENCE = {"color": INK, "dash": "dash", "width": 1.3}
"""Line at a value that a figure compares with."""
IDEAL = {"color": MUTED, "dash": "dash", "width": 1.5}
"""Line on which both axes are equal."""

_AXIS = {"gridcolor": GRID, "zeroline": False, "automargin": True, "title": {"standoff": 10}}
_TITLE = {"font": {"size": 17}, "x": 0, "xref": "paper", "xanchor": "left", "y": 1, "yanchor": "top", "pad": {"t": 14}}
TEMPLATE = go.layout.Template(
    layout={
        "font": {"family": FONT, "size": 14, "color": INK},
        "title": _TITLE,
        "paper_bgcolor": "#ffffff",
        "plot_bgcolor": "#ffffff",
        "colorway": list(SERIES_COLORS),
        "margin": {"l": 70, "r": 30, "t": 90, "b": 60},
        "legend": {"orientation": "h", "x": 0, "y": 1, "xanchor": "left", "yanchor": "bottom", "font": {"size": 13}},
        "hoverlabel": {"font": {"family": FONT, "size": 13}, "align": "left"},
        "xaxis": {**_AXIS, "linecolor": MUTED, "showline": True, "ticks": "outside"},
        "yaxis": _AXIS,
        "bargap": 0.28,
        "modebar": {"remove": ["select2d", "lasso2d", "autoScale2d"], "color": "#c8c8c8", "activecolor": MUTED},
    }
)


DARK_PAGES = 'body:is([data-jp-theme-light="false"], .vscode-dark)'
"""Pages of JupyterLab and VS Code that say they are dark."""
SILENT_PAGES = ":root:not(:has(body:is([data-jp-theme-light], [class*='vscode-'])))"
"""Pages that do not say whether they are dark; the reader's system does."""
DARK_GROUND = "#1f242c"


def dark_text_css(page: str, ground: str = "transparent") -> str:
    """Return style rules that draw coloured texts on a dark page, as `dark_css` does, on a ground of this colour."""
    rules = [
        (".dynatree-text", f"background: {ground}"),
        (".dynatree-text", f"color: {DARK[INK]}"),
        (".dynatree-text .prompt", f"color: {DARK[MUTED]}"),
    ]
    return _css(page, rules)


def own_text_css() -> str:
    """Return style rules for a coloured text that comes by itself, on whatever page.

    On a page that does not say whether it is dark, the text brings its own ground.
    """
    silent = dark_text_css(SILENT_PAGES, DARK_GROUND)
    return f"{dark_text_css(DARK_PAGES)}\n@media (prefers-color-scheme: dark) {{\n{silent}\n}}"


def _css(page: str, rules: Iterable[tuple[str, str]]) -> str:
    return "\n".join(f"{page} :is({selectors}) {{ {look} !important }}" for selectors, look in rules)


def dark_css(page: str) -> str:
    """Return style rules that draw figures and coloured texts without their white ground on a dark page.

    Figures keep their colours as data, and what the page does with them is its own affair: the rules repaint what a
    reader would not see. Filled boxes keep fill and text, so node 0 gets a light edge alone.

    Args:
        page: selector of an element around them that is dark, such as `body.dark`.
    """
    rules = [
        (".js-plotly-plot :is(.main-svg, .modebar-group)", "background: transparent"),
        (".js-plotly-plot :is(.bglayer, .legend) rect.bg", "fill: transparent"),
    ]
    for light, dark in DARK.items():
        red, green, blue = (int(light[place : place + 2], 16) for place in (1, 3, 5))
        color = f"rgb({red}, {green}, {blue})"
        filled = "text" if light == INK else ":is(text, path)"
        rules.append((f'.js-plotly-plot {filled}[style*="fill: {color}"]', f"fill: {dark}"))
        rules.append((f'.js-plotly-plot [style*="stroke: {color}"]', f"stroke: {dark}"))
    return f"{dark_text_css(page)}\n{_css(page, rules)}"


def figure(title: str = "", *, x: str = "", y: str = "", height: int = 420, **layout: Any) -> go.Figure:
    """Return an empty figure in the suite's look; `x` and `y` are axis titles, further arguments go to the layout."""
    drawn = go.Figure(layout=go.Layout(template=TEMPLATE, height=height, title_text=escaped(title), **layout))
    return drawn.update_xaxes(title_text=escaped(x)).update_yaxes(title_text=escaped(y))


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


def share_legend(drawn: go.Figure) -> go.Figure:
    """Let all traces of one name share an entry of the legend, across panels."""
    shown: set[str] = set()
    for trace in drawn.data:
        if trace.showlegend is not False:
            trace.update(showlegend=trace.name not in shown, legendgroup=trace.name)
            shown.add(trace.name)
    return drawn


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


def escaped(text: str) -> str:
    """Return text as plotly shows it literally: no tags, and no formula where a page has MathJax."""
    return html.escape(text, quote=False).replace("$", "&#36;")
