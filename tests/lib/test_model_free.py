"""Drafters that know what followed before: suffix automaton, recycled tokens; and drafters made of others."""

from collections import Counter
from copy import deepcopy
from dataclasses import replace
from itertools import product

import numpy as np
import pytest
import reference
import torch
from test_forward_drafters import driven, shifting

import dynatree_lib as dt
from dynatree_lib import RandomSource, Sampling, ToyModel
from dynatree_lib.drafters import Proposal
from dynatree_lib.drafters.suffixes import SuffixAutomaton, SuffixCopies
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Scores
from dynatree_lib.verifiers.base import Verdict
from dynatree_suite.bench.methods import variant
from dynatree_suite.drafters import DySpecTree, Lookahead, UnionTree
from dynatree_suite.drafters.union_tree import joined
from dynatree_suite.proofs import exact

TARGET = ToyModel.random(5, 1)
DRAFT = TARGET.mixed(ToyModel.random(5, 2), 0.4)
PROMPT = [1, 4, 2, 3, 1, 4, 2, 0, 1, 4]
WARM = Sampling(1.0)


def texts(seed, size=3, length=40):
    return np.random.default_rng(seed).integers(0, size, length).tolist()


# ------------------------------------------------------------------------------------------------- suffix automaton
@pytest.mark.parametrize("seed", range(12))
def test_the_automaton_knows_every_substring_with_its_followers(seed):
    text, automaton = texts(seed, 2 + seed % 3), SuffixAutomaton()
    for end, token in enumerate(text, 1):
        automaton.append([token])
        match = reference.longest_earlier_suffix(text[:end])
        assert automaton.length[automaton.match] == len(match)
        if match:
            followers = {token: automaton.count[state] for token, state in automaton.following[automaton.match].items()}
            assert followers == reference.followers(text[:end], match)
    assert len(automaton) <= 2 * len(text)


def test_nothing_matches_across_the_end_of_a_text_and_a_copy_grows_by_itself():
    automaton = SuffixAutomaton()
    automaton.append([1, 2, 3])
    automaton.end()
    assert automaton.match == 0
    other = automaton.copied()
    other.append([1, 2])
    assert other.length[other.match] == 2
    assert automaton.length[automaton.match] == 0
    assert [*other.following[other.match]] == [3]
    assert [*automaton.text, 1, 2] == other.text


def test_a_copy_goes_on_with_what_followed_most_often_and_then_with_its_period():
    copies = SuffixCopies(2)
    copies.append([1, 2, 3, 1, 2, 4, 1, 2, 3, 0, 1, 2])
    assert copies.following(3) == [3, 0, 1]  # after (1, 2) came 3 twice and 4 once; after 3 the latest of 1 and 0
    copies.append([3, 1, 2, 3, 1, 2, 3, 1, 2])
    assert copies.following(5) == [3, 1, 2, 3, 1]
    copies.append([9])
    assert copies.following(5) == []


def test_copies_of_earlier_texts_end_with_them_and_are_asked_for():
    earlier = SuffixCopies(2)
    earlier.append([1, 2, 3, 4])
    for pool, expected in ((50, [3, 4]), (3, []), (0, [])):
        new = SuffixCopies(2)
        new.append([9, 1, 2])
        assert new.following(9) == []
        new.continues(earlier, pool)
        assert new.following(9) == expected  # no mark of a text's end, and nothing across it
        assert earlier.suffixes.text == [1, 2, 3, 4]


@pytest.mark.parametrize("seed", range(6))
def test_a_suffix_tree_holds_the_most_probable_paths(seed):
    """Against all paths, their probabilities by counting substrings of the text."""
    shortest = seed % 3
    drafter, text = dt.SuffixTree(max_nodes=9, depth=3, shortest=shortest, costs=None), texts(seed)
    state = drafter.start(text, RandomSource())
    tree = drafter.propose(state, 99).tree
    expected = reference.suffix_paths(text, state.known, depth=3, shortest=shortest)
    assert len(tree) == 9
    found = {tuple(tree.tokens[tree.path(node)].tolist()): tree.cumulative[node] for node in range(1, 9)}
    best = sorted(expected.values(), reverse=True)[:8]
    assert np.allclose(sorted(np.exp([*found.values()]), reverse=True), best)
    for path, logprob in found.items():
        assert np.isclose(np.exp(logprob), expected[path])


def test_with_warm_earlier_texts_are_looked_at_too_but_no_more_than_the_pool_holds():
    earlier = [3, 1, 4, 1, 0, 2, 2]
    for pool, expected in ((50, [1, 0, 2, 2]), (5, []), (0, [])):
        drafter = dt.SuffixTree(pool=pool, branching=1, max_nodes=5, shortest=2, costs=None)
        old = drafter.start(earlier, RandomSource())
        state = drafter.inherit(drafter.start([1, 4], RandomSource()), old)
        assert drafter.propose(state, 9).tree.tokens[1:].tolist() == expected
        assert old.suffixes.text == earlier


def test_a_full_pool_keeps_its_latest_half_so_that_not_every_text_builds_the_automaton_anew():
    drafter = dt.SuffixTree(pool=40, costs=None)
    state = drafter.start(texts(0), RandomSource())
    sizes = []
    for seed in range(1, 20):
        state = drafter.inherit(drafter.start(texts(seed, length=8), RandomSource()), state)
        sizes.append(len(state.suffixes.text))
    assert max(sizes) <= 41  # and a mark between two texts
    assert 20 <= min(sizes) <= 21
    assert sum(size <= 21 for size in sizes) <= 10


def test_a_text_that_repeats_itself_is_drafted_as_fast_as_any_other():
    """Each period is a shorter match: looking at all of them for every node would take the square of the length."""
    drafter, looked = dt.SuffixTree(costs=None), []
    matches = type(drafter)._matches
    state = drafter.start([1, 2, 3] * 300, RandomSource())

    def counted(*arguments):
        for one in matches(*arguments):
            looked.append(one)
            yield one

    try:
        type(drafter)._matches = counted
        tree = drafter.propose(state, 99).tree
    finally:
        type(drafter)._matches = matches
    assert tree.tokens[:8].tolist() == [3, 1, 2, 3, 1, 2, 3, 1]
    assert len(looked) < 20 * len(tree)


def test_what_was_learnt_of_another_vocabulary_is_refused():
    earlier = dt.generate(TARGET, PROMPT, dt.SuffixTree(costs=None), max_new_tokens=5).state
    with pytest.raises(ValueError, match="whose token ids mean other words than those of 'toy'"):
        dt.generate(ToyModel.random(4), [1], dt.SuffixTree(costs=None), warm=earlier)


# -------------------------------------------------------------------------------------------------- recycled tokens
def test_the_lists_hold_what_the_target_predicted_after_each_node():
    drafter = dt.TokenRecycling(context=2, remembered=3, max_nodes=8, costs=None)
    state, seen = drafter.start(PROMPT, RandomSource()), 0
    text, session = [*PROMPT], TARGET.session()
    session.start(text[:-1])
    for _ in range(8):
        proposal = drafter.propose(state, 9)
        scores = session.score(*proposal.nodes, Sampling())
        verdict = dt.Greedy().verify(proposal.tree, scores, None, RandomSource())
        state = drafter.observe(state, proposal, scores, verdict)
        for node in range(len(proposal.tree)):
            context = (*text, *proposal.tree.tokens[proposal.tree.path(node)].tolist())
            best = np.argsort(-np.array(TARGET.distribution(context)), kind="stable")[:3].tolist()
            assert state.lists[1][context[-2:]][0] == best  # a table of the last two tokens: no later node differs
            seen += node > 0
        session.commit([0, *verdict.path])
        text += verdict.tokens(proposal.tree)
        assert state.tail == tuple(text[-2:])
    assert seen > 8


def test_a_carried_list_of_predictions_wins_over_a_new_prompt_and_one_that_was_read_does_not():
    drafter = dt.TokenRecycling(context=1, costs=None)
    earlier, new = (drafter.start(text, RandomSource()) for text in ([1, 2, 9, 4, 5], [1, 3, 4, 6]))
    earlier.lists[0][4,] = [7], [9]  # the target gave 7 nearly all of its probability
    state = drafter.inherit(new, earlier)
    assert {key: tokens for key, (tokens, _) in state.lists[0].items()} == {
        (1,): [3, 2], (2,): [9], (9,): [4], (3,): [4], (4,): [7]
    }  # fmt: skip
    assert earlier.lists[0][1,][0] == [2]


def test_the_oldest_lists_go_where_there_are_more_than_the_pool_holds():
    drafter = dt.TokenRecycling(pool=3, context=1, costs=None)
    state = drafter.start([1, 2, 3, 4, 1, 5], RandomSource())
    assert [*state.lists[0]] == [(3,), (4,), (1,)]
    later = drafter.inherit(drafter.start([6, 7, 8], RandomSource()), state)
    assert [*later.lists[0]] == [(1,), (6,), (7,)]
    out = dt.generate(TARGET, PROMPT, dt.TokenRecycling(pool=6, costs=None), max_new_tokens=40)
    assert [len(lists) for lists in out.state.drafter_state.lists] == [5, 6]


def test_of_nodes_with_the_same_last_tokens_the_accepted_one_is_remembered():
    drafter = dt.TokenRecycling(context=1, remembered=1, costs=None)
    state = drafter.start([0], RandomSource())
    tree = dt.TokenTree.build([0, 1, 2, 1], [-1, 0, 0, 2])  # token 1 twice: first, and below token 2
    logits = torch.zeros(4, 5)
    logits[[0, 1, 2, 3], [2, 3, 1, 4]] = 9.0
    for path, expected in (((2, 3), 4), ((1,), 3), ((2,), 3)):
        verdict = Verdict(path, 0)
        seen = drafter.observe(deepcopy(state), Proposal(tree), Scores(logits, Sampling()), verdict)
        assert seen.lists[0][1,][0] == [expected]


def test_a_text_that_was_seen_is_drafted_as_it_was_predicted():
    """With lists of a whole earlier text, of a table of two tokens, most chains are the target's greedy path."""
    target = ToyModel.random(40, 3)
    drafter = dt.TokenRecycling(context=2, max_nodes=5, branching=1, costs=None)
    earlier = dt.generate(target, PROMPT, drafter, max_new_tokens=60)
    again = dt.generate(target, PROMPT, drafter, max_new_tokens=60, warm=earlier.state)
    assert again.tokens == earlier.tokens
    accepted = [np.mean([len(it.verdict.path) for it in out.iterations[:-1]]) for out in (earlier, again)]
    assert accepted[0] < 2
    assert accepted[1] > 3


@pytest.mark.parametrize("kind", [dt.SuffixTree, dt.TokenRecycling])
def test_a_price_leaves_out_what_does_not_pay(kind):
    target = shifting(5, 1)
    sizes = []
    for cost in (None, (1.0, 1.0, 1.0), (1.0, 1.2, 1.6), (1.0, 3.0, 7.0)):
        rounds = driven(target, PROMPT, kind(costs=cost and dt.Costs(cost)), 40)
        sizes.append(np.mean([len(proposal.tree) for proposal, *_ in rounds]))
    assert sizes[0] == sizes[1] > sizes[2] > sizes[3] == 1


# ------------------------------------------------------------------------------------------------------------- union
def test_joined_trees_share_their_paths():
    first, second = dt.TokenTree.from_paths(5, [[1, 2], [3]]), dt.TokenTree.from_paths(5, [[3, 4], [1, 2, 0]])
    tree, places = joined([first, second])
    assert tree == dt.TokenTree.from_paths(5, [[1, 2], [3], [3, 4], [1, 2, 0]])
    for part, place in zip((first, second), places, strict=True):
        assert (tree.tokens[place] == part.tokens).all()
        assert (tree.parents[place[1:]] == place[part.parents[1:]]).all()


@pytest.mark.parametrize(
    "drafter", [dt.FixedTree(DRAFT, tau=None), dt.LookupTree(DRAFT), dt.AdaptiveTree(DRAFT)], ids=lambda one: one.name
)
@pytest.mark.parametrize("place", [0, 1])
def test_a_union_with_nothing_is_the_drafter(drafter, place):
    both = [drafter, dt.NoDraft()] if place else [dt.NoDraft(), drafter]
    alone = dt.generate(TARGET, PROMPT, drafter, max_new_tokens=60)
    found = dt.generate(TARGET, PROMPT, UnionTree(*both, max_nodes=99, costs=None), max_new_tokens=60)
    assert found.tokens == alone.tokens
    if drafter.name != "lookup-tree":  # that one hears what the joined tree promises
        assert [it.tree.tokens.tolist() for it in found.iterations] == [
            it.tree.tokens.tolist() for it in alone.iterations
        ]


@pytest.mark.parametrize("cost", [None, (1.0, 1.1, 1.3)])
def test_a_union_may_be_a_part_of_another(cost):
    inner = UnionTree(
        dt.FixedTree(DRAFT, depth=3, branching=2, tau=None), dt.TokenRecycling(costs=None), 6, cost and dt.Costs(cost)
    )
    found = dt.generate(
        TARGET, PROMPT, UnionTree(inner, dt.SuffixTree(costs=None), max_nodes=30, costs=None), max_new_tokens=60
    )
    assert found.tokens == dt.autoregressive(TARGET, PROMPT, max_new_tokens=60).tokens
    assert max(len(it.tree) for it in found.iterations) > 6


def test_a_union_keeps_the_likeliest_nodes_and_learns_from_those_it_left_out():
    wide_tree = dt.FixedTree(DRAFT, depth=3, branching=3, tau=None, max_nodes=30)
    union = UnionTree(wide_tree, dt.TokenRecycling(costs=None), costs=None)
    narrow = replace(union, max_nodes=4)
    wide, few = (dt.generate(TARGET, PROMPT, one, max_new_tokens=80) for one in (union, narrow))
    assert wide.tokens == few.tokens
    assert max(len(it.tree) for it in few.iterations) == 4
    assert len(wide.iterations) < len(few.iterations)
    outcomes = few.state.drafter_state.rates
    assert sum(outcomes.tried) > 5 * len(outcomes) + len(few.iterations)


def test_a_benchmark_counts_what_all_drafts_of_a_union_read():
    """Three levels by the chain and two by the tree of two branches, until the text ends."""
    pair = Pair("toys", TARGET, DRAFT, None)
    for spec, forwards, nodes in (
        ("union-tree:first=chain;length=3,second=fixed-tree;depth=2;branching=2,costs=none", 5, 3 + 1 + 2),
        ("union-tree:first=chain;length=3,second=token-recycling;costs=none,costs=none", 3, 3),
    ):
        done = variant(spec).runner(pair)(
            PROMPT, max_new_tokens=41, eos_token_ids=(), on_tokens=len, sampling=Sampling(), seed=0
        )
        full = len(done.iterations) - 2
        assert forwards * full <= done.counters["draft_forwards"] <= forwards * len(done.iterations)
        assert nodes * full <= done.counters["draft_nodes"] <= nodes * len(done.iterations)


def test_unions_that_cannot_be_are_refused():
    sampled = dt.SampledTree(DRAFT)
    with pytest.raises(ValueError, match="first drafter, 'sampled-tree', draws its tokens"):
        UnionTree(sampled, dt.PromptLookup())
    with pytest.raises(TypeError, match="The second drafter is 'ptd'"):
        UnionTree(dt.PromptLookup(), "ptd")
    with pytest.raises(ValueError, match="both draft inside the target's forward"):
        UnionTree(dt.ProgressiveTree(), Lookahead())
    with pytest.raises(ValueError, match="'hf-generate' is no drafter"):
        variant("union-tree:second=hf-generate")
    with pytest.raises(ValueError, match="no method 'lookup'"):
        variant("union-tree:first=lookup")


def test_a_method_names_its_parts_with_their_options():
    made = variant(
        "union-tree:first=chain;length=2,second=token-recycling;context=1;max_nodes=60;costs=none,max_nodes=9"
    )
    drafter = made.method.drafter(made.options, DRAFT)
    expected = UnionTree(dt.Chain(DRAFT, 2), dt.TokenRecycling(context=1, max_nodes=60, costs=None), max_nodes=9)
    assert drafter == expected


# ------------------------------------------------------------------------------------------------------------ DySpec
@pytest.mark.parametrize("sampling", [WARM, Sampling()], ids=["drawn", "greedy"])
def test_a_dyspec_tree_grows_where_the_draft_gives_most(sampling):
    """No place that drew is worth more than one that drew before it (Algorithm 1), and none left is worth more."""
    drafter = DySpecTree(DRAFT, max_nodes=12, depth=9, branching=9)
    shapes = Counter()
    for seed in range(20):
        tree = drafter.propose(drafter.start(PROMPT, RandomSource(seed)), 9, sampling).tree
        drew, left = reference.dyspec_values(tree, DRAFT.distribution, PROMPT)
        assert np.allclose(drew, sorted(drew, reverse=True))
        assert drew[-1] >= max(left) - 1e-9
        shapes[tuple(tree.parents.tolist())] += 1
    assert len(shapes) > 3 or sampling.greedy


def test_a_tree_that_grows_by_a_constant_has_one_shape():
    """With half of all tokens accepted, a child of a drawn token is worth as much as its next sibling."""
    shapes = {share: set() for share in (0.0, 0.5, 0.9)}
    for share, seed in product(shapes, range(5)):
        drafter = DySpecTree(DRAFT, max_nodes=8, depth=9, branching=3, accepted=share)
        tree = drafter.propose(drafter.start(PROMPT, RandomSource(seed)), 9, WARM).tree
        shapes[share].add(tuple(tree.parents.tolist()))
    assert {share: len(found) for share, found in shapes.items()} == dict.fromkeys(shapes, 1)
    depths = [max(dt.TokenTree.build([0] * 8, min(found)).depths) for found in shapes.values()]
    assert depths == sorted(depths)
    assert depths[0] < depths[-1]


@pytest.mark.parametrize("rule", [dt.TokenLevel, dt.Traversal], ids=lambda rule: rule.name)
@pytest.mark.parametrize("share", [0.3, 0.6])
def test_rules_are_lossless_on_trees_that_grow_by_a_constant(rule, share):
    target = ToyModel.random(3, 5)
    drafter = DySpecTree(target.mixed(ToyModel.random(3, 14), 0.7), max_nodes=4, accepted=share)
    assert exact.bias(target, drafter, rule(), [0], WARM)[0] < 1e-12


@pytest.mark.parametrize("rule", [dt.TokenLevel, dt.Traversal], ids=lambda rule: rule.name)
def test_rules_are_lossless_where_one_branch_decides_how_another_grows(rule):
    shapes = set()
    for seed in range(4):
        target = ToyModel.random(3, seed)
        drafter = DySpecTree(target.mixed(ToyModel.random(3, seed + 9), 0.7), max_nodes=4)
        shapes |= {tuple(proposal.tree.parents) for proposal, _ in exact.proposals(drafter, [0], WARM)}
        assert exact.bias(target, drafter, rule(), [0], WARM)[0] < 1e-12
    assert len(shapes) > 3
