"""The recipe of a pair: shapes, text parts with their sampling weights, and how both models are trained."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from dynatree_lib.drafters.checks import require
from dynatree_suite.training.recipe import Count, JsonRecipe, ModelRecipe, Natural, Rate

SHAPE_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
    "rotary_pct", "tie_word_embeddings",
)  # fmt: skip


@dataclass(frozen=True)
class FreshModel(ModelRecipe):
    """Optimization and shape of a model that is made anew."""

    shape: dict[str, Any]


@dataclass(frozen=True)
class OnPolicy:
    """Text that the target writes for the draft to learn from.

    `tokens` in all (continuations only), `batch` sequences at a time, each continuing a prefix of `prefix` (shortest,
    longest) tokens of training text by `continuation` tokens; `temperatures` are dealt out in turn, 0 is greedy.
    A fraction `share` of each draft batch is this text.
    """

    tokens: Count
    batch: Count
    prefix: tuple[Count, Count]
    continuation: Count
    temperatures: tuple[Rate, ...]
    share: Annotated[float, 0, 0.99]


@dataclass(frozen=True)
class Recipe(JsonRecipe):
    """A whole pair: tokenizer, mixture, target, draft."""

    name: str
    about: str
    seed: Natural
    vocab_size: Count
    model_vocab_size: Count
    tokenizer_bytes: Count
    parts: dict[str, Annotated[float, 1e-6, math.inf]]
    target: FreshModel
    draft: FreshModel
    on_policy: OnPolicy

    def rescaled(self, target: float, draft: float) -> Recipe:
        """Return the same recipe with the steps of both models multiplied, as `ModelRecipe.rescaled`."""
        return replace(self, target=self.target.rescaled(target), draft=self.draft.rescaled(draft))

    def of_steps(self, steps: int) -> Recipe:
        """Return the same recipe with so many steps of the target, and the draft's in proportion."""
        return self.rescaled(steps / self.target.steps, steps / self.target.steps)

    def __post_init__(self) -> None:
        entries, size, prefix = self.vocab_size, self.model_vocab_size, self.on_policy.prefix
        require(size >= entries, f"model_vocab_size {size} is below the tokenizer's vocab_size {entries}: raise it.")
        rising = len(prefix) == 2 and prefix[0] <= prefix[1]
        require(rising, f"on_policy.prefix is {list(prefix)}; give the shortest and the longest prefix.")
        for name, model in (("target", self.target), ("draft", self.draft)):
            missing = [key for key in SHAPE_KEYS if key not in model.shape]
            require(not missing, f"The recipe's {name} lacks the shape entries {missing}; give all of {SHAPE_KEYS}.")
            longest, positions = max(phase.length for phase in model.phases), model.shape["max_position_embeddings"]
            require(
                longest <= positions,
                f"The recipe's {name} trains on {longest} positions but its shape has only {positions}: raise "
                "max_position_embeddings.",
            )


def load_recipe(name: str) -> Recipe:
    """Load a pair's recipe by the name of a file in recipes/ beside this module or by path, as `JsonRecipe.load`."""
    return Recipe.load(name, Path(__file__).with_name("recipes"))
