"""The executed notebooks in outputs/reference/notebooks are those of today or say so, and a code host can show them."""

import base64
import io
import re
import subprocess

import nbformat
import pytest

from dynatree_lib.plots.theme import FIGURE_TYPE
from dynatree_suite.bench.protocol import read_results
from dynatree_suite.bench.statistics import ratio
from dynatree_suite.runs.pages import WIDGET_TYPE
from dynatree_suite.runs.plan import read_source
from tools.keep_notebooks import KEPT, NOTEBOOKS, OLDER, WIDTH, changed_since, still

KEPT_NOTEBOOKS = sorted(KEPT.glob("*.ipynb"))
HEADLINE = [path.stem for path in sorted(NOTEBOOKS.glob("*.ipynb")) if read_source(path).headline]


def test_the_headline_notebooks_are_kept():
    assert {path.stem for path in KEPT_NOTEBOOKS} >= set(HEADLINE)
    assert sum(path.stat().st_size for path in KEPT_NOTEBOOKS) < 6e6


@pytest.mark.parametrize("path", KEPT_NOTEBOOKS, ids=lambda path: path.stem)
def test_a_kept_notebook_is_todays_and_shows_its_pictures(path):
    page = nbformat.read(path, as_version=4)
    kept = page.metadata["dynatree"]
    todays = kept["source_sha256"] == read_source(NOTEBOOKS / path.name).sha256
    assert todays is not (OLDER in page.cells[0].source), "run python3 -m tools.keep_notebooks"
    assert len(kept["commit"]) == 40
    assert kept["commit"][:12] in page.cells[0].source
    outputs = [output for cell in page.cells for output in cell.get("outputs", [])]
    assert not [output for output in outputs if output.output_type == "error"]
    data = [output.data for output in outputs if "data" in output]
    assert not [one for one in data if FIGURE_TYPE in one or WIDGET_TYPE in one]
    pictures = [base64.b64decode(one["image/png"]) for one in data if "image/png" in one]
    assert len(pictures) >= 3
    assert all(picture.startswith(b"\x89PNG") for picture in pictures)


@pytest.mark.parametrize("path", KEPT_NOTEBOOKS, ids=lambda path: path.stem)
def test_a_kept_notebook_names_the_commit_of_the_librarys_latest_change_or_none(path):
    page = nbformat.read(path, as_version=4)
    own, *latest = re.findall(r"commit ([0-9a-f]{12})\b", page.cells[0].source)
    assert own == page.metadata["dynatree"]["commit"][:12]
    assert len(latest) == ("The library has changed since, " in page.cells[0].source)
    assert own not in latest


def test_what_a_kept_notebook_quotes_of_a_kept_record_is_what_the_record_says_today():
    quoted = 0
    for path in KEPT_NOTEBOOKS:
        outputs = [output for cell in nbformat.read(path, as_version=4).cells for output in cell.get("outputs", [])]
        for table in (output.data.get("text/html", "") for output in outputs if "data" in output):
            names = re.findall(r"Record: (outputs/reference/[^ ]+\.jsonl\.gz)\.(?=[^<]*</caption>)", table)
            titles = re.findall(r"<th>(.*?)</th>", table)
            if not names or "x ar-fast" not in titles:
                continue
            frames, parts = [read_results(NOTEBOOKS.parent / name).records.frame() for name in names], list[str]()
            for row in re.findall(r"<tr>(.*?)</tr>", table, flags=re.S):
                values = dict(zip(titles, re.findall(r"<td>(.*?)</td>", row), strict=False))
                if values:
                    part = values.get("record", "")  # a table of several records has its rows in their order
                    parts += [part] * (part not in parts)
                    told = str(ratio(frames[parts.index(part)], values["method"], over="ar-fast"))
                    assert values["x ar-fast"] == told, (path.stem, names, values["method"])
                    quoted += 1
    assert quoted > 20


def test_only_a_later_change_of_the_library_is_told(tmp_path):
    def git(*words):
        person = ["-c", "user.name=x", "-c", "user.email=x@example.org", "-c", "commit.gpgsign=false"]
        done = subprocess.run(["git", *person, *words], cwd=tmp_path, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def commit(name):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
        git("add", "-A")
        git("commit", "-q", "-m", name)
        return git("rev-parse", "HEAD")

    git("init", "-q")
    first, ran, page = (commit(name) for name in ("dynatree_lib/a.py", "dynatree_cpu/b.py", "README.md"))
    assert changed_since(ran, tmp_path) == changed_since(page, tmp_path) == ""
    assert changed_since(first, tmp_path).startswith(f" The library has changed since, last with commit {ran[:12]},")


def test_what_cannot_be_seen_without_a_kernel_is_replaced():
    assert "text/html" in still({WIDGET_TYPE: {}, "text/plain": "Walk"})
    table = {"text/html": "<table>", "text/plain": "x"}
    assert still(table) == table


@pytest.mark.slow
def test_a_figure_becomes_a_small_picture():
    image = pytest.importorskip("PIL.Image")
    pytest.importorskip("kaleido")
    drawn = still({FIGURE_TYPE: {"data": [{"type": "bar", "y": [1, 2]}], "layout": {"height": 300}}})["image/png"]
    picture = image.open(io.BytesIO(base64.b64decode(drawn)))
    assert picture.size == (WIDTH, 300)
