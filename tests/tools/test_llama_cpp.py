"""llama.cpp as a method: what its programs are asked, how their reports are read, what a user reads without them."""

import re
import runpy
import sys

import pytest
import torch
from models import random_model

from dynatree_lib import Sampling
from dynatree_lib.models.pairs import Pair
from dynatree_suite.bench.methods import METHODS, variant
from dynatree_suite.bench.metrics import summarize_records
from dynatree_suite.bench.protocol import run_benchmark
from dynatree_suite.bench.records import Header, Records, Run
from dynatree_suite.bench.runner import untouched
from tools.llama_cpp import END_OF_TEXT, FOLDER, METHOD, NAME, PROGRAMS, LlamaCpp, continuation, reported

SPECULATIVE = """
encoded    3 tokens in    0.250 seconds, speed:   12.000 t/s
decoded    5 tokens in    0.500 seconds, speed:   10.000 t/s

n_draft   = 4
n_accept  = 2
"""
PLAIN = """
common_perf_print: prompt eval time =     250.00 ms /     3 tokens (   83.33 ms per token,    12.00 tokens per second)
common_perf_print:        eval time =     500.00 ms /     4 runs   (  125.00 ms per token,     8.00 tokens per second)
"""


class Words:
    """A tokenizer whose tokens are words."""

    chat_template = None

    def decode(self, ids):
        return " ".join(f"w{token}" for token in ids)

    def __call__(self, text, add_special_tokens=True):
        del add_special_tokens
        return type("Encoding", (), {"input_ids": [40 + len(word) for word in text.split()]})()


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setitem(METHODS, NAME, METHOD)


@pytest.fixture
def pair():
    target = random_model("llama", dtype=torch.float32)
    return Pair("words", target, target, Words())


@pytest.fixture
def built(tmp_path, monkeypatch):
    """A folder with programs that write their arguments down and print a report."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "bin").mkdir()
    for name in ("target-f32", "draft-f32", "target-q4_1"):
        (tmp_path / f"{name}.gguf").touch()
    for tool, program in PROGRAMS.items():
        plain = f" one two three{END_OF_TEXT}\n", PLAIN
        text, report = plain if tool == "plain" else ("w1 w2 w3 one two three", SPECULATIVE)
        path = tmp_path / "bin" / program
        lines = f'echo "$@" > {tmp_path}/arguments', f"echo '{text}'", f"cat >&2 <<'END'\n{report}END"
        path.write_text("\n".join(("#!/bin/sh", *lines, "")))
        path.chmod(0o755)
    return tmp_path


def test_both_reports_say_the_same():
    assert reported(SPECULATIVE) == reported(PLAIN) == (3, 5, 0.25, 0.5)
    with pytest.raises(RuntimeError, match="reported no times"):
        reported("a text")


def test_a_text_is_what_stands_between_the_prompt_and_the_end_that_a_program_prints():
    assert continuation("\n\na prompt and more\n\n\n\n", "a prompt", "lookup") == (" and more", False)
    coloured = "a prompt and\x1b[0;96m mo\x1b[0mre"  # lookahead colours its guesses
    assert continuation(coloured, "a prompt", "lookahead") == (" and more", False)
    assert continuation(" and more [end of text]\n\n\n", "a prompt", "plain") == (" and more", True)
    assert continuation(" and more\n\n\n\n", "a prompt", "plain") == (" and more\n\n", False)


@pytest.mark.parametrize("tool", PROGRAMS)
def test_a_text_of_its_own_clock(pair, built, tool):
    run = LlamaCpp(tool, drafted=6).runner(pair, untouched)
    emitted: list[list[int]] = []
    done = run(
        [1, 2, 3], max_new_tokens=8, eos_token_ids=(7,), on_tokens=emitted.append, sampling=Sampling(), seed=0
    )  # fmt: skip
    assert done.tokens == [43, 43, 45, 7] == emitted[0]
    assert (done.seconds, done.finish_reason) == (0.75, "eos")
    assert done.forwards == (5 if tool == "plain" else 3)  # two of the five tokens were drafted
    assert done.emissions == [[0.25, 1.0], [0.75, 3.0]]
    arguments = (built / "arguments").read_text().split()
    assert arguments[arguments.index("-n") + 1] == "8"
    assert ("--spec-draft-n-max" in arguments) == (tool not in ("plain", "lookahead"))
    assert arguments[arguments.index("-ctk") + 1] == arguments[arguments.index("-ctv") + 1] == "f32"
    assert ("-md" in arguments) == (tool in ("speculative", "tree"))
    context = 4 * (3 + 8 + 64) if tool == "tree" else 3 + 8 + (256 if tool == "lookahead" else 64)
    assert arguments[arguments.index("-c") + 1] == str(context)


def test_eos_stands_once_where_a_program_prints_it_and_goes_on(pair, built):
    """The text of SPECULATIVE has five tokens; a word of two letters stands for EOS."""
    path = built / "bin" / PROGRAMS["tree"]
    path.write_text(path.read_text().replace("one two three", "one 42 three"))
    run = LlamaCpp("tree").runner(pair, untouched)
    request = {"on_tokens": lambda tokens: None, "sampling": Sampling(), "seed": 0}
    done = run([1, 2, 3], max_new_tokens=8, eos_token_ids=(42,), **request)
    assert (done.tokens, done.finish_reason) == ([43, 42], "eos")


@pytest.mark.parametrize("tool", PROGRAMS)
def test_a_text_that_fills_the_budget_has_no_eos_though_its_characters_make_fewer_tokens(pair, built, tool):
    path = built / "bin" / PROGRAMS[tool]
    path.write_text(path.read_text().replace(END_OF_TEXT, "\n"))
    run = LlamaCpp(tool).runner(pair, untouched)
    request = {"on_tokens": lambda tokens: None, "sampling": Sampling(), "seed": 0}
    budget = 5 if tool == "plain" else 4
    done = run([1, 2, 3], max_new_tokens=budget, eos_token_ids=(7,), **request)
    assert (done.tokens, done.finish_reason) == ([43, 43, 45], "length")


@pytest.mark.parametrize("tool", PROGRAMS)
def test_a_program_is_told_where_eos_is_no_end(pair, built, tool):
    run = LlamaCpp(tool).runner(pair, untouched)
    for eos in ((), (7,)):
        run([1, 2, 3], max_new_tokens=8, eos_token_ids=eos, on_tokens=lambda tokens: None, sampling=Sampling(), seed=0)
        assert ("--ignore-eos" in (built / "arguments").read_text().split()) == (not eos)


def test_four_bits_are_read_token_by_token(pair, built):
    for weights, tool, singly in (("same", "plain", False), ("q4_1", "plain", True), ("q4_1", "lookup", False)):
        run = LlamaCpp(tool, weights=weights).runner(pair, untouched)
        run([1, 2, 3], max_new_tokens=2, eos_token_ids=(), on_tokens=lambda tokens: None, sampling=Sampling(), seed=0)
        arguments = (built / "arguments").read_text().split()
        assert ("-ub" in arguments) == singly
        assert ("--no-repack" in arguments) == (weights == "q4_1" and not singly)


def test_a_guess_that_ends_inside_a_letter_is_no_failure(pair, built):
    path = built / "bin" / PROGRAMS["lookahead"]
    text = path.read_text().replace("echo 'w1 w2 w3 one two three'", "printf 'w1 w2 w3 one \\303'")
    path.write_text(text)
    run = LlamaCpp("lookahead").runner(pair, untouched)
    done = run(
        [1, 2, 3], max_new_tokens=8, eos_token_ids=(), on_tokens=lambda tokens: None, sampling=Sampling(), seed=0
    )  # fmt: skip
    assert len(done.tokens) == 2


def test_it_is_measured_beside_others(pair, built):
    results = run_benchmark(pair, "ar,llama-cpp", [list_prompt(3)], max_new_tokens=4, warmup=0)
    assert not results.records.failures
    run = results.records.runs["llama-cpp", "p", 0]
    assert run.seconds == 0.75


def list_prompt(size):
    from dynatree_suite.bench.prompts import BenchPrompt

    return BenchPrompt.from_ids("p", list(range(1, size + 1)))


def test_what_cannot_be_measured_is_said_before(pair, tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(ValueError, match="run tools/llama_cpp_peer.sh once"):
        LlamaCpp().runner(pair, untouched)
    with pytest.raises(ValueError, match="tool is 'fast'"):
        LlamaCpp("fast")
    with pytest.raises(ValueError, match="; give one of plain, lookup"):
        variant("llama-cpp:tool=fast")
    double = Pair("d", random_model("llama"), random_model("llama"), Words())
    monkeypatch.setenv(FOLDER, str(tmp_path))
    with pytest.raises(ValueError, match="in float32 and bfloat16"):
        LlamaCpp().runner(double, untouched)


def test_sampling_is_refused(pair, built):
    with pytest.raises(ValueError, match=r"greedy decoding only.*biased"):
        run_benchmark(pair, "llama-cpp", [list_prompt(3)], max_new_tokens=4, sampling=Sampling(1.0))


@pytest.mark.parametrize(("tool", "draft"), [(tool, tool in ("speculative", "tree")) for tool in PROGRAMS])
def test_its_memory_is_that_of_the_models_a_program_uses(tool, draft):
    one = variant(f"llama-cpp:tool={tool}")
    assert one.method.draft_of(one.options) == ("common_draft" if draft else None)
    models = {"target": (1000, 10), "draft": (100, 1), "common_draft": (300, 3)}
    setup = {role: {"weight_bytes": weights, "cache_bytes_per_row": row} for role, (weights, row) in models.items()}
    entry = {"label": "it", "name": one.name, "options": one.options, "lossless": True, "draft": one.method.draft}
    records = Records(Header({}, {**setup, "methods": [entry], "prompts": [], "reference": None}))
    records.add(Run("it", "a", 0, 1.0, [1, 2], [[1.0, 2]], 2, "length", kv_entries=9))
    (found,) = summarize_records(records)
    assert found["weight_bytes"] == 1000 + 300 * draft
    assert found["cache_bytes"] == 9 * (10 + 3 * draft)


def test_the_tool_is_the_command_line_with_a_method_more(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["peers", "bench", "--methods", "help"])
    with pytest.raises(SystemExit) as end, pytest.warns(RuntimeWarning, match="found in sys.modules"):
        runpy.run_module("tools.peers", run_name="__main__", alter_sys=True)
    assert end.value.code == 0
    assert re.search("^llama-cpp +tool=plain, drafted=4", capsys.readouterr().out, re.M)
