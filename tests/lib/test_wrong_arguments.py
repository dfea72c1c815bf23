"""What a beginner gives by mistake is answered before any work, in a sentence with the value and the way out."""

import dataclasses
import re

import numpy as np
import pytest
import torch
from models import VOCABULARY, random_model
from transformers import BatchEncoding, GPT2Config, GPT2Model

import dynatree_lib as dt
from dynatree_lib import masks
from dynatree_lib.drafters import ModelDrafter
from dynatree_lib.models.pairs import make_pair
from dynatree_suite.drafters import ALL_DRAFTERS
from dynatree_suite.proofs import rounding

PAIR = dt.load_pair("tiny")
TOKENIZER = PAIR.tokenizer
TEXT = "def read_lines(path):"
IDS = TOKENIZER(TEXT).input_ids
TREE = dt.FixedTree(PAIR.draft)
RAW = PAIR.target.model
TEMPLATE = (
    "{% for m in messages %}<{{ m.role }}>{{ m.content }}\n{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)
WANTED = dt.generate(PAIR.target, IDS, TREE, max_new_tokens=6).tokens


class Untouched(dt.ToyModel):
    """A model of six tokens that refuses to work."""

    def session(self):
        raise AssertionError("work was begun")


TOY = Untouched.random(6)


def with_template():
    """The bundled target with a tokenizer that has a chat template."""
    from transformers import AutoTokenizer

    from dynatree_lib.paths import data_path

    tokenizer = AutoTokenizer.from_pretrained(data_path("tiny", "target"))
    tokenizer.chat_template = TEMPLATE
    return PAIR.target.altered(tokenizer=tokenizer)


# -------------------------------------------------------------------------------------------------------------- prompts
@pytest.mark.parametrize(
    "prompt",
    [
        TEXT,
        IDS,
        tuple(IDS),
        np.array(IDS, np.int32),
        torch.tensor([IDS]),
        TOKENIZER(TEXT),
        TOKENIZER(TEXT, return_tensors="pt"),
        dict(TOKENIZER(TEXT, return_tensors="np")),
        BatchEncoding({"input_ids": [[0, 0, *IDS]], "attention_mask": [[0, 0] + [1] * len(IDS)]}),
        {"input_ids": torch.tensor(IDS)},
        TOKENIZER(TEXT, return_special_tokens_mask=True, return_length=True, return_token_type_ids=True),
        {"input_ids": IDS, "position_ids": torch.arange(len(IDS))[None], "pixel_values": None},
    ],
    ids=[
        "text",
        "list",
        "tuple",
        "array",
        "tensor",
        "encoding",
        "tensors",
        "dict",
        "padded",
        "ids alone",
        "described",
        "positions",
    ],
)
def test_a_prompt_is_a_text_ids_or_what_a_tokenizer_returns(prompt):
    assert dt.generate(PAIR.target, prompt, TREE, max_new_tokens=6).tokens == WANTED
    assert dt.autoregressive_fast(PAIR.target, prompt, max_new_tokens=6).tokens == WANTED
    assert dt.generate_batch(PAIR.target, [prompt, IDS], TREE, max_new_tokens=6)[0].tokens == WANTED


def test_several_texts_are_prompts_of_a_batch_as_the_tokenizer_returns_them():
    texts = [TEXT, "import"]
    alone = [dt.generate(PAIR.target, text, TREE, max_new_tokens=6).tokens for text in texts]
    padded = BatchEncoding(TOKENIZER.pad(TOKENIZER(texts), padding_side="left", return_tensors="pt"))
    assert padded["attention_mask"].min() == 0
    for prompts in (texts, TOKENIZER(texts), padded):
        found = dt.generate_batch(PAIR.target, prompts, TREE, max_new_tokens=6)
        assert [one.tokens for one in found] == alone


MORE = {
    "pictures": ({"pixel_values": torch.zeros(1, 3, 4, 4)}, "has 'pixel_values', and trees are scored from token ids"),
    "a second text": ({"token_type_ids": [[0] * (len(IDS) - 1) + [1]]}, "has 'token_type_ids' other than 0"),
    "an unknown input": ({"image_grid_thw": [[1, 2, 2]]}, "has 'image_grid_thw'"),
}


@pytest.mark.parametrize("name", MORE)
def test_inputs_besides_token_ids_are_refused_and_not_dropped(name):
    more, sentence = MORE[name]
    prompt = {"input_ids": [IDS], "attention_mask": [[1] * len(IDS)], **more}
    with pytest.raises(ValueError, match=sentence):
        dt.generate(PAIR.target, prompt, TREE)
    for prompts in (prompt, [prompt]):
        with pytest.raises(ValueError, match=sentence):
            dt.generate_batch(PAIR.target, prompts, TREE)


def test_messages_go_through_the_chat_template_and_a_text_does_not():
    target = with_template()
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello"}]
    text = "<system>Be brief.\n<user>Hello\n<a>"
    expected = dt.generate(target, text, dt.NoDraft(), max_new_tokens=6).tokens
    assert dt.generate(target, messages, TREE, max_new_tokens=6).tokens == expected
    assert dt.generate(target, TEXT, TREE, max_new_tokens=6).tokens == WANTED


def test_a_text_that_goes_on_gets_no_special_tokens():
    class Beginning:
        """Begins every text with token 5."""

        def __call__(self, text, add_special_tokens=True):
            return {"input_ids": [5] * add_special_tokens + [int(letter) for letter in text]}

        def decode(self, tokens):
            return "".join(map(str, tokens))

    target = dt.ToyModel.random(6)
    first = dt.generate(target, "12", dt.NoDraft(), max_new_tokens=5, tokenizer=Beginning())
    assert first.tokens == dt.autoregressive(target, [5, 1, 2], max_new_tokens=5).tokens
    second = dt.generate(target, "3", dt.NoDraft(), max_new_tokens=5, tokenizer=Beginning(), state=first.state)
    assert second.tokens == dt.autoregressive(target, [5, 1, 2, *first.tokens, 3], max_new_tokens=5).tokens


PROMPTS = {
    "a text without a tokenizer": ("def f(", ValueError, "has no tokenizer to encode it; give token ids"),
    "nothing": (None, TypeError, "The prompt is None.*give a text"),
    "a number": (7, TypeError, "The prompt is 7,.*give a text"),
    "bytes": (b"text", TypeError, "The prompt is b'text'.*give a text"),
    "an array of bytes": (bytearray(b"abc"), TypeError, "The prompt is a bytearray.*give a text"),
    "an empty text": ("", ValueError, "no tokenizer"),
    "texts": (["a", "b"], ValueError, "list of 2 texts.*generate_batch"),
    "rows of several texts": ([[1, 2], [3, 4]], ValueError, r"shape \(2, 2\).*generate_batch"),
    "rows of several lengths": ([[1, 2], [3]], TypeError, "The prompt is a list.*give a text"),
    "ids and texts": ([1, "b"], TypeError, "The prompt is a list.*give a text"),
    "truths": ([True, False], ValueError, "holds bool numbers"),
    "an object": (object(), TypeError, "The prompt is an object"),
    "a function": (len, TypeError, "The prompt is a builtin_function_or_method"),
    "too large an id": ([2**70], TypeError, "The prompt is a list"),
    "another mapping": ({"ids": [1]}, ValueError, "'ids' and without 'input_ids'"),
    "a message alone": ({"role": "user", "content": "x"}, ValueError, "without 'input_ids'.*list of messages"),
    "messages without a template": ([{"role": "user", "content": "x"}], ValueError, "no chat template; give a text"),
    "messages without content": ([{"role": "user"}], ValueError, "keys 'role'; give it 'role' and 'content'"),
    "masks of another length": ({"input_ids": [1, 2], "attention_mask": [1]}, ValueError, "2 input_ids.*mask of 1"),
    "a mask with a hole": (
        {"input_ids": [1, 2, 3], "attention_mask": [1, 0, 1]},
        ValueError,
        r"mask of the prompt is \[1, 0, 1\]; give 1 for the tokens",
    ),
    "a mask of other numbers": ({"input_ids": [1, 2], "attention_mask": [2, 1]}, ValueError, r"is \[2, 1\]; give 1"),
    "positions of a later text": ({"input_ids": [1, 2], "position_ids": [5, 6]}, ValueError, "do not count its tokens"),
    "padding alone": ({"input_ids": [1, 2], "attention_mask": [0, 0]}, ValueError, "empty"),
}


@pytest.mark.parametrize("name", PROMPTS)
def test_what_is_no_prompt_is_described(name):
    prompt, kind, sentence = PROMPTS[name]
    with pytest.raises(kind, match=f"(?s){sentence}"):
        dt.generate(TOY, prompt, dt.NoDraft())


def test_a_new_turn_as_messages_is_refused_where_a_text_goes_on():
    target = with_template()
    first = dt.generate(target, [{"role": "user", "content": "x"}], TREE, max_new_tokens=2)
    with pytest.raises(ValueError, match="list of messages and an earlier text goes on; give the new turn"):
        dt.generate(target, [{"role": "user", "content": "y"}], TREE, state=first.state)


@pytest.mark.parametrize(
    ("prompts", "kind", "sentence"),
    [
        ("one text", TypeError, "prompts is 'one text'; give a list"),
        (5, TypeError, "prompts is 5; give a list"),
        ({"ids": []}, ValueError, "without 'input_ids'; give a list"),
        ([1, 2], TypeError, "The prompt is 1,"),
    ],
)
def test_what_are_no_prompts_of_a_batch_is_described(prompts, kind, sentence):
    with pytest.raises(kind, match=sentence):
        dt.generate_batch(PAIR.target, prompts, TREE)


# -------------------------------------------------------------------------------------------------------------- options
OPTIONS = {
    "seed": [(-1.0, "seed is -1.0; give a whole number"), ("0", "seed is '0'"), (None, "seed is None"),
             (True, "seed is True")],
    "max_new_tokens": [(True, "max_new_tokens is True; give a whole number of at least 1"), (3.5, "is 3.5"),
                       ("9", "is '9'"), (0, "is 0"), (None, "is None")],
    "eos_token_ids": [("</s>", "eos_token_ids holds '</s>'; give token ids"), (6, "holds 6; 'toy' has tokens 0 to 5"),
                      ([1, -1], "holds -1"), (2.0, "holds 2.0"), ([True], "holds True"), (["a"], "holds 'a'"),
                      (b"a", "holds b'a'"), (torch.tensor([9]), "holds 9")],
    "stop_strings": [([5], "A stop string is 5; give texts"), (5, "is 5"), (["a", None], "is None"),
                     (b"x", "A stop string is b'x'"), ("\ud800", "A stop string has .*no character"),
                     ("x", "need a tokenizer")],
    "commit": [("copy", "commit is 'copy'; choose from 'gather', 'rebuild'"), (None, "is None")],
    "interrupt": [("stop", "interrupt is 'stop'; choose from 'raise', 'return'")],
}  # fmt: skip


KINDS = {
    "verifier": [("greedy", "The verifier is 'greedy'; give an object, such as verifier=Greedy()"),
                 (dt.Greedy, "is the class Greedy; give an object"), (0, "is 0")],
    "sampling": [(0.7, r"sampling is 0.7; give Sampling\(temperature"), (dt.Sampling, "is the class Sampling"),
                 ("greedy", "is 'greedy'"), ({}, "is a dict"), (0, "is 0")],
    "logits_processors": [([dict], "logits_processors holds the class dict; give an object"), (len, "give a list of")],
    "stopping_criteria": [([dict], "stopping_criteria holds the class dict; give an object"), (5, "give a list of")],
    "on_tokens": [("print", "on_tokens is 'print'; give a function")],
    "tokenizer": [("gpt2", "The tokenizer is 'gpt2'; give an object that decodes")],
    "state": [({}, "state is a dict; give the attribute `state` of an earlier Generation"),
              (dt.autoregressive(dt.ToyModel.random(6), [1], max_new_tokens=1), "state is a Generation; give")],
    "warm": [("yes", "warm is 'yes'; give the attribute `state`")],
}  # fmt: skip


@pytest.mark.parametrize("truths", [[False, True], []], ids=str)
def test_a_criterion_answers_with_one_truth(truths):
    def answer(ids, scores):
        return torch.tensor(truths, dtype=torch.bool)

    with pytest.raises(
        TypeError, match=rf"criterion answer returned a Tensor of shape \({len(truths)},\); let it return"
    ):
        dt.generate(dt.ToyModel.random(6), [1], dt.NoDraft(), stopping_criteria=[answer])


def cases(table):
    return [pytest.param(name, *case, id=f"{name}={case[0]!r:.30}") for name in table for case in table[name]]


@pytest.mark.parametrize(("name", "value", "sentence"), cases(OPTIONS))
def test_wrong_values_of_options_are_refused(name, value, sentence):
    with pytest.raises(ValueError, match=sentence):
        dt.generate(TOY, [1], dt.NoDraft(), **{name: value})


@pytest.mark.parametrize(("name", "value", "sentence"), cases(KINDS))
def test_options_of_another_kind_are_refused(name, value, sentence):
    with pytest.raises(TypeError, match=sentence):
        dt.generate(TOY, [1], dt.NoDraft(), **{name: value})


PLAIN = ("seed", "max_new_tokens", "eos_token_ids", "interrupt")


@pytest.mark.parametrize(("name", "value", "sentence"), cases({name: OPTIONS[name][:2] for name in PLAIN}))
def test_the_other_loops_refuse_them_too(name, value, sentence):
    sentence = sentence.replace("'toy' has tokens 0 to 5", "").rstrip("; ")
    value = VOCABULARY if value == 6 and name == "eos_token_ids" else value
    sentence = sentence.replace("holds 6", f"holds {VOCABULARY}")
    model = random_model("gpt_neox")
    with pytest.raises(ValueError, match=sentence):
        dt.autoregressive_fast(model, [1], **{name: value})
    with pytest.raises(ValueError, match=sentence):
        dt.generate_batch(model, [[1], [2]], dt.NoDraft(), **{name: value})


@pytest.mark.parametrize("seeds", [[0, "1"], [0, 0.5], 3.0])
def test_a_batch_names_the_seed_that_is_none(seeds):
    with pytest.raises(ValueError, match="seed is"):
        dt.generate_batch(random_model("gpt_neox"), [[1], [2]], dt.NoDraft(), seeds=seeds)


def test_what_means_the_same_is_taken():
    target = dt.ToyModel.random(6)
    expected = dt.autoregressive(target, [1], max_new_tokens=9).tokens
    end = expected[3]
    for ends in (end, np.int64(end), [end], {end}, np.array([end]), torch.tensor(end)):
        found = dt.autoregressive(target, [1], max_new_tokens=np.int64(9), eos_token_ids=ends).tokens
        assert found == expected[: expected.index(end) + 1]
    assert dt.autoregressive(target, [1], max_new_tokens=9, stop_strings=None).tokens == expected


def test_every_whole_number_is_a_seed_of_its_own():
    target, warm = dt.ToyModel.random(6), dt.Sampling(1.0)
    texts = [dt.autoregressive(target, [1], sampling=warm, seed=seed).tokens for seed in (-1, 1, np.int64(1), 2**80)]
    assert texts[1] == texts[2]
    assert len({tuple(text) for text in texts}) == 3
    with pytest.raises(ValueError, match="seed is 'a'"):
        dt.RandomSource("a")


@pytest.mark.parametrize(
    ("name", "value"),
    [("temperature", "1"), ("temperature", None), ("temperature", True), ("temperature", float("nan")),
     ("temperature", -0.1), ("top_k", 5.0), ("top_k", "5"), ("top_k", True), ("top_p", "0.9"), ("top_p", 0),
     ("top_p", True)],
)  # fmt: skip
def test_a_sampling_of_other_values_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}; give"):
        dt.Sampling(**{name: value})


# ---------------------------------------------------------------------------------- trees, scores, weights and tables
def scored(tokens, parents, model=None):
    session = (model or dt.ToyModel.random(6)).session()
    session.start([1])
    return session.score(tokens, parents, dt.Sampling())


BASICS = {
    "half a token": (lambda: dt.TokenTree.build([0.5, 1], [-1, 0]), r"tokens of a token tree are \[0.5, 1.0\]; give"),
    "half a parent": (lambda: dt.TokenTree.build([0, 1], [-1, 0.5]), r"parents of a token tree are .* give whole"),
    "a letter": (lambda: dt.TokenTree.from_paths(0, ["ab"]), "tokens of a token tree are .*'a'.* give whole numbers"),
    "a draw of no kind": (lambda: dt.TokenTree.build([0, 1], [-1, 0], draws=[0, 77]), r"are \[0, 77\]; give POINT"),
    "a negative draw": (lambda: dt.TokenTree.build([0, 1], [-1, 0], draws=[0, -1]), r"are \[0, -1\]; give POINT"),
    "a negative weight": (lambda: dt.RandomSource(0).draw(torch.tensor([2.0, -1.0])), "the weight -1; give weights"),
    "a parent that comes later": (lambda: masks.tree_mask(np.array([-1, 1]), 2), r"parents are \[-1, 1\]; give each"),
    "a parent before all": (lambda: masks.ancestor_matrix(np.array([-1, -2])), r"parents are \[-1, -2\]; give each"),
    "a parent of no pending node": (lambda: scored([1, 2], [-1, -2]), r"parents \[-1, -2\] with 0 nodes pending"),
    "a token beyond": (lambda: scored([1, 6], [-1, 0]), "given token 6; give tokens of toy, 0 to 5"),
    "a token below": (lambda: scored([-1], [-1]), "given token -1; give tokens of toy, 0 to 5"),
    "a token beyond a transformer's": (
        lambda: scored([VOCABULARY], [-1], random_model("gpt_neox")), f"token {VOCABULARY}; give tokens of .* 0 to"),
    "a table that sums to less": (lambda: scored([1], [-1], dt.ToyModel(lambda text: [0.3, 0.3], 2)),
                                  "2 entries that sum to 0.6, .* give 2 probabilities that sum to 1"),
    "a table of another length": (lambda: scored([1], [-1], dt.ToyModel(lambda text: [0.5, 0.5], 3)), "give 3 prob"),
    "a table with a negative entry": (lambda: scored([1], [-1], dt.ToyModel(lambda _: [1.5, -0.5], 2)), "least -0.5"),
    "an empty table": (lambda: scored([1], [-1], dt.ToyModel(lambda text: [], 2)), "has 0 entries"),
    "a child without a logit": (
        lambda: rounding.deterministic(torch.zeros(5), [9], dt.TokenLevel(), dt.Sampling(1.0)), "token 9; give tokens"),
}  # fmt: skip


@pytest.mark.parametrize("name", BASICS)
def test_what_would_be_cut_or_crash_later_is_refused(name):
    call, sentence = BASICS[name]
    with pytest.raises(ValueError, match=sentence):
        call()


# ------------------------------------------------------------------------------------------------- models and drafters
TARGETS = {
    "a transformers model": (RAW, "The target is a GPTNeoXForCausalLM; wrap a transformers model as HFModel"),
    "a name": ("gpt2", "The target is 'gpt2'; .*load it with load_pair"),
    "a class": (dt.HFModel, "The target is the class HFModel"),
    "a pair": (PAIR, "The target is a Pair; give its attribute `target`"),
    "nothing": (None, "The target is None"),
}


@pytest.mark.parametrize("name", TARGETS)
def test_what_is_no_target_is_described(name):
    target, sentence = TARGETS[name]
    with pytest.raises(TypeError, match=sentence):
        dt.generate(target, IDS, TREE)
    with pytest.raises(TypeError, match=sentence):
        dt.autoregressive_fast(target, IDS)
    with pytest.raises(TypeError, match=sentence):
        dt.generate_batch(target, [IDS], TREE)


WRONG_DRAFTERS = {
    "a class": (dt.FixedTree, r"The drafter is the class FixedTree; give a drafter, such as FixedTree\(draft\)"),
    "a name": ("fixed-tree", "The drafter is 'fixed-tree'; give a drafter"),
    "a model": (PAIR.draft, "The drafter is an HFModel; give a drafter"),
    "on nothing": (dt.FixedTree(None), "The draft is None"),
}


@pytest.mark.parametrize("name", WRONG_DRAFTERS)
def test_what_is_no_drafter_is_described(name):
    drafter, sentence = WRONG_DRAFTERS[name]
    with pytest.raises(TypeError, match=sentence):
        dt.generate(TOY, [1], drafter)
    with pytest.raises(TypeError, match=sentence):
        dt.generate_batch(PAIR.target, [IDS], drafter)


@pytest.mark.parametrize("kind", [kind for kind in ALL_DRAFTERS if issubclass(kind, ModelDrafter)])
@pytest.mark.parametrize(
    ("draft", "sentence"),
    [
        (PAIR.draft.model, "The draft is a GPTNeoXForCausalLM; wrap a transformers model as HFModel"),
        (PAIR, "The draft is a Pair; give its attribute `draft`"),
        ("gpt2", "The draft is 'gpt2'; wrap"),
        (5, "The draft is 5; wrap"),
        (dt.FixedTree, "The draft is the class FixedTree; wrap"),
    ],
    ids=["raw", "pair", "name", "number", "class"],
)
def test_a_drafter_refuses_what_is_no_draft_when_it_is_made(kind, draft, sentence):
    with pytest.raises(TypeError, match=sentence):
        kind(draft)


def belongs(hint, value):
    """Whether the annotation of a hyper-parameter allows a value."""
    kinds = {2.5: "float", True: "bool", None: "None"}
    return kinds.get(value, "nothing") in hint.replace("Pricing", "Costs | None")


WRONG = [
    pytest.param(kind, field.name, value, id=f"{kind.name}-{field.name}-{type(value).__name__}")
    for kind in ALL_DRAFTERS
    for field in dataclasses.fields(kind)
    for value in ("x", 2.5, True, None, ("a", "b"), object())
    if field.name != "draft" and not belongs(str(field.type), value)
]


@pytest.mark.parametrize(("kind", "name", "value"), WRONG)
def test_hyperparameters_of_another_kind_are_refused(kind, name, value):
    models = (PAIR.draft,) if issubclass(kind, ModelDrafter) else ()
    with pytest.raises(ValueError, match=rf"(?s)({name} is|{name}=|has the points) ?{re.escape(repr(value))}.*; "):
        kind(*models, **{name: value})


def test_a_model_is_wrapped_once_it_is_loaded():
    with torch.device("meta"):
        empty = type(RAW)(RAW.config)
    wrong = [
        (("gpt2",), TypeError, r"The model is 'gpt2'; give a loaded .*from_pretrained\('gpt2'\).*load_pair"),
        ((PAIR.target,), TypeError, "The model is an HFModel"),
        ((None,), TypeError, "The model is None"),
        ((type(RAW),), TypeError, "The model is the class GPTNeoXForCausalLM"),
        ((TOKENIZER,), TypeError, "The model is a TokenizersBackend"),
        ((torch.nn.Linear(2, 2),), TypeError, "The model is a Linear"),
        ((RAW, "gpt2"), TypeError, "The tokenizer is 'gpt2'; give a loaded one"),
        ((RAW, RAW), TypeError, "The tokenizer is a GPTNeoXForCausalLM"),
        ((RAW, type(TOKENIZER)), TypeError, "The tokenizer is the class TokenizersBackend"),
        ((GPT2Model(GPT2Config(n_layer=1, n_embd=8, n_head=1, vocab_size=9)),), TypeError, "GPT2Model, which has no h"),
        ((empty,), ValueError, "on the meta device, which holds no numbers; load them"),
    ]
    for arguments, kind, sentence in wrong:
        with pytest.raises(kind, match=sentence):
            dt.HFModel(*arguments)


def test_pairs_are_made_of_names_or_of_wrapped_models():
    with pytest.raises(TypeError, match="target is a GPTNeoXForCausalLM; give a name or a folder.*make_pair"):
        dt.load_pair(target=RAW, draft=RAW)
    with pytest.raises(TypeError, match="name is a GPTNeoXForCausalLM"):
        dt.load_pair(RAW)
    with pytest.raises(ValueError, match="dtype is 16; use float32"):
        dt.load_pair("tiny", dtype=16)
    with pytest.raises(TypeError, match="The target is a GPTNeoXForCausalLM; wrap"):
        make_pair(RAW, RAW)
    with pytest.raises(TypeError, match="The draft is 'gpt2'; wrap"):
        make_pair(PAIR.target, "gpt2")
    with pytest.raises(TypeError, match="The target is an Untouched; give an HFModel"):
        make_pair(TOY, PAIR.draft)


ELSEWHERE = {
    "a summary of a text": (lambda: dt.summarize("x"), "What is summarized is 'x'; give what generate"),
    "a summary of a number": (lambda: dt.summarize(3), "is 3; give what generate"),
    "a summary of tokens": (lambda: dt.summarize([1, 2]), "is 1; give what generate"),
    "a drawing of a text": (lambda: dt.plots.draft_tree(GENERATION), "The tree is a Generation; give an iteration"),
    "buffers of a bare model": (lambda: dt.StaticModel(RAW), "The model is a GPTNeoXForCausalLM; wrap"),
    "buffers of no pair": (lambda: dt.static_pair(PAIR.target), "The pair is an HFModel; give a pair"),
    "a toy of a table": (lambda: dt.ToyModel([0.5, 0.5], 2), "distribution is a list; give a function"),
    "a name as tokenizer": (lambda: GENERATION.text("gpt2"), "The tokenizer is 'gpt2'; give an object that decodes"),
    "a class as tokenizer": (lambda: GENERATION.text(type(TOKENIZER)), "The tokenizer is the class"),
    "a prompt of a pair": (lambda: PAIR.ids(5), "The prompt is 5; give a text, or a list of messages"),
    "a numbered device": (lambda: dt.load_pair("tiny", device_map=3), "device_map is 3; give 'cpu'"),
}
GENERATION = dt.generate(PAIR.target, TEXT, TREE, max_new_tokens=3)


@pytest.mark.parametrize("name", ELSEWHERE)
def test_other_calls_describe_what_is_out_of_place(name):
    call, sentence = ELSEWHERE[name]
    with pytest.raises(TypeError, match=sentence):
        call()


def test_a_text_that_is_no_unicode_is_refused():
    for call in (PAIR.ids, lambda text: dt.generate(PAIR.target, text, TREE)):
        with pytest.raises(ValueError, match=r"The text has '\\udcff', which is no character.*; give a text in UTF-8"):
            call("a\udcff")


@pytest.mark.parametrize(("name", "value"), [("vocab_size", "4"), ("vocab_size", 0), ("context", 2.5)])
def test_a_toy_has_whole_numbers(name, value):
    with pytest.raises(ValueError, match=f"{name} is {value!r}; give a whole number of at least 1"):
        dt.ToyModel(lambda text: [1.0], **{"vocab_size": 1, name: value})
