"""Machine code that another process compiles: texts go on by transformers' own forward, and the engine takes over."""

import logging
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from models import prompt, raw_model
from test_quantised import quantised_model

from dynatree_cpu import kernels, preparing
from dynatree_lib import Auto, Sampling, autoregressive, generate
from dynatree_lib.costs import ASSUMED
from dynatree_lib.measuring import measured_here
from dynatree_lib.models.eagle import EagleModel
from dynatree_lib.models.engine import COMPILING, Eager
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pruned import on_features


@pytest.fixture
def compiled(monkeypatch):
    """Whether machine code is there, as another process would change it."""
    state = {"ready": False}

    def ready(kind, *, begin=True, wait=False):
        state["ready"] = state["ready"] or wait
        return state["ready"]

    monkeypatch.setenv(COMPILING, "go on")
    monkeypatch.setattr(preparing, "ready", ready)
    return state


def test_texts_begin_before_the_machine_code_is_there(compiled):
    raw = raw_model("llama", dtype=torch.float32)
    model, eager = HFModel(raw), HFModel(raw, engine="eager")
    ids = prompt(9)[0].tolist()
    expected = autoregressive(eager, ids, max_new_tokens=20).tokens
    assert isinstance(model.engine, Eager)
    assert model.awaited.name == "compiled"
    assert autoregressive(model, ids, max_new_tokens=20).tokens == expected
    assert measured_here(model).costs is ASSUMED  # not those of a forward that soon is another
    compiled["ready"] = True
    assert generate(model, ids, Auto(costs=ASSUMED), max_new_tokens=20).tokens == expected
    assert model.engine.name == "compiled"
    assert model.awaited is None


def test_whoever_measures_waits(compiled, monkeypatch):
    raw = raw_model("llama", dtype=torch.float32)
    model = HFModel(raw)
    assert model.settle() is model
    assert model.engine.name == "compiled"
    compiled["ready"] = False
    monkeypatch.setenv(COMPILING, "wait")
    assert HFModel(raw).awaited is None
    monkeypatch.setenv(COMPILING, "go on")
    assert HFModel(raw, engine="compiled").awaited is None  # it was asked for by its name


def test_a_draft_on_features_waits_too(compiled):
    raw = on_features(raw_model("llama", dtype=torch.float32), (0,), (1, -1))
    draft = EagleModel(raw)
    assert isinstance(draft.engine, Eager)
    assert draft.settle().engine.name == "compiled"


@pytest.mark.parametrize("kind", [HFModel, EagleModel])
def test_an_engine_that_fails_its_proof_does_not_take_over(kind, compiled, caplog):
    raw = raw_model("llama", dtype=torch.float32)
    model = kind(raw if kind is HFModel else on_features(raw, (0,), (1, -1)))
    model.awaited.weights.view(torch.float32)[::7] += 1
    with caplog.at_level(logging.WARNING):
        model.settle()
    assert isinstance(model.engine, Eager)
    assert "so" in caplog.text.lower()
    assert "transformers' own forward runs it" in caplog.text


def test_a_process_that_finds_another_processor_compiles_nothing(monkeypatch, caplog):
    """The first forward compiles then, and a sentence says why."""
    monkeypatch.setattr(preparing, "_compilers", {})  # an earlier test may have had this kind compiled
    monkeypatch.setattr(preparing, "WAYS", "other")
    monkeypatch.setattr(preparing, "kept", lambda kind: False)
    with caplog.at_level(logging.WARNING):
        assert preparing.ready(kernels.FLOAT32, wait=True)
    assert "finds another processor" in caplog.text


def test_machine_code_that_cannot_be_kept_is_compiled_here(monkeypatch):
    monkeypatch.setattr(preparing, "kept", lambda kind: False)
    monkeypatch.setattr(preparing, "_writable", lambda folder: False)
    monkeypatch.setattr(preparing, "Compiler", None)
    assert preparing.ready(kernels.FLOAT32)
    monkeypatch.setattr(preparing, "_writable", lambda folder: True)
    monkeypatch.setattr(preparing, "Compiler", lambda kind: exec("raise OSError(12, 'Cannot allocate memory')"))
    assert preparing.ready(np.dtype(np.float64))


FIRST_TEXT = """
import logging, sys, time
import torch
from models import prompt, raw_model
from dynatree_lib import autoregressive
from dynatree_lib.models.huggingface import HFModel
model = HFModel(raw_model("llama", dtype=torch.float32))
assert model.awaited is not None
ids = prompt(9)[0].tolist()
before = autoregressive(model, ids, max_new_tokens=20).tokens
until = time.monotonic() + 500
while model.awaited is not None and time.monotonic() < until:
    time.sleep(0.1)
    after = autoregressive(model, ids, max_new_tokens=20).tokens
assert model.engine.name == "compiled" and after == before
"""


@pytest.mark.slow
def test_another_process_compiles(tmp_path):
    there = {**os.environ, COMPILING: "go on", "NUMBA_CACHE_DIR": str(tmp_path)}
    there["PYTHONPATH"] = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run([sys.executable, "-c", FIRST_TEXT], env=there, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("Another process compiles the forward of few tokens") == 1


@pytest.mark.parametrize("form", ["float32"] + ["bfloat16"] * kernels.BFLOAT16 + ["q4_1", "q8_0"] * kernels.QUANTISED)
def test_all_that_a_text_runs_is_compiled_beforehand(form):
    """Otherwise the first text would wait for what is left."""
    dtype = torch.bfloat16 if form == "bfloat16" else torch.float32
    target = HFModel(quantised_model(form) if form.startswith("q") else raw_model("llama", dtype=dtype))
    raw = on_features(raw_model("llama", dtype=dtype), (0,), (1, -1))
    assert not form.startswith("q") or target.engine.coarsen(raw)
    draft = EagleModel(raw)
    assert draft.engine.kind == target.engine.kind
    for temperature in (0.0, 1.0):
        sampling = Sampling(temperature)
        generate(target, prompt(9), Auto(draft, costs=ASSUMED), max_new_tokens=30, sampling=sampling)
    known = preparing.signatures(target.engine.kind)
    used = {name: getattr(kernels, name).overloads for name in known}
    assert all(known[name] in signatures for name, signatures in used.items())
