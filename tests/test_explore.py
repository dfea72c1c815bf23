"""Explorers: what they show follows their controls, and is what the decoder gives for them."""

import json
import re

import pytest
from models import noisy_copy, random_model

pytest.importorskip("ipywidgets")

import dynatree_lib as dt
from dynatree_lib import plots
from dynatree_lib.explore import Live, Walk
from dynatree_lib.explore.live import CONTROLS, DRAFTERS
from dynatree_lib.measure.methods import METHODS
from dynatree_lib.models.pairs import load_pair

PROMPT = "def read_lines(path):"


@pytest.fixture(scope="module")
def pair():
    return load_pair("tiny")


@pytest.fixture(scope="module")
def generation():
    target = random_model("llama")
    return dt.generate(target, [1, 2, 3], dt.AdaptiveTree(noisy_copy(target)), max_new_tokens=30)


def drawn(place) -> dict:
    """The figure that an output holds."""
    (output,) = place.outputs
    return output["data"]["application/vnd.plotly.v1+json"]


def as_data(figure) -> dict:
    return json.loads(figure.to_json())


def plain(html: str) -> str:
    return re.sub(r"<[^>]*>", "", html)


class TestStepText:
    def test_the_last_step_has_all_of_the_text(self, generation):
        last = plain(plots.step_text(generation, len(generation.iterations) - 1, prompt="ask: "))
        assert "ask: " + "".join(f"{token} " for token in generation.tokens) in last

    def test_every_step_adds_what_its_iteration_committed(self, generation):
        emitted = 0
        for number, iteration in enumerate(generation.iterations):
            page = plots.step_text(generation, number, branches=100)
            emitted += iteration.committed
            assert f"{iteration.committed} tokens added; {emitted} tokens by {number + 1} target forwards" in page
            assert "".join(f"{token} " for token in generation.tokens[:emitted]) in plain(page)

    def test_ghosts_are_the_rejected_branches(self, generation):
        for number, iteration in enumerate(generation.iterations):
            tree, accepted = iteration.tree, {0, *iteration.verdict.path}
            inner = set(tree.parents.tolist())
            leaves = [node for node in range(1, len(tree)) if node not in inner | accepted]
            page = plots.step_text(generation, number, branches=100)
            assert page.count("line-through") == len(leaves)
            for leaf in leaves:
                assert "".join(f"{tree.tokens[node]} " for node in tree.path(leaf)) in plain(page)

    def test_more_branches_than_asked_for_are_counted(self, generation):
        number = max(range(len(generation.iterations)), key=lambda n: len(generation.iterations[n].tree))
        whole = plots.step_text(generation, number, branches=100).count("line-through")
        assert f"and {whole - 1} more" in plots.step_text(generation, number, branches=1)

    @pytest.mark.parametrize("number", [-1, 1000])
    def test_other_iterations_are_refused(self, generation, number):
        with pytest.raises(ValueError, match=f"number is {number}; the text has iterations 0 to"):
            plots.step_text(generation, number)


class TestWalk:
    def test_the_slider_moves_text_and_tree(self, generation):
        walk = Walk(generation, prompt="ask")
        before = walk.text.value
        walk.place.value = 2
        assert walk.iteration is generation.iterations[2]
        assert walk.text.value == plots.step_text(generation, 2, prompt="ask") != before
        assert drawn(walk.tree) == as_data(plots.draft_tree(generation.iterations[2]))

    def test_the_mask_is_of_the_iteration_shown(self, generation):
        walk = Walk(generation, prefix=2)
        walk.place.value = 1
        walk.mask.value = True
        first = generation.iterations[0].committed
        assert drawn(walk.seen) == as_data(plots.tree_mask(generation.iterations[1].tree, 2 + first))
        walk.mask.value = False
        assert not walk.seen.outputs

    def test_the_drafters_state_is_shown(self, generation):
        assert "tau_high" in Walk(generation).state.value

    def test_a_text_without_iterations_is_refused(self):
        with pytest.raises(ValueError, match="no iterations to walk through"):
            Walk(dt.Generation([1], [], "length", None))


class TestLive:
    @pytest.mark.parametrize("method", DRAFTERS)
    def test_every_drafter_decodes_the_targets_text(self, pair, method):
        live = Live(pair, PROMPT, method=method, budget=16)
        assert live.generation.tokens == dt.autoregressive(pair.target, pair.ids(PROMPT), max_new_tokens=16).tokens
        assert "The text is plain decoding's." in live.figures.value
        assert set(live.sliders) == set(CONTROLS) & {
            name for name, value in METHODS[method].defaults.items() if isinstance(value, int | float)
        }

    def test_a_slider_decodes_again(self, pair):
        live = Live(pair, PROMPT, method="chain", budget=16)
        before = live.generation
        live.sliders["length"].value = 2
        assert live.generation is not before
        assert max(iteration.tree.depth for iteration in live.generation.iterations) == 2
        assert live.walk.generation is live.generation
        assert live.progress.value == live.progress.max == 16

    def test_another_drafter_brings_its_own_options(self, pair):
        live = Live(pair, PROMPT, method="chain", budget=16)
        live.method.value = "fixed-tree"
        assert {"depth", "tau"} <= set(live.sliders)
        assert "length" not in live.sliders

    def test_what_cannot_be_decoded_is_said(self, pair):
        live = Live(pair, PROMPT, budget=16)
        live.prompt.value = ""
        assert "empty" in live.figures.value

    def test_sampled_texts_are_not_compared_with_the_greedy_one(self, pair):
        live = Live(pair, PROMPT, method="sampled-tree", budget=16)
        live.temperature.value = 1.0
        assert "plain decoding" not in live.figures.value

    def test_a_method_without_a_drafter_is_refused(self, pair):
        with pytest.raises(ValueError, match="method is 'hf-generate'; choose one of chain, "):
            Live(pair, PROMPT, method="hf-generate")
