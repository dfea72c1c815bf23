"""The tables of Traversal Verification from records: acceptance by seed, gains beside the printed ones, their causes.

Pure functions of records, judged trees and published tables. A gain is 100 * (tokens per iteration of one rule / those
of another - 1), in per cent, as the paper prints it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from ...measure.judge import Paired
from ...measure.metrics import Interval, bootstrap, double_quotient, quotient
from ...measure.protocol import Results
from ...measure.records import Run
from ...papers import Paper
from ...tree import ROOT, depths_of

Row = dict[str, Any]
TREES = {"chain": "chain of 5", "binary_tree": "binary tree of depth 5", "eagle_sparse_tree": "EAGLE sparse tree"}
"""The paper's trees, by the names in its stored tables."""
_TASKS = {"chat": "multi_turn", "math": "math_reasoning"}
"""Kinds of bundled prompts that the paper calls otherwise."""
RULES = ("token-level", "traversal")
SPREAD = 1.96
"""Standard errors that an interval of 95 % reaches to either side."""


def task_of(prompt: Any) -> str:
    """The paper's name for a prompt's task; kinds that it does not have keep theirs."""
    return _TASKS.get(prompt.task, prompt.task)


def depth_of(slots: Iterable[int]) -> int:
    """Levels of a shape given by the parent slot of slots 1, 2, ..., as `SampledTree.shape` takes it."""
    return int(depths_of(np.array([ROOT, *slots])).max())


def percent(ratio: float, interval: Interval) -> tuple[float, list[float]]:
    """A ratio and its interval as a gain in per cent."""
    return 100 * (ratio - 1), [100 * (end - 1) for end in interval]


def published_cells(paper: Paper, number: int) -> list[Row]:
    """Acceptance lengths of Table 2, 3 or 4, with the printed gain and the interval that the printed errors give it.

    The rules were run apart, so that their errors add up.
    """
    out = []
    for row in paper.table(number).rows:
        if row["metric"] == "acceptance_length":
            errors = (row[f"{rule}_se"] / row[rule] for rule in ("traversal", "token_level"))
            reach = 100 * SPREAD * row["traversal"] / row["token_level"] * math.hypot(*errors)
            gain = row["gain_percent"]
            out.append({**row, "gain": gain, "gain_interval": [gain - reach, gain + reach]})
    return out


# ------------------------------------------------------------------------------------------------ the paper's protocol
def seed_rows(results: Results, prompts: Iterable[Any], methods: Mapping[str, tuple[str, str]]) -> list[Row]:
    """Mean and standard error over seeds of tokens per iteration, as Tables 2 and 3 print them.

    Args:
        results: of a run with one repeat per seed.
        prompts: of that run, with `id` and `task`.
        methods: label -> (tree, rule), the rule as "token_level" or "traversal".

    Returns:
        One row per task and tree with `prompts`, `<rule>`, `<rule>_se` and `gain`, and rows of the task
        "avg_acceptance": the mean over tasks, seed by seed.
    """
    tasks = {one.id: task_of(one) for one in prompts}
    names = [*dict.fromkeys(tasks.values())]
    lengths = {label: _by_seed(results, label, tasks, names) for label in methods}  # (tasks, seeds)
    counts = [sum(task == name for task in tasks.values()) for name in names]
    lines = [*enumerate(names), (None, "avg_acceptance")]
    out: dict[tuple[str, str], Row] = {}
    for place, name in lines:
        for label, (tree, rule) in methods.items():
            seeds = lengths[label].mean(0) if place is None else lengths[label][place]
            row = out.setdefault((name, tree), {"task": name, "tree": tree})
            row["prompts"] = len(tasks) if place is None else counts[place]
            row[rule], row[f"{rule}_se"] = float(seeds.mean()), standard_error(seeds)
    return [{**row, "gain": 100 * (row["traversal"] / row["token_level"] - 1)} for row in out.values()]


def _by_seed(results: Results, label: str, tasks: Mapping[str, str], names: Sequence[str]) -> np.ndarray:
    runs = [run for run in results.records.runs.values() if run.method == label]
    seeds = sorted({run.repeat for run in runs})
    sums = np.zeros((2, len(names), len(seeds)))
    for run in runs:
        place = names.index(tasks[run.prompt]), seeds.index(run.repeat)
        sums[0][place] += len(run.tokens)
        sums[1][place] += run.iterations
    lengths: np.ndarray = sums[0] / sums[1]
    return lengths


def standard_error(values: Sequence[float] | np.ndarray) -> float:
    """Of the mean; 0 for a single value, from which nothing can be told."""
    return float(np.std(values, ddof=1) / math.sqrt(len(values))) if len(values) > 1 else 0.0


def iteration_time(runs: Iterable[Run], others: Iterable[Run], seed: int = 0) -> tuple[float, Interval]:
    """Seconds per iteration over those of other runs of the same prompts, with the paired interval over prompts.

    The first iteration, which reads the prompt, is left out.

    Raises:
        ValueError: if no prompt has a second iteration on both sides.
    """
    sums: dict[str, np.ndarray] = {}
    for side, each in enumerate((runs, others)):
        for run in each:
            table = sums.setdefault(run.prompt, np.zeros(4))
            table[2 * side : 2 * side + 2] += run.emissions[-1][0] - run.emissions[0][0], run.iterations - 1
    rows = np.array([row for row in sums.values() if row[1] and row[3]])
    if not len(rows):
        raise ValueError("No prompt has a second iteration on both sides, so none can be timed; ask for more tokens.")
    return float(double_quotient(rows[None])[0]), bootstrap(rows, double_quotient, seed)


# ---------------------------------------------------------------------------------------------------- the paired design
def gain_row(judged: Paired, rule: str = RULES[1], base: str = RULES[0]) -> Row:
    """Gain on the same trees: `gain` in per cent with `gain_interval`, means `token_level` and `traversal`, counts."""
    gain, interval = percent(*judged.gain(rule, base))
    means = {"token_level": judged.mean(base), "traversal": judged.mean(rule)}
    counts = {"trees": len(judged.rows), "prompts": len({row["prompt"] for row in judged.rows})}
    return {**means, "gain": gain, "gain_interval": interval, **counts}


def separate_gain(judged: Paired, seed: int = 0) -> tuple[float, list[float]]:
    """The same gain as separate runs show it: tokens that each rule kept of its own trees, with its own coins."""
    sums: dict[str, np.ndarray] = {}
    for row in judged.rows:
        side = 2 * RULES[::-1].index(row["driver"])
        sums.setdefault(row["prompt"], np.zeros(4))[side : side + 2] += row["kept"], 1
    rows = np.array(list(sums.values()))
    return percent(float(double_quotient(rows[None])[0]), bootstrap(rows, double_quotient, seed))


def trees_needed(judged: Paired, gain: float = 2.0) -> Row:
    """Trees after which an interval of 95 % reaches no further than a gain of so many per cent.

    Trees are taken as independent. `paired`: all rules on each tree. `separate`: of each rule, on its own trees.
    """
    base, rule = (np.array([row["tokens"][name] for row in judged.rows]) for name in RULES)
    kept = [np.array([row["kept"] for row in judged.rows if row["driver"] == name], float) for name in RULES]
    ratio = rule.mean() / base.mean()
    noise = {"paired": (rule - ratio * base).var(), "separate": ratio**2 * kept[0].var() + kept[1].var()}
    reach = base.mean() * gain / 100 / SPREAD
    return {name: math.ceil(variance / reach**2) for name, variance in noise.items()}


def gain_change(one: Paired, other: Paired, seed: int = 0) -> tuple[float, list[float]]:
    """How much larger the gain on one set of trees is than on another of the same prompts, in points of per cent."""
    sums: dict[str, np.ndarray] = {}
    for side, judged in enumerate((one, other)):
        for row in judged.rows:
            table = sums.setdefault(row["prompt"], np.zeros(4))
            table[2 * side : 2 * side + 2] += row["tokens"][RULES[1]], row["tokens"][RULES[0]]
    rows = np.array([row for row in sums.values() if row[1] and row[3]])
    return float(_difference(rows[None])[0]), list(bootstrap(rows, _difference, seed))


def _difference(drawn: np.ndarray) -> np.ndarray:
    return 100 * (quotient(drawn[..., :2]) - quotient(drawn[..., 2:]))


# --------------------------------------------------------------------------------------------- what a gain depends on
KINDS = {"hard (below 0.1)": 0.1, "soft (0.1 to 0.9)": 0.9, "even (0.9 to 1.1)": 1.1, "repair (above 1.1)": math.inf}
"""Kinds of drafted tokens by p / q, and where each ends. A rule that looks at single tokens loses what is below 1 and
has no use for what is above; one that looks at paths can make up for a soft mistake with a later repair."""


def chain_row(chains: Sequence[Row], seed: int = 0, shuffles: int = 40) -> Row:
    """What ratios p / q along chains (`gain_causes.chain_ratios`) say about token-level and Block Verification.

    Returns:
        `entropy` (nats, of the target where chains begin), the share of each of `KINDS`, `token_level` and `block`
        tokens per iteration, `gain` with `gain_interval`, and `shuffled`: the gain of chains put together from the
        same ratios at random, which knows nothing of places, texts, or order.
    """
    ratios = np.array([row["ratios"] for row in chains])
    ends = np.searchsorted([*KINDS.values()], ratios.ravel(), side="right")
    shares = np.bincount(ends, minlength=len(KINDS)) / ratios.size
    gain, interval = percent(*_chain_gain([row["prompt"] for row in chains], ratios, seed))
    shuffled = np.random.default_rng(seed).permuted(np.tile(ratios.ravel(), (shuffles, 1)), axis=1)
    means = {"token_level": float(token_level_tokens(ratios).mean()), "block": float(block_tokens(ratios).mean())}
    return {
        "entropy": float(np.mean([row["entropy"] for row in chains])),
        **dict(zip(KINDS, shares.tolist(), strict=True)),
        **means,
        "gain": gain,
        "gain_interval": interval,
        "shuffled": _mean_gain(shuffled.reshape(-1, ratios.shape[1])),
    }


def _chain_gain(prompts: Sequence[str], ratios: np.ndarray, seed: int) -> tuple[float, Interval]:
    both = np.stack([block_tokens(ratios), token_level_tokens(ratios)], -1)
    names = np.array(prompts)
    rows = np.array([both[names == name].sum(0) for name in dict.fromkeys(prompts)])

    return float(quotient(rows[None])[0]), bootstrap(rows, quotient, seed)


def _mean_gain(ratios: np.ndarray) -> float:
    return float(100 * (block_tokens(ratios).mean() / token_level_tokens(ratios).mean() - 1))


def token_level_tokens(ratios: np.ndarray) -> np.ndarray:
    """(n,) expected tokens of token-level verification, the bonus token included, of (n, length) ratios p / q."""
    tokens: np.ndarray = 1 + np.cumprod(np.minimum(ratios, 1), 1).sum(1)
    return tokens


def block_tokens(ratios: np.ndarray) -> np.ndarray:
    """The same of Block Verification, which on a chain is traversal; in the mean over what is drafted later.

    Its first i tokens are kept with probability w_i = min(1, w_(i-1) p_i / q_i) (Traversal Verification, lemma A.2).
    """
    weight, tokens = np.ones(len(ratios)), np.ones(len(ratios))
    for column in ratios.T:
        weight = np.minimum(1, weight * column)
        tokens += weight
    return tokens
