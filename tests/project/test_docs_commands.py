"""Commands that pages, cards and notebooks quote: each is run, or read by the program that it is for."""

import ast
import importlib
import importlib.util
import io
import os
import re
import shlex
import subprocess
import tomllib
from functools import cache, partial
from itertools import dropwhile
from pathlib import Path

import pytest
from click import UsageError
from packaging.requirements import Requirement
from test_docs import PAGES, ROOT, code_blocks, page, section

from dynatree_suite.bench import bandwidth
from dynatree_suite.cli.main import main, parser
from dynatree_suite.cli.options import COMMANDS
from dynatree_suite.costs import cost_model
from dynatree_suite.costs import tune as tuning
from dynatree_suite.runs.sweep import read_grid

CARDS = sorted((ROOT / "data").rglob("README.md"))
TEXTS = [*PAGES, ROOT / "SECURITY.md", *CARDS]
SHELLS = ("bash", "sh", "shell", "console")
FENCED = re.compile(r"^```(\w*)\n(.*?)^```$", flags=re.S | re.M)
INLINE = re.compile(
    r"`((?:[A-Z_]+=\S+ )*(?:make|pip|python3?|dynatree|dask|jupyter|tools/\w+\.sh|\.ci/run)(?= |`)[^`\n\\]*)`"
)


def commands_of(text):
    """Every line of a fenced block of the shell, and what stands in code marks and begins with a program."""
    for language, block in FENCED.findall(text):
        if language in SHELLS:
            yield from (shlex.join(words) for line in block.splitlines() if (words := shlex.split(line, comments=True)))
    yield from INLINE.findall(FENCED.sub("", text))


@cache
def quoted():
    """Every command that is quoted anywhere."""
    places = [*TEXTS, *(ROOT / "notebooks").rglob("*.ipynb")]
    return sorted({one for place in places for one in commands_of(place.read_text(encoding="utf-8"))})


def reads_dynatree(words):
    """The command line's own parser; of a name alone, whether there is such a command."""
    if words[0] in ("COMMAND", *COMMANDS) and words[1:] in ([], ["--help"]):
        return
    parser().parse_args(words)


def reads_make(words):
    """`make -n`, and what it would run: without an environment, so that a line that calls make again runs nothing."""
    there = {name: value for name, value in os.environ.items() if not name.startswith("MAKE")}
    done = subprocess.run(["make", "-n", *words, "VENV=/none"], cwd=ROOT, capture_output=True, text=True, env=there,
                          check=False, timeout=60)  # fmt: skip
    assert done.returncode == 0, done.stderr
    for line in done.stdout.replace("\\\n", " ").splitlines():
        for program, rest in re.findall(r"/none/bin/([\w-]+)([^;&|]*)", line):
            if program == "dynatree":
                reads_dynatree(shlex.split(rest))
            elif program == "python":
                reads_python(shlex.split(rest))
            else:
                assert importlib.util.find_spec({"jupyter": "jupyterlab"}.get(program, program)), line


def reads_pip(words):
    """Pip's own parser, the requirements, and the names of extras."""
    from pip._internal.commands import create_command

    project = tomllib.loads(page("pyproject.toml"))["project"]
    options, rest = create_command(words[0]).parse_args(words[1:])
    editables = getattr(options, "editables", [])
    named = [one.replace(".[", "dynatree-lib[", 1) for one in [*rest, *editables] if one != "."]
    for requirement in map(Requirement, named):
        if requirement.name == project["name"]:
            assert requirement.extras <= set(project["optional-dependencies"])
            published = not editables and requirement.url is None
            assert not published, "no package index has dynatree-lib; name its wheel"
            assert editables or re.search(r"/dynatree_lib-.*\.whl$", requirement.url)
    assert named or rest == ["."]


def reads_python(words):
    """A module or a file that is there; a tool's docstring shows how it is called."""
    if words[:1] == ["-m"]:
        spec = importlib.util.find_spec(words[1])
        assert spec is not None, words[1]
        if words[1].startswith("tools."):
            if spec.submodule_search_locations:
                spec = importlib.util.find_spec(f"{words[1]}.__main__")
            assert "__main__" in Path(spec.origin).read_text(encoding="utf-8")
    elif words and words[0] != "-c":
        compile(page(words[0]), words[0], "exec")


def reads_dask(words):
    """Dask's own parser of this subcommand."""
    from distributed.cli import dask_scheduler, dask_worker

    {"scheduler": dask_scheduler, "worker": dask_worker}[words[0]].main.make_context(words[0], words[1:])


def reads_jupyter(words):
    """JupyterLab, and a notebook that `dynatree notebooks` copies."""
    assert words[0] == "lab", words
    assert importlib.util.find_spec("jupyterlab")
    for path in words[1:]:
        assert (ROOT / path.removeprefix("dynatree-notebooks/")).is_file(), path


def reads_script(script, words):
    """The shell reads the script."""
    assert os.access(ROOT / script, os.X_OK), script
    subprocess.run(["bash", "-n", script], cwd=ROOT, check=True, timeout=60)


def reads_export(words):
    """Variables that the suite reads."""
    code = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "dynatree_suite").rglob("*.py"))
    code += "".join(path.read_text(encoding="utf-8") for path in (ROOT / "dynatree_lib").rglob("*.py"))
    for word in words:
        assert f'"{word.partition("=")[0]}"' in code, word


READERS = {
    "dynatree": reads_dynatree, "make": reads_make, "pip": reads_pip, "python": reads_python, "python3": reads_python,
    "dask": reads_dask, "export": reads_export, "jupyter": reads_jupyter,
}  # fmt: skip


def read(line):
    words = [*dropwhile(re.compile(r"[A-Z_]+=").match, shlex.split(line))]
    if words[0].endswith(".sh") or words[0] == ".ci/run":
        reads_script(words[0], words[1:])
    else:
        assert words[0] in READERS, f"nothing reads `{line}`: add its program to READERS"
        READERS[words[0]](words[1:])


@pytest.mark.parametrize("line", quoted())
def test_a_quoted_command_is_one(line):
    read(line)


@pytest.mark.parametrize(
    ("line", "error", "words"),
    [
        ("dynatree fly high", SystemExit, "invalid choice: 'fly'"),
        ("make moon", AssertionError, "moon"),
        ("pip install --fast -e '.[all]'", SystemExit, "no such option: --fast"),
        ("pip install dynatree-lib", AssertionError, "no package index has dynatree-lib"),
        ("pip install -e '.[everything]'", AssertionError, "everything"),
        ("python3 -m tools.none", AssertionError, "tools.none"),
        ("dask worker --nthreads x", UsageError, "'x' is not a valid integer"),
        ("dask worker tcp://HOST:1 --speed 3", UsageError, "No such option '--speed'"),
        ("jupyter lab dynatree-notebooks/notebooks/00_none.ipynb", AssertionError, "00_none"),
        ("curl https://x.org", AssertionError, "nothing reads `curl"),
        ("tools/none.sh", AssertionError, "tools/none.sh"),
    ],
)
def test_a_command_that_is_none_is_found_out(line, error, words, capsys):
    with pytest.raises(error) as caught:
        read(line)
    assert words in str(caught.value) + capsys.readouterr().err


LESS = {
    "bench": "--limit 1 --max-new-tokens 8 --warmup 0",
    "judge": "--limit 1 --max-new-tokens 8",
    "precision": "--limit 1 --max-new-tokens 8 --rows 2 --methods chain:length=4",
    "tune": "--limit 1 --max-new-tokens 8 --max-rows 4 --methods chain --no-check",
}
"""Less work for the quoted commands on the bundled pair."""


@pytest.mark.parametrize("line", [line for line in quoted() if re.match("dynatree .*--pair tiny", line)])
def test_a_quoted_command_on_the_bundled_pair_runs(line, monkeypatch, tmp_path, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bandwidth, "STREAM", {"cpu": 2**20})
    monkeypatch.setattr(cost_model, "STRETCH", 8)
    monkeypatch.setattr(tuning, "measure_costs", partial(tuning.measure_costs, iterations=2))
    words = shlex.split(line)[1:]
    assert main([*words, *LESS[words[0]].split()]) == 0
    written = [word for word in words if word == "FILE" or word.endswith(".json")]
    assert all((tmp_path / name).is_file() for name in written)
    assert capsys.readouterr().out


def test_the_chats_command_and_its_commands_run(monkeypatch, capsys):
    text = section("docs/cli.md", "chat")
    command = re.match(r"`dynatree (chat [^`]*)`", text)[1].replace("smollm2", "tiny")  # the pair that ships
    named = [name.replace("[N]", "1").replace("NAME", "chain") for name in re.findall(r"`(/[^`]+)`", text)]
    assert {name.split()[0] for name in named} == {"/tree", "/method", "/reset", "/help", "/quit"}
    monkeypatch.setattr("sys.stdin", io.StringIO("\n".join(["def f(x):", *named])))
    assert main([*command.split(), "--max-new-tokens", "8"]) == 0
    printed = capsys.readouterr().out
    assert "tokens per iteration" in printed
    assert "Iteration 1 of" in printed
    assert "no command" not in printed


def test_every_fenced_block_is_read_as_what_it_says():
    """So no block of commands is overlooked for the name of its language."""
    found = [(path.name, kind) for path in TEXTS for kind, _ in FENCED.findall(path.read_text(encoding="utf-8"))]
    assert {kind for _, kind in found} <= {*SHELLS, "python", "yaml", ""}
    for path in TEXTS:
        for kind, block in FENCED.findall(path.read_text(encoding="utf-8")):
            assert kind or not INLINE.search("\n".join(f"`{line}`" for line in block.splitlines())), (path.name, block)
    assert ("README.md", "bash") in found
    assert ("cluster.md", "bash") in found


# ---------------------------------------------------------------------------------------------------- other languages
def test_the_example_of_a_grid_is_one(tmp_path):
    (block,) = (block for kind, block in FENCED.findall(page("docs/cluster.md")) if kind == "yaml")
    (tmp_path / "grid.yaml").write_text(block, encoding="utf-8")
    assert len(read_grid(tmp_path / "grid.yaml")) == 24


RUN = {"README.md", "docs/extending.md", "docs/beyond.md", "docs/huggingface.md"}
"""Pages whose Python is run by tests/project/test_docs.py."""


def test_python_that_is_not_run_compiles_and_imports_what_is_there():
    others = {path.relative_to(ROOT).as_posix() for path in TEXTS} - RUN
    blocks = {(name, block) for name in others for block in code_blocks(name)}
    assert {name for name, _ in blocks} == {"docs/cluster.md", "data/huggingface/README.md"}
    for name, block in blocks:
        for node in ast.walk(ast.parse(block, name)):
            if isinstance(node, ast.ImportFrom) and node.module.startswith("dynatree_"):
                assert all(hasattr(importlib.import_module(node.module), one.name) for one in node.names)
