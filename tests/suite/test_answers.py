"""The text a draft learns from: prompts, batches of answers, and files that survive a stop."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from models import hf_greedy, prompt, random_model

from dynatree_suite.bench.runner import quiet
from dynatree_suite.training import answers
from dynatree_suite.training.answers import continued, evenly_mixed, passages, sequences, write_answers
from dynatree_suite.training.recipe import load_recipe
from dynatree_suite.training.texts import Asked, read_texts

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


def greedy(model, prompts, limit=12, batch=3):
    return continued(model, prompts, [0.0] * len(prompts), limit, np.random.default_rng(0), batch)


def test_greedy_answers_of_a_batch_are_those_of_single_texts(model):
    prompts = [prompt(size)[0].tolist() for size in (3, 30, 11)]
    found = greedy(model, prompts)
    for ids, answer in zip(prompts, found, strict=True):
        assert answer == hf_greedy(model, torch.tensor([ids]), 12)


def test_an_answer_ends_with_the_end_of_text_and_the_others_go_on(model):
    prompts = [prompt(size)[0].tolist() for size in (3, 30, 11)]
    whole = [hf_greedy(model, torch.tensor([ids]), 12) for ids in prompts]
    end = whole[1][4]
    found = greedy(model.altered(eos_token_ids=(end,)), prompts)
    expected = [text[: text.index(end) + 1] if end in text else text for text in whole]
    assert len({len(text) for text in expected}) > 1
    assert found == expected


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_prompts_take_the_places_of_texts_that_have_ended(model, batch):
    """Also longer prompts than anything before them, and many short ones after a long one."""
    prompts = [prompt(size)[0].tolist() for size in (3, 5, 4, 60, 8, 2, 9, 7, 30, 6)]
    whole = [hf_greedy(model, torch.tensor([ids]), 20) for ids in prompts]
    end = whole[1][3]
    found = greedy(model.altered(eos_token_ids=(end,)), prompts, 20, batch)
    expected = [text[: text.index(end) + 1] if end in text else text for text in whole]
    assert len({len(text) for text in expected}) > 2
    assert found == expected


def prompts_of(kind, sizes):
    return [Asked(kind, tuple(prompt(size)[0].tolist()), f"prompt of {size} tokens") for size in sizes]


def test_all_kinds_come_alike_until_they_run_out():
    asked = prompts_of("math", range(2, 32)) + prompts_of("code", range(2, 8)) + prompts_of("story", range(2, 14))
    order = evenly_mixed(asked, np.random.default_rng(1))
    assert sorted(order) == list(range(48))
    assert order != evenly_mixed(asked, np.random.default_rng(2))
    kinds = [asked[number].kind for number in order]
    assert all(set(kinds[place : place + 3]) == {"math", "code", "story"} for place in range(0, 18, 3))
    assert set(kinds[18:30]) == {"math", "story"}
    assert set(kinds[30:]) == {"math"}


def test_a_stopped_run_loses_at_most_one_file_and_more_can_follow(model, tmp_path):
    asked = prompts_of("code", range(2, 12)) + prompts_of("math", range(12, 22))
    recipe = replace(load_recipe("smollm2"), files=5, batch=1, limit=4, seed=3, own=0.0)
    files = write_answers(model, asked, tmp_path, recipe, (), quiet)
    assert [path.name for path in files] == [f"answers-{number:04d}.npz" for number in range(5)]
    contents = [path.read_bytes() for path in files]
    files[1].unlink()
    more = write_answers(model, asked, tmp_path, replace(recipe, files=9), (), quiet)
    assert len(more) == 7  # 20 prompts, three to a file
    assert [path.read_bytes() for path in files] == contents
    texts = read_texts(more)
    assert texts.lengths.sum() == len(texts.tokens)
    assert set(texts.kinds) == {"code", "math"}
    assert set(texts.temperatures) == {0.0, 0.7, 1.0}
    assert sorted(texts.prompt_lengths) == list(range(2, 22))
    assert set(texts.lengths - texts.prompt_lengths) == {4}
    assert {tuple(texts.text(number)[:size]) for number, size in enumerate(texts.prompt_lengths)} == {
        one.ids for one in asked
    }


def test_the_target_writes_a_share_of_the_prompts_and_known_texts_are_left_out(model, monkeypatch, tmp_path):
    told = "please tell me a story about the red fox"
    monkeypatch.setattr(
        answers, "written_turns", lambda model, count, *rest: [told, "another turn"] + ["short"] * (count - 2)
    )
    monkeypatch.setattr(answers, "ask", lambda tokenizer, turns: [Asked(kind, (1, 2), text) for kind, text in turns])
    asked = prompts_of("code", range(2, 8))
    known = sequences("Now, please tell me a STORY about the red hen!")
    recipe = replace(load_recipe("smollm2"), files=1, own=0.5, batch=4, limit=2)
    (path,) = write_answers(model, asked, tmp_path, recipe, known, quiet)
    kinds = read_texts([path]).kinds.tolist()
    assert (kinds.count("own"), kinds.count("code")) == (5, 6)  # one of six overlaps in eight words


def test_passages_are_paragraphs_of_some_length_with_their_punctuation_mended():
    ((title, text),) = passages(WIKI)
    assert title == "Some title"
    assert text.startswith("The tower, built in 1889, is 1,063 ft (324 m) tall. It stands there and it is seen.")
