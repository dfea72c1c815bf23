"""Pictures of one decode: pure functions from trees, iterations and verdicts to plotly figures and HTML.

`trees` draws a tree (`draft_tree`, `seen_tree`, `tree_mask`, `positions`) or several (`stacked_trees`), `forward` one
with a side tree (`forward_trees`, `forward_mask`). `iterations` lists nodes and iterations as rows (`node_rows`,
`iteration_rows`) and shows a text by iteration. `verification` draws the steps of a verification rule.
"""

from __future__ import annotations

try:
    import plotly as _plotly  # noqa: F401
except ImportError as error:
    raise ImportError("Drawing needs plotly: pip install plotly.") from error

from .forward import forward_mask, forward_trees
from .iterations import iteration_rows, node_rows, step_text, text_iterations, timeline
from .theme import TEMPLATE
from .trees import draft_tree, positions, seen_tree, stacked_trees, tree_mask
from .verification import acceptance_tree, fraction, step_row, verification_steps

__all__ = [
    "TEMPLATE", "acceptance_tree", "draft_tree", "forward_mask",
    "forward_trees", "fraction", "iteration_rows", "node_rows", "positions", "seen_tree", "stacked_trees", "step_row",
    "step_text", "text_iterations", "timeline", "tree_mask", "verification_steps",
]  # fmt: skip
