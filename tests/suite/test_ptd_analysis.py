"""The analysis of the PTD paper: quotients of counts, fronts, alike branches, repeated nodes, stages, memory."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from models import noisy_copy, random_model

import dynatree_lib as dt
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import RandomSource
from dynatree_lib.tree import TokenTree
from dynatree_suite.bench.methods import variant
from dynatree_suite.bench.metrics import drafting_metrics
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.protocol import Results, run_benchmark
from dynatree_suite.costs.cost_model import MeasuredCosts
from dynatree_suite.papers.adaptive import ablation
from dynatree_suite.papers.ptd import analysis as ptd_analysis
from dynatree_suite.papers.ptd.analysis import (
    at_equal,
    compared,
    counts_frame,
    front,
    most_similar,
    over,
    quantity,
    quantity_row,
    repeated_nodes,
    similarity,
)

TARGET = random_model("gpt_neox")
PAIR = Pair("random", TARGET, noisy_copy(TARGET), None)
PROMPTS = [BenchPrompt.from_ids(str(n), list(range(1, 5 + n))) for n in range(3)]
COSTS = MeasuredCosts(0.01, (1.0, 1.1, 1.3, 1.7), (0.1, 0.1))  # a tenth of a step per row
METHODS = ["ar", "prompt-lookup", "ptd", "lookahead:window=3,ngram=3", "self-draft"]


@pytest.fixture(scope="module")
def results():
    return run_benchmark(PAIR, METHODS, PROMPTS, max_new_tokens=40, warmup=0)


def frame(**settings):
    """Two prompts of settings given as (tokens, iterations, nodes scored), DE and scored alone."""
    names = ("tokens", "iterations", "scored")
    rows = [{"method": label, **dict(zip(names, counts, strict=True))} for label, counts in settings.items()]
    return pd.DataFrame([{**row, "prompt": prompt} for prompt in ("p", "q") for row in rows])


# ------------------------------------------------------------------------------------------------------------- counts
def test_quotients_are_those_of_the_metrics(results):
    counts, records = counts_frame(results, COSTS), results.records.frame()
    assert list(counts.method.unique()) == METHODS
    names = {"DE": "decoding_efficiency", "HR": "hit_rate", "AL": "accept_length"}
    names |= {"Dft": "draft_overhead", "Ver": "verify_overhead"}
    for label in METHODS:
        row = quantity_row(counts, label, seed=3)
        metrics = drafting_metrics(records[records.method == label], 3)
        for short, name in names.items():
            if name in metrics:
                assert row[short] == pytest.approx(metrics[name].value)
            if name in metrics and short != "AL":  # a resample without a hit is NaN here and 1 in the metrics
                assert row[f"{short}_interval"] == pytest.approx(metrics[name].interval)
        hits = row["HR"] * row["AL"] if row["HR"] else 0
        assert row["DE"] == pytest.approx(hits + 1 - row["HR"])
        assert row["scored"] == pytest.approx(row["Dft"] + row["Ver"])


def test_predicted_speed_of_hand(results):
    counts = counts_frame(results, COSTS)
    assert quantity(counts, "ar", "speed").value == pytest.approx(1)
    assert np.isnan(quantity(counts, "ar", "AL").value)
    for label in ("ptd", "lookahead:window=3,ngram=3"):
        runs = [run for run in results.records.runs.values() if run.method == label]
        nodes = sum(sum(run.nodes) + sum(run.side_nodes) for run in runs)
        iterations = sum(run.iterations for run in runs)
        assert nodes > 0
        assert quantity(counts, label, "speed").value == pytest.approx(120 / (iterations + 0.1 * nodes))


def test_a_method_over_itself_is_one_and_ratios_are_paired(results):
    counts = counts_frame(results, COSTS)
    assert over(counts, "ptd", "ptd", "DE").interval == pytest.approx((1, 1))
    ratio = over(counts, "ptd", "ar", "DE")
    assert ratio.value == pytest.approx(quantity(counts, "ptd", "DE").value)
    row = compared("ptd over ar", ratio)
    assert (row["method"], row["ratio"], row["holds"]) == ("ptd over ar", ratio.value, ratio.above())
    assert row["text"].startswith(f"{row['ratio']:.2f} [")


def test_prompts_that_a_method_lacks_do_not_count(results):
    runs = {key: run for key, run in results.records.runs.items() if key[:2] != ("ptd", "1")}
    fewer = counts_frame(Results(replace(results.records, runs=runs)), COSTS)
    assert set(fewer.prompt) == {"0", "2"}
    assert len(fewer) == 2 * len(METHODS)


def test_fronts_and_equal_nodes_of_hand():
    counts = frame(
        a=(20, 10, 100), b=(25, 10, 200), beaten=(24, 10, 300), c=(30, 10, 400), d=(15, 10, 50), e=(30, 10, 800)
    )
    assert front(counts, ["c", "beaten", "a", "b"]) == ["a", "b", "c"]
    ours, theirs = (
        ["a", "c"],
        ["d", "e"],
    )  # straight over log(nodes): 2 to 3 between 10 and 40, 1.5 to 3 between 5 and 80
    places = np.linspace(np.log(10), np.log(40), ptd_analysis.PLACES)
    lower = np.interp(places, np.log([5, 80]), np.log([1.5, 3]))
    upper = np.interp(places, np.log([10, 40]), np.log([2, 3]))
    ratio = at_equal(counts, ours, theirs)
    assert ratio.value == pytest.approx(np.exp(np.mean(upper - lower)))
    assert ratio.above() is True
    assert at_equal(counts, theirs, ours).value == pytest.approx(1 / ratio.value)
    saved = at_equal(counts, ours, theirs, at="DE", of="scored")
    values = np.linspace(np.log(2), np.log(3), ptd_analysis.PLACES)
    second = np.interp(values, np.log([1.5, 3]), np.log([5, 80]))
    first = np.interp(values, np.log([2, 3]), np.log([10, 40]))
    assert saved.value == pytest.approx(np.exp(np.mean(first - second)))
    assert saved.above() is False


def test_a_dominated_setting_does_not_move_a_front():
    counts = frame(a=(20, 10, 100), b=(30, 10, 400), worse=(19, 10, 150), d=(15, 10, 50), e=(30, 10, 800))
    plain, more = (at_equal(counts, ours, ["d", "e"]).value for ours in (["a", "b"], ["a", "worse", "b"]))
    assert plain == pytest.approx(more)


def test_fronts_without_common_sizes_have_no_ratio():
    ratio = at_equal(frame(a=(20, 10, 100), b=(30, 10, 200)), ["a"], ["b"])
    assert np.isnan(ratio.value)
    assert ratio.above() is None


def test_settings_have_speeds_at_two_sets_of_costs(results):
    dear = replace(COSTS, verify_points=(1.0, 2.0, 4.0, 8.0))
    settings = ptd_analysis.Settings.of(results, COSTS, dear)
    assert list(settings.rows) == METHODS
    for label, row in settings.rows.items():
        assert row["speed"] == quantity(counts_frame(results, COSTS), label, "speed").value
        assert row["speed_there"] == quantity(counts_frame(results, dear), label, "speed").value
        assert (row["name"], row["measured"]) == (label.partition(":")[0], results.summary(label)["speedup_ar"])
    assert settings.speeds["here"]["ptd"] > settings.speeds["there"]["ptd"]
    assert settings.speeds["here"]["ar"] == settings.speeds["there"]["ar"] == 1


# ----------------------------------------------------------------------------------------------------------- branches
def test_similarity_under_both_readings():
    assert similarity([1, 2, 3, 4], [1, 9, 3, 8]) == 0.5
    assert similarity([1, 2, 3], [0, 1, 2, 3]) == 0
    assert similarity([1, 2, 3], [0, 1, 2, 3], "order") == 0.75
    assert similarity([7], [7], "order") == 1


def test_longest_common_subsequence_against_enumeration():
    rng = np.random.default_rng(0)
    for _ in range(50):
        one, other = (rng.integers(0, 3, rng.integers(1, 6)).tolist() for _ in range(2))
        parts = [set(itertools.combinations(line, n)) for line in (one, other) for n in range(len(line) + 1)]
        first, second = set().union(*parts[: len(one) + 1]), set().union(*parts[len(one) + 1 :])
        longest = max(map(len, first & second))
        assert similarity(one, other, "order") == pytest.approx(longest / max(len(one), len(other)))


def test_branches_are_compared_from_where_they_part():
    tree = TokenTree.build([0, 5, 1, 2, 3, 2, 4], [-1, 0, 1, 2, 1, 4, 0])  # 5-1-2, 5-3-2, 4
    assert ptd_analysis.branches(tree) == [[1, 2, 3], [1, 4, 5], [6]]
    assert most_similar(tree) == pytest.approx([0.5, 0.5, 0])  # 1-2 and 3-2; the shared 5 does not count
    assert most_similar(TokenTree.build([0, 1, 2], [-1, 0, 1])) == pytest.approx([0])


def test_shares_above_thresholds_of_hand():
    alike = TokenTree.from_paths(0, [[1, 7, 8], [2, 7, 8], [3, 4, 5]])
    apart = TokenTree.from_paths(0, [[1, 2], [3, 4]])
    rows = ptd_analysis.similar_rows("x", [[alike], [apart]], (0.5, 2 / 3))
    assert rows[0] == {"method": "x", "likeness": "place", "threshold": 0.5, "iterations": 0.5, "branches": 2 / 5}
    assert rows[1]["iterations"] == 0  # above the threshold, not at it
    assert ptd_analysis.similar_rows("x", [[]], (0.5,))[0]["iterations"] == 0


def test_repeated_nodes_of_hand():
    first = TokenTree.from_paths(0, [[1, 2, 3], [4, 1, 2, 3]])  # 1-2-3 twice, and nothing else of its length
    row = repeated_nodes("x", [[first]], n=3)
    assert row["twice"] == pytest.approx(1 / 7)
    assert row["again"] == 0
    again = repeated_nodes("x", [[first, first]], n=3)
    assert again["again"] == pytest.approx(6 / 14)
    assert again["new"] == pytest.approx(6 / 14)
    assert repeated_nodes("x", [[first], [first]], n=3)["again"] == 0  # another text begins anew
    assert repeated_nodes("x", [[]])["new"] == 0


def test_side_trees_leave_out_the_first_and_the_empty():
    tree = TokenTree.from_paths(0, [[1]])
    iterations = [SimpleNamespace(side_tree=one) for one in (tree, None, tree, tree)]
    assert len(ptd_analysis.side_trees(iterations, 1)) == 2


# ------------------------------------------------------------------------------------------------------------- stages
def test_a_timed_drafter_is_the_drafter():
    trace = ptd_analysis.Trace(itertools.count().__next__, lambda: None)
    for drafter in (dt.ProgressiveTree(), dt.Chain(PAIR.draft), dt.SampledTree(PAIR.draft)):
        timed = ptd_analysis.timed(drafter, trace)
        assert timed == drafter
        assert (timed.model, timed.drawing, timed.chain) == (drafter.model, drafter.drawing, drafter.chain)
        out = dt.generate(TARGET, [1, 2, 3], timed, max_new_tokens=20)
        assert trace.events
        seen = len(trace.events)
        assert out.tokens == dt.generate(TARGET, [1, 2, 3], drafter, max_new_tokens=20).tokens
        assert len(trace.events) == seen  # the drafter itself reports nothing
        dt.generate(TARGET, [4, 5], timed, state=out.state, max_new_tokens=5)
    assert {name for name, *_ in trace.events} == {"retrieval", "update"}
    timed = ptd_analysis.timed(dt.ProgressiveTree(), trace)
    states = [dt.ProgressiveTree().start([1, 2, 3], RandomSource(0, "draft")) for _ in range(2)]
    states[1].pool.merge([7])
    assert timed.report(states[1]) == {"pool_nodes": 1.0}
    assert timed.report(timed.inherit(*states)) == {"pool_nodes": 1.0}


def test_stages_add_up_under_a_clock_that_ticks():
    rows = ptd_analysis.stage_rows(PAIR, ["ar", "ptd"], PROMPTS[:2], 30, itertools.count().__next__)
    assert [(row["method"], row["prompt"]) for row in rows] == [("ar", "0"), ("ptd", "0"), ("ptd", "1"), ("ar", "1")]
    for row in rows:
        assert sum(row[stage] for stage in ptd_analysis.STAGES) == row["seconds"]
        for stage in ("forward", "retrieval", "update"):  # from one tick to the next
            assert row[stage] == row["iterations"]
    plain = rows[0]
    assert plain["iterations"] == plain["tokens"] == 29  # the first iteration is left out
    texts = ablation.decode(PAIR, ["ptd"], PROMPTS[:1], 30)["ptd"]
    assert rows[1]["iterations"] == texts[0].forwards - 1
    shares = ptd_analysis.stage_shares(rows)
    assert [row["method"] for row in shares] == ["ar", "ptd"]
    assert shares[0]["own"] == pytest.approx(2 / shares[0]["total"] * 1000)
    low, high = shares[0]["own_interval"]
    assert low <= shares[0]["own"] <= high


def test_stages_refuse_what_cannot_be_split():
    with pytest.raises(ValueError, match="max_new_tokens is 1; .* at least 2"):
        ptd_analysis.stage_rows(PAIR, ["ar"], PROMPTS, 1)
    with pytest.raises(ValueError, match="'hf-generate' does not run in this library's loop"):
        ptd_analysis.stage_rows(PAIR, ["hf-generate"], PROMPTS, 8)


# ------------------------------------------------------------------------------------------------------------- memory
def test_memory_counts_everything_once():
    import sys

    inner = [10**6]
    size = sys.getsizeof
    assert ptd_analysis.memory_of([inner, inner]) == size([1, 1]) + size(inner) + size(10**6)
    assert ptd_analysis.memory_of({7: inner}) == size({7: 1}) + size(7) + size(inner) + size(10**6)
    loop = []
    loop.append(loop)
    assert ptd_analysis.memory_of(loop) == size(loop)
    thing = SimpleNamespace(a=10**6)
    assert ptd_analysis.memory_of(thing) >= size(thing) + size(thing.__dict__) + size(10**6)


def test_memory_sees_the_nodes_of_a_pool():
    runner = variant("ptd:carry=true").runner(PAIR)
    runner(PROMPTS[0].ids, max_new_tokens=40, eos_token_ids=(), on_tokens=len, sampling=dt.Sampling(), seed=0)
    pool = runner.before.drafter_state.pool
    assert pool.nodes > 20
    assert ptd_analysis.memory_of(pool) > 100 * pool.nodes
