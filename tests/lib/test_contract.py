"""What every drafter must hold on every architecture: greedy text equal to transformers' own, exactly in float64.

A new drafter joins by being listed in `ALL_DRAFTERS` or `WRAPPERS`.
"""

from functools import cache

import pytest
import reference
import torch
from examples import EVERY, examples, needs_draft
from models import CONFIGS, feature_draft, hf_greedy, noisy_copy, prompt, random_model, raw_model

from dynatree_lib import Chain, FixedTree, LookupTree, ProgressiveTree, SampledTree, Sampling, TokenTree, generate
from dynatree_lib.drafters import ModelDrafter
from dynatree_lib.models.huggingface import HFModel
from dynatree_suite.drafters import UnionTree

ARCHITECTURES = list(CONFIGS)
MAIN = ["gpt_neox", "llama", "qwen2", "gpt2"]
CASES = [(40, 120), (290, 10), (2, 1), (7, 2), (1, 24), (256, 12)]
"""Prompt and budget sizes: one between, and the ends of both ranges. Above 256 tokens a prompt is read in parts."""


@cache
def trial(name):
    """A target, a draft, and transformers' greedy text of every case, or of three: drafters see tokens alone.

    "features" is a Llama target with a draft on its features.
    """
    on_features = name == "features"
    target = random_model("llama" if on_features else name)
    draft = feature_draft(target) if on_features else noisy_copy(target)
    cases = CASES if name == MAIN[0] else CASES[:3]
    return target, draft, [(prompt(n), hf_greedy(target, prompt(n), budget)) for n, budget in cases]


def served():
    """(kind, architecture): every drafter on the first, those with a draft on features too, six on the others."""
    varied = (Chain, FixedTree, SampledTree, ProgressiveTree, LookupTree, UnionTree)  # drafters see tokens alone
    pairs = []
    for kind in EVERY:
        names = (MAIN[0], *(["features"] if needs_draft(kind) else []), *(MAIN[1:] if kind in varied else ()))
        pairs += [pytest.param(kind, name, id=f"{kind.name}-{name}") for name in names]
    return pairs


@pytest.mark.parametrize(("kind", "name"), served())
def test_greedy_text_is_transformers(kind, name):
    """The first options on every case, further ones on the beginning of two; of one on further architectures."""
    target, draft, cases = trial(name)
    fewer = [(ids, expected[:24]) for ids, expected in cases[: 2 if name == MAIN[0] else 1]]
    for number, drafter in enumerate(examples(kind, draft)[: None if name in (MAIN[0], "features") else 2]):
        for ids, expected in cases if number == 0 else fewer:
            out = generate(target, ids, drafter, max_new_tokens=len(expected))
            assert out.tokens == expected, (drafter, ids.shape)
            assert out.finish_reason == "length"
            assert drafter.side_trees or not any(one.side_nodes for one in out.iterations)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_a_rebuilt_cache_gives_the_same_text(kind):
    """`commit="rebuild"` runs the accepted path once more: the obvious twin of gathering its KV entries."""
    for name in MAIN[:2] if kind in (FixedTree, SampledTree, ProgressiveTree) else MAIN[:1]:
        target, draft, ((ids, expected), *_) = trial(name)
        drafter = examples(kind, draft)[0]
        assert generate(target, ids, drafter, max_new_tokens=24, commit="rebuild").tokens == expected[:24]


@pytest.mark.parametrize("name", [*MAIN, "features"])
def test_the_texts_are_worth_comparing(name):
    """Greedy texts of random models easily collapse to one token, and then equality would say little."""
    _, _, cases = trial(name)
    assert max(len(set(text)) for _, text in cases) >= 20


@pytest.mark.parametrize("name", [MAIN[0], "features"])
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_eos_inside_a_path(kind, name):
    """Ended by any token of the text, the text ends there, also where that token was drafted and accepted in a path."""
    target, draft, cases = trial(name)
    ids, text = max(cases, key=lambda case: len(set(case[1])))
    firsts = [place for place, token in enumerate(text) if token not in text[:place]]
    inside = 0
    for place in firsts[:5]:
        expected = text[: place + 1]
        for drafter in examples(kind, draft):
            out = generate(target, ids, drafter, max_new_tokens=len(text), eos_token_ids=(text[place],))
            assert (out.tokens, out.finish_reason) == (expected, "eos")
            last = out.iterations[-1]
            ends = last.tree.tokens[1:][last.tree.depths[1:] == len(last.verdict.path) + 1]
            inside += text[place] in ends
    assert inside or not issubclass(kind, ModelDrafter)  # test_forward_drafters.py has the others
    assert hf_greedy(target, ids, len(text), text[firsts[4]]) == text[: firsts[4] + 1]


@pytest.mark.parametrize("kind", MAIN)
def test_float32_is_identical_or_a_near_tie(kind):
    """In float32 a batch of rows may round differently from one row; the first difference must then be a near-tie."""
    target = random_model(kind, dtype=torch.float32)
    ids = prompt(33, seed=1)
    expected = hf_greedy(target, ids, 60)
    found = generate(target, ids, FixedTree(noisy_copy(target)), max_new_tokens=60).tokens
    if found != expected:
        first = next(i for i, (a, b) in enumerate(zip(found, expected, strict=True)) if a != b)
        text = torch.cat([ids, torch.tensor([expected[:first]])], 1)
        best = target.model(text, use_cache=False).logits[0, -1].topk(2).values
        assert float(best[0] - best[1]) < 1e-4


@cache
def in_sixteen_bits(dtype):
    return HFModel(raw_model("llama", dtype=dtype), engine="eager")


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
def test_drafts_in_sixteen_bits_are_tokens_that_the_target_takes(kind, dtype):
    """The forward of transformers gives logits in 16 bits: they hold no token ids, and none may be read off them so."""
    target = in_sixteen_bits(dtype)
    for drafter in examples(kind, target)[:2]:  # the target drafts for itself, so that what is drafted is accepted
        out = generate(target, prompt(40), drafter, max_new_tokens=12)
        assert len(out.tokens) == 12
        assert all(0 <= token < target.vocab_size for step in out.iterations for token in step.tree.tokens.tolist())


@pytest.mark.parametrize("kind", [kind for kind in ARCHITECTURES if kind not in MAIN])
def test_other_architectures_are_exact_too(kind):
    """Also where windows are shorter than the prompt, and values narrower than keys."""
    target = random_model(kind)
    for size, budget in ((3, 24), (280, 10)):
        out = generate(target, prompt(size), FixedTree(noisy_copy(target), tau=None), max_new_tokens=budget)
        assert out.tokens == hf_greedy(target, prompt(size), budget)


def test_learned_positions_end_at_the_context():
    """GPT-2 has no row for position 600: the text must end there and no drafted node may lie beyond it."""
    target = random_model("gpt2")
    out = generate(target, prompt(585), FixedTree(noisy_copy(target), depth=6, tau=None), max_new_tokens=50)
    assert (out.tokens, out.finish_reason) == (hf_greedy(target, prompt(585), 15), "context")


@pytest.mark.parametrize("kind", ARCHITECTURES)
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_tree_scores_equal_plain_forwards(kind, attention):
    """Every node's logits from one masked forward equal a plain forward over its path; then again after a commit."""
    target = HFModel(raw_model(kind, attention=attention), check=False)
    config = target.model.config
    routed = any(hasattr(config, name) for name in ("num_experts", "num_local_experts", "n_routed_experts"))
    # Eager attention rounds its softmax to float32, a router its logits: where a last bit falls is up to the processor.
    tolerance = 1e-4 if config._attn_implementation == "eager" else 1e-5 if routed else 1e-9
    close = {"rtol": 0, "atol": tolerance}
    text = prompt(20)[0].tolist()
    tree = TokenTree.from_paths(5, [[1, 2, 3], [1, 4], [6, 2], [6, 7, 8, 9]])
    session = target.session()
    session.start(text)
    with torch.inference_mode():
        found = session.score(tree.tokens, tree.parents, Sampling()).logits
        assert torch.allclose(found, reference.paths_one_by_one(target.model, text, tree), **close)
        session.commit([0, *tree.path(5)])
        text += [5, *tree.tokens[tree.path(5)].tolist()]
        found = session.score(tree.tokens, tree.parents, Sampling()).logits
        assert torch.allclose(found, reference.paths_one_by_one(target.model, text, tree), **close)
    assert session.length == session.position == len(text)


def test_a_tree_grown_level_by_level_scores_the_same():
    target = random_model("gpt_neox")
    tree = TokenTree.from_paths(5, [[1, 2], [3, 4]])
    whole, grown = target.session(), target.session()
    for session in (whole, grown):
        session.start([9, 8, 7])
    expected = whole.score(tree.tokens, tree.parents, Sampling()).logits
    order = [0, 1, 3, 2, 4]  # by level
    parents = [-1, 0, 0, 1, 2]
    scores = [
        grown.score(tree.tokens[order[s]], parents[s], Sampling()).logits
        for s in (slice(0, 1), slice(1, 3), slice(3, 5))
    ]
    assert torch.allclose(torch.cat(scores), expected[order], atol=1e-12)


def test_cache_grows_beyond_its_first_capacity(monkeypatch):
    made, target, ids = HFModel.new_cache, random_model("gpt_neox"), prompt(40)
    monkeypatch.setattr(HFModel, "new_cache", lambda self, capacity=0: made(self, 4))
    out = generate(
        target, ids, FixedTree(noisy_copy(target), depth=4, branching=3, tau=None, max_nodes=40), max_new_tokens=60
    )
    assert out.tokens == hf_greedy(target, ids, 60)


def test_zero_is_an_end_of_text_token():
    model = raw_model("gpt_neox")
    model.generation_config.eos_token_id, model.config.eos_token_id = 0, 2
    assert HFModel(model).eos_token_ids == (0,)
