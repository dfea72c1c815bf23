"""What every test shares: a fixed seed, and no more torch threads than the command that started the tests allows."""

import gc
import os
import signal
import threading

import pytest
import torch
from browser import found_browser

from dynatree_lib import measuring
from dynatree_lib.costs import ASSUMED
from dynatree_lib.models import huggingface
from dynatree_lib.models.huggingface import HFModel

os.environ.setdefault("DYNATREE_COMPILING", "wait")  # what another process compiles has tests of its own
torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with Ctrl-C ignored


def pytest_collection_finish():
    """Leave what is imported out of garbage collection: a benchmark collects before every run, half a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed():
    torch.default_generator.manual_seed(0)  # torch.manual_seed formats the stack for each device that it has not met


@pytest.fixture
def browser():
    return found_browser()


@pytest.fixture(autouse=True, scope="session")
def _no_clock_decides_a_tree():
    """Give every model the same costs; what measures them has tests of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "costs_of", lambda *given, **options: ASSUMED)
        yield


BUNDLED = 4096
"""Tokens of the bundled pair's vocabulary, which no other model in tests has."""


@pytest.fixture(autouse=True, scope="session")
def _bundled_models_are_proved_once():
    """Prove a model with the bundled pair's weights once per engine and dtype: 0.3 s, and 500 tests load the pair.

    Where weights, attention or modules differ it is proved as ever, and all other models are always.
    """
    proved, prove = set(), huggingface.check_tree_attention

    def once(model, **options):
        if type(model) is not HFModel or model.vocab_size != BUNDLED:
            return prove(model, **options)
        raw, engine = model.model, model.engine
        sums = tuple(float(weight.detach().sum()) for weight in raw.parameters())
        hooked = any(part._forward_hooks or part._forward_pre_hooks for part in raw.modules())
        key = (type(raw), type(engine), model.dtype, raw.config._attn_implementation, hooked, sums)
        if key not in proved:
            prove(model, **options)
            if model.engine is engine:  # otherwise it fell back, with a warning
                proved.add(key)
        return None

    huggingface.check_tree_attention = once
    yield
    huggingface.check_tree_attention = prove
