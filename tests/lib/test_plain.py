"""The plain loop writes `autoregressive`'s texts, ends them as it does, and refuses what it refuses."""

from __future__ import annotations

import pytest
import torch
from models import CONFIGS, hf_greedy, prompt, random_model, raw_model

from dynatree_lib import Sampling, ToyModel, autoregressive
from dynatree_lib.decoding import Interrupted
from dynatree_lib.engines.plain import _static, autoregressive_fast
from dynatree_lib.engines.static import StaticModel, why_not_static
from dynatree_lib.models.huggingface import HFModel

KINDS = list(CONFIGS)


@pytest.fixture(scope="module", params=["plain", "static"])
def target(request):
    model = random_model("gpt_neox")
    return model if request.param == "plain" else StaticModel(model)


def models(kind):
    model = random_model(kind)
    return [model] if why_not_static(model) else [model, StaticModel(model)]


@pytest.mark.parametrize("kind", KINDS)
def test_the_greedy_text_is_transformers(kind):
    for size, budget in ((1, 24), (2, 1), (40, 2), (290, 8)):
        expected = hf_greedy(random_model(kind), prompt(size), budget)
        for model in models(kind):
            assert autoregressive_fast(model, prompt(size), max_new_tokens=budget).tokens == expected


@pytest.mark.parametrize("every", [1, 2, 7, 100])
def test_tokens_come_in_bursts_and_are_all_told(target, every):
    told = []
    out = autoregressive_fast(target, prompt(9), max_new_tokens=30, on_tokens=told.append, every=every)
    assert [token for burst in told for token in burst] == out.tokens == hf_greedy(target, prompt(9), 30)
    assert (out.finish_reason, out.iterations, out.state) == ("length", [], None)
    assert len(told[0]) == 1
    assert max(map(len, told)) == (min(every, 29) if isinstance(target, StaticModel) else 1)


def test_a_text_ends_at_eos_and_contains_it(target):
    text = autoregressive(target, prompt(12), max_new_tokens=40, eos_token_ids=()).tokens
    for place in [0, 1, 5, 17, 39]:
        out = autoregressive_fast(target, prompt(12), max_new_tokens=40, eos_token_ids=text[place])
        assert (out.tokens, out.finish_reason) == (text[: text.index(text[place]) + 1], "eos")


def test_the_models_own_eos_ends_a_text_too():
    model = HFModel(raw_model("gpt_neox"))
    text = autoregressive(model, prompt(12), max_new_tokens=20).tokens
    model.eos_token_ids = (text[7],)
    assert autoregressive_fast(model, prompt(12)).tokens == autoregressive(model, prompt(12)).tokens


@pytest.mark.parametrize("budget", [15, 16, 50])
def test_a_text_ends_with_the_context(target, budget):
    plain = autoregressive(target, prompt(584), max_new_tokens=budget)
    fast = autoregressive_fast(target, prompt(584), max_new_tokens=budget)
    assert (fast.tokens, fast.finish_reason) == (plain.tokens, plain.finish_reason)
    assert len(fast.tokens) == min(budget, 16)


@pytest.mark.parametrize("sampling", [Sampling(0.8), Sampling(1.5, top_k=20), Sampling(1.0, top_p=0.8)])
def test_a_seed_gives_the_sampled_text_of_autoregressive(target, sampling):
    texts = []
    for seed in range(3):
        options = {"max_new_tokens": 25, "sampling": sampling, "seed": seed}
        texts.append(autoregressive_fast(target, prompt(20), **options).tokens)
        assert texts[-1] == autoregressive(target, prompt(20), **options).tokens
    assert texts[0] != texts[1]


@pytest.mark.parametrize(
    ("ids", "options"),
    [([], {}), ([97], {}), ([-1], {}), ([0.5], {}), ([[1], [2]], {}), ([1] * 600, {}), ([1], {"max_new_tokens": 0})],
)
def test_it_refuses_what_generate_refuses_in_the_same_words(target, ids, options):
    with pytest.raises(ValueError) as expected:  # noqa: PT011
        autoregressive(target, ids, **options)
    with pytest.raises(ValueError) as found:  # noqa: PT011
        autoregressive_fast(target, ids, **options)
    assert str(found.value) == str(expected.value)


def test_other_mistakes_are_told_too(target):
    with pytest.raises(TypeError, match="ToyModel.*HFModel"):
        autoregressive_fast(ToyModel.random(), [1])
    with pytest.raises(ValueError, match="every is 0"):
        autoregressive_fast(target, [1], every=0)


def test_broken_logits_are_named():
    broken = raw_model("gpt_neox")
    with torch.no_grad():
        broken.gpt_neox.final_layer_norm.weight[3] = torch.nan
    model = HFModel(broken, check=False)
    for each in (model, StaticModel(model, check=False)):
        for sampling in (Sampling(), Sampling(1.0)):
            with pytest.raises(ValueError, match="hold NaN"):
                autoregressive_fast(each, prompt(5), sampling=sampling)


def test_an_interrupted_text_is_kept(target):
    kept = []

    def interrupt(tokens):
        kept.extend(tokens)
        if len(kept) > 10:
            raise KeyboardInterrupt

    out = autoregressive_fast(target, prompt(9), max_new_tokens=60, on_tokens=interrupt, interrupt="return")
    assert (out.tokens, out.finish_reason) == (kept, "interrupted")
    assert kept == hf_greedy(target, prompt(9), 60)[: len(kept)]
    kept.clear()
    with pytest.raises(Interrupted) as caught:
        autoregressive_fast(target, prompt(9), max_new_tokens=60, on_tokens=interrupt)
    assert caught.value.generation == out


def test_buffers_in_use_are_not_shared_silently():
    static = StaticModel(random_model("gpt_neox"))
    with pytest.raises(RuntimeError, match="used for another text"):
        autoregressive_fast(static, [5, 6], on_tokens=lambda tokens: autoregressive(static, [1], max_new_tokens=2))
    assert autoregressive_fast(static, prompt(9), max_new_tokens=5).tokens == hf_greedy(static, prompt(9), 5)


class Made:
    """Stands for a StaticModel on a GPU."""

    def __init__(self, model, capacity):
        self.context, self.warmed = capacity, None

    def warm(self, trees):
        self.warmed = trees


def test_on_a_gpu_buffers_are_made_once_for_models_that_can_have_them(monkeypatch):
    monkeypatch.setattr("dynatree_lib.engines.plain.StaticModel", Made)
    monkeypatch.setattr("dynatree_lib.engines.plain.CAPACITY", 50)
    model, windowed = HFModel(raw_model("gpt_neox")), HFModel(raw_model("qwen2-window"))
    assert _static(model, 10) is None
    model.__dict__["device"] = windowed.__dict__["device"] = torch.device("cuda")
    assert _static(windowed, 10) is None
    first = _static(model, 10)
    assert (first.context, first.warmed) == (50, False)  # plain decoding's graphs alone
    assert _static(model, 50) is first
    assert _static(model, 60).context == 60
