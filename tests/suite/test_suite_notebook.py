"""What notebooks call: checks of their parameters, and what they hand to the report."""

import json
import os
from dataclasses import replace

import pytest
from suite_notebooks import write_notebook

from dynatree_lib.models.engine import COMPILING
from dynatree_suite.runs.notebook import begin, divided


@pytest.fixture
def out(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNATREE_OUT", str(tmp_path / "run"))
    return tmp_path / "run"


def summary(out):
    return json.loads((out / "10_x.summary.json").read_text())


def test_profile_defaults_and_sizes(out):
    nb = begin("10_x", profile="smoke")
    assert (nb.pair, nb.device, nb.dtype, nb.seed) == ("tiny", "cpu", "float32", 0)
    assert nb.size("prompts", smoke=1, laptop=10, paper=100) == 1
    assert "profile smoke, pair tiny on cpu" in repr(nb)
    assert str(out) not in repr(nb)


def test_models_of_a_notebook_wait_for_their_machine_code(out, monkeypatch):
    """Logits before and after it is there differ by rounding, and times by much more."""
    monkeypatch.delenv(COMPILING)
    begin("10_x", profile="smoke")
    assert os.environ[COMPILING] == "wait"
    monkeypatch.setenv(COMPILING, "go on")
    begin("10_x", profile="smoke")
    assert os.environ[COMPILING] == "go on", "a user's own choice"


@pytest.mark.parametrize("here", [True, False])
def test_notebooks_with_real_text_take_the_real_pair_where_it_is(monkeypatch, here, tmp_path):
    monkeypatch.setattr("dynatree_suite.runs.notebook.fetched", lambda name: tmp_path if here else None)
    assert begin("10_x", profile="smoke", real=True).pair == "tiny"
    assert begin("10_x", profile="laptop").pair == "tiny"
    assert begin("10_x", profile="laptop", pair="tiny", real=True).pair == "tiny"
    nb = begin("10_x", profile="laptop", real=True)
    assert nb.pair == ("smollm2" if here else "tiny")
    assert ("dynatree fetch smollm2" in repr(nb)) is not here


def test_without_a_run_it_writes_below_the_checkouts_outputs(monkeypatch, tmp_path):
    monkeypatch.delenv("DYNATREE_OUT", raising=False)
    monkeypatch.setenv("DYNATREE_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    nb = begin("10_x", profile="smoke")
    assert nb.out == tmp_path / "outputs" / "notebooks" / "smoke"
    assert nb.shown(nb.records("speed")) == "outputs/notebooks/smoke/records/10_x/speed.jsonl"


def test_outside_the_checkout_paths_are_shown_whole(monkeypatch, tmp_path):
    monkeypatch.delenv("DYNATREE_OUT", raising=False)
    monkeypatch.setenv("DYNATREE_ROOT", str(tmp_path / "checkout"))
    (tmp_path / "checkout" / "notebooks").mkdir(parents=True)
    for folder, shown in (("checkout/notebooks", ""), (".", f"{tmp_path}/checkout/")):
        monkeypatch.chdir(tmp_path / folder)
        assert f"; records in {shown}outputs/notebooks/smoke/records/10_x" in repr(begin("10_x", profile="smoke"))


def test_runs_by_hand_with_other_parameters_have_folders_of_their_own(monkeypatch, tmp_path):
    monkeypatch.delenv("DYNATREE_OUT", raising=False)
    monkeypatch.setenv("DYNATREE_ROOT", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    write_notebook(tmp_path / "notebooks", "10_x", "", parameters="seed = 0\nlength = None")

    def run(**parameters):
        kernel = {"begin": begin, **parameters}
        exec("nb = begin('10_x', profile='smoke')", kernel)
        return kernel["nb"]

    first, other = run(seed=0, length=None), run(seed=0, length=(1, 2))
    assert (first.out.name, other.out.name) == ("smoke", "smoke-2")
    assert "outputs/notebooks/smoke-2/records" in repr(other)
    assert run(seed=0, length=None).out == first.out
    assert run(seed=0, length=(1, 2)).out == other.out
    assert run(seed=1, length=None).out.name == "smoke-3"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": "big"}, "profile is 'big'; choose from 'smoke', 'laptop', 'colab', 'paper'"),
        ({"dtype": "int8"}, "dtype is 'int8'; choose from 'float64'"),
        ({"device": "gpu"}, "device='gpu' is not 'auto', 'cpu'"),
        ({"device": "cuda:x"}, "device='cuda:x' is not"),
        ({"seed": -1}, "seed is -1; give a whole number of at least 0"),
        ({"seed": "1"}, "seed is '1'; give a whole number"),
        ({"name": "../x"}, "The name '../x' must be"),
    ],
)
def test_parameters_that_cannot_work(out, options, words):
    given = {"name": "10_x", "profile": "smoke", **options}
    with pytest.raises(ValueError, match=words):
        begin(given.pop("name"), **given)


def test_torch_dtypes_are_understood(out):
    assert begin("10_x", profile="smoke", dtype="torch.bfloat16").dtype == "bfloat16"


def test_records_start_empty_unless_kept(out):
    nb = begin("10_x", profile="smoke")
    nb.records("speed").write_text("{}\n")
    assert nb.records("speed", keep=True).read_text() == "{}\n"
    assert not nb.records("speed").exists()
    with pytest.raises(ValueError, match="file name"):
        nb.records("a/b")


def test_rows_and_frames_become_records(out):
    import pandas as pd

    nb, rows = begin("10_x", profile="smoke"), [{"method": "ar", "speed": 0.1 + 0.2}, {"method": "chain", "speed": 2.0}]
    for table in (rows, pd.DataFrame(rows)):
        path = nb.write_records("speed", table)
        assert [json.loads(line) for line in path.read_text().splitlines()] == rows


def test_records_are_written_without_nan(out):
    path = begin("10_x", profile="smoke").write_records("x", [{"a": float("nan"), "b": "x"}, {"a": 1.5, "b": None}])
    back = [json.loads(line) for line in path.read_text().splitlines()]
    assert back == [{"a": None, "b": "x"}, {"a": 1.5, "b": None}]


def test_records_of_the_project_come_from_the_checkout_or_the_package(out, tmp_path):
    nb = begin("10_x", profile="smoke")
    assert nb.reference("audit.json.gz") == nb.root / "outputs" / "reference" / "audit.json.gz"
    alone = replace(nb, root=tmp_path)  # a notebook on its own, as in Colab
    assert alone.reference("audit.json.gz").is_file()
    with pytest.raises(ValueError, match="There is no record outputs/reference/cpu/none.json, in "):
        alone.reference("cpu/none.json")


def test_claims_keep_their_order_and_are_replaced_by_repetition(out):
    nb = begin("10_x", profile="smoke")
    record = nb.records("speed")
    nb.headline("faster", 1.5, unit="x", holds=True, record=record)
    nb.headline("nodes", 16)
    nb.headline("faster", 1.2, unit="x", holds=False, record=record)
    first, second = summary(out)["claims"]
    assert (first["claim"], first["value"], first["unit"], first["holds"]) == ("faster", 1.2, "x", False)
    assert first["record"] == "records/10_x/speed.jsonl"
    assert second["holds"] is None
    begin("10_x", profile="smoke")
    assert summary(out)["claims"] == []


def test_a_claim_names_the_tables_it_stands_for(out):
    nb = begin("10_x", profile="smoke")
    nb.headline("faster", 1.2, shows="Table 4")
    nb.headline("longer", 2, shows=("Table 3", "Figure 2"))
    nb.headline("nodes", 16)
    assert [claim["shows"] for claim in summary(out)["claims"]] == [["Table 4"], ["Table 3", "Figure 2"], []]


@pytest.mark.parametrize(("profile", "divide", "raises"), [("smoke", "1", True), ("laptop", "1", False)])
def test_what_must_hold_is_an_error_in_smoke_and_a_finding_elsewhere(out, monkeypatch, profile, divide, raises):
    monkeypatch.setenv("DYNATREE_DIVIDE", divide)
    nb = begin("10_x", profile=profile)
    nb.check("texts equal", True, "3/3")
    if raises:
        with pytest.raises(AssertionError, match="texts equal: 2/3"):
            nb.check("texts equal", False, "2/3")
    else:
        nb.check("texts equal", False, "2/3")
    (claim,) = summary(out)["claims"]
    assert (claim["value"], claim["holds"]) == ("2/3", False)


@pytest.mark.parametrize(
    ("value", "by", "least", "expected"),
    [
        (1500, 50, 12, 30),
        (1500, 500, 12, 12),
        (10, 50, 3, 3),
        (2, 50, 5, 2),  # never more than it was
        ((10, 30), 10, (1, 3), (1, 3)),
        ((100, 200, 300, 500), 50, (8, 16), (8, 9, 10, 11)),  # still ascends, from smoke's first
        ((40, 40), 10, (2, 2), (4, 4)),
        ({"max_rows": 256, "iterations": 144}, 20, {"max_rows": 4, "iterations": 8}, {"max_rows": 12, "iterations": 8}),
        ({"max_rows": 256}, 100, {}, {"max_rows": 2}),
        (None, 50, 3, None),
    ],
)
def test_amounts_are_divided_down_to_those_of_smoke(value, by, least, expected):
    assert divided(value, by, least) == expected


def test_a_rehearsal_divides_amounts_and_takes_every_setting(out, monkeypatch):
    monkeypatch.setenv("DYNATREE_DIVIDE", "100")
    nb = begin("10_x", profile="paper", pair="tiny", device="cpu")
    assert nb.size("new tokens", smoke=8, laptop=100, paper=1500) == 15
    assert nb.choose("depths", smoke=(4,), laptop=(4, 6), paper=(4, 5, 6)) == (4, 5, 6)
    assert not nb.decides
    assert "amounts divided by 100" in repr(nb)
    assert begin("10_x", profile="paper", pair="tiny", device="cpu", paper=("tiny", "bfloat16")).dtype == "bfloat16"


def test_what_a_profile_leaves_out_is_told(out):
    nb = begin("10_x", profile="laptop")
    nb.size("prompts", smoke=1, laptop=4, paper=10)
    nb.choose("thresholds", smoke=(0.1,), laptop=(0.1, 0.3), paper=(0.1, 0.2, 0.3))
    nb.choose("shapes", smoke=(2,), laptop=(2, (2, 1)), paper=(2, (2, 1)))
    told = nb.left_out()
    for words in ("prompts", "<td>4</td>", "<td>10</td>", "0.1, 0.3", "0.1, 0.2, 0.3"):
        assert words in told
    assert "shapes" not in told
    assert [row["what"] for row in summary(out)["sizes"]] == ["prompts", "thresholds", "shapes"]
    assert "left out nothing" in begin("10_x", profile="laptop").left_out()


def test_colab_takes_the_gpu_and_the_real_pair(out, monkeypatch, tmp_path):
    monkeypatch.setattr("dynatree_suite.runs.notebook.fetched", lambda name: tmp_path)
    nb = begin("10_x", profile="colab")
    assert (nb.pair, nb.device, nb.dtype) == ("smollm2", "cpu", "float32")  # no GPU here
    assert nb.size("prompts", smoke=1, laptop=4, paper=10) == 4
    assert nb.size("prompts", smoke=1, laptop=4, paper=10, colab=6) == 6
    assert begin("10_x", profile=None).profile == "laptop"
    monkeypatch.setattr("torch.cuda.is_available", lambda: True)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 1)
    for native, dtype in ((True, "bfloat16"), (False, "float16")):  # a T4 has no bfloat16 of its own
        monkeypatch.setattr("torch.cuda.is_bf16_supported", lambda including_emulation, native=native: native)
        nb = begin("10_x", profile=None)
        assert (nb.profile, nb.pair, nb.device, nb.dtype) == ("colab", "smollm2", "cuda", dtype)
    assert begin("10_x", profile="colab", pair="a/b + c/d", device="cpu").pair == "a/b + c/d"


def test_numbers_of_numpy_become_plain(out):
    import numpy as np

    begin("10_x", profile="smoke").headline("n", np.float32(2), holds=np.bool_(True))
    assert summary(out)["claims"][0]["value"] == 2.0
    assert summary(out)["claims"][0]["holds"] is True


def test_a_record_outside_the_run_is_refused(out, tmp_path):
    with pytest.raises(ValueError, match="outside the run's folder"):
        begin("10_x", profile="smoke").headline("n", 1, record=tmp_path / "other.jsonl")


def test_figures_and_tables(out):
    class Figure:
        def to_json(self):
            return '{"data": [], "layout": {}}'

    nb = begin("10_x", profile="smoke")
    assert nb.save_figure("speed", Figure(), "A caption", headline=True).suffix == ".json"
    assert nb.save_figure("tree", "<svg></svg>").read_text() == "<svg></svg>"
    nb.table("Table 1", "<table></table>")
    figures = summary(out)["figures"]
    assert [f["path"] for f in figures] == ["figures/10_x/speed.json", "figures/10_x/tree.html"]
    assert [f["headline"] for f in figures] == [True, False]
    assert summary(out)["tables"] == [{"caption": "Table 1", "html": "<table></table>"}]
