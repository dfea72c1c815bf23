"""A draft made of its target's layers learns from the target's answers: losses, batches, and the run as a whole."""

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from models import VOCABULARY, prompt, random_model

from dynatree_lib.models.pruned import TOKENS, load_pruned, own_weights, pruned
from dynatree_lib.training import draft as drafts
from dynatree_lib.training.answers import Asked, write_answers
from dynatree_lib.training.optimize import Runtime
from dynatree_lib.training.pruned import Batches, agreement, answers_loss, frequent, placed, read_texts, scores
from dynatree_lib.training.recipe import draft_from_json, load_recipe

PLAIN = Runtime(autocast=False)
RECIPE = load_recipe("smollm2")


@pytest.fixture(scope="module")
def model():
    return random_model("llama", dtype=torch.float32).altered(eos_token_ids=())


@pytest.fixture(scope="module")
def texts(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("answers")
    asked = [Asked("code" if size % 2 else "math", tuple(prompt(size)[0].tolist())) for size in range(2, 42)]
    write_answers(model, asked, folder, batch=5, limit=12)
    return read_texts(sorted(folder.iterdir()))


def test_the_loss_is_the_cross_entropy_against_the_targets_probabilities(model, texts):
    """Over the whole vocabulary and without padding, computed text by text from the target's own logits."""
    draft, numbers = pruned(model.model, (0, 2)), np.array([3, 17, 30])
    expected, count = 0.0, 0
    with torch.no_grad():
        for number in numbers:
            first, last = texts.prompt_offsets[number : number + 2]
            begin, end = texts.answer_offsets[number : number + 2]
            ids = torch.tensor([[*texts.prompts[first:last].tolist(), *texts.answers[begin:end].tolist()]])
            places = slice(last - first - 1, ids.shape[1] - 1)
            wanted = model.model(ids).logits[0, places].softmax(-1)
            given = draft(ids).logits[0, places].log_softmax(-1)
            best = wanted.topk(texts.top.shape[1]).indices
            expected -= float((wanted.gather(1, best) * given.gather(1, best)).sum())
            count += end - begin
        found = answers_loss(draft, texts, np.arange(VOCABULARY), 0.0, PLAIN)(torch.from_numpy(numbers))
    assert float(found) == pytest.approx(expected / count, rel=2e-3)  # probabilities are stored in half precision


def test_tokens_outside_the_softmax_take_no_part(model, texts):
    draft, kept = pruned(model.model, (0, 2)), np.arange(0, VOCABULARY, 3)
    index = np.full(2**16, -1)
    index[kept] = np.arange(len(kept))
    laid = placed(texts, np.array([5, 6]), index)
    assert set(np.unique(laid.top)) <= {-1, *range(len(kept))}
    found = scores(draft, laid, draft.lm_head.weight[torch.from_numpy(kept)], PLAIN)
    assert found.shape == (len(laid.places), len(kept))
    torch.testing.assert_close(found.exp().sum(-1), torch.ones(len(found)))
    numbers = torch.tensor([5, 6])
    whole, half = (float(answers_loss(draft, texts, kept, share, PLAIN)(numbers).detach()) for share in (0.0, 0.5))
    distance = 2 * half - whole  # the loss is the mean of both
    assert 0 < distance < 1


def test_a_whole_target_agrees_with_itself(model, texts):
    figures = agreement(pruned(model.model, (0, 1, 2)), texts, None, PLAIN)
    assert set(figures) == {"all", "code", "math"}
    assert figures["all"]["tokens"] == len(texts.answers) == figures["code"]["tokens"] + figures["math"]["tokens"]
    assert figures["all"]["first"] == 1
    assert figures["all"]["overlap"] == pytest.approx(texts.shares.astype(float).sum(-1).mean(), abs=1e-3)


def test_frequent_tokens_are_counted_and_the_end_is_among_them(texts):
    tokens = frequent(texts, 20, (96,))
    assert len(tokens) == 20
    assert 96 in tokens
    assert (np.diff(tokens) > 0).all()
    counts = np.bincount(texts.top[:, :4].ravel(), minlength=VOCABULARY)
    assert counts[np.setdiff1d(tokens, [96])].min() >= counts[np.setdiff1d(np.arange(VOCABULARY), tokens)].max()


def test_batches_cover_an_epoch_once_and_skip_exactly():
    lengths = np.random.default_rng(0).integers(5, 90, 640)
    batches, again = Batches(lengths, (1,)), Batches(lengths, (1,))
    epoch = [batches.batch(10) for _ in range(64)]
    assert sorted(np.concatenate(epoch).tolist()) == list(range(640))
    assert np.mean([np.ptp(lengths[batch]) for batch in epoch]) < 10  # texts of similar length together
    again.skip(63, 10)
    assert again.batch(10).tolist() == epoch[63].tolist()


@pytest.mark.parametrize("kind", ["draft", "features"])
def test_a_run_from_prompts_to_a_draft(model, tmp_path, monkeypatch, kind):
    """The draft learns, loads again, and the card says what it learnt from."""
    recipe = load_recipe("smollm2" if kind == "draft" else "smollm2-features")
    recipe = replace(recipe, layers=(0, 2), tokens=60, own_turns=3, limit=8, batch=4)
    phases = replace(recipe.draft.phases[0], steps=30 if kind == "draft" else 90, batch=8, micro_batch=4, length=20)
    recipe = replace(recipe, draft=replace(recipe.draft, phases=(phases,), warmup=2, learning_rate=0.01))
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / drafts.ORIGIN).write_text(json.dumps({"base": "a random model"}))
    asked = [Asked("code", tuple(prompt(size)[0].tolist())) for size in range(2, 100)]
    monkeypatch.setattr(drafts, "fetch", lambda name, log=None: folder)
    monkeypatch.setattr(drafts, "load_model", lambda place, **options: model)
    monkeypatch.setattr(drafts, "written_turns", lambda *given: [("own", "Hello?")])
    monkeypatch.setattr(drafts, "requests", lambda data: [("code", "x")])
    monkeypatch.setattr(drafts, "ask", lambda tokenizer, turns: asked)
    lines: list[str] = []
    work, out = tmp_path / "work", tmp_path / "out"
    training = drafts.open_draft_training(recipe, tmp_path, work, out, PLAIN, lines.append)
    card = drafts.train_draft(training)
    assert card["curve"][-1]["step"] == phases.steps
    if kind == "draft":
        texts = read_texts(sorted((work / "answers").iterdir()))
        untrained = agreement(pruned(model.model, (0, 2)), texts, None, PLAIN)["all"]["loss"]
    else:
        untrained = np.log(60)  # nats of a guess
    assert card["agreement"]["all"]["loss"] < untrained
    stored, tokens = load_pruned(out / kind, model.model)
    assert hasattr(stored, "joint") == (kind == "features")
    assert len(tokens) == 60 == len(np.load(out / kind / TOKENS))
    assert card["parameters"] == sum(weight.numel() for weight in own_weights(stored).values())
    assert json.loads((out / kind / "card.json").read_text()) == card
    with pytest.raises(FileExistsError, match="pass --force to replace it"):
        drafts.open_draft_training(recipe, tmp_path, work, out, PLAIN, lines.append)
    other = replace(recipe, limit=9)
    with pytest.raises(ValueError, match="holds the answers of another recipe"):
        drafts.open_draft_training(other, tmp_path, work, tmp_path / "elsewhere", PLAIN, lines.append)


def test_the_shipped_recipe_reads_back_and_wrong_ones_are_refused():
    assert draft_from_json(RECIPE.as_json()) == RECIPE
    for change, message in (
        ({"variation": 1.5}, "variation is 1.5"),
        ({"layers": []}, "names no layers"),
        ({"limit": 0}, "limit is 0"),
        ({"unrolled": -1}, "unrolled is -1"),
        ({"speed": 1}, "unknown keys"),
    ):
        with pytest.raises(ValueError, match=message):
            draft_from_json({**RECIPE.as_json(), **change})
