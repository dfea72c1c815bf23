"""Figures of DynaTree adaptive: how a tree grew (its Figure 3), and history along texts.

Decisions are read off the finished tree and the values in use; nothing is drafted or measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from plotly import graph_objects as go

from dynatree_lib.decoding import Iteration
from dynatree_lib.drafters import AdaptiveTree
from dynatree_lib.plots import theme
from dynatree_lib.plots.trees import Style, draw_trees, tree_boxes

from ...bench.statistics import Table
from ...charts.charts import Row, line_panels

# ------------------------------------------------------------------------------------------------- growth of one tree
TALL = 50  # px between two leaves whose boxes have two lines


def growth_rows(iteration: Iteration, drafter: AdaptiveTree) -> list[Row]:
    """Return one row per node of a tree that `drafter` drafted.

    Keys: `node`, `level` d(u), `path` p(u), `confidence` c(u) (the draft's best next token; None for a leaf),
    `children`, `decision` (a key of `decision_styles`: the breadth of an expanded node, or the rule that kept a leaf
    from being expanded), `deep` (expanded although d(u) >= D_0).

    Raises:
        ValueError: if the iteration does not carry an adaptive tree's values.
    """
    tree, now = iteration.tree, iteration.report
    if "base_depth" not in now:
        raise ValueError(
            f"This iteration's adaptation has {', '.join(now) or 'no values'}; growth_rows needs an iteration of an "
            "AdaptiveTree, which reports base_depth, tau_high and rho_deep."
        )
    rows = []
    for node in range(len(tree)):
        children, level, path = tree.children(node), int(tree.depths[node]), float(tree.cumulative[node])
        row: Row = {"node": node, "level": level, "path": math.exp(path), "children": len(children)}
        if len(children):
            best, deep = float(tree.logprobs[children[0]]), level >= int(now["base_depth"])
            row |= {"confidence": math.exp(best), "decision": _breadth(best, level, drafter, now), "deep": deep}
        else:
            row |= {"confidence": None, "decision": _stopped(path, level, drafter, now), "deep": False}
        rows.append(row)
    return rows


def _breadth(best: float, level: int, drafter: AdaptiveTree, now: Mapping[str, float]) -> str:
    if drafter.root == "draft" and level == 0:
        return "top-1"
    if drafter.breadth is None:
        return "B_mid"
    return "B_min" if best >= math.log(now["tau_high"]) else "B_max" if best < math.log(drafter.tau_low) else "B_mid"


def _stopped(cumulative: float, level: int, drafter: AdaptiveTree, now: Mapping[str, float]) -> str:
    """Say why a leaf was not expanded, in the order of Algorithm 1 but for tau, which acts only above rho_stop."""
    gated = drafter.depth is not None
    if gated and level >= drafter.max_depth:
        return "D_max"
    if gated and cumulative < math.log(drafter.rho_stop):
        return "rho_stop"
    if drafter.tau is not None and cumulative < math.log(drafter.tau):
        return "tau"
    deep = math.log(now["rho_deep"])
    passes = gated and (cumulative > deep if drafter.deep == ">" else cumulative >= deep)
    return "D_0" if level >= int(now["base_depth"]) and not passes else "no room"


def grown_tree(iteration: Iteration, drafter: AdaptiveTree, tokenizer: object = None) -> go.Figure:
    """Draw Figure 3 of DynaTree adaptive from a real tree: every node with p(u) and c(u), coloured by the decision.

    Args:
        iteration: an iteration of `drafter`.
        drafter: the hyper-parameters it ran with.
        tokenizer: shows token text instead of numbers.
    """
    rows, tree, now = growth_rows(iteration, drafter), iteration.tree, iteration.report
    values = (
        f"D₀ = {now['base_depth']:.2f}, D_max = {drafter.max_depth}, τ_h = {now['tau_high']:.2f}, "
        f"τ_ℓ = {drafter.tau_low:.2f}, ρ_stop = {drafter.rho_stop:.2f}, ρ_deep = {now['rho_deep']:.2f}"
    )
    notes, details = [], []
    for row in rows:
        number, detail = f"p {row['path']:.2f}", f"node {row['node']}, level {row['level']}, p(u) {row['path']:.4f}"
        if row["confidence"] is not None:
            number += f" · c {row['confidence']:.2f}"
            detail += f"<br>c(u) {row['confidence']:.4f}, {row['children']} children"
        notes.append("<br>" + number.replace(" 0.", " ."))
        details.append("<br>" + detail)
    roles, deep = [row["decision"] for row in rows], [row["node"] for row in rows if row["deep"]]
    boxes = tree_boxes(tree, roles, tokenizer, notes=notes, details=details, ringed=deep)
    ring = (f"thick: expanded at D₀ = {int(now['base_depth'])} or deeper, p(u) > ρ_deep", theme.INK)
    return draw_trees([("", boxes)], decision_styles(drafter, now), title=values, row_height=TALL, ring=ring)


def decision_styles(drafter: AdaptiveTree, now: Mapping[str, float]) -> dict[str, Style]:
    """Return for each decision about a node its text in the legend, with the values in use, and its colours.

    Nodes of the first four were expanded.
    """
    high, low = f"{now['tau_high']:.2f}", f"{drafter.tau_low:.2f}"
    middle = f"{low} ≤ c(u) < {high}" if drafter.breadth else "breadth is fixed"
    shallow = f"leaf: at D₀, p(u) ≤ ρ_deep = {now['rho_deep']:g}" if drafter.depth else "leaf: at D₀"
    budget = f"leaf: node budget {drafter.max_nodes} or text length used up"
    budget += ", or no child above τ" if drafter.prune == "remove" else ""
    return {
        "B_min": (f"B_min = {drafter.min_branching}: c(u) ≥ {high}", theme.DRAFTED),
        "B_mid": (f"B_mid = {drafter.mid_branching}: {middle}", theme.ACCEPTED),
        "B_max": (f"B_max = {drafter.max_branching}: c(u) < {low}", theme.BONUS),
        "top-1": ("the draft's top-1 token alone", theme.NODE0),
        "rho_stop": (f"leaf: p(u) < ρ_stop = {drafter.rho_stop:g}", theme.BELOW_TAU),
        "D_0": (shallow, ("#ececec", "#8c8c8c", "#4c4c4c")),
        "D_max": (f"leaf: at D_max = {drafter.max_depth}", ("#e3d7ea", "#882255", "#46112c")),
        "tau": (f"leaf: p(u) < τ = {drafter.tau}", theme.BELOW_TAU),
        "no room": (budget, ("#f7d9d9", "#c44e4e", "#5c1f1f")),
    }


# ------------------------------------------------------------------------------------------------------------ history
DASHES = ("solid", "dash", "dot", "dashdot", "longdash")


def adaptation(
    table: Table,
    panels: Mapping[str, str],
    *,
    x: str = "tokens",
    references: Mapping[str, float] | None = None,
    marks: Iterable[float] = (),
    title: str = "",
    x_title: str = "",
) -> go.Figure:
    """Draw a drafter's state as texts grow: one panel per quantity, one step line per series.

    Args:
        table: one row per iteration and series with `series` and the column `x`, such as `ablation.adaptation_frame`.
        panels: column -> title of the panel's axis, from top to bottom.
        x: column of the horizontal axis.
        references: column -> a value to mark with a horizontal line (a target, a bound).
        marks: places on the horizontal axis to mark with vertical lines (where texts begin).
        title: above the figure.
        x_title: of the horizontal axis.
    """
    words: Row = {"title": title, "x_title": x_title, "references": references, "columns": 1}
    drawn = line_panels(table, x, dict.fromkeys(panels, ""), "series", **words).update_xaxes(matches="x")
    names = list(dict.fromkeys(trace.name for trace in drawn.data))
    for trace in drawn.data:
        dash = DASHES[names.index(trace.name) % len(DASHES)]
        trace.update(mode="lines", line={"shape": "hv", "width": 2.2, "dash": dash})
    for row, text in enumerate(panels.values(), start=1):
        drawn.update_yaxes(title_text=text, row=row)
    for mark in marks:
        drawn.add_vline(x=mark, line={"color": "#cccccc", "width": 1}, layer="below")
    return drawn.update_layout(height=130 + 190 * len(panels))
