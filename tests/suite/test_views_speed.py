"""Pictures of speed show the numbers they are given, and the limits where they belong."""

from __future__ import annotations

import json
import math

import pytest

pytest.importorskip("plotly")

from dynatree_suite import charts
from dynatree_suite.charts import clock, look
from dynatree_suite.costs import figures as speed

LIMITS = {"memory": 100.0, "compute": 800.0, "flop_per_byte": 0.5}  # the knee is at 8 rows
FORWARDS = [
    {"model": name, "rows": n, "milliseconds": cost * (10 + n), "interval": [cost * (9 + n), cost * (12 + n)]}
    for name, cost in (("lean", 2.0), ("packed", 1.0))
    for n in (1, 4, 16, 64)
]
METHODS = [
    {"label": "ar", "method": "ar", "tokens_per_iteration": 1.0, "tokens_per_second": 200.0,
     "tokens_per_second_interval": [190, 210], "iteration_cost": 0.8,
     "split": {"draft": 0.0, "verify": 0.9, "host": 0.1}},
    {"label": "chain:length=6", "method": "chain", "tokens_per_iteration": 3.0, "tokens_per_second": 390.0,
     "tokens_per_second_interval": [350, 420], "iteration_cost": 1.6,
     "split": {"draft": 0.25, "verify": 0.7, "host": 0.05}},
    {"label": "hf-generate", "method": "hf-generate", "tokens_per_iteration": 1.0, "tokens_per_second": 150.0,
     "tokens_per_second_interval": None, "iteration_cost": 1.0, "split": None},
]  # fmt: skip
GROWN = [
    {"prefix": prefix, "nodes": 16, "iteration": prefix / 100 + 0.5, "forward": prefix / 100, "overhead": 0.5,
     "iteration_interval": [prefix / 100 + 0.4, prefix / 100 + 0.7], "forward_interval": [prefix / 100] * 2,
     "overhead_interval": [0.4, 0.7]}
    for prefix in (1000, 128, 256)
]  # fmt: skip
# Two iterations of 1 s after a first of 2 s: a level of drafting, the host, the target.
EVENTS = [
    ["target", 0.0, 1.9, 1], ["commit", 2.0, 2.0, 1],
    ["draft", 2.1, 2.3, 1], ["target", 2.4, 2.9, 2], ["commit", 3.0, 3.0, 2],
    ["draft", 3.1, 3.3, 1], ["target", 3.4, 3.9, 2], ["commit", 4.0, 4.0, 1],
]  # fmt: skip


def trace(figure, name):
    return next(one for one in figure.data if one.name == name)


def test_the_roofline_bends_where_arithmetic_takes_over():
    figure = speed.roofline(FORWARDS, LIMITS, setup="a machine")
    packed = trace(figure, "packed")
    assert list(packed.x) == [1, 4, 16, 64]
    assert packed.y[1] == pytest.approx(4 / 0.014)
    slope, flat = figure.data[-2:]
    assert (list(slope.x), list(slope.y)) == ([1, 8], [100, 800])
    assert (list(flat.x), list(flat.y)) == ([8, 64], [800, 800])
    assert "0.5 FLOP/byte per node; a machine" in figure.layout.xaxis.title.text
    memory_only = speed.roofline(FORWARDS, {**LIMITS, "compute": 1e9})
    assert list(memory_only.data[-1].x) == [1, 64]  # no second ceiling in sight


def test_a_method_on_the_line_of_k_takes_k_steps_at_the_bound():
    figure = speed.bound_plane(METHODS, 400.0)
    lines = [one for one in figure.data if one.mode == "lines"]
    for cost, line in zip(speed.COSTS, lines, strict=True):
        assert [y / x for x, y in zip(line.x, line.y, strict=True)] == pytest.approx([400 / cost] * 2)
    chain = trace(figure, "chain:length=6")
    assert (list(chain.x), list(chain.y)) == ([3.0], [390.0])
    assert chain.marker.color == look.METHOD_COLORS["chain"]
    assert list(chain.error_y.array) == [30]
    notes = [note.text for note in figure.layout.annotations]
    assert notes == ["1 step at the bound", *(f"{cost} steps at the bound" for cost in speed.COSTS[1:])]


def test_engines_stand_above_what_reading_takes():
    figure = speed.engine_curves(FORWARDS, 5.0)
    assert list(trace(figure, "lean").y) == [22, 28, 52, 148]
    assert figure.layout.shapes[0].y0 == 5.0
    low, high = figure.layout.yaxis.range
    assert low < math.log10(5.0) < math.log10(148) < high
    assert not speed.engine_curves(FORWARDS).layout.shapes


def test_engines_that_read_different_bytes_have_a_line_each():
    figure = speed.engine_curves(FORWARDS, {"reading all": 5.0, "reading 4 bits": 1.0})
    assert [line.y0 for line in figure.layout.shapes] == [5.0, 1.0]
    assert [note.text for note in figure.layout.annotations] == ["reading all", "reading 4 bits"]
    assert figure.layout.yaxis.range[0] < 0  # 1 ms is in sight


def test_overhead_has_a_panel_of_its_own():
    figure = speed.cost_and_overhead(GROWN, "prefix", note="flat")
    whole, forward, overhead = figure.data
    assert list(whole.x) == list(forward.x) == list(overhead.x) == [128, 256, 1000]
    assert list(overhead.y) == [0.5] * 3
    assert list(overhead.error_y.array) == pytest.approx([0.2] * 3)
    assert (whole.yaxis, overhead.yaxis) == ("y", "y2")
    assert "flat" in {note.text for note in figure.layout.annotations}
    assert figure.layout.title.text.startswith("One iteration as the text grows")


def test_the_timeline_begins_with_an_iteration_and_leaves_the_host_what_is_not_a_forward():
    figure = charts.iteration_timeline({"chain": EVENTS}, 0.5, after=1, steps=3.0)
    bars = {one.name: one for one in figure.data if one.type == "bar"}
    host, draft, target = bars.values()
    assert list(bars) == ["host", "a level of the draft", "the target's forward"]
    assert (list(host.base), list(host.x)) == ([0.0], [3.0])
    assert list(draft.base) == pytest.approx([0.2, 2.2])
    assert list(draft.x) == pytest.approx([0.4, 0.4])
    assert list(target.base) == pytest.approx([0.8, 2.8])
    assert list(target.x) == pytest.approx([1.0, 0.2])  # cut at the end of the axis
    assert list(target.hovertext) == ["2 nodes"] * 2
    assert [note.text for note in figure.layout.annotations] == ["+2"]
    whole = charts.iteration_timeline({"chain": EVENTS}, 0.5, after=0)
    assert [note.text for note in whole.layout.annotations] == ["+1", "+2", "+1"]
    three = charts.iteration_timeline(
        {"chain": EVENTS, "slow": [["commit", 9.0, 9.0, 1]]}, 1e-3, after=0, steps=None, unit="ms"
    )
    assert three.layout.xaxis.range[1] == pytest.approx(1.01 * 9000)
    assert three.layout.xaxis.title.text == "ms"
    with pytest.raises(ValueError, match="no traced runs to draw"):
        charts.iteration_timeline({}, 0.5)
    with pytest.raises(ValueError, match="'chain' has 3 iterations; leave out fewer"):
        charts.iteration_timeline({"chain": EVENTS}, 0.5, after=3)


def test_the_parts_of_an_iteration_add_up_to_its_cost():
    figure = speed.iteration_parts(METHODS)
    assert [one.name for one in figure.data] == list(clock.PARTS)
    assert list(figure.data[0].y) == ["ar", "chain:length=6"]  # what was not traced is left out
    for place, cost in enumerate((0.8, 1.6)):
        assert sum(one.x[place] for one in figure.data) == pytest.approx(cost)
    assert list(figure.data[1].text) == ["0.72", "1.12"]
    assert json.loads(figure.to_json())["layout"]["barmode"] == "stack"
    later = {**METHODS[1], "iteration_split": {"draft": 0.5, "verify": 0.25, "host": 0.25}}  # without the first
    assert [one.x[0] for one in speed.iteration_parts([later]).data] == pytest.approx([0.8, 0.4, 0.4])
