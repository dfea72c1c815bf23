"""Explorers: what they show follows their controls, and is what the decoder gives for them."""

import json
import re
from contextlib import nullcontext
from itertools import product
from typing import ClassVar

import pytest
import torch
from models import noisy_copy, random_model

from dynatree_suite import charts

pytest.importorskip("ipywidgets")

import dynatree_lib as dt
from dynatree_lib import plots
from dynatree_lib.drafters.base import Proposal
from dynatree_lib.models.pairs import load_pair
from dynatree_lib.plots import theme
from dynatree_lib.plots.trees import verified
from dynatree_lib.sampling import DraftDistributions
from dynatree_lib.tree import DISTINCT, POINT
from dynatree_suite.bench.methods import METHODS
from dynatree_suite.bench.trace import iteration_means, traced_runs
from dynatree_suite.explore import Choice, Coins, Gain, Live, Mask, Race, Timeline, Walk
from dynatree_suite.explore.gain import BOUND, SHAPES
from dynatree_suite.explore.live import CONTROLS, DRAFTERS, MOST_NODES
from dynatree_suite.proofs import exact

PROMPT = "def read_lines(path):"


@pytest.fixture(scope="module")
def pair():
    return load_pair("tiny")


@pytest.fixture(scope="module")
def generation():
    target = random_model("llama")
    return dt.generate(target, [1, 2, 3], dt.AdaptiveTree(noisy_copy(target)), max_new_tokens=30)


@pytest.fixture(scope="module")
def cut(generation):
    """The same text, ended by a token that was drafted and accepted."""
    paths = [len(one.verdict.path) for one in generation.iterations]
    number = max(range(len(paths)), key=lambda n: (paths[n] > 1, n))
    token = generation.tokens[sum(paths[:number]) + number + 1]  # the second of its path
    target = random_model("llama")
    drafter = dt.AdaptiveTree(noisy_copy(target))
    ended = dt.generate(target, [1, 2, 3], drafter, max_new_tokens=30, eos_token_ids=[token])
    assert (ended.finish_reason, ended.iterations[-1].committed) == ("eos", 2)
    return ended


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
            plural = ["s" * (count != 1) for count in (iteration.committed, emitted, number + 1)]
            added = f"{iteration.committed} token{plural[0]} added; {emitted} token{plural[1]} by"
            assert f"{added} {number + 1} target forward{plural[2]}" in page
            assert "".join(f"{token} " for token in generation.tokens[:emitted]) in plain(page)

    @pytest.mark.parametrize("text", ["generation", "cut"])
    def test_ghosts_are_the_rejected_branches(self, text, request):
        generation = request.getfixturevalue(text)
        for number, iteration in enumerate(generation.iterations):
            tree, roles = verified(iteration)
            assert ("last" in roles) == (text == "cut" and iteration is generation.iterations[-1])
            tree, accepted = iteration.tree, {n for n in range(len(iteration.tree)) if roles[n] != "rejected"}
            inner = set(tree.parents.tolist())
            leaves = [node for node in range(1, len(tree)) if node not in inner | accepted]
            page = plots.step_text(generation, number, branches=100)
            assert page.count("line-through") == len(leaves)
            for leaf in leaves:
                assert "".join(f"{tree.tokens[node]} " for node in tree.path(leaf)) in plain(page)

    def test_a_drafted_token_that_ends_the_text_is_counted_as_accepted_and_is_no_bonus(self, cut):
        last = cut.iterations[-1]
        count = last.committed
        assert f"{count} accepted, {count} token" in plots.step_text(cut, len(cut.iterations) - 1)
        assert f"{count} accepted, {count} token" in plots.draft_tree(last).layout.title.text
        assert plots.text_iterations(cut).count(": bonus token") == len(cut.iterations) - 1
        assert f"iteration {len(cut.iterations) - 1}: bonus" not in plots.text_iterations(cut)
        accepted, bonus, _ = plots.timeline(cut.iterations).data
        assert (accepted.y[-1], bonus.y[-1]) == (count, 0)

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

    def test_a_side_tree_is_drawn_with_its_forward_and_its_mask(self):
        drafter = dt.ProgressiveTree(depth=3, children=2, start_tree=(2,), max_draft=9)
        text = dt.generate(random_model("llama"), [1, 2, 3], drafter, max_new_tokens=12)
        walk = Walk(text)
        walk.place.value, walk.mask.value = 3, True
        assert len(text.iterations[3].side_tree) > 1
        assert drawn(walk.tree) == as_data(plots.forward_trees(text.iterations[3]))
        assert drawn(walk.seen) == as_data(plots.forward_mask(text.iterations[3]))

    def test_a_text_without_iterations_is_refused(self):
        with pytest.raises(ValueError, match="no iterations to walk through"):
            Walk(dt.Generation([1], [], "length", None))


class TestLive:
    @pytest.mark.parametrize("method", DRAFTERS)
    def test_every_drafter_decodes_the_targets_text(self, pair, method):
        live = Live(pair, PROMPT, method=method, budget=16)
        assert live.generation.tokens == dt.autoregressive(pair.target, pair.ids(PROMPT), max_new_tokens=16).tokens
        assert "The text is plain decoding's." in live.figures.value
        assert {name.partition(",")[0] for name in live.sliders} == set(CONTROLS) & {
            name for name, value in METHODS[method].defaults.items() if isinstance(value, int | float | tuple)
        }
        assert set(live.chosen()) == set(METHODS[method].defaults)
        assert all(slider.min <= slider.value <= slider.max for slider in live.sliders.values())

    @pytest.mark.parametrize("method", DRAFTERS)
    def test_the_ends_of_all_sliders_together_are_decoded_by_small_trees(self, pair, method):
        live = Live(pair, PROMPT, method=method, budget=8)
        decode, reached = live.decode, {}
        live.decode = lambda: reached.setdefault(repr(live.chosen()), [one.value for one in live.sliders.values()])
        for ends in product(*((slider.min, slider.max) for slider in live.sliders.values())):
            for name, value in zip(live.sliders, ends, strict=True):
                live.sliders[name].value = value
                METHODS[method].check(live.chosen())
                assert live.sliders[name].value == value  # the one that is moved stands where it was put
        for place in list(reached.values())[:: len(reached) // 12 + 1]:
            for slider, value in zip(live.sliders.values(), place, strict=True):
                slider.value = value
            decode()
            assert live.below.children, live.figures.value
            assert max(len(one.tree) for one in live.generation.iterations) <= MOST_NODES

    def test_a_text_that_is_not_plain_decodings_is_said_with_its_place_and_margin(self, pair):
        live = Live(pair, PROMPT, method="chain", budget=16)
        known = PROMPT, live.budget.value
        tokens, seconds = live.plain[known]
        live.plain[known] = [*tokens[:5], tokens[5] + 1, *tokens[6:]], seconds  # as if it were: another sixth token
        live.decode()
        session = pair.target.session()
        session.start([*pair.ids(PROMPT), *tokens[:4]])
        best = session.score([tokens[4]], [-1], dt.Sampling()).logits[0].topk(2).values
        assert "From token 6 on the text is not plain decoding's" in live.figures.value
        assert f"two best logits are {float(best[0] - best[1]):.2g} apart" in live.figures.value

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

    def test_the_default_tree_has_its_breadth_level_by_level(self, pair):
        live = Live(pair, PROMPT, budget=16)
        assert live.chosen()["branching"] == METHODS["fixed-tree"].defaults["branching"] == (2, 1)
        live.sliders["branching, level 1"].value = 3
        live.sliders["branching, level 2 on"].value = 2
        assert live.chosen()["branching"] == (3, 2)
        tree = max((one.tree for one in live.generation.iterations), key=len)
        assert [tree.parents.tolist().count(node) for node in (0, 1)] == [3, 2]

    def test_other_sliders_follow_the_one_that_bounds_them(self, pair):
        live = Live(pair, PROMPT, method="adaptive-tree", budget=8)
        live.sliders["tau_low"].value = 0.9
        assert live.sliders["tau_high"].value == 0.91
        assert "tau_high went along to 0.91; it has to be over tau_low." in live.figures.value
        live.sliders["max_branching"].value = 1
        assert [live.sliders[f"{name}_branching"].value for name in ("min", "mid")] == [1, 1]
        assert "mid_branching went along to 1; it has to be at most max_branching." in live.figures.value
        live.temperature.value = 0.5
        assert "went along" not in live.figures.value

    def test_a_tree_of_levels_and_children_alone_stays_small(self, pair):
        live = Live(pair, PROMPT, method="sampled-tree", budget=8)
        live.sliders["branching"].value = 5
        assert (live.sliders["depth"].value, live.sliders["branching"].value) == (2, 5)
        assert "depth went down to 2: the tree would have 3,906 nodes, and at most 64 are drafted" in live.figures.value
        live.sliders["depth"].value = 12
        assert (live.sliders["depth"].value, live.sliders["branching"].value) == (12, 1)

    @pytest.mark.parametrize("error", [ValueError, RuntimeError])
    def test_what_cannot_be_decoded_is_said_in_place_of_the_picture(self, pair, monkeypatch, error):
        live = Live(pair, PROMPT, budget=16)
        live.prompt.value = ""
        assert "empty" in live.figures.value
        assert (live.below.children, live.progress.value) == ((), 0)
        live.prompt.value = PROMPT
        assert live.below.children == (live.walk,)

        def refused(*arguments, **options):
            raise error("no <room>")

        monkeypatch.setattr("dynatree_suite.explore.live.generate", refused)
        with pytest.raises(error) if error is RuntimeError else nullcontext():
            live.decode()
        assert "no &lt;room&gt;" in live.figures.value
        assert not live.below.children

    def test_sampled_texts_are_not_compared_with_the_greedy_one(self, pair):
        live = Live(pair, PROMPT, method="sampled-tree", budget=16)
        live.temperature.value = 1.0
        assert "plain decoding" not in live.figures.value

    def test_a_method_without_a_drafter_is_refused(self, pair):
        with pytest.raises(ValueError, match="method is 'hf-generate'; choose one of auto, chain, "):
            Live(pair, PROMPT, method="hf-generate")


def test_an_explorer_brings_the_style_of_dark_pages(generation):
    assert theme.dark_css(theme.DARK_PAGES) in Walk(generation).children[0].value


class TestMask:
    TREE = dt.TokenTree.build([9, 1, 2, 3, 4], [-1, 0, 0, 1, 2])

    def test_a_node_sees_itself_and_its_ancestors(self):
        mask = Mask(self.TREE, [7, 8])
        mask.node.value = 3
        assert drawn(mask.tree) == as_data(plots.seen_tree(self.TREE, 3))
        assert drawn(mask.mask) == as_data(plots.tree_mask(self.TREE, 2, prefix_tokens=[7, 8], row=3))
        assert "position 4: 2 tokens of the prefix, and level 2 of the tree. Its place in the forward is 5." in (
            mask.place.value
        )
        roles = {trace.name: len(trace.x) for trace in plots.seen_tree(self.TREE, 3).data if trace.mode == "markers"}
        assert roles == {
            "the node that looks": 1, "seen: an ancestor": 2, "not seen": 1,
            "not seen: on another branch at the same level": 1,
        }  # fmt: skip

    @pytest.mark.parametrize("node", range(5))
    def test_a_causal_mask_shows_other_branches_too(self, node):
        mask = Mask(self.TREE, [7, 8])
        mask.node.value, mask.causal.value = node, True
        row = drawn(mask.mask)["data"][0]["text"][node][2:]
        seen = [place for place, text in enumerate(row) if not text.endswith(("not seen", "at the same level"))]
        assert seen == [*range(node + 1)]
        wrong = [place for place, text in enumerate(row) if text.endswith("though on another branch")]
        assert wrong == sorted({*range(node)} - {0, *self.TREE.path(node)})
        assert drawn(mask.tree) == as_data(plots.seen_tree(self.TREE, node, causal=True))

    @pytest.mark.parametrize("node", [-1, 5, True, 1.0])
    def test_other_nodes_are_refused(self, node):
        with pytest.raises(ValueError, match="the tree has nodes 0 to 4"):
            plots.seen_tree(self.TREE, node)


class TestGain:
    RULES: ClassVar = {"token-level": dt.TokenLevel(), "traversal": dt.Traversal()}

    @pytest.mark.parametrize("tree", SHAPES)
    def test_equal_models_accept_whole_paths_and_no_rule_is_above_the_bound(self, tree):
        gain = Gain(self.RULES, (2, 4, 4), (2, 4, 4), tree=tree)
        levels = 2 if "child" in tree or "binary" in tree else int(tree[-1]) if "chain" in tree else 1
        if "chain" in tree:
            assert gain.tokens == pytest.approx(dict.fromkeys([*self.RULES, BOUND], levels + 1))
        gain.draft[0].value = 9
        assert 1 <= gain.tokens["token-level"] <= gain.tokens["traversal"] + 1e-9
        assert gain.tokens["traversal"] - 1e-9 <= gain.tokens[BOUND] <= levels + 1 + 1e-9

    def test_two_tokens_by_hand(self):
        """On a chain of 2: 1 + E min(1, r1) + E min(1, r1) min(1, r2), and 1 + E min(1, r1) + E min(1, w1 r2)."""
        gain = Gain(self.RULES, (2, 4, 4), (5, 3, 2), tree="chain of 2")
        q, r = [0.5, 0.3, 0.2], [0.4, 4 / 3, 2]
        once = [min(1, one) for one in r]
        first = sum(x * y for x, y in zip(q, once, strict=True))
        both = sum(q[a] * q[b] * min(1, once[a] * r[b]) for a, b in product(range(3), repeat=2))
        assert gain.tokens["token-level"] == pytest.approx(1 + first + first**2)
        assert gain.tokens["traversal"] == pytest.approx(1 + first + both)
        more = 100 * ((1 + first + both) / (1 + first + first**2) - 1)
        assert f"{more:+.1f} % against token-level" in plain(gain.said.value)
        assert "too often" in gain.ratios.value
        assert "too seldom" in gain.ratios.value

    @pytest.mark.parametrize("weights", [(1, 2), (0, 1, 1), (1, 1, 21), (1, 1, 1.5)])
    def test_other_weights_are_refused(self, weights):
        with pytest.raises(ValueError, match="The weights of the draft are .*; give 3 whole numbers from 1 to 20"):
            Gain(self.RULES, draft=weights)

    def test_other_trees_and_no_rules_are_refused(self):
        with pytest.raises(ValueError, match="tree is 'bush'; choose one of chain of 1, "):
            Gain(self.RULES, tree="bush")
        with pytest.raises(ValueError, match="There is no rule to ask"):
            Gain({})


class TestRace:
    def test_every_method_stands_where_it_is_after_so_many_forwards(self, generation):
        target = random_model("llama")
        other = dt.autoregressive(target, [1, 2, 3], max_new_tokens=30)
        race = Race({"tree": generation, "plain <b>": other}, prompt="ask: ")
        assert (race.forwards.min, race.forwards.value, race.forwards.max) == (1, 1, 30)
        race.forwards.value = 5
        emitted = sum(one.committed for one in generation.iterations[:5])
        assert "".join(f"{token} " for token in generation.tokens[:emitted]) in plain(race.texts["tree"].value)
        assert f"{emitted} tokens by 5 target forwards" in race.texts["tree"].value
        assert "5 tokens by 5 target forwards" in race.texts["plain <b>"].value
        assert "plain &lt;b&gt;" in race.texts["plain <b>"].value
        expected = {"tree": generation.iterations[4], "plain <b>": other.iterations[4]}
        assert drawn(race.trees) == as_data(plots.stacked_trees(expected, title="The latest iteration of each method"))
        race.forwards.value = 30
        assert "its text has ended" in race.texts["tree"].value
        assert "its text has ended" not in race.texts["plain <b>"].value

    def test_texts_without_iterations_are_refused(self, generation):
        with pytest.raises(ValueError, match="no iterations to compare"):
            Race({})
        fast = dt.Generation([1], [], "length", None)
        with pytest.raises(ValueError, match="of 'fast'; give texts of generate"):
            Race({"tree": generation, "fast": fast})


class TestCoins:
    """On the worked example of Traversal Verification, whose fractions notebook 04 works out by hand."""

    @pytest.fixture
    def coins(self):
        target, draft = (torch.tensor(shares, dtype=torch.float64) for shares in ((0.3, 0.4, 0.3), (0.6, 0.3, 0.1)))
        model = dt.ToyModel(lambda context: target.tolist(), vocab_size=3)
        tree = dt.TokenTree.build([0, 0, 1, 1, 2, 1], [-1, 0, 0, 1, 1, 2], draws=[POINT] + [DISTINCT] * 5)
        distributions = DraftDistributions("the example")
        for parent in (0, 1, 2):
            distributions.record(parent, draft)
        scores = exact.target_scores(model, [0], tree, dt.Sampling(1.0))
        rules = {"traversal": dt.Traversal(), "token-level": dt.TokenLevel(), "target walk": dt.TargetWalk()}
        return Coins(Proposal(tree, distributions), scores, "abc", rules)

    @staticmethod
    def names(coins):
        return [button.description for button in coins.answers.children]

    def test_the_coins_are_those_of_the_rule(self, coins):
        assert self.names(coins)[:2] == ["accept: 2/3", "reject: 1/3"]  # X3
        coins.answers.children[1].click()
        assert self.names(coins)[:2] == ["accept: 7/11", "reject: 4/11"]  # X4
        coins.answers.children[0].click()
        assert (coins.taken, coins.verdict) == ([0, 1], None)
        assert self.names(coins)[:3] == ["a: 3/10", "b: 2/5", "c: 3/10"]  # the target's own, below X4
        coins.answers.children[2].click()
        assert (coins.verdict.path, coins.verdict.next_token) == ((1, 4), 2)
        assert "Accepted: X1 X4. The next token is c." in coins.asked.value
        assert not coins.answers.children
        coins.back.click()
        assert coins.taken == [0, 1]
        coins.again.click()
        assert coins.taken == []
        assert coins.back.disabled

    def test_the_tree_shows_what_is_left_open(self, coins):
        rule = coins.rules["traversal"]
        whole, after = coins.chances(rule, []), [coins.chances(rule, [branch]) for branch in (0, 1)]
        mixed = [no / 3 + 2 * yes / 3 for no, yes in zip(*after, strict=True)]
        assert mixed == pytest.approx(whole)
        assert after[1] == pytest.approx([1, 1, 0, 1, 0, 0])
        assert whole[1] == pytest.approx(29 / 33)
        coins.decided([1])
        texts = [text for trace in drawn(coins.tree)["data"] for text in trace.get("text") or ()]
        assert "X<sub>3</sub>=b<br>1" in texts
        assert "X<sub>2</sub>=b<br>0" in texts

    def test_chance_takes_the_branches_by_their_probability(self, coins):
        coins.toss([0, 1])
        assert coins.taken == [1]
        tossed = []
        coins.decided = tossed.append  # in place of the pictures
        for _ in range(200):
            coins.toss([1 / 3, 2 / 3])
        assert all(taken[:-1] == [1] for taken in tossed)
        assert 110 < sum(taken[-1] for taken in tossed) < 157

    def test_many_trials_are_shown_beside_the_exact_number(self, coins):
        coins.rule.value = "token-level"
        coins.often.click()
        figure = drawn(coins.shares)
        seen, expected = (bar["x"] for bar in figure["data"] if bar["type"] == "bar")
        assert sum(expected) == pytest.approx(1)
        assert seen == pytest.approx(expected, abs=0.05)
        assert seen != expected
        coins.rule.value = "target walk"
        assert not coins.shares.outputs

    def test_without_a_rule_nothing_can_be_decided(self, coins):
        with pytest.raises(ValueError, match="There is no rule to decide with"):
            Coins(coins.proposal, coins.scores, "abc", {})


class TestTimeline:
    CHAIN: ClassVar = [
        ["target", 0.0, 1.9, 1], ["commit", 2.0, 2.0, 1],
        ["draft", 2.1, 2.3, 1], ["target", 2.4, 2.9, 2], ["commit", 3.0, 3.0, 2],
        ["draft", 3.1, 3.3, 1], ["target", 3.4, 3.9, 2], ["commit", 4.0, 4.0, 1],
    ]  # fmt: skip

    def test_the_mean_iteration_adds_up_without_the_first(self):
        mean = iteration_means(self.CHAIN)
        assert (mean["iterations"], mean["tokens"]) == (2, 1.5)
        assert [mean[part] for part in ("draft", "verify", "host")] == pytest.approx([0.2, 0.5, 0.3])
        assert iteration_means(self.CHAIN, after=0)["verify"] == pytest.approx(2.9 / 3)
        with pytest.raises(ValueError, match="This run has 3 iterations, and none is left after the first 3"):
            iteration_means(self.CHAIN, after=3)

    def test_the_window_follows_its_sliders(self):
        timeline = Timeline({"chain": self.CHAIN})
        assert drawn(timeline.clock)["layout"]["xaxis"]["range"][1] == pytest.approx(1.01 * timeline.length.value)
        assert timeline.first.max == 2
        one = charts.iteration_timeline({"chain": self.CHAIN}, 1e-3, after=2, steps=500, unit="milliseconds")
        timeline.first.value, timeline.length.value = 2, 500
        assert drawn(timeline.clock) == as_data(one)

    def test_without_a_part_the_rest_decides_the_speed(self):
        timeline = Timeline({"chain": self.CHAIN})
        rate = lambda: float(re.findall(r"<td[^>]*>([\d.]+)</td>", timeline.table.value)[-1])  # noqa: E731
        assert rate() == pytest.approx(1.5)
        timeline.without["host"].value = True
        assert rate() == pytest.approx(1.5 / 0.7, abs=0.01)
        timeline.without["draft"].value = True
        assert rate() == pytest.approx(3)
        assert "tokens/s without draft and host" in timeline.table.value

    def test_traced_runs_see_every_forward_and_every_token(self, pair):
        events = traced_runs(pair, PROMPT, ["ar", "chain:length=3"], max_new_tokens=12)
        assert [sum(count for role, _, _, count in run if role == "commit") for run in events.values()] == [12, 12]
        assert {role for role, *_ in events["ar"]} == {"target", "commit"}
        assert {role for role, *_ in events["chain:length=3"]} == {"draft", "target", "commit"}
        assert Timeline(events).first.max == min(iteration_means(run)["iterations"] for run in events.values())

    def test_what_cannot_be_shown_is_refused(self, pair):
        with pytest.raises(ValueError, match="There are no traced runs to show"):
            Timeline({})
        with pytest.raises(ValueError, match="The time of hf-generate cannot be split"):
            traced_runs(pair, PROMPT, ["ar", "hf-generate"])
        with pytest.raises(ValueError, match="ptd:carry=true would know the text"):
            traced_runs(pair, PROMPT, ["ar", "ptd:carry=true"])


WRONG = {
    "walk of nothing": (lambda pair, text: Walk(None), TypeError, "The text is None; give what generate returns"),
    "walk of tokens": (lambda pair, text: Walk([1, 2]), TypeError, "The text is a list; give what generate"),
    "walk with a name": (lambda pair, text: Walk(text, "gpt2"), TypeError, "The tokenizer is 'gpt2'; give an object"),
    "walk with ids": (lambda pair, text: Walk(text, prompt=[1]), TypeError, "The prompt is a list; give it as text"),
    "walk behind -1": (lambda pair, text: Walk(text, prefix=-1), ValueError, "prefix is -1; give a whole number of at"),
    "mask of a text": (lambda pair, text: Mask(text, []), TypeError, "The tree is a Generation; give a TokenTree"),
    "mask behind 3": (
        lambda pair, text: Mask(text.iterations[0].tree, 3), TypeError, "The prefix is 3; give the list of its token",
    ),
    "gain of a list": (lambda pair, text: Gain([dt.Traversal()]), TypeError, "What decides is a list; give {name: rul"),
    "gain of a class": (lambda pair, text: Gain({"a": dt.Traversal}), TypeError, "The rule 'a' is .*; give an object"),
    "race of a list": (lambda pair, text: Race([text]), TypeError, "What races is a list; give {name of a method: "),
    "race of tokens": (lambda pair, text: Race({"a": [1]}), TypeError, "The text of 'a' is a list; give what gener"),
    "live target": (lambda pair, text: Live(pair.target, "a"), TypeError, "The pair is an HFModel; .*load_pair return"),
    "live ids": (lambda pair, text: Live(pair, [1, 2]), TypeError, "The prompt is a list; give it as text"),
    "live budget": (lambda pair, text: Live(pair, "a", budget="8"), ValueError, "budget is '8'; give a whole number"),
    "live method": (lambda pair, text: Live(pair, "a", method=None), ValueError, "method is 'None'; choose one of aut"),
    "clock of a list": (lambda pair, text: Timeline([1]), TypeError, "What is shown is a list; give {label: events"),
    "coins of a tree": (lambda pair, text: Coins(text.iterations[0].tree, 0, "", {}), TypeError, "The proposal is a T"),
    "coins of a name": (
        lambda pair, text: Coins(Proposal(text.iterations[0].tree), 0, "", {}), TypeError, "scores the tree is 0; give",
    ),
    "choice of words": (lambda pair, text: Choice("ab"), TypeError, "A row is 'a'; give rows of bench.chooser"),
    "text of tokens": (lambda pair, text: plots.text_iterations([1]), TypeError, "The text is a list; give what gener"),
    "text with a name": (lambda pair, text: plots.text_iterations(text, "gpt2"), TypeError, "The tokenizer is 'gpt2'"),
    "step of tokens": (lambda pair, text: plots.step_text("ab", 0), TypeError, "The text is 'ab'; give what generate"),
    "step 1.5": (lambda pair, text: plots.step_text(text, 1.5), ValueError, "number is 1.5; the text has iterations 0"),
    "bars of a text": (
        lambda pair, text: plots.timeline(text), TypeError, "iterations is a Generation; give the attribute `iter",
    ),
    "bars of words": (lambda pair, text: plots.timeline("ab"), TypeError, "iterations is 'ab'; give the attribute"),
    "bars of numbers": (lambda pair, text: plots.timeline([3]), TypeError, "An iteration is 3; give the attribute"),
    "nodes of a text": (lambda pair, text: plots.node_rows(text), TypeError, "iterations is a Generation; give the a"),
    "stack of a list": (lambda pair, text: plots.stacked_trees([1]), TypeError, "iterations is a list; give {heading:"),
    "stack of trees": (
        lambda pair, text: plots.stacked_trees({"a": text}), TypeError, "The iteration of 'a' is a Generation; give",
    ),
    "mask of a step": (
        lambda pair, text: plots.tree_mask(text.iterations[0], 3), TypeError, "The tree is an Iteration; give a Token",
    ),
    "places of a step": (
        lambda pair, text: plots.positions(text.iterations[0], 3), TypeError, "The tree is an Iteration; give a Token",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_what_cannot_be_shown_is_named_with_the_way_out(pair, generation, name):
    call, kind, sentence = WRONG[name]
    with pytest.raises(kind, match=sentence):
        call(pair, generation)
