#!/usr/bin/env bash
# The records on speed in docs/results.md: forwards by engine and rows, cost as the text and the tree grow, batches, and where
# rounding changes greedy texts (bfloat16, which flips now and then, on more prompts). Nine minutes on two cores; nothing else
# should run. The GPU's are made by tools/gpu_speed.sh.
#
#   tools/speed_reference.sh [OUT]
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-outputs/reference/cpu}
mkdir -p "$out"
dynatree() { python3 -m dynatree_suite "$@"; }

python3 -m tools.growth "$out/growth.json"
python3 - "$out" <<'PYTHON'
import json, sys
from pathlib import Path
from dynatree_lib import load_pair
from dynatree_suite.bench.environment import describe_environment
from dynatree_suite.costs.cost_growth import forward_times
from dynatree_suite.bench.throughput import throughput
from dynatree_suite.papers.workloads import load_workload

def write(name, **found):
    text = json.dumps({"environment": describe_environment(), **found}, indent=1) + "\n"
    Path(sys.argv[1], name).write_text(text, encoding="utf-8")

pairs = {engine: load_pair("tiny", engine=engine) for engine in ("eager", "lean", "packed")}
write("engines.json", **{role: forward_times({name: getattr(pair, role) for name, pair in pairs.items()},
                                             (1, 2, 4, 8, 16, 32, 64), 256) for role in ("target", "draft")})
methods = "hf-generate,ar,chain:length=4,fixed-tree,lookup-tree"
found = throughput(pairs["packed"], methods, load_workload("bundled").prompts[:16], (1, 2, 4, 8, 16), max_new_tokens=64)
write("throughput.json", source="bundled prompts 1 to 16", rows=found)
PYTHON
dynatree precision --pair tiny --dtypes float32,float16 --rows 2,8,32 --limit 8 --max-new-tokens 48 \
  --json "$out/precision.json" | tee "$out/precision.txt"
dynatree precision --pair tiny --dtypes bfloat16 --limit 30 --max-new-tokens 64 \
  --json "$out/precision-bfloat16.json" | tee "$out/precision-bfloat16.txt"
