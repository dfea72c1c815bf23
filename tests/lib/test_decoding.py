import numpy as np
import pytest
import torch
from models import VOCABULARY, noisy_copy, prompt, random_model

from dynatree_lib import (
    Chain,
    FixedTree,
    NoDraft,
    SampledTree,
    Sampling,
    TargetWalk,
    ToyModel,
    autoregressive,
    generate,
    summarize,
)
from dynatree_lib.models import huggingface
from dynatree_suite.drafters import UnionTree

TARGET = ToyModel.random(6, seed=1)
DRAFT = TARGET.mixed(ToyModel.random(6, seed=2), 0.3)
TREE = FixedTree(DRAFT, depth=3, branching=2, tau=None)
PLAIN = autoregressive(TARGET, [1, 2], max_new_tokens=60).tokens


class Letters:
    """A tokenizer of one letter per token."""

    def decode(self, tokens):
        return "".join(chr(97 + token) for token in tokens)


def test_budget_is_never_exceeded():
    for budget in range(1, 20):
        out = generate(TARGET, [1, 2], TREE, max_new_tokens=budget)
        assert out.tokens == PLAIN[:budget]
        assert sum(one.committed for one in out.iterations) == budget


def test_context_limit_ends_the_text():
    target = ToyModel(TARGET.distribution, 6, context=20)
    out = generate(target, [1, 2], FixedTree(DRAFT, depth=6, tau=None), max_new_tokens=100)
    assert (len(out.tokens), out.finish_reason) == (18, "context")
    assert out.tokens == PLAIN[:18]


def test_stop_string_ends_with_the_token_that_completes_it():
    text = Letters().decode(PLAIN)
    for start, length in ((0, 2), (3, 2), (7, 2), (2, 6), (9, 11)):
        stop = text[start : start + length]
        end = text.index(stop) + length
        out = generate(TARGET, [1, 2], TREE, max_new_tokens=60, stop_strings=[stop], tokenizer=Letters())
        assert (Letters().decode(out.tokens), out.finish_reason) == (text[:end], "stop")


def test_stop_string_may_begin_in_the_prompt_or_an_earlier_part():
    text = Letters().decode([1, 2, *PLAIN])
    stop = text[1:4]  # begins with the prompt's last token
    out = generate(TARGET, [1, 2], TREE, max_new_tokens=60, stop_strings=stop, tokenizer=Letters())
    assert (len(out.tokens), out.finish_reason) == (2, "stop")
    stop = Letters().decode(PLAIN[3:9])
    first = generate(TARGET, [1, 2], TREE, max_new_tokens=6)
    rest = generate(TARGET, [], TREE, stop_strings=stop, tokenizer=Letters(), state=first.state)
    assert first.tokens + rest.tokens == PLAIN[:9]


def test_stop_string_over_characters_of_several_bytes():
    class Bytes:
        """One byte per token, as byte-level tokenizers fall back to."""

        def decode(self, tokens):
            return bytes(tokens).decode("utf-8", errors="replace")

    from dynatree_lib.stopping import Stopping

    data = list("naïve — ünïcödé end".encode())
    stopping = Stopping(999, stop_strings=("ïcödé",), tokenizer=Bytes())
    count, reason = stopping.cut(data[:3], data[3:])
    assert reason == "stop"
    assert bytes(data[: 3 + count]).decode() == "naïve — ünïcödé"


def test_streaming_delivers_every_token_in_order():
    chunks = []
    out = generate(TARGET, [1, 2], TREE, max_new_tokens=30, on_tokens=chunks.append)
    assert [token for chunk in chunks for token in chunk] == out.tokens
    assert [len(chunk) for chunk in chunks] == [one.committed for one in out.iterations]


def interrupting(call, count):
    """`call`, until the count-th call, which Ctrl-C interrupts."""
    calls = []

    def interrupted(*args, **options):
        calls.append(1)
        if len(calls) == count:
            raise KeyboardInterrupt
        return call(*args, **options)

    return interrupted


def test_interrupt_in_the_callback_raises_with_the_text_so_far():
    with pytest.raises(KeyboardInterrupt) as caught:
        generate(TARGET, [1, 2], TREE, max_new_tokens=60, on_tokens=interrupting(list, 3))
    out = caught.value.generation
    assert out.finish_reason == "interrupted"
    assert 3 <= len(out.tokens) < 60
    assert out.tokens == PLAIN[: len(out.tokens)]
    assert out.state is None


def test_interrupt_inside_a_forward_returns_the_text_where_that_is_asked_for(monkeypatch):
    session = type(TARGET.session())
    monkeypatch.setattr(session, "score", interrupting(session.score, 10))
    out = generate(TARGET, [1, 2], Chain(DRAFT, 2), max_new_tokens=60, interrupt="return")
    assert out.finish_reason == "interrupted"
    assert 0 < len(out.iterations) < 10
    assert out.tokens == PLAIN[: len(out.tokens)]


@pytest.mark.parametrize("drafter", [NoDraft(), Chain(DRAFT, 3), TREE], ids=lambda d: d.name)
@pytest.mark.parametrize("turn", [[], [3], [3, 4, 5]], ids=len)
def test_continuing_equals_starting_over(drafter, turn):
    first = generate(TARGET, [1, 2], drafter, max_new_tokens=9)
    second = generate(TARGET, turn, drafter, max_new_tokens=12, state=first.state)
    assert second.tokens == autoregressive(TARGET, [1, 2, *first.tokens, *turn], max_new_tokens=12).tokens


@pytest.mark.parametrize(
    "drafter", [NoDraft(), TREE, SampledTree(DRAFT, depth=2, branching=2)], ids=lambda drafter: drafter.name
)
@pytest.mark.parametrize("first", [1, 17])
def test_a_sampled_text_that_goes_on_keeps_its_own_seed(drafter, first):
    """The cut makes other trees, and `TargetWalk` draws a token a place whatever the tree is."""

    def text(seed, budget, **options):
        sampled = {"verifier": TargetWalk(), "sampling": Sampling(1.0), "seed": seed, "max_new_tokens": budget}
        return generate(TARGET, [] if options else [1, 2], drafter, **sampled, **options)

    begun = text(5, first)
    assert begun.tokens + text(99, 40 - first, state=begun.state).tokens == text(5, 40).tokens != text(99, 40).tokens


def test_continuing_on_a_real_model_reads_nothing_twice(monkeypatch):
    target = random_model("llama")
    drafter = FixedTree(noisy_copy(target))
    first = generate(target, prompt(40), drafter, max_new_tokens=20)
    read = []
    forward = type(target).forward
    monkeypatch.setattr(
        type(target),
        "forward",
        lambda self, tokens, *rest, **more: read.append(len(tokens)) or forward(self, tokens, *rest, **more),
    )
    second = generate(target, [5, 6], drafter, max_new_tokens=10, state=first.state)
    assert max(read) <= drafter.max_nodes + 4
    whole = [*prompt(40)[0].tolist(), *first.tokens, 5, 6]
    assert second.tokens == autoregressive(target, whole, max_new_tokens=10).tokens


@pytest.mark.parametrize("kind", ["llama", "mistral-window"])
def test_a_long_later_turn_is_read_in_parts_whose_masks_are_small(monkeypatch, kind):
    monkeypatch.setattr(huggingface, "READ_BEHIND_A_CACHE", 120)
    target = random_model(kind)
    first = generate(target, prompt(9), NoDraft(), max_new_tokens=9)
    shapes, mask = [], type(target).mask

    def watched(self, base, tail, *rest):
        shapes.append(tail.shape)
        return mask(self, base, tail, *rest)

    monkeypatch.setattr(type(target), "mask", watched)
    turn = prompt(290, 1)[0].tolist()
    second = generate(target, turn, NoDraft(), max_new_tokens=8, state=first.state)
    assert shapes[:3] == [(120, 120), (120, 120), (50, 50)]
    whole = [*prompt(9)[0].tolist(), *first.tokens, *turn]
    assert second.tokens == autoregressive(target, whole, max_new_tokens=8).tokens


def test_a_state_serves_its_own_models_once():
    first = generate(TARGET, [1, 2], TREE, max_new_tokens=5)
    with pytest.raises(ValueError, match="another target or drafter"):
        generate(TARGET, [], Chain(DRAFT), state=first.state)
    with pytest.raises(ValueError, match="another target or drafter"):
        generate(ToyModel.random(6, seed=1), [], TREE, state=first.state)
    second = generate(TARGET, [], TREE, max_new_tokens=5, state=first.state)
    with pytest.raises(ValueError, match="already continued"):
        generate(TARGET, [], TREE, state=first.state)
    third = generate(TARGET, [], TREE, max_new_tokens=5, state=second.state)
    assert first.tokens + second.tokens + third.tokens == PLAIN[:15]
    assert generate(TARGET, [1, 2], TREE, max_new_tokens=5, keep_state=False).state is None


@pytest.mark.parametrize("ending", ["eos", "stop", "context"])
def test_continuing_after_every_ending(ending):
    target = ToyModel(TARGET.distribution, 6, context=30 if ending == "context" else 10_000)
    eos = PLAIN[6]
    options = {
        "eos": {"eos_token_ids": eos},
        "stop": {"stop_strings": Letters().decode(PLAIN[5:7]), "tokenizer": Letters()},
        "context": {},
    }[ending]
    first = generate(target, [1, 2], TREE, max_new_tokens=60, **options)
    assert first.finish_reason == ending
    if ending == "context":
        with pytest.raises(ValueError, match="context"):
            generate(target, [3], TREE, state=first.state)
        return
    second = generate(target, [3], TREE, max_new_tokens=12, state=first.state)
    assert second.tokens == autoregressive(target, [1, 2, *first.tokens, 3], max_new_tokens=12).tokens


@pytest.mark.parametrize("drafter", [Chain(TARGET, 4), FixedTree(TARGET, depth=4, branching=2, tau=None, max_nodes=40)])
def test_a_perfect_draft_is_always_right(drafter):
    """The target as its own draft: 50 tokens take exactly 10 rounds, before and after a chat turn.

    Greedy text hides a draft whose cache or root is corrupted; the number of rounds does not.
    """
    first = generate(TARGET, [1, 2], drafter, max_new_tokens=50)
    second = generate(TARGET, [3, 4], drafter, max_new_tokens=50, state=first.state)
    assert (len(first.iterations), len(second.iterations)) == (10, 10)


def test_a_perfect_draft_on_a_real_model_reads_every_token_once(monkeypatch):
    """Rows the draft reads: each committed token once, and no more than that (its cache is kept between trees)."""
    target = random_model("llama")
    read = []
    forward = type(target).forward

    def counted(self, tokens, *rest, **more):
        read.append(len(tokens))
        return forward(self, tokens, *rest, **more)

    out = generate(target, prompt(40), Chain(target, 4), max_new_tokens=50)
    assert len(out.iterations) == 10
    monkeypatch.setattr(type(target), "forward", counted)
    again = generate(target, prompt(40), Chain(target, 4), max_new_tokens=50)
    assert again.tokens == out.tokens
    # Target: the prompt, then 5 nodes a round, the accepted root among them. Draft: the prompt, then the last accepted
    # token and the root together, then one token for each further level.
    assert sum(read) == (39 + 10 * 5) + (39 + 10 * 4 + 9)


def test_same_seed_same_text_other_seed_other_text():
    def sample(seed):
        return generate(TARGET, [1, 2], TREE, sampling=Sampling(1.0), seed=seed, max_new_tokens=40).tokens

    assert sample(0) == sample(0)
    assert sample(0) != sample(1)


@pytest.mark.parametrize("ids", [[1, 2], np.array([1, 2]), torch.tensor([1, 2]), torch.tensor([[1, 2]])], ids=type)
def test_prompt_forms(ids):
    assert generate(TARGET, ids, TREE, max_new_tokens=5).tokens == PLAIN[:5]


@pytest.mark.parametrize(
    ("ids", "options", "sentence"),
    [
        ([], {}, "prompt is empty"),
        ([[1], [2]], {}, "one sequence"),
        ([1, 6], {}, "token id 6"),
        ([1, -1], {}, "token id -1"),
        ([1.5, 2.0], {}, "integer token ids"),
        ([1], {"commit": "gahter"}, "gahter"),
        ([1], {"max_new_tokens": 5.5}, "max_new_tokens is 5.5"),
        ([1], {"max_new_tokens": 0}, "max_new_tokens is 0"),
        ([1], {"stop_strings": ["a"]}, "tokenizer"),
        ([1], {"stop_strings": [""], "tokenizer": Letters()}, "empty"),
    ],
)
def test_bad_input_is_refused_before_any_work(ids, options, sentence):
    class Untouched(ToyModel):
        def session(self):
            raise AssertionError("work was begun")

    with pytest.raises(ValueError, match=sentence):
        generate(Untouched(TARGET.distribution, 6), ids, TREE, **options)


def test_prompt_that_fills_the_context_is_refused():
    with pytest.raises(ValueError, match="20 tokens and the context of 'toy' is 20"):
        generate(ToyModel(TARGET.distribution, 6, context=20), [1] * 20, TREE)


def test_models_that_are_not_wrapped_are_named():
    raw = random_model("gpt_neox").model
    with pytest.raises(TypeError, match="HFModel"):
        generate(raw, [1], NoDraft())
    with pytest.raises(TypeError, match="HFModel"):
        generate(random_model("gpt_neox"), [1], Chain(random_model("gpt_neox").tokenizer))


def test_other_vocabulary_is_refused():
    with pytest.raises(ValueError, match="different vocabularies"):
        generate(random_model("gpt_neox"), [1], Chain(ToyModel.random(VOCABULARY - 1)))
    with pytest.raises(ValueError, match="different vocabularies"):
        generate(TARGET, [1], UnionTree(Chain(TARGET), Chain(ToyModel.random(TARGET.vocab_size - 1))))


def test_summary_counts():
    out = generate(TARGET, [1, 2], TREE, max_new_tokens=30)
    summary = summarize([out, out])
    assert summary.tokens == 60
    assert summary.tokens_per_iteration == pytest.approx(30 / len(out.iterations))
    assert summary.accepted_path_length == pytest.approx(summary.tokens_per_iteration - 1)
    assert summary.node_acceptance == pytest.approx(summary.accepted_path_length / summary.nodes)
    assert "tokens per iteration" in str(summary)
