"""Pictures of an ablation: variants with two quantities per panel, and what an adaptation does along a text."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ...plots import theme
from ...plots.rows import Row, span


@dataclass(frozen=True)
class Panel:
    """One panel of `progression`: bars on the left axis, lines on the right one.

    Attributes:
        bar: column of the bars.
        bar_title: of the left axis, and the bars' name.
        lines: column -> name of each line.
        line_title: of the right axis.
    """

    bar: str
    bar_title: str
    lines: Mapping[str, str]
    line_title: str


BARS = "#b9cde0"
LINES = ("#d55e00", "#009e73", "#332288")


def progression(
    sides: Mapping[str, Sequence[Row]], panels: Sequence[Panel], label: str = "variant", *, title: str = ""
) -> go.Figure:
    """Variants from left to right, one row of panels per side (measured, published), two quantities in each.

    Args:
        sides: name -> rows; a row without a value in a drawn column is left out there.
        panels: what to draw, from left to right.
        label: column that names the variants.
        title: above the figure.
    """
    names = [f"{side}: {_first(panel)}" for side in sides for panel in panels]
    specs = [[{"secondary_y": True}] * len(panels)] * len(sides)
    drawn = make_subplots(
        len(sides), len(panels), specs=specs, subplot_titles=names, horizontal_spacing=0.16, vertical_spacing=0.24
    )
    for row, rows in enumerate(sides.values(), start=1):
        for column, panel in enumerate(panels, start=1):
            _draw(drawn, rows, panel, label, row, column)
    drawn.update_layout(
        template=theme.TEMPLATE, title_text=theme.escaped(title), height=120 + 330 * len(sides), margin_t=120,
        legend={"y": 1 + 0.16 / len(sides)}, bargap=0.35,
    )  # fmt: skip
    drawn.update_annotations(font_size=14)
    return drawn


def _first(panel: Panel) -> str:
    return f"{panel.bar_title} and {panel.line_title}"


def _draw(drawn: go.Figure, rows: Sequence[Row], panel: Panel, label: str, row: int, column: int) -> None:
    place = {"row": row, "col": column}
    mine = [one for one in rows if one.get(panel.bar) is not None]
    values = [one[panel.bar] for one in mine]
    drawn.add_bar(
        x=[_broken(one[label]) for one in mine], y=values, name=panel.bar_title, marker_color=BARS,
        text=[f"{value:.3g}" for value in values], textposition="inside", insidetextanchor="start", textangle=0,
        showlegend=False, **place,
    )  # fmt: skip
    for (key, name), color, symbol in zip(panel.lines.items(), LINES, theme.SYMBOLS, strict=False):
        points = [one for one in rows if one.get(key) is not None]
        drawn.add_scatter(
            x=[_broken(one[label]) for one in points], y=[one[key] for one in points], name=name, legendgroup=name,
            mode="lines+markers", line={"color": color}, marker={"size": 9, "symbol": symbol},
            showlegend=row == 1 and len(panel.lines) > 1, secondary_y=True, **place,
        )  # fmt: skip
    top = max((one[key] for one in rows for key in panel.lines if one.get(key) is not None), default=1)
    drawn.update_yaxes(title_text=panel.bar_title, secondary_y=False, **place)
    drawn.update_yaxes(title_text=panel.line_title, secondary_y=True, range=[0, 1.15 * top], **place)
    drawn.update_yaxes(showgrid=False, tickmode="auto", nticks=5, secondary_y=True, **place)
    drawn.update_xaxes(tickangle=0, **place)
    if len(panel.lines) == 1:
        drawn.update_yaxes(title_font_color=LINES[0], tickfont_color=LINES[0], secondary_y=True, **place)


def _broken(name: str) -> str:
    """A variant's name, a line for each of its parts, so that names stay upright below narrow bars."""
    return "<br>&amp; ".join(theme.escaped(part) for part in str(name).split(" & "))


def adaptation(
    rows: Sequence[Row],
    panels: Mapping[str, str],
    x: str = "tokens",
    series: str = "series",
    *,
    references: Mapping[str, float] | None = None,
    marks: Iterable[float] = (),
    title: str = "",
    x_title: str = "",
) -> go.Figure:
    """What a drafter's state does as texts grow: one panel per quantity, one step line per series.

    Args:
        rows: one per iteration and series, for example `bench.ablation.adaptation_rows`.
        panels: column -> title of the panel's axis, from top to bottom.
        x: column of the common horizontal axis.
        series: column that tells the lines apart.
        references: column -> a value to mark with a horizontal line (a target, a bound).
        marks: places on the horizontal axis to mark with vertical lines (where texts begin).
        title: above the figure.
        x_title: of the horizontal axis; by default the column's name.
    """
    drawn = make_subplots(len(panels), 1, shared_xaxes=True, vertical_spacing=0.06)
    names = span(rows, series)
    colors = theme.series_colors(names)
    for place, (column, text) in enumerate(panels.items(), start=1):
        for number, name in enumerate(names):
            mine = [row for row in rows if row[series] == name]
            drawn.add_scatter(
                x=[row[x] for row in mine], y=[row.get(column) for row in mine], name=str(name), mode="lines",
                line={"color": colors[name], "shape": "hv", "width": 2.2, "dash": DASHES[number % len(DASHES)]},
                legendgroup=str(name), showlegend=place == 1, row=place, col=1,
            )  # fmt: skip
        drawn.update_yaxes(title_text=text, row=place, col=1)
        if column in (references or {}):
            style = {"color": theme.INK, "dash": "dot", "width": 1.3}
            drawn.add_hline(y=(references or {})[column], line=style, row=place, col=1)
    for mark in marks:
        drawn.add_vline(x=mark, line={"color": "#cccccc", "width": 1}, layer="below")
    height = 130 + 190 * len(panels)
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=height)
    drawn.update_xaxes(title_text=theme.escaped(x_title or x), row=len(panels), col=1)
    return drawn


DASHES = ("solid", "dash", "dot", "dashdot", "longdash")
