"""`SuffixAutomaton`: every substring of some texts, how often it occurred and what followed, built token by token.

`SuffixCopies` copies by it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from typing_extensions import override

from .prompt_lookup import Copies

START = 0
"""State of the empty string."""


class SuffixAutomaton:
    """The suffix automaton of texts that grow (Blumer et al. 1985), with counts.

    A state stands for the substrings that end at the same places. Appending a token takes amortised constant time, but
    for the counts, which go up along all suffixes that occurred before.

    Attributes:
        following: token -> state, of each state: the string with this token after it.
        shorter: state of the longest suffix that ends at more places too; -1 of the empty string.
        length: of the longest string of each state.
        count: places where the strings of each state end.
        last: state of the whole text.
        text: all tokens, with a negative number where a text ends.
    """

    def __init__(self) -> None:
        self.following: list[dict[int, int]] = [{}]
        self.shorter, self.length, self.count = [-1], [0], [0]
        self.last = START
        self.text: list[int] = []

    def __len__(self) -> int:
        return len(self.length)

    @property
    def match(self) -> int:
        """State of the longest suffix of the text that ended somewhere before, in this text or an earlier one."""
        return max(self.shorter[self.last], START)

    def after(self, place: tuple[int, int], token: int) -> tuple[int, int]:
        """Return the longest match after a place (a match and its length) and a token that it may not know."""
        state, length = place
        while state > START and token not in self.following[state]:
            state = self.shorter[state]
            length = self.length[state]
        found = self.following[state].get(token)
        return (START, 0) if found is None else (found, length + 1)

    def end(self) -> None:
        """End the text: the next token begins another."""
        self.append([-1 - len(self.text)])  # occurs nowhere else, so nothing matches across it

    def append(self, tokens: Sequence[int]) -> None:
        """Append tokens to the text."""
        for token in tokens:
            self._append(int(token))

    def continued(self, text: Sequence[int], pool: int) -> SuffixAutomaton:
        """Return the automaton of these texts and a new one; this one stays as it is.

        Where these are more than `pool` tokens together, the latest half of that stays, so that not every text builds
        the automaton anew.
        """
        if len(self.text) + len(text) > pool:
            both = SuffixAutomaton()
            both.append(self.text[len(self.text) - min(max(pool // 2 - len(text), 0), len(self.text)) :])
        else:
            both = self.copied()
        both.end()
        both.append(text)
        return both

    def copied(self) -> SuffixAutomaton:
        """Return a copy that grows by itself."""
        other = SuffixAutomaton()
        other.following = [dict(states) for states in self.following]
        other.shorter, other.length, other.count = self.shorter[:], self.length[:], self.count[:]
        other.last, other.text = self.last, self.text[:]
        return other

    def _append(self, token: int) -> None:
        self.text.append(token)
        following, shorter, length = self.following, self.shorter, self.length
        new, state = self._made({}, length[self.last] + 1, 0), self.last
        while state >= 0 and token not in following[state]:
            following[state][token] = new
            state = shorter[state]
        if state < 0:
            shorter[new] = START
        else:
            found = following[state][token]
            if length[found] > length[state] + 1:  # its longest strings do not end here, so the others part from them
                whole, found = found, self._made(following[found].copy(), length[state] + 1, self.count[found])
                shorter[found] = shorter[whole]
                shorter[whole] = found
                while state >= 0 and following[state].get(token) == whole:
                    following[state][token] = found
                    state = shorter[state]
            shorter[new] = found
        self.last = state = new
        while state > START:
            self.count[state] += 1
            state = shorter[state]

    def _made(self, following: dict[int, int], length: int, count: int) -> int:
        self.following.append(following)
        self.shorter.append(START)
        self.length.append(length)
        self.count.append(count)
        return len(self.length) - 1


@dataclass
class SuffixCopies(Copies):
    """Copies of what most often followed the longest suffix, of at least `n` tokens, that occurred before.

    Attributes:
        suffixes: of the text, and of earlier ones where it continues them.
    """

    suffixes: SuffixAutomaton = field(default_factory=SuffixAutomaton)

    @override
    def append(self, tokens: Sequence[int]) -> None:
        self.suffixes.append(tokens)
        self.text = self.suffixes.text

    def continues(self, earlier: SuffixCopies, pool: int) -> None:
        """Copy from earlier texts too, of at most `pool` tokens together with this one."""
        self.suffixes = earlier.suffixes.continued(self.text, pool)
        self.text = self.suffixes.text

    @override
    def following(self, count: int) -> list[int]:
        automaton, state, out = self.suffixes, self.suffixes.match, list[int]()
        if automaton.length[state] < self.n:
            return []
        while len(out) < count:
            while state > START and not (tokens := [token for token in automaton.following[state] if token >= 0]):
                state = automaton.shorter[state]  # the copy has come to the end of a text: a period goes on
            if state == START:
                break
            states = automaton.following[state]
            token = max(reversed(tokens), key=lambda token: automaton.count[states[token]])  # of equals the latest
            out.append(token)
            state = states[token]
        return out
