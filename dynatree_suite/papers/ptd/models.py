"""The models that Progressive Tree Drafting is measured on, the pairs that have them, and the lines of its tables."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from dynatree_lib.checks import chosen

from ..published import published

PAIR_OF = {
    "llama2-7b-chat": "llama-2-7b/68m",
    "llama2-13b-chat": "llama-2-13b/68m",
    "qwen2.5-7b-instruct": "qwen2.5-7b/0.5b",
    "qwen2.5-14b-instruct": "qwen2.5-14b/0.5b",
    "qwen2.5-32b-instruct": "qwen2.5-32b/0.5b",
    "codellama-7b-instruct": "codellama-7b/68m",
    "codellama-13b-instruct": "codellama-13b/68m",
}
"""The paper's name of a model -> the named pair whose target it is."""

QWEN = tuple(model for model in PAIR_OF if model.startswith("qwen"))
MODELS_OF_FIGURE = {5: ("llama2-7b-chat",), 6: ("llama2-7b-chat", "llama2-13b-chat"), 7: ("llama2-13b-chat",), 8: QWEN}
"""Number of a figure -> the models that it names; Figures 1 and 4 are not known to name any."""


class Line(NamedTuple):
    """A line of the paper's tables, and the pair that is measured for it."""

    benchmark: str
    model: str  # the paper's name
    pair: str

    @property
    def name(self) -> str:
        """What records call it: the benchmark, with the model where the pair has that model."""
        return self.benchmark + suffix(self.model if PAIR_OF[self.model] == self.pair else self.pair)


def suffix(model: str) -> str:
    """Return what the names of a model's records end in; nothing for a pair that stands for every model."""
    return f"-{model}" if model in PAIR_OF else ""


def chosen_models(models: str | Sequence[str] | None, pair: str, every: bool = False) -> dict[str, str]:
    """Return the models to measure, in the paper's order: the paper's name -> pair.

    Args:
        models: names of the paper; None for all of them or for the one pair.
        pair: the pair that stands for every model, under its own name, where `models` is None.
        every: None means all models of the paper.

    Raises:
        ValueError: for another name, or none.
    """
    if models is None and not every:
        return {pair: pair}
    wanted = list(PAIR_OF) if models is None else [models] if isinstance(models, str) else list(models)
    for one in wanted or [""]:
        chosen("models", one, tuple(PAIR_OF))
    return {model: name for model, name in PAIR_OF.items() if model in wanted}


def among(measured: Mapping[str, str], wanted: Iterable[str]) -> dict[str, str]:
    """Return those of `chosen_models` that a figure of the paper has; the first one where it has none of them."""
    return {model: measured[model] for model in wanted if model in measured} or dict([*measured.items()][:1])


def table_lines(measured: Mapping[str, str]) -> list[Line]:
    """Return the lines of the paper's tables that `chosen_models` are measured for, in the paper's order.

    A pair that stands for every model has one line for each benchmark, that of the paper's smallest model.
    """
    lines = []
    for benchmark, models in published("ptd").setup["models_per_benchmark"]["value"].items():
        own = {model: measured[model] for model in models if model in measured}
        stands_in = {} if measured.keys() <= PAIR_OF.keys() else {models[0]: next(iter(measured.values()))}
        lines += [Line(benchmark, *one) for one in (own or stands_in).items()]
    return lines
