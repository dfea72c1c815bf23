"""The registry of engines, and what loading finds of an engine that is wrong."""

import sys

import pytest
import torch
from models import raw_model

from dynatree_lib import FixedTree, generate
from dynatree_lib.models import engine as engines
from dynatree_lib.models.engine import Eager
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.sampling import GREEDY


class Changed(Eager):
    """transformers' own forward, with logits changed by `wrong`."""

    name = "changed"
    serves = "every model"

    @classmethod
    def of(cls, model):
        return cls(model)

    def __call__(self, ids, positions, mask, cache, keep, features=None):
        logits = super().__call__(ids, positions, mask, cache, keep, features)
        return self.wrong(logits, ids.shape[1], mask)

    @staticmethod
    def wrong(logits, tokens, mask):
        return logits


@pytest.fixture
def registered(monkeypatch):
    """What registers `Changed`, and forgets it after the test."""
    monkeypatch.setattr(engines, "_ENGINES", dict(engines.engines()))

    def register(wrong):
        monkeypatch.setattr(Changed, "wrong", staticmethod(wrong))
        engines.register("changed", f"{__name__}:Changed")

    return register


def flipped(logits):
    return logits.flip(-1)


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        (lambda logits, tokens, mask: flipped(logits) if tokens >= 12 else logits, "47 tokens at once off"),
        (lambda logits, tokens, mask: flipped(logits) if tokens >= 12 and mask is not None else logits, "under a mask"),
        (lambda logits, tokens, mask: flipped(logits) if tokens == 1 else logits, "a token after a commit off"),
        (lambda logits, tokens, mask: logits[:, -1:].repeat(1, 3, 1), "logits where"),
    ],
    ids=["many tokens", "many tokens and a mask", "one token", "other rows"],
)
def test_an_engine_that_is_wrong_is_refused(registered, wrong, where):
    registered(wrong)
    with pytest.raises(ValueError, match=where) as caught:
        HFModel(raw_model("gpt_neox", dtype=torch.float32), engine="changed")
    assert "engine 'changed'" in str(caught.value)


def test_a_right_engine_is_served_and_tried_first(registered):
    registered(Changed.wrong)
    model = HFModel(raw_model("gpt_neox", dtype=torch.float32))
    assert model.engine.name == "changed"
    expected = generate(HFModel(raw_model("gpt_neox", dtype=torch.float32), engine="eager"), [1, 2], FixedTree(model))
    assert generate(model, [1, 2], FixedTree(model)).tokens == expected.tokens


def test_what_a_program_registers_stands_after_the_engines_of_packages(monkeypatch):
    """Whether or not a model was loaded before."""
    known = list(engines.engines())
    monkeypatch.setattr(engines, "_ENGINES", {"eager": engines.engines()["eager"]})
    engines._load_entry_points.cache_clear()
    for module in [name for name in sys.modules if name == "dynatree_cpu"]:
        monkeypatch.delitem(sys.modules, module)
    engines.register("changed", f"{__name__}:Changed")
    assert list(engines.engines()) == [*known, "changed"]


def test_an_engine_that_cannot_be_imported_stops_only_who_asks_for_it(registered):
    registered(Changed.wrong)
    engines.register("typo", "no_such_module:Engine")
    raw = raw_model("gpt_neox", dtype=torch.float32)
    assert HFModel(raw, engine="eager").engine.name == "eager"
    with pytest.raises(ValueError, match="'typo' is registered as 'no_such_module:Engine', which cannot be imported"):
        HFModel(raw, engine="typo")


NAMES = [name for name in engines.engines() if name != "eager"]


@pytest.mark.parametrize("name", NAMES)
def test_every_registered_engine_reads_a_text_as_the_model_does(name):
    """A registered engine joins by itself; `quantised` serves weights of 4 and 8 bits (tests/cpu/test_quantised.py)."""
    served = 0
    for kind in ("gpt_neox", "llama", "qwen2", "gpt2"):
        raw = raw_model(kind, dtype=torch.float32)
        try:
            model = HFModel(raw, engine=name)
        except ValueError as refusal:
            assert "cannot run this" in str(refusal)  # noqa: PT017 - it is one of two right answers
            continue
        served += 1
        text = torch.arange(300)[None] % model.vocab_size
        with torch.no_grad():
            expected = raw(text).logits[0, -1]
        session = model.session()
        session.start(text[0, :-20].tolist())
        found = session.score(text[0, -20:].tolist(), [-1, *range(19)], GREEDY).logits[-1]
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-3)
    assert served or name in ("quantised", "rounded", "bytes")
