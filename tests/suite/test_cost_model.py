"""The cost model: costs under a clock that knows them, counts against iterations, forecasts by hand."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
import pytest
import torch
from models import noisy_copy, prompt, random_model

from dynatree_lib import Chain, FixedTree, NoDraft, Sampling, TokenTree, ToyModel, generate
from dynatree_lib.costs import CostCurve, Costs
from dynatree_lib.decoding import Iteration
from dynatree_lib.drafters.base import ModelDrafter
from dynatree_lib.engines.static import StaticModel
from dynatree_lib.measuring import RowsProbe
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.models.engine import Eager
from dynatree_lib.models.pairs import Pair
from dynatree_lib.verifiers.base import Verdict
from dynatree_suite.bench.methods import custom
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.protocol import run_benchmark
from dynatree_suite.bench.runner import Completed
from dynatree_suite.costs import cost_model
from dynatree_suite.costs.cost_model import (
    Counts,
    MeasuredCosts,
    best_chain,
    count,
    counts_of,
    measure_costs,
    prediction_rows,
    quiet_mean,
    read,
    shape_speed,
    timed_tokens,
)
from dynatree_suite.costs.ranks import FEW, RankAcceptance, RanksProbe
from dynatree_suite.drafters import ALL_DRAFTERS

TOY = ToyModel.random(40, seed=1, sharpness=1.5)
TOYS = Pair("toys", TOY, TOY.mixed(ToyModel.random(40, seed=2, sharpness=1.5), 0.3), None)
TEXTS = [BenchPrompt.from_ids(name, [1 + i, 3, 2, 5]) for i, name in enumerate("ab")]
BY_HAND = MeasuredCosts(0.5, (1.0, 2.0, 3.0), (0.5, 0.6), overhead=0.1, reading=(0.2, 0.05), factors={"chain": 1.5})


@pytest.fixture(autouse=True)
def few(monkeypatch):
    """Factors of chains alone, and short texts: measuring every drafter's takes longer than all else; one test does."""
    monkeypatch.setattr(cost_model, "ALL_DRAFTERS", (NoDraft, Chain))
    monkeypatch.setattr(cost_model, "STRETCH", 24)
    monkeypatch.setattr(cost_model, "STRETCHES", 1)


# -------------------------------------------------------------------------------------------------- measuring costs
class Clocked(LanguageModel):
    """A model whose forwards move a clock on: by the nodes they score, and a cost for each queued token."""

    def __init__(self, model, time, cost, queued=0.0):
        self.model, self.time, self.cost, self.queued = model, time, cost, queued
        self.name, self.vocab_size, self.context = model.name, model.vocab_size, model.context

    def session(self):
        session = self.model.session()
        score = session.score

        def timed(tokens, parents, sampling):
            self.time[0] += self.cost(len(tokens)) + self.queued * len(session._queue)
            return score(tokens, parents, sampling)

        session.score = timed
        return session


def clocked_costs(verify, draft, queued=(0.0, 0.0), pair=TOYS, **options):
    time = [0.0]
    clocked = Pair(
        pair.name, Clocked(pair.target, time, verify, queued[0]), Clocked(pair.draft, time, draft, queued[1]), None
    )
    return measure_costs(clocked, TEXTS, clock=lambda: time[0], **{"iterations": 16, **options})


def test_the_measured_costs_are_those_of_the_clock(monkeypatch):
    monkeypatch.setattr(cost_model, "ALL_DRAFTERS", ALL_DRAFTERS)
    costs = clocked_costs(lambda nodes: 3.0 + nodes, lambda nodes: 0.4 + 0.1 * nodes)
    assert costs.step_seconds == pytest.approx(4.0)
    assert costs.verify_points == pytest.approx([(3 + 2**k) / 4 for k in range(7)])
    assert costs.draft_points == pytest.approx([(0.4 + 0.1 * 2**k) / 4 for k in range(5)], abs=1e-4)
    assert costs.overhead == pytest.approx(0, abs=1e-9)
    assert costs.reading == pytest.approx((0, 0), abs=1e-9)
    for name, factor in costs.factors.items():  # nodes and levels are all that this clock sees
        assert factor == pytest.approx(1, abs=2e-3), name
    assert set(costs.factors) == {kind.name for kind in ALL_DRAFTERS} - {"ar"}


def test_a_step_in_the_cost_stays_in_the_forecast_and_is_no_marginal_cost_of_cost_aware_drafting():
    costs = clocked_costs(lambda nodes: 1.0 if nodes == 1 else 1.5 + nodes / 100, lambda nodes: 0.1, max_rows=16)
    assert costs.verify_points == pytest.approx([1, 1.52, 1.54, 1.58, 1.66])
    assert float(read(costs.verify_points, 2)) == pytest.approx(1.52)
    curve = CostCurve(costs.verify_points)
    assert (curve.step, curve.marginal_cost(1)) == pytest.approx((0.51, 0.01))
    assert costs.options() == {"costs": Costs(costs.verify_points, costs.draft_points, round(costs.overhead, 4))}


def test_reading_the_prompt_has_its_own_cost():
    costs = clocked_costs(lambda nodes: 2.0, lambda nodes: 0.5, queued=(0.1, 0.02), max_rows=8)
    per_token = 3 / 4 / 2  # of the four tokens the last is node 0; in steps of 2 seconds
    assert costs.reading == pytest.approx((0.1 * per_token, 0.02 * per_token), rel=0.05)


def test_noise_cannot_make_a_larger_forward_cheaper():
    costs = clocked_costs(lambda nodes: 5.0 if nodes == 4 else 1.0, lambda nodes: 0.2, max_rows=8)
    assert list(costs.verify_points) == sorted(costs.verify_points)
    assert costs.verify_points[2] == pytest.approx(1.0)


def test_disturbed_iterations_do_not_count():
    assert quiet_mean(pd.Series([1.0, 1.1, 0.9, 1.0, 5.0, 9.0])) == pytest.approx(1.0)
    assert quiet_mean([1.0, 1.1, 0.9, 1.0, 5.0, 9.0]) == pytest.approx(1.0)
    assert quiet_mean(pd.Series([2.0])) == 2.0


def test_a_probe_proposes_nodes_of_one_tree():
    for nodes in (2, 3, 8, 64):
        tree = RowsProbe(nodes, 100).propose(7, 1).tree
        assert (len(tree), tree.tokens[0]) == (nodes, 7)
        assert tree.depth == min(8, max(1, nodes // 2))
        assert len(set(tree.tokens[1:].tolist())) == nodes - 1


def test_costs_are_kept_and_taken_up_again(tmp_path, monkeypatch):
    file, said = tmp_path / "costs.json", []
    measured = partial(clocked_costs, records=file, iterations=2)
    first = measured(lambda nodes: nodes, lambda nodes: 0.1, max_rows=8)
    again = measured(lambda nodes: 9.0, lambda nodes: 0.9, max_rows=8, progress=said.append)
    assert again == first
    assert said == ["Costs from costs.json"]
    assert MeasuredCosts.from_json(json.loads(file.read_text())) == first
    probe = first.measured["probes"][3]
    assert (probe["probe"], probe["rows"], probe["seconds"][1]) == ("rows-probe", 8, pytest.approx(8.0))

    others = [replace(BY_HAND, step_seconds=float(number)) for number in range(9)]
    monkeypatch.setattr(cost_model, "_measure", lambda *_: (others.pop(), []))
    assert measured(None, None, max_rows=4, progress=said.append).step_seconds == 8
    assert "of another pair, machine or setup" in said[1]
    for number, broken in enumerate(("broken", "[]", json.dumps({**first.to_json(), "format": 0}))):
        file.write_text(broken)
        assert measured(None, None, max_rows=4).step_seconds == 7 - number
        assert measured(None, None, max_rows=4).step_seconds == 7 - number  # it was written anew
    assert measured(None, None, max_rows=4, existing="replace").step_seconds == 4


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_rows": 3}, "max_rows is 3"),
        ({"iterations": 0}, "iterations 0"),
        ({"records": "no/such/folder/x.json"}, "does not exist"),
        ({"prompts": []}, "There are no prompts"),
        ({"prompts": [BenchPrompt.from_ids("long", [1] * 9_990)]}, "exceeds the context"),
    ],
)
def test_bad_input_is_refused_before_any_work(options, sentence):
    given = {"prompts": TEXTS, "progress": pytest.fail, **options}
    with pytest.raises(ValueError, match=sentence):
        measure_costs(TOYS, given.pop("prompts"), **given)


def test_a_draft_with_too_short_a_context_is_refused():
    short = replace(TOYS, draft=ToyModel(TOYS.draft.distribution, 40, context=timed_tokens(2)))
    with pytest.raises(ValueError, match="exceeds the draft's context"):
        measure_costs(short, TEXTS)


def test_costs_of_a_real_pair_have_their_setup():
    target = random_model("gpt_neox")
    pair = Pair("random", target, noisy_copy(target), None)
    costs = measure_costs(pair, TEXTS, iterations=8, max_rows=4)
    assert costs.verify_points[0] <= costs.verify_points[2]
    assert costs.measured["setup"]["target"]["dtype"] == "float64"
    assert costs.measured["environment"]["threads"] > 0


@pytest.mark.parametrize("change", ["engine", "static", "drafted"])
def test_costs_of_other_forwards_are_measured_again(tmp_path, monkeypatch, change):
    target = random_model("gpt_neox", dtype=torch.float32)
    other = {
        "engine": lambda: target.altered(engine=Eager(target.model)),
        "static": lambda: StaticModel(target, 400),
        "drafted": lambda: target.altered(drafted=np.arange(5)),
    }[change]()
    monkeypatch.setattr(cost_model, "_measure", lambda *_: (BY_HAND, []))
    said, file = [], tmp_path / "costs.json"
    for model in (target, target, other):
        pair = Pair("random", target, model, None)
        measure_costs(pair, TEXTS, max_rows=4, iterations=1, records=file, progress=said.append)
    again = "Measuring the costs again: costs.json is of another pair, machine or setup."
    assert said == ["Costs from costs.json", again]


# ------------------------------------------------------------------------------------------------------------- counts
METHODS = ["ar", "chain:length=3", "fixed-tree:depth=3,branching=2,tau=none", "chain:length=2,commit=rebuild"]


def test_counts_are_those_of_the_iterations():
    found = count(TOYS, METHODS, TEXTS, 30)
    drafters = [
        NoDraft(),
        Chain(TOYS.draft, 3),
        FixedTree(TOYS.draft, depth=3, branching=2, tau=None),
        Chain(TOYS.draft, 2),
    ]
    for label, drafter in zip(METHODS, drafters, strict=True):
        texts = [generate(TOYS.target, one.ids, drafter, max_new_tokens=30) for one in TEXTS]
        iterations = [each for one in texts for each in one.iterations]
        counts = found[label]
        assert (counts.tokens, counts.iterations, counts.prompt_tokens) == (60, len(iterations), 8)
        again = [len(one.verdict.path) for one in iterations] if "rebuild" in label else []
        assert sorted(counts.nodes) == sorted([*(len(one.tree) - 1 for one in iterations), *again])
        assert counts.draft_forwards == sum(one.tree.depth for one in iterations)
        inner = [sum(len(one.tree.children(node)) > 0 for node in range(len(one.tree))) for one in iterations]
        assert counts.draft_nodes == sum(inner)
        assert counts.method == label.partition(":")[0]


@pytest.fixture(scope="module")
def results():
    target = random_model("gpt_neox")
    pair = Pair("random", target, noisy_copy(target), None)
    prompts = [BenchPrompt.from_ids(name, prompt(5, seed)[0].tolist()) for seed, name in enumerate("abc")]

    def hidden(prompt_ids, *, max_new_tokens, eos_token_ids, on_tokens, sampling, seed):
        on_tokens([1] * max_new_tokens)
        return Completed([1] * max_new_tokens, max_new_tokens, None, "length", 9)

    other = custom("own loop", lambda pair, instrument: hidden, traced=False)
    return pair, prompts, run_benchmark(pair, [*METHODS, other], prompts, max_new_tokens=24)


def test_counts_of_records_are_the_same(results):
    pair, prompts, found = results
    records = found.records
    for label, counts in count(pair, METHODS, prompts, 24).items():
        runs = [run for run in records.runs.values() if run.method == label]
        recorded = counts_of(runs, records.header)
        assert sorted(recorded.nodes) == sorted(counts.nodes)
        assert replace(recorded, nodes=()) == replace(counts, nodes=())
        assert counts_of(runs).prompt_tokens == 0
    with pytest.raises(ValueError, match="shows no trees"):
        counts_of([run for run in records.runs.values() if run.method == "own loop"])


def test_predictions_stand_next_to_measurements(results):
    _, _, found = results
    rows = {row["method"]: row for row in prediction_rows(found, BY_HAND)}
    assert list(rows) == METHODS
    assert rows["ar"]["predicted"] == pytest.approx(1)
    assert (rows["ar"]["measured"], rows["ar"]["tokens_per_iteration"]) == (1, 1)
    for row in rows.values():
        assert row["low"] <= row["measured"] <= row["high"]
    runs = [run for run in found.records.runs.values() if run.method == "chain:length=3"]
    assert rows["chain:length=3"]["predicted"] == BY_HAND.speed(counts_of(runs, found.records.header))


def test_methods_with_a_loop_of_their_own_cannot_be_counted():
    with pytest.raises(ValueError, match="'hf-generate' does not run in this library's loop"):
        count(TOYS, "ar,hf-generate", TEXTS, 8)


# ----------------------------------------------------------------------------------------------------------- forecasts
def test_a_forecast_by_hand():
    counts = Counts(tokens=10, iterations=2, nodes=(3, 1), draft_forwards=4, draft_nodes=6)
    # 4 and 2 nodes: 3 + 2; two first levels of 1 node and two of (6 - 2) / 2 = 2 nodes: 2 x 0.5 + 2 x 0.6; 2 x 0.1
    assert BY_HAND.steps(counts) == pytest.approx(5 + 1 + 1.2 + 0.2)
    assert BY_HAND.speed(counts) == pytest.approx(10 / 7.4)
    assert BY_HAND.steps(replace(counts, method="chain")) == pytest.approx(1.5 * 7.4)
    reading = replace(counts, prompt_tokens=20)
    assert BY_HAND.steps(reading) == pytest.approx(7.4 + 20 * 0.25)
    assert BY_HAND.speed(reading) == pytest.approx((10 + 20 * 0.2) / (7.4 + 5))


def test_plain_decoding_has_speed_1():
    assert BY_HAND.speed(Counts(7, 7, (0,) * 7, prompt_tokens=30)) == pytest.approx(1)


def test_costs_are_linear_between_points_and_go_on_beyond_them():
    assert read((1.0, 2.0, 3.0), np.array([1, 2, 3, 4, 6])).tolist() == pytest.approx([1, 2, 2.5, 3, 4])


def test_counts_add_up():
    total = Counts.total([Counts(3, 1, (2,), 2, 2, 5, "chain"), Counts(1, 1, (0,), 0, 0, 6, "chain")])
    assert total == Counts(4, 2, (2, 0), 2, 2, 11, "chain")


# ---------------------------------------------------------------------------------------------------------- acceptance
def decided(paths, tokens, accepted, bonus):
    """An iteration whose tree merges `paths` and whose verdict is `accepted` and `bonus`."""
    return Iteration(TokenTree.from_paths(9, paths), Verdict(tuple(accepted), bonus))


def test_rates_of_iterations_by_hand(monkeypatch):
    monkeypatch.setattr("dynatree_suite.costs.ranks.FEW", 1)
    paths = [(1, 4), (1, 5), (2,)]  # nodes: 1 -> token 1, 2 -> 4, 3 -> 5, 4 -> token 2
    iterations = [
        decided(paths, 4, [1, 3], 7),  # first child right, then the second
        decided(paths, 4, [4], 7),  # second child right; it was not expanded
        decided(paths, 4, [], 3),  # none right
        decided([(1,)], 1, [1], 7),  # one child, right
        decided([], 0, [], 7),  # nothing drafted
    ]
    acceptance = RankAcceptance.from_iterations(iterations)
    assert acceptance.seen == (4, 1)
    assert acceptance.rates[0] == pytest.approx((2 / 4, 1 / 3))
    assert acceptance.rates[1] == pytest.approx((0, 1))
    assert acceptance.expected_tokens((2, 2)) == pytest.approx(1 + 5 / 6 + 5 / 6 * 1)
    assert acceptance.expected_tokens((1, 1, 1)) == pytest.approx(1 + 0.5)
    assert acceptance.expected_tokens(()) == 1


def test_levels_with_few_nodes_are_taken_together():
    right, wrong = decided([(1, 2, 3)], 3, [1, 2, 3], 7), decided([(1, 2, 3)], 3, [1], 7)
    acceptance = RankAcceptance.from_iterations([right] * FEW + [wrong] * FEW)
    assert acceptance.seen == (2 * FEW, 2 * FEW, FEW)
    acceptance = RankAcceptance.from_iterations(
        [right] * (FEW // 2) + [wrong] * FEW
    )  # the third level has half as many
    assert acceptance.seen == (FEW * 3 // 2, FEW * 2)
    assert acceptance.rates[1] == pytest.approx((0.5,))
    assert RankAcceptance.from_iterations([right]).seen == (3,)
    with pytest.raises(ValueError, match="hold no drafted node"):
        RankAcceptance.from_iterations([decided([], 0, [], 7)])


@pytest.fixture(scope="module")
def sampled():
    """Rates and tokens per iteration of drafters on one long sampled text each; greedy toy texts soon repeat."""

    def run(drafter, tokens, seed):
        return generate(
            TOYS.target, [1, 2], drafter, max_new_tokens=tokens, sampling=Sampling(1.0), seed=seed
        ).iterations

    return run, RankAcceptance.from_iterations(run(RanksProbe(TOYS.draft, 5, 3), 4000, 0))


@pytest.mark.parametrize("length", [1, 2, 4])
def test_a_chain_commits_what_the_rates_say(sampled, length):
    run, acceptance = sampled
    iterations = run(Chain(TOYS.draft, length), 3000, 1)
    assert 3000 / len(iterations) == pytest.approx(acceptance.expected_tokens((1,) * length), rel=0.04)


def test_a_tree_commits_about_what_the_rates_say(sampled):
    run, acceptance = sampled
    iterations = run(FixedTree(TOYS.draft, depth=2, branching=3, tau=None), 3000, 1)
    assert 3000 / len(iterations) == pytest.approx(acceptance.expected_tokens((3, 3)), rel=0.06)


def test_the_best_chain_and_shape_follow_from_curve_and_rates():
    acceptance = RankAcceptance(((0.8, 0.1, 0.05),), (100,))
    free_rows = MeasuredCosts(1.0, (1.0, 1.0), (0.2, 0.2))
    speeds = [sum(0.8**k for k in range(length + 1)) / (1 + 0.2 * length) for length in range(1, 17)]
    assert best_chain(free_rows, acceptance) == (int(np.argmax(speeds)) + 1, pytest.approx(max(speeds)))
    assert best_chain(MeasuredCosts(1.0, (1.0, 1.0), (5.0, 5.0)), acceptance)[0] == 1
    assert shape_speed(free_rows, acceptance, (3, 3)) > shape_speed(free_rows, acceptance, (3, 1))
    assert shape_speed(free_rows, acceptance, (3, 1)) > shape_speed(free_rows, acceptance, (1, 1))
    dear_rows = MeasuredCosts(1.0, (1.0, 1.5, 2.5), (0.2, 0.2))
    for shape in ((3, 3), (3, 1)):
        assert shape_speed(dear_rows, acceptance, (1, 1)) > shape_speed(dear_rows, acceptance, shape)
    # 1 + 0.9 + 0.9 x 0.8 tokens; levels of 1 and 2 nodes, 5 nodes to verify
    assert shape_speed(BY_HAND, acceptance, (2, 1)) == pytest.approx((1 + 0.9 + 0.72) / (3.5 + 0.5 + 0.6 + 0.1))


def test_a_ranks_probe_expands_first_choices_only():
    tree = RanksProbe(TOYS.draft, 3, 2).propose(RanksProbe(TOYS.draft).start([1, 2], None), 9).tree
    assert tree.parents.tolist() == [-1, 0, 0, 1, 1, 3, 3]
    assert isinstance(RanksProbe(TOYS.draft), ModelDrafter)
