"""The text a draft learns from: prompts, batches of answers, and files that survive a stop."""

import numpy as np
import pytest
import torch
from models import hf_greedy, prompt, random_model

from dynatree_lib.training import answers
from dynatree_lib.training.answers import Asked, continued, own_turns, passages, write_answers

WIKI = (
    """
 = Some title =

 Too short .
 The tower , built in 1889 , is 1 @,@ 063 ft ( 324 m ) tall . """
    + "It stands there and it is seen . " * 12
    + """

 = = A section = =

"""
)


@pytest.fixture
def model():
    return random_model("llama").altered(eos_token_ids=())


def sources(model, prompts, temperatures, limit=12, seed=0):
    return continued(model, prompts, temperatures, limit, torch.Generator().manual_seed(seed))


def test_greedy_answers_of_a_batch_are_those_of_single_texts(model):
    prompts = [prompt(size)[0].tolist() for size in (3, 30, 11)]
    found = sources(model, prompts, [0.0, 0.0, 0.0])
    for ids, answer in zip(prompts, found, strict=True):
        assert answer == hf_greedy(model, torch.tensor([ids]), 12)


def test_an_answer_ends_with_the_end_of_text_and_the_others_go_on(model):
    prompts = [prompt(size)[0].tolist() for size in (3, 30, 11)]
    whole = [hf_greedy(model, torch.tensor([ids]), 12) for ids in prompts]
    end = whole[1][4]
    found = sources(model.altered(eos_token_ids=(end,)), prompts, [0.0, 0.0, 0.0])
    expected = [text[: text.index(end) + 1] if end in text else text for text in whole]
    assert len({len(text) for text in expected}) > 1
    assert found == expected


def test_a_stopped_run_loses_at_most_one_file(model, tmp_path):
    asked = [Asked("code" if size % 2 else "math", tuple(prompt(size)[0].tolist())) for size in range(2, 22)]
    options = {"batch": 1, "limit": 4, "seed": 3}
    write_answers(model, asked, tmp_path / "a", **options)
    names = sorted(path.name for path in (tmp_path / "a").iterdir())
    assert names == [f"answers-{number:04d}.npz" for number in range(7)]  # 20 prompts, three to a file
    contents = {name: (tmp_path / "a" / name).read_bytes() for name in names}
    (tmp_path / "a" / names[1]).unlink()
    write_answers(model, asked, tmp_path / "a", **options)
    assert {name: (tmp_path / "a" / name).read_bytes() for name in names} == contents
    with np.load(tmp_path / "a" / names[0]) as stored:
        assert stored["answers"].shape == (stored["answer_lengths"].sum(),)
        assert stored["prompts"].shape == (stored["prompt_lengths"].sum(),)
        assert set(stored["names"][stored["kinds"]]) <= {"code", "math"}


def test_passages_are_paragraphs_of_some_length_with_their_punctuation_mended():
    ((title, text),) = passages(WIKI)
    assert title == "Some title"
    assert text.startswith("The tower, built in 1889, is 1,063 ft (324 m) tall. It stands there and it is seen.")


def test_own_turns_are_written_once(model, monkeypatch, tmp_path):
    asked = []

    def written(model, tokenizer, count, seed, batch):
        asked.append(seed)
        return [f"turn {seed} {number}" for number in range(count)]

    monkeypatch.setattr(answers, "written_turns", written)
    first = own_turns(model, None, 10, tmp_path, seed=2, batch=2)
    assert len(first) == len(set(first)) == 10
    assert {kind for kind, _ in first} == {"own"}
    assert asked == [2_000_006, 2_000_007]
    (tmp_path / "turns-0001.json").unlink()
    assert own_turns(model, None, 10, tmp_path, seed=2, batch=2) == first
    assert asked == [2_000_006, 2_000_007, 2_000_007]
    assert own_turns(model, None, 0, tmp_path / "none") == []
