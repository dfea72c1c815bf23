"""Look of every figure: template, sizes, colours of tokens by their role, and dark pages.

Colours come from the Okabe-Ito and Tol palettes, which stay apart under the common colour-vision deficiencies.
"""

from __future__ import annotations

import html
from collections.abc import Iterable
from typing import Any

from plotly import graph_objects as go

FIGURE_TYPE = "application/vnd.plotly.v1+json"
"""What a notebook calls the data of a plotly figure."""
FONT = "Helvetica Neue, Helvetica, Arial, DejaVu Sans, sans-serif"
INK, GRID, MUTED = "#222222", "#e4e4e4", "#666666"

SERIES_COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#332288", "#56b4e9", "#882255", "#666666")

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
    """Return an empty figure in this look; `x` and `y` are axis titles, further arguments go to the layout."""
    drawn = go.Figure(layout=go.Layout(template=TEMPLATE, height=height, title_text=escaped(title), **layout))
    return drawn.update_xaxes(title_text=escaped(x)).update_yaxes(title_text=escaped(y))


def share_legend(drawn: go.Figure) -> go.Figure:
    """Let all traces of one name share an entry of the legend, across panels."""
    shown: set[str] = set()
    for trace in drawn.data:
        if trace.showlegend is not False:
            trace.update(showlegend=trace.name not in shown, legendgroup=trace.name)
            shown.add(trace.name)
    return drawn


def escaped(text: str) -> str:
    """Return text as plotly shows it literally: no tags, and no formula where a page has MathJax."""
    return html.escape(text, quote=False).replace("$", "&#36;")
