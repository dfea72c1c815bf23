"""Metrics on series small enough to be computed by hand."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from dynatree_suite.bench.methods import variant
from dynatree_suite.bench.metrics import (
    Bound,
    acceptance,
    depth_divisor,
    depth_use,
    drafting_metrics,
    iteration_split,
    mean_split,
    repeated_ngrams,
    seconds_per,
    share_after_eos,
    summarize_records,
    throughput,
)
from dynatree_suite.bench.records import Bandwidth, Divergence, Failure, Header, Records, Run, Split, read_records
from dynatree_suite.bench.statistics import Estimate, ratio, sums

MODEL = {"weight_bytes": 1000, "cache_bytes_per_row": 10}
SETUP = {
    "target": MODEL,
    "draft": {"weight_bytes": 100, "cache_bytes_per_row": 1},
    "reference": "hf-generate",
    "sampling": {"temperature": 0.0},
    "methods": [
        {"label": "hf-generate", "name": "hf-generate", "options": {}, "lossless": True, "draft": False},
        {"label": "chain:length=2", "name": "chain", "options": {"length": 2}, "lossless": True, "draft": True},
        {"label": "ar", "name": "ar", "options": {}, "lossless": True, "draft": False},
    ],
}


def run(method="chain:length=2", prompt="a", repeat=0, seconds=1.0, tokens=(1, 2, 3, 4), chunks=(3, 1), **more) -> Run:
    """A run whose emissions come at 0.2 s, then at equal steps until `seconds`."""
    times = np.linspace(0.2, seconds, len(chunks)) if len(chunks) > 1 else [0.2]
    emissions = [[float(time), count] for time, count in zip(times, chunks, strict=True)]
    return Run(method, prompt, repeat, seconds, list(tokens), emissions, len(chunks), "length", **more)


def greedy(prompt="a", seconds=2.0, **more) -> Run:
    return run("hf-generate", prompt, seconds=seconds, chunks=(1, 1, 1, 1), **more)


def frame(*runs: Run) -> pd.DataFrame:
    return pd.DataFrame([one.row() for one in runs])


def pair(estimate: Estimate) -> tuple[float, tuple[float, float]]:
    return estimate.value, estimate.interval


def speedup(runs: list[Run], reference: list[Run]) -> Estimate:
    return ratio(frame(*runs, *reference), runs[0].method, over=reference[0].method)


def test_throughput_over_prompts():
    runs = [run(prompt="a", seconds=1.0), run(prompt="b", seconds=2.0), run(prompt="b", repeat=1, seconds=2.0)]
    assert sums(frame(*runs), ("tokens", "seconds")).T.to_dict("list") == {"a": [4, 1.0], "b": [8, 4.0]}
    found = throughput(frame(*runs))
    assert found["tokens_per_second"] == pytest.approx(12 / 5)
    assert found["tokens_per_second_mean"] == pytest.approx((4 + 2) / 2)
    assert found["tokens_per_second_std"] == pytest.approx(np.std([4, 2], ddof=1))
    low, high = found["tokens_per_second_interval"]
    assert 2 <= low <= 12 / 5 <= high <= 4


def test_one_prompt_gives_an_interval_of_width_zero():
    found = throughput(frame(run()))
    assert found["tokens_per_second_interval"] == (4.0, 4.0)
    assert found["tokens_per_second_std"] == 0


def test_speedup_pairs_prompts_and_is_the_ratio_of_total_times():
    mine = [run(prompt="a", seconds=1.0), run(prompt="b", seconds=1.0), run(prompt="only mine", seconds=50.0)]
    reference = [greedy("a", 2.0), greedy("b", 4.0), greedy("only its", 70.0)]
    found = speedup(mine, reference)
    assert found.value == pytest.approx(6 / 2)
    assert found.interval == pytest.approx((2, 4))
    with pytest.raises(ValueError, match="share no prompt; measure both in one run"):
        speedup(mine[2:], reference)


def test_the_turns_of_a_conversation_are_drawn_together():
    mine = [run(prompt="a"), run(prompt="a/turn-2", seconds=3.0), run(prompt="b"), run(prompt="c", seconds=9.0)]
    assert sums(frame(*mine), ("tokens", "seconds")).T.to_dict("list") == {"a": [8, 4.0], "b": [4, 1.0], "c": [4, 9.0]}
    reference = [greedy("a", 4.0), greedy("b", 5.0), greedy("b/turn-2", 80.0)]  # a's second turn and c failed
    assert pair(speedup(mine, reference)) == (9 / 2, (4.0, 5.0))
    assert throughput(frame(*mine[:2]))["tokens_per_second_interval"] == (2.0, 2.0)
    assert pair(drafting_metrics(frame(*mine[:2]))["decoding_efficiency"]) == (2.0, (2.0, 2.0))


def test_a_method_is_exactly_as_fast_as_itself():
    runs = [greedy(name, seconds) for name, seconds in (("a", 1.0), ("b", 3.0), ("c", 2.5))]
    assert pair(speedup(runs, runs)) == (1.0, (1.0, 1.0))


def test_seconds_per_token_and_per_iteration():
    runs = [run(seconds=1.0), run(seconds=1.8)]  # emissions 0.2..1.0 and 0.2..1.8
    assert seconds_per(frame(*runs), "tokens") == pytest.approx((0.8 + 1.6) / 2)  # three of four come first
    assert seconds_per(frame(*runs), "iterations") == pytest.approx((0.8 + 1.6) / 2)
    assert seconds_per(frame(run(tokens=(1,), chunks=(1,))), "iterations") is None
    chunked = frame(replace(greedy(seconds=2.0), emissions=[[0.2, 3], [2.0, 1]]))  # four steps, read in two chunks
    assert seconds_per(chunked, "tokens") == seconds_per(chunked, "iterations") == pytest.approx(1.8)


def test_acceptance_under_both_definitions():
    runs = [run(nodes=[2, 2], accepted=[2, 0], depths=[2, 2])]
    assert acceptance(frame(*runs)) == {
        "tokens_per_iteration": 2.0,
        "accepted_path_length": 1.0,
        "hit_rate": 0.5,
        "accept_length": 3.0,
        "side_nodes_per_iteration": None,
        "nodes_per_iteration": 2.0,
        "acceptance": 0.5,
        "acceptance_published": 1.0,  # 4 committed tokens over 4 drafted nodes: the bonus tokens count
        "draft_levels": None,
    }
    nothing_drafted = acceptance(frame(run(tokens=(1, 2), chunks=(1, 1), nodes=[0, 0], accepted=[0, 0], depths=[0, 0])))
    assert nothing_drafted["acceptance"] is nothing_drafted["acceptance_published"] is None
    assert acceptance(frame(run()))["nodes_per_iteration"] is None


def test_the_terms_of_progressive_tree_drafting_by_hand():
    runs = [
        run(prompt="a", nodes=[2, 4], accepted=[2, 0], side_nodes=[0, 6]),
        run(prompt="b", tokens=(1, 2, 3), chunks=(1, 1, 1), nodes=[3, 3, 3], accepted=[0, 0, 0], side_nodes=[5, 5, 5]),
        run(prompt="b", repeat=1, nodes=[1, 4], accepted=[1, 1], chunks=(2, 2), side_nodes=[4, 0]),
    ]
    found = drafting_metrics(frame(*runs))
    expected = {  # 11 tokens of 7 iterations; hits keep 3, 2 and 2 tokens
        "decoding_efficiency": 11 / 7, "hit_rate": 3 / 7, "accept_length": 7 / 3, "draft_overhead": 25 / 7,
        "verify_overhead": 20 / 7,
    }  # fmt: skip
    assert {name: one.value for name, one in found.items()} == pytest.approx(expected)
    intervals = {name: one.interval for name, one in found.items()}
    assert intervals["decoding_efficiency"] == pytest.approx((7 / 5, 2.0))  # prompt b alone, prompt a alone
    assert intervals["hit_rate"] == pytest.approx((2 / 5, 1 / 2))
    assert intervals["accept_length"] == pytest.approx((2.0, 3.0))
    terms = ["hit_rate", "accept_length", "side_nodes_per_iteration", "nodes_per_iteration"]
    assert [acceptance(frame(*runs))[name] for name in terms] == pytest.approx(list(expected.values())[1:])
    assert drafting_metrics(frame(*runs), 1) == drafting_metrics(frame(*runs), 1)


def test_what_runs_do_not_show_has_no_number():
    plain = [run(tokens=(1, 2), chunks=(1, 1), nodes=[0, 0], accepted=[0, 0])]
    found = drafting_metrics(frame(*plain))
    assert found.keys() == {"decoding_efficiency", "hit_rate", "verify_overhead"}
    assert pair(found["hit_rate"]) == (0.0, (0.0, 0.0))
    terms = ["hit_rate", "accept_length", "side_nodes_per_iteration", "nodes_per_iteration"]
    assert [acceptance(frame(*plain))[name] for name in terms] == [0, None, None, 0]
    assert drafting_metrics(frame(run())).keys() == {"decoding_efficiency"}
    assert drafting_metrics(frame(run(), *plain)).keys() == {"decoding_efficiency"}
    seldom = [*plain, run(prompt="b", nodes=[2, 2], accepted=[2, 0])]
    assert pair(drafting_metrics(frame(*seldom))["accept_length"]) == (
        3.0,
        (1.0, 3.0),
    )  # a resample may be without a hit


REFERENCES = Path(__file__).resolve().parents[2] / "outputs" / "reference"


def is_benchmark(path):
    """Whether a record is one of runs; others hold judged trees, or rows of a table."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8") as file:
        return '"kind": "header"' in file.readline()


BENCHMARKS = sorted(path for path in REFERENCES.rglob("*.jsonl*") if is_benchmark(path))


@pytest.mark.parametrize("path", BENCHMARKS, ids=lambda path: f"{path.parent.name}-{path.name.partition('.jsonl')[0]}")
def test_every_reference_record_keeps_the_identity_of_progressive_tree_drafting(path):
    records = read_records(path)
    assert records.notes == []  # a run that broke it would have been left out
    runs = records.frame()
    shown = [one for _, mine in runs.groupby("method") if (one := acceptance(mine))["hit_rate"] is not None]
    assert shown
    for one in shown:
        kept = one["hit_rate"] * (one["accept_length"] or 0.0)
        assert one["tokens_per_iteration"] == pytest.approx(kept + 1 - one["hit_rate"], rel=1e-12)
    runs = runs.dropna(subset="hits")  # an iteration without a hit commits the bonus token alone
    assert (runs["tokens"] == runs["hit_tokens"] + runs["iterations"] - runs["hits"]).all()


def test_depth_use_is_what_dynatree_adaptive_prints_as_accept():
    assert depth_divisor("chain", {"length": 8}) == 8
    assert depth_divisor("fixed-tree", {"depth": 9, "branching": 3}) == 10  # D = 8 levels below the paper's root
    assert depth_divisor("adaptive-tree", {"base_depth": 5, "max_depth": 8}) == 7
    assert depth_divisor("adaptive-tree", {"base_depth": 6, "depth": None}) == 7  # the fixed tree of D = 5
    assert depth_use("adaptive-tree", {"base_depth": 5}, 7.15) == pytest.approx(7.15 / 7)  # the published 102.2 %
    for method in ("ar", "hf-generate", "streaming-llm", "best-first-tree", "cost-aware-tree"):
        assert depth_use(method, {"length": 4, "depth": 8}, 3.0) is None
    assert depth_use("fixed-tree", {}, 3.0) is None  # a variant made for one run states no options


@pytest.mark.parametrize(
    ("tokens", "share"), [([1, 2, 3], None), ([1, 2, 3, 4], 0.0), ([1] * 8, 0.8), ([1, 2, 3, 4, 5, 1, 2, 3, 4], 1 / 6)]
)
def test_repeated_4grams(tokens, share):
    assert repeated_ngrams(tokens) == (share if share is None else pytest.approx(share))


def _records() -> Records:
    records = Records(Header({}, SETUP))
    for prompt in ("a", "b"):
        records.add(greedy(prompt, seconds=2.0, kv_entries=7))
        text = (1, 2, 3, 4 if prompt == "a" else 5)
        counts = {"nodes": [2, 2], "accepted": [2, 0], "depths": [2, 2], "kv_entries": 9}
        records.add(run(prompt=prompt, seconds=1.0, tokens=text, **counts))
    records.add(Divergence("chain:length=2", "b", 0, 3, 4, 5, 2e-5, True))
    records.add(Split("chain:length=2", "a", 2.0, 0.5, 1.0, 0.5, 4))
    records.add(Failure("ar", "a", 0, "RuntimeError: no"))
    return records


def test_a_summary_has_it_all():
    hf, chain = summarize_records(_records())  # `ar` only failed: no numbers
    assert (hf["identical"], chain["identical"]) == ("2/2", "1/2")
    assert chain["near_ties"] == 1
    assert chain["speedup_hf_generate"] == pytest.approx(2.0)
    assert chain["speedup_ar"] is None
    assert hf["tpot"] == pytest.approx(0.6)
    assert chain["iteration_cost"] == pytest.approx(0.8 / 0.6)
    assert chain["tokens_per_iteration"] == 2.0
    assert (hf["depth_use"], chain["depth_use"]) == (None, 1.0)  # 2 tokens an iteration over K = 2
    assert (hf["weight_bytes"], hf["cache_bytes"]) == (1000, 70)
    assert (chain["weight_bytes"], chain["cache_bytes"]) == (1100, 99)
    assert chain["split"] == pytest.approx({"draft": 0.25, "verify": 0.5, "host": 0.25, "seconds_per_iteration": 0.5})
    assert chain["ttft"] == pytest.approx(0.2)
    assert mean_split([]) is None


@pytest.mark.parametrize(
    ("spec", "weights", "entry"),
    [
        ("ar-fast", 1000, 10), ("chain", 1100, 11), ("chain:independent=true", 1300, 13), ("hf-assisted", 1300, 13),
        ("union-tree", 1100, 11),
        ("union-tree:first=suffix-tree", 1000, 10), ("auto:alone=true", 1000, 10),
        ("chain:skip=1/2", 1000, 18),  # its cache is that of the other eight layers
    ],
)  # fmt: skip
def test_memory_is_that_of_the_models_a_method_uses(spec, weights, entry):
    one = variant(spec)
    setup = {
        **SETUP, "target": {**MODEL, "layers": 10},
        "common_draft": {"weight_bytes": 300, "cache_bytes_per_row": 3},
        "methods": [{"label": spec, "name": one.name, "options": one.options, "lossless": True,
                     "draft": one.method.draft}],
    }  # fmt: skip
    records = Records(Header({}, setup))
    records.add(run(spec, kv_entries=9))
    found = summarize_records(records)[0]
    assert (found["weight_bytes"], found["cache_bytes"]) == (weights, 9 * entry)
    del setup["common_draft"]  # an older file
    assert summarize_records(records)[0]["weight_bytes"] == min(weights, 1100)


def test_the_split_of_iterations_leaves_the_first_out():
    events = [["target", 0.0, 5.0, 0], ["draft", 5.0, 5.5, 1], ["target", 5.5, 6.0, 3], ["commit", 7.0, 7.0, 2],
              ["draft", 7.0, 8.0, 1], ["target", 8.5, 10.5, 3], ["commit", 11.0, 11.0, 2]]  # fmt: skip
    kept = Split("m", "a", 11.0, 1.5, 7.5, 2.0, 2, events)
    without = Split("m", "b", 30.0, 1.0, 28.0, 1.0, 2)
    assert iteration_split([kept, without]) == pytest.approx({"draft": 0.25, "verify": 0.5, "host": 0.25})
    assert iteration_split([without]) is iteration_split([]) is None
    records = _records()
    assert summarize_records(records)[1]["iteration_split"] is None
    records.add(replace(kept, method="chain:length=2"))
    assert summarize_records(records)[1]["iteration_split"] == iteration_split([kept])


def test_sampled_texts_are_not_compared():
    records = _records()
    records.header.setup["sampling"] = {"temperature": 1.0}
    assert [one["identical"] for one in summarize_records(records)] == [None, None]
    records.header.setup["sampling"] = {"temperature": 0.0}


def test_share_after_eos_counts_what_stands_behind_the_first():
    runs = [run(tokens=(1, 9, 3, 9)), run(tokens=(1, 2, 3, 4))]
    assert share_after_eos(runs, [9]) == pytest.approx(2 / 8)
    assert share_after_eos(runs, []) == 0


# ------------------------------------------------------------------------------------------------------------ the bound
def _bounded(*lines):
    """Records of two prompts with a target whose forward reads 900 bytes and 10 per row, and bandwidths."""
    target = {**MODEL, "forward_bytes": 900}
    prompts = [{"id": "a", "tokens": 5}, {"id": "b", "tokens": 20}]
    methods = [*SETUP["methods"], {**SETUP["methods"][2], "label": "ar-fast", "name": "ar-fast"}]
    setup = {**SETUP, "target": target, "prompts": prompts, "methods": methods, "max_new_tokens": 4}
    records = Records(Header({}, setup))
    for line in lines:
        records.add(line)
    return records


MEMORY = [
    Bandwidth("before", 1000, 2000.0, 1500.0),
    Bandwidth("before", 9000, 70.0, 80.0),
    Bandwidth("after", 1000, 3000.0, 2600.0),
    Bandwidth("after", 9000, 70.0, 80.0),
]


def test_the_bound_reads_weights_and_cache_once_for_every_token():
    bound = Bound.of(_bounded(*MEMORY))
    assert bound.bytes_per_second == 2500.0  # of the buffer of the weights' size, between before and after
    for prompt, length in (("a", 5), ("b", 20)):
        forward_by_forward = sum(900 + 10 * (length + token) for token in range(4))
        assert bound.seconds(prompt, 4) == pytest.approx(forward_by_forward / 2500)
    assert bound.tokens_per_second(4) == pytest.approx(8 / (bound.seconds("a", 4) + bound.seconds("b", 4)))
    assert Bound.of(_bounded()) is None
    assert Bound.of(_bounded(Bandwidth("before", 1000, 1.0, 7.0))).bytes_per_second == 7.0


def test_ratios_to_the_bound_and_to_the_strongest_plain_loop():
    runs = [run(prompt="a", seconds=2.0), run(prompt="b", seconds=3.0), greedy("a", 8.0), greedy("b", 9.0)]
    fast = [run("ar-fast", name, seconds=4.0, chunks=(1, 1, 1, 1)) for name in "ab"]
    records = _bounded(*runs, *fast, *MEMORY)
    bound = Bound.of(records)
    found = {one["label"]: one for one in summarize_records(records)}
    chain, plain = found["chain:length=2"], found["ar-fast"]
    assert chain["bound_ratio"] == pytest.approx(chain["tokens_per_second"] / bound.tokens_per_second(4))
    assert plain["bound_ratio"] == pytest.approx((bound.seconds("a", 4) + bound.seconds("b", 4)) / 8)
    assert chain["speedup_ar_fast"] == pytest.approx(8 / 5)
    assert chain["speedup_ar_fast_interval"] == pytest.approx((4 / 3, 2.0))
    assert plain["speedup_ar_fast_interval"] == (1.0, 1.0)
    without = {one["label"]: one for one in summarize_records(_bounded(*runs))}["chain:length=2"]
    assert without["bound_ratio"] is without["speedup_ar_fast"] is without["speedup_ar_fast_interval"] is None
