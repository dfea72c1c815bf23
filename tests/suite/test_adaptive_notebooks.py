"""Notebooks 12 to 14 measure in the profile `paper` what DynaTree adaptive has: its lists, texts, lengths and trees."""

import ast
import json
from pathlib import Path

import pytest

from dynatree_suite.papers.published import published, shown_where

FOLDER = Path(__file__).resolve().parents[2] / "notebooks"
ABLATION, SCALING, SENSITIVITY = "12_dynatree_ablation", "13_dynatree_scaling", "14_dynatree_sensitivity"
NOTEBOOKS = (ABLATION, SCALING, SENSITIVITY)
PAPER = published("dynatree-adaptive")


def code(name):
    cells = json.loads((FOLDER / f"{name}.ipynb").read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")


def amounts(name):
    """Label -> value in the profile `paper`, of literals and names of literals; and all labels."""
    known, found, labels = {}, {}, []
    for node in ast.walk(ast.parse(code(name))):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            try:
                known[node.targets[0].id] = ast.literal_eval(node.value)
            except ValueError:
                continue
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("size", "choose"):
            labels.append(ast.literal_eval(node.args[0]))
            paper = next(given.value for given in node.keywords if given.arg == "paper")
            if isinstance(paper, ast.Name):
                found[labels[-1]] = known.get(paper.id)
            elif not any(isinstance(part, ast.Name) for part in ast.walk(paper)):
                found[labels[-1]] = ast.literal_eval(paper)
    return found, labels


def values(number, column):
    return tuple(dict.fromkeys(row[column] for row in PAPER.figure(number).rows if row[column] is not None))


def test_lengths_and_sweeps_are_the_papers_whole_lists():
    scaling, sweep = amounts(SCALING)[0], amounts(SENSITIVITY)[0]
    assert scaling["generation lengths"] == values(6, "new_tokens")
    assert scaling["characters of a prompt"] == values(9, "prompt_characters")
    assert tuple(depth - 1 for depth in sweep["depths of fixed trees"]) == values(7, "D")
    assert sweep["children of fixed trees"] == values(7, "B")
    assert set(sweep["thresholds of fixed trees"]) >= set(values(7, "tau"))
    assert 'nb.choose("settings of Figure 8", smoke=few_settings, laptop=tuple(logged), paper=tuple(logged))' in code(
        SENSITIVITY
    )


@pytest.mark.parametrize(
    ("name", "prompts", "tokens"),
    [
        (ABLATION, ["prompts to judge on"], ["new tokens to judge on"]),
        (
            SCALING, ["prompts to judge on", "prompts to cut", "texts of Table 5"],
            ["new tokens behind cut prompts", "new tokens of Table 5"],
        ),
        (SENSITIVITY, ["prompts to time the sweeps on"], ["new tokens"]),
    ],
)  # fmt: skip
def test_prompts_warm_up_and_lengths_are_the_papers(name, prompts, tokens):
    found, setup = amounts(name)[0], {what: PAPER.setup[what]["value"] for what in ("prompts", "warmup", "T")}
    assert {found[what] for what in prompts} == {setup["prompts"]}
    assert found["warm-up calls"] == setup["warmup"]
    assert {found[what] for what in tokens} == {setup["T"]}


def test_fixed_trees_and_chains_are_those_of_the_tables():
    setup = {what: PAPER.setup[what]["value"] for what in ("fixed_tree", "fixed_tree_table_4", "K_linear")}
    tuned, weak = setup["fixed_tree"], setup["fixed_tree_table_4"]
    scaling, ablation = code(SCALING), code(ABLATION)
    assert f"fixed-tree:depth={weak['D'] + 1},branching={weak['B']},tau=0.05," in scaling
    assert f"fixed-tree:depth={tuned['D'] + 1},branching={tuned['B']},tau={tuned['tau']}," in scaling
    assert f'"root=draft,max_nodes={tuned["N_max"] + 1}"' in scaling
    assert all(f"chain:length={length}" in scaling for length in setup["K_linear"].values())
    assert f'"fixed tree": {{"depth": {weak["D"]} + 1, "branching": {weak["B"]}, "tau": 0.05}}' in ablation
    assert f'"fixed tree, no tau": {{"depth": {weak["D"]} + 1, "branching": {weak["B"]}, "tau": None}}' in ablation


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_every_workload_has_the_split_of_both_papers(name):
    source = code(name)
    assert source.count("SPLITS") > source.count("= load_workload(")  # the import is one more
    assert '"validation"' not in source


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_amounts_have_labels_of_their_own_and_measured_items_a_claim(name):
    labels = amounts(name)[1]
    assert all(labels)
    assert len(labels) == len(set(labels))
    shown = [row for row in shown_where() if row["notebook"] == name and "earlier" not in row["paper"]]
    assert {row["item"] for row in shown if row["how"] == "measured" and f'"{row["item"]}"' not in code(name)} == set()
