"""Add the acceptance on the bundled prompts to the card and model card of a finished pair, as data/tiny has it.

python3 -m tools.pair_acceptance FOLDER

Acceptance is tokens per iteration of a chain and a tree, greedy and sampled, by task, and on the texts that repeat
themselves least, because a target that loops is easy to draft for. There is no clock.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dynatree_lib.decoding import Generation, generate
from dynatree_lib.drafters import Chain, FixedTree
from dynatree_lib.models.pairs import Pair, load_pair
from dynatree_lib.sampling import Sampling
from dynatree_lib.summary import summarize
from dynatree_suite.bench.metrics import repeated_ngrams
from dynatree_suite.papers.workloads import WorkloadPrompt, load_workload
from dynatree_suite.training.card import CARD, write_card
from tools.pair_training.card import page

NEW_TOKENS = 128  # of a text


def measure_acceptance(pair: Pair, prompts: Sequence[WorkloadPrompt], source: str) -> dict[str, Any]:
    """Measure tokens per iteration (bonus token included) and repeated 4-gram shares.

    Args:
        pair: target and draft.
        prompts: held out from their training.
        source: sentence on where the prompts come from.
    """
    drafters = {"chain of 4": Chain(pair.draft, 4), "tree of depth 8": FixedTree(pair.draft, depth=8)}
    ids = [pair.tokenizer(prompt.text).input_ids for prompt in prompts]
    out: dict[str, Any] = {"prompts": source, "new tokens each": NEW_TOKENS}
    for name, sampling in (("greedy", Sampling()), ("sampled, temperature 1", Sampling(1.0))):
        options: dict[str, Any] = {"sampling": sampling, "max_new_tokens": NEW_TOKENS, "eos_token_ids": ()}
        texts = {
            kind: [generate(pair.target, text, drafter, seed=seed, **options) for seed, text in enumerate(ids)]
            for kind, drafter in drafters.items()
        }
        out[name] = {f"tokens per iteration, {kind}": _rate(runs) for kind, runs in texts.items()}
        chain = texts["chain of 4"]
        repeated = np.array([repeated_ngrams(generation.tokens) or 0.0 for generation in chain])
        out[name]["repeated 4-grams"] = float(repeated.mean())
        out[name]["chain of 4 by task"] = {
            task: _rate([generation for generation, prompt in zip(chain, prompts, strict=True) if prompt.task == task])
            for task in dict.fromkeys(prompt.task for prompt in prompts)
        }
        least = np.argsort(repeated, kind="stable")[: max(1, len(prompts) // 3)]
        out[name]["the third that repeats least"] = {
            "repeated 4-grams": float(repeated[least].mean()),
            **{f"tokens per iteration, {kind}": _rate([runs[i] for i in least]) for kind, runs in texts.items()},
        }
    return out


def _rate(runs: list[Generation]) -> float:
    return round(summarize(runs).tokens_per_iteration, 3)


def add_to_card(folder: Path) -> dict[str, Any]:
    """Measure the pair in `folder` on the bundled prompts and write the figures into its card and model card."""
    workload = load_workload("bundled", source="bundled")
    card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    card["acceptance"] = measure_acceptance(load_pair(str(folder)), workload.prompts, workload.source)
    write_card(folder, card, page(card))
    return card["acceptance"]


if __name__ == "__main__":
    json.dump(add_to_card(Path(sys.argv[1])), sys.stdout, indent=1)
