#!/usr/bin/env bash
# The records on the pair smollm2: 39 prompts of Spec-Bench (3 of each of its 13 categories), 128 tokens, all methods of a run in turn. One run for
# each dtype and temperature, each about 45 minutes on two cores; nothing else should run. A stopped run goes on.
#
#   tools/smollm2_reference.sh [OUT] [RUN ...]      RUN: float32 bfloat16 float32-0.5 float32-1 float32-others; all by default
#
# DYNATREE_DATA names the folder with spec_bench/. With DYNATREE_LLAMA_CPP (tools/llama_cpp_peer.sh) the greedy runs have llama.cpp as well.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-outputs/reference/smollm2}
shift || true
runs=${*:-float32 bfloat16 float32-0.5 float32-1 float32-others}
mkdir -p "$out"
dynatree() { python3 -m dynatree_lib "$@"; }

plain=hf-generate,ar-fast
greedy=$plain,hf-assisted,chain:length=4,fixed-tree,cost-aware-tree,lookup-tree
others=$plain,chain:length=4,independent=true,adaptive-tree,best-first-tree,prompt-lookup,ptd
sampled=$plain,chain:length=4,sampled-tree:branching=1,sampled-tree:branching=1,verifier=token-level,sampled-tree:branching=2/1,sampled-tree:branching=2/1,verifier=token-level,adaptive-tree:draw=distinct,cost-aware-sampled-tree,lookup-tree
if [ -n "${DYNATREE_LLAMA_CPP:-}" ]; then
  greedy=$greedy,llama-cpp,llama-cpp:tool=lookup,llama-cpp:tool=speculative
  others=$others,llama-cpp:weights=q4_1,llama-cpp:tool=lookahead,llama-cpp:tool=tree
fi
for run in $runs; do
  dtype=${run%%-*} temperature=0 methods=$greedy
  case $run in
    *-others) methods=$others ;;
    *-*) temperature=${run#*-} methods=$sampled ;;
  esac
  resume=$([ -f "$out/$run.jsonl" ] && echo --resume || true)
  dynatree bench --pair smollm2 --dtype "$dtype" --workload spec-bench/categories --limit 39 --max-new-tokens 128 --temperature "$temperature" \
    --stop-at-eos --methods "$methods" --json "$out/$run.json" --records "$out/$run.jsonl" $resume | tee "$out/$run.txt"
done
