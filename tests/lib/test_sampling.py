import numpy as np
import pytest
import torch

from dynatree_lib import RandomSource, SampledTree, Sampling, ToyModel, generate
from dynatree_lib.sampling import COOLEST, DraftDistributions, Scores, most_probable, probabilities


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
    scores = Scores(logits, Sampling(1.0), "some-model")
    assert scores.distribution(0).sum() == pytest.approx(1)
    with pytest.raises(ValueError, match=r"some-model at tree node 1"):
        scores.distribution(1)
    with pytest.raises(ValueError, match=r"some-model at tree node 1"):
        _ = scores.argmax
    logits[1] = -torch.inf
    with pytest.raises(ValueError, match=r"some-model at tree node 1"):
        _ = Scores(logits, Sampling(), "some-model").argmax


def test_chance_is_seeded_and_streams_differ():
    def series(random):
        return [random.draw(torch.ones(1000)) for _ in range(8)]

    assert series(RandomSource(3, "draft")) == series(RandomSource(3, "draft"))
    assert series(RandomSource(3, "draft")) != series(RandomSource(3, "verify"))
    assert series(RandomSource(3, "draft")) != series(RandomSource(4, "draft"))


def test_accept_is_strict_at_both_ends():
    random = RandomSource(0)
    assert not any(random.accept(0.0) for _ in range(100))
    assert all(random.accept(1.0) for _ in range(100))


@pytest.mark.parametrize("size", [1, 255, 256, 257, 5000])
def test_a_draw_inverts_the_cumulated_weights(size):
    """The twin cumulates all weights, where the source looks at sums of blocks first."""
    made = torch.Generator().manual_seed(size)
    weights = torch.rand(size, generator=made, dtype=torch.float64) ** 8
    weights[torch.rand(size, generator=made) < 0.3] = 0.0
    weights[-1] = 0.5
    reached, random = weights.cumsum(0).numpy(), RandomSource(size)
    for coin in [0.0, 1 - 2**-53, *torch.rand(300, generator=made, dtype=torch.float64).tolist()]:
        random._coins = [coin]
        assert random.draw(weights) == int(reached.searchsorted(coin * reached[-1], side="right"))


def test_zero_weights_are_never_drawn_and_draws_are_distinct():
    random = RandomSource(1)
    weights = torch.tensor([0.0, 1.0, 0.0, 2.0])
    assert {random.draw(weights) for _ in range(50)} == {1, 3}
    assert sorted(random.draw_distinct(weights, 4)) == [1, 3]


def test_draw_follows_the_weights():
    random = RandomSource(2)
    counts = torch.zeros(3)
    for _ in range(4000):
        counts[random.draw(torch.tensor([1.0, 2.0, 5.0]))] += 1
    expected = torch.tensor([500.0, 1000, 2500])
    assert float(((counts - expected) ** 2 / expected).sum()) < 13.8  # chi-square, 2 degrees of freedom, p = 0.001


def test_the_streams_of_a_text_are_two(monkeypatch):
    """With one stream for both, the coin that accepts a token would be the one that drew it."""
    import dynatree_lib.decoding as decoding

    made = []
    monkeypatch.setattr(
        decoding, "RandomSource", lambda seed, stream: made.append((seed, stream)) or RandomSource(seed, stream)
    )
    toy = ToyModel.random(3, seed=1)
    state = generate(toy, [0], SampledTree(toy), sampling=Sampling(1.0), seed=7).state
    assert sorted(made) == [(7, "draft"), (7, "verify")]
    fresh = {stream: RandomSource(7, stream) for stream in ("draft", "verify")}
    for random, stream in ((state.drafter_state.random, "draft"), (state.random, "verify")):
        assert random is not fresh[stream]
        assert type(random) is RandomSource
    assert state.drafter_state.random is not state.random


def test_a_text_follows_its_law_under_real_seeds():
    """The same through `generate`, with seeds: first tokens of 3,000 texts, a draft far from the target."""
    target, draft = (
        ToyModel(lambda context, distribution=distribution: distribution, 3)
        for distribution in ((0.25, 0.5, 0.25), (0.6, 0.2, 0.2))
    )
    drafter = SampledTree(draft, depth=1, branching=1)
    counts = np.zeros(3)
    for seed in range(3000):
        counts[generate(target, [0], drafter, sampling=Sampling(1.0), seed=seed, max_new_tokens=2).tokens[0]] += 1
    expected = 3000 * np.array([0.25, 0.5, 0.25])
    assert ((counts - expected) ** 2 / expected).sum() < 13.8  # chi-square, 2 degrees of freedom, level 0.001


def test_ordered_pairs_have_the_law_of_drawing_one_after_another():
    weights = torch.tensor([0.5, 0.3, 0.15, 0.05])
    random, counts = RandomSource(5), np.zeros((4, 4))
    for _ in range(4000):
        counts[tuple(random.draw_distinct(weights, 2))] += 1
    w = weights.double().numpy()
    expected = 4000 * np.outer(w, w) / (1 - w)[:, None]
    off = ~np.eye(4, dtype=bool)
    assert counts[~off].sum() == 0
    assert ((counts - expected)[off] ** 2 / expected[off]).sum() < 31.3  # 11 degrees of freedom, level 0.001


def test_a_lazy_coin_is_a_coin():
    bounds = [(0.9, 0.5), (0.5, 0.5), (0.2, 0.0), (1.0, 1.0)]
    for bound, probability in bounds:
        plain, lazy = RandomSource(3), RandomSource(3)
        assert [plain.accept(probability) for _ in range(200)] == [
            lazy.accept_lazily(bound, lambda probability=probability: probability) for _ in range(200)
        ]
    asked = []
    random = RandomSource(3)
    for _ in range(1000):
        random.accept_lazily(0.1, lambda: asked.append(1) or 0.05)
    assert 60 < len(asked) < 140


@pytest.mark.parametrize("temperature", [1e-38, 1e-46, 1e-300])
def test_tiny_temperatures_choose_the_best_token(temperature):
    assert probabilities(torch.tensor([30.0, 31.0, -5.0]), Sampling(temperature)).tolist() == [0, 1, 0]


def test_top_p_1_keeps_every_token():
    logits = torch.randn(20_000, generator=torch.Generator().manual_seed(0)) * 4
    assert torch.equal(probabilities(logits, Sampling(1.0, top_p=1.0)), probabilities(logits, Sampling(1.0)))


@pytest.mark.parametrize("spread", [0.1, 3.0, 8.0])
def test_a_nucleus_is_that_of_a_full_sort(spread):
    logits = torch.randn(2, 12_000, generator=torch.Generator().manual_seed(0), dtype=torch.float64) * spread
    for mass in (0.3, 0.9, 0.999):
        distribution = logits.softmax(-1)
        values, order = distribution.sort(dim=-1, descending=True, stable=True)
        kept = values.cumsum(-1) - values < mass
        expected = torch.zeros_like(distribution).scatter_(-1, order, values * kept)
        found = probabilities(logits, Sampling(1.0, top_p=mass))
        assert torch.allclose(found, expected / expected.sum(-1, keepdim=True), rtol=1e-12)


@pytest.mark.parametrize("weights", [[0.0, 0.0], [1.0, float("inf")], [float("nan"), 1.0]])
def test_nothing_to_draw_from_is_said(weights):
    with pytest.raises(ValueError, match="no positive weight"):
        RandomSource().draw(torch.tensor(weights))


def test_logits_of_some_tokens_alone_speak_of_these():
    scores = Scores(torch.tensor([[0.0, 2.0, 1.0]]), Sampling(1.0), tokens=np.array([2, 5, 7]))
    assert scores.argmax.tolist() == [5]
    given = scores.distribution(0)
    assert given.shape == (8,)
    assert given.nonzero()[:, 0].tolist() == [2, 5, 7]
    assert float(given[5]) == pytest.approx(float(torch.tensor([0.0, 2.0, 1.0]).softmax(0)[1]))
    assert scores.prob(0, 3) == 0


def test_a_recorded_distribution_of_some_tokens_is_one_of_all():
    distributions = DraftDistributions("a draft")
    distributions.record(0, torch.tensor([0.25, 0.75]), np.array([1, 4]))
    known = [distributions.prob(0, token) for token in range(7)]
    assert known == [0, 0.25, 0, 0, 0.75, 0, 0]
    assert distributions.distribution(0).tolist() == known[:5]
    assert [distributions.prob(0, token) for token in range(7)] == known
    distributions.record(2, torch.tensor([1.0]))
    assert [distributions.prob(2, token) for token in (0, 1)] == [1, 0]
    with pytest.raises(ValueError, match="a draft drew children of tree node 1 and recorded no distribution"):
        distributions.prob(1, 0)


@pytest.mark.parametrize("temperature", [COOLEST / 2, COOLEST, 0.5, 1.0, 3.0])
def test_probabilities_are_the_same_on_both_sides_of_the_shortcut(temperature):
    """The shortcut is taken without filters; a filter that keeps everything is the long way."""
    logits = 30 * torch.randn(4, 50, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    logits[1, 3:40] = -torch.inf
    short, long = (probabilities(logits, Sampling(temperature, top_k=kept)) for kept in (None, 50))
    torch.testing.assert_close(short, long, rtol=1e-10, atol=1e-300)


class Elsewhere(torch.Tensor):
    """A tensor that says it lies on a GPU."""

    device = property(lambda self: torch.device("cuda"))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("sharpness", [1.0, 0.7])
def test_the_most_probable_tokens_are_the_same_on_a_gpu(dtype, sharpness):
    """Tokens and probabilities come in one transfer, in numbers that hold both; 16-bit logits have ties."""
    logits = torch.randn(5, 50_000, generator=torch.Generator().manual_seed(0)).to(dtype)
    here, there = (most_probable(given, 8, sharpness) for given in (logits, logits.as_subclass(Elsewhere)))
    assert (here[0] == logits.sort(stable=True, descending=True).indices[:, :8].numpy()).all()
    assert here[0].max() > 2**15
    for ours, other in zip(here, there, strict=True):
        np.testing.assert_allclose(ours, other, rtol=1e-6)
        assert ours.dtype == other.dtype


class WithoutFloat64(torch.Tensor):
    """A tensor that says it lies on Apple's GPU, which has no float64."""

    device = property(lambda self: torch.device("mps"))

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function is torch.Tensor.cpu:
            return args[0].as_subclass(torch.Tensor)
        found = super().__torch_function__(function, types, args, kwargs)
        assert not (isinstance(found, cls) and found.dtype == torch.float64)
        return found


def test_a_device_without_float64_chooses_and_draws_the_same_tokens():
    logits = torch.randn(5, 500, generator=torch.Generator().manual_seed(0))
    there = logits.as_subclass(WithoutFloat64)
    with pytest.raises(AssertionError):
        there.double()
    for ours, other in zip(most_probable(logits, 8), most_probable(there, 8), strict=True):
        np.testing.assert_array_equal(ours, other)
    weights = logits.softmax(-1)
    drawn = [RandomSource(3).draw_each(one) for one in (weights, weights.as_subclass(WithoutFloat64))]
    assert drawn[0] == drawn[1]
