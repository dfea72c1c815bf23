"""The report: what it shows, in which order, and that it opens without a network."""

import json
import re
import shutil
import subprocess
from itertools import pairwise

import pytest
from suite_notebooks import write_notebook

pytest.importorskip("nbconvert")

from plotly.offline import get_plotlyjs

from dynatree_suite.cli.main import main
from dynatree_suite.runs.comparison import compare_runs
from dynatree_suite.runs.pages import draw_formulas, figure_html
from dynatree_suite.runs.report import build_report, number

FIGURE = json.dumps({"data": [{"type": "scatter", "y": [1, 3, 2], "name": "</script>chain"}], "layout": {}})
SUMMARY = {
    "claims": [
        {"claim": "Trees beat chains", "value": 1.7712, "unit": "x", "holds": True, "record": "records/10_x/a.jsonl"},
        {"claim": "Cost <= 2.2 steps", "value": 2.31, "unit": "steps", "holds": False, "record": None},
    ],
    "tables": [{"caption": "Table 1 & 2", "html": "<table><tr><td>1.62x</td></tr></table>"}],
    "figures": [
        {"figure": "speed", "caption": "Speed", "headline": True, "path": "figures/10_x/speed.json"},
        {"figure": "other", "caption": "Other", "headline": False, "path": "figures/10_x/other.json"},
    ],
}
CELL = f"""
import json, os
from pathlib import Path
from IPython.display import display
out = Path(os.environ["DYNATREE_OUT"])
(out / "figures/10_x").mkdir(parents=True)
(out / "figures/10_x/speed.json").write_text({FIGURE!r})
(out / "10_x.summary.json").write_text({json.dumps(SUMMARY)!r})
display({{"application/vnd.plotly.v1+json": json.loads({FIGURE!r})}}, raw=True)
from ipywidgets import IntSlider, VBox
display(VBox([IntSlider(1)]))
"""


@pytest.fixture(scope="module")
def finished(tmp_path_factory):
    """A run's folder with one finished and one failed notebook."""
    folder = tmp_path_factory.mktemp("suite")
    write_notebook(folder / "notebooks", "10_x", CELL, about={"title": "Fixed <trees>"}, markdown="With $A_{ij}$.")
    write_notebook(folder / "notebooks", "20_y", "assert False, 'broken & bad'")
    main(["run", "--notebooks", str(folder / "notebooks"), "--out", str(folder / "out"), "--report"])
    return folder / "out"


@pytest.fixture(scope="module")
def page(finished):
    return (finished / "report.html").read_text(encoding="utf-8")


def test_problems_come_first_then_notebooks_then_claims(page):
    marks = ("<h1>", ">Problems<", ">Findings<", ">Notebooks<", 'id="10_x"', ">Environment<")
    order = [page.index(text) for text in marks]
    assert order == sorted(order)
    problems, findings = (page[page.index(one) : page.index(other)] for one, other in pairwise(marks[1:4]))
    assert "broken &amp; bad" in problems
    assert "Cost" not in problems
    assert "Cost &lt;= 2.2 steps: <b>2.31 steps</b>" in findings


def test_claims_tables_and_headline_figures_are_shown(page):
    assert "1 of 2 notebooks finished; 1 of 2 claims checked hold" in page
    assert "✓ holds" in page
    assert "✗ does not hold" in page
    assert "1.77 x" in page
    assert 'href="records/10_x/a.jsonl"' in page
    assert "Table 1 &amp; 2" in page
    assert "<td>1.62x</td>" in page
    assert page.count('class="dynatree-figure"') == 1
    assert "Fixed &lt;trees&gt;" in page


def test_nothing_is_loaded_from_elsewhere(finished):
    assert (finished / "plotly.min.js").stat().st_size > 1_000_000
    for path in finished.glob("*.html"):
        page = path.read_text(encoding="utf-8").replace(get_plotlyjs(), "")
        loaded = re.findall(r"""<(?:script|link|img|iframe)[^>]*(?:src|href)=["']([^"']+)""", page)
        beside = set() if path.name == "report.html" else {"plotly.min.js"}
        assert set(loaded) <= beside, f"{path.name} loads {loaded}"


def test_links_lead_somewhere(finished, page):
    links = re.findall(r'href="([^"#]+)"', page.replace(get_plotlyjs(), ""))
    assert "20_y.html" in links
    assert [link for link in links if not (finished / link).exists()] == ["records/10_x/a.jsonl"]


def test_executed_pages_draw_figures_and_formulas(finished):
    text = (finished / "10_x.html").read_text(encoding="utf-8")
    assert 'class="dynatree-figure"' in text
    assert "\\u003c/script>chain" in text
    assert "<msub>" in text


@pytest.mark.parametrize("text", ["</script>", "<!--<script>", "</SCRIPT >"])
def test_a_figure_cannot_end_its_script_element_nor_keep_it_from_ending(text):
    figure = json.dumps({"data": [{"name": text}]})
    page = figure_html(figure)
    inner = page.removeprefix('<div class="dynatree-figure"><script type="application/json">')
    inner = inner.removesuffix("</script></div>")
    assert "<" not in inner
    assert json.loads(inner) == json.loads(figure)


def test_formulas_leave_code_and_prices_alone():
    assert draw_formulas("costs $5 or $6, `$x$`") == "costs $5 or $6, `$x$`"
    assert "<math" in draw_formulas("$$\\alpha$$")
    assert draw_formulas("```\n$x$\n```") == "```\n$x$\n```"


def test_an_altered_notebook_is_a_problem(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    (out / "10_x.ipynb").write_text((out / "10_x.ipynb").read_text() + " ")
    assert "10_x.ipynb is truncated or was altered" in build_report(out).read_text()
    (out / "10_x.receipt.json").write_text("{")
    assert "its receipt cannot be read" in build_report(out).read_text()


def test_a_damaged_summary_costs_only_that_notebooks_claims(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    (out / "10_x.summary.json").write_text('{"claims": [')
    assert "10_x.summary.json is truncated or was altered" in build_report(out).read_text()


def test_a_damaged_file_of_the_run_is_named_in_the_first_lines(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    (out / "run.json").write_text('{"profile": ')
    page = build_report(out).read_text(encoding="utf-8")
    assert page.index("run.json is truncated or not JSON") < page.index(">Problems<")
    assert ">Environment<" in page  # the notebooks' receipts have it


@pytest.mark.parametrize(
    ("name", "odd", "words"),
    [
        ("10_x.receipt.json", {"seconds": "many"}, "10_x</b> unreadable: its receipt cannot be read"),
        ("10_x.receipt.json", {"seconds": [1]}, "10_x</b> unreadable: its receipt cannot be read"),
        ("10_x.receipt.json", {"memory_mb": {}}, "10_x</b> unreadable: its receipt cannot be read"),
        ("10_x.receipt.json", {"title": 3}, "10_x</b> unreadable: its receipt cannot be read"),
        ("20_y.failure.json", {"problem": [1]}, "20_y</b> failed: its failure note cannot be read"),
        ("20_y.failure.json", {"seconds": "many"}, "20_y</b> failed: its failure note cannot be read"),
        *(("10_x.summary.json", {key: value}, f"10_x.summary.json holds something else than the suite writes .*{key}")
          for key, values in {"claims": (3, [3], [{"value": 1}], [{"claim": "x", "value": [1]}]), "tables": (5, [5]),
                              "figures": ("x", [{}])}.items() for value in values),
        ("run.json", {"notebooks": 7}, "run.json holds something else than the suite writes as .*notebooks"),
        ("run.json", {"notebooks": [1, None]}, "run.json holds something else than the suite writes as .*notebooks"),
        ("run.json", {"commit": 7}, "run.json holds something else"),
        ("run.json", {"environment": 7}, "run.json holds something else"),
    ],
)  # fmt: skip
def test_json_of_another_shape_is_named_and_the_rest_is_shown(finished, tmp_path, capsys, name, odd, words):
    out = shutil.copytree(finished, tmp_path / "out")
    content = json.loads((out / name).read_text())
    (out / name).write_text(json.dumps({**content, **odd}))
    assert main(["report", str(out)]) == 0
    assert re.search(words, (out / "report.html").read_text(encoding="utf-8"))
    assert main(["report", str(finished), str(out)]) == 0
    notebooks = str(finished.parent / "notebooks")
    assert main(["run", "--notebooks", notebooks, "--out", str(out), "--resume", "--dry-run"]) == 0
    capsys.readouterr()


def test_what_is_no_unicode_is_escaped(finished, tmp_path):
    out = tmp_path / "run"
    shutil.copytree(finished, out)
    (receipt,) = sorted(out.glob("*.receipt.json"))[:1]
    content = json.loads(receipt.read_text())
    receipt.write_text(json.dumps(content | {"title": "A \ud800 title"}))
    assert main(["report", str(out)]) == 0
    assert "A \\ud800 title" in (out / "report.html").read_text(encoding="utf-8")


def test_a_notebook_that_cannot_be_shown_is_a_problem_of_its_own(finished, tmp_path):
    out = shutil.copytree(finished, tmp_path / "out")
    (out / "10_x.ipynb").write_text('{"cells": 3}')
    page = build_report(out).read_text(encoding="utf-8")
    assert "10_x.ipynb cannot be shown" in page
    assert "broken &amp; bad" in page


def test_what_differs_between_notebooks_is_told_of_each(finished, page, tmp_path):
    assert "profile laptop, started" in page
    assert "<th>Machine</th>" not in page
    out = shutil.copytree(finished, tmp_path / "out")
    path = out / "20_y.failure.json"
    note = json.loads(path.read_text())
    machine = {**note["environment"], "cpu": "another <processor>", "gpu": None, "threads": 96}
    path.write_text(json.dumps({**note, "profile": "smoke", "environment": machine, "started": "2020-01-01"}))
    page = build_report(out).read_text(encoding="utf-8")
    assert "profile several, started 2020-01-01" in page
    assert re.search(r"<th>Executed</th><th>Profile</th><th>Machine</th></tr>", page)
    assert re.search(r"<td>smoke</td>\s*<td>another &lt;processor&gt;, 96 threads</td>", page)
    assert re.search(r"<dt>cpu </dt><dd>several</dd>", page)
    for name in ("10_x.receipt.json", "20_y.failure.json"):  # of an earlier version, which wrote this for the whole run
        note = json.loads((out / name).read_text())
        (out / name).write_text(json.dumps({key: note[key] for key in note if key not in ("environment", "profile")}))
    page = build_report(out).read_text(encoding="utf-8")
    assert "profile laptop, started 2020-01-01" in page
    assert "<dd>several</dd>" not in page


def test_results_of_an_earlier_library_are_said_to_be(finished, page, tmp_path):
    assert "another version of the library's code" not in page
    out = shutil.copytree(finished, tmp_path / "out")
    receipt = json.loads((out / "10_x.receipt.json").read_text())
    (out / "10_x.receipt.json").write_text(json.dumps({**receipt, "library_sha256": "0" * 64}))
    assert "10_x ran with another version of the library's code than this one." in build_report(out).read_text(
        encoding="utf-8"
    )


class TestComparison:
    @pytest.fixture
    def later(self, finished, tmp_path):
        """The same run, with one claim turned and one that only it states."""
        out = shutil.copytree(finished, tmp_path / "later")
        path = out / "10_x.summary.json"
        summary = json.loads(path.read_text())
        summary["claims"][1].update(value=2.1, holds=True)
        summary["claims"][0].update(holds=None)  # not judged, which is no other verdict
        summary["claims"].append({"claim": "New & open", "value": 3, "unit": "", "holds": None, "record": None})
        path.write_text(json.dumps(summary))
        for name in ("10_x.receipt.json", "20_y.failure.json"):
            note = json.loads((out / name).read_text())
            note["environment"]["cpu"] = "another <processor>"
            (out / name).write_text(json.dumps(note))
        return out

    def test_verdicts_that_changed_come_first(self, finished, later, capsys):
        assert main(["report", str(finished), str(later)]) == 0
        assert capsys.readouterr().out.strip() == f"Comparison: {later / 'comparison.html'}"
        page = (later / "comparison.html").read_text(encoding="utf-8")
        assert "Claims stated by both runs: 2; with another verdict: 1; stated by one run only: 1." in page
        changed = page[page.index(">Verdicts that changed<") : page.index(">What differs about the runs<")]
        assert re.search(r"Cost &lt;= 2\.2 steps.*2\.31 steps.*does not hold.*2\.1 steps.*✓ holds", changed, re.S)
        assert "Trees beat chains" not in changed
        assert "another &lt;processor&gt;" in page
        assert re.search(r"New &amp; open</td>\s*<td></td><td><span class=\"soft\">not stated", page)
        assert "<script" not in page

    def test_a_notebook_of_one_run_and_a_damaged_file_are_named(self, finished, later):
        for path in later.glob("20_y.*"):
            path.unlink()
        (later / "run.json").write_text("{")
        page = compare_runs(finished, later).read_text(encoding="utf-8")
        assert "not in this run" in page
        assert "later: run.json is truncated" in page

    def test_what_cannot_be_compared_is_refused(self, finished, tmp_path):
        with pytest.raises(ValueError, match="are the same run; name two"):
            compare_runs(finished, finished)
        with pytest.raises(FileNotFoundError, match="holds no receipt"):
            compare_runs(finished, tmp_path)


def test_a_folder_without_receipts_is_refused(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "holds no receipt" in capsys.readouterr().err


def test_a_page_says_where_controls_would_be(finished):
    page = (finished / "10_x.html").read_text(encoding="utf-8")
    assert "Here are controls, where the notebook runs in JupyterLab, Colab or VS Code." in page
    assert "VBox(children" not in page


def test_numbers_are_short():
    values = [1.7712, 152.04, 12345.6, 16, "3/20", None, 0.00123]
    assert [number(v) for v in values] == ["1.77", "152.0", "12,346", "16", "3/20", "", "0.00123"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["report.html", "10_x.html"])
def test_figures_are_drawn_in_a_browser_without_network(finished, browser, name):
    quiet = ["--disable-background-networking", "--disable-component-update", "--disable-sync", "--no-first-run"]
    offline = ["--host-resolver-rules=MAP * ~NOTFOUND", "--virtual-time-budget=10000", "--no-sandbox", "--disable-gpu"]
    command = [browser, "--headless=new", *quiet, *offline, "--dump-dom", (finished / name).as_uri()]
    page = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True).stdout
    assert "scatterlayer" in page  # plotly's own drawing of the trace
    assert "needs plotly.min.js" not in page.partition("<body")[2].replace("place.textContent", "")
