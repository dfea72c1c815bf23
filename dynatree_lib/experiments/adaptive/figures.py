"""How an adaptive tree grew: each node's breadth by confidence, and the rule that stopped it (DynaTree adaptive,
section 3.3, Figure 3). The decisions are read off the finished tree and the values in use; nothing is drafted here."""

from __future__ import annotations

import math
from collections.abc import Sequence

from plotly import graph_objects as go

from ...decoding import Iteration
from ...drafters import AdaptiveTree
from ...plots import theme
from ...plots.rows import Row
from ...plots.tokens import label
from ...plots.trees import LONGEST_LABEL, draft_tree
from ...tree import TokenTree

STRETCH = 1.45  # two lines in a box instead of one

# What the rule decided for a node -> (fill, line, ink). The first four were expanded.
DECISIONS = {
    "B_min": ("#dcebf8", "#0072b2", "#0b2d45"),
    "B_mid": ("#c9eddf", "#009e73", "#0b3d2e"),
    "B_max": ("#fde6b8", "#e69f00", "#4d3500"),
    "top-1": (theme.INK, theme.INK, "#ffffff"),
    "rho_stop": ("#ffffff", "#c4c4c4", "#767676"),
    "D_0": ("#ececec", "#8c8c8c", "#4d4d4d"),
    "D_max": ("#e3d7ea", "#882255", "#46112c"),
    "tau": ("#ffffff", "#c4c4c4", "#767676"),
    "no room": ("#f7d9d9", "#c44e4e", "#5c1f1f"),
}


def growth_rows(one: Iteration, drafter: AdaptiveTree) -> list[Row]:
    """One row per node of a tree that `drafter` drafted.

    Keys: `node`, `level` d(u), `path` p(u), `confidence` c(u) (the draft's best next token; None for a leaf),
    `children`, `decision` (a key of `DECISIONS`: the breadth of an expanded node, or what kept a leaf from being
    expanded), `deep` (expanded although d(u) >= D_0).

    Raises:
        ValueError: if the round does not carry an adaptive tree's values.
    """
    if "base_depth" not in one.adaptation:
        raise ValueError(
            f"This round's adaptation has {', '.join(one.adaptation) or 'no values'}; growth_rows needs a round of an "
            "AdaptiveTree, which reports base_depth, tau_high and rho_deep."
        )
    return [_row(node, one.tree, drafter, one.adaptation) for node in range(len(one.tree))]


def _row(node: int, tree: TokenTree, drafter: AdaptiveTree, now: dict[str, float]) -> Row:
    children, level = tree.children(node), int(tree.depths[node])
    best = float(tree.logprobs[children[0]]) if len(children) else None
    if best is None:
        decision = _stopped(float(tree.cumulative[node]), level, drafter, now)
    elif drafter.root == "draft" and level == 0:
        decision = "top-1"
    else:
        decision = _breadth(best, drafter, now)
    return {
        "node": node,
        "level": level,
        "path": math.exp(tree.cumulative[node]),
        "confidence": None if best is None else math.exp(best),
        "children": len(children),
        "decision": decision,
        "deep": best is not None and level >= int(now["base_depth"]),
    }


def _breadth(best: float, drafter: AdaptiveTree, now: dict[str, float]) -> str:
    if drafter.breadth is None:
        return "B_mid"
    return "B_min" if best >= math.log(now["tau_high"]) else "B_max" if best < math.log(drafter.tau_low) else "B_mid"


def _stopped(cumulative: float, level: int, drafter: AdaptiveTree, now: dict[str, float]) -> str:
    """Why a leaf was not expanded, in the order of Algorithm 1 but for tau, which acts only above rho_stop."""
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


def grown_tree(one: Iteration, drafter: AdaptiveTree, tokenizer: object = None, *, title: str = "") -> go.Figure:
    """Figure 3 of DynaTree adaptive, of a real tree: every node with p(u) and c(u), coloured by what the rule decided.

    Args:
        one: an iteration of `drafter`.
        drafter: the hyper-parameters it ran with.
        tokenizer: shows token text instead of numbers.
        title: above the figure; by default the values in use.
    """
    rows, tree = growth_rows(one, drafter), one.tree
    drawn = draft_tree(tree, tokenizer, title=title or _values(drafter, one.adaptation))
    places = [(note.x, note.y) for note in drawn.layout.annotations]  # without a verdict: in the order of the nodes
    drawn.data = [trace for trace in drawn.data if trace.mode == "lines"]
    drawn.update_layout(height=round((drawn.layout.height - 120) * STRETCH) + 130, margin_t=105)
    for decision in (name for name in DECISIONS if any(row["decision"] == name for row in rows)):
        mine = [row for row in rows if row["decision"] == decision]
        _legend(drawn, decision, [places[row["node"]] for row in mine], _meaning(decision, drafter, one.adaptation))
    for note, row in zip(drawn.layout.annotations, rows, strict=True):
        fill, line, ink = DECISIONS[row["decision"]]
        width, color = (3, theme.INK) if row["deep"] else (1.3, line)
        token = theme.escaped(label(int(tree.tokens[row["node"]]), tokenizer, LONGEST_LABEL))
        note.update(text=f"<b>{token}</b><br>{_numbers(row)}", bgcolor=fill, bordercolor=color, borderwidth=width)
        note.update(font={"color": ink, "size": 12}, align="left", hovertext=_hover(row, token))
    if any(row["deep"] for row in rows):
        base = int(one.adaptation["base_depth"])
        _legend(drawn, "deep", [], f"thick: expanded at D₀ = {base} or deeper, p(u) > ρ_deep")
    return drawn


def _legend(drawn: go.Figure, decision: str, places: Sequence[tuple[float, float]], text: str) -> None:
    fill, line, _ = DECISIONS.get(decision, ("#ffffff", theme.INK, ""))
    marker = {"symbol": "square", "size": 12, "color": fill, "line": {"color": line, "width": 2}}
    x, y = zip(*places, strict=True) if places else ([None], [None])
    drawn.add_scatter(x=x, y=y, mode="markers", marker=marker, name=text, hoverinfo="skip")


def _values(drafter: AdaptiveTree, now: dict[str, float]) -> str:
    return (
        f"D₀ = {now['base_depth']:.2f}, D_max = {drafter.max_depth}, τ_h = {now['tau_high']:.2f}, "
        f"τ_ℓ = {drafter.tau_low:.2f}, ρ_stop = {drafter.rho_stop:.2f}, ρ_deep = {now['rho_deep']:.2f}"
    )


def _meaning(decision: str, drafter: AdaptiveTree, now: dict[str, float]) -> str:
    high, low = f"{now['tau_high']:.2f}", f"{drafter.tau_low:.2f}"
    breadths = {
        "B_min": f"B_min = {drafter.min_branching}: c(u) ≥ {high}",
        "B_mid": f"B_mid = {drafter.mid_branching}"
        + (f": {low} ≤ c(u) < {high}" if drafter.breadth else ": breadth is fixed"),
        "B_max": f"B_max = {drafter.max_branching}: c(u) < {low}",
        "top-1": "the draft's top-1 token alone",
    }
    stops = {
        "rho_stop": f"leaf: p(u) < ρ_stop = {drafter.rho_stop:g}",
        "D_0": f"leaf: at D₀, p(u) ≤ ρ_deep = {now['rho_deep']:g}" if drafter.depth else "leaf: at D₀",
        "D_max": f"leaf: at D_max = {drafter.max_depth}",
        "tau": f"leaf: p(u) < τ = {drafter.tau}",
        "no room": f"leaf: node budget {drafter.max_nodes} or text length used up"
        + (", or no child above τ" if drafter.prune == "remove" else ""),
    }
    return (breadths | stops)[decision]


def _numbers(row: Row) -> str:
    path = f"p {_short(row['path'])}"
    return path if row["confidence"] is None else f"{path} · c {_short(row['confidence'])}"


def _short(value: float) -> str:
    return f"{value:.2f}".removeprefix("0")


def _hover(row: Row, token: str) -> str:
    lines = [f"<b>{token}</b>", f"node {row['node']}, level {row['level']}, p(u) {row['path']:.4f}"]
    if row["confidence"] is not None:
        lines.append(f"c(u) {row['confidence']:.4f}, {row['children']} children")
    return "<br>".join(lines)
