"""Limits of a sweep, on records and rows small enough to be worked out by hand."""

import math

import pytest

from dynatree_suite import charts
from dynatree_suite.bench.records import Header, Records, Run
from dynatree_suite.bench.statistics import ratio
from dynatree_suite.papers.adaptive import sensitivity


def frame(**seconds):
    """Label -> seconds for 12 tokens on prompts a, b, c."""
    records = Records(Header({}, {"methods": []}))
    for label, times in seconds.items():
        for prompt, time in zip("abc", times, strict=True):
            records.add(Run(label, prompt, 0, time, [1] * 12, [[time / 2, 6], [time, 6]], 2, "length"))
    return records.frame()


RUN = frame(ar=(4.0, 4.0, 4.0), one=(1.0, 2.0, 3.0), two=(2.0, 2.0, 2.0), again=(1.0, 2.0, 3.3))


class TestClock:
    def test_ratios_are_over_all_reference_labels_together(self):
        speed = ratio(RUN, "two", over=["one", "again"])
        assert speed.value == pytest.approx(((6 + 6.3) / 2) / 6)
        assert speed.low < speed.value < speed.high

    def test_an_unknown_label_is_named(self):
        with pytest.raises(ValueError, match="no run of 'three'"):
            ratio(RUN, "three", over="one")


class TestBestEntry:
    def test_luck_is_judged_on_the_other_prompts(self):
        rows = {row["prompts"]: row for row in sensitivity.luck(RUN, ["one", "two"], "ar", 1)}
        assert (rows["a"]["chosen"], rows["a"]["there"]) == ("one", 4.0)
        assert rows["a"]["elsewhere"] == pytest.approx(8 / 5)
        assert rows["a"]["possible"] == pytest.approx(8 / 4)
        assert rows["c"]["chosen"] == "two"

    @pytest.mark.parametrize("size", [0, 3])
    def test_luck_needs_prompts_on_both_sides(self, size):
        with pytest.raises(ValueError, match="with 3 prompts it must leave some out"):
            sensitivity.luck(RUN, ["one"], "ar", size)


class TestPrediction:
    @pytest.mark.parametrize(
        ("predicted", "measured", "expected"),
        [
            ([1, 2, 3], [10, 20, 90], 1),
            ([1, 2, 3], [3, 2, 1], -1),
            # ranks (1.5, 1.5, 3) and (1, 2, 3): covariance 1.5, variances 1.5 and 2
            ([5, 5, 7], [1, 2, 3], 1.5 / math.sqrt(1.5 * 2)),
            ([1, 1], [1, 2], math.nan),
            ([1], [1], math.nan),
        ],
    )
    def test_rank_correlation_shares_ranks_among_ties(self, predicted, measured, expected):
        rows = [{"method": "a", "predicted": p, "measured": m} for p, m in zip(predicted, measured, strict=True)]
        assert sensitivity.choice(rows)["rank correlation"] == pytest.approx(expected, nan_ok=True)

    def test_speed_is_measured_over_measured(self):
        rows = [{"method": m, "predicted": p, "measured": s} for m, p, s in (("a", 3, 1.8), ("b", 2, 2.0))]
        choice = sensitivity.choice(rows)
        assert (choice["predicted best"], choice["measured best"]) == ("a", "b")
        assert choice["speed kept"] == pytest.approx(0.9)

    def test_nothing_to_choose_from(self):
        with pytest.raises(ValueError, match="no row"):
            sensitivity.choice([])


DOTS = [
    {"method": "a", "speed": 1.1, "ends": [1.0, 1.3], "theirs": 1.6},
    {"method": "b", "speed": 0.9, "ends": [0.8, 0.95], "theirs": None},
]


class TestFigures:
    def test_interval_dots_leave_out_what_is_not_known(self):
        pytest.importorskip("dynatree_lib.plots")
        drawn = charts.interval_dots(
            DOTS, "speed", "ends", also={"published": ("theirs", None)}, references={"ar": 1.0}, band=(0.97, 1.03)
        )
        measured, published = drawn.data[:2]
        assert [round(place) for place in measured.y] == [0, 1]
        assert measured.y[0] < published.y[0] < 0.5  # marks of one line do not lie on each other
        assert list(measured.error_x.array) == pytest.approx([0.2, 0.05])
        assert (list(published.text), published.error_x.array) == (["a"], None)
        assert "open" in published.marker.symbol
        assert drawn.layout.yaxis.ticktext == ("a", "b")
        assert drawn.layout.yaxis.range[0] > drawn.layout.yaxis.range[1]  # the first row on top
        assert [(shape.name, shape.x0, shape.x1) for shape in drawn.layout.shapes] == [(None, 0.97, 1.03), ("ar", 1, 1)]
