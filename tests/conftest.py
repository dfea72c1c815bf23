"""What every test shares: a fixed seed, and no more torch threads than the command that started the tests allows."""

import gc
import os
import signal
import threading

import pytest
import torch
from browser import found_browser

torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
if threading.current_thread() is threading.main_thread():
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell starts background jobs with Ctrl-C ignored


def pytest_collection_finish():
    """Leave what is imported out of garbage collection: a benchmark collects before every run, half a second each."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture
def browser():
    return found_browser()
