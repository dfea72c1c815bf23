#!/usr/bin/env bash
# The records of docs/results.md: tunes the bundled pair on this machine, measures all methods in one run, greedy and at temperature
# 1, has the verification rules judge the same trees, fills in the tables. About ten minutes on two cores; nothing else should run.
#
#   tools/cpu_reference.sh [OUT]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-outputs/reference/cpu}
mkdir -p "$out"
dynatree() { python3 -m dynatree_suite "$@"; }

dynatree tune --pair tiny --out "$out/tuned.json" | tee "$out/tuned.txt"
dynatree bench --pair tiny --limit 20 --max-new-tokens 200 --trace --tuned "$out/tuned.json" \
  --methods "hf-generate,hf-assisted,hf-assisted:num_assistant_tokens=5,confidence=0.0,hf-prompt-lookup,ar,ar-fast,chain:length=4,fixed-tree,adaptive-tree,best-first-tree,cost-aware-tree,lookup-tree,prompt-lookup,fixed-tree:depth=9,branching=3,tau=0.03,max_nodes=129,root=draft,commit=rebuild,adaptive-tree:root=draft,max_nodes=257,history=text,target_acceptance=0.7,carry=true,commit=rebuild" \
  --json "$out/bench.json" --records "$out/bench.jsonl" --overwrite
dynatree bench --pair tiny --limit 20 --max-new-tokens 200 --temperature 1 \
  --methods "hf-generate,hf-assisted,ar,ar-fast,chain:length=4,fixed-tree,lookup-tree,sampled-tree:branching=1,verifier=token-level,sampled-tree:branching=1,sampled-tree:branching=2/1,verifier=token-level,sampled-tree:branching=2/1,sampled-tree:shape=eagle,verifier=token-level,sampled-tree:shape=eagle,adaptive-tree:draw=distinct" \
  --json "$out/sampled.json" --records "$out/sampled.jsonl" --overwrite
dynatree judge --pair tiny --limit 44 --max-new-tokens 40 --rules token-level,traversal --out "$out/judged.jsonl" --overwrite | tee "$out/judged.txt"
gzip -9nf "$out"/{bench,sampled,judged}.jsonl
python3 -m tools.fill_tables docs/results.md
