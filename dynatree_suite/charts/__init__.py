"""Charts of records: pure functions from rows to plotly figures. Nothing is run, measured or read here.

`charts` draws bars, sweeps, dots and heat maps, `acceptance` counts and draws accepted nodes, `methods` places methods
beside each other, `clock` draws a traced run, `distributions` what is emitted beside what the target wants. `look` has
the colours of methods. Figures of one paper stand in its folder of `papers`; pictures of one decode in
`dynatree_lib.plots`.
"""

from __future__ import annotations

from .acceptance import acceptance_by_depth, calibration, calibration_rows, depth_rows, rank_rows
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
from .distributions import distribution_panels
from .methods import method_plane, method_speeds

__all__ = [
    "acceptance_by_depth", "bars_by_panel", "bars_with_intervals", "calibration", "calibration_rows", "depth_rows",
    "distribution_panels", "heatmap", "interval_dots", "iteration_timeline", "line_panels", "method_plane",
    "method_speeds", "rank_rows", "scatter", "stacked_bars", "sweep_lines",
]  # fmt: skip
