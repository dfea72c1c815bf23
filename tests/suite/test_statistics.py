"""Estimates, ratios paired by prompt, shares, and the detector of disturbed runs, on frames computed by hand."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from dynatree_suite.bench.statistics import (
    Estimate,
    bootstrap,
    disturbed,
    estimate,
    quotient,
    ratio,
    share,
    sum_quotient,
    sum_ratio,
    undisturbed_estimate,
)


def runs(method: str, seconds: dict[str, float], tokens: int = 100) -> list[dict]:
    """One run per prompt, ten tokens an iteration; the prompt is read in no time."""
    return [
        {"method": method, "prompt": prompt, "conversation": prompt.partition("/")[0], "tokens": tokens,
         "iterations": tokens / 10, "seconds": took, "span": took}
        for prompt, took in seconds.items()
    ]  # fmt: skip


def test_an_estimate_prints_itself_and_says_where_it_lies():
    gain = Estimate(1.8234, 1.59, 2.114)
    assert str(gain) == f"{gain}" == "1.82 [1.59, 2.11]"
    assert f"{gain:.1f}" == "1.8 [1.6, 2.1]"
    assert (gain.compared(), gain.compared(2.0), gain.compared(3.0)) == ("above", "around", "below")
    assert (gain.above(), gain.above(2.0), gain.above(3.0)) == (True, None, False)
    shaken = Estimate(1.8, 1.6, 2.1, disturbed=3, groups=9)
    assert (shaken.compared(), shaken.above()) == ("disturbed", None)
    assert Estimate(1.8, 1.6, 2.1, disturbed=2, groups=9).above()  # at most a quarter, which were left out


def test_bootstrap_is_seeded_and_covers_the_mean():
    def mean(drawn):
        return drawn[..., 0].mean(-1)

    rng = np.random.default_rng(0)
    covered = 0
    for seed in range(400):
        low, high = bootstrap(rng.normal(3.0, 1.0, (30, 1)), mean, seed)
        covered += low <= 3.0 <= high
    assert 0.90 <= covered / 400 <= 0.98  # 95 %, less the known undercoverage of percentile intervals at 30 prompts
    sample = rng.normal(size=(10, 1))
    assert bootstrap(sample, mean, 1) == bootstrap(sample, mean, 1) != bootstrap(sample, mean, 2)


def test_a_quotient_is_of_sums_and_its_groups_are_conversations():
    table = runs("a", {"x": 1.0, "x/turn-2": 3.0, "y": 4.0})
    found = quotient(table)
    assert found.value == pytest.approx(300 / 8)
    assert found.groups == 2
    assert found.interval == pytest.approx((25.0, 50.0))  # y alone, both turns of x alone
    assert quotient(table, "seconds", "iterations", by="prompt").groups == 3


def test_a_ratio_pairs_prompts():
    table = [*runs("a", {"x": 1.0, "y": 1.0, "only a": 50.0}), *runs("b", {"x": 2.0, "y": 4.0, "only b": 70.0})]
    found = ratio(table, "a", over="b")
    assert found.value == pytest.approx(3.0)
    assert found.interval == pytest.approx((2.0, 4.0))
    assert ratio(table, "a", over=["b"]) == found
    assert ratio(table, "a", over="b", of="seconds", per="tokens").value == pytest.approx(1 / 3)
    assert ratio(table, "a", over="a").interval == (1.0, 1.0)


def test_a_ratio_of_what_is_not_there_is_refused():
    table = [*runs("a", {"x": 1.0}), *runs("b", {"y": 2.0})]
    with pytest.raises(ValueError, match="no run of 'c' in these records"):
        ratio(table, "a", over="c")
    with pytest.raises(ValueError, match="share no prompt; measure both in one run"):
        ratio(table, "a", over="b")
    with pytest.raises(ValueError, match="no group of rows"):
        estimate(np.empty((0, 2)), sum_quotient)


def test_a_quotient_without_a_divisor_is_not_a_number():
    assert math.isnan(estimate(np.array([[3.0, 0.0]]), sum_quotient).value)


@pytest.mark.parametrize(("method", "low", "high"), [("exact", 0.0124, 0.3170), ("wilson", 0.0279, 0.3010)])
def test_a_share_has_its_binomial_interval(method, low, high):
    found = share(2, 20, method)
    assert found.value == 0.1
    assert found.interval == pytest.approx((low, high), abs=1e-3)
    for wrong in ((1, 0), (3, 2), (-1, 5)):
        with pytest.raises(ValueError, match="are no share"):
            share(*wrong)


CALM = {"v": 1.0, "w": 1.1, "x": 0.9, "y": 1.4, "z": 1.0}


def flagged(*tables: list[dict]) -> list[tuple[str, str]]:
    frame = pd.DataFrame([row for table in tables for row in table])
    return [*frame.loc[disturbed(frame), ["method", "prompt"]].itertuples(index=False, name=None)]


def test_a_run_that_stalled_is_disturbed():
    assert flagged(runs("a", CALM)) == []
    assert flagged(runs("a", CALM | {"z": 2.3}), runs("b", CALM), runs("c", CALM)) == [("a", "z")]
    assert flagged(runs("a", CALM), runs("b", CALM | {"v": 9.0})) == [("b", "v")]
    assert len(disturbed([])) == 0


def test_a_prompt_that_takes_all_methods_longer_is_not():
    long = CALM | {"z": 5.0}
    assert flagged(runs("a", long), runs("b", long), runs("c", long)) == []
    assert flagged(runs("a", long), runs("b", long), runs("c", CALM | {"z": 30.0})) == [("c", "z")]


def test_reading_a_long_prompt_is_not_a_disturbance_and_a_stall_in_it_is():
    """One method reads three times as slowly as the others, and the text after the long prompt z is short."""
    slow = [{**row, "seconds": row["seconds"] + (30.0 if row["prompt"] == "z" else 3.0)} for row in runs("slow", CALM)]
    others = [
        {**row, "seconds": row["seconds"] + (10.0 if row["prompt"] == "z" else 1.0)}
        for name in "abc"
        for row in runs(name, CALM)
    ]
    assert flagged(slow, others) == []
    assert flagged(slow[:2], others[:2]) == []  # of two methods nobody knows
    slow[1]["seconds"] += 6.0
    assert flagged(slow, others) == [("slow", "w")]


def marked(*tables: list[dict]) -> pd.DataFrame:
    frame = pd.DataFrame([row for table in tables for row in table])
    return frame.assign(disturbed=disturbed(frame))


def test_a_ratio_leaves_a_disturbed_prompt_out():
    """One prompt on which the baseline stalled used to carry the sums: 2.5 times as fast, where nothing is faster."""
    frame = marked(runs("a", CALM), runs("b", CALM | {"v": 9.0}), runs("c", CALM))
    shaken = ratio(frame, "a", over="b")
    assert (shaken.value, shaken.interval) == (1.0, (1.0, 1.0))
    assert (shaken.disturbed, shaken.groups, shaken.compared()) == (1, 5, "around")
    calm = ratio(frame, "a", over="c")
    assert (calm.value, calm.disturbed, calm.groups) == (1.0, 0, 5)


def test_a_ratio_says_that_too_much_was_disturbed():
    several = CALM | {"v": 9.0, "w": 9.0}
    frame = marked(runs("a", CALM), runs("b", several), runs("c", CALM))
    shaken = ratio(frame, "a", over="b")
    assert (shaken.value, shaken.disturbed, shaken.compared()) == (1.0, 2, "disturbed")
    frame.loc[frame["method"] == "b", "disturbed"] = True  # where nearly nothing would remain, nothing is left out
    shaken = ratio(frame, "a", over="b")
    assert shaken.value > 1
    assert (shaken.disturbed, shaken.compared()) == (5, "disturbed")


def test_a_ratio_of_counts_needs_no_clock():
    frame = marked(runs("a", CALM), runs("b", CALM | {"v": 9.0}, tokens=200), runs("c", CALM))
    counted = ratio(frame, "a", over="b", of="tokens", per="iterations")
    assert (counted.value, counted.disturbed) == (1.0, 0)


def test_a_ratio_of_times_is_the_quotient_of_the_speeds():
    rng = np.random.default_rng(0)
    seconds = {side: {f"p{n}": float(rng.lognormal()) for n in range(20)} for side in "ab"}
    table = [*runs("a", seconds["a"]), *runs("b", seconds["b"])]
    speeds = [quotient([row for row in table if row["method"] == side]).value for side in "ab"]
    found = ratio(table, "a", over="b")
    assert found.value == pytest.approx(speeds[0] / speeds[1])
    assert found.low < found.value < found.high


@pytest.mark.parametrize("stalls", [0, 2])
def test_the_interval_of_a_ratio_covers_the_truth_also_where_pairs_stalled(stalls):
    rng, covered = np.random.default_rng(stalls), 0
    for seed in range(100):
        base = rng.lognormal(0.0, 0.5, 20)
        table = np.stack([np.ones(20), base, np.ones(20), base * rng.lognormal(0.3, 0.2, 20)], -1)
        table[:stalls, 3] *= 30  # the baseline waits for something else
        found = undisturbed_estimate(table, np.arange(20) < stalls, sum_ratio, seed)
        covered += found.low <= math.exp(0.3 + 0.2**2 / 2) <= found.high
    assert covered / 100 > 0.86
