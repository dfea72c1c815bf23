"""ROUGE and BLEU of texts small enough to be computed by hand."""

from __future__ import annotations

import socket
import sys

import pytest

from dynatree_suite.papers.ptd.overlap import overlap
from dynatree_suite.papers.published import published

TEXT = "The cat sat on the mat."
LONGER = "A cat sat on the red mat."


def test_by_hand():
    found = overlap([TEXT], [LONGER])
    # cat sat on the mat: 5 of 6 and of 7 words, in this order; cat-sat sat-on on-the: 3 of 5 and of 6 pairs of words
    assert found["rouge_1"] == pytest.approx(100 * 2 * 5 / (6 + 7))
    assert found["rouge_l"] == pytest.approx(100 * 2 * 5 / (6 + 7))
    assert found["rouge_2"] == pytest.approx(100 * 2 * 3 / (5 + 6))
    # with the full stop, 7 tokens against 8: 6/7 words, 4/6 pairs, 2/5 triples and 1/4 of four, brevity exp(1 - 8/7)
    assert found["bleu"] == pytest.approx(
        100 * 2.718281828459045 ** (1 - 8 / 7) * (6 / 7 * 4 / 6 * 2 / 5 * 1 / 4) ** 0.25
    )
    back = overlap([LONGER], [TEXT])
    assert back["bleu"] == pytest.approx(100 * (6 / 8 * 4 / 7 * 2 / 6 * 1 / 5) ** 0.25)  # nothing is too short
    assert {**back, "bleu": 0} == {**found, "bleu": 0}


def test_rouge_is_a_mean_over_texts_and_bleu_is_pooled():
    found = overlap([TEXT, "w x y z"], [TEXT, "a b c d"])
    assert [found[name] for name in ("rouge_1", "rouge_2", "rouge_l")] == [50, 50, 50]
    # 7 of 11 words, 6 of 9 pairs, 5 of 7 triples, 4 of 5
    assert found["bleu"] == pytest.approx(100 * (7 / 11 * 6 / 9 * 5 / 7 * 4 / 5) ** 0.25)


def test_equal_texts_share_everything_and_order_counts():
    assert overlap([TEXT, LONGER], [TEXT, LONGER]) == pytest.approx(dict.fromkeys(overlap([TEXT], [TEXT]), 100))
    turned = overlap(["b a"], ["a b"])
    assert (turned["rouge_1"], turned["rouge_2"], turned["rouge_l"]) == (100, 0, 50)
    assert overlap(["walked"], ["walking"])["rouge_1"] == 0  # no stemming
    assert overlap([""], [TEXT]) == {"rouge_1": 0, "rouge_2": 0, "rouge_l": 0, "bleu": 0}


def test_its_names_are_the_columns_of_the_published_table():
    assert set(overlap([TEXT], [TEXT])) <= set(published("ptd").table(2).columns)


def test_bad_input_is_one_sentence():
    with pytest.raises(ValueError, match="There are 0 texts and 0 references"):
        overlap([], [])
    with pytest.raises(ValueError, match="There are 1 texts and 2 references"):
        overlap([TEXT], [TEXT, TEXT])


def test_a_missing_package_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacrebleu", None)
    with pytest.raises(ImportError, match=r"needs the packages .* 'sacrebleu' is missing; install them with pip"):
        overlap([TEXT], [TEXT])


def test_nothing_is_fetched(monkeypatch):
    def refused(*args, **options):
        raise AssertionError("a connection was opened")

    for name in [name for name in sys.modules if name.partition(".")[0] in ("nltk", "rouge_score", "sacrebleu")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setattr(socket.socket, "connect", refused)
    assert overlap([TEXT], [TEXT])["rouge_1"] == 100
