"""StreamingLLM's cache: what it keeps, where its keys stand, and when its text is still the model's own."""

from __future__ import annotations

import pytest
import reference
import torch
from models import noisy_copy, prompt, random_model, raw_model

from dynatree_lib.decoding import autoregressive, generate
from dynatree_lib.drafters import Chain, FixedTree
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.sampling import Sampling
from dynatree_lib.tree import TokenTree
from dynatree_suite.bench.streaming import StreamingModel, StreamingSession

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


def test_trees_after_evictions_are_scored_after_the_kept_tokens_alone(monkeypatch):
    """In one layer an entry depends on its token and place, so that reading what is left of the text is an exact twin.

    Deeper, entries remember what was read before them. How many entries a node sees depends on when its iteration
    began, so that a chain need not write what evicting token by token writes.
    """
    raw = raw_model("gpt_neox")
    raw.gpt_neox.layers, raw.config.num_hidden_layers = raw.gpt_neox.layers[:1], 1
    target = HFModel(raw)
    model = StreamingModel(target, cache=30, sinks=2, block=4)
    seen, score = [], StreamingSession.score

    def noted(session, tokens, parents, sampling):
        scores = score(session, tokens, parents, sampling)
        seen.append((session.position + session.evicted, session.length, TokenTree.build(tokens, parents), scores))
        return scores

    monkeypatch.setattr(StreamingSession, "score", noted)
    ids = prompt(10)[0].tolist()
    out = generate(model, ids, FixedTree(noisy_copy(target), depth=3, tau=None), max_new_tokens=80)
    assert out.state.target.evictions >= 8
    assert sum(len(one.verdict.path) for one in out.iterations) > 10
    text = ids + out.tokens
    for read, length, tree, scores in seen:
        kept = text[:2] + text[read - (length - 2) : read]
        with torch.inference_mode():
            wanted = reference.paths_one_by_one(target.model, kept, tree)
        torch.testing.assert_close(scores.logits, wanted, rtol=0, atol=1e-9)


def test_where_no_drafted_token_is_accepted_the_text_is_that_of_evicting_token_by_token():
    target = random_model("gpt_neox")
    model = StreamingModel(target, cache=30, sinks=2, block=4)
    plain = autoregressive(model, prompt(10), max_new_tokens=80)
    out = generate(model, prompt(10), Chain(random_model("gpt_neox", seed=1), 4), max_new_tokens=80)
    assert out.tokens == plain.tokens
    assert plain.state.target.evictions == out.state.target.evictions > 8
    assert {len(one.verdict.path) for one in out.iterations} == {0}
    assert {len(one.tree) for one in out.iterations[:-4]} == {5}
    assert out.tokens != autoregressive(target, prompt(10), max_new_tokens=80).tokens  # evictions change the text


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
