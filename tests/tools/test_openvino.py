"""OpenVINO as a method: what its worker is asked, how its answers are read, what a user reads without it."""

import json
import sys

import pytest
import torch
from models import random_model

from dynatree_lib import Sampling
from dynatree_lib.models.pairs import Pair
from dynatree_suite.bench.methods import METHODS, variant
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.protocol import run_benchmark
from dynatree_suite.bench.runner import untouched
from tools.openvino import FOLDER, METHOD, NAME, OpenVINO

WORKER = """
import json, sys
print(json.dumps({"ready": "0"}), flush=True)
for line in sys.stdin:
    asked = json.loads(line)
    answer = {"error": "no memory"} if asked["ids"][0] == 9 else {
        "tokens": [3, 4, 2, 5][: asked["budget"]], "emissions": [[0.25, 1], [0.75, 3]]
    }
    with open("FOLDER/asked", "a") as file:
        file.write(json.dumps({"arguments": sys.argv[3:], **asked}) + "\\n")
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture(autouse=True)
def known(monkeypatch):
    monkeypatch.setitem(METHODS, NAME, METHOD)


@pytest.fixture
def pair():
    target = random_model("llama", dtype=torch.float32)
    return Pair("words", target, target, None)


@pytest.fixture
def installed(tmp_path, monkeypatch):
    """A folder whose python answers as the worker does, and writes down what it was asked."""
    monkeypatch.setenv(FOLDER, str(tmp_path))
    (tmp_path / "env" / "bin").mkdir(parents=True)
    for weights in ("fp32", "int8", "int4"):
        (tmp_path / weights).mkdir()
    (tmp_path / "worker.py").write_text(WORKER.replace("FOLDER", str(tmp_path)))
    python = tmp_path / "env" / "bin" / "python"
    python.write_text(f'#!/bin/sh\nexec {sys.executable} {tmp_path}/worker.py "$@"\n')
    python.chmod(0o755)
    return tmp_path


def asked(folder):
    return [json.loads(line) for line in (folder / "asked").read_text().splitlines()]


@pytest.mark.parametrize(
    ("text", "model", "rest"),
    [
        ("openvino", "int4", ["f32", "0", "3"]),
        ("openvino:weights=bf16", "fp32", ["bf16", "0", "3"]),
        ("openvino:weights=int8,lookup=true,drafted=6,ngram=2", "int8", ["f32", "6", "2"]),
    ],
)
def test_what_the_worker_is_asked_and_answers(pair, installed, text, model, rest):
    run = variant(text).runner(pair)
    options = {"on_tokens": lambda tokens: None, "sampling": Sampling(), "seed": 0}
    texts = [run([1, 7], max_new_tokens=4, eos_token_ids=eos, **options) for eos in ((), (2,))]
    assert [(one.tokens, one.finish_reason) for one in texts] == [([3, 4, 2, 5], "length"), ([3, 4, 2], "eos")]
    assert (texts[0].seconds, texts[0].emissions) == (0.75, [[0.25, 1], [0.75, 3]])
    arguments = [str(installed / model), str(torch.get_num_threads()), *rest]
    assert asked(installed) == [
        {"arguments": arguments, "ids": [1, 7], "budget": 4, "eos": eos} for eos in ([], [2])
    ]  # by one process


def test_a_benchmark_has_its_own_times(pair, installed):
    results = run_benchmark(
        pair, ["ar", "openvino"], [BenchPrompt.from_ids(name, [1, 7]) for name in "ab"], max_new_tokens=4
    )
    ours, theirs = results.summaries()
    assert theirs["tokens_per_second"] == pytest.approx(4 / 0.75)
    assert (theirs["label"], theirs["lossless"]) == ("openvino", True)
    assert ours["tokens_per_second"] != theirs["tokens_per_second"]


def test_what_fails_is_told_and_the_next_text_has_a_new_process(pair, installed):
    run = OpenVINO().runner(pair, untouched)
    options = {"max_new_tokens": 4, "eos_token_ids": (), "on_tokens": lambda tokens: None, "seed": 0}
    with pytest.raises(RuntimeError, match="OpenVINO failed: no memory. Run this to see why: .*openvino_worker.py"):
        run([9], sampling=Sampling(), **options)
    assert run([1], sampling=Sampling(), **options).tokens == [3, 4, 2, 5]
    with pytest.raises(ValueError, match="greedy decoding only"):
        run([1], sampling=Sampling(1.0), **options)
    (installed / "env" / "bin" / "python").write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(RuntimeError, match="its process ended"):
        OpenVINO().runner(pair, untouched)([1], sampling=Sampling(), **options)


def test_without_it_a_sentence_names_the_script(pair, tmp_path, monkeypatch):
    monkeypatch.delenv(FOLDER, raising=False)
    with pytest.raises(ValueError, match=r"python, int4 were not found; run tools/openvino_peer.sh once"):
        OpenVINO().runner(pair, untouched)
    with pytest.raises(ValueError, match="weights is 'fp8'; choose from fp32, bf16, int8, int4"):
        OpenVINO("fp8")
    with pytest.raises(ValueError, match="drafted is 0 and ngram is 3"):
        OpenVINO(drafted=0)
