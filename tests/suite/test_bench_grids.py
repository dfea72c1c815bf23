import importlib.util
from pathlib import Path

import pytest
from models import feature_draft, noisy_copy, random_model

from dynatree_lib.models.pairs import Pair
from dynatree_suite.bench import grids
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.protocol import read_results, run_benchmark
from dynatree_suite.papers.dynatree.as_published import corrections, switched
from dynatree_suite.papers.workloads import WorkloadPrompt

TARGET = random_model("gpt_neox")
PAIR = Pair("random", TARGET, noisy_copy(TARGET), None)
PROMPTS = [BenchPrompt.from_ids(str(n), list(range(1, 5 + n))) for n in range(2)]


def test_grid_is_the_product_with_readable_labels():
    made = grids.grid("fixed-tree", {"max_nodes": 9}, depth=(2, 3), branching=(2, (3, 1)), tau=(None,))
    assert [one.label for one in made] == [
        "depth=2,branching=2,tau=none", "depth=2,branching=3/1,tau=none",
        "depth=3,branching=2,tau=none", "depth=3,branching=3/1,tau=none",
    ]  # fmt: skip
    assert all(one.options["max_nodes"] == 9 for one in made)
    assert made[1].options["branching"] == (3, 1)


def test_bad_points_are_refused_before_any_run():
    with pytest.raises(ValueError, match="tau"):
        grids.grid("fixed-tree", tau=(2.0,))


def test_rows_carry_options_and_figures():
    variants = grids.labelled("fixed-tree", {"small": {"depth": 1}, "deep": {"depth": 4}})
    results = run_benchmark(PAIR, ["hf-generate", *variants], PROMPTS, max_new_tokens=8)
    rows = grids.rows(results, ["small", "deep"])
    assert [(row["method"], row["name"], row["depth"]) for row in rows] == [
        ("small", "fixed-tree", 1), ("deep", "fixed-tree", 4),
    ]  # fmt: skip
    assert grids.fastest(rows)["speedup_hf_generate"] == max(row["speedup_hf_generate"] for row in rows)


def test_a_shape_survives_the_way_from_a_record_back_to_options(tmp_path):
    """Records hold lists; options are tuples. A tuned tree must be runnable again."""
    record = tmp_path / "shapes.jsonl"
    variants = grids.grid("fixed-tree", depth=(3,), branching=((2, 2, 1),), tau=(None,), max_nodes=(9,))
    run_benchmark(PAIR, ["hf-generate", *variants], PROMPTS, max_new_tokens=8, records=record)
    row = grids.rows(read_results(record), [variants[0].label])[0]
    options = {name: row[name] for name in ("depth", "branching", "tau", "max_nodes")}
    assert options == {"depth": 3, "branching": (2, 2, 1), "tau": None, "max_nodes": 9}
    assert grids.labelled("fixed-tree", {"tuned": options})[0].options == variants[0].options
    assert grids.text([2, 2, 1]) == grids.text((2, 2, 1)) == "2/2/1"


def test_corrections_run_under_the_protocol_and_say_which_are_lossless():
    steps = switched(corrections(), depth=2, branching=2, tau=0.01, max_nodes=16)
    rows = grids.rows(run_benchmark(PAIR, ["hf-generate", *steps], PROMPTS, max_new_tokens=24))
    found = {row["method"]: row for row in rows}
    assert [one.method.lossless for one in steps] == [False, True, True, True, True, True]
    assert all(found[one.label]["identical"] == "2/2" for one in steps if one.method.lossless)


def test_where_the_draft_reads_features_published_faults_and_streaming_take_the_independent_one():
    target = random_model("llama")
    pair = Pair("features", target, feature_draft(target), None, noisy_copy(target))
    steps = switched(corrections(), depth=2, branching=2, tau=0.01, max_nodes=16)
    results = run_benchmark(pair, ["hf-generate", *steps, "streaming-llm:cache=64"], PROMPTS[:1], max_new_tokens=8)
    assert not results.records.failures
    assert {row["method"] for row in grids.rows(results)} == {"hf-generate", *(step.label for step in steps)} | {
        "streaming-llm:cache=64"
    }


def test_acceptance_counts_tokens_per_iteration():
    file = Path(__file__).resolve().parents[2] / "tools" / "pair_acceptance.py"
    spec = importlib.util.spec_from_file_location(file.stem, file)
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)

    class Ids:
        def __call__(self, text):
            return type("Encoded", (), {"input_ids": [ord(letter) % 90 for letter in text]})

    prompts = [
        WorkloadPrompt("a", "code", ("abc",)),
        WorkloadPrompt("b", "math", ("xyz",)),
        WorkloadPrompt("c", "math", ("pq",)),
    ]
    found = tool.measure_acceptance(Pair("random", TARGET, TARGET, Ids()), prompts, "three.")
    greedy = found["greedy"]
    assert greedy["tokens per iteration, chain of 4"] == pytest.approx(128 * 3 / (26 * 3), abs=1e-3)  # a perfect draft
    assert set(greedy["chain of 4 by task"]) == {"code", "math"}
    assert 0 <= greedy["repeated 4-grams"] <= 1
    assert found["sampled, temperature 1"]["tokens per iteration, chain of 4"] < 5
