"""Rules of the project itself: which way imports point, how large things may grow, what notebooks may hold."""

import ast
import gzip
import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest
from browser import NAMES, found_browser

from dynatree_suite import PACKAGES

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))

# Steps of the street, from the ground up: a module imports from its own room and from lower steps only. A drafter is
# told verdicts, so drafters stand above verifiers; a verifier never sees a drafter.
LIBRARY = ["checks", "paths tree stopping costs", "masks sampling", "models processing", "verifiers", "drafters",
           "decoding", "measuring summary", "engines hf plots"]  # fmt: skip
CPU = ["machine_code products", "kernels", "preparing", "gpt_neox linears llama native", "packed quantised compiled"]
SUITE = ["files hub rules drafters", "fetching papers.published papers.workloads", "bench", "charts training",
         "costs", "proofs", "papers", "runs course", "explore", "cli"]  # fmt: skip
STREETS = {
    package: {room: step for step, rooms in enumerate(steps) for room in rooms.split()}
    for package, steps in zip(PACKAGES, (LIBRARY, CPU, SUITE), strict=True)
}
SEES = {"dynatree_lib": set(), "dynatree_cpu": {"dynatree_lib"}, "dynatree_suite": {"dynatree_lib"}}
"""Package -> packages that it imports from besides itself."""
DRAWS = {"plotly", "pandas", "jinja2"}
"""What the library needs for pictures alone."""
EXTRAS_OF_SUITE = {"ipywidgets", "datasets", "papermill", "nbformat", "IPython", "scipy"}


def modules(root=ROOT):
    return sorted(path for package in PACKAGES for path in (root / package).rglob("*.py"))


def parts_of(path, root=ROOT):
    """A module's name as parts; a package's is that of its folder."""
    parts = path.relative_to(root).with_suffix("").parts
    return parts[:-1] if parts[-1] == "__init__" else parts


def room(parts):
    """The room of a module's name, None for a package's front door."""
    package, *rest = parts
    if not rest or rest[0] == "__main__":
        return None
    steps = STREETS[package]
    assert rest[0] in steps or ".".join(rest[:2]) in steps, f"{package}/{rest[0]} is in no step of the street above"
    return next(one for one in (".".join(rest[:2]), rest[0]) if one in steps)


def imported(path, types=True):
    """Every module name a file imports, also inside functions, relative ones made absolute."""
    package = path.relative_to(ROOT).with_suffix("").parts[:-1]
    tree = ast.parse(path.read_text(encoding="utf-8"))
    guarded = [node for node in ast.walk(tree) if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test)]
    hidden = set() if types else {id(part) for node in guarded for part in ast.walk(node)}
    for node in ast.walk(tree):
        if id(node) in hidden:
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            name = ".".join(filter(None, [base, node.module or ""]))
            yield name
            yield from (f"{name}.{alias.name}" for alias in node.names)


def against_the_street(path, root=ROOT):
    """What a module imports from beside or above it, as sentences."""
    parts = parts_of(path, root)
    mine, found = room(parts), []
    if mine is None:  # the front door names what every room offers
        return found
    package = parts[0]
    for name in {name for name in imported(path) if name.partition(".")[0] in (*PACKAGES, "tools")}:
        other = name.split(".")
        if other[0] != package:
            if other[0] not in SEES[package]:
                found.append(f"{'.'.join(parts)} imports {name}, and {package} knows nothing of {other[0]}")
        elif len(other) > 1 and is_module(root, other):
            theirs = room(other)
            if theirs != mine and STREETS[package][theirs] >= STREETS[package][mine]:
                found.append(f"{'.'.join(parts)} imports {name}, and room '{theirs}' is beside or above '{mine}'")
    heavy = {name.partition(".")[0] for name in imported(path)}
    refused = DRAWS | EXTRAS_OF_SUITE if mine != "plots" else EXTRAS_OF_SUITE
    if package != "dynatree_suite" and heavy & refused:
        found.append(f"{'.'.join(parts)} imports {sorted(heavy & refused)}, which decoding does not need")
    return found


def is_module(root, parts):
    place = root.joinpath(*parts)
    return place.is_dir() or place.with_suffix(".py").is_file()


def test_imports_point_one_way():
    wrong = [sentence for path in modules() for sentence in against_the_street(path)]
    assert not wrong, "\n".join(wrong)


def test_no_module_imports_itself_by_way_of_others():
    names = {".".join(parts_of(path)): path for path in modules()}
    left = {}
    for name, path in names.items():
        said = {one for one in imported(path, types=False) if one in names}
        left[name] = {one for one in said if not any(other.startswith(f"{one}.") for other in said)}
    while free := [name for name, needs in left.items() if not needs & left.keys() - {name}]:
        for name in free:
            del left[name]
    assert not left, f"these import each other: {sorted(left)}"


@pytest.mark.parametrize(
    ("place", "source", "seen"),
    [
        ("dynatree_lib/drafters/bad.py", "def f():\n    from .. import decoding\n", "room 'decoding' is beside or"),
        ("dynatree_lib/drafters/bad.py", "from ..tree import TokenTree\n", ""),
        ("dynatree_lib/hf.py", "import dynatree_suite.bench\n", "dynatree_lib knows nothing of dynatree_suite"),
        ("dynatree_suite/bench/bad.py", "from dynatree_cpu import kernels\n", "knows nothing of dynatree_cpu"),
        ("dynatree_suite/bench/bad.py", "import tools.pair_training.corpus\n", "knows nothing of tools"),
        ("dynatree_lib/decoding.py", "import pandas as pd\n", "which decoding does not need"),
    ],
)  # fmt: skip
def test_an_import_against_the_street_is_noticed(tmp_path, monkeypatch, place, source, seen):
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    for name in ("dynatree_lib/decoding.py", "dynatree_lib/tree.py", "dynatree_suite/bench/x.py", place):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    (tmp_path / place).write_text(source)
    found = against_the_street(tmp_path / place, tmp_path)
    assert [sentence for sentence in found if seen and seen in sentence] == found
    assert bool(found) == bool(seen)


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
        "torch", "transformers", "safetensors", "numpy", "jinja2", "pandas", "plotly",
    }  # fmt: skip


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
EXTRAS = "IPython,datasets,ipykernel,ipywidgets,jupyterlab,latex2mathml,nbconvert,nbformat,papermill,psutil,"
EXTRAS += "rouge_score,sacrebleu,tabulate,pyarrow"
ALONE = f"{EXTRAS},scipy,dynatree_suite,dynatree_cpu"
DECODE = """
import dynatree_lib as dt
pair = dt.load_pair("tiny")
out = dt.generate(pair.target, [5, 6, 7], dt.FixedTree(pair.draft), max_new_tokens=8)
assert out.tokens == dt.autoregressive_fast(pair.target, [5, 6, 7], max_new_tokens=8).tokens
assert len(dt.generate_batch(pair.target, [[5, 6], [7]], dt.Chain(pair.draft), max_new_tokens=4)) == 2
"""
SAMPLE = """
drafter, warm = dt.SampledTree(pair.draft, branching=(2, 1)), dt.Sampling(temperature=1.0)
assert dt.generate(pair.target, "def f", drafter, sampling=warm, max_new_tokens=8).tokens
ids = pair.tokenizer("def f", return_tensors="pt").input_ids
plain = pair.target.model.generate(ids, max_new_tokens=8, do_sample=False)
trees = pair.target.model.generate(ids, max_new_tokens=8, do_sample=False, custom_generate=dt.hf.generate)
assert plain.tolist() == trees.tolist()
"""
DRAW = """
assert dt.plots.draft_tree(out.iterations[0], pair.tokenizer).to_json()
assert "<" in out._repr_html_()
"""
TRAIN = "import dynatree_suite.training.draft, dynatree_suite.cli.train, tools.pair_training.__main__"
BENCH = """
from dynatree_suite.bench import bandwidth
from dynatree_suite.cli.main import main
bandwidth.STREAM = {"cpu": 2**20}  # bytes that are read to time the memory
code = main("bench --pair tiny --methods ar,hf-generate,chain --limit 1 --max-new-tokens 8 --warmup 0".split())
"""
CHAT = """
import io, sys
from dynatree_suite.cli.main import main
sys.stdin = io.StringIO("def f(x):\\n/tree\\n")
code = main("chat --pair tiny --max-new-tokens 8".split())
"""


@pytest.mark.parametrize(
    ("hidden", "code"),
    [
        (ALONE, DECODE + SAMPLE + DRAW),
        (f"{EXTRAS},scipy,jinja2,pandas,plotly,dynatree_suite", DECODE + SAMPLE + "assert out._repr_html_() is None"),
        (f"{EXTRAS},scipy", TRAIN),
        (EXTRAS, BENCH + "assert code == 0" + CHAT + "assert code == 0"),
    ],
    ids=["library", "decoding", "training", "bench and chat"],
)
def test_each_part_needs_nothing_else(hidden, code):
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
        from dynatree_suite.runs.plan import read_source

        source = read_source(path)
        assert {"profile", "pair", "device", "dtype", "seed"} <= set(source.parameters)
        assert source.title != source.name, "metadata.dynatree needs a title"
        assert {"smoke", "laptop", "colab", "paper"} == set(source.estimates), "metadata.dynatree needs estimates"
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
