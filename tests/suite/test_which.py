"""Drafters with rules, compared: exact values against enumeration, ratios and crossings against numbers by hand."""

import pytest
from models import feature_draft, noisy_copy, prompt, random_model
from pandas import concat

import dynatree_lib as dt
from dynatree_lib.models.pairs import Pair, make_pair
from dynatree_lib.verifiers import TargetWalk, TokenLevel, Traversal
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.papers.traversal import which
from dynatree_suite.papers.traversal.tables import widths
from dynatree_suite.papers.traversal.which import DrafterAndRule, Expectation, methods_frame
from dynatree_suite.proofs.exact import iteration
from dynatree_suite.proofs.judge import judge

WALK = DrafterAndRule("top", "target-walk", drawn=False)
DRAWN = DrafterAndRule("distinct", "traversal")
LEVEL = DrafterAndRule("distinct", "token-level")


@pytest.fixture(scope="module")
def pair():
    target = random_model("gpt_neox")
    return make_pair(target, noisy_copy(target), "random")


@pytest.fixture(scope="module")
def prompts():
    return [BenchPrompt.from_ids(f"p{seed}", prompt(7, seed)[0].tolist()) for seed in (1, 2)]


def rows(temperature=1.0, budget=4, **expected):
    """Frame of two prompts, `a` and `b`, with a judged tree each; label_rule=(tokens on a, tokens on b)."""
    out = []
    for name, values in expected.items():
        tree, _, rule = name.partition("_")
        for one, value in zip("ab", values, strict=True):
            place = {"temperature": temperature, "budget": budget, "prompt": one}
            out.append({**place, "tree": tree, "tokens": {rule.replace("_", "-"): value}})
    return methods_frame(out)


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

    def test_a_context_always_has_the_same_distribution(self):
        target, draft = which.noisy_pair(seed=5)
        assert draft.distribution((0, 2)) == draft.distribution((0, 2)) != target.distribution((0, 2))
        assert sum(draft.distribution((0, 2))) == pytest.approx(1)


class TestDecoding:
    def test_greedy_rows_are_the_iterations_of_generate(self, pair, prompts):
        drafters = {"chain": dt.Chain(pair.draft, 3), "sampled": dt.SampledTree(pair.draft, 2, 2)}
        names = {"chain": ["target-walk"], "sampled": ["target-walk", "traversal"]}
        found = which.greedy_rows(pair, drafters, names.__getitem__, prompts, max_new_tokens=12, margin=4)
        for label, drafter in drafters.items():
            for one in prompts:
                out = dt.generate(pair.target, one.ids, drafter, max_new_tokens=16, eos_token_ids=())
                mine = [row for row in found if (row["tree"], row["prompt"]) == (label, one.id)]
                emitted = [each.committed for each in out.iterations][: len(mine)]
                assert [row["emitted"] for row in mine] == emitted
                assert mine[-1]["place"] < 12 <= mine[-1]["place"] + mine[-1]["emitted"]
                assert all(row["tokens"] == dict.fromkeys(names[label], row["emitted"]) for row in mine)

    def test_rates_are_of_the_places_among_the_siblings(self, pair, prompts):
        wide = dt.SampledTree(pair.draft, 3, (3, 1))
        rates = which.measured_rates(pair, wide, prompts, dt.Sampling(1.0), 60)
        assert len(rates.rates[0]) == 3
        assert rates.rates[0][0] > rates.rates[0][2]
        assert len(rates.slots(5)) == 5
        assert rates == which.measured_rates(pair, wide, prompts, dt.Sampling(1.0), 60)

    def test_iterations_are_those_of_generate(self, pair, prompts):
        tree, sampling = dt.SampledTree(pair.draft, 2, 2), dt.Sampling(1.0)
        ((name, found),) = which.iterations_of(pair, tree, prompts[:1], sampling, 12)
        out = dt.generate(pair.target, prompts[0].ids, tree, sampling=sampling, max_new_tokens=12, eos_token_ids=())
        assert name == prompts[0].id
        assert [len(one.tree) for one in found] == [len(one.tree) for one in out.iterations]
        assert [one.verdict for one in found] == [one.verdict for one in out.iterations]

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

    def test_one_node_is_what_judged_trees_of_one_node_emit(self, pair, prompts):
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

    def test_one_node_of_a_draft_on_features_is_at_every_place_but_the_first(self, prompts):
        target, sampling = random_model("llama"), dt.Sampling(0.8)
        draft = feature_draft(target)
        own = Pair("features", target, draft, None)
        found = which.one_node_rows(own, prompts, sampling, max_new_tokens=9)
        assert [row["place"] for row in found if (row["prompt"], row["tree"]) == ("p1", "top")] == [*range(1, 10)]
        walked = judge(
            own, {"top": dt.Chain(draft, 1)}, {"target-walk": TargetWalk()}, prompts,
            max_new_tokens=9, sampling=sampling, margin=4,
        ).rows  # fmt: skip
        mine = {(row["prompt"], row["place"]): row["tokens"] for row in found if row["tree"] == "top"}
        for row in [row for row in walked if row["nodes"]]:
            assert row["tokens"]["target-walk"] == pytest.approx(mine[row["prompt"], row["place"]]["target-walk"])

    def test_pairs_of_judged_rows_compare(self, pair, prompts):
        drafters = {"top": dt.SampledTree(pair.draft, 2, 2, "top"), "distinct": dt.SampledTree(pair.draft, 2, 2)}
        rules = {"target-walk": TargetWalk(), "traversal": Traversal()}
        found = judge(pair, drafters, rules, prompts, max_new_tokens=20, drivers=["target-walk"])
        ratio = which.compare(methods_frame(found.rows), DRAWN, WALK)
        means = found.where(tree="distinct").mean("traversal"), found.where(tree="top").mean("target-walk")
        assert ratio.value == pytest.approx(means[0] / means[1])
        assert ratio.low <= ratio.value <= ratio.high


class TestCompare:
    def test_prompts_are_pooled_and_paired(self):
        found = rows(top_target_walk=(2.0, 1.0), distinct_traversal=(4.0, 2.0))
        found = concat([found, rows(distinct_traversal=(2.0, 2.0))])  # two trees per prompt against one
        ratio = which.compare(found, DRAWN, WALK)
        assert ratio.value == pytest.approx((10 / 4) / (3 / 2))
        assert ratio.interval == pytest.approx((1.5, 2.0))  # prompt a alone, and prompt b alone
        assert ratio.above() is True
        assert str(ratio) == "1.67 [1.50, 2.00]"
        (row,) = which.summary(found, [DRAWN]).to_dict("records")
        assert (row["value"], row["interval"], row["trees"]) == (2.5, (2.0, 3.0), 4)

    def test_an_unknown_pair_is_named(self):
        with pytest.raises(ValueError, match=r"no judged tree of 'distinct \+ token-level'"):
            which.compare(rows(distinct_traversal=(1.0, 2.0)), DRAWN, LEVEL)

    def test_other_prompts_are_refused(self):
        found = concat([rows(top_target_walk=(2.0, 1.0)), rows(distinct_traversal=(2.0, 1.0))[:1]])
        with pytest.raises(ValueError, match="judged on different prompts"):
            which.compare(found, DRAWN, WALK)


def sweep(*ratios, temperatures=(0.2, 0.4, 0.8)):
    """`distinct` over `top` on two prompts: (on a, on b) per temperature."""
    found = []
    for temperature, (a, b) in zip(temperatures, ratios, strict=True):
        found.append(rows(temperature, top_target_walk=(1.0, 1.0), distinct_traversal=(a, b)))
    return concat(found)


class TestCrossover:
    def test_interpolates_the_logarithm(self):
        row = which.crossover(sweep((0.5, 0.5), (0.8, 0.8), (1.25, 1.25)), DRAWN, WALK)
        assert row["crossover"] == pytest.approx(0.6)
        assert row["interval"] == pytest.approx((0.6, 0.6))
        assert row["text"] == "0.60 [0.60, 0.60]"

    def test_the_last_crossing_counts_and_temperature_0_does_not(self):
        greedy = rows(0.0, top_target_walk=(9, 9), distinct_traversal=(1, 1))
        found = concat([sweep((1.1, 1.1), (0.5, 0.5), (2.0, 2.0)), greedy])
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
    FOUND = concat(
        [
            rows(0.2, top_target_walk=(3.0, 3.1), distinct_traversal=(2.0, 2.0), distinct_token_level=(1.9, 1.9)),
            rows(0.4, top_target_walk=(2.0, 3.0), distinct_traversal=(3.0, 2.0), distinct_token_level=(1.9, 1.9)),
            rows(0.8, top_target_walk=(2.0, 2.0), distinct_traversal=(3.0, 3.3), distinct_token_level=(3.5, 3.5)),
            rows(1.0, top_target_walk=(2.0, 2.0), distinct_traversal=(3.0, 3.3), distinct_token_level=(3.6, 3.5)),
        ]
    )
    ALL = (WALK, DRAWN, LEVEL, DrafterAndRule("iid", "traversal"))

    def test_the_best_of_each_kind(self):
        found = which.best(self.FOUND, self.ALL)
        assert [row["best"] for row in found] == [WALK.name, WALK.name, LEVEL.name, LEVEL.name]
        assert [row["holds"] for row in found] == [False, None, True, True]
        assert [row["drawn"] for row in found] == [DRAWN.name, DRAWN.name, LEVEL.name, LEVEL.name]

    def test_another_drawn_pair_must_be_ahead_by_an_interval(self):
        found = rows(distinct_traversal=(3.0, 3.0), distinct_token_level=(3.5, 2.9), top_target_walk=(2.0, 2.0))
        (row,) = which.best(found, self.ALL)
        assert row["drawn"] == DRAWN.name
        assert row["ratio"] == 1.5

    def test_and_by_more_than_a_hair(self):
        found = rows(distinct_traversal=(3.0, 3.0), distinct_token_level=(3.01, 3.01), top_target_walk=(2.0, 2.0))
        assert which.best(found, self.ALL)[0]["drawn"] == DRAWN.name

    def test_the_better_deterministic_tree_counts(self):
        other = DrafterAndRule("best-first", "target-walk", drawn=False)
        found = rows(distinct_traversal=(3.0, 3.0), best_target_walk=(2.5, 2.5), top_target_walk=(2.0, 3.6))
        found = found.replace({"method": {"best + target-walk": other.name}})
        (row,) = which.best(found, [WALK, other, DRAWN])
        assert row["fixed"] == WALK.name
        assert row["best"] == DRAWN.name

    def test_ratios_over_one_pair(self):
        found = which.summary(self.FOUND, [DRAWN, LEVEL], WALK)
        assert len(found) == 8
        assert found["value"][0] == pytest.approx(2 / 3.05)
        panels = which.by_panel(found, {4: "4 nodes"})
        assert panels["4 nodes_interval"][0] == found["interval"][0]

    def test_temperature_0_has_no_best_drawn_tree(self):
        greedy = rows(0.0, top_target_walk=(3.0, 3.0), distinct_traversal=(3.0, 3.0))
        assert which.best(greedy, self.ALL) == []
        assert len(which.summary(greedy, self.ALL)) == 2

    def test_the_default_rule_is_checked_where_a_drafter_is(self):
        found = which.rule_checks(
            self.FOUND, {"distinct": "traversal", "iid": "traversal"}, ["traversal", "token-level"]
        )
        assert [row["holds"] for row in found] == [True, True, False, False]
        assert [row["behind"] for row in found] == [False, False, True, True]
        hair = rows(distinct_traversal=(2.0, 3.0), distinct_token_level=(2.01, 3.01))
        (row,) = which.rule_checks(hair, {"distinct": "traversal"}, ["token-level"])
        assert (row["holds"], row["behind"]) == (False, False)
        assert {row["over"] for row in found} == {LEVEL.name}

    def test_widths_count_the_nodes_of_each_level(self):
        assert widths((0, 0, 1, 1, 3)) == (2, 2, 1)
        assert widths((0,)) == (1,)

    def test_panels_are_columns(self):
        found = which.summary(concat([self.FOUND, rows(0.2, budget=8, top_target_walk=(4.0, 4.0))]), self.ALL)
        panels = which.by_panel(found, {4: "4 nodes", 8: "8 nodes"})
        (row,) = panels[(panels["temperature"] == 0.2) & (panels["method"] == WALK.name)].to_dict("records")
        assert row["4 nodes"] == pytest.approx(3.05)
        assert row["8 nodes"] == 4
        assert row["8 nodes_interval"] == (4, 4)
