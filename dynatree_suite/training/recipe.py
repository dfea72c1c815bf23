"""Recipes: everything that decides the weights of a pair, in one JSON file.

A recipe names shapes, text parts with their sampling weights, learning rates and numbers of *steps*; it never names a
machine, a folder or a number of minutes. What only decides how fast the same steps run (device, compiling, attention
kernel) is left to the command line.
"""

from __future__ import annotations

import json
from dataclasses import asdict, astuple, dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar, get_type_hints

from dynatree_lib.checks import is_number, is_whole
from dynatree_lib.drafters.checks import require
from dynatree_lib.paths import data_path

SHAPE_KEYS = (
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "max_position_embeddings",
    "rotary_pct",
    "tie_word_embeddings",
)

T = TypeVar("T")


@dataclass(frozen=True)
class Phase:
    """`steps` optimizer steps on `batch` sequences of `length` predicted tokens, `micro_batch` of them per forward."""

    steps: int
    length: int
    batch: int
    micro_batch: int


@dataclass(frozen=True)
class ModelRecipe:
    """Shape and optimization of a model.

    `learning_rate` is Muon's, for the hidden matrices (scaled so that its updates have AdamW's root mean square);
    `embedding_learning_rate` is AdamW's, for embeddings, norms and biases. Both rise over `warmup` steps, stay, and
    fall linearly to zero over the last `decay` of all steps (a fraction).
    """

    shape: dict[str, Any]
    learning_rate: float
    embedding_learning_rate: float
    weight_decay: float
    warmup: int
    decay: float
    phases: tuple[Phase, ...]

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
class Recipe:
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

    def as_json(self) -> dict[str, Any]:
        """Return plain lists, dicts and numbers; `from_json` reads them back."""
        return json.loads(json.dumps(asdict(self)))


@dataclass(frozen=True)
class DraftRecipe:
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
    def kind(self) -> str:
        """Name of the folder that the draft lies in, beside others of its target: "draft" or "features"."""
        return "features" if self.feature_layers else "draft"

    def of_steps(self, steps: int) -> DraftRecipe:
        """Return the same recipe with so many steps."""
        return replace(self, draft=self.draft.rescaled(steps / self.draft.steps))

    def as_json(self) -> dict[str, Any]:
        """Return plain lists, dicts and numbers; `draft_from_json` reads them back."""
        return json.loads(json.dumps(asdict(self)))


def draft_from_json(values: dict[str, Any]) -> DraftRecipe:
    """Check and build a draft's recipe; ValueError names an entry that is unknown, missing or out of range."""
    draft = _optimization({"shape": {}, **values.get("draft", {})}, "draft")
    lengths = {phase.length for phase in draft.phases}
    require(len(lengths) == 1, f"The recipe's draft has phases of the lengths {sorted(lengths)}; give all one length.")
    lists = {key: tuple(values.get(key, ())) for key in ("layers", "temperatures", "feature_layers")}
    recipe = _build(DraftRecipe, {**values, **lists, "draft": draft}, "top level")
    require(recipe.layers and recipe.temperatures, "The recipe names no layers or no temperatures; give both.")
    _check_temperatures(recipe.temperatures)
    layers = [*recipe.layers, *recipe.feature_layers]
    require(all(map(is_whole, layers)), f"layers and feature_layers are {layers}; give whole numbers.")
    require(0 <= recipe.variation < 1, f"variation is {recipe.variation}; it is a weight within [0, 1).")
    steps, features = recipe.unrolled, list(recipe.feature_layers)
    fits = steps > 0 if features else steps == 0
    require(
        fits, f"unrolled is {steps} and feature_layers is {features}; give steps for a draft on features, 0 without."
    )
    require(0 <= recipe.own <= 1, f"own is {recipe.own}; it is a share within [0, 1].")
    for key in ("tokens", "limit", "batch", "files"):
        require(getattr(recipe, key) > 0, f"{key} is {getattr(recipe, key)}; give a number above 0.")
    return recipe


_SCALARS: dict[Any, tuple[Any, str]] = {
    int: (int, "a whole number"), float: ((int, float), "a number"), str: (str, "a text"),
}  # fmt: skip
"""Type of a field -> what JSON may hold there, and in words."""


def _build(kind: type[T], values: dict[str, Any], where: str) -> T:
    names = {field.name for field in fields(kind)}  # type: ignore[arg-type]
    unknown, missing = sorted(set(values) - names), sorted(names - set(values))
    require(
        not unknown and not missing,
        f"The recipe's {where} has unknown keys {unknown} and lacks {missing}; it takes exactly {sorted(names)}.",
    )
    for name, hint in get_type_hints(kind).items():
        wanted, word = _SCALARS.get(hint, (object, ""))
        sound = isinstance(values[name], wanted) and not isinstance(values[name], bool)
        require(sound, f"The recipe's {where} has {name}={values[name]!r}; give {word}.")
    return kind(**values)


def _optimization(values: dict[str, Any], where: str) -> ModelRecipe:
    phases = tuple(_build(Phase, phase, f"{where}.phases") for phase in values.get("phases", ()))
    model, about = _build(ModelRecipe, {**values, "phases": phases}, where), f"The recipe's {where}"
    require(phases, f"{about} has no phases; give at least one.")
    require(min(map(min, map(astuple, phases))) > 0, f"{about} has a phase with a number below 1: {phases}.")
    whole = all(phase.batch % phase.micro_batch == 0 for phase in phases)
    require(whole, f"{about} has a batch that is no multiple of its micro_batch.")
    require(model.warmup >= 1, f"{about} has warmup={model.warmup}; give at least 1 step.")
    require(0 <= model.decay <= 1, f"{about} has decay={model.decay}; it is a fraction of the steps within [0, 1].")
    for name in ("learning_rate", "embedding_learning_rate", "weight_decay"):
        value = getattr(model, name)
        require(value >= 0, f"{about} has {name}={value}; give a number of at least 0.")
    return model


def _model(values: dict[str, Any], where: str) -> ModelRecipe:
    model, about = _optimization(values, where), f"The recipe's {where}"
    missing = [key for key in SHAPE_KEYS if key not in model.shape]
    require(not missing, f"{about} lacks the shape entries {missing}; give all of {SHAPE_KEYS}.")
    longest, positions = max(phase.length for phase in model.phases), model.shape["max_position_embeddings"]
    require(
        longest <= positions,
        f"{about} trains on {longest} positions but its shape has only {positions}: raise max_position_embeddings.",
    )
    return model


def _check_temperatures(given: tuple[Any, ...]) -> None:
    sound = given and all(is_number(one) and one >= 0 for one in given)
    require(sound, f"temperatures are {list(given)}; give at least one, each 0 for greedy or a positive number.")


def _check_policy(policy: OnPolicy) -> None:
    for name in ("tokens", "batch", "continuation"):
        value = getattr(policy, name)
        require(value > 0, f"on_policy.{name} is {value}; give a number above 0.")
    rising = len(policy.prefix) == 2 and all(is_whole(one, 1) for one in policy.prefix)
    require(
        rising and policy.prefix[0] <= policy.prefix[1],
        f"on_policy.prefix is {list(policy.prefix)}; give the shortest and the longest prefix, at least 1 token each.",
    )
    _check_temperatures(policy.temperatures)
    require(0 <= policy.share < 1, f"on_policy.share is {policy.share}; it is a fraction of each batch within [0, 1).")


def from_json(values: dict[str, Any]) -> Recipe:
    """Check and build a recipe; ValueError names an entry that is unknown, missing or out of range."""
    policy = dict(values.get("on_policy", {}))
    policy |= {key: tuple(policy.get(key, ())) for key in ("prefix", "temperatures")}
    models = {name: _model(values.get(name, {}), name) for name in ("target", "draft")}
    on_policy = _build(OnPolicy, policy, "on_policy")
    recipe = _build(Recipe, {**values, **models, "on_policy": on_policy}, "top level")
    parts = recipe.parts
    entries, size = recipe.vocab_size, recipe.model_vocab_size
    require(parts and min(parts.values()) > 0, f"The recipe's parts are {parts}; every part needs a weight above 0.")
    require(size >= entries, f"model_vocab_size {size} is below the tokenizer's vocab_size {entries}: raise it.")
    _check_policy(on_policy)
    return recipe


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
        return draft_from_json(values) if "layers" in values else from_json(values)
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
