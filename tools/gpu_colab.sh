#!/usr/bin/env bash
# What the records of SmolLM2 on a GPU lack, the most wanted first, in about ten minutes: the plan of the profile colab; fixed trees
# against adaptive ones and the default, in CUDA graphs; Progressive Tree Drafting and its baselines; traversal against token-level
# verification at temperature 1. Records name the peak of the device's memory, too. A part that is stopped goes on when called again.
#
#   tools/gpu_colab.sh OUT                          # then copy OUT to outputs/reference/<gpu>/
#   PAIR=tiny DEVICE=cpu LIMIT=1 TOKENS=8 tools/gpu_colab.sh OUT    # a trial without a GPU
set -uo pipefail
cd "$(dirname "$0")/.."
out=${1:?folder for the results} pair=${PAIR:-smollm2} device=${DEVICE:-cuda} limit=${LIMIT:-27} tokens=${TOKENS:-128} failed=0
mkdir -p "$out"
dynatree() { python3 -m dynatree_suite "$@"; }

# part NAME SECONDS OPTION...: a benchmark over static buffers; its records say how far it came.
part() {
  local name=$1 seconds=$2; shift 2
  timeout "$seconds" python3 -m dynatree_suite bench --pair "$pair" --device "$device" ${DTYPE:+--dtype "$DTYPE"} --static \
    --workload bundled --limit "$limit" --max-new-tokens "$tokens" --records "$out/$name.jsonl" --json "$out/$name.json" --resume "$@" \
    2>&1 | tee "$out/$name.log" || { echo "gpu_colab: $name stopped" >&2; failed=1; }
}

dynatree run --profile colab --dry-run -p pair="$pair" -p device="$device" | tee "$out/plan.txt" || failed=1
part trees 180 --methods hf-generate,ar-fast,chain,fixed-tree,adaptive-tree,cost-aware-tree,lookup-tree
part ptd 150 --methods ar-fast,ptd,ptd:text_depth=6,lookahead,self-draft,prompt-lookup
part traversal 150 --temperature 1 --methods ar-fast,sampled-tree:verifier=traversal,sampled-tree:verifier=token-level
part traversal-chain 60 --temperature 1 --methods ar-fast,sampled-tree:branching=1,verifier=traversal,sampled-tree:branching=1,verifier=token-level
exit "$failed"
