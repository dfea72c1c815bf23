"""Drafters with rules, compared: exact values against enumeration, ratios and crossings against numbers by hand."""

import math
from itertools import product

import numpy as np
import pytest
from models import noisy_copy, prompt, random_model

import dynatree_lib as dt
from dynatree_lib.experiments.traversal import which
from dynatree_lib.experiments.traversal.which import Candidate, Expectation
from dynatree_lib.measure.exact import iteration
from dynatree_lib.measure.judge import judge
from dynatree_lib.measure.prompts import BenchPrompt
from dynatree_lib.measure.protocol import Results
from dynatree_lib.measure.records import Header, Records, Run
from dynatree_lib.models.pairs import make_pair
from dynatree_lib.verifiers import TargetWalk, TokenLevel, Traversal

WALK = Candidate("top", "target-walk", drawn=False)
DRAWN = Candidate("distinct", "traversal")
LEVEL = Candidate("distinct", "token-level")


@pytest.fixture(scope="module")
def pair():
    target = random_model("gpt_neox")
    return make_pair(target, noisy_copy(target), "random")


@pytest.fixture(scope="module")
def prompts():
    return [BenchPrompt.from_ids(f"p{seed}", prompt(7, seed)[0].tolist()) for seed in (1, 2)]


def rows(temperature=1.0, budget=4, **expected):
    """Rows of two prompts, `a` and `b`, with a judged tree each; label_rule=(tokens on a, tokens on b)."""
    out = []
    for name, values in expected.items():
        tree, _, rule = name.partition("_")
        for one, value in zip("ab", values, strict=True):
            place = {"temperature": temperature, "budget": budget, "prompt": one}
            out.append({**place, "tree": tree, "tokens": {rule.replace("_", "-"): value}})
    return out


class TestExpectation:
    @pytest.mark.parametrize("branchings", [(2,), (3, 1), (2, 2)])
    @pytest.mark.parametrize("temperature", [0.3, 1.0])
    def test_is_what_enumerating_the_production_code_gives(self, branchings, temperature):
        target, draft = which.noisy_pair(seed=3, vocabulary=3)
        sampling = dt.Sampling(temperature)
        found = Expectation(target, draft, sampling, branchings)
        tree = {draw: dt.SampledTree(draft, len(branchings), branchings, draw) for draw in ("top", "distinct")}
        for drafter, rule, value in (
            (tree["top"], TargetWalk(), found.top()),
            (tree["distinct"], Traversal(), found.distinct()),
            (tree["distinct"], TokenLevel(), found.distinct(traversal=False)),
        ):
            assert value == pytest.approx(iteration(target, drafter, rule, (0,), sampling).tokens, abs=1e-12)

    def test_filters_leave_fewer_tokens_than_children(self):
        target, draft = which.noisy_pair(seed=1, vocabulary=3)
        sampling = dt.Sampling(1.0, top_k=1)
        found = Expectation(target, draft, sampling, (3,))
        tree = dt.SampledTree(draft, 1, 3)
        for rule, value in ((Traversal(), found.distinct()), (TokenLevel(), found.distinct(traversal=False))):
            assert value == pytest.approx(iteration(target, tree, rule, (0,), sampling).tokens, abs=1e-12)

    def test_the_draft_is_the_target_without_noise(self):
        target, draft = which.noisy_pair(seed=5, vocabulary=6, noise=0.0)
        assert target.distribution((0, 2)) == draft.distribution((0, 2))
        assert Expectation(target, draft, dt.Sampling(1.0), (1, 1)).distinct() == pytest.approx(3)

    def test_a_context_always_has_the_same_law(self):
        target, draft = which.noisy_pair(seed=5)
        assert draft.distribution((0, 2)) == draft.distribution((0, 2)) != target.distribution((0, 2))
        assert sum(draft.distribution((0, 2))) == pytest.approx(1)


class TestDecoding:
    def test_greedy_rows_are_the_rounds_of_generate(self, pair, prompts):
        drafters = {"chain": dt.Chain(pair.draft, 3), "sampled": dt.SampledTree(pair.draft, 2, 2)}
        names = {"chain": ["target-walk"], "sampled": ["target-walk", "traversal"]}
        found = which.greedy_rows(pair, drafters, names.__getitem__, prompts, max_new_tokens=12, margin=4)
        for label, drafter in drafters.items():
            for one in prompts:
                out = dt.generate(pair.target, one.ids, drafter, max_new_tokens=16, eos_token_ids=())
                mine = [row for row in found if (row["tree"], row["prompt"]) == (label, one.id)]
                kept = [each.committed for each in out.iterations][: len(mine)]
                assert [row["kept"] for row in mine] == kept
                assert mine[-1]["place"] < 12 <= mine[-1]["place"] + mine[-1]["kept"]
                assert all(row["tokens"] == dict.fromkeys(names[label], row["kept"]) for row in mine)

    def test_rates_are_of_the_places_among_the_siblings(self, pair, prompts):
        wide = dt.SampledTree(pair.draft, 3, (3, 1))
        rates = which.measured_rates(pair, wide, prompts, dt.Sampling(1.0), 60)
        assert len(rates.rates[0]) == 3
        assert rates.rates[0][0] > rates.rates[0][2]
        assert len(rates.slots(5)) == 5
        assert rates == which.measured_rates(pair, wide, prompts, dt.Sampling(1.0), 60)

    def test_mean_nodes_are_those_drafted(self, pair, prompts):
        tree, sampling = dt.SampledTree(pair.draft, 2, 2), dt.Sampling(1.0)
        found = which.mean_nodes(pair, tree, prompts[:1], sampling, 12)
        out = dt.generate(pair.target, prompts[0].ids, tree, sampling=sampling, max_new_tokens=12, eos_token_ids=())
        assert found == pytest.approx(np.mean([len(one.tree) - 1 for one in out.iterations]))

    def test_all_drafters_meet_the_same_text(self, pair, prompts):
        sampling = dt.Sampling(0.7)
        texts = {
            tuple(
                dt.generate(
                    pair.target, prompts[0].ids, drafter, verifier=TargetWalk(), sampling=sampling, seed=3,
                    max_new_tokens=40, eos_token_ids=(),
                ).tokens
            )
            for drafter in (dt.NoDraft(), dt.Chain(pair.draft, 3), dt.SampledTree(pair.draft, 2, 3))
        }  # fmt: skip
        assert len(texts) == 1

    def test_one_node_is_what_judged_trees_of_one_node_keep(self, pair, prompts):
        sampling = dt.Sampling(0.8)
        found = which.one_node_rows(pair, prompts, sampling, max_new_tokens=25)
        assert len(found) == 2 * 2 * 25
        walked = judge(
            pair, {"top": dt.Chain(pair.draft, 1)}, {"target-walk": TargetWalk()}, prompts,
            max_new_tokens=25, sampling=sampling, margin=4,
        ).rows  # fmt: skip
        mine = {(row["prompt"], row["place"]): row["tokens"] for row in found if row["tree"] == "top"}
        for row in walked:
            assert row["tokens"]["target-walk"] == pytest.approx(mine[row["prompt"], row["place"]]["target-walk"])
        rules = {"target-walk": TargetWalk(), "token-level": TokenLevel()}
        drawn = judge(
            pair, {"drawn": dt.SampledTree(pair.draft, 1, 1)}, rules, prompts[:1],
            max_new_tokens=1, sampling=sampling, seeds=range(400), drivers=["target-walk"], margin=2,
        ).mean("token-level")  # fmt: skip
        first = next(row for row in found if row["tree"] == "distinct" and row["prompt"] == "p1")
        assert drawn == pytest.approx(first["tokens"]["traversal"], abs=0.05)

    def test_candidates_of_judged_rows_compare(self, pair, prompts):
        drafters = {"top": dt.SampledTree(pair.draft, 2, 2, "top"), "distinct": dt.SampledTree(pair.draft, 2, 2)}
        rules = {"target-walk": TargetWalk(), "traversal": Traversal()}
        found = judge(pair, drafters, rules, prompts, max_new_tokens=20, drivers=["target-walk"])
        row = which.compare(found.rows, DRAWN, WALK)
        means = found.where(tree="distinct").mean("traversal"), found.where(tree="top").mean("target-walk")
        assert row["ratio"] == pytest.approx(means[0] / means[1])
        assert row["interval"][0] <= row["ratio"] <= row["interval"][1]
        assert (row["mine"], row["its"]) == ("distinct + traversal", "top + target-walk")


class TestCompare:
    def test_prompts_are_pooled_and_paired(self):
        found = rows(top_target_walk=(2.0, 1.0), distinct_traversal=(4.0, 2.0))
        found += rows(distinct_traversal=(2.0, 2.0))  # two trees per prompt against one
        row = which.compare(found, DRAWN, WALK)
        assert row["ratio"] == pytest.approx((10 / 4) / (3 / 2))
        assert row["interval"] == pytest.approx((1.5, 2.0))  # prompt a alone, and prompt b alone
        assert row["holds"] is True
        assert row["text"] == "1.67 [1.50, 2.00]"
        assert which.tokens(found, DRAWN) == {"tokens": 2.5, "interval": (2.0, 3.0), "trees": 4}

    def test_an_unknown_candidate_is_named(self):
        with pytest.raises(ValueError, match=r"no judged tree of 'distinct \+ token-level'"):
            which.tokens(rows(distinct_traversal=(1.0, 2.0)), LEVEL)

    def test_other_prompts_are_refused(self):
        found = rows(top_target_walk=(2.0, 1.0)) + rows(distinct_traversal=(2.0, 1.0))[:1]
        with pytest.raises(ValueError, match="judged on different prompts"):
            which.compare(found, DRAWN, WALK)


def sweep(*ratios, temperatures=(0.2, 0.4, 0.8)):
    """`distinct` over `top` on two prompts: (on a, on b) per temperature."""
    found = []
    for temperature, (a, b) in zip(temperatures, ratios, strict=True):
        found += rows(temperature, top_target_walk=(1.0, 1.0), distinct_traversal=(a, b))
    return found


class TestCrossover:
    def test_interpolates_the_logarithm(self):
        row = which.crossover(sweep((0.5, 0.5), (0.8, 0.8), (1.25, 1.25)), DRAWN, WALK)
        assert row["crossover"] == pytest.approx(0.6)
        assert row["interval"] == pytest.approx((0.6, 0.6))
        assert row["text"] == "0.60 [0.60, 0.60]"

    def test_the_last_crossing_counts_and_temperature_0_does_not(self):
        found = sweep((1.1, 1.1), (0.5, 0.5), (2.0, 2.0)) + rows(0.0, top_target_walk=(9, 9), distinct_traversal=(1, 1))
        assert which.crossover(found, DRAWN, WALK)["crossover"] == pytest.approx(0.6)

    @pytest.mark.parametrize(
        ("ratios", "text"), [(((2, 2),) * 3, "< 0.2 [< 0.2, < 0.2]"), (((0.5, 0.5),) * 3, "> 0.8 [> 0.8, > 0.8]")]
    )
    def test_without_a_crossing_in_the_range(self, ratios, text):
        row = which.crossover(sweep(*ratios), DRAWN, WALK)
        assert row["crossover"] is None
        assert row["place"] == (0.2 if text.startswith("<") else 0.8)
        assert row["text"] == text

    def test_an_end_of_the_interval_may_lie_outside(self):
        row = which.crossover(sweep((1.5, 0.2), (1.5, 0.3), (2, 0.8)), DRAWN, WALK)
        assert row["crossover"] is not None
        assert row["interval"] == (0.2, 0.8)
        assert row["text"].endswith("[< 0.2, > 0.8]")

    def test_one_temperature_is_enough_to_say_which_side(self):
        row = which.crossover(sweep((2, 2), temperatures=(0.5,)), DRAWN, WALK)
        assert row["crossover"] is None
        assert row["text"] == "< 0.5 [< 0.5, < 0.5]"


class TestMap:
    FOUND = (
        rows(0.2, top_target_walk=(3.0, 3.1), distinct_traversal=(2.0, 2.0), distinct_token_level=(1.9, 1.9))
        + rows(0.4, top_target_walk=(2.0, 3.0), distinct_traversal=(3.0, 2.0), distinct_token_level=(1.9, 1.9))
        + rows(0.8, top_target_walk=(2.0, 2.0), distinct_traversal=(3.0, 3.3), distinct_token_level=(3.5, 3.5))
        + rows(1.0, top_target_walk=(2.0, 2.0), distinct_traversal=(3.0, 3.3), distinct_token_level=(3.6, 3.5))
    )
    ALL = (WALK, DRAWN, LEVEL, Candidate("iid", "traversal"))

    def test_the_best_of_each_kind(self):
        found = which.best(self.FOUND, self.ALL)
        assert [row["best"] for row in found] == [WALK.name, WALK.name, LEVEL.name, LEVEL.name]
        assert [row["holds"] for row in found] == [False, None, True, True]
        assert [row["drawn"] for row in found] == [DRAWN.name, DRAWN.name, LEVEL.name, LEVEL.name]

    def test_another_drawn_candidate_must_be_ahead_by_an_interval(self):
        found = rows(distinct_traversal=(3.0, 3.0), distinct_token_level=(3.5, 2.9), top_target_walk=(2.0, 2.0))
        (row,) = which.best(found, self.ALL)
        assert row["drawn"] == DRAWN.name
        assert row["ratio"] == 1.5

    def test_and_by_more_than_a_hair(self):
        found = rows(distinct_traversal=(3.0, 3.0), distinct_token_level=(3.01, 3.01), top_target_walk=(2.0, 2.0))
        assert which.best(found, self.ALL)[0]["drawn"] == DRAWN.name

    def test_the_better_deterministic_tree_counts(self):
        other = Candidate("best-first", "target-walk", drawn=False)
        found = rows(distinct_traversal=(3.0, 3.0), best_target_walk=(2.5, 2.5), top_target_walk=(2.0, 3.6))
        found = [{**row, "tree": "best-first"} if row["tree"] == "best" else row for row in found]
        (row,) = which.best(found, [WALK, other, DRAWN])
        assert row["fixed"] == WALK.name
        assert row["best"] == DRAWN.name

    def test_ratios_over_one_candidate(self):
        found = which.over(self.FOUND, [DRAWN, LEVEL], WALK)
        assert len(found) == 8
        assert found[0]["ratio"] == pytest.approx(2 / 3.05)
        panels = which.by_panel(found, {4: "4 nodes"}, value="ratio")
        assert panels[0]["4 nodes_interval"] == found[0]["interval"]
        assert "4 nodes_interval" not in which.by_panel(found, {4: "4 nodes"}, value="ratio", interval=None)[0]

    def test_sizes_are_means(self):
        found = [{"tree": tree, "nodes": n, "levels": n // 2} for tree, n in (("top", 4), ("top", 8), ("iid", 99))]
        assert which.sizes(found, "top") == {"nodes": 6, "levels": 3}

    def test_the_fastest_of_each_kind(self):
        records = Records(Header({}, {"methods": [], "reference": "ar"}))
        entry = {"options": {}, "lossless": True, "draft": False}
        shape = {"weight_bytes": 0, "cache_bytes_per_row": 0}
        setup = {"target": shape, "draft": shape, "sampling": {"temperature": 1.0}}
        names = {"ar": 4.0, "slow": 3.0, "drawn": 1.0, "fixed": 2.0}
        records.header.setup.update(setup, methods=[{"label": name, "name": name, **entry} for name in names])
        for (name, seconds), one in product(names.items(), "ab"):
            ends = [[seconds / 2, 6], [seconds, 6]]
            records.add(Run(name, one, 0, seconds, [1] * 12, ends, 2, "length", None, None, None, {}, 1, None, None))
        row = which.fastest(Results(records), ["slow", "drawn"], ["fixed"])
        assert (row["drawn"], row["fixed"], row["fastest"]) == ("drawn", "fixed", "drawn")
        assert (row["speed"], row["ratio"], row["holds"]) == (4, 2, True)

    def test_what_was_kept_stands_under_its_driver(self):
        (row,) = which.kept([{"tree": "top", "driver": "target-walk", "kept": 3, "tokens": {"target-walk": 2.2}}])
        assert row["tokens"] == {"target-walk": 3.0}

    def test_temperature_0_has_no_best_drawn_tree(self):
        greedy = rows(0.0, top_target_walk=(3.0, 3.0), distinct_traversal=(3.0, 3.0))
        assert which.best(greedy, self.ALL) == []
        assert len(which.summary(greedy, self.ALL)) == 2

    def test_neighbours_with_one_answer_become_a_range(self):
        found = which.advice(which.best(self.FOUND, self.ALL))
        assert [row["temperatures"] for row in found] == ["0.2", "0.4", "0.8 to 1"]
        assert found[0]["take"] == "top + target-walk"
        assert found[1]["take"] == "distinct + traversal, or top + target-walk"
        assert found[2]["sampled / deterministic"] == "1.75 to 1.77"

    def test_the_default_rule_is_checked_where_a_drafter_is(self):
        found = which.rule_checks(
            self.FOUND, {"distinct": "traversal", "iid": "traversal"}, ["traversal", "token-level"]
        )
        assert [row["holds"] for row in found] == [True, True, False, False]
        assert [row["behind"] for row in found] == [False, False, True, True]
        hair = rows(distinct_traversal=(2.0, 3.0), distinct_token_level=(2.01, 3.01))
        (row,) = which.rule_checks(hair, {"distinct": "traversal"}, ["token-level"])
        assert (row["holds"], row["behind"]) == (False, False)
        assert {row["its"] for row in found} == {LEVEL.name}

    def test_tables_have_a_column_per_method(self):
        found = which.wide(which.summary(self.FOUND, self.ALL))
        assert [row["temperature"] for row in found] == [0.2, 0.4, 0.8, 1.0]
        assert found[0] == pytest.approx({"temperature": 0.2, WALK.name: 3.05, DRAWN.name: 2.0, LEVEL.name: 1.9})

    def test_widths_count_the_nodes_of_each_level(self):
        assert which.widths((0, 0, 1, 1, 3)) == (2, 2, 1)
        assert which.widths((0,)) == (1,)

    def test_panels_are_columns(self):
        found = which.summary(self.FOUND + rows(0.2, budget=8, top_target_walk=(4.0, 4.0)), self.ALL)
        (row,) = [
            row
            for row in which.by_panel(found, {4: "4 nodes", 8: "8 nodes"})
            if (row["temperature"], row["method"]) == (0.2, WALK.name)
        ]
        assert row["4 nodes"] == pytest.approx(3.05)
        assert row["8 nodes"] == 4
        assert row["8 nodes_interval"] == (4, 4)

    def test_is_drawn_with_names_and_open_cells_white(self):
        pytest.importorskip("plotly")
        from dynatree_lib.experiments.traversal.map import best_map

        figure = best_map(which.best(self.FOUND, self.ALL), "temperature", "budget")
        (drawn,) = figure.data
        assert drawn.text[0][0] == "<b>top</b><br>+ target-walk<br>0.66 [0.65, 0.67]"
        assert drawn.z[0][0] < 0 == drawn.z[0][1] < drawn.z[0][2]
        assert math.exp(drawn.z[0][2]) == pytest.approx(1.75)
        assert np.allclose((drawn.zmin, drawn.zmax), (-drawn.zmax, max(abs(value) for value in drawn.z[0])))
