"""Notebooks section by section: an error ends its section, later ones run, and the run says what failed and why."""

import json

import pytest
from suite_notebooks import write_notebook

from dynatree_suite.runs.plan import find_sources, make_jobs
from dynatree_suite.runs.receipts import Files
from dynatree_suite.runs.run import run_jobs
from dynatree_suite.runs.sections import assigned, failures, heading, in_a_line


def add_sections(path, sections):
    """Put sections (heading, code cells) behind a notebook's cells."""
    notebook = json.loads(path.read_text())
    for number, (title, *cells) in enumerate(sections):
        text = {"cell_type": "markdown", "id": f"h{number}", "metadata": {}, "source": f"## {title}\n\nText."}
        code = {"cell_type": "code", "metadata": {}, "outputs": [], "execution_count": None}
        notebook["cells"] += [text, *({**code, "id": f"s{number}-{n}", "source": one} for n, one in enumerate(cells))]
    path.write_text(json.dumps(notebook))


def outputs_of(notebook):
    return ["".join(out.get("text", "")) for cell in notebook["cells"] for out in cell.get("outputs", ())]


def test_an_error_ends_its_section_and_the_later_ones_run(tmp_path):
    pytest.importorskip("papermill")
    path = write_notebook(tmp_path / "notebooks", "10_x", "ready = 1")
    add_sections(path, [
        ("1 \u00b7 Sound", "kept, untouched = ['of section 1'], [1]\nprint('one', ready)"),
        ("2 \u00b7 Broken", "print('two')", "x = 1 / 0", "kept = [print('never') for untouched in ()]"),
        ("3 \u00b7 In need", "print('three')", "print(kept)"),
        ("4 \u00b7 Sound again", "print('four', len(untouched))"),
        ("5 \u00b7 Broken too", "raise ValueError('bad\\nworse')"),
    ])  # fmt: skip
    jobs, said = make_jobs(find_sources(tmp_path / "notebooks"), "smoke", {}), []
    assert run_jobs(jobs, tmp_path / "out", tmp_path, resume=False, say=said.append) == 1
    files = Files(tmp_path / "out", "10_x")
    stopped = json.loads(files.stopped("failed").read_text())
    printed = "".join(outputs_of(stopped))
    own = [cell["id"] for cell in json.loads(path.read_text())["cells"]]
    assert [cell["id"] for cell in stopped["cells"] if cell["id"] in own] == own
    assert "of section 1" not in printed  # the older value of a name that the failed section would have made
    assert [word in printed for word in ("one", "two", "never", "three", "four")] == [True, True, False, True, True]
    problem = json.loads(files.failure.read_text())["problem"]
    assert "section '2 \u00b7 Broken', cell In [6] `x = 1 / 0` raised ZeroDivisionError: division by zero" in problem
    assert "section '3 \u00b7 In need' needs '2 \u00b7 Broken'" in problem
    assert "section '5 \u00b7 Broken too'" in problem
    assert "\n" not in problem
    assert any(problem in line for line in said)
    assert not files.receipt.exists()


def test_an_error_before_the_first_section_ends_the_notebook(tmp_path):
    pytest.importorskip("papermill")
    path = write_notebook(tmp_path / "notebooks", "10_x", "raise ValueError('bad pair')")
    add_sections(path, [("1 \u00b7 Sound", "print('one')")])
    jobs = make_jobs(find_sources(tmp_path / "notebooks"), "smoke", {})
    assert run_jobs(jobs, tmp_path / "out", tmp_path, resume=False, say=lambda text: None) == 1
    stopped = json.loads(Files(tmp_path / "out", "10_x").stopped("failed").read_text())
    assert "one" not in "".join(outputs_of(stopped))


def markdown(text):
    return {"cell_type": "markdown", "source": text}


def error(name, value, source="f()", number=1):
    raised = {"output_type": "error", "ename": name, "evalue": value, "traceback": []}
    return {"cell_type": "code", "source": source, "execution_count": number, "outputs": [raised]}


def test_headings_of_the_second_level_begin_sections():
    assert heading(markdown("## 3 \u00b7 What *costs*\n\nText")) == "3 \u00b7 What *costs*"
    assert heading(markdown("Text before\n## 4 \u00b7 Late")) == "4 \u00b7 Late"
    assert heading(markdown("# Title\n### Part")) is None
    assert heading({"cell_type": "code", "source": "## a comment"}) is None


def test_a_missing_name_of_ones_own_is_no_consequence():
    cells = [markdown("## A"), error("NameError", "name 'typo' is not defined", "y = typo")]
    cells += [markdown("## B"), error("NameError", "name 'y' is not defined", number=2)]
    cells += [markdown("## C"), error("KeyError", "name 'y' is not defined", number=3)]
    found = failures(cells)
    assert [one.needs for one in found] == ["", "A", ""]
    assert in_a_line(found).endswith("; section 'B' needs 'A'")


@pytest.mark.parametrize(
    ("source", "names"),
    [
        ("a, b = 1, [c for c in ()]", "a b"),
        ("def f(x):\n    y = x\nclass K:\n    z = 1", "f K"),
        ("for i in ():\n    with open(i) as j:\n        k: int = 2", "i j k"),
        ("import os.path as p, sys\nq = lambda r: (s := 1)", "p sys q"),
        ("t = [u := 1 for v in ()]", "t u"),
        ("not python", ""),
    ],
)
def test_the_names_that_a_cell_makes(source, names):
    assert set(assigned(source)) == set(names.split())
    assert set(assigned(source, imports=False)) == set(names.split()) - {"p", "sys"}


def test_a_kernel_that_dies_after_a_failed_section_is_told_as_well(tmp_path):
    pytest.importorskip("papermill")
    path = write_notebook(tmp_path / "notebooks", "10_x", "ready = 1")
    add_sections(path, [("1 \u00b7 Broken", "x = 1 / 0"), ("2 \u00b7 Fatal", "import os\nos._exit(1)")])
    jobs = make_jobs(find_sources(tmp_path / "notebooks"), "smoke", {})
    assert run_jobs(jobs, tmp_path / "out", tmp_path, resume=False, say=lambda text: None) == 1
    problem = json.loads(Files(tmp_path / "out", "10_x").failure.read_text())["problem"]
    assert "section '1 \u00b7 Broken', cell In [4] `x = 1 / 0` raised ZeroDivisionError" in problem
    assert "`import os` ended with DeadKernelError" in problem
