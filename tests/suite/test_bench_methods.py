"""The table of methods, and options as text."""

from __future__ import annotations

import pytest

from dynatree_suite.bench.methods import METHODS, variant, variants
from dynatree_suite.bench.options import split_specs


def test_commas_separate_methods_and_options():
    text = "ar, chain:length=6,fixed-tree:depth=6,branching=3/2,tau=none,hf-generate,fixed-tree:max_nodes=24"
    assert split_specs(text) == [
        "ar", "chain:length=6", "fixed-tree:depth=6,branching=3/2,tau=none", "hf-generate", "fixed-tree:max_nodes=24",
    ]  # fmt: skip
    assert [one.name for one in variants(text)] == ["ar", "chain", "fixed-tree", "hf-generate", "fixed-tree"]
    assert [one.label for one in variants("chain:length=2,chain:length=4")] == ["chain:length=2", "chain:length=4"]


def test_options_are_typed_and_filled_in():
    found = variant("fixed-tree:depth=6,branching=3/2/1,tau=none,prune=remove,commit=rebuild").options
    assert found == {
        "depth": 6, "branching": (3, 2, 1), "tau": None, "max_nodes": 16, "root": "target", "prune": "remove",
        "commit": "rebuild", "verifier": "default", "independent": False, "retokenized": False,
        "skip": None,
    }  # fmt: skip
    assert variant("fixed-tree:branching=3,tau=0.1").options["branching"] == 3
    assert variant("hf-assisted:confidence=0").options["confidence"] == 0
    assert variant("chain:length=3", label="short").label == "short"


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        ("tree", "There is no method 'tree'; choose from hf-generate, hf-assisted"),
        ("chain:lenght=6", "no option 'lenght'; choose from length, commit, verifier, independent, retokenized, skip."),
        ("hf-generate:x=1", "Method 'hf-generate' has no option 'x'; leave it out"),
        ("chain:length=six", "Option length is 'six'; give a whole number."),
        ("fixed-tree:branching=3/x", "give a whole number or values separated by '/' such as 3/2/1."),
        ("fixed-tree:tau=low", "give a number or none."),
        ("fixed-tree:root=top", "give one of target, draft."),
        ("chain:length", "is not an option; write NAME=VALUE"),
        ("chain:length=", "is not an option; write NAME=VALUE"),
        ("chain:length=1,length=2", "Option 'length' is given twice"),
        ("chain:length=0", "length is 0; give a whole number of at least 1."),
        ("fixed-tree:tau=1.5", "tau is 1.5; the rule is 0 < tau < 1"),
        ("hf-assisted:num_assistant_tokens=0", "draft at least 1 token"),
        ("hf-prompt-lookup:num_tokens=0", "both need to be at least 1"),
        ("hf-assisted:confidence=1", "give a probability in"),
    ],
)
def test_what_cannot_run_is_refused_in_a_sentence(spec, sentence):
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the sentence is compared below
        variant(spec)
    assert sentence in str(caught.value)


def test_a_run_needs_methods_and_labels_of_their_own():
    with pytest.raises(ValueError, match="No method was given"):
        variants("")
    with pytest.raises(ValueError, match="'ar' is given twice"):
        variants("ar,ar")


def test_which_model_a_method_drafts_with():
    drafts = {
        "ar": None, "ar-fast": None, "prompt-lookup": None, "chain": "draft", "chain:independent=true": "common_draft",
        "chain:skip=1/2": None, "hf-assisted": "common_draft", "streaming-llm": "common_draft",
        "union-tree": "draft", "union-tree:first=suffix-tree": None,
        "union-tree:independent=true": "common_draft", "union-tree:skip=1": None, "auto": "draft",
        "auto:alone=true": None,
    }  # fmt: skip
    found = {spec: (one := variant(spec)).method.draft_of(one.options) for spec in drafts}
    assert found == drafts


def test_every_method_has_a_default_for_each_option():
    for method in METHODS.values():
        assert set(method.types) == set(method.defaults)
