"""Tests of the tests: faults planted in the production code, one at a time, must each be noticed by the battery."""

from collections.abc import Callable

import numpy as np
import pytest
from models import hf_greedy, noisy_copy, prompt, random_model

from dynatree_lib import Chain, FixedTree, ToyModel, autoregressive, generate, masks
from dynatree_lib.drafters.base import ModelDrafter
from dynatree_lib.drafters.builder import TreeBuilder
from dynatree_lib.drafters.fixed_tree import FixedTree as FixedTreeClass
from dynatree_lib.fast import gpt_neox
from dynatree_lib.models import base, cache, huggingface
from dynatree_lib.stopping import Stopping
from dynatree_lib.verifiers import greedy
from dynatree_lib.verifiers.base import Verdict

pytestmark = pytest.mark.slow
TOY = ToyModel.random(6, seed=1)


def battery() -> None:
    """What the contract demands, at the smallest size that still shows each fault."""
    target = random_model("gpt_neox")
    draft = noisy_copy(target)
    ids = prompt(40)
    text = hf_greedy(target, ids, 48)
    tree = FixedTree(draft, depth=4, branching=3, tau=None, max_nodes=24)
    for drafter in (Chain(draft, 3), tree):
        assert generate(target, ids, drafter, max_new_tokens=48).tokens == text
    eos = next(token for token in reversed(text) if text.index(token) > 8)
    assert generate(target, ids, tree, max_new_tokens=48, eos_token_ids=eos).tokens == text[: text.index(eos) + 1]
    for drafter in (Chain(TOY, 4), FixedTree(TOY, depth=4, branching=2, tau=None, max_nodes=40)):
        first = generate(TOY, [1, 2], drafter, max_new_tokens=50)
        second = generate(TOY, [3, 4], drafter, max_new_tokens=50, state=first.state)
        assert (len(first.iterations), len(second.iterations)) == (10, 10)
        assert second.tokens == autoregressive(TOY, [1, 2, *first.tokens, 3, 4], max_new_tokens=50).tokens
    assert len(FixedTree(TOY, tau=None, max_nodes=9).propose(tree_state(), 9).tree) == 9


def tree_state():
    from dynatree_lib import RandomSource

    return Chain(TOY, 1).start([1, 2], RandomSource())


def everything_visible(parents: np.ndarray) -> np.ndarray:
    return np.ones((len(parents), len(parents)), bool)


def no_ancestors(parents: np.ndarray) -> np.ndarray:
    return np.eye(len(parents), dtype=bool)


def keep_the_first_rows(self, base_rows: int, rows) -> None:
    self.size = base_rows + len(rows)


def bonus_of_the_root(self, tree, rows, distributions, random) -> Verdict:
    verdict = greedy_verify(self, tree, rows, distributions, random)
    return Verdict(verdict.path, int(rows.argmax[0]))


def no_eos(self, tokens, fresh, before=(), met=None) -> tuple[int, str | None]:
    remaining = self.remaining(tokens)
    return (remaining, "length") if len(fresh) >= remaining else (len(fresh), None)


def forgets_accepted_tokens(self, tokens) -> list[int]:
    return [0 for _ in tokens]


def late_position(self, path) -> None:
    commit(self, path)
    self.position += 1


def wrong_parent(self, frontier):
    self.pending[0] = 0
    self.pending[frontier] = self.state.session.pending + np.arange(len(frontier))
    from dynatree_lib.sampling import Sampling

    parents = np.full(len(frontier), -1) if self.state.session.pending == 0 else np.zeros(len(frontier), np.int64)
    return self.state.session.score(self.tokens[frontier], parents, Sampling()).logits


def one_node_too_many(self, builder, max_depth) -> None:
    object.__setattr__(self, "max_nodes", self.max_nodes + 1)
    grow(self, builder, max_depth)
    object.__setattr__(self, "max_nodes", self.max_nodes - 1)


greedy_verify, commit, grow = greedy.Greedy.verify, base.Session.commit, FixedTreeClass.grow


FAULTS: dict[str, tuple[object, str, Callable]] = {
    "siblings see each other": (masks, "ancestor_matrix", everything_visible),
    "nodes do not see their ancestors": (masks, "ancestor_matrix", no_ancestors),
    "positions by index": (
        huggingface,
        "depth_positions",
        lambda parents, position: position + np.arange(len(parents)),
    ),
    "the cache keeps the first rows, not the path": (cache.TreeCache, "keep", keep_the_first_rows),
    "the bonus token comes from the root": (greedy.Greedy, "verify", bonus_of_the_root),
    "EOS inside a path is overlooked": (Stopping, "cut", no_eos),
    "the draft forgets accepted tokens": (ModelDrafter, "_known", forgets_accepted_tokens),
    "positions drift": (base.Session, "commit", late_position),
    "the draft hangs every node below the root": (TreeBuilder, "logits", wrong_parent),
    "the budget is exceeded by one": (FixedTreeClass, "grow", one_node_too_many),
}


@pytest.fixture(autouse=True)
def models_are_made_first() -> None:
    """The load-time check would refuse a model under some of these faults; here the later tests must notice."""
    noisy_copy(random_model("gpt_neox"))


def test_the_battery_passes_on_sound_code():
    battery()


@pytest.mark.parametrize("fault", FAULTS)
def test_every_fault_is_noticed(fault, monkeypatch):
    place, name, mutant = FAULTS[fault]
    monkeypatch.setattr(place, name, mutant)
    with pytest.raises((AssertionError, ValueError, IndexError)):
        battery()


def test_a_wrong_lean_forward_is_refused_at_loading(monkeypatch):
    from models import raw_model

    attend = gpt_neox.LeanGPTNeoX._attend

    def unturned(self, qkv, index, turn, mask, cache_):
        return attend(self, qkv, index, (turn[0].abs(), turn[1]), mask, cache_)

    monkeypatch.setattr(gpt_neox.LeanGPTNeoX, "_attend", unturned)
    with pytest.raises(ValueError, match="does not score a token tree"):
        huggingface.HFModel(raw_model("gpt_neox"))
