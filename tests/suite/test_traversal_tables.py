"""Gains from records, the formulas of a chain, and what a gain depends on."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from models import feature_draft, noisy_copy, random_model

from dynatree_lib import SampledTree, Sampling, ToyModel
from dynatree_lib.models.pairs import PAIRS, Pair
from dynatree_lib.verifiers import Block, TargetWalk, TokenLevel, Traversal
from dynatree_suite.bench.methods import variant
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.protocol import Results, run_benchmark
from dynatree_suite.bench.records import Header, Records, Run
from dynatree_suite.bench.statistics import Estimate
from dynatree_suite.papers.published import published
from dynatree_suite.papers.traversal import tables
from dynatree_suite.papers.traversal.causes import AcceptedLevels, chain_ratios, noisy_draft
from dynatree_suite.proofs import exact
from dynatree_suite.proofs.judge import Judged, judge

PAPER = published("traversal")
ONE = Sampling(1.0)
TARGET = random_model("gpt_neox")
PAIR = Pair("random", TARGET, noisy_copy(TARGET), None)
PROMPTS = [BenchPrompt.from_ids(f"p{number}", [3 + number, 1, 4]) for number in range(3)]
TWO = {"token-level": TokenLevel(), "traversal": Traversal()}


class TestPublished:
    def test_each_pair_of_the_paper_stands_beside_its_own_table(self):
        assert set(tables.PAIRS) <= set(PAIRS)
        assert [tables.tables_of(pair) for pair in (*tables.PAIRS, "tiny")] == [(2,), (3,), (2, 3)]

    def test_speeds_by_tree_and_rule(self):
        two, three = (tables.published_speeds(PAPER, number) for number in (2, 3))
        assert (two[None], two["chain", "traversal"], three["eagle_sparse_tree", "token-level"]) == (34.5, 52.5, 69.1)
        assert len(two) == len(three) == 7

    @pytest.mark.parametrize(("number", "count"), [(2, 21), (3, 21), (4, 15)])
    def test_every_acceptance_length_has_its_gain(self, number, count):
        cells = tables.published_cells(PAPER, number)
        assert len(cells) == count
        for row in cells:
            low, high = row["gain_interval"]
            assert row["gain"] == row["gain_percent"] == pytest.approx((low + high) / 2)
            assert row["tree"] in tables.TREES

    def test_the_interval_is_of_separate_runs(self):
        row = next(row for row in tables.published_cells(PAPER, 2) if (row["task"], row["tree"]) == ("qa", "chain"))
        error = 3.68 / 3.51 * math.sqrt((0.02 / 3.51) ** 2 + (0.03 / 3.68) ** 2)
        assert row["gain_interval"][1] - row["gain"] == pytest.approx(100 * 1.96 * error)

    def test_three_gains_lie_within_one_combined_error(self):
        """What the stored difference traversal-01 says of the printed tables."""
        cells = [row for number in (2, 3) for row in tables.published_cells(PAPER, number)]
        close = [row for row in cells if 1.96 * row["gain_percent"] < row["gain_interval"][1] - row["gain"]]
        assert {(row["task"], row["tree"]) for row in close} == {
            ("math_reasoning", "binary_tree"),
            ("translation", "chain"),
            ("translation", "eagle_sparse_tree"),
        }

    def test_kinds_of_prompts_go_by_the_papers_names(self):
        kinds = ("chat", "math", "rag", "multi_turn", "code")
        assert [tables.task_of(SimpleNamespace(task=kind)) for kind in kinds] == [
            "multi_turn", "math_reasoning", "rag", "multi_turn", "code",
        ]  # fmt: skip


def run(method, prompt, repeat, tokens, iterations, seconds=1.0):
    counts = [tokens - iterations + 1, *[1] * (iterations - 1)]
    emissions = [[seconds * (step + 1) / iterations, count] for step, count in enumerate(counts)]
    return Run(method, prompt, repeat, seconds, [0] * tokens, emissions, iterations, "length")


def results(*runs):
    records = Records(Header({}, {"methods": []}))
    for one in runs:
        records.add(one)
    return Results(records)


METHODS = {"t": ("chain", "token_level"), "v": ("chain", "traversal")}


class TestSeeds:
    PROMPTS = (SimpleNamespace(id="a", task="chat"), SimpleNamespace(id="b", task="chat"))
    OTHER = SimpleNamespace(id="c", task="qa")

    def test_tokens_over_iterations_seed_by_seed(self):
        done = results(
            *(run(method, "a", seed, 10, 5) for method in "tv" for seed in (0, 1)),
            run("t", "b", 0, 10, 5), run("t", "b", 1, 14, 5), run("v", "b", 0, 20, 5), run("v", "b", 1, 20, 5),
        )  # fmt: skip
        row, mean = tables.seed_rows(done, self.PROMPTS, METHODS)
        assert (row["task"], row["tree"], row["prompts"]) == ("multi_turn", "chain", 2)
        assert row["token_level"] == pytest.approx((2.0 + 2.4) / 2)
        assert row["token_level_se"] == pytest.approx(np.std([2.0, 2.4], ddof=1) / 2**0.5)
        assert (row["traversal"], row["traversal_se"]) == (3.0, 0.0)
        assert row["gain"] == pytest.approx(100 * (3 / 2.2 - 1))
        assert mean["task"] == "avg_acceptance"
        assert mean["gain"] == row["gain"]

    def test_the_average_is_over_tasks_not_prompts(self):
        done = results(
            *(run(method, prompt, 0, 10, 5) for method in "tv" for prompt in "ab"),
            run("t", "c", 0, 40, 10), run("v", "c", 0, 60, 10),
        )  # fmt: skip
        mean = tables.seed_rows(done, [*self.PROMPTS, self.OTHER], METHODS)[-1]
        assert (mean["token_level"], mean["traversal"], mean["prompts"]) == (3.0, 4.0, 3)

    def test_an_iterations_time_leaves_the_first_one_out(self):
        slow = [run("v", "a", 0, 9, 3, seconds=6.0)]  # 4 s for the two iterations after the first
        quick = [run("t", "a", 0, 9, 5, seconds=5.0), run("t", "b", 0, 9, 5)]  # 1 s each
        ratio = tables.iteration_time(results(*slow, *quick), "v", over="t")
        assert (ratio.value, ratio.interval) == (2.0, (2.0, 2.0))
        assert tables.iteration_time(results(run("v", "a", 0, 3, 1), *quick), "v", over="t") is None

    def test_a_line_has_the_measured_cell_and_the_printed_ones(self):
        done = results(*(run(method, "a", seed, 10, 5) for method in "tv" for seed in (0, 1)))
        printed = {number: tables.published_cells(PAPER, number) for number in (2, 3)}
        line, _ = tables.acceptance_lines(tables.seed_rows(done, self.PROMPTS[:1], METHODS), printed)
        assert (line["tree"], line["task"], line["prompts"]) == ("chain of 5", "multi_turn", 1)
        assert (line["token-level, measured"], line["gain %, measured"]) == ("2.00 ± 0.00", "+0.0")
        assert (line["traversal, Table 2"], line["gain %, Table 3"]) == ("4.09 ± 0.03", "+5.5")
        assert "gain %, Table 3" not in tables.acceptance_lines([], {2: printed[2]})
        (own, _) = tables.acceptance_lines(tables.seed_rows(done, self.PROMPTS[:1], METHODS), {2: printed[2]})
        assert not [name for name in own if "Table 3" in name]
        other = {"task": "code", "tree": "chain", "prompts": 1, "token_level": 2.0, "token_level_se": 0.0}
        other |= {"traversal": 2.0, "traversal_se": 0.0, "gain": 0.0}
        assert tables.acceptance_lines([other], printed)[0]["gain %, Table 2"] is None

    def test_speeds_stand_beside_the_printed_ones_of_the_pair(self):
        labels = {f"chain, {rule}": ("chain", rule) for rule in tables.RULES}
        specs = [variant(f"sampled-tree:branching=1,verifier={rule}", label) for label, (_, rule) in labels.items()]
        done = run_benchmark(PAIR, ["hf-generate", "ar", *specs], PROMPTS, max_new_tokens=8, sampling=ONE, warmup=0)
        found = tables.speed_lines(done, labels, PAPER, "llama-2-7b-base/68m")
        lines = {line["method"]: line for line in found}
        assert not [name for line in found for name in line if "Table 2" in name]
        printed = [lines[label].get("tokens/s, Table 3") for label in ("ar", "hf-generate", "chain, token-level")]
        assert printed == [37.3, None, 58.0]
        drawn = lines["chain, traversal"]
        assert drawn["x token-level, Table 3"] == pytest.approx(60.8 / 58.0)
        assert drawn["x ar, Table 3"] == pytest.approx(60.8 / 37.3)
        assert drawn["tokens/s"] == done.summary("chain, traversal")["tokens_per_second"]
        assert {"x ar", "x token-level", "tokens per iteration", "disturbed runs"} < set(drawn)


def paired(rows):
    """Judged trees: (prompt, driver, emitted, expected by token-level, by traversal)."""
    names = ("prompt", "driver", "emitted")
    heads = (dict(zip(names, row, strict=False)) for row in rows)
    return Judged(
        {},
        {},
        [{**head, "tokens": dict(zip(TWO, row[3:], strict=True))} for head, row in zip(heads, rows, strict=True)],
    )


class TestGains:
    ROWS = (
        ("a", "token-level", 2, 2.0, 2.2), ("a", "traversal", 4, 2.0, 2.4), ("a", "traversal", 2, 2.0, 2.0),
        ("b", "token-level", 2, 3.0, 3.0), ("b", "token-level", 4, 1.0, 1.0), ("b", "traversal", 6, 2.0, 3.0),
    )  # fmt: skip

    def test_gain_in_per_cent_with_counts(self):
        row = tables.gain_row(paired(self.ROWS))
        assert row["gain"] == pytest.approx(100 * (13.6 / 12 - 1))
        assert (row["trees"], row["prompts"]) == (6, 2)
        assert row["traversal"] / row["token_level"] == pytest.approx(1 + row["gain"] / 100)
        assert row["gain_interval"][0] <= row["gain"] <= row["gain_interval"][1]

    def test_separate_runs_look_at_what_each_driver_emitted(self):
        gain = tables.separate_gain(paired(self.ROWS))
        assert gain.value == pytest.approx(100 * ((12 / 3) / (8 / 3) - 1))
        assert gain.low <= gain.value <= gain.high

    def test_trees_needed_by_both_designs(self):
        rng = np.random.default_rng(0)
        expected = rng.uniform(1, 5, 400)
        rows = [
            (f"p{n}", driver, int(rng.integers(1, 6)), float(one), float(1.1 * one + rng.normal(0, 0.1)))
            for n, one in enumerate(expected)
            for driver in TWO
        ]
        need = tables.trees_needed(paired(rows), 2.0)
        noise = 0.1 / (expected.mean() * 0.02 / 1.96)
        assert need["paired"] == pytest.approx(noise**2, rel=0.2)
        assert need["separate"] > 50 * need["paired"]
        assert tables.trees_needed(paired(rows), 1.0)["paired"] == pytest.approx(4 * need["paired"], rel=0.05)

    def test_a_change_of_gain_is_in_points_of_the_same_prompts(self):
        small = paired([(prompt, "traversal", 1, 2.0, 2.2) for prompt in "abcd"])
        large = paired([(prompt, "traversal", 1, 3.0, 3.9) for prompt in "abcd"])
        points = tables.gain_change(large, small)
        assert (points.value, points.low, points.high) == pytest.approx((20, 20, 20))
        elsewhere = paired([("z", "traversal", 1, 1.0, 9.0)])
        joined = Judged({}, {}, [*large.rows, *elsewhere.rows])
        assert tables.gain_change(joined, small).value == pytest.approx(20)  # a prompt of one side alone does not count

    def test_rows_by_tree_and_task_beside_the_printed_gains(self):
        rows = [
            {**row, "tree": tree, "task": "chat" if row["prompt"] == "a" else "code"}
            for tree in tables.TREES
            for row in paired(self.ROWS).rows
        ]
        found = tables.paired_rows(Judged({}, {}, rows), {3: tables.published_cells(PAPER, 3)})
        assert [row["task"] for row in found] == ["all prompts", "multi_turn", "code"] * 3
        whole, talk, code = found[:3]
        assert (whole["trees"], talk["trees"], code["trees"]) == (6, 3, 3)
        assert (whole["table_3"], talk["table_3"], code["table_3"]) == (5.7, 5.5, None)
        assert "table_2" not in whole
        assert whole["separate"] == tables.separate_gain(paired(self.ROWS)).value
        assert "separate" not in talk

    def test_a_claim_about_several_trees_fails_with_one_and_is_open_with_one(self):
        up, down, around = Estimate(2, 1, 3), Estimate(-2, -3, -1), Estimate(1, -1, 3)
        assert tables.in_all([up, up]) is True
        assert tables.in_all([up, around]) is None
        assert tables.in_all([up, around, down]) is False
        assert tables.in_a_line({"chain": up, "tree": down}) == "chain +2.0 [1.0, 3.0], tree -2.0 [-3.0, -1.0]"

    @pytest.mark.parametrize(("slots", "depth"), [((), 0), ((0, 0, 0), 1), ((0, 1, 2), 3), ((0, 0, 1, 3), 3)])
    def test_depth_of_a_shape(self, slots, depth):
        assert len(tables.widths(slots)) == depth


class TestFormulas:
    def test_two_tokens_by_hand(self):
        ratios = np.array([[0.5, 2.0], [2.0, 0.5], [0.0, 9.0]])
        assert tables.token_level_tokens(ratios).tolist() == [2.0, 2.5, 1.0]
        assert tables.block_tokens(ratios).tolist() == [2.5, 2.5, 1.0]

    @pytest.mark.parametrize("sampling", [ONE, Sampling(0.7, top_p=0.9)], ids=str)
    @pytest.mark.parametrize("seed", range(4))
    def test_they_are_the_exact_iterations(self, sampling, seed):
        """In the mean over every chain that may be drafted, the formulas give what the production rules emit."""
        target = ToyModel.random(3, seed=seed)
        draft = target.mixed(ToyModel.random(3, seed=seed + 10), 0.6)
        drafter, sums = SampledTree(draft, depth=3, branching=1), np.zeros(2)
        for proposal, drawn in exact.proposals(drafter, [0, 1], sampling):
            scores, tokens = exact.target_scores(target, [0, 1], proposal.tree, sampling), proposal.tree.tokens.tolist()
            shares = [float(proposal.distributions.distribution(node - 1)[tokens[node]]) for node in range(1, 4)]
            ratios = np.array([[scores.prob(node, tokens[node + 1]) / shares[node] for node in range(3)]])
            sums += drawn * np.array([tables.token_level_tokens(ratios)[0], tables.block_tokens(ratios)[0]])
        for rule, mean in ((TokenLevel(), sums[0]), (Block(), sums[1]), (Traversal(), sums[1])):
            assert mean == pytest.approx(exact.iteration(target, drafter, rule, [0, 1], sampling).tokens, abs=1e-9)

    def test_a_row_of_chains(self):
        ratios = [[0.05, 0.5], [1.0, 2.0], [0.1, 1.1], [0.9, 0.899]]
        chains = [{"prompt": f"p{n % 2}", "ratios": one, "entropy": n} for n, one in enumerate(ratios)]
        row = tables.chain_row(chains)
        assert [row[kind] for kind in tables.KINDS] == [1 / 8, 3 / 8, 2 / 8, 2 / 8]
        assert row["entropy"] == 1.5
        assert row["gain"] == pytest.approx(100 * (row["block"] / row["token_level"] - 1))
        assert row["gain_interval"][0] <= row["gain"] <= row["gain_interval"][1]

    def test_shuffling_what_is_all_the_same_changes_nothing(self):
        same = [{"prompt": "p", "ratios": [0.5, 0.5, 0.5], "entropy": 1.0}] * 3
        row = tables.chain_row(same)
        assert (row["gain"], row["shuffled"]) == (0.0, 0.0)
        mixed = [{"prompt": f"p{n}", "ratios": [0.5, 2.0], "entropy": 1.0} for n in range(50)]
        row = tables.chain_row(mixed)
        assert row["gain"] == pytest.approx(25.0)
        assert 0 < row["shuffled"] < row["gain"]  # every order of the two, where only one is repaired


class TestCauses:
    def test_ratios_are_those_of_the_judged_chains(self):
        chain = {"chain": SampledTree(PAIR.draft, depth=3, branching=1)}
        judged = judge(PAIR, chain, TWO, PROMPTS, max_new_tokens=12, margin=4, drivers=["token-level"])
        chains = chain_ratios(PAIR, PROMPTS, length=3, max_new_tokens=12)
        for prompt in PROMPTS:
            mine = [row["tokens"]["token-level"] for row in judged.where(prompt=prompt.id).rows]
            ratios = np.array([row["ratios"] for row in chains if row["prompt"] == prompt.id])
            assert tables.token_level_tokens(ratios).tolist() == pytest.approx(mine, abs=1e-5)
        assert all(0 < row["entropy"] < math.log(TARGET.vocab_size) for row in chains)
        cool = chain_ratios(PAIR, PROMPTS, length=3, max_new_tokens=16, sampling=Sampling(0.3))
        assert np.mean([row["entropy"] for row in cool]) < np.mean([row["entropy"] for row in chains])

    def test_one_token_of_each_text_is_enough_for_a_chain(self):
        chains = chain_ratios(PAIR, PROMPTS, length=8, max_new_tokens=1)
        assert [row["prompt"] for row in chains] == [prompt.id for prompt in PROMPTS]

    def test_a_draft_on_features_drafts_no_chain_at_first(self):
        target = random_model("llama")
        pair = Pair("features", target, feature_draft(target), None)
        assert chain_ratios(pair, PROMPTS, length=2, max_new_tokens=1) == []
        chains = chain_ratios(pair, PROMPTS, length=2, max_new_tokens=8)
        assert {row["prompt"] for row in chains} == {prompt.id for prompt in PROMPTS}

    def test_a_noisy_draft_is_the_target_with_noise(self):
        before = {name: weight.clone() for name, weight in TARGET.model.state_dict().items()}
        none, some, again, more = (noisy_draft(TARGET, noise, 3) for noise in (0.0, 0.1, 0.1, 0.6))
        assert all(torch.equal(weight, before[name]) for name, weight in TARGET.model.state_dict().items())
        assert all(torch.equal(weight, before[name]) for name, weight in none.model.state_dict().items())
        other = dict(again.model.named_parameters())
        assert all(torch.equal(weight, other[name]) for name, weight in some.model.named_parameters())
        lengths = []
        for draft in (none, some, more):
            chains = chain_ratios(Pair("graded", TARGET, draft, None), PROMPTS, max_new_tokens=24)
            lengths.append(tables.chain_row(chains)["token_level"])
        assert lengths[0] == pytest.approx(6)
        assert lengths[0] > lengths[1] > lengths[2]

    def test_accepted_levels_add_up_to_the_expected_tokens(self):
        watched = {name: AcceptedLevels(rule) for name, rule in TWO.items()}
        drafter = {"tree": SampledTree(PAIR.draft, depth=2)}
        judged = judge(PAIR, drafter, {**watched, "target-walk": TargetWalk()}, PROMPTS, max_new_tokens=10)
        for name, levels in watched.items():
            assert levels.reached(0) == 1
            assert levels.reached(1) >= levels.reached(2) > levels.reached(3) == 0
            assert 1 + levels.reached(1) + levels.reached(2) == pytest.approx(judged.mean(name), abs=1e-5)
            assert sum(levels.levels.values()) == pytest.approx(len(judged.rows), abs=1e-3)  # no driver's coin counts

    def test_accepted_levels_refuse_what_the_rule_refuses(self):
        with pytest.raises(ValueError, match="rule for chains"):
            judge(PAIR, {"tree": SampledTree(PAIR.draft)}, {"block": AcceptedLevels(Block())}, PROMPTS)
