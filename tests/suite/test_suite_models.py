"""Loading a notebook's models where its parameters say, over static buffers on a GPU; which pair writes real text."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from dynatree_lib import load_pair
from dynatree_lib.engines.static import StaticModel
from dynatree_suite.runs import models
from dynatree_suite.runs.models import each, load, real_pair

TINY = load_pair("tiny")


def notebook(**attributes):
    return SimpleNamespace(**{"profile": "laptop", "pair": "tiny", "device": "cpu", "dtype": "float32"} | attributes)


@pytest.mark.parametrize(
    ("attributes", "here", "name", "words"),
    [
        ({}, True, "smollm2", "smollm2 in float32 writes"),
        ({"device": "cuda"}, True, "smollm2", "smollm2 in float32 writes"),
        ({}, False, "tiny", "`dynatree fetch smollm2` (93 MB)"),
        ({"profile": "smoke"}, True, "tiny", "'tiny' writes the texts of this section."),
        ({"profile": "colab"}, True, "tiny", "'tiny' writes the texts of this section."),
    ],
)
def test_the_real_pair_writes_where_it_is_on_every_device(monkeypatch, tmp_path, attributes, here, name, words):
    asked = []
    monkeypatch.setattr(models, "fetched", lambda model: tmp_path if here else None)
    monkeypatch.setattr(models, "load_pair", lambda model, **how: asked.append(how) or replace(TINY, name=model))
    nb = notebook(**attributes)
    pair, remark = real_pair(nb, TINY)
    assert pair.name == name
    assert words in remark
    assert all(how == {"device_map": nb.device, "dtype": "float32"} for how in asked)


def test_models_are_loaded_as_the_parameters_say():
    pair = load(notebook(dtype="bfloat16"))
    assert {pair.target.dtype, pair.draft.dtype} == {torch.bfloat16}
    assert not isinstance(pair.target, StaticModel)
    assert load(notebook(pair="none such"), "tiny").name == "tiny"


def test_on_a_gpu_a_pair_runs_over_static_buffers(monkeypatch):
    monkeypatch.setattr(models, "load_pair", lambda name, **how: TINY)
    nb = notebook(device="cuda")
    pair = load(nb)
    assert isinstance(pair.target, StaticModel)
    assert pair.target.buffers.sizes[-2:] == (264, 512)  # the papers' largest trees have 257 nodes
    assert load(nb, graphs=False) is TINY
    monkeypatch.setattr(models, "why_not_static", lambda model: "It has windows.")
    with pytest.warns(UserWarning, match="Without CUDA graphs: It has windows"):
        assert load(nb) is TINY


def test_pairs_are_loaded_one_after_the_other(monkeypatch):
    loaded = []
    monkeypatch.setattr(models, "load_pair", lambda name, **how: loaded.append(name) or TINY)
    for number, (name, pair) in enumerate(each(notebook(), ["a", "b"]), 1):
        assert loaded == ["a", "b"][:number]
        assert (name, pair) == (loaded[-1], TINY)
