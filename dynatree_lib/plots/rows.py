"""Rounds as plain rows: what happened to every drafted node, counted by depth, by child rank and by probability.

The rows are what notebooks write into their records and what the figures here are drawn from. Nothing is estimated
beyond counting; the interval is Wilson's for a share.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..decoding import Iteration

Row = dict[str, Any]


def node_rows(iterations: Iterable[Iteration]) -> list[Row]:
    """One row per drafted node.

    Keys: `round`, `node`, `parent`, `token`, `depth`, `rank` (0 for the draft's first choice among siblings),
    `probability` (of the token after its path), `cumulative` (of the whole path), `reached` (its parent was kept, so
    the target decided on this node), `accepted`.
    """
    return [row for number, one in enumerate(iterations) for row in _nodes_of(number, one)]


def _nodes_of(number: int, one: Iteration) -> Iterable[Row]:
    tree, kept = one.tree, {0, *one.verdict.path}
    seen: dict[int, int] = {}  # parent -> children met so far
    for node in range(1, len(tree)):
        parent = int(tree.parents[node])
        rank = seen.get(parent, 0)
        seen[parent] = rank + 1
        yield {
            "round": number,
            "node": node,
            "parent": parent,
            "token": int(tree.tokens[node]),
            "depth": int(tree.depths[node]),
            "rank": rank,
            "probability": math.exp(tree.logprobs[node]),
            "cumulative": math.exp(tree.cumulative[node]),
            "reached": parent in kept,
            "accepted": node in kept,
        }


def depth_rows(iterations: Iterable[Iteration]) -> list[Row]:
    """One row per level d of the trees.

    Keys: `depth`, `reached` (rounds that kept a path to level d - 1 and drafted children there), `accepted` (of those,
    rounds that kept a node at level d), `acceptance` (their ratio), `interval`.
    """
    rows: list[Row] = []
    iterations = list(iterations)
    for depth in range(1, max((one.tree.depth for one in iterations), default=0) + 1):
        reached = [one for one in iterations if len(one.verdict.path) >= depth - 1 and _drafted(one, depth)]
        accepted = sum(len(one.verdict.path) >= depth for one in reached)
        if reached:
            rows.append({"depth": depth, **_share("reached", len(reached), accepted)})
    return rows


def _drafted(one: Iteration, depth: int) -> bool:
    """Whether the kept path had children at `depth`."""
    last = (0, *one.verdict.path)[depth - 1]
    return bool(len(one.tree.children(last)))


def rank_rows(nodes: Iterable[Row]) -> list[Row]:
    """One row per child rank, over the nodes whose parent was kept: `rank`, `reached`, `accepted`, `acceptance`,
    `interval`. The acceptances of the ranks add up to the chance that some child of a kept node is kept."""
    return _grouped(nodes, "rank", lambda row: row["rank"] if row["reached"] else None, "reached")


def calibration_rows(nodes: Iterable[Row], key: str = "cumulative", bins: int = 10) -> list[Row]:
    """Nodes grouped by draft probability into `bins` equal bins.

    Keys: `bin`, `mean` (mean draft probability in the bin), `nodes`, `accepted`, `acceptance`, `interval`.
    """
    nodes = list(nodes)
    rows = _grouped(nodes, "bin", lambda row: min(int(row[key] * bins), bins - 1), "nodes")
    for row in rows:
        inside = [node[key] for node in nodes if min(int(node[key] * bins), bins - 1) == row["bin"]]
        row["mean"] = sum(inside) / len(inside)
    return rows


def _grouped(nodes: Iterable[Row], name: str, group: Callable[[Row], int | None], counted: str) -> list[Row]:
    groups: dict[int, list[bool]] = {}
    for row in nodes:
        place = group(row)
        if place is not None:
            groups.setdefault(place, []).append(row["accepted"])
    return [{name: place, **_share(counted, len(hits), sum(hits))} for place, hits in sorted(groups.items())]


def _share(counted: str, count: int, accepted: int) -> Row:
    interval = wilson(accepted, count)
    return {counted: count, "accepted": accepted, "acceptance": accepted / count, "interval": interval}


def wilson(hits: int, count: int, z: float = 1.96) -> list[float]:
    """[low, high] of a share of `hits` in `count` > 0 trials, 95 % for z = 1.96."""
    share, spread = hits / count, z * z / count
    center = (share + spread / 2) / (1 + spread)
    half = math.sqrt(spread * share * (1 - share) + spread * spread / 4) / (1 + spread)
    return [max(0.0, center - half), min(1.0, center + half)]


def span(rows: Sequence[Row], key: str) -> list[Any]:
    """The distinct values of a column, in order of appearance."""
    return list(dict.fromkeys(row[key] for row in rows))
