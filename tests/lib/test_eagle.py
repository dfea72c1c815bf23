"""Drafts on their target's features: the same as their literal definition, on every engine, in all of the loop."""

from copy import deepcopy
from functools import partial

import numpy as np
import pytest
import reference
import torch
from models import feature_draft, hf_greedy, noisy_copy, prompt, random_model

from dynatree_lib import Chain, FixedTree, SampledTree, Sampling, generate
from dynatree_lib.engines.batching import generate_batch
from dynatree_lib.models.base import Session
from dynatree_lib.models.eagle import RECENT, EagleModel
from dynatree_lib.models.engine import Features
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pruned import on_features
from dynatree_lib.models.toy import ToyModel
from dynatree_lib.sampling import GREEDY


def drafted_as_defined(target, draft, text, iterations, first=0):
    """Compare the draft's log-probabilities of every node, in every iteration but the first, with the definition."""
    compared = 0
    for number, iteration in enumerate(iterations):
        tree = iteration.tree
        if number == 0:
            assert len(tree) == 1  # the target has not given the prompt's features yet
        for node in range(1, len(tree)):
            path = [0, *tree.path(node)]
            logits = reference.feature_logits(target.model, draft.model, text, tree.tokens[path[1:-1]].tolist(), first)
            expected = logits[-1].log_softmax(-1)[tree.tokens[node]]
            assert float(expected) == pytest.approx(tree.logprobs[node], abs=1e-9)
            compared += 1
        text = text + iteration.verdict.tokens(tree)
    return compared, text


@pytest.mark.parametrize("commit", ["gather", "rebuild"])
@pytest.mark.parametrize("make", [Chain, lambda draft: FixedTree(draft, depth=3, branching=(2, 1), tau=None)])
@torch.inference_mode()
def test_every_node_is_drafted_as_defined(make, commit):
    """Also where a text goes on with tokens from elsewhere, whose features come one iteration later."""
    target = random_model("llama")
    draft, ids = feature_draft(target), prompt(20)[0].tolist()
    drafter = make(draft)
    first = generate(target, ids, drafter, max_new_tokens=25, commit=commit)
    compared, text = drafted_as_defined(target, draft, ids, first.iterations)
    turn = [5, 6, 7]
    second = generate(target, turn, drafter, max_new_tokens=25, state=first.state, commit=commit)
    more, text = drafted_as_defined(target, draft, text + turn, second.iterations)
    assert min(compared, more) > 20
    assert len(first.iterations) < 25  # something was accepted
    assert text[len(ids) :] == first.tokens + turn + second.tokens


@pytest.mark.parametrize(("recent", "first"), [(RECENT, 300 - RECENT), (None, 0)])
@torch.inference_mode()
def test_a_prompt_longer_than_a_joint_forward(recent, first):
    """Of which the draft reads the end alone, or all."""
    target, ids = random_model("llama"), prompt(300)[0].tolist()
    draft = feature_draft(target)
    assert draft.recent == RECENT
    draft = draft.altered(recent=recent)
    out = generate(target, ids, Chain(draft, 3), max_new_tokens=12)
    compared, _ = drafted_as_defined(target, draft, ids, out.iterations, first)
    assert compared > 5
    assert out.tokens == hf_greedy(target, prompt(300), 12)


def test_a_prompt_of_one_token():
    target = random_model("llama")
    out = generate(target, prompt(1), FixedTree(feature_draft(target)), max_new_tokens=30)
    assert out.tokens == hf_greedy(target, prompt(1), 30)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_compiled_forward_of_a_draft_on_features_is_the_plain_one(dtype):
    pytest.importorskip("numba")
    target = HFModel(_wide(dtype))
    if target.engine.name != "compiled":
        pytest.skip(f"no compiled forward in {dtype} here")
    models = [EagleModel(on_features(target.model, [1]), engine=name) for name in ("compiled", "eager")]
    models[1].model.load_state_dict(models[0].model.state_dict())
    models[1] = EagleModel(models[1].model, engine="eager")
    tolerance = 1e-4 if dtype == torch.float32 else 0.15
    features = torch.randn(11, 64, generator=torch.Generator().manual_seed(0)).to(dtype)
    found = []
    for model in models:
        session = model.session()
        session.extend(range(1, 11), features[:10])
        session.feature = features[10]
        logits = [session.score([3], [-1], GREEDY).logits, session.score([4, 5], [0, 0], GREEDY).logits]
        session.commit([0])
        session.extend([9], features[:1])
        found.append(torch.cat([*logits, session.score([7], [-1], GREEDY).logits]).float())
    assert models[0].engine.name == "compiled"
    assert torch.allclose(found[0], found[1], atol=tolerance * float(found[1].abs().max()), rtol=0)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("features", [True, False])
def test_a_level_read_in_one_call_is_what_scoring_gives(features, dtype):
    """After a queue, below a commit, with siblings; and seen from outside as a forward of the same tokens."""
    pytest.importorskip("numba")
    target = HFModel(_wide(dtype))
    if target.engine.name != "compiled":
        pytest.skip(f"no compiled forward in {dtype} here")
    model = EagleModel(on_features(target.model, [1], (1, -1))) if features else target
    seen = []

    def around(run, tokens, positions, mask, cache, keep, *features):
        seen[-1].append((tokens.tolist(), positions.tolist(), None if mask is None else mask.astype(bool), keep))
        return run(tokens, positions, mask, cache, keep, *features)

    given = torch.randn(5, 64, generator=torch.Generator().manual_seed(0))
    found = []
    for one_call in (True, False):
        seen.append([])
        session = model.observed(around).session()
        assert session.in_one_call
        level = session.level if one_call else partial(Session.level, session)
        session.extend(range(1, 4), *([given[:3]] if features else []))
        rows = [level(np.array([4]), np.array([-1])), level(np.array([5, 6]), np.array([0, 0]))]
        rows.append(level(np.array([7, 8, 9]), np.array([2, 1, 2])))
        session.commit([0, 2])
        session.extend([5, 6], *([given[3:]] if features else []))
        rows += [level(np.array([9]), np.array([-1])), level(np.array([3]), np.array([0]))]
        found.append(torch.cat(rows))
        assert (session.forwards, session.scored, session.length, session.pending) == (5, 8, 7, 2)
    assert torch.equal(*found)
    for one, other in zip(*seen, strict=True):
        assert one[:2] + one[3:] == other[:2] + other[3:]
        if other[2] is not None:
            np.testing.assert_array_equal(one[2], other[2])


@torch.inference_mode()
def test_a_draft_in_bfloat16_has_a_head_in_bytes():
    """Over one to three passes of rows, and over a head whose last block is not full."""
    kernels = pytest.importorskip("dynatree_cpu.kernels")
    if not (kernels.BYTES and kernels.BFLOAT16):
        pytest.skip("this processor does not multiply bytes")
    draft = EagleModel(on_features(_wide(torch.bfloat16), [1]))
    assert draft.engine.head.dtype == torch.int8
    assert HFModel(_wide(torch.bfloat16)).engine.head.dtype == torch.bfloat16  # a target's
    for count in (1, 3, 8, 9, 20):
        session = draft.session()
        found = session.level(np.arange(1, 1 + count), np.full(count, -1))
        expected = reference.logits_in_bytes(session._known[1 : 1 + count], draft.model.lm_head.weight)
        exact = session._known[1 : 1 + count].double() @ draft.model.lm_head.weight.double().T
        off, rounded = (float((found.double() - other).abs().mean()) for other in (expected, exact))
        assert off < 0.1 * rounded  # a number halfway between two steps may go the other way
    draft.model.lm_head.weight[3] = torch.nan
    broken = EagleModel(draft.model, check=False).session()
    assert broken.level(np.array([5]), np.array([-1]))[0].isnan().tolist() == [token == 3 for token in range(97)]
    session._known[0] = torch.nan
    assert session.level(np.array([5]), np.array([-1])).isnan().all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.inference_mode()
def test_features_are_fused_as_their_module_does(dtype):
    pytest.importorskip("numba")
    target = HFModel(_wide(dtype, layers=3))
    if target.engine.name != "compiled":
        pytest.skip(f"no compiled forward in {dtype} here")
    raw = on_features(target.model, [1], (2, 1, -1))
    random = torch.Generator().manual_seed(0)
    for weight in raw.fusion.parameters():
        weight.normal_(generator=random)
    session = EagleModel(raw).session()
    for count in (1, 7, 17, 64, 65):  # the last is not compiled
        states = torch.randn(count, 3 * 64, generator=random)
        expected = deepcopy(raw.fusion).float()(states.to(dtype).float())
        found = session.fused(states)
        assert found.dtype == dtype
        tolerance = 1e-5 if dtype == torch.float32 else 0.02
        assert torch.allclose(found.float(), expected, atol=tolerance * float(expected.abs().max()), rtol=0)


@pytest.mark.parametrize("layers", [(-1,), (1, -1), (2, 1, -1)])
def test_the_compiled_target_gives_its_hidden_states(layers):
    pytest.importorskip("numba")
    target = HFModel(_wide(torch.float32, layers=3))
    if target.engine.name != "compiled":
        pytest.skip("no compiled forward here")
    session = target.session()
    session.feature_layers = layers
    session.start([1, 2, 3])
    scores = session.score([4, 5, 6], [-1, 0, 0], Sampling())
    with torch.inference_mode():
        states = target.model(torch.tensor([[1, 2, 3, 4, 5]]), output_hidden_states=True).hidden_states
    expected = torch.cat([states[layer][0] for layer in layers], -1)
    assert scores.features.shape == (6, 64 * len(layers))
    assert torch.allclose(scores.features[:5], expected, atol=1e-4)
    session.commit([0])
    last = session.score([7], [-1], Sampling()).features
    assert last.shape == (1, 64 * len(layers))  # those of this forward alone


def test_sampled_drafting_records_what_it_drew_from():
    target = random_model("llama")
    drafter = SampledTree(feature_draft(target), depth=2)
    out = generate(target, prompt(10), drafter, sampling=Sampling(1.0), max_new_tokens=20)
    assert any(len(iteration.tree) > 1 for iteration in out.iterations)


def test_targets_without_fitting_features_are_refused():
    target = random_model("llama")
    drafter = Chain(feature_draft(target))
    toy = ToyModel(lambda context: [1 / 97] * 97, 97)
    with pytest.raises(ValueError, match="reads features of width 32.*gives none"):
        generate(toy, [1, 2], drafter)
    drafter.draft.feature_layers, kept = (4, -1), drafter.draft.feature_layers
    with pytest.raises(ValueError, match="after layer 4 of its target.* has 3 layers"):
        generate(target, [1, 2], drafter)
    drafter.draft.feature_layers = kept
    with pytest.raises(ValueError, match="sessions of its own"):
        generate_batch(target, [[1, 2], [3, 4]], drafter)


@pytest.mark.parametrize("layers", [(), (1,), (0, -1), (3, -1), (-1, 1)])
def test_feature_layers_that_a_target_does_not_have_are_refused(layers):
    with pytest.raises(ValueError, match=r"feature_layers is \[.*\]; give layers from 1 to 2, then -1"):
        on_features(random_model("llama").model, [0], layers)


def test_nodes_are_read_level_by_level():
    draft = feature_draft(random_model("llama"))
    with pytest.raises(ValueError, match="level by level"):
        draft.session().score([1, 2], [-1, 0], GREEDY)
    draft = EagleModel(on_features(_wide(torch.float32), [1]))
    with pytest.raises(ValueError, match="level by level"):
        draft.session().level(np.array([1, 2]), np.array([-1, 0]))


def test_broken_weights_are_noticed_at_loading(monkeypatch):
    target = random_model("llama")
    monkeypatch.setattr(
        "dynatree_lib.models.huggingface.depth_positions", lambda forest, first: first + np.arange(len(forest))
    )
    with pytest.raises(ValueError, match="does not score a tree as it scores its paths"):
        EagleModel(on_features(target.model, [0]))


def test_a_draft_on_tokens_keeps_no_features():
    target = random_model("llama")
    out = generate(target, prompt(5), Chain(noisy_copy(target)), max_new_tokens=5)
    assert out.state.target.feature_layers is None


def _wide(dtype, layers=2):
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=97, hidden_size=64, intermediate_size=128, num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=256, tie_word_embeddings=True,
    )  # fmt: skip
    return LlamaForCausalLM(config).to(dtype).eval()


def test_a_forward_without_features_is_refused():
    draft = feature_draft(random_model("llama"))
    cache = draft.session()._cache
    features = Features(given=torch.zeros(1, draft.feature_size))
    with torch.inference_mode(), pytest.raises(ValueError, match="of 2 tokens needs as many features and was given 1"):
        draft.run_forward(np.array([1, 2]), np.arange(2), None, cache, 2, features)
