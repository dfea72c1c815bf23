"""Many iterations: as rows (nodes counted by depth, by child rank, by probability), and as pictures.

Notebooks write the rows into their records, and the figures are drawn from them. Nothing is estimated beyond counting;
intervals are Wilson's for a share.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from jinja2 import Environment
from plotly import graph_objects as go

from ..checks import decodes, described, is_whole, of_kind
from ..decoding import Generation, Iteration
from ..models.texts import pieces
from . import theme
from .trees import accepted_count, last_drafted

Row = dict[str, Any]

SHADES = ("#cfe8f7", "#d8f0df")
"""Background of accepted tokens, alternating from iteration to iteration."""


# -------------------------------------------------------------------------------------------------------------- checks
def listed(iterations: Any) -> list[Iteration]:
    """Return iterations as a list; TypeError, with the way out, for anything else."""
    way_out = "give the attribute `iterations` of what generate returns"
    if isinstance(iterations, str | bytes) or not isinstance(iterations, Iterable):
        raise TypeError(f"iterations is {described(iterations)}; {way_out}.")
    several = list(iterations)
    for one in several:
        of_kind("An iteration", one, Iteration, way_out)
    return several


def check_text(generation: Any, tokenizer: Any = None, prompt: Any = "", *, name: str = "The text") -> None:
    """Raise TypeError, with the way out, for what is no text of `generate`, no tokenizer, or no prompt to show."""
    of_kind(name, generation, Generation, "give what generate returns")
    if tokenizer is not None:
        decodes(tokenizer)
    of_kind("The prompt", prompt, str, "give it as text, which is shown before what was generated")


# ---------------------------------------------------------------------------------------------------------------- rows
def iteration_rows(iterations: Iterable[Iteration]) -> list[Row]:
    """Return a row per iteration: `iteration`, `committed` tokens, drafted `nodes`, drafted `levels`, and the values
    that the drafter reported of its state before the iteration."""
    rows = []
    for number, iteration in enumerate(listed(iterations)):
        row = {"iteration": number, "committed": iteration.committed, "nodes": len(iteration.tree) - 1}
        rows.append({**row, "levels": iteration.tree.depth, **iteration.report})
    return rows


def node_rows(iterations: Iterable[Iteration]) -> list[Row]:
    """Return a row per drafted node.

    Keys: `iteration`, `node`, `parent`, `token`, `depth`, `rank` (0 for the draft's first choice among siblings),
    `probability` (of the token after its path), `cumulative` (of the whole path), `reached` (its parent was accepted,
    so the target decided on this node), `accepted`.
    """
    rows = []
    for number, iteration in enumerate(listed(iterations)):
        tree, path, children = iteration.tree, {0, *iteration.verdict.path}, Counter[int]()
        for node, parent in enumerate(tree.parents.tolist()[1:], start=1):
            row = {"iteration": number, "node": node, "parent": parent, "token": int(tree.tokens[node])}
            row |= {"depth": int(tree.depths[node]), "rank": children[parent]}
            row |= {"probability": math.exp(tree.logprobs[node]), "cumulative": math.exp(tree.cumulative[node])}
            rows.append({**row, "reached": parent in path, "accepted": node in path})
            children[parent] += 1
    return rows


# ---------------------------------------------------------------------------------------------------------------- text
class Html(str):
    """HTML that a notebook shows as a page when it is a cell's last value."""

    def _repr_html_(self) -> str:
        return str(self)


def text_iterations(generation: Generation, tokenizer: Any = None, *, prompt: str = "") -> Html:
    """Return the generated text, coloured by iteration: drafted and accepted tokens shaded, bonus tokens framed.

    Args:
        generation: result of `generate`.
        tokenizer: decodes the tokens, the generation's own by default; without one their numbers are shown.
        prompt: shown in grey before the text.

    Raises:
        TypeError: for a generation, tokenizer or prompt that is none.
    """
    check_text(generation, tokenizer, prompt)
    texts, tokens = pieces(generation.tokens, tokenizer or generation.tokenizer), list[Row]()
    for number, iteration in enumerate(generation.iterations):
        nodes = [*iteration.verdict.path, *last_drafted(iteration)[:1]]
        notes = [f"accepted, node {node} of {len(iteration.tree) - 1}" for node in nodes]
        for note in [*notes, "bonus token"][: iteration.committed]:
            text = texts[len(tokens)]
            tokens.append({"iteration": number, "note": note, "accepted": note in notes, "text": text})
    plain = "".join(texts[len(tokens) :])  # of loops without iterations
    values = {"prompt": prompt, "tokens": tokens, "plain": plain, "counts": generation.counts}
    return _rendered("text.html.j2", shades=SHADES, **values)


def generation_view(generation: Generation) -> str:
    """Return what a notebook shows of a text: `text_iterations`, with the style that it has on dark pages."""
    return f"<style>{theme.own_text_css()}</style>{text_iterations(generation)}"


def _counted(count: int, thing: str) -> str:
    return f"{count} {thing}{'s' * (count != 1)}"


def step_text(
    generation: Generation, number: int, tokenizer: Any = None, *, prompt: str = "", branches: int = 6
) -> Html:
    """Return the text as it stands after one iteration, and below it the branches that the target rejected, as ghosts.

    Args:
        generation: result of `generate`.
        number: of the iteration, from 0.
        tokenizer: decodes the tokens, the generation's own by default; without one their numbers are shown.
        prompt: shown in grey before the text.
        branches: rejected branches that are shown, the most probable first.

    Raises:
        TypeError: for a generation, tokenizer or prompt that is none.
        ValueError: where there is no such iteration.
    """
    check_text(generation, tokenizer, prompt)
    count = len(generation.iterations)
    if not is_whole(number, 0) or number >= count:
        raise ValueError(f"number is {number!r}; the text has iterations 0 to {count - 1}.")
    iteration, tokenizer = generation.iterations[number], tokenizer or generation.tokenizer
    first = sum(one.committed for one in generation.iterations[:number])
    accepted = accepted_count(iteration)
    end = first + iteration.committed
    texts = pieces(generation.tokens[:end], tokenizer)
    tree, path = iteration.tree, {0, *iteration.verdict.path, *last_drafted(iteration)}
    ghosts = []
    for leaf in sorted(set(range(1, len(tree))) - set(tree.parents.tolist()) - path, key=lambda n: -tree.cumulative[n]):
        nodes = tree.path(leaf)
        words = pieces(tree.tokens[nodes].tolist(), tokenizer)
        shared = sum(node in path for node in nodes)
        probability = math.exp(tree.cumulative[leaf])
        ghosts.append({"probability": probability, "shared": "".join(words[:shared]), "rest": "".join(words[shared:])})
    counts = f"Iteration {number + 1} of {count}: {len(tree) - 1} nodes drafted in {tree.depth} levels, "
    added, forwards = _counted(iteration.committed, "token"), _counted(number + 1, "target forward")
    counts += f"{accepted} accepted, {added} added; {_counted(end, 'token')} by {forwards}"
    parts = {"before": texts[:first], "fresh": texts[first : first + accepted], "last": texts[first + accepted :]}
    joined = {name: "".join(part) for name, part in parts.items()}
    shown, more = ghosts[:branches], max(0, len(ghosts) - branches)
    return _rendered("step.html.j2", prompt=prompt, counts=counts, ghosts=shown, more=more, **joined)


def _rendered(name: str, **values: Any) -> Html:
    """Fill a template of this folder."""
    template = Path(__file__).with_name(name).read_text(encoding="utf-8")
    return Html(Environment(autoescape=True).from_string(template).render(theme=theme, **values))


# ------------------------------------------------------------------------------------------------------------- figures
def timeline(iterations: Iterable[Iteration]) -> go.Figure:
    """Draw the tokens committed by each iteration: accepted drafted tokens, the bonus token, and the tree's depth.

    Args:
        iterations: the attribute of a generation.

    Raises:
        TypeError: for what are no iterations.
    """
    iterations = listed(iterations)
    accepted = [accepted_count(iteration) for iteration in iterations]
    bonus = [iteration.committed - count for iteration, count in zip(iterations, accepted, strict=True)]
    title = f"{sum(i.committed for i in iterations)} tokens in {len(iterations)} iterations"
    drawn = theme.figure(title, x="iteration (one target forward each)", y="tokens", barmode="stack", height=360)
    drawn.add_bar(y=accepted, name="drafted and accepted", marker_color=theme.ACCEPTED[1])
    drawn.add_bar(y=bonus, name="bonus token", marker_color=theme.BONUS[1])
    marker = {"symbol": "line-ew-open", "size": 10, "color": theme.INK, "line": {"width": 2}}
    drawn.add_scatter(y=[i.tree.depth for i in iterations], name="levels drafted", mode="markers", marker=marker)
    return drawn.update_yaxes(dtick=1 if max(accepted, default=0) < 10 else None)
