"""The table of methods: name -> its options and how to run it on a pair. A drafter of `ALL_DRAFTERS` joins by itself.

Options of a method are the fields of its dataclass: a drafter's hyper-parameters, or a baseline's settings.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from dynatree_lib.drafters.base import Drafter, ModelDrafter
from dynatree_lib.drafters.retokenized import Retokenized
from dynatree_lib.models.huggingface import HFModel
from dynatree_lib.models.pairs import Pair
from dynatree_lib.models.translated import TranslatedHFModel

from ..drafters import ALL_DRAFTERS, UnionTree
from ..rules import ALL_RULES
from .baselines import ARFast, HFAssisted, HFGenerate, HFPromptLookup, StreamingLLM
from .options import convert, option_defaults, option_types, parse_spec, split_specs
from .runner import DrafterRunner, Instrument, Runner, untouched

Build = Callable[[dict[str, Any], Pair, Instrument], Runner]
_RULES = {rule.name: rule for rule in ALL_RULES}
RULES: Any = Literal[("default", *_RULES)]
"""Values of the option `verifier`."""


@dataclass(frozen=True)
class Method:
    """A method the benchmark knows.

    Attributes:
        types: option name -> type.
        defaults: option name -> value where none is given.
        check: raises ValueError for option values it cannot run with; needs no model.
        build: (options, pair, instrument) -> runner.
        lossless: whether its greedy text is the target's own.
        draft: whether it uses the pair's draft model, or may (`needs_draft` tells by the options).
        traced: whether its time can be split into drafting, verifying and the rest.
        drafter: (options, draft model or None) -> its drafter; None for methods with a loop of their own.
        parts: options that name the methods whose drafters it is made of.
        common: whether its draft is the one that any library can use (`Pair.common_draft`), whatever its options.
    """

    types: dict[str, Any]
    defaults: dict[str, Any]
    check: Callable[[dict[str, Any]], Any]
    build: Build
    lossless: bool = True
    draft: bool = True
    traced: bool = True
    drafter: Callable[[dict[str, Any], Any], Drafter] | None = None
    parts: tuple[str, ...] = ()
    common: bool = False

    def needs_draft(self, options: Mapping[str, Any]) -> bool:
        """Return whether it drafts with a draft model: not with layers of the target, nor where no part has one."""
        if not self.draft or options.get("alone") or options.get("skip") is not None:
            return False
        if self.parts:
            return any(METHODS[options[part].partition(";")[0]].draft for part in self.parts)
        return True

    def draft_of(self, options: Mapping[str, Any]) -> Literal["draft", "common_draft"] | None:
        """Return the attribute of `Pair` that is the draft model it drafts with, or None."""
        if not self.needs_draft(options):
            return None
        return "common_draft" if self.common or options.get("independent") else "draft"


def _part(spec: str, model: Any) -> Drafter:
    """A drafter inside another: "token-recycling;context=1;max_nodes=60"."""
    name, _, options = spec.partition(";")
    made = variant(f"{name}:{options.replace(';', ',')}")
    if made.method.drafter is None:
        raise ValueError(f"'{name}' is no drafter, so no tree can be made of it; choose one of the drafted methods.")
    return made.method.drafter(made.options, model)


def drafted(drafter: type[Drafter], /, **parts: str) -> Method:
    """A method of this library's loop: a drafter class whose fields are the options, and some of the loop's.

    `commit` is that of `generate`, `verifier` the name of a rule ("default" is the one `generate` chooses). Where the
    drafter learns anything, with `carry` a text begins with what it learnt in the text before; a warm-up is none. With
    `independent` a drafter takes the pair's draft that reads tokens alone; with `skip` the target without these layers;
    with `retokenized` it drafts in the tokens of a draft with another tokenizer.

    A drafter whose draft model may be left out drafts without it with `alone`.

    `parts` are the fields of a drafter made of others, with the method that each is by default. As an option it is the
    method's name, and its options after semicolons.
    """
    may_draft = not issubclass(drafter, ModelDrafter) and any(one.name == "draft" for one in fields(drafter))  # type: ignore[arg-type]
    draft = issubclass(drafter, ModelDrafter) or bool(parts) or may_draft
    learns = drafter.inherit is not Drafter.inherit
    switches = ("carry",) * learns + ("independent",) * draft + ("alone",) * may_draft
    switches += ("retokenized",) * (draft and not parts and not may_draft)
    types = {"commit": Literal["gather", "rebuild"], "verifier": RULES, **dict.fromkeys(switches, bool)}
    common = {"commit": "gather", "verifier": "default", **dict.fromkeys(switches, False)}
    if draft:
        types["skip"], common["skip"] = int | tuple[int, ...] | None, None

    def make(options: dict[str, Any], model: Any) -> Drafter:
        own = {name: value for name, value in options.items() if name not in common}
        if parts:
            return drafter(**{**own, **{name: _part(own[name], model) for name in parts}})
        if not draft:
            return drafter(**own)
        if may_draft:
            return drafter(None if options.get("alone") else model, **own)  # type: ignore[call-arg]
        if not options.get("retokenized"):
            return drafter(model, **own)  # type: ignore[call-arg]
        if model is not None and not isinstance(model, TranslatedHFModel):
            raise ValueError(
                f"retokenized=true is for a draft with another tokenizer, and '{model.name}' has its target's; leave "
                "it out, or load the pair with vocabularies='intersection' (--vocabularies intersection)."
            )
        inner = drafter(None if model is None else model.untranslated, **own)  # type: ignore[call-arg]
        return Retokenized(inner, None if model is None else model.translation)  # type: ignore[arg-type]

    def drafting(options: dict[str, Any], pair: Pair) -> HFModel:
        if options.get("skip") is not None:
            skip = options["skip"]
            return pair.skipping(skip if isinstance(skip, tuple) else (skip,))
        return pair.common_draft if options.get("independent") else pair.draft

    def build(options: dict[str, Any], pair: Pair, instrument: Instrument) -> Runner:
        model = instrument(drafting(options, pair), "draft") if draft and not options.get("alone") else None
        rule = None if options["verifier"] == "default" else _RULES[options["verifier"]]()
        target, loop = instrument(pair.target, "target"), {"commit": options["commit"], "verifier": rule}
        return DrafterRunner(target, make(options, model), loop, carry=options.get("carry", False))

    return Method(
        {**dict.fromkeys(parts, str), **option_types(drafter), **types},
        {**parts, **option_defaults(drafter), **common},
        lambda options: make(options, None),  # a drafter checks its hyper-parameters when made, without its model
        build,
        draft=draft,
        drafter=make,
        parts=tuple(parts),
    )


def baseline(settings: Any, **facts: Any) -> Method:
    """A method with a settings dataclass that has `runner(pair, instrument)`."""

    def make(options: dict[str, Any]) -> Any:
        return settings(**options)

    types, defaults = option_types(settings), option_defaults(settings)
    return Method(types, defaults, make, lambda options, *given: make(options).runner(*given), **facts)


METHODS: dict[str, Method] = {
    "hf-generate": baseline(HFGenerate, draft=False, traced=False),
    "hf-assisted": baseline(HFAssisted, traced=False, common=True),
    "hf-prompt-lookup": baseline(HFPromptLookup, draft=False, traced=False),
    "ar-fast": baseline(ARFast, draft=False, traced=False),
    "streaming-llm": baseline(StreamingLLM, lossless=False, common=True),
    **{kind.name: drafted(kind) for kind in ALL_DRAFTERS},
    UnionTree.name: drafted(UnionTree, first="lookup-tree", second="token-recycling"),
}
"""Every method by name: the baselines, and every drafter."""


@dataclass(frozen=True)
class Variant:
    """A method with options, under a label of its own: one row of a benchmark's table.

    Attributes:
        label: what tables call it; unique in a run.
        name: the method's name.
        method: the table's entry, or one made for this run.
        options: all options, defaults filled in.
    """

    label: str
    name: str
    method: Method
    options: dict[str, Any] = field(default_factory=dict)

    @property
    def carries(self) -> bool:
        """Whether its texts depend on their order: each begins with what was learnt in the one before."""
        return bool(self.options.get("carry"))

    def runner(self, pair: Pair, instrument: Instrument = untouched) -> Runner:
        """The method, ready to run on this pair."""
        return self.method.build(self.options, pair, instrument)


def custom(label: str, make: Callable[[Pair, Instrument], Runner], *, name: str = "", **facts: Any) -> Variant:
    """A method that is not in the table (an ablation of a notebook, a fake of a test)."""
    method = Method({}, {}, lambda options: None, lambda options, pair, instrument: make(pair, instrument), **facts)
    return Variant(label, name or label, method)


def variant(spec: str, label: str | None = None) -> Variant:
    """One method from text such as `"fixed-tree:depth=6,branching=3,tau=0.03"`.

    Raises:
        ValueError: for an unknown method or option, or a value it cannot run with.
    """
    name, given = parse_spec(spec)
    if name not in METHODS:
        raise ValueError(f"There is no method '{name}'; choose from {', '.join(METHODS)}.")
    method = METHODS[name]
    for key in given:
        if key not in method.types:
            known = f"choose from {', '.join(method.types)}" if method.types else "leave it out, as it has none"
            raise ValueError(f"Method '{name}' has no option '{key}'; {known}.")
    options = {**method.defaults, **{key: convert(key, value, method.types[key]) for key, value in given.items()}}
    method.check(options)
    return Variant(label or spec, name, method, options)


def variants(methods: str | Sequence[str | Variant]) -> list[Variant]:
    """The methods of a run from `--methods` text, or from specs and ready variants.

    Raises:
        ValueError: for none at all, the same label twice, or what `variant` refuses.
    """
    specs: Sequence[str | Variant] = split_specs(methods) if isinstance(methods, str) else methods
    out = [spec if isinstance(spec, Variant) else variant(spec) for spec in specs]
    labels = [one.label for one in out]
    if not out:
        raise ValueError(f"No method was given; choose from {', '.join(METHODS)}.")
    for label in labels:
        if labels.count(label) > 1:
            raise ValueError(f"Method '{label}' is given twice; every method of a run needs its own label.")
    return out
