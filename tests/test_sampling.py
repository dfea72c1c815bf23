import pytest
import torch

from dynatree_lib import Chance, Sampling
from dynatree_lib.sampling import Rows, probabilities


@pytest.mark.parametrize(
    ("options", "word"),
    [({"temperature": -1}, "temperature"), ({"top_k": 0}, "top_k"), ({"top_p": 0}, "top_p"), ({"top_p": 1.5}, "top_p"),
     ({"temperature": float("nan")}, "temperature")],
)  # fmt: skip
def test_bad_options_are_named(options, word):
    with pytest.raises(ValueError, match=word):
        Sampling(**options)


def test_probabilities_by_hand():
    logits = torch.tensor([0.0, 1.0, 2.0, 3.0], dtype=torch.float64)
    weights = torch.tensor([0.0, 0.5, 1.0, 1.5], dtype=torch.float64).exp()
    assert torch.allclose(probabilities(logits, Sampling(2.0)), weights / weights.sum())
    kept = torch.tensor([0, 0, weights[2], weights[3]], dtype=torch.float64)
    assert torch.allclose(probabilities(logits, Sampling(2.0, top_k=2)), kept / kept.sum())
    assert probabilities(logits, Sampling(0.0)).tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_filters_equal_transformers(seed):
    from transformers import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

    logits = torch.randn(3, 50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    expected = TemperatureLogitsWarper(0.7)(None, logits)
    expected = TopKLogitsWarper(20)(None, expected)
    expected = TopPLogitsWarper(0.8)(None, expected).softmax(-1)
    assert torch.allclose(probabilities(logits, Sampling(0.7, top_k=20, top_p=0.8)), expected, atol=1e-12)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_bad_rows_name_node_and_model(bad):
    logits = torch.zeros(3, 4)
    logits[1, 2] = bad
    rows = Rows(logits, Sampling(1.0), "some-model")
    assert rows.row(0).sum() == pytest.approx(1)
    with pytest.raises(ValueError, match=r"some-model at tree node 1"):
        rows.row(1)
    with pytest.raises(ValueError, match=r"some-model at tree node 1"):
        _ = rows.argmax
    logits[1] = -torch.inf
    with pytest.raises(ValueError, match=r"some-model at tree node 1"):
        _ = Rows(logits, Sampling(), "some-model").argmax


def test_chance_is_seeded_and_streams_differ():
    def series(chance):
        return [chance.draw(torch.ones(1000)) for _ in range(8)]

    assert series(Chance(3, "draft")) == series(Chance(3, "draft"))
    assert series(Chance(3, "draft")) != series(Chance(3, "verify"))
    assert series(Chance(3, "draft")) != series(Chance(4, "draft"))


def test_accept_is_strict_at_both_ends():
    chance = Chance(0)
    assert not any(chance.accept(0.0) for _ in range(100))
    assert all(chance.accept(1.0) for _ in range(100))


def test_zero_weights_are_never_drawn_and_draws_are_distinct():
    chance = Chance(1)
    weights = torch.tensor([0.0, 1.0, 0.0, 2.0])
    assert {chance.draw(weights) for _ in range(50)} == {1, 3}
    assert sorted(chance.draw_distinct(weights, 4)) == [1, 3]


def test_draw_follows_the_weights():
    chance = Chance(2)
    counts = torch.zeros(3)
    for _ in range(4000):
        counts[chance.draw(torch.tensor([1.0, 2.0, 5.0]))] += 1
    expected = torch.tensor([500.0, 1000, 2500])
    assert float(((counts - expected) ** 2 / expected).sum()) < 13.8  # chi-square, 2 degrees of freedom, p = 0.001
