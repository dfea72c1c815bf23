"""Where a text ends inside an accepted path: EOS, a stop string, a stopping criterion, the token budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from .checks import check_unicode, decodes, described


@dataclass(frozen=True)
class Stopping:
    """The stopping rules of one call.

    Attributes:
        max_new_tokens: token budget.
        eos_token_ids: tokens that end the text and belong to it.
        stop_strings: the token that completes one of these ends the text and belongs to it.
        tokenizer: decodes tokens, needed for stop strings.

    Raises:
        TypeError: for a tokenizer that does not decode.
        ValueError: for a stop string that is empty or no text, and for stop strings without a tokenizer.
    """

    max_new_tokens: int
    eos_token_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    tokenizer: Any = None

    def __post_init__(self) -> None:
        for text in self.stop_strings:
            if not isinstance(text, str):
                raise ValueError(f"A stop string is {described(text)}; give texts, such as stop_strings=['END'].")
            check_unicode(text, "A stop string")
        if self.stop_strings and self.tokenizer is None:
            raise ValueError("stop_strings need a tokenizer to decode the text; pass tokenizer=.")
        if self.stop_strings:
            decodes(self.tokenizer)
        if any(not text for text in self.stop_strings):
            raise ValueError("A stop string is empty and would end every text at once; remove it.")

    def remaining(self, tokens: Sequence[int]) -> int:
        """Return how many tokens may still be added."""
        return self.max_new_tokens - len(tokens)

    def cut(
        self,
        tokens: Sequence[int],
        fresh: Sequence[int],
        before: Sequence[int] = (),
        met: Callable[[Sequence[int]], bool] | None = None,
    ) -> tuple[int, str | None]:
        """Return how many of the fresh tokens belong to the text (at least 1), and why it ends there, or None.

        Args:
            tokens: generated before.
            fresh: tokens this iteration would add.
            before: the last tokens before the text; a stop string may begin there, as in transformers.
            met: fresh tokens -> whether a stopping criterion ends the text after them; called token by token, in order.
        """
        remaining = self.remaining(tokens)
        window = [*before, *tokens[-self._reach :]] if self.stop_strings else []
        for count, token in enumerate(fresh[:remaining], start=1):
            if token in self.eos_token_ids:
                return count, "eos"
            if self.stop_strings and self._completes(window[-self._reach :], token):
                return count, "stop"
            if met is not None and met(fresh[:count]):
                return count, "criteria"
            window.append(token)
        return (remaining, "length") if len(fresh) >= remaining else (len(fresh), None)

    @property
    def _reach(self) -> int:
        # Tokens that a stop string can span: one byte each at worst, and a few whose bytes make up its first character.
        return max(len(text.encode()) for text in self.stop_strings) + 4

    def _completes(self, window: list[int], token: int) -> bool:
        """Return whether a stop string ends in the text of `token`, and not before it."""
        old, new = self.tokenizer.decode(window), self.tokenizer.decode([*window, token])
        pairs = zip(old, new, strict=False)
        known = next((i for i, (a, b) in enumerate(pairs) if a != b), min(len(old), len(new)))
        return any(text in new[max(0, known - len(text) + 1) :] for text in self.stop_strings)
