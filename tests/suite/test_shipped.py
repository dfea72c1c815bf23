"""`dynatree notebooks`: a folder to work in, made by the command line; nothing in it is overwritten."""

import re
import tomllib
from itertools import permutations
from pathlib import Path

import pytest

from dynatree_suite.cli import notebooks as command
from dynatree_suite.cli.main import main
from dynatree_suite.runs import shipped
from dynatree_suite.runs.plan import project_root

ROOT = Path(__file__).resolve().parents[2]


def test_a_folder_of_notebooks_serves_as_a_checkout(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "mine"
    assert main(["notebooks", str(folder)]) == 0
    printed = capsys.readouterr().out
    names = {path.name for path in (folder / "notebooks").glob("*.ipynb")}
    assert names == {path.name for path in (ROOT / "notebooks").glob("*.ipynb")}
    assert (folder / "notebooks" / "solutions" / "00_start_here.ipynb").is_file()
    assert (folder / "outputs" / "reference" / "audit.json.gz").is_file()
    assert re.match(r"\d+ notebooks and \d+ records are new in ", printed)
    assert "Open them: jupyter lab " in printed
    monkeypatch.delenv("DYNATREE_ROOT", raising=False)
    assert project_root(folder / "notebooks") == folder
    monkeypatch.setattr(command, "find_spec", lambda name: None)
    assert main(["notebooks", str(folder)]) == 0  # again: all is there, and Jupyter is not
    printed = capsys.readouterr().out
    assert printed.startswith("0 notebooks and 0 records are new in ")
    assert "Open them: pip install jupyterlab, then jupyter lab " in printed


def test_a_changed_file_is_never_overwritten(tmp_path, capsys):
    mine = tmp_path / "notebooks" / "00_start_here.ipynb"
    mine.parent.mkdir()
    mine.write_text("my work")
    assert main(["notebooks", str(tmp_path)]) == 2
    assert "00_start_here.ipynb" in capsys.readouterr().err
    assert mine.read_text() == "my work"
    assert len(list(tmp_path.rglob("*"))) == 2  # nothing else was written


def test_the_source_is_refused(capsys):
    assert main(["notebooks", str(ROOT)]) == 2
    assert "name another folder" in capsys.readouterr().err


def test_an_installation_without_notebooks_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "dynatree_suite")
    with pytest.raises(ValueError, match="carries no notebooks"):
        shipped.shipped_root()


def test_the_wheel_carries_what_is_copied():
    body = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    carried = body["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]
    inside = {name: place for name, place in carried.items() if place.startswith("dynatree_suite/shipped/")}
    assert inside == {name: f"dynatree_suite/shipped/{name}" for name in shipped.shipped_names(ROOT)}
    assert [name for name in inside if not (ROOT / name).exists()] == []
    assert "notebooks" in inside
    for one, other in permutations(inside, 2):  # the build refuses a file that comes twice
        assert not one.startswith(f"{other}/")


def test_all_that_a_wheel_carries_is_copied(tmp_path, monkeypatch):
    there = {"notebooks/00_x.ipynb", "notebooks/solutions/00_x.ipynb", "outputs/reference/cpu/a.json"}
    for name in there:
        path = tmp_path / "dynatree_suite" / "shipped" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    monkeypatch.setattr(shipped, "PACKAGE", tmp_path / "dynatree_suite")
    copied = shipped.copy_notebooks(tmp_path / "mine")
    assert {path.relative_to(tmp_path / "mine").as_posix() for path in copied} == there


def test_what_notebooks_read_of_a_checkout_is_copied():
    text = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "notebooks").glob("*.ipynb"))
    read = re.findall(r'nb\.reference\(\\"([\w./-]+)\\"\)', text)
    assert read
    for name in read:
        assert f"outputs/reference/{name}".startswith(tuple(shipped.shipped_names(ROOT))), name
    assert not re.search(r'nb\.root / \\"outputs/reference/', text)
