"""Drafters that draft inside the target's own forward, or need none: literal twins, masks, pools, ends of texts."""

from functools import cache
from itertools import pairwise

import numpy as np
import pytest
import reference
import torch
from models import hf_greedy, prompt, random_model
from test_decoding import Letters
from test_pool import flat

from dynatree_lib import (
    ProgressiveTree,
    PromptLookup,
    RandomSource,
    Sampling,
    TargetWalk,
    TokenTree,
    ToyModel,
    autoregressive,
    generate,
)
from dynatree_lib.costs import Costs
from dynatree_lib.drafters.progressive_tree import PRIOR
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import GREEDY
from dynatree_lib.verifiers.base import follow_argmax
from dynatree_suite.bench.methods import variant
from dynatree_suite.drafters import Lookahead, SelfDraft

KINDS = (ProgressiveTree, Lookahead, SelfDraft, PromptLookup)
POOLED = KINDS[:3]
SMALL = {
    "ptd": ProgressiveTree(depth=3, children=2, start_tree=(2,)),
    "ptd-text": ProgressiveTree(depth=4, children=3, start_tree=(2, 2), max_draft=12, max_candidates=9, text_depth=3),
    "lookahead": Lookahead(window=4, ngram=4, guesses=4),
    "lookahead-text": Lookahead(window=3, ngram=3, guesses=5, text=True),
    "self-draft": SelfDraft(branches=3, length=3, ngram=4, candidates=5),
    "prompt-lookup": PromptLookup(length=5),
}
FORWARD = {name: drafter for name, drafter in SMALL.items() if name != "prompt-lookup"}


def every(drafters):
    return pytest.mark.parametrize("drafter", drafters.values(), ids=drafters)


def shifting(size, seed, order=2, era=12, sharpness=2.0, **options):
    """A law of the last `order` tokens that changes every `era` tokens: the greedy text repeats itself for a while."""

    @cache
    def row(era, recent):
        logits = np.random.default_rng([seed, era, *(token + 1 for token in recent)]).normal(size=size) * sharpness
        weights = np.exp(logits)
        return (weights / weights.sum()).tolist()

    return ToyModel(lambda text: row(len(text) // era, text[-order:]), size, **options)


def counting(size, **options):
    """The next token is the last one plus 1."""

    def row(text):
        return [0.9 if token == (text[-1] + 1) % size else 0.1 / (size - 1) for token in range(size)]

    return ToyModel(row, size, **options)


def driven(target, text, drafter, budget, seed=0):
    """The loop by hand: (proposal, rows, verdict, state, room) of each iteration, greedy."""
    session, drafting = target.session(), drafter.start(text, RandomSource(seed, "draft"))
    session.start(text[:-1])
    left = budget
    while left:
        max_depth = min(target.context - session.position - 1, left) - 1
        proposal = drafter.propose(drafting, max_depth)
        scores = session.score(*proposal.nodes, GREEDY)
        verdict = follow_argmax(proposal.tree, scores)
        drafting = drafter.observe(drafting, proposal, scores, verdict)
        session.commit([0, *verdict.path])
        left -= len(verdict.path) + 1
        yield proposal, scores, verdict, drafting, max_depth


def committed(proposal, verdict):
    return [*proposal.tree.tokens[list(verdict.path)].tolist(), verdict.next_token]


def arrays(tree):
    return None if tree is None else (tree.tokens.tolist(), tree.parents.tolist())


def paths(tree):
    """The token path to every node below node 0, sorted."""
    if tree is None:
        return None
    return sorted(tuple(tree.tokens[tree.path(node)].tolist()) for node in range(1, len(tree)))


def trees(out):
    return [(arrays(one.tree), arrays(one.side_tree)) for one in out.iterations]


def lively(accepted, most=2):
    """Whether a text has misses and paths of some length, so that equality says something."""
    assert max(accepted) >= min(most, 2)
    assert min(accepted) == 0


# ---------------------------------------------------------------------------------------------------- literal versions
PTD_CASES = [
    {},
    {"depth": 1, "children": 1, "start_tree": (1,)},
    {"depth": 3, "children": 2, "start_tree": (2, 2), "max_draft": 8, "max_candidates": 3},
    {"depth": 4, "children": 3, "start_tree": (3,), "max_draft": 12, "prune_first": False},
    {"depth": 2, "children": 4, "start_tree": (2, 1), "text_depth": 2},
    {"depth": 5, "children": 2, "start_tree": (4,), "max_draft": 24, "text_depth": 7},
    {"depth": 3, "children": 2, "start_tree": (2,), "max_draft": 5, "max_pool": 110},
    {"depth": 3, "children": 2, "start_tree": (2,), "max_draft": 6, "max_pool": 150, "text_depth": 2},
    {"depth": 3, "start_tree": (2,), "text_depth": 3, "costs": Costs((1.0, 1.2, 1.3, 1.6, 2.4, 4.8, 9.6))},
]


def test_the_cases_under_test_evict():
    for case in PTD_CASES:
        if "max_pool" in case:
            out = generate(shifting(9, 1), [1, 2, 3], ProgressiveTree(**case), max_new_tokens=150)
            assert (np.diff([one.report["pool_nodes"] for one in out.iterations]) < 0).any()


@pytest.mark.parametrize("case", PTD_CASES, ids=str)
@pytest.mark.parametrize("seed", [1, 2])
def test_progressive_tree_is_algorithm_1(case, seed):
    """Draft tree, candidate tree, committed tokens, pool and learnt chances at every iteration of whole texts."""
    target, text, drafter = shifting(9, seed, era=20), [1, 2, 3, 1, 5], ProgressiveTree(**case)
    predict = reference.greedy_of(target.distribution)
    initial = reference.branches_of(drafter.propose(drafter.start(text, RandomSource(seed, "draft")), 99).side_tree)
    verify = None
    if drafter.costs is not None:
        points = drafter.costs.verify
        verify = lambda rows: float(np.interp(rows, [2**place for place in range(len(points))], points))  # noqa: E731
    caps = (drafter.depth, drafter.children, drafter.max_draft, drafter.max_candidates)
    twin = reference.ProgressiveTwin(
        predict, predict, [*text], initial, *caps, reference.PathPool(drafter.max_pool), drafter.text_depth,
        drafter.prune_first, [5 * share for share in PRIOR], [5.0] * len(PRIOR), verify, 50 * drafter.rate, 50.0,
    )  # fmt: skip
    accepted = []
    for proposal, _, verdict, state, max_depth in driven(target, text, drafter, 90, seed):
        draft, candidates, tokens = twin.iteration(max_depth)
        assert (arrays(proposal.side_tree), arrays(proposal.tree)) == (draft, candidates)
        assert committed(proposal, verdict) == tokens
        assert flat(state.pool) == twin.pool.paths
        assert (state.rates.right, state.rates.tried) == (twin.right, twin.tried)
        assert [state.pace.committed, state.pace.spent] == pytest.approx([twin.committed, twin.spent])
        accepted.append(len(verdict.path))
    lively(accepted, drafter.depth)


def test_drawn_expansion_is_algorithm_1_with_drawn_tokens():
    """Section 4.2.4: top-k, then a draw for each node of the draft tree in the order of its rows."""
    target, text = shifting(9, 3), [1, 2, 3, 1, 5]
    drafter = ProgressiveTree(depth=3, children=3, start_tree=(2,), temperature=1.0, top_k=3)
    random = RandomSource(0, "draft")
    initial = reference.branches_of(drafter.propose(drafter.start(text, random), 99).side_tree)

    def drawn(context):
        return random.draw(torch.tensor(reference.tempered(target.distribution(context), Sampling(1.0, top_k=3))))

    caps = (drafter.depth, drafter.children, drafter.max_draft, drafter.max_candidates)
    twin = reference.ProgressiveTwin(
        reference.greedy_of(target.distribution), drawn, [*text], initial, *caps, reference.PathPool(20_000), 0, True,
        [5 * share for share in PRIOR], [5.0] * len(PRIOR),
    )  # fmt: skip
    for proposal, _, verdict, state, max_depth in driven(target, text, drafter, 60):
        draft, candidates, tokens = twin.iteration(max_depth)
        assert (arrays(proposal.side_tree), arrays(proposal.tree)) == (draft, candidates)
        assert committed(proposal, verdict) == tokens
        assert flat(state.pool) == twin.pool.paths


def same_ngrams(pool, twin, size):
    assert [pool.after(token) for token in range(size)] == [twin.known.get(token, [])[::-1] for token in range(size)]


@pytest.mark.parametrize(
    "case",
    [{"window": 4, "ngram": 4, "guesses": 3}, {"window": 1, "ngram": 2, "guesses": 2}, {"window": 3, "ngram": 2},
     {"window": 1, "ngram": 4}, {"window": 5, "ngram": 3, "text": True}, {"window": 3, "ngram": 6, "guesses": 20}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("seed", [1, 2])
def test_lookahead_is_the_window_of_fu_et_al(case, seed):
    target, text, drafter = shifting(9, seed), [1, 2, 3, 1, 5], Lookahead(**case)
    first = drafter.start(text, RandomSource(seed, "draft")).levels[0]
    twin = reference.LookaheadTwin(
        reference.greedy_of(target.distribution), [*text], {}, drafter.guesses, drafter.ngram, drafter.text,
        past=[first, *[None] * (drafter.ngram - 2)], window=drafter.window,
    )  # fmt: skip
    accepted, rows = [], 0
    for proposal, _, verdict, state, max_depth in driven(target, text, drafter, 90, seed):
        lines, found, tokens = twin.iteration(max_depth)
        rows = rows if lines is None else len(lines)
        assert (paths(proposal.side_tree) or []) == sorted(lines or [])
        assert paths(proposal.tree) == sorted(found)
        assert committed(proposal, verdict) == tokens
        same_ngrams(state.pool, twin, 9)
        accepted.append(len(verdict.path))
    assert rows == (drafter.ngram - 1) * drafter.window - 1
    lively(accepted, drafter.ngram - 1)


@pytest.mark.parametrize(
    "case",
    [{}, {"branches": 1, "length": 1, "perturbation": 1, "ngram": 2, "candidates": 1, "text": False},
     {"branches": 4, "length": 3, "perturbation": 3, "ngram": 3, "text": False}, {"length": 6, "ngram": 8}],
    ids=str,
)  # fmt: skip
@pytest.mark.parametrize("seed", [1, 2])
def test_self_draft_is_its_branches(case, seed):
    target, text, drafter = shifting(9, seed), [1, 2, 3, 1, 5], SelfDraft(**case)
    branches = drafter.start(text, RandomSource(seed, "draft")).branches
    full = [drafter.length, *(len(branch) + drafter.length for branch in branches[1:])]  # the first is not perturbed
    assert {len(branch) for branch in branches} <= set(range(1, drafter.perturbation + 1))
    twin = reference.SelfDraftTwin(
        reference.greedy_of(target.distribution), [*text], {}, drafter.candidates, drafter.ngram, drafter.text,
        branches=[[*branch] for branch in branches], full=full,
    )  # fmt: skip
    accepted = []
    for proposal, _, verdict, state, max_depth in driven(target, text, drafter, 90, seed):
        lines, found, tokens = twin.iteration(max_depth)
        assert (paths(proposal.side_tree), paths(proposal.tree)) == (lines and sorted(lines), sorted(found))
        assert committed(proposal, verdict) == tokens
        same_ngrams(state.pool, twin, 9)
        accepted.append(len(verdict.path))
    lively(accepted, drafter.ngram - 1)


def test_prompt_lookup_copies_from_the_latest_place():
    """Against a search from the end of the text: the longest n-gram that occurred before, its latest occurrence."""
    rng, drafter, found = np.random.default_rng(0), PromptLookup(ngram=3, length=6, shortest=2), 0
    for _ in range(300):
        text = rng.integers(0, 4, int(rng.integers(1, 20))).tolist()
        max_depth = int(rng.integers(0, 9))
        expected = []
        for size in (3, 2):
            places = [end for end in range(size, len(text)) if text[end - size : end] == text[-size:]]
            if places and len(text) >= size:
                for _ in range(min(max_depth, 6)):
                    expected.append([*text, *expected][places[-1] + len(expected)])
                break
        tree = drafter.propose(drafter.start(text, RandomSource()), max_depth).tree
        assert arrays(tree) == ([text[-1], *expected], list(range(-1, len(expected))))
        found += bool(expected)
    assert found > 100


@every(SMALL)
def test_the_loop_does_what_the_hand_does(drafter):
    target, text = shifting(9, 4), [1, 2, 3, 1, 5]
    out = generate(target, text, drafter, max_new_tokens=60)
    hand = [(arrays(one.tree), arrays(one.side_tree)) for one, *_ in driven(target, text, drafter, 60)]
    assert trees(out) == hand
    assert out.tokens == autoregressive(target, text, max_new_tokens=60).tokens


# ------------------------------------------------------------------------------------------------- the forward's mask
@every(FORWARD)
@pytest.mark.parametrize("kind", ["gpt_neox", "llama", "gpt2", "mistral-window", "opt", "falcon"])
def test_every_row_is_a_plain_forward_over_its_path(kind, drafter):
    """Tree and draft nodes see text, own path and nothing else, at positions by depth; after commits too."""
    target, ids = random_model(kind), prompt(14)[0].tolist()
    checked = accepted = 0
    with torch.inference_mode():
        for number, (proposal, rows, verdict, _, _) in enumerate(driven(target, ids, drafter, 60)):
            tree, side_tree = proposal.tree, proposal.side_tree
            if number in (0, 3, 9) or (len(tree) > 2 and checked < 5):
                assert len(rows) == len(tree) + len(side_tree) - 1
                plain = reference.paths_one_by_one(target.model, ids[:-1], tree)
                assert torch.allclose(rows.logits[: len(tree)], plain, rtol=0, atol=1e-9)
                plain = reference.paths_one_by_one(target.model, ids[:-1], side_tree)
                assert torch.allclose(rows.logits[len(tree) :], plain[1:], rtol=0, atol=1e-9)
                checked += 1
            ids += committed(proposal, verdict)
            accepted += len(verdict.path)
            if checked == 5:
                break
    assert checked >= 3


def test_nodes_are_the_tree_and_then_what_is_beside_it():
    for drafter in FORWARD.values():
        for proposal, *_ in driven(shifting(9, 5), [1, 2, 3, 1, 5], drafter, 40):
            tree, side_tree = proposal.tree, proposal.side_tree
            whole = TokenTree.build(*proposal.nodes)
            assert arrays(reference.subtree(whole, range(len(tree)))) == arrays(tree)
            if side_tree is not None:
                rest = [0, *range(len(tree), len(whole))]
                assert arrays(reference.subtree(whole, rest)) == arrays(side_tree)
                assert tree.tokens[0] == side_tree.tokens[0]


# ---------------------------------------------------------------------------------------------- from text to text
@every(SMALL)
def test_texts_share_nothing(drafter):
    """One drafter object for two texts gives the rounds of fresh ones; so does the same text again."""
    target = shifting(9, 6)
    first = generate(target, [1, 2, 3], drafter, max_new_tokens=50)
    second = generate(target, [4, 5, 1], drafter, max_new_tokens=50)
    again = generate(target, [1, 2, 3], drafter, max_new_tokens=50)
    fresh = generate(target, [4, 5, 1], type(drafter)(**vars_of(drafter)), max_new_tokens=50)
    assert trees(first) == trees(again)
    assert trees(second) == trees(fresh)


def vars_of(drafter):
    return {name: getattr(drafter, name) for name in drafter.__dataclass_fields__}


def content(state):
    """What is in a state's pool."""
    pool = state.drafter_state.pool
    return flat(pool) if hasattr(pool, "roots") else [pool.after(token) for token in range(9)]


@every(FORWARD)
def test_a_warm_text_has_the_pool_and_nothing_else_of_the_earlier_one(drafter):
    target = shifting(9, 7, era=40)
    first = generate(target, [1, 2, 3], drafter, max_new_tokens=50)
    pool, size, root = content(first.state), drafter.report(first.state.drafter_state), first.state.drafter_state.root
    cold = generate(target, [4, 5, 1], drafter, max_new_tokens=50)
    warm = generate(target, [4, 5, 1], drafter, max_new_tokens=50, warm=first.state)
    assert warm.tokens == cold.tokens
    assert list(warm.iterations[0].report.values()) >= list(size.values())
    assert arrays(warm.iterations[0].side_tree) == arrays(cold.iterations[0].side_tree)
    assert len(warm.iterations[0].tree) + len(warm.iterations[1].tree) > len(cold.iterations[0].tree) + len(
        cold.iterations[1].tree
    )
    assert (content(first.state), drafter.report(first.state.drafter_state)) == (pool, size)
    assert first.state.drafter_state.root == root
    on = generate(target, [], drafter, max_new_tokens=30, state=first.state)
    whole = generate(target, [1, 2, 3], drafter, max_new_tokens=80)
    assert first.tokens + on.tokens == whole.tokens


@pytest.mark.parametrize("name", ["ptd-text", "lookahead-text", "self-draft"])
def test_a_warm_text_still_pools_its_own_prompt(name):
    target, drafter, text = shifting(9, 7), SMALL[name], [8, 7, 6, 5, 4, 8]
    first = generate(target, [1, 2, 3], drafter, max_new_tokens=3)
    for earlier in (None, first.state):
        tree = generate(target, text, drafter, max_new_tokens=20, warm=earlier).iterations[0].tree
        assert 7 in tree.tokens[tree.children(0)]


def test_a_warm_text_leaves_what_the_earlier_one_learnt():
    target, drafter = shifting(9, 7), SMALL["ptd-text"]
    earlier = generate(target, [1, 2, 3], drafter, max_new_tokens=30).state
    before = ([*earlier.drafter_state.rates.right], [*earlier.drafter_state.rates.tried])
    generate(target, [4, 5], drafter, max_new_tokens=30, warm=earlier)
    assert (earlier.drafter_state.rates.right, earlier.drafter_state.rates.tried) == before


def test_a_turn_is_read_like_a_prompt():
    drafter = ProgressiveTree(text_depth=3)
    whole = drafter.start([1, 2, 3, 1, 2, 5], RandomSource())
    turned = drafter.extend(drafter.start([1, 2, 3], RandomSource()), [1, 2, 5])
    assert {node.token for node in turned.pool.roots[2].children.values()} == {3, 5}
    trees = [drafter.propose(state, 9).tree.tokens.tolist() for state in (whole, turned)]
    assert (trees[0], turned.pool.nodes, turned.root) == (trees[1], whole.pool.nodes, 5)


def test_a_candidate_that_was_too_dear_is_learnt_of_too():
    """What is not verified for its price must not stay so for ever: its chance follows the text all the same."""
    dear = ProgressiveTree(text_depth=3, costs=Costs((1.0, 9.0, 99.0)))
    out = generate(counting(5), [0, 1, 2, 3, 4, 0], dear, max_new_tokens=8)
    assert all(len(one.tree) == 1 for one in out.iterations)
    assert out.state.drafter_state.rates[0] > 0.6 > 0.5 == dear.start([0], RandomSource()).rates[0]


def test_a_warm_text_counts_the_nodes_it_has():
    target, drafter, state = shifting(9, 7), SMALL["ptd-text"], None
    for _ in range(3):
        state = generate(target, [1, 2, 3, 4, 5], drafter, max_new_tokens=12, warm=state).state
        assert state.drafter_state.pool.nodes == len(flat(state.drafter_state.pool))


@pytest.mark.parametrize(
    "spec", ["ptd:depth=3", "ptd:depth=3,text_depth=3", "lookahead:window=4,ngram=4", "self-draft"]
)
def test_carry_begins_each_text_with_the_pool_of_the_one_before(spec):
    target = shifting(9, 8, era=40)
    pair = Pair("toy", target, target, None)
    texts = ([1, 2, 3], [4, 5, 1], [2, 2, 7])

    def run(given):
        made, out = variant(given), []
        runner = made.runner(pair)
        for text in texts:
            out.append(
                runner(text, max_new_tokens=40, eos_token_ids=(), on_tokens=lambda _: None, sampling=GREEDY, seed=0)
            )
        return made.carries, out

    (plain, cold), (carries, warm) = run(spec), run(f"{spec}{',' if ':' in spec else ':'}carry=true")
    assert (plain, carries) == (False, True)
    for text, one, other in zip(texts, cold, warm, strict=True):
        assert one.tokens == other.tokens == autoregressive(target, text, max_new_tokens=40).tokens
        (size,) = one.iterations[0].report.values()
        (carried,) = other.iterations[0].report.values()
        assert carried > size or text == texts[0]


# ----------------------------------------------------------------------------------------------------- bounded pools
def tight(**options):
    """With the smallest pool that is not refused."""
    with pytest.raises(ValueError, match="max_pool is 1; .* give at least") as refusal:
        ProgressiveTree(max_pool=1, **options)
    return ProgressiveTree(max_pool=int(str(refusal.value).split("at least ")[-1][:-1]), **options)


def check_pool(out, drafter):
    """The bound holds between iterations, and what is counted is there."""
    assert max(one.report["pool_nodes"] for one in out.iterations) <= drafter.max_pool
    assert out.state.drafter_state.pool.nodes == len(flat(out.state.drafter_state.pool)) <= drafter.max_pool


@pytest.mark.parametrize("text_depth", [0, 1, 3, 9, 30])
@pytest.mark.parametrize("prune_first", [True, False])
def test_the_smallest_pool_keeps_its_bound_and_the_text(text_depth, prune_first):
    rng, forgot = np.random.default_rng(text_depth), 0
    for seed in range(12):
        depth = int(rng.integers(1, 6))
        drafter = tight(
            depth=depth, children=int(rng.integers(1, 4)), start_tree=(2,), max_draft=depth + int(rng.integers(1, 7)),
            text_depth=text_depth, prune_first=prune_first,
        )  # fmt: skip
        target = shifting(3 + seed % 9, seed, order=1 + seed % 2, era=7 + 3 * seed)
        out = generate(target, [1, 2, 1], drafter, max_new_tokens=120)
        assert out.tokens == autoregressive(target, [1, 2, 1], max_new_tokens=120).tokens
        check_pool(out, drafter)
        sizes = [one.report["pool_nodes"] for one in out.iterations]
        forgot += int((np.diff(sizes) < 0).any())
        assert all(after > 0 for before, after in pairwise(sizes) if before)  # never all of it
    assert forgot >= 1


def test_a_long_prompt_or_turn_does_not_empty_the_pool():
    text = np.random.default_rng(0).integers(0, 9, 1500).tolist()
    drafter = tight(depth=3, children=2, start_tree=(2,), max_draft=8, text_depth=3)
    out = generate(shifting(9, 1), text, drafter, max_new_tokens=3)
    check_pool(out, drafter)
    assert min(one.report["pool_nodes"] for one in out.iterations) >= drafter.max_pool // 4
    state, more = out.state, generate(shifting(9, 1), text, drafter, max_new_tokens=1)
    assert more.tokens == out.tokens[:1]
    turn = generate(state.model, text, drafter, max_new_tokens=3, state=state)
    check_pool(turn, drafter)
    assert min(one.report["pool_nodes"] for one in turn.iterations) >= drafter.max_pool // 4


def test_no_draft_tree_has_more_rows_than_its_cap():
    drafter = ProgressiveTree(depth=3, start_tree=(4, 4), max_draft=6)
    out = generate(shifting(30, 1), list(range(30)), drafter, max_new_tokens=30)
    assert max(len(one.side_tree) - 1 for one in out.iterations if one.side_tree is not None) <= 6


@pytest.mark.parametrize("rows", [1, 3, 4, 6])
def test_a_capped_draft_tree_still_steps(rows):
    """A cap below a path of full depth would score the same rows for ever."""
    if rows <= 3:
        with pytest.raises(ValueError, match=f"max_draft is {rows} and depth 3; .* at least 4 nodes"):
            ProgressiveTree(depth=3, start_tree=(1,), max_draft=rows)
        return
    drafter = ProgressiveTree(depth=3, start_tree=(2,), max_draft=rows)
    out = generate(shifting(30, 1), [1, 2, 3], drafter, max_new_tokens=60)
    drafted = [arrays(one.side_tree) for one in out.iterations if one.side_tree is not None]
    assert len({(*tokens[1:],) for tokens, _ in drafted}) > len(drafted) // 2


# ---------------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("make", "words"),
    [(lambda: ProgressiveTree(depth=0), "depth is 0; give a whole number of at least 1"),
     (lambda: ProgressiveTree(children=0), "children is 0; give a whole number of at least 1"),
     (lambda: ProgressiveTree(depth=2.0), "depth is 2.0; give a whole number"),
     (lambda: ProgressiveTree(children="4"), "children is '4'; give a whole number"),
     (lambda: ProgressiveTree(max_draft=0), "max_draft is 0; give a whole number of at least 1"),
     (lambda: ProgressiveTree(max_candidates=0), "max_candidates is 0; give a whole number of at least 1"),
     (lambda: ProgressiveTree(max_candidates=1.5), "max_candidates is 1.5; give a whole number"),
     (lambda: ProgressiveTree(max_pool=10), "max_pool is 10; .* so give at least"),
     (lambda: ProgressiveTree(start_tree=()), r"start_tree is \(\); give a whole number of at least 1"),
     (lambda: ProgressiveTree(start_tree=(2, 0)), r"start_tree is \(2, 0\); give a whole number of at least 1"),
     (lambda: ProgressiveTree(depth=1, start_tree=(1, 1)), r"start_tree is \(1, 1\) and depth 1; .* at most 1 levels"),
     (lambda: ProgressiveTree(rate=0.0), "rate is 0.0; the rule is 0 < rate < inf"),
     (lambda: ProgressiveTree(rate=float("nan")), "rate is nan; the rule is 0 < rate < inf"),
     (lambda: ProgressiveTree(temperature=-1.0), "temperature is -1.0"),
     (lambda: ProgressiveTree(temperature=1.0, top_p=0.0), "top_p is 0.0"),
     (lambda: ProgressiveTree(costs=(1.0, 1.1)), "give Costs"),
     (lambda: Lookahead(window=0), "window is 0; give a whole number of at least 1"),
     (lambda: Lookahead(guesses=0), "guesses is 0; give a whole number of at least 1"),
     (lambda: Lookahead(ngram=1), "ngram is 1; .* at least 2"),
     (lambda: Lookahead(window=2.5), "window is 2.5; give a whole number"),
     (lambda: SelfDraft(branches=0), "branches is 0; give a whole number of at least 1"),
     (lambda: SelfDraft(length=0), "length is 0; give a whole number of at least 1"),
     (lambda: SelfDraft(perturbation=0), "perturbation is 0; give a whole number of at least 1"),
     (lambda: SelfDraft(candidates=0), "candidates is 0; give a whole number of at least 1"),
     (lambda: SelfDraft(ngram=1), "ngram is 1; .* at least 2"),
     (lambda: SelfDraft(ngram=7), "ngram is 7 .* at most 6"),
     (lambda: SelfDraft(ngram=None), "ngram is None; .* give a whole number of at least 2"),
     (lambda: PromptLookup(length=0), "length is 0; give a whole number of at least 1"),
     (lambda: PromptLookup(ngram=1, shortest=2), "shortest is 2, ngram is 1; the rule is shortest <= ngram"),
     (lambda: PromptLookup(shortest=0), "shortest is 0; give a whole number of at least 1"),
     (lambda: PromptLookup(ngram=2.0), "ngram is 2.0; give a whole number"),
     (lambda: ProgressiveTree(start_tree=(1.5,)), "start_tree is .*1.5"),
     (lambda: ProgressiveTree(start_tree=0), "start_tree is 0"),
     ],
)  # fmt: skip
def test_bad_options_are_refused_with_the_value_and_the_way_out(make, words):
    with pytest.raises(ValueError, match=words):
        make()


def needed(drafter):
    """The least context that is not refused: of a prompt of one token, everything beside the tree, and two more."""
    if isinstance(drafter, PromptLookup):
        return 1
    if isinstance(drafter, Lookahead):
        return max(drafter.window + drafter.ngram - 3, 0) + 2
    return 2 + (drafter.depth + 1 if isinstance(drafter, ProgressiveTree) else drafter.length + drafter.perturbation)


@every({**FORWARD, "two rows": Lookahead(window=2, ngram=2), "one": Lookahead(window=1, ngram=2)})
def test_a_window_beyond_the_context_is_refused_before_any_forward(drafter):
    least = needed(drafter)
    assert generate(counting(9, context=least), [1], drafter, max_new_tokens=1).tokens == [2]
    target = counting(9, context=least - 1)
    target.session = None  # not even a session is asked for
    if target.context > 1:
        with pytest.raises(ValueError, match=f"context of 'toy' is {least - 1}; make it smaller"):
            generate(target, [1], drafter)


# ------------------------------------------------------------------------------------------------------ ends of texts
@every(SMALL)
def test_eos_inside_an_accepted_path(drafter):
    """A target that counts: drafts run ahead of the text, beyond the token that ends it."""
    target = counting(17)
    text = [*range(0, 17, 3), *range(17), 0]
    inside = 0
    for eos in range(1, 17):
        out = generate(target, text, drafter, max_new_tokens=60, eos_token_ids=eos)
        assert (out.tokens, out.finish_reason) == (list(range(1, eos + 1)), "eos")
        last = out.iterations[-1]
        line = paths(last.tree)
        inside += tuple(out.tokens[-last.committed :]) in line and any(len(path) > last.committed for path in line)
        more = generate(target, [], drafter, max_new_tokens=9, eos_token_ids=(), state=out.state)
        assert more.tokens == [(eos + step) % 17 for step in range(1, 10)]
    assert inside >= 3


def test_a_token_at_which_the_text_is_cut_was_right():
    # Where EOS cuts an accepted path, the verdict's next token is one of the candidates.
    target, drafter = counting(17), ProgressiveTree(depth=4, children=1, start_tree=(4,), max_candidates=4)
    text = [*range(0, 17, 3), 0]
    for eos in range(8, 17):
        out = generate(target, text, drafter, max_new_tokens=60, eos_token_ids=eos)
        last = out.iterations[-1]
        if tuple(out.tokens[-last.committed :]) in paths(last.tree) and last.committed > 1:
            assert out.state.drafter_state.rates[0] > learnt_before(target, text, drafter, len(out.iterations) - 1)[0]
            return
    raise AssertionError("No text was cut inside an accepted path.")


def learnt_before(target, text, drafter, iterations):
    """Chances by rank after so many iterations."""
    for number, (*_, state, _) in enumerate(driven(target, text, drafter, 60), 1):
        if number == iterations:
            return state.rates
    raise AssertionError("The text has fewer iterations.")


@every(SMALL)
def test_budgets_and_contexts_of_every_size(drafter):
    distribution = shifting(9, 2).distribution
    for budget in range(1, 14):
        target = ToyModel(distribution, 9)
        out = generate(target, [1, 2, 1], drafter, max_new_tokens=budget)
        assert out.tokens == autoregressive(target, [1, 2, 1], max_new_tokens=budget).tokens
    for context in range(4, 24):
        target = ToyModel(distribution, 9, context=context)
        if context < needed(drafter):
            with pytest.raises(ValueError, match="make it smaller"):
                generate(target, [1, 2, 1], drafter)
            continue
        out = generate(target, [1, 2, 1], drafter, max_new_tokens=40)
        assert (out.tokens, out.finish_reason) == (
            autoregressive(target, [1, 2, 1], max_new_tokens=40).tokens,
            "context",
        )
        position = 2
        for one in out.iterations:
            for tree in (one.tree, one.side_tree):
                assert tree is None or position + tree.depth < context - 1
            position += one.committed


@every(SMALL)
def test_a_text_in_pieces_is_drafted_like_the_text_as_a_whole(drafter):
    target = shifting(9, 2)
    whole = generate(target, [1, 2, 1], drafter, max_new_tokens=60)
    state, text, rows = None, [], 0
    for _ in range(20):
        out = generate(target, [] if state else [1, 2, 1], drafter, max_new_tokens=3, state=state)
        state, text = out.state, text + out.tokens
        rows += sum(one.side_tree is not None for one in out.iterations)
        assert all(one.side_tree is not None for one in out.iterations) or whole.iterations[0].side_tree is None
    assert text == whole.tokens
    assert rows or isinstance(drafter, PromptLookup) or whole.iterations[0].side_tree is None


@every(SMALL)
@pytest.mark.parametrize("max_depth", [0, 1, 2, 3, 5])
def test_room_is_respected_and_proposals_repeat(drafter, max_depth):
    state = drafter.start([1, 2, 1, 2, 1], RandomSource())
    proposal = drafter.propose(state, max_depth)
    assert proposal.tree.depth <= max_depth
    assert arrays(drafter.propose(state, max_depth).side_tree) == arrays(proposal.side_tree)


@every(SMALL)
def test_learned_positions_end_at_the_context(drafter):
    target = random_model("gpt2")
    for size in (588, 597, 599):
        out = generate(target, prompt(size), drafter, max_new_tokens=50)
        assert (out.tokens, out.finish_reason) == (hf_greedy(target, prompt(size), 600 - size), "context")


@every(SMALL)
@pytest.mark.parametrize("turn", [[], [3], [3, 4, 5, 1, 2, 3, 4, 5]], ids=len)
def test_continuing_equals_starting_over(drafter, turn):
    target, text, state = shifting(9, 9), [1, 2], None
    for budget in (9, 1, 30):
        given = turn if state else text
        out = generate(target, given, drafter, max_new_tokens=budget, state=state)
        text = [*text, *(turn if state else [])]
        assert out.tokens == autoregressive(target, text, max_new_tokens=budget).tokens
        text, state = [*text, *out.tokens], out.state
        assert (
            state.drafter_state[0].text == text
            if isinstance(drafter, PromptLookup)
            else state.drafter_state.root == text[-1]
        )


@every(SMALL)
def test_stop_strings_end_the_text_with_the_token_that_completes_them(drafter):
    target, text = counting(20), [*range(0, 20, 3), *range(20), 0]
    whole = Letters().decode(range(1, 20))
    for start, length in ((0, 1), (2, 3), (7, 2), (4, 9)):
        stop = whole[start : start + length]
        out = generate(target, text, drafter, max_new_tokens=60, stop_strings=stop, tokenizer=Letters())
        assert (Letters().decode(out.tokens), out.finish_reason) == (whole[: start + length], "stop")


# ----------------------------------------------------------------------------------------------------------- sampling
@every({**SMALL, "ptd-drawn": ProgressiveTree(depth=3, start_tree=(2,), temperature=0.8, top_p=0.9)})
@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.4, top_k=3), Sampling(0.7, top_p=0.8)], ids=str)
def test_a_sampled_text_is_plain_samplings_with_the_same_seed(drafter, sampling):
    target, accepted, texts = shifting(9, 10, sharpness=3.0), 0, set()
    for seed in range(4):
        options = {"sampling": sampling, "seed": seed, "max_new_tokens": 50}
        out = generate(target, [1, 2, 3, 1], drafter, verifier=TargetWalk(), **options)
        again = generate(target, [1, 2, 3, 1], drafter, **options)
        assert (out.tokens, trees(out)) == (again.tokens, trees(again))
        assert out.tokens == autoregressive(target, [1, 2, 3, 1], **options).tokens
        accepted += 50 - len(out.iterations)
        texts.add(tuple(out.tokens))
    assert accepted > 0
    assert len(texts) == 4
