"""Workloads from the bundled prompts, local folders and the hub's layout; nothing here uses the network."""

import hashlib
import json

import pytest

from dynatree_lib.paths import data_path
from dynatree_suite.papers import workloads
from dynatree_suite.papers.workloads import (
    BUNDLED_TASKS,
    SPEC_BENCH_TASKS,
    WorkloadError,
    WorkloadPrompt,
    join_workloads,
    load_workload,
    render,
)

WIKI = """
 = Title =

 First paragraph {first}
 second paragraph of the same section .

 = = Heading = =

 Too short .

 = = Other = =

 Last section {last}
"""
BOOK = "Head\n*** START OF THIS BOOK ***\n\nCHAPTERS     PAGE\n{table}\n\n{prose}\n\n*** END OF THIS BOOK ***\nLicence"


def write_lines(path, rows):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


@pytest.fixture
def folder(tmp_path):
    """A parent folder with a small copy of every data set, in the documented layout."""
    wiki = WIKI.format(first="x" * 900, last="y" * 250)
    (tmp_path / "wikitext-2-raw").mkdir()
    (tmp_path / "wikitext-2-raw" / "wiki.test.raw").write_text(wiki, encoding="utf-8")
    (tmp_path / "wikitext-2-raw" / "wiki.valid.raw").write_text(wiki.replace("Last", "Valid"), encoding="utf-8")
    prose = "\n\n".join(f"Paragraph {number} " + "of the story " * 30 for number in range(40))
    (tmp_path / "pg19").mkdir()
    for number in ("14263", "16215", "99"):
        book = BOOK.format(table="\n".join(["I. The beginning         1"] * 20), prose=prose)
        (tmp_path / "pg19" / f"{number}.txt").write_text(book, encoding="utf-8")
    questions = [{"question": f"How many are {n}?", "answer": f"#### {n}"} for n in range(150)]
    write_lines(tmp_path / "gsm8k" / "test.jsonl", questions)
    heads = [{"task_id": f"HumanEval/{n}", "prompt": f"def f{n}():", "canonical_solution": "pass"} for n in range(3)]
    write_lines(tmp_path / "human_eval" / "HumanEval.jsonl", heads)
    test_list, code = ["assert f()"], "a\r\nb"
    tasks = [{"task_id": n, "text": f"Write {n}.", "test_list": test_list, "code": code} for n in range(1, 600)]
    write_lines(tmp_path / "mbpp" / "mbpp.jsonl", tasks)
    turns = ["one", "two"]
    spec = [{"question_id": 80 + n, "category": c, "turns": turns} for n, c in enumerate(["writing", "coding"])]
    spec += [{"question_id": 200 + n, "category": c, "turns": [c]} for n, c in enumerate(SPEC_BENCH_TASKS[1:])]
    spec[0]["reference"] = [["nested"], "lists"]
    write_lines(tmp_path / "spec_bench" / "question.jsonl", spec)
    return tmp_path


class WordTokenizer:
    """Splits on spaces; with `chat_template` it renders messages visibly."""

    def __init__(self, chat_template=None):
        self.chat_template = chat_template

    def __call__(self, text):
        return {"input_ids": text.split()}

    def apply_chat_template(self, messages, tokenize, add_generation_prompt):
        assert not tokenize
        return "".join(f"<{m['role']}>{m['content']}" for m in messages) + "<assistant>" * add_generation_prompt


# ------------------------------------------------------------------------------------------------ bundled prompts
def test_bundled_prompts_cover_the_tasks_and_match_their_checksums():
    everything = load_workload("bundled")
    assert len(everything) >= 72
    assert len(set(everything.ids)) == len({p.sha256 for p in everything}) == len(everything)
    counts = {task: len(load_workload(f"bundled/{task}")) for task in BUNDLED_TASKS}
    assert sum(counts.values()) == len(everything)
    assert counts["code"] >= 20
    assert min(counts[task] for task in ("encyclopedia", "novel", "math")) >= 14
    assert all(len(prompt.turns) == 2 for prompt in load_workload("bundled/chat"))
    sums = dict(reversed(line.split()) for line in data_path("prompts", "SHA256SUMS").read_text().splitlines())
    assert set(sums) == {f"{task}.jsonl" for task in BUNDLED_TASKS}
    for name, digest in sums.items():
        assert hashlib.sha256(data_path("prompts", name).read_bytes()).hexdigest() == digest


def test_bundled_prompts_spread_in_length():
    lengths = sorted(len(prompt.text) for prompt in load_workload("bundled"))
    assert lengths[0] < 60
    assert sum(length > 1500 for length in lengths) >= 4


def test_bundled_stands_in_only_when_asked_and_says_so():
    workload = load_workload("wikitext-2", source="bundled", limit=3)
    assert workload.bundled
    assert workload.name == "bundled/encyclopedia"
    assert workload.source == "3 prompts of bundled/encyclopedia: written for this project, held out from training."
    assert len({prompt.task for prompt in load_workload("spec-bench", source="bundled")}) == len(BUNDLED_TASKS)


def test_limit_takes_the_tasks_in_turn():
    workload = load_workload("bundled", limit=10)
    assert [prompt.task for prompt in workload] == [*BUNDLED_TASKS, BUNDLED_TASKS[0]]
    assert load_workload("bundled/math", limit=2).ids == ("math-01", "math-02")


def test_workloads_are_joined_one_after_another():
    both = join_workloads([load_workload(f"bundled/{task}", limit=2) for task in ("math", "code")])
    assert both.ids == ("math-01", "math-02", "code-01", "code-02")
    assert both.name == "bundled/math + bundled/code"
    assert both.source.count("2 prompts of bundled/") == 2
    assert both.bundled


def test_math_prompts_have_the_format_of_the_training_text():
    for prompt in load_workload("bundled/math"):
        assert prompt.text.startswith("Question: ")
        assert prompt.text.endswith("\nAnswer:")


# ------------------------------------------------------------------------------------------------ local folders
def test_wikitext_sections_are_cut_at_characters(folder):
    workload = load_workload("wikitext-2", source=folder)
    assert workload.ids == ("test-0", "test-1")
    assert len(workload.prompts[0].text) == 800
    assert workload.prompts[1].text.startswith("Last section")
    assert "split test, wiki.test.raw, passages cut at 800 characters" in workload.source
    short = load_workload("wikitext-2", source=folder / "wikitext-2-raw", max_characters=100, split="validation")
    assert [len(prompt.text) for prompt in short] == [100, 100]
    assert short.prompts[1].text.startswith("Valid section")
    assert "split validation, wiki.valid.raw" in short.source
    assert "split" not in load_workload("pg-19", source=folder).source  # text files are of no split


def test_pg19_passages_skip_the_header_and_the_training_book(folder):
    workload = load_workload("pg-19", source=folder)
    assert [i.partition("@")[0] for i in workload.ids] == ["14263", "99"] * 20
    assert all(prompt.text.startswith("Paragraph") and len(prompt.text) <= 1000 for prompt in workload)
    assert workload.source.endswith("books 14263, 99.")


def test_random_subsets_are_seeded_and_recorded(folder):
    first, again = (load_workload("gsm-100", source=folder) for _ in range(2))
    assert first == again
    assert len(first) == len(set(first.ids)) == 100
    assert "a random subset of 100 with seed 0" in first.source
    assert load_workload("gsm-100", source=folder, seed=1).ids != first.ids
    assert first.prompts[0].text.startswith("Question: How many are")
    assert first.prompts[0].reference.startswith("#### ")
    with pytest.raises(WorkloadError, match="subset of 100 was asked for, but only 10"):
        load_workload("gsm-100", source=folder, max_characters=len("Question: How many are 9?\nAnswer:"))


def test_code_workloads(folder):
    assert load_workload("humaneval", source=folder).prompts[2] == WorkloadPrompt(
        "HumanEval/2", "code", ("def f2():",), "pass"
    )
    mbpp = load_workload("mbpp", source=folder)
    assert (mbpp.ids[0], mbpp.ids[-1], len(mbpp)) == ("mbpp/11", "mbpp/510", 500)
    assert mbpp.prompts[0].text == '"""\nWrite 11.\nassert f()\n"""\n'
    assert len(load_workload("mbpp-100", source=folder)) == 100


def test_spec_bench_and_its_tasks(folder):
    assert {prompt.task for prompt in load_workload("spec-bench", source=folder)} == set(SPEC_BENCH_TASKS)
    assert load_workload("spec-bench/rag", source=folder).prompts[0].turns == ("rag",)
    single = load_workload("spec-bench/categories", source=folder)
    assert len(single) == len(load_workload("spec-bench", source=folder))
    assert {prompt.task for prompt in single} == {"writing", "coding", *SPEC_BENCH_TASKS} - {"multi_turn"}
    assert load_workload("spec-bench/multi_turn", source=folder / "spec_bench").ids == ("80", "81")
    both = load_workload("mt-bench", source=folder / "spec_bench" / "question.jsonl")
    assert [(prompt.task, prompt.turns) for prompt in both] == [("writing", ("one", "two")), ("coding", ("one", "two"))]


def test_the_environment_variable_names_the_folder(folder, monkeypatch):
    monkeypatch.setenv("DYNATREE_DATA", str(folder))
    assert load_workload("humaneval").source == "3 prompts of humaneval: local folder human_eval, HumanEval.jsonl."


def test_long_prompts_are_left_out_and_counted(folder):
    workload = load_workload("gsm8k", source=folder, max_characters=len("Question: How many are 9?\nAnswer:"))
    assert len(workload) == 10
    assert "140 longer prompts left out" in workload.source
    with pytest.raises(WorkloadError, match="3 longer prompts left out"):
        load_workload("humaneval", source=folder, max_tokens=1, tokenizer=WordTokenizer())


# ------------------------------------------------------------------------------------------------ the hub's layout
@pytest.fixture
def hub_copy(tmp_path, monkeypatch):
    """Local folders in the hub's layout, reached through datasets.load_dataset."""
    datasets = pytest.importorskip("datasets")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    load = datasets.load_dataset
    monkeypatch.setattr(
        datasets, "load_dataset", lambda *args, **named: load(*args, cache_dir=str(tmp_path / "cache"), **named)
    )

    def copy(name, rows, config, split="test"):
        place = tmp_path / name / "data"
        place.mkdir(parents=True)
        datasets.Dataset.from_list(rows).to_parquet(place / f"{split}-00000-of-00001.parquet")
        if config:
            files = f"  data_files:\n  - split: {split}\n    path: data/{split}-*\n"
            card = f"---\nconfigs:\n- config_name: {config}\n{files}---\n"
            (tmp_path / name / "README.md").write_text(card)
        changed = workloads.replace(workloads.DATA_SETS[name], hub=str(tmp_path / name))
        monkeypatch.setitem(workloads.DATA_SETS, name, changed)
        return tmp_path / name

    return copy


def test_hub_rows_and_a_downloaded_snapshot_agree(hub_copy):
    rows = [{"question": f"How many are {n}?", "answer": str(n)} for n in range(5)]
    snapshot = hub_copy("gsm8k", rows, "main")
    from_hub = load_workload("gsm8k", source="hub")
    assert from_hub.prompts == load_workload("gsm8k", source=snapshot).prompts
    assert len(from_hub) == 5
    assert "from the Hugging Face hub, split test" in from_hub.source


def test_hub_line_rows_of_wikitext_and_books_of_pg19(hub_copy):
    lines = [{"text": line} for line in ["", " = Title = \n", "", " Words " + "w" * 300 + " \n", " more . \n", ""]]
    hub_copy("wikitext-2", lines, "wikitext-2-raw-v1")
    (prompt,) = load_workload("wikitext-2", source="hub").prompts
    assert prompt.text.startswith("Words www")
    assert prompt.text.endswith("more .")
    url = "http://www.gutenberg.org/ebooks/5"
    hub_copy("pg-19", [{"url": url, "text": "Head\n\n" + "\n\n".join(["A long line . " * 90] * 4)}], None)
    assert {i.partition("@")[0] for i in load_workload("pg-19", source="hub").ids} == {"5"}


def test_hub_mt_bench_columns(hub_copy):
    hub_copy("mt-bench", [{"prompt_id": 7, "category": "writing", "prompt": ["one", "two"]}], None, split="train")
    assert load_workload("mt-bench", source="hub").prompts == (WorkloadPrompt("7", "writing", ("one", "two")),)


@pytest.mark.parametrize(("name", "checked"), [("pg-19", False), ("gsm8k", True)])
def test_what_the_hub_is_asked_for(monkeypatch, name, checked):
    datasets, asked = pytest.importorskip("datasets"), []

    def load_dataset(*arguments, **options):
        asked.append((arguments, options))
        return []

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    rows, _ = workloads.read_rows(name, "test", "hub")
    assert not list(rows)
    files = {} if checked else {"data_files": {"test": "data/test-*"}, "verification_mode": "no_checks"}
    data_set = workloads.DATA_SETS[name]
    assert asked == [((data_set.hub, data_set.config), {"split": "test", **files})]


def test_spec_bench_is_downloaded_once_from_its_own_repository(folder, tmp_path, monkeypatch):
    monkeypatch.setenv("DYNATREE_CACHE", str(tmp_path / "cache"))
    asked, file = [], folder / "spec_bench" / "question.jsonl"

    def urlopen(address, timeout):
        asked.append(address)
        return file.open("rb")

    monkeypatch.setattr(workloads, "urlopen", urlopen)
    for name in ("spec-bench", "spec-bench/qa", "spec-bench/categories"):
        found = load_workload(name, source="hub")
        assert found.prompts == load_workload(name, source=folder).prompts
        assert found.source.endswith(f"from {asked[0]}.")
    assert asked == ["https://raw.githubusercontent.com/hemingkx/Spec-Bench/main/data/spec_bench/question.jsonl"]


# ------------------------------------------------------------------------------------------------ errors
def test_an_unreachable_hub_names_the_folder_and_the_bundled_prompts(monkeypatch):
    datasets = pytest.importorskip("datasets")

    def unreachable(*args, **named):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    monkeypatch.delenv("DYNATREE_DATA", raising=False)
    with pytest.raises(WorkloadError) as caught:
        load_workload("gsm8k")
    for part in ("openai/gsm8k", "no route to host", "gsm8k/test.jsonl", "DYNATREE_DATA", "'bundled/math'"):
        assert part in str(caught.value)


@pytest.mark.parametrize("name", sorted(workloads.DATA_SETS))
def test_an_empty_folder_is_an_error_for_every_data_set(name, tmp_path):
    with pytest.raises(WorkloadError, match="would serve") as caught:
        load_workload(name, source=tmp_path)
    assert str(tmp_path) in str(caught.value)


def test_an_address_that_cannot_be_reached_states_what_is_accepted(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNATREE_CACHE", str(tmp_path / "cache"))
    missing = workloads.replace(workloads.DATA_SETS["spec-bench/qa"], address=(tmp_path / "none").as_uri())
    monkeypatch.setitem(workloads.DATA_SETS, "spec-bench/qa", missing)
    with pytest.raises(WorkloadError, match=r"was asked for at .*/none, which failed.*spec_bench/question\.jsonl"):
        load_workload("spec-bench/qa", source="hub")
    assert not list(tmp_path.rglob("*.partial"))


def test_a_broken_line_is_named(folder):
    (folder / "gsm8k" / "test.jsonl").write_text('{"question": "a", "answer": "b"}\n{"question": \n')
    with pytest.raises(WorkloadError, match=r"Line 2 of .*test\.jsonl is not JSON"):
        load_workload("gsm8k", source=folder)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "wikitext"}, "There is no workload 'wikitext'"),
        ({"name": "bundled", "limit": 0}, "limit is 0; give at least 1"),
        ({"name": "bundled", "max_tokens": 9}, "max_tokens=9 needs tokenizer="),
        ({"name": "mbpp", "split": "train"}, "'mbpp' has no split 'train'; it has test"),
    ],
)
def test_bad_arguments(arguments, message):
    with pytest.raises(ValueError, match=message):
        load_workload(**arguments)


def test_missing_data_is_an_error():
    with pytest.raises(FileNotFoundError, match=r"data/prompts/poems\.jsonl was found neither"):
        data_path("prompts", "poems.jsonl")


# ------------------------------------------------------------------------------------------------ chat templates
def test_render():
    plain, chat = WordTokenizer(), WordTokenizer("template")
    assert render("as it is", plain) == "as it is"
    assert render(["one", "two"], plain) == "one"
    assert render(["one", "two"], plain, replies=["reply"]) == "one\n\nreply\n\ntwo"
    assert render("hello", chat) == "<user>hello<assistant>"
    assert render(["one", "two"], chat, ["reply"]) == "<user>one<assistant>reply<user>two<assistant>"
    with pytest.raises(ValueError, match="There are 1 replies for 1 turns"):
        render("one", plain, ["reply"])
