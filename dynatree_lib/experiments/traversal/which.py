"""Which drafter with which rule: tokens per iteration of such pairs, compared across drafters on the same texts.

`paired.judge` compares rules on one drafter's trees. Here drafters are compared too. Driven by the target walk, which
draws once per token, every drafter meets the same text for the same seed; drafts, and the places where trees begin, are
left to chance. Ratios are paired by prompt, and so are their bootstrap intervals. For toy models, exact values.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any

import numpy as np
import torch

from ...decoding import Iteration, autoregressive, generate
from ...drafters import Drafter
from ...measure.metrics import Interval, bootstrap, double_quotient, quotient
from ...measure.prompts import BenchPrompt, prepare_prompts
from ...measure.protocol import Results
from ...measure.ranks import RankAcceptance
from ...models.base import LanguageModel
from ...models.pairs import Pair
from ...models.toy import ToyModel
from ...sampling import Sampling, probabilities
from ...tree import ROOT, depths_of
from ...verifiers import TokenLevel, Verifier
from ..adaptive.ablation import compared, faster, told

Row = dict[str, Any]
LEAST = 1.01
"""Ratio below which a lead is not worth a choice, even where its interval excludes 1."""


# ------------------------------------------------------------------------------------------------- toy models, exactly
def noisy_pair(seed: int, vocabulary: int = 8, sharpness: float = 2.0, noise: float = 1.0) -> tuple[ToyModel, ToyModel]:
    """A target with normal logits of standard deviation `sharpness` after every context, and a draft with the same
    logits plus normal noise. The temperature of a sampling divides both."""

    def model(blur: float) -> ToyModel:
        def distribution(context: tuple[int, ...]) -> list[float]:
            rng = np.random.default_rng([seed, *(token + 1 for token in context)])
            logits = sharpness * rng.normal(size=vocabulary) + blur * rng.normal(size=vocabulary)
            weights = np.exp(logits - logits.max())
            shares: list[float] = (weights / weights.sum()).tolist()
            return shares

        return ToyModel(distribution, vocabulary)

    return model(0.0), model(noise)


@dataclass(frozen=True)
class Expectation:
    """Exact tokens per iteration of a full tree on toy models, the bonus token included, tree by tree not enumerated.

    A subtree that is entered with acceptance a is kept with probability a, averaged over what is drawn in it
    (Traversal Verification, lemma A.2), and what follows its rejection does not depend on what was drawn there. So a
    node's children can be summed over one after another. `exact.iteration` finds the same on trees that are few.

    Args:
        target: its table.
        draft: its table.
        sampling: of both.
        branchings: children per node, level by level.
    """

    target: ToyModel
    draft: ToyModel
    sampling: Sampling
    branchings: Sequence[int]

    def top(self, context: tuple[int, ...] = (0,)) -> float:
        """The draft's most probable tokens under the target walk, which no lossless rule beats on them."""
        level = len(context) - 1
        if level == len(self.branchings):
            return 1.0
        p, q = (self._law(model, context) for model in (self.target, self.draft))
        best = np.argsort(-q, kind="stable")[: self.branchings[level]].tolist()
        return 1 + sum(float(p[token]) * self.top((*context, token)) for token in best)

    def distinct(self, traversal: bool = True, context: tuple[int, ...] = (0,), weight: float = 1.0) -> float:
        """Siblings drawn without replacement, under traversal or token-level verification; `weight` is a."""
        level = len(context) - 1
        if level == len(self.branchings):
            return weight
        p, q = (self._law(model, context) for model in (self.target, self.draft))

        def below(token: int, accepted: float) -> float:
            whole = self.distinct(traversal, (*context, token), accepted if traversal else 1.0)
            return whole if traversal else accepted * whole

        return weight + _tried(weight * p, 1 - weight, q, self.branchings[level], below)

    def _law(self, model: ToyModel, context: tuple[int, ...]) -> np.ndarray:
        return probabilities(
            torch.tensor(model.distribution(context), dtype=torch.float64).log(), self.sampling
        ).numpy()


def _tried(r: np.ndarray, stop: float, q: np.ndarray, left: int, below: Callable[[int, float], float]) -> float:
    """Expected tokens kept below a node in the state (r, stop) whose next `left` children are drawn from q."""
    if not left or not q.sum() > 0 or not r.sum() > 0:
        return 0.0
    q, total = q / q.sum(), 0.0
    rest = np.maximum(r - q, 0)
    mass = rest.sum() + stop
    for token in np.flatnonzero(q).tolist():
        accepted = min(1.0, float(r[token] / q[token]))
        if accepted > 0:
            total += q[token] * below(token, accepted)
        if accepted < 1 and mass > 0:
            others = np.where(np.arange(len(q)) == token, 0, q)
            total += q[token] * (1 - accepted) * _tried(rest / mass, stop / mass, others, left - 1, below)
    return float(total)


# ------------------------------------------------------------------------------------------------------------- decoding
def measured_rates(
    pair: Pair, wide: Drafter, prompts: Sequence[Any], sampling: Sampling, max_new_tokens: int, seed: int = 0
) -> RankAcceptance:
    """How often each sibling, in draw order, is kept: texts decoded with wide trees under token-level verification."""
    ready = prepare_prompts(pair, prompts, max_new_tokens)
    texts = [_rounds(pair, one, wide, TokenLevel(), sampling, seed, max_new_tokens) for one in ready]
    return RankAcceptance.from_iterations(each for iterations in texts for each in iterations)


def mean_nodes(
    pair: Pair, drafter: Drafter, prompts: Sequence[Any], sampling: Sampling, max_new_tokens: int, seed: int = 0
) -> float:
    """Drafted nodes per iteration of texts decoded with the rule that `generate` chooses."""
    ready = prepare_prompts(pair, prompts, max_new_tokens)
    texts = [_rounds(pair, one, drafter, None, sampling, seed, max_new_tokens) for one in ready]
    return float(np.mean([len(each.tree) - 1 for iterations in texts for each in iterations]))


def greedy_rows(
    pair: Pair,
    drafters: Mapping[str, Drafter],
    rules: Callable[[str], Iterable[str]],
    prompts: Sequence[Any],
    *,
    max_new_tokens: int,
    margin: int = 8,
) -> list[Row]:
    """Rows as `paired.judge` gives, at temperature 0, where all rules are one and nothing is left to chance.

    `rules` gives the names of the rules of a drafter's label; each has what was kept under `tokens`. `margin` as there.
    """
    rows: list[Row] = []
    for (label, drafter), one in product(drafters.items(), prepare_prompts(pair, prompts, max_new_tokens + margin)):
        head, place = {"tree": label, "prompt": one.id, "seed": 0, "driver": "greedy"}, 0
        for each in _rounds(pair, one, drafter, None, Sampling(), 0, max_new_tokens + margin):
            if place < max_new_tokens and each.tree.depth < max_new_tokens + margin - place - 1:
                shape = {"place": place, "nodes": len(each.tree) - 1, "levels": each.tree.depth, "kept": each.committed}
                rows.append({**head, **shape, "tokens": dict.fromkeys(rules(label), float(each.committed))})
            place += each.committed
    return rows


def one_node_rows(
    pair: Pair, prompts: Sequence[Any], sampling: Sampling, *, max_new_tokens: int, seeds: Iterable[int] = (0,)
) -> list[Row]:
    """Rows as `paired.judge` gives for a single drafted node, exact over draws and coins, at every place of a text.

    `top`: the draft's most probable token x under the target walk keeps it with probability p(x). `distinct`: a drawn
    token is kept with probability sum min(p, q), whatever the rule. Both at the same places.
    """
    rows: list[Row] = []
    for seed, one in product(seeds, prepare_prompts(pair, prompts, max_new_tokens)):
        out = autoregressive(
            pair.target, one.ids, sampling=sampling, seed=seed, max_new_tokens=max_new_tokens, eos_token_ids=()
        )
        read = [one.ids[-1], *out.tokens[:-1]]
        p, q = (_laws_along(model, one.ids[:-1], read, sampling) for model in (pair.target, pair.draft))
        kept = {
            "top": p.gather(-1, q.argmax(-1, keepdim=True))[:, 0],
            "distinct": torch.minimum(p[:, : q.shape[1]], q).sum(-1),
        }
        for tree, shares in kept.items():
            head = {"tree": tree, "prompt": one.id, "seed": seed, "driver": "target-walk", "nodes": 1, "levels": 1}
            rule = "target-walk" if tree == "top" else "traversal"
            rows += [{**head, "place": n, "tokens": {rule: 1 + share}} for n, share in enumerate(shares.tolist())]
    return rows


def _laws_along(model: LanguageModel, before: Sequence[int], read: Sequence[int], sampling: Sampling) -> torch.Tensor:
    """(n, V) float64 laws after each of these tokens."""
    session = model.session()
    session.start(before)
    return probabilities(session.score(read, range(-1, len(read) - 1), sampling).logits.double().cpu(), sampling)


def _rounds(
    pair: Pair, one: BenchPrompt, drafter: Drafter, rule: Verifier | None, sampling: Sampling, seed: int, budget: int
) -> list[Iteration]:
    out = generate(
        pair.target, one.ids, drafter, verifier=rule, sampling=sampling, seed=seed, max_new_tokens=budget,
        eos_token_ids=(), keep_state=False,
    )  # fmt: skip
    return out.iterations


# ------------------------------------------------------------------------------------------------------------ compared
@dataclass(frozen=True)
class Candidate:
    """A drafter with a rule.

    Attributes:
        tree: label of the drafter in the rows.
        rule: name of the rule there.
        drawn: whether the tree is sampled; otherwise it is deterministic.
        name: of both, for tables.
    """

    tree: str
    rule: str
    drawn: bool = True

    @property
    def name(self) -> str:
        """For tables and figures."""
        return f"{self.tree} + {self.rule}"


def tokens(rows: Iterable[Row], one: Candidate) -> Row:
    """Tokens per iteration of a candidate, the bonus token included.

    Keys: `tokens`, `interval` (95 %, over prompts), `trees`.

    Raises:
        ValueError: if the rows have no such tree or rule.
    """
    table = np.array(list(_sums(rows, one).values()))
    return {
        "tokens": float(quotient(table[None])[0]),
        "interval": bootstrap(table, quotient),
        "trees": int(table[:, 1].sum()),
    }


def sizes(rows: Iterable[Row], tree: str) -> Row:
    """Mean drafted `nodes` and `levels` of a drafter's judged trees."""
    mine = [(row["nodes"], row["levels"]) for row in rows if row["tree"] == tree]
    nodes, levels = np.mean(mine, 0).tolist()
    return {"nodes": nodes, "levels": levels}


def compare(rows: Iterable[Row], mine: Candidate, its: Candidate) -> Row:
    """Tokens per iteration of one candidate over another's on the same prompts.

    Keys: `mine`, `its` (names), `ratio`, `interval` (paired by prompt, 95 %), `holds` (`ablation.faster`), `text`.
    """
    table = _table(list(rows), mine, its)
    row: Row = {"mine": mine.name, "its": its.name, "ratio": float(double_quotient(table[None])[0])}
    row["interval"] = bootstrap(table, double_quotient)
    return {**row, "holds": faster(row["interval"]), "text": told(row)}


def crossover(rows: Iterable[Row], mine: Candidate, its: Candidate) -> Row:
    """The temperature from which one candidate stays ahead of another, by linear interpolation of the log ratio.

    Resampled prompts give the interval; where a resample has no crossing, it counts at the end of the range that it
    lies beyond.

    Keys: `mine`, `its`, `crossover` (None if the range has none), `place` (the same, or the end of the range that it
    lies beyond), `interval` (cut to the range), `text`.
    """
    found = [row for row in rows if row["temperature"] > 0]
    steps = sorted({row["temperature"] for row in found})
    parts = [_table([row for row in found if row["temperature"] == step], mine, its) for step in steps]
    table, ends = np.concatenate(parts, -1), (steps[0], steps[-1])
    where = float(_crossing(table[None], np.array(steps))[0])
    low, high = bootstrap(table, lambda drawn: _crossing(drawn, np.array(steps)).clip(*ends))
    row: Row = {"mine": mine.name, "its": its.name, "interval": (max(low, ends[0]), min(high, ends[1]))}
    row |= {"crossover": where if np.isfinite(where) else None, "place": float(np.clip(where, *ends))}
    return {**row, "text": _crossing_text(where, row["interval"], steps)}


def _crossing(drawn: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
    """(m, n, 4k) sums of k temperatures -> (m,) crossings; -inf where always ahead, inf where not at the highest."""
    gaps = np.log(np.stack([double_quotient(drawn[..., at : at + 4]) for at in range(0, drawn.shape[-1], 4)], -1))
    behind = gaps <= 0
    last = gaps.shape[-1] - 1 - behind[:, ::-1].argmax(-1)  # the highest temperature at which it is behind
    out = np.where(behind.any(-1), np.inf, -np.inf)
    inside = np.flatnonzero(behind.any(-1) & (last < gaps.shape[-1] - 1))
    below, above = gaps[inside, last[inside]], gaps[inside, last[inside] + 1]
    first, width = temperatures[last[inside]], np.diff(temperatures)[last[inside]]
    out[inside] = first + width * below / (below - above)
    return out


def _crossing_text(where: float, interval: Interval, steps: Sequence[float]) -> str:
    low, high = (_place(end, steps) for end in interval)
    return f"{_place(where, steps)} [{low}, {high}]"


def _place(where: float, steps: Sequence[float]) -> str:
    if where <= steps[0]:
        return f"< {steps[0]:g}"
    return f"> {steps[-1]:g}" if where >= steps[-1] else f"{where:.2f}"


def _sums(rows: Iterable[Row], one: Candidate) -> dict[str, list[float]]:
    """Prompt -> tokens and trees of all seeds."""
    out: dict[str, list[float]] = {}
    for row in rows:
        if row["tree"] == one.tree and one.rule in row["tokens"]:
            mine = out.setdefault(row["prompt"], [0.0, 0.0])
            mine[0] += row["tokens"][one.rule]
            mine[1] += 1
    if not out:
        raise ValueError(f"There is no judged tree of '{one.name}' in these rows; judge it, or leave it out.")
    return out


def _table(rows: list[Row], mine: Candidate, its: Candidate) -> np.ndarray:
    one, other = _sums(rows, mine), _sums(rows, its)
    if one.keys() != other.keys():
        raise ValueError(f"'{mine.name}' and '{its.name}' were judged on different prompts; judge both on the same.")
    return np.array([[*one[prompt], *other[prompt]] for prompt in one])


# -------------------------------------------------------------------------------------------------------------- the map
def widths(shape: Sequence[int]) -> tuple[int, ...]:
    """Nodes per level of a shape given as the parent slot of every slot, as `SampledTree.shape` takes it."""
    return tuple(np.bincount(depths_of(np.array([ROOT, *shape])))[1:].tolist())


def cells(rows: Sequence[Row]) -> list[tuple[float, int, list[Row]]]:
    """(temperature, budget, rows), ascending."""
    keys = sorted({(row["temperature"], row["budget"]) for row in rows})
    return [(*key, [row for row in rows if (row["temperature"], row["budget"]) == key]) for key in keys]


def present(rows: Sequence[Row], candidates: Iterable[Candidate]) -> list[Candidate]:
    """The candidates that these rows have."""
    known = {(row["tree"], rule) for row in rows for rule in row["tokens"]}
    return [one for one in candidates if (one.tree, one.rule) in known]


def summary(rows: Sequence[Row], candidates: Sequence[Candidate]) -> list[Row]:
    """One row per candidate and cell: `temperature`, `budget`, `method`, `drawn`, and what `tokens` gives."""
    return [
        {"temperature": step, "budget": budget, "method": one.name, "drawn": one.drawn, **tokens(mine, one)}
        for one, (step, budget, mine) in product(candidates, cells(rows))
        if present(mine, [one])
    ]


def wide(found: Iterable[Row]) -> list[Row]:
    """Rows of `summary` as a table: one per temperature, the tokens of each method in a column."""
    out: dict[float, Row] = {}
    for row in found:
        out.setdefault(row["temperature"], {"temperature": row["temperature"]})[row["method"]] = row["tokens"]
    return [out[step] for step in sorted(out)]


def by_panel(
    found: Iterable[Row],
    panels: Mapping[Any, str],
    panel: str = "budget",
    value: str = "tokens",
    interval: str | None = "interval",
) -> list[Row]:
    """Rows of `summary` or `over` as `views.line_panels` takes them: one per temperature and method, one column per
    panel and, unless `interval` is None, one with its interval."""
    out: dict[tuple[float, str], Row] = {}
    for row in found:
        mine = out.setdefault((row["temperature"], row["method"]), {key: row[key] for key in ("temperature", "method")})
        name = panels[row[panel]]
        mine |= {name: row[value]} | ({f"{name}_interval": row[interval]} if interval else {})
    return list(out.values())


def over(rows: Sequence[Row], candidates: Sequence[Candidate], its: Candidate) -> list[Row]:
    """One row per candidate and cell: `temperature`, `budget`, `method`, and what `compare` gives over `its`."""
    return [
        {"temperature": step, "budget": budget, "method": one.name, **compare(mine, one, its)}
        for one, (step, budget, mine) in product(candidates, cells(rows))
        if present(mine, [one])
    ]


def kept(rows: Iterable[Row]) -> list[Row]:
    """The same rows with what the driver kept in place of what rules would keep."""
    return [{**row, "tokens": {row["driver"]: float(row["kept"])}} for row in rows]


def best(rows: Sequence[Row], candidates: Sequence[Candidate]) -> list[Row]:
    """One row per cell above temperature 0: the best candidate, and what drawing is worth.

    The sampled side is its first candidate, or the best of those that are ahead of it by an interval and `LEAST`; the
    deterministic side is the best of its kind, so that choosing among noisy values cannot make drawing look better.

    Keys: `temperature`, `budget`, `drawn` and `fixed` (names), of the first over the second `ratio`, `interval`,
    `holds`, `text`, and `best`, the one of them that is ahead.
    """
    out = []
    for step, budget, mine in cells([row for row in rows if row["temperature"] > 0]):
        some = present(mine, candidates)
        mean = {one: tokens(mine, one)["tokens"] for one in some}
        first, *rest = (one for one in some if one.drawn)
        ahead = [one for one in rest if mean[one] >= LEAST * mean[first] and compare(mine, one, first)["holds"]]
        drawn = max(ahead or [first], key=mean.__getitem__)
        fixed = max((one for one in some if not one.drawn), key=mean.__getitem__)
        found = compare(mine, drawn, fixed)
        names = {"drawn": drawn.name, "fixed": fixed.name, "best": drawn.name if found["ratio"] > 1 else fixed.name}
        out.append({"temperature": step, "budget": budget, **names, **found})
    return out


def advice(found: Iterable[Row]) -> list[Row]:
    """Rows of `best` as ranges of temperature: neighbours of one budget with the same answer become one row.

    Keys: `budget`, `temperatures`, `take` (a name; both kinds where the interval includes 1), `lead` (of drawing).
    """
    out = []
    ordered = sorted(found, key=lambda row: (row["budget"], row["temperature"]))
    for (budget, _), group in groupby(ordered, key=lambda row: (row["budget"], _choice(row))):
        some = list(group)
        first, last = some[0], some[-1]
        span = f"{first['temperature']:g}" if len(some) == 1 else f"{first['temperature']:g} to {last['temperature']:g}"
        lead = first["text"] if len(some) == 1 else f"{first['ratio']:.2f} to {last['ratio']:.2f}"
        out.append({"budget": budget, "temperatures": span, "take": _choice(first), "sampled / deterministic": lead})
    return out


def rule_checks(rows: Sequence[Row], default: Mapping[str, str], others: Iterable[str]) -> list[Row]:
    """Each drawn drafter's default rule against the other rules on the same trees, in every cell above temperature 0.

    `default` is drafter -> rule. Rows are those of `compare`, with `temperature`, `budget` and `behind`: by an interval
    and by `LEAST`.
    """
    out = []
    for step, budget, mine in cells([row for row in rows if row["temperature"] > 0]):
        for (tree, rule), other in product(default.items(), others):
            pair = [Candidate(tree, rule), Candidate(tree, other)]
            if present(mine, pair) == pair and other != rule:
                found = compare(mine, *pair)
                behind = found["holds"] is False and found["ratio"] * LEAST <= 1
                out.append({"temperature": step, "budget": budget, **found, "behind": behind})
    return out


def fastest(results: Results, drawn: Iterable[str], fixed: Iterable[str]) -> Row:
    """The fastest label of each kind in a benchmark, by speed over `ar`, and the ratio of their speeds.

    Keys: `drawn`, `fixed`, `fastest` (labels), `speed` (of the latter over `ar`), and of `drawn` over `fixed` `ratio`,
    `interval`, `holds`, `text`.
    """
    speed = {one.label: one.speedup_ar or 0.0 for one in results.summaries()}
    mine, its = (max(labels, key=speed.__getitem__) for labels in (drawn, fixed))
    best = max(mine, its, key=speed.__getitem__)
    return {"drawn": mine, "fixed": its, "fastest": best, "speed": speed[best], **compared(results, [mine], its)[0]}


def _choice(row: Row) -> str:
    if row["holds"] is None:
        return f"{row['drawn']}, or {row['fixed']}"
    return str(row["drawn"] if row["holds"] else row["fixed"])
