"""Training of drafts on features: the unrolled steps are what a drafter does, windows are what texts hold."""

from itertools import islice

import numpy as np
import pytest
import reference
import torch
from models import feature_draft, prompt, random_model

from dynatree_lib.models.pruned import on_features, pruned
from dynatree_suite.bench.runner import quiet
from dynatree_suite.training import losses
from dynatree_suite.training.losses import chain_agreement, predicted, unrolled, windows_loss
from dynatree_suite.training.optimize import Runtime
from dynatree_suite.training.texts import Asked, Window, Windows, frequent, read_texts, store_texts, write_features

RUNTIME = Runtime(autocast=False)


def stored(path, ids, split, temperatures):
    """Write a file of answers, each text cut into prompt and answer after `split` tokens."""
    asked = [Asked(kind, tuple(one[:split])) for kind, one in zip(("one", "two"), ids, strict=True)]
    store_texts(path, asked, [one[split:] for one in ids], temperatures)
    return path


@pytest.fixture
def material(tmp_path):
    """A float32 target, four texts in two files, and their features."""
    target = random_model("llama", dtype=torch.float32)
    ids = [prompt(length)[0].numpy() for length in (30, 12, 25, 40)]
    files = [stored(tmp_path / f"answers-{n}.npz", ids[2 * n : 2 * n + 2], 5, [0, 1]) for n in range(2)]
    states = write_features(target.model, files, tmp_path / "features", quiet)
    return target, ids, files, Windows(read_texts(files), states, 16)


@pytest.fixture
def several(material, tmp_path):
    """The same texts with the states after the target's first and last layer."""
    target, _, files, windows = material
    states = write_features(target.model, files, tmp_path / "several", quiet, (1, -1))
    return Windows(windows.texts, states, windows.length)


def fused(target, layers):
    draft = on_features(target, layers, (1, -1))
    draft.fusion.map.weight.data.normal_(std=0.1)
    return draft


def test_states_of_several_layers_are_stored_side_by_side(material, several):
    target, ids, _, windows = material
    with torch.inference_mode():
        states = target.model(torch.from_numpy(ids[2].astype(np.int64))[None], output_hidden_states=True).hidden_states
    window = several.placed(np.array([[2, 0]]))
    assert window.states.shape == (1, 17, 2 * target.feature_size)
    assert torch.allclose(window.states[0, :, : target.feature_size].float(), states[1][0, :17], rtol=0.01, atol=0.02)
    assert torch.equal(window.states[..., target.feature_size :], windows.placed(np.array([[2, 0]])).states)


@torch.inference_mode()
def test_every_step_is_a_level_of_a_chain():
    target = random_model("llama")
    draft, text = feature_draft(target).model, prompt(12)[0].tolist()
    states = target.model(torch.tensor([text]), output_hidden_states=True).hidden_states
    states = torch.cat([states[layer] for layer in draft.feature_layers], -1)
    places = torch.arange(len(text) - 1)[None]
    all_true = torch.ones(1, len(text) - 1, dtype=torch.bool)
    window = Window(torch.tensor([text[1:]]), states, places, all_true, all_true)
    for step, found in enumerate(unrolled(draft, window, 4), 1):
        for place in range(step, len(text)):  # tokens up to the place, the last `step - 1` of them drafted
            known = place - step + 2
            expected = reference.feature_logits(target.model, draft, text[:known], text[known : place + 1])[-1]
            assert torch.allclose(draft.lm_head(found[0, place - 1]), expected, atol=1e-5), (step, place)


def test_texts_are_prompts_with_their_answers(material):
    _, ids, _, windows = material
    texts = windows.texts
    assert [texts.text(number).tolist() for number in range(4)] == [one.tolist() for one in ids]
    assert texts.answers.tolist() == [token for one in ids for token in one[5:].tolist()]
    assert texts.figures() == {"texts": 4, "tokens": 107, "answer_tokens": 87, "by_kind": {"one": 2, "two": 2}}
    few = texts.chosen(np.array([1, 3]))
    assert few.text(1).tolist() == ids[3].tolist()
    assert few.temperatures.tolist() == [1, 1]


def test_frequent_tokens_are_counted_and_the_end_is_among_them(material):
    texts = material[3].texts
    tokens = frequent(texts, 20, (96,))
    assert len(tokens) == 20
    assert 96 in tokens
    assert (np.diff(tokens) > 0).all()
    counts = np.bincount(texts.answers, minlength=97)
    assert counts[np.setdiff1d(tokens, [96])].min() >= counts[np.setdiff1d(np.arange(97), tokens)].max()


def test_windows_hold_tokens_with_the_features_before_them(material):
    target, ids, _, windows = material
    picks = [[0, 10], [1, 0], [3, 24]]
    window = windows.placed(np.array(picks))
    for row, (number, begin) in enumerate(picks):
        text = ids[number][begin : begin + 17]
        assert window.ids[row][window.seen[row]].tolist() == text[1:].tolist()
        assert window.positions[row, 0] == begin + 1
        with torch.inference_mode():
            whole = target.model(torch.tensor(ids[number])[None], output_hidden_states=True).hidden_states[-1][0]
        count = len(text)
        assert torch.allclose(window.states[row, :count].float(), whole[begin : begin + count], rtol=0.01, atol=0.02)
    assert window.answer[1].tolist() == [place >= 3 for place in range(11)] + [False] * 5  # it begins at token 5
    few = windows.spread(2)
    assert few.texts.text(1).tolist() == ids[3].tolist()
    assert torch.equal(few.placed(np.array([[1, 24]])).states[0], window.states[2])


def test_features_are_written_once(material, tmp_path):
    target, _, files, _ = material
    paths = sorted((tmp_path / "features").iterdir())
    before = paths[0].stat().st_mtime_ns
    paths[1].unlink()
    states = write_features(target.model, files, tmp_path / "features", quiet)
    assert paths[0].stat().st_mtime_ns == before
    assert [one.shape for one in states] == [(30, 32), (12, 32), (25, 32), (40, 32)]


def test_features_of_other_texts_are_refused(material, tmp_path):
    target, _, files, _ = material
    first, second = sorted((tmp_path / "features").iterdir())
    first.replace(second)
    with pytest.raises(ValueError, match=r"has features of 42 tokens and answers-1.npz has 65; remove the first"):
        write_features(target.model, files, tmp_path / "features", quiet)


def test_batches_depend_on_the_seed_and_their_number_alone(material):
    batches, same = (list(islice(material[3].batches(4, (0, 1)), 3)) for _ in range(2))
    assert all(map(np.array_equal, batches, same))
    assert not (batches[0] == batches[1]).all()


def plain_loss(window, found, head, fading, variation):
    """The loss as it is defined, with all logits at a time."""
    wanted, total = (window.states[:, 1:, -head.shape[1] :].to(head.dtype) @ head.T).softmax(-1), 0.0
    for step, state in enumerate(found):
        used = window.seen.clone()
        used[:, :step] = False
        given = (state @ head.T).log_softmax(-1)
        entropy, shared = -(wanted * given).sum(-1), torch.minimum(wanted, given.exp()).sum(-1)
        total = total + fading**step * ((1 - variation) * entropy + variation * (1 - shared))[used].mean()
    return total


@pytest.mark.parametrize("variation", [0.0, 0.3])
@pytest.mark.parametrize("make", [pruned, on_features, fused])
def test_the_loss_and_its_gradient_are_as_defined(material, several, make, variation, monkeypatch):
    target, _, _, windows = material
    windows = several if make is fused else windows
    torch.manual_seed(0)
    draft, tokens, picks = make(target.model, [0]), np.arange(0, 97, 2), np.array([[0, 3], [1, 0], [2, 5]])
    draft.requires_grad_(True)
    monkeypatch.setattr(losses, "ROWS", 7)
    steps = 1 if make is pruned else 3
    window, head = windows.placed(picks), draft.lm_head.weight.detach()[torch.from_numpy(tokens)]
    weights = list(draft.model.layers.parameters())
    expected = plain_loss(window, predicted(draft, window, steps), head, 0.8, variation)
    found = windows_loss(draft, windows, tokens, steps, 0.8, variation, RUNTIME)(torch.from_numpy(picks))
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=1e-5)
    for one, other in zip(torch.autograd.grad(found, weights), torch.autograd.grad(expected, weights), strict=True):
        assert torch.allclose(one, other, rtol=1e-3, atol=1e-5)


def test_a_whole_target_agrees_with_itself(material):
    target, _, _, windows = material
    found = chain_agreement(pruned(target.model, (0, 1, 2)), windows, np.arange(97), RUNTIME)
    assert set(found) == {"all", "one", "two"}
    assert found["all"]["tokens"] == found["one"]["tokens"] + found["two"]["tokens"]


@pytest.mark.parametrize("tokens", [np.arange(97), np.arange(1, 97, 2)])
def test_agreement_is_as_counted_by_hand(material, tokens):
    """A text as long as its window: the first tokens of both, place by place, and chains of four from every place.

    Where half of the tokens are never drafted, the target's first choice may be one of those, and is missed.
    """
    target, ids, _, windows = material
    whole = Windows(windows.texts, windows.states, 39)
    draft = pruned(target.model, (0, 2))
    found = chain_agreement(draft, whole, tokens, RUNTIME)
    hits, chains = [], []
    for number, text in enumerate(ids):
        with torch.inference_mode():
            states = whole.placed(np.array([[number, 0]])).states[0, 1 : len(text)].float()
            best = draft.lm_head(states).argmax(-1)
            own = draft(torch.tensor(text[1:])[None], position_ids=torch.arange(1, len(text))[None]).logits[0]
        drafted = torch.from_numpy(tokens)[own[:, tokens].argmax(-1)]
        right = (best == drafted).numpy()[3:]  # what follows the prompt of five tokens
        hits += right.tolist()
        if number % 2 == 0:
            chains += [1 + np.cumprod(right[begin : begin + 4]).sum() for begin in range(len(right) - 3)]
    assert found["all"]["first"] == pytest.approx([np.mean(hits)] * 4)
    assert found["all"]["greedy"] == pytest.approx(np.mean(chains))
    assert found["one"]["sampled"] is None  # texts of that kind are greedy


@pytest.mark.parametrize("make", [on_features, fused])
def test_a_draft_on_features_learns(material, several, make):
    target, _, _, windows = material
    windows = several if make is fused else windows
    torch.manual_seed(0)
    draft, tokens = make(target.model, [2]), np.arange(97)
    weights = [*draft.model.layers.parameters(), *draft.model.norm.parameters(), *draft.joint.parameters()]
    weights += draft.fusion.parameters() if make is fused else []
    optimizer = torch.optim.AdamW(weights, lr=3e-3)
    loss, batches = windows_loss(draft, windows, tokens, 2, 0.8, 0.1, RUNTIME), windows.batches(8, (0,))
    before = chain_agreement(draft, windows, tokens, RUNTIME)["all"]
    for _ in range(60):
        optimizer.zero_grad()
        loss(torch.from_numpy(next(batches))).backward()
        optimizer.step()
    after = chain_agreement(draft, windows, tokens, RUNTIME)["all"]
    assert after["loss"] < before["loss"] - 0.5
    assert after["first"][0] > before["first"][0] + 0.2
