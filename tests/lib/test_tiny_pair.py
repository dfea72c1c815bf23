"""The bundled pair: what its card says, and greedy equality in the dtype it is used in."""

import json

import numpy as np
import pytest
import torch
from examples import EVERY, examples
from models import hf_greedy
from transformers import LogitsProcessorList
from transformers.generation import StopStringCriteria

from dynatree_lib import Chain, FixedTree, PromptLookup, generate, load_pair
from dynatree_lib.decoding import TAIL
from dynatree_lib.paths import data_path, sha256_of
from dynatree_lib.stopping import Stopping
from dynatree_suite.papers.workloads import load_workload

NEAR_TIE = 1e-4


@pytest.fixture(scope="module")
def pair():
    return load_pair("tiny")


@pytest.fixture(scope="module")
def cases(pair):
    """(ids, transformers' greedy text) from 1 to 300 prompt tokens and 1 to 48 new ones."""
    code, novel = (load_workload(f"bundled/{task}", source="bundled").prompts for task in ("code", "novel"))
    text = pair.tokenizer("\n".join(prompt.text for prompt in (*code, *novel))).input_ids
    sizes = [(1, 20), (2, 1), (23, 48), (120, 7), (300, 12)]
    prompts = [torch.tensor([text[500 * i : 500 * i + size]]) for i, (size, _) in enumerate(sizes)]
    return [(ids, hf_greedy(pair.target, ids, budget)) for ids, (_, budget) in zip(prompts, sizes, strict=True)]


def margin(model, ids, tokens) -> float:
    """Top-2 margin of the target's logits after the prompt and these tokens."""
    text = torch.tensor([[*ids[0].tolist(), *tokens]])
    with torch.inference_mode():
        best = model.model(text, use_cache=False).logits[0, -1].topk(2).values
    return float(best[0] - best[1])


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_greedy_text_is_transformers_in_float32(pair, cases, kind):
    """Identical, or the first difference is a near-tie; near-ties must stay rare."""
    ties = 0
    for drafter in examples(kind, pair.draft)[:2]:
        for ids, expected in cases:
            found = generate(pair.target, ids, drafter, max_new_tokens=len(expected), eos_token_ids=()).tokens
            assert len(found) == len(expected)
            if found != expected:
                first = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
                assert margin(pair.target, ids, expected[:first]) < NEAR_TIE
                ties += 1
    assert ties <= 1


def test_the_pair_is_as_small_as_promised(pair):
    assert pair.target.parameters + pair.draft.parameters <= 11e6
    assert pair.target.context >= 2560
    assert pair.draft.context >= 2560
    assert pair.target.dtype == torch.float32
    weights = [data_path("tiny", role, "model.safetensors") for role in ("target", "draft")]
    assert sum(path.stat().st_size for path in weights) <= 24e6


def test_the_card_names_these_weights_and_its_texts():
    card = json.loads(data_path("tiny", "card.json").read_text(encoding="utf-8"))
    text = json.dumps(card)
    for role in ("target", "draft"):
        assert sha256_of(data_path("tiny", role, "model.safetensors")) in text
    for part in ("code", "wikitext-2", "pg19", "gsm8k"):
        assert part in text
    assert card["acceptance"]


def test_tokenizer_round_trips(pair):
    for prompt in load_workload("bundled", source="bundled").prompts:
        assert pair.tokenizer.decode(pair.tokenizer(prompt.text).input_ids) == prompt.text


class Following:
    """A processor after which the text can only be a given one."""

    def __init__(self, start, tokens):
        self.start, self.tokens = start, tokens

    def __call__(self, ids, scores):
        only = torch.full_like(scores, -torch.inf)
        only[:, self.tokens[ids.shape[1] - self.start]] = 0
        return only


@pytest.fixture(scope="module", params=["a text of the target", "characters of several tokens"])
def spelled(request, pair):
    """(prompt, processors, a text of 45 tokens or more)"""
    if request.param == "a text of the target":
        text = load_workload("bundled/novel", source="bundled").prompts[0].text
        ids, processors = pair.tokenizer(text, return_tensors="pt").input_ids[:, :60], []
        return ids, processors, hf_greedy(pair.target, ids, 60)
    text = "naïve café — “über” 中文字符 😀 end of it, naïvely. "
    ids, tokens = pair.tokenizer(text, return_tensors="pt").input_ids, pair.tokenizer(text).input_ids
    return ids, [Following(ids.shape[1], tokens)], tokens


def stops(pair, tokens, count):
    """Parts of a text, of one to eleven characters, wherever its tokens begin."""
    text, random = pair.tokenizer.decode(tokens), np.random.default_rng(0)
    places = zip(random.integers(0, len(text), count), random.integers(1, 12, count), strict=True)
    return [text[start : start + length] for start, length in places]


def test_a_stop_string_ends_a_text_where_transformers_ends_it(pair, spelled):
    ids, _, tokens = spelled
    prompt, found = ids[0].tolist(), set()
    ends = torch.tensor(prompt + tokens).unfold(0, len(prompt), 1)[1:]  # of the text after each token
    for stop in stops(pair, tokens, 40):
        expected = 1 + int(StopStringCriteria(pair.tokenizer, [stop])(ends, None).int().argmax())
        stopping = Stopping(len(tokens), stop_strings=(stop,), tokenizer=pair.tokenizer)
        for before in {0, expected // 2, expected - 1}:
            count, reason = stopping.cut(tokens[:before], tokens[before:], prompt[-TAIL:])
            assert (before + count, reason) == (expected, "stop"), (stop, before)
        found.add(expected)
    assert len(found) > 15


@pytest.mark.parametrize("drafter", [Chain, FixedTree, PromptLookup], ids=lambda kind: kind.name)
def test_a_text_with_a_stop_string_is_that_of_transformers(pair, spelled, drafter):
    ids, processors, tokens = spelled
    drafter = drafter() if drafter is PromptLookup else drafter(pair.draft)
    for stop in stops(pair, tokens, 4):
        expected = pair.target.model.generate(
            ids, attention_mask=torch.ones_like(ids), do_sample=False, max_new_tokens=len(tokens), pad_token_id=0,
            stop_strings=[stop], tokenizer=pair.tokenizer, logits_processor=LogitsProcessorList(processors),
        )  # fmt: skip
        options = {"stop_strings": stop, "logits_processors": processors, "max_new_tokens": len(tokens)}
        out = generate(pair.target, ids, drafter, **options)
        assert (out.tokens, out.finish_reason) == (expected[0, ids.shape[1] :].tolist(), "stop"), stop
