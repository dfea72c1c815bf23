"""Figures: pure functions from rounds and record rows to plotly figures. Nothing is run, measured or read here.

Pictures of a tree: `draft_tree`, `tree_mask`, `positions`; of several: `stacked_trees`. Of many iterations:
`text_iterations` (HTML), `timeline`, `acceptance_by_depth`, `calibration`. Of records: `bars_with_intervals`,
`bars_by_panel`, `interval_dots`, `sweep_lines`, `line_panels`, `heatmap`, `scatter`, `distribution`, `stacked_bars`,
`cost_curve`. Rows for them: `node_rows`, `depth_rows`, `rank_rows`, `calibration_rows`, `iteration_rows`. Of
verification: `verification_steps` (rows by `step_row`), `distribution_panels`. Figures of one paper stand in
`experiments`.
"""

from __future__ import annotations

try:
    import plotly as _plotly  # noqa: F401
except ImportError as error:
    raise ImportError("Drawing needs plotly: pip install 'dynatree-lib[notebooks]'.") from error

from .charts import (
    bars_with_intervals,
    cost_curve,
    distribution,
    heatmap,
    interval_dots,
    scatter,
    stacked_bars,
    sweep_lines,
)
from .iterations import acceptance_by_depth, calibration, text_iterations, timeline
from .lines import line_panels
from .panels import bars_by_panel, iteration_rows, stacked_trees
from .rows import calibration_rows, depth_rows, node_rows, rank_rows, wilson
from .theme import METHOD_COLORS, TEMPLATE
from .trees import draft_tree, positions, tree_mask
from .verification import distribution_panels, step_row, verification_steps

__all__ = [
    "METHOD_COLORS",
    "TEMPLATE",
    "acceptance_by_depth",
    "bars_by_panel",
    "bars_with_intervals",
    "calibration",
    "calibration_rows",
    "cost_curve",
    "depth_rows",
    "distribution",
    "distribution_panels",
    "draft_tree",
    "heatmap",
    "interval_dots",
    "iteration_rows",
    "line_panels",
    "node_rows",
    "positions",
    "rank_rows",
    "scatter",
    "stacked_bars",
    "stacked_trees",
    "step_row",
    "sweep_lines",
    "text_iterations",
    "timeline",
    "tree_mask",
    "verification_steps",
    "wilson",
]
