"""Every registered method on a small pair: the lossless ones write what transformers' greedy generate writes."""

from __future__ import annotations

import pytest
import torch
from models import hf_greedy, noisy_copy, prompt, random_model, raw_model
from transformers import GenerationConfig

from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import Sampling
from dynatree_suite.bench.methods import METHODS, variant
from dynatree_suite.bench.streaming import StreamingModel


@pytest.fixture(scope="module")
def pair() -> Pair:
    target = random_model("gpt_neox")
    return Pair("random", target, noisy_copy(target), None)


def spec(name: str) -> str:
    """The default cache of StreamingLLM is longer than these models' context."""
    return "streaming-llm:cache=200" if name == "streaming-llm" else name


def go(pair: Pair, text: str, ids, budget: int = 24, eos: tuple[int, ...] = (), sampling=None, seed: int = 0):
    chunks: list[list[int]] = []
    done = variant(text).runner(pair)(
        ids[0].tolist(), max_new_tokens=budget, eos_token_ids=eos, on_tokens=chunks.append,
        sampling=sampling or Sampling(), seed=seed,
    )  # fmt: skip
    assert [token for chunk in chunks for token in chunk] == done.tokens
    return done


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("length", [1, 2, 40])
def test_every_method_writes_the_targets_greedy_text(pair, name, length):
    ids = prompt(length)
    done = go(pair, spec(name), ids)
    assert done.tokens == hf_greedy(pair.target, ids, 24)
    assert done.finish_reason == "length"
    assert 1 <= done.forwards <= 24
    assert done.kv_entries >= length + 24 - 2
    if done.iterations is not None:
        assert sum(one.committed for one in done.iterations) == 24


@pytest.mark.parametrize("name", METHODS)
@pytest.mark.parametrize("budget", [1, 2])
def test_small_budgets(pair, name, budget):
    assert go(pair, spec(name), prompt(9), budget).tokens == hf_greedy(pair.target, prompt(9), budget)


@pytest.mark.parametrize("name", METHODS)
def test_a_text_ends_at_eos_and_contains_it(pair, name):
    ids = prompt(12)
    plain = hf_greedy(pair.target, ids, 24)
    end = plain[9]
    done = go(pair, spec(name), ids, eos=(end,))
    assert done.tokens == plain[: plain.index(end) + 1]
    assert done.finish_reason == "eos"


@pytest.fixture(scope="module")
def with_end():
    """A pair whose models end a text at a token of the target's text, and this text without an end."""
    model = HFModel(raw_model("llama"))
    plain = hf_greedy(model, prompt(12), 20)
    model.model.generation_config.eos_token_id = model.model.config.eos_token_id = plain[4]
    return Pair("with eos", model, noisy_copy(model), None), plain


@pytest.mark.parametrize("name", METHODS)
def test_no_eos_given_means_none_even_if_the_model_has_one(with_end, name):
    pair, plain = with_end
    assert go(pair, spec(name), prompt(12), 20).tokens == plain


@pytest.mark.parametrize("name", ["hf-generate", "hf-assisted", "hf-prompt-lookup"])
def test_hugging_face_methods_leave_the_models_as_they_were(pair, name, monkeypatch):
    models = (pair.target.model, pair.draft.model)
    for model in models:
        config = GenerationConfig(do_sample=True, temperature=0.3, num_assistant_tokens=7)
        monkeypatch.setattr(model, "generation_config", config)
    own = [model.generation_config for model in models]
    before = [config.to_dict() for config in own]
    random = torch.random.get_rng_state()
    go(pair, name, prompt(12))
    with pytest.raises(IndexError):
        go(pair, name, torch.tensor([[10**6]]))
    go(pair, name, prompt(12), sampling=Sampling(0.9))
    for model, config, values in zip(models, own, before, strict=True):
        assert model.generation_config is config
        assert config.to_dict() == values
    assert torch.equal(torch.random.get_rng_state(), random)


@pytest.mark.parametrize("name", METHODS)
def test_sampling_is_seeded(pair, name):
    hot = Sampling(temperature=1.5, top_k=50)
    texts = [go(pair, spec(name), prompt(8), sampling=hot, seed=seed).tokens for seed in (3, 3, 4)]
    assert texts[0] == texts[1] != texts[2]


def test_prompts_with_the_padding_id_are_read_whole(pair):
    ids = torch.tensor([[0, 0, 5, 0, 7, 0]])
    texts = {name: go(pair, spec(name), ids).tokens for name in METHODS}
    assert len({tuple(text) for text in texts.values()}) == 1


def test_streaming_counts_what_it_evicts(pair):
    done = go(pair, "streaming-llm:cache=32,length=3", prompt(20), budget=60)
    assert done.counters["evictions"] > 3
    assert done.counters["evicted_entries"] >= 20 + 60 - 1 - 32
    assert done.kv_entries <= 32 + 4
    wide = go(pair, "streaming-llm:cache=100", prompt(20), budget=60)
    assert (wide.counters["evictions"], wide.counters["evicted_entries"]) == (0, 0)
    bounded = go(pair, "streaming-llm:cache=32,draft=streaming", prompt(20), budget=60)
    assert len(bounded.tokens) == 60
    runners = {name: variant(f"streaming-llm:cache=32,draft={name}").runner(pair) for name in ("full", "streaming")}
    assert runners["full"].drafter.draft is pair.draft
    assert isinstance(runners["streaming"].drafter.draft, StreamingModel)
