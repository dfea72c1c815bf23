"""Costs that the library measures: under a clock that knows them, kept by what they depend on, given to drafters."""

import copy
import json
import logging
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from models import random_model

import dynatree_lib as dt
from dynatree_lib import measuring
from dynatree_lib.costs import ASSUMED, FREE, CostCurve, Costs
from dynatree_lib.decoding import Loop, begun, priced
from dynatree_lib.drafters.guesses import Guesses
from dynatree_lib.measuring import (
    FEW_SIZES,
    QUIET,
    SIZES,
    TRIES,
    WIDTHS,
    CannotMeasure,
    Measured,
    assembled,
    measured,
    measured_here,
    prompt_seconds,
    watched,
)
from dynatree_lib.models.base import LanguageModel
from dynatree_lib.sampling import GREEDY, Sampling
from dynatree_lib.stopping import Stopping
from dynatree_suite.drafters import UnionTree

TARGET, DRAFT = (dt.ToyModel.random(40, seed, sharpness=1.5) for seed in (1, 2))
KNOWN = Costs((1.0, 1.2, 1.5, 2.2), (0.1, 0.15), 0.05, 0.02, 0.03)
STEP = 0.5
"""Seconds of the greedy step that a counted measurement finds."""


# --------------------------------------------------------------------------------------------------- costs as values
@pytest.mark.parametrize("costs", [KNOWN, ASSUMED, FREE, Costs((1.0, 2.0)), Costs((1.0, 2.0), (), 0.25)])
def test_costs_are_read_as_they_are_written(costs):
    assert Costs.read(str(costs)) == costs
    assert hash(Costs.read(str(costs))) == hash(costs)


@pytest.mark.parametrize(
    "text", ["", "fast", "1.0", "1.0/0", "1/2+0.1", "1/2+0.1/0.2+-1", "1/2+0.1/0.2+1+1+1+1", "1/2,3"]
)
def test_other_texts_are_no_costs(text):
    if text:
        with pytest.raises(ValueError, match="cannot be read; write them as"):
            Costs.read(text)
    else:
        assert Costs.read(text).free  # every part is left out


def test_lists_are_taken_as_tuples_and_free_nodes_cost_nothing():
    assert Costs([1.0, 2.0], [0.1, 0.2]) == Costs((1.0, 2.0), (0.1, 0.2))
    nothing = (FREE.scoring(9), FREE.another(9), FREE.step, FREE.reading(3))
    assert (FREE.free, *nothing) == (True, 0.0, 0.0, 0.0, 0.0)
    assert FREE.scoring(np.arange(3)).tolist() == [0.0] * 3


@pytest.mark.parametrize("name", ["overhead", "prompt", "guesses"])
@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf"), "0"])
def test_a_number_that_is_none_is_refused(name, value):
    with pytest.raises(ValueError, match=f"{name} is .*; give a number of greedy steps"):
        Costs((1.0, 2.0), **{name: value})


@pytest.mark.parametrize("texts", [1, 2, 3, 8])
def test_costs_of_texts_that_share_forwards_are_the_curves_read_further_on(texts):
    shared, step = KNOWN.shared(texts), KNOWN.scoring(texts)
    for nodes in (1, 2, 4, 8):
        assert shared.scoring(nodes) == pytest.approx(KNOWN.scoring(texts * nodes) / step)
    for nodes in (1, 2):
        assert shared.reading(nodes) == pytest.approx(KNOWN.reading(texts * nodes) / step)
    for name in ("overhead", "prompt", "guesses"):
        assert getattr(shared, name) == pytest.approx(texts * getattr(KNOWN, name) / step)
    assert FREE.shared(texts) == FREE


# ---------------------------------------------------------------------------------------------------------- measuring
class Clocked(LanguageModel):
    """A model whose forwards move a clock on by the nodes that they score."""

    def __init__(self, model, time, cost, reading=0.0):
        self.model, self.time, self.cost, self.reading = model, time, cost, reading
        self.name, self.vocab_size, self.context = model.name, model.vocab_size, model.context

    def session(self):
        session = self.model.session()
        score = session.score

        def timed(tokens, parents, sampling):
            self.time[0] += self.cost(len(tokens)) + self.reading * session.queued
            return score(tokens, parents, sampling)

        session.score = timed
        return session


def clocks(time):
    """Clocks of a process that nothing disturbs."""
    return {"clock": lambda: time[0], "waits": dict}


def clocked(verify, draft, **options):
    time = [0.0]
    models = Clocked(TARGET, time, verify), Clocked(DRAFT, time, draft)
    return measured(*models, **clocks(time), **options)


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(1.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("step", [0.004, 4.0], ids=["a small model", "a large one"])
def test_the_measured_costs_are_those_of_the_clock(step, sampling):
    found = clocked(
        lambda nodes: step * (3 + nodes) / 4, lambda nodes: step * (0.4 + 0.1 * nodes) / 4, sampling=sampling
    )
    sizes = [2**power for power in range(7 if step < 1 else 6)]
    assert found.step_seconds == pytest.approx(step)
    assert found.costs.verify == pytest.approx([(3 + size) / 4 for size in sizes], abs=1e-4)
    assert found.costs.draft == pytest.approx(
        [(0.4 + 0.1 * width) / 4 for width in (WIDTHS if step < 1 else (1, 2, 4, 8))], abs=1e-4
    )
    assert found.costs.overhead == pytest.approx(0, abs=1e-3)
    assert found.costs.guesses == found.costs.prompt == 0  # they take none of this clock's time


class Shared:
    """A machine with two processors, of which another process takes one for a while: forwards take as long again.

    Args:
        taken: whether it is taken, by the number of the forward.
    """

    def __init__(self, taken):
        self.taken, self.forwards, self.seconds, self.waited = taken, 0, 0.0, 0.0

    def forward(self, cost):
        def timed(nodes):
            self.forwards += 1
            waited = cost(nodes) if self.taken(self.forwards) else 0.0
            self.seconds += cost(nodes) + waited
            self.waited += waited
            return 0.0

        return timed

    def measured(self):
        target = Clocked(TARGET, [0.0], self.forward(lambda nodes: 0.001 * (3 + nodes)))
        draft = Clocked(DRAFT, [0.0], self.forward(lambda nodes: 0.0001 * (4 + nodes)))
        return measured(target, draft, clock=lambda: self.seconds, waits=lambda: {"1": self.waited, "2": 0.0})


def test_what_other_processes_take_for_a_while_is_no_cost():
    """Half of the time: the costs are those of a quiet machine, and known to be unsettled."""
    quiet = Shared(lambda number: False).measured()
    shared = Shared(lambda number: number // 40 * 7919 % 5 < 2).measured()
    assert (quiet.quiet, quiet.settled) == (1.0, True)
    assert 0.3 < shared.quiet < QUIET
    assert not shared.settled
    assert shared.step_seconds == pytest.approx(quiet.step_seconds)
    assert shared.costs.verify[:4] == pytest.approx(quiet.costs.verify[:4])
    assert shared.costs.draft[:4] == pytest.approx(quiet.costs.draft[:4], abs=0.01)


def test_a_process_that_always_shares_its_processors_is_measured_as_it_runs():
    found = Shared(lambda number: True).measured()
    assert (found.quiet, found.step_seconds) == (0.0, pytest.approx(2 * 0.004))


def test_what_a_draft_takes_for_a_token_of_a_prompt_is_told_from_its_forward():
    time = [0.0]
    draft = Clocked(DRAFT, time, lambda nodes: 0.5 * nodes, reading=0.02)
    assert prompt_seconds(draft, lambda: time[0]) == pytest.approx(0.02)


def test_the_time_of_guesses_is_what_they_add_to_an_iteration(monkeypatch):
    time, first = [0.0], Guesses.first

    def slow(*given):
        time[0] += 0.003  # once in an iteration: what is guessed is known when its token comes
        return first(*given)

    monkeypatch.setattr(Guesses, "first", slow)
    found = measured(Clocked(TARGET, time, lambda nodes: 0.01), **clocks(time))
    assert found.costs.guesses == pytest.approx(0.3, abs=0.02)
    large = measured(Clocked(TARGET, time, lambda nodes: 9.0), **clocks(time))
    assert large.costs.guesses == pytest.approx(0.003 / 9, abs=1e-4)


def test_what_drafting_takes_besides_its_levels_is_that_of_the_default(monkeypatch):
    time, follow = [0.0], dt.CostAwareTree.follow

    def slow(*given):
        time[0] += 0.002
        return follow(*given)

    monkeypatch.setattr(dt.CostAwareTree, "follow", slow)
    models = Clocked(TARGET, time, lambda nodes: 0.01), Clocked(DRAFT, time, lambda nodes: 0.001 * nodes)
    found = measured(*models, **clocks(time))
    assert found.costs.overhead == pytest.approx(0.2, abs=0.01)
    assert found.costs.reading(1) == pytest.approx(0.1, abs=0.01)


def test_without_a_draft_the_target_alone_is_timed():
    time = [0.0]
    found = measured(Clocked(TARGET, time, lambda nodes: 0.01), **clocks(time))
    assert (set(found.costs.verify), found.costs.draft, found.costs.overhead) == ({1.0}, (), 0.0)


def test_time_is_spent_up_to_the_limit_and_a_large_model_takes_few_forwards():
    forwards = []
    clocked(lambda nodes: forwards.append(nodes) or 0.002, lambda nodes: 0.0005)
    assert 2 * len((*SIZES, *WIDTHS)) < len(forwards) < 400
    forwards.clear()
    clocked(lambda nodes: forwards.append(nodes) or 9.0, lambda nodes: 1.0)
    assert len(forwards) <= 16
    assert {*FEW_SIZES} <= {*forwards}


def test_noise_cannot_make_a_larger_forward_cheaper():
    assert assembled([1.0, 5.0, 1.2], sizes=(1, 2, 4)).verify == (1.0, 1.2, 1.2)
    assert assembled([2.0, 4.0], sizes=(1, 4)).verify == (1.0, pytest.approx(4 / 3, abs=1e-4), 2.0)
    assert CostCurve(assembled([1.0, 0.5], sizes=(1, 2)).verify)  # a curve all the same


# ------------------------------------------------------------------------------------------------------------ keeping
@pytest.fixture
def model():
    return random_model("llama")


@pytest.fixture
def counted(monkeypatch, tmp_path):
    """The folder of costs, and how often anything was measured."""
    monkeypatch.setenv("DYNATREE_CACHE", str(tmp_path))
    monkeypatch.setattr(measuring, "_known", {})
    monkeypatch.setattr(measuring, "_watched", {})
    calls = []
    monkeypatch.setattr(measuring, "measured", lambda *given: calls.append(given) or Measured(KNOWN, STEP))
    return tmp_path / "costs", calls


def anew(monkeypatch):
    """Forget what this process knows, as another process."""
    monkeypatch.setattr(measuring, "_known", {})


def test_costs_are_measured_once_and_kept(model, counted, monkeypatch, caplog):
    folder, calls = counted
    with caplog.at_level(logging.WARNING):
        assert measured_here(model).costs == measured_here(model).costs == KNOWN
    assert [record.message for record in caplog.records if "Measuring what an iteration" in record.message]
    anew(monkeypatch)
    assert measured_here(model) == Measured(KNOWN, 0.5)
    assert len(calls) == len([*folder.glob("*.json")]) == 1
    of = json.loads(next(folder.glob("*.json")).read_text())["of"]
    assert (of["target"]["layers"], of["machine"]["threads"]) == (model.layers, torch.get_num_threads())


@pytest.mark.parametrize("patient", [False, True], ids=["text by text", "a benchmark"])
@pytest.mark.parametrize(
    ("quiet", "taken"), [((0.5, 0.9), 1), ((0.2, 0.6, 0.4), 1), ((0.9,), 0)], ids=["a burst", "always", "quiet"]
)
def test_costs_that_other_processes_disturbed_are_measured_once_more(
    model, counted, monkeypatch, caplog, quiet, taken, patient
):
    """With the next text, or at once where nobody waits; after some tries the quietest measuring stays."""
    folder, _ = counted
    all_found = [Measured(Costs((1.0, 1.5 + number)), STEP, share) for number, share in enumerate(quiet)]
    left = [*all_found]
    monkeypatch.setattr(measuring, "measured", lambda *given: left.pop(0))
    for number in range(TRIES + 2):
        found = measured_here(model, patient=patient)
        assert len(left) == (0 if patient else max(len(quiet) - number - 1, 0))
        if number % 2:
            anew(monkeypatch)  # another process goes on with what is kept
    assert found == replace(all_found[taken], tries=len(quiet))
    assert json.loads(next(folder.glob("*.json")).read_text())["tries"] == len(quiet)
    assert caplog.text.count("once more: other processes took the processors in") == len(quiet) - 1


def test_what_costs_depend_on_is_measured_again(model, counted, monkeypatch):
    _, calls = counted
    wider = random_model("qwen2")
    cases = [
        partial(measured_here, model), partial(measured_here, wider), partial(measured_here, model, model),
        partial(measured_here, model, None, Sampling(1.0)), partial(measured_here, model, None, Sampling(1.0, top_k=5)),
    ]  # fmt: skip
    for number, case in enumerate(cases, 1):
        case(), case()
        assert len(calls) == number
    other = random_model("llama", seed=5)
    assert measured_here(other).costs == KNOWN  # other values of the weights are no other costs
    assert measured_here(model, None, Sampling(0.5)).costs == KNOWN
    assert len(calls) == len(cases)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 77)
    measured_here(model)
    assert len(calls) == len(cases) + 1


@pytest.mark.parametrize("content", ["", "{", "[]", '{"kind": "costs", "format": 0}', '{"kind": "costs", "format": 1}'])
def test_a_file_that_holds_no_costs_is_replaced(model, counted, monkeypatch, content):
    folder, calls = counted
    measured_here(model)
    file = next(folder.glob("*.json"))
    file.write_text(content)
    anew(monkeypatch)
    assert measured_here(model).costs == KNOWN
    assert len(calls) == 2
    assert json.loads(file.read_text())["costs"]["overhead"] == KNOWN.overhead


def test_where_nothing_can_be_kept_a_line_says_so(model, counted, monkeypatch, caplog, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("DYNATREE_CACHE", str(tmp_path / "file"))
    with caplog.at_level(logging.WARNING):
        assert measured_here(model).costs == KNOWN
    assert "so every process measures them; set DYNATREE_CACHE" in caplog.text


def test_a_model_that_cannot_be_timed_has_assumed_costs(counted, monkeypatch):
    _, calls = counted
    short = random_model("llama", seed=9)
    monkeypatch.setattr(short, "context", 100)
    for models in ((TARGET,), (TARGET, DRAFT), (short,)):
        assert measured_here(*models).costs == ASSUMED
    assert not calls


def test_a_real_model_is_measured_by_its_own_loop(model):
    found = measured(model, model, limit=0.2)
    assert found.costs.verify[0] == 1.0
    assert found.step_seconds > 0
    assert len(found.costs.verify) in (6, 7)


# ----------------------------------------------------------------------------------------------------------- drafters
def test_drafters_ask_for_measured_costs_and_given_ones_stay():
    asked = []

    def measure(draft):
        asked.append(draft)
        return KNOWN

    for drafter in (dt.CostAwareTree(DRAFT), dt.LookupTree(DRAFT), dt.SuffixTree(), dt.TokenRecycling()):
        assert drafter.priced(measure) == replace(drafter, costs=KNOWN)
        assert drafter.priced(measure).priced(measure) == replace(drafter, costs=KNOWN)
        assert replace(drafter, costs=ASSUMED).priced(measure) == replace(drafter, costs=ASSUMED)
    assert asked == [DRAFT] * 4 + [None] * 4
    assert dt.ProgressiveTree().priced(measure) == dt.ProgressiveTree()  # nodes are free, as published


def test_a_drafter_made_of_others_prices_them():
    union = UnionTree(dt.LookupTree(DRAFT), dt.TokenRecycling())
    found = union.priced(lambda draft: KNOWN if draft is DRAFT else ASSUMED)
    assert (found.first.costs, found.second.costs, found.costs) == (KNOWN, ASSUMED, KNOWN)


def test_the_loop_takes_the_measured_costs_and_a_text_goes_on_with_them(monkeypatch):
    asked = []
    monkeypatch.setattr(measuring, "costs_of", lambda *given: asked.append(given) or KNOWN)
    drafter = dt.CostAwareTree(DRAFT)
    first = dt.generate(TARGET, [1, 2], drafter, max_new_tokens=9)
    assert (first.state.drafter, first.state.drafting) == (drafter, replace(drafter, costs=KNOWN))
    whole = dt.generate(TARGET, [1, 2], drafter, max_new_tokens=18)
    assert [
        *first.tokens,
        *dt.generate(TARGET, [], drafter, state=first.state, max_new_tokens=9).tokens,
    ] == whole.tokens
    assert asked[0] == (TARGET, DRAFT, GREEDY)
    dear = priced(drafter, TARGET, GREEDY, texts=4)
    assert dear.costs == KNOWN.shared(4)


# ----------------------------------------------------------------------------------------------------------- watching
def decode_watched(model, factor, budget=60):
    """Decode a text that takes a factor of the time that its costs predict."""
    drafter = dt.Auto(costs=KNOWN)
    state = begun(model, drafter, [1, 2, 3], 0, None, drafter)
    loop = Loop(state, dt.Greedy(), GREEDY, Stopping(budget, ()))
    watched(loop, lambda: factor * STEP * drafter.predicted(loop.state.drafter_state))
    return loop.tokens


@pytest.mark.parametrize(
    ("factors", "again"),
    [((2.0,) * 3, 1), ((2.0, 2.0, 1.0) * 3, 0), ((0.75,) * 3, 1), ((1.4,) * 9, 0), ((2.0,) * 20, 1)],
    ids=["slow", "slow now and then", "fast", "a little slow", "always slow"],
)
def test_costs_that_texts_contradict_are_measured_again(model, counted, factors, again, caplog):
    """After three texts in a row, and not again where that finds the same step."""
    folder, calls = counted
    for factor in factors:
        measured_here(model)
        assert len(decode_watched(model, factor)) == 60
    assert caplog.text.count("so they are measured again") == again
    measured_here(model)
    assert len(calls) == 1 + again
    assert len([*folder.iterdir()]) == 1


def test_costs_that_never_fit_are_measured_again_three_times_in_a_process(model, counted, monkeypatch):
    calls = []

    def slower(*given):
        calls.append(given)
        return Measured(KNOWN, STEP * 2 ** len(calls))

    monkeypatch.setattr(measuring, "measured", slower)
    for _ in range(20):
        measured_here(model)
        decode_watched(model, 99.0)
    assert len(calls) == 1 + 3


def test_what_is_predicted_is_what_a_clock_that_knows_the_costs_shows(monkeypatch):
    """Iterations of many sizes, with levels of drafting: the forwards alone move the clock on."""
    costs, time, seen = replace(KNOWN, overhead=0.0, prompt=0.0, guesses=0.0), [0.0], []
    monkeypatch.setattr(measuring, "_depends_on", lambda *given: {"all": 1})
    monkeypatch.setattr(measuring, "_known", {measuring._key({"all": 1}): Measured(costs, STEP)})
    monkeypatch.setattr(measuring, "_compare", lambda *given: seen.append(given[-1]))
    target = Clocked(TARGET, time, lambda nodes: STEP * costs.scoring(nodes))
    draft = Clocked(TARGET.mixed(DRAFT, 0.2), time, lambda nodes: STEP * costs.reading(nodes))
    drafter = dt.Auto(draft, costs=costs, share=0.5)
    state = begun(target, drafter, [1, 2, 3], 0, None, drafter)
    loop = Loop(state, dt.Greedy(), GREEDY, Stopping(150, ()))
    watched(loop, lambda: time[0])
    assert len({len(one.tree) for one in loop.iterations}) > 2
    assert state.drafter_state.drafting.session.forwards > 9
    assert seen == [pytest.approx(1.0, abs=0.01)]


def test_measuring_asks_for_no_more_nodes_than_a_model_takes(monkeypatch):
    forwards = []
    model = Clocked(TARGET, [0.0], lambda nodes: forwards.append(nodes) or 0.01)
    model.most_pending = 8
    assert len(measured(model, **clocks(model.time)).costs.verify) == 4
    assert max(forwards) == 8
    model.most_pending = 1
    with pytest.raises(CannotMeasure, match="scores no more than 1 tokens at once"):
        measured(model, **clocks(model.time))


def test_a_model_that_cannot_be_measured_after_all_has_assumed_costs(model, counted, monkeypatch, caplog):
    def never(*given):
        raise CannotMeasure("the context of 'x' ends before enough iterations")

    monkeypatch.setattr(measuring, "measured", never)
    assert measured_here(model).costs == ASSUMED
    assert "cannot be measured: the context of 'x' ends" in caplog.text
    assert not counted[0].exists()


def test_hooks_on_a_model_have_costs_of_their_own(model):
    model = dt.HFModel(copy.deepcopy(model.model).float(), engine="linears")
    before = measuring._depends_on(model, None, GREEDY)
    handle = model.model.register_forward_hook(lambda *given: None)
    try:
        other = measuring._depends_on(model, None, GREEDY)
    finally:
        handle.remove()
    assert before["target"]["engine"] != other["target"]["engine"] == "eager"
    assert measuring._depends_on(model, None, GREEDY) == before


def test_a_file_of_other_costs_is_not_taken(model, counted):
    folder, calls = counted
    measured_here(model)
    (path,) = folder.iterdir()
    body = json.loads(path.read_text())
    for wrong in ({"of": {}}, {"step_seconds": 0}, {"step_seconds": "NaN"}, {"costs": {}}):
        path.write_text(json.dumps(body | wrong))
        measuring._known.clear()
        assert measured_here(model).costs == KNOWN
    assert len(calls) == 5


def test_short_texts_and_models_without_measured_costs_are_not_watched(model, counted, caplog):
    measured_here(model)
    for _ in range(5):
        decode_watched(model, 9.0, budget=20)
        decode_watched(TARGET, 9.0)
    assert "measured again" not in caplog.text


def test_a_text_is_watched_unless_other_code_runs_in_it(monkeypatch):
    seen = []
    monkeypatch.setattr(measuring, "watched", lambda loop: seen.append(loop) or loop.run())
    first = dt.generate(TARGET, [1, 2], max_new_tokens=9)
    for options in ({"on_tokens": print}, {"stopping_criteria": [lambda *given: False]}):
        dt.generate(TARGET, [1, 2], max_new_tokens=9, **options)
    dt.generate(TARGET, [1, 2], dt.Auto(costs=KNOWN), max_new_tokens=9)
    dt.generate(TARGET, [], state=first.state, max_new_tokens=9)
    assert len(seen) == 1


def test_costs_decide_how_large_a_tree_is():
    """With dear nodes nothing is drafted, with free ones all that there is room for."""
    sizes = []
    for costs in (None, Costs((1.0, 9.0), (0.01, 0.01))):
        out = dt.generate(TARGET, [1, 2, 3], dt.CostAwareTree(DRAFT, costs=costs, max_nodes=9), max_new_tokens=20)
        sizes.append(max(len(one.tree) for one in out.iterations))
    assert sizes == [9, 1]
