"""Text of a chat model for its draft to learn from: prompts of many kinds, and the model's own answers to them.

A draft is asked about nothing but its target's answers, so they are what it learns from. Prompts come from data sets
and from the target itself, which writes user turns. Answers are kept in numbered files, each written whole, so that a
stopped run loses at most one.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dynatree_lib.drafters.base import NoDraft
from dynatree_lib.engines.batching import generate_batch
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.sampling import Sampling

from ..papers.workloads import read_rows
from .optimize import Log
from .recipe import DraftRecipe
from .texts import Asked, store_texts

LONGEST_PROMPT = 640
"""Tokens; a passage is cut before it comes to more."""
LONGEST_TURN = 96
"""Tokens of a user's turn that the target writes itself; unfinished ones are left out."""
LANGUAGES = ("German", "French", "Spanish", "Italian")
STORIES = (
    "Write a short story about {}.",
    "Write a blog post about {} with three highlights.",
    "Imagine you are {}. Introduce yourself to me.",
    "Explain {} to a ten-year-old child.",
    "What are the most important facts about {}?",
    "Write an email to a friend about {}.",
)
SOURCES = {
    "math": "GSM8K, training questions",
    "code": "MBPP, training tasks 601 to 974, in four wordings",
    "summary": "paragraphs of WikiText-2's validation part",
    "rag": "questions about such a paragraph",
    "translation": "sentences of such a paragraph, into four languages",
    "story": "templates over the titles of its articles",
    "own": "user turns that the target wrote itself",
}
"""Where the prompts of each kind of task come from."""
OPENINGS = (
    "",
    *("Write", "Write a", "Write a short", "Compose", "Draft", "Describe", "Explain", "Explain how", "Explain why"),
    *("What", "What is", "What are the", "When", "Where", "Who", "Why", "How", "How do I", "Which", "Compare"),
    *("Discuss", "Analyze", "Design a", "Identify", "Extract", "Imagine you are", "Pretend to be", "Act as a"),
    *("Suppose", "If", "Given", "A", "The", "Name", "List", "Implement", "Write a function", "Solve", "Calculate"),
    *("Summarize: The", "Summarize: A", "Rewrite", "Evaluate the following", "Translate German to English: Die"),
    *("Translate German to English: Der", "Translate German to English: Ein", "Provide", "Create", "Tell me"),
)
"""Beginnings that a user's turn is given, so that the target writes turns of many kinds; "" leaves it free."""
CODE = ("{}", "{} Use Python.", "{} Explain how your code works.", "Python task: {} Add two tests.")
QUESTIONS = (
    "{passage}\n\nQuestion: What does the text say about {title}?",
    "{passage}\n\nExtract the names, places and dates of the text as a list.",
    "{passage}\n\nAnswer with the help of the text: why is {title} notable?",
)


def passages(text: str) -> Iterator[tuple[str, str]]:
    """Yield title and text of every paragraph of WikiText with 60 to 300 words, its spaced punctuation mended."""
    title = ""
    for line in text.splitlines():
        heading = re.fullmatch(r" = ([^=].*[^=]) = ?", line)
        if heading:
            title = heading[1]
        elif title and 60 <= line.count(" ") <= 300:
            mended = re.sub(r" @(.)@ ", r"\1", line.strip())
            mended = re.sub(r" ([,.;:!?%)\]]|'s|n't)(?= |$)", r"\1", mended)
            yield title, re.sub(r"([(\[]) ", r"\1", mended)


def requests(data: Path) -> list[tuple[str, str]]:
    """List kind and text of the user's turn for every prompt that the data sets in `data` give.

    GSM8K's training questions, MBPP's training tasks, templates over the paragraphs of WikiText-2's validation part.
    """
    out = [("math", row["question"]) for row in read_rows("gsm8k", "train", data / "gsm8k")[0]]
    tasks = [row for row in read_rows("mbpp", "train", data / "mbpp")[0] if 601 <= row["task_id"] <= 974]
    out += [("code", template.format(row["text"].strip())) for template in CODE for row in tasks]
    text = (data / "wikitext-2-raw" / "wiki.valid.raw").read_text(encoding="utf-8")
    for number, (title, passage) in enumerate(passages(text)):
        out.append(("summary", f"Summarize: {passage}"))
        out.append(("rag", QUESTIONS[number % len(QUESTIONS)].format(passage=passage, title=title)))
        for place, sentence in enumerate(re.split(r"(?<=[.!?]) (?=[A-Z])", passage)[:3]):
            language = LANGUAGES[(number + place) % len(LANGUAGES)]
            out.append(("translation", f"Translate English to {language}: {sentence}"))
        out.append(("story", STORIES[number % len(STORIES)].format(title)))
    return out


def continued(
    model: HFModel,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    limit: int,
    random: np.random.Generator,
    batch: int,
) -> list[list[int]]:
    """Continue prompts until their end of text, which is part of the text, or `limit` tokens; `batch` at a time.

    Args:
        model: with an engine that takes batches.
        prompts: token ids of each.
        temperatures: of each; 0 is greedy.
        limit: tokens of an answer.
        random: draws a seed for each prompt.
        batch: texts that are written at a time.
    """
    seeds, out = random.integers(2**62, size=len(prompts)).tolist(), [list[int]() for _ in prompts]
    for heat in sorted(set(temperatures)):
        places = [place for place, one in enumerate(temperatures) if one == heat]
        found = generate_batch(
            model, [prompts[place] for place in places], NoDraft(), sampling=Sampling(heat), max_new_tokens=limit,
            seeds=[seeds[place] for place in places], max_batch=batch,
        )  # fmt: skip
        for place, generation in zip(places, found, strict=True):
            out[place] = generation.tokens
    return out


def write_answers(
    model: HFModel, asked: Sequence[Asked], folder: Path, recipe: DraftRecipe, known: Collection[str], log: Log
) -> list[Path]:
    """Answer prompts, three times `recipe.batch` to a file; files that are there are not written again.

    Args:
        model: the target, with its tokenizer.
        asked: the prompts, taken in random order and of all kinds alike, as long as a kind has any.
        folder: of the files, `answers-0000.npz` and so on. Each depends on its number and these arguments alone, so
            that more files can follow later.
        recipe: says how many files there are, as long as there are prompts, how much of the prompts the target writes
            itself, and how answers are drawn.
        known: word sequences (`sequences`) that no prompt may hold.
        log: takes a line of progress.

    Returns:
        the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    order = evenly_mixed(asked, np.random.default_rng(recipe.seed))
    written = round(recipe.own * 3 * recipe.batch)
    given, paths = 3 * recipe.batch - written, list[Path]()
    for number in range(recipe.files):
        members = [asked[member] for member in order[number * given : (number + 1) * given]]
        if not members and not written:
            break
        path = folder / f"answers-{number:04d}.npz"
        paths.append(path)
        if path.is_file():
            continue
        begun, random = time.monotonic(), np.random.default_rng((recipe.seed, number))
        members += ask(model.tokenizer, [("own", turn) for turn in written_turns(model, written, random, recipe.batch)])
        members = [member for member in members if sequences(member.text).isdisjoint(known)]
        members.sort(key=lambda member: len(member.ids))  # so that there is little padding
        heats = random.permutation(np.resize(recipe.temperatures, len(members))).tolist()
        prompts = [member.ids for member in members]
        texts = continued(model, prompts, heats, recipe.limit, random, recipe.batch)
        store_texts(path, members, texts, heats)
        tokens, seconds = sum(map(len, texts)), time.monotonic() - begun
        log(f"{path.name}: {tokens:,} tokens, {tokens / seconds:.0f} tokens/s")
    return paths


def evenly_mixed(asked: Sequence[Asked], random: np.random.Generator) -> list[int]:
    """Return a random order of prompts in which every kind of task comes as often as any other until it runs out."""
    seen, ranks = Counter[str](), dict[int, int]()
    for number in random.permutation(len(asked)).tolist():
        ranks[number] = seen[asked[number].kind]
        seen[asked[number].kind] += 1
    return sorted(ranks, key=lambda number: ranks[number])


def sequences(text: str, length: int = 8) -> set[str]:
    """Return all sequences of so many words of a text, by which two texts are seen to overlap."""
    words = re.findall(r"\w+", text.lower())
    return {" ".join(words[start : start + length]) for start in range(len(words) - length + 1)}


def ask(tokenizer: Any, turns: Iterable[tuple[str, str]], longest: int = LONGEST_PROMPT) -> list[Asked]:
    """Put each user's turn, given with its kind, into the chat template; turns of more than `longest` tokens are left
    out."""
    out = []
    for kind, text in turns:
        messages = [{"role": "user", "content": text}]
        ids = tokenizer.apply_chat_template(messages, add_generation_prompt=True)["input_ids"]
        if len(ids) <= longest:
            out.append(Asked(kind, tuple(ids), text))
    return out


def written_turns(model: HFModel, count: int, random: np.random.Generator, batch: int) -> list[str]:
    """Let the target write user turns, at temperature 1 after one of `OPENINGS`."""
    tokenizer: Any = model.tokenizer
    out = list[str]()
    while len(out) < count:
        begin = tokenizer.apply_chat_template([{"role": "user", "content": "X"}])["input_ids"]
        spot = max(place for place, token in enumerate(begin) if tokenizer.decode([token]) == "X")
        firsts = random.permutation(np.resize(OPENINGS, max(batch, (count - len(out)) * 5 // 4))).tolist()
        prompts = [begin[:spot] + tokenizer(first, add_special_tokens=False)["input_ids"] for first in firsts]
        answers = continued(model, prompts, [1.0] * len(firsts), LONGEST_TURN, random, batch)
        for first, answer in zip(firsts, answers, strict=True):
            text = (first + tokenizer.decode(answer, skip_special_tokens=True)).strip()
            if answer[-1] in model.eos_token_ids and len(text.split()) >= 3:
                out.append(text)
    return out[:count]
