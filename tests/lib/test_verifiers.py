"""Exact laws by enumeration: the production verifier under every outcome of its own randomness."""

from collections import defaultdict
from itertools import islice

import numpy as np
import pytest
import reference
import torch
from examples import EVERY, examples

from dynatree_lib import (
    Auto,
    Block,
    CostAwareSampledTree,
    CostAwareTree,
    Greedy,
    PromptLookup,
    SampledTree,
    Sampling,
    SuffixTree,
    TargetWalk,
    TokenLevel,
    TokenRecycling,
    TokenTree,
    ToyModel,
    Traversal,
    autoregressive,
    generate,
)
from dynatree_lib.sampling import RandomSource, Scores
from dynatree_lib.verifiers import VERIFIERS, Drawing
from dynatree_suite.drafters import Lookahead, SelfDraft
from dynatree_suite.proofs.exact import bias, distance, outcomes, proposals, text_distribution
from dynatree_suite.rules import BEYOND

TARGET = ToyModel.random(3, seed=1)
DRAFT = TARGET.mixed(ToyModel.random(3, seed=2), 0.5)
EXAMPLES = [example for kind in EVERY for example in examples(kind, DRAFT)]


def nodes(drafter, prompt):
    """Most nodes of a tree that this drafter begins with, among the first of those it may draw."""
    return max(len(one.tree) for one, _ in islice(proposals(drafter, prompt, Sampling(1.0), max_depth=3), 20))


def start(drafter):
    """The prompt of two after which it drafts more: one token, or three tokens again and again, which may be copied."""
    return max([0], [0, 1, 2, 0, 1, 2, 0], key=lambda prompt: nodes(drafter, prompt))


DRAFTING = [drafter for drafter in EXAMPLES if nodes(drafter, start(drafter)) > 1]
"""All but those whose first tree is node 0 alone: every rule would be lossless for it."""


@pytest.mark.parametrize("seed", range(30))
def test_greedy_equals_trying_every_path(seed):
    rng = np.random.default_rng(seed)
    n = int(rng.integers(1, 30))
    parents = [-1, *(int(rng.integers(0, i)) for i in range(1, n))]
    tree = TokenTree.build(rng.integers(0, 3, n).tolist(), parents)
    scores = Scores(torch.tensor(rng.normal(size=(n, 3))), Sampling())
    verdict = Greedy().verify(tree, scores, None, None)
    path, token = reference.longest_greedy_path(tree, scores.argmax.tolist())
    assert verdict.next_token == token
    assert [int(tree.tokens[v]) for v in verdict.path] == [int(tree.tokens[v]) for v in path]


def test_greedy_takes_the_lowest_id_on_ties():
    scores = Scores(torch.tensor([[0.0, 1.0, 1.0]]), Sampling())
    assert Greedy().verify(TokenTree.build([0], [-1]), scores, None, None).next_token == 1


SAMPLINGS = [Sampling(1.0), Sampling(0.6, top_k=2), Sampling(1.5, top_p=0.8)]


def served(verifier, drafter, sampling):
    try:
        verifier.check(sampling, drafter.drawing, drafter.chain)
    except ValueError:
        return False
    return True


@pytest.mark.parametrize("verifier", [rule for rule in VERIFIERS if rule is not Greedy], ids=lambda rule: rule.name)
@pytest.mark.parametrize("drafter", DRAFTING, ids=lambda d: d.name)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_every_rule_is_lossless_for_every_drafter_it_serves(verifier, drafter, sampling):
    """Every tree the drafter may draw, every decision of the rule: the completed output has the target's law."""
    if not served(verifier(), drafter, sampling):
        with pytest.raises(ValueError, match="Use TargetWalk|use Traversal"):
            generate(TARGET, [0], drafter, verifier=verifier(), sampling=sampling)
        return
    assert bias(TARGET, drafter, verifier(), start(drafter), sampling, max_depth=3)[0] < 1e-12


@pytest.mark.parametrize("verifier", BEYOND, ids=lambda rule: rule.name)
@pytest.mark.parametrize("drafter", DRAFTING, ids=lambda d: d.name)
def test_a_rule_beyond_the_papers_is_lossless_for_every_drafter_it_serves(verifier, drafter):
    test_every_rule_is_lossless_for_every_drafter_it_serves(verifier, drafter, Sampling(1.0))


def test_a_drafter_that_drafts_nothing_at_first_is_enumerated_with_others():
    """Those without a model fill a pool first (test_listings.py); of the others another example drafts."""
    left = {type(drafter) for drafter in EXAMPLES if drafter not in DRAFTING and drafter.model is not None}
    assert left == {Auto, CostAwareTree, CostAwareSampledTree}  # at the costs of these no node pays
    assert left < {type(drafter) for drafter in DRAFTING}
    assert {PromptLookup, SuffixTree, TokenRecycling, Lookahead, SelfDraft} <= {type(one) for one in DRAFTING}


def test_every_rule_serves_some_sampled_tree_and_some_are_refused():
    pairs = [(rule, d) for rule in VERIFIERS if rule is not Greedy for d in EXAMPLES]
    sampled = {rule for rule, d in pairs if d.drawing is Drawing.RECORDED and served(rule(), d, Sampling(1.0))}
    assert sampled == {*VERIFIERS} - {Greedy}
    refusing = {rule for rule, d in pairs if not served(rule(), d, Sampling(1.0))}
    assert refusing >= {TokenLevel, Block, Traversal}
    assert TargetWalk not in refusing


@pytest.mark.parametrize("drafter", EXAMPLES, ids=lambda d: d.name)
@pytest.mark.parametrize("sampling", SAMPLINGS, ids=str)
def test_generated_law_is_the_targets(drafter, sampling, monkeypatch):
    """The whole loop with the rule it chooses itself, over several iterations and the cut at the budget."""
    import dynatree_lib.decoding as decoding

    fixed = drafter.drawing is Drawing.FIXED  # then any draws are of no account to the law, and are not enumerated
    budget, prompt = 4 if fixed else 2, start(drafter)

    def run(random):
        streams = {"verify": random, "draft": RandomSource(0, "draft") if fixed else random}
        monkeypatch.setattr(decoding, "RandomSource", lambda seed, stream: streams[stream])
        return tuple(generate(TARGET, prompt, drafter, sampling=sampling, max_new_tokens=budget).tokens)

    found = defaultdict(float)
    for text, probability in outcomes(run):
        found[text] += probability
    assert sum(found.values()) == pytest.approx(1, abs=1e-12)
    assert distance(found, text_distribution(TARGET, prompt, budget, sampling)) < 1e-12


@pytest.mark.parametrize("rule", [TokenLevel, Block, Traversal], ids=lambda rule: rule.name)
@pytest.mark.parametrize("shape", [(0, 1), (0, 1, 1), (0, 0, 1)], ids=str)
def test_generated_law_with_deeper_sampled_trees(rule, shape, monkeypatch):
    """Four tokens of two: several iterations, trees two levels deep, the cut at the budget."""
    import dynatree_lib.decoding as decoding

    target = ToyModel.random(2, seed=3, sharpness=1.0)
    drafter = SampledTree(target.mixed(ToyModel.random(2, seed=4), 0.7), shape=shape)
    if rule is Block and not drafter.chain:
        pytest.skip("Block is a rule for chains")

    def run(random):
        monkeypatch.setattr(decoding, "RandomSource", lambda seed, stream: random)
        out = generate(target, [0], drafter, verifier=rule(), sampling=Sampling(1.0), max_new_tokens=4)
        depths.add(out.iterations[0].tree.depth)
        return tuple(out.tokens)

    found, depths = defaultdict(float), set()
    for text, probability in outcomes(run):
        found[text] += probability
    assert max(depths) == 2
    assert distance(found, text_distribution(target, [0], 4, Sampling(1.0))) < 1e-12


@pytest.mark.parametrize("turn", [[], [1]], ids=str)
def test_generated_law_of_a_text_that_goes_on(turn, monkeypatch):
    """A token, then three more from its state: both have the distribution, whatever was drafted before the cut."""
    import dynatree_lib.decoding as decoding

    target = ToyModel.random(2, seed=3, sharpness=1.0)
    drafter = SampledTree(target.mixed(ToyModel.random(2, seed=4), 0.7), shape=(0, 1, 1))
    options = {"verifier": Traversal(), "sampling": Sampling(1.0)}

    def run(random):
        monkeypatch.setattr(decoding, "RandomSource", lambda seed, stream: random)
        first = generate(target, [0], drafter, max_new_tokens=1, **options)
        out = generate(target, turn, drafter, max_new_tokens=3, state=first.state, **options)
        depths.add(out.iterations[0].tree.depth)
        return tuple(first.tokens + out.tokens)

    found, depths = defaultdict(float), set()
    for text, probability in outcomes(run):
        found[text] += probability
    wanted = {
        first + rest: mass * share
        for first, mass in text_distribution(target, [0], 1, Sampling(1.0)).items()
        for rest, share in text_distribution(target, [0, *first, *turn], 3, Sampling(1.0)).items()
    }
    assert max(depths) == 2
    assert distance(found, wanted) < 1e-12


def test_the_enumeration_sees_a_bias(monkeypatch):
    """A planted mistake: the bonus token drawn from the draft instead of the target."""
    import dynatree_lib.decoding as decoding

    class Biased(TargetWalk):
        def verify(self, tree, rows, distributions, random):
            wrong = Scores(rows.logits * 0.5, rows.sampling)
            return super().verify(tree, wrong, distributions, random)

    def run(random):
        monkeypatch.setattr(decoding, "RandomSource", lambda seed, stream: random)
        return tuple(
            generate(TARGET, [0], EXAMPLES[1], verifier=Biased(), sampling=Sampling(1.0), max_new_tokens=3).tokens
        )

    found = defaultdict(float)
    for text, probability in outcomes(run):
        found[text] += probability
    assert distance(found, text_distribution(TARGET, [0], 3, Sampling(1.0))) > 1e-3


@pytest.mark.parametrize("verifier", VERIFIERS)
@pytest.mark.parametrize("drafter", EXAMPLES, ids=lambda d: d.name)
def test_every_rule_is_greedy_at_temperature_zero(verifier, drafter):
    plain = autoregressive(TARGET, [0, 1], max_new_tokens=30).tokens
    assert generate(TARGET, [0, 1], drafter, verifier=verifier(), max_new_tokens=30).tokens == plain


def test_greedy_refuses_sampling():
    with pytest.raises(ValueError, match="TargetWalk"):
        generate(TARGET, [0], EXAMPLES[0], verifier=Greedy(), sampling=Sampling(1.0))
