"""A notebook on a machine without the library, as in Colab: its second cell installs it."""

import importlib.util
import json
import os
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def install_cell(path):
    cell = json.loads(path.read_text(encoding="utf-8"))["cells"][1]
    assert cell["metadata"] == {"tags": ["install"]}, f"the second cell of {path.name} installs the library"
    return "".join(cell["source"])


CELL = install_cell(NOTEBOOKS[0])


def test_every_notebook_has_the_same_cell():
    assert {install_cell(path) for path in NOTEBOOKS} == {CELL}


@pytest.fixture
def commands(monkeypatch, tmp_path):
    """Commands that the cell would run, in an empty folder, where the library cannot be found."""
    made, find = [], importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "dynatree_lib" else find(name))
    monkeypatch.setattr(subprocess, "run", lambda command: made.append(command) or SimpleNamespace(returncode=0))
    monkeypatch.delenv("DYNATREE_WHEEL", raising=False)
    monkeypatch.chdir(tmp_path)
    return made


def test_an_installed_library_is_left_alone(commands, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin="__init__.py"))
    exec(CELL, {})
    assert not commands


def test_a_folder_of_the_librarys_name_is_not_the_library(commands, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: SimpleNamespace(origin=None))
    with pytest.raises(ModuleNotFoundError, match="is not installed"):
        exec(CELL, {})


def test_without_a_wheel_it_says_what_to_do(commands):
    with pytest.raises(ModuleNotFoundError, match=r"Upload its wheel \(dynatree_lib-\*\.whl\) into this"):
        exec(CELL, {})
    assert not commands


@pytest.mark.parametrize("named", [None, "elsewhere/checkout", "git+https://example.org/dynatree@v1"])
def test_it_installs_what_is_there_or_named(commands, monkeypatch, tmp_path, named):
    wheel = tmp_path / "dynatree_lib-1.0-py3-none-any.whl"
    wheel.touch()
    if named:
        monkeypatch.setenv("DYNATREE_WHEEL", named)
        (tmp_path / "elsewhere" / "checkout").mkdir(parents=True)
    exec(CELL, {})
    address = named if named and "://" in named else (tmp_path / (named or wheel)).as_uri()
    pip = [sys.executable, "-m", "pip", "install", "--quiet", f"dynatree-lib[hosted] @ {address}"]
    assert commands == [pip, [sys.executable, "-m", "dynatree_lib", "fetch", "smollm2"]]


def test_a_path_that_does_not_exist_is_named(commands, monkeypatch):
    monkeypatch.setenv("DYNATREE_WHEEL", "elsewhere.whl")
    with pytest.raises(ModuleNotFoundError, match=r"and there is no elsewhere\.whl\. Upload"):
        exec(CELL, {})
    assert not commands


def test_a_wheel_that_was_uploaded_again_takes_the_place_of_the_first(commands, tmp_path):
    wheel = tmp_path / "dynatree_lib-1.0-py3-none-any.whl"
    for name, text in ((wheel.name, "first"), (f"{wheel.stem} (1).whl", "second"), (f"{wheel.stem} (2).whl", "third")):
        (tmp_path / name).write_text(text)
    exec(CELL, {})
    assert commands[0][-1] == f"dynatree-lib[hosted] @ {wheel.as_uri()}"
    assert wheel.read_text() == "third"
    assert [*tmp_path.glob("*.whl")] == [wheel]


def test_what_pip_could_not_install_is_told(commands, monkeypatch, tmp_path):
    (tmp_path / "dynatree_lib-1.0-py3-none-any.whl").touch()
    monkeypatch.setattr(subprocess, "run", lambda command: SimpleNamespace(returncode=1))
    with pytest.raises(RuntimeError, match=r"pip could not install dynatree_lib-1\.0-py3-none-any\.whl"):
        exec(CELL, {})


# ----------------------------------------------------------------------------------------------------------- the wheel
def tracked():
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True).stdout.decode()
    return [*filter(None, listed.split("\0"))]


def built(folder, number):
    """The wheel of a copy of the tracked files, whose folder and times differ with the number."""
    copy, wheels = folder / f"copy{number}", folder / f"wheels{number}"
    for name in tracked():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes((ROOT / name).read_bytes())
        os.utime(copy / name, (10**9 * number, 10**9 * number))
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(wheels), str(copy)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = wheels.glob("dynatree_lib-*.whl")
    return wheel


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    return built(tmp_path_factory.mktemp("wheel"), 1)


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_wheel_of_a_commit_is_the_same_to_the_byte(wheel, tmp_path):
    """Built twice, from folders of other names and times."""
    again = built(tmp_path, 2)
    assert (wheel.name, wheel.read_bytes()) == (again.name, again.read_bytes())


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_the_wheel_carries_the_data_and_runs_from_anywhere(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    shipped = {name for name in tracked() if name.startswith("data/")}
    assert shipped
    assert shipped <= {name.removeprefix("dynatree_lib/") for name in names}
    assert {"dynatree_suite/runs/report.css", "dynatree_suite/runs/report.html.j2", "dynatree_cpu/kernels.py"} <= names
    code = "import sys; sys.path.insert(0, 'site'); from dynatree_lib.paths import data_path; print(data_path())"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).resolve() == (tmp_path / "site/dynatree_lib/data").resolve()


@pytest.mark.slow
@pytest.mark.xdist_group("wheel")
def test_a_notebook_runs_in_an_environment_that_lacks_the_library(wheel, tmp_path):
    """An environment with everything but the library, a wheel in the notebook's folder, and no index to be reached."""
    there = next(Path(path) for path in sys.path if path.endswith("site-packages"))
    venv.create(tmp_path / "env", with_pip=True)
    (packages,) = (tmp_path / "env").glob("lib/python3*/site-packages")
    for path in there.iterdir():
        if "dynatree_" not in path.name and not (packages / path.name).exists():
            (packages / path.name).symlink_to(path)
    folder = tmp_path / "content"
    folder.mkdir()
    shutil.copy(wheel, folder)
    notebook = folder / "00_start_here.ipynb"
    notebook.write_bytes((ROOT / "notebooks" / notebook.name).read_bytes())
    python = str(tmp_path / "env" / "bin" / "python")
    own = {"PIP_NO_INDEX": "1", "DYNATREE_PROFILE": "smoke", "DYNATREE_CACHE": str(tmp_path / "cache")}
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("DYNATREE_", "PYTHON"))}
    script = "import sys, nbclient, nbformat; book = nbformat.read(sys.argv[1], 4); "
    script += "nbclient.NotebookClient(book, kernel_name='python3', timeout=300).execute(); "
    script += "nbformat.write(book, sys.argv[1])"
    done = subprocess.run(
        [python, "-c", script, notebook.name], cwd=folder, capture_output=True, text=True, timeout=500, check=False,
        env=kept | own,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert (packages / "dynatree_suite" / "shipped").is_dir()
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    assert any("application/vnd.plotly.v1+json" in output.get("data", {}) for output in outputs)
