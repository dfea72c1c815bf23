"""The losslessness audit: the exact law of an iteration for every drafter and rule, on toy models, as a record.

A sound pair's completed output must have the target's own law up to rounding, and each unsound drafter must be seen to
miss it, or the audit could not see a mistake. `exact` enumerates; this file says what, and what must follow.
"""

from __future__ import annotations

import dataclasses
import json
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import count, product
from pathlib import Path
from typing import Any

import numpy as np

from ..drafters import AdaptiveTree, Chain, Drafter, FixedTree, SampledTree
from ..drafters.sampled_tree import slots_of_paths
from ..models.base import LanguageModel
from ..models.toy import ToyModel
from ..sampling import DraftDistributions, RandomSource, Sampling, Scores
from ..tree import TokenTree
from ..verifiers import VERIFIERS, Block, Drawing, Greedy, TargetWalk, TokenLevel, Traversal, Verdict, Verifier
from ..verifiers.base import follow_argmax
from ..verifiers.residual import ImpossibleToken, ResidualRule
from .environment import describe_environment
from .exact import ExactIteration, bias, distance, iteration
from .unsound import UNSOUND, Reranked, SortedSiblings, TopAsDrawn, UnlikelyRemoved

FORMAT = 1
"""Version of the record; a reader refuses others."""
LIMIT = 1e-12
"""Largest total variation that counts as rounding."""
SEEN = 1e-6
"""Total variation from which a bias counts as seen."""
SAME = 1e-9
"""Largest difference in tokens per iteration that counts as none."""
CONTROL_CASES = 24
"""Model pairs per unsound drafter."""
PROMPT = (0,)

Row = dict[str, Any]
Make = Callable[[LanguageModel], Drafter]

PAIRS = ("generic", "zeros in p", "zeros in q", "p = q", "disjoint", "one-hot p")
"""Kinds of model pairs; p is the target's law and q the draft's."""
SAMPLINGS = {"T=1": Sampling(1.0), "T=0.6 top-k 2": Sampling(0.6, top_k=2), "T=1.5 top-p 0.8": Sampling(1.5, top_p=0.8)}


def _sampled(**shape: Any) -> Make:
    return lambda draft: SampledTree(draft, **shape)


def _adaptive(draft: LanguageModel) -> Drafter:
    """Gates and breadths that act on laws over 2 to 4 tokens."""
    return AdaptiveTree(
        draft, tau_high=0.7, tau_low=0.4, base_depth=1, max_depth=3, rho_stop=0.1, rho_deep=0.4, tau=0.2, max_nodes=6,
        history=None, draw="distinct",
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
    "top chain": (4, lambda draft: Chain(draft, 2)),
    "fixed tree": (4, lambda draft: FixedTree(draft, depth=2, branching=2, tau=None)),
}
"""Kinds of trees: the largest vocabulary they are enumerated on, and the drafter of a draft model."""
CHAINS = ("chain of 3", "top chain")
RULES = tuple(rule for rule in VERIFIERS if rule is not Greedy)
IDENTITIES = ("one-hot p: every rule is greedy", "chain: block is traversal", "deterministic tree: all are target walk")


def _control(kind: type[SampledTree], **options: Any) -> Make:
    """By default with two children and one of each of them, the smallest shape on which every mistake shows."""
    return lambda draft: kind(draft, **{"shape": (0, 0, 1, 2), **options})


CONTROLS: dict[str, Make] = {
    **{kind.name: _control(kind) for kind in UNSOUND},
    Reranked.name: _control(Reranked, nodes=2),
    f"{SortedSiblings.name} iid": _control(SortedSiblings, draw="iid"),
    f"{TopAsDrawn.name} chain": _control(TopAsDrawn, shape=(0, 1)),
    f"{UnlikelyRemoved.name} chain": _control(UnlikelyRemoved, shape=(0, 1)),
}
"""Drafters that some rule must be biased for."""


# ------------------------------------------------------------------------------------------------------------- records
@dataclass(frozen=True)
class Case:
    """A drafter on a pair of toy models.

    Attributes:
        pair: kind of the models, one of `PAIRS`.
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


@dataclass(frozen=True)
class Check(Case):
    """A rule that serves the drafter.

    Attributes:
        rule: its name.
        deviation: total variation between the completed output's law and the target's.
        tokens: expected per iteration, the bonus token included.
        outcomes: ways the iteration may go.
    """

    rule: str
    deviation: float
    tokens: float
    outcomes: int


@dataclass(frozen=True)
class Identity(Case):
    """Two rules that must keep the same, token by token.

    Attributes:
        identity: what is equal.
        deviation: largest total variation between the laws of what is kept.
    """

    identity: str
    deviation: float


@dataclass(frozen=True)
class Control(Case):
    """A rule that does not serve the drafter, made to verify its trees.

    Attributes:
        rule: its name.
        bias: total variation; None where the rule met a token that its recorded law cannot have drawn.
    """

    rule: str
    bias: float | None


@dataclass(frozen=True)
class Audit:
    """What an audit found.

    Attributes:
        environment: versions, machine, commit (`describe_environment`).
        setup: seed, and the limits that were applied.
        checks: one per case and rule that serves it.
        identities: of rules that coincide on a case.
        controls: one per case of an unsound drafter and rule that does not serve it.
    """

    environment: Row
    setup: Row
    checks: list[Check]
    identities: list[Identity]
    controls: list[Control]

    def summary(self) -> list[Row]:
        """By rule and kind of tree: `instances`, largest `deviation`, mean `tokens` per iteration."""
        return [
            {"rule": rule, "tree": tree, "instances": len(group), "deviation": max(one.deviation for one in group),
             "tokens": round(float(np.mean([one.tokens for one in group])), 6)}
            for (rule, tree), group in _grouped(self.checks, "rule", "tree").items()
        ]  # fmt: skip

    def identity_summary(self) -> list[Row]:
        """By identity: `instances` and the largest `deviation`."""
        return [
            {"identity": name, "instances": len(group), "deviation": max(one.deviation for one in group)}
            for (name,), group in _grouped(self.identities, "identity").items()
        ]

    def control_summary(self) -> list[Row]:
        """By unsound drafter and rule: `instances`, how many were `biased` or `refused`, and the largest `bias`."""
        rows = []
        for (control, rule), group in _grouped(self.controls, "tree", "rule").items():
            found = [one.bias for one in group if one.bias is not None]
            row = {"control": control, "rule": rule, "instances": len(group), "biased": sum(x > SEEN for x in found)}
            rows.append({**row, "refused": len(group) - len(found), "bias": max(found, default=None)})
        return rows

    def comparison(self) -> list[Row]:
        """By kind of tree: in how many cases `Traversal` keeps `more`, as many (`equal`) or `fewer` than `TokenLevel`.

        `least` and `most` are the smallest and largest difference in tokens per iteration.
        """
        tokens: dict[Case, dict[str, float]] = defaultdict(dict)
        for one in self.checks:
            tokens[_case(one)][one.rule] = one.tokens
        gains = defaultdict(list)
        for case, found in tokens.items():
            if {Traversal.name, TokenLevel.name} <= found.keys():
                gains[case.tree].append(found[Traversal.name] - found[TokenLevel.name])
        return [_compared(tree, np.array(found)) for tree, found in sorted(gains.items())]

    def failures(self) -> list[str]:
        """What speaks against losslessness, or against the audit itself, in full sentences; empty if nothing does."""
        return [
            *(_exceeded(one, f"{one.rule} misses the target's law") for one in self.checks if _beyond(one)),
            *(_exceeded(one, f"'{one.identity}' does not hold") for one in self.identities if _beyond(one)),
            *(
                f"Control '{row['control']}' was never seen biased under {row['rule']} in {row['instances']} instances."
                for row in self.control_summary()
                if not row["biased"] + row["refused"]
            ),
            *(
                f"On '{row['tree']}' Traversal keeps fewer tokens than TokenLevel in {row['fewer']} instances."
                for row in self.comparison()
                if row["fewer"] and row["tree"] in CHAINS
            ),
        ]

    def missing(self) -> list[str]:
        """What a whole audit looks at and this one did not, in full sentences."""
        return [f"{what} was never checked; ask for more instances." for what in self._unchecked()]

    def _unchecked(self) -> Iterator[str]:
        sound = [one for one in self.checks if one.tree in TREES]
        rules, trees, pairs = ({getattr(one, name) for one in sound} for name in ("rule", "tree", "pair"))
        yield from (f"The rule '{rule.name}'" for rule in RULES if rule.name not in rules)
        yield from (f"The tree '{name}'" for name in TREES if name not in trees)
        yield from (f"The pair of models '{name}'" for name in PAIRS if name not in pairs)
        seen = {one.identity for one in self.identities}
        yield from (f"The identity '{name}'" for name in IDENTITIES if name not in seen)

    def to_json(self) -> str:
        """The record; a line per row."""
        head = {"format": FORMAT, "environment": self.environment, "setup": self.setup}
        lines = [f'"{name}": {json.dumps(value)}' for name, value in head.items()]
        for name in ("summary", "identity_summary", "control_summary", "comparison"):
            lines.append(f'"{name}": {_listed(getattr(self, name)())}')
        for name, kind in _TABLES.items():
            names = [field.name for field in dataclasses.fields(kind)]
            lines.append(f'"{name}": {_listed([names, *map(dataclasses.astuple, getattr(self, name))])}')
        return "{\n" + ",\n".join(lines) + "\n}\n"


_TABLES: dict[str, type[Case]] = {"checks": Check, "identities": Identity, "controls": Control}


def read_audit(path: str | Path) -> Audit:
    """Read a record. Summaries are computed again from its rows.

    Raises:
        ValueError: if there is no such file, or it holds no audit of this format.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"There is no audit {path}; `dynatree audit --out {path}` writes one.")
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
        if body["format"] != FORMAT:
            raise ValueError(f"format {body['format']}, where this version reads {FORMAT}")
        tables = (_parsed(kind, body[name]) for name, kind in _TABLES.items())
        return Audit(body["environment"], body["setup"], *tables)
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} holds no audit that can be read ({error}); write it again.") from error


def _parsed(kind: type[Case], table: list[list[Any]]) -> list[Any]:
    names, *rows = table
    return [kind(**dict(zip(names, row, strict=True))) for row in rows]


def _listed(rows: Sequence[Any]) -> str:
    return "[\n" + ",\n".join(json.dumps(row, allow_nan=False) for row in rows) + "\n]"


def _grouped(rows: Sequence[Any], *names: str) -> Mapping[tuple, list[Any]]:
    groups: dict[tuple, list[Any]] = defaultdict(list)
    for row in rows:
        groups[tuple(getattr(row, name) for name in names)].append(row)
    return dict(sorted(groups.items()))


def _case(row: Case) -> Case:
    return Case(row.pair, row.vocabulary, row.seed, row.tree, row.sampling)


def _compared(tree: str, gains: np.ndarray) -> Row:
    more, fewer = int((gains > SAME).sum()), int((gains < -SAME).sum())
    numbers = {"more": more, "equal": len(gains) - more - fewer, "fewer": fewer}
    return {"tree": tree, **numbers, "least": round(float(gains.min()), 9), "most": round(float(gains.max()), 9)}


def _beyond(row: Check | Identity) -> bool:
    return not row.deviation < LIMIT


def _exceeded(row: Check | Identity, what: str) -> str:
    where = f"'{row.pair}', V={row.vocabulary}, seed {row.seed}, {row.sampling}, tree '{row.tree}'"
    return f"On {where}, {what} by {row.deviation:.2e}; the limit is {LIMIT}."


# ----------------------------------------------------------------------------------------------------------- instances
def toy_pair(kind: str, vocabulary: int, seed: int) -> tuple[ToyModel, ToyModel]:
    """Target and draft with a law of their own after every context.

    Args:
        kind: one of `PAIRS`.
        vocabulary: V, at least 2.
        seed: of the tables.
    """

    @cache
    def distributions(context: tuple[int, ...]) -> tuple[list[float], list[float]]:
        rng = np.random.default_rng([seed, vocabulary, *(token + 1 for token in context)])  # trailing zeros are lost
        p, q = rng.dirichlet(np.ones(vocabulary), 2)
        order, some = rng.permutation(vocabulary), int(rng.integers(1, vocabulary))
        if kind in ("zeros in p", "disjoint"):
            p[order[:some]] = 0
        if kind in ("zeros in q", "disjoint"):
            q[order[some:]] = 0
        if kind == "one-hot p":
            p = np.eye(vocabulary)[order[0]]
        if kind == "p = q":
            q = p
        return (p / p.sum()).tolist(), (q / q.sum()).tolist()

    def model(side: int) -> ToyModel:
        return ToyModel(lambda context: distributions(context)[side], vocabulary)

    return model(0), model(1)


_SEEDS = 100_000  # tables of one audit, so that another seed has others


def cases(seed: int = 0) -> Iterator[Case]:
    """Cases without end. Every round has each pair, tree and sampling once, in random order; three have each V."""
    kinds = list(product(range(len(PAIRS)), range(len(TREES)), range(len(SAMPLINGS))))
    for turn in count():
        for place, index in enumerate(np.random.default_rng([seed, turn]).permutation(len(kinds))):
            pair, tree, sampling = kinds[index]
            name, number = list(TREES)[tree], turn * len(kinds) + place
            vocabulary = min(2 + (turn + pair + tree + sampling) % 3, TREES[name][0])
            yield Case(PAIRS[pair], vocabulary, _SEEDS * seed + number, name, list(SAMPLINGS)[sampling])


def control_cases(seed: int = 0) -> Iterator[Case]:
    """Every unsound drafter on generic pairs over 2, 3 and 4 tokens."""
    for tree, number in product(CONTROLS, range(CONTROL_CASES)):
        yield Case("generic", 2 + number % 3, _SEEDS * seed + number, tree, "T=1")


class ArgmaxWalk(Verifier):
    """Greedy verification at any temperature, which is what every rule must be where the target leaves no choice."""

    name = "argmax-walk"

    def sample(
        self, tree: TokenTree, scores: Scores, distributions: DraftDistributions | None, random: RandomSource
    ) -> Verdict:
        """See `Verifier.sample`."""
        return follow_argmax(tree, scores)


def check_case(case: Case) -> tuple[list[Check], list[Identity], list[Control]]:
    """Enumerate one iteration under every rule that serves the drafter; of a control, also under those that do not."""
    target, draft = toy_pair(case.pair, case.vocabulary, case.seed)
    make = CONTROLS.get(case.tree) or TREES[case.tree][1]
    drafter, sampling, of = make(draft), SAMPLINGS[case.sampling], vars(case)
    checks, controls, found = [], [], {}
    for rule in RULES:
        if _serves(rule(), drafter, sampling):
            deviation, kept = bias(target, drafter, rule(), PROMPT, sampling)
            numbers: Row = {"deviation": _short(deviation), "tokens": round(kept.tokens, 10), "outcomes": kept.outcomes}
            checks.append(Check(**of, rule=rule.name, **numbers))
            found[rule.name] = kept
        elif case.tree in CONTROLS and issubclass(rule, ResidualRule) and (drafter.chain or rule is not Block):
            controls.append(Control(**of, rule=rule.name, bias=_bias_of(rule(unsafe=True), target, drafter, sampling)))
    if case.tree in CONTROLS:
        return checks, [], controls
    if case.pair == "one-hot p" and case.tree != "2x2 iid":  # with copies among siblings, greedy follows the longer one
        found[ArgmaxWalk.name] = iteration(target, drafter, ArgmaxWalk(), PROMPT, sampling)
    return checks, list(_identities(of, drafter, found)), controls


def _serves(rule: Verifier, drafter: Drafter, sampling: Sampling) -> bool:
    try:
        rule.check(sampling, drafter.drawing, drafter.chain)
    except ValueError:
        return False
    return True


def _bias_of(rule: Verifier, target: ToyModel, drafter: Drafter, sampling: Sampling) -> float | None:
    try:
        return _short(bias(target, drafter, rule, PROMPT, sampling)[0])
    except ImpossibleToken:
        return None


def _short(value: float) -> float:
    return float(f"{value:.3g}")


def _identities(of: Row, drafter: Drafter, found: Mapping[str, ExactIteration]) -> Iterator[Identity]:
    """Rules that must keep the same on this case, compared with the first of them."""
    fixed = drafter.drawing is Drawing.FIXED
    hold = (ArgmaxWalk.name in found, drafter.chain, fixed)
    rules = (
        (ArgmaxWalk.name, *found),
        (Block.name, Traversal.name),
        (TargetWalk.name, TokenLevel.name, Traversal.name),
    )
    for name, holds, (first, *others) in zip(IDENTITIES, hold, rules, strict=True):
        if holds:
            deviation = max(distance(found[first].kept, found[other].kept) for other in others)
            yield Identity(**of, identity=name, deviation=_short(deviation))


def run_audit(instances: int, seed: int = 0, progress: Callable[[str], None] | None = None) -> Audit:
    """Check the controls, then cases until there are enough instances.

    Args:
        instances: least number of sound checks, those of the controls with a rule that serves them included.
        seed: of the models and of the order of cases.
        progress: called with a line of text now and then.

    Raises:
        ValueError: for instances < 1 or seed < 0.
    """
    if instances < 1 or seed < 0:
        raise ValueError(f"instances is {instances} and seed {seed}; give at least 1 and 0.")
    setup = {"seed": seed, "instances": instances, "limit": LIMIT, "seen": SEEN, "same": SAME, "prompt": list(PROMPT)}
    audit, said = Audit(describe_environment(), setup, [], [], []), 0
    for case in _until(audit, instances, seed):
        for rows, more in zip((audit.checks, audit.identities, audit.controls), check_case(case), strict=True):
            rows += more  # type: ignore[operator]
        share = min(10, 10 * len(audit.checks) // instances)
        if progress and share > said:
            said = share
            progress(f"{len(audit.checks)} instances, largest deviation {max(c.deviation for c in audit.checks):.1e}")
    return audit


def _until(audit: Audit, instances: int, seed: int) -> Iterator[Case]:
    yield from control_cases(seed)
    for case in cases(seed):
        if len(audit.checks) >= instances:
            return
        yield case
