#!/usr/bin/env bash
# Everything that wants an NVIDIA GPU, in one command: train the tiny pair and a pair of the Pythia-160M/14M shapes from local
# text, tune and benchmark both. Needs Python with torch, transformers, safetensors, numpy and tokenizers; no network, no install.
#
#   tools/gpu_reference.sh DATA OUT [MINUTES]
#
# DATA holds wikitext-2-raw/, pg19/, gsm8k/, mbpp/; OUT gets pairs, logs and records; MINUTES bounds each training (default 8).
# Afterwards, copy OUT's records to outputs/reference/<gpu>/, and a better tiny pair to data/tiny (see its card).
set -euo pipefail
cd "$(dirname "$0")/.."
data=${1:?folder with the local texts} out=${2:?folder for the results} minutes=${3:-8}
mkdir -p "$out"
dynatree() { python3 -m dynatree_suite "$@"; }

for recipe in tiny pythia-160m-14m; do
  python3 -m tools.pair_training --recipe "$recipe" --data "$data" --out "$out/$recipe" --work "$out/work-$recipe" --device cuda \
    --max-minutes "$minutes" 2>&1 | tee "$out/train-$recipe.log"
  for dtype in float32 bfloat16; do
    dynatree tune --pair "$out/$recipe" --device cuda --dtype "$dtype" --max-rows 256 --out "$out/tuned-$recipe-$dtype.json"
    dynatree bench --pair "$out/$recipe" --device cuda --dtype "$dtype" --limit 20 --max-new-tokens 200 --trace \
      --tuned "$out/tuned-$recipe-$dtype.json" \
      --methods "hf-generate,hf-assisted,hf-prompt-lookup,ar,ar-fast,chain:length=4,fixed-tree,adaptive-tree,best-first-tree,cost-aware-tree,lookup-tree,ptd,ptd:text_depth=6,lookahead,self-draft,prompt-lookup,fixed-tree:depth=8,branching=3,tau=0.03,max_nodes=64" \
      --json "$out/bench-$recipe-$dtype.json" --records "$out/bench-$recipe-$dtype.jsonl" --overwrite
  done
done
# Weights do not fit a reference folder; the tiny pair's do.
rm -rf "$out"/work-* && du -sh "$out"
