"""What a model writes is never run, nothing is unpickled, and nothing reaches the network unless it was asked for."""

import ast
import json
import os
import shutil
import subprocess
import sys
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from suite_notebooks import write_notebook

import dynatree_lib as dt
from dynatree_lib import plots
from dynatree_lib.paths import data_path
from dynatree_suite.cli.main import main

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = (
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "<a href='javascript:alert(1)'>x</a>",
    '"><svg onload=alert(1)>',
    "</style><script>alert(1)</script>",
    "</script><script>alert(1)</script>",
    "<iframe src='//example.org'></iframe>",
    "$\\href{javascript:alert(1)}{x}$",
)


class Tags(HTMLParser):
    """The elements and attributes of a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.found: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.feed(page)

    def handle_starttag(self, tag, attrs):
        self.found.append((tag, dict(attrs)))

    def handle_data(self, data):
        if self.cdata_elem == "script":
            self.scripts.append(data)


def harmless(page: str, allowed: frozenset[str] = frozenset()) -> None:
    """Assert that a page runs nothing and loads nothing."""
    for tag, attributes in Tags(page).found:
        assert tag not in {"script", "img", "svg", "iframe", "object", "embed", "link", "form"} - allowed, (
            tag,
            attributes,
        )
        assert not any(name.startswith("on") for name in attributes), (tag, attributes)
        assert not any(str(value).strip().lower().startswith("javascript:") for value in attributes.values())


def texts_of(value) -> list[str]:
    """All texts of a figure or of any nested data."""
    if isinstance(value, str):
        return [value]
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list | tuple) else ()
    return [text for part in parts for text in texts_of(part)]


def harmless_figure(figure) -> None:
    """Plotly shows a subset of HTML in texts and hovers; a `$` would begin a formula, in which links can be written."""
    for text in texts_of(json.loads(figure.to_json())):
        harmless(text)
        assert not (text.startswith("$") and text.endswith("$"))


class Tokenizer:
    """Every token reads as something that a page must not run."""

    def decode(self, tokens, **options):
        tokens = tokens if isinstance(tokens, list | tuple) or hasattr(tokens, "__len__") else [tokens]
        return "".join(HOSTILE[int(token) % len(HOSTILE)] for token in tokens)

    def convert_ids_to_tokens(self, tokens):
        return [self.decode([token]) for token in tokens] if hasattr(tokens, "__len__") else self.decode([tokens])


@pytest.fixture(scope="module")
def written():
    target, draft = dt.ToyModel.random(8, seed=1), dt.ToyModel.random(8, seed=2)
    out = dt.generate(target, [1, 2], dt.FixedTree(draft, depth=3, branching=2, tau=None), max_new_tokens=20)
    return replace(out, tokenizer=Tokenizer())


@pytest.fixture(scope="module")
def guessed():
    """A text whose iterations have side trees."""
    drafter = dt.ProgressiveTree(depth=3, start_tree=2)
    out = dt.generate(dt.ToyModel.random(8, seed=1), [1, 2], drafter, max_new_tokens=20)
    return replace(out, tokenizer=Tokenizer())


def test_a_text_that_shows_itself(written):
    page = written._repr_html_()
    assert "alert(1)" in page  # it is shown, as text
    harmless(page)


DRAWN = {
    "draft_tree": lambda out, number, names: plots.draft_tree(out.iterations[number], names, title=""),
    "forward_mask": lambda out, number, names: plots.forward_mask(out.iterations[number], names),
    "forward_trees": lambda out, number, names: plots.forward_trees(out.iterations[number], names),
    "positions": lambda out, number, names: plots.positions(out.iterations[number].tree, 3, names),
    "seen_tree": lambda out, number, names: plots.seen_tree(out.iterations[number].tree, 0, names),
    "stacked_trees": lambda out, number, names: plots.stacked_trees({"one": out.iterations[number]}, names),
    "step_text": lambda out, number, names: plots.step_text(out, number, names, prompt=HOSTILE[0]),
    "text_iterations": lambda out, _, names: plots.text_iterations(out, names, prompt=HOSTILE[0]),
    "tree_mask": lambda out, number, names: plots.tree_mask(
        out.iterations[number].tree, 2, names, prefix_tokens=(1, 2)
    ),
}
"""Whatever of the plots shows tokens."""


def test_everything_that_shows_tokens_is_looked_at():
    shown = {name for name in plots.__all__ if "tokenizer" in getattr(getattr(plots, name), "__annotations__", {})}
    assert shown == set(DRAWN)


@pytest.mark.parametrize("name", DRAWN)
def test_steps_and_figures_of_a_text(written, guessed, name):
    out = guessed if name.startswith("forward") else written
    for number in range(len(out.iterations)):
        drawn = DRAWN[name](out, number, Tokenizer())
        if hasattr(drawn, "to_json"):
            harmless_figure(drawn)
        else:
            harmless(str(drawn))


class Writes:
    """A tokenizer that reads every token as something that a page must not run."""

    def __init__(self, own):
        self.own = own

    def __getattr__(self, name):
        return getattr(self.own, name)

    def __call__(self, *texts, **options):
        return self.own(*texts, **options)

    def __len__(self):
        return len(self.own)

    decode, convert_ids_to_tokens = Tokenizer.decode, Tokenizer.convert_ids_to_tokens


def test_explorers(written):
    widgets = pytest.importorskip("ipywidgets")
    from dynatree_suite.explore import Live, Mask, Race, Walk

    pair = dt.load_pair("tiny")
    for explorer in (
        Walk(written, Tokenizer(), prompt=HOSTILE[1]),
        Race({HOSTILE[0]: written}, Tokenizer(), prompt=HOSTILE[2]),
        Mask(written.iterations[0].tree, [1, 2], Tokenizer()),
        Live(replace(pair, tokenizer=Writes(pair.tokenizer)), HOSTILE[0], budget=8),
    ):
        places = [explorer]
        while places:
            one = places.pop()
            places += getattr(one, "children", ())
            if isinstance(one, widgets.HTML):
                harmless(one.value)
            for output in getattr(one, "outputs", ()):
                for value in output.get("data", {}).values():
                    for text in texts_of(value):
                        harmless(text)


def test_tables(written):
    from dynatree_suite.papers.published import html_table

    rows = [{HOSTILE[0]: HOSTILE[1], "text": HOSTILE[3]}]
    harmless(html_table(rows, caption=HOSTILE[4]))


def test_the_report_of_a_run_whose_claims_and_problems_are_hostile(tmp_path, capsys):
    said = "".join(HOSTILE)
    write_notebook(
        tmp_path / "notebooks", "10_x",
        "from dynatree_suite.runs.notebook import begin\nnb = begin('10_x', profile='smoke')",
        f"nb.headline({said!r}, {said!r}, unit={said!r}, holds=False)\nprint({said!r})\n{said!r}",
    )  # fmt: skip
    write_notebook(tmp_path / "notebooks", "20_y", f"raise ValueError({said!r})")
    out = tmp_path / "out"
    assert (
        main(["run", "--notebooks", str(tmp_path / "notebooks"), "--out", str(out), "--profile", "smoke", "--report"])
        == 1
    )
    capsys.readouterr()
    for page in out.glob("*.html"):
        text = page.read_text()
        assert "alert(1)" in text
        found = Tags(text)
        named = {attributes["src"] for tag, attributes in found.found if tag == "script" and "src" in attributes}
        assert named <= {"plotly.min.js"}  # a file beside it
        assert not any(script.strip().startswith("alert") for script in found.scripts)
        assert not any(tag in ("iframe", "svg") or "onerror" in attributes for tag, attributes in found.found)
        assert not any(str(attributes.get("href")).startswith("javascript:") for _, attributes in found.found)


# -------------------------------------------------------------------------------------------------- code from elsewhere
def sources():
    return [*ROOT.glob("dynatree_*/**/*.py"), *ROOT.glob("tools/**/*.py"), *ROOT.glob("data/**/*.py")]


class Touches:
    """A pickle of it makes a folder where it is read as pickles are."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return os.mkdir, (str(self.path),)


def test_a_pickled_checkpoint_runs_no_code(tmp_path):
    shutil.copytree(data_path("tiny"), tmp_path / "pair")
    target, touched = tmp_path / "pair" / "target", tmp_path / "touched"
    weights = load_file(target / "model.safetensors")
    (target / "model.safetensors").unlink()
    torch.save({**weights, "more": Touches(touched)}, target / "pytorch_model.bin")
    with pytest.raises(
        ValueError, match=r"\*\.bin files holds \w+\.mkdir, .* could run code \(nothing of it was run\)"
    ):
        dt.load_pair(tmp_path / "pair")
    assert not touched.exists()
    torch.load(target / "pytorch_model.bin", weights_only=False)
    assert touched.exists()  # so it would have


def test_nothing_is_unpickled_and_no_code_is_fetched():
    """By the syntax tree: no module that unpickles, no torch.load, no remote code, no eval or exec, no shell."""
    banned_modules = {"pickle", "cPickle", "dill", "joblib", "shelve", "marshal", "cloudpickle"}
    for path in sources():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)}"
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = {alias.name.split(".")[0] for alias in node.names} | {
                    (getattr(node, "module", "") or "").split(".")[0]
                }
                if ast.unparse(node) != "from pickle import UnpicklingError":  # an exception that torch raises
                    assert not names & banned_modules, where
            if isinstance(node, ast.Call):
                name = ast.unparse(node.func)
                assert name not in {"eval", "exec", "torch.load", "os.system"}, where
                for keyword in node.keywords:
                    assert keyword.arg != "trust_remote_code" or ast.unparse(keyword.value) == "False", where
                    assert keyword.arg != "allow_pickle" or ast.unparse(keyword.value) == "False", where
                    assert not (keyword.arg == "shell" and ast.unparse(keyword.value) != "False"), where


# ----------------------------------------------------------------------------------------------------- the command line
INJECTED = (
    "__import__('pathlib').Path('TOUCHED').touch()",
    "'''+__import__('pathlib').Path('TOUCHED').touch()+'''",
    '"\nimport pathlib; pathlib.Path("TOUCHED").touch()\n"',
    "\\'); __import__('pathlib').Path('TOUCHED').touch() #",
    "x' + str(__import__('pathlib').Path('TOUCHED').touch()) + '",
)


def test_a_parameter_from_the_command_line_is_a_value_and_never_code(tmp_path, capsys):
    given, checks = [], []
    for number, value in enumerate(INJECTED):
        value = value.replace("TOUCHED", str(tmp_path / "touched"))
        try:
            wanted = ast.literal_eval(value)  # a literal stands for its value
        except (ValueError, SyntaxError):
            wanted = value
        given += ["-p", f"text_{number}={value}"]
        checks.append(f"assert text_{number} == {wanted!r}, text_{number}")
    parameters = "\n".join(["profile = 'smoke'", *(f"text_{number} = ''" for number in range(len(INJECTED)))])
    write_notebook(tmp_path / "notebooks", "10_x", *checks, parameters=parameters)
    arguments = ["run", "--notebooks", str(tmp_path / "notebooks"), "--out", str(tmp_path / "out")]
    assert main([*arguments, *given]) == 0, capsys.readouterr()
    assert not (tmp_path / "touched").exists()


@pytest.mark.parametrize("name", ["seed\nimport os", "seed; import os", "../seed", "__builtins__", ""])
def test_a_name_that_is_no_parameter_is_refused(tmp_path, capsys, name):
    write_notebook(tmp_path / "notebooks", "10_x")
    assert (
        main(["run", "--notebooks", str(tmp_path / "notebooks"), "--out", str(tmp_path / "out"), "-p", f"{name}=1"])
        == 2
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["../x", "a/b", "/etc/x", "..", "", "a\\b"])
def test_a_notebook_writes_into_its_own_folder_alone(tmp_path, monkeypatch, name):
    from dynatree_suite.runs.notebook import begin

    monkeypatch.setenv("DYNATREE_OUT", str(tmp_path))
    nb = begin("10_x", profile="smoke")
    for write in (nb.records, lambda name: nb.save_figure(name, "<p>x</p>")):
        with pytest.raises(ValueError, match="name"):
            write(name)


# ---------------------------------------------------------------------------------------------------------- the network
NO_NETWORK = """
import os, socket
from pathlib import Path

def attempted(what):
    with Path(os.environ["ATTEMPTS"]).open("a") as file:  # whoever swallows the error cannot hide it
        file.write(f"{what}\\n")
    raise OSError(what)

def refused(call):
    def guarded(self, address, *rest):
        here = isinstance(address, tuple) and str(address[0]).startswith("127.")  # a kernel's
        if self.family in (socket.AF_INET, socket.AF_INET6) and not here:
            attempted(f"a connection to {address}")
        return call(self, address, *rest)
    return guarded

socket.socket.connect = refused(socket.socket.connect)
socket.socket.connect_ex = refused(socket.socket.connect_ex)
look_up = socket.getaddrinfo

def known(host, *rest, **options):
    if host not in (None, "", "localhost") and not str(host).startswith("127."):
        attempted(f"a name was looked up: {host}")
    return look_up(host, *rest, **options)

socket.getaddrinfo = known
"""
"""A sitecustomize.py, which every process runs that finds it first on its path, kernels included."""
RUN = """
import sys
from dynatree_suite.bench import bandwidth
from dynatree_suite.cli.main import main
bandwidth.STREAM = {"cpu": 2**20}  # bytes that are read to time the memory
for command in sys.argv[1:]:
    print(command, flush=True)
    if main(command.split()):
        sys.exit(f"this failed: {command}")
"""
COMMANDS = (
    "bench --methods ar-fast,chain --limit 1 --max-new-tokens 4 --warmup 0",
    "judge --limit 1 --max-new-tokens 4 --trees sampled-tree --out judged.jsonl",
    "precision --limit 1 --max-new-tokens 4 --dtypes float32 --rows 2 --methods chain",
    "fetch",
    "audit --rounding --instances 8",
    "sweep grid.yml --out sweep",
    "run --notebooks . --out out --report",
)


@pytest.fixture
def guarded(tmp_path):
    """The environment of processes whose attempts to reach the network are refused and noted, and where they are."""
    (tmp_path / "guard").mkdir()
    (tmp_path / "guard" / "sitecustomize.py").write_text(NO_NETWORK)
    path = os.pathsep.join((str(tmp_path / "guard"), str(ROOT)))
    attempts = tmp_path / "attempts"
    return {**os.environ, "PYTHONPATH": path, "DYNATREE_ROOT": str(ROOT), "ATTEMPTS": str(attempts)}, attempts


def finished(command, environment, folder):
    options = {"capture_output": True, "text": True, "timeout": 290, "check": False}
    return subprocess.run(command, cwd=folder, env=environment, **options)


@pytest.mark.timeout(300)
def test_nothing_reaches_the_network_unless_a_hub_name_was_asked_for(tmp_path, guarded):
    environment, attempts = guarded
    (tmp_path / "grid.yml").write_text("method: prompt-lookup\nmax_new_tokens: 4\n")
    in_force = "import socket, sitecustomize\nassert socket.getaddrinfo is sitecustomize.known"
    write_notebook(tmp_path, "10_x", in_force, "import dynatree_lib as dt\ndt.load_pair('tiny')")
    done = finished([sys.executable, "-c", RUN, *COMMANDS], environment, tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(command in done.stdout for command in COMMANDS)
    assert not attempts.exists(), attempts.read_text()


def test_the_guard_sees_an_attempt_that_its_caller_hides(tmp_path, guarded):
    environment, attempts = guarded
    for tried in (
        "socket.create_connection(('192.0.2.1', 9))",
        "socket.socket().connect_ex(('192.0.2.1', 9))",
        "socket.getaddrinfo('example.invalid', 80)",
    ):
        hidden = f"import contextlib, socket\nwith contextlib.suppress(Exception):\n    {tried}"
        assert finished([sys.executable, "-c", hidden], environment, tmp_path).returncode == 0
    assert attempts.read_text().splitlines() == [
        "a name was looked up: 192.0.2.1",
        "a connection to ('192.0.2.1', 9)",
        "a name was looked up: example.invalid",
    ]
