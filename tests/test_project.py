"""Rules of the project itself: which way imports point, how large things may grow, what notebooks may hold."""

import ast
import gzip
import json
import re
import shutil
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import SimpleNamespace

import pytest
from browser import NAMES, found_browser

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "dynatree_lib"
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# Steps of the street, from the ground up: a module imports from its own room and from lower steps only. A drafter is
# told verdicts, so drafters stand above verifiers; a verifier never sees a drafter.
GROUND = ["checks", "paths tree stopping costs", "masks sampling"]
DECODER = [*GROUND, "models processing", "verifiers", "drafters", "decoding", "summary"]
PEOPLE = "experiments suite explore course"
STEPS = [*DECODER, "fast", "hf", "workloads papers", "training measure", "plots", PEOPLE, "cli"]
STREET = {room: step for step, rooms in enumerate(STEPS) for room in rooms.split()}
CORE = {room for room, step in STREET.items() if step <= STEPS.index("hf")}
NOT_IN_CORE = {"plotly", "ipywidgets", "datasets", "papermill", "nbformat", "IPython", "pandas", "scipy", "jinja2"}


def modules():
    return sorted(path for path in PACKAGE.rglob("*.py"))


def room(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def imported(path):
    """Every module name a file imports, also inside functions, relative ones made absolute."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(filter(None, [base, node.module or ""]))
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


def imported_rooms(path):
    names = [name.split(".") for name in imported(path)]
    here = {p.stem for p in PACKAGE.iterdir() if p.suffix == ".py" or p.is_dir()}
    return {parts[1] for parts in names if parts[0] == "dynatree_lib" and len(parts) > 1 and parts[1] in here}


@pytest.mark.parametrize("path", modules(), ids=lambda path: path.relative_to(PACKAGE).as_posix())
def test_imports_point_one_way(path):
    mine = room(path)
    if mine in ("__init__", "__main__"):  # the front door names what every room offers
        return
    wrong = {r for r in imported_rooms(path) - {mine} if STREET[r] >= STREET[mine]}
    assert not wrong, f"{path.name} in room '{mine}' imports from {sorted(wrong)}, which is beside or above it"
    if mine in CORE:
        heavy = {name.split(".")[0] for name in imported(path)} & NOT_IN_CORE
        assert not heavy, f"{path.name} belongs to the core and imports {sorted(heavy)}"


def test_an_import_against_the_street_is_noticed(tmp_path, monkeypatch):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    monkeypatch.setitem(globals(), "PACKAGE", tmp_path / "dynatree_lib")
    folder = tmp_path / "dynatree_lib" / "drafters"
    folder.mkdir(parents=True)
    (folder.parent / "decoding.py").touch()
    (folder.parent / "tree.py").touch()
    (folder / "bad.py").write_text("from ..tree import TokenTree\ndef f():\n    from .. import decoding\n")
    assert imported_rooms(folder / "bad.py") == {"tree", "decoding"}
    with pytest.raises(AssertionError, match="imports from \\['decoding'\\]"):
        test_imports_point_one_way(folder / "bad.py")


def tracked_files():
    if not shutil.which("git") or not (ROOT / ".git").exists():
        pytest.skip("not a git checkout")
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\0")
    return [ROOT / name for name in names if name and (ROOT / name).is_file()]


def test_no_file_names_a_folder_of_one_machine():
    home = re.compile(r"(?<![A-Za-z0-9.$_}\])*])/(?:home|Users|work|farm)/[A-Za-z]")
    measured = re.compile(r"/tmp/[A-Za-z]")  # where a record was made
    text_files = {".py", ".md", ".toml", ".yml", ".yaml", ".cff", ".ipynb", ".json", ".jsonl", ".txt", ".gz", ""}
    found = []
    for path in tracked_files():
        if path.suffix not in text_files or path.stat().st_size > 5_000_000:
            continue
        body = path.read_bytes()
        text = (gzip.decompress(body) if path.suffix == ".gz" else body).decode("utf-8", errors="ignore")
        # Prompts and papers' texts may speak of anybody's home; nothing may speak of this checkout.
        room = path.relative_to(ROOT).parts[0]
        if (
            f"{ROOT}/" in text
            or (room != "data" and home.search(text))
            or (room == "outputs" and measured.search(text))
        ):
            found.append(path.relative_to(ROOT).as_posix())
    assert not found


def requirement_name(line):
    return re.split(r"[\[<>=!~; ]", line.strip())[0].lower().replace("_", "-")


def required(project, extras=None):
    """The direct dependencies of the core and of some extras, by default all."""
    lists = project["optional-dependencies"]
    named = [text for name in extras or lists for text in lists[name]]
    return [*project["dependencies"], *(text for text in named if requirement_name(text) != "dynatree-lib")]


def test_constraints_pin_every_direct_dependency_within_its_range():
    from packaging.requirements import Requirement

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if not line.startswith("#")]
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+==[A-Za-z0-9.]+", line) for line in lines)
    pins = {requirement_name(line): line.split("==")[1] for line in lines}
    assert pins["torch"] == "2.13.0"
    for text in required(project):
        requirement = Requirement(text)
        assert requirement.specifier.contains(pins[requirement_name(text)]), f"{text} against constraints.txt"
    assert {requirement_name(text) for text in project["dependencies"]} == {
        "torch",
        "transformers",
        "safetensors",
        "numpy",
    }


# Run by name, by the user or by transformers.
NOT_IMPORTED = {"ipykernel", "jupyterlab", "nbval", "safetensors"}
IMPORT_NAMES = {"rouge-score": "rouge_score"}


def test_what_is_required_is_imported():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    names = {requirement_name(text) for text in required(project, ["hosted", "notebooks"])} - NOT_IMPORTED
    found = {name.split(".")[0] for path in modules() for name in imported(path)}
    assert {IMPORT_NAMES.get(name, name) for name in names} <= found


# A finder that hides what an environment with the core alone would lack; code that follows runs as if in it.
HIDE = """
import sys
from importlib.machinery import PathFinder
hidden = set(sys.argv.pop(1).split(","))
class Bare(PathFinder):
    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.split(".")[0] in hidden else super().find_spec(name, path, target)
sys.meta_path[:] = [Bare if finder is PathFinder else finder for finder in sys.meta_path]
"""
EXTRAS = "IPython,datasets,ipykernel,ipywidgets,jupyterlab,latex2mathml,nbconvert,nbformat,papermill,plotly,psutil,"
EXTRAS += "rouge_score,sacrebleu,tabulate,pyarrow"
DECODE = """
import dynatree_lib as dt
pair = dt.load_pair("tiny")
out = dt.generate(pair.target, [5, 6, 7], dt.FixedTree(pair.draft), max_new_tokens=8)
assert out.tokens == dt.autoregressive_fast(pair.target, [5, 6, 7], max_new_tokens=8).tokens
assert len(dt.generate_batch(pair.target, [[5, 6], [7]], dt.Chain(pair.draft), max_new_tokens=4)) == 2
import dynatree_lib.training.pipeline, dynatree_lib.training.card, dynatree_lib.cli.train
"""
BENCH = """
from dynatree_lib.cli.main import main
code = main("bench --pair tiny --methods ar,hf-generate,chain --limit 1 --max-new-tokens 8 --warmup 0".split())
"""
CHAT = """
import io, sys
from dynatree_lib.cli.main import main
sys.stdin = io.StringIO("def f(x):\\n/tree\\n")
code = main("chat --pair tiny --max-new-tokens 8".split())
"""


@pytest.mark.parametrize(
    ("hidden", "code"),
    [(f"{EXTRAS},pandas,scipy", DECODE), (EXTRAS, BENCH + "assert code == 0" + CHAT + "assert code == 0")],
    ids=["core", "bench and chat"],
)
def test_the_core_and_the_benchmark_need_nothing_else(hidden, code):
    command = [sys.executable, "-c", HIDE + code, hidden]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]


def test_versions_agree():
    import dynatree_lib

    assert f"\nversion: {dynatree_lib.__version__}\n" in (ROOT / "CITATION.cff").read_text()


def test_ci_runs_the_readmes_test_command():
    script = (ROOT / ".ci/run").read_text()
    assert re.search(r"^make test$", script, re.MULTILINE)
    assert re.search(r"^make test-slow$", script, re.MULTILINE)
    assert re.search(r"^make advisories$", script, re.MULTILINE)
    readme = ROOT / "README.md"
    if not readme.exists():
        pytest.skip("there is no README yet")
    assert "make test" in readme.read_text()
    assert "make reproduce" in readme.read_text()


def path_without_a_browser(folder):
    """A PATH with the programs that a script begins with and no other."""
    for name in ("bash", "dirname", "make"):
        (folder / name).symlink_to(shutil.which(name))
    return str(folder)


def test_ci_says_at_once_what_to_install_where_there_is_no_browser(tmp_path):
    done = subprocess.run(
        ["bash", str(ROOT / ".ci/run")], capture_output=True, text=True, check=False, timeout=30,
        env={"PATH": path_without_a_browser(tmp_path), "MAKEFLAGS": "-n"},
    )  # fmt: skip
    assert done.returncode == 2, done
    assert "no Chromium or Chrome is installed" in done.stderr
    assert "apt-get install chromium" in done.stderr
    assert " ".join(NAMES) in (ROOT / ".ci/run").read_text()
    assert not done.stdout


@pytest.mark.parametrize(("ci", "outcome"), [("true", pytest.fail.Exception), ("", pytest.skip.Exception)])
def test_tests_in_a_browser_fail_in_ci_where_there_is_none(monkeypatch, tmp_path, ci, outcome):
    monkeypatch.setenv("PATH", path_without_a_browser(tmp_path))
    monkeypatch.setenv("CI", ci)
    with pytest.raises(outcome, match="no Chromium or Chrome is installed; install one"):
        found_browser()


def code_cells(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return [(cell, "".join(cell["source"])) for cell in cells if cell["cell_type"] == "code"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
class TestNotebook:
    def test_is_read_by_the_runner_and_switches_profile(self, path):
        from dynatree_lib.suite.plan import read_source

        source = read_source(path)
        assert {"profile", "pair", "device", "dtype", "seed"} <= set(source.parameters)
        assert source.title != source.name, "metadata.dynatree needs a title"
        assert {"smoke", "laptop", "paper"} <= set(source.estimates), "metadata.dynatree needs estimates"
        parameters = next(text for cell, text in code_cells(path) if "parameters" in cell["metadata"].get("tags", []))
        assert "DYNATREE_PROFILE" in parameters

    def test_shows_its_set_up_which_also_styles_dark_pages(self, path):
        (start,) = (text for _, text in code_cells(path) if "nb = begin(" in text)
        assert start.rstrip().endswith("\nnb")

    def test_is_stored_without_outputs_or_widget_state(self, path):
        notebook = json.loads(path.read_text(encoding="utf-8"))
        assert not {"widgets", "papermill"} & set(notebook["metadata"])
        for cell, _ in code_cells(path):
            assert not cell["outputs"]
            assert cell["execution_count"] is None
            assert not {"papermill", "execution"} & set(cell["metadata"])

    def test_checks_its_claims_and_holds_its_own_experiment_alone(self, path):
        texts = [text for _, text in code_cells(path)]
        assert any("assert " in text for text in texts)
        for text in texts:
            assert not re.search(r"^\s*!", text, re.MULTILINE), "a !shell cell that hangs passes for success"
            for node in ast.walk(ast.parse(text)):
                assert not isinstance(node, ast.ClassDef), "a class belongs to the library"
                if isinstance(node, ast.FunctionDef | ast.Lambda):
                    names = [one.arg for one in [*node.args.args, *node.args.kwonlyargs]]
                    bound = [one.id for one in node.args.defaults if isinstance(one, ast.Name)]
                    assert not set(bound) & set(names), "a closure that binds a variable of its own name by default"


def test_what_two_notebooks_need_is_in_the_library():
    homes = {}
    for path in NOTEBOOKS:
        for _, text in code_cells(path):
            for node in ast.walk(ast.parse(text)):
                if isinstance(node, ast.FunctionDef):
                    homes.setdefault(node.name, set()).add(path.stem)
    assert not {name: places for name, places in homes.items() if len(places) > 1}


@pytest.mark.slow
def test_the_wheel_carries_the_data_and_runs_from_anywhere(tmp_path):
    if not (ROOT / "README.md").exists():
        pytest.skip("a wheel needs the README")
    build = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "-w", str(tmp_path), str(ROOT)]
    subprocess.run(build, check=True, timeout=300)
    (wheel,) = tmp_path.glob("dynatree_lib-*.whl")
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        archive.extractall(tmp_path / "site")
    shipped = {path.relative_to(ROOT).as_posix() for path in tracked_files() if path.is_relative_to(ROOT / "data")}
    assert shipped
    assert shipped <= {name.removeprefix("dynatree_lib/") for name in names}
    assert {"dynatree_lib/suite/report.css", "dynatree_lib/suite/report.html.j2"} <= names
    code = "import sys; sys.path.insert(0, 'site'); from dynatree_lib.paths import data_path; print(data_path())"
    found = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    assert Path(found.stdout.strip()).resolve() == (tmp_path / "site/dynatree_lib/data").resolve()


def test_the_bill_of_materials_names_every_installed_package_once(tmp_path):
    from importlib.metadata import distributions

    from tools.sbom import main, normalised

    assert main([str(tmp_path / "sbom.json")]) == 0
    body = json.loads((tmp_path / "sbom.json").read_text())
    names = [one["name"] for one in body["components"]]
    assert names == sorted({normalised(one.metadata["Name"]) for one in distributions() if one.metadata["Name"]})
    (torch,) = [one for one in body["components"] if one["name"] == "torch"]
    assert torch["purl"] == f"pkg:pypi/torch@{torch['version']}"
    references = {one["bom-ref"] for one in body["components"]}
    assert all(set(one["dependsOn"]) <= references for one in body["dependencies"])
    (own,) = [one for one in body["dependencies"] if one["ref"].startswith("pkg:pypi/dynatree-lib@")]
    assert torch["bom-ref"] in own["dependsOn"]


def answered(*packages):
    body = json.dumps({"dependencies": list(packages)}) if packages else "ERROR"
    return lambda file: SimpleNamespace(stdout=body, stderr="no route to host")


def test_advisories_are_refused_unless_accepted_with_a_reason(capsys, monkeypatch):
    from tools import advisories

    advisory = {"id": "PYSEC-1", "aliases": ["CVE-1"], "fix_versions": ["2.1"]}
    sound = {"name": "sound", "version": "1.0", "vulns": []}
    ill, unknown = {"name": "ill", "version": "2.0", "vulns": [advisory]}, {"name": "own", "skip_reason": "not found"}
    assert advisories.main([], answered(sound, unknown)) == 0
    assert "0 of 1 packages, 0 not accepted; 1 not known" in capsys.readouterr().out
    assert advisories.main([], answered(sound, ill)) == 1
    assert "ill 2.0: PYSEC-1, mended in 2.1; take that release" in capsys.readouterr().out
    monkeypatch.setattr(advisories, "ACCEPTED", {"CVE-1": "we never open such files"})
    assert advisories.main([], answered(sound, ill)) == 0
    assert "accepted: we never open such files" in capsys.readouterr().out
    for nothing, why in ((answered(), "no route to host"), (answered(unknown), "not found")):
        assert advisories.main([], nothing) == 0
        assert f"skipped, because pip-audit could ask for no package ({why})" in capsys.readouterr().out
    assert advisories.main(["a", "b"]) == 2


def test_every_installed_package_is_pinned():
    if Path(sys.prefix).resolve().parent != ROOT:
        pytest.skip("runs in the environment that `make setup` builds, which has nothing else")
    from importlib.metadata import distributions

    from tools.sbom import normalised

    pinned = {
        normalised(line.partition("==")[0])
        for line in (ROOT / "constraints.txt").read_text().splitlines()
        if "==" in line
    }
    installed = {normalised(one.metadata["Name"]) for one in distributions()}
    assert installed - pinned <= {"pip", "setuptools", "wheel", "dynatree-lib"}
