"""Acceptance of drafted nodes by depth, by rank among siblings and by draft probability: rows and their figures.

Notebooks write the rows into their records, and the figures are drawn from them. Intervals are Wilson's for a share.
"""

from __future__ import annotations

from collections.abc import Iterable

import pandas as pd
from plotly import graph_objects as go

from dynatree_lib.decoding import Iteration
from dynatree_lib.plots.iterations import node_rows

from ..bench.statistics import Table, share
from . import look
from .charts import Row, as_rows, sweep_lines


def depth_rows(iterations: Iterable[Iteration]) -> list[Row]:
    """Return a row per level d of the trees.

    Keys: `depth`, `reached` (iterations that accepted a path to level d - 1 and drafted children there), `accepted`
    (of those, iterations that accepted a node at level d), `acceptance` (their ratio), `interval`.
    """
    nodes = pd.DataFrame([row for row in node_rows(iterations) if row["reached"]])
    if nodes.empty:
        return []
    levels = nodes.groupby(["depth", "iteration"], as_index=False)["accepted"].any()
    return _acceptance(levels, levels["depth"], "reached")


def rank_rows(nodes: Table | Iterable[Row]) -> list[Row]:
    """Return a row per child rank, over the nodes whose parent was accepted.

    Keys: `rank`, `reached`, `accepted`, `acceptance`, `interval`. The acceptances of the ranks add up to the
    probability that some child of an accepted node is accepted.
    """
    reached = pd.DataFrame([row for row in as_rows(nodes) if row["reached"]], columns=["rank", "accepted"])
    return _acceptance(reached, reached["rank"], "reached")


def calibration_rows(nodes: Table | Iterable[Row], key: str = "cumulative", bins: int = 10) -> list[Row]:
    """Return the nodes grouped by draft probability into `bins` equal bins.

    Keys: `bin`, `mean` (mean draft probability in the bin), `nodes`, `accepted`, `acceptance`, `interval`.
    """
    frame = pd.DataFrame(as_rows(nodes), columns=[key, "accepted"])
    groups = (frame[key] * bins).astype(int).clip(upper=bins - 1).rename("bin")
    rows = _acceptance(frame, groups, "nodes")
    return [{**row, "mean": mean} for row, mean in zip(rows, frame.groupby(groups)[key].mean(), strict=True)]


def _acceptance(frame: pd.DataFrame, groups: pd.Series, counted: str) -> list[Row]:
    """Return a row per group, with the share of its rows that are `accepted`."""
    rows = []
    for group, count, hits in frame.groupby(groups)["accepted"].agg(["size", "sum"]).astype(int).itertuples():
        part = share(hits, count, "wilson")
        row = {groups.name: group, counted: count, "accepted": hits, "acceptance": part.value}
        rows.append({**row, "interval": list(part.interval)})
    return rows


def acceptance_by_depth(rows: Table, *, title: str = "Acceptance at each depth of the tree") -> go.Figure:
    """Draw how often the accepted path goes on at each depth, given that it came so far.

    Args:
        rows: `depth_rows(iterations)`: keys `depth`, `acceptance`, `interval`, `accepted`, `reached`.
        title: above the figure.
    """
    rows = [{**row, "counts": f"{row['accepted']} of {row['reached']} iterations"} for row in as_rows(rows)]
    words: Row = {"x_title": "depth (levels below node 0)", "y_title": "share of iterations that go on"}
    drawn = sweep_lines(rows, "depth", "acceptance", interval="interval", text="counts", title=title, **words)
    drawn.update_traces(hovertemplate="depth %{x}: %{y:.3f} (%{text})<extra></extra>").update_layout(height=400)
    return drawn.update_yaxes(range=[0, 1.05]).update_xaxes(dtick=1)


def calibration(
    rows: Table, *, title: str = "Does a node's draft probability say whether it will be accepted?"
) -> go.Figure:
    """Draw the share of accepted nodes over their draft probability, with the diagonal of a calibrated draft.

    Args:
        rows: `calibration_rows(...)`: keys `mean`, `acceptance`, `interval`, `accepted`, `nodes`.
        title: above the figure.
    """
    rows = [{**row, "counts": f"{row['accepted']} of {row['nodes']} nodes"} for row in as_rows(rows)]
    most = max((row["nodes"] for row in rows), default=1)
    words: Row = {
        "x_title": "mean draft probability of the nodes in a bin",
        "y_title": "share accepted",
        "title": title,
    }
    names = ("measured (area of a dot: number of nodes)", "")
    drawn = sweep_lines(rows, "mean", "acceptance", interval="interval", text="counts", names=names, **words)
    drawn.update_traces(
        line={"color": look.METHOD_COLORS["fixed-tree"], "width": 1.5},
        marker={"size": [6 + 20 * (row["nodes"] / most) ** 0.5 for row in rows], "opacity": 0.85, "color": None},
        hovertemplate="draft %{x:.3f}, accepted %{y:.3f}: %{text}<extra></extra>",
    )
    drawn.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line=look.IDEAL, name="perfectly calibrated", hoverinfo="skip")
    drawn.update_xaxes(range=[-0.03, 1.03]).update_yaxes(range=[-0.03, 1.06])
    return drawn.update_layout(height=440, showlegend=True, margin_t=90)
