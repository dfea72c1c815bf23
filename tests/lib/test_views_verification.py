"""Figures of verification rules: steps hold the residuals' own numbers, panels the distance of distributions."""

import json
import re
from itertools import pairwise

import numpy as np
import pytest
import torch

pytest.importorskip("plotly")

import dynatree_lib as dt
from dynatree_lib import plots
from dynatree_lib.drafters.base import Proposal
from dynatree_lib.plots.trees import leaf_places
from dynatree_lib.plots.verification import fraction
from dynatree_lib.sampling import DraftDistributions, Sampling
from dynatree_lib.tree import DISTINCT, POINT
from dynatree_lib.verifiers.residual import Recorded, Residual
from dynatree_suite import charts
from dynatree_suite.proofs import exact

P, Q = (0.3, 0.4, 0.3), (0.6, 0.3, 0.1)
TARGET = dt.ToyModel(lambda context: P, 3)
LAWS = [
    {"case": "fair", "text": "a", "target": 0.5, "one": 0.2, "two": 0.3},
    {"case": "fair", "text": "b", "target": 0.5, "one": 0.5, "two": 0},
    {"case": "<b>", "text": "a", "target": 0.5, "one": 0.4, "two": 0.35},
    {"case": "<b>", "text": "b", "target": 0.5, "one": 0.25, "two": 0},
]


@pytest.fixture
def example():
    """The worked example of Traversal Verification: X1=a with X3=b and X4=c below it, X2=b with X5=b."""
    tree = dt.TokenTree.build([0, 0, 1, 1, 2, 1], [-1, 0, 0, 1, 1, 2], draws=[POINT] + 5 * [DISTINCT])
    distributions = DraftDistributions("the example")
    for parent in (0, 1, 2):
        distributions.record(parent, torch.tensor(Q, dtype=torch.float64))
    return tree, distributions, exact.target_scores(TARGET, [0], tree, Sampling(1.0))


@pytest.fixture
def steps(example):
    tree, distributions, rows = example
    recorded, root = Recorded(tree, distributions), Residual(rows, 0)
    found = [plots.step_row(root, recorded, 0, 1, text="enter X1")]
    first = Residual(rows, 1, root.ratio(recorded, 1))
    for child, gone in ((3, []), (4, [3])):
        found.append(plots.step_row(first, recorded, 1, child, text=f"test X{child}", gone=gone))
        first.reject(recorded, child)
    return [*found, plots.step_row(first, recorded, 1, text="X1 <itself>", gone=[3, 4])]


def test_step_rows_hold_the_worked_example(steps):
    assert [fraction(step["acceptance"]) for step in steps] == ["1/2", "2/3", "7/11", "0"]
    assert [fraction(x) for x in (*steps[2]["weights"], steps[2]["stop"])] == ["0", "0", "1/11", "10/11"]
    assert [fraction(x) for x in steps[2]["distribution"]] == ["6/7", "0", "1/7"]  # without X3's token
    assert [step["node"] for step in steps] == [1, 3, 4, 1]
    assert steps[3]["distribution"] is None
    for step in steps:
        assert sum(step["weights"]) + step["stop"] == pytest.approx(1, abs=1e-12)


def test_step_rows_are_the_production_rules_probabilities(example, steps):
    tree, distributions, rows = example
    kept = np.zeros(len(tree))
    for verdict, random in exact.verdicts(dt.Traversal(), Proposal(tree, distributions), rows):
        kept[verdict.path[-1] if verdict.path else 0] += random
    third, fourth = steps[1]["acceptance"], steps[2]["acceptance"]
    assert kept[[3, 4, 1]] == pytest.approx([third, (1 - third) * fourth, 0], abs=1e-12)


def test_a_step_leaves_the_residual_as_it_was(example):
    tree, distributions, rows = example
    residual = Residual(rows, 0)
    once, again = (plots.step_row(residual, Recorded(tree, distributions), 0, 1) for _ in range(2))
    assert once == again
    assert once["weights"] == pytest.approx(P)


def test_deterministic_tokens_have_a_point_mass(example):
    tree = dt.TokenTree.build([0, 2], [-1, 0])
    row = plots.step_row(Residual(example[2], 0), Recorded(tree, None), 0, 1)
    assert row["distribution"] == [0, 0, 1]
    assert row["acceptance"] == pytest.approx(0.3)


def test_fractions_are_written_only_where_they_are_exact():
    assert [fraction(x) for x in (0, 1, 0.5, 16 / 27, 13873 / 12450)] == ["0", "1", "1/2", "16/27", "1.114"]
    assert fraction(2**0.5) == "1.414"


def nodes_in(figure, meaning):
    """Node labels in each panel drawn with this meaning, and its legend entries."""
    traces = [trace for trace in figure.data if trace.name == meaning]
    return [[text for text in trace.text if text] for trace in traces], sum(trace.showlegend for trace in traces)


def test_steps_show_every_node_in_its_state(example, steps):
    figure = plots.verification_steps(example[0], steps, "abc", columns=3, title="Two lines")
    now, legends = nodes_in(figure, "looked at now")
    assert now == [["X<sub>1</sub>=a"], ["X<sub>3</sub>=b"], ["X<sub>4</sub>=c"], ["X<sub>1</sub>=a"]]
    assert legends == 1
    gone, legends = nodes_in(figure, "rejected and deleted")
    assert [len(names) for names in gone] == [0, 0, 1, 2]
    assert legends == 1  # though the first panel has none
    for panel in range(4):
        panels = (nodes_in(figure, trace.name)[0][panel] for trace in figure.data[3:7])
        assert sum(map(len, panels)) == len(example[0])


def test_steps_name_their_numbers(example, steps):
    figure = plots.verification_steps(example[0], steps, "abc")
    words = [note.text for note in figure.layout.annotations]
    assert "<b>test X4</b>: 7/11" in words
    assert "<b>X1 &lt;itself&gt;</b>: 0" in words
    assert sum("q of" in text for text in words) == 3  # X1 itself is tested against nothing
    ticks = [axis.ticktext for axis in figure.select_xaxes() if axis.ticktext]
    assert len(ticks) == 4
    assert [re.sub(r"<.*?>", " ", mark).split() for mark in ticks[2]] == [
        ["a", "0", "6/7"], ["b", "0", "0"], ["c", "1/11", "1/7"], ["stop", "10/11"],
    ]  # fmt: skip


def test_panels_of_steps_do_not_overlap(example, steps):
    figure = plots.verification_steps(example[0], steps, "abc", columns=2)
    columns = {}
    for axis in figure.select_yaxes():
        columns.setdefault(axis.anchor, tuple(axis.domain))
    spans = sorted(set(columns.values()))
    assert len(spans) == 4
    assert all(low[1] < high[0] for low, high in pairwise(spans))


def test_places_keep_leaves_apart_and_parents_in_the_middle(example):
    assert leaf_places(example[0].parents).tolist() == [1.25, 0.5, 2, 0, 1, 2]
    late = dt.TokenTree.build([0] * 5, [-1, 0, 0, 2, 1])  # breadth first, the second child expanded first
    assert leaf_places(late.parents).tolist() == [0.5, 0, 1, 1, 0]


def test_law_panels_head_each_panel_with_the_distance():
    figure = charts.distribution_panels(LAWS, ["one", "two"], panel="case", title="Two laws", columns=2)
    assert [note.text for note in figure.layout.annotations] == ["fair: equal", "&lt;b&gt;: TV 0.25"]
    assert sum(trace.showlegend for trace in figure.data) == 3
    first, second, target = figure.data[:3]
    assert list(second.base) == list(first.y)
    assert [x + y for x, y in zip(second.base, second.y, strict=True)] == list(target.y)
    assert {axis.range[1] for axis in figure.select_yaxes()} == {1.05 * 0.75}  # one scale for all panels


def test_law_panels_work_for_any_number():
    rows = [row | {"case": str(number)} for number in range(7) for row in LAWS[:2]]
    for columns in (1, 3):
        figure = charts.distribution_panels(rows, ["one", "two"], panel="case", columns=columns)
        assert len(figure.layout.annotations) == 7
        assert sum(axis.visible for axis in figure.select_yaxes()) == 7  # places without a panel stay empty
        assert all("equal" in note.text for note in figure.layout.annotations)


def test_figures_need_nothing_from_the_internet(example, steps):
    for figure in (
        plots.verification_steps(example[0], steps, "abc"),
        charts.distribution_panels(LAWS, ["one"], panel="case"),
    ):
        assert figure.layout.template.layout.font.size >= 12
        exported = figure.to_html(full_html=False, include_plotlyjs=False)
        assert not re.search(r"https?://|src=", exported)
        assert json.loads(figure.to_json())["data"]
