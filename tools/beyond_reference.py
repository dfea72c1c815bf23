"""Measure drafts with another tokenizer, and a target that drafts for itself, on SmolLM2, for docs/beyond.md.

python3 -m tools.beyond_reference [OUT] [vocabularies] [skipping]

`vocabularies.json` is a benchmark of the target of `smollm2` with the draft of `tiny`, whose tokenizer is another one.
`skipping.json` holds the search for the layers to leave out, on bundled prompts after the first 20, and a benchmark of
what it found. Both have one prompt of each task of the bundled workload. Nothing else should run.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dynatree_lib.cli.options import JUDGED
from dynatree_lib.measure.layers import search_layers
from dynatree_lib.measure.prompts import prepare_prompts
from dynatree_lib.measure.protocol import run_benchmark
from dynatree_lib.models.pairs import Pair, load_pair
from dynatree_lib.paths import write_atomically
from dynatree_lib.workloads import load_workload

NEW_TOKENS = 64  # of a text
PROMPTS = 9  # one of each task
SEARCHED = 3  # prompts that layers are searched on
TRIES = 8  # candidates of each step of the search
TRANSLATED = (
    "hf-generate,hf-assisted:num_assistant_tokens=4,confidence=0.0,ar,ar-fast,prompt-lookup,chain:length=2,"
    "chain:length=2,retokenized=true,fixed-tree,fixed-tree:retokenized=true,lookup-tree,lookup-tree:retokenized=true"
)


def vocabularies() -> dict[str, Any]:
    """Measure both ways on a pair of two tokenizers against plain decoding."""
    pair = load_pair(target="smollm2", draft="tiny", vocabularies="intersection")
    return _measured(pair, TRANSLATED)


def skipping() -> dict[str, Any]:
    """Search the layers to leave out and measure the chain that gains most, and the same with fewer and more layers."""
    pair = load_pair("smollm2")
    workload = load_workload("bundled", limit=JUDGED + SEARCHED, tokenizer=pair.tokenizer)
    ids = [prompt.ids for prompt in prepare_prompts(pair, workload.prompts[JUDGED:], NEW_TOKENS)]
    found = search_layers(pair.target, ids, max_new_tokens=NEW_TOKENS, tries=TRIES, progress=_say)
    few = max(found.steps, key=lambda step: (step.agreement >= 0.7, len(step.layers)))  # the most at this agreement
    specs = [
        f"{method},skip={'/'.join(map(str, step.layers))}"
        for step in dict.fromkeys((found.best, few))
        for method in (f"chain:length={step.length}", "cost-aware-tree:depth=4")
    ]
    return {"search": found.to_json(), **_measured(pair, ",".join(["hf-generate,ar,ar-fast,chain:length=4", *specs]))}


def _measured(pair: Pair, methods: str) -> dict[str, Any]:
    workload = load_workload("bundled", limit=PROMPTS, tokenizer=pair.tokenizer)
    return run_benchmark(
        pair, methods, workload.prompts, max_new_tokens=NEW_TOKENS, ignore_eos=True, trace=2, bandwidth=True,
        source=workload.source, progress=_say,
    ).to_json()  # fmt: skip


def _say(line: str) -> None:
    sys.stderr.write(line + "\n")


RECORDS = {"vocabularies": vocabularies, "skipping": skipping}


def main(arguments: Sequence[str]) -> None:
    """Write the records that are named, by default all, into the folder that comes first."""
    names = [argument for argument in arguments if argument in RECORDS] or list(RECORDS)
    folder = next((Path(argument) for argument in arguments if argument not in RECORDS), Path("outputs/reference"))
    for name in names:
        write_atomically(folder / f"{name}.json", json.dumps(RECORDS[name](), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
