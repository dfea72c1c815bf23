"""Figures: pure functions from iterations and record rows to plotly figures. Nothing is run, measured or read here.

`trees` draws a tree (`draft_tree`, `seen_tree`, `tree_mask`, `positions`) or several (`stacked_trees`), `forward` one
with a side tree (`forward_trees`, `forward_mask`). `iterations` counts nodes (`node_rows`, `depth_rows`, `rank_rows`,
`calibration_rows`, `iteration_rows`) and draws many iterations. `charts` draws records, `methods` places methods beside
each other, `clock` draws a traced run, `verification` the steps of a verification rule. Figures of one paper stand in
`experiments`.
"""

from __future__ import annotations

try:
    import plotly as _plotly  # noqa: F401
except ImportError as error:
    raise ImportError("Drawing needs plotly: pip install 'dynatree-lib[notebooks]'.") from error

from .charts import (
    bars_by_panel,
    bars_with_intervals,
    heatmap,
    interval_dots,
    line_panels,
    scatter,
    stacked_bars,
    sweep_lines,
)
from .clock import iteration_timeline
from .forward import forward_mask, forward_trees
from .iterations import (
    acceptance_by_depth,
    calibration,
    calibration_rows,
    depth_rows,
    iteration_rows,
    node_rows,
    rank_rows,
    step_text,
    text_iterations,
    timeline,
)
from .methods import method_plane, method_speeds
from .theme import METHOD_COLORS, TEMPLATE
from .trees import draft_tree, positions, seen_tree, stacked_trees, tree_mask
from .verification import acceptance_tree, distribution_panels, fraction, step_row, verification_steps

__all__ = [
    "METHOD_COLORS", "TEMPLATE", "acceptance_by_depth", "acceptance_tree", "bars_by_panel", "bars_with_intervals",
    "calibration", "calibration_rows", "depth_rows", "distribution_panels", "draft_tree", "forward_mask",
    "forward_trees", "fraction", "heatmap", "interval_dots", "iteration_rows", "iteration_timeline", "line_panels",
    "method_plane", "method_speeds", "node_rows", "positions", "rank_rows", "scatter", "seen_tree", "stacked_bars",
    "stacked_trees", "step_row", "step_text", "sweep_lines", "text_iterations", "timeline", "tree_mask",
    "verification_steps",
]  # fmt: skip
