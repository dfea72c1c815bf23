"""Logits processors and stopping criteria, which change and end a text, at the nodes that the text may reach.

The target's distribution after a node is that of its processed logits, so a rule stays exact if it sees no others.
`ProcessedScores` processes the logits of a node when the rule asks for them. No rule asks about a node whose path has
no probability, and none is processed after the text has ended, so a processor that knows a grammar meets no text
outside it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import torch
from typing_extensions import override

from .checks import described
from .sampling import Scores
from .tree import TokenTree

LogitsProcessor = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""(1, L) int64 ids of a text and the (1, V) logits after it -> (1, V) logits, all on the device of the logits."""
StoppingCriterion = Callable[[torch.Tensor, None], Any]
"""(1, L) int64 ids of a text, on the CPU, and None -> whether the text ends with its last token."""
Path = tuple[int, ...]
"""Tokens below node 0, from the top down."""


def answer(processor: LogitsProcessor, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
    """Return what a processor answers to (1, L) ids and (1, V) logits: (1, V), floating.

    Raises:
        TypeError: for an answer that is no floating tensor.
        ValueError: for an answer of another shape.
    """
    found: Any = processor(ids, logits)
    tensor = isinstance(found, torch.Tensor)
    floating = tensor and found.is_floating_point()
    if floating and found.shape == logits.shape:
        return cast(torch.Tensor, found)
    name = getattr(processor, "__name__", type(processor).__name__)
    returned = f"a tensor of shape {tuple(found.shape)} and {found.dtype}" if tensor else described(found)
    raise (ValueError if floating else TypeError)(
        f"The logits processor {name} returned {returned}; it was given logits of shape {tuple(logits.shape)}, so let "
        "it return a floating tensor of that shape, also where it changes the logits in place."
    )


def met(criterion: Callable[[torch.Tensor, Any], Any], ids: torch.Tensor, scores: Any) -> bool:
    """Return whether a stopping criterion ends the text of (1, L) ids; TypeError for no truth value."""
    found = criterion(ids, scores)
    try:
        return bool(found)
    except (RuntimeError, TypeError, ValueError) as error:
        shape = f" of shape {tuple(found.shape)}" if hasattr(found, "shape") else ""
        name = getattr(criterion, "__name__", type(criterion).__name__)
        raise TypeError(
            f"The stopping criterion {name} returned {described(found)}{shape}; let it return True or False, or a "
            "tensor of one."
        ) from error


def check_functions(name: str, given: object) -> None:
    """Raise TypeError unless this is a sequence of functions; a class in place of an object is no function."""
    for one in given if isinstance(given, Sequence) else ():
        if isinstance(one, type):
            raise TypeError(
                f"{name} holds the class {one.__name__}; give an object of it, such as {one.__name__}(...)."
            )
    if not isinstance(given, Sequence) or not all(map(callable, given)):
        raise TypeError(f"{name} is {given!r}; give a list of functions, such as transformers' own.")


class ProcessedScores(Scores):
    """Scores of a tree whose logits are processed, each node's with the text up to it.

    At temperature 0 `argmax` is of the processed logits at the nodes that greedy decoding reaches; no rule looks at
    others. At other nodes, at other temperatures and in a side tree it is of the target's own logits, which drafters
    learn from.

    Args:
        scores: of the tree's n nodes, and of a side tree's.
        tree: the verified tree.
        process: path and (V,) logits after it -> (V,) processed logits; called once for a path.
    """

    def __init__(self, scores: Scores, tree: TokenTree, process: Callable[[Path, torch.Tensor], torch.Tensor]) -> None:
        super().__init__(
            scores.logits, scores.sampling, scores.owner, scores.features, scores.tokens, scores.most_probable
        )
        self._tree, self._process = tree, process
        self._processed: dict[Path, torch.Tensor] = {}

    @override
    def row(self, node: int) -> torch.Tensor:
        path = tuple(self._tree.tokens[self._tree.path(node)].tolist())
        if path not in self._processed:  # siblings may repeat a token
            found = self._process(path, super().row(node))
            if not bool(torch.isfinite(found.max())):
                raise ValueError(
                    f"The logits processors left no token, or a logit that is NaN or +inf, after the text and {path}; "
                    "a processor must leave at least one token possible."
                )
            self._processed[path] = found
        return self._processed[path]

    @cached_property
    def argmax(self) -> np.ndarray:
        """(n,) int64 tokens, as the class says; ValueError where a processor leaves NaN."""
        choice, _ = self._best()  # not checked: a processor may remove NaN where the text gets to
        if self.sampling.greedy:
            reached = [0]
            for node in reached:
                choice[node] = int(self.row(node).argmax())
                reached += [child for child in self._tree.children(node).tolist()
                            if self._tree.tokens[child] == choice[node]]  # fmt: skip
        return choice


class Processing:
    """The processors and criteria of one call, and the text they are asked about."""

    def __init__(self, processors: Sequence[LogitsProcessor], criteria: Sequence[StoppingCriterion]) -> None:
        self.processors, self.criteria = processors, criteria

    @classmethod
    def of(cls, processors: Sequence[LogitsProcessor], criteria: Sequence[StoppingCriterion]) -> Self | None:
        """Return None where there are none.

        Raises:
            TypeError: unless each is a sequence of functions.
        """
        check_functions("logits_processors", processors)
        check_functions("stopping_criteria", criteria)
        return cls(tuple(processors), tuple(criteria)) if processors or criteria else None

    def start(self, text: Sequence[int]) -> None:
        """Begin with these tokens; the last one is node 0."""
        self._text, self._met = torch.tensor(text), dict[Path, bool]()

    def commit(self, tokens: Sequence[int]) -> None:
        """Append the tokens of an iteration."""
        self._text, self._met = self._ids(tuple(tokens))[0], {}

    def scores(self, scores: Scores, tree: TokenTree, ended: Callable[[Path], bool]) -> Scores:
        """Return the scores with processed logits; `ended` says whether the text ends in a path."""
        if not self.processors:
            return scores
        device = scores.logits.device

        def process(path: Path, logits: torch.Tensor) -> torch.Tensor:
            if ended(path):  # the tokens after it are cut off, and a processor may have no token to follow
                return logits
            with torch.inference_mode(False), torch.no_grad():  # the caller's code
                ids = self._ids(path).to(device)
                found = logits.to(device, torch.promote_types(logits.dtype, torch.float32), copy=True)[None]
                for processor in self.processors:
                    found = answer(processor, ids, found)
                return found[0].cpu()

        return ProcessedScores(scores, tree, process)

    def met(self, path: Sequence[int]) -> bool:
        """Return whether a criterion ends the text after this path. Each is asked once about a path."""
        key = tuple(path)
        if key not in self._met:
            with torch.inference_mode(False), torch.no_grad():
                ids = self._ids(key)
                answers = [met(criterion, ids, None) for criterion in self.criteria]
            self._met[key] = any(answers)
        return self._met[key]

    def _ids(self, path: Path) -> torch.Tensor:
        return torch.cat([self._text, torch.tensor(path, dtype=torch.int64)])[None]
