"""The course: each checker takes its solution, and answers each usual mistake with a hint of its own."""

import base64
import json
import re
from pathlib import Path

import nbformat
import numpy as np
import pytest
from nbconvert import SlidesExporter

from dynatree_suite.course import EXERCISES, check

NOTEBOOKS = Path(__file__).resolve().parents[2] / "notebooks"
SOLUTIONS = sorted((NOTEBOOKS / "solutions").glob("*.ipynb"))
SLIDES = sorted((NOTEBOOKS / "slides").glob("*.ipynb"))


def cells(path, kind="code"):
    return ["".join(one["source"]) for one in json.loads(path.read_text("utf-8"))["cells"] if one["cell_type"] == kind]


@pytest.mark.parametrize("number", EXERCISES)
def test_a_checker_takes_the_right_answer_and_tells_mistakes_apart(number, capsys):
    exercise = EXERCISES[number]
    assert check(number, exercise.right) is True
    assert exercise.praise in capsys.readouterr().out
    assert len(exercise.mistakes) >= 3
    for hint, wrong in exercise.mistakes.items():
        assert check(number, wrong) is False
        assert hint in capsys.readouterr().out  # its own, none that an earlier mistake would get


@pytest.mark.parametrize("number", EXERCISES)
def test_no_answer_and_strange_answers(number, capsys):
    for empty in (None, ...):
        assert check(number, empty) is None
    assert check(number, "a guess") is False
    if EXERCISES[number].cases:
        assert check(number, lambda *arguments: None) is None
        assert "no answer yet" in capsys.readouterr().out
        assert check(number, lambda *arguments: -17.5) is False
        assert "With " in capsys.readouterr().out
        assert check(number, lambda *arguments: 1 / 0) is False
        assert "ZeroDivisionError" in capsys.readouterr().out
        assert check(number, lambda: 0) is False  # other arguments


@pytest.mark.parametrize(
    ("number", "answer", "hint"),
    [
        ("00.1", (4, 12), "The second number, 12, is not right: it counts all nodes that the target reads at once"),
        ("00.1", (5, 9), "The first number, 5, is not right: it counts what is added to the text: .* The second num"),
        ("00.1", 4, r"The answer is 2 numbers, such as \(1, 2\); 4 is none"),
        ("00.1", "four and ten", r"The answer is 2 numbers, such as \(1, 2\); 'four and ten' is none"),
        ("00.2", 5, "The number, 5, is not right: it counts the drafted nodes of that tree"),
        ("00.2", (8, 8), r"The answer is one number, such as 3; \(8, 8\) is none"),
        ("00.3", (5, 5), "Both are one short: think of the bonus token, and of the forward that verifies"),
        ("00.3", (6, 10), "The second number, 10, is not right: it counts one forward for each level"),
        ("10.1", [0.25, 0.3125], "the other way round"),
        ("10.1", (31.25, 25), "in per cent"),
        ("10.1", (5 / 17, 0.25), "The first number, 0.294118, is not right: it counts committed tokens"),
    ],
)
def test_an_answer_that_nobody_thought_of_is_led_on(number, answer, hint, capsys):
    assert check(number, answer) is False
    assert re.search(hint, capsys.readouterr().out)


def test_every_answer_in_numbers_says_what_each_counts():
    for number, exercise in EXERCISES.items():
        assert exercise.cases or len(exercise.parts) == np.size(exercise.right), number


def test_an_answer_that_writes_into_its_arguments_spoils_no_case(capsys):
    def second_sibling(q, drawn):
        q[drawn] = 0
        return q / q.sum()

    for _ in range(2):
        assert check("04.2", second_sibling) is True
    assert check("04.2", EXERCISES["04.2"].right) is True


def test_an_unknown_exercise_is_named():
    with pytest.raises(ValueError, match=r"no exercise '99\.1' with a checker; there are 00\.1, "):
        check("99.1", 1)


@pytest.mark.parametrize("path", SOLUTIONS, ids=lambda path: path.stem)
def test_every_exercise_of_a_notebook_has_a_cell_and_a_solution_that_runs(path):
    mine = [number for number in EXERCISES if number.startswith(path.stem[:2])]
    assert len(mine) >= 3
    names = {}
    for cell in cells(path):
        exec(cell, names)
    solved, asked = "\n".join(cells(path)), "\n".join(cells(NOTEBOOKS / path.name))
    text = "\n".join(cells(NOTEBOOKS / path.name, "markdown"))
    for number in mine:
        assert f'assert check("{number}", ' in solved
        assert f'check("{number}", ' in asked
        assert f"**Exercise {number}** (" in text
    for level in ("easy", "medium", "hard"):
        assert f"({level})" in text


def test_every_exercise_belongs_to_a_notebook_with_solutions():
    assert {number[:2] for number in EXERCISES} == {path.stem[:2] for path in SOLUTIONS}


@pytest.mark.parametrize("path", SLIDES, ids=lambda path: path.stem)
def test_slides_become_pages_with_their_pictures(path):
    page, _ = SlidesExporter().from_filename(path)
    every = json.loads(path.read_text("utf-8"))["cells"]
    slides = [one for one in every if one["metadata"]["slideshow"]["slide_type"] == "slide"]
    assert len(slides) >= 10
    assert page.count("<section>") == 2 * len(slides)  # nbconvert puts each slide into a stack of its own
    pictures = [data for one in every for kinds in one.get("attachments", {}).values() for data in kinds.values()]
    for data in pictures:
        assert base64.b64decode(data) == (NOTEBOOKS.parent / "docs" / "images" / "tree.svg").read_bytes()
    assert page.count('src="data:image/svg+xml;base64,') == len(pictures)
    asked = re.findall(r"[Ee]xercises? ([\d., andto]+\d)", "\n".join(cells(path, "markdown")))
    assert asked
    assert "dynatree" not in json.loads(path.read_text("utf-8"))["metadata"]
    assert {number for some in asked for number in re.findall(r"\d\d\.\d", some)} <= set(EXERCISES)


@pytest.mark.parametrize("path", sorted(NOTEBOOKS.glob("*.ipynb")), ids=lambda path: path.stem)
def test_every_notebook_says_what_comes_before_and_asks_for_a_prediction(path):
    texts = [cell.source for cell in nbformat.read(path, 4).cells if cell.cell_type == "markdown"]
    told = " ".join(texts[0].replace("\n> ", " ").split())
    assert re.search(r"\*\*Before\*\*: .+\. \*\*Reading\*\*: \d+ minutes.*\. \*\*Afterwards\*\* you can .+\.", told)
    assert any(re.search(r"\b[Pp]redict", text) for text in texts)
