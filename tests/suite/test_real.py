"""What notebooks show of a real model, and what they read from records that are kept."""

import gzip
from types import SimpleNamespace

import pytest

from dynatree_lib import Chain, FixedTree, autoregressive, load_pair
from dynatree_suite.bench.protocol import run_benchmark
from dynatree_suite.papers.workloads import load_workload
from dynatree_suite.runs.real import QUESTIONS, Reference, answer_rows, answers, answers_shown

TINY = load_pair("tiny")


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """A run of three methods on two prompts of each of two tasks, where the project keeps such runs."""
    root = tmp_path_factory.mktemp("project")
    folder = root / "outputs" / "reference" / "smollm2"
    folder.mkdir(parents=True)
    prompts = [one for task in ("code", "math") for one in load_workload(f"bundled/{task}", limit=2).prompts]
    lines = folder / "float32.jsonl"
    run_benchmark(TINY, "hf-generate,ar-fast,chain:length=2", prompts, max_new_tokens=12, records=lines)
    (folder / "float32.jsonl.gz").write_bytes(gzip.compress(lines.read_bytes()))
    return Reference.of(SimpleNamespace(reference=lambda name: root / "outputs" / "reference" / name), "float32")


def test_a_record_that_is_kept_is_read(kept):
    assert kept.name == "outputs/reference/smollm2/float32.jsonl.gz"
    assert list(kept.rows) == ["hf-generate", "ar-fast", "chain:length=2"]
    table = kept.table("x ar-fast", "identical", only=("ar-fast", "chain:length=2"))
    assert list(table["method"]) == ["ar-fast", "chain:length=2"]
    assert list(table["identical"]) == ["4/4", "4/4"]
    assert "4 prompts of Spec-Bench, at most 12 tokens, one interleaved run on" in kept.caption
    assert kept.caption.endswith(f"Record: {kept.name}.")


def test_speeds_by_task_and_without_the_reading_of_the_prompt(kept):
    frame = kept.frame.set_index(["method", "prompt"])
    assert set(frame["task"]) == {"code", "math"}
    rows = {row["task"]: row for row in kept.by_task("chain:length=2", "ar-fast")}
    code = frame[frame["task"] == "code"]["seconds"]
    each = code["ar-fast"] / code["chain:length=2"]  # all texts have the same length
    assert each.min() <= rows["code"]["ratio"] <= each.max()
    assert rows["code"]["interval"][0] <= rows["code"]["ratio"] <= rows["code"]["interval"][1]
    further = kept.frame[kept.frame["method"] == "ar-fast"]
    assert (further["further"] == further["tokens"] - 1).all()  # one at a time, and the first one is left out
    assert (further["span"] < further["seconds"]).all()
    assert kept.over("ar-fast", "hf-generate", prefill=False).value > 0


def test_each_drafter_answers_each_question():
    drafters = {"chain": Chain(TINY.draft, 2), "fixed-tree": FixedTree(TINY.draft)}
    texts = answers(TINY, drafters, 12)
    assert list(texts) == [(task, name) for task in QUESTIONS for name in drafters]
    plain = autoregressive(TINY.target, TINY.ids(QUESTIONS["code"]), max_new_tokens=12)
    assert texts["code", "chain"].tokens == texts["code", "fixed-tree"].tokens == plain.tokens
    shown = answers_shown(texts, "chain", TINY.tokenizer)
    assert all(question.split(":")[0] in shown for question in QUESTIONS.values())
    row = answer_rows(texts)[0]
    assert (row["task"], row["method"]) == (next(iter(QUESTIONS)), "chain")
    assert row["tokens per iteration"] == row["tokens"] / row["iterations"] > 1


def test_tokens_per_iteration_are_compared_pair_by_pair(kept):
    rows = kept.frame.groupby("method")[["tokens", "iterations"]].sum()
    chain, plain = (rows.loc[name, "tokens"] / rows.loc[name, "iterations"] for name in ("chain:length=2", "ar-fast"))
    assert kept.tokens_over("chain:length=2", "ar-fast").value == pytest.approx(chain / plain)
