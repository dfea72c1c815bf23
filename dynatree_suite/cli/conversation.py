"""A conversation with a target: what was said, its tokens, and the caches that hold them; nothing is printed here."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dynatree_lib.decoding import DecodingState, Generation, generate
from dynatree_lib.models.pairs import Pair
from dynatree_lib.models.texts import rendered, text_ids

from ..bench.methods import METHODS, Variant, variant

CUT = ("length", "interrupted")
"""Finish reasons of an answer that can go on."""
DECODERS = tuple(name for name, method in METHODS.items() if method.drafter)
"""Methods that a conversation can be held with: those of this library's loop."""


def decoder(spec: str) -> Variant:
    """Return a method of `DECODERS` with its options; ValueError for another, and for what `variant` refuses."""
    name = spec.partition(":")[0]
    if name not in DECODERS:
        raise ValueError(f"'{name}' does not decode in this library's loop; choose from {', '.join(DECODERS)}.")
    return variant(spec)


class Conversation:
    """A conversation that goes on with the caches of what was said before.

    With a chat template every line is a user's message. What the template writes after the tokens so far is read, as
    long as it begins as these tokens do; where it does not, everything is read anew. Without a template the text goes
    on with the line on a line of its own.

    Args:
        pair: target, draft and tokenizer.
        method: as for `decoder`.
        system: the system's message, with a chat template alone.
        options: of `generate`: `max_new_tokens`, `sampling`, `seed`.

    Attributes:
        templated: whether the tokenizer has a chat template.
        method: the method that answers.
        messages: the conversation so far; nothing without a template.
        ids: every token so far.
        last: the latest answer, or None.

    Raises:
        ValueError: as for `decoder`, and for a system's message without a template.
    """

    def __init__(self, pair: Pair, method: str, system: str | None = None, **options: Any) -> None:
        self.pair, self.system, self.options = pair, system, options
        self.templated = bool(getattr(pair.tokenizer, "chat_template", None))
        if system is not None and not self.templated:
            raise ValueError(f"The tokenizer of '{pair.name}' has no chat template to put --system into; leave it out.")
        self.choose(method)
        self.reset()

    def choose(self, method: str) -> None:
        """Let another method answer from here on; its caches begin empty."""
        runner: Any = decoder(method).runner(self.pair)
        runner.check(self.options["sampling"])
        self.method, self._runner = method, runner
        self._state: DecodingState | None = None

    def reset(self) -> None:
        """Forget what was said."""
        self.messages = [] if self.system is None else [{"role": "system", "content": self.system}]
        self.ids: list[int] = []
        self.last: Generation | None = None
        self._text, self._state = "", None

    @property
    def cut(self) -> bool:
        """Whether the latest answer can go on."""
        return self.last is not None and self.last.finish_reason in CUT

    def answer(self, line: str, on_tokens: Callable[[list[int]], None]) -> Generation:
        """Return the answer to a line; an empty line lets the latest answer go on. Ctrl-C ends the answer.

        Raises:
            ValueError: as for `generate`, for example where the context is full; nothing is forgotten then.
        """
        messages, text, fresh, goes_on = self._turn(line)
        before = self.ids if goes_on else []
        state, self._state = self._state if goes_on else None, None  # used up, even if the call does not come back
        prompt = [*before, *fresh] if state is None else fresh
        runner = self._runner
        out = generate(
            runner.target, prompt, runner.drafter, state=state, on_tokens=on_tokens, interrupt="return",
            tokenizer=self.pair.tokenizer, **self.options, **runner.options,
        )  # fmt: skip
        self._state, self.last = out.state, out
        self.ids, self._text = [*before, *fresh, *out.tokens], text + out.text()
        self.messages = messages
        if self.templated:
            said = out.tokens[:-1] if out.finish_reason == "eos" else out.tokens
            messages[-1]["content"] += self.pair.tokenizer.decode(said)
        return out

    def _turn(self, line: str) -> tuple[list[dict[str, str]], str, list[int], bool]:
        """Return the messages with an answer to come, the text up to it, the tokens to read, and whether these follow
        those of before."""
        tokenizer, owner = self.pair.tokenizer, self.pair.target.name
        if not line:
            return [dict(message) for message in self.messages], self._text, [], True
        if not self.templated:
            text = line if not self._text or self._text.endswith("\n") else f"\n{line}"
            return [], self._text + text, text_ids(text, tokenizer, owner, special=not self.ids), True
        messages = [*self.messages, {"role": "user", "content": line}]
        whole = rendered(messages, tokenizer)
        goes_on = bool(self.ids) and whole.startswith(self._text)
        fresh = whole[len(self._text) :] if goes_on else whole
        answered = [*messages, {"role": "assistant", "content": ""}]
        return answered, whole, text_ids(fresh, tokenizer, owner, special=False), goes_on
