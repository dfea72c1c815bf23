"""Try every architecture of the installed transformers: tiny random models, loaded and decoded.

    python3 -m tools.try_architectures [FAMILY ...] [--record FILE] [--list]

Each family that `AutoModelForCausalLM` knows, and a few that also read pictures (`PICTURES`), is made small, with
random weights, in float64 (float32 where one of its kernels has no float64), its windows shorter than the prompts. The
library then either refuses it at loading, with the reason, or its greedy texts by ten drafters are compared with those
of transformers' `generate`, and those of one drafter with eager attention. "Wrong" would be a model that is served and
writes another text. It is loaded in float32 and bfloat16, too. Without families all are tried, which takes about
half an hour; FILE gets the result, and docs/architectures.md its table of it (tools/fill_tables.py). The exit status
is 1 if one is wrong.
"""

from __future__ import annotations

import argparse
import copy
import gc
import inspect
import json
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING
from transformers.utils import logging

import dynatree_lib as dt
from dynatree_lib.models.architecture import check_architecture
from dynatree_lib.models.pairs import loader_of
from dynatree_suite.bench.environment import git_commit

FILE = Path(__file__).resolve().parents[1] / "outputs" / "reference" / "architectures.json"
LENGTHS, BUDGET, WINDOW = (3, 40, 290), 24, 8
"""Tokens of the prompts, tokens added to each, and tokens that windows and chunks are of."""
SPREAD, NOISE, NEAR, LARGEST = 0.3, 0.02, 1e-4, 2 * 10**7
"""Standard deviation of the weights, and of what a draft has added; a near-tie of float32 logits; most weights."""

SMALL: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "n_embd", "d_model", "word_embed_proj_dim", "embedding_size"), 32),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "n_inner", "dff", "shared_expert_intermediate_size"), 64),
    **dict.fromkeys(("num_hidden_layers", "n_layer", "n_layers", "num_layers"), 4),
    **dict.fromkeys(("num_attention_heads", "n_head", "n_heads"), 4),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "n_ctx", "max_seq_len", "context_length"), 600),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "moe_top_k"), 2),
    **dict.fromkeys(("moe_intermediate_size", "intermediate_size_mlp"), 32),
    **dict.fromkeys(("ffn_hidden_size", "expert_ffn_hidden_size"), 32),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank"), 16),
    **dict.fromkeys(("qk_rope_head_dim", "qk_nope_head_dim", "head_dim", "rotary_dim"), 8),
    **dict.fromkeys(("sliding_window", "attention_chunk_size", "local_attention"), WINDOW),
    **dict.fromkeys(("n_group", "topk_group", "num_expert_group"), 1),
    **dict.fromkeys(("bos_token_id", "eos_token_id", "pad_token_id"), None),
    "vocab_size": 97, "num_key_value_heads": 2, "v_head_dim": 6, "first_k_dense_replace": 1,
}  # fmt: skip
"""Sizes of the tiny models, wherever a configuration has such a field."""
LONG_FACTORS: dict[str, Any] = {
    "rope_type": "longrope", "rope_theta": 1e4,
    "short_factor": [1.0, 1.1, 1.3, 1.6], "long_factor": [1.0, 2.0, 4.0, 8.0], "original_max_position_embeddings": 320,
}  # fmt: skip
"""Rotary factors for texts up to the longest of the prompts and what is added, and others beyond."""
MIXED = ["sliding_attention", "full_attention", "sliding_attention", "full_attention"]
VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "qwen2 with windows": ("qwen2", {"use_sliding_window": True, "max_window_layers": 2}),
    "qwen3 with windows": ("qwen3", {"use_sliding_window": True, "max_window_layers": 2}),
    "mistral without windows": ("mistral", {"sliding_window": None}),
    "gpt_neox without parallel residuals": ("gpt_neox", {"use_parallel_residual": False}),
    "falcon with ALiBi": ("falcon", {"alibi": True, "new_decoder_architecture": False}),
    "lfm2 of attention layers": ("lfm2", {"layer_types": ["full_attention"] * 4}),
    "llama with dynamic rotary scaling": (
        "llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}
    ),
    "internlm3 with dynamic rotary scaling": (
        "internlm3", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 5e7, "factor": 6.0}}
    ),
    "hunyuan_v1_dense with a fixed alpha": (
        "hunyuan_v1_dense",
        {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 1.0, "alpha": 1e3}},
    ),
    "llama with longrope": ("llama", {"rope_parameters": LONG_FACTORS}),
    "phi3 with longrope": ("phi3", {"rope_parameters": LONG_FACTORS, "original_max_position_embeddings": 320}),
    "phimoe with longrope": (
        "phimoe", {"rope_parameters": {**LONG_FACTORS, "short_mscale": 1.1, "long_mscale": 1.2}}
    ),
}  # fmt: skip
"""Further configurations of a family."""
_SECTIONS: dict[str, Any] = {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}}
PICTURES: dict[str, dict[str, Any]] = {
    **{
        kind: {}
        for kind in (
            "aya_vision", "fuyu", "got_ocr2", "idefics3", "internvl", "llava", "mistral3", "paligemma", "smolvlm",
        )
    },
    "gemma3": {"tie_word_embeddings": False},
    **dict.fromkeys(("glm4v", "qwen2_5_vl", "qwen2_vl", "qwen3_vl", "qwen3_vl_moe"), _SECTIONS),
    "step3p7": {
        "layer_types": MIXED, "mlp_layer_types": ["dense", "sparse"] * 2, "num_sliding_attention_heads": 2,
        "share_expert_dim": 32, "rope_parameters": {kind: {"rope_theta": 1e4} for kind in sorted(set(MIXED))},
    },
}  # fmt: skip
"""Models that also read pictures -> what their language models need after `SMALL`; they read text alone here."""
PICTURE: dict[str, Any] = {
    **dict.fromkeys(("hidden_size", "embed_dim", "out_hidden_size"), 32),
    **dict.fromkeys(("num_attention_heads", "num_heads"), 4),
    **dict.fromkeys(("num_hidden_layers", "depth"), 1),
    "intermediate_size": 64, "image_size": 28, "patch_size": 14,
}  # fmt: skip
"""Sizes of what reads their pictures."""
OPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {"attn_layer_indices": [1, 3], "mamba_n_heads": 8, "mamba_d_head": 8},
    "camembert": {"pad_token_id": 1, "is_decoder": True},
    "bert-generation": {"is_decoder": True, "tie_word_embeddings": False},
    "cohere_compass_text": {
        "layer_types": MIXED,
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": 1e4} for kind in sorted(set(MIXED))},
    },
    "cwm": {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0},
    "data2vec-text": {"pad_token_id": 1, "is_decoder": True},
    "dbrx": {
        "attn_config": {"rope_theta": 1e4, "kv_n_heads": 2, "clip_qkv": 8},
        "ffn_config": {"ffn_hidden_size": 32, "moe_num_experts": 4, "moe_top_k": 2, "hidden_size": 32},
    },
    "dots1": {"n_shared_experts": 1},
    "gemma2": {"tie_word_embeddings": False},  # with tied tables such models repeat one token
    "gemma3_text": {"tie_word_embeddings": False},
    "gemma3n_text": {
        "layer_types": MIXED, "num_kv_shared_layers": 2, "hidden_size_per_layer_input": 8, "laurel_rank": 8,
        "vocab_size_per_layer_input": 97, "intermediate_size": 64, "activation_sparsity_pattern": None,
        "pad_token_id": 0,
    },
    "gpt_neo": {"num_heads": 4, "attention_types": [[["global", "local"], 2]], "window_size": WINDOW},
    "granitemoehybrid": {"layer_types": ["full_attention"] * 4, "mamba_n_heads": 8, "mamba_d_head": 8},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "minicpm3": {"tie_word_embeddings": False, "scale_emb": 1, "dim_model_base": 32},
    "modernbert-decoder": dict.fromkeys((f"{name}_token_id" for name in ("pad", "bos", "eos", "cls", "sep")), 0),
    "mamba2": {"num_heads": 8, "head_dim": 8, "n_groups": 1},
    "xglm": {"tie_word_embeddings": False},
    **{
        kind: {"is_decoder": True}
        for kind in (
            "bert", "big_bird", "electra", "ernie", "megatron-bert", "rembert", "roformer",
        )
    },
    **{
        kind: {"pad_token_id": 1, "is_decoder": True}
        for kind in ("roberta", "roberta-prelayernorm", "xlm-roberta", "xlm-roberta-xl", "xmod")
    },
}  # fmt: skip
"""What a family's smallest configuration needs beside `SMALL`."""


def configuration(kind: str, given: dict[str, Any]) -> Any:
    """A tiny configuration of a family, with layers of all its types."""
    maker = CONFIG_MAPPING[kind]
    if kind in PICTURES:
        return of_pictures(maker, given)
    declared = settings_of(maker)
    options = {name: value for name, value in SMALL.items() if name in declared}
    if "kv_lora_rank" in declared:  # multi-head latent attention has a key for each query head
        options["num_key_value_heads"] = options["num_attention_heads"]
    options |= OPTIONS.get(kind, {}) | given
    made = maker(**options)
    types = getattr(made, "layer_types", None)
    if types and "layer_types" not in given and set(types) == {"sliding_attention"}:
        made = maker(**options, layer_types=MIXED)
    return made


def settings_of(maker: Any) -> set[str]:
    """Names that a class of configurations takes."""
    return {*inspect.signature(maker).parameters, *getattr(maker, "attribute_map", {})}


def of_pictures(maker: Any, given: dict[str, Any]) -> Any:
    """A tiny configuration of a model that also reads pictures, around the one of its language model."""
    own, parts = maker(), {}
    for name in maker.sub_configs:
        part = type(getattr(own, name))
        if name == "text_config":
            sizes = {key: value for key, value in SMALL.items() if not key.endswith("token_id")} | given
        else:
            sizes = PICTURE
        declared = settings_of(part)
        options = {key: value for key, value in sizes.items() if key in declared}
        parts[name] = part(**options).to_dict() | {"model_type": part.model_type}
    tied = {name: value for name, value in given.items() if name == "tie_word_embeddings"}  # the whole has its own
    return maker(**parts, **tied)


def random_model(kind: str, given: dict[str, Any], dtype: torch.dtype, attention: str | None = None) -> Any:
    """A tiny model with random weights whose greedy text does not collapse to one token."""
    config = configuration(kind, given)
    loader, made = loader_of(config)
    torch.manual_seed(0)
    attention = attention or ("sdpa" if made._supports_sdpa else "eager")
    with torch.device("meta"):
        weights = sum(weight.numel() for weight in made(copy.deepcopy(config)).parameters())
    if weights > LARGEST:
        raise ValueError(f"it has {weights:,} weights here; OPTIONS has no smaller configuration")
    kernels = {"attn_implementation": attention}
    if dtype == torch.float64:
        kernels["experts_implementation"] = "eager"  # grouped_mm has no float64
    model = getattr(transformers, loader).from_config(config, **kernels).to(dtype).eval()
    model.generation_config.eos_token_id = None  # all texts have the same length
    with torch.no_grad():
        for weight in model.parameters():
            if weight.ndim > 1:
                weight.normal_(std=SPREAD)
    return model


def noisy(model: Any) -> Any:
    """A draft that agrees with a model often and not always."""
    torch.manual_seed(1)
    other = copy.deepcopy(model)
    with torch.no_grad():
        for weight in other.parameters():
            weight += torch.randn_like(weight) * NOISE
    return other


def prompts(vocabulary: int) -> list[torch.Tensor]:
    """(1, n) token ids of each of `LENGTHS`."""
    random = torch.Generator().manual_seed(0)
    return [torch.randint(vocabulary, (1, length), generator=random) for length in LENGTHS]


def greedy(model: Any, ids: torch.Tensor) -> list[int]:
    """What transformers' own greedy `generate` adds to a prompt."""
    seen = torch.ones_like(ids)
    options = {"do_sample": False, "max_new_tokens": BUDGET, "pad_token_id": 0, "eos_token_id": None}
    return model.generate(ids, attention_mask=seen, **options)[0, ids.shape[1] :].tolist()


def tried(label: str, kind: str, given: dict[str, Any]) -> dict[str, Any]:
    """Load and decode a family; the row of the record."""
    row: dict[str, Any] = {"architecture": label, "type": kind, "result": "not made"}
    try:
        check_architecture(configuration(kind, given))
    except ValueError as error:
        return {**row, "result": "refused", "reason": str(error)}
    except Exception as error:
        return {**row, "reason": _told(error)}
    for dtype in (torch.float64, torch.float32):
        try:
            model = random_model(kind, given, dtype)
        except Exception as error:
            return {**row, "reason": _told(error)}
        row |= {"dtype": str(dtype).removeprefix("torch."), "attention": model.config._attn_implementation}
        try:
            target = dt.HFModel(model)
        except (TypeError, ValueError) as error:
            if dtype is torch.float64 and _lacks_float64(error):
                continue
            if "its plain forward raised" in str(error):
                return {**row, "reason": str(error)}
            return {**row, "result": "refused", "reason": str(error)}
        try:
            expected = [greedy(model, ids) for ids in prompts(target.vocab_size)]
        except Exception as error:
            if dtype is torch.float64:
                continue
            return {**row, "reason": f"transformers' generate: {_told(error)}"}
        row |= compared(target, expected, drafters_of(dt.HFModel(noisy(model), check=False)))
        for other in (torch.float32, torch.bfloat16):
            row[str(other).removeprefix("torch.")] = engine_in(other, kind, given)
        return row | (with_eager(kind, given, dtype) if row["attention"] != "eager" else {})
    return row


def engine_in(dtype: torch.dtype, kind: str, given: dict[str, Any]) -> str:
    """The engine that serves a family in this dtype, or why it is refused."""
    try:
        return dt.HFModel(random_model(kind, given, dtype)).engine.name
    except (RuntimeError, ValueError) as error:
        return _told(error)


def with_eager(kind: str, given: dict[str, Any], dtype: torch.dtype) -> dict[str, Any]:
    """Return a row's parts on eager attention: how many texts of one drafter are transformers' own, or why none."""
    try:
        model = random_model(kind, given, dtype, "eager")
        target = dt.HFModel(model)
        expected = [greedy(model, ids) for ids in prompts(target.vocab_size)]
    except (RuntimeError, TypeError, ValueError) as error:
        return {"with eager attention": _told(error)}
    found = compared(target, expected, [dt.FixedTree(dt.HFModel(noisy(model), check=False), tau=None)])
    same = f"{found['texts'] - found['ties']} of {found['texts']}"
    wrong = {name: found[name] for name in ("result", "reason") if found["result"] == "wrong"}
    return {"with eager attention": same, **wrong}


def drafters_of(draft: dt.HFModel) -> list[dt.Drafter]:
    """The ten drafters that are tried; a draft model's trees first."""
    return [
        dt.FixedTree(draft, tau=None), dt.AdaptiveTree(draft), dt.Chain(draft), dt.BestFirstTree(draft),
        dt.CostAwareTree(draft), dt.LookupTree(draft), dt.ProgressiveTree(), dt.PromptLookup(), dt.SuffixTree(),
        dt.TokenRecycling(),
    ]  # fmt: skip


def compared(target: dt.HFModel, expected: list[list[int]], drafters: list[dt.Drafter]) -> dict[str, Any]:
    """Decode by drafters and count the texts that are transformers' own."""
    texts, ties, wrong, accepted, nodes = 0, 0, [], 0, 0
    for drafter in drafters:
        for ids, text in zip(prompts(target.vocab_size), expected, strict=True):
            out = dt.generate(target, ids, drafter, max_new_tokens=BUDGET, eos_token_ids=())
            texts += 1
            accepted += sum(len(one.verdict.path) for one in out.iterations)
            nodes += sum(len(one.tree) - 1 for one in out.iterations)
            if out.tokens == text:
                continue
            if _near_tie(target, ids, out.tokens, text):
                ties += 1
            else:
                wrong.append(f"{drafter.name} after {ids.shape[1]} tokens")
    row = {
        "result": "wrong" if wrong else "served", "texts": texts, "ties": ties, "accepted": accepted, "drafted": nodes,
        "distinct": max(len(set(text)) for text in expected),
    }  # fmt: skip
    return row | ({"reason": "; ".join(wrong)} if wrong else {})


def _near_tie(target: dt.HFModel, ids: torch.Tensor, found: list[int], text: list[int]) -> bool:
    """Whether the first token that differs is, to the target itself, as good as the expected one up to rounding."""
    if target.dtype == torch.float64 or len(found) != len(text):
        return False
    first = next(place for place, pair in enumerate(zip(found, text, strict=True)) if pair[0] != pair[1])
    read = torch.cat([ids, torch.tensor([text[:first]], dtype=torch.int64)], 1)
    logits = target.model(read, use_cache=False).logits[0, -1].float()
    gap = abs(float(logits[found[first]] - logits[text[first]]))
    return gap < max(NEAR, 2 * torch.finfo(target.dtype).eps * float(logits.abs().max()))


def _lacks_float64(error: Exception) -> bool:
    return any(word in str(error) for word in ("Double", "double", "float64", "dtype", "overflow"))


def _told(error: Exception) -> str:
    first = (str(error).strip().splitlines() or [""])[0]
    return f"{type(error).__name__}: {first}"[:300]


def families() -> dict[str, tuple[str, dict[str, Any]]]:
    """Label -> type of configuration and options, of all families and variants."""
    parts = {config.model_type: getattr(config, "sub_configs", {}) for config in MODEL_FOR_CAUSAL_LM_MAPPING}
    texts = sorted(kind for kind, part in parts.items() if "text_config" not in part)  # that part has a type of its own
    pictures = {f"{kind}, text alone": (kind, options) for kind, options in PICTURES.items()}
    return {kind: (kind, {}) for kind in texts} | VARIANTS | pictures


def rows(wanted: list[str]) -> Iterator[dict[str, Any]]:
    """Try the families of these names, or all."""
    known = families()
    unknown = [name for name in wanted if name not in known]
    if unknown:
        raise SystemExit(f"There is no architecture {unknown[0]!r} here; --list shows their names.")
    for label in wanted or sorted(known):
        yield tried(label, *known[label])
        gc.collect()


def write(record: Path, row: dict[str, Any]) -> None:
    """Put a row into a record, in the place of an earlier one of this architecture."""
    body = json.loads(record.read_text(encoding="utf-8")) if record.exists() else {"rows": []}
    others = [one for one in body["rows"] if one["architecture"] != row["architecture"]]
    body["rows"] = sorted([*others, row | {"commit": git_commit()}], key=lambda one: one["architecture"])
    versions = {"transformers": transformers.__version__, "torch": torch.__version__.split("+")[0]}
    setup = {"prompts": LENGTHS, "max_new_tokens": BUDGET, "window": WINDOW, **versions}
    lines = ",\n".join("  " + json.dumps(one, ensure_ascii=False) for one in body["rows"])
    record.write_text(f'{{"setup": {json.dumps(setup)},\n "rows": [\n{lines}\n]}}\n', encoding="utf-8")


def main() -> int:
    """Try, print a line for each, write the record."""
    options = argparse.ArgumentParser(description="Try every architecture of the installed transformers.")
    options.add_argument("family", nargs="*", help="types of configurations, as in config.json; all by default")
    options.add_argument("--record", type=Path, help=f"file to write ({FILE.name}); with families, their rows in it")
    options.add_argument("--list", action="store_true", help="print the names and end")
    asked = options.parse_args()
    if asked.list:
        sys.stdout.write("\n".join(sorted(families())) + "\n")
        return 0
    logging.set_verbosity_error()
    warnings.simplefilter("ignore")
    if asked.record and not asked.family:
        asked.record.unlink(missing_ok=True)
    found = []
    for row in rows(asked.family):
        found.append(row)
        sys.stdout.write(f"{row['result']:9} {row['architecture']:30} {row.get('reason', '')[:150]}\n")
        sys.stdout.flush()
        if asked.record:  # after each, because a large family may use up the memory
            write(asked.record, row)
    counts = {kind: sum(row["result"] == kind for row in found) for kind in ("served", "refused", "wrong", "not made")}
    sys.stdout.write(", ".join(f"{count} {kind}" for kind, count in counts.items()) + "\n")
    return int(counts["wrong"] > 0)


if __name__ == "__main__":
    sys.exit(main())
