"""Make a stand-in of the hub: tiny random models and invented texts, named and laid out as the papers' own.

python3 -m tools.stand_ins FOLDER

With DYNATREE_MODELS=FOLDER/models and DYNATREE_DATA=FOLDER/data every pair of `PAIRS` and every data set of `DATA_SETS`
loads. So what is written for them runs where no hub can be reached. Architectures, vocabulary sizes, contexts, special
tokens and generation settings are those of the hub, as is the layout of files, of which some models have *.bin alone.
Texts and speeds mean nothing. Embeddings of the larger vocabularies are tied to save disk (60 MB in all).
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from dynatree_lib.paths import data_path

from .invented_texts import make_data

Row = dict[str, Any]

# ---------------------------------------------------------------------------------------------------------- tokenizers
LLAMA_2_CHAT = (
    "{{ bos_token }}{% for message in messages %}{% if message['role'] == 'user' %}[INST] {{ message['content'] }} "
    "[/INST]{% else %} {{ message['content'] }} {% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}"
    "{% endif %}{% endfor %}"
)
LLAMA_3_CHAT = (
    "{{ bos_token }}{% for message in messages %}<|start_header_id|>{{ message['role'] }}<|end_header_id|>\n\n"
    "{{ message['content'] }}<|eot_id|>{% endfor %}{% if add_generation_prompt %}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
TOKENIZER = "tokenizer.json"


def bundled_tokenizer() -> Row:
    """Return the bundled pair's tokenizer as its file has it."""
    found: Row = json.loads(data_path("tiny", "target", TOKENIZER).read_text(encoding="utf-8"))
    return found


@cache
def plain_tokens() -> tuple[str, ...]:
    """Return the tokens that texts are made of."""
    whole = bundled_tokenizer()
    special = {token["content"] for token in whole["added_tokens"]}
    return tuple(token for token in whole["model"]["vocab"] if token not in special)


@dataclass(frozen=True)
class Tokens:
    """A tokenizer: the bundled pair's tokens around the special ones, and others that no text has, up to the size.

    Attributes:
        size: number of tokens.
        special: id of each special token.
        begin, end, pad: which of them begin a text, end a text or reply, and pad.
        begun: whether the tokenizer puts `begin` before a text.
        chat: the template of chat models.
    """

    size: int
    special: dict[str, int]
    end: str
    begin: str | None = None
    pad: str | None = None
    begun: bool = False
    chat: str | None = None

    def about(self, chat: bool) -> Row:
        """The content of tokenizer_config.json, for chat models with the template."""
        template = {"chat_template": self.chat} if chat and self.chat else {}
        return {
            "tokenizer_class": "PreTrainedTokenizerFast", "bos_token": self.begin, "eos_token": self.end,
            "pad_token": self.pad, "clean_up_tokenization_spaces": False, **template,
        }  # fmt: skip

    def whole(self) -> Row:
        """The content of tokenizer.json."""
        whole = bundled_tokenizer()
        plain, taken = iter(plain_tokens()), {number: name for name, number in self.special.items()}
        names = (taken.get(number) or next(plain, f"<|{number}|>") for number in range(self.size))
        whole["model"]["vocab"] = {name: number for number, name in enumerate(names)}
        fixed = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
        whole["added_tokens"] = [{"id": number, "content": name, **fixed} for name, number in self.special.items()]
        if self.begun and self.begin:
            before = {"SpecialToken": {"id": self.begin, "type_id": 0}}
            for kind in ("single", "pair"):
                whole["post_processor"][kind].insert(0, before)
            known = {"id": self.begin, "ids": [self.special[self.begin]], "tokens": [self.begin]}
            whole["post_processor"]["special_tokens"] = {self.begin: known}
        return whole


def _numbered(first: int, *names: str) -> dict[str, int]:
    return {name: first + place for place, name in enumerate(names)}


_LLAMA_2 = _numbered(0, "<unk>", "<s>", "</s>")
_LLAMA_3 = {
    "<|begin_of_text|>": 128000, "<|end_of_text|>": 128001, "<|start_header_id|>": 128006, "<|end_header_id|>": 128007,
    "<|eom_id|>": 128008, "<|eot_id|>": 128009,
}  # fmt: skip
_IM = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
TOKENS = {
    "pythia": Tokens(50277, _numbered(0, "<|endoftext|>", "<|padding|>"), "<|endoftext|>", "<|endoftext|>"),
    "llama-2": Tokens(32000, _LLAMA_2, "</s>", "<s>", begun=True, chat=LLAMA_2_CHAT),
    "codellama": Tokens(32016, _LLAMA_2, "</s>", "<s>", begun=True, chat=LLAMA_2_CHAT),
    "llama-3": Tokens(128256, _LLAMA_3, "<|eot_id|>", "<|begin_of_text|>", begun=True, chat=LLAMA_3_CHAT),
    "qwen2.5": Tokens(151665, _numbered(151643, *_IM), "<|im_end|>", pad="<|endoftext|>", chat=CHATML),
    "smollm2": Tokens(49152, _numbered(0, *_IM), "<|im_end|>", "<|im_start|>", "<|im_end|>", chat=CHATML),
}


# -------------------------------------------------------------------------------------------------------------- models
@dataclass(frozen=True)
class StandIn:
    """A model that stands for one of the hub.

    Attributes:
        tokens: its tokenizer, one of `TOKENS`.
        rows: of its embeddings; padded ones have more than the tokenizer.
        context: tokens.
        config: further entries of config.json.
        family: of random weights; models of one differ by a little noise.
        layers: 2 for targets, 1 for drafts.
        chat: whether it has the chat template.
        generation: further entries of generation_config.json.
        parts: files that the weights are in.
        pickled: whether they are *.bin files.
    """

    tokens: str
    rows: int
    context: int
    config: Row
    family: str
    layers: int = 2
    chat: bool = True
    generation: Row = field(default_factory=dict)
    parts: int = 1
    pickled: bool = False


WIDTH = 16
"""Of hidden states. So most of a model's file are its embeddings, which have the hub's number of rows."""
_NEOX = {
    "architectures": ["GPTNeoXForCausalLM"], "model_type": "gpt_neox", "hidden_act": "gelu", "rotary_pct": 0.25,
    "rotary_emb_base": 10000, "layer_norm_eps": 1e-05, "use_parallel_residual": True, "tie_word_embeddings": False,
    "bos_token_id": 0, "eos_token_id": 0, "torch_dtype": "float16",
}  # fmt: skip
_LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_act": "silu", "rms_norm_eps": 1e-05,
    "num_key_value_heads": 2, "tie_word_embeddings": False, "bos_token_id": 1, "eos_token_id": 2,
    "torch_dtype": "float16",
}  # fmt: skip
_CODE = _LLAMA | {"rope_theta": 1000000, "torch_dtype": "bfloat16"}
_SCALING = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}  # fmt: skip
_LLAMA_31 = _LLAMA | {
    "num_key_value_heads": 1, "rope_theta": 500000.0, "rope_scaling": _SCALING, "tie_word_embeddings": True,
    "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009], "torch_dtype": "bfloat16",
}  # fmt: skip
_QWEN = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_act": "silu", "rms_norm_eps": 1e-06,
    "num_key_value_heads": 1, "rope_theta": 1000000.0, "tie_word_embeddings": True, "use_sliding_window": False,
    "sliding_window": 32768, "max_window_layers": 2, "bos_token_id": 151643, "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}  # fmt: skip
_SMOL = _LLAMA | {
    "num_key_value_heads": 1, "rope_theta": 100000, "tie_word_embeddings": True, "bos_token_id": 1, "eos_token_id": 2,
    "pad_token_id": 2, "torch_dtype": "bfloat16",
}  # fmt: skip
_WARM = {"do_sample": True, "temperature": 0.6, "top_p": 0.9}
_LLAMA_3_WARM = {**_WARM, "bos_token_id": 128000, "eos_token_id": [128001, 128008, 128009]}
_QWEN_WARM = {
    "do_sample": True, "temperature": 0.7, "top_p": 0.8, "top_k": 20, "repetition_penalty": 1.05,
    "bos_token_id": 151643, "pad_token_id": 151643, "eos_token_id": [151645, 151643],
}  # fmt: skip


def _qwen(rows: int, layers: int = 2, penalty: float = 1.05) -> StandIn:
    generation = _QWEN_WARM | {"repetition_penalty": penalty}
    return StandIn("qwen2.5", rows, 32768, _QWEN, "qwen2.5", layers, generation=generation)


MODELS = {
    "EleutherAI/pythia-2.8b": StandIn("pythia", 50304, 2048, _NEOX, "pythia", chat=False),
    "EleutherAI/pythia-70m": StandIn("pythia", 50304, 2048, _NEOX, "pythia", 1, chat=False),
    "meta-llama/Llama-3.1-8B-Instruct": StandIn(
        "llama-3", 128256, 131072, _LLAMA_31, "llama-3", generation=_LLAMA_3_WARM, parts=4
    ),
    "meta-llama/Llama-3.2-1B-Instruct": StandIn(
        "llama-3", 128256, 131072, _LLAMA_31, "llama-3", 1, generation=_LLAMA_3_WARM
    ),
    "meta-llama/Llama-2-7b-hf": StandIn("llama-2", 32000, 4096, _LLAMA, "llama-2", chat=False, generation=_WARM),
    "meta-llama/Llama-2-7b-chat-hf": StandIn("llama-2", 32000, 4096, _LLAMA, "llama-2", generation=_WARM),
    "meta-llama/Llama-2-13b-chat-hf": StandIn("llama-2", 32000, 4096, _LLAMA, "llama-2", generation=_WARM),
    "codellama/CodeLlama-7b-Instruct-hf": StandIn("codellama", 32016, 16384, _CODE, "llama-2"),
    "codellama/CodeLlama-13b-Instruct-hf": StandIn(
        "codellama", 32016, 16384, _CODE, "llama-2", parts=3, pickled=True
    ),
    "JackFram/llama-68m": StandIn(
        "llama-2", 32000, 2048, _LLAMA | {"bos_token_id": 0, "pad_token_id": 1, "torch_dtype": "float32"}, "llama-2", 1,
        chat=False, pickled=True,
    ),
    "Qwen/Qwen2.5-7B-Instruct": _qwen(152064),
    "Qwen/Qwen2.5-14B-Instruct": _qwen(152064),
    "Qwen/Qwen2.5-32B-Instruct": _qwen(152064),
    "Qwen/Qwen2.5-0.5B-Instruct": _qwen(151936, 1, 1.1),
    "HuggingFaceTB/SmolLM2-360M-Instruct": StandIn("smollm2", 49152, 8192, _SMOL, "smollm2"),
    "HuggingFaceTB/SmolLM2-135M-Instruct": StandIn("smollm2", 49152, 8192, _SMOL, "smollm2", 1),
}  # fmt: skip
"""Every model that `PAIRS` names on the hub, and two small ones of one family."""
GATED = "meta-llama/GATED-example"
"""A repository without its files, as a refused download leaves it."""
NOISE = 0.02
"""How far a model's weights are from those of its family, in standard deviations."""
LATE = 0.2
"""What the second layer, which drafts lack, adds in comparison with the first."""
RARE = 0.2
"""The length of the rows of special tokens, and of those that no text has, in comparison with others."""


def make_models(folder: Path) -> None:
    """Write the models into a folder, as ORGANISATION/NAME."""
    tokenizers: dict[str, Path] = {}
    for name, model in MODELS.items():
        place = folder / name
        place.mkdir(parents=True)
        tokens = TOKENS[model.tokens]
        if model.tokens in tokenizers:
            link(tokenizers[model.tokens], place / TOKENIZER)
        else:
            tokenizers[model.tokens] = place / TOKENIZER
            write_json(place / TOKENIZER, tokens.whole())
        write_json(place / "tokenizer_config.json", tokens.about(model.chat))
        shape = {
            "vocab_size": model.rows, "max_position_embeddings": model.context, "num_hidden_layers": model.layers,
            "hidden_size": WIDTH, "intermediate_size": 2 * WIDTH, "num_attention_heads": 2,
        }  # fmt: skip
        write_json(place / "config.json", {**model.config, **shape})
        ends = {key: model.config[key] for key in ("bos_token_id", "eos_token_id")}
        write_json(place / "generation_config.json", {**ends, **model.generation})
        write_weights(place, weights(name, model, place), model.parts, model.pickled)
    (folder / GATED).mkdir(parents=True)
    (folder / GATED / "README.md").write_text("This model is gated: ask for access to it.\n", encoding="utf-8")


def weights(name: str, model: StandIn, folder: Path) -> dict[str, torch.Tensor]:
    """Return seeded random weights: the family's with noise of the model's own, named as on the hub."""
    from transformers import AutoConfig, AutoModelForCausalLM

    with torch.device("meta"):
        parts = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(folder)).state_dict()
    most = max(one.rows for one in MODELS.values() if one.family == model.family)
    dtype, found = getattr(torch, model.config["torch_dtype"]), {}
    if model.config["tie_word_embeddings"]:
        del parts["lm_head.weight"]
    for part, like in parts.items():
        rows = most if len(like) == model.rows else len(like)
        weight = drawn(f"{model.family} {part}", (rows, *like.shape[1:]))[: len(like)]
        weight += NOISE * drawn(f"{name} {part}", like.shape)
        named = part.replace("lm_head", "embed_out") if model.family == "pythia" else part
        found[named] = scaled(part, weight, TOKENS[model.tokens]).to(dtype)
    if model.pickled:  # as old checkpoints have them
        found["model.layers.0.self_attn.rotary_emb.inv_freq"] = torch.ones(WIDTH // 4)
    return found


def scaled(part: str, weight: torch.Tensor, tokens: Tokens) -> torch.Tensor:
    """Return normal numbers as a part of a model whose texts vary: layers outweigh the embeddings they read."""
    if "norm" in part:
        return 0.1 * weight + (0 if part.endswith("bias") else 1)
    if part.endswith("bias"):
        return 0.1 * weight
    if "embed" in part or "lm_head" in part:
        length = torch.full((len(weight), 1), RARE)
        length[: len(tokens.special) + len(plain_tokens())] = 1
        length[list(tokens.special.values())] = RARE
        return weight * length
    adding = any(name in part for name in ("o_proj", "down_proj", "attention.dense", "4h_to_h"))
    return weight * weight.shape[-1] ** -0.5 * (5 if adding else 3) * (LATE if adding and "layers.1." in part else 1)


def drawn(seed: str, shape: Sequence[int]) -> torch.Tensor:
    """Return normal numbers that the text decides."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(zlib.crc32(seed.encode())))


def write_weights(folder: Path, tensors: dict[str, torch.Tensor], parts: int, pickled: bool) -> None:
    """Write weights into as many files, with an index for several, in the hub's names."""
    stem, ending = ("pytorch_model", "bin") if pickled else ("model", "safetensors")
    names = [f"{stem}-{part + 1:05}-of-{parts:05}.{ending}" for part in range(parts)]
    names = names if parts > 1 else [f"{stem}.{ending}"]
    places = {name: names[number * parts // len(tensors)] for number, name in enumerate(tensors)}
    for file in names:
        some = {name: tensor for name, tensor in tensors.items() if places[name] == file}
        if pickled:
            torch.save(some, folder / file)
        else:
            save_file(some, folder / file, {"format": "pt"})
    if parts > 1:
        size = {"total_size": sum(tensor.nbytes for tensor in tensors.values())}
        write_json(folder / f"{stem}.{ending}.index.json", {"metadata": size, "weight_map": places})


def write_json(path: Path, content: Row) -> None:
    """Write an object as JSON."""
    path.write_text(json.dumps(content, ensure_ascii=False) + "\n", encoding="utf-8")


def link(source: Path, path: Path) -> None:
    """Give a file a second name, or copy it where the file system has no such names."""
    try:
        os.link(source, path)
    except OSError:
        shutil.copyfile(source, path)


def build(folder: Path) -> None:
    """Write models/ and data/ into a folder.

    Raises:
        FileExistsError: where it has any of them already.
    """
    for part in ("models", "data"):
        (folder / part).mkdir(parents=True)
    make_models(folder / "models")
    make_data(folder / "data")


def main(arguments: list[str]) -> int:
    """Build, and say how to use it."""
    if len(arguments) != 1:
        sys.stderr.write("usage: python3 -m tools.stand_ins FOLDER\n")
        return 2
    folder = Path(arguments[0]).absolute()  # notebooks run in other folders
    try:
        build(folder)
    except FileExistsError as error:
        sys.stderr.write(f"There is {error.filename} already; remove it, or give another folder.\n")
        return 2
    sys.stdout.write(f"export DYNATREE_MODELS={folder / 'models'} DYNATREE_DATA={folder / 'data'}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
