"""`dynatree tune`: under planted costs the right configuration wins, and it is saved, read back and checked."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from types import SimpleNamespace

import pytest
from models import noisy_copy, prompt, random_model

import dynatree_lib as dt
from dynatree_lib import Chain, CostAwareTree, FixedTree, NoDraft, Sampling, ToyModel, generate, load_pair
from dynatree_lib.models.pairs import Pair
from dynatree_suite import drafters
from dynatree_suite.bench.methods import Variant
from dynatree_suite.bench.options import split_specs
from dynatree_suite.bench.prompts import BenchPrompt
from dynatree_suite.bench.protocol import SEEDS
from dynatree_suite.cli import arguments
from dynatree_suite.cli import tune as tune_command
from dynatree_suite.cli.main import main
from dynatree_suite.costs import cost_model
from dynatree_suite.costs import tune as tuning
from dynatree_suite.costs.cost_model import MeasuredCosts
from dynatree_suite.costs.ranks import RankAcceptance
from dynatree_suite.costs.tune import Prediction, Tuned, brief, candidates, choose, load_tuned, tune
from dynatree_suite.drafters import ALL_DRAFTERS, WRAPPERS
from dynatree_suite.papers.workloads import load_workload

TOY = ToyModel.random(40, seed=1, sharpness=2.5)
TOYS = Pair("toys", TOY, TOY.mixed(ToyModel.random(40, seed=2, sharpness=2.5), 0.3), None)
TEXTS = [BenchPrompt.from_ids(name, [1 + i, 3, 2, 5]) for i, name in enumerate("abc")]
WIDE = "fixed-tree:depth=2,branching=4,tau=none,max_nodes=64"
FEW = ["ar", "chain:length=1", "chain:length=6", "fixed-tree:depth=6,branching=2/1", WIDE]

FREE_ROWS = MeasuredCosts(1.0, (1.0, 1.0, 1.0), (0.3, 0.3), measured={"environment": {"threads": 1}, "setup": {}})
DEAR_LEVELS = MeasuredCosts(1.0, (1.0, 1.05, 1.4, 2.0), (0.25, 0.25))
DEAR_EVERYTHING = MeasuredCosts(1.0, (1.0, 3.0), (2.0, 2.0))


def planted(costs, pair=TOYS, methods=FEW, **options):
    given = {"max_new_tokens": 100, "sampling": Sampling(1.0), "check": False, "costs": costs, **options}
    return tune(pair, TEXTS, methods=methods, **given)


@cache
def found(costs):
    """Return what is tuned where these cost nothing, or much."""
    return planted({"free rows": FREE_ROWS, "dear levels": DEAR_LEVELS, "dear everything": DEAR_EVERYTHING}[costs])


@pytest.mark.parametrize(
    ("costs", "wins"), [("free rows", WIDE), ("dear levels", "chain:length=1"), ("dear everything", "ar")]
)
def test_planted_costs_decide(costs, wins):
    tuned = found(costs)
    assert tuned.spec == wins
    assert tuned.predictions[0].spec == wins
    assert [one.speed for one in tuned.predictions] == sorted((one.speed for one in tuned.predictions), reverse=True)
    assert {one.method for one in tuned.predictions} == {"ar", "chain", "fixed-tree"}
    assert tuned.setup["candidates"] == len(FEW)


def test_measured_costs_decide_as_planted_ones_do(monkeypatch):
    """The whole way, from a clock on which a row costs nothing and a level little."""
    monkeypatch.setattr(cost_model, "STRETCH", 24)
    monkeypatch.setattr(cost_model, "STRETCHES", 1)
    time = [0.0]

    class Counted(ToyModel):
        def session(self):
            session = super().session()
            score = session.score

            def timed(*given):
                time[0] += 1.0 if self is target else 0.3
                return score(*given)

            session.score = timed
            return session

    target, draft = Counted(TOY.distribution, 40), Counted(TOYS.draft.distribution, 40)
    pair = Pair("toys", target, draft, None)
    tuned = planted(None, pair, clock=lambda: time[0], max_rows=16)
    assert tuned.costs.verify_points == pytest.approx([1] * 5)
    assert tuned.costs.draft_points == pytest.approx([0.3] * 5)
    assert tuned.spec == WIDE


def test_the_race_keeps_the_best_third_of_each_method():
    texts = [BenchPrompt.from_ids(str(number), [number, 2]) for number in range(6)]
    said = []
    chains = [f"chain:length={length}" for length in range(1, 10)]
    tuned = tune(
        TOYS, texts, costs=FREE_ROWS, methods=[*chains, WIDE], max_new_tokens=20, check=False, progress=said.append
    )
    lines = [line for line in said if line.startswith("[")]
    assert [line.partition("]")[0] for line in lines] == [
        *(f"[{n}/11" for n in range(1, 12)), "[1/5", "[2/5", "[3/5", "[4/5", "[5/5", "[1/3", "[2/3", "[3/3",
    ]  # fmt: skip
    assert len(tuned.setup["prompts"]) == 6


def test_plain_decoding_is_tried_where_it_is_not_named():
    assert planted(DEAR_EVERYTHING, methods=["chain:length=1"]).spec == "ar"


def test_the_same_prompt_again_is_another_text_with_a_seed_of_its_own(monkeypatch):
    """In the rates and in every stage of the selection."""
    seeds = {}

    def watched(where, function):
        def run(*given, seed, **options):
            seeds.setdefault(where, []).append(seed)
            return function(*given, seed=seed, **options)

        return run

    monkeypatch.setattr(tuning, "generate", watched("rates", generate))
    of = Variant.runner
    monkeypatch.setattr(Variant, "runner", lambda self, pair: watched(self.label, of(self, pair)))
    texts = [BenchPrompt.from_ids(str(number), [1, 2]) for number in range(5)]
    given = {"costs": FREE_ROWS, "methods": ["ar"], "max_new_tokens": 4, "check": False, "seed": 7}
    assert tune(TOYS, texts, sampling=Sampling(1.0), **given).setup["seeds_per_prompt"] == SEEDS
    expected = [7 + SEEDS * number for number in range(5)]
    assert seeds == {"rates": expected, "ar": expected}


def test_the_choice_can_be_used_at_once():
    ids = [1, 2, 3]
    expected = generate(TOY, ids, NoDraft(), max_new_tokens=30).tokens
    for costs in ("free rows", "dear levels", "dear everything"):
        tuned = found(costs)
        assert generate(TOY, ids, tuned.drafter(TOYS.draft), max_new_tokens=30).tokens == expected
    made = replace(tuned, spec="fixed-tree:depth=3,branching=3/1,commit=rebuild")
    assert made.drafter(TOYS.draft) == FixedTree(TOYS.draft, depth=3, branching=(3, 1))
    assert made.to_json()["options"]["max_nodes"] == 16
    assert made.python == "dt.FixedTree(pair.draft, depth=3, branching=(3, 1))"
    assert replace(tuned, spec="ar").python == "dt.NoDraft()"


@pytest.mark.parametrize("kind", [*ALL_DRAFTERS, *WRAPPERS], ids=lambda kind: kind.name)
def test_every_method_can_be_the_choice(kind):
    made = replace(found("free rows"), spec=kind.name)
    pair = SimpleNamespace(draft=TOYS.draft)
    assert made.drafter(TOYS.draft) == eval(made.python, {"dt": dt, "drafters": drafters, "pair": pair})
    assert type(made.drafter(TOYS.draft)) is kind


def test_the_result_survives_its_file(tmp_path):
    file = tmp_path / "tuned.json"
    tuned = found("free rows")
    file.write_text(json.dumps(tuned.to_json()))
    assert load_tuned(file) == tuned
    assert json.loads(file.read_text())["options"]["branching"] == 4
    measured = replace(tuned, predictions=(replace(tuned.predictions[0], measured=1.2, interval=(1.1, 1.3)),))
    file.write_text(json.dumps(measured.to_json()))
    assert load_tuned(file) == measured


@pytest.mark.parametrize("content", ["{", "[]", '{"kind": "costs", "format": 1}', None])
def test_a_file_that_holds_no_result(tmp_path, content):
    file = tmp_path / "tuned.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(ValueError, match="There is no file" if content is None else "holds no tuned configuration"):
        load_tuned(file)


# --------------------------------------------------------------------------------------------------------- candidates
def test_the_candidates_are_specs_of_every_method_with_the_library_s_defaults():
    found = candidates(FREE_ROWS, max_rows=64)
    labels = [one.label for one in found]
    assert len(set(labels)) == len(labels)
    assert {"ar", "chain:length=1", "chain:length=12", "fixed-tree", "best-first-tree", "adaptive-tree"} <= set(labels)
    aware = [one for one in found if one.name == "cost-aware-tree"]
    assert all(one.options["costs"].verify == FREE_ROWS.verify_points for one in aware)
    assert split_specs(",".join(labels)) == labels  # what `--methods` makes of them
    drawn = {one.name for one in candidates(FREE_ROWS, max_rows=64, sampled=True)} - {one.name for one in found}
    assert drawn == {"sampled-tree", "cost-aware-sampled-tree"}
    assert all(one.options["max_nodes"] <= 16 for one in candidates(FREE_ROWS, 16) if ":max_nodes" in one.label)


def test_long_cost_curves_stay_out_of_tables():
    assert brief("cost-aware-tree:costs=1/2+0.1/0.2+0.1,child=0.7") == "cost-aware-tree:child=0.7"
    assert brief("ar") == "ar"


# -------------------------------------------------------------------------------------------------------------- check
@pytest.mark.parametrize(
    ("speeds", "wins", "says"),
    [
        # predicted 1.4, 1.3 and 1.2 for chain, fixed-tree and best-first-tree
        ({"chain": 1.35, "fixed-tree": 1.25}, "chain", "1.40 and 1.35 [1.25, 1.45] x ar."),
        ({"chain": 1.2, "fixed-tree": 1.3}, "fixed-tree", "1.30 and 1.30 [1.20, 1.40] x ar."),
        ({"chain": 1.25, "fixed-tree": 1.3}, "chain", "1.40 and 1.25 [1.15, 1.35] x ar."),  # the prediction counts, too
        ({"chain": 1.0, "best-first-tree": 1.3}, "best-first-tree", "1.20 and 1.30"),  # the other run failed
        ({"chain": 0.9, "fixed-tree": 0.8}, "chain", "the check alone does not tell from plain decoding."),
        ({"chain": 0.8, "fixed-tree": 0.7}, "chain", "though the check alone finds it slower than plain decoding."),
        ({"chain": 0.7, "fixed-tree": 0.7}, "ar", "no method is faster than plain decoding."),
        ({}, "chain", "It has the best prediction."),
    ],
)
def test_prediction_and_check_choose_together(speeds, wins, says):
    predicted = {"chain": 1.4, "fixed-tree": 1.3, "best-first-tree": 1.2, "ar": 1.0}
    speeds = {**speeds, "ar": 1.0} if speeds else {}
    found = [
        Prediction(
            name,
            name,
            speed,
            3,
            4,
            4,
            *((speeds[name], (speeds[name] - 0.1, speeds[name] + 0.1)) if name in speeds else ()),
        )
        for name, speed in predicted.items()
    ]
    spec, reason = choose(found)
    assert spec == wins
    assert says in reason


def test_a_check_of_a_real_pair():
    target = random_model("gpt_neox")
    pair = Pair("random", target, noisy_copy(target), None)
    texts = [BenchPrompt.from_ids(name, prompt(5, seed)[0].tolist()) for seed, name in enumerate("ab")]
    said = []
    tuned = tune(pair, texts, costs=FREE_ROWS, methods=FEW, max_new_tokens=16, progress=said.append)
    assert {one.method for one in tuned.predictions} == {"ar", "chain", "fixed-tree"}
    for one in tuned.predictions:
        assert one.interval[0] <= one.measured <= one.interval[1]
    assert tuned.spec in {one.spec for one in tuned.predictions}
    assert any("tokens/s" in line for line in said)


# ----------------------------------------------------------------------------------------------------------- bad input
@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"max_new_tokens": 1}, "max_new_tokens is 1"),
        ({"max_new_tokens": 10_000}, "exceeds the context"),
        ({"methods": ["hf-generate"]}, "does not run in this library's loop"),
        ({"methods": ["chain:length=0"]}, "length is 0"),
        ({"methods": ["ar", "ar"]}, "given twice"),
        ({"costs": None, "max_rows": 2}, "max_rows is 2"),
    ],
)
def test_bad_input_is_refused_before_any_work(options, sentence):
    with pytest.raises(ValueError, match=sentence):
        planted(**{"costs": FREE_ROWS, "progress": pytest.fail, **options})


# --------------------------------------------------------------------------------------------------------- the command
loaded = cache(load_pair)


@pytest.fixture
def quick(monkeypatch, tmp_path):
    """The command with planted costs and few candidates, in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(tuning, "measure_costs", lambda pair, prompts, **options: FREE_ROWS)
    monkeypatch.setattr(arguments, "load_pair", loaded)
    aware = "cost-aware-tree:costs=1.0/1.0+0.3/0.3+0.15"
    monkeypatch.setattr(tuning, "candidates", lambda costs, rows=64, sampled=False: tuning.variants([*FEW, aware]))
    return tmp_path


def test_the_command_prints_and_saves(quick, capsys):
    assert main(["tune", "--pair", "tiny", "--no-check", "--limit", "2", "--max-new-tokens", "24"]) == 0
    shown = capsys.readouterr()
    tuned = load_tuned(quick / "outputs" / "tuned" / "tiny.json")
    lines = shown.out.splitlines()
    assert f"Use {tuned.spec}" in lines
    assert f"or  {tuned.python}" in lines
    assert lines[-1] == "Saved in outputs/tuned/tiny.json."
    assert "2 of the bundled prompts, none of the first 20" in shown.out
    assert {"nodes", "level", "method", "ar"} <= {line.split()[0] for line in lines if line}
    judged = {one.sha256 for one in load_workload("bundled", limit=20)}
    assert not judged & {one["sha256"] for one in tuned.setup["prompts"]}
    assert "x ar predicted: chain:length=6" in shown.err


def test_named_methods_alone_are_tried(quick, capsys):
    options = ["--no-check", "--limit", "1", "--max-new-tokens", "8", "--out", "x.json"]
    assert main(["tune", "--methods", "chain", *options]) == 0
    assert {one.method for one in load_tuned("x.json").predictions} == {"ar", "chain"}
    capsys.readouterr()


def test_the_faster_dtype_is_taken_and_named(quick, capsys, monkeypatch):
    monkeypatch.setattr(arguments, "iteration_seconds", lambda pairs: {"float32": 0.002, "bfloat16": 0.001})
    options = ["--no-check", "--limit", "1", "--max-new-tokens", "8", "--out", "x.json"]
    assert main(["tune", "--dtype", "fastest", *options]) == 0
    shown = capsys.readouterr()
    assert "bfloat16 is the fastest here (an iteration's forwards: float32: 2.00 ms, bfloat16: 1.00 ms)" in shown.err
    assert "with dtype=bfloat16, in which it was tuned" in shown.out
    assert load_tuned("x.json").setup["dtype"] == "bfloat16"


def test_the_printed_lines_work_as_they_stand(quick, capsys):
    options = ["tune", "--no-check", "--limit", "1", "--max-new-tokens", "8", "--out", "x.json", "--task", "code"]
    assert main(options) == 0
    tuned, pair = load_tuned("x.json"), load_pair("tiny")
    assert eval(tuned.python, {"dt": dt, "pair": pair}) == tuned.drafter(pair.draft)
    for spec in ("chain:length=3", "cost-aware-tree:costs=1.0/1.5+0.1/0.2+0.15,child=0.7"):
        other = replace(tuned, spec=spec)
        assert eval(other.python, {"dt": dt, "pair": pair}) == other.drafter(pair.draft)
    assert isinstance(other.drafter(pair.draft), CostAwareTree)
    assert Chain(pair.draft, 3) == replace(tuned, spec="chain:length=3").drafter(pair.draft)
    capsys.readouterr()


def test_other_workloads_are_tuned_on_their_last_prompts(quick, capsys, tmp_path):
    (tmp_path / "wikitext-2-raw").mkdir()
    sections = "\n".join(f"= {n} =\n{'word ' * 60}{n}\n" for n in range(5))
    (tmp_path / "wikitext-2-raw" / "wiki.test.raw").write_text(sections)
    options = ["--workload", "wikitext-2", "--data", str(tmp_path), "--limit", "2", "--max-new-tokens", "8"]
    assert main(["tune", "--no-check", *options, "--out", "x.json"]) == 0
    assert [one["id"] for one in load_tuned("x.json").setup["prompts"]] == ["test-3", "test-4"]
    assert "The last 2 of 5 prompts of wikitext-2" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--pair", "unknown"], "There is no pair named 'unknown'"),
        (["--out", "no/such/folder/x.json"], "cannot be written because the folder"),
        (["--temperature", "-1"], "temperature is -1.0"),
        (["--threads", "0"], "--threads is 0"),
        (["--limit", "0"], "--limit is 0"),
        (["--max-new-tokens", "1"], "--max-new-tokens is 1"),
        (["--max-rows", "3"], "--max-rows is 3"),
        (["--methods", "chain,hf-generate"], "There is no method 'hf-generate' to tune; choose from ar, chain, fixed"),
    ],
)
def test_bad_input_is_one_sentence_before_any_model_is_loaded(options, sentence, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("transformers.AutoModelForCausalLM.from_pretrained", None)
    assert main(["tune", *options]) == 2
    assert sentence in capsys.readouterr().err


@pytest.mark.parametrize(
    ("options", "sentence"),
    [(["--max-new-tokens", "100000"], "the context of 'tiny' is"), (["--workload", "nothing"], "There is no workload")],
)
def test_what_only_the_models_can_tell(quick, options, sentence, capsys):
    assert main(["tune", "--out", "x.json", *options]) == 2
    assert sentence in capsys.readouterr().err


def test_a_default_folder_that_cannot_be_made(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "outputs").write_text("a file")
    assert main(["tune"]) == 2
    assert "give --out FILE" in capsys.readouterr().err


def test_the_file_has_the_name_of_the_pair(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for given, name in (
        ({"pair": "llama-3.1-8b/3.2-1b"}, "llama-3.1-8b-3.2-1b.json"),
        ({"pair": str(tmp_path)}, "-".join(tmp_path.parts[-2:]) + ".json"),
        ({"target": "a/b", "draft": "c"}, "a-b+c.json"),
    ):
        args = type("Args", (), {"pair": None, "target": None, "draft": None, **given})
        assert tune_command._default_file(args).name == name


def test_a_tuned_configuration_of_hand_made_parts_prints():
    tuned = Tuned("p", "ar", "Because.", FREE_ROWS, RankAcceptance(((0.5, 0.1),), (60,)), (), {"best_chain": [2, 1.5]})
    tuned.setup["candidates"] = 3
    text = tune_command.report(tuned, "Prompts.")
    assert "By these rates a chain of 2 is the best, at 1.50 x ar." in text
