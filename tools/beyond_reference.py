"""Measure what docs/beyond.md reports on SmolLM2: other tokenizers, a self-drafting target, drawn trees.

python3 -m tools.beyond_reference [OUT] [NAME ...]

NAME is one of the records below, by default all of them.

`vocabularies.json` is a benchmark of the target of `smollm2` with the draft of `tiny`, whose tokenizer is another one.
One prompt of each task of the bundled workload.
`skipping.json` holds the search for the layers to leave out, on bundled prompts after the first 20, and a benchmark of
what it found on 39 prompts of Spec-Bench.
`drawn.jsonl.gz` compares trees of 4, 8 and 16 drawn nodes at temperature 1 with weights in full: of a given shape, of
Sequoia's (from acceptance counted on prompts after the first 20), and grown by DySpec, on the first 20 bundled prompts.
`grown.json` counts, on the same prompts, how often a drawn token is accepted by the probability that it had, and what
trees of 8 nodes commit that grow by that probability, by a constant, or not at all.
`rules-0.5.jsonl.gz` and `rules-1.jsonl.gz` have every drafter under every rule that may serve it, at both temperatures,
with the weights read as 4 bits, on one prompt of each category of Spec-Bench; `made-0.5.jsonl.gz` and `made-1.jsonl.gz`
the drafters that are made of others, or need a count or a search first (the layers to leave out are those of the kept
`skipping.json`).
`inherited.json` counts what a lookup tree commits that begins a text with what it has learnt about another one, by what
that is, on 39 prompts of Spec-Bench.
Runs of the packed records that are done stay in OUT/NAME.jsonl until all are, and a stopped benchmark goes on there.
DYNATREE_DATA names the folder with spec_bench/. Nothing else should run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from typing_extensions import override

from dynatree_lib.decoding import Iteration, generate
from dynatree_lib.drafters import Drafter, LookupTree, SampledTree
from dynatree_lib.models.pairs import Pair, load_pair
from dynatree_lib.sampling import Sampling
from dynatree_lib.verifiers import Greedy
from dynatree_suite.bench.environment import describe_environment
from dynatree_suite.bench.methods import Variant, variant
from dynatree_suite.bench.prompts import prepare_prompts
from dynatree_suite.bench.protocol import run_benchmark
from dynatree_suite.cli.options import JUDGED
from dynatree_suite.drafters import DySpecTree
from dynatree_suite.files import write_atomically
from dynatree_suite.papers.traversal.which import measured_rates
from dynatree_suite.papers.workloads import Workload, load_workload
from dynatree_suite.proofs.audit import serves
from dynatree_suite.rules import ALL_RULES

from .pack_records import pack
from .search_layers import search_layers

REFERENCE = Path("outputs/reference")
NEW_TOKENS = 64  # of a text
PROMPTS = 9  # one of each task
SEARCHED = 3  # prompts that layers are searched on
DEEPEST = 8  # levels of a drawn tree
CONSTANTS = (0.3, 0.4, 0.5, 0.6, 0.7)  # shares accepted that a tree is grown by
EDGES = (0.0, 0.05, 0.2, 0.4, 0.6, 0.8, 1.01)  # of bins of probabilities
SEEDS = 2
TRANSLATED = (
    "hf-generate,hf-assisted:num_assistant_tokens=4,confidence=0.0,ar,ar-fast,prompt-lookup,chain:length=2,"
    "chain:length=2,retokenized=true,fixed-tree,fixed-tree:retokenized=true,lookup-tree,lookup-tree:retokenized=true"
)


def vocabularies() -> dict[str, Any]:
    """Measure both ways on a pair of two tokenizers against plain decoding."""
    pair = load_pair(target="smollm2", draft="tiny", vocabularies="intersection")
    return _measured(pair, TRANSLATED)


def skipping() -> dict[str, Any]:
    """Search the layers to leave out, of all at each step, and measure the chain that gains most, and one of more."""
    pair = load_pair("smollm2")
    workload = load_workload("bundled", limit=JUDGED + SEARCHED, tokenizer=pair.tokenizer)
    ids = [prompt.ids for prompt in prepare_prompts(pair, workload.prompts[JUDGED:], NEW_TOKENS)]
    found = search_layers(pair.target, ids, max_new_tokens=NEW_TOKENS, progress=_say)
    few = max(found.steps, key=lambda step: (step.agreement >= 0.7, len(step.layers)))  # the most at this agreement
    specs = [
        f"{method},skip={'/'.join(map(str, step.layers))}"
        for step in dict.fromkeys((found.best, few))
        for method in (f"chain:length={step.length}", "cost-aware-tree:depth=4")
    ]
    judged = load_workload("spec-bench/categories", limit=39, tokenizer=pair.tokenizer)
    measured = _measured(pair, ",".join(["hf-generate,ar,ar-fast,chain:length=4", *specs]), judged)
    return {"search": found.to_json(), **measured}


def drawn(path: Path) -> None:
    """Measure drawn trees of three origins and of the same sizes against plain decoding at temperature 1."""
    pair, warm = load_pair("smollm2", dtype="float32", engine="compiled"), Sampling(1.0)
    workload = load_workload("bundled", limit=JUDGED + PROMPTS, tokenizer=pair.tokenizer)
    wide = SampledTree(pair.draft, depth=6, branching=(4, 2, 1))
    rates = measured_rates(pair, wide, workload.prompts[JUDGED:], warm, NEW_TOKENS)
    methods = [variant("ar-fast")]
    for nodes in (4, 8, 16):
        slots = "/".join(map(str, rates.slots(nodes, DEEPEST)))
        if nodes <= DEEPEST:
            methods.append(variant(f"sampled-tree:depth={nodes},branching=1", f"drawn chain, {nodes}"))
        methods += [
            variant(f"sampled-tree:depth={nodes // 2},branching=2/1", f"two drawn chains, {nodes}"),
            variant(f"sampled-tree:shape={slots}", f"Sequoia's shape, {nodes}"),
            variant(f"dyspec-tree:max_nodes={nodes + 1},depth={DEEPEST}", f"DySpec, {nodes}"),
            variant(f"dyspec-tree:max_nodes={nodes + 1},depth={DEEPEST},accepted=0.5", f"DySpec by 0.5, {nodes}"),
        ]
    _lines(path, pair, methods, load_workload("bundled", limit=JUDGED, tokenizer=pair.tokenizer), NEW_TOKENS, warm)


def grown() -> dict[str, Any]:
    """Count acceptance by the probability that a drawn token had, and what trees commit that are grown by either."""
    pair, warm, nodes = load_pair("smollm2"), Sampling(1.0), 8
    workload = load_workload("bundled", limit=JUDGED + PROMPTS, tokenizer=pair.tokenizer)
    wide = SampledTree(pair.draft, depth=6, branching=(4, 2, 1))
    shape = measured_rates(pair, wide, workload.prompts[JUDGED:], warm, NEW_TOKENS).slots(nodes, DEEPEST)
    ids = [prompt.ids for prompt in prepare_prompts(pair, workload.prompts[:JUDGED], NEW_TOKENS)]
    trees: dict[str, Drafter] = {"Sequoia's shape": SampledTree(pair.draft, shape=shape)}
    for accepted in (None, *CONSTANTS):
        name = "DySpec" if accepted is None else f"DySpec, {accepted} accepted"
        trees[name] = DySpecTree(pair.draft, max_nodes=nodes + 1, depth=DEEPEST, accepted=accepted)
    counts, firsts = [], []
    for (number, prompt), (name, tree) in product(enumerate(ids), trees.items()):
        _say(f"[{number + 1}/{len(ids)}] {name}")
        for seed in range(SEEDS):
            out = generate(
                pair.target, prompt, tree, max_new_tokens=NEW_TOKENS, sampling=warm, seed=seed, eos_token_ids=()
            )
            one = {"tokens": len(out.tokens), "iterations": len(out.iterations)}
            counts.append({"tree": name, "prompt": workload.prompts[number].id, "seed": seed, **one})
            firsts += _first_children(out.iterations) if name == "DySpec" else []
    frame = pd.DataFrame(firsts, columns=["probability", "accepted"])
    frame["from"] = pd.cut(frame["probability"], EDGES, right=False, labels=EDGES[:-1])
    rates = frame.groupby("from", observed=True).agg(
        probability=("probability", "mean"), drawn=("accepted", "size"), accepted=("accepted", "sum")
    )
    about = {"environment": describe_environment(), "pair": pair.name, "nodes": nodes, "tokens": NEW_TOKENS}
    return {**about, "counts": counts, "rates": rates.reset_index().to_dict("records")}


def _first_children(iterations: Sequence[Iteration]) -> list[tuple[float, bool]]:
    """The draft's probability of the first token drawn below each accepted node, and whether it was accepted."""
    found = []
    for step in iterations:
        path = [0, *step.verdict.path]
        for node, below in zip(path, [*path[1:], -1], strict=True):
            children = np.flatnonzero(step.tree.parents == node)
            if len(children):
                found.append((float(np.exp(step.tree.logprobs[children[0]])), bool(children[0] == below)))
    return found


GRID = (
    "sampled-tree:branching=1", "sampled-tree", "sampled-tree:draw=iid", "dyspec-tree", "cost-aware-sampled-tree",
    "chain:length=4", "fixed-tree", "adaptive-tree", "best-first-tree", "cost-aware-tree", "lookup-tree", "ptd",
    "lookahead", "self-draft", "prompt-lookup", "suffix-tree", "token-recycling",
)  # fmt: skip
"""Drafters of the grid, at their defaults."""


def rules(temperature: float, path: Path) -> None:
    """Measure every drafter under every rule that may serve it, against plain decoding."""
    _ruled(path, load_pair("smollm2"), {spec: spec for spec in GRID}, Sampling(temperature))


def made(temperature: float, path: Path) -> None:
    """Measure what is made of other drafters, and what needs a count or a search first, as `rules` does."""
    pair, sampling = load_pair("smollm2"), Sampling(temperature)
    workload = load_workload("bundled", limit=JUDGED + PROMPTS, tokenizer=pair.tokenizer)
    wide = SampledTree(pair.draft, depth=6, branching=(4, 2, 1))
    rates = measured_rates(pair, wide, workload.prompts[JUDGED:], sampling, NEW_TOKENS)
    found = json.loads((REFERENCE / "skipping.json").read_text(encoding="utf-8"))["search"]["best"]
    skip = "/".join(map(str, found["layers"]))
    specs = {
        "sampled-tree:Sequoia's shape": f"sampled-tree:shape={'/'.join(map(str, rates.slots(8, DEEPEST)))}",
        "sampled-tree:branching=1,skip": f"sampled-tree:branching=1,skip={skip}",
        "lookup-tree:match=suffix": "lookup-tree:match=suffix",
        "union-tree": "union-tree",
        "union-tree:no model": "union-tree:first=suffix-tree,second=token-recycling",
    }
    _ruled(path, pair, specs, sampling)


def _ruled(path: Path, pair: Pair, specs: Mapping[str, str], sampling: Sampling) -> None:
    """Measure drafters, label -> specification, under every rule that may serve each, against plain decoding."""
    methods = [variant("ar-fast")]
    for label, spec in specs.items():
        given = variant(spec)
        assert given.method.drafter is not None
        drafter = given.method.drafter(given.options, pair.draft)
        for rule in ALL_RULES:
            if rule is not Greedy and serves(rule(), drafter, sampling):
                full, named = (f"{one}{',' if ':' in one else ':'}verifier={rule.name}" for one in (spec, label))
                methods.append(variant(full, named))
    prompts = load_workload("spec-bench/categories", limit=13, tokenizer=pair.tokenizer)
    _lines(path, pair, methods, prompts, NEW_TOKENS, sampling)


def inherited() -> dict[str, Any]:
    """Count what a lookup tree commits that inherits what it has learnt about the text before, by what that is."""
    pair = load_pair("smollm2", dtype="float32", engine="compiled")
    workload = load_workload("spec-bench/categories", limit=39, tokenizer=pair.tokenizer)
    trees: dict[str, LookupTree] = {name: _Inheriting(pair.draft, keeps=keeps) for name, keeps in KEPT.items()}
    for name, pool in (("the rate, copies by suffix", 0), ("the rate, copies by suffix of earlier texts too", 50_000)):
        trees[name] = LookupTree(pair.draft, match="suffix", pool=pool)
    before, counts = dict[str, Any](), list[dict[str, Any]]()
    for prompt in prepare_prompts(pair, workload.prompts, 2 * NEW_TOKENS):
        _say(f"[{len(counts) // len(trees) + 1}/{len(workload.prompts)}] {prompt.id}")
        for name, tree in trees.items():
            out = generate(
                pair.target, prompt.ids, tree, max_new_tokens=2 * NEW_TOKENS, eos_token_ids=(), warm=before.get(name)
            )
            before[name] = out.state
            one = {"tokens": len(out.tokens), "iterations": len(out.iterations)}
            counts.append({"inherited": name, "prompt": prompt.id, **one})
    about = {"environment": describe_environment(), "pair": pair.name, "tokens": 2 * NEW_TOKENS}
    return {**about, "source": workload.source, "counts": counts}


KEPT: dict[str, frozenset[str]] = {
    "nothing": frozenset(),
    "the rate": frozenset({"rate"}),
    "the sharpness": frozenset({"sharpness"}),
    "the shares of right copies": frozenset({"copies"}),
    "all three": frozenset({"rate", "sharpness", "copies"}),
}
"""What a text may inherit -> parts of the state."""


@dataclass(frozen=True)
class _Inheriting(LookupTree):
    """A lookup tree that inherits some parts of its state."""

    keeps: frozenset[str] = frozenset()

    @override
    def inherit(self, state: Any, earlier: Any) -> Any:
        if "rate" in self.keeps:
            state = super().inherit(state, earlier)
        if "sharpness" in self.keeps:
            state.learnt.sharpness = earlier.learnt.sharpness
        if "copies" in self.keeps:
            state.learnt.copies.rates = deepcopy(earlier.learnt.copies.rates)
        return state


def _lines(
    path: Path, pair: Pair, methods: list[Variant], workload: Workload, tokens: int, sampling: Sampling | None = None
) -> None:
    run_benchmark(
        pair, methods, workload.prompts, max_new_tokens=tokens, ignore_eos=True, sampling=sampling,
        source=workload.source, records=path, existing="resume", progress=_say,
    )  # fmt: skip


def _measured(pair: Pair, methods: str, workload: Workload | None = None) -> dict[str, Any]:
    workload = workload or load_workload("bundled", limit=PROMPTS, tokenizer=pair.tokenizer)
    return run_benchmark(
        pair, methods, workload.prompts, max_new_tokens=NEW_TOKENS, ignore_eos=True, trace=2, bandwidth=True,
        source=workload.source, progress=_say,
    ).to_json()  # fmt: skip


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


RECORDS = {"vocabularies": vocabularies, "skipping": skipping, "grown": grown, "inherited": inherited}
LINES: dict[str, Callable[[Path], None]] = {
    "drawn": drawn, "rules-0.5": partial(rules, 0.5), "rules-1": partial(rules, 1.0),
    "made-0.5": partial(made, 0.5), "made-1": partial(made, 1.0),
}  # fmt: skip


def main(arguments: Sequence[str]) -> None:
    """Write the records that are named, by default all, into the folder that comes first."""
    known = [*RECORDS, *LINES]
    names = [argument for argument in arguments if argument in known] or known
    folder = next((Path(argument) for argument in arguments if argument not in known), REFERENCE)
    folder.mkdir(parents=True, exist_ok=True)  # before hours of work, not after
    for name in names:
        if name in LINES:
            LINES[name](path := folder / f"{name}.jsonl")
            pack(path)
        else:
            write_atomically(folder / f"{name}.json", json.dumps(RECORDS[name](), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
