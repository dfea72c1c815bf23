"""Draw the README's picture: the tree of one real iteration of the bundled pair, as an SVG file written by hand.

    python3 tools/make_picture.py [docs/images/tree.svg]

Roles differ by colour and by line style. The picture has its own background and follows the reader's colour scheme, so
that it is legible on a light page and on a dark page.
"""

from __future__ import annotations

import sys
from html import escape
from pathlib import Path

import numpy as np

import dynatree_lib as dt
from dynatree_lib.models.texts import label

PROMPT = "def read_lines(path):"
NUMBER = 18
"""Index of the iteration that is drawn."""

BOX, LEVEL, ROW, HEIGHT = 132, 163, 44, 30
"""Width of a box, distances of levels and of rows, height of a box; px."""
LEFT, TOP, BOTTOM = 24, 92, 100

LIGHT = {
    "page": "#ffffff", "edge": "#d5d9de", "ink": "#1f2328", "quiet": "#59636e",
    "good": "#067a5b", "good fill": "#dff5ec", "more": "#9a6200", "more fill": "#fff1d2", "bad": "#7b838c",
    "bad fill": "#f4f5f6",
}  # fmt: skip
DARK = {
    "page": "#15191f", "edge": "#363d46", "ink": "#e6edf3", "quiet": "#a3adb8",
    "good": "#3ecf9b", "good fill": "#10352a", "more": "#f0b440", "more fill": "#3a2c0c", "bad": "#8b949e",
    "bad fill": "#1d2229",
}  # fmt: skip
SHAPES = """
text { font-family: "Segoe UI", "Helvetica Neue", Helvetica, Arial, "DejaVu Sans", sans-serif; font-size: 14px; }
.token, .code { font-family: ui-monospace, "SF Mono", Menlo, Consolas, "DejaVu Sans Mono", monospace; }
.token { font-size: 13.5px; font-weight: 600; }
.share { font-size: 12px; text-anchor: end; }
.good, .more { font-weight: 600; }
.strong { font-size: 15.5px; font-weight: 600; }
.edge { fill: none; }
.accepted rect { stroke-width: 2.2; }
.accepted .edge { stroke-width: 3; }
.bonus rect { stroke-width: 2.2; stroke-dasharray: 2 3; }
.bonus .edge { stroke-width: 3; stroke-dasharray: 1 6; stroke-linecap: round; }
.rejected rect { stroke-dasharray: 6 4; }
.rejected .edge { stroke-width: 1.4; stroke-dasharray: 6 4; }
.rejected .token { font-weight: 400; }
"""


def colours(palette: dict[str, str]) -> str:
    """Return the CSS rules of a palette; spelt out, because not every viewer knows CSS variables."""
    rules = {
        ".page": "fill: {page}; stroke: {edge}",
        "text": "fill: {ink}",
        ".quiet, .rejected text": "fill: {quiet}",
        ".start rect": "fill: {ink}",
        ".start text": "fill: {page}",
        ".good": "fill: {good}",
        ".more": "fill: {more}",
        ".accepted rect": "fill: {good fill}; stroke: {good}",
        ".accepted .edge": "stroke: {good}",
        ".bonus rect": "fill: {more fill}; stroke: {more}",
        ".bonus .edge": "stroke: {more}",
        ".rejected rect": "fill: {bad fill}; stroke: {bad}",
        ".rejected .edge": "stroke: {bad}",
    }
    return "\n".join(f"{name} {{ {rule.format(**palette)}; }}" for name, rule in rules.items())


ROLES = {
    "start": "the last token of the text",
    "accepted": "drafted and accepted",
    "bonus": "the target's own next token",
    "rejected": "drafted and rejected",
}
"""CSS class -> what the legend says."""


def iteration() -> tuple[dt.Iteration, str, dt.Pair]:
    """Return the iteration, the text before it, and the pair."""
    pair = dt.load_pair("tiny")
    ids = pair.tokenizer(PROMPT, return_tensors="pt").input_ids
    drafter = dt.FixedTree(pair.draft, depth=5, branching=(3, 2, 1), max_nodes=14)
    out = dt.generate(pair.target, ids, drafter, max_new_tokens=100)
    drawn = out.iterations[NUMBER]
    before = sum(it.committed for it in out.iterations[:NUMBER])
    return drawn, PROMPT + pair.tokenizer.decode(out.tokens[:before]), pair


def heights(parents: list[int]) -> list[float]:
    """Return the row of each node: leaves a row apart in draw order, a parent amid its children."""
    children = [[node for node, parent in enumerate(parents) if parent == above] for above in range(len(parents))]
    out, leaves = [0.0] * len(parents), iter(range(len(parents)))

    def place(node: int) -> float:
        rows = [place(child) for child in children[node]]
        out[node] = (rows[0] + rows[-1]) / 2 if rows else float(next(leaves))
        return out[node]

    place(0)
    return out


def box(x: float, y: float, text: str, share: str) -> str:
    """Return a box with a token and its draft probability; (x, y) is the middle of its left side."""
    return (
        f'<rect x="{x:g}" y="{y - HEIGHT / 2:g}" width="{BOX}" height="{HEIGHT}" rx="6"/>'
        f'<text class="token" x="{x + 9:g}" y="{y + 5:g}">{escape(text)}</text>'
        f'<text class="share" x="{x + BOX - 8:g}" y="{y + 4.5:g}">{escape(share)}</text>'
    )


def picture() -> str:
    """Return the SVG."""
    drawn, before, pair = iteration()
    tree, verdict = drawn.tree, drawn.verdict
    tokens = [*tree.tokens.tolist(), verdict.next_token]
    parents = [*tree.parents.tolist(), verdict.path[-1] if verdict.path else 0]
    depths = [*tree.depths.tolist(), len(verdict.path) + 1]
    shares = ["<.01" if p < 0.005 else f"{p:.2f}".removeprefix("0") for p in np.exp(tree.logprobs).tolist()]
    shares = ["", *shares[1:], ""]
    roles = ["accepted" if node in verdict.path else "rejected" for node in range(len(tree))]
    roles = ["start", *roles[1:], "bonus"]
    rows = heights(parents)
    width = 2 * LEFT + LEVEL * max(depths) + BOX
    height = TOP + ROW * max(rows) + HEIGHT / 2 + BOTTOM
    places = [(LEFT + LEVEL * depth, TOP + ROW * row + HEIGHT / 2) for depth, row in zip(depths, rows, strict=True)]

    shapes = []
    for node, (x, y) in sorted(enumerate(places), key=lambda item: list(ROLES)[::-1].index(roles[item[0]])):
        line = ""
        if node:
            left, top = places[parents[node]]
            start, middle = left + BOX, (left + BOX + x) / 2
            line = f'<path class="edge" d="M{start:g} {top:g}C{middle:g} {top:g} {middle:g} {y:g} {x:g} {y:g}"/>'
        text = label(tokens[node], pair.tokenizer, 11)
        shapes.append(f'<g class="{roles[node]}">{line}{box(x, y, text, shares[node])}</g>')

    head = f"{len(tree) - 1} tokens drafted, {len(verdict.path)} accepted, {drawn.committed} added to the text"
    end = before.rstrip().rpartition("\n")[2].strip()
    accepted = " ".join(pair.tokenizer.decode(tree.tokens[list(verdict.path)].tolist()).split())
    bonus = pair.tokenizer.decode([verdict.next_token]).strip()
    legend, x = [], float(LEFT)
    for role, meaning in ROLES.items():
        legend.append(
            f'<g class="{role}"><rect x="{x:g}" y="{height - 62:g}" width="26" height="16" rx="4"/></g>'
            f'<text x="{x + 34:g}" y="{height - 49:g}">{escape(meaning)}</text>'
        )
        x += 84 + 6.3 * len(meaning)
    notes = "Numbers: the draft's probability of the token after its path. ␣ is a space, ⏎ a line end."
    described = f"The text ends with {end!r}. The draft proposes a tree of {len(tree) - 1} tokens. The target accepts "
    described += f"{len(verdict.path)} of them, {accepted!r}, and adds a token of its own: {bonus!r}."
    size = f'viewBox="0 0 {width:g} {height:g}" width="{width:g}" height="{height:g}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title desc">
<title id="title">One iteration of tree speculative decoding: {head}</title>
<desc id="desc">{escape(described)}</desc>
<style>{SHAPES}{colours(LIGHT)}
@media (prefers-color-scheme: dark) {{
{colours(DARK)}
}}
</style>
<rect class="page" x="0.5" y="0.5" width="{width - 1:g}" height="{height - 1:g}" rx="10"/>
<text x="{LEFT}" y="36" class="strong">One forward of the target: {head}</text>
<text x="{LEFT}" y="62" class="code">… {escape(end)} <tspan class="good">{escape(accepted)}</tspan>\
<tspan class="more">{escape(bonus)}</tspan></text>
{chr(10).join(shapes)}
{chr(10).join(legend)}
<text x="{LEFT}" y="{height - 20:g}" class="quiet">{notes}</text>
</svg>
"""


if __name__ == "__main__":
    place = Path(sys.argv[1] if len(sys.argv) > 1 else "docs/images/tree.svg")
    place.write_text(picture(), encoding="utf-8")
