"""The tables of Traversal Verification from records: acceptance by seed, gains beside the printed gains, their causes.

Pure functions of records, judged trees and published tables. A gain is 100 * (tokens per iteration of one rule / those
of another - 1), in per cent, as the paper prints it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from dynatree_lib.tree import ROOT, depths_of

from ...bench.protocol import Results
from ...bench.statistics import Estimate, estimate, quotient, ratio, sum_quotient, sums
from ...proofs.judge import Judged, Row
from ..published import Paper

TREES = {"chain": "chain of 5", "binary_tree": "binary tree of depth 5", "eagle_sparse_tree": "EAGLE sparse tree"}
"""The paper's trees, by the names in its stored tables."""
PAIRS = {"llama-3.1-8b/3.2-1b": 2, "llama-2-7b-base/68m": 3}
"""The paper's pairs, each with the number of its table."""
_TARGETS = {2: "llama3.1-8b-instruct", 3: "llama2-7b"}
"""The target of each table, by its name in the stored setup."""
_TASKS = {"chat": "multi_turn", "math": "math_reasoning"}
"""Kinds of bundled prompts that the paper calls otherwise."""
RULES = ("token-level", "traversal")
STANDARD_ERRORS = 1.96
"""Standard errors that an interval of 95 % reaches to either side."""


def task_of(prompt: Any) -> str:
    """Return the paper's name for a prompt's task; kinds that it does not have keep theirs."""
    return _TASKS.get(prompt.task, prompt.task)


def widths(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the nodes per level of a shape given as the parent slot of slots 1, 2, ..., as in `SampledTree.shape`."""
    return tuple(np.bincount(depths_of(np.array([ROOT, *shape])))[1:].tolist())


def percent(factor: Estimate) -> Estimate:
    """Return a ratio as a gain in per cent."""
    return replace(factor, **{name: 100 * (getattr(factor, name) - 1) for name in ("value", "low", "high")})


def tables_of(pair: str) -> tuple[int, ...]:
    """Return the numbers of the tables that a pair's numbers stand beside: its own; of a pair of others, both."""
    return (PAIRS[pair],) if pair in PAIRS else tuple(PAIRS.values())


def in_all(changes: Iterable[Estimate], limit: float = 0.0) -> bool | None:
    """Say whether every change is above a limit: False where one is below it, None where one is open."""
    found = [change.above(limit) for change in changes]
    return False if False in found else None if None in found else True


def in_a_line(gains: Mapping[str, Estimate]) -> str:
    """Return gains in a line: "chain +2.8 [2.1, 3.5], binary +2.2 [1.6, 2.8]"."""
    return ", ".join(f"{name} {gain.value:+.1f} [{gain.low:.1f}, {gain.high:.1f}]" for name, gain in gains.items())


def published_cells(paper: Paper, number: int) -> list[Row]:
    """Return acceptance lengths of Table 2, 3 or 4, with the printed gain and the interval of the printed errors.

    The rules were run apart, so that their errors add up.
    """
    out = []
    for row in paper.table(number).rows:
        if row["metric"] == "acceptance_length":
            errors = (row[f"{rule}_se"] / row[rule] for rule in ("traversal", "token_level"))
            reach = 100 * STANDARD_ERRORS * row["traversal"] / row["token_level"] * math.hypot(*errors)
            gain = row["gain_percent"]
            out.append({**row, "gain": gain, "gain_interval": [gain - reach, gain + reach]})
    return out


def published_speeds(paper: Paper, number: int) -> dict[tuple[str, str] | None, float]:
    """Return the printed tokens/s of Table 2 or 3 by (tree, rule), and those of plain decoding under None."""
    speeds: dict[tuple[str, str] | None, float]
    speeds = {None: paper.setup["ar_tokens_per_second"]["value"][_TARGETS[number]]["mean"]}
    for row in paper.table(number).where(metric="tokens_per_s"):
        speeds |= {(row["tree"], rule): row[rule.replace("-", "_")] for rule in RULES}
    return speeds


# ------------------------------------------------------------------------------------------------ the paper's protocol
def seed_rows(results: Results, prompts: Iterable[Any], methods: Mapping[str, tuple[str, str]]) -> list[Row]:
    """Return mean and standard error over seeds of tokens per iteration, as Tables 2 and 3 print them.

    Args:
        results: of a run with one repeat per seed.
        prompts: of that run, with `id` and `task`.
        methods: label -> (tree, rule), the rule as "token_level" or "traversal".

    Returns:
        One row per task and tree with `prompts`, `<rule>`, `<rule>_se` (0 for a single seed) and `gain`, and rows of
        the task "avg_acceptance": the mean over tasks, seed by seed.
    """
    tasks = pd.Series({prompt.id: task_of(prompt) for prompt in prompts})
    frame = results.records.frame()
    frame = frame[frame["method"].isin(methods)].assign(task=frame["prompt"].map(tasks))
    total = frame.groupby(["task", "method", "repeat"])[["tokens", "iterations"]].sum()
    lengths = (total["tokens"] / total["iterations"]).unstack("repeat")
    average = pd.concat({"avg_acceptance": lengths.groupby("method").mean()})
    table = pd.concat([lengths, average]).agg(["mean", "sem"], axis=1).fillna({"sem": 0.0})
    counts = {**tasks.value_counts(), "avg_acceptance": len(tasks)}
    out: dict[tuple[str, str], Row] = {}
    for task in (*tasks.unique(), "avg_acceptance"):
        for label, (tree, rule) in methods.items():
            row = out.setdefault((task, tree), {"task": task, "tree": tree, "prompts": counts[task]})
            row[rule], row[f"{rule}_se"] = table.loc[(task, label)].tolist()
    return [{**row, "gain": 100 * (row["traversal"] / row["token_level"] - 1)} for row in out.values()]


def acceptance_lines(rows: Iterable[Row], printed: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return the lines of a table, tree by tree: rows of `seed_rows`, and beside them `published_cells` by number."""
    sides = {f"Table {number}": {(row["task"], row["tree"]): row for row in cells} for number, cells in printed.items()}
    lines = []
    for row in sorted(rows, key=lambda row: list(TREES).index(row["tree"])):
        line: Row = {"tree": TREES[row["tree"]], "task": row["task"], "prompts": row["prompts"]}
        beside = {name: side.get((row["task"], row["tree"])) for name, side in sides.items()}
        for name, cell in {"measured": row, **beside}.items():
            for rule in RULES:
                key = rule.replace("-", "_")
                line[f"{rule}, {name}"] = f"{cell[key]:.2f} ± {cell[f'{key}_se']:.2f}" if cell else None
            line[f"gain %, {name}"] = f"{cell['gain']:+.1f}" if cell else None
        lines.append(line)
    return lines


def speed_lines(results: Results, methods: Mapping[str, tuple[str, str]], paper: Paper, pair: str) -> list[Row]:
    """Return the lines of a table: tokens/s of each method, and beside them the printed ones of the tables of the pair.

    Args:
        results: of a run with the methods "ar" and `methods`.
        methods: label -> (tree, rule).
        paper: with the printed tables.
        pair: name of the pair that was measured.
    """
    frame, printed = results.records.frame(), {number: published_speeds(paper, number) for number in tables_of(pair)}
    places, lines = {"ar": None, **methods}, []
    for one in results.summaries():
        label, (tree, rule) = one["label"], methods.get(one["label"], ("", ""))
        base = next((other for other, place in methods.items() if place == (tree, RULES[0])), "")
        paired = rule == RULES[1]
        theirs = {number: speeds[places[label]] for number, speeds in printed.items() if label in places}
        line: Row = {"method": label, "tokens/s": one["tokens_per_second"]}
        line |= {f"tokens/s, Table {number}": theirs.get(number) for number in printed}
        line |= {"tokens per iteration": one["tokens_per_iteration"], "x ar": str(ratio(frame, label, over="ar"))}
        for number, speeds in printed.items():
            line[f"x ar, Table {number}"] = theirs[number] / speeds[None] if theirs else None
        line["x token-level"] = str(ratio(frame, label, over=base)) if paired else None
        for number, speeds in printed.items():
            line[f"x token-level, Table {number}"] = theirs[number] / speeds[tree, RULES[0]] if paired else None
        lines.append({**line, "disturbed runs": one["disturbed"]})
    return lines


def iteration_time(results: Results, method: str, over: str) -> Estimate | None:
    """Return seconds per iteration of a method over those of another on the same prompts, the first iteration left out.

    The first iteration reads the prompt. Prompts are drawn anew for the interval. None where no prompt has a second
    iteration on both sides.
    """
    frame = results.records.frame()
    frame = frame.assign(steps=frame["iterations"] - 1).query("steps > 0")
    if not set.intersection(*(set(frame.loc[frame["method"] == label, "prompt"]) for label in (method, over))):
        return None
    return ratio(frame, method, over, of="span", per="steps", by="prompt")


# ---------------------------------------------------------------------------------------------------- the paired design
def gain_row(judged: Judged) -> Row:
    """Return the gain of traversal on the same trees.

    Keys: `gain` in per cent with `gain_interval`, means `token_level` and `traversal`, counts `trees` and `prompts`.
    """
    gain, means = percent(judged.gain(*RULES[::-1])), [judged.mean(rule) for rule in RULES]
    row: Row = {"token_level": means[0], "traversal": means[1], "gain": gain.value}
    row |= {"gain_interval": list(gain.interval), "trees": len(judged.rows)}
    return {**row, "prompts": len({row["prompt"] for row in judged.rows})}


def paired_rows(judged: Judged, printed: Mapping[int, Sequence[Row]]) -> list[Row]:
    """Return a `gain_row` for each of the paper's trees, of all prompts and of each task, beside the printed gains.

    Keys also `tree` and `task` ("all prompts", or a task by the paper's name), `table_<n>` and `table_<n>_interval`
    (`published_cells` by number) and, of all prompts, `separate` and `separate_interval` (`separate_gain`).
    """
    sides = {number: {(row["task"], row["tree"]): row for row in cells} for number, cells in printed.items()}
    rows = []
    for tree in TREES:
        whole = judged.where(tree=tree)
        separate = separate_gain(whole)
        parts = {"all prompts": whole}
        parts |= {task: whole.where(task=task) for task in dict.fromkeys(row["task"] for row in whole.rows)}
        for task, part in parts.items():
            row = {"tree": tree, "task": _TASKS.get(task, task), **gain_row(part)}
            for number, cells in sides.items():
                cell = cells.get(("avg_acceptance" if part is whole else row["task"], tree), {})
                row |= {f"table_{number}{end}": cell.get(f"gain{end}") for end in ("", "_interval")}
            if part is whole:
                row |= {"separate": separate.value, "separate_interval": list(separate.interval)}
            rows.append(row)
    return rows


def separate_gain(judged: Judged) -> Estimate:
    """Return the same gain as separate runs show it: tokens each rule emitted of its own trees with its own coins."""
    trees = pd.DataFrame(judged.rows).assign(iterations=1)
    return percent(ratio(trees, *RULES[::-1], column="driver", of="emitted", per="iterations", by="prompt"))


def trees_needed(judged: Judged, gain: float = 2.0) -> Row:
    """Return the trees after which an interval of 95 % reaches no further than a gain of so many per cent.

    Trees are taken as independent. `paired`: all rules on each tree. `separate`: of each rule, on its own trees.
    """
    trees = pd.DataFrame(judged.rows)
    base, rule = (trees["tokens"].str[name] for name in RULES)
    emitted = trees.groupby("driver")["emitted"].var(ddof=0)
    factor, reach = rule.mean() / base.mean(), base.mean() * gain / 100 / STANDARD_ERRORS
    noise = {
        "paired": (rule - factor * base).var(ddof=0),
        "separate": factor**2 * emitted[RULES[0]] + emitted[RULES[1]],
    }
    return {name: math.ceil(variance / reach**2) for name, variance in noise.items()}


def gain_change(judged: Judged, base: Judged) -> Estimate:
    """Return how much larger the gain on one set of trees is than on another of the same prompts, in points of %."""
    first, second = (
        sums([{"prompt": row["prompt"], **row["tokens"]} for row in part.rows], RULES[::-1], by="prompt")
        for part in (judged, base)
    )
    paired = first.merge(second, left_index=True, right_index=True)
    return estimate(
        paired.to_numpy(), lambda drawn: 100 * (sum_quotient(drawn[..., :2]) - sum_quotient(drawn[..., 2:]))
    )


# --------------------------------------------------------------------------------------------- what a gain depends on
KINDS = {"hard (below 0.1)": 0.1, "soft (0.1 to 0.9)": 0.9, "even (0.9 to 1.1)": 1.1, "repair (above 1.1)": math.inf}
"""Kinds of drafted tokens by p / q, and where each ends. A rule that looks at single tokens loses what is below 1 and
has no use for what is above; one that looks at paths can make up for a soft mistake with a later repair."""


def chain_row(chains: Sequence[Row], seed: int = 0, shuffles: int = 40) -> Row:
    """Return what ratios p / q along chains (`causes.chain_ratios`) say about token-level and Block Verification.

    Returns:
        `entropy` (nats, of the target where chains begin), the share of each of `KINDS`, `token_level` and `block`
        tokens per iteration, `gain` with `gain_interval`, and `shuffled`: the gain of chains put together from the
        same ratios at random, which knows nothing of places, texts, or order.
    """
    ratios = np.array([row["ratios"] for row in chains])
    shares = np.histogram(ratios, [0, *KINDS.values()])[0] / ratios.size
    tokens = pd.DataFrame({"token_level": token_level_tokens(ratios), "block": block_tokens(ratios)})
    tokens["prompt"] = [row["prompt"] for row in chains]
    gain = percent(quotient(tokens, of="block", per="token_level", by="prompt", seed=seed))
    shuffled = np.random.default_rng(seed).permuted(np.tile(ratios.ravel(), (shuffles, 1)), axis=1)
    shuffled = shuffled.reshape(-1, ratios.shape[1])
    return {
        "entropy": float(np.mean([row["entropy"] for row in chains])),
        **dict(zip(KINDS, shares.tolist(), strict=True)),
        **tokens[["token_level", "block"]].mean().to_dict(),
        "gain": gain.value,
        "gain_interval": gain.interval,
        "shuffled": float(100 * (block_tokens(shuffled).mean() / token_level_tokens(shuffled).mean() - 1)),
    }


def token_level_tokens(ratios: np.ndarray) -> np.ndarray:
    """Return the (n,) expected tokens of token-level verification of (n, length) ratios p / q, bonus token included."""
    tokens: np.ndarray = 1 + np.cumprod(np.minimum(ratios, 1), 1).sum(1)
    return tokens


def block_tokens(ratios: np.ndarray) -> np.ndarray:
    """Return the same of Block Verification, which on a chain is traversal; in the mean over what is drafted later.

    The first i tokens are accepted with probability w_i = min(1, w_(i-1) p_i / q_i) (the paper's lemma A.2).
    """
    weight, tokens = np.ones(len(ratios)), np.ones(len(ratios))
    for column in ratios.T:
        weight = np.minimum(1, weight * column)
        tokens += weight
    return tokens
