"""Training of drafts on features: the unrolled steps are what a drafter does, windows are what texts hold."""

import numpy as np
import pytest
import reference
import torch
from models import feature_draft, prompt, random_model

from dynatree_lib.models.pruned import on_features
from dynatree_lib.training.eagle import Window, Windows, chain_agreement, features_loss, unrolled, write_states
from dynatree_lib.training.optimize import Runtime
from dynatree_lib.training.pruned import Texts

RUNTIME = Runtime(autocast=False)


def texts_of(ids, split, temperatures):
    """Texts whose prompts are the first `split` tokens of each."""
    offsets = [0, *np.cumsum([len(one) for one in ids])]
    answers = np.concatenate([one[split:] for one in ids]).astype(np.uint16)
    return Texts(
        prompts=np.concatenate([one[:split] for one in ids]).astype(np.uint16),
        prompt_offsets=split * np.arange(len(ids) + 1),
        answers=answers,
        answer_offsets=np.array(offsets) - split * np.arange(len(ids) + 1),
        top=np.zeros((len(answers), 16), np.uint16),
        shares=np.zeros((len(answers), 16), np.float16),
        kinds=np.array(["one", "two"])[np.arange(len(ids)) % 2],
        temperatures=np.array(temperatures, np.float32),
    )


@pytest.fixture
def folder_of_states(tmp_path):
    """A float32 target, four texts of it in two files, and their stored features."""
    target = random_model("llama", dtype=torch.float32)
    ids = [prompt(length)[0].numpy() for length in (30, 12, 25, 40)]
    parts = [texts_of(ids[:2], 5, [0, 1]), texts_of(ids[2:], 5, [0, 1])]
    paths = [tmp_path / "states" / f"{number}.npy" for number in range(2)]
    write_states(target.model, parts, paths, 2, lambda line: None)
    return target, ids, texts_of(ids, 5, [0, 1, 0, 1]), [np.load(path) for path in paths], (parts, paths)


@torch.inference_mode()
def test_every_step_is_a_level_of_a_chain():
    target = random_model("llama")
    draft, text = feature_draft(target).model, prompt(12)[0].tolist()
    states = target.model(torch.tensor([text]), output_hidden_states=True).hidden_states[-1]
    places = torch.arange(len(text) - 1)[None]
    all_true = torch.ones(1, len(text) - 1, dtype=torch.bool)
    window = Window(torch.tensor([text[1:]]), states, places, all_true, all_true)
    for step, found in enumerate(unrolled(draft, window, 4), 1):
        for place in range(step, len(text)):  # tokens up to the place, the last `step - 1` of them drafted
            known = place - step + 2
            expected = reference.feature_logits(target.model, draft, text[:known], text[known : place + 1])[-1]
            assert torch.allclose(draft.lm_head(found[0, place - 1]), expected, atol=1e-5), (step, place)


def test_windows_hold_tokens_with_the_features_before_them(folder_of_states):
    target, ids, texts, states, _ = folder_of_states
    windows = Windows(texts, tuple(states), 16)
    window = windows.placed(np.array([[0, 10], [1, 0], [3, 24]]))
    for row, (number, begin) in enumerate([(0, 10), (1, 0), (3, 24)]):
        text = ids[number][begin : begin + 17]
        assert window.ids[row][window.seen[row]].tolist() == text[1:].tolist()
        assert window.positions[row, 0] == begin + 1
        with torch.inference_mode():
            whole = target.model(torch.tensor(ids[number])[None], output_hidden_states=True).hidden_states[-1][0]
        count = len(text)
        assert torch.allclose(window.states[row, :count].float(), whole[begin : begin + count], rtol=0.01, atol=0.02)
    assert window.answer[1].tolist() == [place >= 3 for place in range(11)] + [False] * 5  # it begins at token 5


def test_stored_features_are_kept(folder_of_states):
    _, _, _, _, (parts, paths) = folder_of_states
    before = paths[0].stat().st_mtime_ns
    paths[1].unlink()
    write_states(random_model("llama", dtype=torch.float32).model, parts, paths, 1, lambda line: None)
    assert paths[0].stat().st_mtime_ns == before
    assert paths[1].is_file()


def test_features_of_other_texts_are_refused(folder_of_states):
    _, _, texts, states, _ = folder_of_states
    with pytest.raises(ValueError, match="107 tokens and the stored features are of 42"):
        Windows(texts, tuple(states[:1]), 8)


def test_batches_depend_on_the_seed_and_their_number_alone(folder_of_states):
    windows = Windows(folder_of_states[2], tuple(folder_of_states[3]), 8)
    first, second = windows.batches((0, 1)), windows.batches((0, 1))
    second.skip(2, 4)
    batches = [first.batch(4) for _ in range(3)]
    assert (batches[2] == second.batch(4)).all()
    assert not (batches[0] == batches[1]).all()


def test_a_draft_learns_and_is_compared(folder_of_states):
    target, _, texts, states, _ = folder_of_states
    torch.manual_seed(0)
    draft = on_features(target.model, [2])
    windows, tokens = Windows(texts, tuple(states), 24), np.arange(97)
    weights = [*draft.model.layers.parameters(), *draft.model.norm.parameters(), *draft.joint.parameters()]
    optimizer = torch.optim.AdamW(weights, lr=3e-3)
    loss, batches = features_loss(draft, windows, tokens, 2, 0.8, 0.1, RUNTIME), windows.batches((0,))
    before = chain_agreement(draft, windows, tokens, RUNTIME)["all"]
    for _ in range(60):
        optimizer.zero_grad()
        loss(torch.from_numpy(batches.batch(8))).backward()
        optimizer.step()
    found = chain_agreement(draft, windows, tokens, RUNTIME)
    after = found["all"]
    assert after["loss"] < before["loss"] - 0.5
    assert after["first"][0] > before["first"][0] + 0.2
    assert found["one"]["sampled"] is None  # texts of that kind are greedy
    assert 1 <= found["one"]["greedy"] <= 5
    assert found["one"]["tokens"] + found["two"]["tokens"] == after["tokens"] > 50
