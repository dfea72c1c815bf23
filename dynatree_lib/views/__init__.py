"""Figures: pure functions from rounds and record rows to plotly figures. Nothing is run, measured or read here.

Pictures of a tree: `draft_tree`, `grown_tree`, `tree_mask`, `positions`; of several: `stacked_trees`. Of many
iterations: `text_rounds` (HTML), `timeline`, `adaptation`, `acceptance_by_depth`, `calibration`. Of records:
`bars_with_intervals`, `bars_by_panel`, `sweep_lines`, `line_panels`, `progression`, `heatmap`, `scatter`,
`distribution`, `stacked_bars`, `cost_curve`. Rows for them from Rounds: `node_rows`, `growth_rows`, `depth_rows`,
`rank_rows`, `calibration_rows`, `iteration_rows`. Of verification: `verification_steps` (rows by `step_row`),
`law_panels`. Of one rule's gain over another: `gain_panels`, `gain_plane`. Of drafting inside the target's forward:
`forward_trees`, `forward_mask`, `draft_steps`, `pool_trees`. Of speed: `bound_plane`, `roofline`, `engine_curves`,
`cost_growth`, `iteration_timeline`, `iteration_parts`. Of rounding: `flip_rates`, `margin_histograms`.
"""

from __future__ import annotations

try:
    import plotly as _plotly  # noqa: F401
except ImportError as error:
    raise ImportError("Drawing needs plotly: pip install 'dynatree-lib[notebooks]'.") from error

from .ablation import Panel, adaptation, progression
from .charts import bars_with_intervals, cost_curve, distribution, heatmap, scatter, stacked_bars, sweep_lines
from .drafting import draft_births, draft_steps, forward_mask, forward_trees, pool_trees
from .gains import gain_panels, gain_plane
from .growth import grown_tree, growth_rows
from .panels import bars_by_panel, iteration_rows, stacked_trees
from .precision import flip_rates, margin_histograms
from .rounds import acceptance_by_depth, calibration, text_rounds, timeline
from .rows import calibration_rows, depth_rows, node_rows, rank_rows, wilson
from .scaling import line_panels
from .settings import interval_dots, setting_scatter
from .speed import bound_plane, cost_growth, engine_curves, iteration_parts, iteration_timeline, roofline
from .theme import METHOD_COLORS, TEMPLATE
from .trees import draft_tree, positions, tree_mask
from .verification import law_panels, step_row, verification_steps

__all__ = [
    "METHOD_COLORS",
    "TEMPLATE",
    "Panel",
    "acceptance_by_depth",
    "adaptation",
    "bars_by_panel",
    "bars_with_intervals",
    "bound_plane",
    "calibration",
    "calibration_rows",
    "cost_curve",
    "cost_growth",
    "depth_rows",
    "distribution",
    "draft_births",
    "draft_steps",
    "draft_tree",
    "engine_curves",
    "flip_rates",
    "forward_mask",
    "forward_trees",
    "gain_panels",
    "gain_plane",
    "grown_tree",
    "growth_rows",
    "heatmap",
    "interval_dots",
    "iteration_parts",
    "iteration_rows",
    "iteration_timeline",
    "law_panels",
    "line_panels",
    "margin_histograms",
    "node_rows",
    "pool_trees",
    "positions",
    "progression",
    "rank_rows",
    "roofline",
    "scatter",
    "setting_scatter",
    "stacked_bars",
    "stacked_trees",
    "step_row",
    "sweep_lines",
    "text_rounds",
    "timeline",
    "tree_mask",
    "verification_steps",
    "wilson",
]
