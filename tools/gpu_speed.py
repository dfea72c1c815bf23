"""Measure speed on a large GPU, in one folder; `tools/gpu_speed.sh OUT DATA` trains a pair first.

python3 -m tools.gpu_speed OUT [--parts LIST] [--pair PAIR] [--device cuda] [--dtype bfloat16] [--again] [--tiny]

Four parts, told apart in every caption. `shapes`: the cost of forwards and iterations with the shapes of Pythia-2.8B
and 70M and random weights. `pair`: the gain of trees, measured on a trained pair over static buffers (SmolLM2, or one
that `tools/gpu_speed.sh` trains). `as_loaded`: a few methods on that pair without static buffers. `joined`: the counts
of the second at the costs of the first. Needs no network and no plotting.

It runs from end to end on a CPU with small shapes (`--device cpu --tiny`, which the tests do). docs/gpu.md has what the
part `shapes` gave on an H200; the others have not been run there.

OUT/gpu_speed.json is written after each measurement; a failed measurement leaves its error there and the others go on.
What was measured stays as long as setup and pair are the same; what follows from it (`joined`) is computed each time.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynatree_lib.decoding import autoregressive, generate
from dynatree_lib.drafters import FixedTree
from dynatree_lib.engines.plain import autoregressive_fast
from dynatree_lib.engines.static import Buffers, StaticModel, static_pair
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair, check_pair_name, load_pair
from dynatree_lib.sampling import Sampling
from dynatree_suite.bench.bandwidth import ceilings, forward_bytes, matmul_flops, measure_bandwidth, median_seconds
from dynatree_suite.bench.clock import known_objects_frozen, quiet_machine, synchronize
from dynatree_suite.bench.environment import (
    describe_environment,
    describe_model,
    public_pair_name,
    public_text,
    weight_bytes,
)
from dynatree_suite.bench.grids import labelled
from dynatree_suite.bench.methods import Variant, variants
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.protocol import read_results, run_benchmark
from dynatree_suite.costs.cost_growth import any_text, forward_times, iteration_costs
from dynatree_suite.costs.cost_model import MeasuredCosts, measure_costs, prediction_rows
from dynatree_suite.files import sole_run, write_atomically
from dynatree_suite.papers.workloads import Workload, load_workload
from dynatree_suite.runs.receipts import pair_files

from .growth import level_costs

Row = dict[str, Any]
FILE = "gpu_speed.json"
PARTS = ("shapes", "pair", "as_loaded", "joined")
METHODS_MEASURED = (
    "hf-generate,hf-assisted,hf-prompt-lookup,ar,ar-fast,chain:length=4,fixed-tree,adaptive-tree,best-first-tree,"
    "fixed-tree:depth=8,branching=3,tau=0.03,max_nodes=64,prompt-lookup,lookahead,ptd,suffix-tree,token-recycling"
)
"""Beside these, `cost-aware-tree` and `lookup-tree` with costs measured in the same run."""
METHODS_AS_LOADED = "hf-generate,ar,chain:length=4,fixed-tree,best-first-tree"
"""With the draft on its target's features, where the pair has one: without static buffers, which hold no features."""
RANDOM = "random weights, for cost alone"
CAPTIONS = {
    "memory": f"Peak memory of a run of plain decoding and of a run with trees, the draft loaded in between; {RANDOM}.",
    "bandwidth": "Reading and copying memory, and a large matrix product, on the same device.",
    "agreement": f"Logits of a tree over static buffers against transformers' own forward of its nodes; {RANDOM}.",
    "plain": f"Seconds per token of plain decoding against the bandwidth bound, by prefix; {RANDOM}.",
    "iterations": f"Iterations with a full fixed tree in steps of `ar-fast`; {RANDOM}, so next to nothing is accepted.",
    "forwards": f"One forward alone by engine, nodes and prefix; {RANDOM}.",
    "attention": "Attention alone, of all layers of the target, by nodes and width; random states.",
    "growth": f"Iterations beside their forward, by prefix and by nodes; {RANDOM}.",
    "levels": f"Levels of drafting beside their forward, by width; {RANDOM}.",
    "costs": f"The cost model's points, in greedy steps of `ar`; {RANDOM}.",
    "methods": "A trained pair, every method on held-out prompts, interleaved: earned acceptance at this pair's cost.",
    "as_loaded": "The same pair without static buffers, its draft on the target's features where it has one.",
    "joined": "Predicted, not measured: tokens per iteration of the trained pair at the costs of the shapes.",
    "goals": "The goals and the numbers of this run; each from the measurement named.",
}
_MEASURED = {
    "shapes": ("memory", "bandwidth", "agreement", "plain", "iterations", "forwards", "attention", "growth", "levels",
               "costs"),
    "pair": ("methods",), "as_loaded": ("as_loaded",), "joined": (),
}  # fmt: skip
"""Part -> what is measured in it."""


@dataclass(frozen=True)
class Plan:
    """Sizes of one run.

    Attributes:
        target, draft: keyword arguments of `GPTNeoXConfig`.
        prefixes: tokens of text before what is timed.
        nodes: of the target's forwards.
        widths: of the draft's levels.
        tree: keyword arguments of `FixedTree`.
        turns: of `iteration_costs`.
        tokens: generated where plain decoding and iterations are timed, and per prompt of the trained pair.
        prompts: of the trained pair.
        iterations: timed per probe of the cost model.
        texts: that the cost model is measured on.
    """

    target: dict[str, int]
    draft: dict[str, int]
    prefixes: tuple[int, ...] = (128, 512, 1024, 1900)
    nodes: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    tree: dict[str, Any] = field(default_factory=lambda: {"depth": 5, "branching": (4, 4, 1), "max_nodes": 64})
    turns: int = 8
    tokens: int = 200
    prompts: int = 20
    iterations: int = 96
    texts: int = 2


def _shape(hidden: int, layers: int, heads: int, vocabulary: int = 50304, context: int = 2048) -> dict[str, int]:
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * hidden, "vocab_size": vocabulary, "max_position_embeddings": context,
    }  # fmt: skip


FULL = Plan(_shape(2560, 32, 32), _shape(512, 6, 8))
"""Pythia-2.8B and Pythia-70M."""
TINY = Plan(
    _shape(64, 3, 4, 512, 512), _shape(32, 2, 4, 512, 512), prefixes=(40, 100), nodes=(1, 4, 16), widths=(1, 4),
    tree={"depth": 3, "branching": (3, 2, 1), "max_nodes": 16}, turns=1, tokens=24, prompts=2, iterations=4, texts=1,
)  # fmt: skip
"""The same from end to end in less than a minute on a CPU."""


def progress(line: str) -> None:
    """Write a line to standard error at once."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


@dataclass
class Record:
    """OUT/gpu_speed.json, rewritten after every measurement."""

    path: Path
    body: Row = field(default_factory=dict)
    failed: list[str] = field(default_factory=list)

    def take(self, name: str, measure: Callable[[], Any], about: Row | None = None) -> None:
        """Keep the rows of a measurement and what there is to say `about` it, or its error; Ctrl-C ends the run.

        Rows that are there stay.
        """
        if self.has(name):
            return
        progress(f"gpu_speed: {name}")
        begun = time.monotonic()
        try:
            with known_objects_frozen():
                result: Row = {"rows": measure()}
        except Exception as error:  # whatever one measurement does, the others are still made
            result = {"error": public_text(f"{type(error).__name__}: {error}")}
            self.failed.append(name)
            progress(f"gpu_speed: {name} failed: {result['error']}")
        took = {"took_seconds": round(time.monotonic() - begun, 1)}
        self.body[name] = {"caption": CAPTIONS[name], **(about or {}), **result, **took}
        write_atomically(self.path, json.dumps(self.body, indent=1, ensure_ascii=False) + "\n")

    def has(self, name: str) -> bool:
        """Return whether a measurement was made and did not fail."""
        return "rows" in self.body.get(name, {})

    def rows(self, name: str) -> Any:
        """Return the rows of an earlier measurement.

        Raises:
            ValueError: if it was not made, or failed.
        """
        if not self.has(name):
            raise ValueError(
                f"This needs the measurement '{name}', which {self.path.name} does not hold; run its part."
            )
        return self.body[name]["rows"]


# ------------------------------------------------------------------------------------------------------------- shapes
class Shapes:
    """A pair of random weights; each model is made when first asked for, so that memory is taken in a known order."""

    def __init__(self, plan: Plan, device: torch.device, dtype: torch.dtype) -> None:
        self.plan, self.device, self.dtype = plan, device, dtype

    @cached_property
    def target(self) -> StaticModel:
        """The target on static buffers."""
        return StaticModel(random_weights(self.plan.target, self.device, self.dtype), check=False)

    @cached_property
    def draft(self) -> StaticModel:
        """The draft on static buffers."""
        return StaticModel(random_weights(self.plan.draft, self.device, self.dtype), check=False)

    @cached_property
    def pair(self) -> Pair:
        """Both, all graphs captured."""
        return Pair("random weights in the shapes of a pair", self.target.warm(), self.draft.warm(), None)

    @property
    def tree(self) -> FixedTree:
        """A tree of full size whatever the draft thinks."""
        return FixedTree(self.draft, tau=None, **self.plan.tree)

    def engine(self, name: str) -> HFModel:
        """Return the target with another engine, weights shared."""
        return HFModel(self.target.model, engine=name, check=False)


def random_weights(shape: dict[str, int], device: torch.device, dtype: torch.dtype) -> HFModel:
    """Return a GPT-NeoX model of this shape with random weights."""
    from transformers import AutoModelForCausalLM, GPTNeoXConfig

    config = GPTNeoXConfig(**shape, rotary_pct=0.25, bos_token_id=None, eos_token_id=None)
    config.name_or_path = f"GPT-NeoX of {config.num_hidden_layers} layers, {config.hidden_size} wide"
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return HFModel(model.to(device), check=False)


def measure_shapes(record: Record, plan: Plan, device: torch.device, dtype: torch.dtype) -> None:
    """Make all measurements of the part `shapes`, memory first."""
    shapes = Shapes(plan, device, dtype)
    record.take("memory", lambda: memory(shapes))
    record.body["models"] = {"target": describe_model(shapes.target), "draft": describe_model(shapes.draft)}
    record.take("bandwidth", lambda: bandwidth(shapes))
    record.take("agreement", lambda: agreement(shapes))
    record.take("plain", lambda: plain(shapes, record.rows("bandwidth")["memory"]))
    record.take("iterations", lambda: iterations(shapes, record.rows("plain")))
    record.take("forwards", lambda: forwards(shapes))
    record.take("attention", lambda: attention(shapes))
    middle = plan.prefixes[len(plan.prefixes) // 2]
    options: Row = {"turns": plan.turns, "progress": progress}
    record.take("growth", lambda: [
        *iteration_costs(shapes.pair, plan.prefixes, (min(16, plan.nodes[-1]),), **options),
        *iteration_costs(shapes.pair, (middle,), plan.nodes, **options),
    ])  # fmt: skip
    record.take("levels", lambda: level_costs(shapes.pair, (middle,), plan.widths, **options))
    lengths = plan.prefixes[: plan.texts]
    texts = [BenchPrompt.from_ids(f"text-{length}", any_text(shapes.target, length)) for length in lengths]
    record.take("costs", lambda: costs(shapes.pair, texts, plan).to_json())


def memory(shapes: Shapes) -> Row:
    """Measure peaks in bytes, None on a CPU: of plain decoding with the target alone, and with the draft and a tree.

    Each has the graphs that it needs, all of them captured.
    """
    ids, tokens = any_text(shapes.target.warm(trees=False), shapes.plan.prefixes[0]), shapes.plan.tokens
    peaks = _peak(shapes.device, lambda: autoregressive_fast(shapes.target, ids, max_new_tokens=tokens))
    weights = weight_bytes(shapes.draft.warm())
    shapes.target.warm()
    with_trees = _peak(shapes.device, lambda: generate(shapes.target, ids, shapes.tree, max_new_tokens=tokens))
    ratios = {name: with_trees[name] / (peak + weights) for name, peak in peaks.items() if peak}
    buffers = {
        name: {"buffer_bytes": buffer_bytes(model.buffers), "graph_bytes": model.buffers.graph_bytes}
        for name, model in (("target", shapes.target), ("draft", shapes.draft))
    }
    return {"plain": peaks, "trees": with_trees, "draft_weights": weights, "trees_over_both": ratios, **buffers}


def buffer_bytes(buffers: Buffers) -> int:
    """Return the bytes of the cache, of the descriptions of forwards and of their logits, on the device."""
    return sum(part.nbytes for part in (buffers.cache.states, buffers.columns, buffers.integers, buffers.logits))


def _peak(device: torch.device, run: Callable[[], object]) -> dict[str, Any]:
    """Return peak bytes allocated, and reserved (graphs keep memory for themselves too)."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with quiet_machine(device):
        run()
        synchronize(device)
    if device.type != "cuda":
        return {"allocated": None, "reserved": None}
    allocated, reserved = torch.cuda.max_memory_allocated(device), torch.cuda.max_memory_reserved(device)
    return {"allocated": allocated, "reserved": reserved}


def bandwidth(shapes: Shapes) -> Row:
    """Measure every buffer's speeds in bytes per second, and operations per second of a matrix product.

    `memory` is what bounds plain decoding as in `metrics.Bound`: the higher of reading and copying a buffer as large as
    the weights, or the largest.
    """
    buffers = measure_bandwidth(shapes.device, forward_bytes(shapes.target))
    speeds: Row = {"buffers": [asdict(line) for line in buffers], "memory": max(buffers[0].read, buffers[0].copy)}
    return {**speeds, "flops": matmul_flops(shapes.device, shapes.dtype)}


def agreement(shapes: Shapes) -> Row:
    """Return the largest difference of logits as a share of the largest logit."""
    nodes = np.arange(2, 18), np.concatenate([[-1], np.arange(15) // 2])
    logits = []
    for model in (shapes.engine("eager"), shapes.target):
        session = model.session()
        session.start(any_text(model, shapes.plan.prefixes[0]))
        logits.append(session.score(*nodes, Sampling()).logits.double())
    share = (logits[0] - logits[1]).abs().max() / logits[0].abs().max()
    return {"largest_difference": float(share), "finite": bool(torch.isfinite(logits[1]).all())}


def plain(shapes: Shapes, bytes_per_second: float) -> list[Row]:
    """Time a token of plain decoding after each prefix, in seconds; the bound: reading weights and cache."""
    out = []
    for prefix in shapes.plan.prefixes:
        tokens = min(shapes.plan.tokens, shapes.target.context - prefix - 1)
        ids = any_text(shapes.target, prefix)
        bound = 1 / ceilings(shapes.target, prefix + tokens // 2, bytes_per_second, 1.0)["memory"]
        fast, ours = (_per_token(shapes, decode, ids, tokens) for decode in (autoregressive_fast, autoregressive))
        out.append({"prefix": prefix, "tokens": tokens, "bound": bound, "ar_fast": fast, "ar": ours,
                    "ar_fast_over_bound": fast / bound, "ar_over_bound": ours / bound})  # fmt: skip
    return out


def _per_token(shapes: Shapes, decode: Callable[..., object], ids: list[int], tokens: int, repeats: int = 3) -> float:
    """Return seconds per token after the first: whole texts less texts of one token, medians without the first run."""

    def seconds(count: int) -> float:
        with quiet_machine(shapes.device):
            start = time.perf_counter()
            decode(shapes.target, ids, max_new_tokens=count, eos_token_ids=())
            synchronize(shapes.device)
            return time.perf_counter() - start

    short, whole = np.median([(seconds(1), seconds(tokens)) for _ in range(1 + repeats)][1:], axis=0)
    return float((whole - short) / (tokens - 1))


def iterations(shapes: Shapes, steps: Sequence[Row]) -> list[Row]:
    """Measure an iteration with a full tree after each prefix: seconds, steps of `ar-fast`, where its time goes."""
    prompts = [BenchPrompt.from_ids(str(step["prefix"]), any_text(shapes.target, step["prefix"])) for step in steps]
    records = run_benchmark(
        shapes.pair, labelled("fixed-tree", {"tree": {"tau": None, **shapes.plan.tree}}), prompts,
        max_new_tokens=min(64, *(step["tokens"] for step in steps)), trace=len(prompts), progress=progress,
    ).records  # fmt: skip
    out = []
    for step, prompt in zip(steps, prompts, strict=True):
        run, split = records.runs["tree", prompt.id, 0], records.splits["tree", prompt.id, 0]
        seconds = float(np.median(np.diff([at for at, _ in run.emissions[:-1]])))  # the last tree is cut by the end
        shares = {part: getattr(split, part) / split.seconds for part in ("draft", "verify", "host")}
        out.append({"prefix": step["prefix"], "nodes": 1 + float(np.mean(np.array(run.nodes)[1:-1])),
                    "levels": shapes.plan.tree["depth"], "seconds": seconds,
                    "steps_of_ar_fast": seconds / step["ar_fast"], "shares": shares})  # fmt: skip
    return out


def forwards(shapes: Shapes) -> list[Row]:
    """Time every engine by nodes after the first prefix; the static engine by nodes after all of them."""
    first, *further = shapes.plan.prefixes
    turns, nodes, lean = shapes.plan.turns, shapes.plan.nodes, shapes.engine("lean")
    bare = StaticModel(lean, graphs=False, check=False)
    engines = {"eager": shapes.engine("eager"), "lean": lean, "static, no graphs": bare, "static": shapes.target}
    rows = forward_times(engines, nodes, first, turns=turns)
    for prefix in further:
        rows += forward_times({"static": shapes.target}, nodes, prefix, turns=turns)
    single = {(row["model"], row["prefix"]): row["milliseconds"] for row in rows if row["rows"] == 1}
    return [{**row, "over_one_row": row["milliseconds"] / single[row["model"], row["prefix"]]} for row in rows]


def attention(shapes: Shapes) -> list[Row]:
    """Time masked attention in all layers, in milliseconds, each over its own cache and in one graph.

    A kernel made for trees could save at most this.
    """
    buffers, out = shapes.target.buffers, []
    _, _, _, heads, _, size = buffers.cache.states.shape
    for width in buffers.widths:
        for nodes in (1, shapes.plan.nodes[-1] // 4):
            query = torch.randn(1, heads, nodes, size, device=shapes.device, dtype=shapes.dtype)
            mask = buffers.mask(torch.ones(nodes, width, dtype=torch.bool, device=shapes.device))
            work = partial(_attend, query, mask, buffers.cache.states[..., :width, :])
            replay = partial(buffers.replay, ("attention", nodes, width), work)
            milliseconds = 1000 * median_seconds(replay, shapes.device)
            out.append({"rows": nodes, "width": width, "milliseconds": milliseconds})
    return out


def _attend(query: torch.Tensor, mask: torch.Tensor, states: torch.Tensor) -> torch.Tensor:
    for keys, values in states:
        mixed = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
    return mixed


def costs(pair: Pair, prompts: Sequence[Any], plan: Plan) -> MeasuredCosts:
    """Measure the cost model of a pair."""
    return measure_costs(pair, prompts, max_rows=plan.nodes[-1], iterations=plan.iterations, progress=progress)


# ------------------------------------------------------------------------------------------------- a trained pair, both
def methods(plan: Plan, folder: str, device: torch.device, dtype: torch.dtype, out: Path) -> Row:
    """Measure every method on a trained pair over static buffers; records go to OUT/pair.jsonl."""
    pair = static_pair(load_pair(folder, device_map=str(device), dtype=dtype, draft_dtype=dtype), warm=True)
    workload = _workload(pair, plan)
    measured = costs(pair, workload.prompts[: plan.texts], plan)
    cost_aware: list[Variant] = []
    for name in ("cost-aware-tree", "lookup-tree"):
        cost_aware += labelled(name, {f"{name}, measured costs": measured.options()})
    results = _benchmark(pair, [*variants(METHODS_MEASURED), *cost_aware], workload, plan, out / "pair.jsonl")
    return {"costs": measured.to_json(), "results": results}


def as_loaded(plan: Plan, folder: str, device: torch.device, dtype: torch.dtype, out: Path) -> Row:
    """Measure a few methods on the pair as it is loaded; records go to OUT/as_loaded.jsonl."""
    pair = load_pair(folder, device_map=str(device), dtype=dtype, draft_dtype=dtype)
    compared, workload = variants(METHODS_AS_LOADED), _workload(pair, plan)
    return {"results": _benchmark(pair, compared, workload, plan, out / "as_loaded.jsonl")}


def _workload(pair: Pair, plan: Plan) -> Workload:
    longest = pair.target.context - max(plan.tokens, 200)
    return load_workload("bundled", limit=plan.prompts, max_tokens=longest, tokenizer=pair.tokenizer)


def _benchmark(pair: Pair, compared: Sequence[Variant], workload: Workload, plan: Plan, records: Path) -> Row:
    return run_benchmark(
        pair, compared, workload.prompts, max_new_tokens=plan.tokens, trace=min(3, plan.prompts), records=records,
        existing="replace", progress=progress, source=workload.source,
    ).to_json()  # fmt: skip


def joined(record: Record, out: Path) -> list[Row]:
    """Predict the trained pair's counts at the costs of the shapes."""
    measured, plain_step = MeasuredCosts.from_json(record.rows("costs")), record.rows("plain")[0]["ar_fast"]
    record.rows("methods")  # else the file of its runs is cut, or another pair's
    rows = []
    for row in prediction_rows(read_results(out / "pair.jsonl"), measured):
        speed = row["tokens_per_iteration"] / (row["predicted_iteration"] * measured.step_seconds)
        rows.append(
            {"method": row["method"], "tokens_per_iteration": row["tokens_per_iteration"],
             "iteration_in_steps": row["predicted_iteration"], "predicted_tokens_per_second": speed,
             "predicted_over_ar": row["predicted"], "predicted_over_ar_fast": speed * plain_step}
        )  # fmt: skip
    return rows


def goals(record: Record) -> list[Row]:
    """Return goal by goal: the number `measured` (None where its measurement is missing), and its limit."""
    rows = {name: record.body.get(name, {}).get("rows") for name in CAPTIONS}
    entries = rows["methods"]["results"]["methods"] if rows["methods"] else []
    drafting = [row["tokens_per_second"] for row in entries if "commit" in row["options"] and row["method"] != "ar"]
    over = {row["label"]: max(drafting) / row["tokens_per_second"] for row in entries if drafting}

    def worst(name: str, column: str, **where: Any) -> float | None:
        """Return the largest value of a column, of rows with these values."""
        return max((row[column] for row in rows[name] or () if where.items() <= row.items()), default=None)

    reserved = rows["memory"] and rows["memory"]["trees_over_both"].get("reserved")
    nodes = worst("forwards", "over_one_row", model="static", rows=64)
    found = (
        ("ar-fast over the bandwidth bound, worst prefix", "plain", worst("plain", "ar_fast_over_bound"), 1.4),
        ("forward of 64 nodes over one of 1, worst prefix", "forwards", nodes, 1.3),
        ("iteration in steps of ar-fast, worst prefix", "iterations", worst("iterations", "steps_of_ar_fast"), 2.5),
        ("peak memory with trees over plain decoding and the draft's weights", "memory", reserved, 1.05),
        ("best drafted method over ar-fast, trained pair", "methods", over.get("ar-fast"), 1.8),
        ("best drafted method over hf-generate, trained pair", "methods", over.get("hf-generate"), 6.0),
    )
    return [
        {"goal": goal, "from": name, "measured": number, "at least" if name == "methods" else "at most": limit}
        for goal, name, number, limit in found
    ]


def measure_all(
    out: Path,
    parts: Sequence[str],
    pair: str,
    device: torch.device,
    dtype: torch.dtype,
    plan: Plan,
    again: bool = False,
) -> int:
    """Measure the parts asked for into `out`, with `again` also what is there of them; 1 if a measurement failed.

    Raises:
        ValueError: before any work, for an unknown part, a missing device, or a record of another setup or pair.
        RuntimeError: where another run works in `out`.
    """
    if plan.prompts < 1 or plan.tokens < 2:
        raise ValueError(f"There are {plan.prompts} prompts and {plan.tokens} tokens; give at least 1 and 2.")
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"There is no part '{part}'; choose from {', '.join(PARTS)}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch sees no CUDA device here; try --device cpu --tiny.")
    setup = {
        "environment": describe_environment(), "plan": json.loads(json.dumps(asdict(plan))),
        "dtype": str(dtype).removeprefix("torch."), "device": str(device),
    }  # fmt: skip
    about: Row = {}
    if {"pair", "as_loaded"} & set(parts):
        check_pair_name(pair)
        about = {"pair": {"name": public_pair_name(pair), "files": pair_files(pair)}}
    with sole_run(out):
        record = begun_record(out / FILE, setup, about, parts, again)
        if "shapes" in parts:
            measure_shapes(record, plan, device, dtype)
        if "pair" in parts:
            record.take("methods", lambda: methods(plan, pair, device, dtype, out), about)
        if "as_loaded" in parts:
            record.take("as_loaded", lambda: as_loaded(plan, pair, device, dtype, out), about)
        if "joined" in parts or "joined" in record.body:
            for name in ("joined", "goals"):
                record.body.pop(name, None)
            record.take("joined", lambda: joined(record, out))
            record.take("goals", lambda: goals(record))
    return 1 if record.failed else 0


def begun_record(path: Path, setup: Row, about: Row, parts: Sequence[str], again: bool) -> Record:
    """Return what an earlier run measured, with `again` without what the parts asked for measure.

    Raises:
        ValueError: where the rest was measured with another setup, or of another pair than the parts ask for.
    """
    record = Record(path, _read(path) if path.exists() else {})
    for part in parts if again else ():
        for name in _MEASURED[part]:
            record.body.pop(name, None)
    measured = [name for names in _MEASURED.values() for name in names if record.has(name)]
    if measured and any(record.body.get(key) != value for key, value in setup.items()):
        raise ValueError(
            f"{path} holds '{measured[0]}' measured with other sizes, on another device or machine or at another "
            "commit; give another folder, or measure all parts with --again."
        )
    for name in ("methods", "as_loaded"):
        if about and record.has(name) and record.body[name].get("pair") != about["pair"]:
            had = (record.body[name].get("pair") or {}).get("name")
            raise ValueError(
                f"{path} holds '{name}' of the pair '{had}', and '{about['pair']['name']}' is another, or its files "
                "are; give another folder, or measure anew with --again --parts pair,as_loaded,joined."
            )
    record.body |= setup
    return record


def _read(path: Path) -> Row:
    try:
        body = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict) or not all(isinstance(body.get(name, {}), dict) for name in CAPTIONS):
        raise ValueError(f"{path} is damaged, or no record of tools.gpu_speed; move it away, or give another folder.")
    return body


def main(argv: Sequence[str] | None = None) -> int:
    """Run the parts asked for; 1 if a measurement failed."""
    parser = argparse.ArgumentParser(prog="python3 -m tools.gpu_speed", description=__doc__.splitlines()[0])
    add = parser.add_argument
    add("out", type=Path, help="folder for the records; what an earlier run there measured is kept")
    add("--parts", default=",".join(PARTS), help="default: %(default)s")
    add("--pair", default="tiny", help="folder of a trained pair, or a named one (default: %(default)s)")
    add("--prompts", type=int, metavar="N", help="prompts of the trained pair (default: 20)")
    add("--tokens", type=int, metavar="N", help="tokens of each text (default: 200)")
    add("--device", type=torch.device, default="cuda", help="cuda, cuda:1 or cpu (default: %(default)s)")
    add("--dtype", default="bfloat16", choices=("bfloat16", "float16", "float32"))
    add("--again", action="store_true", help="measure the parts anew that an earlier run in that folder has")
    add("--tiny", action="store_true", help="small shapes and few turns: does it run?")
    args = parser.parse_args(argv)
    sizes = {"prompts": args.prompts, "tokens": args.tokens}
    plan = replace(TINY if args.tiny else FULL, **{name: size for name, size in sizes.items() if size is not None})
    dtype = getattr(torch, args.dtype)
    return measure_all(args.out, args.parts.split(","), args.pair, args.device, dtype, plan, args.again)


if __name__ == "__main__":
    try:
        sys.exit(main())
    except (ValueError, RuntimeError) as error:
        sys.exit(f"gpu_speed: {error}")
