"""What a run will take on this machine, and which of its notebooks fit into the hours that there are."""

import pytest
from suite_notebooks import records_notebook

from dynatree_suite.cli.main import main
from dynatree_suite.runs import forecast
from dynatree_suite.runs.plan import find_sources, make_jobs


@pytest.fixture
def jobs(tmp_path):
    for name, seconds, headline in (
        ("00_a", 600, False),
        ("10_b", 1200, True),
        ("20_c", 1800, False),
        ("30_d", 0, False),
    ):
        estimate = {"colab": {"seconds": seconds}} if seconds else {}
        about = {"headline": bool(headline), "estimate": estimate}
        records_notebook(tmp_path / "notebooks", name, parameters="profile = None\npair = None", about=about)
    return make_jobs(find_sources(tmp_path / "notebooks"), "colab", {})


def names(jobs):
    return [job.name for job in jobs]


@pytest.mark.parametrize(
    ("hours", "kept"),
    [(0.1, []), (0.35, ["10_b"]), (0.5, ["00_a", "10_b"]), (0.9, ["00_a", "10_b"]), (1.0, ["00_a", "10_b", "20_c"])],
)
def test_what_fits_is_kept_headlines_first(jobs, hours, kept):
    fit, left = forecast.within(jobs, hours)
    assert names(fit) == kept
    assert sorted(names(fit) + names(left)) == names(jobs)
    assert "30_d" in names(left)  # nobody knows what it takes


def test_a_machine_with_half_the_time_of_an_iteration_takes_half_as_long(jobs):
    half = forecast.scaled(jobs, forecast.REFERENCE / 2)
    assert [job.estimate.seconds for job in half] == [300, 600, 900, None]
    assert names(forecast.within(half, 0.5)[0]) == ["00_a", "10_b", "20_c"]


def test_an_iteration_is_timed_in_a_process_of_its_own():
    assert 1e-5 < forecast.iteration_seconds("colab", {"pair": "tiny", "device": "cpu"}) < 1
    with pytest.raises(ValueError, match="could not be timed: .*no pair named 'none such'"):
        forecast.iteration_seconds("colab", {"pair": "none such", "device": "cpu"})


def test_a_rehearsal_has_no_estimate(tmp_path):
    records_notebook(tmp_path / "notebooks", "00_a", about={"estimate": {"colab": {"seconds": 9, "memory_mb": 5}}})
    (job,) = make_jobs(find_sources(tmp_path / "notebooks"), "colab", {}, divide=10)
    assert (job.estimate.seconds, job.estimate.memory_mb) == (None, 5)


def test_hours_cut_the_plan_before_anything_runs(jobs, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(forecast, "iteration_seconds", lambda profile, parameters: forecast.REFERENCE)
    folder = ["run", "--profile", "colab", "--dry-run", "--notebooks", str(tmp_path / "notebooks")]
    assert main([*folder, "--hours", "0.5", "--out", str(tmp_path / "out")]) == 0
    told = capsys.readouterr().out
    assert "20_c: left out, 0.5 h do not hold it (about 30 min)" in told
    assert "2 to run, about 30 min in all" in told
    for hours, words in (("0.01", "No notebook fits into 0.01 h"), ("0", "--hours is 0.0")):
        assert main([*folder, "--hours", hours]) == 2
        assert words in capsys.readouterr().err


def test_what_has_finished_takes_no_time_of_the_hours(jobs):
    assert names(forecast.within(jobs, 0.5, {"10_b"})[0]) == ["00_a", "10_b"]
    assert names(forecast.within(jobs, 0.5, {"10_b", "00_a"})[0]) == ["00_a", "10_b", "20_c"]


def test_notebooks_without_a_pair_take_as_long_on_any_machine(tmp_path):
    about = {"estimate": {"colab": {"seconds": 100}}}
    records_notebook(tmp_path / "notebooks", "04_x", parameters="profile = None", about=about)
    (job,) = forecast.scaled(make_jobs(find_sources(tmp_path / "notebooks"), "colab", {}), forecast.REFERENCE / 9)
    assert job.estimate.seconds == 100


def test_hours_and_a_divisor_exclude_each_other(jobs, tmp_path, capsys):
    folder = ["run", "--profile", "colab", "--dry-run", "--notebooks", str(tmp_path / "notebooks")]
    assert main([*folder, "--hours", "1", "--divide", "5"]) == 2
    assert "--divide has none" in capsys.readouterr().err


def test_a_process_that_dies_while_an_iteration_is_timed_is_told(monkeypatch):
    monkeypatch.setattr(forecast.sys, "executable", "/bin/false")
    with pytest.raises(ValueError, match="its process ended with status 1"):
        forecast.iteration_seconds("colab", {"pair": "tiny"})
