"""Text of a chat model for its draft to learn from: prompts of many kinds, and the model's own answers to them.

A draft is asked about nothing but its target's answers, so they are what it learns from. Prompts come from data sets
and from the target itself, which writes user turns. Answers are kept in numbered files, each written whole, so that a
stopped run loses at most one.
"""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dynatree_lib.models.cache import TreeCache
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.paths import whole_file

from ..papers.workloads import read_rows

LONGEST_PROMPT = 640
"""Tokens; a passage is cut before it comes to more."""
READ_AT_A_TIME = 16
"""Prompts that a forward reads: what lies between its products then stays in the processor's cache."""
PACKED_AT = 0.8
"""Share of a batch's texts that still go on, at which the cache is copied without the finished ones."""
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
    *("Write", "Write a", "Write a short", "Compose", "Draft", "Describe", "Explain", "Explain how", "Explain why"),
    *("What", "What is", "What are the", "When", "Where", "Who", "Why", "How", "How do I", "Which", "Compare"),
    *("Discuss", "Analyze", "Design a", "Identify", "Extract", "Imagine you are", "Pretend to be", "Act as a"),
    *("Suppose", "If", "Given", "A", "The", "Name", "List", "Implement", "Write a function", "Solve", "Calculate"),
    *("Summarize: The", "Summarize: A", "Rewrite", "Evaluate the following", "Translate German to English: Die"),
    *("Translate German to English: Der", "Translate German to English: Ein", "Provide", "Create", "Tell me"),
)
"""Beginnings that a user's turn may be given, so that the target writes turns of many kinds; "" leaves it free."""
CODE = ("{}", "{} Use Python.", "{} Explain how your code works.", "Python task: {} Add two tests.")
QUESTIONS = (
    "{passage}\n\nQuestion: What does the text say about {title}?",
    "{passage}\n\nExtract the names, places and dates of the text as a list.",
    "{passage}\n\nAnswer with the help of the text: why is {title} notable?",
)


@dataclass(frozen=True)
class Asked:
    """One prompt: its kind of task, its token ids with the chat template, and its text without."""

    kind: str
    ids: tuple[int, ...]
    text: str = ""


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


@torch.inference_mode()
def continued(
    model: HFModel,
    prompts: Sequence[Sequence[int]],
    temperatures: Sequence[float],
    limit: int,
    random: torch.Generator,
    rows: int | None = None,
) -> list[list[int]]:
    """Continue prompts until their end of text, which is part of the text, or `limit` tokens.

    Args:
        model: with an engine that takes batches; its logits past `vocab_size` are not looked at.
        prompts: token ids of each.
        temperatures: of each; 0 is greedy.
        limit: tokens of an answer.
        random: draws the sampled tokens.
        rows: texts that are written at a time; once an eighth of them has ended, as many prompts take their places. All
            by default.
    """
    out, ends = [list[int]() for _ in prompts], torch.tensor(model.eos_token_ids)
    heat = torch.tensor(temperatures, dtype=torch.float32)
    waiting, batch = list(range(len(prompts)))[::-1], _Batch(model, limit)
    texts = torch.tensor([waiting.pop() for _ in range(min(rows or len(prompts), len(prompts)))])  # of each row
    going = torch.ones(len(texts), dtype=torch.bool)
    logits = batch.enter(torch.arange(len(texts)), [prompts[text] for text in texts.tolist()])
    while True:
        chosen = _chosen(logits, heat[texts], random)
        for row in going.nonzero()[:, 0].tolist():
            text = int(texts[row])
            out[text].append(int(chosen[row]))
            going[row] = len(out[text]) < limit
        going &= ~torch.isin(chosen, ends)
        left = int(going.sum())
        if not left and not waiting:
            return out
        free = (~going).nonzero()[:, 0]
        if waiting and len(free) >= max(1, len(going) // 8):
            free = free[: len(waiting)]
            logits = batch.step(chosen)
            texts[free] = torch.tensor([waiting.pop() for _ in free])
            going[free] = True
            logits[free] = batch.enter(free, [prompts[text] for text in texts[free].tolist()])
            continue
        if not waiting and left <= PACKED_AT * len(going):  # until then ended texts go on too, which is cheaper
            batch.keep(going)
            texts, chosen = texts[going], chosen[going]
            going = going[going]
        logits = batch.step(chosen)


class _Batch:
    """Texts that are written together, a row of a cache each.

    All rows write the same column. A text begins wherever its prompt was put, and sees nothing before that.
    """

    def __init__(self, model: HFModel, limit: int) -> None:
        self.model, self.lowest = model, torch.finfo(model.dtype).min
        self.cache = model.new_cache(limit)

    def enter(self, rows: torch.Tensor, prompts: Sequence[Sequence[int]]) -> torch.Tensor:
        """Read prompts, whose texts take the places of the (k,) rows; return their (k, V) logits."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        if not self.cache.size:
            self.begins, self.positions = torch.zeros(2, len(prompts), dtype=torch.int64)
        logits = []
        for part in torch.arange(len(prompts)).split(READ_AT_A_TIME):
            read, found = self._read([prompts[place] for place in part.tolist()])
            logits.append(found)
            if not self.cache.size:
                states, self.cache.widths = read.states, read.widths
                self.cache._reserve(states.new_empty(len(prompts), states.shape[3], 0, states.shape[-1]), longest)
            if longest > self.cache.size:
                self._move(longest - self.cache.size)
            end = self.cache.size
            self.cache.states[:, :, rows[part], :, end - read.size : end] = read.states[..., : read.size, :]
        self.begins[rows], self.positions[rows] = self.cache.size - lengths, lengths
        return torch.cat(logits)

    def _read(self, prompts: Sequence[Sequence[int]]) -> tuple[TreeCache, torch.Tensor]:
        """Read prompts into a cache of their own, at whose end they end; return it and their logits."""
        lengths = torch.tensor([len(prompt) for prompt in prompts])
        longest = int(lengths.max())
        ids = torch.tensor([[0] * (longest - len(prompt)) + list(prompt) for prompt in prompts])
        columns = torch.arange(longest)
        padded = columns < (longest - lengths)[:, None]
        seen = (columns[:, None] >= columns) & ~padded[:, None] | torch.eye(longest, dtype=torch.bool)
        mask = torch.zeros(seen.shape, dtype=self.model.dtype).masked_fill_(~seen, self.lowest)[:, None]
        positions = (columns - (longest - lengths)[:, None]).clamp_min(0)
        cache = self.model.new_cache(0)
        return cache, self._forward(ids, positions, mask, cache)

    def step(self, tokens: torch.Tensor) -> torch.Tensor:
        """Append a (B,) token to each row; return the (B, V) logits of the next."""
        unseen = int(self.begins.min())
        if unseen > self.cache.size // 4:
            self._move(-unseen)
        hidden = torch.arange(self.cache.size + 1) < self.begins[:, None]
        mask = torch.zeros(hidden.shape, dtype=self.model.dtype).masked_fill_(hidden, self.lowest)[:, None, None]
        logits = self._forward(tokens[:, None], self.positions[:, None], mask, self.cache)
        self.positions += 1
        return logits

    def keep(self, rows: torch.Tensor) -> None:
        """Drop all rows but those of a (B,) bool."""
        self.cache.stores = [store[:, :, rows].contiguous() for store in self.cache.stores]
        self.cache.look()
        self.begins, self.positions = self.begins[rows], self.positions[rows]

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, mask: torch.Tensor, cache: TreeCache
    ) -> torch.Tensor:
        return self.model.engine(ids, positions, mask, cache, 1)[:, -1, : self.model.vocab_size]

    def _move(self, columns: int) -> None:
        """Move all texts by so many columns, forward or back; what nobody sees takes or gives the space."""
        size, cache = self.cache.size, self.cache
        cache._reserve(cache.states[0, 0, :, :, :0], size + columns)
        moved = cache.states[..., max(0, -columns) : size, :].clone()
        cache.size = size + columns
        cache.states[..., cache.size - moved.shape[-2] : cache.size, :] = moved
        cache.states[..., : max(0, columns), :] = 0  # masked, but read
        self.begins += columns


def _chosen(logits: torch.Tensor, heat: torch.Tensor, random: torch.Generator) -> torch.Tensor:
    """Choose a token for each row of (B, V) logits at its temperature.

    A few rows at a time stay in the processor's cache; and torch's own draw would take a random number for every token
    of the vocabulary.
    """
    chosen, reached = torch.empty(len(logits), dtype=torch.int64), torch.rand(len(logits), 1, generator=random)
    for rows in torch.arange(len(logits)).split(8):
        some, warm = logits[rows].float(), heat[rows, None]
        sums = (some / warm.clamp_min(1e-6)).softmax(-1).cumsum(-1)
        drawn = torch.searchsorted(sums, reached[rows] * sums[:, -1:], right=True).clamp_max(logits.shape[-1] - 1)
        chosen[rows] = torch.where(warm <= 0, some.argmax(-1, keepdim=True), drawn)[:, 0]
    return chosen


def write_answers(
    model: HFModel,
    asked: Sequence[Asked],
    folder: Path,
    *,
    files: int,
    own: float = 0.0,
    openings: Sequence[str] = ("",),
    temperatures: Sequence[float] = (0.0, 1.0, 0.7),
    batch: int = 48,
    limit: int = 160,
    seed: int = 0,
    known: Collection[str] = (),
    log: Callable[[str], None] = lambda line: None,
) -> list[Path]:
    """Answer prompts, three times `batch` to a file; files that are there are not written again.

    Args:
        model: the target, with its tokenizer.
        asked: the prompts, taken in random order and of all kinds alike, as long as a kind has any.
        folder: of the files, `answers-0000.npz` and so on. Each depends on its number and these arguments alone, so
            that more files can follow later.
        files: how many, as long as there are prompts.
        own: share of a file's prompts that the model writes itself.
        openings: first words of those prompts.
        temperatures: of the answers, dealt out in turn.
        batch: prompts at a time.
        limit: most tokens of an answer.
        seed: of order and draws.
        known: word sequences (`sequences`) that no prompt may hold.
        log: takes a line of progress.

    Returns:
        the files.
    """
    folder.mkdir(parents=True, exist_ok=True)
    order = evenly_mixed(asked, np.random.default_rng(seed))
    size, paths = 3 * batch, list[Path]()
    written = round(own * size)
    for number in range(files):
        members = [asked[member] for member in order[number * (size - written) : (number + 1) * (size - written)]]
        if not members and not written:
            break
        path = folder / f"answers-{number:04d}.npz"
        paths.append(path)
        if path.is_file():
            continue
        begun, random = time.monotonic(), torch.Generator().manual_seed(seed * 1_000_003 + number)
        turns = written_turns(model, model.tokenizer, written, random, batch, openings=openings) if written else []
        members += ask(model.tokenizer, [("own", turn) for turn in turns])
        members = [member for member in members if sequences(member.text).isdisjoint(known)]
        members.sort(key=lambda member: len(member.ids))  # so that there is little padding
        heats = random_order(temperatures, len(members), random)
        texts = continued(model, [member.ids for member in members], heats, limit, random, batch)
        store_answers(path, members, texts, heats)
        tokens, seconds = sum(map(len, texts)), time.monotonic() - begun
        log(f"{path.name}: {tokens:,} tokens, {tokens / seconds:.0f} tokens/s")
    return paths


def store_answers(
    path: Path, asked: Sequence[Asked], answers: Sequence[Sequence[int]], temperatures: Sequence[float]
) -> None:
    """Write prompts with an answer to each, and the temperatures of the answers, as `texts.read_texts` reads them."""
    kinds = sorted({one.kind for one in asked})
    with whole_file(path) as file:
        np.savez_compressed(
            file,
            prompts=np.concatenate([np.asarray(one.ids, np.uint16) for one in asked]),
            prompt_lengths=np.array([len(one.ids) for one in asked], np.uint16),
            answers=np.concatenate([np.asarray(answer, np.uint16) for answer in answers]),
            answer_lengths=np.array([len(answer) for answer in answers], np.uint16),
            temperatures=np.array(temperatures, np.float32),
            kinds=np.array([kinds.index(one.kind) for one in asked], np.uint8),
            names=np.array(kinds),
        )


def evenly_mixed(asked: Sequence[Asked], random: np.random.Generator) -> list[int]:
    """Return a random order of prompts in which every kind of task comes as often as any other until it runs out."""
    seen, ranks = Counter[str](), dict[int, int]()
    for number in random.permutation(len(asked)).tolist():
        ranks[number] = seen[asked[number].kind]
        seen[asked[number].kind] += 1
    return sorted(ranks, key=lambda number: ranks[number])


def random_order(values: Sequence[Any], count: int, random: torch.Generator) -> list[Any]:
    """Return `count` of the values, each about equally often, in random order."""
    dealt = [values[number % len(values)] for number in range(count)]
    return [dealt[place] for place in torch.randperm(count, generator=random).tolist()]


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


def written_turns(
    model: HFModel,
    tokenizer: Any,
    count: int,
    random: torch.Generator,
    batch: int = 64,
    limit: int = 96,
    openings: Sequence[str] = ("",),
) -> list[str]:
    """Let the target write user turns, at temperature 1 after the beginning of one; unfinished ones are left out.

    `openings` are dealt out as first words of the turns.
    """
    begin = tokenizer.apply_chat_template([{"role": "user", "content": "X"}])["input_ids"]
    spot = max(place for place, token in enumerate(begin) if tokenizer.decode([token]) == "X")
    out = list[str]()
    while len(out) < count:
        asked = max(batch, (count - len(out)) * 5 // 4)
        firsts = random_order(openings, asked, random)
        prompts = [begin[:spot] + tokenizer(first, add_special_tokens=False)["input_ids"] for first in firsts]
        answers = continued(model, prompts, [1.0] * asked, limit, random, batch)
        for first, answer in zip(firsts, answers, strict=True):
            text = (first + tokenizer.decode(answer, skip_special_tokens=True)).strip()
            if answer[-1] in model.eos_token_ids and len(text.split()) >= 3:
                out.append(text)
    return out[:count]
