"""Published speeds beside those of a roofline, one assumption after another.

A data sheet bounds a speed. What was published lies below, and the question is why: launches, a loop that runs the
target twice and the draft node by node, Python between the forwards, or arithmetic that does not hide behind reading.
Launches and the host's time are each taken from one published speed of the paper; all other speeds of it are then
predicted. Tokens per iteration and nodes are the papers' counts (`papers`); what had to be assumed is said in each row.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ..papers.published import published
from .ranks import RankAcceptance
from .roofline import DATA_SHEETS, PLAIN, SHAPES, Loop, Machine, iteration_seconds, predict

Row = dict[str, Any]
CARDS = {"dynatree-fixed": "a100-80gb", "dynatree-adaptive": "a100-80gb", "traversal": "a6000", "ptd": "l20"}
"""Paper -> GPU. The first names none; the second names an A100 and not its memory: 80 GB is assumed of both."""
DTYPES = {"ptd": "bfloat16"}
"""Paper -> dtype, where it is not float16."""
ASSUMPTIONS = ("data sheet", "launches", "their loop", "host")
"""Each adds to the one before: launches fitted to one baseline; the loop that the authors ran; a constant time of the
host per iteration, fitted to one speed with drafting."""
FORMS = {
    "the longer alone, launches hidden": (True, math.inf),
    "the longer alone, launches added": (False, math.inf),
    "smooth (2), launches added": (False, 2.0),
    "one after the other, launches added": (False, 1.0),
}
"""How seconds of memory, arithmetic and launches make one time -> `queued` and `sharpness` of the machine."""
CHOSEN_FORM = "one after the other, launches added"
"""The form that predicts published speeds with many tokens in a forward best; baselines hardly tell forms apart."""
LEVELS_OF_TREES = {"chain": (1,) * 5, "binary_tree": (1, 2, 4, 8, 16), "eagle_sparse_tree": (1, 4, 4, 1, 1)}
"""Traversal Verification: trees of depth 5 -> nodes that each forward of the draft reads."""
NODES_OF_TREES = {"chain": 6, "binary_tree": 63, "eagle_sparse_tree": 26}


@dataclass(frozen=True)
class Speed:
    """One published speed, and what was run for it.

    Attributes:
        paper, where, method: key of the paper, table, and the row there.
        target: key of `SHAPES`.
        published: tokens per second.
        tokens: per iteration, as counted by the paper.
        nodes: that the target's forward scores.
        theirs: the loop that was run; `lean` the same without a second forward, with one draft forward per level.
        kv: tokens in the cache, in the middle of the text.
        assumed: what the paper does not print.
        given: what the row serves for, besides being predicted: "launches", "host", or nothing.
    """

    paper: str
    where: str
    method: str
    target: str
    published: float
    tokens: float = 1.0
    nodes: int = 1
    theirs: Loop = PLAIN
    lean: Loop = PLAIN
    kv: int = 300
    assumed: str = ""
    given: str = ""

    @property
    def drafts(self) -> bool:
        """Whether it is a speed with drafting."""
        return self.nodes > 1


# -------------------------------------------------------------------------------------------------------- what was run
def published_speeds() -> list[Speed]:
    """Return the speeds in the tables of four papers whose tokens per iteration are known."""
    return [*_fixed(), *_adaptive(), *_traversal(), *_ptd()]


def sweep_speeds() -> list[Speed]:
    """Return the 450 speeds of the fixed tree's sweep, from its authors' log; tokens and nodes are logged there."""
    rows = published("dynatree-fixed").log("sweep").rows
    return [_swept(row, row["tokens_per_second"], "log sweep") for row in rows]


def _fixed() -> list[Speed]:
    paper = published("dynatree-fixed")
    table = {row["method"]: row for row in paper.table(1).rows}
    sweep = {(row["new_tokens"], row["D"], row["B"], row["tau"]): row for row in paper.log("sweep").rows}
    plain = Speed("dynatree-fixed", "Table 1", "ar", "pythia-2.8b", table["ar"]["tokens_per_second"], kv=310)
    tokens, tree = 6 * table["chain"]["accept"], sweep[500, 8, 3, 0.03]
    theirs, lean = _chain(6, tokens)
    chain = replace(plain, method="chain", published=table["chain"]["tokens_per_second"], tokens=tokens, nodes=6)
    chain = replace(chain, theirs=theirs, lean=lean)
    speed = table["streaming-llm"]["tokens_per_second"]
    streaming = replace(chain, method="streaming-llm", published=speed, assumed="a chain of 6; nothing is evicted")
    main = table["fixed-tree"]
    own = {**tree, "tokens_per_iteration": main["accept"] * tree["nodes_per_iteration"]}
    speeds = [replace(plain, given="launches"), replace(chain, given="host"), streaming]
    speeds.append(replace(_swept(own, main["tokens_per_second"], "Table 1"), assumed="nodes as in the sweep"))
    for row in paper.table(2).rows[1:]:
        config = row["config"]
        known = sweep[500, config["D"], config["B"], config["tau"]]
        speeds.append(_swept(known, row["tokens_per_second"], "Table 2"))
    for row in paper.table(3).rows:
        best = _swept(sweep[row["new_tokens"], row["D"], row["B"], row["tau"]], row["tokens_per_second"], "Table 3")
        method, speed = f"ar, {row['new_tokens']} tokens", row["ar_tokens_per_second"]
        speeds += [replace(plain, where="Table 3", method=method, published=speed, kv=best.kv), best]
    return speeds


def _swept(row: Mapping[str, Any], speed: float, where: str) -> Speed:
    """Return a speed of the fixed tree from a row of the sweep."""
    nodes, tokens = row["nodes_per_iteration"], row["tokens_per_iteration"]
    method = f"fixed-tree D={row['D']}, B={row['B']}, tau={row['tau']}, {row['new_tokens']} tokens"
    theirs, lean = _tree(nodes, row["B"], row["D"], tokens)
    kv, scored = 60 + row["new_tokens"] // 2, max(round(nodes), 2)
    return Speed("dynatree-fixed", where, method, "pythia-2.8b", speed, tokens, scored, theirs, lean, kv)


def _tree(nodes: float, branching: int, depth: int, tokens: float) -> tuple[Loop, Loop]:
    """Return the authors' loop and the lean one for a tree of so many nodes: its root, and children by `branching`."""
    expanded, draft = max(round((nodes - 1) / branching), 1), SHAPES["pythia-70m"]
    levels = min(depth, expanded)
    read = tuple(1 + (expanded - levels) // levels + (level < (expanded - levels) % levels) for level in range(levels))
    theirs = Loop(draft, (1,) * expanded, reread=True, rebuild=max(round(tokens), 1))
    return theirs, Loop(draft, (1, *read))


def _chain(length: int, tokens: float) -> tuple[Loop, Loop]:
    """Return the authors' loop and the lean one for a chain; theirs reads its last token too."""
    draft = SHAPES["pythia-70m"]
    theirs = Loop(draft, (1,) * length, reread=True, rebuild=max(round(tokens), 1))
    return theirs, Loop(draft, (1,) * length)


def _adaptive() -> list[Speed]:
    paper, first = published("dynatree-adaptive"), published("dynatree-fixed").log("sweep")
    counts = {(row["dataset"], row["method"]): row["tokens_per_iteration"] for row in paper.table(3).rows}
    per_token = {}  # nodes, which this paper prints nowhere
    for size in ((8, 3, 0.1), (5, 2, 0.05)):
        (logged,) = first.where(new_tokens=500, **dict(zip(("D", "B", "tau"), size, strict=True)))
        per_token[size] = logged["nodes_per_iteration"] / logged["tokens_per_iteration"]

    def tree(speed: Speed, size: tuple[int, int, float] = (8, 3, 0.1)) -> Speed:
        depth, branching, tau = size
        nodes = per_token[size] * speed.tokens
        theirs, lean = _tree(nodes, branching, depth, speed.tokens)
        told = f"nodes per token as in the first paper's sweep, D={depth}, B={branching}, tau={tau}"
        return replace(speed, nodes=round(nodes), theirs=theirs, lean=lean, assumed=told)

    speeds = []
    for row in paper.table(1).rows:
        data, method, wiki = row["dataset"], row["method"], row["dataset"] == "wikitext-2"
        one = Speed("dynatree-adaptive", "Table 1", f"{method}, {data}", "pythia-2.8b", row["tokens_per_second"],
                    counts[data, method], kv=950 if wiki else 1000)  # fmt: skip
        if method == "ar":
            one = replace(one, given="launches" if wiki else "")
        elif method == "chain":
            theirs, lean = _chain(row["config"]["K"], one.tokens)
            one = replace(one, nodes=row["config"]["K"], theirs=theirs, lean=lean, given="host" if wiki else "")
        else:
            one = tree(one)
        speeds.append(one)
    ablation = {row["variant"]: row["tokens_per_iteration"] for row in paper.figure(5).rows}
    for row in paper.table(4).rows:
        name, speed = row["variant"], row["tokens_per_second"]
        one = Speed("dynatree-adaptive", "Table 4", name, "pythia-2.8b", speed, ablation[name], kv=950)
        speeds.append(tree(one, (5, 2, 0.05)) if name == "fixed tree" else tree(one))
    return speeds


def _traversal() -> list[Speed]:
    paper = published("traversal")
    plain = paper.setup["ar_tokens_per_second"]["value"]
    speeds, assumed = [], "500 tokens in the cache"
    for number, target, draft in ((2, "llama3.1-8b", "llama3.2-1b"), (3, "llama2-7b", "llama-68m")):
        name = target if target in plain else f"{target}-instruct"
        given = "launches" if number == 2 else ""
        speeds.append(
            Speed("traversal", "Section 4.2", f"ar, {target}", target, plain[name]["mean"], kv=500, assumed=assumed,
                  given=given)
        )  # fmt: skip
        table = {(row["tree"], row["metric"], row["task"]): row for row in paper.table(number).rows}
        for tree, levels in LEVELS_OF_TREES.items():
            fast = table[tree, "tokens_per_s", "avg_tokens_per_s"]
            long = table[tree, "acceptance_length", "avg_acceptance"]
            for rule in ("token_level", "traversal"):
                loop = Loop(SHAPES[draft], levels)
                given = "host" if (number, tree, rule) == (2, "chain", "token_level") else ""
                speeds.append(
                    Speed("traversal", f"Table {number}", f"{tree}, {rule}", target, fast[rule], long[rule],
                          NODES_OF_TREES[tree], loop, loop, 500, f"{assumed}; binary tree of 62 nodes", given)
                )  # fmt: skip
    return speeds


def _ptd() -> list[Speed]:
    paper, speeds, assumed = published("ptd"), [], "300 tokens in the cache"
    counted = {(row["benchmark"], row["model"], row["method"]): row for row in paper.table(4).rows}
    for number in (3, 1):
        for row in paper.table(number).rows:
            key = row["benchmark"], row["model"], row["method"]
            target = row["model"].removesuffix("-chat").removesuffix("-instruct")
            told = assumed + ("; two cards, one after the other" if target == "qwen2.5-32b" else "")
            known: Row = {"paper": "ptd", "where": f"Table {number}", "method": f"{key[2]}, {target}, {key[0]}"}
            known |= {"target": target, "published": row["tokens_per_second"], "kv": 300, "assumed": told}
            first = number == 3 and key[:2] == ("gsm-100", "llama2-7b-chat")
            if row["method"] == "ar":
                speeds.append(Speed(**known, given="launches" if first else ""))
            elif number == 3 and key in counted:  # the counts are of greedy decoding
                count = counted[key]
                nodes = 1 + count["draft_overhead"] + count["verify_overhead"]
                given = "host" if first and row["method"] == "ptd" else ""
                speeds.append(Speed(**known, tokens=count["decoding_efficiency"], nodes=nodes, given=given))
    return speeds


# -------------------------------------------------------------------------------------------------------- predictions
def with_launches(machine: Machine, given: Speed) -> Machine:
    """Return the machine whose launches make a published baseline what it is; none where it is above the bound."""
    shape = replace(SHAPES[given.target], dtype=DTYPES.get(given.paper, "float16"))
    measured, forward = 1 / given.published, predict(replace(machine, launch=0.0), shape, kv=given.kv)
    spare = measured - forward.seconds
    total = measured if machine.queued and spare > 0 else max(spare, 0.0)
    return replace(machine, launch=total / shape.layers)


def with_host(machine: Machine, given: Speed) -> Machine:
    """Return the machine whose host makes a published speed with drafting what it is; no host time below 0."""
    spare = given.tokens / given.published - seconds_per_iteration(replace(machine, host=0.0), given)
    return replace(machine, host=max(spare, 0.0))


def seconds_per_iteration(machine: Machine, one: Speed, lean: bool = False) -> float:
    """Return the predicted seconds of an iteration by the authors' loop or the lean one; plain decoding has no host."""
    dtype = DTYPES.get(one.paper, "float16")
    loop = one.lean if lean else one.theirs
    if loop.draft is not None:
        loop = replace(loop, draft=replace(loop.draft, dtype=dtype))
    machine = machine if one.drafts else replace(machine, host=0.0)
    return iteration_seconds(machine, replace(SHAPES[one.target], dtype=dtype), one.nodes, loop, 1, one.kv)


def machines_of(speeds: Sequence[Speed], form: str = CHOSEN_FORM) -> dict[str, dict[str, Machine]]:
    """Return paper -> assumption -> machine; what is fitted is fitted to the speeds that are given for it.

    Raises:
        ValueError: where a paper has no speed that is given for launches, or for the host.
    """
    queued, sharpness = FORMS[form]
    out = {}
    for paper in dict.fromkeys(one.paper for one in speeds):
        given = {one.given: one for one in speeds if one.paper == paper and one.given}
        if {"launches", "host"} - set(given):
            raise ValueError(
                f"Of '{paper}' no speed is given for {' or '.join(sorted({'launches', 'host'} - set(given)))}; keep "
                "the rows of `published_speeds` that have it."
            )
        sheet = DATA_SHEETS[CARDS[paper]]
        launched = with_launches(replace(sheet, queued=queued, sharpness=sharpness), given["launches"])
        hosted = with_host(launched, given["host"])
        out[paper] = dict(zip(ASSUMPTIONS, (sheet, launched, launched, hosted), strict=True))
    return out


def comparison(speeds: Iterable[Speed], machines: Mapping[str, Mapping[str, Machine]]) -> list[Row]:
    """Return a row for each published speed with its prediction under each assumption.

    Columns: `paper`, `where`, `method`, `published`, `tokens` (per iteration), `nodes`, the `ASSUMPTIONS` (tokens per
    second), `error` (of the last, predicted over published, less 1), `nearest` (assumption), `given`, `assumed`.
    """
    rows = []
    for one in speeds:
        found = {
            name: one.tokens / seconds_per_iteration(machine, one, lean=name in ASSUMPTIONS[:2])
            for name, machine in machines[one.paper].items()
        }
        nearest = min(found, key=lambda name: abs(math.log(found[name] / one.published)))
        rows.append(
            {"paper": one.paper, "where": one.where, "method": one.method, "published": float(one.published),
             "tokens": one.tokens, "nodes": one.nodes, **found, "error": found["host"] / one.published - 1,
             "nearest": nearest, "given": one.given, "assumed": one.assumed, "drafts": one.drafts}
        )  # fmt: skip
    return rows


def error_rows(rows: Sequence[Row]) -> list[Row]:
    """Return the median absolute error of each assumption, by paper, of baselines and of speeds with drafting apart.

    Speeds that something was fitted to are left out.
    """
    free, out = [row for row in rows if not row["given"]], []
    for paper, drafts in dict.fromkeys((row["paper"], row["drafts"]) for row in free):
        some = [row for row in free if (row["paper"], row["drafts"]) == (paper, drafts)]
        medians = {
            name: float(np.median([abs(row[name] / row["published"] - 1) for row in some])) for name in ASSUMPTIONS
        }
        out.append(
            {"paper": paper, "speeds": "with drafting" if drafts else "baselines", "number": len(some), **medians}
        )
    return out


def form_rows(speeds: Sequence[Speed]) -> list[Row]:
    """Return the median absolute error of baselines and of speeds with drafting under each of `FORMS`, and the largest
    and smallest host time in milliseconds that would explain a paper's speeds one by one.

    A form under which the explaining host time differs between models of one paper does not explain them by a host.
    """
    out = []
    for form in FORMS:
        machines = machines_of(speeds, form)
        rows = [row for row in comparison(speeds, machines) if not row["given"]]
        kinds = {"baselines": (False, "launches"), "with drafting": (True, "host")}
        medians = {
            kind: float(np.median([abs(row[name] / row["published"] - 1) for row in rows if row["drafts"] == drafts]))
            for kind, (drafts, name) in kinds.items()
        }
        row: Row = {"form": form, **medians}
        for paper, times in explaining_host(speeds, machines).items():
            low, high = np.quantile(times, [0.25, 0.75])
            row[f"host ms, {paper}"] = f"{low:.1f} to {high:.1f}"
        out.append(row)
    return out


def explaining_host(
    speeds: Sequence[Speed], machines: Mapping[str, Mapping[str, Machine]], by: str = "paper"
) -> dict[str, list[float]]:
    """Return the host's milliseconds that would make each speed with drafting what it is.

    Args:
        speeds: published ones.
        machines: of `machines_of`.
        by: field of a speed to group by, such as "paper" or "target".
    """
    found: dict[str, list[float]] = {}
    for one in speeds:
        if one.drafts:
            launched = machines[one.paper]["their loop"]
            time = one.tokens / one.published - seconds_per_iteration(launched, one)
            found.setdefault(getattr(one, by), []).append(1000 * time)
    return found


# --------------------------------------------------------------------------------------------------------- acceptance
def rates_of_table(number: int = 2, rule: str = "traversal") -> RankAcceptance:
    """Return acceptance by rank from Traversal Verification's chains and binary trees of depth 5.

    Tokens per iteration of a chain give the first choice's rate, alike on all levels; those of a binary tree the rate
    of the first two together. Both are drawn at temperature 1, so a rank is a place in draw order.
    """
    rows = published("traversal").table(number).where(task="avg_acceptance")
    tokens = {row["tree"]: row[rule] for row in rows}
    first, both = (level_rate(tokens[tree], 5) for tree in ("chain", "binary_tree"))
    return RankAcceptance(((first, both - first),), (80,))


def level_rate(tokens: float, depth: int) -> float:
    """Return the rate r of every level for which 1 + r + ... + r^depth is `tokens`.

    Raises:
        ValueError: for tokens that no rate gives.
    """
    if not 1 <= tokens <= depth + 1:
        raise ValueError(f"{tokens} tokens cannot come of {depth} levels; give 1 to {depth + 1}.")
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if sum(middle**level for level in range(depth + 1)) < tokens else (low, middle)
    return (low + high) / 2
