"""Figures have what they claim to show, keep their colours, and need nothing from the internet."""

import json
import re
from itertools import pairwise

import numpy as np
import pandas as pd
import pytest
import reference

from dynatree_suite import charts

pytest.importorskip("plotly")

import dynatree_lib as dt
from dynatree_lib import plots
from dynatree_lib.decoding import Iteration
from dynatree_lib.models.texts import label, pieces
from dynatree_lib.plots import theme
from dynatree_lib.plots.forward import CELL_COLORS, FORWARD
from dynatree_lib.plots.trees import LEAKING, ROLES, SIGHT
from dynatree_lib.verifiers.base import Verdict
from dynatree_suite.bench.statistics import share
from dynatree_suite.charts import look
from dynatree_suite.charts.charts import error_bars
from dynatree_suite.papers.adaptive.figures import decision_styles, grown_tree, growth_rows


class Letters:
    """A tokenizer of single characters; tokens 90 and 91 are the two bytes of one character."""

    def decode(self, tokens):
        text = "".join({90: "<", 91: "é"}.get(int(t), chr(97 + int(t) % 26)) for t in tokens)
        return text.replace("<é", "é").replace("<", "�")


@pytest.fixture
def iteration():
    # 0 -> (1, 2); 1 -> (3, 4); 2 -> 5; 3 -> 6
    tree = dt.TokenTree.build(
        [10, 11, 12, 13, 14, 15, 16], [-1, 0, 0, 1, 1, 2, 3], np.log([1, 0.6, 0.3, 0.5, 0.2, 0.9, 0.1])
    )
    return Iteration(tree, Verdict((1, 3), 17))


@pytest.fixture
def generation():
    target = dt.ToyModel.random(12, seed=1)
    draft = target.mixed(dt.ToyModel.random(12, seed=2), 0.4)
    return dt.generate(target, [1, 2], dt.FixedTree(draft, max_nodes=12), max_new_tokens=40)


@pytest.fixture
def grown():
    """A tree at D_0 = 2, D_max = 3, tau_h = 0.9, tau_l = 0.4, with a node for every decision of the rule."""
    drafter = dt.AdaptiveTree(None, base_depth=2, max_depth=3, rho_stop=0.1, rho_deep=0.5, tau=0.3)
    parents = [-1, 0, 0, 1, 3, 2, 2]
    # c(u): .6, .95, .3 and .8 at nodes 0 to 3; p(u): .57 > rho_deep at node 3, .105 < tau at 5, .035 < rho_stop at 6
    tree = dt.TokenTree.build([9, 1, 2, 3, 4, 5, 6], parents, np.log([1, 0.6, 0.35, 0.95, 0.8, 0.3, 0.1]))
    now = {"base_depth": 2.4, "tau_high": 0.9, "rho_deep": 0.5, "acceptance": 0.7}
    return Iteration(tree, Verdict((1, 3), 7), now), drafter


SWEEP = [{"D": d, "B": b, "speed": 1 + d / b, "interval": [d / b, 2 + d / b]} for d in (3, 4) for b in (2, 3)]
BARS = [{"method": m, "speed": s, "interval": [s - 0.1, s + 0.2]} for m, s in (("ar", 1.0), ("fixed-tree", 1.8))]
PANELS = [{**row, "dataset": dataset} for dataset in ("pg-19", "wikitext-2") for row in BARS]


def every_figure(iteration, generation, grown):
    nodes = plots.node_rows(generation.iterations)
    return {
        "draft_tree": plots.draft_tree(iteration, Letters()),
        "grown_tree": grown_tree(*grown, Letters()),
        "stacked_trees": plots.stacked_trees({"a tree": iteration, "another": iteration}, Letters(), title="Two"),
        "tree_mask": plots.tree_mask(iteration.tree, 3, Letters()),
        "positions": plots.positions(iteration.tree, 3, Letters()),
        "timeline": plots.timeline(generation.iterations),
        "acceptance_by_depth": charts.acceptance_by_depth(charts.depth_rows(generation.iterations)),
        "calibration": charts.calibration(charts.calibration_rows(nodes)),
        "bars": charts.bars_with_intervals(BARS, "speed", "interval", published={"fixed-tree": 1.62}),
        "bars_by_panel": charts.bars_by_panel(PANELS, "speed", "interval", title="Two data sets", reference=1),
        "sweep": charts.sweep_lines(SWEEP, "D", "speed", "B", SWEEP, interval="interval", reference=1),
        "heatmap": charts.heatmap(SWEEP, "D", "B", "speed", SWEEP),
        "scatter": charts.scatter(SWEEP, "D", "speed", "B"),
        "stacked": charts.stacked_bars([{"method": "chain", "draft": 1, "verify": 2}], ["draft", "verify"]),
    }


def points(trace):
    values = next(value for value in (trace.z, trace.y) if value is not None) if "z" in trace else trace.y
    return [v for v in np.ravel(np.array(values, dtype=object)) if v is not None]


def test_every_figure_is_offline_titled_and_not_empty(iteration, generation, grown):
    for name, figure in every_figure(iteration, generation, grown).items():
        assert any(points(trace) for trace in figure.data), name
        assert figure.layout.template.layout.font.size >= 12, name
        exported = figure.to_html(full_html=False, include_plotlyjs=False)
        assert not re.search(r"https?://|src=", exported), name
        assert json.loads(figure.to_json())["data"], name
        sizes = [
            float(size) for size in re.findall(r'"size":(\d+(?:\.\d+)?)', figure.layout.to_plotly_json().__str__())
        ]
        assert all(size >= 12 for size in sizes), name


def test_draft_tree_draws_every_node_in_its_role(iteration):
    figure = plots.draft_tree(iteration, Letters())
    assert len(figure.layout.annotations) == len(iteration.tree) + 1  # the nodes and the bonus token
    counts = {trace.name: len(trace.x) for trace in figure.data if trace.mode == "markers"}
    assert counts == {
        "node 0: last committed token": 1,
        "accepted by the target": 2,
        "bonus: the target's own next token": 1,
        "rejected": 4,
    }
    bonus = next(trace for trace in figure.data if "bonus" in trace.name and trace.mode == "markers")
    assert bonus.x[0] > 3  # one level below the last accepted node, which is at level 2
    assert "17" in bonus.text[0]
    assert "0.3000" in " ".join(figure.data[-3].text)  # path probability 0.6 x 0.5 on an accepted node
    assert "3 tokens emitted" in figure.layout.title.text


def test_draft_tree_keeps_boxes_apart(iteration):
    places = {(note.x, note.y) for note in plots.draft_tree(iteration).layout.annotations}
    assert len(places) == len(iteration.tree) + 1
    for level in range(4):
        heights = sorted(y for x, y in places if x == level)
        assert all(b - a >= 1 for a, b in pairwise(heights))


def test_draft_tree_without_a_verdict_marks_what_tau_would_prune(iteration):
    figure = plots.draft_tree(iteration.tree, tau=0.2)
    counts = {trace.name: len(trace.x) for trace in figure.data if trace.mode == "markers"}
    assert counts["path probability below tau"] == 2  # 0.6 x 0.2 and 0.6 x 0.5 x 0.1
    assert counts["drafted"] == 4
    assert not any("bonus" in name or "rejected" in name for name in counts)


def test_draft_tree_marks_the_drafted_token_that_ended_the_text(iteration):
    cut = Iteration(iteration.tree, Verdict((1,), 13))  # node 3, a child of node 1, holds token 13
    figure = plots.draft_tree(cut)
    assert len(figure.layout.annotations) == len(iteration.tree)  # no further box
    assert [len(trace.x) for trace in figure.data if "last token" in trace.name] == [1]


def test_draft_tree_of_node_0_alone_is_a_figure():
    assert len(plots.draft_tree(dt.TokenTree.build([5], [-1])).layout.annotations) == 1


def test_labels_show_spaces_and_cannot_be_markup(iteration):
    class Markup:
        def decode(self, tokens):
            return " <b>$x$\n"

    assert label(1, Markup()) == "␣<b>$x$⏎"
    assert label(1, Markup(), longest=4) == "␣<b…"
    assert label(1) == "1"
    Markup.decode = lambda self, tokens: "\n" + 7 * " "
    assert label(1, Markup()) == "⏎␣×7"
    Markup.decode = lambda self, tokens: "<b>$x$"
    text = plots.draft_tree(iteration, Markup()).layout.annotations[0].text
    assert "&lt;b&gt;" in text
    assert "$" not in text


def test_tree_mask_shows_the_masks_own_ones(iteration):
    figure = plots.tree_mask(iteration.tree, 9)
    kinds = np.array(figure.data[0].z)
    shown = kinds.shape[1] - len(iteration.tree)
    assert (kinds[:, :shown] == 2).all()
    allowed = dt.masks.tree_mask(iteration.tree.parents, 9)[:, 9 - shown :]
    assert ((kinds >= 2) == allowed).all()
    assert kinds[1, shown + 2] == 1  # a sibling is not seen, and the picture says why


def test_positions_compare_depth_with_row(iteration):
    by_depth, by_row = plots.positions(iteration.tree, 5).data
    assert list(by_depth.y) == [5, 6, 6, 7, 7, 7, 8]
    assert list(by_row.y) == [5, 6, 7, 8, 9, 10, 11]


def test_text_iterations_shows_the_whole_text_and_one_bonus_per_iteration(generation):
    html = plots.text_iterations(generation, Letters(), prompt="<prompt>")
    body = html.partition("pre-wrap")[2]
    assert re.sub(r"<[^>]*>", "", body.partition(">")[2]) == "&lt;prompt&gt;" + Letters().decode(generation.tokens)
    assert body.count("bonus token") == len(generation.iterations)
    assert html._repr_html_() == html
    assert html.endswith("</pre></div>")  # white space survives a re-parsing exporter
    assert not re.search(r"https?://|src=", html)


def test_pieces_put_split_characters_together():
    assert pieces([0, 90, 91, 1], Letters()) == ["a", "", "é", "b"]
    assert "".join(pieces([90], Letters())) == "�"


def test_timeline_counts_every_token(generation):
    accepted, bonus, depth = plots.timeline(generation.iterations).data
    assert sum(accepted.y) + sum(bonus.y) == len(generation.tokens)
    assert len(depth.y) == len(generation.iterations)


def test_rows_agree_with_the_summary(generation):
    summary, nodes = dt.summarize(generation), plots.node_rows(generation.iterations)
    accepted = sum(row["accepted"] for row in nodes)
    assert len(nodes) == round(summary.nodes * summary.iterations)
    assert accepted == round(summary.accepted_path_length * summary.iterations)
    assert sum(row["accepted"] for row in charts.depth_rows(generation.iterations)) == accepted
    assert sum(row["accepted"] for row in charts.rank_rows(nodes)) == accepted
    assert sum(row["accepted"] for row in charts.calibration_rows(nodes)) == accepted
    assert all(row["reached"] for row in nodes if row["accepted"])
    json.dumps(nodes)


def test_depth_rows_count_only_iterations_that_came_so_far(iteration):
    short = Iteration(iteration.tree, Verdict((), 3))
    rows = {row["depth"]: (row["reached"], row["accepted"]) for row in charts.depth_rows([iteration, short])}
    assert rows == {1: (2, 1), 2: (1, 1), 3: (1, 0)}


def test_rank_rows_look_at_decided_nodes_only(iteration):
    rows = {row["rank"]: (row["reached"], row["accepted"]) for row in charts.rank_rows(plots.node_rows([iteration]))}
    assert rows == {0: (3, 2), 1: (2, 0)}  # nodes 1, 3, 6 and 2, 4; node 5 hangs below a rejected node


def test_wilson_interval():
    low, high = share(5, 10, "wilson").interval
    assert (round(low, 3), round(high, 3)) == (0.237, 0.763)
    assert share(0, 4, "wilson").low == 0
    assert share(4, 4, "wilson").high == 1


def test_a_method_has_the_same_colour_in_every_figure():
    assert len(set(look.METHOD_COLORS.values())) == len(look.METHOD_COLORS) == 23
    color = look.METHOD_COLORS["fixed-tree"]
    rows = [
        {"method": m, "n": n, "speed": n, "nodes": n, "milliseconds": n}
        for m in ("chain", "fixed-tree")
        for n in (1, 2)
    ]
    assert charts.sweep_lines(rows, "n", "speed", "method").data[1].line.color == color
    assert charts.scatter(rows, "n", "speed", "method").data[1].marker.color == color
    assert charts.bars_with_intervals(BARS, "speed").data[0].marker.color[1] == color
    assert charts.bars_with_intervals(BARS[::-1], "speed").data[0].marker.color[0] == color


def test_a_variant_of_a_method_has_its_colour_and_other_labels_a_neutral_one():
    assert look.bar_color("fixed-tree (paper)") == look.METHOD_COLORS["fixed-tree"]
    assert look.bar_color("root from the target") == look.OTHER
    assert look.OTHER not in look.METHOD_COLORS.values()


def test_swept_values_stand_on_the_axis():
    rows = [{"tau": tau, "speed": 1 + tau} for tau in (0.01, 0.03, 0.1)]
    assert charts.sweep_lines(rows, "tau", "speed", log_x=True).layout.xaxis.ticktext == ("0.01", "0.03", "0.1")
    assert charts.sweep_lines(SWEEP, "D", "speed", "B").layout.xaxis.tickvals == (3, 4)
    assert charts.sweep_lines(rows, "tau", "speed").layout.xaxis.tickvals is None


def test_bars_put_published_values_beside_their_own_row():
    figure = charts.bars_with_intervals(BARS, "speed", "interval", published={"fixed-tree": 1.62}, reference=1)
    measured, published = figure.data
    assert list(measured.y) == list(published.y) == ["ar", "fixed-tree"]
    assert list(published.x) == [None, 1.62]
    assert measured.error_x.array == pytest.approx((0.2, 0.2))
    assert len(figure.layout.shapes) == 1
    assert len(charts.bars_with_intervals(BARS, "speed").data) == 1


def test_sweep_lines_pair_each_series_with_its_published_line():
    figure = charts.sweep_lines(SWEEP, "D", "speed", "B", SWEEP[:2])
    assert [trace.name for trace in figure.data] == ["B = 2", "B = 3", "B = 2 (published)", "B = 3 (published)"]
    assert figure.data[0].line.color == figure.data[2].line.color != figure.data[1].line.color
    assert figure.data[2].line.dash == "dash"
    assert list(figure.data[0].x) == [3, 4]


def test_rows_without_a_value_are_left_out():
    rows = [*SWEEP, {"D": 9, "B": 2, "speed": None}]
    assert list(charts.sweep_lines(rows, "D", "speed", "B").data[0].x) == [3, 4]
    assert charts.heatmap(rows, "D", "B", "speed").data[0].z[0][-1] is None
    assert error_bars([None, 1.0], [None, [0.5, 2.0]])["array"] == [0.0, 1.0]


def test_charts_take_data_frames():
    rows = [*SWEEP, {"D": 9, "B": 2, "speed": None, "interval": None}]
    for draw in (charts.heatmap, charts.sweep_lines):
        columns = ("D", "B", "speed") if draw is charts.heatmap else ("D", "speed", "B")
        assert draw(pd.DataFrame(rows), *columns).to_json() == draw(rows, *columns).to_json()
    assert charts.bars_with_intervals(pd.DataFrame(BARS), "speed", "interval").data[0].x == (1.0, 1.8)


def test_heatmap_orders_its_axes():
    heat = charts.heatmap(SWEEP[::-1], "D", "B", "speed").data[0]
    assert (list(heat.x), list(heat.y)) == (["3", "4"], ["2", "3"])
    assert np.allclose(np.array(heat.z, float), [[2.5, 3], [2, 1 + 4 / 3]])


def test_growth_rows_say_what_the_rule_decided(grown):
    rows = growth_rows(*grown)
    decisions = [row["decision"] for row in rows]
    assert decisions == ["B_mid", "B_min", "B_max", "B_mid", "D_max", "tau", "rho_stop"]
    assert [row["deep"] for row in rows] == [False, False, False, True, False, False, False]
    assert [row["children"] for row in rows] == [2, 1, 2, 1, 0, 0, 0]
    assert rows[1]["confidence"] == pytest.approx(0.95)
    assert rows[4]["confidence"] is None
    assert rows[4]["path"] == pytest.approx(0.6 * 0.95 * 0.8)


def test_growth_rows_name_each_way_to_stop(grown):
    one, drafter = grown
    leaf = Iteration(
        reference.subtree(one.tree, range(3)), Verdict((), 7), one.report
    )  # nodes 1 and 2 at level 1, p .6, .35
    assert [row["decision"] for row in growth_rows(leaf, drafter)][1:] == ["no room", "no room"]
    shallow = Iteration(leaf.tree, leaf.verdict, {**one.report, "base_depth": 1.9})
    assert [row["decision"] for row in growth_rows(shallow, drafter)][1:] == ["no room", "D_0"]  # .35 < rho_deep
    pruned = dt.AdaptiveTree(None, base_depth=2, max_depth=3, tau=0.4)
    assert growth_rows(leaf, pruned)[2]["decision"] == "tau"
    level = dt.AdaptiveTree(None, base_depth=1, max_depth=3, depth=None, breadth=None, root="draft", tau=None)
    plain = growth_rows(shallow, level)
    assert [row["decision"] for row in plain] == ["top-1", "D_0", "D_0"]


def test_growth_rows_agree_with_the_trees_that_were_drafted():
    target = dt.ToyModel.random(12, seed=1)
    draft = target.mixed(dt.ToyModel.random(12, seed=2), 0.4)
    flat = {"tau_high": 0.4, "tau_low": 0.2, "rho_stop": 0.03, "rho_deep": 0.05, "tau": None}
    drafter = dt.AdaptiveTree(draft, **flat, base_depth=2, max_depth=4)
    breadth = {"B_min": 1, "B_mid": 2, "B_max": 3}
    iterations = dt.generate(target, [1, 2], drafter, max_new_tokens=60).iterations[:-4]  # later ones lack the room
    rows = [row for one in iterations for row in growth_rows(one, drafter)]
    assert {"B_min", "B_mid", "B_max", "rho_stop", "D_0", "D_max"} <= {row["decision"] for row in rows}
    assert all(row["children"] == breadth.get(row["decision"], 0) for row in rows)
    assert all(row["path"] > 0.05 for row in rows if row["deep"])


def test_growth_rows_need_an_adaptive_trees_iteration(iteration, grown):
    with pytest.raises(ValueError, match="reports base_depth"):
        growth_rows(iteration, grown[1])


def test_grown_tree_writes_each_nodes_own_numbers(grown):
    figure = grown_tree(*grown, Letters())
    texts = [note.text for note in figure.layout.annotations]
    assert len(texts) == len(grown[0].tree)
    assert texts[1] == "<b>b</b><br>p .60 · c .95"
    assert texts[4] == "<b>e</b><br>p .46"
    plain = plots.draft_tree(grown[0].tree, Letters()).layout.annotations
    assert [note.text.partition("<br>")[0] for note in figure.layout.annotations] == [
        note.text.partition("</b>")[0] + "</b>" for note in plain
    ]
    counts = {trace.name: len(trace.x) for trace in figure.data if trace.mode == "markers"}
    assert counts["B_min = 1: c(u) ≥ 0.90"] == 1
    assert counts["leaf: p(u) < ρ_stop = 0.1"] == 1
    assert "D₀ = 2.40" in figure.layout.title.text


def test_stacked_trees_keep_apart_and_share_a_legend(iteration):
    figure = plots.stacked_trees({"one": iteration, "two": iteration})
    heads = [note for note in figure.layout.annotations if "emitted by" in note.text]
    assert [note.text.partition(":")[0] for note in heads] == ["<b>one</b>", "<b>two</b>"]
    places = {(note.x, note.y) for note in figure.layout.annotations}
    assert len(places) == len(figure.layout.annotations) == 2 * (len(iteration.tree) + 2)
    shown = [trace.name for trace in figure.data if trace.showlegend is not False]
    assert len(shown) == len(set(shown))
    low, high = sorted(figure.layout.yaxis.range)
    assert all(low < note.y < high for note in figure.layout.annotations)


def test_bars_by_panel_put_each_panel_in_its_own_axes():
    figure = charts.bars_by_panel(PANELS, "speed", published={"pg-19": {"ar": 1.0}}, reference=1)
    assert [trace.xaxis for trace in figure.data] == ["x", "x", "x2"]  # only pg-19 has published bars
    assert list(figure.data[1].x) == [1.0, None]
    assert {note.xref for note in figure.layout.annotations} == {"paper", "x", "x2"}
    assert [shape.xref for shape in figure.layout.shapes] == ["x", "x2"]


def test_iteration_rows_carry_what_the_drafter_reported(grown, generation):
    (row,) = plots.iteration_rows([grown[0]])
    assert row == {"iteration": 0, "committed": 3, "nodes": 6, "levels": 3, **grown[0].report}
    assert sum(row["committed"] for row in plots.iteration_rows(generation.iterations)) == len(generation.tokens)


def contrast(one: str, other: str) -> float:
    """Contrast of two colours, as the Web Content Accessibility Guidelines define it."""

    def luminance(color: str) -> float:
        parts = [int(color[place : place + 2], 16) / 255 for place in (1, 3, 5)]
        linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return sum(weight * part for weight, part in zip((0.2126, 0.7152, 0.0722), linear, strict=True))

    low, high = sorted((luminance(one), luminance(other)))
    return (high + 0.05) / (low + 0.05)


def test_what_a_dark_page_would_swallow_is_repainted():
    for ground in ("#111111", "#1f242c"):
        assert all(contrast(dark, ground) > 4.5 for light, dark in theme.DARK.items() if light != theme.GRID)
        lost = {name for name, color in look.METHOD_COLORS.items() if contrast(color, ground) < 2.2}
        assert lost <= {name for name, color in look.METHOD_COLORS.items() if color in theme.DARK}


def test_text_on_filled_boxes_and_marks_on_masks_are_not_repainted_on_dark_pages(iteration):
    drafter = dt.AdaptiveTree(dt.ToyModel.random(12, seed=1))
    decisions = decision_styles(drafter, {"tau_high": 0.8, "rho_deep": 0.5})
    for _, (fill, _, text) in [*ROLES.values(), *SIGHT.values(), *FORWARD.values(), *decisions.values()]:
        assert text not in theme.DARK
        assert contrast(text, fill) > 4.5
    shapes = plots.tree_mask(iteration.tree, 3, row=1).layout.shapes
    assert len(shapes) == 2
    for color in {shape.line.color for shape in shapes}:
        assert color not in theme.DARK
        assert min(contrast(color, ground) for ground in ("#ffffff", "#1f242c", LEAKING["not seen"])) > 2.5
    assert not {*CELL_COLORS, *LEAKING.values()} & set(theme.DARK)


def test_a_tree_is_drawn_in_colours_that_dark_pages_repaint(iteration):
    figure = plots.draft_tree(iteration)
    rules = theme.dark_css("body.dark")
    assert all(
        line.startswith("body.dark :is(") and line.count("{") == line.count("}") == 1 for line in rules.splitlines()
    )
    inks = {figure.layout.template.layout.font.color, figure.layout.annotations[0].bordercolor}
    assert inks <= set(theme.DARK)
    for color in inks:
        red, green, blue = (int(color[place : place + 2], 16) for place in (1, 3, 5))
        assert f"rgb({red}, {green}, {blue})" in rules  # as browsers write a style
