"""Prompts as the protocol runs them: token ids with an id and a hash, checked against the context."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..models.pairs import Pair
from ..workloads import render


@dataclass(frozen=True)
class BenchPrompt:
    """One prompt.

    Attributes:
        id: unique in a run.
        ids: token ids.
        sha256: of the text it came from.
    """

    id: str
    ids: tuple[int, ...]
    sha256: str

    @classmethod
    def from_ids(cls, name: str, ids: Sequence[int]) -> BenchPrompt:
        """A prompt without a text; the hash is that of its ids."""
        numbers = tuple(int(token) for token in ids)
        return cls(name, numbers, hashlib.sha256(repr(numbers).encode()).hexdigest())


def prepare_prompts(pair: Pair, prompts: Sequence[Any], max_new_tokens: int) -> list[BenchPrompt]:
    """Tokenise the first turn of each prompt, under the tokenizer's chat template if it has one.

    Raises:
        ValueError: for no prompts, an id given twice, a budget below 1, an empty prompt, or one that does not fit the
            target's context together with the budget.
    """
    if max_new_tokens < 1:
        raise ValueError(f"max_new_tokens is {max_new_tokens}; ask for at least 1 token.")
    out = [_prepared(pair, prompt, number) for number, prompt in enumerate(prompts)]
    if not out:
        raise ValueError("There are no prompts to measure on; give at least one.")
    seen: set[str] = set()
    for one in out:
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
    return out


def _prepared(pair: Pair, prompt: Any, number: int) -> BenchPrompt:
    if isinstance(prompt, BenchPrompt):
        return prompt
    if pair.tokenizer is None:
        raise ValueError("This pair has no tokenizer; give prompts as BenchPrompt.from_ids(name, ids).")
    text = prompt if isinstance(prompt, str) else prompt.text
    rendered = render(text, pair.tokenizer)
    special = {"add_special_tokens": False} if getattr(pair.tokenizer, "chat_template", None) else {}
    ids = tuple(pair.tokenizer(rendered, **special)["input_ids"])
    if isinstance(prompt, str):
        return BenchPrompt(f"prompt-{number}", ids, hashlib.sha256(text.encode()).hexdigest())
    return BenchPrompt(prompt.id, ids, prompt.sha256)
