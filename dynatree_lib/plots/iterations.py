"""Pictures of many iterations: the text by iteration, lengths over time, acceptance by depth, calibration."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence
from typing import Any

from plotly import graph_objects as go

from ..decoding import Generation, Iteration
from . import theme
from .rows import Row, depth_rows
from .tokens import pieces

SHADES = ("#cfe8f7", "#d8f0df")
"""Background of accepted tokens, alternating from iteration to iteration."""


class Html(str):
    """HTML that a notebook shows as such when it is a cell's last value."""

    def _repr_html_(self) -> str:
        return str(self)


def text_iterations(generation: Generation, tokenizer: Any = None, *, prompt: str = "") -> Html:
    """The generated text, coloured by iteration: drafted and accepted tokens shaded, bonus tokens framed.

    Args:
        generation: result of `generate`.
        tokenizer: decodes the tokens; without one their numbers are shown.
        prompt: shown in grey before the text.
    """
    texts = iter(pieces(generation.tokens, tokenizer))
    parts = [f'<span style="color:#767676">{html.escape(prompt)}</span>'] if prompt else []
    for number, one in enumerate(generation.iterations):
        for place in range(one.committed):
            parts.append(_token(next(texts), number, place, one))
    legend = (
        f"{_swatch(SHADES[0])} {_swatch(SHADES[1])} drafted and accepted, one shade per iteration &nbsp; "
        f"{_swatch(theme.BONUS[0], theme.BONUS[1])} bonus token, the target's own &nbsp; "
        f"{len(generation.tokens)} tokens in {len(generation.iterations)} target forwards"
    )
    box = f"color:{theme.INK};background:#fff;padding:12px;max-width:1000px"
    # <pre>, because exporters that re-parse HTML shorten white space anywhere else
    look = "font:14px/1.75 monospace;white-space:pre-wrap;overflow-wrap:anywhere;margin:0;padding:0;border:0"
    return Html(
        f'<div style="{box}"><div style="font:13px {theme.FONT};margin-bottom:10px">{legend}</div>'
        f'<pre style="{look};background:none;color:inherit">{"".join(parts)}</pre></div>'
    )


def _swatch(fill: str, line: str = "#bbbbbb") -> str:
    return (
        f'<span style="display:inline-block;width:14px;height:14px;vertical-align:-2px;background:{fill};'
        f'border:1px solid {line}"></span>'
    )


def _token(text: str, number: int, place: int, one: Iteration) -> str:
    bonus = place == len(one.verdict.path)
    what = "bonus token" if bonus else f"accepted, node {one.verdict.path[place]} of {len(one.tree) - 1}"
    shown = html.escape(text).replace("\n", '<span style="color:#666">⏎</span>\n')
    look = (
        f"background:{theme.BONUS[0]};box-shadow:inset 0 0 0 1px {theme.BONUS[1]}"
        if bonus
        else f"background:{SHADES[number % 2]}"
    )
    return f'<span title="iteration {number}: {what}" style="{look}">{shown}</span>'


def timeline(iterations: Sequence[Iteration], *, title: str = "") -> go.Figure:
    """Tokens committed by each iteration: accepted drafted tokens, the bonus token, and how deep the tree was."""
    number = list(range(len(iterations)))
    tokens = sum(one.committed for one in iterations)
    title = title or f"{tokens} tokens in {len(iterations)} iterations"
    drawn = theme.figure(title, x="iteration (one target forward each)", y="tokens", barmode="stack", height=360)
    accepted = [len(one.verdict.path) for one in iterations]
    drawn.add_bar(x=number, y=accepted, name="drafted and accepted", marker_color=theme.ACCEPTED[1])
    drawn.add_bar(x=number, y=[1] * len(iterations), name="bonus token", marker_color=theme.BONUS[1])
    drawn.add_scatter(
        x=number,
        y=[one.tree.depth for one in iterations],
        name="levels drafted",
        mode="markers",
        marker={"symbol": "line-ew-open", "size": 10, "color": theme.INK, "line": {"width": 2}},
    )
    drawn.update_yaxes(dtick=1 if max(accepted, default=0) < 10 else None)
    return drawn


def acceptance_by_depth(
    rows: Iterable[Row] | Iterable[Iteration], *, series: str = "method", title: str = ""
) -> go.Figure:
    """How often the kept path goes on at each depth, given that it came so far.

    Args:
        rows: `depth_rows(rounds)` (keys `depth`, `acceptance`, `interval`, `reached`), with a column `series` where
            there are several lines; or Rounds.
        series: the column that tells lines apart.
        title: above the figure.
    """
    given: list[Any] = list(rows)
    table: list[Row] = depth_rows(given) if given and isinstance(given[0], Iteration) else given
    title = title or "Acceptance at each depth of the tree"
    drawn = theme.figure(title, x="depth (levels below node 0)", y="share of rounds that go on", height=400)
    names = list(dict.fromkeys(row.get(series, "") for row in table))
    colors, symbols = theme.series_colors(names), theme.series_symbols(names)
    for name in names:
        mine = [row for row in table if row.get(series, "") == name]
        drawn.add_scatter(
            x=[row["depth"] for row in mine],
            y=[row["acceptance"] for row in mine],
            error_y=error_bars([row["acceptance"] for row in mine], [row["interval"] for row in mine]),
            text=[f"{row['accepted']} of {row['reached']} rounds" for row in mine],
            hovertemplate="depth %{x}: %{y:.3f} (%{text})<extra></extra>",
            mode="lines+markers",
            name=str(name) or "measured",
            line={"color": colors[name]},
            marker={"size": 9, "symbol": symbols[name]},
        )
    drawn.update_yaxes(range=[0, 1.05])
    drawn.update_xaxes(dtick=1)
    return theme.finish(drawn, len(names) > 1)


def calibration(rows: Sequence[Row], *, title: str = "") -> go.Figure:
    """Share of accepted nodes against their draft probability, with the diagonal of a draft that knows itself.

    Args:
        rows: `calibration_rows(...)`: keys `mean`, `acceptance`, `interval`, `nodes`.
        title: above the figure.
    """
    title = title or "Does a node's draft probability say whether it will be accepted?"
    drawn = theme.figure(title, x="mean draft probability of the nodes in a bin", y="share accepted", height=440)
    ideal = {"color": theme.MUTED, "dash": "dash", "width": 1.5}
    drawn.add_scatter(x=[0, 1], y=[0, 1], mode="lines", line=ideal, name="perfectly calibrated", hoverinfo="skip")
    most = max((row["nodes"] for row in rows), default=1)
    drawn.add_scatter(
        x=[row["mean"] for row in rows],
        y=[row["acceptance"] for row in rows],
        error_y=error_bars([row["acceptance"] for row in rows], [row["interval"] for row in rows]),
        text=[f"{row['accepted']} of {row['nodes']} nodes" for row in rows],
        hovertemplate="draft %{x:.3f}, accepted %{y:.3f}: %{text}<extra></extra>",
        mode="lines+markers",
        name="measured (area of a dot: number of nodes)",
        line={"color": theme.METHOD_COLORS["fixed-tree"], "width": 1.5},
        marker={"size": [6 + 20 * (row["nodes"] / most) ** 0.5 for row in rows], "opacity": 0.85},
    )
    drawn.update_xaxes(range=[-0.03, 1.03])
    drawn.update_yaxes(range=[-0.03, 1.06])
    return drawn


def error_bars(values: Sequence[float | None], intervals: Sequence[Sequence[float] | None]) -> dict[str, Any] | None:
    """Error bars from values and [low, high] intervals; None where no interval is known."""
    if not any(intervals):
        return None
    pairs = [(value, interval) for value, interval in zip(values, intervals, strict=True)]
    high = [0.0 if v is None or not i else max(0.0, i[1] - v) for v, i in pairs]
    low = [0.0 if v is None or not i else max(0.0, v - i[0]) for v, i in pairs]
    return {
        "type": "data",
        "symmetric": False,
        "array": high,
        "arrayminus": low,
        "thickness": 1.5,
        "width": 4,
        "color": "#444444",
    }
