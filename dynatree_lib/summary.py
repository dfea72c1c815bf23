"""Counts of a generation that need no clock: tokens per iteration, accepted path length, acceptance."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .checks import of_kind
from .decoding import Generation, Iteration


@dataclass(frozen=True)
class Summary:
    """Counts of one or several generations, made by `summarize`.

    Attributes:
        tokens: generated tokens.
        iterations: target forwards that scored a tree.
        tokens_per_iteration: tokens / iterations, the bonus token included.
        accepted_path_length: mean accepted drafted tokens per iteration, the bonus token not included.
        nodes: mean drafted nodes per iteration, node 0 not included.
        side_nodes: mean nodes of the side tree per iteration.
        node_acceptance: accepted drafted tokens / drafted nodes (the "Accept." of the first DynaTree paper counts
            committed tokens instead; see the notebooks).
    """

    tokens: int
    iterations: int
    tokens_per_iteration: float
    accepted_path_length: float
    nodes: float
    side_nodes: float
    node_acceptance: float

    def __str__(self) -> str:
        return (
            f"{self.tokens} tokens in {self.iterations} iterations: {self.tokens_per_iteration:.2f} tokens per "
            f"iteration, {self.accepted_path_length:.2f} of {self.nodes:.1f} drafted nodes accepted"
            + (f", {self.side_nodes:.1f} nodes of a side tree" if self.side_nodes else "")
        )


def summarize(generations: Generation | Iterable[Generation]) -> Summary:
    """Return the summary of one generation, or of several together; TypeError for anything else."""
    several: list[Any] = list(generations) if isinstance(generations, Iterable) else [generations]
    for one in several:
        of_kind("What is summarized", one, Generation, "give what generate() returns, or a list of it")
    iterations: list[Iteration] = [one for generation in several for one in generation.iterations]
    tokens = sum(len(generation.tokens) for generation in several)
    accepted = sum(len(one.verdict.path) for one in iterations)
    drafted = sum(len(one.tree) - 1 for one in iterations)
    count = max(len(iterations), 1)
    return Summary(
        tokens=tokens,
        iterations=len(iterations),
        tokens_per_iteration=tokens / count,
        accepted_path_length=accepted / count,
        nodes=drafted / count,
        side_nodes=sum(one.side_nodes for one in iterations) / count,
        node_acceptance=accepted / max(drafted, 1),
    )
