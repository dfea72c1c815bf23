"""Speed on a large GPU in one command: `dynatree gpu OUT`, or `tools/gpu_speed.sh OUT DATA`.

Three parts, told apart in every caption. `shapes`: what forwards and iterations cost with the shapes of Pythia-2.8B and
70M and random weights. `pair`: what trees earn, measured on a trained pair (`tools/gpu_speed.sh` trains one of the
160M/14M shapes). `joined`: the counts of the second priced by the first. Needs no network, no data set and no plotting.

It runs from end to end on a CPU with small shapes (`--device cpu --tiny`, which the tests do). It has not been run on a
GPU yet: numbers of a first run want a look before they are believed.

OUT/gpu_speed.json is written after each measurement; one that fails leaves its error there and the others go on.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..decoding import autoregressive, generate
from ..drafters import FixedTree
from ..fast.plain import autoregressive_fast
from ..fast.static import StaticModel, static_pair
from ..measure.bandwidth import forward_bytes, matmul_flops, measure_bandwidth, median_seconds
from ..measure.cost_model import MeasuredCosts, counts_of, measure_costs
from ..measure.environment import cache_bytes_per_row, describe_environment, describe_model, public_text, weight_bytes
from ..measure.methods import METHODS, Variant, variants
from ..measure.prompts import BenchPrompt
from ..measure.protocol import _known_objects_frozen, _quiet_machine, _synchronize, read_results, run_benchmark
from ..measure.records import write_atomically
from ..measure.trace import Trace
from ..models.huggingface import HFModel
from ..models.pairs import Pair, load_pair
from ..sampling import Sampling
from ..workloads import load_workload
from .speed.growth import any_text, forward_times, growth, level_growth

Row = dict[str, Any]
FILE = "gpu_speed.json"
METHODS_MEASURED = (
    "hf-generate,hf-assisted,hf-prompt-lookup,ar,ar-fast,chain:length=4,fixed-tree,best-first-tree,"
    "fixed-tree:depth=8,branching=3,tau=0.03,max_nodes=64"
)
"""Beside these, `cost-aware-tree` and `lookup-tree` with costs measured in the same run."""
RANDOM = "random weights, for cost alone"
CAPTIONS = {
    "memory": f"Peak memory of a run of plain decoding and of one with trees, the draft loaded in between; {RANDOM}.",
    "bandwidth": "Reading and copying memory, and a large matrix product, on the same device.",
    "agreement": f"Logits of a tree over static buffers against transformers' own forward of its rows; {RANDOM}.",
    "forwards": f"One forward alone by engine, rows and prefix; {RANDOM}.",
    "attention": "Attention alone, of all layers of the target, by rows and width; random states.",
    "plain": f"Seconds per token of plain decoding against the bandwidth bound, by prefix; {RANDOM}.",
    "iterations": f"Iterations with a full fixed tree in steps of `ar-fast`; {RANDOM}, so next to nothing is accepted.",
    "growth": f"Iterations beside their forward, by prefix and by nodes; {RANDOM}.",
    "levels": f"Levels of drafting beside their forward, by width; {RANDOM}.",
    "costs": f"The cost model's prices, in greedy steps of `ar`; {RANDOM}.",
    "methods": "A trained pair, every method on held-out prompts, interleaved: earned acceptance at this pair's cost.",
    "joined": "Predicted, not measured: tokens per iteration of the trained pair, priced with the shapes' costs.",
    "goals": "What was aimed at, and what this run found; each from the measurement named.",
}


@dataclass(frozen=True)
class Plan:
    """Sizes of one run.

    Attributes:
        target, draft: keyword arguments of `GPTNeoXConfig`.
        prefixes: tokens of text before what is timed.
        rows: of the target's forwards.
        widths: of the draft's levels.
        tree: keyword arguments of `FixedTree`.
        turns: of `growth`.
        tokens: generated where plain decoding and iterations are timed, and per prompt of the trained pair.
        prompts: of the trained pair.
        iterations: timed per probe of the cost model.
        priced: texts that the cost model is measured on.
    """

    target: dict[str, int]
    draft: dict[str, int]
    prefixes: tuple[int, ...] = (128, 512, 1024, 1900)
    rows: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64, 128, 256)
    widths: tuple[int, ...] = (1, 2, 4, 8, 16, 32)
    tree: dict[str, Any] = field(default_factory=lambda: {"depth": 5, "branching": (4, 4, 1), "max_nodes": 64})
    turns: int = 8
    tokens: int = 200
    prompts: int = 20
    iterations: int = 96
    priced: int = 2


def _shape(hidden: int, layers: int, heads: int, vocabulary: int = 50304, context: int = 2048) -> dict[str, int]:
    return {
        "hidden_size": hidden, "num_hidden_layers": layers, "num_attention_heads": heads,
        "intermediate_size": 4 * hidden, "vocab_size": vocabulary, "max_position_embeddings": context,
    }  # fmt: skip


FULL = Plan(_shape(2560, 32, 32), _shape(512, 6, 8))
"""Pythia-2.8B and Pythia-70M."""
TINY = Plan(
    _shape(64, 3, 4, 512, 512), _shape(32, 2, 4, 512, 512), (40, 100), (1, 4, 16), (1, 4),
    {"depth": 3, "branching": (3, 2, 1), "max_nodes": 16}, 1, 24, 2, 8, 1,
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

    def take(self, name: str, measure: Callable[[], Any]) -> None:
        """Keep what a measurement finds, or its error; Ctrl-C ends the run. One that was made is not made again."""
        if "rows" in self.body.get(name, {}):
            return
        progress(f"gpu_speed: {name}")
        begun = time.monotonic()
        try:
            with _known_objects_frozen():
                found: Row = {"rows": measure()}
        except Exception as error:  # whatever one measurement does, the others are still made
            found = {"error": public_text(f"{type(error).__name__}: {error}")}
            self.failed.append(name)
            progress(f"gpu_speed: {name} failed: {found['error']}")
        self.body[name] = {"caption": CAPTIONS[name], **found, "took_seconds": round(time.monotonic() - begun, 1)}
        write_atomically(self.path, json.dumps(self.body, indent=1, ensure_ascii=False) + "\n")

    def rows(self, name: str) -> Any:
        """What an earlier measurement found.

        Raises:
            ValueError: if it was not made, or failed.
        """
        if "rows" not in self.body.get(name, {}):
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
        """The target with another engine, weights shared."""
        return HFModel(self.target.model, engine=name, check=False)


def random_weights(shape: dict[str, int], device: torch.device, dtype: torch.dtype) -> HFModel:
    """A GPT-NeoX model of this shape with random weights."""
    from transformers import AutoModelForCausalLM, GPTNeoXConfig

    config = GPTNeoXConfig(**shape, rotary_pct=0.25, bos_token_id=None, eos_token_id=None)
    config.name_or_path = f"GPT-NeoX of {config.num_hidden_layers} layers, {config.hidden_size} wide"
    torch.manual_seed(0)
    with torch.device(device):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype)
    return HFModel(model.to(device), check=False)


def measure_shapes(record: Record, plan: Plan, device: torch.device, dtype: torch.dtype) -> None:
    """All measurements of the part `shapes`, memory first."""
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
    record.take("growth", lambda: [
        *growth(shapes.pair, plan.prefixes, (min(16, plan.rows[-1]),), turns=plan.turns, progress=progress),
        *growth(shapes.pair, (middle,), plan.rows, turns=plan.turns, progress=progress),
    ])  # fmt: skip
    record.take("levels", lambda: level_growth(shapes.pair, (middle,), plan.widths, turns=plan.turns))
    record.take("costs", lambda: costs(shapes.pair, _prompts(shapes), plan).to_json())


def memory(shapes: Shapes) -> Row:
    """Peaks in bytes, None on a CPU: of plain decoding with the target alone, and with the draft and a tree; each with
    the graphs it needs, all of them captured."""
    ids, tokens = any_text(shapes.target.warm(rows=()), shapes.plan.prefixes[0]), shapes.plan.tokens
    plainly = _peak(shapes.device, lambda: autoregressive_fast(shapes.target, ids, max_new_tokens=tokens))
    weights = weight_bytes(shapes.draft.warm())
    shapes.target.warm()
    treed = _peak(shapes.device, lambda: generate(shapes.target, ids, shapes.tree, max_new_tokens=tokens))
    ratios = {name: treed[name] / (plainly[name] + weights) for name in plainly if plainly[name]}
    buffers = {
        name: {"buffer_bytes": model.buffers.buffer_bytes, "graph_bytes": model.buffers.graph_bytes}
        for name, model in (("target", shapes.target), ("draft", shapes.draft))
    }
    return {"plain": plainly, "trees": treed, "draft_weights": weights, "trees_over_both": ratios, **buffers}


def _peak(device: torch.device, run: Callable[[], object]) -> dict[str, Any]:
    """Peak bytes allocated, and reserved (what graphs keep for themselves too)."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    with _quiet_machine(device):
        run()
        _synchronize(device)
    if device.type != "cuda":
        return {"allocated": None, "reserved": None}
    return {
        "allocated": torch.cuda.max_memory_allocated(device), "reserved": torch.cuda.max_memory_reserved(device)
    }  # fmt: skip


def bandwidth(shapes: Shapes) -> Row:
    """Every buffer's speeds in bytes per second; `memory`, what bounds plain decoding as in `metrics.Bound`: the higher
    of reading and copying one as large as the weights, or the largest; operations per second of a matrix product."""
    found = measure_bandwidth(shapes.device, forward_bytes(shapes.target))
    sized = found[0]
    flops = matmul_flops(shapes.device, shapes.dtype)
    return {"buffers": [asdict(one) for one in found], "memory": max(sized.read, sized.copy), "flops": flops}


def agreement(shapes: Shapes) -> Row:
    """Largest difference of logits as a share of the largest logit."""
    hf = HFModel(shapes.target.model, engine="eager", check=False)
    nodes = np.arange(2, 18), np.concatenate([[-1], np.arange(15) // 2])
    logits = []
    for model in (hf, shapes.target):
        session = model.session()
        session.start(any_text(model, shapes.plan.prefixes[0]))
        logits.append(session.score(*nodes, Sampling()).logits.double())
    share = (logits[0] - logits[1]).abs().max() / logits[0].abs().max()
    return {"largest_difference": float(share), "finite": bool(torch.isfinite(logits[1]).all())}


def plain(shapes: Shapes, bytes_per_second: float) -> list[Row]:
    """Seconds per token of plain decoding after each prefix, and the bound: weights and cache read, over bandwidth."""
    out = []
    for prefix in shapes.plan.prefixes:
        tokens = min(shapes.plan.tokens, shapes.target.context - prefix - 1)
        ids = any_text(shapes.target, prefix)
        cached = cache_bytes_per_row(shapes.target) * (prefix + tokens / 2)
        bound = (forward_bytes(shapes.target) + cached) / bytes_per_second
        fast, ours = (_per_token(shapes, decode, ids, tokens) for decode in (autoregressive_fast, autoregressive))
        out.append({"prefix": prefix, "tokens": tokens, "bound": bound, "ar_fast": fast, "ar": ours,
                    "ar_fast_over_bound": fast / bound, "ar_over_bound": ours / bound})  # fmt: skip
    return out


def _per_token(shapes: Shapes, decode: Callable[..., object], ids: list[int], tokens: int, repeats: int = 3) -> float:
    """Seconds per token after the first: of whole texts less those of one token, medians; the first do not count."""
    found: dict[int, list[float]] = {1: [], tokens: []}
    for _ in range(1 + repeats):
        for count, times in found.items():
            with _quiet_machine(shapes.device):
                start = time.perf_counter()
                decode(shapes.target, ids, max_new_tokens=count, eos_token_ids=())
                _synchronize(shapes.device)
                times.append(time.perf_counter() - start)
    short, whole = (float(np.median(times[1:])) for times in found.values())
    return (whole - short) / (tokens - 1)


def iterations(shapes: Shapes, steps: Sequence[Row]) -> list[Row]:
    """An iteration with a full tree after each prefix: seconds, steps of `ar-fast`, where its time goes."""
    out = []
    for step in steps:
        ids, tokens = any_text(shapes.target, step["prefix"]), min(step["tokens"], 64)
        marks, trees = _iterations(shapes, ids, tokens)
        trace = Trace(time.perf_counter, lambda: _synchronize(shapes.device))
        trace.begin()
        drafter = FixedTree(trace.instrument(shapes.draft, "draft"), tau=None, **shapes.plan.tree)
        generate(
            trace.instrument(shapes.target, "target"), ids, drafter, max_new_tokens=tokens, eos_token_ids=(),
            on_tokens=trace.on_tokens,
        )  # fmt: skip
        parts = trace.parts(trace.now())
        seconds, whole = float(np.median(np.diff(marks))), sum(parts.values())
        out.append({"prefix": step["prefix"], "nodes": float(np.mean(trees)), "levels": shapes.plan.tree["depth"],
                    "seconds": seconds, "steps_of_ar_fast": seconds / step["ar_fast"],
                    "shares": {name: part / whole for name, part in parts.items()}})  # fmt: skip
    return out


def _iterations(shapes: Shapes, ids: list[int], tokens: int) -> tuple[list[float], list[int]]:
    """When each iteration but the first ended, and the nodes of its tree; a run before does not count."""
    for _ in range(2):
        marks: list[float] = []
        with _quiet_machine(shapes.device):
            out = generate(
                shapes.target, ids, shapes.tree, max_new_tokens=tokens, eos_token_ids=(),
                on_tokens=lambda fresh: marks.append(time.perf_counter()),  # noqa: B023
            )  # fmt: skip
    return marks[:-1], [
        len(one.tree) for one in out.iterations[1:-1]
    ]  # the last iteration has room for a small tree only


def forwards(shapes: Shapes) -> list[Row]:
    """Every engine by rows after the first prefix; the static one by rows after all of them."""
    first, *further = shapes.plan.prefixes
    turns, rows, lean = shapes.plan.turns, shapes.plan.rows, shapes.engine("lean")
    bare = StaticModel(lean, graphs=False, check=False)
    engines = {"eager": shapes.engine("eager"), "lean": lean, "static, no graphs": bare, "static": shapes.target}
    found = forward_times(engines, rows, first, turns=turns)
    for prefix in further:
        found += forward_times({"static": shapes.target}, rows, prefix, turns=turns)
    one = {(row["model"], row["prefix"]): row["milliseconds"] for row in found if row["rows"] == 1}
    return [{**row, "over_one_row": row["milliseconds"] / one[row["model"], row["prefix"]]} for row in found]


def attention(shapes: Shapes) -> list[Row]:
    """Milliseconds of masked attention in all layers, each over its own cache and in one graph: what a kernel made for
    trees could save at most."""
    buffers, out = shapes.target.buffers, []
    _, _, _, heads, _, size = buffers.cache.states.shape
    for width in buffers.widths:
        for rows in (1, shapes.plan.rows[-1] // 4):
            query = torch.randn(1, heads, rows, size, device=shapes.device, dtype=shapes.dtype)
            mask = buffers.mask(torch.ones(rows, width, dtype=torch.bool, device=shapes.device))
            states = buffers.cache.states[..., :width, :]

            def work(query: torch.Tensor = query, mask: torch.Tensor = mask, states: torch.Tensor = states) -> Any:
                for keys, values in states:
                    mixed = torch.nn.functional.scaled_dot_product_attention(query, keys, values, attn_mask=mask)
                return mixed

            replay = partial(buffers.replay, ("attention", rows, width), work)
            took = median_seconds(replay, shapes.device)
            out.append({"rows": rows, "width": width, "milliseconds": 1000 * took})
    return out


def costs(pair: Pair, prompts: Sequence[Any], plan: Plan) -> MeasuredCosts:
    """The cost model of a pair."""
    return measure_costs(pair, prompts, max_rows=plan.rows[-1], iterations=plan.iterations, progress=progress)


def _prompts(shapes: Shapes) -> list[BenchPrompt]:
    lengths = shapes.plan.prefixes[: shapes.plan.priced]
    return [BenchPrompt.from_ids(f"text-{length}", any_text(shapes.target, length)) for length in lengths]


# ------------------------------------------------------------------------------------------------- a trained pair, both
def measure_pair(record: Record, plan: Plan, folder: str, device: torch.device, dtype: torch.dtype, out: Path) -> None:
    """The part `pair`: every method on a trained pair over static buffers; records go to OUT/pair.jsonl."""

    def measure() -> Row:
        pair = static_pair(load_pair(folder, device_map=str(device), dtype=dtype), warm=True)
        room = pair.target.context - max(plan.tokens, 200)
        prompts = load_workload("bundled", limit=plan.prompts, max_tokens=room, tokenizer=pair.tokenizer)
        priced = costs(pair, prompts.prompts[: plan.priced], plan)
        results = run_benchmark(
            pair, [*variants(METHODS_MEASURED), *_priced(priced)], prompts.prompts, max_new_tokens=plan.tokens,
            trace=min(3, plan.prompts), records=out / "pair.jsonl", existing="replace", progress=progress,
            source=prompts.source,
        )  # fmt: skip
        return {"costs": priced.to_json(), "results": results.to_json()}

    record.take("methods", measure)


def _priced(priced: MeasuredCosts) -> list[Variant]:
    """The cost-aware methods with the costs of this machine."""
    return [
        Variant(f"{name}, measured costs", name, METHODS[name], {**METHODS[name].defaults, **priced.options()})
        for name in ("cost-aware-tree", "lookup-tree")
    ]


def join(record: Record, out: Path) -> None:
    """The part `joined`: what the trained pair's counts would cost with the shapes' prices."""

    def joined() -> list[Row]:
        priced, steps = MeasuredCosts.from_json(record.rows("costs")), record.rows("plain")[0]
        records = read_results(out / "pair.jsonl").records
        rows = []
        for entry in records.header.setup["methods"]:
            runs = [run for run in records.runs.values() if run.method == entry["label"]]
            if not runs or "commit" not in entry["options"]:
                continue  # a loop of its own, which the cost model does not know
            counts = counts_of(runs, records.header)
            seconds = priced.steps(counts) * priced.step_seconds
            rows.append(
                {"method": entry["label"], "tokens_per_iteration": counts.tokens / counts.iterations,
                 "nodes": float(np.mean(counts.nodes)), "iteration_in_steps": priced.steps(counts) / counts.iterations,
                 "predicted_tokens_per_second": counts.tokens / seconds,
                 "predicted_over_ar": priced.speed(counts),
                 "predicted_over_ar_fast": counts.tokens * steps["ar_fast"] / seconds}
            )  # fmt: skip
        return rows

    record.take("joined", joined)
    record.take("goals", lambda: goals(record))


def goals(record: Record) -> list[Row]:
    """Goal by goal: the number found (None where its measurement is missing), and the most or least it should be."""
    found: list[tuple[str, str, Callable[[], Any], Row]] = [
        ("ar-fast over the bandwidth bound, worst prefix", "plain",
         lambda: max(row["ar_fast_over_bound"] for row in record.rows("plain")), {"at most": 1.4}),
        ("forward of 64 rows over one of 1, worst prefix", "forwards",
         lambda: max(r["over_one_row"] for r in record.rows("forwards") if (r["model"], r["rows"]) == ("static", 64)),
         {"at most": 1.3}),
        ("iteration in steps of ar-fast, worst prefix", "iterations",
         lambda: max(row["steps_of_ar_fast"] for row in record.rows("iterations")), {"at most": 2.5}),
        ("peak memory with trees over plain decoding and the draft's weights", "memory",
         lambda: record.rows("memory")["trees_over_both"]["reserved"], {"at most": 1.05}),
        ("best drafted method over ar-fast, trained pair", "methods", lambda: _best_over(record, "ar-fast"),
         {"at least": 1.8}),
        ("best drafted method over hf-generate, trained pair", "methods", lambda: _best_over(record, "hf-generate"),
         {"at least": 6.0}),
    ]  # fmt: skip
    return [{"goal": name, "from": source, "found": _or_none(number), **limit} for name, source, number, limit in found]


def _best_over(record: Record, reference: str) -> float:
    """The fastest method of this library that drafts, over a reference."""
    found = record.rows("methods")["results"]["methods"]
    speeds = {one["label"]: one["tokens_per_second"] for one in found}
    drafting = [one["label"] for one in found if "commit" in one["options"] and one["method"] != "ar"]
    return max(speeds[label] for label in drafting) / speeds[reference]


def _or_none(number: Callable[[], Any]) -> Any:
    try:
        return number()
    except (ValueError, KeyError):  # not measured here
        return None


PARTS = ("shapes", "pair", "joined")


def measure_all(
    out: Path,
    parts: Sequence[str],
    pair: str,
    device: torch.device,
    dtype: torch.dtype,
    plan: Plan,
    again: bool = False,
) -> int:
    """Measure the parts asked for into `out`; 1 if a measurement failed.

    Raises:
        ValueError: before any work, for an unknown part, a missing device, or a record of another setup.
    """
    for part in parts:
        if part not in PARTS:
            raise ValueError(f"There is no part '{part}'; choose from {', '.join(PARTS)}.")
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("torch sees no CUDA device here; try --device cpu --tiny.")
    out.mkdir(parents=True, exist_ok=True)
    record = Record(out / FILE)
    name = str(dtype).removeprefix("torch.")
    setup = {"environment": describe_environment(), "plan": json.loads(json.dumps(asdict(plan))), "dtype": name}
    if record.path.exists() and not again:
        record.body = json.loads(record.path.read_text(encoding="utf-8"))
        if any(record.body.get(key) != value for key, value in setup.items()):
            raise ValueError(
                f"{record.path} was measured with other sizes, on another machine or at another commit; give another "
                "folder, or --again."
            )
    record.body |= setup
    if "shapes" in parts:
        measure_shapes(record, plan, device, dtype)
    if "pair" in parts:
        measure_pair(record, plan, pair, device, dtype, out)
    if "joined" in parts:
        join(record, out)
    return 1 if record.failed else 0
