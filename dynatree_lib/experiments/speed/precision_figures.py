"""Figures of the precision audit: how often each comparison flips by dtype, and how close the best two tokens were."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from ...plots import theme
from ...plots.iterations import error_bars
from ...plots.rows import Row

GROUPS = {
    "rows": ("ar among other rows", "#0072b2"),
    "prompt": ("ar, prompt read otherwise", "#56b4e9"),
    "mask": ("ar under a mask", "#999933"),
    "engine": ("ar, other engines", "#009e73"),
    "again": ("ar once more", "#666666"),
    "method": ("methods", "#d55e00"),
}
"""Group of a comparison -> its name in a legend, its colour."""
BINS_PER_DECADE = 3


def flip_rates(audits: Sequence[Row], *, title: str = "Flips of the greedy token against plain decoding") -> go.Figure:
    """One panel per dtype, one line per comparison: flips per 1000 tokens with their exact interval.

    Args:
        audits: what `bench.precision.audit_precision` returns, one per dtype.
        title: above the figure.

    A comparison of which only its own text is known is hollow: flips until the first of each text.
    """
    labels = _labels(row for audit in audits for row in audit["comparisons"])
    drawn = make_subplots(
        cols=len(audits), shared_yaxes=True, horizontal_spacing=0.04,
        subplot_titles=[f"{audit['dtype']}, {audit['tokens']:,} tokens" for audit in audits],
    )  # fmt: skip
    for group, (name, color) in GROUPS.items():
        for column, audit in enumerate(audits, 1):
            mine = [row for row in audit["comparisons"] if row["group"] == group]
            drawn.add_trace(_dots(mine, color).update(legendgroup=group), row=1, col=column)
        if any(row["group"] == group for audit in audits for row in audit["comparisons"]):
            drawn.add_scatter(x=[None], y=labels[:1], mode="markers", marker_color=color, name=name, legendgroup=group)
    for column, audit in enumerate(audits, 1):
        most = max((_shown(row)[1][1] for row in audit["comparisons"]), default=1.0)
        drawn.update_xaxes(range=[-0.03 * most, 1.05 * most], row=1, col=column)
    drawn.update_layout(
        template=theme.TEMPLATE, title_text=theme.escaped(title), height=220 + 24 * len(labels), margin_t=125,
        legend_y=1 + 40 / (24 * len(labels) + 35),
    )  # fmt: skip
    drawn.update_annotations(font_size=14)
    drawn.update_xaxes(title_text="flips per 1000 tokens")
    drawn.update_yaxes(type="category", categoryorder="array", categoryarray=labels[::-1], ticksuffix="  ")
    return drawn


def _labels(rows: Iterable[Row]) -> list[str]:
    """Every label once, group by group; rows of a forward ascending."""
    groups = list(GROUPS)
    ranked = sorted(rows, key=lambda row: (groups.index(row["group"]), row["rows"] if row["group"] == "rows" else 0))
    return list(dict.fromkeys(row["label"] for row in ranked))


def _shown(row: Row) -> tuple[float, tuple[float, float]]:
    """Flips per 1000 tokens with their interval; until the first ones, where no more is known."""
    return (row["first_rate"], row["first_interval"]) if row["rate"] is None else (row["rate"], row["interval"])


def _dots(rows: Sequence[Row], color: str) -> go.Scatter:
    values, ends = [_shown(row)[0] for row in rows], [_shown(row)[1] for row in rows]
    return go.Scatter(
        x=values,
        y=[row["label"] for row in rows],
        error_x={**(error_bars(values, ends) or {}), "color": color},
        mode="markers",
        text=[f"{row['identical']} of {row['prompts']} texts identical" for row in rows],
        hovertemplate="%{y}: %{x:.2f} per 1000 tokens, %{text}<extra></extra>",
        marker={"size": 9, "color": color, "symbol": [_symbol(row) for row in rows]},
        showlegend=False,
    )


def _symbol(row: Row) -> str:
    return "circle-open" if row["rate"] is None else "circle"


def margin_histograms(
    audits: Sequence[Row], *, title: str = "How close the best two tokens are, everywhere and at flips"
) -> go.Figure:
    """One panel per dtype: margins in float64 of all places of the texts, and of the two tokens of every flip.

    Args:
        audits: what `bench.precision.audit_precision` returns, one per dtype.
        title: above the figure.

    The margin axis is logarithmic; the dotted line is the dtype's spacing at the median place.
    """
    drawn = make_subplots(
        rows=len(audits), shared_xaxes=True, vertical_spacing=0.28 / (len(audits) + 1),
        subplot_titles=[_panel_title(audit) for audit in audits],
    )  # fmt: skip
    everywhere = [_logarithms(audit["exact_margins"]) for audit in audits]
    at_flips = [
        _logarithms([flip["exact_margin"] for row in audit["comparisons"] for flip in row["flips"]]) for audit in audits
    ]
    edges = _edges(np.concatenate([*everywhere, *at_flips]), [_spacing(audit) for audit in audits])
    for number, (audit, *kinds) in enumerate(zip(audits, everywhere, at_flips, strict=True), 1):
        for name, color, values in zip(("all places", "flips"), ("#b5b5b5", "#d55e00"), kinds, strict=True):
            heights = np.histogram(values, edges)[0] / max(1, len(values))
            bars = go.Bar(
                x=10 ** ((edges[1:] + edges[:-1]) / 2), y=heights, width=np.diff(10**edges) * 0.9, name=name,
                marker_color=color, opacity=0.75, legendgroup=name, showlegend=number == 1,
                hovertemplate=f"margins around %{{x:.2g}}: %{{y:.1%}} of {name}<extra>{audit['dtype']}</extra>",
            )  # fmt: skip
            drawn.add_trace(bars, row=number, col=1)
        drawn.add_vline(
            x=_spacing(audit), line={"color": theme.INK, "dash": "dot", "width": 1.3}, row=number, col=1
        )  # fmt: skip
    drawn.update_layout(
        template=theme.TEMPLATE, title_text=theme.escaped(title), barmode="overlay", bargap=0.05, margin_t=125,
        height=190 + 180 * len(audits), legend_y=1 + 30 / (180 * len(audits)),
    )  # fmt: skip
    drawn.update_annotations(font_size=14)
    drawn.update_xaxes(type="log", dtick=1, exponentformat="power", range=[edges[0], edges[-1]])
    drawn.update_xaxes(title_text="margin in float64, logits; dotted: spacing of the dtype", row=len(audits), col=1)
    drawn.update_yaxes(title_text="share", tickformat=".0%", rangemode="tozero")
    return drawn


def _panel_title(audit: Row) -> str:
    flips = sum(len(row["flips"]) for row in audit["comparisons"])
    return f"{audit['dtype']}: {audit['tokens']:,} places, {audit['ties']} exact ties, {flips} flips of all comparisons"


def _logarithms(margins: Sequence[float]) -> np.ndarray:
    return np.log10(np.maximum(np.abs(np.array(margins, float)), 1e-12))


def _spacing(audit: Row) -> float:
    """The dtype's spacing at the best logit of the median place."""
    logits, ulps = np.array(audit["margins"]), np.array(audit["margins_ulps"])
    return float(np.median(logits[ulps > 0] / ulps[ulps > 0])) if (ulps > 0).any() else audit["epsilon"]


def _edges(values: np.ndarray, spacings: Sequence[float]) -> np.ndarray:
    low = np.floor(min([*values, *np.log10(spacings)]))
    high = np.ceil(max([*values, *np.log10(spacings)]))
    return np.linspace(low, high, int(high - low) * BINS_PER_DECADE + 1)
