#!/usr/bin/env bash
# The default on models that it was not made on, greedily and at temperature 1: the bundled pair, a random Llama of half a billion weights
# and a random GPT-2 of 124 million. At temperature 1 a random model's text cannot be guessed, so nothing may be lost there. Nothing else
# should run.
#
#   tools/other_models_reference.sh [OUT] [RUN ...]
#
# RUN: tiny, llama, gpt2, and tiny-1, llama-1, gpt2-1 at temperature 1; all by default. The random models (2.5 GB) are kept in the cache folder.
# DYNATREE_DATA names the folder with spec_bench/.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-outputs/reference/other-models}
shift || true
runs=${*:-tiny llama gpt2 tiny-1 llama-1 gpt2-1}
models=$(python3 -c 'from dynatree_lib.paths import cache_folder; print(cache_folder() / "random")')
mkdir -p "$out" "$models"

python3 - "$models" $runs <<'PYTHON'
import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GPT2Config, LlamaConfig

from dynatree_lib.models.fetch import fetched

folder, names = Path(sys.argv[1]), {run.removesuffix("-1") for run in sys.argv[2:]}
shared = {"vocab_size": 49152, "bos_token_id": 1, "eos_token_id": 2, "tie_word_embeddings": True}
configs = {
    "llama": LlamaConfig(
        hidden_size=1024, intermediate_size=2816, num_hidden_layers=40, num_attention_heads=16, num_key_value_heads=4, **shared
    ),
    "gpt2": GPT2Config(n_positions=2048, **shared),
}
for name in sorted(names & set(configs)):
    if (folder / name / "config.json").exists():
        continue
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(configs[name], dtype=torch.float32)
    AutoTokenizer.from_pretrained(fetched("smollm2")).save_pretrained(folder / name)
    model.save_pretrained(folder / name)
PYTHON

for run in $runs; do
  lines=$out/$run.jsonl temperature=0 name=${run%-1} methods=ar-fast,ar,auto:alone=true
  [ "$name" = "$run" ] || temperature=1
  [ ! -f "$lines.gz" ] || continue
  if [ "$name" = tiny ]; then model="--pair tiny" methods=$methods,auto; else model="--target $models/$name --draft skip:1"; fi # no method here uses that draft
  dynatree bench $model --workload spec-bench/categories --limit 13 --max-new-tokens 64 --temperature "$temperature" --methods "$methods" \
    --repeats 3 --json "$out/$run.json" --records "$lines" $([ -f "$lines" ] && echo --resume) | sed "/^Saved in /d" | tee "$out/$run.txt"
  python3 -m tools.pack_records "$lines"
done
