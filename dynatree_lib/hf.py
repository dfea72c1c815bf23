"""transformers' own `model.generate` with this library's trees: `model.generate(ids, custom_generate=hf.generate)`.

transformers reads its arguments and the checkpoint's generation config, and makes logits processors and stopping
criteria of them. `generate` takes these over; what it cannot honour it refuses, before any work. Rows of a batch are
decoded one after another. `options` makes arguments of `dt.generate` of the same. `recipe` is what a folder with
`custom_generate/generate.py` calls: there transformers hands on all arguments as they are.
"""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeAlias

import torch
from torch.nn.utils.rnn import pad_sequence
from transformers import GenerationMixin, PreTrainedModel
from transformers.generation import GenerateDecoderOnlyOutput, GenerationMode, logits_process
from transformers.generation.stopping_criteria import EosTokenCriteria, MaxLengthCriteria, StopStringCriteria

from . import decoding
from .checks import as_tuple, described, of_kind
from .drafters import Auto, ModelDrafter
from .drafters.base import Drafter
from .models.architecture import check_loaded, check_tokenizer
from .models.base import LanguageModel
from .models.engine import CACHE_NAMES, foreign
from .models.huggingface import HFModel
from .models.texts import Prompt, says_nothing
from .processing import answer, check_functions, met
from .sampling import Sampling
from .stopping import Stopping
from .verifiers import TokenLevel, Traversal, Verifier, default_verifier

DrafterOrClass = Drafter | Callable[..., Drafter]
"""A drafter, or the class of one, also as a `functools.partial` with options."""
Draft: TypeAlias = "PreTrainedModel | LanguageModel"

HONOURED = {"attention_mask", "position_ids", *CACHE_NAMES, "use_cache", "logits_to_keep"}
"""Arguments of the model that transformers always hands on; with their usual values they change no text."""
COUNT_CALLS = (
    logits_process.UnbatchedClassifierFreeGuidanceLogitsProcessor,
    logits_process.SynthIDTextWatermarkLogitsProcessor,
)
"""transformers' own processors whose answer depends on earlier calls."""
BY_ROW: dict[type, str] = {
    logits_process.RepetitionPenaltyLogitsProcessor: "prompt_ignore_length",
    logits_process.EncoderRepetitionPenaltyLogitsProcessor: "encoder_input_ids",
    logits_process.EncoderNoRepeatNGramLogitsProcessor: "generated_ngrams",
}
"""Processors with an entry for each row of the batch, and the attribute that has them."""

ASSISTING = (
    "num_assistant_tokens", "num_assistant_tokens_schedule", "assistant_confidence_threshold", "assistant_lookbehind",
    "target_lookbehind", "assistant_ensemble_weight", "assistant_tokenizer",
)  # fmt: skip
"""Arguments that say how transformers drafts with an assistant model."""
SAID_HERE = ("inputs", "input_ids", "attention_mask", "position_ids", "custom_generate")
"""Arguments of `model.generate` that `options` gives it."""
OUTPUTS = ("streamer", "output_scores", "output_logits", "return_dict_in_generate")
"""Arguments that say what `model.generate` gives besides the text."""

COMPARED = 16
"""Numbers of each weight that tell whether it has changed."""
WARPERS = (
    (logits_process.TopPLogitsWarper, "top_p"),
    (logits_process.TopKLogitsWarper, "top_k"),
    (logits_process.TemperatureLogitsWarper, "temperature"),
)
"""What `Sampling` does as well, the last first."""


def generate(
    model: PreTrainedModel,
    input_ids: torch.Tensor,
    logits_processor: Sequence[Any],
    stopping_criteria: Sequence[Any],
    generation_config: Any,
    draft_model: Draft | None = None,
    drafter: DrafterOrClass | None = None,
    verifier: Verifier | None = None,
    engine: str = "auto",
    streamer: Any = None,
    **model_kwargs: Any,
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """Decode for transformers: give this function to `model.generate` as `custom_generate`, with the options.

    At temperature 0 the text is that of `model.generate` without it; above, it has the same distribution. Seeds come
    from torch's global generator, so `transformers.set_seed` makes texts repeatable.

    Args:
        model: the target, in eval mode; transformers gives it and the next four.
        input_ids: (B, L) int64, rows padded on the left.
        logits_processor: what transformers made of its arguments and the generation config.
        stopping_criteria: the same.
        generation_config: the same.
        draft_model: a transformers model with the target's tokenizer, or an `HFModel`. (transformers keeps
            `assistant_model` for itself.)
        drafter: a drafter, or a class of drafters whose draft is `draft_model`. By default `Auto`, with the draft model
            where there is one.
        verifier: the verification rule; by default that of `dt.generate`, and `TokenLevel` in place of `Traversal`
            where a processor, a criterion or `prefix_allowed_tokens_fn` is not transformers' own: it may count its
            calls, or expect no text that is given up again.
        engine: what runs the forwards, as for `HFModel`.
        streamer: by default that of transformers' call, which hands no streamer to a function; or given by `partial`.
        model_kwargs: what transformers hands to models.

    Returns:
        (B, L + n) int64 token ids, rows that end early filled with `pad_token_id`. (Without an EOS token transformers
        lets a row that a stop string has ended go on until all have; here it ends.) With `return_dict_in_generate` a
        `GenerateDecoderOnlyOutput` with them, with `scores` and `logits` if asked for, float32, zeros after a row's
        end, and without a cache.

    Raises:
        TypeError, ValueError: before any work, for an argument that cannot be honoured, and whatever `HFModel` and
            `dt.generate` refuse.
    """
    check_loaded(model)
    call = _transformers_call(model)
    streamer = call.get("streamer") if streamer is None else streamer
    _check_call(call, generation_config)
    prompts = _prompts(input_ids, model_kwargs)
    check_functions("logits_processor", logits_processor)
    check_functions("stopping_criteria", stopping_criteria)
    _check_rows(prompts, logits_processor, stopping_criteria, generation_config, streamer)
    processors, warpers, sampling = _split(logits_processor, bool(generation_config.do_sample))
    target = wrapped(model, engine)
    made = _drafter(drafter, draft_model, engine)
    if verifier is None:
        verifier = default_verifier(sampling.greedy, made.drawing)
        own = any(map(_asks_user, [*processors, *stopping_criteria]))
        verifier = TokenLevel() if own and isinstance(verifier, Traversal) else verifier
    budget, eos, criteria = _endings(stopping_criteria, input_ids.shape[1], target.vocab_size)
    _check_context(target, prompts, budget)
    outputs = generation_config.return_dict_in_generate and ("scores", "logits")
    record = [name for name in outputs or () if getattr(generation_config, f"output_{name}")]
    seeds = [0] * len(prompts) if sampling.greedy else torch.randint(2**63 - 1, (len(prompts),)).tolist()
    rows = []
    for number, (prompt, ids, seed) in enumerate(zip(prompts, input_ids, seeds, strict=True)):
        of_row = [_of_row(processor, number) for processor in processors]
        row = _Row(len(ids), ids[None, : len(ids) - len(prompt)], of_row, warpers, criteria, record, streamer)
        decoding.generate(
            target,
            prompt,
            made,
            verifier=verifier,
            sampling=sampling,
            seed=seed,
            max_new_tokens=budget,
            eos_token_ids=eos,
            logits_processors=[row.process] if processors or record else [],
            stopping_criteria=[row.met] if criteria else [],
            on_tokens=row.commit,
            keep_state=False,
        )
        rows.append(row)
    if streamer is not None:
        streamer.end()
    pad = generation_config._pad_token_tensor
    texts = pad_sequence(
        [torch.tensor(row.tokens, dtype=torch.int64) for row in rows], True, 0 if pad is None else int(pad)
    )
    sequences = torch.cat([input_ids, texts.to(input_ids.device)], 1)
    if not generation_config.return_dict_in_generate:
        return sequences
    kept = {name: pad_sequence([torch.cat(row.kept[name]) for row in rows]).unbind() for name in record}
    return GenerateDecoderOnlyOutput(sequences=sequences, **kept)


def recipe(
    inputs: torch.Tensor | None = None,
    generation_config: Any = None,
    logits_processor: Sequence[Any] | None = None,
    stopping_criteria: Sequence[Any] | None = None,
    *,
    model: PreTrainedModel,
    streamer: Any = None,
    tokenizer: Any = None,
    assistant_model: Draft | None = None,
    draft_model: Draft | None = None,
    drafter: DrafterOrClass | None = None,
    verifier: Verifier | None = None,
    engine: str = "auto",
    **options: Any,
) -> torch.Tensor | GenerateDecoderOnlyOutput:
    """Decode for `custom_generate="FOLDER"`, where transformers hands on all arguments: also `stop_strings`.

    Args:
        inputs: and the next three: of `model.generate`.
        generation_config: of `model.generate`.
        logits_processor: of `model.generate`.
        stopping_criteria: of `model.generate`.
        model: the target. transformers binds it by keyword, so that ids may come first.
        streamer: of `model.generate`.
        tokenizer: of `model.generate`; `stop_strings` need it.
        assistant_model: another name of `draft_model`.
        draft_model: and the next three: as for `generate`.
        drafter: as for `generate`.
        verifier: as for `generate`.
        engine: as for `generate`.
        options: all others of `model.generate`.

    Raises:
        TypeError, ValueError: as `generate`, and for stop strings without a tokenizer.
    """
    if draft_model is not None and assistant_model is not None:
        raise ValueError(
            "Both draft_model and assistant_model were given; they are two names of the same, so give one."
        )
    _check_asked(options)
    _check_healing(model, generation_config, options)
    criteria = _with_stop_strings(stopping_criteria, model, generation_config, tokenizer, options)
    draft = assistant_model if draft_model is None else draft_model
    decode = partial(generate, draft_model=draft, drafter=drafter, verifier=verifier, engine=engine, streamer=streamer)
    return type(model).generate(
        model,
        inputs,
        generation_config=generation_config,
        logits_processor=logits_processor,
        stopping_criteria=criteria,
        streamer=streamer,
        custom_generate=decode,
        **options,
    )


def options(target: HFModel, prompt: Prompt, max_new_tokens: int | None = None, **asked: Any) -> dict[str, Any]:
    """Return arguments of `dt.generate` that do what `model.generate` is asked to, also by its generation config.

    The text of `dt.generate(target, prompt, drafter, **options(target, prompt))` is that of `generate`: its own at
    temperature 0, of its distribution above. With functions of your own among them and a drafter that draws its tokens,
    give `verifier=TokenLevel()` too: `Traversal` asks them about texts that it may give up again.

    Args:
        target: an `HFModel`.
        prompt: as for `dt.generate`, where a text begins.
        max_new_tokens: token budget; by default that of max_length or of the generation config, and 128 where none is
            asked for.
        asked: further arguments of `model.generate`, which go before the generation config; those that give more than a
            text (a streamer, scores), or say what the text begins with, are refused.

    Raises:
        TypeError, ValueError: as `generate` for arguments that cannot be honoured, and as `dt.generate` for a prompt.
    """
    of_kind("The target", target, HFModel, "wrap a transformers model as HFModel(model, tokenizer)")
    ids = decoding.checked_prompt(
        target, prompt, None, 1 if max_new_tokens is None else max_new_tokens, target.tokenizer
    )
    _refuse(
        (name for name in SAID_HERE if name in asked),
        "which options() says itself, from the target and the prompt; leave it out",
    )
    _refuse(
        (name for name in OUTPUTS if asked.get(name)),
        "and dt.generate has no such argument; leave it out (new tokens go to its argument on_tokens), or give it to "
        "model.generate with custom_generate=hf.generate",
    )
    config, criteria = asked.get("generation_config"), asked.pop("stopping_criteria", None)
    if max_new_tokens is not None:
        asked["max_new_tokens"] = max_new_tokens
    elif all(_setting(name, target.model, config, asked) is None for name in ("max_new_tokens", "max_length")):
        asked["max_new_tokens"] = 128
    _check_healing(target.model, config, asked)
    tokenizer = asked.pop("tokenizer", None) or target.tokenizer
    criteria = _with_stop_strings(criteria, target.model, config, tokenizer, asked)

    def arguments(
        model: Any, ids: Any, logits_processor: Any, stopping_criteria: Any, generation_config: Any, **given: Any
    ) -> dict[str, Any]:
        _check_call(_transformers_call(model), generation_config)
        prompts = _prompts(ids, given)
        _check_rows(prompts, logits_processor, stopping_criteria, generation_config, None)
        processors, _, sampling = _split(logits_processor, bool(generation_config.do_sample))
        budget, eos, others = _endings(stopping_criteria, ids.shape[1], target.vocab_size)
        return {
            "sampling": sampling, "max_new_tokens": budget, "eos_token_ids": eos,
            "logits_processors": processors, "stopping_criteria": others,
        }  # fmt: skip

    row = torch.tensor([ids], device=target.device)
    found: Any = target.model.generate(
        row, attention_mask=torch.ones_like(row), stopping_criteria=criteria, custom_generate=arguments, **asked
    )  # fmt: skip
    return dict(found)


# ------------------------------------------------------------------------------------- what transformers was asked for
def _setting(name: str, model: Any, config: Any, asked: dict[str, Any]) -> Any:
    """Return the value that transformers uses: an argument, even None; without one the config's, else the model's."""
    if name in asked:
        return asked[name]
    given = getattr(config, name, None)
    return getattr(model.generation_config, name, None) if given is None else given


def _with_stop_strings(
    criteria: Sequence[Any] | None, model: Any, config: Any, tokenizer: Any, asked: dict[str, Any]
) -> list[Any]:
    """Return the criteria with one for the stop strings, of the arguments `asked` or a config, which are taken out."""
    criteria = [] if criteria is None else criteria
    of_kind("stopping_criteria", criteria, Sequence, "give a list of them, also for one")
    strings = _setting("stop_strings", model, config, asked)
    if strings is None:
        return list(criteria)
    if tokenizer is None:
        raise ValueError(f"stop_strings is {strings!r} and there is no tokenizer to read them with; pass tokenizer=.")
    check_tokenizer(tokenizer)
    Stopping(1, (), as_tuple(strings), tokenizer)
    asked["stop_strings"] = None  # transformers would ask for a tokenizer that it hands to no function
    return [*criteria, StopStringCriteria(tokenizer, strings)]


def _transformers_call(model: Any) -> dict[str, Any]:
    """Return the local variables of the `model.generate` that has called this module; empty where none has.

    It hands some of its arguments to no function. A function of the user's may stand between the two.
    """
    code, frame = inspect.unwrap(GenerationMixin.generate).__code__, sys._getframe(1)
    while frame.f_back is not None:
        frame = frame.f_back
        if frame.f_code is code and frame.f_locals.get("self") is model:
            return frame.f_locals
    return {}


def _refuse(given: Iterable[str], why: str) -> None:
    """Raise ValueError for the first of these arguments, if there is one."""
    for name in given:
        raise ValueError(f"{name} was given, {why}.")


def _check_asked(asked: Mapping[str, Any]) -> None:
    _refuse(
        (name for name in ASSISTING if asked.get(name) is not None),
        "which says how transformers drafts with an assistant model; leave it out, and give a drafter with its "
        "options, such as drafter=partial(dt.FixedTree, depth=4)",
    )


def _check_healing(model: Any, config: Any, asked: dict[str, Any]) -> None:
    if _setting("token_healing", model, config, asked):
        raise ValueError(
            "token_healing is on, which changes the prompt before a text is decoded; set it to False, and give the "
            "prompt that model.heal_tokens(ids, tokenizer) returns."
        )


def _check_call(call: Mapping[str, Any], config: Any) -> None:
    """Raise ValueError for what a call of `model.generate`, or the config it made, asks for and trees do not serve."""
    _check_asked(call.get("kwargs", {}))
    if call.get("assistant_model") is not None:
        raise ValueError(
            "assistant_model was given, which transformers hands to no custom_generate function; give the same model "
            "as draft_model."
        )
    if call.get("synced_gpus"):
        raise ValueError("synced_gpus is on, and a text here is decoded by one process alone; leave it out.")
    mode = config.get_generation_mode(None)
    if mode not in (GenerationMode.GREEDY_SEARCH, GenerationMode.SAMPLE):
        raise ValueError(
            f"The arguments or the generation config ask for {mode.value.replace('_', ' ')}, and trees serve greedy "
            "search and sampling; leave out what asks for it (num_beams, penalty_alpha, dola_layers, constraints, "
            "prompt_lookup_num_tokens, assistant_early_exit, use_mtp), or leave out custom_generate."
        )
    if (config.num_return_sequences or 1) > 1:
        raise ValueError(
            f"num_return_sequences is {config.num_return_sequences}; give the prompt that many times, as rows of a "
            "batch, which are sampled independently."
        )
    if config.use_cache is False or config.cache_implementation not in (None, "dynamic"):
        raise ValueError(
            f"use_cache is {config.use_cache} and cache_implementation {config.cache_implementation!r}; trees need the "
            "library's own KV cache, so leave both out."
        )
    for name in ("output_attentions", "output_hidden_states", "prefill_chunk_size"):
        if getattr(config, name):
            raise ValueError(
                f"{name} is {getattr(config, name)}, which forwards over trees do not serve; leave it out, or leave "
                "out custom_generate."
            )


def _prompts(ids: torch.Tensor, given: dict[str, Any]) -> list[list[int]]:
    """Return the prompt of each row without its padding; ValueError for inputs that are not (B, L) ids padded left."""
    if ids.ndim != 2 or not len(ids):
        raise ValueError(f"The ids have shape {tuple(ids.shape)}; give (B, L), with a row for each text, also for one.")
    # A model that could read pictures is handed an empty dict of them.
    empty = {name for name, value in given.items() if isinstance(value, dict) and not value}
    named = {name for name, value in given.items() if not says_nothing(name, value)} - empty
    if "mm_encoder_outputs" in named:
        raise ValueError(
            "A picture or a video was given, and trees are scored from token ids alone; give text, or leave out "
            "custom_generate."
        )
    _refuse(sorted(named - HONOURED), "and trees are scored from token ids alone; leave it out")
    for name in CACHE_NAMES:
        cache = given.get(name)
        if cache is not None and (getattr(cache, "_is_user_defined", False) or cache.get_seq_length()):
            raise ValueError(
                f"{name} was given, and trees need the library's own KV cache; leave it out and give the whole text, "
                "or go on from `state` with dt.generate."
            )
    mask = given.get("attention_mask")
    mask = torch.ones_like(ids) if mask is None else mask.to(ids.device).long()
    if mask.shape != ids.shape or not bool(((mask == 0) | (mask == 1)).all() & (mask.diff(dim=1) >= 0).all()):
        raise ValueError(
            "attention_mask has to be 0 for padding on the left of a row and 1 after it, (B, L) as the ids. Where none "
            "is given, transformers takes pad tokens of the prompt for padding; give torch.ones_like(ids) if they are "
            "part of the text."
        )
    if not bool(mask[:, -1:].all()):
        raise ValueError(
            "A row of attention_mask is 0 at its end; pad prompts on the left (padding_side='left'). Where no mask is "
            "given, transformers takes pad tokens for padding."
        )
    positions, usual = given.get("position_ids"), (mask.cumsum(-1) - 1).clamp(min=0)
    if positions is not None and (
        positions.shape[-1] != usual.shape[-1]
        or (positions.ndim > 1 and positions.shape[-2] not in (1, len(usual)))
        or not bool((positions.to(ids.device) == usual).all())
    ):
        raise ValueError(
            f"position_ids, which transformers makes of the attention_mask, have shape {tuple(positions.shape)} or do "
            f"not count the tokens of a row from 0; leave them out, and give a mask of shape {tuple(ids.shape)}."
        )
    return [row[seen.bool()].tolist() for row, seen in zip(ids, mask, strict=True)]


def _is_transformers(one: Any) -> bool:
    return type(one).__module__ in (logits_process.__name__, StopStringCriteria.__module__)


def _asks_user(one: Any) -> bool:
    """Return whether a processor or criterion is a function of the user's, or calls one."""
    return not _is_transformers(one) or isinstance(one, logits_process.PrefixConstrainedLogitsProcessor)


def _check_rows(
    prompts: Sequence[Any], processors: Sequence[Any], criteria: Sequence[Any], config: Any, streamer: Any
) -> None:
    counting = [type(processor).__name__ for processor in processors if isinstance(processor, COUNT_CALLS)]
    if counting:
        raise ValueError(
            f"{counting[0]} depends on how often it was called, and trees ask about several texts; leave out "
            "guidance_scale or this watermark, or leave out custom_generate."
        )
    if len(prompts) == 1:
        return
    own = [one for one in processors if not _is_transformers(one)]
    own += [one for one in criteria if type(one) not in (MaxLengthCriteria, EosTokenCriteria, StopStringCriteria)]
    if own or streamer is not None:
        what = "A streamer" if streamer is not None else f"{type(own[0]).__name__}"
        raise ValueError(
            f"{what} was given for {len(prompts)} prompts, which are decoded one after another, so it would not see "
            "them side by side; call generate for one prompt at a time."
        )
    if config._pad_token_tensor is None and any(type(one) is not MaxLengthCriteria for one in criteria):
        raise ValueError("Texts of a batch may end at different places and there is no pad token; pass pad_token_id=.")


def _split(processors: Sequence[Any], do_sample: bool) -> tuple[list[Any], list[Any], Sampling]:
    """Split transformers' processors into those to run and, from their end, those that a `Sampling` replaces.

    Returns:
        the processors to run; the replaced ones, in order; the `Sampling`.
    """
    left, done = list(processors), list[Any]()
    if not do_sample:
        return left, done, Sampling()
    options: dict[str, Any] = {"temperature": 1.0}
    for kind, name in WARPERS:
        last = left[-1] if left else None
        usual = getattr(last, "filter_value", -torch.inf) == -torch.inf and getattr(last, "min_tokens_to_keep", 1) == 1
        if type(last) is kind and usual and getattr(last, name) > 0:
            options[name] = getattr(last, name)
            done.insert(0, left.pop())
    return left, done, Sampling(**options)


def _endings(criteria: Sequence[Any], length: int, vocab_size: int) -> tuple[int, tuple[int, ...], list[Any]]:
    """Return the token budget after a padded prompt of this length, the EOS tokens, and the other criteria.

    EOS ids that are no tokens (-1 is used for "none") end no text, as in transformers.
    """
    longest = [one.max_length for one in criteria if type(one) is MaxLengthCriteria]
    ends = [one.eos_token_id.flatten().tolist() for one in criteria if type(one) is EosTokenCriteria]
    others = [one for one in criteria if type(one) not in (MaxLengthCriteria, EosTokenCriteria)]
    eos = tuple(token for ids in ends for token in ids if 0 <= token < vocab_size)
    return max(1, min(longest) - length), eos, others


def _check_context(target: LanguageModel, prompts: Sequence[Sequence[int]], budget: int) -> None:
    longest = max(len(prompt) for prompt in prompts)
    room = target.context - longest
    if room < 1:
        raise ValueError(
            f"The longest prompt has {longest} tokens and the context of '{target.name}' is {target.context}; shorten "
            "it so that new tokens fit."
        )
    if budget > room:
        raise ValueError(
            f"{budget} new tokens were asked for, and the context of '{target.name}' ({target.context}) holds {room} "
            "after the longest prompt; give a smaller max_new_tokens or max_length."
        )


# ------------------------------------------------------------------------------------------------ models and drafters
class _Kept:
    """Each `HFModel` of a model, by engine: made once, kept in the model, left out of its copies and files.

    Args:
        weights: where the weights lay and how often torch had counted a change, when the models were made.

    Attributes:
        values: `_values` of the weights at that time, where an engine has a copy of them.
    """

    def __init__(self, weights: Any) -> None:
        self.weights, self.made = weights, dict[str, HFModel]()
        self.values: torch.Tensor | None = None

    def __reduce__(self) -> Any:
        return type(None), ()


def wrapped(model: PreTrainedModel, engine: str = "auto") -> HFModel:
    """Return the `HFModel` of a transformers model: the same as before where its weights are as they were.

    Weights have changed where they lie in other memory, or torch has counted a change. It counts none through `.data`,
    so a few numbers of each weight are compared as well, where an engine has a copy of them.

    A model with adapters or hooks runs as it is, because an engine with weights of its own would miss what they add.

    Raises:
        TypeError: for what is no loaded model.
        ValueError: for a model in training mode, and as `HFModel`.
    """
    check_loaded(model)
    if model.training:
        raise ValueError("The model is in training mode, in which dropout would change the text; call model.eval().")
    weights = [(each.data_ptr(), 0 if each.is_inference() else each._version) for each in model.parameters()]
    now = (weights, getattr(model.config, "_attn_implementation", None))
    kept: _Kept | None = getattr(model, "_dynatree", None)
    if kept is None or kept.weights != now or (kept.values is not None and not kept.values.equal(_values(model))):
        kept = model._dynatree = _Kept(now)
    if engine == "auto" and foreign(model):
        engine = "eager"
    if engine not in kept.made:
        made = kept.made[engine] = HFModel(model, engine=engine).altered(configured=True)
        if made.engine.copies_weights:
            kept.values = _values(model)
    return kept.made[engine]


@torch.no_grad()
def _values(model: PreTrainedModel) -> torch.Tensor:
    """Return up to `COMPARED` numbers of each weight, evenly spread, as bytes: NaN is equal to itself then."""
    flat = (weight.detach().flatten() for weight in model.parameters())
    return torch.cat([each[:: -(-len(each) // COMPARED) or 1] for each in flat]).view(torch.uint8)


def _drafter(drafter: DrafterOrClass | None, draft_model: Draft | None, engine: str) -> Drafter:
    draft = draft_model
    if draft is not None and not isinstance(draft, LanguageModel):
        way_out = (
            "give a loaded transformers model with the target's tokenizer, such as "
            "AutoModelForCausalLM.from_pretrained(name), or an HFModel"
        )
        of_kind("draft_model", draft, torch.nn.Module, way_out)
        draft = wrapped(draft, engine)
    if drafter is None:
        return Auto(draft)
    if isinstance(drafter, Drafter):
        if draft is not None:
            raise ValueError(
                f"A draft_model was given beside the drafter '{drafter.name}', which has all it needs; give the "
                "drafter's class, which takes the draft_model, or the drafter alone."
            )
        return drafter
    kind = getattr(drafter, "func", drafter)
    if not (isinstance(kind, type) and issubclass(kind, Drafter)) or inspect.isabstract(kind):
        raise TypeError(f"drafter is {described(drafter)}; give a drafter, or the class of one, such as dt.FixedTree.")
    optional = getattr(kind, "draft", False) is None  # its default, where it may have one
    if not optional and issubclass(kind, ModelDrafter) != (draft is not None):
        needs = "needs a draft_model, and there is none" if draft is None else "has no use for the draft_model"
        raise ValueError(f"The drafter {kind.__name__} {needs}; give both, or a drafter without a draft model alone.")
    return drafter(draft) if draft is not None else drafter()


# -------------------------------------------------------------------------------------------------- a row of the batch
@dataclass(eq=False)
class _Row:
    """A row of a batch: what its processors and criteria are asked with, and what is known of its text so far.

    They see the ids that transformers would show them, so the padding before the prompt too.

    Attributes:
        begin: tokens of its padded prompt.
        padding: (1, p) of these, the padding.
        processors: for this row, all but those that `Sampling` does the work of.
        warpers: those.
        criteria: all but length and EOS.
        record: what to keep of each step, of "scores" and "logits".
        streamer: given each token, or None.
        tokens: of its text so far.
        kept: what is recorded of each of these tokens, by name.
    """

    begin: int
    padding: torch.Tensor
    processors: Sequence[Any]
    warpers: Sequence[Any]
    criteria: Sequence[Any]
    record: Sequence[str]
    streamer: Any
    tokens: list[int] = field(default_factory=list)
    kept: dict[str, list[torch.Tensor]] = field(default_factory=dict)
    _seen: dict[tuple[int, ...], dict[str, torch.Tensor]] = field(default_factory=dict)

    def process(self, ids: torch.Tensor, logits: torch.Tensor) -> torch.Tensor:
        """Apply the row's processors in order: a logits processor of `dt.generate`."""
        ids, logits = self._padded(ids), logits.to(self.padding.device)
        new = self._new(ids)  # before a processor of the user's can write into the ids
        seen = {"logits": logits.clone().float()} if "logits" in self.record else {}
        for processor in self.processors:
            logits = answer(processor, ids, logits)
        if "scores" in self.record:
            seen["scores"] = logits
            for warper in self.warpers:
                seen["scores"] = warper(ids, seen["scores"])
            seen["scores"] = seen["scores"].float()
        self._seen[new] = seen
        return logits

    def met(self, ids: torch.Tensor, _: None) -> bool:
        """Return whether one of the row's criteria ends the text: a stopping criterion of `dt.generate`."""
        ids = self._padded(ids)
        scores = tuple(self._steps(self._new(ids), "scores")) if "scores" in self.record else None
        answers = [met(criterion, ids, scores) for criterion in self.criteria]  # transformers, too, asks each
        return any(answers)

    def commit(self, tokens: list[int]) -> None:
        """Append the tokens of an iteration to the text."""
        self.tokens += tokens
        self.kept = {name: self._steps(tuple(self.tokens), name) for name in self.record}
        self._seen = {}
        if self.streamer is not None:
            for token in tokens:
                self.streamer.put(torch.tensor([token]))

    def _padded(self, ids: torch.Tensor) -> torch.Tensor:
        return torch.cat([self.padding, ids.to(self.padding.device)], 1)

    def _new(self, ids: torch.Tensor) -> tuple[int, ...]:
        return tuple(ids[0, self.begin :].tolist())

    def _steps(self, tokens: tuple[int, ...], name: str) -> list[torch.Tensor]:
        """Return what each of these new tokens was chosen from."""
        kept = self.kept.get(name, [])
        return kept + [self._seen[tokens[:place]][name] for place in range(len(kept), len(tokens))]


def _of_row(processor: Any, number: int) -> Any:
    """Return a processor that answers for one row of the batch as this one does for all."""
    if type(processor) is logits_process.PrefixConstrainedLogitsProcessor:
        allowed = processor._prefix_allowed_tokens_fn
        return logits_process.PrefixConstrainedLogitsProcessor(lambda _, ids: allowed(number, ids), 1)
    name = BY_ROW.get(type(processor))
    if name is None or isinstance(getattr(processor, name), int | None):
        return processor
    alone = copy.copy(processor)
    setattr(alone, name, getattr(processor, name)[number : number + 1])
    if hasattr(alone, "batch_size"):
        alone.batch_size = 1
    return alone
