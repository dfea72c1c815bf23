"""The same texts on a GPU as on the CPU, in float64: every drafter and rule, plain and over captured CUDA graphs.

Skipped where torch sees no CUDA device, so CI never runs it: `pytest tests/lib/test_cuda.py -rs` does, on a machine
that has one.
"""

from __future__ import annotations

import copy
from functools import cache

import pytest
import torch
from examples import EVERY, examples
from models import feature_draft, noisy_copy, prompt, random_model

import dynatree_lib as dt
from dynatree_lib import FixedTree, Sampling, StaticModel, autoregressive, generate, generate_batch
from dynatree_lib.engines.plain import autoregressive_fast
from dynatree_lib.models.eagle import EagleModel
from dynatree_lib.models.huggingface import HFModel
from dynatree_suite.rules import ALL_RULES

DEVICE = "cuda"
BUDGET = 40
pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch sees no CUDA device")


@cache
def pairs(kind):
    """A target and a draft on the CPU, and copies of both on the GPU."""
    target = random_model("llama" if kind == "features" else kind)
    draft = feature_draft(target) if kind == "features" else noisy_copy(target)
    wrap = EagleModel if kind == "features" else HFModel
    moved = HFModel(copy.deepcopy(target.model).to(DEVICE)), wrap(copy.deepcopy(draft.model).to(DEVICE))
    return (target, draft), moved


@cache
def static(kind):
    """The copies on the GPU over static buffers."""
    return tuple(StaticModel(model).warm() for model in pairs(kind)[1])


@pytest.mark.parametrize("kind", ["llama", "gpt_neox", "features", "static llama"])
@pytest.mark.parametrize("sampling", [Sampling(), Sampling(0.8, top_p=0.95)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("drafter", EVERY, ids=lambda drafter: drafter.name)
def test_every_drafter_gives_the_text_of_the_cpu(drafter, sampling, kind):
    here, there = pairs(kind.removeprefix("static "))
    if kind.startswith("static"):
        there = static(kind.removeprefix("static "))
    ids = prompt(60)
    for ours, other in zip(examples(drafter, here[1]), examples(drafter, there[1]), strict=True):
        texts = [
            generate(target, ids, one, max_new_tokens=BUDGET, sampling=sampling, seed=1).tokens
            for target, one in ((here[0], ours), (there[0], other))
        ]
        assert texts[0] == texts[1], ours


@pytest.mark.parametrize("rule", ALL_RULES, ids=lambda rule: rule.name)
def test_every_rule_gives_the_text_of_the_cpu(rule):
    texts = []
    for target, draft in (*pairs("llama"), static("llama")):
        drafter = dt.SampledTree(draft, depth=3, branching=2, draw="iid")
        try:
            options = {"verifier": rule(), "sampling": Sampling(1.0), "seed": 2}
            out = generate(target, prompt(60), drafter, max_new_tokens=BUDGET, **options)
        except ValueError as error:  # a rule that may not serve this tree says the same everywhere
            texts.append(str(error))
        else:
            texts.append(out.tokens)
    assert texts[0] == texts[1] == texts[2]


def test_plain_decoding_and_batches_give_the_text_of_the_cpu():
    (here, _), (there, draft) = pairs("llama")
    prompts = [prompt(60), prompt(33), prompt(1)]
    expected = [autoregressive(here, ids, max_new_tokens=BUDGET).tokens for ids in prompts]
    assert [autoregressive(there, ids, max_new_tokens=BUDGET).tokens for ids in prompts] == expected
    fast = [autoregressive_fast(static("llama")[0], ids, max_new_tokens=BUDGET).tokens for ids in prompts]
    assert fast == expected
    batch = generate_batch(there, [ids[0].tolist() for ids in prompts], FixedTree(draft), max_new_tokens=BUDGET)
    assert [out.tokens for out in batch] == expected


def test_two_texts_take_turns_in_the_buffers():
    target, draft = static("llama")
    alone = [generate(target, prompt(n), FixedTree(draft), max_new_tokens=BUDGET).tokens for n in (20, 50)]
    within = []

    def other(*_):
        within.append(generate(target, prompt(50), FixedTree(draft), max_new_tokens=BUDGET).tokens)

    assert generate(target, prompt(20), FixedTree(draft), max_new_tokens=BUDGET, on_tokens=other).tokens == alone[0]
    assert within
    assert all(text == alone[1] for text in within)
