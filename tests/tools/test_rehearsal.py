"""The rehearsal of notebooks: what it runs, what it notices, and which branches nothing takes."""

import ast
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from suite_notebooks import write_notebook

from dynatree_suite.papers.published import shown_where
from tools import rehearsal
from tools.as_the_papers import HUB_NAMES, Wanted, not_loaded, problems, targets_loaded, unsound, wanted_of_the_papers
from tools.rehearsal import Marks, branches_of, untaken

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("source", "values", "taken"),
    [
        ("if a:\n    x = 1\nelse:\n    x = 2", {"a": True}, ["if a"]),
        ("if a:\n    x = 1", {"a": False}, ["unless a"]),
        ("x = 1 if a else 2", {"a": False}, ["unless a"]),
        ("x = (1 if a else 2) if b else 3", {"a": True, "b": True}, ["if b", "if a"]),
        ("x = [1 if a > n else 2 for n in (1, 5)]", {"a": 3}, ["if a > n", "unless a > n"]),
    ],
)
def test_branches_that_are_taken_are_noted_and_values_stay(source, values, taken):
    plain, marked, seen = dict(values), dict(values), {}
    exec(source, plain)
    marks = Marks("nb cell")
    tree = ast.fix_missing_locations(marks.visit(ast.parse(source)))
    marked[rehearsal.SEEN] = seen.setdefault
    exec(compile(tree, "cell", "exec"), marked)
    assert marked.get("x") == plain.get("x")
    assert [name.split(" ", 3)[3] for name in seen] == taken
    assert set(seen) <= set(marks.ids)
    assert len(marks.ids) == 2 * source.count("if ")


def test_what_nothing_takes_is_listed_unless_it_is_explained(tmp_path):
    path = write_notebook(tmp_path, "10_x", "x = 1 if profile == 'paper' else 2", "if x:\n    y = 1")
    every = branches_of(path)
    assert len(every) == 4
    assert untaken([path], every, {}) == []
    left = untaken([path], every[1:], {})
    assert left == [every[0]]
    assert "if profile == 'paper'" in left[0]
    assert untaken([path], every[1:], {"10_x cell-1 1 if profile": "a GPU is needed"}) == []
    assert untaken([path], every, {"10_x 9 9": "why"}) == ["10_x 9 9: is taken, or gone; strike it from UNTAKEN."]
    assert untaken([path], every, {"11_y 9 9": "of another notebook"}) == []


def rehearsed(tmp_path, *cells, dtype="float16", profile="paper"):
    """Rehearse a notebook of these cells in a process of its own."""
    code = ["from dynatree_suite.runs.notebook import begin", "import dynatree_lib as dt"]
    code += ["nb = begin('10_x', profile=profile, device=device, dtype=dtype, pair='tiny')", *cells]
    parameters = "profile = None\ndevice = None\ndtype = None"
    path = write_notebook(tmp_path / "notebooks", "10_x", "\n".join(code[:3]), *cells, parameters=parameters)
    process, child = rehearsal.start(path, profile, dtype, tmp_path / "out", tmp_path / "none", 100)
    _, status = os.waitpid(process, 0)
    return child.ended(status)


LOADED = "dt.load_pair(target='{0}/target', draft='{0}/draft'{1})"


@pytest.fixture
def folder(tmp_path):
    """The bundled pair in a folder of another name: models of the library itself may be placed anywhere."""
    (tmp_path / "own").symlink_to(ROOT / "data" / "tiny")
    return tmp_path / "own"


@pytest.mark.parametrize(
    ("how", "noticed"),
    [
        (", device_map=nb.device, dtype=nb.dtype", 0),
        (", device_map=nb.device, dtype='float32'", 2),
        (", dtype=nb.dtype", 2),
        ("", 2),
    ],
)
def test_a_model_on_another_device_or_in_another_dtype_is_noticed(tmp_path, folder, how, noticed):
    done = rehearsed(tmp_path, LOADED.format(folder, how))
    assert not done.errors
    assert len(done.misplaced) == noticed


def test_a_dtype_that_a_notebook_compares_with_may_be_asked_for_on_the_runs_device():
    asked = [["some/model", "cpu", "bfloat16"], ["some/model", "cuda", "bfloat16"], ["some/model", "cpu", "float16"]]
    done = rehearsal.Rehearsal("40_speed", "paper", "float32", "cpu", loaded=asked)
    assert done.misplaced == [
        "some/model was asked for on cuda in bfloat16", "some/model was asked for on cpu in float16"
    ]  # fmt: skip
    assert len(rehearsal.Rehearsal("10_x", "paper", "float32", "cpu", loaded=asked).misplaced) == 3


def test_an_error_is_told_with_its_section_and_the_rest_runs(tmp_path):
    done = rehearsed(tmp_path, "x = 1 / 0", "assert profile == 'colab' and dtype == 'float32'", profile="colab",
                     dtype="float32")  # fmt: skip
    assert len(done.errors) == 1  # both cells lie before the first section
    assert "ZeroDivisionError" in done.errors[0]
    assert not rehearsed(
        tmp_path, "assert (profile, device, dtype) == ('paper', 'cuda', 'bfloat16')", dtype="bfloat16"
    ).errors


def test_a_process_that_dies_is_told(tmp_path):
    done = rehearsed(tmp_path, "import os; os._exit(7)")
    assert "its process ended with status 7" in done.errors[0]


# ------------------------------------------------------------------------------------------------ as the papers have it
def made_run(
    out, pair="pythia-2.8b/70m", dtype="float16", workload="10 prompts of wikitext-2, split validation", amount=1500,
    draft="EleutherAI/pythia-70m", temperature=0.0, repeats=1, failed=(), checks=(),
):  # fmt: skip
    """The record and the summary of a notebook, as a run writes them."""
    methods = [{"name": name} for name in ("ar", "chain", "fixed-tree", "adaptive-tree")]
    methods.append({"name": "sampled-tree", "label": "a drawn chain"})
    setup = {"pair": pair, "dtype": dtype, "workload": workload, "methods": methods, "draft": {"name": draft}}
    setup |= {"sampling": {"temperature": temperature}, "repeats": repeats}
    labels = [method.get("label", method["name"]) for method in methods]
    lines = [{"kind": "header", "setup": setup}]
    lines += [{"kind": "failure" if label in failed else "run", "method": label, "error": "x"} for label in labels]
    record = out / "records" / "11_x" / "main-wikitext-2.jsonl"
    record.parent.mkdir(parents=True)
    record.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    sizes = [{"what": "new tokens", "here": "15", "paper": str(amount)}]
    (out / "11_x.summary.json").write_text(json.dumps({"sizes": sizes, "claims": [*checks]}))


WANTED = Wanted("dynatree-adaptive", "Table 1", "11_x", "main-*", ("pythia-2.8b",), "float16", "validation",
                ("ar", "chain", "adaptive-tree"), {"new tokens": "1500"}, draft="pythia-70m")  # fmt: skip


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({}, ""),
        ({"pair": "EleutherAI/pythia-2.8b + EleutherAI/pythia-70m"}, ""),
        ({"pair": "tiny"}, "has the pair tiny"),
        ({"draft": "EleutherAI/pythia-160m"}, "has the draft EleutherAI/pythia-160m, in the paper pythia-70m"),
        ({"dtype": "bfloat16"}, "is in bfloat16, the paper in float16"),
        ({"workload": "10 prompts of wikitext-2, split test"}, "not on validation"),
        ({"temperature": 1.0}, "has temperature 1.0, in the paper 0.0"),
        ({"repeats": 2}, "has repeats 2, in the paper 1"),
        ({"amount": 500}, "'new tokens' is 500, in the paper 1500"),
        ({"failed": ["chain"]}, "no record has chain"),
        ({"failed": ["fixed-tree"]}, ""),
    ],
)
def test_a_run_that_is_not_the_papers_is_noticed(tmp_path, wrong, words):
    made_run(tmp_path, **wrong)
    told = problems(WANTED, tmp_path)
    assert any(words in one for one in told) if words else not told


def test_failed_runs_and_failed_checks_are_problems_of_a_rehearsal(tmp_path):
    made_run(tmp_path / "sound", checks=[{"claim": "c", "holds": False, "value": "1"}])  # a finding, no check
    assert unsound(tmp_path / "sound", "11_x") == []
    checks = [{"claim": "Every run finished", "holds": False, "value": "1 failed", "must": True}]
    made_run(tmp_path / "not", failed=["chain"], checks=checks)
    assert unsound(tmp_path / "not", "11_x") == [
        "the record main-wikitext-2: chain failed: x",
        "the check 'Every run finished' fails: 1 failed",
    ]
    done = rehearsed(tmp_path, "nb.check('Holds', False)", "nb.headline('May fail', holds=False)")
    assert done.problems == ["the check 'Holds' fails: None"]


def test_the_dtype_that_a_notebook_has_by_itself_is_the_papers(tmp_path):
    done = rehearsed(tmp_path, "assert nb.dtype == 'bfloat16'", dtype="bfloat16")
    assert not done.problems
    assert done.usual == "float16"  # of the profile
    one = rehearsal.Rehearsal("20_ptd", "paper", "bfloat16", "cuda", usual="float16")
    told = rehearsal.as_the_papers([one], tmp_path / "none")
    assert "20_ptd: by itself it runs in float16, the paper in bfloat16." in told


def test_nothing_of_an_earlier_rehearsal_passes_for_the_next(tmp_path):
    left = tmp_path / "out" / "paper-float16" / "records" / "10_x" / "old.jsonl"
    left.parent.mkdir(parents=True)
    left.write_text("{}")
    assert not rehearsed(tmp_path, "x = 1").problems
    assert not left.exists()


def test_what_hangs_is_ended(tmp_path, monkeypatch):
    monkeypatch.setattr(rehearsal, "LIMIT", 5)
    done = rehearsed(tmp_path, "import time; time.sleep(60)")
    assert "its process ended with status -14" in done.errors[0]


def test_a_section_that_failed_leaves_no_older_values(tmp_path):
    path = write_notebook(tmp_path / "notebooks", "10_x", "old = 1")
    notebook = json.loads(path.read_text())
    cell = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
    for number, source in enumerate(("old = 1 / 0", "print(old)")):
        title = {"cell_type": "markdown", "id": f"h{number}", "metadata": {}, "source": f"## {number}"}
        notebook["cells"] += [title, {**cell, "id": f"s{number}", "source": source}]
    path.write_text(json.dumps(notebook))
    process, child = rehearsal.start(path, "paper", "float16", tmp_path / "out", tmp_path / "none", 100)
    done = child.ended(os.waitpid(process, 0)[1])
    assert [one.partition(":")[0] for one in done.errors] == ["0, cell s0", "1, cell s1"]
    assert "NameError: name 'old' is not defined" in done.errors[1]


def test_a_missing_record_and_a_missing_method_are_noticed(tmp_path):
    made_run(tmp_path)
    other = Wanted("ptd", "Table 1", "11_x", "greedy-*", (), None)
    assert "there is no record 'greedy-*'" in problems(other, tmp_path)[0]
    (lacks,) = problems(Wanted("ptd", "Table 1", "11_x", "main-*", ("pythia-2.8b",), None, methods=("ptd",)), tmp_path)
    assert "no record has ptd" in lacks
    labelled = Wanted("ptd", "Table 1", "11_x", "main-*", ("pythia-2.8b",), None, methods=("a drawn chain",))
    assert problems(labelled, tmp_path) == []


def test_every_notebook_of_measured_tables_is_held_to_its_paper():
    wanted, loaded = wanted_of_the_papers(), targets_loaded()
    assert all(name in HUB_NAMES for one in wanted for name in (*one.targets, *filter(None, [one.draft])))
    assert all(target in HUB_NAMES for targets in loaded.values() for target in targets)
    measured = {row["notebook"] for row in shown_where() if row["how"] == "measured"}
    assert measured == {one.notebook for one in wanted} | set(loaded)


def test_a_model_that_was_not_loaded_is_noticed():
    assert not_loaded("21_ptd_analysis", ["/models/meta-llama/Llama-2-7b-chat-hf"]) == []
    assert not_loaded("21_ptd_analysis", ["EleutherAI/pythia-2.8b"]) == [
        "21_ptd_analysis: llama2-7b-chat was not loaded."
    ]


@pytest.mark.slow
def test_the_script_for_a_gpu_runs_whole_on_a_cpu(tmp_path):
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    how = {"PAIR": "tiny", "DEVICE": "cpu", "LIMIT": "1", "TOKENS": "8", "PATH": path}
    script = ROOT / "tools" / "gpu_colab.sh"
    done = subprocess.run([script, tmp_path], env={**os.environ, **how}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    assert "to run" in (tmp_path / "plan.txt").read_text()
    for part, method in {"trees": "lookup-tree", "ptd": "self-draft", "traversal": "ar-fast"}.items():
        found = json.loads((tmp_path / f"{part}.json").read_text())
        assert method in {row["label"] for row in found["methods"]}


def test_colab_in_float32_is_rehearsed_on_its_own_pair_where_that_is_here(monkeypatch, tmp_path):
    monkeypatch.setenv("DYNATREE_CACHE", str(tmp_path))
    assert rehearsal.pair_of("colab", "float32") == {"pair": rehearsal.REAL}
    monkeypatch.setattr("dynatree_lib.models.fetch.fetched", lambda name: tmp_path)
    assert rehearsal.pair_of("colab", "float32") == rehearsal.pair_of("paper", "float16") == {}
    assert rehearsal.pair_of("colab", "bfloat16") == {"pair": rehearsal.REAL}
