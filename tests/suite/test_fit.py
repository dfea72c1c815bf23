"""Tests of sampled texts on a pair: the statistics of each token, and biased rules seen where sound ones pass."""

import json

import numpy as np
import pytest
import torch
from models import noisy_copy, random_model
from scipy import stats

from dynatree_lib import Sampling, ToyModel, load_pair
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import probabilities
from dynatree_suite.bench import methods
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.runner import DrafterRunner
from dynatree_suite.cli import main as cli
from dynatree_suite.proofs import fit

FILTERED = Sampling(0.8, top_p=0.9)
TARGET = ToyModel.random(12, seed=1, sharpness=2)
PROMPTS = [BenchPrompt.from_ids(str(number), ids) for number, ids in enumerate([(1, 2), (3,), (4, 5, 6)])]


@pytest.fixture(scope="module")
def small():
    """A pair of small random models."""
    target = random_model("llama")
    return Pair("random", target, noisy_copy(target), None)


def place_by_place(model, prompt, tokens, sampling, shares):
    """The slow twin of `token_statistics`."""
    out, text = [], list(prompt)
    for token, share in zip(tokens, shares, strict=True):
        probs = probabilities(torch.tensor(model.distribution(tuple(text))).double().log(), sampling).tolist()
        own = probs[token]
        logs = [np.log(p) for p in probs if p > 0]
        entropy = -sum(p * np.log(p) for p in probs if p > 0)
        variance = sum(p * (log + entropy) ** 2 for p, log in zip([p for p in probs if p > 0], logs, strict=True))
        before = sum(p for other, p in enumerate(probs) if p > own or (p == own and other < token))
        out.append([np.log(own) + entropy, variance, before + share * own])
        text.append(token)
    return np.array(out)


@pytest.mark.parametrize("sampling", [Sampling(1.0), FILTERED], ids=["plain", "filtered"])
def test_the_statistics_of_each_token_are_those_of_the_slow_twin(sampling):
    text = [1, 2]
    for rank in (1, 2, 1, 1, 2):  # of the likeliest, so that the filter leaves them
        text.append(int(np.argsort(TARGET.distribution(tuple(text)))[-rank]))
    tokens = text[2:]
    found = fit.token_statistics(TARGET, [1, 2], tokens, sampling, np.random.default_rng(3))
    expected = place_by_place(TARGET, [1, 2], tokens, sampling, np.random.default_rng(3).random(5))
    np.testing.assert_allclose(found, expected, atol=1e-6)  # a toy gives float32


def test_a_token_that_the_target_excludes_is_told_apart():
    order = np.argsort(TARGET.distribution((1,))).tolist()
    statistics = fit.token_statistics(
        TARGET, [1], [order[-1], order[0]], Sampling(1.0, top_k=1), np.random.default_rng(0)
    )
    assert statistics[0, 0] == 0
    assert statistics[1, 0] == -np.inf
    row = {"method": "one", "control": False, "texts": 1, **fit.p_values([statistics])}
    assert row["impossible"] == 1
    audit = fit.Fit({}, {}, [row])
    assert "that the target excludes" in audit.failures()[0]


def test_places_of_plain_draws_are_uniform_and_surprises_fair():
    """Both tests must hold their level: over many small audits of exact draws, p-values are uniform."""
    random, found = np.random.default_rng(5), []
    for _ in range(60):
        statistics = []
        for _ in range(8):
            text = [1]
            while len(text) < 11:
                text.append(int(random.choice(12, p=TARGET.distribution(tuple(text)))))
            statistics.append(fit.token_statistics(TARGET, text[:1], text[1:], Sampling(1.0), random))
        found.append(fit.p_values(statistics))
    for test in ("surprise_p", "place_p"):
        assert stats.kstest([row[test] for row in found], "uniform").pvalue > 0.01


def test_sound_methods_follow_the_target_and_controls_do_not(small):
    specs = "ar,sampled-tree:depth=2,sampled-tree:depth=2,verifier=token-level,fixed-tree:depth=2"
    audit = fit.check_texts(small, specs, PROMPTS, max_new_tokens=24, sampling=Sampling(1.0), seeds=range(12))
    assert not audit.failures()
    sound = [row for row in audit.rows if not row["control"]]
    assert [row["method"] for row in sound][:2] == ["ar", "sampled-tree:depth=2"]
    assert all(row["texts"] == 36 and sum(row["places"]) == row["tokens"] for row in audit.rows)
    assert all(audit.biased(row) for row in audit.rows if row["control"])
    assert audit.limit == fit.ALPHA / 8


def test_no_two_texts_of_a_method_have_a_seed_in_common(small, monkeypatch):
    seen = []

    class Told(DrafterRunner):
        def __call__(self, prompt_ids, **request):
            seen.append(request["seed"])
            return super().__call__(prompt_ids, **request)

    monkeypatch.setattr(methods, "DrafterRunner", Told)
    fit.check_texts(small, "ar", PROMPTS, max_new_tokens=2, sampling=Sampling(1.0), seeds=range(2))
    assert len(seen) == len({*seen}) == 2 * len(PROMPTS)


def test_a_control_that_is_not_seen_fails_the_audit():
    row = {"method": "c", "control": True, "impossible": 0, "surprise_p": 0.3, "place_p": 0.4}
    assert fit.Fit({}, {}, [row]).failures() == [
        "Control 'c' was not seen biased (p = 3.0e-01 by surprise, 4.0e-01 by place, limit 1.0e-02); take more texts."
    ]


def test_greedy_decoding_has_nothing_to_test(small):
    with pytest.raises(ValueError, match="nothing is drawn"):
        fit.check_texts(small, "ar", PROMPTS, max_new_tokens=4, sampling=Sampling(0.0))
    assert cli.main(["audit", "--pair", "tiny", "--temperature", "0"]) == 2


def test_the_command_tests_a_pair(tmp_path, capsys):
    out = tmp_path / "fit.json"
    arguments = ["audit", "--pair", "tiny", "--methods", "sampled-tree:branching=2/1", "--limit", "4"]
    code = cli.main([*arguments, "--max-new-tokens", "40", "--out", str(out)])
    text = capsys.readouterr().out
    assert "sampled-tree:branching=2/1" in text
    assert "(control)" in text
    rows = {row["method"]: row for row in json.loads(out.read_text())["rows"]}
    tested = rows["sampled-tree:branching=2/1"]
    assert (tested["control"], tested["impossible"]) == (False, 0)
    assert min(tested["surprise_p"], tested["place_p"]) > 1e-6
    assert any(row["control"] for row in rows.values())
    assert code == ("does not follow" in text or "not seen biased" in text or "do not follow" in text)
    assert load_pair("tiny").name in text
