"""Invented texts in the layouts of the papers' data sets, for `tools.stand_ins`: sentences put together at random."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import Any

Row = dict[str, Any]

PEOPLE = (
    "a clockmaker", "the ferryman", "an old teacher", "the baker", "a surveyor", "the harbour master",
    "a young botanist", "the archivist", "a bell founder", "the night nurse", "a bridge builder", "the postmistress",
)  # fmt: skip
THINGS = (
    "lighthouse", "canal", "orchard", "library", "tower", "mill", "railway station", "garden wall", "market hall",
    "ferry", "quarry", "observatory", "printing press", "stone bridge", "reservoir",
)  # fmt: skip
PLACES = (
    "Marlow Bay", "the northern valley", "Tessin", "the upper town", "Oakholm", "the river mouth", "Karsund",
    "the old port",
)  # fmt: skip
KINDS = (
    "narrow", "forgotten", "carefully restored", "half-finished", "busy", "quiet", "remarkable", "weathered", "modern",
)  # fmt: skip
DEEDS = (
    "measured", "described", "rebuilt", "painted", "closed", "discovered", "repaired", "bought", "moved", "opened",
)  # fmt: skip
WHEN = (
    "in the spring of {year}", "after the flood of {year}", "during the winter", "before the railway came",
    "late in {year}", "on a grey morning", "within two years", "shortly after the war",
)  # fmt: skip
WHY = (
    "because the roof had begun to leak", "although nobody had asked for it", "so that boats could pass at night",
    "and the council paid for half of the work", "while the rest of the street stayed as it was",
    "which surprised everyone who had seen the plans", "and wrote a long letter about it",
)  # fmt: skip


class Writer:
    """Invents texts, the same ones for the same seed."""

    def __init__(self, seed: str) -> None:
        self.chance = random.Random(seed)

    def one(self, words: Sequence[str]) -> str:
        """One of several words, with a year where it has a place for one."""
        return self.chance.choice(words).format(year=self.chance.randint(1820, 1990))

    def sentence(self) -> str:
        """A sentence of 60 to 200 characters."""
        who, deed, when = self.one(PEOPLE), self.one(DEEDS), self.one(WHEN)
        what = f"the {self.one(KINDS)} {self.one(THINGS)} of {self.one(PLACES)}"
        form = self.chance.randrange(3)
        if form == 0:
            text = f"{who} {deed} {what} {when}, {self.one(WHY)}"
        elif form == 1:
            text = f"{when} {who} {deed} {what}"
        else:
            text = f"{what} was {deed} by {who} {when}, {self.one(WHY)}"
        return f"{text[0].upper()}{text[1:]}."

    def paragraph(self, least: int) -> str:
        """Sentences of at least so many characters together."""
        text = self.sentence()
        while len(text) < least:
            text += f" {self.sentence()}"
        return text


def make_data(folder: Path) -> None:
    """Write the data sets into a folder."""
    for split, sections in (("test", 48), ("validation", 48), ("train", 16)):
        write_rows(folder / "wikitext-2-raw/wikitext-2-raw-v1", split, wiki_lines(Writer(f"wiki {split}"), sections))
        write_rows(folder / "pg19/data", split, books(Writer(f"books {split}"), 3))
    for split, rows in (("test", 120), ("train", 24)):
        writer = Writer(f"sums {split}")
        write_rows(folder / "gsm8k/main", split, (sum_row(writer) for _ in range(rows)))
    write_rows(folder / "human_eval/openai_humaneval", "test", map(function_row, range(24)))
    write_rows(folder / "mbpp/full", "test", map(task_row, range(11, 131)))
    place = folder / "spec_bench" / "question.jsonl"
    place.parent.mkdir(parents=True)
    place.write_text("".join(json.dumps(row) + "\n" for row in questions(Writer("questions"))), encoding="utf-8")


def write_rows(folder: Path, split: str, rows: Iterable[Row]) -> None:
    """Write the rows of a split as the hub's one parquet file."""
    from pyarrow import Table, parquet

    folder.mkdir(parents=True, exist_ok=True)
    parquet.write_table(Table.from_pylist(list(rows)), folder / f"{split}-00000-of-00001.parquet")


def wiki_lines(writer: Writer, sections: int) -> Iterator[Row]:
    """Lines of articles of four sections, every third section with more than 1,500 characters."""
    for number in range(sections):
        if number % 4 == 0:
            title = f" = {writer.one(THINGS).title()} of {writer.one(PLACES)} = \n"
            yield from ({"text": line} for line in ("", title, ""))
        yield {"text": f" = = {writer.one(KINDS).capitalize()} years = = \n"}
        yield {"text": ""}
        yield {"text": f" {writer.paragraph(1600 if number % 3 == 0 else 300)} \n"}
        yield {"text": ""}


def books(writer: Writer, many: int) -> Iterator[Row]:
    """Books of sixty paragraphs."""
    for number in range(many):
        title = f"The {writer.one(KINDS).title()} {writer.one(THINGS).title()}"
        text = "\n\n".join([title.upper(), *(writer.paragraph(500) for _ in range(60))])
        about = {"short_book_title": title, "publication_date": 1880 + number}
        yield {**about, "url": f"http://www.gutenberg.org/ebooks/{900001 + number}", "text": text}


def sum_row(writer: Writer) -> Row:
    """A word problem of two steps."""
    boxes, each, gone = writer.chance.randint(3, 12), writer.chance.randint(4, 30), writer.chance.randint(1, 9)
    who, place = writer.one(PEOPLE), writer.one(PLACES)
    question = (
        f"{who[0].upper()}{who[1:]} of {place} has {boxes} boxes with {each} lamps in each. {gone} of the lamps are "
        "broken. How many lamps can be sold?"
    )
    whole = boxes * each
    answer = (
        f"There are {boxes} * {each} = <<{boxes}*{each}={whole}>>{whole} lamps.\n"
        f"Of these {whole} - {gone} = <<{whole}-{gone}={whole - gone}>>{whole - gone} can be sold.\n#### {whole - gone}"
    )
    return {"question": question, "answer": answer}


def function_row(number: int) -> Row:
    """A function of a list, to be written from its docstring."""
    name, step = f"every_{number + 2}th", number + 2
    example = f">>> {name}(list(range({2 * step})))\n    [0, {step}]"
    text = f'"""Return every {step}th value of a list, from the first.\n    {example}\n    """'
    return {
        "task_id": f"HumanEval/{number}",
        "prompt": f"from typing import List\n\n\ndef {name}(values: List[int]) -> List[int]:\n    {text}\n",
        "canonical_solution": f"    return values[::{step}]\n",
        "entry_point": name,
        "test": f"def check(candidate):\n    assert candidate(list(range({2 * step}))) == [0, {step}]\n",
    }


def task_row(number: int) -> Row:
    """A small task with its tests."""
    tests = [f"assert add_{number}({value}) == {value + number}" for value in (0, 1, -number)]
    return {
        "task_id": number, "text": f"Write a function that adds {number} to a given number.",
        "code": f"def add_{number}(value):\r\n  return value + {number}", "test_list": tests, "test_setup_code": "",
        "challenge_test_list": [],
    }  # fmt: skip


CATEGORIES = {
    "writing": "Write a short letter about {what}.",
    "roleplay": "You are {who}. Tell visitors about {what}.",
    "reasoning": "{who} has to leave {what} before noon. What should be done first, and why?",
    "math": "A wall of {what} is {year} cm long, and a tile 20 cm. How many tiles are needed?",
    "coding": "Write a Python function that counts the visitors of {what} for each month.",
    "extraction": "List all years and names in this text: {text}",
    "stem": "Explain why {what} stays cool in summer.",
    "humanities": "What does {what} tell us about the people who built it?",
}
"""Category of MT-Bench -> its first turn."""
SECOND = (
    "Now say the same in two sentences.",
    "Explain your answer to a child.",
    "Write it once more, without the letter q.",
)
TASKS = {
    "translation": "Translate German to English: {who} wartet seit {year} am Fluss auf {what}.",
    "summarization": "Summarize: {text}\nTL;DR:",
    "qa": "Had {who} seen {what} by the year {year}?",
    "math_reasoning": "{sum}",
    "rag": "Answer from these passages.\n\n1. {text}\n\n2. {more}\n\nWho repaired {what}?",
}


def questions(writer: Writer) -> Iterator[Row]:
    """Five questions of two turns in each of MT-Bench's categories, 24 of one in each of Spec-Bench's other tasks."""
    numbers = count(81)
    for category, form in [*CATEGORIES.items(), *TASKS.items()]:
        for place in range(5 if category in CATEGORIES else 24):
            words = {
                "what": f"the {writer.one(KINDS)} {writer.one(THINGS)} of {writer.one(PLACES)}",
                "who": writer.one(PEOPLE), "year": writer.chance.randint(1200, 1900), "text": writer.paragraph(900),
                "more": writer.paragraph(400), "sum": sum_row(writer)["question"],
            }  # fmt: skip
            turns = [form.format(**words)] + ([SECOND[place % 3]] if category in CATEGORIES else [])
            row = {"question_id": next(numbers), "category": category, "turns": turns}
            yield row if place % 2 else row | {"reference": [words["more"]] * len(turns)}
