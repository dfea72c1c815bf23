"""A draft made of its target's layers learns from the target's answers: losses, batches, and the run as a whole."""

import argparse
import json
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch
from models import prompt, random_model
from safetensors.torch import save

from dynatree_lib.models.fetch import PACKAGED
from dynatree_lib.models.pruned import TOKENS, load_pruned, on_features, own_weights, pruned
from dynatree_suite.cli import options
from dynatree_suite.cli import train as command
from dynatree_suite.training import draft as drafts
from dynatree_suite.training import optimize
from dynatree_suite.training.losses import chain_agreement
from dynatree_suite.training.optimize import Runtime, read_checkpoint
from dynatree_suite.training.recipe import DraftRecipe, Phase, load_recipe
from dynatree_suite.training.texts import Asked, Windows, read_texts

PLAIN = Runtime(autocast=False)
RECIPE = load_recipe("smollm2")


@pytest.fixture(scope="module")
def model():
    return random_model("llama", dtype=torch.float32).altered(eos_token_ids=())


@pytest.fixture
def small(model, tmp_path, monkeypatch):
    """Make a small recipe of a kind, for a random model in place of the packaged one and prompts of random tokens."""
    folder = tmp_path / "target"
    folder.mkdir()
    origin = {**asdict(PACKAGED["smollm2"]), "base": "a random model", "weights": "random"}
    (folder / drafts.ORIGIN).write_text(json.dumps(origin))
    asked = [Asked("code", tuple(prompt(size)[0].tolist())) for size in range(2, 100)]
    monkeypatch.setattr(drafts, "fetch", lambda name, log=None: folder)
    monkeypatch.setattr(drafts, "load_model", lambda place, **options: model)
    monkeypatch.setattr(drafts, "load_workload", lambda name, source, limit=None: [])
    monkeypatch.setattr(drafts, "requests", lambda data: [("code", "x")])
    monkeypatch.setattr(drafts, "ask", lambda tokenizer, turns, longest=0: asked if turns else asked[:5])
    monkeypatch.setattr(drafts, "JUDGED_TOKENS", 12)

    def recipe(kind="draft", steps=30, **changes):
        whole = load_recipe("smollm2" if kind == "draft" else "smollm2-features")
        features = (1, -1) if kind == "features" else ()
        whole = replace(whole, layers=(0, 2), feature_layers=features, tokens=60, files=9, own=0.0, limit=8, batch=4)
        phases = (replace(whole.draft.phases[0], steps=steps, batch=8, micro_batch=8, length=20),)
        rate = 0.006 if kind == "draft" else 0.02
        whole = replace(whole, draft=replace(whole.draft, phases=phases, warmup=2, learning_rate=rate))
        return replace(whole, **changes)

    return recipe


@pytest.mark.parametrize("kind", ["draft", "features"])
def test_a_run_from_prompts_to_a_draft(model, small, tmp_path, kind):
    """The draft learns, loads again, and the card says what it learnt from."""
    recipe = small(kind)
    features, phases = recipe.feature_layers, recipe.draft.phases[0]
    lines: list[str] = []
    work, out = tmp_path / "work", tmp_path / "out"
    training = drafts.open_draft_training(recipe, tmp_path, work, out, PLAIN, lines.append)
    card = drafts.train_draft(training)
    assert card["curve"][-1]["step"] == phases.steps
    files = sorted((work / "answers").iterdir())[: drafts.HELD_OUT_FILES]
    states = [np.load(work / ("features-1" if features else "features") / f"{file.stem}.npy") for file in files]
    tokens = np.load(out / kind / TOKENS).astype(int)
    texts = read_texts(files)
    split = [one for array in states for one in np.split(array, texts.offsets[1:-1])]
    held_out = Windows(texts, split, phases.length)
    untrained = on_features(model.model, (0, 2), features) if features else pruned(model.model, (0, 2))
    before = chain_agreement(untrained, held_out, tokens, PLAIN)
    assert card["agreement"]["all"]["tokens"] == before["all"]["tokens"]
    assert card["agreement"]["all"]["loss"] < before["all"]["loss"] - 0.1
    judged = card["spec_bench"]["kinds"]["all"]
    assert judged["tokens"] == 2 * 5 * 13  # the place before each token of an answer, and the last one
    assert 0 < judged["covered"] <= 1
    assert 1 <= judged["sampled"] <= 5
    stored, tokens = load_pruned(out / kind, model.model)
    assert hasattr(stored, "joint") == (kind == "features")
    assert len(tokens) == 60 == len(np.load(out / kind / TOKENS))
    assert card["parameters"] == sum(weight.numel() for weight in own_weights(stored).values())
    assert json.loads((out / kind / "card.json").read_text()) == card
    page = (out / kind / "README.md").read_text()
    assert "# A draft for a random model" in page
    assert f"| code | {card['texts']['training']['texts']} | MBPP" in page
    with pytest.raises(FileExistsError, match="pass --force to replace it"):
        drafts.open_draft_training(recipe, tmp_path, work, out, PLAIN, lines.append)
    other = replace(recipe, limit=9)
    with pytest.raises(ValueError, match="holds the answers of another recipe"):
        drafts.open_draft_training(other, tmp_path, work, tmp_path / "elsewhere", PLAIN, lines.append)


def begin(training):
    """Write a checkpoint of a training's recipe and of other texts."""
    about = {"recipe": training.recipe.as_json(), "texts": "x"}
    training.checkpoint.write_bytes(save({}, {"progress": json.dumps({"about": about})}))


@pytest.mark.parametrize("change", ["rate", "variation", "tokens", "layers", "files", "steps"])
def test_the_checkpoint_of_another_recipe_is_not_gone_on_with(small, tmp_path, change):
    def opened(recipe, force=False):
        return drafts.open_draft_training(recipe, tmp_path, tmp_path / "work", tmp_path / "out", PLAIN, print, force)

    training = opened(small())
    begin(training)
    faster = replace(training.recipe.draft, learning_rate=1.0)
    other = {
        "rate": small(draft=faster), "variation": small(variation=0.5), "tokens": small(tokens=50),
        "layers": small(layers=(1,)), "files": small(files=10), "steps": small(steps=9),
    }[change]  # fmt: skip
    with pytest.raises(ValueError, match=r"what differs: recipe\).* pass --force to train anew"):
        opened(other)
    assert opened(small()).checkpoint.is_file()
    assert not opened(other, force=True).checkpoint.is_file()


def test_a_checkpoint_of_other_answers_is_refused(small, tmp_path):
    training = drafts.open_draft_training(small(steps=1), tmp_path, tmp_path / "work", tmp_path / "out", PLAIN, str)
    begin(training)
    with pytest.raises(ValueError, match=r"what differs: texts\)"):
        drafts.train_draft(training)


def test_a_shortened_run_goes_on_with_the_steps_it_began_with(small, tmp_path, monkeypatch):
    monkeypatch.setattr(optimize.Run, "predicted_seconds", lambda run: 600.0)
    lines: list[str] = []
    training = drafts.open_draft_training(
        small(steps=90), tmp_path, tmp_path / "work", tmp_path / "a", PLAIN, lines.append
    )
    assert drafts.train_draft(training, max_minutes=1)["steps"] == 9
    again = drafts.open_draft_training(
        small(steps=90), tmp_path, tmp_path / "work", tmp_path / "b", PLAIN, lines.append
    )
    assert drafts.train_draft(again, max_minutes=5)["steps"] == 9
    assert "--max-minutes is not applied again: the steps were fixed when this run began" in lines


def test_a_gpu_is_refused_before_any_work(tmp_path):
    with pytest.raises(ValueError, match="device is cuda, but a draft is trained on a CPU; leave it out"):
        drafts.open_draft_training(RECIPE, tmp_path, tmp_path / "work", tmp_path / "out", Runtime("cuda"), print)
    assert not (tmp_path / "work").exists()


def test_the_command_trains_a_draft_on_the_cpu_where_there_is_a_gpu_too(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(drafts, "train_draft", lambda training, minutes: seen.append(training.runtime.device))
    parser = argparse.ArgumentParser()
    options.train(parser)
    folders = ["--data", str(tmp_path), "--work", str(tmp_path / "work"), "--out", str(tmp_path / "out")]
    assert command.main(parser.parse_args(["--recipe", "smollm2", "--no-compile", *folders])) == 0
    assert seen == ["cpu"]


def test_a_folder_of_other_things_is_not_replaced_by_a_draft(tmp_path):
    mine = tmp_path / "out" / RECIPE.kind / "mine.txt"
    mine.parent.mkdir(parents=True)
    mine.write_text("mine")
    with pytest.raises(FileExistsError, match="holds other things than a training writes"):
        drafts.open_draft_training(RECIPE, tmp_path, tmp_path / "work", tmp_path / "out", PLAIN, print, force=True)
    assert not (tmp_path / "work").exists()


def test_the_shipped_recipe_reads_back_and_wrong_ones_are_refused():
    assert DraftRecipe.from_json(RECIPE.as_json()) == RECIPE
    optimization = RECIPE.as_json()["draft"]
    phase = optimization["phases"][0]
    for change, message in (
        ({"variation": 1.5}, "has variation=1.5; give numbers from 0 to 1"),
        ({"layers": []}, r"layers=\[\]; give at least one"),
        ({"limit": 0}, "limit=0; give whole numbers from 1"),
        ({"unrolled": -1}, "unrolled=-1; give whole numbers from 0"),
        ({"unrolled": 1}, "unrolled is 1 and feature_layers is .*; give steps for a draft on features, 0 without"),
        ({"speed": 1}, "unknown keys"),
        ({"temperatures": [-1]}, r"temperatures=\[-1\]; give numbers from 0"),
        ({"layers": ["0"]}, r"layers=\['0'\]; give whole numbers"),
        ({"draft": {**optimization, "warmup": 0}}, "draft has warmup=0; give whole numbers from 1"),
        ({"draft": {**optimization, "phases": [{**phase, "batch": 0}]}}, "draft.phases has batch=0; give whole"),
        ({"draft": {**optimization, "phases": [{**phase, "micro_batch": 5}]}}, "no multiple of its micro_batch"),
        ({"draft": {**optimization, "phases": [phase, {**phase, "length": 9}]}}, r"lengths \[9, 256\]; give all one"),
    ):
        with pytest.raises(ValueError, match=message):
            DraftRecipe.from_json({**RECIPE.as_json(), **change})


def test_schedule_rises_stays_and_falls_to_zero():
    recipe = replace(RECIPE.draft, phases=(Phase(100, 8, 1, 1),), warmup=10, decay=0.2)
    factors = [optimize.learning_rate_factor(step, recipe) for step in range(100)]
    assert factors[0] == pytest.approx(0.1)
    assert factors[9:81] == [1.0] * 72
    assert factors[99] == pytest.approx(0.05)


@pytest.mark.parametrize("content", [b"", b"{", b"\x80\x02}q\x00.", b"\x08\0\0\0\0\0\0\0{}      "])
def test_what_is_no_checkpoint_is_refused_in_a_sentence(tmp_path, content):
    path = tmp_path / "x.checkpoint"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"x.checkpoint is no checkpoint that can be read .*; remove it"):
        read_checkpoint(path)
