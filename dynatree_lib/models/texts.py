"""Texts and token ids: what a prompt may be, and tokens as a reader can see them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from itertools import compress
from typing import Any

import numpy as np
import torch

from ..checks import check_unicode, described

TokenIds = Sequence[int] | np.ndarray | torch.Tensor
"""(L,) or (1, L) token ids."""
Messages = Sequence[Mapping[str, Any]]
"""A conversation: {"role": ..., "content": ...} of each message."""
Prompt = str | TokenIds | Messages | Mapping[str, Any]
"""A text, token ids, a conversation, or what a tokenizer returns."""
VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})
UNFINISHED = "\ufffd"
"""What a decoded text ends with where the bytes of its last character are not complete."""
CONTEXT_TOKENS = 32
"""Tokens before a token that its text may depend on."""
INPUTS = ("input_ids", "attention_mask", "position_ids")
"""What is read of a mapping that a tokenizer returns."""
DESCRIPTIONS = {
    "special_tokens_mask", "length", "offset_mapping", "overflow_to_sample_mapping", "overflowing_tokens",
    "num_truncated_tokens", "assistant_masks",
}  # fmt: skip
"""What tokenizers tell of the tokens and models do not read."""
TYPES = {"token_type_ids", "mm_token_type_ids"}
"""What says which kind of input a token is of: 0 for each token of one text."""
FORMS = "give a text, token ids (L,) or (1, L), what a tokenizer returns, or a list of messages"


# -------------------------------------------------------------------------------------------------------------- prompts
def prompt_ids(prompt: Prompt, tokenizer: Any, owner: str, *, begins: bool = True) -> list[int]:
    """Return a prompt as a list of token ids; whether the model has these tokens is not checked.

    Args:
        prompt: a text, which the tokenizer encodes without a chat template; a conversation, which its chat template
            turns into ids; what a tokenizer returns for one text, from which padding is dropped; or token ids.
        tokenizer: encodes texts and conversations; may be None.
        owner: whose prompt this is, for messages.
        begins: whether a text begins here. A text that goes on gets no special tokens of the tokenizer.

    Raises:
        TypeError: for a prompt of another kind.
        ValueError: for a text or a conversation without the tokenizer that it needs, for several texts, for inputs
            besides token ids, such as pictures, and for numbers that are no token ids.
    """
    if isinstance(prompt, str):
        return text_ids(prompt, tokenizer, owner, special=begins)
    if isinstance(prompt, Mapping):
        return _unpadded(prompt)
    several = isinstance(prompt, list | tuple) and len(prompt) > 0
    if several and all(isinstance(one, Mapping) for one in prompt):
        if not begins:
            raise ValueError(
                "The prompt is a list of messages and an earlier text goes on; give the new turn as a text or as token "
                "ids, as the chat template writes it, or the whole conversation without state."
            )
        return conversation_ids(prompt, tokenizer, owner)  # type: ignore[arg-type]
    if several and all(isinstance(one, str) for one in prompt):
        raise ValueError(
            f"The prompt is a list of {len(prompt)} texts; give one text, or decode several with generate_batch()."
        )
    return _numbers(prompt)


def each_prompt(prompts: Any) -> list[Prompt]:
    """Return several prompts as a list: of what a tokenizer returns for several texts, one mapping of each.

    Raises:
        TypeError: for what is no list of prompts.
        ValueError: for a mapping without input_ids, or with inputs besides token ids, such as pictures.
    """
    if isinstance(prompts, str) or not isinstance(prompts, Iterable):
        raise TypeError(f"prompts is {described(prompts)}; give a list of prompts, also for one.")
    if not isinstance(prompts, Mapping):
        return list(prompts)
    columns = {name: prompts[name] for name in INPUTS if prompts.get(name) is not None}
    if "input_ids" not in columns:
        raise ValueError(f"prompts is a mapping with {_keys(prompts)} and without 'input_ids'; give a list of prompts.")
    _check_inputs(prompts)
    return [dict(zip(columns, rows, strict=True)) for rows in zip(*columns.values(), strict=True)]


def text_ids(text: str, tokenizer: Any, owner: str, *, special: bool = True) -> list[int]:
    """Return the token ids of a text; `special` adds the tokens that the tokenizer begins or ends a text with.

    Raises:
        ValueError: without a tokenizer that encodes, and for a text that is no Unicode.
    """
    if not callable(tokenizer):
        raise ValueError(
            f"The prompt is a text and '{owner}' has no tokenizer to encode it; give token ids, or the tokenizer: "
            "HFModel(model, tokenizer), or tokenizer=."
        )
    check_unicode(text, "The text")
    return list(tokenizer(text, add_special_tokens=special)["input_ids"])


def conversation_ids(messages: Messages, tokenizer: Any, owner: str) -> list[int]:
    """Return the token ids of a conversation under the tokenizer's chat template, up to the beginning of the reply.

    Raises:
        ValueError: for a message without role or content, and for a tokenizer without a chat template.
    """
    for message in messages:
        if not {"role", "content"} <= set(message):
            raise ValueError(f"A message of the prompt has the keys {_keys(message)}; give it 'role' and 'content'.")
    if not getattr(tokenizer, "chat_template", None):
        raise ValueError(
            f"The prompt is a list of messages and the tokenizer of '{owner}' has no chat template; give a text, or a "
            "tokenizer with a template."
        )
    return text_ids(rendered(messages, tokenizer), tokenizer, owner, special=False)  # the template wrote them


def rendered(messages: Messages, tokenizer: Any) -> str:
    """Return a conversation as the tokenizer's chat template writes it, up to the beginning of the reply."""
    text: str = tokenizer.apply_chat_template(list(messages), tokenize=False, add_generation_prompt=True)
    return text


def says_nothing(name: str, value: Any) -> bool:
    """Whether an input changes no text: None, and types that are 0 for every token."""
    return value is None or (name in TYPES and _is_zero(value))


def _keys(mapping: Mapping[str, Any]) -> str:
    return ", ".join(map(repr, mapping)) or "no keys"


def _check_inputs(encoding: Mapping[str, Any]) -> None:
    """Raise ValueError for inputs besides token ids: without them the model would read another prompt."""
    for name, value in encoding.items():
        if name in INPUTS or name in DESCRIPTIONS or says_nothing(name, value):
            continue
        other = " other than 0" if name in TYPES else ""
        raise ValueError(
            f"The prompt has {name!r}{other}, and trees are scored from token ids alone; encode one text without "
            "pictures, or give the input_ids and the attention_mask alone."
        )


def _is_zero(value: Any) -> bool:
    """Whether all numbers of nested lists, or of an array, are 0."""
    value = value.tolist() if hasattr(value, "tolist") else value
    return all(map(_is_zero, value)) if isinstance(value, list | tuple) else value == 0


def _unpadded(encoding: Mapping[str, Any]) -> list[int]:
    """Return the ids that a tokenizer returned for one text, without the padding that its attention mask marks."""
    if "input_ids" not in encoding:
        raise ValueError(
            f"The prompt is a mapping with {_keys(encoding)} and without 'input_ids'; {FORMS}, also for one message."
        )
    _check_inputs(encoding)
    ids = _numbers(encoding["input_ids"])
    mask, positions = encoding.get("attention_mask"), encoding.get("position_ids")
    seen = [1] * len(ids) if mask is None else _mask(mask)
    if len(seen) != len(ids):
        raise ValueError(f"The prompt has {len(ids)} input_ids and an attention_mask of {len(seen)}; give one each.")
    if not re.fullmatch("0*1*0*", "".join(map(str, seen))):
        raise ValueError(
            f"The attention_mask of the prompt is {str(seen)[:60]}; give 1 for the tokens of the text, which stand "
            "together, and 0 for padding before or after them."
        )
    if positions is not None and list(compress(_numbers(positions), seen)) != list(range(sum(seen))):
        raise ValueError("The position_ids of the prompt do not count its tokens from 0; leave them out.")
    return list(compress(ids, seen))


def _mask(mask: Any) -> list[int]:
    """Return (L,) or (1, L) of 0 and 1 as whole numbers; they may be of any kind, as for models."""
    with suppress(TypeError, ValueError, RuntimeError):  # what is no tensor has its sentence below
        tensor = torch.as_tensor(mask, device="cpu")
        if bool(((tensor == 0) | (tensor == 1)).all()):
            mask = tensor.long()
    return _numbers(mask)


def _numbers(ids: Any) -> list[int]:
    """Return (L,) or (1, L) whole numbers as a list."""
    try:
        if ids is None or isinstance(ids, str | bytes | bytearray):
            raise TypeError
        array = torch.as_tensor(ids, device="cpu").numpy()
        if not array.ndim:
            raise TypeError
    except (TypeError, ValueError, RuntimeError) as error:
        raise TypeError(f"The prompt is {described(ids)}, which holds no token ids of one text; {FORMS}.") from error
    if array.size and array.dtype.kind not in "iu":
        raise ValueError(
            f"The prompt holds {array.dtype} numbers; give integer token ids, as a tokenizer returns them."
        )
    if array.ndim == 2 and len(array) == 1:
        array = array[0]
    if array.ndim != 1:
        raise ValueError(
            f"The prompt has shape {array.shape}; give one sequence of token ids, (L,) or (1, L), or decode several "
            "texts with generate_batch()."
        )
    return [int(token) for token in array]


# --------------------------------------------------------------------------------------------------------------- tokens
def label(token: int, tokenizer: Any = None, longest: int = 14) -> str:
    """Return a token as a label of at most `longest` characters; its number where there is no tokenizer."""
    if tokenizer is None:
        return str(token)
    text = tokenizer.decode([int(token)]).translate(VISIBLE) or f"#{token}"
    text = re.sub("␣{4,}", lambda run: f"␣×{len(run[0])}", text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


class TextStream:
    """The texts of tokens as they come, which join to the decoded text.

    A character of several byte tokens belongs to the last of them; the earlier tokens have empty texts. The texts of
    the last tokens alone are decoded again, so that a token of a long text takes no longer.

    Args:
        tokenizer: decodes the tokens.
    """

    def __init__(self, tokenizer: Any) -> None:
        self.tokenizer = tokenizer
        self._tokens: list[int] = []
        self._shown = ""

    def add(self, token: int) -> str:
        """Return the text that a token adds, as far as it is complete."""
        self._tokens.append(int(token))
        text = self.tokenizer.decode(self._tokens)
        if text.endswith(UNFINISHED):
            return ""
        fresh: str = text[len(self._shown) :]
        self._shown = text
        if len(self._tokens) >= 2 * CONTEXT_TOKENS:
            self._tokens = self._tokens[-CONTEXT_TOKENS:]
            self._shown = self.tokenizer.decode(self._tokens)
        return fresh

    def rest(self) -> str:
        """Return what the tokens so far add besides: a last character that is not complete."""
        before, self._shown = self._shown, self.tokenizer.decode(self._tokens)
        return self._shown[len(before) :]


def pieces(tokens: Sequence[int], tokenizer: Any = None) -> list[str]:
    """Return the text of each token as `TextStream` does, so that the texts join to the decoded text."""
    if tokenizer is None:
        return [f"{token} " for token in tokens]
    stream = TextStream(tokenizer)
    texts = [stream.add(token) for token in tokens]
    if texts:
        texts[-1] += stream.rest()
    return texts
