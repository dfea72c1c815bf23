"""Figures: pure functions from rounds and record rows to plotly figures. Nothing is run, measured or read here.

Pictures of a tree: `draft_tree`, `tree_mask`, `positions`. Of many iterations: `text_rounds` (HTML), `timeline`,
`acceptance_by_depth`, `calibration`. Of records: `bars_with_intervals`, `sweep_lines`, `heatmap`, `scatter`,
`distribution`, `stacked_bars`, `cost_curve`. Rows for them from Rounds: `node_rows`, `depth_rows`, `rank_rows`,
`calibration_rows`.
"""

from __future__ import annotations

try:
    import plotly as _plotly  # noqa: F401
except ImportError as error:
    raise ImportError("Drawing needs plotly: pip install 'dynatree-lib[notebooks]'.") from error

from .charts import bars_with_intervals, cost_curve, distribution, heatmap, scatter, stacked_bars, sweep_lines
from .rounds import acceptance_by_depth, calibration, text_rounds, timeline
from .rows import calibration_rows, depth_rows, node_rows, rank_rows, wilson
from .theme import METHOD_COLORS, TEMPLATE
from .trees import draft_tree, positions, tree_mask

__all__ = [
    "METHOD_COLORS",
    "TEMPLATE",
    "acceptance_by_depth",
    "bars_with_intervals",
    "calibration",
    "calibration_rows",
    "cost_curve",
    "depth_rows",
    "distribution",
    "draft_tree",
    "heatmap",
    "node_rows",
    "positions",
    "rank_rows",
    "scatter",
    "stacked_bars",
    "sweep_lines",
    "text_rounds",
    "timeline",
    "tree_mask",
    "wilson",
]
