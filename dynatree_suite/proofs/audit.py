"""The losslessness audit: exact distributions of an iteration for every drafter and rule on toy models, as a record.

The completed output of a sound pair must have the target's own distribution up to rounding. The audit must see each
unsound drafter miss it, because an audit that cannot see a mistake proves nothing. `exact` enumerates; this module says
what is enumerated and what must follow.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, fields
from functools import cache
from itertools import chain, count, product
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pandas as pd

from dynatree_lib.costs import Costs
from dynatree_lib.drafters import AdaptiveTree, Chain, CostAwareSampledTree, Drafter, FixedTree, SampledTree
from dynatree_lib.drafters.sampled_tree import slots_of_paths
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.models.toy import ToyModel
from dynatree_lib.sampling import Sampling
from dynatree_lib.verifiers import Block, Drawing, Greedy, TargetWalk, TokenLevel, Traversal, Verifier
from dynatree_lib.verifiers.residual import ImpossibleToken, ResidualRule

from ..bench.environment import describe_environment
from ..bench.records import read_bytes
from ..drafters import DySpecTree
from ..rules import ALL_RULES, ConditionalTransport, Hierarchical, KSequential, MultiPath, Transport
from ..rules.hierarchical import LOSSLESS, Reading
from .ceiling import best_tokens
from .exact import bias, distance, iteration, iterations
from .unsound import UNSOUND, GrownSiblings, Reranked, SharedNoise, SortedSiblings, TopAsDrawn, UnlikelyRemoved

FORMAT = 1
"""Version of the record; a reader refuses others."""
LIMIT = 1e-12
"""Largest total variation that counts as rounding."""
SEEN = 1e-6
"""Total variation from which a bias counts as seen."""
SAME = 1e-9
"""Largest difference in tokens per iteration that counts as none."""
SOLVED = 1e-6
"""Largest error of the linear programme's optimum, in tokens per iteration."""
CONTROL_CASES = 24
"""Model pairs per unsound drafter."""
PROMPT = (0,)

Row = dict[str, Any]
Make = Callable[[LanguageModel], Drafter]
Change = Callable[[np.random.Generator, np.ndarray, np.ndarray], tuple[np.ndarray, np.ndarray]]

PAIRS = ("generic", "zeros in p", "zeros in q", "p = q", "disjoint", "one-hot p", "peaked q", "peaked p and q")
"""Kinds of model pairs; p is the target's distribution and q the draft's. A peak leaves the others 0.1 to 1e-16."""
SAMPLINGS = {"T=1": Sampling(1.0), "T=0.6 top-k 2": Sampling(0.6, top_k=2), "T=1.5 top-p 0.8": Sampling(1.5, top_p=0.8)}


def _sampled(kind: type[SampledTree] = SampledTree, **options: Any) -> Make:
    return lambda draft: kind(draft, **options)


def _control(kind: type[SampledTree], **options: Any) -> Make:
    """Return a maker of trees with two children and one of each of them, on which every mistake shows."""
    return _sampled(kind, **{"shape": (0, 0, 1, 2), **options})


def _adaptive(draft: LanguageModel) -> Drafter:
    """Return an adaptive tree whose gates and breadths act on distributions over 2 to 4 tokens."""
    return AdaptiveTree(
        draft, tau_high=0.7, tau_low=0.4, base_depth=1, max_depth=3, rho_stop=0.1, rho_deep=0.4, tau=0.2, max_nodes=6,
        history=None, draw="distinct",
    )  # fmt: skip


def _cost_aware(draft: LanguageModel) -> Drafter:
    """Return a drawn tree whose breadths and levels follow what was drawn, on so few tokens as well."""
    return CostAwareSampledTree(
        draft, costs=Costs((1.0, 1.05, 1.1), (0.02, 0.03)), rate=1.5, depth=2, branching=2,
        max_nodes=6,
    )  # fmt: skip


TREES: dict[str, tuple[int, Make]] = {
    "chain of 3": (4, _sampled(depth=3, branching=1)),
    "2x2 distinct": (4, _sampled(depth=2, branching=2)),
    "2x2 iid": (3, _sampled(depth=2, branching=2, draw="iid")),
    "2x2 hybrid": (4, _sampled(depth=2, branching=2, draw="hybrid")),
    "2x2 top": (4, _sampled(depth=2, branching=2, draw="top")),
    "irregular": (4, _sampled(shape=(0, 0, 1, 1, 3))),
    "three, uneven": (4, _sampled(shape=(0, 0, 0, 1, 4))),
    "EAGLE-like": (3, _sampled(shape=slots_of_paths(["0", "1", "00", "01", "10", "000"]))),
    "one, then two": (4, _sampled(shape=(0, 1, 1))),
    "own temperature": (4, _sampled(depth=2, branching=(2, 1), temperature=0.7)),
    "adaptive": (4, _adaptive),
    "cost-aware, drawn": (4, _cost_aware),
    "DySpec": (4, lambda draft: DySpecTree(draft, max_nodes=5)),
    "top chain": (4, lambda draft: Chain(draft, 2)),
    "fixed tree": (4, lambda draft: FixedTree(draft, depth=2, branching=2, tau=None)),
}
"""Kinds of trees: the largest vocabulary they are enumerated on, and the drafter of a draft model."""
CHAINS = ("chain of 3", "top chain")
RULES = tuple(rule for rule in ALL_RULES if rule is not Greedy)
IDENTITIES = ("one-hot p: every rule is greedy", "chain: block is traversal", "deterministic tree: all are target walk")
ON_CHAINS = (Block, Traversal, Hierarchical, ConditionalTransport, MultiPath)
"""Rules that are one rule on a chain."""
ON_FIXED = (TargetWalk, TokenLevel, Traversal, KSequential, Transport, ConditionalTransport)
"""Rules that are one rule on a deterministic tree."""
SOUND = "a sound chain"
BIASED: dict[str, Verifier] = {
    f"hierarchical, {reading}": Hierarchical(reading=reading, unsafe=True)
    for reading in get_args(Reading)
    if reading not in LOSSLESS
}
"""Name -> a rule that is biased with any drafter: readings of HSD."""
CONTROLS: dict[str, Make] = {
    **{kind.name: _control(kind) for kind in UNSOUND},
    Reranked.name: _control(Reranked, nodes=2),
    f"{SortedSiblings.name} iid": _control(SortedSiblings, draw="iid"),
    f"{SharedNoise.name} siblings": _control(SharedNoise, between="siblings"),
    f"{TopAsDrawn.name} chain": _control(TopAsDrawn, shape=(0, 1)),
    f"{UnlikelyRemoved.name} chain": _control(UnlikelyRemoved, shape=(0, 1)),
    GrownSiblings.name: _control(GrownSiblings),
    f"{GrownSiblings.name} iid": _control(GrownSiblings, draw="iid"),
    SOUND: _control(SampledTree, shape=(0, 1, 2)),
}
"""Drafters that some rule must be biased for; and one that is sound, for rules that are biased with any."""


@dataclass(frozen=True)
class Case:
    """A drafter on a pair of toy models.

    Attributes:
        pair: kind of the models, an element of `PAIRS`.
        vocabulary: V.
        seed: of their tables.
        tree: kind of tree, of `TREES` or `CONTROLS`.
        sampling: of `SAMPLINGS`.
    """

    pair: str
    vocabulary: int
    seed: int
    tree: str
    sampling: str


CASE = [field.name for field in fields(Case)]
TABLES = {
    "checks": [*CASE, "rule", "deviation", "tokens", "outcomes"],
    "identities": [*CASE, "identity", "deviation"],
    "controls": [*CASE, "rule", "bias"],
    "optima": [*CASE, "optimum"],
}
"""Columns of the tables of an audit."""
OPTIONAL = "optima"
"""The table that records without optima lack."""


@dataclass(frozen=True)
class Audit:
    """The results of an audit, as data frames that begin with the columns of a `Case`.

    Attributes:
        environment: versions, machine, commit (`describe_environment`).
        setup: seed, and the limits that were applied.
        checks: a row per case and rule that serves the drafter: `rule`, `deviation` (total variation between the
            distribution of the completed output and the target's), `tokens` (expected per iteration, bonus token
            included), `outcomes` (ways the iteration may go).
        identities: a row per case and rules that must emit the same: `identity` (what is equal) and `deviation`
            (largest total variation between the distributions of what is emitted).
        controls: a row per case of a control and rule that refuses its drafter, made to verify its trees all the same,
            and of a biased reading of a rule:
            `rule` and `bias`, NaN where the rule met a token that its recorded distribution cannot have drawn.
        optima: a row per case whose `optimum` was asked for: the most tokens per iteration that a lossless rule can
            emit on average (`ceiling.best_tokens`).
    """

    environment: Row
    setup: Row
    checks: pd.DataFrame
    identities: pd.DataFrame
    controls: pd.DataFrame
    optima: pd.DataFrame

    @classmethod
    def of(cls, environment: Row, setup: Row, tables: Mapping[str, Sequence[Sequence[Any]]]) -> Audit:
        """Make an audit from rows in the order of the columns of `TABLES`."""
        frames = {name: pd.DataFrame(list(tables.get(name, [])), columns=columns) for name, columns in TABLES.items()}
        frames["controls"] = frames["controls"].astype({"bias": float})
        return cls(environment, setup, **frames)

    def summary(self) -> list[Row]:
        """By rule and kind of tree: `instances`, largest `deviation`, mean `tokens` per iteration."""
        table = _grouped(self.checks, ["rule", "tree"], deviation=("deviation", "max"), tokens=("tokens", "mean"))
        return _rows(table.round({"tokens": 6}))

    def identity_summary(self) -> list[Row]:
        """By identity: `instances` and the largest `deviation`."""
        return _rows(_grouped(self.identities, ["identity"], deviation=("deviation", "max")))

    def control_summary(self) -> list[Row]:
        """By refused drafter and rule: `instances`, how many were `biased` or `refused`, and the largest `bias`."""
        frame = self.controls.rename(columns={"tree": "control"})
        frame = frame.assign(biased=frame["bias"] > SEEN, refused=frame["bias"].isna())
        counts = {"biased": ("biased", "sum"), "refused": ("refused", "sum")}
        return _rows(_grouped(frame, ["control", "rule"], **counts, bias=("bias", "max")))

    def comparison(self) -> list[Row]:
        """By kind of tree: in how many cases `Traversal` emits `more`, as many (`equal`) or `fewer` than `TokenLevel`.

        `least` and `most` are the smallest and largest difference in tokens per iteration.
        """
        tokens = self.checks.pivot(index=CASE, columns="rule", values="tokens")
        tokens = tokens.reindex(columns=[Traversal.name, TokenLevel.name]).dropna()
        gain = tokens[Traversal.name] - tokens[TokenLevel.name]
        frame = pd.DataFrame({"more": gain > SAME, "equal": gain.abs() <= SAME, "fewer": gain < -SAME})
        ends = gain.groupby("tree").agg(least="min", most="max").round(9)
        return _rows(frame.groupby("tree").sum().join(ends).reset_index())

    def shares(self) -> list[Row]:
        """By rule and kind of tree: the share that the rule accepts of what the best lossless rule would accept.

        Of the cases whose optimum is known: `instances`, expected `accepted` drafted tokens per iteration, those of the
        `optimum`, and `share`, the ratio of the two, which is None where nothing can be accepted.
        """
        frame = self.checks.merge(self.optima, on=CASE)
        frame = frame.assign(accepted=frame["tokens"] - 1, optimum=frame["optimum"] - 1)
        means = {"accepted": ("accepted", "mean"), "optimum": ("optimum", "mean")}
        table = _grouped(frame, ["rule", "tree"], **means)
        share = (table["accepted"] / table["optimum"]).where(table["optimum"] > SOLVED)
        return _rows(table.assign(share=share).round(6))

    def failures(self) -> list[str]:
        """What speaks against losslessness, or against the audit itself, in full sentences; empty if nothing does."""
        checks = self.checks.assign(claim=self.checks["rule"] + " misses the target's distribution")
        identities = self.identities.assign(claim="'" + self.identities["identity"] + "' does not hold")
        beyond = pd.concat([frame[~(frame["deviation"] < LIMIT)] for frame in (checks, identities)])
        found = [
            f"On '{row.pair}', V={row.vocabulary}, seed {row.seed}, {row.sampling}, tree '{row.tree}', {row.claim} "
            f"by {row.deviation:.2e}; the limit is {LIMIT}."
            for row in beyond.itertuples()
        ]
        found += self._unseen()
        known = self.checks.merge(self.optima, on=CASE)
        found += [
            f"On '{row.pair}', V={row.vocabulary}, seed {row.seed}, {row.sampling}, tree '{row.tree}', {row.rule} "
            f"emits {row.tokens} tokens, where no lossless rule can emit more than {row.optimum}."
            for row in known[known["tokens"] > known["optimum"] + SOLVED].itertuples()
        ]
        for row in self.comparison():
            if row["fewer"] and row["tree"] in CHAINS:
                found.append(
                    f"On '{row['tree']}' Traversal emits fewer tokens than TokenLevel in {row['fewer']} instances."
                )
        return found

    def _unseen(self) -> list[str]:
        """Controls that no rule was seen biased for, and refusals that no control was seen to justify.

        A rule refuses a way of drawing, and need not be biased for each mistake of that kind: one that does not look at
        the order of siblings is not biased where they are sorted.
        """
        rows, found = self.control_summary(), list[str]()
        seen = [row for row in rows if row["biased"] + row["refused"]]
        justified = {(_drawing(row["control"]), row["rule"]) for row in seen}
        for row in rows:
            control, rule, instances = (row[name] for name in ("control", "rule", "instances"))
            if (_drawing(control), rule) not in justified or control not in {one["control"] for one in seen}:
                found.append(f"Control '{control}' was never seen biased under {rule} in {instances} instances.")
        return found

    def missing(self) -> list[str]:
        """What a whole audit looks at and this audit did not, in full sentences."""
        sound = self.checks[self.checks["tree"].isin(TREES)]
        wanted = {"rule": [rule.name for rule in RULES], "tree": TREES, "pair": PAIRS, "identity": IDENTITIES}
        return [
            f"The {column} '{name}' was never checked; ask for more instances."
            for column, names in wanted.items()
            for name in names
            if name not in set(self.identities[column] if column == "identity" else sound[column])
        ]

    def to_json(self) -> str:
        """Return the record; a line per row."""
        head = {"format": FORMAT, "environment": self.environment, "setup": self.setup}
        lines = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        tables: dict[str, list[Any]] = {"summary": self.summary(), "identity_summary": self.identity_summary()}
        tables |= {"control_summary": self.control_summary(), "comparison": self.comparison()}
        if len(self.optima):
            tables["shares"] = self.shares()
        for name, columns in TABLES.items():
            if name == OPTIONAL and not len(self.optima):
                continue
            tables[name] = [columns, *(list(row.values()) for row in _rows(getattr(self, name)))]
        for name, rows in tables.items():
            lines.append(f'"{name}": [\n' + ",\n".join(json.dumps(row, allow_nan=False) for row in rows) + "\n]")
        return "{\n" + ",\n".join(lines) + "\n}\n"


@cache
def _drawing(control: str) -> Drawing | str:
    """Return how the tokens of a control's drafter come about; the control's name where it is not known here."""
    return CONTROLS[control](toy_pair("generic", 2, 0)[1]).drawing if control in CONTROLS else control


def _grouped(frame: pd.DataFrame, by: list[str], **columns: tuple[str, str]) -> pd.DataFrame:
    """Return a row per group with its `instances` and further aggregates."""
    return frame.groupby(by, as_index=False).agg(instances=("seed", "size"), **columns)


def _rows(table: pd.DataFrame) -> list[Row]:
    """Return the rows of a table, missing values as None."""
    return table.astype(object).where(table.notna(), None).to_dict("records")


def read_audit(path: str | Path) -> Audit:
    """Read a record, plain or packed by gzip (its name then ends in `.gz`). Summaries are computed again from its rows.

    Raises:
        ValueError: if there is no such file, or it holds no audit of this format.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no audit {path}; `dynatree audit --out {path}` writes one.")
    try:
        body = json.loads(read_bytes(path))
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']}, where this version reads {FORMAT}")
        body.setdefault(OPTIONAL, [TABLES[OPTIONAL]])
        if any(body[name][0] != columns for name, columns in TABLES.items()):
            raise ValueError("other columns")
        return Audit.of(body["environment"], body["setup"], {name: body[name][1:] for name in TABLES})
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no audit that can be read ({error}); write it again.") from error


# ----------------------------------------------------------------------------------------------------------- instances
def toy_pair(kind: str, vocabulary: int, seed: int) -> tuple[ToyModel, ToyModel]:
    """Return a target and a draft with a distribution of their own after every context.

    Args:
        kind: an element of `PAIRS`.
        vocabulary: V, at least 2.
        seed: of the tables.
    """

    def changed(rng: np.random.Generator, p: np.ndarray, q: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        order, zeros = rng.permutation(vocabulary), int(rng.integers(1, vocabulary))
        if kind in ("zeros in p", "disjoint"):
            p[order[:zeros]] = 0
        if kind in ("zeros in q", "disjoint"):
            q[order[zeros:]] = 0
        if kind == "one-hot p":
            p = np.eye(vocabulary)[order[0]]
        if kind == "p = q":
            q = p
        if kind == "peaked p and q":
            p = _peaked(p, rng)
        if kind in ("peaked q", "peaked p and q"):
            q = _peaked(q, rng)
        return p, q

    return tabled_pair(changed, vocabulary, seed)


def tabled_pair(changed: Change, vocabulary: int, seed: int) -> tuple[ToyModel, ToyModel]:
    """Return a target and a draft: two random distributions after every context, as `changed` leaves their weights."""

    @cache
    def distributions(context: tuple[int, ...]) -> tuple[list[float], list[float]]:
        rng = np.random.default_rng([seed, vocabulary, *(token + 1 for token in context)])  # trailing zeros are lost
        p, q = changed(rng, *rng.dirichlet(np.ones(vocabulary), 2))
        return (p / p.sum()).tolist(), (q / q.sum()).tolist()

    def model(side: int) -> ToyModel:
        return ToyModel(lambda context: distributions(context)[side], vocabulary)

    return model(0), model(1)


def _peaked(values: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """Return a distribution that leaves to all tokens but one a random share of any order of magnitude."""
    out = values * 10 ** rng.uniform(-16, -1)
    out[rng.integers(len(out))] = 1
    return out


_SEEDS = 100_000  # tables of one audit, so that another seed has others


def cases(seed: int = 0) -> Iterator[Case]:
    """Yield cases without end. Every turn has each pair, tree and sampling once, in random order; three have each V."""
    kinds = list(product(range(len(PAIRS)), range(len(TREES)), range(len(SAMPLINGS))))
    for turn in count():
        for place, index in enumerate(np.random.default_rng([seed, turn]).permutation(len(kinds))):
            pair, tree, sampling = kinds[index]
            name, number = list(TREES)[tree], turn * len(kinds) + place
            vocabulary = min(2 + (turn + pair + tree + sampling) % 3, TREES[name][0])
            yield Case(PAIRS[pair], vocabulary, _SEEDS * seed + number, name, list(SAMPLINGS)[sampling])


def control_cases(seed: int = 0) -> Iterator[Case]:
    """Yield every unsound drafter on generic pairs over 2, 3 and 4 tokens."""
    for tree, number in product(CONTROLS, range(CONTROL_CASES)):
        yield Case("generic", 2 + number % 3, _SEEDS * seed + number, tree, "T=1")


def check_case(case: Case, optimum: bool = False) -> dict[str, list[tuple[Any, ...]]]:
    """Enumerate one iteration under every rule that serves the drafter; of a control, also under those that refuse it.

    Args:
        case: the drafter and its models.
        optimum: also find what the best lossless rule emits, except of a control.

    Returns:
        name of the table -> rows in the order of its columns in `TABLES`.
    """
    target, draft = toy_pair(case.pair, case.vocabulary, case.seed)
    make = CONTROLS.get(case.tree) or TREES[case.tree][1]
    drafter, sampling, head = make(draft), SAMPLINGS[case.sampling], astuple(case)
    out: dict[str, list[tuple[Any, ...]]] = {name: [] for name in TABLES}
    sound, biased = {}, dict(BIASED) if case.tree == SOUND else {}
    for rule in RULES:
        if serves(rule(), drafter, sampling):
            sound[rule.name] = rule()
        elif case.tree in CONTROLS and issubclass(rule, ResidualRule) and (drafter.chain or not rule.for_chains):
            biased[rule.name] = rule(unsafe=True)
    results = iterations(target, drafter, sound, PROMPT, sampling)
    for name, result in results.items():
        deviation = _short(result.bias(target, PROMPT, sampling))
        out["checks"].append((*head, name, deviation, round(result.tokens, 10), result.outcomes))
    for name, unsound in biased.items():
        try:
            seen = _short(bias(target, drafter, unsound, PROMPT, sampling)[0])
        except ImpossibleToken:
            seen = None
        out["controls"].append((*head, name, seen))
    if case.tree not in CONTROLS:
        if optimum:
            out["optima"].append((*head, round(best_tokens(target, drafter, PROMPT, sampling), 10)))
        # Where the target leaves no choice every rule is greedy; but among copies, greedy follows the longer sibling.
        if case.pair == "one-hot p" and case.tree != "2x2 iid":
            results[Greedy.name] = iteration(target, drafter, Greedy(), PROMPT, sampling)
        longest = [rule.name for rule in RULES if rule.longest and rule.name in results]
        same = (
            (Greedy.name in results, (Greedy.name, *longest)),
            (drafter.chain, [rule.name for rule in ON_CHAINS]),
            (drafter.drawing is Drawing.FIXED, [rule.name for rule in ON_FIXED]),
        )
        for identity, (holds, (first, *names)) in zip(IDENTITIES, same, strict=True):
            if holds and (others := [name for name in names if name in results]):
                apart = max(distance(results[first].emitted, results[other].emitted) for other in others)
                out["identities"].append((*head, identity, _short(apart)))
    return out


def serves(rule: Verifier, drafter: Drafter, sampling: Sampling) -> bool:
    """Whether a rule serves a drafter's trees without bias."""
    try:
        rule.check(sampling, drafter.drawing, drafter.chain)
    except ValueError:
        return False
    return True


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def run_audit(
    instances: int, seed: int = 0, progress: Callable[[str], None] | None = None, optimum: bool = False
) -> Audit:
    """Check the controls, then cases until there are enough instances.

    Args:
        instances: least number of sound checks, those of the controls with a rule that serves them included.
        seed: of the models and of the order of cases.
        progress: called with a line of text now and then.
        optimum: also find what the best lossless rule emits in each case.

    Raises:
        ValueError: for instances < 1 or seed < 0.
    """
    if instances < 1 or seed < 0:
        raise ValueError(f"instances is {instances} and seed {seed}; give at least 1 and 0.")
    setup = {"seed": seed, "instances": instances, "limit": LIMIT, "seen": SEEN, "same": SAME, "prompt": list(PROMPT)}
    tables, reported = {name: list[Any]() for name in TABLES}, 0
    for case in chain(control_cases(seed), cases(seed)):
        if case.tree in TREES and len(tables["checks"]) >= instances:
            break
        for name, rows in check_case(case, optimum).items():
            tables[name] += rows
        done = len(tables["checks"])
        if progress and min(10, 10 * done // instances) > reported:
            reported = min(10, 10 * done // instances)
            worst = max(row[TABLES["checks"].index("deviation")] for row in tables["checks"])
            progress(f"{done} instances, largest deviation {worst:.1e}")
    return Audit.of(describe_environment(), setup, tables)
