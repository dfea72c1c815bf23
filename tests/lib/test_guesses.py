"""Guesses against their slow twin: the longest match by looking everywhere, classes and rates by hand."""

import numpy as np
import pytest
import torch

import dynatree_lib as dt
from dynatree_lib.drafters.base import Proposal
from dynatree_lib.drafters.guesses import COPIED, LEAST, LENGTHS, NOWHERE, SIZES, TRUST, Guesses
from dynatree_lib.drafters.token_recycling import PRIOR, TokenRecycling
from dynatree_lib.sampling import Scores
from dynatree_lib.verifiers.base import Verdict

GUESSES = Guesses(TokenRecycling(costs=None), pool=1000)


def started(text, guesses=GUESSES):
    return guesses.start(text, dt.RandomSource())


def longest_match(text):
    """(where the text went on, length up to the last class) after the longest match at its latest place."""
    for size in range(min(LENGTHS[-1], len(text) - 1), SIZES[-1] - 1, -1):
        for place in range(len(text) - 1, size - 1, -1):
            if text[place - size : place] == text[-size:]:
                return place, size
    return NOWHERE, 0


@pytest.mark.parametrize("vocabulary", [2, 3, 6])
def test_the_match_is_a_longest_one_as_far_as_it_is_looked_for(vocabulary):
    """Of matches of four tokens and more the latest counts, whatever its length."""
    for seed in range(40):
        text = np.random.default_rng(seed).integers(0, vocabulary, 30).tolist()
        place, length, tail = GUESSES.first(started(text))
        at, size = longest_match(text)
        assert (place == NOWHERE) == (at == NOWHERE)
        assert tail == tuple(text[-2:])
        if place != NOWHERE:
            assert text[place - length : place] == text[len(text) - length :]
            assert min(length, SIZES[0]) == min(size, SIZES[0])
            assert length in (LENGTHS[-1], place) or text[place - length - 1] != text[-length - 1]
            later = range(place + 1, len(text))
            assert not [one for one in later if text[one - min(length, 4) : one] == text[-min(length, 4) :]]


def test_a_copied_path_goes_on_where_the_text_did_and_repeats_at_its_end():
    state = started([1, 2, 3, 4, 1, 2])
    place, path = GUESSES.first(state), []
    for _ in range(7):
        copied = state.text[place[0]]
        (place,) = (below for token, _, below in GUESSES.after(state, place) if token == copied)
        path.append(copied)
    assert path == [3, 4, 1, 2, 3, 4, 1]
    assert place[1] == 2 + 7


def test_beside_a_copied_path_the_latest_place_of_two_tokens_counts():
    state = started([1, 2, 3, 1, 2, 5, 7, 3, 5, 1, 2])
    places = {token: below for token, _, below in GUESSES.after(state, GUESSES.first(state))}
    assert places[5] == (6, 3, (2, 5))  # copied: 1, 2, 5
    assert places[3] == (3, 2, (2, 3))  # recycled: 2, 3 went on with 1


def test_priors_by_hand():
    """Nothing has been seen but one text: a match of two tokens, which recycled predictions know too."""
    state = started([1, 2, 3, 4, 1, 2])
    state.rates = started([1]).rates
    (found,) = (share for token, share, _ in GUESSES.after(state, GUESSES.first(state)) if token == 3)
    assert found == pytest.approx(TRUST * max(COPIED[0], 0.4))  # 0.4: what followed in the text, the latest first
    first, *_, best = (started([1]).rates[kind] for kind in range(1 + len(PRIOR)))
    assert (first, best) == pytest.approx((LEAST, TRUST * PRIOR[-1]))


def test_what_both_sources_guess_is_counted_apart():
    """Copies of one text are always right, those of the other never; what was counted decides."""
    rng = np.random.default_rng(3)
    shares = {}
    for name, right in (("right", True), ("wrong", False)):
        text = rng.permutation(30).tolist()
        state = started(text)
        for _ in range(3):
            state = GUESSES.extend(state, text[:10] if right else rng.permutation(30).tolist())
        state = GUESSES.extend(state, text[:2])
        place = GUESSES.first(state)
        shares[name] = max((share for _, share, _ in GUESSES.after(state, place)), default=0.0)
    assert shares["wrong"] < 0.35 < 0.6 < shares["right"]


def test_what_the_target_predicts_is_remembered():
    state = started([1, 2, 3])
    logits = torch.zeros(1, 9)
    logits[0, 7], logits[0, 5] = 6.0, 5.0
    proposal = Proposal(dt.TokenTree.build([3], [-1]))
    state = GUESSES.observe(state, proposal, Scores(logits, dt.Sampling()), Verdict((), 7))
    state = GUESSES.extend(state, [2, 3])
    assert [token for token, _, _ in GUESSES.after(state, GUESSES.first(state))][:2] == [7, 5]


def test_an_earlier_text_is_copied_from_but_not_across_its_end():
    earlier, state = started([1, 2, 3, 4, 5]), started([5, 1, 2])
    both = GUESSES.inherit(state, earlier)
    assert both.text == [1, 2, 3, 4, 5, NOWHERE, 5, 1, 2]
    assert {token for token, _, _ in GUESSES.after(both, GUESSES.first(both))} == {3}
    end = GUESSES.inherit(started([9, 4, 5]), earlier)
    assert GUESSES.first(end)[0] == 5
    assert not [token for token, _, _ in GUESSES.after(end, GUESSES.first(end)) if token < 0]
    assert GUESSES.inherit(started([8]), earlier, [6, 7]).text == [1, 2, 3, 4, 5, 6, 7, NOWHERE, 8]
    few = Guesses(TokenRecycling(costs=None), pool=9)
    both = few.inherit(started([5, 1], few), few.inherit(started([7, 1, 2], few), earlier))
    assert both.text == [1, 2, NOWHERE, 5, 1]  # half of the pool, the end apart
    assert earlier.text == [1, 2, 3, 4, 5]
    assert both.after[-1][1, 2] == 2
