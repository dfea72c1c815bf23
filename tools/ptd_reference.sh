#!/usr/bin/env bash
# The records of Progressive Tree Drafting: its four benchmarks from local folders, all five methods in one interleaved run, greedy and
# at temperature 0.5. DATA holds gsm8k/, human_eval/, mbpp/ and spec_bench/. About ten minutes on two cores; nothing else should run.
#
#   tools/ptd_reference.sh DATA [OUT]
set -euo pipefail
data=${1:?give the folder with gsm8k/, human_eval/, mbpp/ and spec_bench/}
data=$(realpath "$data")
cd "$(dirname "$0")/.."
out=${2:-outputs/reference/cpu}
mkdir -p "$out"
dynatree() { python3 -m dynatree_lib "$@"; }
costs=$(python3 -c "import json, sys; print('/'.join(map(str, json.load(open(sys.argv[1]))['costs']['verify_points'])))" "$out/tuned.json")
aware="ptd:start_tree=1,depth=3,max_draft=4,text_depth=10,prune_first=false,verify_cost=$costs"
common=(--pair tiny --workload gsm8k,humaneval,mbpp,mt-bench --data "$data" --turns all --limit 8 --max-new-tokens 128)
rest="ptd,ptd:prune_first=false,ptd:text_depth=6,$aware,lookahead,lookahead:text=true,self-draft,self-draft:text=false,prompt-lookup"

dynatree bench "${common[@]}" --methods "hf-generate,ar,chain:length=4,$rest" \
  --json "$out/ptd.json" --records "$out/ptd.jsonl" --overwrite | tee "$out/ptd.txt"
dynatree bench "${common[@]}" --temperature 0.5 \
  --methods "hf-generate,ar,sampled-tree:branching=1,depth=4,verifier=token-level,$rest" \
  --json "$out/ptd-sampled.json" --records "$out/ptd-sampled.jsonl" --overwrite | tee "$out/ptd-sampled.txt"
python3 -m dynatree_lib.bench.quote README.md
