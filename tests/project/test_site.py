"""The pages of docs/ and the API as a site: built without a warning, and read without a network."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.slow
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path):
    site = tmp_path / "site"
    command = [sys.executable, "-m", "sphinx", "--fail-on-warning", "--quiet", "-c", "docs", ".", str(site)]
    command += ["-D", "toc_object_entries=0"]  # lists of members beside each page take a third of the time
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr[-3000:]
    pages = {path.relative_to(site).as_posix(): path.read_text(encoding="utf-8") for path in site.rglob("*.html")}
    names = [f"docs/{path.stem}.html" for path in (ROOT / "docs").glob("*.md")]
    assert {
        "index.html",
        "README.html",
        "outputs/api/dynatree_lib/dynatree_lib.verifiers.traversal.html",
        *names,
    } <= set(pages)
    assert {f"outputs/api/{name}/{name}.html" for name in ("dynatree_cpu", "dynatree_suite")} <= set(pages)
    assert 'id="dynatree_lib.decoding.generate"' in pages["outputs/api/dynatree_lib/dynatree_lib.decoding.html"]
    loaded = r'<(?:script|img|link|iframe)\b[^>]*\b(?:src|href)="(?:https?:)?//'
    assert not [name for name, text in pages.items() if re.search(loaded, text)]
