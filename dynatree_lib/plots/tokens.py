"""Tokens as a reader can see them: spaces and line ends visible, long ones shortened, bytes put together."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

VISIBLE = str.maketrans({" ": "␣", "\n": "⏎", "\t": "⇥", "\r": "␍"})


def label(token: int, tokenizer: Any = None, longest: int = 14) -> str:
    """One token as a label of at most `longest` characters; its number where there is no tokenizer."""
    if tokenizer is None:
        return str(token)
    text = tokenizer.decode([int(token)]).translate(VISIBLE) or f"#{token}"
    text = re.sub("␣{4,}", lambda run: f"␣×{len(run[0])}", text)
    return text if len(text) <= longest else text[: longest - 1] + "…"


def pieces(tokens: Sequence[int], tokenizer: Any = None) -> list[str]:
    """Text of each token such that they join to the decoded text.

    A character of several byte tokens belongs to the last of them; the earlier ones are empty.
    """
    if tokenizer is None:
        return [f"{token} " for token in tokens]
    out, shown = [], ""
    for end in range(1, len(tokens) + 1):
        text = tokenizer.decode(list(tokens[:end]))
        unfinished = text.endswith("�") and end < len(tokens)
        out.append("" if unfinished else text[len(shown) :])
        shown = shown if unfinished else text
    return out
