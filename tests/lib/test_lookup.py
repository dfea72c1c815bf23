"""LookupTree: what is copied and learnt by hand, its trees against the cost-aware tree's and the mixture it claims."""

import numpy as np
import pytest

from dynatree_lib import CostAwareTree, Costs, LookupTree, RandomSource, ToyModel, generate
from dynatree_lib.drafters.prompt_lookup import Copies
from dynatree_lib.sampling import Sampling, Scores
from dynatree_lib.verifiers.base import Verdict

FREE = {"costs": Costs((1.0, 1.0), (1e-9, 1e-9))}


def copies(n, *tokens):
    made = Copies(n)
    made.append(tokens)
    return made


def proposed(drafter, text, max_depth=99):
    state = drafter.start(text, RandomSource())
    return drafter.propose(state, max_depth).tree, state


def test_what_followed_the_latest_occurrence_is_copied():
    assert copies(2, 1, 2, 7, 1, 2, 8, 9, 1, 2).following(3) == [8, 9, 1]
    assert copies(3, 1, 2, 7, 1, 2).following(3) == []  # 7 1 2 did not occur before
    assert copies(1, 5).following(3) == []
    assert copies(2, 1).following(3) == []


def test_a_period_is_continued_beyond_the_end_of_the_text():
    assert copies(2, 3, 4, 5, 3, 4).following(7) == [5, 3, 4, 5, 3, 4, 5]
    assert copies(1, 6, 6).following(3) == [6, 6, 6]


def test_the_share_of_right_copies_is_counted_up_to_the_first_wrong_one():
    made = copies(1, 1)
    assert made.probabilities(3) == pytest.approx([0.6, 0.8, 0.8])
    made.learn([4, 5, 6, 7], [4, 5, 9, 7])
    first, later = (0.97 * 3 + 1) / (0.97 * 5 + 1), (0.97 * (0.97 * 4 + 1)) / (0.97 * (0.97 * 5 + 1) + 1)
    assert made.probabilities(2) == pytest.approx([first, later])
    assert made.probabilities(0).tolist() == []


def test_without_a_match_the_tree_is_the_cost_aware_one():
    for seed in range(40):
        toy = ToyModel.random(8, seed, sharpness=3.0)
        text = [1, 4, 2, 5]  # no token twice
        tree, state = proposed(LookupTree(toy, ngram=1), text)
        plain, its = proposed(CostAwareTree(toy), text)
        assert tree.tokens.tolist() == plain.tokens.tolist()
        assert tree.parents.tolist() == plain.parents.tolist()
        assert state.learnt.expected == pytest.approx(its.learnt.expected)


def test_a_trusted_copy_is_proposed_without_a_forward_of_the_draft():
    toy = ToyModel.random(8, 0)
    drafter = LookupTree(toy, ngram=1, longest=4)
    state = drafter.start([3, 5, 6, 7, 3], RandomSource())
    state.learnt.copies.rates.right = state.learnt.copies.rates.tried = [100.0, 100.0]
    tree = drafter.propose(state, 99).tree
    assert tree.tokens.tolist() == [3, 5, 6, 7, 3]
    assert tree.parents.tolist() == [-1, 0, 1, 2, 3]
    assert state.session.forwards == 0
    assert drafter.propose(state, 2).tree.depth == 2  # room


def test_estimates_are_the_mixture_of_copy_and_draft():
    """Depth 1, everything drafted: h * [copied] + (1 - h) * the sharpened law, by hand."""
    for seed in range(20):
        toy = ToyModel.random(5, seed, sharpness=1.5)
        drafter = LookupTree(toy, **FREE, ngram=1, longest=1, depth=1, branching=5, max_nodes=40)
        tree, state = proposed(drafter, [2, 3, 2])
        distribution = np.array(toy.distribution((2, 3, 2))) ** drafter.sharpness
        distribution /= distribution.sum()
        assert sorted(tree.tokens[1:].tolist()) == [0, 1, 2, 3, 4]
        assert tree.tokens[1] == 3
        assert state.learnt.expected == pytest.approx(0.6 + 0.4 * distribution.sum())
        assert np.exp(tree.logprobs[1]) == pytest.approx(0.6)


def test_budgets_hold_and_no_sibling_is_there_twice():
    rng = np.random.default_rng(0)
    for seed in range(80):
        toy = ToyModel.random(6, seed, sharpness=float(rng.uniform(1, 5)))
        options = {"depth": int(rng.integers(1, 6)), "max_nodes": int(rng.integers(2, 14)), "longest": 5, "ngram": 1}
        text = rng.integers(0, 6, 9).tolist()
        costs = FREE if seed % 2 else {}
        tree, state = proposed(LookupTree(toy, **costs, **options), text)
        assert len(tree) <= options["max_nodes"]
        assert len({(int(p), int(t)) for p, t in zip(tree.parents[1:], tree.tokens[1:], strict=True)}) == len(tree) - 1
        assert 0 <= state.learnt.expected <= 5 + options["depth"]


def test_the_verdict_teaches_and_the_text_grows():
    toy = ToyModel.random(8, 1)
    drafter = LookupTree(toy, ngram=1, longest=2)
    state = drafter.start([3, 5, 6, 3], RandomSource())
    state.learnt.copies.rates.right, state.learnt.copies.rates.tried = [95.0, 95.0], [100.0, 100.0]
    proposal = drafter.propose(state, 99)
    assert proposal.tree.tokens[:3].tolist() == [3, 5, 6]
    drafter.observe(
        state, proposal, Scores(None, Sampling(), "toy"), Verdict((1,), 7)
    )  # 5 right, then 7 where 6 was copied
    assert state.learnt.copies.text == [3, 5, 6, 3, 5, 7]
    assert state.learnt.copies.probabilities(2) == pytest.approx([(0.97 * 95 + 1) / 98, 0.97 * 95 / 98])
    assert state.learnt.copied == []


def test_repetition_is_found_and_drafting_stops():
    """A target in a loop: after a while trees are copies and the draft is hardly asked."""
    toy = ToyModel.random(6, 1)
    text = [1, 4, 2]
    out = generate(toy, text, LookupTree(toy, ngram=2), max_new_tokens=400)
    assert out.tokens == generate(toy, text, CostAwareTree(toy), max_new_tokens=400).tokens
    assert out.iterations[-2].report["later_copy"] > 0.9
    plain = generate(toy, text, CostAwareTree(toy), max_new_tokens=400)
    assert out.state.drafter_state.session.forwards < plain.state.drafter_state.session.forwards / 2


def test_a_new_text_inherits_the_rate_and_neither_the_text_nor_what_was_counted_in_it():
    toy = ToyModel.random(6, 1)
    drafter = LookupTree(toy)
    first = generate(toy, [1, 4, 2], drafter, max_new_tokens=80)
    second = generate(toy, [5, 3], drafter, max_new_tokens=1, warm=first.state)
    fresh = generate(toy, [5, 3], drafter, max_new_tokens=1)
    rate = drafter.report(first.state.drafter_state)["rate"]
    assert rate != pytest.approx(fresh.iterations[0].report["rate"])
    assert second.iterations[0].report == pytest.approx({**fresh.iterations[0].report, "rate": rate})
    assert second.state.drafter_state.learnt.copies.text[:2] == [5, 3]
    assert len(second.state.drafter_state.learnt.copies.text) == 3


def test_a_new_text_copies_from_earlier_ones_where_suffixes_are_looked_for():
    toy = ToyModel.random(6, 1)
    for options, earlier in (({"match": "suffix"}, True), ({"match": "suffix", "pool": 0}, False), ({}, False)):
        drafter = LookupTree(toy, **options, **FREE)
        first = generate(toy, [1, 4, 2], drafter, max_new_tokens=60)
        state = drafter.inherit(drafter.start([5, 1, 4, 2], RandomSource()), first.state.drafter_state)
        drafter.propose(state, 99)
        assert state.learnt.copied[:6] == (first.tokens[:6] if earlier else [])


def test_a_chat_turn_belongs_to_the_text():
    toy = ToyModel.random(6, 1)
    drafter = LookupTree(toy)
    out = generate(toy, [1, 4, 2], drafter, max_new_tokens=5)
    more = generate(toy, [3, 3], drafter, max_new_tokens=2, state=out.state)
    assert more.state.drafter_state.learnt.copies.text == [1, 4, 2, *out.tokens, 3, 3, *more.tokens]


@pytest.mark.parametrize("options", [{"ngram": 0}, {"longest": 0}, {"ngram": 1.5}])
def test_bad_options_are_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} is .*; give a whole number of at least 1"):
        LookupTree(ToyModel.random(4, 0), **options)
