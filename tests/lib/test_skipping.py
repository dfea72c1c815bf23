"""A target that drafts for itself with layers left out, and the search for these layers."""

import copy

import pytest
import reference
import torch
from examples import examples
from models import CONFIGS, hf_greedy, prompt, random_model, raw_model

import dynatree_lib as dt
from dynatree_lib import Chain, FixedTree, HFModel, generate, skipping
from dynatree_lib.drafters import ModelDrafter
from dynatree_lib.models.skipping import without_layers
from dynatree_suite.bench.methods import variant
from dynatree_suite.bench.protocol import run_benchmark
from dynatree_suite.drafters import ALL_DRAFTERS
from tools import try_architectures
from tools.search_layers import iterations, predicted, search_layers

ARCHITECTURES = [kind for kind in CONFIGS if kind not in ("mpt", "bloom")]
ALIKE = [kind for kind in ARCHITECTURES if kind not in ("llama4-window", "deepseek_v3")]
"""Those whose layers differ in nothing that their number decides, so that a model made anew has the same layers."""


@pytest.mark.parametrize("layers", [(0,), (1,), (2,), (2, 0)], ids=str)
@pytest.mark.parametrize("kind", ALIKE)
def test_a_model_without_layers_is_one_made_anew(kind, layers):
    target = raw_model(kind)
    ids = prompt(20)
    with torch.inference_mode():
        before = target(ids).logits
        fewer = without_layers(target, layers)
        torch.testing.assert_close(fewer(ids).logits, reference.without_layers(target, layers)(ids).logits)
        assert torch.equal(target(ids).logits, before)
    ours = {weight.data_ptr() for weight in target.parameters()}
    assert {weight.data_ptr() for weight in fewer.parameters()} < ours
    assert (fewer.config.num_hidden_layers, target.config.num_hidden_layers) == (3 - len(layers), 3)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("llava", {}),
        ("hunyuan_v1_dense", {}),
        ("granite_swa", {"layer_rope_theta": [1e4, 0, 100.0, 10.0], "layer_types": try_architectures.MIXED}),
    ],
)
def test_the_layers_left_out_are_those_of_the_text_with_all_that_is_said_of_them(kind, options, monkeypatch):
    """A list of as many layers reads pictures; modules have None as number; the forward looks positions up by place."""
    monkeypatch.setitem(try_architectures.PICTURE, "num_hidden_layers", 4)
    target, ids = try_architectures.random_model(kind, options, torch.float64), prompt(20)
    with torch.inference_mode():
        expected = reference.without_layers(target, (1,))(ids).logits
        torch.testing.assert_close(without_layers(target, (1,))(ids).logits, expected)
    assert skipping(HFModel(target), (0, 2)).layers == 2


@pytest.mark.parametrize("kind", ["longcat_flash", "hrm_text"])
def test_layers_that_are_not_one_list_are_refused(kind):
    with pytest.raises(ValueError, match="are no list of so many numbered layers, so none can be left out"):
        without_layers(try_architectures.random_model(kind, {}, torch.float32), (1,))


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_greedy_text_is_transformers(kind):
    target = random_model(kind)
    expected = hf_greedy(target, prompt(30), 12)
    draft = skipping(target, (1,))
    assert draft.layers == 2
    assert draft.name.endswith("without layers 1")
    for drafter in (Chain(draft), FixedTree(draft, tau=None)):
        assert generate(target, prompt(30), drafter, max_new_tokens=12).tokens == expected
    assert generate(target, prompt(30), Chain(target), max_new_tokens=12).tokens == expected  # it is as it was


@pytest.mark.parametrize(
    "kind", [kind for kind in ALL_DRAFTERS if issubclass(kind, ModelDrafter)], ids=lambda kind: kind.name
)
def test_every_drafter_takes_such_a_draft(kind):
    target = random_model("llama")
    expected, draft = hf_greedy(target, prompt(30), 16), skipping(target, (2,))
    for drafter in examples(kind, draft):
        assert generate(target, prompt(30), drafter, max_new_tokens=16).tokens == expected, drafter


@pytest.mark.parametrize(
    ("layers", "sentence"),
    [
        ((3,), "the target has layers 0 to 2"),
        ((-1,), "the target has layers 0 to 2"),
        ((1, 1), "name each once"),
        ((1.0,), "the target has layers 0 to 2"),
        ((), "leaves 3 of 3 layers"),
        ((0, 1, 2), "leaves 0 of 3 layers"),
    ],
)
def test_layers_that_cannot_be_left_out_are_refused(layers, sentence):
    with pytest.raises(ValueError, match=sentence):
        skipping(random_model("llama"), layers)


def test_other_targets_are_refused():
    with pytest.raises(TypeError, match="The target is a ToyModel; wrap a transformers model"):
        skipping(dt.ToyModel.random(3), (1,))
    spread = raw_model("llama")
    spread.model.layers[1]._hf_hook = "accelerate's"
    with pytest.raises(ValueError, match="spread over devices"):
        without_layers(spread, (1,))


# ----------------------------------------------------------------------------------------------------------- the search
def quiet_layer(kind: str = "llama", layer: int = 1) -> HFModel:
    """A model of which one layer adds nothing."""
    model = copy.deepcopy(raw_model(kind))
    with torch.no_grad():
        for matrix in (model.model.layers[layer].self_attn.o_proj, model.model.layers[layer].mlp.down_proj):
            matrix.weight.zero_()
    return HFModel(model)


def test_a_layer_that_adds_nothing_is_found():
    prompts = [prompt(20)[0].tolist(), prompt(31)[0].tolist()]
    told = []
    found = search_layers(quiet_layer(), prompts, max_new_tokens=24, most=2, progress=told.append)
    assert (found.tokens, found.forwards, len(told)) == (48, 5, 2)
    first, second = found.steps
    assert (first.layers, first.agreement) == ((1,), 1.0)
    assert second.layers[0] == 1 or second.layers[1] == 1
    assert second.draft_cost < first.draft_cost < 1
    assert found.best.gain == max(step.gain for step in found.steps)
    assert found.to_json()["best"]["layers"] == list(found.best.layers)


def test_some_candidates_of_a_step_are_drawn_by_the_seed():
    target, prompts = random_model("llama"), [prompt(20)[0].tolist()]
    options = {"max_new_tokens": 12, "most": 1, "tries": 1}
    found = [search_layers(target, prompts, seed=seed, **options).best.layers for seed in range(8)]
    assert found == [search_layers(target, prompts, seed=seed, **options).best.layers for seed in range(8)]
    assert len(set(found)) > 1


@pytest.mark.parametrize("length", [1, 3, 6])
def test_what_is_predicted_is_what_a_chain_does(length):
    """Iterations counted on one forward over the text are those of the decoding loop."""
    target = random_model("gpt_neox")
    step = search_layers(target, [prompt(25)[0].tolist()], max_new_tokens=60, most=1).steps[0]
    draft, text = skipping(target, step.layers), hf_greedy(target, prompt(25), 60)
    ids = torch.cat([prompt(25), torch.tensor([text[:-1]])], 1)
    with torch.inference_mode():
        first = draft.model(ids).logits[0, -60:].argmax(-1).tolist()
    agreeing = [one == other for one, other in zip(first, text, strict=True)]
    assert step.agreement == sum(agreeing) / 60
    out = generate(target, prompt(25), Chain(draft, length), max_new_tokens=60)
    assert iterations(agreeing, length) == len(out.iterations)
    told = predicted(step.layers, [agreeing], 0.5, length)
    assert told.gain == pytest.approx(told.tokens_per_iteration / (1 + 0.5 * told.length))
    assert told.gain >= 60 / len(out.iterations) / (1 + 0.5 * length)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prompts": []}, "No prompts were given"),
        ({"most": 3}, "most is 3 and .* has 3 layers"),
        ({"most": 0}, "most is 0"),
        ({"tries": 0}, "tries is 0"),
        ({"longest": 0}, "longest is 0"),
        ({"max_new_tokens": 1}, "ends at once"),
    ],
)
def test_a_search_that_cannot_run_is_refused(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        search_layers(random_model("llama"), **{"prompts": [[1, 2, 3]], **options})


# -------------------------------------------------------------------------------------------------------- the benchmark
def test_methods_and_sources_name_the_layers(tmp_path):
    pair = dt.load_pair("tiny")
    methods = "ar,chain:length=2,chain:length=2,skip=4/5,fixed-tree:skip=3"
    results = run_benchmark(pair, methods, ["The river runs"], max_new_tokens=10, warmup=0, trace=1)
    assert not results.records.failures
    assert [one["identical"] for one in results.summaries()[1:]] == ["1/1"] * 3
    with pytest.raises(ValueError, match="layers is \\[99\\]"):
        run_benchmark(pair, "chain:skip=99", ["The river runs"], max_new_tokens=4)
    assert variant("chain:skip=none").options["skip"] is None
    loaded = dt.load_pair(target="tiny", draft="skip:4/5")
    assert (loaded.draft.layers, loaded.draft.vocabulary) == (loaded.target.layers - 2, loaded.target.vocabulary)
    with pytest.raises(ValueError, match="such as skip:8/9/10"):
        dt.load_pair(target="tiny", draft="skip:a")
