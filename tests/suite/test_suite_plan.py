"""What would run, and every request that is refused before a kernel starts."""

import json
import os

import pytest
from suite_notebooks import write_notebook

from dynatree_suite.runs.plan import find_sources, make_jobs, parse_override, project_root, read_source, select

COST = {"smoke": {"seconds": 5, "memory_mb": 800}, "laptop": {"seconds": 120}}


@pytest.fixture
def folder(tmp_path):
    write_notebook(tmp_path, "10_fixed", about={"title": "Fixed trees", "headline": True, "estimate": COST})
    write_notebook(tmp_path, "00_start", parameters="profile = 'laptop'\nwidth: int = 3\nlow, high = 1, 2")
    return tmp_path


def test_a_source_knows_title_parameters_and_estimates(folder):
    source = read_source(folder / "10_fixed.ipynb")
    assert (source.name, source.title, source.headline) == ("10_fixed", "Fixed trees", True)
    assert source.parameters == ("profile", "seed", "sizes")
    assert source.estimates["smoke"].memory_mb == 800
    assert source.estimates["laptop"].memory_mb is None


@pytest.mark.parametrize(
    "harm",
    [
        lambda notebook: notebook["cells"][1].update(source=[1, 2]),
        lambda notebook: notebook["cells"][1].update(source=3),
        lambda notebook: notebook["cells"][1].update(metadata=[]),
        lambda notebook: notebook["cells"][1].update(metadata={"tags": 3}),
        lambda notebook: notebook.update(metadata=[]),
        lambda notebook: notebook.update(cells=[3]),
        lambda notebook: notebook.update(cells=3),
        lambda notebook: notebook["metadata"].update(dynatree=[1]),
        lambda notebook: notebook["metadata"]["dynatree"].update(estimate={"smoke": {"seconds": "many"}}),
        lambda notebook: notebook["metadata"]["dynatree"].update(estimate={"smoke": {"hours": 3}}),
        lambda notebook: notebook["metadata"]["dynatree"].update(estimate={"smoke": {"seconds": 10**400}}),
        lambda notebook: notebook["metadata"]["dynatree"].update(estimate={"smoke": {"memory_mb": -1}}),
    ],
)
def test_json_that_is_no_notebook_is_refused(folder, harm):
    path = folder / "10_fixed.ipynb"
    notebook = json.loads(path.read_text())
    harm(notebook)
    path.write_text(json.dumps(notebook))
    with pytest.raises(
        ValueError, match=r"10_fixed.ipynb is not a readable notebook: .* Restore it from the repository"
    ):
        read_source(path)


def test_a_value_too_deep_for_a_literal_is_a_text():
    deep = "-" * 100_000 + "1"
    assert parse_override(f"x={deep}") == ("x", deep)


def test_annotated_and_unpacked_parameters_are_seen(folder):
    assert read_source(folder / "00_start.ipynb").parameters == ("profile", "width", "low", "high")


def test_notebooks_come_in_the_order_of_their_names(folder):
    assert [source.name for source in find_sources(folder)] == ["00_start", "10_fixed"]


def test_the_hash_ignores_outputs_but_not_sources(folder):
    path = folder / "10_fixed.ipynb"
    before = read_source(path).sha256
    notebook = json.loads(path.read_text())
    notebook["cells"][1]["outputs"] = [{"output_type": "stream", "name": "stdout", "text": "seen"}]
    path.write_text(json.dumps(notebook))
    assert read_source(path).sha256 == before
    notebook["cells"][1]["source"] += ["\nextra = 1"]
    path.write_text(json.dumps(notebook))
    assert read_source(path).sha256 != before


def test_selection_by_pattern_and_headline(folder):
    sources = find_sources(folder)
    assert [s.name for s in select(sources, ["10_*"])] == ["10_fixed"]
    assert [s.name for s in select(sources, ["00_start.ipynb", "1*"])] == ["00_start", "10_fixed"]
    assert [s.name for s in select(sources, headline=True)] == ["10_fixed"]


def test_a_pattern_without_a_match_names_the_notebooks(folder):
    with pytest.raises(ValueError, match="'20_\\*' matches no notebook; choose from 00_start, 10_fixed"):
        select(find_sources(folder), ["10_*", "20_*"])


def test_headline_with_none_selected_is_refused(folder):
    with pytest.raises(ValueError, match="headline"):
        select(find_sources(folder), ["00_*"], headline=True)


def test_overrides_reach_the_notebooks_that_have_them(folder):
    start, fixed = make_jobs(find_sources(folder), "smoke", {"width": 7})
    assert start.parameters == {"profile": "smoke", "width": 7}
    assert fixed.parameters == {"profile": "smoke"}
    assert fixed.estimate.seconds == 5
    assert start.estimate.seconds is None


def test_an_unknown_parameter_lists_the_valid_ones_by_notebook(folder):
    with pytest.raises(ValueError, match="parameter 'widht'") as error:
        make_jobs(find_sources(folder), "smoke", {"width": 1, "widht": 1})
    assert "00_start: profile, width, low, high" in str(error.value)
    assert "10_fixed: profile, seed, sizes" in str(error.value)


def test_the_profile_is_not_an_override(folder):
    with pytest.raises(ValueError, match="--profile smoke"):
        make_jobs(find_sources(folder), "laptop", {"profile": "smoke"})
    with pytest.raises(ValueError, match="profile is 'tiny'; choose from 'smoke', 'laptop', 'colab', 'paper'"):
        make_jobs(find_sources(folder), "tiny", {})


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("x=1", 1),
        ("x=0.5", 0.5),
        ("x=true", True),
        ("x=None", None),
        ("x=[1, 2]", [1, 2]),
        ("x=(1, 2)", [1, 2]),
        ("x=[(1,), {'a': (2, (3,))}]", [[1], {"a": [2, [3]]}]),
        ("x=tiny", "tiny"),
        ("x='1'", "1"),
        ("x=a=b", "a=b"),
        ("x=", ""),
        ("x=01", "01"),
    ],
)
def test_override_values(text, value):
    assert parse_override(text) == ("x", value)


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ("{1: 2}", "the key 1 is no text"),
        ("{'a': 1, 1: 2}", "the key 1 is no text"),
        ("{1, 2}", "set"),
        (r"'\ud800'", "a text has .*no character"),
        (r"[{'\udcff': 1}]", "a text has .*no character"),
        ("0x" + "f" * 5000, "4300 digits"),
    ],
)
def test_a_value_that_papermill_or_json_cannot_hold_is_refused(value, words):
    with pytest.raises(ValueError, match=f"-p x=.* cannot be a parameter .*{words}.*; give a number, a text"):
        parse_override(f"x={value}")


def test_a_pipe_is_no_notebook(folder):
    os.mkfifo(folder / "20_pipe.ipynb")
    with pytest.raises(ValueError, match=r"20_pipe.ipynb is not a readable notebook: it is no file"):
        find_sources(folder)


@pytest.mark.parametrize("text", ["seed", "=1", "a b=1", ""])
def test_override_without_a_name(text):
    with pytest.raises(ValueError, match="name=value"):
        parse_override(text)


@pytest.mark.parametrize("text", ["", "{", "[]", '{"cells": 3}', '{"cells": []}'])
def test_a_broken_notebook_is_named(tmp_path, text):
    (tmp_path / "10_broken.ipynb").write_text(text)
    with pytest.raises(ValueError, match="10_broken.ipynb"):
        find_sources(tmp_path)


@pytest.mark.parametrize("parameters", ["seed = = 1", "seed = \0", "seed = " + "-" * 90_000 + "1"])
def test_a_parameters_cell_that_is_not_python(tmp_path, parameters):
    path = write_notebook(tmp_path, "bad", parameters=parameters)
    with pytest.raises(ValueError, match="parameters cell of .*bad.ipynb is not valid Python"):
        read_source(path)


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(FileNotFoundError, match="--notebooks DIR"):
        find_sources(tmp_path / "none")
    with pytest.raises(FileNotFoundError, match="holds no notebook"):
        find_sources(tmp_path)


def test_the_root_is_found_from_below_and_can_be_named(monkeypatch, tmp_path):
    monkeypatch.delenv("DYNATREE_ROOT", raising=False)
    root = project_root()
    assert (root / "dynatree_lib").is_dir()
    assert project_root(root / "dynatree_suite" / "runs") == root
    monkeypatch.setenv("DYNATREE_ROOT", str(tmp_path))
    assert project_root() == tmp_path
