"""Distributions beside the target's, in panels with the distance between the two."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from dynatree_lib.plots import theme

from ..bench.statistics import Table
from .charts import Row

GAP, PANEL_HEIGHT = 64, 200  # px between two lines of panels, and of a panel
SHADES = ("#c6dbef", "#6baed6", "#2171b5", "#08306b", "#000000")
OUTLINE = {"color": "rgba(0,0,0,0)", "line": {"color": theme.INK, "width": 1.6}}
ROUNDING = 1e-9  # a distance below this is rounding


def distribution_panels(
    rows: Table, parts: Sequence[str], panel: str = "panel", *, columns: int = 3, title: str = ""
) -> go.Figure:
    """Draw distributions beside the target's: a bar per outcome, outlined where the target's probability ends.

    The heading of a panel has the total variation between the two distributions.

    Args:
        rows: one per outcome and panel: `text` names the outcome, `target` is its probability under the target.
        parts: columns that add up to the probability of the outcome; stacked.
        panel: column that tells the panels apart.
        columns: panels side by side.
        title: above the figure.
    """
    frame = pd.DataFrame(rows)
    frame["whole"] = frame[list(parts)].sum(axis=1)
    apart = (frame["whole"] - frame["target"]).abs().groupby(frame[panel], sort=False).sum() / 2
    far = ["equal" if value < ROUNDING else f"TV {value:.4g}" for value in apart]
    titles = [f"{theme.escaped(str(name))}: {text}" for name, text in zip(apart.index, far, strict=True)]
    lines = math.ceil(len(apart) / columns)
    height = lines * PANEL_HEIGHT + (lines - 1) * GAP
    spacing = {"vertical_spacing": GAP / height, "horizontal_spacing": 0.08 / columns}
    drawn = make_subplots(rows=lines, cols=columns, subplot_titles=titles, **spacing)
    drawn.update_xaxes(visible=False).update_yaxes(visible=False)  # of places without a panel
    shades = [theme.SERIES_COLORS[1]] if len(parts) == 1 else SHADES
    looks: list[tuple[str, Row]] = [
        (part, {"width": 0.62, "marker_color": color}) for part, color in zip(parts, shades, strict=False)
    ]
    for number, (_, group) in enumerate(frame.groupby(panel, sort=False)):
        place = {"row": number // columns + 1, "col": number % columns + 1}
        bases = group[list(parts)].cumsum(axis=1).shift(axis=1, fill_value=0)
        for part, look in [*looks, ("target", {"width": 0.86, "marker": OUTLINE})]:
            name, foot = theme.escaped(part), {} if part == "target" else {"base": bases[part]}
            look = {**look, **foot, "hovertemplate": f"%{{x}}: %{{y:.4f}}<extra>{name}</extra>"}
            drawn.add_bar(x=group["text"].astype(str).map(theme.escaped), y=group[part], name=name, **look, **place)
        drawn.update_xaxes(type="category", ticks="", visible=True, **place).update_yaxes(visible=True, **place)
    drawn.update_layout(template=theme.TEMPLATE, title_text=theme.escaped(title), height=height + 165)
    drawn.update_layout(barmode="overlay", margin={"l": 60, "r": 15, "t": 120, "b": 45})
    theme.share_legend(drawn).update_layout(legend={"y": 1 + 32 / height, "traceorder": "normal"})
    top = frame[["whole", "target"]].max(axis=None)
    drawn.update_annotations(font_size=14).update_yaxes(range=[0, 1.05 * top], showticklabels=False)
    return drawn.update_yaxes(title_text="probability", showticklabels=True, col=1)
