"""What notebooks state about the texts of their benchmarks."""

import json

import pytest

from dynatree_suite.bench.protocol import Results
from dynatree_suite.bench.records import Divergence, Failure, Header, Records, Run
from dynatree_suite.runs.notebook import begin
from dynatree_suite.runs.texts import check_texts

NAMES = ("hf-generate", "chain", "hf-prompt-lookup")


def benchmark(*lines, temperature=0.0):
    methods = [{"label": name, "name": name, "options": {}, "lossless": True, "draft": False} for name in NAMES]
    model = {"weight_bytes": 1, "cache_bytes_per_row": 1}
    setup = {"methods": methods, "reference": NAMES[0], "sampling": {"temperature": temperature}, "target": model}
    records = Records(Header({}, setup))
    left = {line.key for line in lines}
    for name in NAMES:
        for prompt in "ab":
            tokens = [1, 2, 9] if (name, prompt, 0) in left else [1, 2, 3]
            records.add(Run(name, prompt, 0, 1.0, tokens, [[0.5, 1], [1.0, 2]], 2, "length"))
    for line in lines:
        records.add(line)
    return Results(records)


def left(name, prompt, near, margin):
    return Divergence(name, prompt, 0, 2, 3, 9, margin, near)


@pytest.fixture
def stated(tmp_path, monkeypatch):
    monkeypatch.setenv("DYNATREE_OUT", str(tmp_path))

    def state(*benchmarks, profile="laptop", dtype="float32"):
        check_texts(begin("10_x", profile=profile, dtype=dtype), *benchmarks)
        claims = json.loads((tmp_path / "10_x.summary.json").read_text())["claims"]
        return {claim["claim"]: (claim["value"], claim["holds"]) for claim in claims}

    return state


RAN, EQUAL = "Every method ran on every prompt", "Greedy texts are the target's own, up to near-ties"


def test_equal_texts_hold_and_the_reference_is_not_counted(stated):
    assert stated(benchmark(), benchmark()) == {RAN: ("failed runs: 0", True), EQUAL: ("8 of 8", True)}


def test_in_float32_a_text_that_leaves_without_a_near_tie_fails(stated):
    near, far = left("chain", "a", True, 1e-6), left("chain", "b", False, 0.5)
    value, holds = stated(benchmark(near))[EQUAL]
    assert (value, holds) == ("3 of 4; 1 of 1 divergences are near-ties, largest margin 1e-06", True)
    assert stated(benchmark(near, far))[EQUAL][1] is False
    with pytest.raises(AssertionError, match="1 of 2 divergences are near-ties"):
        stated(benchmark(near, far), profile="smoke")


def test_in_16_bits_texts_are_counted_beside_those_of_transformers(stated):
    found = stated(
        benchmark(left("chain", "a", False, 0.2), left("hf-prompt-lookup", "b", True, 0.01)), dtype="float16"
    )
    value = "2 of 4; 1 of 2 divergences are near-ties, largest margin 0.2; of transformers' hf-prompt-lookup 1 of 2"
    assert found["Greedy texts in float16 that are those of plain decoding"] == (value, None)


def test_a_run_that_failed_is_named_and_sampled_texts_are_not_compared(stated):
    found = stated(benchmark(Failure("chain", "c", 0, "OutOfMemoryError: no memory"), temperature=1.0))
    assert found == {RAN: ("failed runs: 1", False)}
