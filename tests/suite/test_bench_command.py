"""`dynatree bench` from models in a folder to a table and a JSON file."""

from __future__ import annotations

import json

import pandas as pd
import pytest
from models import VOCABULARY, noisy_copy, random_model
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from dynatree_suite.bench import bandwidth, protocol
from dynatree_suite.bench.methods import METHODS as TABLE
from dynatree_suite.bench.protocol import Results
from dynatree_suite.bench.records import Header, Records, Run
from dynatree_suite.cli.arguments import text_lines
from dynatree_suite.cli.bench import method_list, report
from dynatree_suite.cli.main import main
from dynatree_suite.files import sole_writer
from tools.fill_tables import quote


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A random pair and a tokenizer of one token per character, saved as a user would have them."""
    place = tmp_path_factory.mktemp("pair")
    letters = {chr(32 + index): index for index in range(VOCABULARY - 2)} | {
        "[UNK]": VOCABULARY - 2,
        "\n": VOCABULARY - 1,
    }
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    target = random_model("gpt_neox")
    for name, model in (("target", target), ("draft", noisy_copy(target))):
        model.model.save_pretrained(place / name)
        PreTrainedTokenizerFast(tokenizer_object=tokenizer, unk_token="[UNK]").save_pretrained(place / name)
    return ["--target", str(place / "target"), "--draft", str(place / "draft"), "--dtype", "float64"]


@pytest.fixture(autouse=True)
def small_buffers(monkeypatch):
    monkeypatch.setattr(bandwidth, "STREAM", {"cpu": 2**20})


def test_several_workloads_are_measured_in_one_run(folders, tmp_path, capsys):
    file = tmp_path / "out.json"
    what = ["--workload", "bundled/math,bundled/code", "--limit", "1", "--methods", "ar,ptd", "--max-new-tokens", "24"]
    assert main(["bench", *folders, *what, "--threads", "1", "--json", str(file)]) == 0
    found = json.loads(file.read_text())
    assert [one["id"] for one in found["setup"]["prompts"]] == ["math-01", "code-01"]
    assert "Dft/Ver" in capsys.readouterr().out
    cells = quote(found, "out.json").splitlines()
    rows = [[cell.strip() for cell in line.split("|")[1:-1]] for line in cells[1:5]]
    assert rows[0][-4:] == ["identical", "HR", "AL", "Dft/Ver"]
    assert rows[2][-3:] == ["", "", ""]  # plain decoding drafts nothing
    ptd = found["methods"][1]
    assert rows[3][-1] == f"{ptd['side_nodes_per_iteration']:.0f}/{ptd['nodes_per_iteration']:.0f}"


METHODS = "ar,hf-generate,hf-assisted,chain,fixed-tree:depth=3,branching=2,streaming-llm:cache=24"


def test_it_prints_a_table_and_writes_the_json(folders, tmp_path, capsys):
    file = tmp_path / "out.json"
    records = tmp_path / "records.jsonl"
    status = main([
        "bench", *folders, "--methods", METHODS, "--limit", "2", "--max-new-tokens", "12", "--json", str(file),
        "--records", str(records), "--trace", "1", "--threads", "1",
    ])  # fmt: skip
    shown = capsys.readouterr()
    assert status == 0
    lines = shown.out.splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("method"))
    assert [line.split()[0] for line in lines[start + 2 : start + 8]] == [
        "ar", "hf-generate", "hf-assisted", "chain", "fixed-tree:depth=3,branching=2", "streaming-llm:cache=24",
    ]  # fmt: skip
    assert len({len(line) for line in lines[start : start + 8]}) == 1
    assert "(lossy)" in lines[start + 7]
    assert "x bound" in lines[start]
    assert "x ar-fast" not in lines[start]  # which was not measured
    shares = [line.split()[-3] for line in lines[start + 5 : start + 8]]  # before time to first token and equality
    assert all(98 <= sum(map(int, each.split("/"))) <= 102 for each in shares)
    assert any(line.startswith("Bound: plain decoding that reads 0.") for line in lines)
    assert any("GB/s before the runs" in line and "GB/s after the runs" in line for line in lines)
    assert "bundled" in lines[1]
    assert "[12/12]" in shown.err

    found = json.loads(file.read_text())
    assert set(found) >= {"environment", "setup", "methods"}
    by_name = {one["method"]: one for one in found["methods"]}
    assert list(by_name) == ["ar", "hf-generate", "hf-assisted", "chain", "fixed-tree", "streaming-llm"]
    for name in ("ar", "hf-generate", "hf-assisted", "chain", "fixed-tree"):
        low, high = by_name[name]["tokens_per_second_interval"]
        assert 0 < low <= by_name[name]["tokens_per_second"] <= high
        assert by_name[name]["identical"] == "2/2"
        assert by_name[name]["tokens_per_iteration"] >= 1
    assert by_name["fixed-tree"]["options"]["depth"] == 3
    assert found["setup"]["target"]["files"]["model.safetensors"]
    bound = found["bandwidth"]
    assert [one["when"] for one in bound["measured"]] == ["before", "before", "after", "after"]
    assert bound["weight_bytes"] == found["setup"]["target"]["forward_bytes"] == bound["measured"][0]["size"]
    for one in found["methods"]:  # all texts are equally long
        assert one["bound_ratio"] == pytest.approx(one["tokens_per_second"] / bound["tokens_per_second"])
    heading = [cell.strip() for cell in quote(found, "out.json").splitlines()[1].split("|")]
    assert heading[4:9] == ["x ar", "x bound", "tokens/iteration", "iteration cost", "draft/verify/host %"]
    assert str(tmp_path.parent) not in file.read_text() + records.read_text()

    again = main(["bench", *folders, "--methods", METHODS, "--limit", "2", "--max-new-tokens", "12", "--records",
                  str(records), "--resume", "--trace", "1", "--threads", "1"])  # fmt: skip
    assert again == 0
    shown = capsys.readouterr()
    assert "[1/" not in shown.err
    assert "bandwidth" not in shown.err  # that of the runs is in the file
    assert "x bound" in shown.out


def test_all_is_every_method(folders, monkeypatch, capsys):
    asked = []
    monkeypatch.setattr(
        "dynatree_suite.cli.bench.run_benchmark", lambda pair, methods, *rest, **more: asked.append(methods)
    )
    monkeypatch.setattr("dynatree_suite.cli.bench.report", lambda results: "")
    with pytest.raises(AttributeError):  # there are no results
        main(["bench", *folders, "--methods", "all", "--limit", "1", "--max-new-tokens", "4"])
    assert [one.name for one in asked[0]] == list(TABLE)


def plain(label, seconds):
    return Run(label, "a", 0, seconds, [1, 2, 3, 4], [[0.1, 1], [seconds, 3]], 2, "length")


def test_the_strongest_plain_loop_has_a_column_where_it_was_measured():
    entries = [
        {"label": name, "name": name, "options": {}, "lossless": True, "draft": False} for name in ("ar", "ar-fast")
    ]
    model = {"weight_bytes": 1, "cache_bytes_per_row": 1, "device": "cpu", "engine": "eager"}
    setup = {
        "methods": entries, "target": model, "draft": model, "reference": "ar", "sampling": {"temperature": 0.0},
        "pair": "p", "dtype": "float32", "max_new_tokens": 4, "eos_rule": "none", "workload": "w", "turns": "the first",
        "near_tie_margin": 0.1, "prompts": [{"id": "a", "tokens": 3}],
    }  # fmt: skip
    environment = {"gpu": None, "cpu": "c", "threads": 1}
    results = Results(Records(Header(environment, setup)))
    for one in (plain("ar", 3.0), plain("ar-fast", 2.0)):
        results.records.add(one)
    lines = report(results).splitlines()
    assert "x ar-fast" in lines[3]
    assert "0.67 [0.67, 0.67]" in lines[5]
    assert "x bound" not in lines[3]
    assert not any(line.startswith("Bound") for line in lines)
    quoted = [[cell.strip() for cell in line.split("|")] for line in quote(results.to_json(), "f").splitlines()[1:4]]
    assert quoted[0][3:5] == ["x ar", "x ar-fast"]
    assert quoted[2][4:6] == ["0.67 [0.67, 0.67]", "2.00"]


def test_both_turns_in_the_terms_of_progressive_tree_drafting(folders, capsys):
    shared = ["bench", *folders, "--max-new-tokens", "12", "--threads", "1", "--task", "chat", "--limit", "1"]
    assert main([*shared, "--methods", "ar,ptd,chain", "--turns", "all"]) == 0
    shown = capsys.readouterr()
    lines = shown.out.splitlines()
    assert "[6/6]" in shown.err
    assert "turn-2" in shown.err
    start = next(index for index, line in enumerate(lines) if line.endswith("Dft/Ver"))
    assert lines[start + 4].split()[-1].startswith("0/")  # a chain has no side tree
    start = next(index for index, line in enumerate(lines) if line.split() == ["method", "DE", "HR", "AL"])
    assert [line.split()[0] for line in lines[start + 2 : start + 4]] == ["ptd", "chain"]  # `ar` drafts nothing
    assert any(line.startswith("DE: tokens per iteration") for line in lines)
    assert main([*shared, "--methods", "ar,chain"]) == 0
    assert "Dft" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--methods", "magic"], "There is no method 'magic'"),
        (["--pair", "unknown"], "There is no pair named 'unknown'"),
        (["--json", "no/such/folder/x.json"], "cannot be written because the folder"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--resume"], "--resume needs --records"),
        (["--json", "x.json", "--records", "./x.json"], "--json and --records are both x.json"),
        (["--threads", "0"], "--threads is 0"),
    ],
)
def test_bad_input_is_one_sentence_before_any_model_is_loaded(options, sentence, capsys, monkeypatch):
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
    assert main(["bench", *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--max-new-tokens", "0"], "--max-new-tokens is 0"),
        (["--max-new-tokens", "600"], "the context of"),
        (["--limit", "0"], "limit is 0"),
        (["--workload", "nothing"], "There is no workload 'nothing'"),
        (["--methods", "streaming-llm:cache=4096"], "give a smaller one"),
    ],
)
def test_what_only_the_models_can_tell(folders, options, sentence, capsys):
    assert main(["bench", *folders, *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize("how", ["--overwrite", "--resume"])
def test_a_second_benchmark_does_not_replace_the_records_of_one_that_runs(folders, tmp_path, capsys, how):
    file = tmp_path / "runs.jsonl"
    options = ["bench", *folders, "--methods", "ar", "--limit", "1", "--max-new-tokens", "4", "--records", str(file)]
    with sole_writer(file):
        file.write_text("what the first has measured")
        assert main([*options, how]) == 2
        assert f"Another run writes to {file}; wait until it has ended" in capsys.readouterr().err
        assert file.read_text() == "what the first has measured"
    assert main([*options, "--overwrite"]) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["runs.jsonl"]


def test_records_that_another_run_made_meanwhile_are_not_replaced(tmp_path):
    file = tmp_path / "runs.jsonl"
    file.write_text("what another run has measured")
    with pytest.raises(ValueError, match="exists; resume it"):
        protocol._begun(file, Header({}, {}), "refuse", print)


def test_the_list_of_methods(capsys):
    assert main(["bench", "--methods", "help"]) == 0
    assert capsys.readouterr().out == method_list()
    assert "fixed-tree" in method_list()


def test_columns_are_aligned():
    assert text_lines(pd.DataFrame({"a": ["long"], "x": ["1.5"]})) == ["a       x", "---------", "long  1.5"]
