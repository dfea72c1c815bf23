"""`model.generate(custom_generate=...)`: what transformers hands over is honoured as transformers would, or refused."""

import copy
import dataclasses
import inspect
import pickle
import shutil
from collections import defaultdict
from functools import cache, partial
from threading import Thread

import pytest
import torch
import transformers
from models import VOCABULARY, config, noisy_copy, prompt, random_model, raw_model
from transformers import (
    GenerationMixin,
    LogitsProcessorList,
    MaxTimeCriteria,
    RepetitionPenaltyLogitsProcessor,
    StoppingCriteria,
    StoppingCriteriaList,
    StopStringCriteria,
    TextIteratorStreamer,
    TextStreamer,
)
from transformers.generation import logits_process as known

import dynatree_lib as dt
from dynatree_lib import decoding, hf
from dynatree_lib.models.engine import cache_name
from dynatree_lib.paths import data_path
from dynatree_suite.drafters import Lookahead
from dynatree_suite.proofs import exact
from tools import try_architectures

ARCHITECTURES = ["llama", "gpt_neox", "qwen3", "opt"]
NEW = 24


@pytest.fixture(autouse=True)
def _modules_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setattr("transformers.dynamic_module_utils.HF_MODULES_CACHE", str(tmp_path / "modules"))


def model_of(kind):
    return random_model(kind).model


def draft_of(kind):
    return noisy_copy(random_model(kind)).model


def asked(ids, **options):
    """Arguments of `generate` for greedy text of NEW tokens after unpadded ids."""
    given = {"attention_mask": torch.ones_like(ids), "max_new_tokens": NEW, "pad_token_id": 0, "do_sample": False}
    return {**given, **options}


def added(model, ids, **options):
    return model.generate(ids, **asked(ids, **options))[0, ids.shape[1] :].tolist()


class Balanced(known.LogitsProcessor):
    """A grammar like JSON's: brackets 10/11 and 20/21 have to match, and at most three tokens stand between brackets.

    It reads the whole new text and complains of one that is not in its language.
    """

    def __init__(self, start):
        self.start = start

    def __call__(self, input_ids, scores):
        mask = torch.full_like(scores, -torch.inf)
        for row, text in enumerate(input_ids[:, self.start :].tolist()):
            mask[row, self.allowed(text)] = 0
        return scores + mask

    def allowed(self, text):
        closing, plain = [], 0
        for token in text:
            if token in (10, 20):
                closing.append(token + 1)
            elif token in (11, 21):
                assert closing, text
                assert token == closing.pop(), text
            plain = 0 if token in (10, 11, 20, 21) else plain + 1
            assert plain <= 3, text
        brackets = [10, 20, *closing[-1:]]
        return brackets if plain == 3 else [*brackets, *range(30, VOCABULARY)]


def only_even_after_odd(_, ids):
    return [token for token in range(VOCABULARY) if token % 2 != int(ids[-1]) % 2]


PROCESSORS = {
    "repetition_penalty": {"repetition_penalty": 1.4},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[token] for token in range(0, 60, 3)] + [[1, 4], [2, 5, 7]]},
    "min_new_tokens": {"min_new_tokens": 20, "eos_token_id": list(range(40))},
    "min_length": {"min_length": 25, "eos_token_id": list(range(40))},
    "suppress_tokens": {"suppress_tokens": list(range(0, VOCABULARY, 2))},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(0, VOCABULARY - 3))},
    "forced_eos_token_id": {"forced_eos_token_id": 7},
    "sequence_bias": {"sequence_bias": [[[token], 15.0] for token in range(3)] + [[[1, 2], 30.0], [[2, 5], 30.0]]},
    "exponential_decay": {"exponential_decay_length_penalty": (3, 1.6), "eos_token_id": [11, 12]},
    "encoder_repetition_penalty": {"encoder_repetition_penalty": 3.0},
    "encoder_no_repeat_ngram_size": {"encoder_no_repeat_ngram_size": 1},
    "prefix_allowed_tokens_fn": {"prefix_allowed_tokens_fn": only_even_after_odd},
    "watermarking_config": {"watermarking_config": {"bias": 8.0, "seeding_scheme": "lefthash"}},
    "several": {"repetition_penalty": 1.2, "no_repeat_ngram_size": 3, "suppress_tokens": [1, 2, 3],
                "remove_invalid_values": True, "renormalize_logits": True},
    "a grammar": {"logits_processor": LogitsProcessorList([Balanced(20)])},
}  # fmt: skip


@cache
def plain(kind, length):
    """Greedy text of this model after `prompt(length)`, without any option."""
    return added(model_of(kind), prompt(length))


# ------------------------------------------------------------------------------------------------------ greedy text
@pytest.mark.parametrize("name", PROCESSORS)
def test_greedy_text_is_transformers_with_each_processor_on_each_architecture(name):
    ids, changed = prompt(20), 0
    for kind in ARCHITECTURES:
        model, options = model_of(kind), PROCESSORS[name]
        expected = added(model, ids, **options)
        changed += expected != plain(kind, 20)
        for more in ({}, {"draft_model": draft_of(kind), "drafter": dt.FixedTree}):
            assert added(model, ids, custom_generate=hf.generate, **options, **more) == expected, (kind, more)
    assert changed >= 2, "the processor does nothing"


@pytest.mark.parametrize("kind", ARCHITECTURES)
def test_greedy_text_is_transformers_with_every_way_to_name_a_drafter(kind):
    model, draft, ids = model_of(kind), draft_of(kind), prompt(33)
    expected = added(model, ids)
    ways = [
        {},
        {"draft_model": draft},
        {"draft_model": dt.HFModel(draft)},
        {"draft_model": draft, "drafter": dt.AdaptiveTree},
        {"draft_model": draft, "drafter": partial(dt.FixedTree, depth=3, branching=2), "verifier": dt.Greedy()},
        {"drafter": dt.Chain(dt.HFModel(draft))},
        {"drafter": dt.ProgressiveTree},
        {"drafter": Lookahead(window=3), "engine": "eager"},
    ]
    for way in ways:
        assert added(model, ids, custom_generate=hf.generate, **way) == expected, way
    assert added(model, ids, custom_generate=partial(hf.generate, draft_model=draft)) == expected


def test_forced_bos_comes_after_a_prompt_of_one_token():
    model, ids = model_of("llama"), prompt(1)
    expected = added(model, ids, forced_bos_token_id=5)
    assert expected[0] == 5
    assert added(model, ids, forced_bos_token_id=5, custom_generate=hf.generate) == expected


def test_the_checkpoints_generation_config_is_honoured():
    model = copy.deepcopy(model_of("gpt_neox"))
    ids, plain = prompt(20), added(model, prompt(20))
    model.generation_config.repetition_penalty = 1.4
    penalised = added(model, ids)
    assert penalised != plain
    model.generation_config.max_length = 35
    del (options := asked(ids))["max_new_tokens"]
    for eos, text in ((None, penalised[:15]), ([penalised[8]], penalised[: penalised.index(penalised[8]) + 1])):
        model.generation_config.eos_token_id = eos
        found = model.generate(ids, custom_generate=hf.generate, **options)
        assert torch.equal(found, model.generate(ids, **options))
        assert found[0, 20:].tolist() == text


@pytest.mark.parametrize("drafted", [True, False], ids=["draft", "no draft"])
def test_the_default_drafter_is_asked_for_by_its_class(drafted, monkeypatch):
    """With a draft model and without one, and it is what nobody asks for gives."""
    model, ids, used = model_of("llama"), prompt(20), []
    propose = dt.Auto.propose
    monkeypatch.setattr(dt.Auto, "propose", lambda self, *given: used.append(self) or propose(self, *given))
    given = {"draft_model": draft_of("llama")} if drafted else {}
    for more in ({}, {"drafter": dt.Auto}):
        assert added(model, ids, custom_generate=hf.generate, **given, **more) == added(model, ids)
        assert {(type(one), one.draft is not None) for one in used} == {(dt.Auto, drafted)}
        used.clear()


def test_eos_inside_a_path_ends_the_text_there():
    model, draft, ids = model_of("llama"), draft_of("llama"), prompt(20)
    text, inside = added(model, ids), 0
    for place in range(1, 12):
        out = dt.generate(dt.HFModel(model), ids, dt.FixedTree(dt.HFModel(draft)), max_new_tokens=NEW)
        ends = added(model, ids, eos_token_id=text[place], custom_generate=hf.generate, draft_model=draft,
                     drafter=dt.FixedTree)  # fmt: skip
        assert ends == text[: text.index(text[place]) + 1]
        starts, total = [], 0
        for iteration in out.iterations:
            starts.append(total)
            total += iteration.committed
        inside += text.index(text[place]) + 1 not in [*starts, total]
    assert inside >= 3


def test_max_length_counts_the_prompt():
    model, ids = model_of("llama"), prompt(20)
    for options in ({"max_length": 27, "max_new_tokens": None}, {"max_new_tokens": 1}):
        expected = model.generate(ids, **asked(ids, **options))
        assert torch.equal(model.generate(ids, custom_generate=hf.generate, **asked(ids, **options)), expected)


@pytest.mark.parametrize("kind", ["gemma3", "qwen2_vl", "smolvlm"])
def test_a_model_that_also_reads_pictures_reads_text(kind):
    options = {**try_architectures.PICTURES[kind], "vocab_size": VOCABULARY}
    model, (ids, mask) = try_architectures.random_model(kind, options, torch.float32), padded([5, 20])
    given = asked(ids, attention_mask=mask, pad_token_id=96)
    assert torch.equal(model.generate(ids, custom_generate=hf.generate, **given), model.generate(ids, **given))
    target, row = dt.HFModel(model), ids[1:]
    arguments = hf.options(target, row, max_new_tokens=NEW, repetition_penalty=1.4)
    expected = added(model, row, repetition_penalty=1.4)
    assert dt.generate(target, row, dt.PromptLookup(), **arguments).tokens == expected
    with pytest.raises(ValueError, match="A picture or a video was given"):
        model.generate(ids, custom_generate=hf.generate, mm_encoder_outputs={"image": torch.zeros(1)}, **given)
    if kind == "gemma3":  # its processor tells of each token whether it is of a picture
        found = model.generate(ids, custom_generate=hf.generate, token_type_ids=torch.zeros_like(ids), **given)
        assert torch.equal(found, model.generate(ids, **given))
        with pytest.raises(ValueError, match="token_type_ids was given"):
            model.generate(ids, custom_generate=hf.generate, token_type_ids=torch.ones_like(ids), **given)


def test_ids_of_32_bits_give_sequences_of_64_as_in_transformers():
    model, ids = model_of("llama"), prompt(20).int()
    found = model.generate(ids, custom_generate=hf.generate, **asked(ids))
    assert found.dtype == torch.int64
    assert torch.equal(found, model.generate(ids, **asked(ids)))


@pytest.mark.parametrize("outside", [-1, VOCABULARY + 3])
def test_an_eos_token_outside_the_vocabulary_ends_no_text(outside):
    model, ids = copy.deepcopy(model_of("llama")), prompt(20)
    plain = added(model, ids)
    inside = plain[4]
    for eos, ends, text in ((outside, (), plain), ([outside, inside], (inside,), plain[: plain.index(inside) + 1])):
        assert added(model, ids, eos_token_id=eos) == text
        assert added(model, ids, eos_token_id=eos, custom_generate=hf.generate) == text
        assert hf.options(dt.HFModel(model), ids, eos_token_id=eos)["eos_token_ids"] == ends
    model.generation_config.eos_token_id = outside
    assert added(model, ids, custom_generate=hf.generate) == plain


# ----------------------------------------------------------------------------------------------- exact distributions
SAMPLED = {
    "warm": {"temperature": 0.8, "top_k": 0},
    "filtered": {"temperature": 1.3, "top_k": 3, "top_p": 0.8},
    "penalised": {"temperature": 0.9, "top_k": 0, "repetition_penalty": 1.8, "no_repeat_ngram_size": 2},
    "min_p": {"temperature": 1.4, "top_k": 0, "min_p": 0.2, "repetition_penalty": 1.5},
    "typical_p": {"temperature": 1.4, "top_k": 3, "typical_p": 0.7},
}


@pytest.fixture(scope="module")
def small():
    """A target and a draft with three tokens, so that every outcome can be tried."""
    from models import CONFIGS

    original = CONFIGS["llama"]
    CONFIGS["llama"] = (original[0], {**original[1], "vocab_size": 3, "num_hidden_layers": 1})
    try:
        target, draft = (dt.HFModel(raw_model("llama", seed)).model for seed in (0, 1))
    finally:
        CONFIGS["llama"] = original
    return target, draft


def expected_texts(model, ids, length, options):
    """The distribution of texts from plain forwards and transformers' own processors, in their order."""
    config = transformers.GenerationConfig(do_sample=True, num_beams=1, **options)
    processors = model._get_logits_processor(config, ids.shape[1], ids, None, LogitsProcessorList(), "cpu", {})
    texts = {(): 1.0}
    with torch.no_grad():
        for _ in range(length):
            longer = {}
            for text, mass in texts.items():
                whole = torch.cat([ids, torch.tensor([text], dtype=torch.int64)], 1)
                shares = processors(whole, model(whole, use_cache=False).logits[:, -1])[0].softmax(0)
                longer.update({(*text, token): mass * share for token, share in enumerate(shares.tolist()) if share})
            texts = longer
    return texts


@pytest.mark.parametrize("name", SAMPLED)
@pytest.mark.parametrize("way", ["lookup", "tree", "drawn"])
def test_sampled_texts_have_transformers_distribution(small, monkeypatch, name, way):
    """Every outcome of `model.generate(custom_generate=...)` itself, with its probability."""
    (model, draft), ids, options = small, torch.tensor([[0, 1, 2, 0, 1]]), SAMPLED[name]
    ways = {
        "lookup": {"drafter": dt.PromptLookup(ngram=1)},
        "tree": {"draft_model": draft, "drafter": partial(dt.FixedTree, depth=2, branching=2, tau=None)},
        "drawn": {"draft_model": draft},
    }

    def run(random):
        def source(seed, stream):
            return random if way == "drawn" or stream == "verify" else dt.RandomSource(seed, stream)

        monkeypatch.setattr(decoding, "RandomSource", source)
        return tuple(added(model, ids, custom_generate=hf.generate, do_sample=True, max_new_tokens=3, **options,
                           **ways[way]))  # fmt: skip

    found = defaultdict(float)
    for text, mass in exact.outcomes(run):
        found[text] += mass
    assert exact.distance(found, expected_texts(model, ids, 3, options)) < 1e-9
    assert exact.distance(found, expected_texts(model, ids, 3, {"top_k": 0})) > 0.02


def test_what_sampling_can_do_is_left_to_it():
    """So that drafts are drawn at the target's temperature; what else stands among the warpers stays in its place."""
    warpers = [known.TemperatureLogitsWarper(0.7), known.TopKLogitsWarper(5), known.TopPLogitsWarper(0.9)]
    penalty, least = RepetitionPenaltyLogitsProcessor(1.2), known.MinPLogitsWarper(0.1)
    assert hf._split([penalty, *warpers], True) == ([penalty], warpers, dt.Sampling(0.7, 5, 0.9))
    assert hf._split([penalty, warpers[0]], True) == ([penalty], warpers[:1], dt.Sampling(0.7))
    assert hf._split([penalty], True) == ([penalty], [], dt.Sampling(1.0))
    assert hf._split([*warpers, least], True) == ([*warpers, least], [], dt.Sampling(1.0))
    two = [known.TopKLogitsWarper(5, min_tokens_to_keep=2)]
    assert hf._split(two, True) == (two, [], dt.Sampling(1.0))
    assert hf._split([penalty], False) == ([penalty], [], dt.Sampling())


def test_seeds_come_from_torch():
    model, draft, ids = model_of("llama"), draft_of("llama"), prompt(20)  # made once, from torch's generator as well

    def sample(seed=None):
        if seed is not None:
            transformers.set_seed(seed)
        return added(model, ids, custom_generate=hf.generate, do_sample=True, draft_model=draft)

    assert sample(1) == sample(1) != sample(2)
    assert sample() != sample()
    two = ids.repeat(2, 1)
    out = model.generate(two, custom_generate=hf.generate, **asked(two, do_sample=True))
    assert out[0].tolist() != out[1].tolist(), "rows are drawn independently"


# --------------------------------------------------------------------------------------------------------- criteria
class Watching(StoppingCriteria):
    """Ends a text at a token that is a multiple of 7 after four others; keeps what it was asked."""

    def __init__(self, start):
        self.start, self.texts, self.scores = start, [], []

    def __call__(self, input_ids, scores, **_):
        self.texts.append(input_ids[0].tolist())
        self.scores.append(scores)
        done = input_ids.shape[1] > self.start + 4 and int(input_ids[0, -1]) % 7 == 0
        return torch.tensor([done])


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.4}], ids=["plain", "processed"])
def test_stopping_criteria_are_asked_token_by_token_as_by_transformers(kind, options):
    model, ids = model_of(kind), prompt(20)
    recorded = {"return_dict_in_generate": True, "output_scores": True, **options}
    for kept, more in (({}, options), (recorded, recorded)):
        mine, theirs = Watching(20), Watching(20)
        given = asked(ids, max_new_tokens=60, **more)
        expected = model.generate(ids, stopping_criteria=StoppingCriteriaList([theirs]), **given)
        found = model.generate(ids, stopping_criteria=StoppingCriteriaList([mine]), custom_generate=hf.generate,
                               draft_model=draft_of(kind), drafter=dt.FixedTree, **given)  # fmt: skip
        if kept:
            found, expected = found.sequences, expected.sequences
        assert torch.equal(found, expected)
        assert found.shape[1] < 80
        assert mine.texts == theirs.texts
        for ours, others in zip(mine.scores, theirs.scores, strict=True):
            assert (ours is None) == (others is None) == (not kept)
            for one, other in zip(ours or (), others or (), strict=True):
                assert torch.allclose(one, other, atol=1e-5)


def test_time_that_is_up_ends_the_text_after_a_token():
    model, ids = model_of("llama"), prompt(20)
    up = StoppingCriteriaList([MaxTimeCriteria(0.0, initial_timestamp=0.0)])
    assert added(model, ids, stopping_criteria=up, custom_generate=hf.generate) == added(model, ids)[:1]
    assert added(model, ids, max_time=1e-9, custom_generate=hf.generate) == added(model, ids)[:1]


@pytest.fixture(scope="module")
def tiny():
    pair = dt.load_pair("tiny")
    inputs = pair.tokenizer("def read_lines(path):", return_tensors="pt")
    return pair, {**inputs, "max_new_tokens": 40, "do_sample": False, "pad_token_id": 0}


def test_stop_strings_need_the_folder_or_a_criterion(tiny):
    pair, inputs = tiny
    model, tokenizer = pair.target.model, pair.tokenizer
    expected = model.generate(**inputs, stop_strings=["\n"], tokenizer=tokenizer)
    length = inputs["input_ids"].shape[1]
    assert length < expected.shape[1] < length + 40
    with pytest.raises(ValueError, match="stop strings"):  # transformers' own: a function is handed no tokenizer
        model.generate(**inputs, stop_strings=["\n"], tokenizer=tokenizer, custom_generate=hf.generate)
    criteria = StoppingCriteriaList([StopStringCriteria(tokenizer, ["\n"])])
    assert torch.equal(model.generate(**inputs, stopping_criteria=criteria, custom_generate=hf.generate), expected)
    folder = {"custom_generate": str(data_path("huggingface")), "trust_remote_code": True}
    found = model.generate(**inputs, stop_strings=["\n"], tokenizer=tokenizer, draft_model=pair.draft.model, **folder)
    assert torch.equal(found, expected)
    config = transformers.GenerationConfig(stop_strings=["\n"], max_new_tokens=40, pad_token_id=0)
    ids = {name: inputs[name] for name in ("input_ids", "attention_mask")}
    assert torch.equal(model.generate(**ids, generation_config=config, tokenizer=tokenizer, **folder), expected)
    with pytest.raises(ValueError, match="no tokenizer to read them with"):
        model.generate(**inputs, stop_strings="\n", **folder)


def test_stop_strings_none_switches_off_those_of_a_config(tiny):
    pair, inputs = tiny
    model, tokenizer = copy.deepcopy(pair.target.model), pair.tokenizer
    plain = model.generate(**inputs)
    model.generation_config.stop_strings = ["\n"]
    folder = {"custom_generate": str(data_path("huggingface")), "trust_remote_code": True}
    ended = model.generate(**inputs, tokenizer=tokenizer, **folder)
    assert ended.shape[1] < plain.shape[1]
    assert torch.equal(model.generate(**inputs, tokenizer=tokenizer, stop_strings=None, **folder), plain)
    assert not hf.options(dt.HFModel(model, tokenizer), TEXT, stop_strings=None)["stopping_criteria"]
    (criterion,) = hf.options(dt.HFModel(model), inputs["input_ids"], tokenizer=tokenizer)["stopping_criteria"]
    assert criterion.stop_strings == ("\n",)


# ------------------------------------------------------------------- the checkpoint's generation config, in dt.generate
@pytest.fixture
def checkpoint(tmp_path, tiny):
    """A function that stores the bundled target with these settings in its generation config, and loads the pair."""
    pair, _ = tiny

    def load(**settings):
        shutil.copytree(data_path("tiny", "target"), tmp_path / "target", dirs_exist_ok=True)
        pair.tokenizer.save_pretrained(tmp_path / "target")
        asking = copy.deepcopy(pair.target.model.generation_config)
        asking.update(**settings)
        asking.save_pretrained(tmp_path / "target")
        return dt.load_pair(target=tmp_path / "target", draft=data_path("tiny", "draft"))

    return load


TEXT = "def read_lines(path):"
ASKING = {
    "repetition_penalty": ({"repetition_penalty": 1.3}, "repetition_penalty=1.3"),
    "n-grams": ({"no_repeat_ngram_size": 3, "suppress_tokens": [5]}, r"no_repeat_ngram_size=3, suppress_tokens=\[5\]"),
    "minimum": ({"min_length": 25, "eos_token_id": [0, 376, 1376]}, "min_length=25"),
    "stop": ({"stop_strings": ["bytes"]}, r"stop_strings=\['bytes'\]"),
    "all": ({"repetition_penalty": 1.2, "bad_words_ids": [[20]], "forced_eos_token_id": 0}, "bad_words_ids"),
}


@pytest.mark.parametrize("name", ASKING)
def test_a_checkpoints_config_is_warned_of_once_and_its_options_give_transformers_text(checkpoint, name):
    settings, words = ASKING[name]
    pair = checkpoint(**settings)
    drafter, ids = dt.LookupTree(pair.draft), pair.tokenizer(TEXT, return_tensors="pt").input_ids
    with pytest.warns(UserWarning, match=f"asks for .*{words}.* not applied here.*dt.hf.options"):
        plain = dt.generate(pair.target, ids, drafter, max_new_tokens=40)
    assert dt.generate(pair.target, ids, drafter, max_new_tokens=40).tokens == plain.tokens  # warnings are errors
    expected = pair.target.model.generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, tokenizer=pair.tokenizer
    )[0, ids.shape[1] :].tolist()
    assert expected != plain.tokens
    arguments = hf.options(pair.target, TEXT, max_new_tokens=40)
    assert dt.generate(pair.target, TEXT, drafter, **arguments).tokens == expected


LOOPS = {
    "plain": lambda pair, **options: dt.autoregressive(pair.target, TEXT, **options),
    "altered": lambda pair, **options: dt.autoregressive(pair.target.altered(vocab_size=9), [1], **options),
    "fast": lambda pair, **options: dt.autoregressive_fast(pair.target, TEXT, **options),
    "batch": lambda pair, **options: dt.generate_batch(pair.target, [TEXT, "x"], dt.Chain(pair.draft), **options),
}


@pytest.mark.parametrize("loop", LOOPS.values(), ids=LOOPS)
def test_every_loop_warns_of_a_checkpoints_config(checkpoint, loop):
    pair = checkpoint(repetition_penalty=1.3)
    with pytest.warns(UserWarning, match=r"repetition_penalty=1\.3"):
        loop(pair, max_new_tokens=4)


def test_settings_of_sampling_are_warned_of_where_no_sampling_is_given(checkpoint):
    pair = checkpoint(do_sample=True, temperature=0.6, top_p=0.9, min_p=0.1)
    warm = dt.Sampling(temperature=0.6, top_p=0.9)
    dt.autoregressive(pair.target, TEXT, max_new_tokens=4, sampling=dt.Sampling())
    with pytest.warns(UserWarning, match=r"asks for min_p=0\.1, which"):
        dt.autoregressive(pair.target, TEXT, max_new_tokens=4, sampling=warm)
    with pytest.warns(UserWarning, match=r"asks for do_sample=True, temperature=0\.6, top_p=0\.9, which"):
        dt.autoregressive(pair.target, TEXT, max_new_tokens=4)
    arguments = hf.options(pair.target, TEXT, max_new_tokens=4, min_p=None)
    assert arguments["sampling"] == dataclasses.replace(warm, top_k=arguments["sampling"].top_k)


@pytest.mark.parametrize("settings", [{}, {"repetition_penalty": 1.0, "no_repeat_ngram_size": 0}])
def test_a_config_that_changes_no_greedy_text_is_no_reason_to_warn(checkpoint, settings):
    pair = checkpoint(**settings)
    dt.generate(pair.target, TEXT, dt.Chain(pair.draft), max_new_tokens=4)  # warnings are errors


def test_what_is_applied_is_not_warned_of(checkpoint):
    pair = checkpoint(repetition_penalty=1.3)
    inputs = pair.tokenizer(TEXT, return_tensors="pt")
    pair.target.model.generate(**inputs, max_new_tokens=4, custom_generate=hf.generate)
    pair.target.model.generate(**inputs, max_new_tokens=4, custom_generate=hf.generate, repetition_penalty=1.0)
    processors = [RepetitionPenaltyLogitsProcessor(1.3)]
    dt.autoregressive(pair.target, TEXT, max_new_tokens=4, logits_processors=processors)
    pair.target.model.generation_config.repetition_penalty = None
    dt.autoregressive(pair.target, TEXT, max_new_tokens=4)


def test_options_refuse_what_trees_cannot_honour(checkpoint):
    pair = checkpoint(num_beams=3)
    with pytest.raises(ValueError, match="ask for beam search"):
        hf.options(pair.target, TEXT)
    with pytest.raises(TypeError, match="The target is a GPTNeoX.*; wrap a transformers model"):
        hf.options(pair.target.model, TEXT)


NOT_TAKEN = {
    "streamer": ({"streamer": TextStreamer(None)}, "streamer was given, and dt.generate has no"),
    "scores": ({"output_scores": True}, "output_scores was given, and dt.generate has no"),
    "dict": ({"return_dict_in_generate": True}, "return_dict_in_generate was given, and dt.generate has no"),
    "assistant": ({"assistant_model": "draft"}, "give the same model as draft_model"),
    "assistant's tokens": ({"num_assistant_tokens": 4}, "num_assistant_tokens was given, which says how transformers"),
    "synced": ({"synced_gpus": True}, "synced_gpus is on"),
    "healing": ({"token_healing": True}, "token_healing is on"),
}


BUDGETS = {
    "length": {"max_length": 20},
    "config": {"generation_config": transformers.GenerationConfig(max_new_tokens=9, pad_token_id=0)},
    "config's length": {"generation_config": transformers.GenerationConfig(max_length=25, pad_token_id=0)},
}


@pytest.mark.parametrize("asked", BUDGETS.values(), ids=BUDGETS)
def test_options_take_the_budget_that_transformers_would(tiny, asked):
    pair, inputs = tiny
    ids = inputs["input_ids"]
    own = pair.target.model.generate(ids, attention_mask=torch.ones_like(ids), **asked)
    expected = own[0, ids.shape[1] :].tolist()
    found = hf.options(pair.target, ids, **asked)
    assert dt.generate(pair.target, ids, dt.PromptLookup(), **found).tokens == expected
    assert found["max_new_tokens"] == len(expected)
    assert hf.options(pair.target, ids, max_new_tokens=3, **asked)["max_new_tokens"] == 3
    assert hf.options(pair.target, ids)["max_new_tokens"] == 128


WRONGLY_ASKED = {
    "inputs": ({"inputs": torch.ones(1, 3).long()}, ValueError, "inputs was given, which options"),
    "mask": ({"attention_mask": torch.ones(1, 3).long()}, ValueError, "attention_mask was given, which options"),
    "function": ({"custom_generate": hf.generate}, ValueError, "custom_generate was given, which options"),
    "a number to stop at": ({"stop_strings": [3]}, ValueError, "A stop string is 3; give texts"),
    "half a character to stop at": ({"stop_strings": "\ud800"}, ValueError, "A stop string has .*no character"),
    "tokenizer": ({"stop_strings": ["a"], "tokenizer": "x"}, TypeError, "The tokenizer is 'x'; give a loaded one"),
    "criterion": ({"stopping_criteria": max}, TypeError, "stopping_criteria is a builtin.*; give a list"),
}


@pytest.mark.parametrize("name", WRONGLY_ASKED)
def test_what_options_cannot_give_is_refused(tiny, name):
    given, kind, sentence = WRONGLY_ASKED[name]
    with pytest.raises(kind, match=sentence):
        hf.options(tiny[0].target, TEXT, **given)


@pytest.mark.parametrize("name", NOT_TAKEN)
def test_options_take_no_argument_that_they_would_drop(tiny, name):
    given, sentence = NOT_TAKEN[name]
    with pytest.raises(ValueError, match=sentence):
        hf.options(tiny[0].target, TEXT, **given)


# --------------------------------------------------------------------------------------------------------- streaming
class Recorder:
    def __init__(self):
        self.events = []

    def put(self, value):
        self.events.append((tuple(value.shape), value.flatten().tolist()))

    def end(self):
        self.events.append("end")


@pytest.mark.parametrize("way", ["argument", "partial", "folder"])
def test_a_streamer_gets_the_prompt_then_single_tokens_then_the_end(way):
    model, ids, theirs, mine = model_of("llama"), prompt(20), Recorder(), Recorder()
    added(model, ids, streamer=theirs)
    ways = {
        "argument": {"custom_generate": hf.generate, "streamer": mine},
        "partial": {"custom_generate": partial(hf.generate, streamer=mine)},
        "folder": {"custom_generate": str(data_path("huggingface")), "trust_remote_code": True, "streamer": mine},
    }
    added(model, ids, draft_model=draft_of("llama"), **ways[way])
    # Only transformers can put the prompt, and only to a streamer that it is given.
    assert mine.events == (theirs.events[1:] if way == "partial" else theirs.events)
    assert len(theirs.events) == NEW + 2


def test_transformers_streamers_work(tiny, capsys):
    pair, inputs = tiny
    model = pair.target.model
    model.generate(**inputs, streamer=TextStreamer(pair.tokenizer, skip_prompt=True))
    expected = capsys.readouterr().out
    model.generate(**inputs, streamer=TextStreamer(pair.tokenizer, skip_prompt=True), custom_generate=hf.generate)
    assert capsys.readouterr().out == expected != ""
    streamer = TextIteratorStreamer(pair.tokenizer, skip_prompt=True, timeout=60)
    options = {**inputs, "streamer": streamer, "custom_generate": hf.generate, "draft_model": pair.draft.model}
    thread = Thread(target=model.generate, kwargs=options)
    thread.start()
    pieces = list(streamer)
    thread.join()
    assert "".join(pieces) + "\n" == expected
    assert len(pieces) > 3


@pytest.mark.parametrize("depth", [1, 2])
def test_a_streamer_reaches_a_function_that_the_users_own_calls(depth):
    model, ids, theirs, mine = model_of("llama"), prompt(20), Recorder(), Recorder()

    def own(model, *args, **options):
        return hf.generate(model, *args, **options)

    def other(model, *args, **options):
        return own(model, *args, **options)

    added(model, ids, streamer=theirs)
    added(model, ids, streamer=mine, custom_generate=(own, other)[depth - 1])
    assert mine.events == theirs.events
    with pytest.raises(ValueError, match="synced_gpus is on"):
        added(model, ids, synced_gpus=True, custom_generate=own)


def test_a_streamer_of_another_models_call_is_left_to_it():
    """A function that has a helper model write something first."""
    model, helper, ids, mine = model_of("llama"), model_of("qwen3"), prompt(20), Recorder()

    def own(model, input_ids, **options):
        added(helper, ids, custom_generate=hf.generate)
        return input_ids

    added(model, ids, streamer=mine, custom_generate=own)
    assert [event for event in mine.events if event != "end"] == [((1, 20), ids[0].tolist())]


# ----------------------------------------------------------------------------------------------------------- outputs
@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.4}], ids=["plain", "processed"])
def test_scores_and_logits_are_transformers(kind, options):
    model, ids = model_of(kind), prompt(20)
    options = {**options, "return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    expected = model.generate(ids, **asked(ids, **options))
    found = model.generate(ids, custom_generate=hf.generate, draft_model=draft_of(kind), **asked(ids, **options))
    assert type(found) is type(expected)
    assert torch.equal(found.sequences, expected.sequences)
    assert found.past_key_values is None
    for name in ("scores", "logits"):
        for ours, theirs in zip(found[name], expected[name], strict=True):
            assert ours.dtype == torch.float32
            assert torch.allclose(ours, theirs, atol=1e-5)
            ours += 1  # tensors of the caller's own
    fewer = model.generate(ids, custom_generate=hf.generate, **asked(ids, return_dict_in_generate=True))
    assert fewer.scores is fewer.logits is None


def test_scores_of_sampled_text_are_warped():
    model, ids = model_of("llama"), prompt(20)
    options = asked(ids, do_sample=True, temperature=0.7, top_k=5, repetition_penalty=1.3, output_scores=True,
                    return_dict_in_generate=True)  # fmt: skip
    out = model.generate(ids, custom_generate=hf.generate, draft_model=draft_of("llama"), **options)
    processors = [RepetitionPenaltyLogitsProcessor(1.3), known.TemperatureLogitsWarper(0.7), known.TopKLogitsWarper(5)]
    for place, scores in enumerate(out.scores):
        before = out.sequences[:, : 20 + place]
        with torch.no_grad():
            logits = model(before, use_cache=False).logits[:, -1]
        assert torch.allclose(LogitsProcessorList(processors)(before, logits).float(), scores, atol=1e-5)
    assert len(out.scores) == NEW
    sums = model.compute_transition_scores(out.sequences, out.scores, normalize_logits=True)
    assert bool(torch.isfinite(sums).all())


# ----------------------------------------------------------------------------------------------------------- batches
def padded(sizes):
    longest = max(sizes)
    ids, mask = torch.zeros(len(sizes), longest, dtype=torch.int64), torch.zeros(len(sizes), longest, dtype=torch.int64)
    for row, size in enumerate(sizes):
        ids[row, longest - size :], mask[row, longest - size :] = prompt(size)[0], 1
    return ids, mask


def by_row(row, ids):
    return [token for token in range(VOCABULARY) if token % 3 != row % 3]


BATCHES = {
    "plain": {},
    "repetition_penalty": {"repetition_penalty": 1.4},
    "prefix": {"prefix_allowed_tokens_fn": by_row},
    "prompt": {"encoder_no_repeat_ngram_size": 1, "encoder_repetition_penalty": 3.0, "no_repeat_ngram_size": 2},
    "length": {"min_length": 30, "forced_eos_token_id": 5},
}


@pytest.mark.parametrize(
    ("kind", "name"),
    [*((kind, "plain") for kind in ARCHITECTURES), *(("llama", name) for name in BATCHES if BATCHES[name])],
)
def test_padded_batches_are_transformers(kind, name):
    """On every architecture, which counts positions in its own way, and with every option."""
    model, (ids, mask) = model_of(kind), padded([5, 20, 11])
    options = {"attention_mask": mask, "max_new_tokens": NEW, "do_sample": False, **BATCHES[name]}
    plain = model.generate(ids, pad_token_id=0, **options)
    ends = plain[:, 20:].flatten()[::4].tolist()[:4]
    lengths = set()
    for eos in (None, ends):
        given = {**options, "pad_token_id": 96, "eos_token_id": eos}
        expected = model.generate(ids, **given)
        found = model.generate(ids, custom_generate=hf.generate, draft_model=draft_of(kind), **given)
        assert torch.equal(found, expected)
        lengths.add((expected != 96).sum(1).tolist().__str__())
    assert len(lengths) == 2


def test_a_row_that_a_stop_string_ends_is_filled_where_transformers_without_eos_goes_on(tiny):
    pair, _ = tiny
    two = pair.tokenizer(["def read_lines(path):", "x"], return_tensors="pt", padding=True, padding_side="left")
    criteria = StoppingCriteriaList([StopStringCriteria(pair.tokenizer, ["\n"])])
    options = {**two, "max_new_tokens": 40, "pad_token_id": 0, "eos_token_id": None, "stopping_criteria": criteria}
    plain = pair.target.model.generate(**options)
    found = pair.target.model.generate(**options, custom_generate=hf.generate)
    assert found.shape == plain.shape
    same = found == plain
    assert bool((found[~same] == 0).all())
    assert bool(same.all(1).any())
    assert not bool(same.all())


def test_padding_is_inferred_as_by_transformers():
    model, (ids, _) = model_of("llama"), padded([5, 20])
    ids[1].clamp_(min=1)
    ids[0, 15:].clamp_(min=1)
    expected = model.generate(ids, max_new_tokens=9, pad_token_id=0)
    assert torch.equal(model.generate(ids, max_new_tokens=9, pad_token_id=0, custom_generate=hf.generate), expected)


def test_scores_of_a_batch_stand_side_by_side():
    model, (ids, mask) = model_of("qwen3"), padded([5, 20])
    options = {"attention_mask": mask, "max_new_tokens": 9, "pad_token_id": 0}
    first = model.generate(ids, **options)[0, 22]
    options.update(eos_token_id=int(first), return_dict_in_generate=True, output_scores=True)
    expected = model.generate(ids, **options)
    found = model.generate(ids, custom_generate=hf.generate, **options)
    assert torch.equal(found.sequences, expected.sequences)
    ended = (expected.sequences[0, 20:] == first).nonzero()[0, 0].item()
    for step, (ours, theirs) in enumerate(zip(found.scores, expected.scores, strict=True)):
        assert torch.allclose(ours[1], theirs[1], atol=1e-5)
        assert torch.allclose(ours[0], theirs[0] if step <= ended else torch.zeros(VOCABULARY), atol=1e-5)
    assert ended < len(found.scores) - 1


# ------------------------------------------------------------------------------------------------------------ folder
def test_the_folder_takes_the_names_of_transformers():
    model, ids = model_of("llama"), prompt(20)
    folder = {"custom_generate": str(data_path("huggingface")), "trust_remote_code": True}
    expected = added(model, ids, repetition_penalty=1.4)
    assert added(model, ids, repetition_penalty=1.4, assistant_model=draft_of("llama"), **folder) == expected
    with pytest.raises(ValueError, match="trust_remote_code=True"):
        added(model, ids, custom_generate=folder["custom_generate"], trust_remote_code=False)
    with pytest.raises(ValueError, match="two names"):
        added(model, ids, assistant_model=model, draft_model=model, **folder)


ENSEMBLE = {"assistant_confidence_threshold": 0.3, "assistant_ensemble_weight": 0.5}


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"num_assistant_tokens": 4}, "num_assistant_tokens was given, .* such as drafter="),
        (ENSEMBLE, "assistant_confidence_threshold was given, which says how transformers"),
        ({"assistant_tokenizer": "a tokenizer"}, "assistant_tokenizer was given, which says how transformers"),
        ({"token_healing": True}, "token_healing is on, .* model.heal_tokens"),
        ({"generation_config": transformers.GenerationConfig(token_healing=True)}, "token_healing is on"),
    ],
)
def test_the_folder_refuses_what_would_have_no_effect(given, sentence):
    model, ids = model_of("llama"), prompt(20)
    folder = {"custom_generate": str(data_path("huggingface")), "trust_remote_code": True}
    with pytest.raises(ValueError, match=sentence):
        model.generate(ids, assistant_model=draft_of("llama"), **given, **folder)


def test_a_model_loaded_from_a_folder_with_the_recipe_takes_positional_ids(tmp_path):
    model, ids = copy.deepcopy(model_of("llama")).float(), prompt(20)
    model.save_pretrained(tmp_path / "model")
    shutil.copytree(data_path("huggingface", "custom_generate"), tmp_path / "model" / "custom_generate")
    loaded = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "model", trust_remote_code=True)
    assert loaded.generate.func.__module__ == "dynatree_lib.hf"
    assert loaded.generate(ids, **asked(ids)).tolist() == model.generate(ids, **asked(ids)).tolist()
    assert loaded.generate(input_ids=ids, **asked(ids)).tolist() == model.generate(ids, **asked(ids)).tolist()


def test_the_requirements_are_what_transformers_can_read():
    from importlib.metadata import PackageNotFoundError, version

    from packaging.requirements import Requirement

    for line in data_path("huggingface", "custom_generate", "requirements.txt").read_text().splitlines():
        requirement = Requirement(line)
        assert not requirement.extras
        assert " " not in line
        assert len(requirement.specifier) == 1
        try:
            assert requirement.specifier.contains(version(requirement.name))
        except PackageNotFoundError:
            assert requirement.name == "dynatree-lib"  # the tests run in a checkout too


def test_the_function_names_no_argument_of_transformers():
    """A name in its signature is taken out of transformers' arguments; `attention_mask` there would lose the mask."""
    own = set(inspect.signature(hf.generate).parameters) - set(inspect.signature(GenerationMixin._sample).parameters)
    assert own == {"model", "draft_model", "drafter", "verifier", "engine"}
    assert not own & set(transformers.GenerationConfig().to_dict())


# ------------------------------------------------------------------------------------------------------------ models
def test_a_model_is_wrapped_once_and_again_when_its_weights_change():
    model, ids = copy.deepcopy(model_of("gpt_neox")), prompt(20)
    first = hf.wrapped(model)
    assert hf.wrapped(model) is first
    assert hf.wrapped(model, "eager") is not first
    before = added(model, ids, custom_generate=hf.generate)
    with torch.no_grad():
        model.get_output_embeddings().weight.neg_()
    assert hf.wrapped(model) is not first
    assert added(model, ids, custom_generate=hf.generate) == added(model, ids) != before
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert other._dynatree is None
        assert hf.wrapped(other).model is other
    assert not any("dynatree" in name for name in model.state_dict())


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "opt"])
def test_weights_that_are_changed_through_data_are_noticed_too(kind):
    """As averaging weights and merging adapters do; torch counts no such change."""
    model, ids = copy.deepcopy(model_of(kind)).float(), prompt(20)
    other = {name: weight + 0.1 * torch.randn_like(weight) for name, weight in model.named_parameters()}
    first, own = hf.wrapped(model), {name: weight.detach().clone() for name, weight in model.named_parameters()}
    assert first.engine.copies_weights
    texts = [added(model, ids, custom_generate=hf.generate)]
    for weights in (other, own):
        for name, weight in model.named_parameters():
            weight.data.copy_(weights[name])
        texts.append(added(model, ids, custom_generate=hf.generate))
        assert texts[-1] == added(model, ids)
    assert texts[0] == texts[2] != texts[1]
    last = hf.wrapped(model)
    assert last is not first
    assert hf.wrapped(model) is last


class Adapted(torch.nn.Module):
    """A linear layer with an adapter, as libraries of adapters replace it: `weight` is that of the layer alone."""

    def __init__(self, layer):
        super().__init__()
        self.layer, self.on = layer, False

    @property
    def weight(self):
        return self.layer.weight

    @property
    def bias(self):
        return self.layer.bias

    def forward(self, inputs):
        return self.layer(inputs) + (1.5 * inputs.roll(1, -1) if self.on else 0)


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_adapters_and_hooks_are_run_also_when_they_are_switched(kind):
    model, ids = copy.deepcopy(model_of(kind)).float(), prompt(20)
    plain = added(model, ids)
    assert added(model, ids, custom_generate=hf.generate) == plain
    attention = model.base_model.layers[1].self_attn if kind == "llama" else model.base_model.layers[1].attention
    name = "o_proj" if kind == "llama" else "dense"
    handle = getattr(attention, name).register_forward_hook(lambda _, inputs, output: 2 * output)
    hooked = added(model, ids)
    assert added(model, ids, custom_generate=hf.generate) == hooked != plain
    handle.remove()
    assert added(model, ids, custom_generate=hf.generate) == plain
    adapter = Adapted(getattr(attention, name))
    setattr(attention, name, adapter)
    assert added(model, ids, custom_generate=hf.generate) == plain
    adapter.on = True
    adapted = added(model, ids)
    assert added(model, ids, custom_generate=hf.generate) == adapted != plain


class Counting(known.LogitsProcessor):
    """Like a grammar that is advanced by each call: it must be called once for each token, in order."""

    def __init__(self):
        self.texts = []

    def __call__(self, input_ids, scores):
        self.texts.append(input_ids[0].tolist())
        assert self.texts[-1][:-1] == (self.texts[-2] if len(self.texts) > 1 else self.texts[-1][:-1])
        return scores.roll(len(self.texts), -1)


@pytest.mark.parametrize("do_sample", [False, True])
@pytest.mark.parametrize("drafter", [None, dt.SampledTree, dt.FixedTree])
def test_processors_that_count_their_calls_work_with_the_rules_of_the_default(drafter, do_sample):
    model, ids, counting = model_of("llama"), prompt(20), Counting()
    options = {"drafter": drafter, "draft_model": draft_of("llama"), "do_sample": do_sample}
    text = added(model, ids, custom_generate=hf.generate, logits_processor=LogitsProcessorList([counting]), **options)
    assert len(counting.texts) == len(text) == NEW
    if not do_sample:
        assert text == added(model, ids, logits_processor=LogitsProcessorList([Counting()]))


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("options", [{}, {"repetition_penalty": 1.4}, {"output_scores": True}], ids=str)
def test_functions_of_the_users_own_are_asked_about_the_text_alone_where_drafts_are_drawn(options, seed):
    model, ids, texts, criterion = model_of("llama"), prompt(20), [], Watching(20)

    def allowed(_, text):
        texts.append(text.tolist())
        return range(VOCABULARY)

    def sample(**given):
        transformers.set_seed(seed)
        more = {
            "return_dict_in_generate": True,
            "do_sample": True,
            "temperature": 0.5,
            "draft_model": draft_of("llama"),
        }
        out = model.generate(ids, custom_generate=hf.generate, **asked(ids, **more, **options, **given))
        return out.sequences[0].tolist()

    text = sample(prefix_allowed_tokens_fn=allowed)
    assert texts == [text[:length] for length in range(20, len(text))]
    text = sample(stopping_criteria=StoppingCriteriaList([criterion]))
    assert criterion.texts == [text[:length] for length in range(21, len(text) + 1)]


# ---------------------------------------------------------------------------------------------------------- refusals
CACHE = cache_name(transformers.LlamaForCausalLM)
REFUSED = {
    "beams": ({"num_beams": 2}, "ask for beam search"),
    "contrastive": ({"penalty_alpha": 0.6, "top_k": 4}, "ask for contrastive search"),
    "transformers' lookup": ({"prompt_lookup_num_tokens": 5}, "ask for assisted generation"),
    "dola": ({"dola_layers": "low"}, "ask for dola generation"),
    "several texts": ({"num_return_sequences": 2, "do_sample": True}, "num_return_sequences is 2; give the prompt"),
    "assistant": ({"assistant_model": "draft"}, "give the same model as draft_model"),
    "synced": ({"synced_gpus": True}, "synced_gpus is on"),
    "assistant's tokens": ({"num_assistant_tokens": 4}, "num_assistant_tokens was given, which says how transformers"),
    "guidance": ({"guidance_scale": 1.5}, "UnbatchedClassifierFreeGuidanceLogitsProcessor depends on how often"),
    "no cache": ({"use_cache": False}, "use_cache is False"),
    "static cache": ({"cache_implementation": "static"}, "cache_implementation 'static'"),
    "own cache": ({CACHE: transformers.DynamicCache()}, f"{CACHE} was given"),
    "attentions": ({"output_attentions": True}, "output_attentions"),
    "hidden states": ({"output_hidden_states": True, "return_dict_in_generate": True}, "output_hidden_states"),
    "chunks": ({"prefill_chunk_size": 8}, "prefill_chunk_size is 8"),
    "embeddings": ({"inputs_embeds": torch.zeros(1, 20, 32, dtype=torch.float64)}, "inputs_embeds was given"),
    "positions of a longer mask": ({"attention_mask": torch.ones(1, 25).long()}, r"shape \(1, 25\).* shape \(1, 20\)"),
    "positions of a shorter mask": ({"attention_mask": torch.ones(1, 5).long()}, r"shape \(1, 5\).* shape \(1, 20\)"),
    "other positions": ({"position_ids": torch.arange(10)[None]}, r"position_ids.* have shape \(1, 10\)"),
    "a class that processes": ({"logits_processor": [RepetitionPenaltyLogitsProcessor]}, "the class RepetitionPenalty"),
    "an abstract drafter": ({"drafter": dt.Drafter}, "the class Drafter; give a drafter"),
    "positions": ({"position_ids": torch.arange(5, 25)[None]}, "do not count the tokens"),
    "right padding": ({"attention_mask": torch.tensor([[1] * 15 + [0] * 5])}, "0 for padding on the left"),
    "all padding": ({"attention_mask": torch.zeros(1, 20, dtype=torch.int64)}, "0 at its end; pad prompts on the left"),
    "holes": ({"attention_mask": torch.tensor([[1] * 5 + [0] * 5 + [1] * 10])}, "0 for padding on the left"),
    "context": ({"max_new_tokens": 600}, "600 new tokens .* holds 580"),
    "both drafters": ({"drafter": dt.PromptLookup(), "draft_model": "draft"}, "beside the drafter 'prompt-lookup'"),
    "no draft": ({"drafter": dt.FixedTree}, "FixedTree needs a draft_model"),
    "idle draft": ({"drafter": dt.PromptLookup, "draft_model": "draft"}, "PromptLookup has no use for the draft_model"),
    "drafter": ({"drafter": "tree"}, "drafter is 'tree'; give a drafter"),
    "engine": ({"engine": "warp"}, "engine is 'warp'"),
    "verifier": ({"verifier": dt.Greedy(), "do_sample": True}, "use TargetWalk"),
    "vocabulary": ({"draft_model": dt.ToyModel.random(5)}, "different vocabularies"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_honoured_is_refused_before_any_work(name, monkeypatch):
    options, sentence = REFUSED[name]
    options = {key: draft_of("llama") if value == "draft" else value for key, value in options.items()}
    model, ids = model_of("llama"), prompt(20)
    hf.wrapped(model)  # its check runs the model once

    def begun(*_):
        raise AssertionError("work was begun")

    monkeypatch.setattr(decoding.Loop, "run", begun)
    with pytest.raises((ValueError, TypeError), match=sentence):
        added(model, ids, custom_generate=hf.generate, **options)


@pytest.mark.parametrize(
    ("ids", "sentence"),
    [
        (torch.zeros(0, 5).long(), r"The ids have shape \(0, 5\); give \(B, L\)"),
        (torch.ones(1, 600).long(), "has 600 tokens and the context of 'llama' is 600; shorten it"),
        (torch.tensor([[5, 0, 7]]), r"torch.ones_like\(ids\)"),
    ],
)
def test_prompts_that_cannot_be_decoded_are_refused(ids, sentence):
    with pytest.raises(ValueError, match=sentence):
        model_of("llama").generate(
            ids, custom_generate=hf.generate, max_new_tokens=3, pad_token_id=0, eos_token_id=9, do_sample=False
        )


def test_a_processor_that_writes_into_the_ids_spoils_no_scores():
    def process(ids, logits):
        ids[:] = 0
        return logits

    options = {"output_scores": True, "return_dict_in_generate": True, "logits_processor": [process]}
    model, ids = model_of("llama"), prompt(20)
    found = model.generate(ids, **asked(ids, custom_generate=hf.generate, **options))
    assert len(found.scores) == NEW


def test_synthid_is_refused():
    keys = transformers.SynthIDTextWatermarkingConfig(ngram_len=3, keys=[1, 2])
    with pytest.raises(ValueError, match="SynthIDTextWatermarkLogitsProcessor depends on how often"):
        added(model_of("llama"), prompt(20), watermarking_config=keys, custom_generate=hf.generate, do_sample=True)


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"streamer": Recorder()}, "A streamer was given for 2 prompts"),
        ({"logits_processor": LogitsProcessorList([Balanced(20)])}, "Balanced was given for 2 prompts"),
        ({"stopping_criteria": StoppingCriteriaList([Watching(20)])}, "Watching was given for 2 prompts"),
        ({"max_time": 5.0}, "MaxTimeCriteria was given for 2 prompts"),
    ],
)
def test_what_looks_at_rows_together_is_refused_for_several(options, sentence):
    ids, mask = padded([5, 20])
    with pytest.raises(ValueError, match=sentence):
        model_of("llama").generate(
            ids, attention_mask=mask, custom_generate=hf.generate, pad_token_id=0, max_new_tokens=5, **options
        )


def test_a_batch_that_may_end_unevenly_needs_a_pad_token(tiny):
    pair, _ = tiny
    criteria = StoppingCriteriaList([StopStringCriteria(pair.tokenizer, ["a"])])
    ids, mask = padded([5, 20])
    options = {"stopping_criteria": criteria, "max_new_tokens": 5, "custom_generate": hf.generate}
    with pytest.raises(ValueError, match="pass pad_token_id="):
        model_of("llama").generate(ids, attention_mask=mask, **options)


@pytest.mark.parametrize("draft", ["tiny", 5, dt.FixedTree, {}])
def test_what_is_no_draft_model_is_described(draft):
    ids = prompt(5)
    for drafter in (None, dt.Chain):
        with pytest.raises(TypeError, match="draft_model is .*; give a loaded transformers model with the target's"):
            added(model_of("llama"), ids, custom_generate=hf.generate, draft_model=draft, drafter=drafter)


def test_a_model_without_a_head_is_no_draft_model():
    with pytest.raises(TypeError, match="has no head that scores tokens"):
        added(model_of("llama"), prompt(5), custom_generate=hf.generate, draft_model=model_of("llama").model)


@pytest.mark.parametrize(
    ("kind", "config", "reason"),
    [
        ("T5ForConditionalGeneration", transformers.T5Config(
            vocab_size=VOCABULARY, d_model=32, d_kv=8, d_ff=64, num_layers=1, num_heads=4, decoder_start_token_id=0,
        ), "use a decoder-only model"),
        ("MambaForCausalLM", config("mamba"), "'mamba' cannot score token trees"),
    ],
)  # fmt: skip
def test_a_model_that_cannot_score_trees_is_refused_for_that_and_for_no_argument(kind, config, reason):
    model, ids = getattr(transformers, kind)(config).eval(), prompt(9)
    with pytest.raises(ValueError, match=reason):
        model.generate(ids, custom_generate=hf.generate, max_new_tokens=4)


def test_a_model_in_training_is_refused():
    model = copy.deepcopy(model_of("llama")).train()
    with pytest.raises(ValueError, match="training mode"):
        added(model, prompt(20), custom_generate=hf.generate)
    assert model.training
    with pytest.raises(ValueError, match="training mode"):
        added(model_of("llama"), prompt(20), custom_generate=hf.generate, draft_model=model)
