"""Loading models as a user does, from local folders: the layout of a checkpoint on the hub."""

import json
import shutil
from collections import OrderedDict
from datetime import date

import pytest
import torch
from models import prompt, random_model
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from transformers import PreTrainedTokenizerFast

from dynatree_lib import Chain, FixedTree, HFModel, autoregressive, generate, load_pair, make_pair
from dynatree_lib.models import pairs
from dynatree_lib.models.pairs import MODELS_FOLDER, PAIRS, check_pair_name, load_model, two_sources
from dynatree_lib.paths import data_path
from dynatree_suite.bench.environment import file_hashes, public_pair_name
from dynatree_suite.runs.receipts import pair_files


def in_memory(width: int, words: int = 97) -> HFModel:
    """A model whose embeddings are wider than its vocabulary, as some families pad them."""
    made = random_model("gpt_neox", seed=width).model
    model = type(made)(type(made.config)(**{**made.config.to_dict(), "vocab_size": width})).double()
    return HFModel(model, tokenizer(words))


@pytest.mark.parametrize("widths", [(97, 128), (128, 97)])
def test_models_in_memory_with_padded_embeddings(widths):
    target, draft = map(in_memory, widths)
    pair = make_pair(target, draft)
    plain = autoregressive(pair.target, prompt(9), max_new_tokens=40, eos_token_ids=()).tokens
    for drafter in (Chain(pair.draft), FixedTree(pair.draft, tau=None)):
        assert generate(pair.target, prompt(9), drafter, max_new_tokens=40, eos_token_ids=()).tokens == plain


def test_a_token_the_draft_lacks_is_harmless():
    target = in_memory(128)
    with torch.no_grad():  # this target likes padded ids
        target.model.get_output_embeddings().weight[97:] *= 30
    draft = make_pair(target, in_memory(97)).draft
    plain = autoregressive(target, prompt(9), max_new_tokens=40, eos_token_ids=()).tokens
    assert max(plain) >= 97
    assert generate(target, prompt(9), Chain(draft), max_new_tokens=40, eos_token_ids=()).tokens == plain


def test_a_wider_draft_outside_a_pair_is_refused():
    with pytest.raises(ValueError, match="make_pair"):
        generate(in_memory(97), prompt(5), Chain(in_memory(128)))


def test_a_draft_with_a_part_of_the_vocabulary_serves():
    pair = make_pair(in_memory(97), in_memory(97, words=90))
    assert pair.draft.vocabulary == pair.target.vocabulary
    with pytest.raises(ValueError, match="different vocabularies"):
        make_pair(in_memory(97, words=90), in_memory(97))


def tokenizer(words: int, prefix: str = "w") -> PreTrainedTokenizerFast:
    vocabulary = {f"{prefix}{index}": index for index in range(words)}
    return PreTrainedTokenizerFast(tokenizer_object=Tokenizer(WordLevel(vocabulary, unk_token=f"{prefix}0")))


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory):
    """org/target and org/draft with tokenizers, org/bare without one, org/other with another vocabulary."""
    root = tmp_path_factory.mktemp("models")
    for name, words in (
        ("target", tokenizer(97)),
        ("draft", tokenizer(97)),
        ("bare", None),
        ("other", tokenizer(97, "v")),
    ):
        random_model("gpt_neox", dtype=torch.float32).model.save_pretrained(root / "org" / name)
        if words:
            words.save_pretrained(root / "org" / name)
    return root


def test_two_folders_make_a_pair(checkpoints):
    pair = load_pair(target=checkpoints / "org/target", draft=checkpoints / "org/draft", dtype="float64")
    assert pair.target.dtype == torch.float64
    assert pair.target.vocab_size == 97
    out = generate(pair.target, prompt(5), Chain(pair.draft), max_new_tokens=8)
    assert len(out.tokens) == 8


def test_a_folder_with_both_is_a_pair(checkpoints, tmp_path):
    for part in ("target", "draft"):
        shutil.copytree(checkpoints / "org" / part, tmp_path / part)
    assert load_pair(str(tmp_path)).draft.vocab_size == 97


def test_a_draft_without_tokenizer_has_its_targets(checkpoints):
    pair = load_pair(target=checkpoints / "org/target", draft=checkpoints / "org/bare")
    assert pair.draft.tokenizer is pair.target.tokenizer


def test_hub_names_are_looked_up_in_the_models_folder(checkpoints, monkeypatch):
    monkeypatch.setenv(MODELS_FOLDER, str(checkpoints))
    monkeypatch.setitem(PAIRS, "mine", pairs.PairSpec("org/target", "org/draft", "a test"))
    assert load_pair("mine").target.parameters == random_model("gpt_neox").parameters


# --------------------------------------------------------------------------------------------- names of two models
@pytest.mark.parametrize("name", ["org/target + org/draft", "org/target+org/draft", " org/target  +  org/draft "])
def test_a_pair_is_named_by_its_two_models(checkpoints, monkeypatch, name):
    monkeypatch.setenv(MODELS_FOLDER, str(checkpoints))
    check_pair_name(name)
    assert load_pair(name).name == "org/target + org/draft"


def test_a_pair_is_named_by_two_folders(checkpoints, tmp_path):
    folder = tmp_path / "with + and+" / "draft"
    shutil.copytree(checkpoints / "org/draft", folder)
    name = f"{checkpoints / 'org/target'} + {folder}"
    assert two_sources(name) == (str(checkpoints / "org/target"), str(folder))
    pair = load_pair(name)
    assert pair.name == name
    assert public_pair_name(pair) == public_pair_name(name) == "org/target + with + and+/draft"
    assert set(pair_files(name)) == {
        f"{role}/{file.name}" for role in ("target", "draft") for file in (checkpoints / "org" / role).iterdir()
    }
    before = pair_files(name)
    (folder / "config.json").write_text((folder / "config.json").read_text() + " ")
    assert {file for file, digest in pair_files(name).items() if before[file] != digest} == {"draft/config.json"}


def test_layers_to_skip_and_named_pairs_are_halves_of_a_name(checkpoints):
    target = checkpoints / "org/target"
    pair = load_pair(f"{target} + skip:1")
    assert pair.draft.layers == pair.target.layers - 1
    assert public_pair_name(pair) == "org/target + skip:1"
    assert load_pair("tiny + tiny").draft.parameters < load_pair("tiny + skip:1").target.parameters
    assert pair_files("tiny + tiny") == pair_files("org/nowhere + org/else") == pair_files("tiny") == {}


def test_a_folder_whose_name_has_a_plus_sign_is_one_pair(checkpoints, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for part in ("target", "draft"):
        shutil.copytree(checkpoints / "org" / part, tmp_path / "runs/a+b/c" / part)
    assert two_sources("runs/a+b/c") is None
    assert load_pair("runs/a+b/c").name == "runs/a+b/c"
    assert set(pair_files("runs/a+b/c")) == set(pair_files("runs/a+b/c/target + runs/a+b/c/draft"))


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("org/model", r"if it is a model, name a draft too, 'org/model \+ DRAFT'; otherwise choose one of tiny"),
        ("one+two", r"no pair named 'one\+two', nor a folder .* inside; choose one of"),
        ("org/model + ", "lacks a model"),
        (" + org/model", "lacks a model"),
        ("tiny + skip:one", "name layers of the target to leave out"),
        ("tiny + smollm2", "made of its target's layers"),
    ],
)
def test_names_that_are_none_of_two_models(name, sentence):
    for use in (check_pair_name, load_pair):
        with pytest.raises(ValueError, match=sentence):
            use(name)


def test_the_folder_of_one_model_is_no_pair(checkpoints):
    with pytest.raises(ValueError, match=r"org/target \+ DRAFT'"):
        check_pair_name(str(checkpoints / "org/target"))


def test_other_vocabulary_is_refused(checkpoints):
    with pytest.raises(ValueError, match="different vocabularies"):
        load_pair(target=checkpoints / "org/target", draft=checkpoints / "org/other")


def test_padded_draft_embeddings_are_cut_to_the_targets_width(checkpoints, tmp_path):
    wide = random_model("gpt_neox", seed=3, dtype=torch.float32).model
    wide.resize_token_embeddings(128)
    wide.save_pretrained(tmp_path)
    tokenizer(97).save_pretrained(tmp_path)
    wide.resize_token_embeddings(97)  # the model is shared between tests
    pair = load_pair(target=checkpoints / "org/target", draft=tmp_path)
    assert pair.draft.vocab_size == 97
    session = pair.draft.session()
    session.start([1, 2])
    assert session.score([3], [-1], pairs_sampling()).logits.shape == (1, 97)


def pairs_sampling():
    from dynatree_lib import Sampling

    return Sampling()


# ------------------------------------------------------------------------------------------------- formats of weights
@pytest.fixture
def tiny(tmp_path):
    """The bundled draft's folder without its weights, and the weights."""
    folder = tmp_path / "model"
    shutil.copytree(data_path("tiny", "draft"), folder)
    weights = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    return folder, weights


def shard(folder, weights, pattern="pytorch_model-{}.bin", index="pytorch_model.bin.index.json"):
    """Write weights to two *.bin files with an index."""
    names = sorted(weights)
    files = {name: pattern.format(number % 2) for number, name in enumerate(names)}
    for file in set(files.values()):
        torch.save({name: weights[name] for name in names if files[name] == file}, folder / file)
    (folder / index).write_text(json.dumps({"metadata": {}, "weight_map": files}))


def same_logits(model):
    """Whether a model's logits are the bundled draft's."""
    ids = torch.arange(3, 20)[None]
    return torch.equal(model.model(ids).logits, load_model(data_path("tiny", "draft")).model(ids).logits)


@pytest.mark.parametrize("zipped", [True, False])
def test_weights_in_one_bin_file_are_read(tiny, zipped):
    folder, weights = tiny
    torch.save(weights, folder / "pytorch_model.bin", _use_new_zipfile_serialization=zipped)
    (folder / "training_args.bin").write_bytes(b"of a trainer")
    assert same_logits(load_model(folder))
    assert list(file_hashes(str(folder))) == ["config.json", "pytorch_model.bin", "training_args.bin"]


def test_weights_in_several_bin_files_are_read(tiny):
    shard(*tiny)
    assert same_logits(load_model(tiny[0]))


def test_safetensors_are_read_where_there_are_both(tiny):
    folder, weights = tiny
    (folder / "pytorch_model.bin").write_bytes(b"of another time")
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    assert same_logits(load_model(folder))
    assert "pytorch_model.bin" not in file_hashes(str(folder))


class Ordered(OrderedDict):
    """A harmless class that is no tensor all the same."""


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (
            lambda weights: {**weights, "made": date(2026, 11, 1)},
            r"holds datetime\.date, which is no tensor .* HFModel",
        ),
        (Ordered, r"holds \S*Ordered, which is no tensor and could run code .* \*\.safetensors"),
        (lambda weights: {"model": weights, "step": 3}, r"its files lack 28 weights, such as 'gpt_neox\.embed_in"),
        (lambda weights: list(weights.values()), r"could not be loaded"),
    ],
)
def test_bin_files_with_something_else_are_refused(tiny, content, sentence):
    folder, weights = tiny
    torch.save(content(weights), folder / "pytorch_model.bin")
    with pytest.raises(ValueError, match=sentence):
        load_model(folder)


@pytest.mark.parametrize("content", [b"", b"version https://git-lfs.github.com/spec/v1\n", None])
def test_a_damaged_bin_file_is_named(tiny, content):
    folder, weights = tiny
    torch.save(weights, folder / "pytorch_model.bin")
    whole = (folder / "pytorch_model.bin").read_bytes()
    (folder / "pytorch_model.bin").write_bytes(whole[:100_000] if content is None else content)
    with pytest.raises(
        ValueError, match=r"one of its \*\.bin files is damaged, .* fetch or copy it again\.$"
    ) as caught:
        load_model(folder)
    assert "weights_only" not in str(caught.value)


def test_a_checkpoint_that_lacks_weights_is_refused(tiny):
    folder, weights = tiny
    del weights["gpt_neox.layers.0.attention.dense.weight"]
    save_file(weights, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(ValueError, match=r"lack 1 weights, such as 'gpt_neox\.layers\.0\.attention\.dense\.weight'"):
        load_model(folder)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"name": "huge"}, "no pair named 'huge'"),
        ({}, "Give both"),
        ({"target": "a"}, "Give both"),
        ({"name": "tiny", "target": "a"}, "not both"),
        ({"name": "tiny", "dtype": "int8"}, "dtype is 'int8'"),
        ({"name": "tiny", "dtype": "nonsense"}, "dtype is 'nonsense'"),
    ],
)
def test_bad_requests_are_named(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        load_pair(**options)


def test_a_missing_gpu_is_named():
    if torch.cuda.is_available():
        pytest.skip("this machine has one")
    with pytest.raises(ValueError, match="no CUDA device"):
        load_pair("tiny", device_map="cuda")


def test_what_cannot_be_loaded_says_what_would_serve(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(ValueError, match=r"could not be loaded.*config\.json.*DYNATREE_MODELS"):
        load_pair(target=tmp_path, draft=tmp_path)


def test_an_error_without_a_message_is_named_by_its_kind(tmp_path, monkeypatch):
    def fail(*_, **__):
        raise OSError

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", fail)
    with pytest.raises(ValueError, match=r"could not be loaded \(OSError\)"):
        load_pair(target=tmp_path, draft=tmp_path)


def test_an_unsupported_checkpoint_is_refused(checkpoints, tmp_path):
    shutil.copytree(checkpoints / "org/target", tmp_path / "m")
    config = json.loads((tmp_path / "m/config.json").read_text())
    (tmp_path / "m/config.json").write_text(json.dumps({**config, "model_type": "bloom"}))
    with pytest.raises(ValueError, match="bloom"):
        load_pair(target=tmp_path / "m", draft=checkpoints / "org/draft")


def test_a_pair_of_two_folders_has_a_public_name_without_them(tmp_path):
    from types import SimpleNamespace

    def pair(target, draft, name=None):
        models = [SimpleNamespace(name=str(one)) for one in (target, draft)]
        return SimpleNamespace(name=name or f"{target} + {draft}", target=models[0], draft=models[1])

    assert public_pair_name(pair(tmp_path / "a + b" / "big", tmp_path / "c" / "small")) == "a + b/big + c/small"
    assert public_pair_name(pair("org/big", "org/small")) == "org/big + org/small"
    assert public_pair_name(pair(tmp_path / "tiny/target", tmp_path / "tiny/draft", "tiny")) == "tiny"
    assert public_pair_name(pair("x", "y", str(tmp_path / "trained"))).endswith("/trained")
