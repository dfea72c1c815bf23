"""Which drafter with which rule: tokens per iteration of such pairs, compared across drafters on the same texts.

`judge` compares rules on one drafter's trees. Here drafters are compared too. Driven by the target walk, which draws
once per token, every drafter meets the same text for the same seed. Drafts, and the places where trees begin, stay
random. Ratios are paired by prompt, and so are their bootstrap intervals. For toy models the values are exact.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Any

import numpy as np
import pandas as pd
import torch
from typing_extensions import override

from dynatree_lib.decoding import Iteration, generate
from dynatree_lib.drafters import Drafter, SampledTree
from dynatree_lib.models.pairs import Pair
from dynatree_lib.models.toy import ToyModel
from dynatree_lib.sampling import DraftDistributions, RandomSource, Sampling, Scores
from dynatree_lib.tree import TokenTree
from dynatree_lib.verifiers import TokenLevel, Verdict, Verifier

from ...bench.prompts import prepare_prompts
from ...bench.protocol import SEEDS
from ...bench.statistics import Estimate, bootstrap, estimate, quotient, sum_ratio, sums
from ...costs.ranks import RankAcceptance
from ...proofs.exact import next_token
from ...proofs.judge import Row, judged_frame

LEAST = 1.01
"""Ratio below which a lead is not worth a choice, even where its interval excludes 1."""


# ------------------------------------------------------------------------------------------------- toy models, exactly
def noisy_pair(seed: int, vocabulary: int = 8, sharpness: float = 2.0, noise: float = 1.0) -> tuple[ToyModel, ToyModel]:
    """Return a target with normal logits of standard deviation `sharpness` after every context, and its noisy draft.

    The draft has the same logits plus normal noise. The temperature of a sampling divides both.
    """

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
    """Exact tokens per iteration of a full tree on toy models, the bonus token included, without enumerating trees.

    A subtree that is entered with acceptance a is accepted with probability a, averaged over what is drawn in it
    (Traversal Verification, lemma A.2). What follows its rejection does not depend on what was drawn there. So a node's
    children can be summed over one after another. `exact.iteration` gives the same on trees that are few.

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
        """Return the value of the draft's most probable tokens under the target walk, the best lossless rule there."""
        level = len(context) - 1
        if level == len(self.branchings):
            return 1.0
        p, q = self._distributions(context)
        best = np.argsort(-q, kind="stable")[: self.branchings[level]].tolist()
        return 1 + sum(float(p[token]) * self.top((*context, token)) for token in best)

    def distinct(self, traversal: bool = True, context: tuple[int, ...] = (0,), weight: float = 1.0) -> float:
        """Return the value of siblings drawn without replacement, under traversal or token-level verification.

        `weight` is the acceptance a of the node after `context`.
        """
        level = len(context) - 1
        if level == len(self.branchings):
            return weight
        p, q = self._distributions(context)

        def below(token: int, accepted: float) -> float:
            whole = self.distinct(traversal, (*context, token), accepted if traversal else 1.0)
            return whole if traversal else accepted * whole

        return weight + _tried(weight * p, 1 - weight, q, self.branchings[level], below)

    def _distributions(self, context: tuple[int, ...]) -> Iterator[np.ndarray]:
        return (next_token(model, context, self.sampling).numpy() for model in (self.target, self.draft))


def _tried(r: np.ndarray, stop: float, q: np.ndarray, left: int, below: Callable[[int, float], float]) -> float:
    """Return the expected tokens below a node in the state (r, stop) whose next `left` children are drawn from q."""
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
def iterations_of(
    pair: Pair,
    drafter: Drafter,
    prompts: Sequence[Any],
    sampling: Sampling,
    max_new_tokens: int,
    seed: int = 0,
    verifier: Verifier | None = None,
) -> Iterator[tuple[str, list[Iteration]]]:
    """Decode a text of each prompt, with the seeds of `judge`; yield the prompt's id and the text's iterations."""
    for number, prompt in enumerate(prepare_prompts(pair, prompts, max_new_tokens)):
        text = generate(
            pair.target, prompt.ids, drafter, verifier=verifier, sampling=sampling, seed=seed + SEEDS * number,
            max_new_tokens=max_new_tokens, eos_token_ids=(), keep_state=False,
        )  # fmt: skip
        yield prompt.id, text.iterations


def measured_rates(
    pair: Pair, wide: Drafter, prompts: Sequence[Any], sampling: Sampling, max_new_tokens: int, seed: int = 0
) -> RankAcceptance:
    """Measure how often each sibling, in draw order, is accepted by token-level verification of wide trees."""
    texts = iterations_of(pair, wide, prompts, sampling, max_new_tokens, seed, TokenLevel())
    return RankAcceptance.from_iterations(iteration for _, text in texts for iteration in text)


def greedy_rows(
    pair: Pair,
    drafters: Mapping[str, Drafter],
    rules: Callable[[str], Iterable[str]],
    prompts: Sequence[Any],
    *,
    max_new_tokens: int,
    margin: int = 8,
) -> list[Row]:
    """Return rows as `judge` gives them, at temperature 0, where all rules are one and nothing is random.

    `rules` gives the names of the rules of a drafter's label; each has what was emitted under `tokens`. `margin` as
    for `judge`.
    """
    rows: list[Row] = []
    for label, drafter in drafters.items():
        for prompt, text in iterations_of(pair, drafter, prompts, Sampling(), max_new_tokens + margin):
            head, place = {"tree": label, "prompt": prompt, "seed": 0, "driver": "greedy"}, 0
            for step in text:
                emitted, levels = step.committed, step.tree.depth
                if place < max_new_tokens and levels < max_new_tokens + margin - place - 1:
                    shape = {"place": place, "nodes": len(step.tree) - 1, "levels": levels, "emitted": emitted}
                    rows.append({**head, **shape, "tokens": dict.fromkeys(rules(label), float(emitted))})
                place += emitted
    return rows


@dataclass
class _OneNode(Verifier):
    """The target walk, which leaves out the one drafted node it is shown, and what that node would have been worth.

    Attributes:
        shares: at each place of the text, the probability that the draft's most probable token is accepted, and that a
            drawn token is; None where nothing was drafted.
    """

    shares: list[tuple[float, float] | None] = field(default_factory=list)
    name = "one-node"

    @override
    def verify(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        found = None
        if len(tree) > 1 and distributions is not None:
            p, q = scores.distribution(0), distributions.distribution(0)
            found = float(p[q.argmax()]), float(torch.minimum(p[: len(q)], q).sum(dtype=torch.float64))
        self.shares.append(found)
        return Verdict((), scores.next_token(0, random))


def one_node_rows(
    pair: Pair, prompts: Sequence[Any], sampling: Sampling, *, max_new_tokens: int, seeds: Iterable[int] = (0,)
) -> list[Row]:
    """Return rows as `judge` gives them for one drafted node, exact over draws and coins.

    `top`: under the target walk the draft's most probable token x is accepted with probability p(x). `distinct`: a
    drawn token is accepted with probability sum min(p, q), whatever the rule. Both at the same places: the first
    `max_new_tokens` of a text at which the draft drafts, so all but the very first for one on features.
    """
    drafter, rows = SampledTree(pair.draft, depth=1, branching=1), list[Row]()
    for seed in seeds:
        verifier = _OneNode()
        texts = iterations_of(pair, drafter, prompts, sampling, max_new_tokens + 2, seed, verifier)
        for prompt, _ in texts:
            head = {"prompt": prompt, "seed": seed, "driver": "target-walk", "nodes": 1, "levels": 1}
            drafted = [(place, found) for place, found in enumerate(verifier.shares) if found][:max_new_tokens]
            for place, found in drafted:
                for (tree, rule), share in zip(_ONE_NODE, found, strict=True):
                    rows.append({"tree": tree, **head, "place": place, "tokens": {rule: 1 + share}})
            verifier.shares.clear()
    return rows


_ONE_NODE = (("top", "target-walk"), ("distinct", "traversal"))


# ------------------------------------------------------------------------------------------------------------ compared
@dataclass(frozen=True)
class DrafterAndRule:
    """A drafter with a rule.

    Attributes:
        tree: label of the drafter in the rows.
        rule: name of the rule there.
        drawn: whether the tree is sampled; otherwise it is deterministic.
    """

    tree: str
    rule: str
    drawn: bool = True

    @property
    def name(self) -> str:
        """Name of both, the `method` of tables and figures."""
        return f"{self.tree} + {self.rule}"


def methods_frame(rows: Iterable[Row]) -> pd.DataFrame:
    """Return rows of judged trees as the functions below take them: `judged_frame` with `method` ("tree + rule")."""
    frame = judged_frame(rows)
    return frame.assign(method=frame["tree"] + " + " + frame["rule"])


def present(frame: pd.DataFrame, pairs: Iterable[DrafterAndRule]) -> list[DrafterAndRule]:
    """Return those pairs that the frame has."""
    known = set(frame["method"])
    return [pair for pair in pairs if pair.name in known]


def compare(frame: pd.DataFrame, pair: DrafterAndRule, base: DrafterAndRule) -> Estimate:
    """Return tokens per iteration of one pair over another's on the same prompts; paired by prompt.

    Raises:
        ValueError: for a pair without a judged tree, or pairs judged on different prompts.
    """
    return estimate(_paired(frame, pair, base).to_numpy(float), sum_ratio)


def _paired(frame: pd.DataFrame, pair: DrafterAndRule, base: DrafterAndRule) -> pd.DataFrame:
    """Return tokens and iterations of both pairs, by prompt, of all seeds."""
    sides = []
    for side in (pair, base):
        rows = frame[frame["method"] == side.name]
        if rows.empty:
            raise ValueError(f"There is no judged tree of '{side.name}' in these rows; judge it, or leave it out.")
        sides.append(sums(rows, ("tokens", "iterations"), by="prompt"))
    if set(sides[0].index) != set(sides[1].index):
        raise ValueError(f"'{pair.name}' and '{base.name}' were judged on different prompts; judge both on the same.")
    return sides[0].merge(sides[1], left_index=True, right_index=True)


def crossover(frame: pd.DataFrame, pair: DrafterAndRule, base: DrafterAndRule) -> Row:
    """Return the temperature from which one pair stays ahead of another, by linear interpolation of the log ratio.

    Resampled prompts give the interval; where a resample has no crossing, it counts at the end of the range that it
    lies beyond.

    Keys: `method`, `over`, `crossover` (None if the range has none), `place` (the same, or the end of the range that it
    lies beyond), `interval` (cut to the range), `text`.
    """
    by_step = list(frame[frame["temperature"] > 0].groupby("temperature"))
    steps = np.array([step for step, _ in by_step])
    table = np.concatenate([_paired(part, pair, base).to_numpy(float) for _, part in by_step], -1)
    where = float(_crossing(table[None], steps)[0])
    low, high = bootstrap(table, lambda drawn: _crossing(drawn, steps).clip(steps[0], steps[-1]))
    text, *ends = (
        f"< {steps[0]:g}" if x <= steps[0] else f"> {steps[-1]:g}" if x >= steps[-1] else f"{x:.2f}"
        for x in (where, low, high)
    )
    return {
        "method": pair.name,
        "over": base.name,
        "crossover": where if np.isfinite(where) else None,
        "place": float(np.clip(where, steps[0], steps[-1])),
        "interval": (low, high),
        "text": f"{text} [{', '.join(ends)}]",
    }


def _crossing(drawn: np.ndarray, temperatures: np.ndarray) -> np.ndarray:
    """(m, n, 4k) sums of k temperatures -> (m,) crossings; -inf where always ahead, inf where not at the highest."""
    gaps = np.log(np.stack([sum_ratio(drawn[..., at : at + 4]) for at in range(0, drawn.shape[-1], 4)], -1))
    behind = gaps <= 0
    last = gaps.shape[-1] - 1 - behind[:, ::-1].argmax(-1)  # the highest temperature at which it is behind
    out = np.where(behind.any(-1), np.inf, -np.inf)
    inside = np.flatnonzero(behind.any(-1) & (last < gaps.shape[-1] - 1))
    below, above = gaps[inside, last[inside]], gaps[inside, last[inside] + 1]
    first, width = temperatures[last[inside]], np.diff(temperatures)[last[inside]]
    out[inside] = first + width * below / (below - above)
    return out


# -------------------------------------------------------------------------------------------------------------- the map
def _cells(frame: pd.DataFrame) -> Iterator[tuple[Row, pd.DataFrame]]:
    """Yield the rows of each temperature and budget, ascending."""
    for (temperature, budget), cell in frame.groupby(["temperature", "budget"]):
        yield {"temperature": temperature, "budget": budget}, cell


def _told(lead: Estimate) -> Row:
    return {"ratio": lead.value, "interval": lead.interval, "holds": lead.above(), "text": str(lead)}


def summary(frame: pd.DataFrame, pairs: Iterable[DrafterAndRule], base: DrafterAndRule | None = None) -> pd.DataFrame:
    """Return tokens per iteration of each pair, bonus token included, or with `base` their ratio to the base's.

    Columns, a row per cell and pair: `temperature`, `budget`, `method`, `drawn`, `value`, `interval`, `trees`.
    """
    rows = []
    for (cell, part), pair in product(_cells(frame), pairs):
        mine = part[part["method"] == pair.name]
        if len(mine):
            number = compare(part, pair, base) if base else quotient(mine, per="iterations", by="prompt")
            numbers = {"value": number.value, "interval": number.interval, "trees": len(mine)}
            rows.append({**cell, "method": pair.name, "drawn": pair.drawn, **numbers})
    return pd.DataFrame(rows)


def by_panel(table: pd.DataFrame, panels: Mapping[Any, str], panel: str = "budget") -> pd.DataFrame:
    """Return a table of `summary` as `charts.line_panels` takes it: a row per temperature and method.

    Each panel, a value of the column `panel` with its title, has a column and, unless the table has none, one with the
    interval.
    """
    ends = {name: end for name, end in {"value": "", "interval": "_interval"}.items() if name in table}
    wide = table.pivot(index=["method", "temperature"], columns=panel, values=list(ends))
    wide.columns = pd.Index([panels[place] + ends[name] for name, place in wide.columns])
    return wide.loc[table["method"].unique()].reset_index()


def best(frame: pd.DataFrame, pairs: Sequence[DrafterAndRule]) -> list[Row]:
    """Return one row per cell above temperature 0: the best pair, and what drawing is worth.

    The sampled side is its first pair, or the best of those that are ahead of it by an interval and `LEAST`; the
    deterministic side is the best of its kind, so that choosing among noisy values cannot make drawing look better.

    Keys: `temperature`, `budget`, `drawn` and `fixed` (names), of the first over the second `ratio`, `interval`,
    `holds`, `text`, and `best`, the one of them that is ahead.
    """
    out = []
    for cell, part in _cells(frame[frame["temperature"] > 0]):
        mean, known = part.groupby("method")["tokens"].mean(), present(part, pairs)
        first, *rest = (pair for pair in known if pair.drawn)
        least = LEAST * mean[first.name]
        ahead = [pair for pair in rest if mean[pair.name] >= least and compare(part, pair, first).above()]
        drawn = max(ahead or [first], key=lambda pair: mean[pair.name])
        fixed = max((pair for pair in known if not pair.drawn), key=lambda pair: mean[pair.name])
        lead = compare(part, drawn, fixed)
        names = {"drawn": drawn.name, "fixed": fixed.name, "best": drawn.name if lead.value > 1 else fixed.name}
        out.append({**cell, **names, **_told(lead)})
    return out


def rule_checks(frame: pd.DataFrame, default: Mapping[str, str], others: Sequence[str]) -> list[Row]:
    """Compare each drawn drafter's default rule with the other rules on the same trees, above temperature 0.

    `default` is drafter -> rule. Keys: `temperature`, `budget`, `method`, `over`, `ratio`, `interval`, `holds`, `text`,
    and `behind`: by an interval and by `LEAST`.
    """
    out = []
    for cell, part in _cells(frame[frame["temperature"] > 0]):
        for (tree, rule), other in product(default.items(), others):
            pair, base = DrafterAndRule(tree, rule), DrafterAndRule(tree, other)
            if other != rule and present(part, [pair, base]) == [pair, base]:
                lead = compare(part, pair, base)
                behind = lead.above() is False and lead.value * LEAST <= 1
                out.append({**cell, "method": pair.name, "over": base.name, **_told(lead), "behind": behind})
    return out
