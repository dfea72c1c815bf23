"""Each fault of the published code does what it is said to do, and only that."""

import itertools
from dataclasses import fields, replace

import pytest
from models import hf_greedy, noisy_copy, prompt, random_model

from dynatree_lib import FixedTree, generate
from dynatree_suite.papers.dynatree.as_published import PUBLISHED, Switches, arrange, corrections, single_faults

TARGET = random_model("gpt_neox")
TREE = FixedTree(noisy_copy(TARGET), depth=3, branching=2, tau=0.01, max_nodes=32)
PROMPTS = [prompt(n) for n in (5, 40)]
NAMES = [field.name for field in fields(Switches)]


def generate_with(ids, switches):
    target, drafter, commit = arrange(TARGET, TREE, switches)
    return generate(target, ids, drafter, commit=commit, max_new_tokens=40)


def texts(switches):
    return [generate_with(ids, switches).tokens for ids in PROMPTS]


EXPECTED = [hf_greedy(TARGET, ids, 40) for ids in PROMPTS]


@pytest.mark.parametrize("name", NAMES)
def test_only_missing_positions_change_the_text(name):
    alone = replace(Switches(), **{name: getattr(PUBLISHED, name)})
    assert (texts(alone) == EXPECTED) == (name != "positions")


def test_corrections_lead_from_the_published_code_to_ours():
    steps = [switches for _, switches in corrections()]
    assert (steps[0], steps[-1]) == (PUBLISHED, Switches())
    changed = [sum(getattr(a, name) != getattr(b, name) for name in NAMES) for a, b in itertools.pairwise(steps)]
    assert changed == [1] * 5
    assert [sum(getattr(one, name) != getattr(Switches(), name) for name in NAMES) for _, one in single_faults()] == [
        0, 1, 1, 1, 1, 1,
    ]  # fmt: skip


def test_as_published_is_not_exact_and_corrected_is():
    assert texts(PUBLISHED) != EXPECTED
    assert texts(Switches()) == EXPECTED


def iterations(switches):
    return [len(generate_with(ids, switches).iterations) for ids in PROMPTS]


def test_rereading_the_draft_changes_no_tree():
    assert iterations(replace(Switches(), draft_cache="reread")) == iterations(Switches())


def test_root_switch_alone_equals_the_core():
    out = generate_with(PROMPTS[0], Switches(root="draft"))
    core = generate(TARGET, PROMPTS[0], replace(TREE, root="draft", depth=4), max_new_tokens=40)
    assert [one.tree.tokens.tolist() for one in out.iterations] == [one.tree.tokens.tolist() for one in core.iterations]
    assert all((one.tree.depths == 1).sum() <= 1 for one in out.iterations)


def test_shared_draft_cache_misleads_the_draft():
    """A node that also sees its siblings gets other continuations, so some tree differs."""

    def trees(switches):
        out = generate_with(PROMPTS[1], switches)
        return [one.tree.tokens.tolist() for one in out.iterations]

    assert trees(replace(Switches(), batching="node")) != trees(Switches())
