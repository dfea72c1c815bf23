"""Prompts as the protocol runs them: token ids with an id and a hash, checked against the context."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dynatree_lib.checks import described, whole
from dynatree_lib.decoding import autoregressive
from dynatree_lib.models.pairs import Pair
from dynatree_lib.sampling import GREEDY

from ..papers.workloads import render
from .records import TURN

Turns = Literal["first", "all"]


@dataclass(frozen=True)
class BenchPrompt:
    """One prompt.

    Attributes:
        id: unique in a run.
        ids: token ids.
        sha256: of the text it came from.
        task: its kind of task, where the workload names it.
    """

    id: str
    ids: tuple[int, ...]
    sha256: str
    task: str = ""

    @property
    def row(self) -> dict[str, Any]:
        """What a record keeps of it."""
        return {
            "id": self.id,
            "sha256": self.sha256,
            "tokens": len(self.ids),
            **({"task": self.task} if self.task else {}),
        }

    @classmethod
    def from_ids(cls, name: str, ids: Sequence[int]) -> BenchPrompt:
        """A prompt without a text; the hash is that of its ids."""
        numbers = tuple(int(token) for token in ids)
        return cls(name, numbers, hashlib.sha256(repr(numbers).encode()).hexdigest())


def prepare_prompts(
    pair: Pair, prompts: Sequence[Any], max_new_tokens: int, turns: Turns = "first"
) -> list[BenchPrompt]:
    """Tokenise each prompt, under the tokenizer's chat template if it has one.

    Args:
        pair: whose tokenizer, and whose target's context.
        prompts: objects with `id`, `text`, `sha256` (of a `Workload`), plain texts, or items of type `BenchPrompt`.
        max_new_tokens: budget of each text.
        turns: "all" makes each further turn of a prompt a prompt of its own after it, "ID/turn-2", ...: the
            conversation so far (`workloads.render`) with the replies that the target's greedy plain decoding gives, to
            its EOS or to the budget. So every method meets the same second turn, also where methods sample, and a
            method's own reply to the first plays no part. Decoding the replies takes the time of as many plain texts.

    Raises:
        TypeError: for a prompt of another kind.
        ValueError: for no prompts, an id given twice, a budget below 1, an empty prompt, or one that does not fit the
            target's context together with the budget: all of it before any reply is decoded, but for further turns,
            whose length depends on the replies. Nothing is left out or cut.
    """
    if turns not in ("first", "all"):
        raise ValueError(f"turns is {turns!r}; choose 'first' or 'all'.")
    whole("max_new_tokens", max_new_tokens, 1)
    if not isinstance(prompts, Sequence) or isinstance(prompts, str):
        raise TypeError(f"prompts is {described(prompts)}; give a list of prompts.")
    first = [_prepared(pair, prompt, number) for number, prompt in enumerate(prompts)]
    if not first:
        raise ValueError("There are no prompts to measure on; give at least one.")
    _check(pair, first, max_new_tokens)
    if turns == "first":
        return first
    both = zip(prompts, first, strict=True)
    out = [each for prompt, one in both for each in (one, *_further(pair, prompt, one, max_new_tokens))]
    _check(pair, out, max_new_tokens)
    return out


def _check(pair: Pair, prompts: Sequence[BenchPrompt], max_new_tokens: int) -> None:
    seen: set[str] = set()
    for one in prompts:
        if one.id in seen:
            raise ValueError(f"Two prompts have the id '{one.id}'; records need ids that differ.")
        seen.add(one.id)
        if not one.ids:
            raise ValueError(f"Prompt '{one.id}' has no token; give at least one.")
        if len(one.ids) + max_new_tokens > pair.target.context:
            raise ValueError(
                f"Prompt '{one.id}' has {len(one.ids)} tokens and with {max_new_tokens} new ones exceeds the context "
                f"of {pair.target.context}; shorten it, leave it out (max_tokens= of load_workload), or ask for fewer."
            )


def _prepared(pair: Pair, prompt: Any, number: int) -> BenchPrompt:
    if isinstance(prompt, BenchPrompt):
        return prompt
    if not isinstance(prompt, str) and not all(hasattr(prompt, name) for name in ("id", "text", "sha256")):
        raise TypeError(
            f"Prompt {number} is {described(prompt)}; give a text, a prompt of a Workload, or "
            "BenchPrompt.from_ids(name, ids)."
        )
    if pair.tokenizer is None:
        raise ValueError("This pair has no tokenizer; give prompts as BenchPrompt.from_ids(name, ids).")
    text = prompt if isinstance(prompt, str) else prompt.text
    ids = _tokens(pair, render(text, pair.tokenizer))
    if isinstance(prompt, str):
        return BenchPrompt(f"prompt-{number}", ids, hashlib.sha256(text.encode()).hexdigest())
    return BenchPrompt(prompt.id, ids, prompt.sha256, getattr(prompt, "task", None) or "")


def _tokens(pair: Pair, rendered: str) -> tuple[int, ...]:
    special = {"add_special_tokens": False} if getattr(pair.tokenizer, "chat_template", None) else {}
    return tuple(pair.tokenizer(rendered, **special)["input_ids"])


def _further(pair: Pair, prompt: Any, latest: BenchPrompt, budget: int) -> Iterator[BenchPrompt]:
    """The turns after the first, each hashed with the replies before it; checked before a reply to it is decoded."""
    turns = getattr(prompt, "turns", ())
    replies: list[str] = []
    for number in range(2, len(turns) + 1):
        reply = autoregressive(pair.target, latest.ids, sampling=GREEDY, max_new_tokens=budget, keep_state=False)
        replies.append(pair.tokenizer.decode(reply.tokens, skip_special_tokens=True))
        text = render(turns, pair.tokenizer, replies)
        latest = BenchPrompt(
            f"{prompt.id}{TURN}{number}", _tokens(pair, text), hashlib.sha256(text.encode()).hexdigest(), latest.task
        )
        _check(pair, [latest], budget)
        yield latest
