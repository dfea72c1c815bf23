"""What rounding does to the distribution of a sampled token: below its bound, everywhere it was looked for."""

import json

import numpy as np
import pytest
import torch

import dynatree_lib as dt
from dynatree_lib.sampling import DraftDistributions, Scores
from dynatree_lib.tree import DISTINCT, POINT
from dynatree_lib.verifiers.residual import Residual
from dynatree_suite.cli.main import main
from dynatree_suite.proofs import rounding

ONE = dt.Sampling(1.0)
RULES = (dt.TokenLevel(), dt.Traversal())


def emitted_by_hand(logits, draft):
    """The distribution that token-level verification of one drawn child emits, in float64 from float32 inputs."""
    p, q = logits.float().softmax(-1).double().numpy(), draft.double().numpy()
    accepted = np.minimum(1, np.divide(p, q, out=np.zeros_like(p), where=q > 0))
    emitted = q / q.sum() * accepted
    rest = np.clip((logits.float().softmax(-1) - draft).double().numpy(), 0, None)
    return emitted + (1 - emitted.sum()) * rest / rest.sum()


def test_the_distribution_is_that_of_the_formula():
    torch.manual_seed(0)
    logits, draft = 3 * torch.randn(40), torch.randn(40).softmax(-1)
    distributions = DraftDistributions()
    distributions.record(0, draft)
    emitted = np.zeros(40)
    for token in range(40):
        tree = dt.TokenTree.build([0, token], [-1, 0], draws=[POINT, DISTINCT])
        emitted += float(draft.double()[token] / draft.double().sum()) * rounding.first_token(
            dt.TokenLevel(), tree, Scores(logits.expand(2, -1), ONE), distributions
        )
    assert np.abs(emitted - emitted_by_hand(logits, draft)).max() < 1e-12
    bias, bound = rounding.drawn(logits, draft, dt.TokenLevel(), ONE)
    wanted = logits.double().softmax(-1).numpy()
    assert bias == pytest.approx(np.abs(emitted - wanted).sum() / 2, abs=1e-15)
    assert 0 < bias <= bound < 1e-5


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("temperature", [1.0, 0.4, 3.0])
@pytest.mark.parametrize("seed", range(4))
def test_distributions_over_a_thousand_tokens_stay_below_their_bound(dtype, temperature, seed):
    torch.manual_seed(seed)
    logits = (torch.randn(1000) * (1 + 3 * seed)).to(dtype)
    draft = (logits.float() + torch.randn(1000) * 10.0 ** (-2 * seed)).softmax(-1)  # down to almost the same
    sampling = dt.Sampling(temperature)
    for rule in RULES:
        bias, bound = rounding.drawn(logits, draft, rule, sampling)
        assert bias <= bound < 1e-4
    for rule in (dt.TokenLevel(), dt.TargetWalk()):
        bias, bound = rounding.deterministic(logits, draft.topk(5).indices.tolist(), rule, sampling)
        assert bias <= bound < 1e-4


def test_a_draft_that_is_the_target_leaves_a_residual_of_rounding_alone():
    """Almost every child is accepted; what is left after a rejection is noise, and its distribution must not count."""
    torch.manual_seed(1)
    logits = torch.randn(500)
    draft = logits.softmax(-1)
    for nudge in (0.0, 1e-7, -1e-7):
        changed = draft * (1 + nudge * torch.randn(500))
        for rule in RULES:
            bias, bound = rounding.drawn(logits, changed, rule, ONE)
            assert bias <= bound


def test_toy_models_with_extreme_distributions_stay_below_their_bound():
    rows = list(rounding.toys(320))
    assert len(rows) == 320
    assert {row.dtype for row in rows} == {"float32", "bfloat16"}
    assert {row.rule for row in rows} == {"token-level", "traversal", "block", "target-walk"}
    assert {row.tree.partition(", ")[2] for row in rows} == set(rounding.EXTREMES)
    assert not [row for row in rows if not row.bias <= row.bound]
    assert max(row.bias for row in rows) > 0


@pytest.mark.parametrize("fault", ["not normalised", "normaliser that underflows", "ratio in half precision"])
def test_a_planted_fault_of_rounding_is_beyond_the_bound(monkeypatch, fault):
    """Each would pass every test with moderate numbers in float64."""
    leave, ratio = Residual.leave, Residual.ratio

    def coarse(self, rest):
        if fault == "not normalised":
            self.weights, self.scale = rest, 1.0
        else:  # the sum in float16, which small residuals fall below
            mass = float(rest.half().sum())
            if mass > 0:
                leave(self, rest)

    if fault == "ratio in half precision":
        monkeypatch.setattr(Residual, "ratio", lambda self, *a: float(torch.tensor(ratio(self, *a)).half()))
    else:
        monkeypatch.setattr(Residual, "leave", coarse)
    try:
        noticed = any(not row.bias <= row.bound for row in rounding.toys(320))
    except ValueError as error:  # nothing is left to draw from
        noticed = "no positive weight" in str(error)
    assert noticed


def test_the_command_prints_a_table_and_saves_a_record(tmp_path, capsys):
    out = tmp_path / "rounding.json"
    assert main(["audit", "--rounding", "--instances", "40", "--out", str(out)]) == 0
    text = capsys.readouterr().out
    assert "40 distributions, none beyond the bound." in text
    record = json.loads(out.read_text())
    assert len(record["distributions"]) == 40
    assert all(row["bias"] <= row["bound"] for row in record["distributions"])
    assert main(["audit", "--rounding", "--pair", "tiny", "--temperature", "0"]) == 2
    assert "--rounding compares whole distributions" in capsys.readouterr().err


def test_on_a_pair(capsys):
    assert main(["audit", "--rounding", "--pair", "tiny", "--limit", "1"]) == 0
    text = capsys.readouterr().out
    assert "one drawn child" in text
    assert "8 distributions, none beyond the bound." in text
