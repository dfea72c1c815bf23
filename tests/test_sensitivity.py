"""Limits of a sweep, on records and rows small enough to be worked out by hand."""

import json
import math

import pytest

from dynatree_lib.experiments.adaptive import sensitivity
from dynatree_lib.experiments.adaptive.figures import setting_scatter
from dynatree_lib.measure.methods import variant
from dynatree_lib.measure.records import Header, Records, Run
from dynatree_lib.measure.statistics import ratio
from dynatree_lib.papers import published


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

    def test_same_counts_groups_equal_work_only(self):
        speeds = (("a", 1, 2.0), ("b", 1, 3.0), ("c", 2, 9.0), ("d", None, 1.0))
        rows = [{"method": name, "work": work, "speed": speed} for name, work, speed in speeds]
        (group,) = sensitivity.same_counts(rows, ["work"], "speed")
        ends = {"slowest": 2.0, "fastest": 3.0, "ratio": 1.5}
        assert group == {"labels": ["a", "b"], "settings": "a; b", "work": 1, **ends}


class TestBestEntry:
    def test_neighbours_are_one_step_away_on_one_axis(self):
        rows = [{"D": d, "B": b} for d in (3, 5, 8) for b in (2, 3)]
        found = sensitivity.neighbours(rows, {"D": 8, "B": 3}, ("D", "B"))
        assert [(row["D"], row["B"], row["step"]) for row in found] == [
            (8, 3, "the best"),
            (5, 3, "D 8 → 5"),
            (8, 2, "B 3 → 2"),
        ]

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


class TestAuthorsSettings:
    SETTINGS = sensitivity.authors_settings(published("dynatree-adaptive").figure(8).rows)

    def test_every_setting_but_the_baselines_makes_an_adaptive_tree(self):
        assert len(self.SETTINGS) == 33
        for row in self.SETTINGS.values():
            made = variant("adaptive-tree:" + ",".join(f"{name}={value}" for name, value in row["options"].items()))
            assert json.dumps(made.options)

    def test_one_configuration_has_four_labels(self):
        twins = [
            label for label, row in self.SETTINGS.items() if row["options"] == self.SETTINGS["D 5 to 8"]["options"]
        ]
        assert twins == ["tau_h 0.8, tau_l 0.4", "B 1 to 3", "D 5 to 8", "cross_balanced"]

    def test_the_middle_breadth_follows_the_rule(self):
        assert self.SETTINGS["B 3 to 5"]["options"]["mid_branching"] == 3
        assert self.SETTINGS["B 1 to 2"]["options"]["mid_branching"] == 2

    def test_the_spread_is_a_standard_deviation_each_way(self):
        row = self.SETTINGS["D 8 to 12"]
        assert row["spread"] == pytest.approx([(256.04 - 3.24) / 113.9, (256.04 + 3.24) / 113.9], rel=1e-3)


SCATTER = [{"x": 0.8, "y": 0.4, "speed": 1.0}, {"x": 0.9, "y": 0.4, "speed": 1.2}]
DOTS = [
    {"method": "a", "speed": 1.1, "ends": [1.0, 1.3], "theirs": 1.6},
    {"method": "b", "speed": 0.9, "ends": [0.8, 0.95], "theirs": None},
]


class TestFigures:
    def test_setting_scatter_shows_both_sides_on_one_scale(self):
        pytest.importorskip("dynatree_lib.plots")
        drawn = setting_scatter(SCATTER, "x", "y", "speed", SCATTER, mark=(0.9, 0.4), title="Settings")
        dots = [trace for trace in drawn.data if trace.text is not None]
        assert [list(trace.text) for trace in dots] == [["1.00", "1.20"]] * 2
        assert {trace.marker.coloraxis for trace in dots} == {"coloraxis"}
        assert [list(trace.textfont.color) for trace in dots] == [["#ffffff", "#222222"]] * 2  # readable on both ends
        assert sum(trace.text is None for trace in drawn.data) == 2  # a ring in each panel

    def test_interval_dots_leave_out_what_is_not_known(self):
        plots = pytest.importorskip("dynatree_lib.plots")
        drawn = plots.interval_dots(
            DOTS, "speed", "ends", also={"published": ("theirs", None)}, references={"ar": 1.0}, band=(0.97, 1.03)
        )
        measured, published = drawn.data[:2]
        assert list(measured.y) == ["a", "b"]
        assert list(measured.error_x.array) == pytest.approx([0.2, 0.05])
        assert (list(published.y), published.error_x.array) == (["a"], None)
        assert drawn.layout.yaxis.categoryarray == ("b", "a")  # the first row on top
        assert [(shape.name, shape.x0, shape.x1) for shape in drawn.layout.shapes] == [(None, 0.97, 1.03), ("ar", 1, 1)]
