"""`--threads auto`: every number is tried, the fastest is set; what is small runs on one. Python threads on a model."""

import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from threading import Barrier

import pytest
import torch
from models import prompt, raw_model

from dynatree_cpu import kernels, native
from dynatree_lib import (
    AdaptiveTree,
    CostAwareSampledTree,
    FixedTree,
    Greedy,
    HFModel,
    SampledTree,
    Sampling,
    TargetWalk,
    ToyModel,
    autoregressive,
    generate,
    load_pair,
)
from dynatree_lib.sampling import one_thread
from dynatree_suite.bench import clock as conditions


@pytest.fixture
def restored():
    before = torch.get_num_threads()
    yield before
    torch.set_num_threads(before)


@pytest.mark.parametrize("fastest", [1, 3])
def test_the_fastest_number_is_set(monkeypatch, restored, fastest):
    monkeypatch.setattr(conditions, "available_cores", lambda: 3)
    monkeypatch.setattr(conditions, "TURNS", 2)
    now, calls = [0.0], [0]

    def clock():
        calls[0] += 1
        if calls[0] % 2 == 0:  # the second reading of a pair: after the work
            now[0] += 1.0 if torch.get_num_threads() == fastest else 5.0
        return now[0]

    found = conditions.choose_threads(load_pair("tiny"), clock)
    assert found == {count: 1.0 if count == fastest else 5.0 for count in (1, 2, 3)}
    assert torch.get_num_threads() == fastest


def test_the_faster_of_two_pairs_is_found(monkeypatch):
    """By a clock on which one of them takes twice as long."""
    monkeypatch.setattr(conditions, "TURNS", 2)
    pairs, now = {"slow": load_pair("tiny"), "fast": load_pair("tiny")}, [0.0]
    slow = pairs["slow"].target

    def run(forward, *arguments):
        now[0] += 1.0
        return forward(*arguments)

    pairs["slow"] = replace(pairs["slow"], target=slow.observed(run))
    assert conditions.iteration_seconds(pairs, lambda: now[0]) == {"slow": 1.0, "fast": 0.0}


def test_a_timed_iteration_ends_when_the_device_has_done_its_work(monkeypatch):
    """A GPU returns before; here a synchronisation is what takes time."""
    now = [0.0]

    def finished(device):
        now[0] += 3.0

    monkeypatch.setattr(conditions, "TURNS", 2)
    monkeypatch.setattr(conditions, "synchronize", finished)
    assert conditions.iteration_seconds({"tiny": load_pair("tiny")}, lambda: now[0]) == {"tiny": 3.0}


def test_small_operations_run_on_one_thread_and_leave_the_number_as_it_was(restored):
    torch.set_num_threads(2)
    with one_thread():
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError):
        one_thread()(lambda: 1 / 0)()
    assert torch.get_num_threads() == 2


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(1.0)])
@pytest.mark.parametrize("kind", [FixedTree, AdaptiveTree, SampledTree, partial(CostAwareSampledTree, rate=0.5)])
def test_between_forwards_nothing_wakes_torchs_threads(monkeypatch, restored, kind, sampling):
    """Forwards run on all threads; choosing the nodes of a level and verifying on the caller's."""
    torch.set_num_threads(2)
    seen = {"forward": set(), "choice": set(), "verdict": set()}

    def watched(name, function):
        def run(*args, **options):
            seen[name].add(torch.get_num_threads())
            return function(*args, **options)

        return run

    toy = ToyModel.random(6, 3)
    toy.distribution = watched("forward", toy.distribution)
    for name in ("topk", "log_softmax"):
        monkeypatch.setattr(torch.Tensor, name, watched("choice", getattr(torch.Tensor, name)))
    for rule in (TargetWalk, Greedy):
        monkeypatch.setattr(rule, "verify", watched("verdict", rule.verify))
    verifier = Greedy() if sampling.greedy else TargetWalk()
    generate(toy, [1, 2], kind(toy), max_new_tokens=12, sampling=sampling, verifier=verifier)
    assert seen == {"forward": {2}, "choice": {1}, "verdict": {1}}


# ------------------------------------------------------------------------------------------ Python threads on one model
def test_a_compiled_engine_runs_one_forward_at_a_time_whatever_number_of_threads_runs_it(monkeypatch, restored):
    """Its buffers are its own, and each number of threads has a team and a lock of its own."""
    model = HFModel(raw_model("llama", dtype=torch.float32), engine="compiled")
    expected = [autoregressive(model, prompt(20, seed), max_new_tokens=12).tokens for seed in (1, 2)]
    run, begin, inside, most = native.Team.run, Barrier(2), [], []

    def watched(members, job, alone):
        inside.append(members.threads)
        most.append(len(inside))
        time.sleep(0.01)
        run(members, job, alone)
        inside.pop()

    def write(threads):
        torch.set_num_threads(threads)
        begin.wait()
        return autoregressive(model, prompt(20, threads), max_new_tokens=12).tokens

    monkeypatch.setattr(native.Team, "run", watched)
    with ThreadPoolExecutor(2) as pool:
        found = list(pool.map(write, (1, 2)))
    assert max(most) == 1
    assert found == expected


def test_a_worker_that_is_late_in_a_forward_is_looked_out_for_by_other_teams(monkeypatch, restored):
    """It may still write in its part of the buffers, so the next forward is the caller's alone."""
    model = HFModel(raw_model("llama", dtype=torch.float32), engine="compiled")
    (one, two), ways, run = (native.team(count, kernels.FLOAT32) for count in (1, 2)), [], native.Team.run

    def watched(members, job, alone):
        ways.append((members.threads, alone))
        run(members, job, alone)

    def forward(threads):
        torch.set_num_threads(threads)
        autoregressive(model, prompt(9), max_new_tokens=1)

    monkeypatch.setattr(native.Team, "run", watched)
    forward(2)
    two.settle()
    forward(1)
    with monkeypatch.context() as away:
        away.setattr(two, "posted", two.posted + 1)
        forward(1)
    forward(1)
    assert ways[-3:] == [(one.threads, False), (one.threads, True), (one.threads, False)]
