"""Whether drafting without a draft model is exact: the distribution of whole texts, and the paper's listings.

`test_lossless.py` enumerates one iteration after a prompt, where these drafters have nothing to propose yet. Here whole
texts are enumerated through the production loop, pools filled on the way or by an earlier text.
"""

from collections import defaultdict
from itertools import pairwise, product

import numpy as np
import pytest
from examples import EVERY, examples

from dynatree_lib import (
    ProgressiveTree,
    Sampling,
    TargetWalk,
    TokenLevel,
    TokenTree,
    ToyModel,
    autoregressive,
    generate,
)
from dynatree_lib.drafters import NoDraft, PromptLookup, SampledTree
from dynatree_lib.drafters.base import Proposal
from dynatree_lib.drafters.pool import TokenNode
from dynatree_lib.verifiers import Drawing
from dynatree_suite.papers.ptd.listings import (
    READINGS,
    LineTwenty,
    ListedSampling,
    cover_rows,
    eligible,
    line_twenty_row,
    overlap_gap,
    overlap_rows,
)
from dynatree_suite.proofs import exact

ONE = Sampling(1.0)
TINY = 1e-12
PROMPT = [0, 1, 2, 0, 0, 1, 2]
LENGTH = 4


def toy(size=3, seed=5, sharpness=1.0):
    return ToyModel.random(size, seed=seed, sharpness=sharpness)


TARGET = toy()
WANTED = exact.text_distribution(TARGET, PROMPT, LENGTH, ONE)
MODEL_FREE = [
    drafter
    for kind in EVERY
    for drafter in examples(kind, TARGET)
    if drafter.model is None and drafter.drawing is Drawing.FIXED
]


def off(found):
    """Deviation of a distribution of texts: no text is missing, no mass lost."""
    assert sum(found.distribution.values()) == pytest.approx(1, abs=TINY)
    return exact.distance(found.distribution, WANTED)


def warmed(drafter):
    """A text's state for the next one to begin with: the pool is full."""
    return generate(TARGET, PROMPT, drafter, sampling=ONE, seed=3, max_new_tokens=40).state


def starts(drafter, rule):
    """Empty pools and full ones, three drafting streams, texts that are cut and texts that end at the budget."""
    if isinstance(rule, TargetWalk):
        yield {"seed": 0}
        yield {"seed": 1, "margin": 0}
    yield {"seed": 2, "warm": warmed(drafter)}


@pytest.mark.parametrize("kind", dict.fromkeys(map(type, MODEL_FREE)), ids=lambda kind: kind.name)
def test_whole_texts_have_the_targets_distribution_whatever_was_drafted(kind):
    every = []
    drafters = [one for one in MODEL_FREE if isinstance(one, kind)]
    for drafter, rule in [*product(drafters, (TargetWalk(),)), (drafters[0], TokenLevel())]:
        found = [exact.texts(TARGET, drafter, rule, PROMPT, LENGTH, ONE, **start) for start in starts(drafter, rule)]
        assert max(off(one) for one in found) < TINY, (drafter, rule)
        if kind is not NoDraft:  # else this would prove nothing
            assert max(one.nodes for one in found) >= (2 if has_room(drafter) else 1), drafter
            assert max(one.accepted for one in found) > 0.1, drafter
        every += found
    if kind not in (NoDraft, PromptLookup):  # branching trees were among them
        assert max(one.nodes for one in every) > 4
        assert max(one.siblings for one in every) >= 2


def has_room(drafter):
    """Whether a tree of this drafter may have two nodes."""
    return getattr(drafter, "candidates", 2) > 1


def test_every_model_free_method_is_among_them():
    assert {one.name for one in MODEL_FREE} >= {
        "ptd",
        "lookahead",
        "self-draft",
        "prompt-lookup",
        "suffix-tree",
        "token-recycling",
        "union-tree",
        "auto",
    }


def test_texts_through_an_empty_drafter_are_plain_sampling():
    found = exact.texts(TARGET, NoDraft(), TargetWalk(), PROMPT, LENGTH, ONE)
    assert (found.outcomes, found.nodes, found.siblings, found.accepted) == (3**LENGTH, 0, 0, 0.0)
    assert off(found) < TINY


def test_texts_of_a_drafter_that_draws_are_refused():
    drafter = SampledTree(toy(seed=6), depth=1)
    with pytest.raises(ValueError, match="'sampled-tree' draws its tokens"):
        exact.texts(TARGET, drafter, TokenLevel(), PROMPT, LENGTH, ONE)


# The readings of Algorithm 2


BY_HAND = {
    "candidates": ((0.2, 0.8, 0), (0.3, 0.7, 0)),
    "unscaled": ((0.2, 0.24, 0.56), (0.3, 0.14, 0.56)),
    "original": ((0.3, 0.45, 0.25), (0.45, 0.3, 0.25)),
    "one number": ((0.2, 0.175, 0.625), (0.3, 0, 0.7)),
}


def first_token(rule, distribution, children=(0, 1)):
    """Distribution of the first token where the root's children are these, by whether a child was taken."""
    target = ToyModel(lambda context: distribution, len(distribution))
    tree = TokenTree.build([0, *children], [-1, *[0] * len(children)])
    scores = exact.target_scores(target, [0], tree, ONE)
    taken, drawn = np.zeros(len(distribution)), np.zeros(len(distribution))
    for verdict, mass in exact.verdicts(rule, Proposal(tree), scores):
        if verdict.path:
            taken[tree.tokens[verdict.path[0]]] += mass
        else:
            drawn[verdict.next_token] += mass
    return taken, drawn


@pytest.mark.parametrize("reading", READINGS)
def test_the_readings_of_the_listing_give_the_distributions_computed_by_hand(reading):
    rule = ListedSampling(reading=reading, unsafe=True)
    for distribution, expected in zip(((0.2, 0.3, 0.5), (0.3, 0.2, 0.5)), BY_HAND[reading], strict=True):
        assert sum(first_token(rule, distribution)) == pytest.approx(expected, abs=TINY)
        assert sum(first_token(TokenLevel(), distribution)) == pytest.approx(distribution, abs=TINY)


def test_what_appendix_c_proves_holds_of_a_biased_rule_too():
    """It shows P(A_i) = P_i for the candidates and says nothing of what line 18 draws."""
    for rule in (TokenLevel(), ListedSampling(reading="original", unsafe=True)):
        taken, _ = first_token(rule, (0.3, 0.2, 0.5))
        assert taken == pytest.approx((0.3, 0.2, 0), abs=TINY)


@pytest.mark.parametrize("reading", READINGS)
def test_the_test_of_whole_texts_sees_every_reading(reading):
    drafter = ProgressiveTree(depth=3, max_candidates=4)
    rule = ListedSampling(reading=reading, unsafe=True)
    assert off(exact.texts(TARGET, drafter, rule, PROMPT, LENGTH, ONE, warm=warmed(drafter))) > 0.01


@pytest.mark.parametrize("reading", READINGS)
def test_a_single_candidate_biases_only_the_reading_that_draws_from_before(reading):
    found = exact.texts(TARGET, PromptLookup(), ListedSampling(reading=reading, unsafe=True), PROMPT, LENGTH, ONE)
    assert (off(found) > 0.01) == (reading == "original")


@pytest.mark.parametrize("reading", READINGS)
@pytest.mark.parametrize(
    ("distribution", "children"),
    [
        ((0.5, 0.5, 0.0), (0, 1)),  # the candidates have everything
        ((0.5, 0.25, 0.25), (0, 1, 2)),
        ((0.0, 0.0, 1.0), (0, 1)),  # the candidates have nothing
        ((0.5, 0.25, 0.25), (0, 0, 1)),  # one of them twice
        ((1.0, 0.0, 0.0), (0, 1)),
        ((0.5, 0.25, 0.25), ()),
    ],
)
def test_the_listing_ends_with_a_distribution_where_nothing_is_left(reading, distribution, children):
    rule = ListedSampling(reading=reading, unsafe=True)
    assert sum(sum(first_token(rule, distribution, children))) == pytest.approx(1)


def test_the_listing_is_refused_unless_its_bias_is_wanted_and_is_harmless_when_greedy():
    with pytest.raises(ValueError, match=r"ListedSampling would not .*TargetWalk.*ListedSampling\(unsafe=True\)"):
        generate(TARGET, PROMPT, ProgressiveTree(), verifier=ListedSampling(), sampling=ONE)
    with pytest.raises(ValueError, match="reading is 'prose'; choose from 'candidates'"):
        ListedSampling(reading="prose")
    out = generate(TARGET, PROMPT, ProgressiveTree(), verifier=ListedSampling(), max_new_tokens=12)
    assert out.tokens == autoregressive(TARGET, PROMPT, max_new_tokens=12).tokens


def test_line_13_is_off_by_what_the_candidates_do_not_cover():
    written = generate(TARGET, PROMPT, ProgressiveTree(), sampling=ONE, max_new_tokens=60)
    places = np.cumsum([0, *(one.committed for one in written.iterations)])[:-1]
    trees = {place: one.tree for place, one in zip(places, written.iterations, strict=True)}
    rows = cover_rows(TARGET, PROMPT, written, ONE)
    assert len(rows) > 3
    for row in rows:
        text, tree = [*PROMPT, *written.tokens[: row["place"]]], trees[row["place"]]
        distribution = exact.text_distribution(TARGET, text, 1, ONE)
        tokens = {(int(token),) for token in tree.tokens[tree.children(0)]}
        assert row["candidates"] == len(tokens) > 1
        assert row["covered"] == pytest.approx(sum(distribution[token] for token in tokens), abs=TINY)
        written_next = next_token(ListedSampling(unsafe=True), tree, exact.target_scores(TARGET, text, tree, ONE))
        assert exact.distance(written_next, distribution) == pytest.approx(1 - row["covered"], abs=TINY)


def next_token(rule, tree, scores):
    """Distribution of the first token that is written after node 0."""
    distribution = defaultdict(float)
    for verdict, mass in exact.verdicts(rule, Proposal(tree), scores):
        distribution[(int(tree.tokens[verdict.path[0]]) if verdict.path else verdict.next_token,)] += mass
    return distribution


# Line 20 of Algorithm 1


def grown(token, *children):
    node = TokenNode(token)
    node.children = {child.token: child for child in children}
    return node


def test_eligible_edges_lead_down_to_a_node_without_a_verification_token():
    leaf, new = grown(7), grown(8)
    tree = [grown(5, grown(6, leaf)), grown(1)]
    tree[0].children[6].children[8] = new
    verified = {id(tree[0]): 6, id(tree[0].children[6]): 8, id(tree[1]): 3}
    assert eligible(tree, verified, 5) == [5, 6, 8]  # 8 was not scored
    assert eligible(tree, verified, 1) == [1, 3]
    assert eligible(tree, verified, 9) == [9]


def test_a_row_of_line_twenty_counts_tokens_that_are_not_the_texts():
    row = line_twenty_row([[1, 2], [3], [9, 5, 9]], [1, 2, 3, 4, 5], [0, 2, 3])
    assert row == {"iterations": 3, "tokens": 5 / 3, "wrong": 1, "wrong_tokens": 1}


def test_line_twenty_to_the_letter_writes_tokens_that_are_not_the_targets():
    """The draft tree that was scored only ever adds right tokens; the pruned one has predictions of other prefixes."""
    target, rows = toy(8, seed=1, sharpness=3.0), {"scored": [], "printed": []}
    for seed in range(6):
        prompt = [int(token) for token in np.random.default_rng(seed).integers(0, 8, 12)]
        out = generate(target, prompt, LineTwenty(depth=3, start_tree=(8,)), seed=seed, max_new_tokens=60)
        text = autoregressive(target, prompt, max_new_tokens=60).tokens
        assert out.tokens == text
        places = np.cumsum([0, *(one.committed for one in out.iterations)]).tolist()
        assert all(place < after for place, after in pairwise(places))
        for name, noted in rows.items():
            noted.append(line_twenty_row(getattr(out.state.drafter_state, name), text, places[:-1]))
    assert sum(row["wrong"] for row in rows["scored"]) == 0
    assert sum(row["wrong"] for row in rows["printed"]) > 0
    assert min(row["tokens"] for row in rows["scored"]) >= 1


# Overlap of texts


def test_overlap_is_taken_between_seeds_or_within_one():
    texts = [
        {"benchmark": "b", "model": model, "prompt": prompt, "method": method, "seed": seed, "text": f"{seed}"}
        for model, prompt in (("m", "p"), ("n", "p"))
        for method in ("ar", "ptd")
        for seed in (0, 1, 2)
    ]

    def measure(ours, theirs):
        return {"same": sum(map(str.__eq__, ours, theirs)), "first": sum(map(int, ours)) / len(ours)}

    apart = overlap_rows(texts, measure)
    assert [(row["model"], row["method"], row["pairs"], row["same"], row["first"]) for row in apart] == [
        (model, method, 6, 0, 1.0) for model in ("m", "n") for method in ("ar", "ptd")
    ]
    assert all((row["pairs"], row["same"]) == (3, 3) for row in overlap_rows(texts, measure, same_seed=True))
    pooled = overlap_rows(texts, measure, ("benchmark",))
    assert [(row["benchmark"], row["method"], row["pairs"]) for row in pooled] == [("b", "ar", 12), ("b", "ptd", 12)]


def test_the_gap_is_paired_by_prompt():
    rows = [
        {"benchmark": "b", "model": "m", "prompt": str(place), "method": method, "rouge_1": 10.0 * place + shift}
        for place in range(8)
        for method, shift in (("ar", 0.0), ("ptd", 2.0))
    ]
    gap = overlap_gap(rows, "ptd", "rouge_1")
    assert (gap.value, gap.interval) == (2.0, (2.0, 2.0))
    with pytest.raises(ValueError, match="No prompt has texts of both 'lookahead' and 'ar'"):
        overlap_gap(rows, "lookahead", "rouge_1")
