"""What a verifier is: a rule that looks at a tree and the target's rows and keeps a path."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

from ..sampling import Chance, Rows, Sampling
from ..tree import TokenTree


@dataclass(frozen=True)
class Verdict:
    """What a verifier decided.

    Attributes:
        path: accepted nodes below node 0, from the top down.
        next_token: the bonus token after the last accepted node; it becomes node 0 of the next tree.
    """

    path: tuple[int, ...]
    next_token: int


class Verifier(ABC):
    """A verification rule. Stateless; all randomness through the `Chance` it is handed."""

    @abstractmethod
    def check(self, sampling: Sampling) -> None:
        """Raise ValueError, before any work, if this rule cannot serve this `Sampling`."""

    @abstractmethod
    def verify(self, tree: TokenTree, rows: Rows, laws: Rows | None, chance: Chance) -> Verdict:
        """Decide on one tree.

        Args:
            tree: n nodes.
            rows: the target's rows, one per node.
            laws: the draft's rows by parent node, for rules that need the law a token was drawn from.
            chance: the verifying stream.
        """
