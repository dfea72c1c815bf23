"""Cost as work grows, under a clock that only forwards and commits move."""

from __future__ import annotations

import json

import numpy as np
import pytest
from models import feature_draft, noisy_copy, random_model

from dynatree_lib import ToyModel
from dynatree_lib.models.huggingface import HFModel, HFSession
from dynatree_lib.models.pairs import Pair
from dynatree_suite.costs.cost_growth import flatness, forward_times, iteration_costs
from tools import growth
from tools.growth import level_costs, main

TARGET = random_model("gpt_neox")
PAIR = Pair("random", TARGET, noisy_copy(TARGET), None)


class World:
    """Seconds that pass in engine calls (by rows and by columns of the cache) and in commits, and nowhere else."""

    def __init__(self, target=(0.003, 0.001, 0.0), draft=(0.002, 0.0005, 0.0), commit=0.0):
        self.now, self.lengths = 0.0, []
        self.pair = Pair("timed", self._timed(PAIR.target, *target, commit), self._timed(PAIR.draft, *draft, 0.0), None)

    def clock(self):
        return self.now

    def _timed(self, model: HFModel, first, per_row, per_column, commit):
        engine = model.engine

        def timed(ids, positions, mask, cache, keep):
            self.now += first + per_row * keep + per_column * cache.get_seq_length()
            self.lengths.append(cache.get_seq_length())
            return engine(ids, positions, mask, cache, keep)

        world = self

        class Committed(HFSession):
            def commit(self, path):
                world.now += commit
                super().commit(path)

        return model.altered(engine=timed, session_class=Committed)


def test_an_iteration_is_its_forward_and_what_the_loop_adds():
    world = World(commit=0.0005)
    rows = iteration_costs(world.pair, (60,), (1, 2, 9), turns=2, clock=world.clock)
    assert [(row["prefix"], row["nodes"]) for row in rows] == [(60, 1), (60, 2), (60, 9)]
    for row in rows:
        assert row["forward"] == pytest.approx(3 + row["nodes"])
        assert row["overhead"] == pytest.approx(0.5)
        assert row["iteration"] == pytest.approx(3.5 + row["nodes"])
        assert row["overhead_interval"] == pytest.approx([0.5, 0.5])
        assert np.array(row["turns"]).shape == (2, 3)
    found = flatness(rows, "nodes")
    assert (found["first"], found["last"], found["overhead"]) == (1, 9, pytest.approx(0.5))
    assert found["slope"] == pytest.approx(0, abs=1e-6)
    assert found["forward_rise"] == pytest.approx(8.0)


def test_the_prefix_is_the_texts_length_in_the_middle_of_what_is_timed():
    world = World(target=(0.0, 0.0, 0.001))
    rows = iteration_costs(world.pair, (60, 120), (4,), turns=2, clock=world.clock)
    for row in rows:
        assert row["forward"] == pytest.approx(row["prefix"] - 1)  # a millisecond per token; node 0 is not cached yet
        assert row["overhead"] == pytest.approx(-0.5)  # the forwards beside an iteration: before it, and a token later
    assert flatness(rows, "prefix")["forward_rise"] == pytest.approx(60, abs=1)


def test_a_level_is_the_draft_s_forward_and_what_drafting_adds():
    world = World()
    rows = level_costs(world.pair, (60,), (1, 4), turns=2, clock=world.clock)
    assert [(row["width"], row["prefix"]) for row in rows] == [(1, 60), (4, 60)]
    for row in rows:
        assert [row["forward"], row["level"]] == pytest.approx([2 + 0.5 * row["width"]] * 2)
        assert row["overhead"] == pytest.approx(0, abs=1e-9)
    assert flatness(rows, "width", "level")["share"] == pytest.approx(0, abs=1e-9)


def test_models_take_turns_at_the_same_rows():
    world = World()
    models = {"target": world.pair.target, "draft": world.pair.draft}
    rows = forward_times(models, (1, 3), 40, turns=2, clock=world.clock)
    found = {(row["model"], row["rows"]): row["milliseconds"] for row in rows}
    expected = {("target", 1): 4.0, ("target", 3): 6.0, ("draft", 1): 2.5, ("draft", 3): 3.5}
    assert found == pytest.approx(expected)
    assert all(row["interval"] == pytest.approx([row["milliseconds"]] * 2) for row in rows)
    assert {length for length in world.lengths if length} == {40}  # every forward stands on the same text


def test_a_draft_on_features_is_timed_on_siblings():
    target = random_model("llama")
    draft = feature_draft(target)
    rows = forward_times({"draft": draft}, (1, 3), 40, turns=1)
    assert [row["rows"] for row in rows] == [1, 3]
    assert all(row["milliseconds"] > 0 for row in rows)


def test_the_models_are_left_as_they_were():
    before = dict(vars(PAIR.target))
    iteration_costs(PAIR, (40,), (2,), turns=1)
    assert {name: value for name, value in vars(PAIR.target).items() if name in before} == before
    assert "forward" not in vars(PAIR.target)


def by_hand(gaps):
    """Rows over prefixes 100, 200, 400 with these overheads (places, turns) and a forward of 1 ms per 100 tokens."""
    return [
        {"prefix": prefix, "nodes": 16, "iteration": prefix / 100 + np.median(mine),
         "turns": [[prefix / 100 + gap, prefix / 100, gap] for gap in mine]}
        for prefix, mine in zip((100, 200, 400), gaps, strict=True)
    ]  # fmt: skip


def test_the_slope_of_overhead_with_its_interval():
    steady = flatness(by_hand([[0.3, 0.3], [0.4, 0.4], [0.6, 0.6]]), "prefix")  # a microsecond per token
    assert steady["slope"] == pytest.approx(1.0)
    assert steady["slope_interval"] == pytest.approx((1.0, 1.0))
    assert steady["rise"] == pytest.approx(0.3)
    assert steady["forward_rise"] == pytest.approx(3.0)
    assert steady["overhead"] == pytest.approx(1.3 / 3)
    assert steady["share"] == pytest.approx(0.3 / 4.6)
    rng = np.random.default_rng(0)
    noisy = flatness(by_hand(0.3 + 0.05 * rng.normal(size=(3, 24))), "prefix")
    low, high = noisy["rise_interval"]
    assert low < 0 < high
    assert low < noisy["rise"] < high
    assert json.dumps(noisy)


@pytest.mark.parametrize(
    "rows",
    [
        by_hand([[1], [1], [1]])[:1],
        [*by_hand([[1], [1], [1]]), {"prefix": 800, "nodes": 4, "iteration": 1, "turns": [[1, 1, 1]]}],
        by_hand([[1], [1], [1]])[:1] * 2,
    ],
)
def test_a_slope_needs_places_that_differ_in_one_thing(rows):
    with pytest.raises(ValueError, match="rows that differ in 'prefix' alone"):
        flatness(rows, "prefix")


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"prefixes": ()}, r"The prefixes are \(\)"),
        ({"nodes": (0,)}, r"sizes \(0,\)"),
        ({"turns": 0}, "turns 0; give at least one of each"),
        ({"prefixes": (10,)}, "A prefix of 10 tokens cannot be timed in 8 turns"),
        ({"prefixes": (590,)}, "whose context is 600; give 51 to 550 tokens"),
    ],
)
def test_what_cannot_be_timed_is_refused_before_any_work(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        iteration_costs(PAIR, **options, clock=None)


def test_the_ends_of_what_can_be_timed_can_be_timed():
    rows = iteration_costs(PAIR, (21, 580), (1, 9), turns=2)
    assert all(row["iteration"] > 0 for row in rows)


def test_a_model_without_a_forward_of_its_own_is_named():
    toy = ToyModel.random(20, seed=1)
    with pytest.raises(ValueError, match="shows no forward of its own"):
        iteration_costs(Pair("toys", toy, toy, None), (40,), (1,), turns=1)


def test_the_record_and_its_table(tmp_path, monkeypatch, capsys):
    for name, value in (("PREFIXES", (100, 256, 2000)), ("NODES", (1, 16)), ("WIDTHS", (1, 4))):
        monkeypatch.setattr(growth, name, value)
    monkeypatch.setattr("dynatree_suite.cli.arguments.pair_of", lambda args: PAIR)
    file = tmp_path / "growth.json"
    main([str(file), "--turns", "1"])
    found = json.loads(file.read_text())
    assert [row["prefix"] for row in found["rows"]["prefix"]] == [100, 256]  # the context has no room for more
    assert list(found["rows"]) == list(found["flatness"]) == ["prefix", "nodes", "level prefix", "level width"]
    assert found["environment"]["torch"]
    lines = capsys.readouterr().out.splitlines()
    assert [line.split("  ")[0] for line in lines[2:-1]] == list(found["rows"])
    assert lines[-1] == f"Saved in {file}."


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["EMPTY"], "EMPTY is a folder"),
        (["FILE/x.json"], "the folder FILE does not exist"),
        (["new.json", "--turns", "0"], "turns 0; give at least one of each"),
    ],
)
def test_a_mistake_is_told_before_anything_is_measured(arguments, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "EMPTY").mkdir()
    (tmp_path / "FILE").touch()
    with pytest.raises(ValueError, match=sentence):
        main(arguments)
    assert {path.name for path in tmp_path.iterdir()} == {"EMPTY", "FILE"}
