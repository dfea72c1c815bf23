#!/usr/bin/env bash
# The records of Progressive Tree Drafting: the counts its open choices rest on, on bundled prompts that no other record uses; then its
# four benchmarks from local folders, all methods in one interleaved run, greedy and at temperature 0.5. DATA holds gsm8k/,
# human_eval/, mbpp/ and spec_bench/. About ten minutes on two cores; nothing else should run. Between the two the caps on PTD's trees are
# counted, on SmolLM2 as well; that takes half an hour more and needs no quiet machine.
#
#   tools/ptd_reference.sh DATA [OUT]
set -euo pipefail
data=${1:?give the folder with gsm8k/, human_eval/, mbpp/ and spec_bench/}
data=$(realpath "$data")
cd "$(dirname "$0")/.."
out=${2:-outputs/reference/cpu}
mkdir -p "$out"
dynatree() { python3 -m dynatree_suite "$@"; }
costs=$(python3 -c "import json, sys; print('/'.join(map(str, json.load(open(sys.argv[1]))['costs']['verify_points'])))" "$out/tuned.json")
aware="ptd:start_tree=1,depth=3,max_draft=4,text_depth=10,prune_first=false,costs=$costs"
common=(--pair tiny --workload gsm8k,humaneval,mbpp,mt-bench --data "$data" --turns all --limit 6 --max-new-tokens 128)
rest="ptd,ptd:prune_first=false,ptd:text_depth=6,$aware,lookahead,lookahead:text=true,self-draft,self-draft:text=false,prompt-lookup"

python3 - "$out" <<'PYTHON'
import json, sys
from pathlib import Path
from dynatree_lib import Sampling, load_pair
from dynatree_suite.bench.protocol import run_benchmark
from dynatree_suite.papers.workloads import load_workload

options = ["start_tree=1", "start_tree=2", "start_tree=3", "start_tree=6", "start_tree=2/2", "start_tree=4/2",
           "max_draft=32", "max_draft=64", "max_draft=200", "max_candidates=8", "max_candidates=16", "max_candidates=32"]
aware = [f"text_depth={deep},start_tree={lines},depth={depth},max_draft={lines * (depth + 1)},prune_first=false"
         for deep in (6, 10) for lines, depth in ((1, 3), (1, 6), (2, 3), (2, 6))]
methods = ["ar", "ptd", *(f"ptd:{one}" for one in (*options, "prune_first=false", *aware))]
prompts = load_workload("bundled").prompts[20::12]
found = {name: run_benchmark(load_pair("tiny"), methods, prompts, max_new_tokens=128, sampling=Sampling(heat),
                             source="bundled prompts 21, 33, 45, ...").to_json()
         for name, heat in (("greedy", 0.0), ("temperature 0.5", 0.5))}
Path(sys.argv[1], "ptd_choices.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")

earlier = "ptd:max_draft=64,max_candidates=32"  # the defaults until 2026-11
caps = ["ptd", earlier, "ptd:max_draft=48", "ptd:max_draft=40", "ptd:max_candidates=32"]
prompts, counted = load_workload("bundled").prompts[20::4], {}
for name, length, methods in (("tiny", 128, caps), ("smollm2", 96, caps), ("tiny", 384, caps[:2]), ("smollm2", 384, caps[:2])):
    counted[f"{name}, {length} tokens"] = run_benchmark(
        load_pair(name), methods, prompts, max_new_tokens=length, warmup=0, source="bundled prompts 21, 25, 29, ...").to_json()
Path(sys.argv[1], "ptd_caps.json").write_text(json.dumps(counted, indent=1) + "\n", encoding="utf-8")
PYTHON
dynatree bench "${common[@]}" --methods "hf-generate,ar,ar-fast,chain:length=4,$rest" \
  --json "$out/ptd.json" --records "$out/ptd.jsonl" --overwrite
dynatree bench "${common[@]}" --temperature 0.5 \
  --methods "hf-generate,ar,ar-fast,sampled-tree:branching=1,depth=4,verifier=token-level,$rest" \
  --json "$out/ptd-sampled.json" --records "$out/ptd-sampled.jsonl" --overwrite
python3 - "$out" "$aware" <<'PYTHON'
import json, sys
from pathlib import Path
from dynatree_lib import load_pair
from dynatree_suite.bench.environment import describe_environment
from dynatree_suite.papers.ptd.analysis import stage_rows
from dynatree_suite.papers.workloads import load_workload

rows = stage_rows(load_pair("tiny"), ["ar", "ptd", sys.argv[2]], load_workload("bundled").prompts[:10], 200)
found = {"environment": describe_environment(), "rows": rows}
Path(sys.argv[1], "ptd_stages.json").write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
PYTHON
gzip -9nf "$out"/{ptd,ptd-sampled}.jsonl
python3 -m tools.fill_tables docs/results.md
