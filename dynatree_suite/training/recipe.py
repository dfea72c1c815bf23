"""Recipes: everything that decides the weights of what is trained, in one JSON file.

A recipe names texts, learning rates and numbers of *steps*; it never names a machine, a folder or a number of minutes.
What only decides how fast the same steps run (device, compiling, attention kernel) is left to the command line.
"""

from __future__ import annotations

import json
import math
from dataclasses import asdict, dataclass, fields, is_dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar, get_args, get_origin, get_type_hints

from dynatree_lib.checks import is_number, is_whole
from dynatree_lib.drafters.checks import require
from dynatree_lib.paths import data_path

Count = Annotated[int, 1, math.inf]
Natural = Annotated[int, 0, math.inf]
Layer = Annotated[int, -1, math.inf]
Rate = Annotated[float, 0, math.inf]
Share = Annotated[float, 0, 1]
"""Numbers of an entry, with the smallest and the largest one."""
MAY_BE_EMPTY = ("feature_layers",)

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

    @classmethod
    def load(cls, name: str, folder: Path) -> Self:
        """Load a recipe by the name of a file in a folder or by path.

        Raises:
            ValueError: when neither exists (the sentence lists the names), or the file does not hold a recipe.
        """
        path = Path(name) if name.endswith(".json") else folder / f"{name}.json"
        known = ", ".join(sorted(entry.stem for entry in folder.glob("*.json")))
        require(
            path.is_file(),
            f"There is no recipe '{name}'. Known recipes: {known}; or give the path of a .json file. `dynatree train` "
            "trains drafts alone; pairs are trained by `python3 -m tools.pair_training` in a clone.",
        )
        values = read_object(path)
        try:
            return cls.from_json(values)
        except (AttributeError, KeyError, TypeError) as error:
            raise ValueError(
                f"{path} has an entry that is no recipe's ({type(error).__name__}: {error}); compare it with {folder}."
            ) from error


@dataclass(frozen=True)
class Phase:
    """`steps` optimizer steps on `batch` sequences of `length` predicted tokens, `micro_batch` of them per forward."""

    steps: Count
    length: Count
    batch: Count
    micro_batch: Count

    def __post_init__(self) -> None:
        whole = self.batch % self.micro_batch == 0
        require(whole, f"batch {self.batch} is no multiple of its micro_batch {self.micro_batch}.")


@dataclass(frozen=True)
class ModelRecipe:
    """Optimization of a model.

    `learning_rate` is Muon's, for the hidden matrices (scaled so that its updates have AdamW's root mean square);
    `embedding_learning_rate` is AdamW's, for embeddings, norms and biases. Both rise over `warmup` steps, stay, and
    fall linearly to zero over the last `decay` of all steps (a fraction).
    """

    learning_rate: Rate
    embedding_learning_rate: Rate
    weight_decay: Rate
    warmup: Count
    decay: Share
    phases: tuple[Phase, ...]

    @property
    def steps(self) -> int:
        """Number of all optimizer steps."""
        return sum(phase.steps for phase in self.phases)

    @property
    def tokens(self) -> int:
        """Number of all predicted tokens."""
        return sum(phase.steps * phase.length * phase.batch for phase in self.phases)

    def rescaled(self, factor: float) -> Self:
        """Return the same recipe with every phase's steps multiplied by `factor` (at least one step each)."""
        phases = tuple(replace(phase, steps=max(1, round(phase.steps * factor))) for phase in self.phases)
        return replace(self, phases=phases, warmup=max(1, round(self.warmup * min(1.0, factor))))


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
    seed: Natural
    target: str
    layers: tuple[Natural, ...]
    tokens: Count
    variation: Share
    feature_layers: tuple[Layer, ...]
    unrolled: Natural
    files: Count
    own: Share
    temperatures: tuple[Rate, ...]
    limit: Count
    batch: Count
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
    needed = {part.name for part in fields(kind)}  # type: ignore[arg-type]
    unknown, missing = sorted(set(values) - needed), sorted(needed - set(values))
    about = f"The recipe's {where} has unknown keys {unknown} and lacks {missing}"
    require(not unknown and not missing, f"{about}; it takes {sorted(needed)}.")
    hints = get_type_hints(kind, include_extras=True)
    return kind(**{name: _entry(hints[name], name, value, where) for name, value in values.items()})


def _entry(hint: Any, name: str, value: Any, where: str) -> Any:
    """Return an entry as its field holds it; ValueError for one of another type, or out of range."""
    if is_dataclass(hint):
        return _build(hint, value, name)  # type: ignore[arg-type]
    about, holder = f"The recipe's {where} has {name}={value!r}", get_origin(hint)
    kind = get_args(hint)[holder is dict] if holder in (dict, tuple) else hint
    parts = list(value.values()) if holder is dict else list(value) if holder is tuple else [value]
    require(parts or name in MAY_BE_EMPTY, f"{about}; give at least one.")
    if is_dataclass(kind):
        parts = [_build(kind, part, f"{where}.{name}") for part in parts]  # type: ignore[arg-type]
    elif kind is str:
        require(isinstance(value, str), f"{about}; give a text.")
    elif kind is not Any:
        number, low, high = get_args(kind)
        word, sound = ("whole numbers", is_whole) if number is int else ("numbers", is_number)
        fits = all(sound(part) and low <= part <= high for part in parts)
        require(fits, f"{about}; give {word} from {low} to {high}.")
    return tuple(parts) if holder is tuple else value


def load_recipe(name: str) -> DraftRecipe:
    """Load a draft's recipe by the name of a file in data/recipes or by path, as `JsonRecipe.load`."""
    return DraftRecipe.load(name, data_path("recipes"))


def read_object(path: Path) -> dict[str, Any]:
    """Return the JSON object that a file holds; ValueError where it holds none."""
    try:
        values = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is damaged or no JSON ({error}); write it again.") from error
    require(isinstance(values, dict), f"{path} holds a {type(values).__name__}; write a JSON object, {{...}}.")
    return dict(values)
