"""Two tokenizers side by side: vocabularies as bytes, and texts translated from one into the other.

A token is what it adds to a text. Byte-level BPE writes a space as 'Ġ', SentencePiece writes it as '▁' and a byte as
'<0x0A>', so equal tokens have unequal names. `Vocabulary` holds the bytes behind the names, `Translation` matches them.
What a draft does with that is left to `translated` and `drafters.retokenized`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate, groupby
from typing import Any

import numpy as np

from .base import LanguageModel

Encode = Callable[[str], Sequence[int]]
"""Returns the ids of a text, without special tokens."""
SAMPLE = " the quick brown fox"
"""A text whose tokens must join to it."""
_PLAIN = [*range(33, 127), *range(161, 173), *range(174, 256)]
_OTHERS = [byte for byte in range(256) if byte not in _PLAIN]
BYTES = {chr(byte): byte for byte in _PLAIN} | {chr(256 + place): byte for place, byte in enumerate(_OTHERS)}
"""Byte-level BPE: the character that a token's name has for each byte. Bytes that cannot be printed come after 255."""
_BROKEN = re.compile("([\udc80-\udcff]+)")
"""Bytes of a decoded text that are no part of a whole character."""
_BYTE_PIECE = re.compile(r"<0x([0-9A-Fa-f]{2})>")


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """The tokens of a model as the bytes that they add to a text.

    Attributes:
        tokens: (V,) bytes by id; None for special tokens, and for ids that no token has.
        special: name of each special token -> id.
        encoder: how the tokenizer splits a text; without one, texts are split into the longest tokens.
        begin: ids that the tokenizer puts before a text.
        ends: ids that end a text.
        bytes_by_name: ids of tokens such as '<0x0A>', which a tokenizer uses where no other token has the byte.
        fingerprint: as `LanguageModel.vocabulary`.
        owner: whose vocabulary it is, for messages.
    """

    tokens: Sequence[bytes | None]
    special: dict[str, int] = field(default_factory=dict)
    encoder: Encode | None = None
    begin: tuple[int, ...] = ()
    ends: tuple[int, ...] = ()
    bytes_by_name: frozenset[int] = frozenset()
    fingerprint: str | None = None
    owner: str = "model"

    def is_of(self, model: LanguageModel) -> bool:
        """Whether a model numbers its tokens so: by its fingerprint, or by its size where one is unknown."""
        known = model.vocabulary is not None and self.fingerprint is not None
        return model.vocabulary == self.fingerprint if known else model.vocab_size == len(self)

    @classmethod
    def of(cls, tokenizer: Any, size: int, owner: str = "model", fingerprint: str | None = None) -> Vocabulary:
        """Read the vocabulary of a transformers tokenizer.

        Args:
            tokenizer: a loaded one.
            size: V, logits of its model; ids beyond are left out.
            owner: for messages.
            fingerprint: as `LanguageModel.vocabulary`.

        Raises:
            ValueError: without a tokenizer, and for one whose tokens do not join to the text.
        """
        if not callable(tokenizer):
            raise ValueError(
                f"'{owner}' has no tokenizer, so its tokens cannot be matched by their text; give it one: "
                "HFModel(model, tokenizer)."
            )
        added = tokenizer.added_tokens_decoder
        hidden = {*tokenizer.all_special_ids, *(number for number, token in added.items() if token.special)}
        read = _reader(tokenizer)
        tokens: list[bytes | None] = [None] * size
        special, named = {}, set()
        for piece, number in tokenizer.get_vocab().items():
            if number >= size:
                continue
            if number in hidden:
                special[piece] = number
            else:  # an added token stands as it is written, whatever the scheme
                tokens[number] = piece.encode() if number in added else read(piece)
                if read is _sentencepiece and _BYTE_PIECE.fullmatch(piece):
                    named.add(number)

        def encode(text: str) -> Sequence[int]:
            ids: Sequence[int] = tokenizer(text, add_special_tokens=False, verbose=False)["input_ids"]
            return ids

        begin, last = tokenizer("", verbose=False)["input_ids"][:1], tokenizer.eos_token_id
        out = cls(
            tokens, special, encode, tuple(begin) if begin == [tokenizer.bos_token_id] else (),
            () if last is None else (last,), frozenset(named), fingerprint, owner,
        )  # fmt: skip
        joined = out.joined(encode(SAMPLE))
        if joined is not None and not joined.endswith(SAMPLE.encode()[1:]):
            raise ValueError(
                f"The tokenizer of '{owner}' splits {SAMPLE!r} into tokens that join to {joined!r}, so its tokens "
                "cannot be matched by their text; use a draft with the target's tokenizer."
            )
        return out

    def __len__(self) -> int:
        return len(self.tokens)

    @cached_property
    def ids(self) -> dict[bytes, int]:
        """The token that stands for these bytes: the first of several, one with the name of a byte after others."""
        order = sorted(range(len(self)), key=self.bytes_by_name.__contains__, reverse=True)
        return {token: number for number in order if (token := self.tokens[number])}

    @cached_property
    def _longest(self) -> int:
        return max(map(len, self.ids), default=0)

    def joined(self, ids: Sequence[int]) -> bytes | None:
        """Return the bytes of several tokens; None where one of them has none."""
        pieces = [self.tokens[number] if number < len(self.tokens) else None for number in ids]
        return None if None in pieces else b"".join(pieces)  # type: ignore[arg-type]

    def encode(self, data: bytes) -> list[int] | None:
        """Return tokens whose bytes join to these, as the tokenizer splits them where it can.

        A tokenizer may put a space before a text or change letters. So its answer is taken where its tokens end with
        the bytes that were asked for. Otherwise, and for parts of characters, the longest tokens are taken in turn.

        Returns:
            ids, or None where some of the bytes have no token.
        """
        out = list[int]()
        for place, piece in enumerate(_BROKEN.split(data.decode(errors="surrogateescape"))):
            split = None if place % 2 else self._as_tokenized(piece)
            split = split or self._longest_tokens(piece.encode(errors="surrogateescape"))
            if split is None:
                return None
            out += split
        return out

    def _as_tokenized(self, text: str) -> list[int] | None:
        """Return the tokenizer's own split of a text, or None where its tokens do not end with this text."""
        if self.encoder is None:
            return None
        data = text.encode()
        forms = [text, *([text[1:]] if text.startswith(" ") else []), "\n" + text]
        for form in forms:  # the second and third, where the tokenizer puts a space before a text
            ids = list(self.encoder(form))
            whole = self.joined(ids)
            if whole is not None and whole.endswith(data):
                begins = list(accumulate((len(self.tokens[number] or b"") for number in ids), initial=0))
                if len(whole) - len(data) in begins:
                    return ids[begins.index(len(whole) - len(data)) :]
        return None

    def _longest_tokens(self, data: bytes) -> list[int] | None:
        out = list[int]()
        while data:
            lengths = range(min(self._longest, len(data)), 0, -1)
            longest = next((length for length in lengths if data[:length] in self.ids), None)
            if longest is None:
                return None
            out.append(self.ids[data[:longest]])
            data = data[longest:]
        return out


def _reader(tokenizer: Any) -> Callable[[str], bytes]:
    """Return how the names of a tokenizer's tokens are read."""
    decoder = getattr(getattr(tokenizer, "backend_tokenizer", None), "decoder", None)
    if decoder is not None and b"ByteLevel" in decoder.__getstate__():
        return _byte_level
    return _sentencepiece if any("▁" in piece for piece in tokenizer.get_vocab()) else str.encode


def _byte_level(piece: str) -> bytes:
    numbers = [BYTES.get(character) for character in piece]
    return piece.encode() if None in numbers else bytes(numbers)  # type: ignore[arg-type]


def _sentencepiece(piece: str) -> bytes:
    byte = _BYTE_PIECE.fullmatch(piece)
    return bytes([int(byte[1], 16)]) if byte else piece.replace("▁", " ").encode()


class Translation:
    """Tokens of a target's vocabulary and of a draft's that stand for the same bytes, and texts of one in the other.

    Special tokens match by name, and the tokens that end a text match each other.

    Attributes:
        target, draft: the vocabularies.
        shared: (K,) int64 target ids of the tokens that both have, ascending.
        columns: (K,) int64 draft ids of the same tokens.

    Args:
        target: the vocabulary of the target.
        draft: that of the draft.

    Raises:
        ValueError: where no token is in both.
    """

    def __init__(self, target: Vocabulary, draft: Vocabulary) -> None:
        self.target, self.draft = target, draft
        same = {number: draft.ids[data] for data, number in target.ids.items() if data in draft.ids}
        same |= {number: draft.special[name] for name, number in target.special.items() if name in draft.special}
        for ours, theirs in zip(target.ends, draft.ends, strict=False):
            if ours not in same and theirs not in same.values():
                same[ours] = theirs
        if not same:
            raise ValueError(
                f"No token is in the vocabularies of both '{target.owner}' and '{draft.owner}', so nothing could be "
                "drafted; use a draft with the target's tokenizer."
            )
        self.shared = np.array(sorted(same), np.int64)
        self.columns = np.array([same[number] for number in self.shared.tolist()], np.int64)
        self._same, self._back = same, {theirs: ours for ours, theirs in same.items()}
        self._known: dict[int, list[int]] = {}

    @cached_property
    def stranger(self) -> int:
        """The draft's token that is read for a token that means nothing to it."""
        return (*self.draft.begin, *self.draft.ends, 0)[0]

    def of_token(self, token: int) -> list[int]:
        """Return the draft's tokens for a target token: itself where both have it; none where it means nothing."""
        if token in self._same:
            return [self._same[token]]
        if token not in self._known:
            self._known[token] = self.draft.encode(self.target.joined([token]) or b"") or []
        return self._known[token]

    def of_node(self, token: int) -> list[int]:
        """Return the same, and `stranger` where there are none: a node has to be read."""
        return self.of_token(token) or [self.stranger]

    def of_text(self, tokens: Sequence[int], begins: bool = False) -> list[int]:
        """Return a text of target tokens in the draft's tokens, split as the draft's tokenizer splits it.

        Tokens that mean nothing to the draft, such as those of a chat template that it does not have, are left out.

        Args:
            tokens: target ids.
            begins: whether a text begins here; then it begins as the draft's texts do.
        """
        out = list[int]()
        for spelt, group in groupby(tokens, lambda token: self.target.joined([token]) is not None):
            run = list(group)
            whole = self.draft.encode(self.target.joined(run) or b"") if spelt and len(run) > 1 else None
            out += [each for token in run for each in self.of_token(token)] if whole is None else whole
        begin = list(self.draft.begin) if begins else []
        return out if out[: len(begin)] == begin else begin + out

    def back(self, tokens: Sequence[int]) -> list[int]:
        """Return a path of draft tokens in the target's, split as the target's tokenizer splits its text.

        It ends where the target has no token for what comes.
        """
        out, run = list[int](), b""
        for token in tokens:
            data = self.draft.joined([token])
            if data is not None:
                run += data
                continue
            split = self.target.encode(run)
            if split is None or token not in self._back:
                return out + (split or [])
            out, run = [*out, *split, self._back[token]], b""
        return out + (self.target.encode(run) or [])
