"""Ablations: texts without a clock, trees side by side, adaptation along texts, and their pictures."""

import numpy as np
import pytest
from models import noisy_copy, random_model

import dynatree_lib as dt
from dynatree_lib.models.pairs import Pair
from dynatree_suite.bench import grids
from dynatree_suite.bench.methods import variant
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.costs.cost_model import MeasuredCosts
from dynatree_suite.papers.adaptive import ablation
from dynatree_suite.papers.adaptive.figures import adaptation

TARGET = random_model("gpt_neox")
PAIR = Pair("random", TARGET, noisy_copy(TARGET), None)
PROMPTS = [BenchPrompt.from_ids(str(n), list(range(1, 5 + n))) for n in range(3)]
FLAT = {"tau_high": 0.3, "tau_low": 0.1, "rho_stop": 0.001, "rho_deep": 0.01, "tau": None, "max_nodes": 30}
COSTS = MeasuredCosts(0.01, (1.0, 1.0, 1.0), (0.1, 0.1))


def decoded(label="x", budget=20, **options):
    return ablation.decode(PAIR, grids.labelled("adaptive-tree", {label: {**FLAT, **options}}), PROMPTS, budget)[label]


def test_texts_are_greedy_and_go_to_the_budget():
    found = ablation.decode(PAIR, ["ar", "chain:length=3"], PROMPTS, 12)
    assert [text.tokens for text in found["ar"]] == [text.tokens for text in found["chain:length=3"]]
    assert all(len(text.tokens) == 12 for text in found["ar"])


def test_methods_without_trees_are_refused():
    with pytest.raises(ValueError, match="'hf-generate' does not show its trees"):
        ablation.decode(PAIR, ["hf-generate"], PROMPTS, 4)


def test_an_adaptive_tree_with_everything_off_is_the_fixed_tree():
    off = {**FLAT, "breadth": None, "depth": None, "history": None, "base_depth": 4}
    fixed = {"depth": 4, "branching": 2, "tau": None, "max_nodes": 30}
    methods = [*grids.labelled("adaptive-tree", {"off": off}), *grids.labelled("fixed-tree", {"fixed": fixed})]
    found = ablation.decode(PAIR, methods, PROMPTS, 20)
    same, of = ablation.same_trees(found["off"], found["fixed"])
    assert same == of == sum(text.forwards for text in found["off"])


def test_trees_that_differ_are_noticed():
    narrow, wide = decoded(history=None), decoded(history=None, min_branching=2, mid_branching=3)
    same, of = ablation.same_trees(narrow, wide)
    assert same < of
    assert ablation.same_trees(narrow, narrow) == (of, of)
    one, other = (dt.TokenTree.build([1, 2, 3], parents) for parents in ([-1, 0, 0], [-1, 0, 1]))
    assert not ablation.equal_trees(one, other)


def test_counts_of_hand():
    texts = decoded(history=None, base_depth=2, max_depth=3)
    iterations = [one for text in texts for one in text.iterations]
    (row,) = ablation.count_rows({"x": texts}, COSTS)
    nodes, accepted = [len(one.tree) - 1 for one in iterations], [len(one.verdict.path) for one in iterations]
    assert row["tokens_per_iteration"] == pytest.approx(60 / len(iterations))
    assert row["nodes"] == pytest.approx(np.mean(nodes))
    assert row["acceptance"] == pytest.approx(sum(accepted) / sum(nodes))
    assert row["drafted"] == pytest.approx(np.mean([a / n for a, n in zip(accepted, nodes, strict=True) if n]))
    assert row["base_depth"] == 2
    assert row["iteration"] == pytest.approx(np.mean([one.committed / 4 for one in iterations]))
    steps = len(iterations) + 0.1 * sum(text.counters["draft_forwards"] for text in texts)  # every node costs the same
    assert row["predicted"] == pytest.approx(60 / steps)


def test_counts_of_a_method_without_adaptation_or_draft():
    (row,) = ablation.count_rows(ablation.decode(PAIR, ["ar"], PROMPTS, 6))
    assert row["tokens_per_iteration"] == 1
    assert row["nodes"] == row["levels"] == row["acceptance"] == 0
    assert not {"base_depth", "iteration", "predicted"} & set(row)


def test_adaptation_carries_what_a_text_began_with():
    texts = decoded(history="iteration")
    frame = ablation.adaptation_frame({"x": texts})
    assert len(frame) == sum(text.forwards for text in texts)
    firsts = frame.groupby("text", as_index=False).head(1)
    assert firsts["tokens"].tolist() == [0, 20, 40]
    assert (firsts["base_depth"] == 5).all()  # nothing is carried
    assert firsts["acceptance"].isna().all()
    carried = ablation.decode(PAIR, [variant("cost-aware-tree:carry=true", "c")], PROMPTS, 20)
    rates = ablation.adaptation_frame(carried).groupby("text")["rate"].first()
    assert rates[1] != rates[0]


@pytest.fixture(scope="module", autouse=True)
def drawing():
    pytest.importorskip("plotly")


class TestFigures:
    def test_adaptation_has_a_panel_per_quantity_and_a_line_per_series(self):
        rows = [
            {"series": s, "tokens": t, "D": t / 10, "tau": None if t == 0 else 0.9} for s in "ab" for t in (0, 4, 9)
        ]
        figure = adaptation(rows, {"D": "depth", "tau": "threshold"}, references={"tau": 0.7}, marks=[5])
        assert [trace.name for trace in figure.data] == ["a", "b", "a", "b"]
        assert list(figure.data[0].y) == [0.0, 0.4, 0.9]
        assert figure.layout.yaxis.title.text == "depth"
        assert len(figure.layout.shapes) == 3  # the target, and the mark in both panels
        assert list(adaptation(rows, {"D": "depth"}, x="D").data[0].x) == [0.0, 0.4, 0.9]
