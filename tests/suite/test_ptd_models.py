"""Progressive Tree Drafting's models, the pairs with these targets, and the lines of its tables."""

import json
from pathlib import Path

import pytest

from dynatree_lib import ProgressiveTree, generate, load_pair
from dynatree_lib.models.pairs import PAIRS
from dynatree_suite.papers.ptd.models import MODELS_OF_FIGURE, PAIR_OF, among, chosen_models, table_lines
from dynatree_suite.papers.published import published
from dynatree_suite.papers.workloads import load_workload

PAPER = published("ptd")


def test_every_model_of_the_paper_has_a_named_pair():
    assert list(PAIR_OF) == PAPER.setup["target_models"]["value"]
    targets = [PAIRS[pair].target.rpartition("/")[2].lower() for pair in PAIR_OF.values()]
    for model, target in zip(PAIR_OF, targets, strict=True):
        family, size = model.split("-")[:2]
        assert f"-{size}-" in target
        assert target.startswith(family.replace("llama2", "llama-2"))


@pytest.mark.parametrize("number", [1, 2, 3, 4])
def test_all_models_give_the_lines_of_every_table(number):
    lines = table_lines(chosen_models(None, "tiny", every=True))
    printed = [(row["benchmark"], row["model"]) for row in PAPER.table(number).rows]
    assert [(line.benchmark, line.model) for line in lines] == list(dict.fromkeys(printed))
    assert len({line.name for line in lines}) == 14
    assert all(line.pair == PAIR_OF[line.model] for line in lines)


def test_one_pair_stands_for_the_smallest_models():
    lines = table_lines(chosen_models(None, "tiny"))
    assert [line.model for line in lines] == ["llama2-7b-chat"] * 2 + ["codellama-7b-instruct"] * 2
    assert [line.name for line in lines] == ["mt-bench", "gsm-100", "humaneval", "mbpp-100"]
    assert {line.pair for line in lines} == {"tiny"}


def test_some_models_are_measured_on_their_own_benchmarks_in_the_papers_order():
    measured = chosen_models(["codellama-7b-instruct", "llama2-13b-chat"], "tiny")
    assert list(measured) == ["llama2-13b-chat", "codellama-7b-instruct"]
    names = ["mt-bench-llama2-13b-chat", "gsm-100-llama2-13b-chat"]
    names += ["humaneval-codellama-7b-instruct", "mbpp-100-codellama-7b-instruct"]
    assert [line.name for line in table_lines(measured)] == names
    assert chosen_models("llama2-13b-chat", "tiny", every=True) == {"llama2-13b-chat": "llama-2-13b/68m"}


def test_a_figure_has_its_own_models_or_the_first_that_is_measured():
    every = chosen_models(None, "tiny", every=True)
    assert all(tuple(among(every, models)) == models for models in MODELS_OF_FIGURE.values())
    assert list(among(every, ("llama2-13b-chat", "llama2-7b-chat"))) == ["llama2-13b-chat", "llama2-7b-chat"]
    assert among(chosen_models(None, "tiny"), ("llama2-13b-chat",)) == {"tiny": "tiny"}
    some = chosen_models(["qwen2.5-7b-instruct", "qwen2.5-14b-instruct"], "tiny")
    assert list(among(some, ("llama2-13b-chat",))) == ["qwen2.5-7b-instruct"]


@pytest.mark.parametrize("models", [["llama-2-7b/68m"], [], "tiny"])
def test_another_models_name_is_refused(models):
    with pytest.raises(ValueError, match=r"models.*llama2-7b-chat"):
        chosen_models(models, "tiny")


@pytest.mark.parametrize("name", ["20_ptd", "21_ptd_analysis", "22_ptd_quality"])
def test_the_notebooks_take_the_papers_first_model_and_dtype(name):
    path = Path(__file__).resolve().parents[2] / "notebooks" / f"{name}.ipynb"
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    code = "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "code")
    assert f'paper=("{next(iter(PAIR_OF.values()))}", "{PAPER.setup["dtype"]["value"]}")' in code
    assert "models = None" in code
    assert "load_pair" not in code


def test_the_default_draft_tree_is_as_large_as_the_papers():
    pair = load_pair("tiny")
    drafted = [row["draft_overhead"] for row in PAPER.table(4).rows if row["method"] == "ptd"]
    sizes = []
    for prompt in load_workload("bundled").prompts[20::16]:
        ids = pair.tokenizer(prompt.text)["input_ids"]
        text = generate(pair.target, ids, ProgressiveTree(), max_new_tokens=96, eos_token_ids=())
        sizes += [one.side_nodes for one in text.iterations]
    assert min(drafted) <= sum(sizes) / len(sizes) <= max(drafted)
