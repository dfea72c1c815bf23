"""Rules judged on the same trees: expectations are those of the production code, texts those of plain decoding."""

import json
from collections import Counter
from itertools import product

import numpy as np
import pytest
import torch
from models import noisy_copy, random_model

from dynatree_lib import SampledTree, Sampling, ToyModel, generate
from dynatree_lib.drafters import AdaptiveTree, FixedTree
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import RandomSource
from dynatree_lib.verifiers import Block, Greedy, TargetWalk, TokenLevel, Traversal
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.protocol import SEEDS
from dynatree_suite.papers.traversal.decisions import Stopwatch, decision_shares, synthetic_tree, time_decisions
from dynatree_suite.proofs import exact
from dynatree_suite.proofs.judge import Judged, expected_tokens, judge, judged_frame, read_judged

V = 4
TARGET = ToyModel.random(V, seed=1)
DRAFT = TARGET.mixed(ToyModel.random(V, seed=2), 0.5)
PAIR = Pair("toy", TARGET, DRAFT, None)
PROMPTS = [BenchPrompt.from_ids(f"p{number}", [number % V, 1]) for number in range(3)]
ONE = Sampling(1.0)
TWO = {"token-level": TokenLevel(), "traversal": Traversal()}
CHAIN, TREE = SampledTree(DRAFT, depth=3, branching=1), SampledTree(DRAFT, depth=2, branching=(3, 2))
COPIES = SampledTree(DRAFT, depth=2, branching=3, draw="iid")


def proposal_of(drafter, seed, sampling=ONE):
    return drafter.propose(drafter.start([0, 1], RandomSource(seed, "draft")), 99, sampling)


def cases():
    rules = [TokenLevel(), Traversal(), TargetWalk()]
    for name, drafter, mine in [
        ("chain", CHAIN, [*rules, Block()]),
        ("tree", TREE, rules),
        ("iid siblings", COPIES, rules),
        ("hybrid", SampledTree(DRAFT, depth=2, branching=3, draw="hybrid"), rules),
        ("deterministic", FixedTree(DRAFT, depth=2, branching=2, tau=None), rules),
    ]:
        yield from (pytest.param(drafter, rule, id=f"{name}, {rule.name}") for rule in mine)


CASES = list(cases())


class TestExpectation:
    @pytest.mark.parametrize(("drafter", "rule"), CASES)
    @pytest.mark.parametrize("sampling", [ONE, Sampling(0.7, top_k=3)], ids=["plain", "filtered"])
    def test_is_that_of_every_way_of_the_coins(self, drafter, rule, sampling):
        for seed in range(5):
            proposal = proposal_of(drafter, seed, sampling)
            scores = exact.target_scores(TARGET, [0, 1], proposal.tree, sampling)
            ways = list(exact.verdicts(rule, proposal, scores))
            assert sum(p for _, p in ways) == pytest.approx(1, abs=1e-12)
            slow = sum((len(verdict.path) + 1) * p for verdict, p in ways)
            assert expected_tokens(rule, proposal.tree, scores, proposal.distributions) == pytest.approx(slow, abs=1e-5)

    @pytest.mark.parametrize(
        ("drafter", "rule"),
        [(CHAIN, Block()), (TREE, Traversal()), (COPIES, TokenLevel()), (TREE, TargetWalk())],
        ids=lambda one: one.name,
    )
    def test_is_the_mean_of_many_throws(self, drafter, rule):
        """Of the production random source, which the enumeration above stands in for."""
        proposal = proposal_of(drafter, 7)
        rows, random = exact.target_scores(TARGET, [0, 1], proposal.tree, ONE), RandomSource(3)
        thrown = [len(rule.verify(proposal.tree, rows, proposal.distributions, random).path) + 1 for _ in range(400)]
        error = np.std(thrown) / 400**0.5
        expected = expected_tokens(rule, proposal.tree, rows, proposal.distributions)
        assert abs(np.mean(thrown) - expected) <= 4.5 * error + 1e-6

    def test_copies_among_siblings_count_once_for_the_target_walk(self):
        trees = [proposal_of(COPIES, seed) for seed in range(40)]
        twice = [one for one in trees if len(set(one.tree.tokens[one.tree.children(0)].tolist())) < 3]
        assert twice
        for proposal in twice:
            scores = exact.target_scores(TARGET, [0, 1], proposal.tree, ONE)
            texts = Counter()  # token path -> probability of walking it, every copy's subtree taken together
            paths = {tuple(proposal.tree.tokens[proposal.tree.path(node)]) for node in range(1, len(proposal.tree))}
            for path in paths:
                texts[path] = float(
                    np.prod([TARGET.distribution((0, 1, *path[:end]))[path[end]] for end in range(len(path))])
                )
            expected = expected_tokens(TargetWalk(), proposal.tree, scores, proposal.distributions)
            assert expected == pytest.approx(1 + sum(texts.values()), abs=1e-12)

    def test_a_greedy_tree_has_one_way(self):
        proposal = proposal_of(TREE, 0, Sampling())
        scores = exact.target_scores(TARGET, [0, 1], proposal.tree, Sampling())
        emitted = len(Greedy().verify(proposal.tree, scores, None, None).path) + 1
        for rule in (Greedy(), TokenLevel(), Traversal(), TargetWalk()):
            assert expected_tokens(rule, proposal.tree, scores, proposal.distributions) == emitted

    @pytest.mark.parametrize("options", [{"depth": 3, "branching": 1}, {"depth": 2}], ids=["chain", "tree"])
    def test_over_all_trees_it_is_the_exact_iteration(self, options):
        """Also of a tree whose siblings never repeat: 216 ways of drawing it."""
        target = ToyModel.random(3, seed=1)
        drafter = SampledTree(target.mixed(ToyModel.random(3, seed=2), 0.5), **options)
        for rule in TWO.values():
            found = exact.iteration(target, drafter, rule, [0, 1], ONE)
            mean = 0.0
            for proposal, drawn in exact.proposals(drafter, [0, 1], ONE):
                scores = exact.target_scores(target, [0, 1], proposal.tree, ONE)
                mean += drawn * expected_tokens(rule, proposal.tree, scores, proposal.distributions)
            assert mean == pytest.approx(found.tokens, abs=1e-5)


BIG = random_model("gpt_neox")
REAL = Pair("random", BIG, noisy_copy(BIG), None)
DRAFTERS = {
    "tree": SampledTree(REAL.draft, depth=2, branching=(3, 2)),
    "chain": SampledTree(REAL.draft, depth=3, branching=1),
}


class TestJudge:
    def judged(self, **more):
        return judge(REAL, DRAFTERS, TWO, PROMPTS, **{"max_new_tokens": 12, **more})

    @pytest.mark.parametrize("driver", TWO)
    def test_a_drivers_text_is_that_of_plain_decoding(self, driver):
        """Judging takes no coin of the driver: iterations are as long as those of generate with the prompt's seed."""
        judged = self.judged(drivers=[driver], seeds=(0, 5), margin=4)
        for (label, drafter), (number, prompt), seed in product(DRAFTERS.items(), enumerate(PROMPTS), (0, 5)):
            own = seed + SEEDS * number
            options = {"verifier": TWO[driver], "sampling": ONE, "seed": own, "max_new_tokens": 16}
            plain = generate(BIG, prompt.ids, drafter, eos_token_ids=(), **options).iterations
            mine = judged.where(tree=label, prompt=prompt.id, seed=seed).rows
            assert [row["nodes"] for row in mine] == [len(one.tree) - 1 for one in plain[: len(mine)]]
            whole = [one.committed for one in plain[: len(mine)]]
            assert [row["emitted"] for row in mine][:-1] == whole[:-1]  # the text's end may cut the last one
            assert [row["place"] for row in mine] == [0, *np.cumsum(whole[:-1])]
            assert mine[-1]["place"] < 12 <= mine[-1]["place"] + mine[-1]["emitted"]

    def test_the_record_says_what_was_judged(self):
        judged = self.judged(progress=(told := []).append)
        assert {row["driver"] for row in judged.rows} == set(TWO)
        assert len(told) == 4
        assert judged.setup["rules"] == {"tree": list(TWO), "chain": list(TWO)}
        assert judged.setup["trees"]["tree"]["branching"] == [3, 2]
        assert judged.setup["sampling"]["temperature"] == 1
        assert judged.setup["seeds_per_prompt"] == SEEDS
        assert [one["id"] for one in judged.setup["prompts"]] == ["p0", "p1", "p2"]
        assert all(1 <= row["tokens"][rule] <= row["levels"] + 1 for row in judged.rows for rule in TWO)

    def test_rules_may_differ_by_drafter(self):
        rules = {"tree": TWO, "chain": {**TWO, "block": Block()}}
        judged = judge(REAL, DRAFTERS, rules.__getitem__, PROMPTS, max_new_tokens=12, drivers=["traversal"])
        assert {len(row["tokens"]) for row in judged.where(tree="tree").rows} == {2}
        for row in judged.where(tree="chain").rows:
            assert row["tokens"]["block"] == pytest.approx(row["tokens"]["traversal"], abs=1e-5)

    def test_written_and_read_again(self, tmp_path):
        judged = self.judged(max_new_tokens=6)
        judged.write(file := tmp_path / "judged.jsonl")
        again = read_judged(file)
        assert (again.environment, len(again.rows)) == (judged.environment, len(judged.rows))
        assert again.setup == json.loads(json.dumps(judged.setup))
        for mine, its in zip(judged.rows, again.rows, strict=True):
            assert {**mine, "tokens": None} == {**its, "tokens": None}
            assert its["tokens"] == pytest.approx(mine["tokens"], abs=1e-5)
        frame = judged_frame(again.rows)
        assert list(frame["tokens"]) == [tokens for row in again.rows for tokens in row["tokens"].values()]
        assert set(frame["iterations"]) == {1}
        older = file.read_text().replace('"format": 2', '"format": 1').replace('"emitted"', '"kept"')
        file.write_text(older)
        assert read_judged(file) == again
        file.write_text(older.replace('"format": 1', '"format": 9'))
        with pytest.raises(ValueError, match="format 9; this version reads 1 and 2"):
            read_judged(file)

    @pytest.mark.parametrize(
        ("drafter", "rules", "more", "sentence"),
        [
            (TREE, TWO, {"sampling": Sampling()}, "temperature > 0"),
            (TREE, TWO, {"max_new_tokens": 0}, "max_new_tokens is 0"),
            (TREE, {"block": Block()}, {}, "Block is a rule for chains"),
            (AdaptiveTree(DRAFT, draw="iid", prune="remove"), TWO, {}, "Use TargetWalk"),
            (TREE, {"greedy": Greedy()}, {}, "Greedy verification at temperature"),
        ],
        ids=["greedy", "no tokens", "block on a tree", "selected", "greedy rule"],
    )
    def test_refuses_before_any_work(self, drafter, rules, more, sentence):
        with pytest.raises(ValueError, match=sentence):
            judge(PAIR, {"tree": drafter}, rules, PROMPTS, progress=pytest.fail, **more)


def paired(*rows):
    """Judged trees by hand: (prompt, tokens of a, tokens of b)."""
    return Judged({}, {}, [{"prompt": p, "tokens": {"a": a, "b": b}, "tree": "t"} for p, a, b in rows])


class TestGain:
    def test_is_the_ratio_of_sums(self):
        judged = paired(("p", 3.0, 2.0), ("p", 1.0, 1.0), ("q", 2.0, 3.0))
        assert judged.gain("a", "b").value == pytest.approx(1.0)
        assert judged.mean("a") == judged.mean("b") == 2.0

    def test_a_rule_against_itself_is_exactly_1(self):
        judged = paired(*((f"p{n}", 1.0 + n, 2.0) for n in range(9)))
        gain = judged.gain("a", "a")
        assert (gain.value, gain.interval) == (1.0, (1.0, 1.0))

    def test_the_interval_is_over_prompts(self):
        """Ten trees of one prompt are no more evidence than one; a constant ratio has an interval of width 0."""
        alone = paired(*([("p", 3.0, 2.0)] * 10)).gain("a", "b")
        assert (alone.value, alone.interval) == (1.5, (1.5, 1.5))
        rng = np.random.default_rng(0)
        rows = [(f"p{n}", float(a), 2.0) for n, a in enumerate(rng.normal(2.2, 0.3, 60))]
        gain = paired(*rows).gain("a", "b")
        spread = 1.96 * np.std([a for _, a, _ in rows]) / 2 / 60**0.5
        assert (gain.high - gain.low) / 2 == pytest.approx(spread, rel=0.15)
        assert gain.low < gain.value < gain.high
        again = paired(*(row for row in rows for _ in range(5))).gain("a", "b")
        assert again.interval == pytest.approx(gain.interval)

    def test_needs_a_tree(self):
        with pytest.raises(ValueError, match="no judged tree"):
            paired().gain("a", "b")
        assert paired(("p", 1.0, 1.0)).where(tree=("s", "t")).rows
        assert not paired(("p", 1.0, 1.0)).where(tree="s").rows


class Ticks:
    """A clock that moves a second at every look."""

    now = 0.0

    def __call__(self):
        self.now += 1
        return self.now


class TestDecisions:
    @pytest.mark.parametrize("filters", [{}, {"top_k": 3}])
    def test_synthetic_trees_have_the_shape_where_tokens_suffice(self, filters):
        shape = [0, 0, 1, 1, 2]
        tree, rows, distributions = synthetic_tree(shape, 50, Sampling(1.0, **filters), seed=1)
        assert tree.parents[1:].tolist() == shape
        assert len(rows) == 6
        for parent in (0, 1, 2):
            tokens = tree.tokens[tree.children(parent)]
            assert len(set(tokens.tolist())) == len(tokens)
            assert bool((distributions.distribution(parent)[tokens] > 0).all())
            assert float(distributions.distribution(parent).sum()) == pytest.approx(1, abs=1e-5)
        few, _, _ = synthetic_tree([0, 0, 0, 3], 50, Sampling(1.0, top_k=2), seed=1)
        assert few.parents.tolist() == [-1, 0, 0]  # the third slot stays empty, and what hangs on it

    def test_a_stopwatch_decides_as_its_rule_and_counts(self):
        watch, clock = Stopwatch(Traversal()), Ticks()
        watch.clock = clock
        for seed in range(5):
            tree, rows, distributions = synthetic_tree([0, 0, 1, 1], 30, ONE, seed)
            mine = watch.verify(tree, rows, distributions, RandomSource(seed))
            fresh = synthetic_tree([0, 0, 1, 1], 30, ONE, seed)
            assert mine == Traversal().verify(*fresh, RandomSource(seed))
            row = watch.rows[-1]
            assert (row["prepare"], row["tokens"]) == (row["nodes_prepared"], len(mine.path) + 1)
            assert (
                row["decide"] == 1 + row["nodes_prepared"]
            )  # a second for its own two looks, and one between each two others

    def test_timings_by_a_clock_that_counts_looks(self):
        rows = time_decisions(TWO, [0, 0, 1, 1], vocab_size=20, trees=3, repeats=2, clock=Ticks())
        assert [row["rule"] for row in rows] == list(TWO)
        for row in rows:
            assert (row["nodes"], row["vocab_size"]) == (4, 20)
            assert row["decide_ms"] <= row["decide_worst_ms"]
            assert 1 <= row["tokens"] <= 3
            assert 1 <= row["nodes_prepared"] <= 5
        with pytest.raises(ValueError, match="trees=0"):
            time_decisions(TWO, [0], trees=0)

    def test_shares_of_real_iterations(self):
        rows = decision_shares(PAIR, TREE, TWO, PROMPTS, max_new_tokens=8)
        for row in rows:
            assert 0 < row["decide"] < 1
            assert 0 < row["prepare"] < 1
            assert row["decide_ms"] + row["prepare_ms"] < row["iteration_ms"]
            assert row["decide"] == pytest.approx(row["decide_ms"] / row["iteration_ms"])

    def test_a_rule_that_would_be_biased_is_not_timed(self):
        with pytest.raises(ValueError, match="rule for chains"):
            decision_shares(PAIR, TREE, {"block": Block()}, PROMPTS)
        tree, rows, distributions = synthetic_tree([0, 0], 30, ONE, 0)
        assert isinstance(rows.distribution(0), torch.Tensor)
        with pytest.raises(ValueError, match="branches"):
            Block().verify(tree, rows, distributions, RandomSource(0))


def test_trees_that_the_end_of_a_text_may_cut_are_refused():
    with pytest.raises(ValueError, match="margin is 2"):
        judge(PAIR, {"chain": CHAIN}, TWO, PROMPTS, max_new_tokens=6, margin=2)
