"""The stand-in of the hub: every named pair and every data set of the papers loads from it."""

from __future__ import annotations

from functools import cache

import pytest
import torch

import dynatree_lib as dt
from dynatree_lib.models import pairs
from dynatree_lib.models.pairs import PAIRS
from dynatree_suite.papers.workloads import DATA_SETS, SPEC_BENCH_TASKS, SUBSETS, load_workload, render
from tools.stand_ins import GATED, MODELS, TOKENS, build, main

NAMED = [name for name in PAIRS if name not in ("tiny", "smollm2")]
SMALL = "HuggingFaceTB/SmolLM2-360M-Instruct + HuggingFaceTB/SmolLM2-135M-Instruct"
PROMPT = "The old lighthouse of Karsund, rebuilt in 1907"


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("hub")
    build(folder)
    return folder


@pytest.fixture(autouse=True)
def _stand_ins(folder, monkeypatch):
    monkeypatch.setenv(pairs.MODELS_FOLDER, str(folder / "models"))
    monkeypatch.setenv("DYNATREE_DATA", str(folder / "data"))


@pytest.fixture(scope="module")
def once():
    """Loads a model once: most are in several pairs."""
    return cache(pairs.load_model)


def test_it_is_small_and_is_not_overwritten(folder, capsys):
    files = {path.stat().st_ino: path.stat().st_size for path in folder.rglob("*") if path.is_file()}
    assert sum(files.values()) < 62e6
    assert main([str(folder)]) == 2
    assert "models already; remove it, or give another folder" in capsys.readouterr().err


def test_every_model_of_the_papers_has_a_stand_in(folder):
    named = {half for name in NAMED for half in (PAIRS[name].target, PAIRS[name].draft)}
    assert named <= set(MODELS)
    formats = {name: sorted(path.name for path in (folder / "models" / name).glob("*model*")) for name in MODELS}
    assert formats["JackFram/llama-68m"] == ["pytorch_model.bin"]
    assert len(formats["codellama/CodeLlama-13b-Instruct-hf"]) == 4  # with the index
    assert len(formats["meta-llama/Llama-3.1-8B-Instruct"]) == 5
    assert formats["Qwen/Qwen2.5-7B-Instruct"] == ["model.safetensors"]


@pytest.mark.filterwarnings("ignore:.*generation config")
@pytest.mark.parametrize("name", [*NAMED, SMALL])
def test_a_pair_loads_and_its_draft_is_right_now_and_then(name, once, monkeypatch):
    monkeypatch.setattr(pairs, "load_model", once)
    pair = dt.load_pair(name, dtype=torch.float32, engine="eager")
    sources = [PAIRS[name].target, PAIRS[name].draft] if name in PAIRS else name.split(" + ")
    for source, model in zip(sources, (pair.target, pair.draft), strict=True):
        assert model.model.config.vocab_size == MODELS[source].rows
        assert model.context == MODELS[source].context
        assert len(model.tokenizer) == TOKENS[MODELS[source].tokens].size
        assert bool(model.tokenizer.chat_template) == MODELS[source].chat
        known = model.tokenizer.get_vocab()
        assert all(known[token] == number for token, number in TOKENS[MODELS[source].tokens].special.items())
    ids = pair.ids(PROMPT)
    assert PROMPT in pair.tokenizer.decode(ids)
    plain = dt.autoregressive(pair.target, ids, max_new_tokens=40, eos_token_ids=()).tokens
    assert len(set(plain)) > 8
    drafted = dt.generate(pair.target, ids, dt.Chain(pair.draft, length=3), max_new_tokens=40, eos_token_ids=())
    assert drafted.tokens == plain
    assert len(drafted.iterations) < 40


def test_a_gated_model_says_what_is_missing():
    with pytest.raises(ValueError, match=f"'{GATED}' could not be loaded .* need an access token"):
        dt.load_pair(f"{GATED} + JackFram/llama-68m")


@pytest.mark.parametrize("name", [*DATA_SETS, *SUBSETS])
def test_a_data_set_loads_in_each_of_its_splits(name):
    for split in DATA_SETS[name].splits if name in DATA_SETS else ("test",):
        found = load_workload(name, split=split)
        assert len(found) >= 16
        assert len({prompt.sha256 for prompt in found}) == len(found)


def test_conversations_have_two_turns(folder):
    for name in ("mt-bench", "spec-bench/multi_turn"):
        assert {len(prompt.turns) for prompt in load_workload(name)} == {2}
    assert len({prompt.task for prompt in load_workload("mt-bench")}) == 8
    assert {prompt.task for prompt in load_workload("spec-bench")} == set(SPEC_BENCH_TASKS)
    assert all(
        len(prompt.turns) == 1 for task in SPEC_BENCH_TASKS[1:] for prompt in load_workload(f"spec-bench/{task}")
    )
    tokenizer = pairs._from_pretrained("AutoTokenizer", str(folder / "models" / SMALL.split(" + ")[0]))
    first = load_workload("mt-bench").prompts[0]
    assert all(turn in render(first.turns, tokenizer, ["A reply."]) for turn in first.turns)


def test_passages_are_long_enough_to_cut(folder):
    sections = load_workload("wikitext-2", max_characters=5000)
    assert len(sections) >= 40
    assert max(len(prompt.text) for prompt in sections) > 1500
    assert {len(prompt.text) > 900 for prompt in load_workload("pg-19")} == {True}
    tokenizer = pairs._from_pretrained("AutoTokenizer", str(folder / "models/EleutherAI/pythia-70m"))
    assert len(load_workload("wikitext-2", split="validation", max_tokens=248, tokenizer=tokenizer)) >= 10
