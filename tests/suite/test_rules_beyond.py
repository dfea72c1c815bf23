"""Rules beyond the five papers: lossless on hundreds of instances each, their formulas, and the best of all rules."""

from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import combinations, islice, product

import numpy as np
import pytest
import torch

from dynatree_lib import SampledTree, Sampling, ToyModel
from dynatree_lib.drafters.base import Drafter, Proposal
from dynatree_lib.sampling import DraftDistributions, RandomSource, Scores
from dynatree_lib.tree import DISTINCT, IID, POINT, TokenTree
from dynatree_lib.verifiers import Block, Drawing, TargetWalk, TokenLevel, Traversal
from dynatree_suite.cli import main as cli
from dynatree_suite.drafters import DySpecTree
from dynatree_suite.papers.traversal import beyond
from dynatree_suite.papers.traversal.beyond import ONE, PROMPT, TREES, checked, compare, constant, counterexample
from dynatree_suite.proofs import audit, ceiling
from dynatree_suite.proofs.ceiling import best_tokens, drawn_sets, optimal_plan
from dynatree_suite.proofs.exact import bias, distance, iteration, iterations, proposals
from dynatree_suite.proofs.unsound import SharedNoise
from dynatree_suite.rules import (
    BEYOND,
    ConditionalTransport,
    Hierarchical,
    KSequential,
    MultiPath,
    Transport,
    k_sequential,
    multi_path,
    transport,
)
from dynatree_suite.rules.transport import Group, Shares, hub_plan

TINY = 1e-12
SOLVED = 1e-6
BIASED = ("printed", "joint end", "capped", "never back", "uncapped")
THIRDS = (Fraction(1, 3), Fraction(2, 3)), (Fraction(2, 3), Fraction(1, 3))
"""The example of HSD and of Block Verification: target and draft, the same after every text."""
NEW = {
    "hierarchical": Hierarchical(),
    "k-sequential": KSequential(),
    "transport": Transport(),
    "conditional": ConditionalTransport(),
    "multi-path": MultiPath(),
    "multi-path, capped": MultiPath(order="capped"),
}
QUICK = ("chain of 2", "2 siblings, i.i.d.", "2 siblings", "2 paths, i.i.d.", "2 paths", "2x2, top and one drawn")
"""Trees for hundreds of instances; the slices of the audit have larger ones."""
SOLVING = {
    "optimal": Transport(plan=optimal_plan, together=3),
    "conditional, optimal": ConditionalTransport(plan=optimal_plan, together=3),
}


def random_row(rng, size):
    """A random distribution, with zeros half of the time."""
    weights = rng.random(size) * (rng.random(size) > 0.25 * rng.integers(0, 2))
    return weights / weights.sum() if weights.sum() > 0 else random_row(rng, size)


# ------------------------------------------------------------------------------------------------------------ lossless
def test_every_new_rule_is_lossless_on_a_hundred_instances():
    rows = list(checked(NEW, 100, QUICK))
    for name in NEW:
        mine = [row for row in rows if row["rule"] == name]
        assert len(mine) == 100
        assert {row["pair"] for row in mine} == set(audit.PAIRS)
        assert {row["tree"] for row in mine} == ({"chain of 2"} if name == "hierarchical" else set(QUICK))
        assert max(row["bias"] for row in mine) < TINY


@pytest.mark.parametrize("name", SOLVING)
def test_a_plan_solved_by_a_linear_programme_is_lossless_too(name):
    """The programme is solved to 1e-9; what its plan emits is exact all the same."""
    rows = list(checked({name: SOLVING[name]}, 60, ["3 siblings", "2 siblings, i.i.d.", "2 paths", "2x2"]))
    assert max(row["bias"] for row in rows) < TINY


@pytest.mark.parametrize("order", ["ratio", "capped"])
def test_copies_may_be_forgotten_where_whole_paths_are_drawn(order):
    rule = MultiPath(order=order, copies="forgotten")
    rows = list(checked({"": rule}, 40, ["2 paths, i.i.d.", "2x2, i.i.d.", "2 siblings, i.i.d.", "2 paths"]))
    assert max(row["bias"] for row in rows) < TINY
    target, draft = audit.toy_pair("generic", 2, 3)
    three = SampledTree(draft, depth=2, branching=(3, 1), draw="iid")
    assert bias(target, three, rule, PROMPT, ONE)[0] < TINY
    with pytest.raises(ValueError, match=r"nodes at depth 1 have different numbers of children \(\[0, 1\]\)"):
        bias(target, SampledTree(draft, shape=(0, 0, 1), draw="iid"), rule, PROMPT, ONE)


# -------------------------------------------------------------------------------------------------------- HSD and block
@pytest.mark.parametrize("tree", beyond.CHAINS)
def test_the_lossless_reading_of_hsd_emits_what_block_verification_emits(tree):
    for kind, seed in product(audit.PAIRS, range(5)):
        target, draft = audit.toy_pair(kind, 3, seed)
        drafter = SampledTree(draft, **TREES[tree])
        both = iterations(target, drafter, {"hsd": Hierarchical(), "block": Block()}, PROMPT, ONE)
        assert distance(both["hsd"].emitted, both["block"].emitted) < TINY


@pytest.mark.parametrize("reading", BIASED)
def test_every_other_reading_is_biased_and_refused(reading):
    with pytest.raises(ValueError, match=rf"reading='{reading}'\) would not sample from the target"):
        Hierarchical(reading=reading).check(ONE, Drawing.RECORDED, chain=True)
    rule = Hierarchical(reading=reading, unsafe=True)
    rule.check(ONE, Drawing.RECORDED, chain=True)
    found = beyond.smallest_counterexample(rule, vocabularies=(2,), largest=4)
    assert found is not None
    assert found.bias > 0.01
    assert found.depth == 2  # the first token alone is token-level verification in every reading
    assert sum(row["emitted"] for row in found.texts) == pytest.approx(1)
    assert sum(abs(row["emitted"] - row["target"]) for row in found.texts) / 2 == pytest.approx(found.bias)


@dataclass(frozen=True)
class UnevenCopies(Drafter):
    """Two i.i.d. tokens, which may be copies; below the first one token, below the second two without replacement."""

    draft: ToyModel
    name = "uneven-copies"
    drawing = Drawing.RECORDED

    def start(self, prompt, random):
        return list(prompt), random

    def extend(self, state, tokens):
        raise AssertionError("an iteration is all that is enumerated")

    observe = extend

    def propose(self, state, max_depth, sampling):
        (text, random), distributions = state, DraftDistributions()

        def row(node, *path):
            distribution = torch.tensor(self.draft.distribution((*text, *path)), dtype=torch.float64)
            distributions.record(node, distribution)
            return distribution

        first = [random.draw(row(0)) for _ in range(2)]
        below = [*random.draw_distinct(row(1, first[0]), 1), *random.draw_distinct(row(2, first[1]), 2)]
        draws = [POINT, IID, IID, DISTINCT, DISTINCT, DISTINCT]
        tree = TokenTree.build([text[-1], *first, *below], [-1, 0, 0, 1, 2, 2], draws=draws)
        return Proposal(tree, distributions)


@pytest.mark.parametrize("order", ["ratio", "capped"])
def test_children_of_two_copies_are_not_drawn_without_replacement_from_each_other(order):
    target, draft = ToyModel.random(3, seed=1), ToyModel.random(3, seed=2)
    found, result = bias(target, UnevenCopies(draft), MultiPath(order=order), PROMPT, ONE)
    assert result.trees > 50
    assert found < TINY


def test_no_lossless_rule_accepts_more_of_the_papers_example_than_block():
    """What readings accept beyond the optimum they take from the distribution."""
    for depth in (2, 4):
        best = best_tokens(constant(*THIRDS[0]), chain_of(depth), PROMPT, ONE) - 1
        block = counterexample(Block(), *THIRDS, depth)
        assert block.accepted == pytest.approx(best, abs=SOLVED)
        more = [counterexample(Hierarchical(reading=reading, unsafe=True), *THIRDS, depth) for reading in BIASED]
        assert any(one.accepted > best + 1e-3 for one in more)
        assert all(one.bias > 1e-3 for one in more if one.accepted > best + SOLVED)


def chain_of(depth):
    return SampledTree(constant(*THIRDS[1]), depth=depth, branching=1)


def test_a_long_chain_neither_overflows_nor_loses_a_draft_that_is_the_target():
    target = ToyModel.random(4, seed=3, sharpness=8.0)
    long = SampledTree(target, depth=60, branching=1)
    proposal = long.propose(long.start([0], RandomSource()), 99, ONE)
    sharp = ToyModel.random(4, seed=4, sharpness=40.0)
    for model, whole in ((target, True), (sharp, False)):
        session = model.session()
        scores = session.score(proposal.tree.tokens, proposal.tree.parents, ONE)
        verdict = Hierarchical().verify(proposal.tree, scores, proposal.distributions, RandomSource(1))
        assert (len(verdict.path) == 60) is whole


def test_what_is_no_reading_order_or_size_is_refused():
    with pytest.raises(ValueError, match="reading is 'smallest'; choose from 'largest', 'printed'"):
        Hierarchical(reading="smallest")
    with pytest.raises(ValueError, match="order is 'random'; choose from 'ratio', 'capped'"):
        MultiPath(order="random")
    with pytest.raises(ValueError, match="copies is 'dropped'"):
        MultiPath(copies="dropped")
    with pytest.raises(ValueError, match="together is 3; give a whole number of at least 1, and at most 2"):
        Transport(together=3)
    with pytest.raises(ValueError, match="together is '1'; give a whole number"):
        ConditionalTransport(together="1")
    with pytest.raises(TypeError, match="plan is None; give a function"):
        Transport(plan=None)
    for rule in (*BEYOND, Block, TokenLevel, Traversal):
        with pytest.raises(TypeError, match="unsafe is 'no'; give True or False"):
            rule(unsafe="no")
    with pytest.raises(ValueError, match="rule for chains .* use Traversal"):
        Hierarchical().check(ONE, Drawing.RECORDED)
    branches = TokenTree.build([0, 1, 2], [-1, 0, 0])
    with pytest.raises(ValueError, match="3 nodes that branches"):
        Hierarchical().verify(branches, Scores(torch.zeros(3, 3), ONE), None, RandomSource())
    with pytest.raises(ValueError, match="between is 'levels'"):
        SharedNoise(constant(0.5, 0.5), between="levels")


# ------------------------------------------------------------------------------------------------------- the optimum
@pytest.mark.parametrize("tree", ["chain of 3", "2 paths", "2x2, top and one drawn"])
def test_no_rule_accepts_more_than_the_best_lossless_rule_and_block_is_it_on_chains(tree):
    rules = {**NEW, **SOLVING, "walk": TargetWalk(), "block": Block(), "traversal": Traversal(), "token": TokenLevel()}
    rows = list(compare(rules, tree, range(2)))
    assert all(row["accepted"] < row["optimum"] + SOLVED for row in rows)
    if tree in beyond.CHAINS:
        optimal = {"block", "traversal", "hierarchical", "conditional", "conditional, optimal", "multi-path"}
        assert {row["rule"] for row in rows if row["accepted"] > row["optimum"] - SOLVED} >= optimal


@pytest.mark.parametrize("tree", ["2 siblings, i.i.d.", "2 siblings", "3 siblings"])
def test_on_one_level_the_optimal_plan_is_the_best_rule_and_the_dual_says_so(tree):
    """The optimum is the least of p(H) + 1 - P(all siblings are in H) over sets H of tokens (duality)."""
    options = TREES[tree]
    draws, count = IID if options.get("draw") == "iid" else DISTINCT, options["branching"]
    for seed in range(8):
        target, draft = audit.toy_pair("generic", 4, seed)
        p, q = target.distribution(PROMPT), draft.distribution(PROMPT)
        sets = drawn_sets(tuple(q), draws, count)
        inside = [sum(p[x] for x in some) + 1 - sum(m for one, m in sets.items() if one <= some) for some in subsets(4)]
        drafter = SampledTree(draft, **options)
        assert best_tokens(target, drafter, PROMPT, ONE) - 1 == pytest.approx(min(inside), abs=SOLVED)
        for rule in SOLVING.values():
            assert iteration(target, drafter, rule, PROMPT, ONE).tokens - 1 == pytest.approx(min(inside), abs=SOLVED)


def subsets(size):
    return [frozenset(some) for count in range(size + 1) for some in combinations(range(size), count)]


def test_of_a_deterministic_tree_the_target_walk_is_the_best_rule():
    for seed in range(5):
        target, draft = audit.toy_pair("generic", 3, seed)
        drafter = SampledTree(draft, depth=2, branching=2, draw="top")
        walked = iteration(target, drafter, TargetWalk(), PROMPT, ONE).tokens
        assert best_tokens(target, drafter, PROMPT, ONE) == pytest.approx(walked, abs=SOLVED)


def test_filters_of_the_target_bound_the_best_rule_too():
    target, draft = audit.toy_pair("zeros in p", 3, 1)
    sampling = Sampling(0.6, top_k=2)
    drafter = SampledTree(draft, depth=2, branching=2)
    best = best_tokens(target, drafter, PROMPT, sampling)
    for rule in (Traversal(), ConditionalTransport(), MultiPath(), TokenLevel()):
        assert iteration(target, drafter, rule, PROMPT, sampling).tokens < best + SOLVED


# -------------------------------------------------------------------------------------------------- formulas and twins
def drawn_groups(q, draws, count):
    """Every sequence of siblings that may be drawn, one after the other, with its probability."""
    for tokens in product(range(len(q)), repeat=count):
        left, mass = q.copy(), 1.0
        for token in tokens:
            total = float(left.sum())
            mass *= float(left[token]) / total if total > 0 else 0.0
            if draws == DISTINCT:
                left[token] = 0
        if mass > 0:
            yield tokens, mass


def given_away(plan, row, groups):
    """What a plan gives each token, summed over groups, and the rests it tells."""
    taken, rests = np.zeros_like(row), []
    for tokens, codes, drawn, mass in groups:
        shares = plan(row, Group(tokens, codes, drawn))
        assert min(shares.accepted) >= 0
        assert sum(shares.accepted) < 1 + TINY
        for token, share in zip(tokens, shares.accepted, strict=True):
            taken[token] += mass * share
        rests.append(shares.rest)
    return taken, rests


@pytest.mark.parametrize("plan", [hub_plan, optimal_plan])
@pytest.mark.parametrize("draws", [IID, DISTINCT])
def test_a_plan_gives_each_token_what_it_says_to_have_taken(plan, draws):
    """Summed over every pair that may be drawn; the row may be one of which a part is gone."""
    rng = np.random.default_rng(draws)
    for _ in range(60):
        size = int(rng.integers(2, 6))
        row, q = random_row(rng, size) * rng.random(), random_row(rng, size)
        if int((q > 0).sum()) < 2:
            continue
        pairs = [(tokens, (draws, draws), q, mass) for tokens, mass in drawn_groups(q, draws, 2)]
        taken, rests = given_away(plan, row, pairs)
        assert all(np.allclose(row - taken, rest, atol=TINY) for rest in rests)


def test_deterministic_siblings_with_one_drawn_have_the_best_plan_in_closed_form():
    """The drawn one takes what it can, sum min(p, q); the others take the rest of the draws, as far as they want it."""
    rng = np.random.default_rng(5)
    for number in range(60):
        size, tops = int(rng.integers(3, 6)), tuple(rng.permutation(3)[: 1 + number % 2].tolist())
        row, q = random_row(rng, size), random_row(rng, size)
        if number % 3:  # without replacement of the deterministic ones
            q[list(tops)] = 0
        if not q.sum() > 0:
            continue
        q = q / q.sum()
        codes = (*[POINT] * len(tops), DISTINCT)
        groups = [((*tops, token), codes, q, float(q[token])) for token in range(size) if q[token] > 0]
        taken, rests = given_away(hub_plan, row, groups)
        assert all(np.allclose(row - taken, rest, atol=TINY) for rest in rests)
        others = [token for token in range(size) if token not in tops]
        drawn = np.minimum(row, q)[others].sum()
        best = drawn + min(float(row[list(tops)].sum()), float(1 - drawn))
        assert float(taken.sum()) == pytest.approx(float(best), abs=TINY)


def test_the_hub_plan_mostly_accepts_more_of_a_pair_than_trying_one_after_the_other_and_not_always():
    """It takes a token from pairs whose other token would have had room, too; the optimum does not."""
    rng = np.random.default_rng(7)
    gains = []
    for _ in range(60):
        row, q = random_row(rng, 4), random_row(rng, 4)
        target, draft = constant(*row.tolist()), constant(*q.tolist())
        for draw in ("iid", "distinct"):
            drafter = SampledTree(draft, depth=1, branching=2, draw=draw)
            found = iterations(target, drafter, {"hub": Transport(), "token": TokenLevel()}, PROMPT, ONE)
            gains.append(found["hub"].tokens - found["token"].tokens)
    assert np.mean(gains) > 1e-3
    assert sum(gain > 1e-6 for gain in gains) > 5 * sum(gain < -1e-6 for gain in gains) > 0


def test_the_divisor_is_the_least_by_its_condition_and_with_it_nothing_is_accepted_too_often():
    rng = np.random.default_rng(9)
    for _ in range(100):
        p, q, count = random_row(rng, 5), random_row(rng, 5), int(rng.integers(2, 5))
        divisor = k_sequential.smallest_divisor(p, q, count)

        def fits(divisor, p=p, q=q, count=count):
            """SpecTr's condition on the divisor."""
            once = np.minimum(q, p / divisor).sum()
            return 1 - (1 - once) ** count <= divisor * once

        each = np.minimum(q, p / divisor)
        if each.any():
            taken = each * (1 - (1 - each.sum()) ** count) / each.sum()
            assert (taken <= p + TINY).all()
            assert divisor < next(one for one in np.linspace(1, count + 0.01, 3000) if fits(one)) + 1e-6


@pytest.mark.parametrize("capped", [False, True])
@pytest.mark.parametrize("draws", [IID, DISTINCT])
def test_the_best_of_several_draws_has_the_distribution_it_is_said_to_have(draws, capped):
    rng = np.random.default_rng(11)
    for number in range(30):
        p, q = random_row(rng, 4), random_row(rng, 4)
        count = 2 if draws == DISTINCT else 1 + number % 3
        if int((q > 0).sum()) < count:
            continue
        expected, told = np.zeros(4), None
        for tokens, mass in drawn_groups(q, draws, count):
            best = chosen(p, q, tokens, draws, capped)
            expected[best.token] += mass
            told = best.distribution
        assert np.allclose(expected, told, atol=TINY)


def chosen(p, q, tokens, draws, capped):
    """The best of these siblings, by the production code."""
    from dynatree_lib.sampling import DraftDistributions
    from dynatree_lib.verifiers.residual import Recorded

    distributions = DraftDistributions()
    distributions.record(0, torch.from_numpy(q))
    tree = TokenTree.build([0, *tokens], [-1, *[0] * len(tokens)], draws=[POINT, *[draws] * len(tokens)])
    return multi_path._Best(p, Recorded(tree, distributions), list(range(1, len(tree))), capped)


# --------------------------------------------------------------------------------------------------- planted mistakes
def wrong_rest(row, group):
    """A plan that tells a wrong rest."""
    shares = hub_plan(row, group)
    return Shares(shares.accepted, np.maximum(row - np.minimum(row, group.drawn) / 2, 0))


def worst(rule, trees=("2 siblings, i.i.d.", "2 siblings", "2 paths")):
    rows = (row for tree in trees for row in compare({"": rule}, tree, [1, 2], optimum=False))
    return max(row["bias"] for row in rows)


def test_natural_mistakes_are_seen(monkeypatch):
    assert max(worst(rule) for rule in (Transport(), ConditionalTransport(), KSequential(), MultiPath())) < TINY
    assert worst(Transport(plan=wrong_rest)) > 1e-3
    assert worst(ConditionalTransport(plan=wrong_rest)) > 1e-3
    with monkeypatch.context() as patch:  # a good path verified as if it had been drawn
        patch.setattr(multi_path._Best, "_best_of", lambda self, counts: self._q)
        patch.setattr(multi_path._Best, "_better_of_two", lambda self: self._q)
        assert worst(MultiPath()) > 1e-3
    with monkeypatch.context() as patch:  # each sibling tested as if it were the only one
        patch.setattr(k_sequential, "smallest_divisor", lambda p, q, count: 1.0)
        assert worst(KSequential()) > 1e-3
    with monkeypatch.context() as patch:  # a hub that depends on what was drawn
        groups = transport.groups

        def moved(*arguments):
            for members, group in groups(*arguments):
                away = group.drawn.copy()
                away[group.tokens[0]] += 1
                yield members, replace(group, drawn=away / away.sum())

        patch.setattr(transport, "groups", moved)
        assert worst(Transport(), ["2 siblings"]) > 1e-3


def test_rules_that_look_at_siblings_together_are_biased_where_a_sibling_lends_its_number():
    """Along a path every token follows its distribution, so rules that go down one path stay exact."""
    kinds = (TokenLevel, KSequential, TargetWalk, Traversal, Transport, ConditionalTransport, MultiPath)
    served = {rule: rule() if rule is TargetWalk else rule(unsafe=True) for rule in kinds}
    off = dict.fromkeys(kinds, 0.0)
    for seed in range(3):
        target, draft = audit.toy_pair("generic", 3, seed)
        drafter = SharedNoise(draft, shape=(0, 0, 1, 2), between="siblings")
        for rule, found in iterations(target, drafter, served, PROMPT, ONE).items():
            off[rule] = max(off[rule], found.bias(target, PROMPT, ONE))
    for rule in kinds:
        if off[rule] > TINY:
            with pytest.raises(ValueError, match="branches share random numbers"):
                rule().check(ONE, drafter.drawing, drafter.chain)
    assert {rule for rule, value in off.items() if value < TINY} == {TokenLevel, KSequential, TargetWalk}
    assert min(value for value in off.values() if value > TINY) > 1e-4


def test_rules_that_look_at_siblings_together_are_biased_where_the_first_decides_whether_there_is_a_second():
    """The smallest example: two drafted nodes. The second is a child of the first where that is the likely token.

    Else it is its sibling. So a lone child is always token 0, and a pair is always (1, 0). Its first token follows the
    draft all the same.
    """
    target, draft = (ToyModel(lambda context, p=p: p, 2) for p in ((0.5, 0.5), (0.8, 0.2)))
    drafter = DySpecTree(draft, max_nodes=3)
    shapes = {(*one.tree.parents, *one.tree.tokens[1:3]) for one, _ in proposals(drafter, PROMPT, ONE)}
    assert {(shape[:3], shape[3]) for shape in shapes} == {((-1, 0, 1), 0), ((-1, 0, 0), 1)}
    for rule in (KSequential, Transport, ConditionalTransport, MultiPath):
        with pytest.raises(ValueError, match="how many children a node has depends on which tokens"):
            rule().check(ONE, drafter.drawing, drafter.chain)
        expected = 0 if rule is KSequential else 0.1  # it minds where siblings are drawn with replacement
        assert bias(target, drafter, rule(unsafe=True), PROMPT, ONE)[0] == pytest.approx(expected, abs=TINY)
    for served in (TokenLevel(), Traversal(), TargetWalk()):
        assert bias(target, drafter, served, PROMPT, ONE)[0] < TINY


# ------------------------------------------------------------------------------------------------------------ the audit
def test_the_audit_tells_each_rules_share_of_the_optimum(tmp_path, capsys):
    tables = {name: [] for name in audit.TABLES}
    for case in islice(audit.cases(seed=11), 9):
        if case.vocabulary < 4:
            for name, rows in audit.check_case(case, optimum=True).items():
                tables[name] += rows
    found = audit.Audit.of({}, {}, tables)
    assert found.failures() == []
    assert len(found.optima) >= 2
    assert all(row["share"] is None or row["share"] < 1 + SOLVED for row in found.shares())
    assert {row["rule"] for row in found.shares()} == set(found.checks["rule"])
    path = tmp_path / "audit.json"
    path.write_text(found.to_json())
    again = audit.read_audit(path)
    assert again.shares() == found.shares()
    assert again.to_json() == found.to_json()
    without = replace(found, optima=found.optima[:0])
    path.write_text(without.to_json())
    assert "optima" not in path.read_text()
    assert audit.read_audit(path).shares() == []


def test_a_rule_that_emits_more_than_any_lossless_rule_can_is_a_failure():
    case = next(case for case in audit.cases(seed=11) if case.tree == "chain of 3" and case.vocabulary < 4)
    found = audit.Audit.of({}, {}, audit.check_case(case, optimum=True))
    assert found.failures() == []
    more = found.checks.assign(tokens=found.checks["tokens"] + (found.checks["rule"] == "block"))
    (sentence,) = replace(found, checks=more).failures()
    assert "block emits" in sentence
    assert "where no lossless rule can emit more than" in sentence


def test_the_command_prints_the_shares(monkeypatch, capsys):
    monkeypatch.setattr(audit, "CONTROLS", {})
    monkeypatch.setattr(audit, "TREES", {name: audit.TREES[name] for name in ("chain of 3", "one, then two")})
    cli.main(["audit", "--instances", "30", "--optimum"])
    shown = capsys.readouterr().out
    assert "share" in shown
    assert "Share of the drafted tokens that the best lossless rule would accept" in shown


def test_too_many_siblings_for_the_linear_programme_are_refused():
    wide = np.full(80, 1 / 80)
    with pytest.raises(ValueError, match="2 siblings drawn from 80 tokens can be drawn in more than 5,000 ways"):
        optimal_plan(wide, Group((0, 1), (DISTINCT, DISTINCT), wide))


def test_sets_of_paths_have_the_probability_of_their_trees():
    _, draft = audit.toy_pair("generic", 2, 0)
    found = ceiling.drafted_paths(SampledTree(draft, depth=2, branching=2, draw="iid"), PROMPT, ONE)
    trees = list(proposals(SampledTree(draft, depth=2, branching=2, draw="iid"), PROMPT, ONE))
    assert sum(found.values()) == pytest.approx(sum(mass for _, mass in trees))
    assert len(found) < len(trees)
    assert all(() in paths for paths in found)
