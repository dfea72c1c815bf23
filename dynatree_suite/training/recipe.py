"""Recipes: everything that decides the weights of a pair, in one JSON file.

A recipe names shapes, text parts with their sampling weights, learning rates and numbers of *steps*; it never names a
machine, a folder or a number of minutes. What only decides how fast the same steps run (device, compiling, attention
kernel) is left to the command line.
"""

from __future__ import annotations

import json
import math
from dataclasses import MISSING, asdict, dataclass, field, fields, is_dataclass, replace
from pathlib import Path
from typing import Any, Self, TypeVar, get_args, get_origin, get_type_hints

from dynatree_lib.checks import is_number, is_whole
from dynatree_lib.drafters.checks import require
from dynatree_lib.paths import data_path

SHAPE_KEYS = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "max_position_embeddings",
    "rotary_pct", "tie_word_embeddings",
)  # fmt: skip
LOWEST = {"seed": 0, "layers": 0, "unrolled": 0, "feature_layers": -1, "parts": 1e-6}
HIGHEST = {"decay": 1, "own": 1, "variation": 1, "share": 0.99}
"""Entry -> the smallest and the largest number in it; where none is named, whole numbers begin at 1, others at 0."""
MAY_BE_EMPTY = ("shape", "feature_layers")

T = TypeVar("T")


class JsonRecipe:
    """A recipe that is read from JSON and written as such."""

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> Self:
        """Check and build a recipe; ValueError names an entry that is unknown, missing or out of range."""
        return _build(cls, values, "top level")

    def as_json(self) -> dict[str, Any]:
        """Return plain lists, dicts and numbers; `from_json` reads them back."""
        return dict(json.loads(json.dumps(asdict(self))))  # type: ignore[call-overload]


@dataclass(frozen=True)
class Phase:
    """`steps` optimizer steps on `batch` sequences of `length` predicted tokens, `micro_batch` of them per forward."""

    steps: int
    length: int
    batch: int
    micro_batch: int

    def __post_init__(self) -> None:
        whole = self.batch % self.micro_batch == 0
        require(whole, f"batch {self.batch} is no multiple of its micro_batch {self.micro_batch}.")


@dataclass(frozen=True)
class ModelRecipe:
    """Shape and optimization of a model; one that exists has no shape here.

    `learning_rate` is Muon's, for the hidden matrices (scaled so that its updates have AdamW's root mean square);
    `embedding_learning_rate` is AdamW's, for embeddings, norms and biases. Both rise over `warmup` steps, stay, and
    fall linearly to zero over the last `decay` of all steps (a fraction).
    """

    learning_rate: float
    embedding_learning_rate: float
    weight_decay: float
    warmup: int
    decay: float
    phases: tuple[Phase, ...]
    shape: dict[str, Any] = field(default_factory=dict)

    @property
    def steps(self) -> int:
        """Number of all optimizer steps."""
        return sum(phase.steps for phase in self.phases)

    @property
    def tokens(self) -> int:
        """Number of all predicted tokens."""
        return sum(phase.steps * phase.length * phase.batch for phase in self.phases)

    def rescaled(self, factor: float) -> ModelRecipe:
        """Return the same recipe with every phase's steps multiplied by `factor` (at least one step each)."""
        phases = tuple(replace(phase, steps=max(1, round(phase.steps * factor))) for phase in self.phases)
        return replace(self, phases=phases, warmup=max(1, round(self.warmup * min(1.0, factor))))


@dataclass(frozen=True)
class OnPolicy:
    """Text that the target writes for the draft to learn from.

    `tokens` in all (continuations only), `batch` sequences at a time, each continuing a prefix of `prefix` (shortest,
    longest) tokens of training text by `continuation` tokens; `temperatures` are dealt out in turn, 0 is greedy.
    A fraction `share` of each draft batch is this text.
    """

    tokens: int
    batch: int
    prefix: tuple[int, int]
    continuation: int
    temperatures: tuple[float, ...]
    share: float


@dataclass(frozen=True)
class Recipe(JsonRecipe):
    """A whole pair: tokenizer, mixture, target, draft."""

    name: str
    about: str
    seed: int
    vocab_size: int
    model_vocab_size: int
    tokenizer_bytes: int
    parts: dict[str, float]
    target: ModelRecipe
    draft: ModelRecipe
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


@dataclass(frozen=True)
class DraftRecipe(JsonRecipe):
    """A draft for a model that exists: some of its layers, trained on its own answers.

    Attributes:
        name, about, seed: of the recipe.
        target: name of a packaged model (`models.fetch.PACKAGED`).
        layers: numbers of the target's layers that the draft begins with.
        tokens: most frequent tokens that it drafts.
        variation: weight of the total variation distance in the loss.
        feature_layers: of a draft on features, as `pruned.on_features` counts them; none for one that reads tokens.
        unrolled: steps that a draft on features learns (`training.losses`), each with 0.8 of the weight of the one
            before; 0 for one that reads tokens alone.
        files: of answers, three batches each; more can be written later.
        own: share of the prompts that are user turns which the target writes itself; the others come from data sets
            and templates.
        temperatures: of the answers, dealt out in turn; 0 is greedy.
        limit: tokens of an answer.
        batch: prompts answered at a time.
        draft: the optimization; its phases count windows of `length` tokens of the answers, all of one length.
    """

    name: str
    about: str
    seed: int
    target: str
    layers: tuple[int, ...]
    tokens: int
    variation: float
    feature_layers: tuple[int, ...]
    unrolled: int
    files: int
    own: float
    temperatures: tuple[float, ...]
    limit: int
    batch: int
    draft: ModelRecipe

    @property
    def length(self) -> int:
        """Tokens of a window of the answers."""
        return self.draft.phases[0].length

    @property
    def kind(self) -> str:
        """Name of the folder that the draft lies in, beside others of its target: "draft" or "features"."""
        return "features" if self.feature_layers else "draft"

    def of_steps(self, steps: int) -> DraftRecipe:
        """Return the same recipe with so many steps."""
        return replace(self, draft=self.draft.rescaled(steps / self.draft.steps))

    def __post_init__(self) -> None:
        lengths = sorted({phase.length for phase in self.draft.phases})
        require(len(lengths) == 1, f"The recipe's draft has phases of the lengths {lengths}; give all one length.")
        steps, features = self.unrolled, list(self.feature_layers)
        way_out = "give steps for a draft on features, 0 without"
        require(bool(steps) == bool(features), f"unrolled is {steps} and feature_layers is {features}; {way_out}.")


def _build(kind: type[T], values: dict[str, Any], where: str) -> T:
    """Build a dataclass, and those that it is made of, of parsed JSON; `where` names it in messages."""
    parts = fields(kind)  # type: ignore[arg-type]
    needed = {part.name for part in parts if part.default_factory is MISSING}
    unknown, missing = sorted(set(values) - {part.name for part in parts}), sorted(needed - set(values))
    about = f"The recipe's {where} has unknown keys {unknown} and lacks {missing}"
    require(not unknown and not missing, f"{about}; it takes {sorted(needed)}.")
    hints = get_type_hints(kind)
    return kind(**{name: _entry(hints[name], name, value, where) for name, value in values.items()})


def _entry(hint: Any, name: str, value: Any, where: str) -> Any:
    """Return an entry as its field holds it; ValueError for one of another type, or out of range."""
    if is_dataclass(hint):
        return _build(hint, value, name)  # type: ignore[arg-type]
    about, holder = f"The recipe's {where} has {name}={value!r}", get_origin(hint)
    kind = get_args(hint)[holder is dict] if holder else hint
    parts = list(value.values()) if holder is dict else list(value) if holder is tuple else [value]
    require(parts or name in MAY_BE_EMPTY, f"{about}; give at least one.")
    if is_dataclass(kind):
        parts = [_build(kind, part, f"{where}.{name}") for part in parts]  # type: ignore[arg-type]
    elif kind is str:
        require(isinstance(value, str), f"{about}; give a text.")
    elif kind is not Any:
        low, high = LOWEST.get(name, int(kind is int)), HIGHEST.get(name, math.inf)
        word, sound = ("whole numbers", is_whole) if kind is int else ("numbers", is_number)
        fits = all(sound(part) and low <= part <= high for part in parts)
        require(fits, f"{about}; give {word} from {low} to {high}.")
    return tuple(parts) if holder is tuple else value


def load_recipe(name: str) -> Recipe | DraftRecipe:
    """Load a recipe by the name of a file in data/recipes or by path.

    Raises:
        ValueError: when neither exists (the sentence lists the names), or the file does not hold a recipe.
    """
    folder = data_path("recipes")
    path = Path(name) if name.endswith(".json") else folder / f"{name}.json"
    known = ", ".join(sorted(entry.stem for entry in folder.glob("*.json")))
    require(path.is_file(), f"There is no recipe '{name}'. Known recipes: {known}; or give the path of a .json file.")
    values = read_object(path)
    try:
        return DraftRecipe.from_json(values) if "layers" in values else Recipe.from_json(values)
    except (AttributeError, KeyError, TypeError) as error:
        raise ValueError(
            f"{path} has an entry that is no recipe's ({type(error).__name__}: {error}); compare it with {folder}."
        ) from error


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds; ValueError where it holds none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or no JSON ({error}); write it again.") from error
    require(isinstance(values, dict), f"{path} holds a {type(values).__name__}; write a JSON object, {{...}}.")
    return dict(values)
