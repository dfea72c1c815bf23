"""Properties of random trees, options, stops and sessions, by hypothesis: whatever is accepted decodes exactly.

New drafters and their options join by themselves. Examples are the same in every run.
"""

from __future__ import annotations

import typing
from dataclasses import fields

import numpy as np
import pytest
import torch
from examples import EVERY
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from models import VOCABULARY, noisy_copy, random_model
from reference import ancestors_or_self, tree_mask_loop

import dynatree_lib as dt
from dynatree_lib import masks
from dynatree_lib.tree import ROOT, depths_of, renumbering
from dynatree_suite.drafters import ALL_DRAFTERS

REPEATABLE = settings(
    derandomize=True, database=None, deadline=None, max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)  # fmt: skip
TARGET, DRAFT = dt.ToyModel.random(5, seed=3), dt.ToyModel.random(5, seed=4)


# ---------------------------------------------------------------------------------------------------------------- trees
@st.composite
def forests(draw, most: int = 14, tree: bool = False):
    """(n,) parents, -1 for roots; of one tree where asked."""
    count = draw(st.integers(1, most))
    return np.array([ROOT] + [draw(st.integers(0 if tree else ROOT, i - 1)) for i in range(1, count)], np.int64)


@REPEATABLE
@given(forests(), st.integers(0, 5))
def test_masks_and_positions_are_those_of_the_definition(parents, prefix):
    assert np.array_equal(masks.tree_mask(parents, prefix), tree_mask_loop(parents, prefix))
    depths = [len(ancestors_or_self(parents, node)) - 1 for node in range(len(parents))]
    assert depths_of(parents).tolist() == depths
    assert masks.depth_positions(parents, prefix).tolist() == [prefix + depth for depth in depths]


@REPEATABLE
@given(forests(), st.data())
def test_a_queue_before_a_forest_is_a_chain_that_all_nodes_see(parents, data):
    queued, new = data.draw(st.integers(0, 5)), data.draw(st.integers(0, len(parents)))
    queue, tokens = np.arange(queued), np.arange(new) + 100
    out, forest, seen = masks.laid_out(queue, tokens, parents)
    assert out.tolist() == [*queue, *tokens]
    chain = [i - 1 for i in range(queued)]
    assert forest.tolist() == [*chain, *(parent + queued for parent in parents)]
    whole = tree_mask_loop(forest, 0)
    assert np.array_equal(seen, whole[len(forest) - len(out) :])
    if queued:
        assert seen[queued:, :queued].all()


@REPEATABLE
@given(forests(tree=True), st.data())
def test_keeping_some_nodes_keeps_their_paths(parents, data):
    tree = dt.TokenTree.build(list(range(len(parents))), parents)
    wanted = data.draw(st.sets(st.integers(0, len(parents) - 1)))
    keep = np.array(sorted(set().union({0}, *(ancestors_or_self(parents, node) for node in wanted))))
    index = renumbering(len(parents), keep)
    smaller = dt.TokenTree.build(tree.tokens[keep], index[parents[keep]])
    for old, new in zip(keep, index[keep], strict=True):
        assert [tree.tokens[v] for v in tree.path(int(old))] == [smaller.tokens[v] for v in smaller.path(int(new))]
    for node in range(len(tree)):
        assert all(tree.path(int(child))[:-1] == tree.path(node) for child in tree.children(node))
        assert len(tree.path(node)) == tree.depths[node]


@REPEATABLE
@given(st.lists(st.lists(st.integers(0, 2), max_size=4), max_size=8))
def test_merged_paths_are_the_prefixes_of_what_was_merged(paths):
    tree = dt.TokenTree.from_paths(7, paths)
    found = [tuple(int(tree.tokens[v]) for v in tree.path(node)) for node in range(len(tree))]
    assert len(set(found)) == len(found)
    assert set(found) == {tuple(path[:length]) for path in paths for length in range(len(path) + 1)} | {()}


# ---------------------------------------------------------------------------------------------------- drafters' options
def values(name: str, kind: object, draft: dt.LanguageModel) -> st.SearchStrategy:
    """Values of an option by its type."""
    if kind is dt.Drafter:
        return st.sampled_from(ALL_DRAFTERS).flatmap(lambda part: drafters(part, draft))
    if kind is bool:
        return st.booleans()
    if kind is int:
        return st.integers(1, 6) if name != "max_nodes" else st.integers(2, 24)
    if kind is float:
        return st.sampled_from([0.01, 0.1, 0.3, 0.5, 0.9, 1.0, 2.0])
    if kind is type(None):
        return st.none()
    if kind is dt.Costs:
        rising = st.lists(st.floats(0.01, 1), min_size=2, max_size=6).map(lambda steps: np.cumsum(steps))
        verify = rising.map(lambda points: tuple((points / points[0]).tolist()))
        return st.builds(dt.Costs, verify, st.one_of(st.just(()), rising), st.sampled_from([0.0, 0.2]))
    if typing.get_origin(kind) is typing.Literal:
        return st.sampled_from(typing.get_args(kind))
    if typing.get_origin(kind) is tuple:
        (inner, *_) = typing.get_args(kind)
        return st.lists(values(name, inner, draft), min_size=1, max_size=4).map(tuple)
    parts = typing.get_args(kind)
    return st.one_of([values(name, part, draft) for part in parts]) if parts else st.nothing()


@st.composite
def drafters(draw, kind: type, draft: dt.LanguageModel):
    """A drafter with up to four options drawn; those that it refuses in a sentence are left out."""
    hints = typing.get_type_hints(kind)
    names = [field.name for field in fields(kind) if field.init and field.name not in ("draft", "drawing")]
    needed = [name for name in names if hints[name] is dt.Drafter]
    chosen = draw(st.lists(st.sampled_from(names), unique=True, max_size=4)) if names else []
    options = {name: draw(values(name, hints[name], draft)) for name in dict.fromkeys([*needed, *chosen])}
    try:
        return kind(*([draft] if "draft" in hints else []), **options)
    except ValueError as error:
        refused = str(error)
    assert refused.endswith(".")
    assume(False)


PROMPTS = st.lists(st.integers(0, 4), min_size=1, max_size=9)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
@REPEATABLE
@given(st.data())
def test_whatever_options_a_drafter_takes_its_greedy_text_is_the_targets(kind, data):
    decodes_as_the_target_alone(data, kind, TARGET, DRAFT)


@pytest.mark.parametrize("kind", EVERY, ids=lambda kind: kind.name)
@settings(REPEATABLE, max_examples=5)
@given(st.data())
def test_with_models_of_transformers_too(kind, data):
    decodes_as_the_target_alone(data, kind, *_models(data.draw(st.sampled_from(["llama", "mistral-window", "gpt2"]))))


def decodes_as_the_target_alone(data, kind, target, draft):
    """At temperature 0, and where the most probable token alone may be drawn, by the rule that is the default there."""
    drafter, prompt = data.draw(drafters(kind, draft)), data.draw(PROMPTS)
    budget, eos = data.draw(st.integers(1, 24)), data.draw(st.sets(st.integers(0, 4), max_size=2))
    options = {"max_new_tokens": budget, "eos_token_ids": sorted(eos)}
    sampling = data.draw(st.sampled_from([dt.Sampling(), dt.Sampling(temperature=1.0, top_k=1)]))
    out = dt.generate(target, prompt, drafter, sampling=sampling, **options)
    plain = dt.autoregressive(target, prompt, **options)
    assert out.tokens == plain.tokens
    assert out.finish_reason == plain.finish_reason
    most = getattr(drafter, "max_nodes", None)
    assert most is None or all(len(one.tree) <= most for one in out.iterations)
    assert [token for one in out.iterations for token in one.verdict.tokens(one.tree)] == out.tokens


# ------------------------------------------------------------------------------------------------------------- stopping
@REPEATABLE
@given(PROMPTS, st.integers(1, 30), st.sets(st.integers(0, 4), max_size=3), st.integers(1, 7))
def test_a_text_stops_where_plain_decoding_stops_at_every_place_of_a_path(prompt, budget, eos, length):
    """The target drafts for itself, so every path is accepted in full and ends anywhere."""
    whole = dt.autoregressive(TARGET, prompt, max_new_tokens=budget).tokens
    ends = [number for number, token in enumerate(whole, 1) if token in eos]
    wanted = whole[: ends[0]] if ends else whole
    for drafter in (dt.Chain(TARGET, length), dt.FixedTree(TARGET, depth=length, branching=2, tau=None, max_nodes=20)):
        out = dt.generate(TARGET, prompt, drafter, max_new_tokens=budget, eos_token_ids=sorted(eos))
        assert out.tokens == wanted
        assert out.finish_reason == ("eos" if ends else "length")


# -------------------------------------------------------------------------------------------------------------- batches
@settings(REPEATABLE, max_examples=12)
@given(
    st.lists(st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=12), min_size=1, max_size=5),
    st.integers(1, 4), st.integers(1, 16), st.sets(st.integers(0, VOCABULARY - 1), max_size=12),
)  # fmt: skip
def test_texts_join_and_leave_a_batch_as_if_each_were_alone(prompts, together, budget, eos):
    target, draft = _models()
    drafter = dt.FixedTree(draft, depth=3, branching=2, tau=None, max_nodes=8)
    options = {"max_new_tokens": budget, "eos_token_ids": sorted(eos)}
    alone = [dt.generate(target, prompt, drafter, **options) for prompt in prompts]
    found = dt.generate_batch(target, prompts, drafter, max_batch=together, **options)
    assert [one.tokens for one in found] == [one.tokens for one in alone]
    assert [one.finish_reason for one in found] == [one.finish_reason for one in alone]


def _models(kind: str = "llama"):
    if kind not in _MADE:
        target = random_model(kind)
        _MADE[kind] = target, noisy_copy(target)
    return _MADE[kind]


_MADE: dict = {}


# ------------------------------------------------------------------------------------------------------------- sessions
class Sessions(RuleBasedStateMachine):
    """A session that scores, commits, rolls back and extends in any order, against fresh forwards over plain texts."""

    kind = "llama"

    @initialize(tokens=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=6))
    def begin(self, tokens):
        self.model = _models(self.kind)[0]
        self.session = self.model.session()
        self.session.start(tokens)
        self.session._cache.capacity = 1  # so that it grows, more than once in a text
        self.text, self.nodes = list(tokens), []  # nodes: (token, parent)

    def path(self, node):
        path = []
        while node != ROOT:
            path.append(node)
            node = self.nodes[node][1]
        return path[::-1]

    @precondition(lambda self: len(self.nodes) < 20)
    @rule(data=st.data(), count=st.integers(1, 5))
    def score(self, data, count):
        known, new = len(self.nodes), []
        for number in range(count):
            token = data.draw(st.integers(0, VOCABULARY - 1))
            new.append((token, data.draw(st.integers(ROOT, known + number - 1))))
        self.nodes += new
        scores = self.session.score(*(np.array(column) for column in zip(*new, strict=True)), dt.Sampling())
        for number in range(count):
            path = [self.nodes[node][0] for node in self.path(known + number)]
            wanted = self.model.model(torch.tensor([self.text + path])).logits[0, -1]
            torch.testing.assert_close(scores.logits[number].to(wanted.dtype), wanted, rtol=1e-6, atol=1e-6)

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def commit(self, data):
        path = self.path(data.draw(st.integers(ROOT, len(self.nodes) - 1)))
        self.session.commit(path)
        self.text += [self.nodes[node][0] for node in path]
        self.nodes = []

    @rule()
    def rollback(self):
        self.session.rollback()
        self.nodes = []

    @precondition(lambda self: not self.nodes)
    @rule(tokens=st.lists(st.integers(0, VOCABULARY - 1), min_size=1, max_size=4))
    def extend(self, tokens):
        self.session.extend(tokens)
        self.text += tokens

    @precondition(lambda self: self.nodes)
    @rule()
    def extending_now_is_refused(self):
        with pytest.raises(RuntimeError, match="scored nodes pending"):
            self.session.extend([1])

    @rule(data=st.data())
    def committing_what_is_not_pending_is_refused(self, data):
        outside = data.draw(st.sampled_from([-2, ROOT, len(self.nodes), len(self.nodes) + 7]))
        path = self.path(len(self.nodes) - 1) if self.nodes else []
        with pytest.raises(ValueError, match=f"given node {outside}; give some of the {len(self.nodes)} pending"):
            self.session.commit([*path, outside])

    @precondition(lambda self: self.nodes)
    @rule(data=st.data())
    def committing_what_is_no_path_is_refused(self, data):
        node = data.draw(st.integers(0, len(self.nodes) - 1))
        with pytest.raises(ValueError, match="commit.. needs a path"):
            self.session.commit([*self.path(node), node])

    @invariant()
    def positions_are_those_of_the_text(self):
        if hasattr(self, "text"):
            assert self.session.position == len(self.text)
            assert self.session.pending == len(self.nodes)
            assert self.session.length <= self.session.position


@pytest.mark.parametrize("kind", ["llama", "gpt_neox"])
def test_a_session_in_any_order_of_calls_agrees_with_fresh_forwards(kind):
    machine = type(f"Sessions_{kind}", (Sessions,), {"kind": kind})
    with torch.inference_mode():
        run_state_machine_as_test(machine, settings=settings(REPEATABLE, max_examples=25, stateful_step_count=25))
