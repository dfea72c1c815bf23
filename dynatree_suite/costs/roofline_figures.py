"""Figures of a roofline: predicted against measured and published, limits of machines, batches and trees.

They draw rows of `forward_grid`, `published` and `costs.roofline`; nothing is measured or predicted here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from plotly import graph_objects as go

from dynatree_lib.plots import theme

from ..charts import look
from ..charts.charts import line_panels, span, sweep_lines
from .figures import LOGARITHMIC

Row = dict[str, Any]
BESIDE = {"orientation": "v", "x": 1.02, "y": 1, "xanchor": "left", "yanchor": "top"}
"""Place of a legend with many entries."""
BAND = 1.15
"""Factor by which a prediction may be off before it lies outside of the drawn band."""


def against(
    rows: Sequence[Row],
    measured: str = "measured",
    predicted: str = "predicted",
    series: str = "series",
    *,
    title: str,
    unit: str,
    text: str = "text",
) -> go.Figure:
    """Draw a dot per row, predicted over measured, both logarithmic, with the line of equals and a band of 15 %.

    Args:
        rows: with the columns named below.
        measured: column of the horizontal axis.
        predicted: column of the vertical axis.
        series: column that gives colour and symbol. Rows whose `calibration` is true are hollow.
        title: above the figure.
        unit: of both axes.
        text: column shown on hovering.
    """
    drawn = theme.figure(title, x=f"{measured}, {unit}", y=f"{predicted}, {unit}", height=560)
    _add_dots(drawn, rows, measured, predicted, series, text)
    drawn.update_xaxes(**LOGARITHMIC).update_yaxes(**LOGARITHMIC)
    return look.finish(drawn, True).update_layout(legend=BESIDE, margin_t=56)


def ladder(rows: Sequence[Row], assumptions: Sequence[str], *, title: str) -> go.Figure:
    """Draw published speeds against predicted ones, one panel per assumption, coloured by paper.

    Args:
        rows: of `published.comparison`.
        assumptions: columns, in the order in which they are added.
        title: above the figure.
    """
    lines, parts = math.ceil(len(assumptions) / 2), []
    for name in assumptions:
        part = theme.figure("", x="published, tokens/s", y="predicted, tokens/s")
        _add_dots(part, rows, "published", name, "paper", "method", calibration="given")
        parts.append(part)
    panels = [f"{number}. {'+ ' if number > 1 else ''}{name}" for number, name in enumerate(assumptions, 1)]
    drawn = look.panels(panels, parts, 2, title, vertical_spacing=0.12, horizontal_spacing=0.09)
    values = [row[name] for row in rows for name in (*assumptions, "published")]
    ends = [math.log10(min(values) / 1.2), math.log10(1.2 * max(values))]
    across = [
        math.log10(min(row["published"] for row in rows) / 1.2),
        math.log10(1.2 * max(row["published"] for row in rows)),
    ]
    drawn.update_xaxes(**LOGARITHMIC, range=across).update_yaxes(**LOGARITHMIC, range=ends)
    drawn.update_xaxes(title_text="published, tokens/s", row=lines)
    return drawn.update_yaxes(title_text="predicted, tokens/s", col=1).update_layout(
        height=180 + 330 * lines, margin_t=120, legend_y=1 + 24 / (330 * lines)
    )


def _add_dots(
    drawn: go.Figure, rows: Sequence[Row], x: str, y: str, series: str, text: str, calibration: str = "calibration"
) -> None:
    names = span(rows, series)
    colors, symbols = look.series_colors(names), look.series_symbols(names)
    ends = [min(row[x] for row in rows) / 1.3, 1.3 * max(row[x] for row in rows)]
    edges = [ends[0] / BAND, ends[1] / BAND, ends[1] * BAND, ends[0] * BAND]
    drawn.add_scatter(
        x=[*ends, *ends[::-1]], y=edges, fill="toself", fillcolor="rgba(128,128,128,0.16)", line={"width": 0},
        mode="lines", name="within 15 %", hoverinfo="skip",
    )  # fmt: skip
    drawn.add_scatter(x=ends, y=ends, mode="lines", line=look.IDEAL, name="equal", hoverinfo="skip")
    for name in names:
        some = [row for row in rows if row[series] == name]
        shapes = [symbols[name] + ("-open" if row.get(calibration) else "") for row in some]
        drawn.add_scatter(
            x=[row[x] for row in some], y=[row[y] for row in some], mode="markers", name=theme.escaped(str(name)),
            text=[theme.escaped(str(row.get(text, ""))) for row in some],
            hovertemplate="%{text}: %{x:.4g}, predicted %{y:.4g}<extra>%{fullData.name}</extra>",
            marker={"size": 8, "color": colors[name], "symbol": shapes, "opacity": 0.8},
        )  # fmt: skip


def forward_rooflines(rows: Sequence[Row], measured: Sequence[Row] = (), *, title: str, x_title: str) -> go.Figure:
    """Draw tokens per second of forwards over the tokens that they score, a line per machine; dots were measured.

    Args:
        rows: with `machine`, `tokens` and `tokens per second`, predicted.
        measured: with the same columns.
        title: above the figure.
        x_title: of the horizontal axis.
    """
    drawn = sweep_lines(
        rows, "tokens", "tokens per second", "machine", title=title, x_title=x_title,
        y_title="tokens scored per second", log_x=True,
    )  # fmt: skip
    drawn.update_traces(mode="lines")
    names = span(rows, "machine")
    colors, symbols = look.series_colors(names), look.series_symbols(names)
    for name in span(measured, "machine"):
        some = [row for row in measured if row["machine"] == name]
        drawn.add_scatter(
            x=[row["tokens"] for row in some], y=[row["tokens per second"] for row in some], mode="markers",
            name=theme.escaped(f"{name}, measured"), marker={"size": 9, "color": colors[name], "symbol": symbols[name]},
        )  # fmt: skip
    return drawn.update_yaxes(**LOGARITHMIC).update_layout(height=520, legend=BESIDE, margin_t=56)


def gain_lines(rows: Sequence[Row], series: str, *, title: str) -> go.Figure:
    """Draw the gain of drafting over plain decoding by batch, a line per value of `series`; 1 is the crossover.

    Args:
        rows: with `batch`, `gain` and the column `series`.
        series: column that tells the lines apart.
        title: above the figure.
    """
    drawn = sweep_lines(
        rows, "batch", "gain", series, title=title, x_title="texts at a time", y_title="times plain decoding",
        log_x=True, reference=1.0,
    )  # fmt: skip
    return drawn.update_yaxes(rangemode="tozero").update_layout(height=480)


def batch_gains(rows: Sequence[Row], *, title: str) -> go.Figure:
    """Draw measured gains of batches over plain decoding, and predicted ones dashed.

    Args:
        rows: of `forward_grid.predicted_batches`.
        title: above the figure.
    """
    sides = {
        kind: [{"method": row["method"], "batch": row["batch"], "gain": row[f"{kind} gain"]} for row in rows]
        for kind in ("measured", "predicted")
    }
    drawn = sweep_lines(
        sides["measured"], "batch", "gain", "method", sides["predicted"], names=("measured", "predicted"), title=title,
        x_title="texts at a time", y_title="times plain decoding", log_x=True, reference=1.0,
    )  # fmt: skip
    return drawn.update_yaxes(rangemode="tozero")


def best_trees(rows: Sequence[Row], series: str, *, title: str) -> go.Figure:
    """Draw nodes, levels and gain of the best tree by batch, one panel each, a line per value of `series`.

    Args:
        rows: with `batch`, `nodes`, `depth`, `gain` and the column `series`.
        series: column that tells the lines apart.
        title: above the figure.
    """
    panels = {"nodes": "nodes of the best tree", "depth": "its levels", "gain": "times plain decoding"}
    return line_panels(
        rows, "batch", panels, series, title=title, x_title="texts at a time", log_x=True, references={"gain": 1.0},
        columns=3,
    )  # fmt: skip
