"""StreamingLLM's cache: what it keeps, where its keys stand, and when its text is still the model's own."""

from __future__ import annotations

import pytest
import torch

from dynatree_lib.decoding import autoregressive, generate
from dynatree_lib.drafters import Chain, FixedTree
from dynatree_lib.measure.streaming import StreamingModel
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.sampling import Sampling
from tests.models import noisy_copy, prompt, random_model, raw_model

ROTARY = ("gpt_neox", "llama", "qwen3")


def _evicted(model: StreamingModel, ids: list[int], chunk: int = 3):
    session = model.session()
    session.start(ids[:1])
    for first in range(1, len(ids), chunk):
        part = ids[first : first + chunk]
        session.score(part, range(-1, len(part) - 1), Sampling())
        session.commit(range(len(part)))
    return session


@pytest.mark.parametrize("kind", ROTARY)
def test_first_layer_keys_equal_a_fresh_forward_over_the_kept_tokens(kind):
    """Layer 1 keys depend on a token and its position alone, so moving a key must give the fresh one."""
    model = StreamingModel(random_model(kind), cache=16, sinks=4, block=5)
    ids = prompt(60)[0].tolist()
    session = _evicted(model, ids)
    assert session.evictions > 3
    assert session.position == session.length == len(ids) - session.evicted <= 16
    kept = ids[:4] + ids[len(ids) - (session.length - 4) :]
    fresh = model.base.session()
    fresh.start([])
    fresh.score(kept, range(-1, len(kept) - 1), Sampling())
    found, wanted = (one._cache.states[0, ..., : session.length, :] for one in (session, fresh))
    torch.testing.assert_close(found, wanted, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", ROTARY)
@pytest.mark.parametrize("drafter", [Chain, FixedTree])
def test_without_eviction_the_text_is_the_models_own(kind, drafter):
    target = random_model(kind)
    draft = noisy_copy(target)
    plain = autoregressive(target, prompt(20), max_new_tokens=40)
    out = generate(StreamingModel(target, cache=100), prompt(20), drafter(draft), max_new_tokens=40)
    assert out.tokens == plain.tokens
    assert out.state.target.evictions == 0


def test_the_text_goes_on_after_evictions_and_beyond_the_context():
    target = HFModel(raw_model("gpt_neox"))
    target.context = 64
    model = StreamingModel(target, cache=32, sinks=4)
    out = generate(model, prompt(20), Chain(StreamingModel(noisy_copy(target), cache=40), 3), max_new_tokens=150)
    session = out.state.target
    assert len(out.tokens) == 150
    assert out.finish_reason == "length"
    assert session.evictions > 10
    assert session.position + session.evicted == 20 + 150 - 1  # the last token is chosen and not read yet
    assert session.length <= 32


def test_an_evicting_chain_writes_what_evicting_token_by_token_writes():
    """With the same blocks, when to evict must not depend on how many tokens an iteration commits, up to one block."""
    target = random_model("gpt_neox")
    model = StreamingModel(target, cache=30, sinks=2, block=1)
    first = autoregressive(model, prompt(10), max_new_tokens=21)
    chain = generate(model, prompt(10), Chain(target, 4), max_new_tokens=21)
    assert first.tokens[:20] == chain.tokens[:20]


def test_rebuilding_commit_evicts_too():
    target = random_model("gpt_neox")
    model = StreamingModel(target, cache=24)
    out = generate(model, prompt(20), Chain(noisy_copy(target), 3), max_new_tokens=40, commit="rebuild")
    assert out.state.target.evictions > 0
    assert len(out.tokens) == 40


@pytest.mark.parametrize(
    ("kind", "options", "reason"),
    [
        ("gpt2", {}, "no rotary positions"),
        ("opt", {}, "no rotary positions"),
        ("qwen2-window", {"cache": 20}, "sliding-window layers"),
        ("llama", {"cache": 4, "sinks": 4}, "leaves no recent window"),
        ("llama", {"cache": 32, "block": 0}, "leaves no recent window"),
        ("llama", {"cache": 5000}, "give a smaller one"),
    ],
)
def test_what_cannot_stream_is_refused(kind, options, reason):
    with pytest.raises(ValueError, match=reason):
        StreamingModel(random_model(kind), **{"cache": 100, **options})


def test_positions_that_change_with_the_length_are_refused():
    model = HFModel(raw_model("llama"))
    model.model.model.rotary_emb.rope_type = "stretched"
    with pytest.raises(ValueError, match="kind 'stretched'"):
        StreamingModel(model, cache=32)
